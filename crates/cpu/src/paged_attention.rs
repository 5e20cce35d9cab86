//! Attention over the paged cache: cuts the step into items, shares them among threads and joins what was computed apart. The
//! arithmetic of a part is in `paged_attention/part.rs`.
//!
//! For one request and key head, the rows are its new tokens times the query heads of the group, tokens first. An item is a run
//! of at most [`ROWS`] rows, so that many rows meet each key and value while it is in the cache. A row takes its positions in
//! parts of [`PART`], which begin at multiples of it; each part gives a maximum, a sum and a weighted value of its own, and the
//! row's state takes them in ascending order. A part and its place in that order depend on nothing but the row's position
//! and window, so it does not matter how rows are grouped, or whether parts are computed by one thread or by several.

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod matrices;
mod part;
mod plan;
mod softmax;
mod state;

use std::ops::Range;

use vllm_apple_ops::{DType, PagedAttention, Result, StepSize};

use crate::CpuBackend;
use crate::isa::Isa;
use crate::kv_layout::KvLayout;
use crate::memory::Memory;
use crate::memory::elements;
use crate::pack::SendPtr;
use crate::simd::{Element, Kernel, LANES, Simd, load_padded, store_part};
#[cfg(target_arch = "x86_64")]
use ahead::Ahead;
use part::{HeadCache, PartScratch};
use plan::{Item, Most, Plan, Request};
use state::{MAX_STATE, Room, State};

/// Positions in a part.
const PART: usize = 256;
/// Rows in an item.
const ROWS: usize = 48;

/// Memory that the op reuses from call to call. [`Attention::reserve`] grows it to what a step needs, and a call that nobody
/// has announced grows it too.
#[derive(Debug)]
pub(crate) struct Attention {
    plan: Plan,
    /// One per thread.
    scratch: Vec<Scratch>,
    /// States of parts that are computed apart.
    partials: Vec<f32>,
}

#[derive(Debug)]
struct Scratch {
    /// Of an item's rows, times the scale.
    queries: Vec<Room>,
    /// `[ROWS]` states.
    states: Vec<f32>,
    part: PartScratch,
    #[cfg(target_arch = "x86_64")]
    matrices: matrices::Scratch,
}

impl Attention {
    pub(crate) fn new(threads: usize, isa: Isa) -> Self {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = isa;
        let scratch = || Scratch {
            queries: vec![Room::default(); ROWS],
            states: vec![0.0; ROWS * MAX_STATE],
            part: PartScratch::default(),
            #[cfg(target_arch = "x86_64")]
            matrices: matrices::Scratch::new(isa),
        };
        Self { plan: Plan::default(), scratch: (0..threads).map(|_| scratch()).collect(), partials: Vec::new() }
    }

    /// Makes room for every call of a step.
    pub(crate) fn reserve(&mut self, step: &StepSize) {
        let most = Most::of(step, self.scratch.len());
        self.plan.reserve(&most);
        if self.partials.len() < most.partial_floats {
            // Nothing of the old content is needed, and zeros from the system cost nothing until they are touched.
            self.partials = Vec::new();
            self.partials = vec![0.0; most.partial_floats];
        }
    }

    /// Bytes that [`Attention::reserve`] grows to.
    pub(crate) fn bytes(&self, step: &StepSize) -> usize {
        Most::of(step, self.scratch.len()).bytes()
    }
}

pub(crate) fn run<T: Element>(backend: &mut CpuBackend, op: PagedAttention<'_, Memory>) -> Result<()> {
    let layout = KvLayout::new(&op.cache.spec)?;
    debug_assert_eq!(layout.together, T::TOGETHER);
    let Attention { plan, scratch, partials } = &mut backend.attention;
    let (pool, dispatch) = (&backend.pool, backend.dispatch);
    plan.cut(op.sequences, &layout, op.num_heads / layout.num_kv_heads, op.window, pool.threads())?;
    if partials.len() < plan.partial_floats() {
        partials.resize(plan.partial_floats(), 0.0);
    }
    let (partials, scratch) = (SendPtr(partials.as_mut_ptr()), SendPtr(scratch.as_mut_ptr()));
    let call = Call::<T> {
        plan,
        layout,
        num_heads: op.num_heads,
        scale: op.scale,
        sinks: op.sinks.map(|sinks| elements(sinks, 1)),
        #[cfg(target_arch = "x86_64")]
        has_matrices: {
            let group = op.num_heads / op.cache.spec.num_kv_heads;
            matrices::fit(dispatch.isa(), op.cache.spec.dtype, layout.head_dim, group)
        },
        queries: elements(op.qkv, op.sequences.num_tokens),
        query_stride: op.qkv.cols(),
        keys: bytemuck::cast_slice(op.cache.keys.bytes_and_slack()),
        values: bytemuck::cast_slice(op.cache.values.bytes_and_slack()),
        block_table: elements(&op.sequences.block_table, 1),
        block_table_stride: op.sequences.block_table_stride,
        out_dtype: op.out.dtype(),
        out: SendPtr(op.out.memory_mut().bytes_mut().as_mut_ptr()),
        partials,
    };
    pool.run(plan.items().len(), &|item, thread| {
        // SAFETY: no two calls of the same thread overlap.
        let scratch = unsafe { &mut *scratch.get().add(thread) };
        dispatch.run(Compute { call: &call, item: &plan.items()[item], scratch });
    });
    pool.run(plan.splits().len(), &|item, thread| {
        // SAFETY: as above.
        let scratch = unsafe { &mut *scratch.get().add(thread) };
        dispatch.run(Join { call: &call, item: &plan.splits()[item], scratch });
    });
    Ok(())
}

/// What all items of a call share.
struct Call<'a, T> {
    plan: &'a Plan,
    layout: KvLayout,
    num_heads: usize,
    scale: f32,
    /// Of each query head.
    sinks: Option<&'a [f32]>,
    /// Whether products are of matrices.
    #[cfg(target_arch = "x86_64")]
    has_matrices: bool,
    queries: &'a [f32],
    query_stride: usize,
    keys: &'a [T],
    values: &'a [T],
    block_table: &'a [u32],
    block_table_stride: usize,
    out_dtype: DType,
    out: SendPtr<u8>,
    partials: SendPtr<f32>,
}

impl<T: Element> Call<'_, T> {
    /// Token in the step and query head of a row.
    fn token_and_head(&self, request: &Request, kv_head: usize, row: usize) -> (usize, usize) {
        let group = self.plan.group();
        (request.first_token + row / group, kv_head * group + row % group)
    }

    /// The state of a row after one part, in the memory that items which take only some parts write to.
    ///
    /// # Safety
    /// `item` is of a split, and `part` and `row` are within it.
    unsafe fn partial(&self, item: &Item, part: usize, row: usize) -> *mut [f32] {
        let state = State::floats(self.layout.head_dim);
        let index = (part - item.first_part_of_all) * item.rows.len() + row;
        // SAFETY: the plan has counted the floats of all parts and rows; the caller vouches for the rest.
        unsafe { std::ptr::slice_from_raw_parts_mut(self.partials.get().add(item.partials + index * state), state) }
    }

    /// Positions of a part that any row of an item sees: none if the part is not the item's.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn visible_to_any(&self, item: &Item, part: usize) -> Range<usize> {
        if !item.parts.contains(&part) {
            return 0..0;
        }
        self.visible(item, part, 0).start..self.visible(item, part, item.rows.len() - 1).end
    }

    /// Computes an item's parts and rows.
    #[inline(always)]
    fn by_vectors<S: Simd>(
        &self,
        s: S,
        item: &Item,
        cache: &HeadCache<'_, T>,
        queries: &[Room],
        results: &mut PartScratch,
        to: &mut Results<'_, T>,
    ) {
        for part in item.parts.clone() {
            let visible = |row| self.visible(item, part, row);
            part::compute(s, cache, queries, part * PART, &visible, results);
            for row in 0..item.rows.len() {
                to.take(s, part, row, &results.row(row, self.layout.head_dim));
            }
        }
    }

    /// As [`Call::by_vectors`], 16 rows at a time or fewer.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_matrices<S: Simd>(
        &self,
        s: S,
        item: &Item,
        cache: &HeadCache<'_, T>,
        queries: &[Room],
        scratch: &mut matrices::Scratch,
        to: &mut Results<'_, T>,
    ) {
        // SAFETY: `has_matrices` says that the machine has them.
        let mut rows = unsafe { matrices::Rows::new(s, scratch, queries, self.layout.head_dim) };
        Ahead::new(cache, self.visible_to_any(item, item.parts.start)).ask(s, usize::MAX);
        for part in item.parts.clone() {
            let mut ahead = Ahead::new(cache, self.visible_to_any(item, part + 1));
            let visible = |row| self.visible(item, part, row);
            rows.compute(s, cache, part * PART, &visible, &mut ahead, to);
        }
    }

    /// Positions of a part that a row of an item sees: empty, or even reversed, if there are none.
    #[inline(always)]
    fn visible(&self, item: &Item, part: usize, row: usize) -> Range<usize> {
        let positions = self.plan.visible(&item.request, item.rows.start + row);
        positions.start.max(part * PART)..positions.end.min((part + 1) * PART)
    }

    /// Rounds a row's result to the output.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, item: &Item, row: usize, state: &mut State<'_>) {
        let head_dim = self.layout.head_dim;
        let (token, head) = self.token_and_head(&item.request, item.kv_head, item.rows.start + row);
        if let Some(sinks) = self.sinks {
            state.take_sink(s, sinks[head]);
        }
        state.divide(s);
        let at = (token * self.num_heads + head) * head_dim;
        crate::simd::with_float!(self.out_dtype, O => {
            // SAFETY: the op's checks have made sure that `out` has this type and all tokens and heads; only one item, or the
            // split that joins several, has this row.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.get().cast::<O>().add(at), head_dim) };
            for (out, value) in out.chunks_mut(LANES).zip(state.value.chunks(LANES)) {
                store_part(s, load_padded(s, value), out);
            }
        });
    }
}

/// Takes what parts give.
struct Results<'a, T> {
    call: &'a Call<'a, T>,
    item: &'a Item,
    /// Of the item's rows.
    states: &'a mut [f32],
}

impl<T: Element> Results<'_, T> {
    #[inline(always)]
    fn take<S: Simd>(&mut self, s: S, part: usize, row: usize, done: &State<'_>) {
        if self.item.is_split() {
            // SAFETY: this item alone has these rows and parts; they are read in the next parallel loop.
            State::of(unsafe { &mut *self.call.partial(self.item, part, row) }).set(done);
        } else {
            let state = State::floats(self.call.layout.head_dim);
            State::of(&mut self.states[row * state..][..state]).take(s, done);
        }
    }
}

/// Computes the parts of an item.
struct Compute<'a, T> {
    call: &'a Call<'a, T>,
    item: &'a Item,
    scratch: &'a mut Scratch,
}

impl<T: Element> Kernel for Compute<'_, T> {
    type Output = ();
    const DOT: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, item, scratch } = self;
        let head_dim = call.layout.head_dim;
        let state = State::floats(head_dim);
        let blocks = &call.block_table[item.request.index * call.block_table_stride..][..call.block_table_stride];
        let cache = HeadCache { keys: call.keys, values: call.values, blocks, layout: call.layout, head: item.kv_head };
        for (i, row) in item.rows.clone().enumerate() {
            let (token, head) = call.token_and_head(&item.request, item.kv_head, row);
            let query = &call.queries[token * call.query_stride + head * head_dim..][..head_dim];
            for (to, &x) in scratch.queries[i].0.iter_mut().zip(query) {
                *to = x * call.scale;
            }
            State::of(&mut scratch.states[i * state..][..state]).clear();
        }
        #[cfg(target_arch = "x86_64")]
        let matrices = &mut scratch.matrices;
        let (queries, states, results) = (&scratch.queries[..item.rows.len()], &mut scratch.states, &mut scratch.part);
        let mut to = Results { call, item, states };
        #[cfg(target_arch = "x86_64")]
        let by_matrices = S::BF16_DOT && T::IS_BF16 && call.has_matrices;
        #[cfg(not(target_arch = "x86_64"))]
        let by_matrices = false;
        if by_matrices {
            #[cfg(target_arch = "x86_64")]
            call.by_matrices(s, item, &cache, queries, matrices, &mut to);
        } else {
            call.by_vectors(s, item, &cache, queries, results, &mut to);
        }
        if !item.is_split() {
            for row in 0..item.rows.len() {
                call.finish(s, item, row, &mut State::of(&mut scratch.states[row * state..][..state]));
            }
        }
    }
}

/// Joins the parts of a split item.
struct Join<'a, T> {
    call: &'a Call<'a, T>,
    item: &'a Item,
    scratch: &'a mut Scratch,
}

impl<T: Element> Kernel for Join<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { call, item, scratch } = self;
        for row in 0..item.rows.len() {
            let mut state = State::of(&mut scratch.states[..State::floats(call.layout.head_dim)]);
            state.clear();
            for part in item.parts.clone() {
                // SAFETY: the items that wrote it have ended, and only this one joins it.
                let done = State::of(unsafe { &mut *call.partial(item, part, row) });
                state.take(s, &done);
            }
            call.finish(s, item, row, &mut state);
        }
    }
}
