//! Apple's GPU, where there is one: every op against its reference, and what the device promises to the layers above.
//!
//! GPUs of virtual machines cannot run the kernels. There the tests only see that the device is refused with the reason, and say so;
//! with `VLLM_APPLE_REQUIRE_GPU=1` they fail.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vllm_apple_metal::gpu::apple::{AppleBuffer, AppleGpu, PATIENCE};
use vllm_apple_metal::gpu::{
    Binding, Command, Compiler, Constant, Gpu, GpuError, Kernel, MappedFile, PAGE, Value, Work,
};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{Backend, DType, GroupedMatmul, HostTensor, WeightFormat, WeightSource, conformance};

/// One test at a time uses the GPU: commands of one that take long, or that a watchdog ends, would be another's failure.
type Alone = MutexGuard<'static, ()>;

/// The GPU, or `None` where the machine has none that is new enough.
fn gpu_with_patience(patience: Duration) -> Option<(Alone, AppleGpu)> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed is reported by itself.
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match AppleGpu::open(patience, &MetalOptions::default()) {
        Ok(gpu) => Some((alone, gpu)),
        Err(GpuError::Unavailable(reason)) => {
            assert_ne!(std::env::var("VLLM_APPLE_REQUIRE_GPU").as_deref(), Ok("1"), "{reason}");
            assert!(reason.contains("`device` cpu"), "says what to do: {reason}");
            eprintln!("NOT TESTED on a GPU: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn gpu() -> Option<(Alone, AppleGpu)> {
    gpu_with_patience(PATIENCE)
}

/// In the words for a pipeline that may have fewer threads than it needs.
const WITHOUT_ROOM: [&str; 2] = ["its threadgroups may have", "it may be more without MTL_SHADER_VALIDATION"];

#[test]
fn all_ops_conform() {
    let Some((_alone, gpu)) = gpu() else { return };
    // No op may be computed elsewhere.
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(gpu, options).unwrap();
    let verdicts = conformance::run(&mut backend);
    let failed = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string);
    // Nor by another kernel.
    let failed = failed.chain(backend.replaced().map(|(_, reason)| reason.to_owned()));
    // Shader validation takes threads from pipelines: one that is refused for that says nothing about a user's Mac.
    let is_validated = std::env::var("MTL_SHADER_VALIDATION").is_ok_and(|value| value != "0");
    let (without_room, failed): (Vec<String>, Vec<String>) =
        failed.partition(|failure| is_validated && WITHOUT_ROOM.iter().all(|words| failure.contains(words)));
    without_room.iter().for_each(|case| println!("not under shader validation: {case}"));
    assert!(failed.is_empty(), "{} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
}

#[test]
fn a_kernel_that_does_not_compile_is_reported_in_the_compilers_words() {
    let Some((_alone, gpu)) = gpu() else { return };
    let kernel = Kernel {
        file: "wrong.metal",
        source: "\nkernel void wrong(device float* out [[buffer(0)]]) {\n  out[0] = not_declared;\n}\n",
        function: "wrong",
    };
    let error =
        gpu.compiler().pipeline(&kernel, &[], 1).err().expect("it uses a name that is not declared").to_string();
    for words in ["wrong of wrong.metal", "wrong.metal:3:", "error:", "not_declared"] {
        assert!(error.contains(words), "no {words:?} in: {error}");
    }
}

#[test]
fn a_function_that_the_file_lacks_is_reported() {
    let Some((_alone, gpu)) = gpu() else { return };
    let kernel = Kernel { function: "absent", ..LOOP };
    let error = gpu.compiler().pipeline(&kernel, &[], 1).err().expect("there is no such function");
    let GpuError::Compile { file, function, reason } = &error else { panic!("{error}") };
    assert_eq!((file.as_str(), function.as_str()), ("loop.metal", "absent"));
    assert!(!reason.is_empty());
}

/// Runs for as long as `rounds` says, in one thread, and writes what it has computed.
const LOOP: Kernel = Kernel {
    file: "loop.metal",
    source: "
constant uint INCREMENT [[function_constant(0)]];
constant bool DOUBLE [[function_constant(1)]];
constant float SCALE [[function_constant(2)]];

kernel void spin(device float* out [[buffer(0)]], device const float* start [[buffer(1)]], constant uint& rounds [[buffer(2)]]) {
  uint x = uint(start[0]);
  for (uint i = 0; i < rounds; i++) x = (x ^ (x >> 3)) + INCREMENT;
  out[0] = (DOUBLE ? 2.0f : 1.0f) * SCALE * float(x & 0xffffu);
}
",
    function: "spin",
};

fn spin(gpu: &AppleGpu, threads: usize) -> <AppleGpu as Gpu>::Pipeline {
    let values = [Value::U32(7), Value::Bool(true), Value::F32(0.25)];
    let constants: Vec<Constant> =
        values.into_iter().zip(0..).map(|(value, index)| Constant { index, value }).collect();
    gpu.compiler().pipeline(&LOOP, &constants, threads.min(32)).unwrap()
}

fn expected(start: u32, rounds: u32) -> f32 {
    let x = (0..rounds).fold(start, |x, _| (x ^ (x >> 3)).wrapping_add(7));
    0.5 * (x & 0xffff) as f32
}

/// Records `out[0] = expected(start[0], rounds)`.
fn encode(gpu: &mut AppleGpu, out: &AppleBuffer, start: &AppleBuffer, rounds: u32, threads: usize) {
    let pipeline = spin(gpu, threads);
    let rounds = rounds.to_ne_bytes();
    let bindings = [
        Binding::Buffer { buffer: out, offset: 0, len: 4 },
        Binding::Buffer { buffer: start, offset: 0, len: 4 },
        Binding::Bytes(&rounds),
    ];
    gpu.encode(&Command {
        pipeline: &pipeline,
        bindings: &bindings,
        threadgroups: [1, 1, 1],
        threads,
        work: Work::default(),
    });
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_ne_bytes(bytes[..4].try_into().unwrap())
}

#[test]
fn commands_see_constants_arguments_and_what_came_before_a_barrier() {
    let Some((_alone, mut gpu)) = gpu() else { return };
    let buffers: [AppleBuffer; 3] = std::array::from_fn(|_| gpu.allocate(100_000, "a test").unwrap());
    assert!(buffers.iter().all(|buffer| gpu.bytes(buffer) == vec![0; 100_000]), "buffers begin as zeros");
    // SAFETY: no other slice is alive, and nothing is recorded.
    let start = unsafe { gpu.bytes_mut(&buffers[0]) };
    start[..4].copy_from_slice(&3.0f32.to_ne_bytes());
    encode(&mut gpu, &buffers[1], &buffers[0], 1000, 1);
    gpu.submit().unwrap();
    assert_eq!(float(gpu.bytes(&buffers[1])), expected(3, 1000));

    // In one step, through memory: the second reads what the first writes.
    encode(&mut gpu, &buffers[1], &buffers[0], 2000, 1);
    gpu.barrier();
    encode(&mut gpu, &buffers[2], &buffers[1], 0, 1);
    gpu.submit().unwrap();
    assert_eq!(float(gpu.bytes(&buffers[2])), expected(expected(3, 2000) as u32, 0));
}

#[test]
fn commands_see_what_committed_ones_wrote() {
    let Some((_alone, mut gpu)) = gpu() else { return };
    let buffers: [AppleBuffer; 12] = std::array::from_fn(|_| gpu.allocate(4, "a test").unwrap());
    let mut last = 0.0;
    // Long enough to overlap, were they not to wait for each other; twice, as one step follows another.
    for _ in 0..2 {
        for pair in buffers.windows(2) {
            encode(&mut gpu, &pair[1], &pair[0], 100_000, 1);
            gpu.commit();
            last = expected(last as u32, 100_000);
        }
        gpu.commit();
        gpu.submit().unwrap();
        assert_eq!(float(gpu.bytes(&buffers[11])), last);
        last = 0.0;
    }
    // What is given up has run to its end before anybody else uses its memory.
    encode(&mut gpu, &buffers[1], &buffers[0], 1_000_000, 1);
    gpu.commit();
    gpu.discard();
    assert_eq!(float(gpu.bytes(&buffers[1])), expected(0, 1_000_000));
}

#[test]
fn a_discarded_step_does_nothing() {
    let Some((_alone, mut gpu)) = gpu() else { return };
    let (out, start) = (gpu.allocate(4, "a test").unwrap(), gpu.allocate(4, "a test").unwrap());
    encode(&mut gpu, &out, &start, 1000, 1);
    gpu.discard();
    gpu.submit().unwrap();
    assert_eq!(float(gpu.bytes(&out)), 0.0);
}

#[test]
fn a_command_that_the_device_would_drop_fails_the_step_and_not_the_device() {
    let Some((_alone, mut gpu)) = gpu() else { return };
    let (out, start) = (gpu.allocate(4, "a test").unwrap(), gpu.allocate(4, "a test").unwrap());
    encode(&mut gpu, &out, &start, 1, 100_000);
    let error = gpu.submit().unwrap_err();
    assert!(matches!(&error, GpuError::Commands(reason) if reason.contains("100000 threads")), "{error}");
    encode(&mut gpu, &out, &start, 1, 1);
    gpu.submit().unwrap();
    assert_eq!(float(gpu.bytes(&out)), expected(0, 1));
}

#[test]
fn a_device_that_does_not_answer_in_time_is_lost() {
    let Some((_alone, mut gpu)) = gpu_with_patience(Duration::from_millis(20)) else { return };
    let file = Pages::file(1, 0, PAGE, 0.0);
    let start = gpu.map(&file, 0..PAGE).unwrap().expect("it begins at a page");
    let out = gpu.allocate(4, "a test").unwrap();
    // Some tenths of a second, too short for a watchdog: each round waits for the one before.
    encode(&mut gpu, &out, &start, 60_000_000, 1);
    assert!(matches!(gpu.submit(), Err(GpuError::Lost(_))));
    encode(&mut gpu, &out, &start, 1, 1);
    assert!(matches!(gpu.submit(), Err(GpuError::Lost(_))), "it stays lost");
    // They run nevertheless, and let go of the file when they have: before that, nobody else should begin.
    drop(start);
    let since = Instant::now();
    while Arc::strong_count(&file) > 1 {
        assert!(since.elapsed() < Duration::from_secs(60), "the commands do not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let Some((_alone, gpu)) = gpu() else { return };
    let error = gpu.allocate(1 << 60, "a test").err().expect("that is an exbibyte");
    assert_eq!(error, GpuError::OutOfMemory { bytes: 1 << 60, purpose: "a test".to_owned() });
}

/// Pages as of a mapped file, of which `used` bytes from `offset` on are the file.
struct Pages {
    start: NonNull<u8>,
    pages: usize,
    offset: usize,
    used: usize,
}

// SAFETY: plain memory that is only read.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn file(pages: usize, offset: usize, used: usize, first: f32) -> Arc<dyn MappedFile> {
        Self::file_with(pages, offset, used, 0, first)
    }

    /// With a value so many bytes behind the start of the file.
    fn file_with(pages: usize, offset: usize, used: usize, at: usize, value: f32) -> Arc<dyn MappedFile> {
        let layout = Layout::from_size_align(pages * PAGE, PAGE).unwrap();
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: within the allocation, which nobody else knows yet.
        unsafe { start.add(offset + at).cast::<[u8; 4]>().write_unaligned(value.to_ne_bytes()) };
        Arc::new(Self { start, pages, offset, used })
    }
}

impl MappedFile for Pages {
    fn bytes(&self) -> &[u8] {
        // SAFETY: within the allocation, which nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.start.add(self.offset).as_ptr(), self.used) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.pages * PAGE, PAGE)) }
    }
}

#[test]
fn a_mapped_file_is_used_in_place() {
    let Some((_alone, mut gpu)) = gpu() else { return };
    let file = Pages::file(2, 0, PAGE + 100, 5.0);
    let start = gpu.map(&file, 0..PAGE + 100).unwrap().expect("it begins at a page");
    assert_eq!(gpu.bytes(&start).len(), PAGE + 100);
    assert_eq!(gpu.bytes(&start).as_ptr(), file.bytes().as_ptr());
    drop(file);
    let out = gpu.allocate(4, "a test").unwrap();
    encode(&mut gpu, &out, &start, 10, 1);
    drop(start);
    gpu.submit().unwrap();
    assert_eq!(float(gpu.bytes(&out)), expected(5, 10), "the commands keep the memory");

    assert!(gpu.map(&Pages::file(2, 64, PAGE, 0.0), 0..PAGE).unwrap().is_none(), "not at a page boundary");
    assert!(gpu.map(&Pages::file(1, 0, 0, 0.0), 0..0).unwrap().is_none(), "nothing to map");
}

#[test]
fn experts_may_begin_at_any_multiple_of_8_bytes_of_a_mapped_file() {
    const EXPERTS: usize = 4;
    const N: usize = 16;
    const K: usize = 64;
    const BYTES: usize = N * K * 4;
    let Some((_alone, gpu)) = gpu() else { return };
    let mut backend = MetalBackend::new(gpu, MetalOptions { strict: true, ..MetalOptions::default() }).unwrap();
    let used = 8 + EXPERTS * BYTES;
    // Its pages begin 8 bytes before the first weight, whose first element is the only one that is not 0.
    let file = Pages::file_with(used.div_ceil(PAGE), 0, used, 8, 3.0);
    let part = |i| HostTensor {
        dtype: DType::F32,
        rows: N,
        cols: K,
        bytes: &file.bytes()[8 + i * BYTES..][..BYTES],
        file: Some(&file),
    };
    let parts: Vec<_> = (0..EXPERTS).map(part).collect();
    let source = WeightSource::matrices("experts", EXPERTS, &parts);
    let weight = &backend.load_weight(source, WeightFormat::Float(DType::F32)).unwrap();
    let mut x = backend.allocate(DType::F32, 1, K).unwrap();
    backend.write(&mut x, &DType::F32.encode(&[2.0; K]));
    let mut ids = backend.allocate(DType::U32, 1, 2).unwrap();
    backend.write(&mut ids, &[0, 1u32].map(u32::to_le_bytes).concat());
    // A single token's pairs need no table of tiles: something else is bound in its place.
    let mut out = backend.allocate(DType::F32, 2, N).unwrap();
    let (x, ids, out_ref) = (&x, &ids, &mut out);
    let op = GroupedMatmul { tokens: 1, pairs_per_row: 2, x, ids, weight, bias: None, out: out_ref, first: 0 };
    op.run(&mut backend).unwrap();
    backend.synchronize().unwrap();
    let got = DType::F32.decode(backend.read(&out));
    assert_eq!(got[0], 6.0);
    assert!(got[1..].iter().all(|&value| value == 0.0), "{got:?}");
}
