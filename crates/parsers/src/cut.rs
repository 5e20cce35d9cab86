//! Finds tags in text that comes in pieces.

/// Where a text can be cut.
#[derive(Debug, PartialEq, Eq)]
pub enum Cut {
    /// At a tag.
    Tag {
        /// Bytes before it.
        before: usize,
        /// Which of the tags.
        tag: usize,
    },
    /// So many bytes are before any tag, whatever comes.
    Text(usize),
}

/// The first of `tags` in `text`, none of which begins another.
pub fn cut(text: &str, tags: &[&str], last: bool) -> Cut {
    let found = tags.iter().enumerate().filter_map(|(tag, name)| Some((text.find(name)?, tag))).min();
    if let Some((before, tag)) = found {
        return Cut::Tag { before, tag };
    }
    let held = tags.iter().map(|tag| overlap(text, tag)).max().unwrap_or(0);
    Cut::Text(if last { text.len() } else { text.len() - held })
}

/// Bytes at the end of `text` that a tag may begin with.
fn overlap(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&tag.as_bytes()[..len])).unwrap_or(0)
}

/// Whether a text begins with `tag`: `None` while that is open.
pub fn begins(text: &str, tag: &str, last: bool) -> Option<bool> {
    if text.len() < tag.len() && !last && tag.starts_with(text) {
        return None;
    }
    Some(text.starts_with(tag))
}

/// Bytes of a text without the white space at its end, which is none of the answer if a call follows; at the last, none does.
pub fn without_end(text: &str, last: bool) -> usize {
    if last { text.len() } else { text.trim_end().len() }
}

/// Bytes of white space at the beginning.
pub fn spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_become_a_tag_is_held_back() {
        assert_eq!(cut("ab<to", &["<tool>"], false), Cut::Text(2));
        assert_eq!(cut("ab<to", &["<tool>"], true), Cut::Text(5));
        assert_eq!(cut("ab<tool>", &["<x>", "<tool>"], false), Cut::Tag { before: 2, tag: 1 });
        assert_eq!(cut("é｜", &["｜x"], false), Cut::Text(2));
        assert_eq!((begins("<t", "<tool>", false), begins("<t", "<tool>", true)), (None, Some(false)));
    }
}
