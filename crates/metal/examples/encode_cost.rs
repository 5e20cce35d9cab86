//! What it costs the host to encode a decode step of a 40-layer model of Devstral's shape: time, commands and allocations. The ops
//! are called as the decoder calls them, on a device that records commands and does not run them.
//!
//! `cargo run --release -p vllm-apple-metal --features fake --example encode_cost`

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

#[path = "../tests/common/decoder.rs"]
mod decoder;

use decoder::{BLOCK, DEVSTRAL_24B as SHAPE, Model, Step};
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::*;

/// Most time to encode a step.
const BUDGET: Duration = Duration::from_micros(300);
/// Most commands of a layer.
const COMMANDS_PER_LAYER: usize = 9;

/// The system's allocator, counting what is asked of it.
struct Counting;

thread_local! {
    /// Of this thread, the one that encodes: the backend's own threads are still starting.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    const STEPS: usize = 300;
    let mut good = true;
    for (rows, context) in [(1usize, 4096usize), (8, 4096), (64, 1024)] {
        let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default())?;
        let mut model = Model::new(&backend, SHAPE, rows * context.div_ceil(BLOCK))?;
        let mut step = Step::new(&backend, SHAPE, rows, 1, context)?;
        // Twice: kernels are compiled, and lists are as long as they get.
        for _ in 0..2 {
            model.encode(&mut backend, &mut step)?;
            backend.synchronize()?;
        }
        let (commands, barriers) = (backend.gpu().num_commands() / 2, backend.gpu().num_barriers() / 2);
        let before = ASKED.get();
        let mut times = [Duration::ZERO; STEPS];
        for time in &mut times {
            let start = Instant::now();
            model.encode(&mut backend, &mut step)?;
            *time = start.elapsed();
            backend.synchronize()?;
        }
        let allocations = ASKED.get() - before;
        times.sort();
        let (median, fastest) = (times[STEPS / 2], times[0]);
        // What comes before and behind the layers: embedding, norm, gather and head.
        let per_layer = (commands - 4).div_ceil(SHAPE.layers);
        println!(
            "{rows} requests of {context} tokens: {commands} commands ({per_layer} a layer), {barriers} barriers, \
             {median:.1?} a step (fastest {fastest:.1?}), {allocations} allocations in {STEPS} steps"
        );
        assert_eq!(backend.fallbacks(), [], "all ops are encoded");
        good &= median < BUDGET && per_layer <= COMMANDS_PER_LAYER && allocations == 0;
    }
    println!(
        "at most {BUDGET:.0?} a step, {COMMANDS_PER_LAYER} commands a layer, no allocation: {}",
        if good { "met" } else { "NOT MET" }
    );
    std::process::exit(i32::from(!good));
}
