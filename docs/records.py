"""The records in docs/verification in words, so that no page repeats their figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from dnnffi.bench.summary import (
    CAPTURED,
    EAGER,
    FUNCTIONS,
    GRAPH,
    NOT_MEASURED,
    OF_IMAGES,
    OURS,
    PHASE_WORDS,
    RAW,
    compared_shapes,
    figures,
    targets,
)
from dnnffi.execution.comparison import TOLERANCES

DOCS = Path(__file__).resolve().parent
RECORDS = DOCS / "verification"


Changed = Sequence[str] | None
"""The parts of the source that changed since a record was written; None if that is unknown."""


def gpu_rows(record: dict[str, Any], changed: Changed) -> list[tuple[str, str]]:
    """Return the record of a run of the tests on a GPU in words."""
    return [_counts(record), *_environment_rows(record, changed)]


def miopen_rows(record: dict[str, Any], changed: Changed) -> list[tuple[str, str]]:
    """Return the record of a run on the emulated device in words."""
    return [
        _counts(record),
        ("Problems", f"{sum(record['problems'].values()):,} compared with the reference"),
        _run_on(record, changed),
        ("Verified on", record["verified"]),
        ("With", f"NumPy {record['numpy']}, Python {record['python']}"),
    ]


def _counts(record: dict[str, Any]) -> tuple[str, str]:
    counts = [f"{record[kind]:,} {kind}" for kind in ("passed", "failed", "error", "skipped")]
    return ("Tests", ", ".join(counts))


def state_of(changed: Changed) -> str:
    """Return in words how the source that a record is of differs from the source as it is now."""
    if changed is None:
        return "an unknown state of the source"
    if not changed:
        return "the source as it is now"
    return f"an earlier state of the source (changed since: {', '.join(changed)})"


def _run_on(record: dict[str, Any], changed: Changed) -> tuple[str, str]:
    return ("Run on", f"{state_of(changed)}, dnnffi {record['dnnffi']}, {record['date']}")


def memcheck_rows(record: dict[str, Any], changed: Changed) -> list[tuple[str, str]]:
    """Return the record of runs under compute-sanitizer in words."""
    runs = record["runs"]
    return [
        ("Errors found", f"{sum(run['errors'] for run in runs):,}"),
        *((f"Tests, {run['tool']}", f"{run['result']} ({' '.join(run['tests'])})") for run in runs),
        *_environment_rows(record, changed),
    ]


def _environment_rows(record: dict[str, Any], changed: Changed) -> list[tuple[str, str]]:
    major, minor = divmod(int(record["cuda_driver_api"]), 1000)
    return [
        _run_on(record, changed),
        ("Device", f"{record['device']}, {record['devices']} in the machine"),
        ("Driver", f"{record['driver']}, CUDA {major}.{minor // 10}"),
        ("cuDNN", str(record["cudnn"])),
        (
            "With",
            f"CuPy {record['cupy']}, NumPy {record['numpy']}, Python {record['python']}",
        ),
    ]


OVERHEAD_HEAD = (
    *("Problem", "C call", "executor", "dnnffi.lstm and its like", "of it allocations"),
    *("of it the launch", "PyTorch"),
)


def overhead_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a problem: microseconds of the C call, of the executor above it, and of the rest."""
    rows = []
    for row in record["rows"]:
        calls = [
            f"{row[key]:.1f}" if key in row else NOT_MEASURED
            for key in ("functional", "allocations", "launch", "torch")
        ]
        above = f"{row['executor'] - row['raw']:+.1f}"
        rows.append((row["problem"], f"{row['raw']:.1f}", above, *calls))
    return rows


PART_HEAD = ("Part of a call", "Host, µs")

PARTS = {
    "kernel": "launch of a kernel by dnnffi's runtime",
    "product": "matrix product by cuBLASLt",
    "array": "array of CuPy",
    "tensor": "tensor of PyTorch",
}


def part_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a part of a call of new sizes: its words, and microseconds of the host."""
    found = record.get("parts", {})
    return [(words, _us(found.get(name))) for name, words in PARTS.items()]


def _us(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f}"


VOICE_HEAD = ("Silero VAD, chunks of 32 ms", "dnnffi", "onnxruntime")


def voice_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the times of a chunk of one stream, and the throughput of many."""
    times = record["chunk_us"]
    peer = times.get("onnxruntime", {})
    streams = record["streams"]
    rows = [
        (f"one stream, {which}, µs a chunk", f"{times['dnnffi'][which]:.0f}", _whole(peer, which))
        for which in ("minimum", "median")
    ]
    return [
        *rows,
        (f"{streams['count']} streams, ms a chunk", f"{streams['chunk_ms']:.2f}", NOT_MEASURED),
        (
            f"{streams['count']} streams, hours of audio a second",
            f"{streams['hours_per_second']:.2f}",
            NOT_MEASURED,
        ),
    ]


def _whole(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.0f}" if name in values else NOT_MEASURED


FIRST_HEAD = ("Network", "Calls", "First, s", "Longest, s", "All 60, s", "Last, ms")


def first_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a network and phase: seconds of calls with nothing compiled or measured before."""
    return [
        (
            *(row["shape"], PHASE_WORDS[row["phase"]], f"{row['first_s']:.2f}"),
            f"{row['longest_s']:.2f} (call {row['longest_call']})",
            *(f"{row['sum_s']:.2f}", f"{row['last_s'] * 1e3:.2f}"),
        )
        for row in record["rows"]
    ]


def measured_on(machine: dict[str, Any], changed: Changed) -> str:
    """Return in words on which machine a benchmark ran, and on which state of the source."""
    said = [
        f"{name} {value}" for name, value in machine.items() if name not in ("src_sha256", "source")
    ]
    return f"A record of {state_of(changed)}: {', '.join(said)}."


VULKAN_HEAD = (
    *("Problem", "Call", "Median (least), ms", "Of the reference's"),
    *("Bound, ms", "Dispatches", "Submissions"),
)


def vulkan_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the time of each call of the Vulkan benchmark, also as a ratio to the reference."""
    return [
        (
            row["problem"],
            name,
            f"{found:.2f} ({row['least_ms'][name]:.2f})",
            f"{found / row['median_ms']['reference']:.2f} "
            f"({row['least_ms'][name] / row['least_ms']['reference']:.2f})",
            f"{row['bound_ms'][name]:.2f}" if name in row.get("bound_ms", ()) else "",
            str(row.get("dispatches", {}).get(name, "")),
            str(row["submissions"]) if name == "auto" else "",
        )
        for row in record["rows"]
        for name, found in row["median_ms"].items()
    ]


def vulkan_bounds(record: dict[str, Any]) -> str:
    """Return the measured limits of the adapter of the Vulkan benchmark in a sentence."""
    found = record.get("bounds")
    if found is None:
        return ""
    text = (
        f"Kernels that do nothing else: {found['gflops']:,.0f} GFLOP/s; a dispatch after another "
        f"takes {found['dispatch_us']:.1f} µs, a submission that is waited for "
        f"{found['submission_us']:.0f} µs"
    )
    if "submission_asleep_us" in found:
        text += (
            f" ({found['submission_wgpu_py_us']:.0f} µs by wgpu-py's thread, "
            f"{found['submission_asleep_us']:.0f} µs where the caller sleeps). 13 MB are copied "
            f"out of mapped memory in {found['copy_one_thread_ms']:.2f} ms"
        )
        if found["copy_threads"] > 1:
            text += f", by {found['copy_threads']} threads in {found['copy_ms']:.2f} ms"
    return f"{text}. "


VULKAN_PARTS_HEAD = ("Network", "Prepare", "Submit", "Wait", "Results")


def vulkan_parts(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return microseconds of the parts of a call; empty for a record without them."""
    return [
        (row["problem"], *(f"{found:,.0f}" for found in row["parts_us"].values()))
        for row in record["rows"]
        if "parts_us" in row
    ]


TARGET_HEAD = ("What", "Against", "Aim", "dnnffi", "Reached", "cuDNN alone", "The functions")
_PEER_WORDS = {EAGER: "PyTorch", GRAPH: "PyTorch in a CUDA graph", "": "-"}


def target_rows(record: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the aims for an H200 and the figures of a run of the benchmark; None for no run."""
    found = targets({"shapes": [], "rows": []} if record is None else record)
    words = {None: "-", True: "yes", False: "no"}
    return [
        (
            *(one.what, _PEER_WORDS[one.against], one.aim, one.measured, words[one.reached]),
            *(one.raw or "-", one.functions or "-"),
        )
        for one in found
    ]


PLAN_HEAD = (
    "Shape",
    *(f"{words}, {name}" for words in PHASE_WORDS.values() for name in (*OURS, "PyTorch")),
)


def plan_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a shape: host microseconds of each way of calling, in both phases."""
    columns = [(model, phase) for phase in PHASE_WORDS for model in (*OURS, EAGER)]
    found = [(figures(record, model, phase, "host_us"), 1) for model, phase in columns]
    return _by_shape(record, found)


BENCH_MODELS = {
    FUNCTIONS: "dnnffi",
    CAPTURED: "RNNPlan.capture",
    RAW: "cuDNN alone",
    EAGER: "PyTorch",
    GRAPH: "PyTorch in a graph",
}
GAIN_HEAD = (
    "Shape",
    *(f"{words}, {one}" for words in PHASE_WORDS.values() for one in ("cuDNN", "dnnffi", "ratio")),
)


def gain_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return milliseconds of cuDNN's fastest algorithm in a graph and of a captured plan, by shape.

    The last row has the geometric means of the ratios: over `compared_shapes`, else over all.
    """
    cells: dict[str, list[str]] = {shape["name"]: [] for shape in record["shapes"]}
    means, compared = [], compared_shapes(record) or list(cells)
    for phase in PHASE_WORDS:
        raw, own = (figures(record, model, phase) for model in (RAW, CAPTURED))
        ratios = [raw[name] / own[name] for name in compared if name in raw and name in own]
        means += ["", "", f"{geometric_mean(ratios):.2f}" if ratios else NOT_MEASURED]
        for name, row in cells.items():
            if name in raw and name in own:
                row += [f"{raw[name]:.3f}", f"{own[name]:.3f}", f"{raw[name] / own[name]:.2f}"]
            else:
                row += [NOT_MEASURED] * 3
    title = "geometric mean"
    if len(compared) < len(cells):
        title += f", {len(compared)} shapes of the set performance with rows of equal length"
    return [*((name, *row) for name, row in cells.items()), (title, *means)]


def memory_of_own_kernels(records: Iterable[dict[str, Any]]) -> str:
    """Their workspace and reserve space over those of cuDNN's standard algorithm, in words."""
    ratios = {}
    for record, phase in product(records, PHASE_WORDS):
        ran, raw = (figures(record, model, phase, "about") for model in (FUNCTIONS, RAW))
        for name in [name for name in ran if name in raw and ran[name]["algorithm"] == "own"]:
            ours, standard = (
                about["workspace_bytes"] + about["reserve_bytes"]
                for about in (ran[name], raw[name]["algorithms"]["standard"])
            )
            ratios[name, phase] = ours / standard
    if not ratios:
        return "No shape of the record ran on these kernels."
    name, phase = worst = max(ratios, key=ratios.__getitem__)
    return (
        f"Where these kernels run, their workspace and reserve space together are "
        f"{min(ratios.values()):.2f} to {ratios[worst]:.2f} times those of cuDNN's standard "
        f"algorithm (most for {name}, {PHASE_WORDS[phase]}), {median(ratios.values()):.2f} times "
        f"in the median of {len(ratios)} cases."
    )


def stress_text(record: dict[str, Any]) -> str:
    """Return the result of a run of benchmarks/own_stress.py in a sentence."""
    wrong = record["differing_words"]
    found = f"{wrong:,} words of four bytes differed" if wrong else "not a bit differed"
    return (
        f"{record['launches']:,} launches of {record['problems']} problems in "
        f"{record['seconds']:g} s, {record['graph_launches']:,} graphs and "
        f"{record['direct_calls']:,} direct calls on {record['threads']} threads beside "
        f"{record['products_beside']:,} matrix products: {found} from the first results."
    )


_HOSTS = ("host µs, dnnffi", "host µs, PyTorch")
BENCH_HEAD = ("Shape", *BENCH_MODELS.values(), *_HOSTS)
IMAGE_MODELS = (FUNCTIONS, *OF_IMAGES, EAGER, "torch benchmark", "torch traced", GRAPH)
IMAGE_HEAD = ("Shape", *IMAGE_MODELS, *_HOSTS)


def bench_rows(
    record: dict[str, Any], phase: str, models: Iterable[str] = BENCH_MODELS
) -> list[tuple[str, ...]]:
    """One row a shape: milliseconds of a phase by ``models``, and host microseconds."""
    return _by_shape(
        record,
        [
            *((figures(record, model, phase), 3) for model in models),
            *((figures(record, model, phase, "host_us"), 1) for model in (FUNCTIONS, EAGER)),
        ],
    )


def _by_shape(
    record: dict[str, Any], found: list[tuple[dict[str, float], int]]
) -> list[tuple[str, ...]]:
    return [
        (
            shape["name"],
            *(
                f"{values[shape['name']]:.{digits}f}" if shape["name"] in values else NOT_MEASURED
                for values, digits in found
            ),
        )
        for shape in record["shapes"]
    ]


CONV_HEAD = ("What", "Aim", "Measured", "Reached")
PRECISE = TOLERANCES["float32", "strict"]  # TF32 is about seven times as far off


def conv_aims(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the aims for convolutions and the measured figures."""
    rows: list[tuple[str, str, str, bool]] = []
    for config in dict.fromkeys(row["config"] for row in record["kernels"]):
        both = [row for row in record["kernels"] if row["config"] == config and "torch" in row]
        if both:
            what = f"kernels, PyTorch's time over dnnffi's, {config}"
            found = [row["torch"] / row["dnnffi"] for row in both]
            mean, least = geometric_mean(found), min(found)
            rows += [
                (f"{what}, geometric mean", ">= 1.0", f"{mean:.2f} of {len(found)}", mean >= 1),
                (f"{what}, lowest", ">= 0.95", f"{least:.2f}", least >= 0.95),
            ]
        errors = [row["errors"] for row in both if "errors" in row]
        if errors:
            own, other = (max(one[name] for one in errors) for name in ("dnnffi", "torch"))
            least = min(row["torch"] / row["dnnffi"] for row in both if not _imprecise(row))
            text = f"{own:.0e}; PyTorch {other:.0e}"
            rows += [
                (
                    f"{what}, lowest where both are precise",
                    ">= 0.95",
                    f"{least:.2f}",
                    least >= 0.95,
                ),
                (f"error, largest, {config}", f"<= {PRECISE:.0e}", text, own <= PRECISE),
            ]
    for row in record["host"]:
        beside = f"; PyTorch {row['torch']:.1f} µs" if "torch" in row else ""
        for name, key, most in (("a held plan", "held", 6), ("dnnffi.conv", "functional", 12)):
            what = f"host cost of a call of {name}, {row['problem']}"
            rows.append((what, f"<= {most} µs", f"{row[key]:.1f} µs{beside}", row[key] <= most))
    for config in dict.fromkeys(row["config"] for row in record["first"]):
        calls = [row for row in record["first"] if row["config"] == config and "torch" in row]
        if calls:
            own, other = (median(row[name] for row in calls) for name in ("dnnffi", "torch"))
            measured = f"{own:.2f} ms; PyTorch {other:.2f} ms; medians of {len(calls)} problems"
            what = f"first call of a new problem, {config}"
            rows.append((what, "<= PyTorch's", measured, own <= other))
    return [(*texts, "yes" if reached else "no") for *texts, reached in rows]


UNTUNED_HEAD = ("Arrays", "Operation", "Layers", "PyTorch", "cuDNN's heuristics")


def untuned_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the speed of untuned plans over that of the others, on depthwise layers."""
    by_what: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["kernels"]:
        by_what.setdefault((row["config"], row["operation"]), []).append(row)
    rows = []
    for (config, operation), found in by_what.items():
        cells = [config, operation.replace("_", " "), str(len(found))]
        for peer in ("torch", "cudnn"):
            ratios = [row[peer] / row["dnnffi"] for row in found if peer in row]
            text = f"{geometric_mean(ratios):.2f}; {min(ratios):.2f}" if ratios else NOT_MEASURED
            cells.append(text)
        rows.append(tuple(cells))
    return rows


_OPERATIONS = {"forward": "y", "backward_data": "dx", "backward_weights": "dw"}


def conv_layers_head(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns of `conv_layers`: each type's operations by what they give."""
    return ("Layer", *(f"{config}, {_OPERATIONS[op]}" for config, op in _conv_columns(record)))


def conv_layers(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a layer: microseconds, and PyTorch's time over them, of each type and operation."""
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for row in record["kernels"]:
        text = NOT_MEASURED
        if "dnnffi" in row:
            text = f"{row['dnnffi']:.1f}"
            if "torch" in row:
                error = f"; error {row['errors']['torch']:.0e}" if _imprecise(row) else ""
                text += f" ({row['torch'] / row['dnnffi']:.2f}{error})"
        of_layer = cells.setdefault(f"{row['set']} {row['layer']}", {})
        of_layer[row["config"], row["operation"]] = text
    columns = _conv_columns(record)
    return [
        (name, *(of_layer.get(column, NOT_MEASURED) for column in columns))
        for name, of_layer in cells.items()
    ]


def _imprecise(row: dict[str, Any]) -> bool:
    """Whether PyTorch's result is less precise than float32 has to be."""
    return "errors" in row and row["errors"]["torch"] > PRECISE


def _conv_columns(record: dict[str, Any]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["config"], row["operation"]) for row in record["kernels"]))


JAX_HEAD = (
    *("Shape", "dnnffi.jax", "Captured plan", "Scan", "Scan, unrolled", "Flax"),
    *("jax.experimental.rnn", "Fastest peer / dnnffi.jax"),
)
_SCAN = "scan "


def jax_rows(record: dict[str, Any], phase: str) -> list[tuple[str, ...]]:
    """Milliseconds of networks in JAX in a phase, beside a captured plan and JAX's own."""
    rows = []
    for row in record["rows"]:
        times = _jax_times(row[phase])
        unrolled = [(times[name], name) for name in times if name.startswith(_SCAN)]
        best = min((one for one in unrolled if one[1] != f"{_SCAN}1"), default=None)
        peer = _fastest_peer(times)
        ratio = NOT_MEASURED
        if peer is not None and "dnnffi.jax" in times:
            ratio = f"{times[peer] / times['dnnffi.jax']:.2f}"
        rows.append(
            (
                row["shape"],
                *(_milliseconds(times, name) for name in ("dnnffi.jax", "plan", f"{_SCAN}1")),
                f"{best[0]:.3f} ({best[1].removeprefix(_SCAN)})" if best else NOT_MEASURED,
                *(_milliseconds(times, name) for name in ("flax", "jax.experimental.rnn")),
                ratio,
            )
        )
    return rows


def _jax_times(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures alone: who could not run a shape has a message in the record."""
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _fastest_peer(times: dict[str, float]) -> str | None:
    peers = [name for name in times if name not in ("dnnffi.jax", "plan")]
    return min(peers, key=times.__getitem__, default=None)


def _milliseconds(times: dict[str, float], name: str) -> str:
    return f"{times[name]:.3f}" if name in times else NOT_MEASURED


JAX_AIM_HEAD = ("Against", "Aim", "Geometric mean", "Lowest", "Reached")


def jax_aims(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the aims for dnnffi.jax and its mean speed over all shapes and phases."""
    beside_plan, beside_peer = [], []
    for row in record["rows"]:
        for phase in ("inference", "training"):
            times = _jax_times(row[phase])
            own = times.get("dnnffi.jax")
            peer = _fastest_peer(times)
            if own is not None and "plan" in times:
                beside_plan.append(times["plan"] / own)
            if own is not None and peer is not None and row["shape"].split()[1] != "f32":
                beside_peer.append(times[peer] / own)
    aims = (
        ("the captured plan", 0.97, beside_plan),
        ("JAX's fastest, float16 and bfloat16", 1.0, beside_peer),
    )
    return [
        (
            against,
            f">= {aim:.2f}x",
            f"{geometric_mean(ratios):.2f}" if ratios else NOT_MEASURED,
            f"{min(ratios):.2f}" if ratios else NOT_MEASURED,
            f"{sum(ratio >= aim for ratio in ratios)} of {len(ratios)}",
        )
        for against, aim, ratios in aims
    ]


def jax_least(record: dict[str, Any]) -> str:
    """Return the least that a call in JAX took, in words: over the runs that the rows are of."""
    least = sorted({f"{1e3 * row['nothing']:.0f}" for row in record["rows"]}, key=int)
    between = f"from {least[0]} to {least[-1]}" if len(least) > 1 else least[0]
    return (
        f"A compiled function that adds one to a number took {between} µs a call in the same "
        "loops, the least that a call in JAX takes."
    )


JAX_DEVICES_HEAD = (
    "GPUs",
    "shard_map, ms",
    "Throughput",
    "jit, ms",
    "Throughput",
    "Aim",
    "The sum alone, ms",
    "Each GPU alone, ms",
)
_DEVICE_AIMS = {2: ">= 1.95x", 4: ">= 3.85x"}


def jax_device_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Milliseconds of a step on several GPUs, and how many times the throughput of one that is."""
    return [
        (
            str(row["devices"]),
            *(
                text
                for way in ("shard_map", "jit")
                for text in (f"{row[way]:.2f}", f"{row[f'{way} throughput']:.2f}x")
            ),
            _DEVICE_AIMS.get(row["devices"], "-"),
            f"{row['sum']:.2f}" if "sum" in row else "-",
            ", ".join(f"{ms:.2f}" for ms in row.get("alone", ())) or "-",
        )
        for row in record["devices"]
    ]


JAX_CONV_HEAD = (
    "Layers of",
    "Type and layout",
    "Operation",
    "Layers",
    "XLA / dnnffi.jax.conv",
    "XLA faster in",
    "XLA / plan",
)


def jax_conv_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the time of XLA's convolutions over that of dnnffi's: mean, minimum, maximum."""
    by_what: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in record["rows"]:
        if "error" not in row:
            key = row["set"], row["config"], row["operation"]
            by_what.setdefault(key, []).append(row)
    found = []
    for (name, config, operation), layers in by_what.items():
        by_us, plan = (
            [row["jax"] / row[side] for row in layers if side in row] for side in ("djax", "dnnffi")
        )
        slower = str(sum(ratio < 1 for ratio in by_us)) if by_us else "not measured"
        what = name, config, operation.replace("_", " "), str(len(layers))
        found.append((*what, _mean_and_range(by_us), slower, _mean_and_range(plan)))
    return found


def _mean_and_range(ratios: Sequence[float]) -> str:
    if not ratios:
        return "not measured"
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
