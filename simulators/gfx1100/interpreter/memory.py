"""Table of the vector memory instructions: access and number of bytes of each."""

from __future__ import annotations

from typing import NamedTuple

from .records import Access, Space

SPACES = {
    "global": Space.GLOBAL,
    "flat": Space.GLOBAL,
    "ds": Space.LDS,
    "scratch": Space.SCRATCH,
    "buffer": Space.BUFFER,
}


class Meaning(NamedTuple):
    """Access of a memory instruction, the same for all address spaces."""

    access: Access
    bytes: int
    high_half: bool = False

    @property
    def is_store(self) -> bool:
        return self.access in (Access.STORE, Access.STORE_HIGH_HALF, Access.STORE_PAIR)

    @property
    def is_atomic(self) -> bool:
        return self.access in (
            Access.ATOMIC_ADD_U32,
            Access.ATOMIC_ADD_F32,
            Access.ATOMIC_COMPARE_SWAP,
        )

    @property
    def is_pair(self) -> bool:
        return self.access in (Access.LOAD_PAIR, Access.STORE_PAIR)


MEANINGS = {
    **{f"load_b{bits}": Meaning(Access.LOAD, bits // 8) for bits in (32, 64, 96, 128)},
    **{f"store_b{bits}": Meaning(Access.STORE, bits // 8) for bits in (8, 16, 32, 64, 96, 128)},
    "load_u8": Meaning(Access.LOAD, 1),
    "load_u16": Meaning(Access.LOAD, 2),
    "load_i8": Meaning(Access.LOAD_SIGNED, 1),
    "load_i16": Meaning(Access.LOAD_SIGNED, 2),
    "load_d16_b16": Meaning(Access.LOAD_HALF, 2),
    "load_d16_u8": Meaning(Access.LOAD_HALF, 1),
    "load_d16_i8": Meaning(Access.LOAD_HALF_SIGNED, 1),
    "load_d16_hi_b16": Meaning(Access.LOAD_HALF, 2, high_half=True),
    "load_d16_hi_u8": Meaning(Access.LOAD_HALF, 1, high_half=True),
    "load_d16_hi_i8": Meaning(Access.LOAD_HALF_SIGNED, 1, high_half=True),
    "store_d16_hi_b16": Meaning(Access.STORE_HIGH_HALF, 2),
    "store_d16_hi_b8": Meaning(Access.STORE_HIGH_HALF, 1),
    # Names of the same accesses in LDS.
    **{
        f"load_{kind}_d16{half}": Meaning(access, size, high_half=bool(half))
        for kind, access, size in (
            ("u8", Access.LOAD_HALF, 1),
            ("i8", Access.LOAD_HALF_SIGNED, 1),
            ("u16", Access.LOAD_HALF, 2),
        )
        for half in ("", "_hi")
    },
    "store_b16_d16_hi": Meaning(Access.STORE_HIGH_HALF, 2),
    "store_b8_d16_hi": Meaning(Access.STORE_HIGH_HALF, 1),
    "add_u32": Meaning(Access.ATOMIC_ADD_U32, 4),
    "add_f32": Meaning(Access.ATOMIC_ADD_F32, 4),
    "atomic_add_u32": Meaning(Access.ATOMIC_ADD_U32, 4),
    "atomic_add_f32": Meaning(Access.ATOMIC_ADD_F32, 4),
    "atomic_cmpswap_b32": Meaning(Access.ATOMIC_COMPARE_SWAP, 4),
    **{
        f"{kind}_2addr{stride}_b{bits}": Meaning(access, bits // 8)
        for kind, access in (("load", Access.LOAD_PAIR), ("store", Access.STORE_PAIR))
        for stride in ("", "_stride64")
        for bits in (32, 64)
    },
}

EXCHANGES = {"ds_bpermute_b32": Access.PULL, "ds_permute_b32": Access.PUSH}
