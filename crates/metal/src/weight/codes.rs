//! Weights of codes as the kernels read them: see `codes.metal` for the layout, and for what is a tile, a chunk, a pair, a block. It knows no format
//! of files.

use std::sync::{Mutex, PoisonError};

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{Codebook, DType, Quantised, QuantisedTensor, SUPER_BLOCK, Scale, Scales, power_of_two};

use crate::gpu::Value;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 8;
/// Elements of K of a chunk: `CHUNK` of `codes.metal`.
pub(crate) const CHUNK: usize = 128;
/// Elements of K of a block: `BLOCK` of `codes.metal`.
const BLOCK: usize = 32;
/// Elements of a lane in a block.
const OF_LANE: usize = 8;
/// Chunks that share factors.
const CHUNKS_OF_FACTORS: usize = SUPER_BLOCK / CHUNK;
/// Pairs of a row, and blocks of a chunk.
const PAIRS: usize = BLOCK / OF_LANE;
const BLOCKS: usize = CHUNK / BLOCK;

/// How a weight of codes lies in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    quantised: Quantised,
    /// Bits of a code there.
    bits: usize,
    /// Elements that share a scale there: a power of two, of which the weight's own groups have whole numbers.
    group: usize,
}

impl Layout {
    pub fn new(quantised: Quantised, cols: usize) -> Self {
        let bits = match quantised.codebook.bits() {
            1 | 2 => 2,
            7 | 8 => 8,
            bits => usize::from(bits),
        };
        // A row's only group may have any size.
        let of_cols = if quantised.group_size >= cols { 0 } else { quantised.group_size };
        // Loads are of 16 bytes, which the scales of 8 rows are no less than.
        let most = CHUNK.min(CHUNK * TILE_ROWS * quantised.scales.size() / 16);
        let group = 1 << (of_cols | most).trailing_zeros();
        Self { quantised, bits, group }
    }

    /// `[[function_constant(11)]]` to `[[function_constant(16)]]` of `codes.metal`.
    pub fn constants(&self) -> [Value; 6] {
        let Quantised { codebook, scales, biases, .. } = self.quantised;
        let (book, zero) = match codebook {
            Codebook::Integer { zero_point, .. } => (0, zero_point),
            Codebook::E2m1 => (1, 0),
            Codebook::Iq4Nl => (2, 0),
            Codebook::E4m3 => (3, 0),
            Codebook::Odd { bits } => (4, (1 << bits) - 1),
            Codebook::Iq3Xxs => (5, 0),
            Codebook::Iq2 => (6, 0),
            Codebook::Iq1 => (7, 0),
        };
        let scales = match scales {
            Scales::Float(DType::F16) | Scales::ZeroPoints(DType::F16) => 1,
            Scales::Float(DType::BF16) | Scales::ZeroPoints(DType::BF16) => 2,
            Scales::Float(_) | Scales::ZeroPoints(_) => 0,
            Scales::SuperBlocks => 3,
            Scales::PowersOfTwo => 4,
            Scales::SuperBlocksOfNibbles => 5,
            Scales::SuperBlocksOfFloats => 6,
        };
        let biases = match self.quantised.scales {
            _ if !biases => 0,
            Scales::ZeroPoints(_) => 2,
            _ => 1,
        };
        [self.bits as u32, book, zero.into(), self.group as u32, scales, biases].map(Value::U32)
    }

    /// Loads of low bits that a row of so many elements takes.
    pub fn lane_loads(&self, cols: usize) -> usize {
        cols.div_ceil(if self.bits == 8 { CHUNK / 2 } else { CHUNK }) * PAIRS
    }

    /// Bytes of a matrix.
    pub fn matrix_bytes(&self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(TILE_ROWS) * self.tile_bytes(cols)
    }

    /// Bytes of a tile.
    pub fn tile_bytes(&self, cols: usize) -> usize {
        let chunks = cols.div_ceil(CHUNK);
        chunks * self.chunk_bytes() + chunks.div_ceil(CHUNKS_OF_FACTORS) * self.factors_bytes()
    }

    fn chunk_bytes(&self) -> usize {
        CHUNK * self.bits + TILE_ROWS * self.row_scales() + self.biases_bytes()
    }

    /// Bytes of the biases of a chunk, beside its scales.
    fn biases_bytes(&self) -> usize {
        if self.quantised.bias_size() > 0 { (TILE_ROWS * self.row_numbers(true)).max(16) } else { 0 }
    }

    /// 2 if there are biases beside scales.
    fn numbers(&self) -> usize {
        if self.quantised.biases { 2 } else { 1 }
    }

    /// Bytes of the factors before every second chunk.
    fn factors_bytes(&self) -> usize {
        TILE_ROWS * self.quantised.scales.factor_size() * self.numbers()
    }

    /// Where chunk number `number` is in its tile, and the factors of its scales.
    fn chunk_and_factors(&self, number: usize) -> [usize; 2] {
        let (pair, chunks) = (number / CHUNKS_OF_FACTORS, number * self.chunk_bytes());
        let before = (pair + 1) * self.factors_bytes();
        [before + chunks, pair * (self.factors_bytes() + CHUNKS_OF_FACTORS * self.chunk_bytes())]
    }

    /// Bytes of a row's scales in a chunk.
    fn row_scales(&self) -> usize {
        self.row_numbers(false)
    }

    /// Bytes of a row's scales, or of its biases, in a chunk.
    fn row_numbers(&self, biases: bool) -> usize {
        CHUNK / self.group * self.number_size(biases)
    }

    /// Bytes of a scale or of a bias.
    fn number_size(&self, bias: bool) -> usize {
        if bias { self.quantised.bias_size() } else { self.quantised.scales.size() }
    }

    /// Lower bits of a code, which have a part of the chunk of their own.
    fn low_bits(&self) -> usize {
        match self.bits {
            2 | 3 => 2,
            8 => 8,
            _ => 4,
        }
    }

    /// Where element `i` of a lane's codes of a block has its bits in the chunk's memory: first the lower ones, then the upper.
    fn places(&self, lane: usize, block: usize, i: usize) -> [Place; 2] {
        let low = self.low_bits();
        let upper_start = CHUNK * low;
        // Element i is in the lower half of a word, and i + 4 at the same place of the upper half.
        let (t, half) = (i % 4, i / 4 * 16);
        // Words of two bits have every other block: the first of two has blocks 0 and 2.
        let two_bits = |start: usize| Place {
            word: start + lane * 8 + block % 2 * 4,
            shift: half + block / 2 * 8 + 2 * t,
            bits: 2,
        };
        let lower = match low {
            2 => two_bits(0),
            4 => Place { word: lane * 16 + block * 4, shift: half + 4 * t, bits: 4 },
            _ => {
                let word = block / 2 * 512 + lane * 16 + (block % 2 * 2 + t / 2) * 4;
                Place { word, shift: half + t % 2 * 8, bits: 8 }
            }
        };
        let upper = match self.bits - low {
            2 => two_bits(upper_start),
            1 => Place { word: upper_start + lane * 4, shift: half + 4 * block + t, bits: 1 },
            _ => Place { word: 0, shift: 0, bits: 0 },
        };
        [lower, upper]
    }

    /// Where the scale or the bias of element `k` of a row's chunk is in the chunk's memory: in the order in which lanes need them.
    fn number_place(&self, row: usize, k: usize, bias: bool) -> usize {
        // Or both are in one byte.
        let bias = bias && self.quantised.bias_size() > 0;
        let (block, pair, i) = (k / BLOCK, k % BLOCK / OF_LANE, k % OF_LANE);
        let number = match self.group {
            BLOCK.. => k / self.group,
            OF_LANE.. => pair * OF_LANE / self.group * BLOCKS + block,
            small => (pair * BLOCKS + block) * (OF_LANE / small) + i / small,
        };
        let start = CHUNK * self.bits + if bias { TILE_ROWS * self.row_scales() } else { 0 };
        start + row * self.row_numbers(bias) + number * self.number_size(bias)
    }

    /// Writes a row's codes of a chunk to its memory, which holds zeros there: what [`Self::places`] finds, eight at once.
    fn put_codes(&self, codes: &[u8; CHUNK], row: usize, memory: &mut [u8]) {
        let low = self.low_bits();
        let upper_start = CHUNK * low;
        for (i, c) in codes.as_chunks::<OF_LANE>().0.iter().enumerate() {
            let (block, lane) = (i / PAIRS, row * PAIRS + i % PAIRS);
            // Of the elements 0 to 3, and of 4 to 7.
            let two_bits = |c: &[u8]| c[0] & 3 | (c[1] & 3) << 2 | (c[2] & 3) << 4 | (c[3] & 3) << 6;
            let put_two_bits = |c: &[u8; OF_LANE], start: usize, memory: &mut [u8]| {
                let at = start + lane * 8 + block % 2 * 4 + block / 2;
                memory[at] = two_bits(&c[..4]);
                memory[at + 2] = two_bits(&c[4..]);
            };
            match low {
                2 => put_two_bits(c, 0, memory),
                4 => {
                    let nibbles = |i: usize| c[i] & 15 | (c[i + 1] & 15) << 4;
                    memory[lane * 16 + block * 4..][..4].copy_from_slice(&[0, 2, 4, 6].map(nibbles));
                }
                _ => {
                    let at = block / 2 * 512 + lane * 16 + block % 2 * 8;
                    memory[at..][..8].copy_from_slice(&[0, 1, 4, 5, 2, 3, 6, 7].map(|i: usize| c[i]));
                }
            }
            let upper = c.map(|code| code.checked_shr(low as u32).unwrap_or(0));
            match self.bits - low {
                2 => put_two_bits(&upper, upper_start, memory),
                1 => {
                    let bits = |c: &[u8]| c[0] & 1 | (c[1] & 1) << 1 | (c[2] & 1) << 2 | (c[3] & 1) << 3;
                    let at = upper_start + lane * 4 + block / 2;
                    memory[at] |= bits(&upper[..4]) << (block % 2 * 4);
                    memory[at + 2] |= bits(&upper[4..]) << (block % 2 * 4);
                }
                _ => {}
            }
        }
    }

    /// Row `row` of a tile in f32: see [`Quantised::value`].
    pub fn row(&self, tile: &[u8], row: usize, cols: usize) -> Vec<f32> {
        let Quantised { scales, biases, .. } = self.quantised;
        let mut values = Vec::with_capacity(cols);
        for k in 0..cols {
            let [chunk, factors] = self.chunk_and_factors(k / CHUNK);
            let (chunk, factors) = (&tile[chunk..][..self.chunk_bytes()], &tile[factors..][..self.factors_bytes()]);
            // Of scales, or of biases.
            let number = |bias: bool, k| {
                let at = self.number_place(row, k, bias);
                let float = |dtype: DType, at: usize| dtype.decode(&chunk[at..][..dtype.size()])[0];
                match scales {
                    Scales::ZeroPoints(dtype) if bias => {
                        -f32::from(chunk[at]) * float(dtype, self.number_place(row, k, false))
                    }
                    Scales::Float(dtype) | Scales::ZeroPoints(dtype) => float(dtype, at),
                    Scales::PowersOfTwo => power_of_two(chunk[at]),
                    Scales::SuperBlocks | Scales::SuperBlocksOfNibbles | Scales::SuperBlocksOfFloats => {
                        let multiple = match scales {
                            Scales::SuperBlocks => f32::from(chunk[at].cast_signed()),
                            Scales::SuperBlocksOfFloats => Codebook::E4m3.value(chunk[at]),
                            _ if bias => f32::from(chunk[at] >> 4),
                            _ => f32::from(chunk[at] & 15),
                        };
                        scales.dtype().decode(factors)[usize::from(bias) * TILE_ROWS + row] * multiple
                    }
                }
            };
            let k = k % CHUNK;
            let [low, high] = self.places(row * PAIRS + k % BLOCK / OF_LANE, k / BLOCK, k % OF_LANE);
            let code = (u32::from(low.get(chunk)) | u32::from(high.get(chunk)) << self.low_bits()) as u8;
            let bias = if biases { number(true, k) } else { 0.0 };
            values.push(self.quantised.value(code, number(false, k), bias));
        }
        values
    }
}

/// Bits of a word of the memory, which is aligned to 4 bytes.
#[derive(Debug, Clone, Copy)]
struct Place {
    word: usize,
    shift: usize,
    bits: usize,
}

impl Place {
    fn get(self, memory: &[u8]) -> u8 {
        let mask = (1u32 << self.bits) - 1;
        (u32::from(memory[self.word + self.shift / 8]) >> (self.shift % 8) & mask) as u8
    }
}

/// Lays out a weight.
pub(super) struct Packer<'a> {
    pub layout: Layout,
    pub rows: usize,
    pub cols: usize,
    pub parts_per_group: usize,
    pub parts: &'a [QuantisedTensor<'a>],
}

impl Packer<'_> {
    /// Fills `memory`, which holds zeros. The scale or bias that is no number in its type, of the first row that has one.
    pub fn pack(&self, pool: &Pool, memory: &mut [u8]) -> Option<f32> {
        let tiles: Vec<_> = memory.chunks_exact_mut(self.layout.tile_bytes(self.cols)).map(Mutex::new).collect();
        let refused: Mutex<Option<(usize, f32)>> = Mutex::new(None);
        pool.run(tiles.len(), &|tile, _| {
            // Every tile comes once: nobody else has it.
            let mut memory = tiles[tile].lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((row, value)) = self.pack_tile(tile, &mut memory) {
                let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                if refused.is_none_or(|(first, _)| row < first) {
                    *refused = Some((row, value));
                }
            }
        });
        refused.into_inner().unwrap_or_else(PoisonError::into_inner).map(|(_, value)| value)
    }

    /// Fills tile number `tile` of all groups.
    fn pack_tile(&self, tile: usize, memory: &mut [u8]) -> Option<(usize, f32)> {
        let tiles = self.rows.div_ceil(TILE_ROWS);
        let (group, first) = (tile / tiles, tile % tiles * TILE_ROWS);
        let parts = &self.parts[group * self.parts_per_group..][..self.parts_per_group];
        let mut refused = None;
        for row in 0..TILE_ROWS.min(self.rows - first) {
            let (mut part, mut of_part) = (0, first + row);
            while of_part >= parts[part].rows {
                of_part -= parts[part].rows;
                part += 1;
            }
            let found = self.pack_row(&parts[part], of_part, row, memory);
            refused = refused.or(found.map(|value| (group * self.rows + first + row, value)));
        }
        refused
    }

    fn pack_row(&self, part: &QuantisedTensor<'_>, of_part: usize, row: usize, memory: &mut [u8]) -> Option<f32> {
        let Layout { quantised, group, .. } = self.layout;
        let numbers = self.layout.numbers();
        let size = quantised.group_size.min(self.cols);
        // What is behind the row's end is multiplied by zeros.
        let mut codes = vec![0; self.cols.next_multiple_of(CHUNK)];
        let mut refused = None;
        for start in (0..self.cols).step_by(size) {
            let codes = &mut codes[start..self.cols.min(start + size)];
            let scale = part.groups.read(of_part, start / size, codes);
            // What has to be a number of its type, and scale and bias as they lie.
            let (checked, encoded) = match quantised.scales {
                Scales::Float(dtype) => {
                    let numbers = [scale.scale, scale.bias];
                    (numbers, numbers.map(|number| dtype.encode(&[number])))
                }
                Scales::ZeroPoints(dtype) => {
                    ([scale.scale, 0.0], [dtype.encode(&[scale.scale]), vec![scale.zero_point()]])
                }
                Scales::PowersOfTwo => ([scale.scale, 0.0], [vec![scale.exponent()], Vec::new()]),
                Scales::SuperBlocks | Scales::SuperBlocksOfNibbles | Scales::SuperBlocksOfFloats => {
                    let factors = part.groups.factors(of_part, start / SUPER_BLOCK);
                    self.put_factors(factors, start / CHUNK, row, memory);
                    let encoded = match quantised.scales {
                        Scales::SuperBlocks => scale.multiples(factors).map(|multiple| vec![multiple.cast_unsigned()]),
                        Scales::SuperBlocksOfFloats => [vec![scale.float8(factors)], Vec::new()],
                        _ => [vec![scale.nibbles(factors)], Vec::new()],
                    };
                    // A float that is no number has no code.
                    let is_none = quantised.scales == Scales::SuperBlocksOfFloats && !scale.scale.is_finite();
                    ([if is_none { scale.scale } else { factors.scale }, factors.bias], encoded)
                }
            };
            let dtype = quantised.scales.dtype();
            let bad = checked[..numbers].iter().copied().find(|&value| !dtype.round(value).is_finite());
            refused = refused.or(bad);
            // A group of the layout begins at each of its multiples.
            for k in (start..start + codes.len()).step_by(group) {
                let chunk = self.chunk(k / CHUNK, memory);
                for (bias, bytes) in [false, true].into_iter().zip(&encoded[..numbers]) {
                    let at = self.layout.number_place(row, k % CHUNK, bias);
                    chunk[at..][..bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        for (chunk, codes) in codes.as_chunks().0.iter().enumerate() {
            self.layout.put_codes(codes, row, self.chunk(chunk, memory));
        }
        refused
    }

    fn chunk<'m>(&self, number: usize, memory: &'m mut [u8]) -> &'m mut [u8] {
        let [start, _] = self.layout.chunk_and_factors(number);
        &mut memory[start..][..self.layout.chunk_bytes()]
    }

    fn put_factors(&self, Scale { scale, bias }: Scale, chunk: usize, row: usize, memory: &mut [u8]) {
        let [_, start] = self.layout.chunk_and_factors(chunk);
        for (number, factor) in [scale, bias][..self.layout.numbers()].iter().enumerate() {
            let bytes = self.layout.quantised.scales.dtype().encode(&[*factor]);
            memory[start + (number * TILE_ROWS + row) * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
}
