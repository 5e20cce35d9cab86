//! Which of a repository's GGUF files are the model that a tag means, such as `Q4_K_M`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use crate::load::gguf;

/// The files of the only model with that tag at the end of its name, in order. Small and large letters are the same.
///
/// # Errors
/// None has it, or several have: then their names, or the tags that there are.
pub(super) fn of_tag<'a>(names: &'a BTreeSet<String>, tag: &str) -> Result<Vec<&'a str>, String> {
    let mut found: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for (model, name) in models(names).filter(|(model, _)| has_tag(model.1, tag)) {
        found.entry(model).or_default().push(name);
    }
    match found.len() {
        0 => Err(format!("it has no GGUF model {tag}; {}", tags(names))),
        1 => Ok(found.into_values().flatten().collect()),
        _ => {
            let names: Vec<_> = found.into_keys().map(|(_, stem)| stem).collect();
            Err(format!("{tag} is several of its GGUF models ({}); give more of the name", names.join(", ")))
        }
    }
}

/// What one may ask for, in words; `None` if there is no GGUF model.
pub(super) fn question(model: &str, names: &BTreeSet<String>) -> Option<String> {
    models(names).next()?;
    Some(format!("it has GGUF models: say which, as in {model}:Q4_K_M; {}", tags(names)))
}

fn tags(names: &BTreeSet<String>) -> String {
    let tag = |(_, stem): (_, &str)| stem.rsplit(['-', '.']).next().unwrap_or(stem).to_owned();
    let tags: BTreeSet<String> = models(names).map(|(model, _)| tag(model)).collect();
    match tags.is_empty() {
        true => "it has none at all".to_owned(),
        false => format!("it has {}", tags.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

/// The files of language models, each with its directory and its name without what tells the files of a model apart.
fn models(names: &BTreeSet<String>) -> impl Iterator<Item = ((&Path, &str), &str)> {
    names.iter().filter_map(|name| {
        let path = Path::new(name);
        let stem = gguf::part_of(path).map_or(path.file_stem()?.to_str()?, |(stem, ..)| stem);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        (is_inside && gguf::has_ending(path) && !gguf::is_projector(path))
            .then_some(((path.parent()?, stem), &name[..]))
    })
}

fn has_tag(stem: &str, tag: &str) -> bool {
    let (stem, tag) = (stem.to_lowercase(), tag.to_lowercase());
    stem.strip_suffix(&tag).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_means_the_files_of_one_model() {
        let names: BTreeSet<String> = [
            "README.md",
            "qwen2-0_5b-instruct-q4_k_m.gguf",
            "Qwen2-UD-Q4_K_XL.gguf",
            "Qwen2.Q8_0.gguf",
            "BF16/Qwen2-BF16-00001-of-00002.gguf",
            "BF16/Qwen2-BF16-00002-of-00002.gguf",
            "mmproj-Q8_0.gguf",
            "../Qwen2-Q2_K.gguf",
        ]
        .map(str::to_owned)
        .into();
        let found = |tag| of_tag(&names, tag);
        assert_eq!(found("Q4_K_M").unwrap(), ["qwen2-0_5b-instruct-q4_k_m.gguf"]);
        assert_eq!(found("q8_0").unwrap(), ["Qwen2.Q8_0.gguf"]);
        assert_eq!(found("UD-Q4_K_XL").unwrap(), ["Qwen2-UD-Q4_K_XL.gguf"]);
        assert_eq!(
            found("BF16").unwrap(),
            ["BF16/Qwen2-BF16-00001-of-00002.gguf", "BF16/Qwen2-BF16-00002-of-00002.gguf"]
        );
        let tags = "it has BF16, Q4_K_XL, Q8_0, q4_k_m";
        for none in ["Q2_K", "K_M", "4_K_M", ""] {
            assert_eq!(found(none).unwrap_err(), format!("it has no GGUF model {none}; {tags}"));
        }
        assert_eq!(
            question("a/b", &names).unwrap(),
            format!("it has GGUF models: say which, as in a/b:Q4_K_M; {tags}")
        );
        let two: BTreeSet<String> = ["a-Q4_0.gguf", "b-Q4_0.gguf", "c.txt"].map(str::to_owned).into();
        assert!(of_tag(&two, "Q4_0").unwrap_err().contains("several of its GGUF models (a-Q4_0, b-Q4_0)"));
        assert_eq!(of_tag(&two, "b-Q4_0").unwrap(), ["b-Q4_0.gguf"]);
        let none = BTreeSet::from(["c.txt".to_owned()]);
        assert_eq!(of_tag(&none, "Q4_0").unwrap_err(), "it has no GGUF model Q4_0; it has none at all");
        assert_eq!(question("a/b", &none), None);
    }
}
