//! Cuts a step's attention into items of work. It knows lengths and costs, no values.

use std::ops::Range;

use vllm_apple_ops::{Error, Result, Sequences};

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
        Err(Error::InvalidArgument { op: "paged_attention", what, expected, got: got.to_string() })
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
