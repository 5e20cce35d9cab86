//! The vector of one prompt, made of hidden states as steps bring them. It knows no schedule: whatever the chunks, rows come in the order of
//! their tokens and each once, so that the bits are the same.

use vllm_apple_executor::Pooling;

/// A vector in the making.
#[derive(Debug)]
pub(crate) struct Pooled {
    pooling: Pooling,
    /// The sum so far, or the one row that counts.
    vector: Vec<f32>,
    /// Leading tokens whose rows have been taken in. Survives preemption.
    num_rows: usize,
}

impl Pooled {
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, vector: Vec::new(), num_rows: 0 }
    }

    /// Makes room for a vector of `size`, unless there is some.
    pub fn begin(&mut self, size: usize) {
        if self.vector.is_empty() {
            self.vector.resize(size, 0.0);
        }
    }

    /// Leading tokens whose rows have been taken in.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Whether rows of leading tokens of a prompt of `prompt_len` are still to come: a prefix that is found in the cache has none.
    pub fn wants_leading_rows(&self, prompt_len: usize) -> bool {
        self.num_rows < self.pooling.leading_rows(prompt_len)
    }

    /// Takes in the rows that a step brought, of the tokens that follow those so far; of a prompt whose last token alone counts, that one's.
    pub fn take(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.vector.len()) {
            match self.pooling {
                Pooling::Last => self.vector.copy_from_slice(row),
                Pooling::First if self.num_rows > 0 => {}
                Pooling::First => self.vector.copy_from_slice(row),
                Pooling::Mean => self.vector.iter_mut().zip(row).for_each(|(sum, value)| *sum += value),
            }
            self.num_rows += 1;
        }
    }

    /// The vector of a prompt of `prompt_len` tokens, all of whose rows have come.
    pub fn finish(&mut self, prompt_len: usize) -> Vec<f32> {
        let mut vector = std::mem::take(&mut self.vector);
        if self.pooling == Pooling::Mean {
            vector.iter_mut().for_each(|sum| *sum /= prompt_len as f32);
        }
        vector
    }
}
