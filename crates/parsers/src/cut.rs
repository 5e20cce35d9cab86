//! Finds tags in text that comes in pieces.

/// Bytes of a text that are searched first.
const SEARCHED_AT_ONCE: usize = 256;

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
    // In beginnings of twice the length, so that a tag that comes often does not cost the search of all of the text for another each time.
    let longest = tags.iter().map(|tag| tag.len()).max().unwrap_or(0);
    let mut end = 0;
    while end < text.len() {
        end = (2 * end).max(SEARCHED_AT_ONCE).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let of_tag = |(tag, name): (usize, &&str)| Some((text[..end].find(name)?, tag));
        match tags.iter().enumerate().filter_map(of_tag).min() {
            // Another may begin before it and end behind what was searched.
            Some((before, tag)) if before + longest <= end || end == text.len() => return Cut::Tag { before, tag },
            _ => {}
        }
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
        assert_eq!((cut("", &["<x>"], false), cut("x", &[], true)), (Cut::Text(0), Cut::Text(1)));
        assert_eq!((begins("<t", "<tool>", false), begins("<t", "<tool>", true)), (None, Some(false)));
    }

    #[test]
    fn the_first_tag_is_found_wherever_a_search_ends() {
        let tags = ["<b>", "<longer>", "b"];
        for before in 0..3 * SEARCHED_AT_ONCE {
            for (tag, behind) in [(0, ""), (1, "<b>"), (1, "é".repeat(400).as_str()), (2, "<longer>")] {
                let text = format!("{}{}{behind}", "x".repeat(before), tags[tag]);
                // A letter that stands in a tag comes behind the tag's beginning.
                assert_eq!(cut(&text, &tags, false), Cut::Tag { before, tag });
            }
        }
    }

    /// 1.2 MB: each tag in the time of its own bytes.
    #[test]
    fn a_tag_that_is_missing_is_not_searched_for_at_each_of_another() {
        let text = "</call>".repeat(170_000);
        let (mut rest, mut found) = (text.as_str(), 0);
        while let Cut::Tag { before, tag: 1 } = cut(rest, &["<call>", "</call>"], true) {
            rest = &rest[before + 7..];
            found += 1;
        }
        assert_eq!((found, rest), (170_000, ""));
    }
}
