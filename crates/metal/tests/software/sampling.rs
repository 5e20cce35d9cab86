//! Thousands of random rows: every backend and every instruction set picks the token of the op's reference.

use vllm_apple_cpu::{CpuBackend, Isa};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::sample::{Adjustment, MAX_TOP, Picked, SampleRow, mask_words, reference};
use vllm_apple_ops::{Backend, DType, Sample, Tensor, philox};

/// Random numbers by their place in a stream.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 += 1;
        philox::bits(5, self.0) % end
    }

    fn unit(&mut self) -> f32 {
        self.0 += 1;
        philox::uniform(5, self.0) as f32
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Different tokens.
    fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..count).map(|_| self.below(vocab as u64) as u32).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }
}

/// The arguments of a call.
#[derive(Default)]
struct Call {
    vocab: usize,
    logits: Vec<f32>,
    rows: Vec<SampleRow>,
    adjustments: Vec<Adjustment>,
    masks: Vec<u32>,
}

impl Call {
    fn random(vocab: usize, num_rows: usize, random: &mut Random) -> Self {
        let mut call = Self { vocab, ..Self::default() };
        for i in 0..num_rows {
            call.push_logits(random);
            let first = call.adjustments.len() as u32;
            call.push_adjustments(random);
            let mask = (random.below(3) == 0).then(|| call.push_mask(random));
            let seen = (random.below(3) == 0).then(|| call.push_mask(random));
            if let Some(seen) = seen {
                // What is adjusted says itself that it was seen.
                for adjustment in &call.adjustments[first as usize..] {
                    let word = seen as usize * mask_words(vocab) + adjustment.token as usize / 32;
                    call.masks[word] &= !(1 << (adjustment.token % 32));
                }
            }
            let unit = random.unit();
            let temperature = random.one_of(&[0.0, 0.01, 0.3, 0.7, 1.0, 1.0, 1.7, 100.0]);
            call.rows.push(SampleRow {
                logit_row: i as u32,
                adjustments: [first, call.adjustments.len() as u32 - first],
                mask,
                seen,
                score: (random.below(8) == 0).then(|| random.below(vocab as u64) as u32),
                scale: if temperature == 0.0 { 0.0 } else { 1.0 / temperature },
                min_p: random.one_of(&[0.0, 0.0, -0.0, 1.0, 0.05]) * random.one_of(&[1.0, unit]),
                top_p: random.one_of(&[1.0, 1.0, 0.5, 0.95, 1e-12, 0.999_999_94, unit]),
                top_k: random.one_of(&[0, 0, 1, 7, 50, vocab as u32 / 2, vocab as u32, u32::MAX]),
                repetition_penalty: random.one_of(&[1.0, 1.1, 0.7, 3.0, 1e-30, 1e30]),
                seed: random.below(u64::MAX),
                position: random.below(1 << 40),
                num_top: random.one_of(&[None, Some(0), Some(5), Some(20)]),
            });
        }
        call
    }

    fn push_logits(&mut self, random: &mut Random) {
        let (size, kind) = (random.one_of(&[0.0, 0.5, 4.0, 12.0, 300.0]), random.below(4));
        for _ in 0..self.vocab {
            let logit = (random.unit() * 2.0 - 1.0) * size;
            self.logits.push(match kind {
                0 => logit.round(),
                // A few tokens likelier than all others.
                1 if random.below(50) == 0 => logit + size * 2.0,
                2 if random.below(20) == 0 => random.one_of(&[f32::NEG_INFINITY, f32::NAN]),
                _ => logit,
            });
        }
        // A row without a token has no reference.
        let last = self.logits.len() - 1;
        self.logits[last] = 0.25;
    }

    /// Of any token but the last.
    fn push_adjustments(&mut self, random: &mut Random) {
        let count = random.one_of(&[0, 0, 3, self.vocab / 2, 2 * self.vocab]);
        for token in random.tokens(count, self.vocab).into_iter().filter(|&token| token as usize != self.vocab - 1) {
            self.adjustments.push(Adjustment {
                token,
                seen: random.below(2) == 0,
                bias: random.one_of(&[0.0, 0.0, 5.0, -100.0, f32::NEG_INFINITY]),
                subtract: random.one_of(&[0.0, 0.0, 1.3, -2.0]),
            });
        }
    }

    /// One that has the last token.
    fn push_mask(&mut self, random: &mut Random) -> u32 {
        let words = mask_words(self.vocab);
        let number = self.masks.len() / words;
        let one_of = random.one_of(&[2, 10, 1000]);
        for word in 0..words {
            let allowed = (0..32).filter(|bit| random.below(one_of) == 0 || word * 32 + bit == self.vocab - 1);
            self.masks.push(allowed.map(|bit| 1 << bit).sum());
        }
        number as u32
    }

    /// What was picked, and the ids of the most likely tokens.
    fn compute<B: Backend>(&self, backend: &mut B) -> Vec<(Picked, Vec<u32>)> {
        fn upload<B: Backend>(backend: &B, dtype: DType, cols: usize, bytes: &[u8]) -> Tensor<B::Memory> {
            let mut tensor = backend.allocate(dtype, bytes.len() / 4 / cols, cols).unwrap();
            backend.write(&mut tensor, bytes);
            tensor
        }
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let rows: Vec<u32> = self.rows.iter().flat_map(SampleRow::words).collect();
        let adjustments: Vec<u32> = self.adjustments.iter().flat_map(Adjustment::words).collect();
        let mut logits = upload(backend, DType::F32, self.vocab, &DType::F32.encode(&self.logits));
        let params = upload(backend, DType::U32, SampleRow::WORDS, &words(&rows));
        let mut adjustments = upload(backend, DType::U32, Adjustment::WORDS, &words(&adjustments));
        let masks = upload(backend, DType::U32, mask_words(self.vocab), &words(&self.masks));
        let mut picked = backend.allocate(DType::U32, self.rows.len(), Picked::WORDS).unwrap();
        let mut top = backend.allocate(DType::U32, self.rows.len(), 2 * MAX_TOP).unwrap();
        let (rows, logits, adjustments) = (self.rows.len(), &mut logits, &mut adjustments);
        let op =
            Sample { rows, logits, params: &params, adjustments, masks: &masks, picked: &mut picked, top: &mut top };
        op.run(backend).unwrap();
        backend.synchronize().unwrap();
        let read = |tensor: &Tensor<B::Memory>| -> Vec<u32> {
            backend.read(tensor).as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
        };
        let picked: Vec<Picked> = read(&picked).as_chunks().0.iter().map(|words| Picked::of_words(*words)).collect();
        let top = read(&top);
        let ids = |row: usize| {
            let num_top = self.rows[row].num_top.unwrap_or(0) as usize;
            top[row * 2 * MAX_TOP..][..2 * num_top].iter().copied().step_by(2).collect()
        };
        picked.into_iter().enumerate().map(|(row, picked)| (picked, ids(row))).collect()
    }
}

#[test]
fn all_backends_pick_the_same_tokens() {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut metal = MetalBackend::new(SoftwareGpu::fast().unwrap(), options).unwrap();
    let mut cpus: Vec<CpuBackend> =
        Isa::available().into_iter().map(|isa| CpuBackend::with_isa(Some(2), isa)).collect();
    let mut random = Random(0);
    let mut num_drawn = 0;
    for (vocab, calls, rows) in [(1, 1, 50), (33, 8, 100), (500, 12, 100), (4099, 10, 64), (30_000, 2, 50)] {
        for _ in 0..calls {
            let call = Call::random(vocab, rows, &mut random);
            let on_metal = call.compute(&mut metal);
            let on_cpus: Vec<_> = cpus.iter_mut().map(|cpu| call.compute(cpu)).collect();
            for (i, row) in call.rows.iter().enumerate() {
                let logits = &call.logits[i * vocab..][..vocab];
                let want = reference(logits, row, &call.adjustments, &call.masks);
                let top: Vec<u32> = want.ranking.iter().copied().chain(std::iter::repeat(u32::MAX)).take(20).collect();
                for (got, ids) in on_cpus.iter().map(|on_cpu| &on_cpu[i]).chain([&on_metal[i]]) {
                    assert_eq!((got.token, got.max), (want.token, want.max), "{vocab} {row:?}");
                    assert!(row.num_top.is_none() || got.rank == want.rank, "{vocab} {row:?}");
                    assert_eq!(ids[..], top[..ids.len()], "{vocab} {row:?}");
                }
                num_drawn += usize::from(row.scale != 0.0 && row.score.is_none());
            }
        }
    }
    assert!(num_drawn > 2000, "{num_drawn}");
}
