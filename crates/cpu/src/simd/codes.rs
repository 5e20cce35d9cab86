//! Codes of 2 to 6 bits, as they lie for instruction sets to look them up. It knows no format.

use half::bf16;

use super::LANES;

/// Elements of K whose codes lie together.
pub(crate) const CHUNK: usize = 4;

/// Vectors of outputs whose codes lie together.
const VECTORS: usize = 2;

/// Codes of a vector for two elements of K.
const HALF: usize = 2 * LANES;

/// What codes of a few bits mean: values that bf16 holds, repeated up to 64. [`super::Simd::table`] makes registers of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(super) values: [bf16; 64],
}

impl Table {
    /// For codes that are not looked up.
    pub(crate) const ZEROS: Self = Self { values: [bf16::ZERO; 64] };

    /// Of the values of codes of `bits` bits.
    pub(crate) fn new(bits: u8, value: impl Fn(u8) -> f32) -> Self {
        Self { values: std::array::from_fn(|code| bf16::from_f32(value(code as u8 & ((1 << bits) - 1)))) }
    }

    /// The value of a code.
    #[inline(always)]
    pub(super) fn value(&self, code: u8) -> f32 {
        f32::from_bits(u32::from(self.values[usize::from(code)].to_bits()) << 16)
    }
}

/// Codes of `BITS` bits for two vectors of outputs by [`CHUNK`] elements of K, in planes of 4, of 2 and of 1 of their bits: those that add up to `BITS`, the
/// code's lowest bits first. With `i` the element:
/// - Of 4: four bytes of a lane, in the order of elements 0, 2, 1 and 3, whose upper halves belong to the second vector. So shifted right by
///   `4 * vector + 8 * (i / 2)`, each of a lane's two words of 16 bits has an element's code in its lowest 4 bits; by `4 * vector`, each of its four bytes.
/// - Of 2: a byte `2 * lane + i % 2`, which has two bits for each quarter `2 * vector + i / 2`.
/// - Of 1: a word of 32 bits for each such quarter, which has a bit `2 * lane + i % 2`.
#[derive(Clone, Copy)]
pub(crate) struct Planes<const BITS: u8>(*const u8);

impl<const BITS: u8> Planes<BITS> {
    /// # Safety
    /// There are as many bytes there as `16 * BITS` as long as this is used.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *const u8) -> Self {
        Self(at)
    }

    /// The plane of 4 bits.
    #[inline(always)]
    pub(super) fn nibbles(&self) -> &[u8; CHUNK * LANES] {
        assert!(BITS & 4 != 0);
        // SAFETY: the plane is there.
        unsafe { &*self.0.cast() }
    }

    /// The plane of 2 bits.
    #[inline(always)]
    pub(super) fn twos(&self) -> &[u8; HALF] {
        assert!(BITS & 2 != 0);
        // SAFETY: as above.
        unsafe { &*self.0.add(plane(BITS, 2)).cast() }
    }

    /// The plane of 1 bit: what is of a quarter.
    #[inline(always)]
    pub(super) fn ones(&self, quarter: usize) -> u32 {
        assert!(BITS & 1 != 0 && quarter < 2 * VECTORS);
        // SAFETY: as above.
        unsafe { self.0.add(plane(BITS, 1)).cast::<u32>().add(quarter).read_unaligned() }
    }

    /// The codes of a vector for the first or the `SECOND` two elements.
    #[inline(always)]
    pub(super) fn codes<const SECOND: bool>(&self, vector: usize) -> [u8; HALF] {
        // SAFETY: as above.
        let chunk = unsafe { std::slice::from_raw_parts(self.0, plane(BITS, 0)) };
        std::array::from_fn(|at| {
            let i = at % 2 + if SECOND { 2 } else { 0 };
            code_at(BITS, (i, vector, at / 2), chunk)
        })
    }
}

/// Where the plane of `width` bits begins: behind those of more, and of 0 bits behind all.
const fn plane(bits: u8, width: u8) -> usize {
    let before = bits as usize & !(2 * width as usize).saturating_sub(1);
    before * VECTORS * LANES * CHUNK / 8
}

/// Some bits of a code.
struct Place {
    /// The byte, and the lowest bit there.
    at: usize,
    shift: u8,
    /// How many they are, and the lowest of them in the code.
    width: u8,
    first: u8,
}

/// Where a code of `bits` bits is among those of a chunk.
#[inline(always)]
fn places(bits: u8, i: usize, vector: usize, lane: usize) -> impl Iterator<Item = Place> {
    let (at, quarter) = (2 * lane + i % 2, 2 * vector + i / 2);
    [
        Place { at: CHUNK * lane + 2 * (i % 2) + i / 2, shift: 4 * vector as u8, width: 4, first: 0 },
        Place { at, shift: 2 * quarter as u8, width: 2, first: bits & 4 },
        Place { at: (quarter * HALF + at) / 8, shift: at as u8 % 8, width: 1, first: bits & 6 },
    ]
    .into_iter()
    .filter(move |place| bits & place.width != 0)
    .map(move |place| Place { at: plane(bits, place.width) + place.at, ..place })
}

/// Writes a code of element `i` to a chunk of [`Planes`] that had none there.
pub(crate) fn put_code(bits: u8, (i, vector, lane): (usize, usize, usize), code: u8, chunk: &mut [u8]) {
    for Place { at, shift, width, first } in places(bits, i, vector, lane) {
        chunk[at] |= ((code >> first) & ((1 << width) - 1)) << shift;
    }
}

/// The other way round.
#[inline(always)]
pub(crate) fn code_at(bits: u8, (i, vector, lane): (usize, usize, usize), chunk: &[u8]) -> u8 {
    places(bits, i, vector, lane)
        .fold(0, |code, Place { at, shift, width, first }| code | ((chunk[at] >> shift) & ((1 << width) - 1)) << first)
}
