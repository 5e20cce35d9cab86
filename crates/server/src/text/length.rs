//! How few tokens a text can have, found without tokenizing it: tokenizing costs a hundred times the memory of the text. Knows
//! tokens' bytes, no tokenizer.

/// A lower bound of the number of tokens.
#[derive(Debug)]
pub(super) enum LengthBound {
    /// The bytes of a text are those of its tokens. By the first two bytes of a token, the length of the longest that begins so; a text's
    /// bytes may have become fewer by this factor before.
    Bytes { longest: Box<[u16]>, shrink: usize },
    /// The tokenizer may drop or join characters. A token stands for at most this many characters: vLLM's `max_chars_per_token`.
    Chars(usize),
}

impl LengthBound {
    /// The bound of a vocabulary, of which any text is a sequence.
    pub fn of_bytes<T: AsRef<[u8]>>(tokens: impl Iterator<Item = T>, shrink: usize) -> Self {
        let mut longest = vec![1u16; 1 << 16].into_boxed_slice();
        for token in tokens {
            if let [first, second, ..] = token.as_ref() {
                let entry = &mut longest[pair(*first, *second)];
                *entry = (*entry).max(u16::try_from(token.as_ref().len()).unwrap_or(u16::MAX));
            }
        }
        Self::Bytes { longest, shrink }
    }

    /// At most as many tokens as the text has. Where a token ends, the next begins: the fewest are those that each reach as far as any
    /// token could that begins with the two bytes there or, since a token may as well have ended earlier, at any place before.
    pub fn least_tokens(&self, text: &str) -> usize {
        let (longest, shrink) = match self {
            Self::Chars(most) => return text.chars().count().div_ceil(*most),
            Self::Bytes { longest, shrink } => (longest, *shrink),
        };
        let (mut count, mut end, mut reach) = (0, 0, 0);
        for (at, bytes) in text.as_bytes().windows(2).enumerate() {
            if at == end {
                count += 1;
                // The furthest that the tokens so far can reach.
                end = reach.max(at + usize::from(longest[pair(bytes[0], bytes[1])]));
            }
            reach = reach.max(at + usize::from(longest[pair(bytes[0], bytes[1])]));
        }
        count += usize::from(end < text.len());
        count.div_ceil(shrink)
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The fewest tokens that spell `text`, by trying all.
    fn fewest(text: &str, tokens: &[&str]) -> usize {
        let mut best = vec![usize::MAX; text.len() + 1];
        best[0] = 0;
        for at in 0..text.len() {
            if best[at] == usize::MAX {
                continue;
            }
            for token in tokens.iter().filter(|token| text.as_bytes()[at..].starts_with(token.as_bytes())) {
                best[at + token.len()] = best[at + token.len()].min(best[at] + 1);
            }
        }
        best[text.len()]
    }

    proptest! {
        #[test]
        fn no_text_has_fewer_tokens(text in "[abc ]{0,60}") {
            let tokens = ["a", "b", "c", " ", "ab", "aaaa", "bca", " b", "    ", "caab"];
            let bound = LengthBound::of_bytes(tokens.iter(), 1);
            prop_assert!(bound.least_tokens(&text) <= fewest(&text, &tokens));
        }
    }

    #[test]
    fn the_bound_is_near_where_a_text_repeats_itself() {
        let bound = LengthBound::of_bytes(["a", "aaaa", "ab", "      "].iter(), 1);
        assert_eq!(bound.least_tokens(&"a".repeat(4000)), 1000);
        assert_eq!(bound.least_tokens(&" ".repeat(13)), 3);
        assert_eq!(bound.least_tokens("xyz"), 3);
        assert_eq!((bound.least_tokens(""), bound.least_tokens("a")), (0, 1));
        let shrinks = LengthBound::of_bytes(["a", "aaaa"].iter(), 3);
        assert_eq!(shrinks.least_tokens(&"a".repeat(4000)), 334);
        assert_eq!(LengthBound::Chars(8).least_tokens("äöüäöüäöü"), 2);
    }
}
