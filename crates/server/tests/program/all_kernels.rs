//! What `doctor` finds of all Metal kernels. Tests begin in the order of their names, and this takes longest: it must not be what the others have
//! left for the end.

use super::doctor::examine;

/// Every access is checked, and decode moves at most a tenth more than it must. Attention does not even ask for more, cached or not.
#[test]
fn pass_on_the_software_device_and_move_little_more_than_they_must() {
    let facts = ["memory", "recommended working set", "families", "native bfloat16"];
    let choices = ["most tokens in a step", "attention", "prefill", "ops on the host"];
    let [ops, traffic] = examine("software-metal", &facts, &choices);
    for op in ["matmul", "paged_attention", "sample"] {
        assert!(ops.iter().any(|row| row["op"] == op), "{op}");
    }
    for row in &ops {
        let counted = row["moved_to_minimum"].as_f64();
        assert!(counted.is_some_and(|ratio| ratio >= 1.0) || row["op"] == "batch_invariance", "{row}");
    }
    // Of two models: four matmuls at two batch sizes, and attention at two and in a longer context; one of each in other types.
    let large = traffic.iter().filter(|row| row["op"] == "matmul" || row["op"] == "paged_attention");
    assert_eq!(large.count(), 2 * (4 * 2 + 3) + 2 * (2 + 1));
    for row in traffic {
        let number = |name: &str| row[name].as_f64().unwrap();
        let asked_for = (number("loaded_bytes") + number("stored_bytes")) / number("minimum_bytes");
        // A value is alone in what memory writes at once, see docs/PERFORMANCE.md.
        let limit = if row["op"] == "rope_kv_write" { 1.9 } else { 1.10 };
        assert!((1.0..=limit).contains(&number("ratio")), "{row}");
        assert!(asked_for >= 1.0 && (row["op"] != "paged_attention" || asked_for <= 1.10), "{row}");
    }
}
