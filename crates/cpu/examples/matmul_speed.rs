//! Times all matrices of a model of Qwen2-0.5B's shape, without the rest of the model, against this machine's limits.
//!
//! `cargo run --release -p vllm-apple-cpu --example matmul_speed -- [instruction set] [weights] [threads]`
//!
//! Weights are bfloat16, float16, float32, int4, int8, awq, mxfp4, nvfp4, q4_k or q6_k. Those of integers have float16 scales of groups of 32, awq zero points besides;
//! q4_k and q6_k are GGUF's, of matrices that are as wide as whole super-blocks of these. Activations of codes are bfloat16; with -a8 behind their
//! name, as in int4-a8, they are rounded to 8 bits.
//!
//! Limits and matmuls are measured in turn and the median over the rounds is printed, so that other load on the machine
//! falls on both.

use std::num::NonZeroUsize;
use std::time::Instant;

use vllm_apple_cpu::isa::Isa;
use vllm_apple_cpu::matmul::Matmuls;
use vllm_apple_cpu::memory::Memory;
use vllm_apple_cpu::pack::PackedMatrix;
use vllm_apple_cpu::roofline::{peak_flops_of, read_bandwidth};
use vllm_apple_cpu::weight_memory::WeightMemory;
use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{
    Activations, Codebook, DType, HostTensor, Quantised, QuantisedTensor, ReadGroups, SUPER_BLOCK, Scale, Scales,
    WeightFormat, WeightSource,
};

const LAYERS: usize = 24;
/// qkv, o, gate and up, down: outputs and inputs.
const LAYER: [(usize, usize); 4] = [(1152, 896), (896, 896), (9728, 896), (896, 4864)];
const HEAD: (usize, usize) = (151_936, 896);
const ROWS: [usize; 5] = [1, 4, 8, 16, 512];
const ROUNDS: usize = 5;
/// The best of these counts, as for the limits.
const TRIES: usize = 3;
const DISPATCHES: u32 = 10_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let named = |isa: &Isa| args.first().is_some_and(|name| name == isa.name());
    let isa = Isa::available().into_iter().find(named).unwrap_or(Isa::best());
    let name = args.get(1).map(String::as_str);
    let (name, activations) = match name.and_then(|name| name.strip_suffix("-a8")) {
        Some(name) => (Some(name), Activations::Int8),
        None => (name, Activations::Exact),
    };
    let codes = |codebook, group_size, scales, biases| {
        let input = DType::BF16;
        WeightFormat::Quantised(Quantised { input, codebook, group_size, scales, biases, activations })
    };
    let format = match name {
        Some("int4") => codes(Codebook::INT4, 32, Scales::Float(DType::F16), false),
        Some("int8") => codes(Codebook::INT8, 32, Scales::Float(DType::F16), false),
        Some("q4_k") => codes(Codebook::Integer { bits: 4, zero_point: 0 }, 32, Scales::SuperBlocks, true),
        Some("awq") => codes(Codebook::Integer { bits: 4, zero_point: 0 }, 32, Scales::ZeroPoints(DType::F16), true),
        Some("nvfp4") => codes(Codebook::E2m1, 16, Scales::SuperBlocksOfFloats, false),
        Some("mxfp4") => codes(Codebook::E2m1, 32, Scales::PowersOfTwo, false),
        Some("q6_k") => codes(Codebook::Integer { bits: 6, zero_point: 32 }, 16, Scales::SuperBlocks, false),
        name => WeightFormat::Float(name.and_then(|name| name.parse().ok()).unwrap_or(DType::BF16)),
    };
    let dtype = format.input();
    let threads = args.get(2).and_then(|n| n.parse().ok()).and_then(NonZeroUsize::new);
    let pool = threads.map_or_else(Pool::with_available_parallelism, Pool::new);

    let start = Instant::now();
    // Of super-blocks there are whole ones.
    let wide = |k: usize| if bytes_of_factors(format) > 0 { k.next_multiple_of(SUPER_BLOCK) } else { k };
    let memory = WeightMemory::default();
    let pack = |(n, k)| pack(&pool, &memory, format, n, wide(k));
    let layers: Vec<_> = (0..LAYERS).flat_map(|_| LAYER.map(pack)).collect();
    let head = pack(HEAD);
    let bytes = layers.iter().chain([&head]).map(PackedMatrix::bytes).sum::<usize>() as f64;
    println!("{isa} {format}, {} threads, {:.0} MB packed in {:.1?}", pool.threads(), bytes / 1e6, start.elapsed());

    let start = Instant::now();
    (0..DISPATCHES).for_each(|_| pool.run(pool.threads(), &|_, _| {}));
    println!("{:.1} us per empty parallel loop", start.elapsed().as_secs_f64() * 1e6 / f64::from(DISPATCHES));

    let widest = LAYER.into_iter().map(|(n, k)| n.max(k)).max().unwrap_or(0);
    let most = ROWS.into_iter().max().unwrap_or(0);
    let values = dtype.encode(&(0..most * widest).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect::<Vec<_>>());
    // Memory as a model's tensors have it.
    let memory_of = |bytes| Memory::zeroed(bytes, "activations").expect("memory for activations");
    let (mut x, mut out) = (memory_of(values.len()), memory_of(most.max(16) * HEAD.0.max(widest) * size_of::<f32>()));
    x.bytes_mut().copy_from_slice(&values);
    let (x, out) = (x.bytes(), bytemuck::cast_slice_mut::<u8, f32>(out.bytes_mut()));
    let mut matmuls = Matmuls::new(isa);
    // Seconds of a step with this many rows; long prompts need the head for their last row only.
    let mut step = |rows: usize| {
        let start = Instant::now();
        for (weights, rows) in layers.iter().map(|w| (w, rows)).chain([(&head, if rows > 16 { 1 } else { rows })]) {
            matmuls.matmul(&pool, weights, x, None, &mut out[..rows * weights.n()]);
        }
        start.elapsed().as_secs_f64()
    };
    ROWS.iter().for_each(|&rows| _ = step(rows));

    let mut rounds: Vec<[f64; 2 + ROWS.len()]> = Vec::new();
    for _ in 0..ROUNDS {
        let mut round = [0.0; 2 + ROWS.len()];
        for (time, rows) in round[2..].iter_mut().zip(ROWS) {
            *time = (0..TRIES).map(|_| step(rows)).fold(f64::INFINITY, f64::min);
        }
        round[0] = read_bandwidth(&pool).expect("memory for the bandwidth buffer");
        round[1] = peak_flops_of(&pool, isa, dtype);
        rounds.push(round);
    }
    let median = |f: &dyn Fn(&[f64; 2 + ROWS.len()]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(f).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("read {:.1} GB/s, peak {:.0} GFLOP/s", median(&|r| r[0]) / 1e9, median(&|r| r[1]) / 1e9);
    println!("rows       ms    tok/s  x 1 row  of bandwidth  of peak");
    for (index, rows) in ROWS.into_iter().enumerate() {
        let time = |r: &[f64; 2 + ROWS.len()]| r[2 + index];
        let flops = flops(rows);
        println!(
            "{rows:4} {:8.1} {:8.1} {:8.2} {:12.0}% {:7.0}%",
            median(&time) * 1e3,
            rows as f64 / median(&time),
            median(&|r| rows as f64 * r[2] / time(r)),
            median(&|r| 100.0 * bytes / time(r) / r[0]),
            median(&|r| 100.0 * flops / time(r) / r[1]),
        );
    }
}

fn bytes_of_factors(format: WeightFormat) -> usize {
    match format {
        WeightFormat::Quantised(quantised) => quantised.scales.factor_size(),
        WeightFormat::Float(_) => 0,
    }
}

/// Codes that differ along both axes.
struct Ascending;

impl ReadGroups for Ascending {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = (i * 7 + row + group) as u8 & 15);
        Scale { scale: 0.01, bias: 0.0 }
    }

    fn factors(&self, _: usize, _: usize) -> Scale {
        Scale { scale: 0.01, bias: 0.0 }
    }
}

/// A matrix of small numbers that differ along both axes.
fn pack(pool: &Pool, memory: &WeightMemory, format: WeightFormat, rows: usize, cols: usize) -> PackedMatrix {
    let WeightFormat::Float(dtype) = format else {
        let parts = [QuantisedTensor { rows, cols, groups: &Ascending }];
        return PackedMatrix::pack(pool, memory, WeightSource::quantised("weight", 1, &parts), format)
            .expect("sizes fit");
    };
    let row = dtype.encode(&(0..cols + 64).map(|i| (i % 31) as f32 / 31.0 - 0.5).collect::<Vec<_>>());
    let rows_bytes: Vec<_> = (0..rows).map(|n| &row[n % 64 * dtype.size()..][..cols * dtype.size()]).collect();
    let bytes = rows_bytes.concat();
    PackedMatrix::pack(
        pool,
        memory,
        WeightSource::matrix("weight", &[HostTensor { dtype, rows, cols, bytes: &bytes, file: None }]),
        format,
    )
    .expect("values are small and sizes fit")
}

fn flops(rows: usize) -> f64 {
    let layers: usize = LAYER.iter().map(|(n, k)| n * k * LAYERS).sum();
    let head_rows = if rows > 16 { 1 } else { rows };
    2.0 * (rows * layers + head_rows * HEAD.0 * HEAD.1) as f64
}
