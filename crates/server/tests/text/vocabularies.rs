//! llama.cpp's vocabularies of many families: its own texts become its own ids, or the file is refused by the name of what is not read. The
//! files are fetched by tools/test-vocabularies.sh.

use std::path::{Path, PathBuf};

use vllm_apple::text::Tokenizer;
use vllm_apple_model::file;

/// What stands behind each text.
const END: &str = "\n__ggml_vocab_test__\n";

/// Those that are read and have texts.
const EQUAL: [&str; 15] = [
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

/// A tokenizer of the vocabulary alone: these files have no weights, of which a model's configuration is made.
pub fn tokenizer(vocabulary: &Path) -> Result<Tokenizer, String> {
    let directory = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let made = file::read(&vocabulary.join(name), file::MAX_TOKENIZER).map_err(|error| error.to_string())?;
        std::fs::write(directory.path().join(name), made).unwrap();
    }
    Tokenizer::from_dir(directory.path()).map_err(|error| error.to_string())
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    PathBuf::from(format!("{}{end}", path.display()))
}

/// Texts that become other ids, and how many there are in all.
fn differences(tokenizer: &Tokenizer, vocabulary: &Path) -> (Vec<String>, usize) {
    let texts = std::fs::read_to_string(with_end(vocabulary, ".inp")).unwrap();
    let expected = std::fs::read_to_string(with_end(vocabulary, ".out")).unwrap();
    let (texts, expected): (Vec<_>, Vec<_>) = (texts.split_terminator(END).collect(), expected.lines().collect());
    assert!(texts.len() == expected.len() && texts.len() > 30, "{} texts, {} lines", texts.len(), expected.len());
    let mut found = Vec::new();
    for (text, expected) in texts.iter().zip(&expected) {
        let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let got = tokenizer.encode(text, false).unwrap();
        if got != expected {
            found.push(format!("{text:?}: expected {expected:?}, got {got:?}"));
        }
    }
    (found, texts.len())
}

#[test]
#[ignore = "needs VOCABULARIES, a directory of llama.cpp's: tools/test-vocabularies.sh"]
fn ids_are_llama_cpps_or_the_family_is_refused() {
    let directory = std::env::var_os("VOCABULARIES").expect("VOCABULARIES");
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut vocabularies: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect();
    vocabularies.sort();
    let (mut wrong, mut equal) = (Vec::new(), Vec::new());
    for path in &vocabularies {
        let name = path.file_stem().unwrap().to_str().unwrap().trim_start_matches("ggml-vocab-");
        match tokenizer(path) {
            Err(reason) => {
                println!("{name}: refused: {reason}");
                assert!(reason.contains("which is not supported; supported are"), "{name}: {reason}");
            }
            Ok(_) if !with_end(path, ".inp").exists() => println!("{name}: read, without texts"),
            Ok(tokenizer) => {
                let (found, texts) = differences(&tokenizer, path);
                println!("{name}: {} of {texts} equal", texts - found.len());
                equal.push(name);
                wrong.extend(found.into_iter().map(|text| format!("{name}: {text}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(equal, EQUAL);
}
