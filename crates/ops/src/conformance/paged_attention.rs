//! Attention, relative to the largest visible value of the head. A score is `sqrt(head_dim)` roundoffs of its terms' magnitudes
//! off, and so, relatively, is its weight, in numerator and denominator; sums over `n` positions are `sqrt(n)` off, and the
//! exponential and the joining of parts a few more. A sink is a score without roundoffs of its own, from which the largest is subtracted.

use super::{inputs::Inputs, *};

/// Query heads, key heads, head size, block size, window, `(tokens in the cache, new tokens)` of each request, largest query, largest sink.
struct Case {
    heads: [usize; 2],
    head_dim: usize,
    block_size: usize,
    window: Option<usize>,
    requests: &'static [(usize, usize)],
    query: f32,
    sinks: Option<f32>,
}

const fn case(
    heads: [usize; 2],
    head_dim: usize,
    block_size: usize,
    window: Option<usize>,
    requests: &'static [(usize, usize)],
    query: f32,
) -> Case {
    Case { heads, head_dim, block_size, window, requests, query, sinks: None }
}

impl Case {
    const fn with_sinks(self, largest: f32) -> Self {
        Self { sinks: Some(largest), ..self }
    }
}

const CASES: &[Case] = &[
    case([14, 2], 64, 16, None, &[(40, 1), (0, 33), (700, 1), (15, 2), (255, 1), (256, 1)], 1.0),
    case([4, 2], 128, 32, None, &[(250, 20), (1, 1)], 1.0),
    case([6, 1], 256, 16, None, &[(17, 9), (511, 2)], 1.0),
    // So many columns that devices may take more of them at a time; beside a single token, and across position 512.
    case([128, 32], 64, 16, None, &[(40, 1), (0, 15), (3, 4)], 1.0),
    case([128, 16], 128, 16, Some(20), &[(500, 30)], 1.0),
    case([14, 2], 64, 16, None, &[(700, 1), (3, 5), (0, 1)], 1.0).with_sinks(2.0),
    case([128, 16], 64, 16, Some(20), &[(0, 30)], 1.0).with_sinks(3.0),
    case([1, 1], 8, 16, None, &[(0, 1)], 1.0),
    case([1, 1], 64, 16, None, &[(0, 70)], 1.0),
    case([8, 8], 40, 16, None, &[(5, 20), (30, 1)], 1.0),
    case([5, 5], 24, 48, None, &[(300, 3), (47, 1)], 1.0),
    case([64, 1], 16, 16, None, &[(20, 3)], 1.0),
    case([32, 8], 80, 16, None, &[(100, 5)], 1.0),
    case([9, 3], 72, 64, None, &[(60, 8)], 1.0),
    // One long sequence: parts that are computed apart.
    case([7, 1], 64, 16, None, &[(2100, 1)], 1.0),
    case([2, 2], 32, 16, None, &[(1500, 3)], 1.0),
    // Many columns that see several parts.
    case([128, 16], 8, 16, None, &[(500, 30)], 1.0),
    // Windows: within a block, across blocks and parts, larger than the sequence, a single token.
    case([4, 2], 32, 16, Some(5), &[(0, 40), (37, 1), (100, 7)], 1.0),
    case([4, 2], 64, 16, Some(100), &[(600, 1), (200, 90), (20, 3)], 1.0),
    case([2, 1], 48, 16, Some(256), &[(511, 3), (900, 1)], 1.0),
    case([3, 1], 16, 32, Some(1), &[(10, 6)], 1.0),
    case([7, 1], 64, 16, Some(600), &[(2000, 2)], 1.0),
    // Scores so far apart that one position has all the weight.
    case([2, 2], 64, 16, None, &[(300, 4)], 1000.0),
    case([4, 1], 128, 16, Some(64), &[(300, 4)], 100.0),
    // Sinks: in heads of every size, beside windows, and so far above and below all scores that they have all the weight, or none.
    case([8, 1], 64, 16, Some(128), &[(1500, 2), (100, 60), (127, 1), (128, 1)], 1.0).with_sinks(4.0),
    case([8, 2], 128, 32, None, &[(520, 3)], 1.0).with_sinks(1.0),
    case([3, 1], 256, 16, Some(300), &[(600, 2), (9, 1)], 1.0).with_sinks(2.0),
    case([5, 5], 24, 48, None, &[(300, 3), (0, 1)], 1.0).with_sinks(300.0),
    case([128, 32], 32, 16, None, &[(40, 1), (500, 30)], 20.0).with_sinks(50.0),
];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for case in CASES {
        for dtype in DType::FLOATS {
            let &Case { heads: [q, kv], head_dim, block_size, window, requests, query, sinks } = case;
            let window = window.map_or("no window".into(), |w| format!("window {w}"));
            let sinks = sinks.map_or(String::new(), |largest| format!(", sinks {largest}"));
            let name = format!(
                "{q}/{kv} heads of {head_dim}, blocks of {block_size}, {window}, {requests:?}, queries {query}{sinks}"
            );
            let kind = Kind::of_heads(crate::paged_attention::NAME, dtype, head_dim);
            rig.case_of(kind, WeightFormat::Float(dtype), name, |backend| {
                let mut inputs = Inputs::new(13);
                let step = Step::new(case, dtype, dtype, &mut inputs);
                let got = step.compute(backend, &mut inputs)?;
                Ok(step.judge(&got))
            });
        }
    }
    // The output need not be of the cache's type: one case that is split and one that is not.
    let of_types: [Case; 2] =
        [case([4, 2], 32, 16, None, &[(700, 1), (1, 2)], 1.0), case([4, 2], 128, 16, None, &[(40, 300)], 1.0)];
    for case in &of_types {
        for dtype in DType::FLOATS {
            for out in DType::FLOATS.into_iter().filter(|out| *out != dtype) {
                let name = format!("{:?}, cache of {dtype}, output of {out}", case.requests);
                let kind = Kind::of_heads(crate::paged_attention::NAME, dtype, case.head_dim);
                rig.case_of(kind, WeightFormat::Float(dtype), name, |backend| {
                    let mut inputs = Inputs::new(14);
                    let step = Step::new(case, dtype, out, &mut inputs);
                    let got = step.compute(backend, &mut inputs)?;
                    Ok(step.judge(&got))
                });
            }
        }
    }
}

/// Inputs of a case on the host.
struct Step<'a> {
    case: &'a Case,
    dtype: DType,
    /// Type of the output.
    out: DType,
    /// `[new tokens of all requests][heads][head_dim]`.
    queries: Vec<f32>,
    /// Of each request, `[key heads][positions][head_dim]`, rounded to the cache's type.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    /// Of each query head.
    sinks: Option<Vec<f32>>,
}

impl<'a> Step<'a> {
    fn new(case: &'a Case, dtype: DType, out: DType, inputs: &mut Inputs) -> Self {
        let [heads, kv_heads] = case.heads;
        let tokens: usize = case.requests.iter().map(|r| r.1).sum();
        let queries = inputs.floats(tokens * heads * case.head_dim, case.query);
        let mut cached = |size: f32| -> Vec<Vec<f32>> {
            let mut one = |&(old, new): &(usize, usize)| {
                let floats = inputs.floats(kv_heads * (old + new) * case.head_dim, size);
                floats.iter().map(|&v| dtype.round(v)).collect()
            };
            case.requests.iter().map(&mut one).collect()
        };
        let (keys, values) = (cached(2.0), cached(3.0));
        let sinks = case.sinks.map(|largest| inputs.floats(heads, largest));
        Self { case, dtype, out, queries, keys, values, sinks }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.case.head_dim as f32).sqrt()
    }

    /// Writes the cache in shuffled blocks, and computes the op. Every slot that no token has holds a large key, which would get all
    /// the weight, and a value that is no number, which not even a weight of 0 hides.
    fn compute<B: Backend>(&self, backend: &mut B, inputs: &mut Inputs) -> Result<Vec<f32>> {
        let Case { heads: [num_heads, num_kv_heads], head_dim, block_size, window, requests, .. } = *self.case;
        let stride = requests.iter().map(|r| (r.0 + r.1).div_ceil(block_size)).max().unwrap_or(0) + 1;
        let num_blocks = requests.len() * stride;
        let table = inputs.shuffled(num_blocks);
        let mut cache =
            backend.allocate_kv_cache(KvSpec { dtype: self.dtype, num_blocks, block_size, num_kv_heads, head_dim })?;
        let mut slots: Vec<u32> = (0..(num_blocks * block_size) as u32).collect();
        let rubbish = [[1e4], [f32::NAN]].map(|element| element.repeat(num_kv_heads * head_dim)).concat();
        let mut rows = rubbish.repeat(slots.len());
        write_cache(backend, &mut cache, &slots, &rows)?;
        (slots, rows) = (Vec::new(), Vec::new());
        for (r, &(old, new)) in requests.iter().enumerate() {
            for position in 0..old + new {
                let block = table[r * stride + position / block_size] as usize;
                slots.push((block * block_size + position % block_size) as u32);
                for array in [&self.keys[r], &self.values[r]] {
                    for head in array.chunks_exact((old + new) * head_dim) {
                        rows.extend_from_slice(&head[position * head_dim..][..head_dim]);
                    }
                }
            }
        }
        write_cache(backend, &mut cache, &slots, &rows)?;

        let num_tokens = requests.iter().map(|r| r.1).sum();
        let sequences = sequences(backend, requests, &table)?;
        let q = num_heads * head_dim;
        // In one of the types rows are queries alone, as in layers that share another's cache.
        let width = if self.dtype == DType::F16 { q } else { q + 2 * num_kv_heads * head_dim };
        let mut qkv = vec![1e4; num_tokens * width];
        for (row, queries) in qkv.chunks_exact_mut(width).zip(self.queries.chunks_exact(q)) {
            row[..q].copy_from_slice(queries);
        }
        let qkv = upload(backend, DType::F32, width, &qkv)?;
        let mut out = output(backend, self.out, num_tokens, q)?;
        let scale = self.scale();
        let sinks = self.sinks.as_ref().map(|sinks| upload(backend, DType::F32, num_heads, sinks)).transpose()?;
        let (sequences, qkv, sinks, cache, out_ref) = (&sequences, &qkv, sinks.as_ref(), &cache, &mut out);
        PagedAttention { sequences, qkv, num_heads, scale, window, sinks, cache, out: out_ref }.run(backend)?;
        backend.synchronize()?;
        read_output(backend, &out, num_tokens)
    }

    fn judge(&self, got: &[f32]) -> Outcome {
        let Case { heads: [num_heads, num_kv_heads], head_dim, window, requests, .. } = *self.case;
        let outputs = got.chunks_exact(head_dim).zip(self.queries.chunks_exact(head_dim));
        let mut rows = outputs.enumerate().map(|(i, (got, q))| (i % num_heads, got, q));
        let mut outcome = Outcome { error: 0.0, tolerance: f64::INFINITY };
        for (r, &(old, new)) in requests.iter().enumerate() {
            let len = (old + new) * head_dim;
            for position in old..old + new {
                for (head, got, q) in rows.by_ref().take(num_heads) {
                    let at = head / (num_heads / num_kv_heads) * len;
                    let (keys, values) = (&self.keys[r][at..][..len], &self.values[r][at..][..len]);
                    let scale = self.scale();
                    let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
                    let row = AttentionRow { query: q, keys, values, position, scale, window, sink };
                    let row = row.outcome(got, self.out);
                    // The row that comes nearest to its tolerance, or leaves it furthest.
                    if outcome.tolerance.is_infinite() || row.error * outcome.tolerance > outcome.error * row.tolerance
                    {
                        outcome = row;
                    }
                }
            }
        }
        outcome
    }
}

/// A query head of a token, and what it sees: the arguments of [`crate::paged_attention::reference`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionRow<'a> {
    /// `[head_dim]`
    pub query: &'a [f32],
    /// `[> position, head_dim]`
    pub keys: &'a [f32],
    /// `[> position, head_dim]`
    pub values: &'a [f32],
    /// The token's.
    pub position: usize,
    /// Factor of the dot products.
    pub scale: f32,
    /// Positions that the token sees.
    pub window: Option<usize>,
    /// The head's sink.
    pub sink: Option<f32>,
}

impl AttentionRow<'_> {
    /// How many times its tolerance the error of the head's outputs is, which are of a type.
    pub fn judge(&self, got: &[f32], out: DType) -> f64 {
        let Outcome { error, tolerance } = self.outcome(got, out);
        error / tolerance
    }

    fn outcome(&self, got: &[f32], out: DType) -> Outcome {
        let Self { query: q, keys, values, position, scale, window, sink } = *self;
        let d = q.len();
        let want = crate::paged_attention::reference(q, keys, values, position, scale, window, sink);
        let seen = window.map_or(0, |w| (position + 1).saturating_sub(w))..position + 1;
        let terms = |j: usize| -> f64 {
            let sum: f64 = q.iter().zip(&keys[j * d..]).map(|(&a, &b)| f64::from((a * b).abs())).sum();
            sum * f64::from(scale)
        };
        let largest_terms = seen.clone().map(terms).fold(sink.map_or(0.0, |sink| f64::from(sink.abs())), f64::max);
        let largest_value = values[seen.start * d..seen.end * d].iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let roundoffs = 2.0 * largest_terms * (2.0 + (d as f64).sqrt()) + 16.0 + 2.0 * (seen.len() as f64).sqrt();
        let error = worst(got, &want, |_| f64::from(largest_value));
        Outcome { error, tolerance: tolerance(roundoffs, out) }
    }
}

/// Writes keys and values as they are: a rotation by nothing. `rows` are those, perhaps with queries before them; they are returned.
pub(super) fn write_cache<B: Backend>(
    backend: &mut B,
    cache: &mut KvCache<B::Memory>,
    slots: &[u32],
    rows: &[f32],
) -> Result<Tensor<B::Memory>> {
    let KvSpec { head_dim, num_kv_heads, .. } = cache.spec;
    let (half, width) = (head_dim / 2, rows.len() / slots.len());
    let table = RopeTable {
        cos: upload(backend, DType::F32, half, &vec![1.0; half])?,
        sin: upload(backend, DType::F32, half, &vec![0.0; half])?,
    };
    let mut qkv = upload(backend, DType::F32, width, rows)?;
    let op = RopeKvWrite {
        rows: slots.len(),
        qkv: &mut qkv,
        num_heads: width / head_dim - 2 * num_kv_heads,
        positions: &upload_u32(backend, slots.len(), &vec![0; slots.len()])?,
        slot_mapping: &upload_u32(backend, slots.len(), slots)?,
        table: &table,
        cache,
    };
    op.run(backend)?;
    backend.synchronize()?;
    Ok(qkv)
}
