//! Drafts: the tokens that came next when a text last went as it goes now. A step computes a request's drafts beside its last token and picks a
//! token behind each; what agrees is output that needed no steps of its own, and what does not was never there. It knows no requests.

/// The most tokens of a step with drafts. Up to some such number a step takes hardly longer than with one, since its weights are read once.
pub(crate) const MAX_TOKENS: usize = 8;

/// How drafts are made: vLLM's `ngram`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speculation {
    /// The most drafts of a request in a step.
    pub num_speculative_tokens: usize,
    /// The fewest last tokens that must have been there before in the same order.
    pub prompt_lookup_min: usize,
    /// The most that are looked at.
    pub prompt_lookup_max: usize,
}

impl Speculation {
    /// Appends up to `most` drafts to `tokens`: what followed where the most of the last tokens were there before, at the latest such place. A place
    /// near the end goes on into its own drafts, as what repeats does.
    pub(crate) fn draft(&self, tokens: &mut Vec<u32>, most: usize) {
        if most == 0 {
            return;
        }
        let Some(mut from) = self.find(tokens) else { return };
        for _ in 0..most {
            tokens.push(tokens[from]);
            from += 1;
        }
    }

    /// Behind that place.
    fn find(&self, tokens: &[u32]) -> Option<usize> {
        let (&last, before) = tokens.split_last()?;
        let (mut found, mut longest) = (None, self.prompt_lookup_min.max(1) - 1);
        for (end, _) in before.iter().enumerate().rev().filter(|(_, token)| **token == last) {
            let alike = before[..end].iter().rev().zip(before.iter().rev()).take_while(|(a, b)| a == b);
            let length = 1 + alike.take(self.prompt_lookup_max.max(1) - 1).count();
            if length > longest {
                (found, longest) = (Some(end + 1), length);
            }
            if length >= self.prompt_lookup_max {
                break;
            }
        }
        found
    }
}

/// How many drafts a request has next whose step had `num_drafts`, of which `num_accepted` were right: as many as lately, and more while all are.
pub(crate) fn next_drafts(num_drafts: usize, num_accepted: usize, most: usize) -> usize {
    if num_accepted == num_drafts { (2 * num_drafts).min(most) } else { num_accepted.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(min: usize, max: usize, tokens: &[u32], most: usize) -> Vec<u32> {
        let speculation = Speculation { num_speculative_tokens: 9, prompt_lookup_min: min, prompt_lookup_max: max };
        let mut all = tokens.to_vec();
        speculation.draft(&mut all, most);
        all.split_off(tokens.len())
    }

    #[test]
    fn what_came_next_when_it_last_went_so_comes_next() {
        // The latest of places that are as long, the longest of all, and none that is too short.
        assert_eq!(drafts(1, 1, &[7, 1, 7, 2, 7], 2), [2, 7]);
        assert_eq!(drafts(1, 2, &[5, 7, 1, 9, 7, 2, 5, 7], 3), [1, 9, 7]);
        assert_eq!(drafts(3, 4, &[5, 7, 1, 9, 7, 2, 5, 7], 3), []);
        assert_eq!(drafts(2, 2, &[5, 7, 1, 5, 7, 2, 5, 7], 1), [2]);
        // No longer than is asked for.
        assert_eq!(drafts(1, 2, &[4, 5, 7, 1, 9, 5, 7, 2, 4, 5, 7], 1), [2]);
        assert_eq!(drafts(1, 3, &[4, 5, 7, 1, 9, 5, 7, 2, 4, 5, 7], 1), [1]);
    }

    #[test]
    fn what_repeats_goes_on() {
        assert_eq!(drafts(1, 5, &[3, 3], 4), [3, 3, 3, 3]);
        assert_eq!(drafts(2, 5, &[1, 2, 3, 1, 2, 3], 5), [1, 2, 3, 1, 2]);
    }

    #[test]
    fn nothing_is_drafted_of_nothing() {
        assert_eq!(drafts(1, 5, &[], 4), []);
        assert_eq!(drafts(1, 5, &[1], 4), []);
        assert_eq!(drafts(1, 5, &[1, 2, 3], 4), []);
        assert_eq!(drafts(1, 5, &[1, 1], 0), []);
    }

    #[test]
    fn drafts_become_as_many_as_are_right() {
        assert_eq!(
            [(5, 0), (5, 2), (1, 1), (3, 3), (4, 4)].map(|(n, right)| next_drafts(n, right, 5)),
            [1, 2, 2, 5, 5]
        );
    }
}
