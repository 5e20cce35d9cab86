//! Stop strings across token boundaries, against a plain search of the whole text.

use proptest::prelude::*;
use vllm_apple::text::StopChecker;

/// Streams `pieces` and returns the text sent piece by piece, all of it, and the stop string found.
fn run(stops: &[&str], include: bool, min_tokens: usize, pieces: &[&str]) -> (Vec<String>, String, Option<String>) {
    let stops = stops.iter().map(|s| (*s).to_owned()).collect();
    let mut checker = StopChecker::new(stops, include, min_tokens);
    let mut sent = Vec::new();
    for piece in pieces {
        let output = checker.push(piece);
        sent.push(output.text);
        if output.stop.is_some() {
            let all = sent.concat();
            return (sent, all, output.stop);
        }
    }
    let all = sent.concat() + &checker.finish();
    (sent, all, None)
}

fn check(stops: &[&str], include: bool, min_tokens: usize, pieces: &[&str], text: &str, stop: Option<&str>) {
    let (_, all, found) = run(stops, include, min_tokens, pieces);
    assert_eq!((all.as_str(), found.as_deref()), (text, stop), "{stops:?} in {pieces:?}");
}

#[test]
fn finds_a_stop_string_wherever_tokens_end() {
    check(&["END"], false, 0, &["a END b"], "a ", Some("END"));
    check(&["END"], false, 0, &["a E", "N", "D b"], "a ", Some("END"));
    check(&["END"], true, 0, &["a E", "N", "D b"], "a END", Some("END"));
    check(&["END"], false, 0, &["a E", "N", "d b"], "a ENd b", None);
    check(&["END"], false, 0, &["a E", "N"], "a EN", None);
    check(&["\n\n"], false, 0, &["a\n", "b\n", "\nc"], "a\nb", Some("\n\n"));
    check(&["aab"], false, 0, &["a", "a", "a", "b"], "a", Some("aab"));
    check(&["狐狸"], false, 0, &["ä狐", "狸!"], "ä", Some("狐狸"));
    check(&["", "x"], false, 0, &["abc", ""], "abc", None);
    check(&[], false, 0, &["abc"], "abc", None);
}

#[test]
fn the_first_to_end_wins_within_a_token() {
    for stops in [["c", "b"], ["b", "c"]] {
        for pieces in [&["abc"][..], &["ab", "c"]] {
            check(&stops, false, 0, pieces, "a", Some("b"));
            check(&stops, true, 0, pieces, "ab", Some("b"));
        }
    }
    check(&["\n\n", "."], false, 0, &[".\n\n"], "", Some("."));
    // It may begin later than another.
    check(&["abc", "b"], false, 0, &["xabc"], "xa", Some("b"));
    // Of those that end together the request's order tells.
    check(&["bc", "c"], false, 0, &["abc"], "a", Some("bc"));
    check(&["c", "bc"], false, 0, &["abc"], "ab", Some("c"));
}

#[test]
fn holds_back_only_what_may_become_a_stop_string() {
    let (sent, _, _) = run(&["</s>", "STOP"], false, 0, &["a <", "b", " </", "s", ">"]);
    assert_eq!(sent, ["a ", "<b", " ", "", ""]);
    let (sent, _, _) = run(&["STOP"], true, 0, &["a S", "T", "OP"]);
    assert_eq!(sent, ["a S", "T", "OP"]);
}

#[test]
fn min_tokens_makes_early_stop_strings_text() {
    check(&["x"], false, 2, &["x", "x", "a", "x"], "xxa", Some("x"));
    check(&["xy"], false, 2, &["a", "x", "y"], "a", Some("xy"));
    check(&["x"], false, 3, &["x", "x", "x"], "xxx", None);
    // What was text stays text when the next token comes, and is not held back for it.
    check(&["ää"], false, 1, &["ää", "x"], "ääx", None);
    let (sent, _, _) = run(&["x"], false, 2, &["x", "a"]);
    assert_eq!(sent, ["x", "a"]);
}

proptest! {
    /// With one stop string the result is that of cutting the whole text at its first occurrence.
    #[test]
    fn equals_a_search_of_the_whole_text(
        pieces in proptest::collection::vec("[abä]{0,3}", 0..20),
        stop in "[abä]{1,4}",
        include: bool,
    ) {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let whole = pieces.concat();
        let end = |at: usize| if include { at + stop.len() } else { at };
        let (text, found) = match whole.find(&stop) {
            Some(at) => (&whole[..end(at)], Some(stop.as_str())),
            None => (whole.as_str(), None),
        };
        let (sent, all, matched) = run(&[&stop], include, 0, &pieces);
        prop_assert_eq!((all.as_str(), matched.as_deref()), (text, found));
        // What is held back is never longer than the stop string's beginning.
        let arrived: usize = pieces[..sent.len()].iter().map(|p| p.len()).sum();
        prop_assert!(matched.is_some() || arrived - sent.concat().len() < stop.len());
    }

    /// With several stop strings the text sent is always a beginning of the whole text, and contains none of them.
    #[test]
    fn never_sends_a_stop_string(
        pieces in proptest::collection::vec("[abc]{0,3}", 0..20),
        stops in proptest::collection::vec("[abc]{1,4}", 1..4),
    ) {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let whole = pieces.concat();
        let (_, all, found) = run(&stops, false, 0, &pieces);
        prop_assert!(whole.starts_with(&all));
        prop_assert_eq!(found.is_some(), stops.iter().any(|stop| whole.contains(stop)));
        if let Some(stop) = found {
            prop_assert!(whole[all.len()..].starts_with(&stop));
        }
        // However tokens cut the text, the same stop string is found.
        let letters: Vec<&str> = whole.split_inclusive(|_| true).collect();
        prop_assert_eq!(run(&stops, false, 0, &letters).2, run(&stops, false, 0, &[&whole]).2);
        prop_assert_eq!(run(&stops, false, 0, &letters).1, all);
    }
}
