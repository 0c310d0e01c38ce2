"""Numbers of the instructions, shared by Python and C, and the generated files of the C core."""

from __future__ import annotations

from . import scalar, vector
from .records import Access, Space

STRUCTURAL = (
    *("nop", "endpgm", "barrier", "read_first_lane", "read_lane", "write_lane"),
    *("scalar_load", "get_pc", "set_pc", "swap_pc", "memory"),
)
"""Instructions whose meaning is written in ``core/run.c``."""

UNKNOWN = 0xFFFF

_SCALAR = {f"s_{name}": body for name, body in scalar.bodies().items()}
_VECTOR = {f"v_{name}": body for name, body in vector.bodies().items()}

OPCODES = {name: number for number, name in enumerate([*STRUCTURAL, *_SCALAR, *_VECTOR])}


def generated_files() -> dict[str, str]:
    """Return the texts of the files that the C core includes, by name."""
    names = [f"OP_{name.upper()} = {OPCODES[name]}" for name in STRUCTURAL]
    names.append(f"OP_UNKNOWN = {UNKNOWN}")
    enumerations = [
        f"enum opcode {{ {', '.join(names)} }};",
        *(
            f"enum {kind.__name__.lower()} "
            f"{{ {', '.join(f'{member.name} = {member.value}' for member in kind)} }};"
            for kind in (Space, Access)
        ),
    ]
    return {
        "opcodes.h": "#pragma once\n" + "\n".join(enumerations) + "\n",
        "scalar.inc": _cases(_SCALAR),
        "vector.inc": _cases(_VECTOR),
    }


def _cases(bodies: dict[str, str]) -> str:
    return "".join(
        f"case {OPCODES[name]}: {{ /* {name} */ {body} break; }}\n" for name, body in bodies.items()
    )
