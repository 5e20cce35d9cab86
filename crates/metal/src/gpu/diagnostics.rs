//! What Metal's compiler says of a text that compiles, and what others say in its place. It knows no kernel.

/// In the first line of a warning; what follows it are the line of the text, a caret, and notes.
const WARNING: &str = ": warning: ";

/// In the words of a compilation that the compiler, a process of its own, did not answer: "Unable to reach MTLCompilerService. […] Broken pipe"
/// (omlx #1335), "Compiler failed with XPC_ERROR_CONNECTION_INTERRUPTED" (flutter #68649). It has ended, perhaps because of this text, or could
/// not begin; for the next it is started anew.
const NO_COMPILER: [&str; 2] = ["MTLCompilerService", "XPC_ERROR"];

/// Whether these are the words for a compilation that the compiler did not answer.
pub(crate) fn are_of_no_compiler(words: &str) -> bool {
    NO_COMPILER.iter().any(|part| words.contains(part))
}

/// The words of a compilation without the warnings of lines of `prelude`, and those. Either is empty if there are none.
pub(crate) fn split(words: &str, prelude: &str) -> (String, String) {
    let is_of_prelude = |warning: &String| warning.lines().any(|line| prelude.lines().any(|own| own == line.trim()));
    let (of_prelude, others): (Vec<String>, Vec<String>) = warnings(words).into_iter().partition(is_of_prelude);
    let others = others.concat();
    // What comes before the first warning is a headline.
    let only_headline = !of_prelude.is_empty() && !others.contains(WARNING);
    (if only_headline { String::new() } else { others }, of_prelude.concat())
}

/// Each with all its lines; first what comes before them.
fn warnings(words: &str) -> Vec<String> {
    let mut warnings = vec![String::new()];
    for line in words.split_inclusive('\n') {
        if line.contains(WARNING) {
            warnings.push(String::new());
        }
        warnings.last_mut().expect("there is one from the start").push_str(line);
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRELUDE: &str = "#pragma ONE\n#pragma TWO on\n";
    const HEADLINE: &str = "Compilation succeeded with: \n\n";
    const OF_PRELUDE: &str =
        "program_source:1:9: warning: unknown pragma ignored [-Wunknown-pragmas]\n#pragma ONE\n        ^\n";
    const OWN: &str = "add.metal:2:7: warning: unused variable 'x' [-Wunused-variable]\n  int x;\n      ^\n";

    #[test]
    fn warnings_of_the_prelude_are_told_from_the_kernels() {
        let split = |words: &[&str]| split(&words.concat(), PRELUDE);
        let pair = |own: &[&str], of_prelude: &str| (own.concat(), of_prelude.to_owned());
        assert_eq!(split(&[HEADLINE, OF_PRELUDE]), pair(&[], OF_PRELUDE));
        assert_eq!(split(&[HEADLINE, OWN]), pair(&[HEADLINE, OWN], ""));
        assert_eq!(split(&[HEADLINE, OF_PRELUDE, OWN]), pair(&[HEADLINE, OWN], OF_PRELUDE));
        assert_eq!(split(&["other words"]), pair(&["other words"], ""));
    }

    #[test]
    fn a_compiler_that_does_not_answer_is_told_from_one_that_refuses() {
        for words in [
            "Unable to reach MTLCompilerService. Connection init failed at lookup with error 32 - Broken pipe",
            "Compiler failed with XPC_ERROR_CONNECTION_INTERRUPTED",
        ] {
            assert!(are_of_no_compiler(words), "{words}");
        }
        for words in ["Compute function exceeds available temporary registers", OWN, ""] {
            assert!(!are_of_no_compiler(words), "{words}");
        }
    }
}
