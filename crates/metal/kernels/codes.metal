// Weights of codes, and how they become floats: it comes after weight.metal, before the text of the kernels that read such weights.
//
// w[n, k] = scale * (value of the code) [+ bias], with a scale and perhaps a bias for every GROUP elements of K. An element is f32, rounded once,
// and exact where scales have 16 bits and there are no biases: it is what the ops' `Quantised::value` says.
//
// A weight is tiles of 8 rows, a tile its chunks of 128 elements of K in order, without gaps. K and N are padded by zeros. A chunk is, one after the other:
//   low bits    [half][8 rows][4 pairs] of 16 bytes, or 8 bytes where they are 2 bits of a code; two halves where they are 8, else one
//   high bits   [8 rows][4 pairs] of HIGH * 4 bytes: the fifth, or fifth and sixth bit, or the third
//   scales      [8 rows][128 / GROUP], and biases alike; or zero points alike, filled up to 16 bytes
// Where scales have factors, each second chunk has those of 256 elements before it: [8 rows] of half or float, and those of biases alike.
// A pair is a lane's part of a row: it has the elements 8 * pair to 8 * pair + 7 of each block of 32, which are those of its columns in the 4
// matrices of a block, number t of them the elements t and 4 + t. So 32 lanes read 512 bytes in a row, in which two codes that go together are 16
// bits apart.

// Bits of a code: 2, 3, 4, 5, 6 or 8.
constant uint BITS [[function_constant(11)]];
// What a code means: an integer, code - ZERO (0); e2m1 (1); iq4_nl (2); e4m3 (3); an odd integer, 2 * code - ZERO (4); iq3_xxs (5); iq2 (6); iq1 (7).
constant uint BOOK [[function_constant(12)]];
constant uint ZERO [[function_constant(13)]];
// Elements that share a scale: a power of two up to 128.
constant uint GROUP [[function_constant(14)]];
// Type of scales and biases: float (0), half (1), bfloat (2), char times a half factor (3), the exponent of a power of two (4); both
// in the halves of a byte, each times a half factor (5); a float of 8 bits, e4m3, times a float factor (6).
constant uint SCALE_TYPE [[function_constant(15)]];
// None (0), biases of the scales' type (1), or zero points of a byte, which times scales are what biases take away (2).
constant uint BIASES [[function_constant(16)]];

// Elements of a chunk, and of a block.
#define CHUNK 128
#define BLOCK 32

INLINE uint low_bits() { return BITS == 8 ? 8 : BITS >= 4 ? 4 : 2; }
INLINE uint high_bits() { return BITS - low_bits(); }
INLINE uint scale_bytes() { return SCALE_TYPE == 0 ? 4 : SCALE_TYPE >= 3 ? 1 : 2; }
INLINE uint bias_bytes() { return BIASES == 2 ? 1 : scale_bytes(); }
INLINE bool have_factors() { return SCALE_TYPE == 3 || SCALE_TYPE >= 5; }
INLINE uint factors_bytes() { return !have_factors() ? 0 : BIASES != 0 || SCALE_TYPE == 6 ? 32 : 16; }
// Bytes of a row's scales in a chunk, and of its biases.
INLINE uint row_scales() { return CHUNK / GROUP * scale_bytes(); }
INLINE uint row_biases() { return CHUNK / GROUP * bias_bytes(); }
// Bytes of all rows' biases in a chunk, beside its scales.
INLINE uint biases_bytes() { return BIASES != 0 && SCALE_TYPE != 5 ? max(8 * row_biases(), 16u) : 0; }
INLINE uint chunk_bytes() { return CHUNK * BITS + 8 * row_scales() + biases_bytes(); }
INLINE ulong tile_bytes() {
  uint chunks = (K + CHUNK - 1) / CHUNK;
  return ulong(chunks) * chunk_bytes() + (chunks + 1) / 2 * factors_bytes();
}
// Blocks that a lane has the codes of after one load: a half of a chunk where codes have 8 bits, else all of it.
INLINE uint piece_blocks() { return BITS == 8 ? 2 : 4; }
INLINE uint piece_size() { return piece_blocks() * BLOCK; }

// A row, as part of its tile.
struct CodeRow {
  device const uchar* tile;
  uint row;
};

// Row n; of those beyond the last, the last: they are computed and not stored.
INLINE CodeRow code_row(device const uchar* weights, uint n) {
  uint known = min(n, N - 1);
  CodeRow found = {weights + (known / 8) * tile_bytes(), known % 8};
  return found;
}

// A lane's part of a piece. What is next comes first: `next_block` moves it there.
struct Piece {
  uint4 low;
  uint2 high;
  uint4 scales;
  uint4 biases;
  // Of scales and of biases, if they have some.
  float2 factors;
  // Where the scales are, if groups are so small that they are read when they are needed.
  device const uchar* small_groups;
};

// As many scales as a lane needs for a piece: 1, 2 or 4.
INLINE uint piece_scales() { return GROUP <= BLOCK ? piece_blocks() : max(piece_size() / GROUP, 1u); }

INLINE uint4 load_scales(device const uchar* at, uint size) {
  uint bytes = piece_scales() * size;
  if (bytes == 16) return *(device const uint4*)at;
  if (bytes == 8) {
    uint2 bits = *(device const uint2*)at;
    return uint4(bits.x, bits.y, 0u, 0u);
  }
  uint bits = bytes == 4 ? *(device const uint*)at : bytes == 2 ? uint(*(device const ushort*)at) : uint(*at);
  return uint4(bits, 0u, 0u, 0u);
}

// Piece number `piece` of a row. Scales of a row are in the order in which lanes need them: where 4 pairs share one, by block; else each pair's by block.
INLINE Piece load_piece(CodeRow from, uint piece, uint pair) {
  uint halves = 4 / piece_blocks(), half_chunk = piece % halves, lane = from.row * 4 + pair;
  uint chunk = piece / halves;
  device const uchar* at = from.tile + chunk * chunk_bytes() + (chunk / 2 + 1) * factors_bytes();
  Piece found;
  found.factors = float2(0.0f, 0.0f);
  if (have_factors()) {
    device const uchar* factors = at - chunk % 2 * chunk_bytes() - factors_bytes();
    if (SCALE_TYPE == 6) {
      found.factors.x = ((device const float*)factors)[from.row];
    } else {
      found.factors.x = float(((device const half*)factors)[from.row]);
      if (BIASES != 0) found.factors.y = float(((device const half*)factors)[8 + from.row]);
    }
  }
  if (low_bits() == 2) {
    uint2 low = *(device const uint2*)(at + lane * 8);
    found.low = uint4(low.x, low.y, 0u, 0u);
  } else {
    found.low = *(device const uint4*)(at + half_chunk * 512 + lane * 16);
  }
  device const uchar* high = at + CHUNK * low_bits();
  found.high = uint2(0u, 0u);
  if (high_bits() == 2) found.high = *(device const uint2*)(high + lane * 8);
  if (high_bits() == 1) found.high.x = *(device const uint*)(high + lane * 4);

  uint first = half_chunk * (GROUP <= BLOCK ? piece_blocks() : piece_size() / GROUP);
  if (GROUP < BLOCK) first += pair / max(GROUP / 8, 1u) * 4;
  if (GROUP < 8) first *= 8 / GROUP;
  at += CHUNK * BITS;
  device const uchar* scales = at + from.row * row_scales() + first * scale_bytes();
  found.small_groups = scales;
  found.scales = uint4(0u, 0u, 0u, 0u);
  found.biases = uint4(0u, 0u, 0u, 0u);
  if (GROUP >= 8) {
    found.scales = load_scales(scales, scale_bytes());
    device const uchar* biases = at + 8 * row_scales() + from.row * row_biases() + first * bias_bytes();
    if (SCALE_TYPE == 5) {
      found.biases = uint4(found.scales.x >> 4, 0u, 0u, 0u);
    } else if (BIASES != 0) {
      found.biases = load_scales(biases, bias_bytes());
    }
  }
  return found;
}

// The scales, of so many bytes, with those of the next block first, after block number `done`.
INLINE uint4 next_scales(uint4 scales, uint size, uint done) {
  if (GROUP > 64 || (GROUP == 64 && done % 2 == 0)) return scales;
  if (size == 4) return scales.yzwx;
  if (size == 1) return uint4(scales.x >> 8, 0u, 0u, 0u);
  return uint4(scales.x >> 16 | scales.y << 16, scales.y >> 16, 0u, 0u);
}

// Goes on from block number `done` of the piece.
INLINE void next_block(thread Piece& piece, uint done) {
  if (low_bits() == 8) piece.low = piece.low.zwxy;
  if (low_bits() == 4) piece.low = piece.low.yzwx;
  // A word has every other block.
  if (low_bits() == 2) piece.low = uint4(piece.low.y, piece.low.x >> 8, 0u, 0u);
  if (high_bits() == 2) piece.high = uint2(piece.high.y, piece.high.x >> 8);
  if (high_bits() == 1) piece.high.x >>= 4;
  if (GROUP < 8) {
    piece.small_groups += 8 / GROUP * scale_bytes();
  } else {
    piece.scales = next_scales(piece.scales, scale_bytes(), done);
    if (BIASES != 0) piece.biases = next_scales(piece.biases, bias_bytes(), done);
  }
}

// The codes of elements t and 4 + t of the block that is next, in the halves of a word.
INLINE uint code_pair(thread const Piece& piece, uint t) {
  if (low_bits() == 8) return (t < 2 ? piece.low.x : piece.low.y) >> t % 2 * 8 & 0x00ff00ffu;
  if (low_bits() == 4) {
    uint codes = piece.low.x >> t * 4 & 0x000f000fu;
    if (high_bits() == 2) codes |= (piece.high.x >> t * 2 & 0x00030003u) << 4;
    if (high_bits() == 1) codes |= (piece.high.x >> t & 0x00010001u) << 4;
    return codes;
  }
  uint codes = piece.low.x >> t * 2 & 0x00030003u;
  if (high_bits() == 1) codes |= (piece.high.x >> t & 0x00010001u) << 2;
  return codes;
}

// Whole numbers in place of codes of up to 4 bits, of four codes in a word. Less a zero point and times a factor they are the values.
INLINE uint4 table_words() {
  if (BOOK == 1) return uint4(0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u);
  if (BOOK == 2) return uint4(0x3e2c1700u, 0x75695c4eu, 0xa5988c80u, 0xf0d8c4b4u);
  if (BOOK == 5) return uint4(0x2d292521u, 0x3e393531u, 0x1115191du, 0x0005090du);
  if (BOOK == 6) return uint4(0x2b564433u, 0x2b001223u, 0u, 0u);
  return uint4(0x09120a02u, 0x09100800u, 0u, 0u);
}
INLINE uint table_byte(uint code) {
  if (BOOK == 4) return code << 1;
  uint4 words = table_words();
  uint low = (code & 4) != 0 ? words.y : words.x;
  uint high = (code & 4) != 0 ? words.w : words.z;
  return ((code & 8) != 0 ? high : low) >> code % 4 * 8 & 255u;
}
INLINE uint zero_point() { return BOOK == 1 ? 12u : BOOK == 2 ? 127u : BOOK == 5 ? 31u : BOOK == 6 ? 43u : BOOK == 7 ? 9u : ZERO; }
INLINE float book_factor() { return BOOK == 1 || BOOK == 5 ? 0.5f : BOOK >= 6 ? 0.125f : 1.0f; }

// A float of 8 bits: 4 of the exponent, 3 of the fraction. Below the least exponent there is no leading 1, which is taken away from one.
INLINE float e4m3(uint code) {
  uint bits = (code & 127u) << 20;
  bool small = (code & 120u) == 0;
  float value = as_type<float>(bits + ((small ? 121u : 120u) << 23)) - (small ? 0.015625f : 0.0f);
  return as_type<float>(as_type<uint>(value) | code >> 7 << 31);
}

// A scale or bias from its bits: the lowest of a word if they are fewer.
INLINE float scale_from(uint bits, float factor) {
  if (SCALE_TYPE == 0) return as_type<float>(bits);
  if (SCALE_TYPE == 1) return float(as_type<half2>(bits).x);
  if (SCALE_TYPE == 3) return float(int(bits << 24) >> 24) * factor;
  if (SCALE_TYPE == 5) return float(bits & 15u) * factor;
  if (SCALE_TYPE == 6) return e4m3(bits & 255u) * factor;
  // The least, 2^-127, has no exponent of its own.
  if (SCALE_TYPE == 4) return as_type<float>(max((bits & 255u) << 23, 1u << 22));
  return as_type<float>(bits << 16);
}

// Scales (or biases) of elements t and 4 + t. Those of a byte are of groups of 8 or more.
INLINE float2 scale_pair(uint4 scales, float factor, device const uchar* small_groups, uint t) {
  if (GROUP >= 8) return float2(scale_from(scales.x, factor));
  device const uchar* x = small_groups + t / GROUP * scale_bytes();
  device const uchar* y = small_groups + (4 + t) / GROUP * scale_bytes();
  if (SCALE_TYPE == 0) return float2(*(device const float*)x, *(device const float*)y);
  return float2(scale_from(*(device const ushort*)x, factor), scale_from(*(device const ushort*)y, factor));
}

// The elements t and 4 + t of the block that is next.
INLINE float2 weight_pair(thread const Piece& piece, uint t) {
  uint codes = code_pair(piece, t);
  float2 scale = scale_pair(piece.scales, piece.factors.x, piece.small_groups, t);
  float2 bias = float2(0.0f, 0.0f);
  if (BIASES == 1) bias = scale_pair(piece.biases, piece.factors.y, piece.small_groups + 8 * row_scales(), t);
  if (BIASES == 2) bias = -float(piece.biases.x & 255u) * scale;
  if (book_factor() != 1.0f) scale = scale * book_factor();
  float2 value;
  if (BOOK == 3) {
    value = float2(e4m3(codes & 255u), e4m3(codes >> 16));
  } else {
    if (BOOK != 0) codes = table_byte(codes & 15u) | table_byte(codes >> 16) << 16;
    // 1024 and a code of up to 10 bits are a half whose last bits are the code.
    value = float2(as_type<half2>(codes | 0x64006400u));
    float zero = float(1024u + zero_point());
    // Products of 11 bits and 11 bits are exact in f32: so is all of this, in one operation.
    if (BIASES == 0 && (SCALE_TYPE == 1 || SCALE_TYPE == 2 || SCALE_TYPE == 4)) return fma(value, scale, -zero * scale);
    value = value - zero;
  }
  return BIASES != 0 ? fma(value, scale, bias) : value * scale;
}
