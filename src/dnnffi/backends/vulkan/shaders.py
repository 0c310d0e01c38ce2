"""The kernels in WGSL, generated from one source for all modes.

There are a product of all inputs, a step of a recurrence, and a whole sequence in one workgroup.
Sums are over vectors of four. Weights are stored as [K/4][columns][4], so that neighbours read
neighbours; those in float16 are unpacked where they are read, and everything else is float32. No
``exp`` here is of a positive number, so that none overflows, and functions of WGSL with a range are
not used.

With resets, the states that replace others are stored as further rows of the buffers of h and c,
after the B rows of the batch. ``state_row`` returns the row from which a step reads its state. So
the loops over products are the same as without resets, and a replaced state is not read: NaN in it
does not spread. A kernel has at most eight storage buffers, which every adapter can bind.

Symbols: B rows of the batch, G gates, H hidden size, O the size of the state that is read, K of a
sum, M rows of all steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dnnffi.backends.vulkan.packing import vectors
from dnnffi.backends.vulkan.tiles import Tile

PROJECTION = "projection"
"""The mode of a step that projects what an LSTM's step left: one sum, and no input."""

MAX_GROUPS = 65535
"""Workgroups of a dispatch in one dimension; every adapter has as many."""

RUNS, RESET = 1, 2
"""Bits of ``flags`` for a row and step: the row has this step; the state before it is replaced."""

# The cell of a row and unit: ``x0``.. are the gates' parts of the input, ``h0``.. of the state,
# ``old`` is the unit's own state, and ``READ_ROW`` stands for the row of c that is read. Each cell
# computes ``next``.
_CELLS = {
    "lstm": """
            let i = sigmoid(x0 + h0);
            let f = sigmoid(x1 + h1);
            let g = hyperbolic(x2 + h2);
            let o = sigmoid(x3 + h3);
            let cell = f * c[READ_ROW * HIDDEN + u] + i * g;
            if (runs) { c[b * HIDDEN + u] = cell; }
            let next = o * hyperbolic(cell);""",
    "gru": """
            let r = sigmoid(x0 + h0);
            let z = sigmoid(x1 + h1);
            let n = hyperbolic(x2 + r * h2);
            let next = (1.0 - z) * n + z * old;""",
    "rnn_tanh": """
            let next = hyperbolic(x0 + h0);""",
    # Not max, which need not keep NaN.
    "rnn_relu": """
            let next = select(x0 + h0, 0.0, x0 + h0 <= 0.0);""",
    PROJECTION: """
            let next = h0;""",
}

MODES = frozenset(_CELLS) - {PROJECTION}

_FUNCTIONS = """
fn sigmoid(v: f32) -> f32 {
    let e = exp(-abs(v));
    return select(e, 1.0, v >= 0.0) / (1.0 + e);
}
fn hyperbolic(v: f32) -> f32 {
    // The difference below leaves a small number few digits; the series errs by 3e-10 of it.
    let s = v * v;
    let series = v + v * s * (-0.33333333 + s * (0.13333333 - s * 0.05396825));
    let e = exp(-2.0 * abs(v));
    let t = (1.0 - e) / (1.0 + e);
    return select(select(-t, t, v >= 0.0), series, s < 0.01);
}
"""

_STATE_ROW = f"""
fn resets(t: u32, b: u32, rows: u32) -> bool {{
    return (flags[t * rows + b] & {RESET}u) != 0u;
}}
fn state_row(t: u32, b: u32, rows: u32) -> u32 {{
    let others = arrayLength(&source) / STATE - rows;  // one row for all, or one each
    return select(b, rows + min(b, others - 1u), resets(t, b, rows));
}}
"""


class Step(NamedTuple):
    """The kernel of a step, or of a whole sequence.

    mode : of the network, or `PROJECTION`
    units : H; P of a projection
    source : vectors of four in a row of what is summed over
    state : vectors of four in a row of the state
    half : whether the weights are float16
    bias : whether there is one
    tile : how it is divided
    y_width, y_offset : elements of a row of y, and where this direction's begin
    projected : whether a projection follows, which writes y and the state
    whole : whether all steps are run, in the order that ``reverse`` tells
    resets : whether states are replaced before steps; not of a projection
    """

    mode: str
    units: int
    source: int
    state: int
    half: bool
    bias: bool
    tile: Tile
    y_width: int
    y_offset: int
    projected: bool = False
    whole: bool = False
    reverse: bool = False
    resets: bool = False

    @property
    def gates(self) -> int:
        """Gates of the mode, 1 for a projection."""
        return {"lstm": 4, "gru": 3}.get(self.mode, 1)

    def bindings(self) -> tuple[str, ...]:
        """Return the names of the kernel's bindings, in their order."""
        names = ["w", "source", "hidden" if self.projected else "state"]
        if self.mode != PROJECTION:
            names += ["gates", *(("bias",) if self.bias else ())]
        if self.mode == "lstm":
            names.append("c")
        if self.mode == PROJECTION:
            names.append("before")
        if not self.projected:
            names.append("y")
        names.append("flags" if self.resets else "lengths")
        return (*names, "now")


@lru_cache(maxsize=256)
def product(k4: int, columns: int, half: bool, bias: bool, tile: Tile) -> str:
    """Return the kernel of ``out[m][n] = bias[n] + sum of x[m][k] * w[n][k]``.

    The number of rows M follows from the size of ``out``.
    """
    rows, count, lanes = tile.rows, tile.columns, tile.lanes
    sums = _lines(f"var s{r}_{n} = START{n};" for r in range(rows) for n in range(count))
    for n in range(count):
        start = f"bias[n{n}]" if bias else "0.0"
        sums = sums.replace(f"START{n};", f"{start};")
    at = _lines(f"let n{n} = min(first + {n * lanes}u, COLUMNS - 1u);" for n in range(count))
    x_at = _rows_at(tile, "min(m + {r}, rows - 1u) * K4")
    loads = _lines(f"let w{n} = weight(k * COLUMNS + n{n});" for n in range(count))
    inner = _rows_read("x", tile) + _lines(
        f"{{ let v = {_row(r, 'x', tile)};"
        + "".join(f" s{r}_{n} += dot(w{n}, v);" for n in range(count))
        + " }"
        for r in range(rows)
    )
    stores = _lines(
        f"if (m + {r}u < rows && first + {n * lanes}u < COLUMNS) "
        f"{{ out[(m + {r}u) * COLUMNS + n{n}] = s{r}_{n}; }}"
        for r in range(rows)
        for n in range(count)
    )
    names = ("w", "x", "out", *(("bias",) if bias else ()))
    return f"""{_declarations(names, half)}
const K4 = {k4}u;
const COLUMNS = {columns}u;
@compute @workgroup_size({lanes})
fn main({_invocation(tile)}) {{
    let rows = arrayLength(&out) / COLUMNS;
    let m = (group.y + group.z * {MAX_GROUPS}u) * {rows}u;
    let first = group.x * {lanes * count}u + lane;
{at}{x_at}{sums}
    for (var k = 0u; k < K4; k++) {{
{loads}{inner}
    }}
{stores}
}}
"""


@lru_cache(maxsize=256)
def step(kernel: Step) -> str:
    """Return the kernel of a step of B rows, or with ``whole`` of all steps that ``gates`` has.

    A row past its length keeps its state, and its y is zero. ``flags`` of a kernel with resets are
    [steps, B], and contain the lengths.
    """
    tile, gates = kernel.tile, kernel.gates
    body = _sums(kernel) + _finish(kernel)
    lanes = tile.lanes * tile.splits
    whole = kernel.whole
    shared = ""
    if whole:
        shared += f"var<workgroup> kept: array<vec4f, {2 * tile.rows * kernel.state}>;\n"
    if tile.splits > 1:
        size = tile.splits * tile.lanes * tile.rows * gates
        shared += f"var<workgroup> sums: array<f32, {size}>;\n"
    first_rows = f"let first = (group.y + group.z * {MAX_GROUPS}u) * {tile.rows}u;"
    if not whole:
        run = f"""
    let t = now.t;
    let block = group.x * {tile.lanes}u;
{body}"""
    else:
        order = "steps - 1u - turn" if kernel.reverse else "turn"
        run = f"""
    for (var i = lane; i < {tile.rows}u * STATE; i += {lanes}u) {{
        kept[i] = source[min(first + i / STATE, rows - 1u) * STATE + i % STATE];
        kept[{tile.rows}u * STATE + i] = vec4f();  // memory of workgroups is not zero on lavapipe
    }}
    workgroupBarrier();
    let steps = arrayLength(&gates) / (rows * GATES * HIDDEN);
    var half = 0u;
    for (var turn = 0u; turn < steps; turn++) {{
        let t = {order};{_replace_states(kernel) if kernel.resets else ""}
        for (var block = 0u; block < HIDDEN; block += {tile.lanes}u) {{
{body}
        }}
        half = {tile.rows}u * STATE - half;
        workgroupBarrier();
    }}
    for (var i = lane; i < {tile.rows}u * STATE; i += {lanes}u) {{
        let b = first + i / STATE;
        if (b < rows) {{
            let at = b * STATE * 4u + (i % STATE) * 4u;
            for (var j = 0u; j < 4u; j++) {{ state[at + j] = kept[half + i][j]; }}
        }}
    }}
"""
    return f"""{_declarations(kernel.bindings(), kernel.half)}
{shared}const GATES = {gates}u;
const HIDDEN = {kernel.units}u;
const SOURCE = {kernel.source}u;
const STATE = {kernel.state}u;
{_FUNCTIONS}{_STATE_ROW if kernel.resets else ""}
@compute @workgroup_size({lanes})
fn main({_invocation(tile)}) {{
    let rows = {_batch(kernel)};
    {first_rows}
    let column = lane % {tile.lanes}u;
    let split = lane / {tile.lanes}u;
{run}
}}
"""


def _batch(kernel: Step) -> str:
    """Return the expression of the number of rows of the batch."""
    if not kernel.resets:
        return "arrayLength(&lengths)"
    if kernel.projected:
        return f"arrayLength(&hidden) / {4 * vectors(kernel.units)}u"
    return "arrayLength(&state) / (4u * STATE)"  # bound without the states that replace others


def _replace_states(kernel: Step) -> str:
    """Return code that replaces states in a workgroup's memory before its invocations read them."""
    tile = kernel.tile
    return f"""
        for (var i = lane; i < {tile.rows}u * STATE; i += {tile.lanes * tile.splits}u) {{
            let b = min(first + i / STATE, rows - 1u);
            if (resets(t, b, rows)) {{
                kept[half + i] = source[state_row(t, b, rows) * STATE + i % STATE];
            }}
        }}
        workgroupBarrier();"""


def _sums(kernel: Step) -> str:
    """Return code that computes the recurrent sums of the block's units: ``s{row}_{gate}``."""
    tile, gates = kernel.tile, kernel.gates
    rows, splits = range(tile.rows), tile.splits
    declared = _lines(f"var s{r}_{g} = 0.0;" for r in rows for g in range(gates))
    if kernel.whole:
        at, load = _rows_at(tile, "half + {r} * STATE"), "kept"
    else:
        row = "min(first + {r}, rows - 1u)"
        if kernel.resets:
            row = f"state_row(t, {row}, rows)"
        at, load = _rows_at(tile, f"{row} * SOURCE"), "source"
    weights = _lines(
        f"let w{g} = weight((k * GATES + {g}u) * HIDDEN + place);" for g in range(gates)
    )
    inner = _rows_read(load, tile) + _lines(
        f"{{ let v = {_row(r, load, tile)};"
        + "".join(f" s{r}_{g} += dot(w{g}, v);" for g in range(gates))
        + " }"
        for r in rows
    )
    return f"""
    let u = block + column;
    let place = min(u, HIDDEN - 1u);
{declared}{at}
    for (var k = split; k < SOURCE; k += {splits}u) {{
{weights}{inner}
    }}
"""


def _finish(kernel: Step) -> str:
    """Return code that computes the cell of each row from its sums."""
    tile, gates = kernel.tile, range(kernel.gates)
    rows, splits, lanes = range(tile.rows), tile.splits, tile.lanes
    if splits == 1:
        return "".join(
            f"""
    {{
        let b = first + {r}u;
        if (b < rows && u < HIDDEN) {{
{_lines(f"let sum{g} = s{r}_{g};" for g in gates)}{_cell(kernel, str(r) + "u")}
        }}
    }}"""
            for r in rows
        )
    stores = _lines(
        f"sums[((split * {tile.rows}u + {r}u) * GATES + {g}u) * {lanes}u + column] = s{r}_{g};"
        for r in rows
        for g in gates
    )
    totals = _lines(
        f"var sum{g} = 0.0;\n"
        f"for (var p = 0u; p < {splits}u; p++) {{ sum{g} += "
        f"sums[((p * {tile.rows}u + row) * GATES + {g}u) * {lanes}u + column]; }}"
        for g in gates
    )
    barrier = "    workgroupBarrier();\n" if kernel.whole else ""
    return f"""
{stores}
    workgroupBarrier();
    for (var row = split; row < {tile.rows}u; row += {splits}u) {{
        let b = first + row;
        if (b < rows && u < HIDDEN) {{
{totals}{_cell(kernel, "row")}
        }}
    }}
{barrier}"""


def _cell(kernel: Step, row: str) -> str:
    gates = range(kernel.gates)
    text = "            let runs = t < lengths[b];\n"
    read_row = "b"
    if kernel.resets:
        text = f"            let runs = (flags[t * rows + b] & {RUNS}u) != 0u;\n"
        text += "            let read_row = state_row(t, b, rows);\n"
        read_row = "read_row"
    if kernel.mode != PROJECTION:
        text += "            let at = (t * rows + b) * GATES * HIDDEN + u;\n"
        text += _lines(f"let x{g} = gates[at + {g}u * HIDDEN];" for g in gates)
    for g in gates:
        bias = f" + bias[{g}u * HIDDEN + u]" if kernel.bias and kernel.mode != PROJECTION else ""
        text += f"            let h{g} = sum{g}{bias};\n"
    if kernel.whole:
        text += f"            let old = kept[half + {row} * STATE + u / 4u][u % 4u];\n"
    elif not kernel.projected:
        before = "before" if kernel.mode == PROJECTION else "source"
        text += f"            let old = {before}[{read_row} * STATE + u / 4u][u % 4u];\n"
    text += _CELLS[kernel.mode].replace("READ_ROW", read_row)
    if kernel.projected:
        return f"{text}\n            hidden[b * {4 * vectors(kernel.units)}u + u] = next;\n"
    if kernel.whole:
        # Offset of the other half of ``kept``.
        other = f"{kernel.tile.rows}u * STATE - half"
        target = f"kept[{other} + {row} * STATE + u / 4u][u % 4u]"
    else:
        target = "state[b * STATE * 4u + u]"
    y_at = f"(t * rows + b) * {kernel.y_width}u + {kernel.y_offset}u + u"
    return f"""{text}
            {target} = select(old, next, runs);
            y[{y_at}] = select(0.0, next, runs);
"""


_TYPES = {
    "x": ("read", "array<vec4f>"),
    "source": ("read", "array<vec4f>"),
    "before": ("read", "array<vec4f>"),
    "gates": ("read", "array<f32>"),
    "bias": ("read", "array<f32>"),
    "lengths": ("read", "array<u32>"),
    "flags": ("read", "array<u32>"),
    "out": ("read_write", "array<f32>"),
    "state": ("read_write", "array<f32>"),
    "hidden": ("read_write", "array<f32>"),
    "c": ("read_write", "array<f32>"),
    "y": ("read_write", "array<f32>"),
}


def _declarations(names: tuple[str, ...], half: bool) -> str:
    text = ""
    for index, name in enumerate(names):
        place = f"@group(0) @binding({index})"
        if name == "now":
            text += f"struct Step {{ t: u32 }}\n{place} var<uniform> now: Step;\n"
        elif name == "w":
            kind = "vec2u" if half else "vec4f"
            text += f"{place} var<storage, read> w: array<{kind}>;\n"
            read = "w[i]"
            if half:
                read = "vec4f(unpack2x16float(w[i].x), unpack2x16float(w[i].y))"
            text += f"fn weight(i: u32) -> vec4f {{ return {read}; }}\n"
        else:
            access, kind = _TYPES[name]
            text += f"{place} var<storage, {access}> {name}: {kind};\n"
    return text


def _invocation(tile: Tile) -> str:
    """Return the declarations of a kernel's parameters."""
    text = "@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32"
    return f"{text}, @builtin(subgroup_invocation_id) neighbour: u32" if tile.passes else text


def _rows_at(tile: Tile, place: str) -> str:
    """Return code with the offsets of all rows, or of those that an invocation reads for others."""
    if not tile.passes:
        return _lines(f"let x{r} = {place.format(r=f'{r}u')};" for r in range(tile.rows))
    most = min(tile.passes, tile.rows)
    return _lines(
        f"let own{n} = {place.format(r=f'({n * most}u + neighbour % {most}u)')};"
        for n in range(tile.rows // most)
    )


def _rows_read(load: str, tile: Tile) -> str:
    if not tile.passes:
        return ""
    count = tile.rows // min(tile.passes, tile.rows)
    return _lines(f"let mine{n} = {load}[own{n} + k];" for n in range(count))


def _row(r: int, load: str, tile: Tile) -> str:
    """Return the expression of vector k of a row.

    On a CPU a shuffle is one instruction, and a broadcast a loop.
    """
    if not tile.passes:
        return f"{load}[x{r} + k]"
    group, place = divmod(r, min(tile.passes, tile.rows))
    return f"subgroupShuffle(mine{group}, {place}u)"


def _lines(lines: object) -> str:
    return "".join(f"        {line}\n" for line in lines)  # type: ignore[attr-defined]
