//! Nothing that gpu/apple makes outlives it, and a step leaves nothing behind. One test, since it counts all objects of the process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use objc_sim::gpu::apple::{AppleBuffer, AppleGpu, ApplePipeline, PATIENCE};
use objc_sim::gpu::{Binding, Command, Compiler, Gpu, GpuError, Kernel, MappedFile, PAGE, Work};
use objc_sim::machine::{Fault, machine};
use objc_sim::{MetalOptions, runtime};
use objc2_metal::MTLGPUFamily;

const ADD: Kernel = Kernel {
    file: "add.metal",
    source: "
kernel void add(device uint* out [[buffer(0)]], device const uint* in [[buffer(1)]], constant uint& more [[buffer(2)]]) {
  out[0] = in[0] + more;
}
",
    function: "add",
};

/// Two pages of zeros.
#[repr(align(16384))]
struct Pages([u8; 2 * PAGE]);

impl MappedFile for Pages {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Waits until what is alive is `expected`: the queue's thread lets go of its last command buffer after it has said that it has run.
#[track_caller]
fn settles(expected: &BTreeMap<String, usize>, blocks: usize, when: &str) {
    let start = Instant::now();
    while (&runtime::live(), runtime::live_blocks()) != (expected, blocks) {
        let (live, live_blocks) = (runtime::live(), runtime::live_blocks());
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{when}: {live:?}, {live_blocks} blocks; expected {expected:?}, {blocks}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn add(gpu: &mut AppleGpu, pipeline: &ApplePipeline, out: &AppleBuffer, start: &AppleBuffer, more: u32) {
    let more = more.to_ne_bytes();
    let bindings = [
        Binding::Buffer { buffer: out, offset: 0, len: 4 },
        Binding::Buffer { buffer: start, offset: 0, len: 4 },
        Binding::Bytes(&more),
    ];
    let work = Work::default();
    gpu.encode(&Command { pipeline, bindings: &bindings, threadgroups: [1, 1, 1], threads: 1, work });
}

/// Three command buffers with barriers between commands.
fn step(gpu: &mut AppleGpu, pipeline: &ApplePipeline, buffers: &[AppleBuffer]) -> Result<u32, GpuError> {
    for pair in buffers.windows(2) {
        add(gpu, pipeline, &pair[1], &pair[0], 1);
        gpu.barrier();
        add(gpu, pipeline, &pair[1], &pair[0], 2);
        gpu.commit();
    }
    gpu.submit()?;
    let bytes = gpu.bytes(buffers.last().expect("some"));
    Ok(u32::from_ne_bytes(bytes[..4].try_into().unwrap()))
}

#[test]
fn everything_goes_with_the_device_and_a_step_leaves_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let options = MetalOptions { cache: Some(cache.path().to_owned()), ..MetalOptions::default() };
    let open = || AppleGpu::open(PATIENCE, &options).unwrap();
    // What the frameworks keep for themselves is there from the first use on.
    drop(open());
    std::thread::sleep(Duration::from_millis(50));
    let nothing = BTreeMap::from([("NSString".to_owned(), 1)]);
    settles(&nothing, 0, "a device that was only opened");

    let mut gpu = open();
    let pipeline = gpu.compiler().pipeline(&ADD, &[], 1).unwrap();
    assert!(gpu.compiler().pipeline(&Kernel { function: "none", ..ADD }, &[], 1).is_err());
    let pages = Arc::new(Pages([0; 2 * PAGE]));
    let file: Arc<dyn MappedFile> = pages.clone();
    let mut buffers = vec![gpu.map(&file, 0..PAGE + 100).unwrap().expect("page-aligned")];
    drop(file);
    buffers.extend((0..3).map(|_| gpu.allocate(4, "a test").unwrap()));
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(6));
    std::thread::sleep(Duration::from_millis(50));
    let (live, blocks) = (runtime::live(), runtime::live_blocks());
    for i in 0..20 {
        assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(6));
        settles(&live, blocks, &format!("step {i}"));
    }

    // A step that fails, one that is too long, one that is given up, and one that cannot be recorded.
    for fault in
        [Fault::Error(3, "Caused GPU Address Fault".into()), Fault::Error(2, "Caused GPU Timeout Error".into())]
    {
        machine().faults = [Fault::None, fault.clone()].into();
        let error = step(&mut gpu, &pipeline, &buffers).unwrap_err();
        match &fault {
            Fault::Error(2, _) => assert!(matches!(&error, GpuError::TooLong(_)), "{error:?}"),
            _ => assert!(matches!(&error, GpuError::Commands(_)), "{error:?}"),
        }
        let Fault::Error(_, words) = fault else { unreachable!() };
        assert!(error.to_string().contains(&words), "{error}");
        settles(&live, blocks, "a failed step");
    }
    add(&mut gpu, &pipeline, &buffers[1], &buffers[0], 1);
    gpu.discard();
    gpu.encode(&Command {
        pipeline: &pipeline,
        bindings: &[],
        threadgroups: [0, 1, 1],
        threads: 1,
        work: Work::default(),
    });
    assert!(gpu.submit().is_err());
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(6), "the device can be used after all that");
    settles(&live, blocks, "a discarded step");

    // The file is let go of with the last command that uses it; the archive is written, and found by the next device.
    assert_eq!(Arc::strong_count(&pages), 2);
    add(&mut gpu, &pipeline, &buffers[1], &buffers[0], 1);
    buffers.remove(0);
    assert_eq!(Arc::strong_count(&pages), 2, "recorded commands use it");
    gpu.submit().unwrap();
    gpu.compiler().keep();
    let start = Instant::now();
    while Arc::strong_count(&pages) > 1 || cache.path().read_dir().unwrap().count() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{} owners", Arc::strong_count(&pages));
        std::thread::sleep(Duration::from_millis(1));
    }
    // Recorded and never submitted.
    add(&mut gpu, &pipeline, &buffers[1], &buffers[0], 1);
    drop((gpu, pipeline, buffers));
    settles(&nothing, 0, "the end");

    assert!(machine().compiles_concurrently);

    let compiled = |gpu: &AppleGpu, threads| {
        let before = machine().compiled;
        drop(gpu.compiler().pipeline(&ADD, &[], threads).unwrap());
        machine().compiled - before
    };
    let second = open();
    assert_eq!(compiled(&second, 1), 0, "it is kept");
    // Whoever needs a pipeline while the file is written does not wait for it, and finds what is kept; what is compiled meanwhile is kept
    // next time.
    assert_eq!(compiled(&second, 96), 1);
    machine().archive_time = Duration::from_millis(500);
    second.compiler().keep();
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    assert_eq!((compiled(&second, 1), compiled(&second, 128)), (0, 1));
    assert!(start.elapsed() < Duration::from_millis(300), "{:?}", start.elapsed());
    second.compiler().keep();
    // It ends with the device.
    drop(second);
    settles(&nothing, 0, "a start with kept kernels");
    machine().archive_time = Duration::ZERO;
    let third = open();
    assert_eq!([1, 96, 128].map(|threads| compiled(&third, threads)), [0; 3]);
    drop(third);
    settles(&nothing, 0, "a start with all kernels kept");
    few_threads();
    settles(&nothing, 0, "pipelines of few threads");

    other_machines(&nothing);
    ignored();
    settles(&nothing, 0, "a device that is ignored");
    starved();
    settles(&nothing, 0, "a device without memory");
    members_come_and_go();
    settles(&nothing, 0, "a device whose members have gone");
    awake();
    settles(&nothing, 0, "a device that has kept the Mac awake");
    no_compiler();
    settles(&nothing, 0, "a device whose compiler did not answer");

    // A device that never answers keeps what the commands use, but only that.
    let mut lost = AppleGpu::open(Duration::from_millis(20), &MetalOptions::default()).unwrap();
    let pipeline = lost.compiler().pipeline(&ADD, &[], 1).unwrap();
    let buffers: Vec<AppleBuffer> = (0..2).map(|_| lost.allocate(4, "a test").unwrap()).collect();
    machine().faults = [Fault::Silence].into();
    assert!(matches!(step(&mut lost, &pipeline, &buffers), Err(GpuError::Lost(_))));
    assert!(matches!(step(&mut lost, &pipeline, &buffers), Err(GpuError::Lost(_))), "it stays lost");
    drop((lost, pipeline, buffers));
    assert_eq!(runtime::live().get("SimBuffer"), Some(&2), "commands may still use them");

    // Nor does a step of more command buffers than a queue has room for wait for one that never answers.
    let mut lost = AppleGpu::open(Duration::from_millis(20), &MetalOptions::default()).unwrap();
    let pipeline = lost.compiler().pipeline(&ADD, &[], 1).unwrap();
    let buffers: Vec<AppleBuffer> = (0..100).map(|_| lost.allocate(4, "a test").unwrap()).collect();
    assert_eq!(step(&mut lost, &pipeline, &buffers), Ok(2 * 99));
    machine().faults = vec![Fault::Silence; 99].into();
    let start = Instant::now();
    assert!(matches!(step(&mut lost, &pipeline, &buffers), Err(GpuError::Lost(_))));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(machine().faults.len() >= 99 - 64, "nothing is recorded any more");
    machine().faults.clear();

    assert_eq!(runtime::violations(), Vec::<String>::new());
}

/// Under shader validation pipelines may have fewer threads than they were compiled for: then they are refused, with that reason.
fn few_threads() {
    machine().most_threads = 448;
    let gpu = AppleGpu::open(PATIENCE, &MetalOptions::default()).unwrap();
    drop(gpu.compiler().pipeline(&ADD, &[], 448).unwrap());
    let refused = gpu.compiler().pipeline(&ADD, &[], 512).err().expect("too many").to_string();
    assert!(refused.contains("448 threads, not 512") && refused.contains("MTL_SHADER_VALIDATION"), "{refused}");
    machine().most_threads = 1024;
}

/// What the system ignores once runs after a while; twice, and the device is lost.
fn ignored() {
    let mut gpu = AppleGpu::open(PATIENCE, &MetalOptions::default()).unwrap();
    let pipeline = gpu.compiler().pipeline(&ADD, &[], 1).unwrap();
    let buffers: Vec<AppleBuffer> = (0..2).map(|_| gpu.allocate(4, "a test").unwrap()).collect();
    let ignored = || Fault::Error(4, "Ignored (for causing prior/excessive GPU errors)".to_owned());
    machine().faults = [ignored()].into();
    let start = Instant::now();
    assert!(matches!(step(&mut gpu, &pipeline, &buffers), Err(GpuError::Discarded(_))));
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(2));
    machine().faults = vec![ignored(); 2].into();
    assert!(matches!(step(&mut gpu, &pipeline, &buffers), Err(GpuError::Discarded(_))));
    assert!(matches!(step(&mut gpu, &pipeline, &buffers), Err(GpuError::Lost(_))));
}

/// For want of memory a step is tried again after a while, for which the memory is asked for.
fn starved() {
    let mut gpu = AppleGpu::open(PATIENCE, &MetalOptions::default()).unwrap();
    let pipeline = gpu.compiler().pipeline(&ADD, &[], 1).unwrap();
    let buffers: Vec<AppleBuffer> = (0..2).map(|_| gpu.allocate(16 << 20, "a test").unwrap()).collect();
    let want = || Fault::Error(8, "Insufficient Memory".to_owned());
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(2));
    machine().faults = [want()].into();
    let (start, asked) = (Instant::now(), machine().residency_requests);
    assert!(matches!(step(&mut gpu, &pipeline, &buffers), Err(GpuError::Discarded(_))));
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(machine().residency_requests > asked);
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(2));
    machine().faults = vec![want(); 2].into();
    assert!(matches!(step(&mut gpu, &pipeline, &buffers), Err(GpuError::Discarded(_))));
    let error = step(&mut gpu, &pipeline, &buffers).unwrap_err();
    assert!(matches!(&error, GpuError::NoMemory(words) if words.contains("close other programs")), "{error}");
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(2));
}

/// A residency set is committed for all members that have gone, not for each: with the next command buffer, or when none is left.
fn members_come_and_go() {
    let mut gpu = AppleGpu::open(PATIENCE, &MetalOptions::default()).unwrap();
    let pipeline = gpu.compiler().pipeline(&ADD, &[], 1).unwrap();
    let mut buffers: Vec<AppleBuffer> = (0..6).map(|_| gpu.allocate(16 << 20, "a test").unwrap()).collect();
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(10));
    let commits = machine().residency_commits;
    let alive = |expected| {
        let start = Instant::now();
        while runtime::live().get("SimBuffer").copied().unwrap_or(0) != expected {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}, not {expected} buffers", runtime::live());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    buffers.truncate(2);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(machine().residency_commits, commits);
    alive(6);
    assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(2));
    assert_eq!(machine().residency_commits, commits + 1);
    alive(2);
    drop(buffers);
    assert_eq!(machine().residency_commits, commits + 2);
    alive(0);
}

/// The Mac is kept awake from the first use of a device on, by one activity, which ends with the device if not before.
fn awake() {
    let begun = machine().activities_begun;
    let mut gpu = AppleGpu::open(PATIENCE, &MetalOptions::default()).unwrap();
    let activities = || {
        let machine = machine();
        (machine.activities, machine.activities_begun - begun)
    };
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(activities(), (0, 0), "it is only open");
    // As while a model is loaded.
    let buffers: Vec<AppleBuffer> = (0..2).map(|_| gpu.allocate(4, "a test").unwrap()).collect();
    let start = Instant::now();
    while machine().activities == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "it may go to sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pipeline = gpu.compiler().pipeline(&ADD, &[], 1).unwrap();
    for _ in 0..10 {
        assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(2));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(activities(), (1, 1));
    drop(gpu);
    assert_eq!(activities(), (0, 1));
}

/// What the compiler did not answer is asked again, whether a library or a pipeline.
fn no_compiler() {
    let gpu = AppleGpu::open(PATIENCE, &MetalOptions::default()).unwrap();
    let answer = |words: Option<&str>, threads| {
        machine().compiler_faults = words.map(str::to_owned).into_iter().collect();
        gpu.compiler().pipeline(&ADD, &[], threads).map(drop)
    };
    let no_answer = |words, threads| {
        let error = answer(Some(words), threads).unwrap_err();
        assert!(matches!(&error, GpuError::NotCompiled { reason, .. } if reason == words), "{error}");
    };
    no_answer("Unable to reach MTLCompilerService. Connection init failed at lookup with error 32 - Broken pipe", 1);
    assert_eq!(answer(None, 1), Ok(()));
    no_answer("Compiler failed with XPC_ERROR_CONNECTION_INTERRUPTED", 96);
    assert_eq!(answer(None, 96), Ok(()));
    let refused = answer(Some("Compute function exceeds available temporary registers"), 128).unwrap_err();
    assert!(matches!(refused, GpuError::Compile { .. }), "{refused}");
}

/// Devices that are too old, without residency sets, or with less memory than the buffers take.
fn other_machines(nothing: &BTreeMap<String, usize>) {
    let usual = machine().clone();
    let open = |allow_vm| AppleGpu::open(PATIENCE, &MetalOptions { allow_vm, ..MetalOptions::default() });
    machine().family = MTLGPUFamily::Apple5;
    let refused = open(false).err().expect("older than the M1").to_string();
    assert!(refused.contains("Simulated M2 is of the families Apple4, Apple5, Mac2, Metal3;"), "{refused}");
    drop(open(true).unwrap());
    machine().family = usual.family;

    for (residency_sets, working_set) in [(false, usual.working_set), (true, 40 << 20)] {
        machine().residency_sets = residency_sets;
        machine().working_set = working_set;
        let mut gpu = open(false).unwrap();
        let pipeline = gpu.compiler().pipeline(&ADD, &[], 1).unwrap();
        let buffers: Vec<AppleBuffer> = (0..4).map(|_| gpu.allocate(16 << 20, "a test").unwrap()).collect();
        assert_eq!(step(&mut gpu, &pipeline, &buffers), Ok(6));
        // The heartbeat asks for the memory again.
        let asked = machine().residency_requests;
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(machine().residency_requests > asked, residency_sets);
    }
    *machine() = usual;
    settles(nothing, 0, "other machines");
}
