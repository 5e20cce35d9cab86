"""The grids of GGUF's IQ1, IQ2 and IQ3 types, of which files name entries, as the package gguf has them.

    python tools/golden/gguf_grids.py      writes crates/model/src/load/gguf/grids.bin

Entries are 16 bits, little-endian: eight elements of 2 bits, or four of 4 bits, the first in the lowest. An element is a number of a value.
"""

from pathlib import Path

import numpy as np
from gguf import quants

FILE = Path(__file__).resolve().parents[2] / "crates" / "model" / "src" / "load" / "gguf" / "grids.bin"


def entries(kind: type) -> np.ndarray:
    kind.init_grid()
    values, (count, elements) = np.array(kind.grid_map, dtype=np.float32), kind.grid_shape
    numbers = np.searchsorted(values, kind.grid.reshape(count, elements)).astype(np.uint16)
    assert np.array_equal(values[numbers], kind.grid.reshape(count, elements))
    return (numbers << (np.arange(elements, dtype=np.uint16) * np.uint16(16 // elements))).sum(axis=1, dtype=np.uint16)


def main() -> None:
    kinds = (quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S, quants.IQ1_S)
    signs = np.frombuffer(quants.IQ2_XXS.ksigns, dtype=np.uint8)
    # Of seven signs the eighth is the parity, which the reader computes.
    assert all(sign == n | (n.bit_count() & 1) << 7 for n, sign in enumerate(signs))
    FILE.write_bytes(np.concatenate([entries(kind) for kind in kinds]).astype("<u2").tobytes())


if __name__ == "__main__":
    main()
