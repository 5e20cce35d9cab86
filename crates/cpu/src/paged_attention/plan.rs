//! Cuts a step's attention into items of work. It knows lengths and costs, no values.

use std::ops::Range;

use vllm_apple_ops::{Error, Result, Sequences, StepSize};

use super::{PART, ROWS, State};
use crate::kv_layout::KvLayout;
use crate::memory::{Memory, elements};

/// Items per thread that are enough for all threads to end at about the same time.
const ITEMS_PER_THREAD: usize = 4;
/// Most floats for states that are kept apart (32 MiB): what would need more is not split.
const MAX_PARTIAL_FLOATS: usize = 8 << 20;

/// New tokens of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Its place in the step.
    pub index: usize,
    /// Its first token in the step.
    pub first_token: usize,
    /// New tokens.
    pub query_len: usize,
    /// Tokens before and with the new ones.
    pub seq_len: usize,
}

/// Some rows of a request and key head, and some of their parts.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub request: Request,
    pub kv_head: usize,
    pub rows: Range<usize>,
    pub parts: Range<usize>,
    /// Where the states of its split begin, or [`WHOLE`].
    pub partials: usize,
    /// First part of its split.
    pub first_part_of_all: usize,
}

const WHOLE: usize = usize::MAX;

impl Item {
    /// Whether other items have other parts of the same rows.
    pub(super) fn is_split(&self) -> bool {
        self.partials != WHOLE
    }
}

/// The most that any plan of a step can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Most {
    /// Tiles, items or splits.
    items: usize,
    /// Floats for the states of all splits.
    pub partial_floats: usize,
}

impl Most {
    /// Of a step of this size, on so many threads.
    pub(super) fn of(step: &StepSize, threads: usize) -> Self {
        let m = &step.model;
        let group = m.num_heads / m.num_kv_heads;
        // Each request may leave a tile of its own unfilled.
        let tiles = ((step.num_tokens * group).div_ceil(ROWS) + step.num_requests) * m.num_kv_heads;
        if threads == 1 {
            return Self { items: tiles, partial_floats: 0 };
        }
        // Fewer tiles than the target are split. The target is rounded down, to half at worst, and a tile's last piece may be
        // short: twice as many pieces as wanted, and one more for each tile.
        let wanted = threads * ITEMS_PER_THREAD;
        let rows = (step.num_tokens * m.num_heads).min(wanted * ROWS);
        let floats = rows * step.max_seq_len.div_ceil(PART) * State::floats(m.head_dim);
        Self { items: tiles.max(3 * wanted), partial_floats: floats.min(MAX_PARTIAL_FLOATS) }
    }

    /// Bytes of tiles, items, splits and states.
    pub(super) fn bytes(&self) -> usize {
        3 * self.items * size_of::<Item>() + self.partial_floats * size_of::<f32>()
    }
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    group: usize,
    window: Option<usize>,
    /// Rows with all of their parts.
    tiles: Vec<Item>,
    /// What threads compute.
    items: Vec<Item>,
    /// Tiles whose parts are in several items.
    splits: Vec<Item>,
    partial_floats: usize,
}

impl Plan {
    /// Makes room for plans that hold at most so much.
    pub(super) fn reserve(&mut self, most: &Most) {
        for items in [&mut self.tiles, &mut self.items, &mut self.splits] {
            items.clear();
            items.reserve_exact(most.items);
        }
    }

    /// Plans a step. `group` is the number of query heads per key head.
    pub(super) fn cut(
        &mut self,
        sequences: &Sequences<Memory>,
        layout: &KvLayout,
        group: usize,
        window: Option<usize>,
        threads: usize,
    ) -> Result<()> {
        (self.group, self.window, self.partial_floats) = (group, window, 0);
        self.tiles.clear();
        self.items.clear();
        self.splits.clear();
        for index in 0..sequences.num_requests {
            let request = request(sequences, index, layout.block_size)?;
            self.add_tiles(request, layout.num_kv_heads);
        }
        if threads == 1 || self.tiles.len() >= threads * ITEMS_PER_THREAD {
            std::mem::swap(&mut self.items, &mut self.tiles);
            return Ok(());
        }
        let total: usize = self.tiles.iter().map(|tile| self.cost(tile)).sum();
        let target = (total / (threads * ITEMS_PER_THREAD)).max(1);
        for i in 0..self.tiles.len() {
            let tile = self.tiles[i].clone();
            let pieces = self.cost(&tile).div_ceil(target).min(tile.parts.len());
            self.split(tile, pieces, State::floats(layout.head_dim));
        }
        Ok(())
    }

    /// The longest tiles of a request first: what is left to the end is short.
    fn add_tiles(&mut self, request: Request, num_kv_heads: usize) {
        let rows = request.query_len * self.group;
        for tile in (0..rows.div_ceil(ROWS)).rev() {
            let rows = tile * ROWS..rows.min((tile + 1) * ROWS);
            let first = self.visible(&request, rows.start).start / PART;
            let parts = first..self.visible(&request, rows.end - 1).end.div_ceil(PART);
            for kv_head in 0..num_kv_heads {
                let (rows, parts) = (rows.clone(), parts.clone());
                self.tiles.push(Item { request, kv_head, rows, parts, partials: WHOLE, first_part_of_all: first });
            }
        }
    }

    fn split(&mut self, tile: Item, pieces: usize, state: usize) {
        let floats = tile.rows.len() * tile.parts.len() * state;
        if pieces < 2 || self.partial_floats + floats > MAX_PARTIAL_FLOATS {
            self.items.push(tile);
            return;
        }
        let split = Item { partials: self.partial_floats, ..tile };
        self.partial_floats += floats;
        let (first, len) = (split.parts.start, split.parts.len());
        for piece in 0..pieces {
            let parts = first + len * piece / pieces..first + len * (piece + 1) / pieces;
            self.items.push(Item { parts, ..split.clone() });
        }
        self.splits.push(split);
    }

    /// In pairs of query and position.
    fn cost(&self, item: &Item) -> usize {
        item.rows.len() * item.parts.len() * PART
    }

    /// Query heads per key head.
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Positions that a row of a request sees.
    #[inline(always)]
    pub(super) fn visible(&self, request: &Request, row: usize) -> Range<usize> {
        let end = request.seq_len - request.query_len + row / self.group + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    pub(super) fn splits(&self) -> &[Item] {
        &self.splits
    }

    /// Floats for the states of all splits.
    pub(super) fn partial_floats(&self) -> usize {
        self.partial_floats
    }
}

/// Reads a request's lengths, and refuses those that would lead out of the tables.
fn request(sequences: &Sequences<Memory>, index: usize, block_size: usize) -> Result<Request> {
    let starts: &[u32] = elements(&sequences.query_start_loc, 1);
    let (first_token, end) = (starts[index] as usize, starts[index + 1] as usize);
    let refuse = |what, expected: String, got: usize| {
        Err(Error::InvalidArgument { op: vllm_apple_ops::paged_attention::NAME, what, expected, got: got.to_string() })
    };
    if end < first_token || end > sequences.num_tokens {
        return refuse(
            "query_start_loc",
            format!("{first_token} to {} for request {index}", sequences.num_tokens),
            end,
        );
    }
    let seq_len = elements::<u32>(&sequences.seq_lens, 1)[index] as usize;
    let (query_len, most) = (end - first_token, sequences.block_table_stride * block_size);
    if seq_len < query_len || seq_len > most {
        return refuse("seq_lens", format!("{query_len} to {most} for request {index}"), seq_len);
    }
    Ok(Request { index, first_token, query_len, seq_len })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vllm_apple_ops::{DType, ModelSize, Tensor, WeightFormat};

    use super::*;

    const BLOCK_SIZE: usize = 16;

    /// Requests of so many cached and new tokens.
    fn sequences(requests: &[(usize, usize)]) -> Sequences<Memory> {
        let tensor = |values: Vec<usize>| {
            let bytes: Vec<u8> = values.iter().flat_map(|&v| (v as u32).to_le_bytes()).collect();
            let mut memory = Memory::zeroed(bytes.len(), "a test").unwrap();
            memory.bytes_mut().copy_from_slice(&bytes);
            Tensor::new(memory, DType::U32, 1, values.len())
        };
        let mut starts = vec![0];
        starts.extend(requests.iter().scan(0, |end, &(_, new)| {
            *end += new;
            Some(*end)
        }));
        let max_seq_len = requests.iter().map(|&(cached, new)| cached + new).max().unwrap();
        let block_table_stride = max_seq_len.div_ceil(BLOCK_SIZE);
        Sequences {
            num_requests: requests.len(),
            num_tokens: *starts.last().unwrap(),
            max_seq_len,
            sum_seq_lens: requests.iter().map(|&(cached, new)| cached + new).sum(),
            max_query_len: requests.iter().map(|r| r.1).max().unwrap(),
            query_start_loc: tensor(starts),
            seq_lens: tensor(requests.iter().map(|&(cached, new)| cached + new).collect()),
            block_table: tensor(vec![0; requests.len() * block_table_stride]),
            block_table_stride,
        }
    }

    proptest! {
        #[test]
        fn steps_within_what_is_reserved_do_not_grow_a_plan(
            requests in proptest::collection::vec((0usize..3000, prop_oneof![Just(1usize), 1usize..400]), 1..9),
            (num_kv_heads, group) in (1usize..5, 1usize..9),
            window in proptest::option::of(1usize..600),
            threads in 1usize..33,
        ) {
            let s = sequences(&requests);
            let model = ModelSize {
                weights: WeightFormat::Float(DType::F32),
                vocab_size: 1,
                hidden_size: 64,
                num_heads: num_kv_heads * group,
                num_kv_heads,
                head_dim: 64,
                intermediate_size: 0,
                num_experts: 0,
                top_k: 0,
                expert_intermediate_size: 0,
            };
            let step = StepSize {
                num_tokens: s.num_tokens,
                num_requests: s.num_requests,
                max_query_len: s.max_query_len,
                max_seq_len: s.max_seq_len,
                num_logit_rows: 0,
                model,
            };
            let most = Most::of(&step, threads);
            let capacities = |plan: &Plan| (plan.items.capacity().min(plan.tiles.capacity()), plan.splits.capacity());
            let mut plan = Plan::default();
            plan.reserve(&most);
            let reserved = capacities(&plan);
            let layout = KvLayout { block_size: BLOCK_SIZE, num_kv_heads, head_dim: 64, together: 1 };
            plan.cut(&s, &layout, group, window, threads).unwrap();
            prop_assert_eq!(capacities(&plan), reserved);
            prop_assert!(plan.items.len().max(plan.tiles.len()).max(plan.splits.len()) <= most.items);
            prop_assert!(plan.partial_floats <= most.partial_floats);
        }
    }
}
