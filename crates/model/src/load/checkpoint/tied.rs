//! Whether an output head beside an embedding that is said to be the same is. It knows no spelling of quantised matrices.

use super::{Checkpoint, Entry, float_type};

/// Elements that are compared together, where they are of two types.
const TOGETHER: usize = 1 << 14;

impl Checkpoint {
    /// The output head's name.
    pub(super) fn lm_head(&self) -> String {
        format!("{}.weight", self.family.names.lm_head)
    }

    /// Uses an output head that differs from the embedding, whatever config.json says, as transformers does: it was trained by itself.
    pub(super) fn untie_another_head(&mut self) {
        if !self.config.tie_word_embeddings {
            return;
        }
        let (head, embedding) = (self.lm_head(), format!("{}.weight", self.family.names.embedding));
        let (Some(of_head), Some(of_embedding)) = (self.tensors.get(&head), self.tensors.get(&embedding)) else {
            return;
        };
        let is_equal = self.are_equal(of_head, of_embedding);
        self.release(&head);
        if is_equal {
            return;
        }
        let path = self.path_of(of_head).display();
        tracing::warn!(
            "{path}: the tensor {head} differs from {embedding}, so that it is used, although by config.json they are the same; if it is \
             meant, set tie_word_embeddings to false there, else remove it"
        );
        self.config.tie_word_embeddings = false;
    }

    /// Whether two tensors have the same shape and values.
    fn are_equal(&self, a: &Entry, b: &Entry) -> bool {
        if a.shape != b.shape {
            return false;
        }
        let [of_a, of_b] = [a, b].map(|entry| self.bytes_of(entry));
        if a.dtype == b.dtype {
            return of_a == of_b;
        }
        let (Some(type_a), Some(type_b)) = (float_type(a.dtype), float_type(b.dtype)) else { return false };
        let mut chunks = of_a.chunks(TOGETHER * type_a.size()).zip(of_b.chunks(TOGETHER * type_b.size()));
        chunks.all(|(a, b)| type_a.decode(a) == type_b.decode(b))
    }
}
