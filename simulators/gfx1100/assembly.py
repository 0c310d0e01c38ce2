"""Run a few instructions of assembly on values, for the tests of the interpreter."""

from __future__ import annotations

import numpy as np

from simulators.gfx1100.interpreter import Code, assemble

LANES = 32
SOURCES = ("v2", "v4", "v6")
"""Vector registers of the operands of `vector`; one of 64 bits is in v[2:3], v[4:5] or v[6:7]."""


def run(text: str, *arrays: np.ndarray, items: int = LANES, lds_bytes: int = 0, **grid) -> int:
    """Run a program whose scalar registers s[0:1], s[2:3], ... are the addresses of arrays."""
    code = Code(assemble(text), 0)
    words = [word for a in arrays for word in (a.ctypes.data & 0xFFFFFFFF, a.ctypes.data >> 32)]
    size = grid.pop("local_size", (items, 1, 1))
    return code.run(
        0, grid.pop("global_size", size), size, lds_bytes=lds_bytes, user_data=words, **grid
    )


def vector(instructions: str, *operands, result: str = "uint32", active: int = 0xFFFFFFFF):
    """Return v8 of each lane after the instructions; operands are NumPy arrays or scalars.

    The operands are in the registers `SOURCES`. Only the lanes of the bit mask ``active`` execute
    the instructions; v8 is 0 before them.
    """
    dtype = np.dtype(result)
    found = np.zeros(LANES, dtype)
    sources = [np.ascontiguousarray(np.broadcast_to(a, LANES)) for a in operands]
    text = ["v_mov_b32 v8, 0", "v_mov_b32 v9, 0"]
    for i, (source, register) in enumerate(zip(sources, SOURCES, strict=False)):
        number = int(register[1:])
        size = source.itemsize
        text.append(f"v_mul_u32_u24 v1, {size}, v0")
        what, place = {
            2: ("u16", register),
            4: ("b32", register),
            8: ("b64", f"v[{number}:{number + 1}]"),
        }[size]
        text.append(f"global_load_{what} {place}, v1, s[{2 * i + 2}:{2 * i + 3}]")
    text += [f"s_mov_b32 exec_lo, {active:#x}", instructions, "s_mov_b32 exec_lo, -1"]
    text.append(f"v_mul_u32_u24 v1, {dtype.itemsize}, v0")
    stored = {2: "b16 v1, v8", 4: "b32 v1, v8", 8: "b64 v1, v[8:9]"}[dtype.itemsize]
    text += [f"global_store_{stored}, s[0:1]", "s_endpgm"]
    run("\n".join(text), found, *sources)
    return found


def scalar(instructions: str, *, result: str = "uint32", scc: int = 0) -> tuple[int, int]:
    """Return s20 (s[20:21] for uint64) and the scalar condition code after the instructions."""
    found = np.zeros(3, "uint32")
    text = f"""
        s_mov_b32 s20, 0
        s_mov_b32 s21, 0
        s_cmp_eq_u32 {scc}, 1
        {instructions}
        s_cselect_b32 s22, 1, 0
        v_mov_b32 v0, 0
        v_mov_b32 v1, s20
        v_mov_b32 v2, s21
        v_mov_b32 v3, s22
        global_store_b96 v0, v[1:3], s[0:1]
        s_endpgm
    """
    run(text, found, items=1)
    return int(found[:2].view("uint64")[0]) if result == "uint64" else int(found[0]), int(found[2])
