//! How a matmul call is cut into tiles of rows and items of work. It knows shapes only, and nothing it decides can be seen
//! in the results.

use std::ops::Range;

use crate::pack::PackedMatrix;

/// Rows that share one pass over the weights: their packed activations should stay in the last-level cache.
const BLOCK_ROWS: usize = 512;

/// Rows below which a block is not cut for the sake of busy threads: its panels would be fetched too often for the work.
const LEAST_BLOCK_ROWS: usize = 48;

/// Items per thread to aim for, so that a thread that is slowed down leaves its share to others.
const ITEMS_PER_THREAD: usize = 8;

/// Items per thread below which long calls are cut by rows too.
const LEAST_ITEMS_PER_THREAD: usize = 4;

/// Squares of outputs that a thread's share is cut into, where matrices are multiplied.
const SQUARES_PER_THREAD: usize = 2;

/// Weight bytes that an item should not exceed.
const ITEM_BYTES: usize = 512 * 1024;

/// Which numbers of rows a tile may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileRows {
    pub most: usize,
    /// All but the last tile of a group have a multiple of these.
    pub multiple: usize,
}

impl TileRows {
    /// Whether tiles are of matrices, whose rows come in multiples.
    pub(crate) fn are_matrices(self) -> bool {
        self.multiple > 1
    }
}

/// A run of panels against the tiles of one row block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub group: usize,
    pub panels: Range<usize>,
    pub tiles: Range<usize>,
}

/// Rows of one group that are computed together.
#[derive(Debug)]
struct Block {
    group: usize,
    tiles: Range<usize>,
}

/// The cut of one call. Its vectors are reused from call to call.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// For each packed row, the rows of `x` and of `out`.
    x_rows: Vec<u32>,
    out_rows: Vec<u32>,
    /// Where each tile begins, in packed rows; one more at the end.
    tile_starts: Vec<usize>,
    blocks: Vec<Block>,
    panels: usize,
    panels_per_item: usize,
    items_per_block: usize,
    /// Whether the packed rows are those of `x` and of `out`.
    in_order: bool,
    /// Scratch of `grouped`: where each group's rows go next.
    next_row: Vec<usize>,
}

impl Plan {
    /// Makes room for calls of at most so many rows and groups.
    pub(crate) fn reserve(&mut self, rows: usize, groups: usize) {
        self.clear();
        self.x_rows.reserve_exact(rows);
        self.out_rows.reserve_exact(rows);
        // No tile or block is empty, and every list of tiles has an end.
        self.tile_starts.reserve_exact(rows + 1);
        self.blocks.reserve_exact(rows);
        self.next_row.reserve_exact(groups + 1);
    }

    /// Bytes of what [`Plan::reserve`] makes room for.
    pub(crate) fn bytes(rows: usize, groups: usize) -> usize {
        let per_row = 2 * size_of::<u32>() + size_of::<usize>() + size_of::<Block>();
        rows * per_row + (groups + 2) * size_of::<usize>()
    }

    /// Rows 0 to `rows` against the only group. What an item counts as a panel are `together` of the weights', which must be a multiple.
    pub(crate) fn dense(
        &mut self,
        rows: usize,
        weights: &PackedMatrix,
        together: usize,
        tile_rows: TileRows,
        threads: usize,
    ) {
        self.clear();
        self.x_rows.extend(0..rows as u32);
        self.out_rows.extend(0..rows as u32);
        self.in_order = true;
        self.cut_group(0, 0..rows, block_rows(rows, weights, tile_rows, threads), tile_rows);
        self.cut_panels(weights, together, tile_rows, threads);
    }

    /// Rows of the group that has the most of them, of `groups` groups.
    pub(crate) fn most_of_a_group(&mut self, ids: &[u32], groups: usize) -> usize {
        self.next_row.clear();
        self.next_row.resize(groups, 0);
        for &id in ids {
            self.next_row[id as usize] += 1;
        }
        self.next_row.iter().copied().max().unwrap_or(0)
    }

    /// Row `p` of `out`, and row `p / pairs_per_row` of `x`, against group `ids[p]`.
    pub(crate) fn grouped(
        &mut self,
        ids: &[u32],
        pairs_per_row: usize,
        weights: &PackedMatrix,
        tile_rows: TileRows,
        threads: usize,
    ) {
        self.clear();
        // A counting sort by group.
        self.next_row.resize(weights.groups() + 1, 0);
        for &id in ids {
            self.next_row[id as usize + 1] += 1;
        }
        for group in 0..weights.groups() {
            self.next_row[group + 1] += self.next_row[group];
        }
        let block_rows = block_rows(ids.len(), weights, tile_rows, threads);
        for group in 0..weights.groups() {
            self.cut_group(group, self.next_row[group]..self.next_row[group + 1], block_rows, tile_rows);
        }
        self.x_rows.resize(ids.len(), 0);
        self.out_rows.resize(ids.len(), 0);
        for (pair, &id) in ids.iter().enumerate() {
            let row = self.next_row[id as usize];
            self.next_row[id as usize] += 1;
            self.x_rows[row] = (pair / pairs_per_row) as u32;
            self.out_rows[row] = pair as u32;
        }
        self.cut_panels(weights, 1, tile_rows, threads);
    }

    fn clear(&mut self) {
        self.in_order = false;
        self.x_rows.clear();
        self.out_rows.clear();
        self.tile_starts.clear();
        self.tile_starts.push(0);
        self.blocks.clear();
        self.next_row.clear();
    }

    /// Cuts a group's rows into blocks and these into tiles, all of about the same size.
    fn cut_group(&mut self, group: usize, rows: Range<usize>, block_rows: usize, tile_rows: TileRows) {
        for block in even_parts(rows, block_rows, tile_rows.multiple) {
            let first_tile = self.tiles();
            self.tile_starts.extend(even_parts(block, tile_rows.most, tile_rows.multiple).map(|tile| tile.end));
            self.blocks.push(Block { group, tiles: first_tile..self.tiles() });
        }
    }

    fn cut_panels(&mut self, weights: &PackedMatrix, together: usize, tile_rows: TileRows, threads: usize) {
        self.panels = weights.panels() / together;
        self.panels_per_item = if self.most_block_rows() > tile_rows.most && tile_rows.are_matrices() {
            // Matrices take many rows longer than it takes to begin an item, and a thread's items are next to each other: they share what it has
            // fetched of the rows.
            1
        } else {
            let panel_bytes = together * weights.steps() * weights.step_bytes();
            let wanted_items = (threads * ITEMS_PER_THREAD).div_ceil(self.blocks.len().max(1));
            (self.panels / wanted_items).min(ITEM_BYTES / panel_bytes).max(1)
        };
        self.items_per_block = self.panels.div_ceil(self.panels_per_item);
    }

    /// Whether the rows are those of `x` and of `out`, one after the other.
    pub(crate) fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// Rows of the largest block.
    pub(crate) fn most_block_rows(&self) -> usize {
        let rows = |block: &Block| self.tile_starts[block.tiles.end] - self.tile_starts[block.tiles.start];
        self.blocks.iter().map(rows).max().unwrap_or(0)
    }

    /// Number of rows, over all groups.
    pub(crate) fn rows(&self) -> usize {
        self.x_rows.len()
    }

    /// The row of `x` behind each packed row.
    pub(crate) fn x_rows(&self) -> &[u32] {
        &self.x_rows
    }

    /// The row of `out` for each packed row.
    pub(crate) fn out_rows(&self) -> &[u32] {
        &self.out_rows
    }

    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.tile_starts.len() - 1
    }

    /// The packed rows of a tile.
    pub(crate) fn tile_rows(&self, tile: usize) -> Range<usize> {
        self.tile_starts[tile]..self.tile_starts[tile + 1]
    }

    /// Number of items.
    pub(crate) fn items(&self) -> usize {
        self.blocks.len() * self.items_per_block
    }

    /// One item.
    pub(crate) fn item(&self, item: usize) -> Item {
        let block = &self.blocks[item / self.items_per_block];
        let first_panel = item % self.items_per_block * self.panels_per_item;
        let panels = first_panel..self.panels.min(first_panel + self.panels_per_item);
        Item { group: block.group, panels, tiles: block.tiles.clone() }
    }
}

/// Rows per block: fewer than usual where there are not enough panels to keep all threads busy. Matrices are multiplied so fast that it
/// counts how often rows and weights come from another core's cache or from memory: least often where what a thread takes of a block is as wide as it is long.
fn block_rows(rows: usize, weights: &PackedMatrix, tile_rows: TileRows, threads: usize) -> usize {
    if tile_rows.are_matrices() {
        let side = (rows * weights.n() / (threads * SQUARES_PER_THREAD)).isqrt();
        return side.next_multiple_of(tile_rows.most).clamp(tile_rows.most, BLOCK_ROWS.max(tile_rows.most));
    }
    (rows * weights.panels() / (threads * LEAST_ITEMS_PER_THREAD)).clamp(LEAST_BLOCK_ROWS, BLOCK_ROWS)
}

/// `range` in the fewest parts of at most `most`, whose lengths differ by at most one `multiple`, of which all but the last are made.
fn even_parts(range: Range<usize>, most: usize, multiple: usize) -> impl Iterator<Item = Range<usize>> {
    let units = range.len().div_ceil(multiple);
    let parts = units.div_ceil(most / multiple);
    (0..parts).map(move |part| {
        let at = |part: usize| range.start + range.len().min(units * part / parts * multiple);
        at(part)..at(part + 1)
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;
    use vllm_apple_ops::{DType, HostTensor, WeightFormat, WeightSource};

    use super::*;
    use crate::weight_memory::WeightMemory;
    use vllm_apple_ops::pool::Pool;

    fn weights(groups: usize, n: usize) -> PackedMatrix {
        let bytes = vec![0; n * 2];
        let parts = vec![HostTensor { dtype: DType::BF16, rows: n, cols: 1, bytes: &bytes, file: None }; groups];
        PackedMatrix::pack(
            &Pool::new(NonZeroUsize::MIN),
            &WeightMemory::default(),
            WeightSource::matrices("w", groups, &parts),
            WeightFormat::Float(DType::BF16),
        )
        .unwrap()
    }

    /// How often the items compute each (row of `out`, panel), and with which group and row of `x`.
    fn check_cover(
        plan: &Plan,
        tile_rows: TileRows,
        rows: usize,
        panels: usize,
        expected: impl Fn(usize) -> (usize, u32),
    ) {
        let mut seen = vec![0; rows * panels];
        for item in (0..plan.items()).map(|item| plan.item(item)) {
            for tile in item.tiles.clone() {
                assert!((1..=tile_rows.most).contains(&plan.tile_rows(tile).len()));
                for row in plan.tile_rows(tile) {
                    let out_row = plan.out_rows()[row] as usize;
                    assert_eq!((item.group, plan.x_rows()[row]), expected(out_row));
                    item.panels.clone().for_each(|panel| seen[out_row * panels + panel] += 1);
                }
            }
        }
        assert!(seen.iter().all(|&count| count == 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn items_cover_every_output_once(
            rows in 0usize..1100,
            n in 1usize..2000,
            tile_rows in 1usize..13,
            multiple in prop::sample::select(vec![1, 16]),
            threads in 1usize..65,
        ) {
            let weights = weights(1, n);
            let mut plan = Plan::default();
            let tile_rows = TileRows { most: tile_rows * multiple, multiple };
            plan.dense(rows, &weights, 1, tile_rows, threads);
            check_cover(&plan, tile_rows, rows, weights.panels(), |row| (0, row as u32));
        }

        #[test]
        fn items_of_groups_cover_every_output_once(
            ids in proptest::collection::vec(0u32..6, 0..400),
            pairs_per_row in 1usize..5,
            tile_rows in 1usize..13,
            multiple in prop::sample::select(vec![1, 16]),
            threads in 1usize..9,
        ) {
            let weights = weights(6, 70);
            let mut plan = Plan::default();
            let tile_rows = TileRows { most: tile_rows * multiple, multiple };
            plan.grouped(&ids, pairs_per_row, &weights, tile_rows, threads);
            let expected = |row: usize| (ids[row] as usize, (row / pairs_per_row) as u32);
            check_cover(&plan, tile_rows, ids.len(), weights.panels(), expected);
        }

        #[test]
        fn calls_within_what_is_reserved_do_not_grow_a_plan(
            ids in proptest::collection::vec(0u32..6, 0..400),
            more in 0usize..200,
            n in 1usize..2000,
            tile_rows in 1usize..13,
            multiple in prop::sample::select(vec![1, 16]),
            threads in 1usize..65,
        ) {
            let capacities = |plan: &Plan| {
                let rows = (plan.x_rows.capacity(), plan.out_rows.capacity(), plan.next_row.capacity());
                (rows, plan.tile_starts.capacity(), plan.blocks.capacity())
            };
            let mut plan = Plan::default();
            plan.reserve(ids.len() + more, 6);
            let reserved = capacities(&plan);
            let tile_rows = TileRows { most: tile_rows * multiple, multiple };
            plan.grouped(&ids, 1, &weights(6, n), tile_rows, threads);
            plan.dense(ids.len() + more, &weights(1, n), 1, tile_rows, threads);
            prop_assert_eq!(capacities(&plan), reserved);
        }
    }

    #[test]
    fn the_largest_group_is_known() {
        let mut plan = Plan::default();
        for (ids, most) in [(&[][..], 0), (&[3, 1, 2], 1), (&[5, 0, 5, 1, 5], 3)] {
            assert_eq!(plan.most_of_a_group(ids, 6), most);
        }
    }

    #[test]
    fn few_panels_and_many_rows_still_make_work_for_all_threads() {
        let mut plan = Plan::default();
        plan.dense(512, &weights(1, 896), 1, TileRows { most: 12, multiple: 1 }, 10);
        assert!(plan.items() >= 40);
    }
}
