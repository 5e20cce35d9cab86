// Rows of a tile of pairs of a token and an expert, for grouped matmuls: it comes after tile.metal, before their text.

constant uint PAIRS_PER_ROW [[function_constant(9)]];
constant bool GROUPED [[function_constant(10)]];

// Pairs with the same expert: those whose numbers `order` holds, or the only one.
struct PairRows {
  device const uint* order;
  uint first;
  uint count;
  // Of all that is in a row of `out`, where others may have products of the same rows.
  uint out_cols;
};
INLINE uint out_row(PairRows rows, uint m) { return GROUPED ? rows.order[rows.first + m] : rows.first; }
INLINE ulong out_at(PairRows rows, uint m) { return ulong(out_row(rows, m)) * rows.out_cols; }
INLINE uint x_row(PairRows rows, uint m) { return m < rows.count ? out_row(rows, m) / PAIRS_PER_ROW : NO_ROW; }
