//! Every file with kernels says what a reader needs first: grid, threadgroup memory, and the bytes that must move.

#[test]
fn every_kernel_says_what_it_needs_and_moves() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut checked = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("kernel void ") {
            for what in ["// Grid", "Threadgroup memory: ", "Bytes that must move: "] {
                assert!(text.contains(what), "{}: no line with {what:?}", path.display());
            }
            checked += 1;
        }
    }
    assert!(checked >= 17, "{checked}");
}
