//! A prompt as the engine sees it: tokens, and the names of their blocks in the prefix cache. It knows no request.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::block_pool::{hash_full_blocks, hash_salt};
use crate::prefix_index::BlockHash;

/// The tokens of a prompt. Clones share them, so that many answers to one prompt hold it once.
#[derive(Clone)]
pub struct Prompt(Arc<Inner>);

struct Inner {
    token_ids: Box<[u32]>,
    cache_salt: Option<Box<str>>,
    /// For the block size of the engine that was the first to ask.
    block_hashes: OnceLock<(usize, Box<[BlockHash]>)>,
}

impl Prompt {
    /// A prompt whose blocks are shared only with prompts of the same salt (vLLM's `cache_salt`): whoever does not know the salt cannot
    /// learn from the time to the first token, or from the number of cached tokens, that this prompt was here.
    pub fn salted(token_ids: Vec<u32>, cache_salt: Option<&str>) -> Self {
        let (token_ids, cache_salt) = (token_ids.into(), cache_salt.map(Box::from));
        Self(Arc::new(Inner { token_ids, cache_salt, block_hashes: OnceLock::new() }))
    }

    /// Whether both are one prompt, not only equal.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What stands before the first block.
    pub(crate) fn root(&self) -> Option<BlockHash> {
        self.0.cache_salt.as_deref().map(hash_salt)
    }

    /// The chained hashes of the full blocks.
    pub(crate) fn block_hashes(&self, block_size: usize) -> impl Deref<Target = [BlockHash]> {
        let compute = || hash_full_blocks(self.root().as_ref(), self, block_size);
        let (of_size, hashes) = self.0.block_hashes.get_or_init(|| (block_size, compute().into()));
        match *of_size == block_size {
            true => std::borrow::Cow::Borrowed(&**hashes),
            false => std::borrow::Cow::Owned(compute()),
        }
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(token_ids: Vec<u32>) -> Self {
        Self::salted(token_ids, None)
    }
}

impl Deref for Prompt {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0.token_ids
    }
}

impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.token_ids.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_tokens_and_hashes_and_a_salt_changes_every_hash() {
        let tokens: Vec<u32> = (0..40).collect();
        let plain = Prompt::from(tokens.clone());
        let hashes = plain.block_hashes(16).to_vec();
        assert_eq!(hashes, hash_full_blocks(None, &tokens, 16));
        assert!(std::ptr::eq(plain.clone().block_hashes(16).as_ptr(), plain.block_hashes(16).as_ptr()));
        assert_eq!(plain.block_hashes(8).to_vec(), hash_full_blocks(None, &tokens, 8));
        let salted = |salt| Prompt::salted(tokens.clone(), Some(salt)).block_hashes(16).to_vec();
        assert_eq!(salted("a"), salted("a"));
        for other in [salted("a"), salted("b")] {
            assert!(other.iter().zip(&hashes).all(|(a, b)| a != b));
        }
        assert_ne!(salted("a"), salted("b"));
    }
}
