//! How many bytes an op moves to and from a device's memory, against the fewest that it must: cases as data, for devices that
//! count. It knows no backend.

mod small;

use crate::*;

/// Bytes that a device has moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// What kernels' loads asked for, wherever it came from.
    pub loaded: u64,
    /// What kernels' stores wrote.
    pub stored: u64,
    /// What had to come from memory, behind the device's cache.
    pub read: u64,
    /// What had to go to memory, behind the device's cache.
    pub written: u64,
}

impl Traffic {
    /// Bytes between the device's cache and its memory.
    pub fn moved(&self) -> u64 {
        self.read + self.written
    }
}

/// The traffic of one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The op.
    pub op: &'static str,
    /// The type of weights or cache.
    pub dtype: DType,
    /// Whose shape, and what is special.
    pub case: String,
    /// Every input read once and every output written once.
    pub minimum: u64,
    /// What the device counted.
    pub traffic: Traffic,
}

impl Probe {
    /// Bytes moved, as a multiple of the fewest possible.
    pub fn ratio(&self) -> f64 {
        self.traffic.moved() as f64 / self.minimum as f64
    }
}

/// A model whose decode steps are probed.
struct Shape {
    name: &'static str,
    hidden: usize,
    heads: [usize; 2],
    head_dim: usize,
    intermediate: usize,
}

/// Sizes of the models of these names.
const SHAPES: [Shape; 2] = [
    Shape { name: "Qwen2-0.5B", hidden: 896, heads: [14, 2], head_dim: 64, intermediate: 4864 },
    Shape { name: "Qwen2-7B", hidden: 3584, heads: [28, 4], head_dim: 128, intermediate: 18944 },
];
/// Requests that decode together.
const BATCHES: [usize; 2] = [1, 8];
/// The same, and the tokens in the cache of each.
const CONTEXTS: [(usize, usize); 3] = [(1, 1024), (1, 4096), (8, 1024)];
/// Tokens in a block of the cache.
const BLOCK: usize = 16;

/// What was found out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measured {
    /// The cases that were counted.
    pub probes: Vec<Probe>,
    /// Those that could not be, each with the reason.
    pub failures: Vec<String>,
}

/// Decode steps of models of well-known shapes: in bf16 each matmul of a layer, and attention; in each type the smallest of these, and
/// all other ops at one size. `None` if the device does not count.
pub fn run<B: Backend>(backend: &mut B) -> Option<Measured> {
    backend.take_traffic()?;
    let mut rig = Rig { backend, measured: Measured::default() };
    let dtype = DType::BF16;
    for shape in &SHAPES {
        let [q, kv] = shape.heads;
        let linears = [
            ("qkv", (q + 2 * kv) * shape.head_dim, shape.hidden),
            ("o", shape.hidden, q * shape.head_dim),
            ("gate_up", 2 * shape.intermediate, shape.hidden),
            ("down", shape.hidden, shape.intermediate),
        ];
        for (name, n, k) in linears {
            matmul(&mut rig, dtype, &format!("{} {name}", shape.name), n, k, &BATCHES);
        }
        for (batch, context) in CONTEXTS {
            attention(&mut rig, dtype, shape, batch, context);
        }
    }
    let [shape, _] = &SHAPES;
    for dtype in [DType::F32, DType::F16] {
        matmul(&mut rig, dtype, &format!("{} o", shape.name), shape.hidden, shape.heads[0] * shape.head_dim, &BATCHES);
        attention(&mut rig, dtype, shape, 1, 1024);
    }
    small::run(&mut rig);
    Some(rig.measured)
}

/// A device that counts, and what it counted so far.
struct Rig<'a, B> {
    backend: &'a mut B,
    measured: Measured,
}

impl<B: Backend> Rig<'_, B> {
    /// Takes in what `body` counted, or why it could not.
    fn probe(
        &mut self,
        op: &'static str,
        dtype: DType,
        case: String,
        minimum: usize,
        body: impl FnOnce(&mut B) -> Result<Traffic>,
    ) {
        match body(self.backend) {
            Ok(traffic) => {
                self.measured.probes.push(Probe { op, dtype, case, minimum: minimum as u64, traffic });
            }
            Err(error) => {
                self.backend.discard();
                self.measured.failures.push(format!("{op} {dtype} {case}: {error}"));
            }
        }
    }
}

/// A matmul of `n` outputs and `k` inputs, for each number of requests that decode together. `name` is for people.
fn matmul<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType, name: &str, n: usize, k: usize, batches: &[usize]) {
    let bytes = vec![0; n * k * dtype.size()];
    let part = HostTensor { dtype, rows: n, cols: k, bytes: &bytes, file: None };
    let weight = rig.backend.load_weight(WeightSource::matrix(name, &[part]), WeightFormat::Float(dtype));
    for &rows in batches {
        let minimum = (n + rows) * k * dtype.size() + rows * n * 4;
        rig.probe(matmul::NAME, dtype, format!("{name}, {rows} x {n} x {k}"), minimum, |backend| {
            let weight = weight.as_ref().map_err(Error::clone)?;
            let x = backend.allocate(dtype, rows, k)?;
            let mut out = backend.allocate(DType::F32, rows, n)?;
            count(backend, |backend| Matmul { rows, x: &x, weight, bias: None, out: &mut out, first: 0 }.run(backend))
        });
    }
}

fn attention<B: Backend>(rig: &mut Rig<'_, B>, dtype: DType, shape: &Shape, batch: usize, context: usize) {
    let &Shape { name, heads: [num_heads, num_kv_heads], head_dim, .. } = shape;
    let stride = context.div_ceil(BLOCK);
    let spec = KvSpec { dtype, num_blocks: batch * stride, block_size: BLOCK, num_kv_heads, head_dim };
    let queries = batch * num_heads * head_dim;
    let minimum = spec.bytes() + queries * (4 + dtype.size());
    let case = format!("{name}, {batch} x {context} tokens, {num_heads}/{num_kv_heads} heads of {head_dim}");
    rig.probe(paged_attention::NAME, dtype, case, minimum, |backend| {
        let cache = backend.allocate_kv_cache(spec)?;
        let block_table: Vec<u32> = (0..spec.num_blocks as u32).collect();
        let sequences = conformance::sequences(backend, &vec![(context - 1, 1); batch], &block_table)?;
        let qkv = backend.allocate(DType::F32, batch, (num_heads + 2 * num_kv_heads) * head_dim)?;
        let mut out = backend.allocate(dtype, batch, num_heads * head_dim)?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        count(backend, |backend| {
            PagedAttention {
                sequences: &sequences,
                qkv: &qkv,
                num_heads,
                scale,
                window: None,
                sinks: None,
                cache: &cache,
                out: &mut out,
            }
            .run(backend)
        })
    });
}

/// What the device moves for `op`, and nothing else.
fn count<B: Backend>(backend: &mut B, op: impl FnOnce(&mut B) -> Result<()>) -> Result<Traffic> {
    backend.synchronize()?;
    backend.take_traffic();
    op(backend)?;
    backend.synchronize()?;
    Ok(backend.take_traffic().unwrap_or_default())
}
