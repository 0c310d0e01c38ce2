"""The contents of the pages that are made of one record each.

No page repeats a figure of a record. The aims for dnnffi's own kernels are in `own_aims`, figures
that are drawn in `figures`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import geometric_mean, median
from typing import Any

from records import (
    Block,
    Columns,
    Literal,
    Pairs,
    Record,
    Rows,
    fixed,
    grouped,
    mean_of,
    ratio_columns,
    shows,
    table_of,
)

from dnnffi.bench.callers import report as callers
from dnnffi.bench.streams import report as streams
from dnnffi.bench.streams.model import FUNCTIONS as STREAM_FUNCTIONS
from dnnffi.bench.streams.model import TUNED_PLAN, with_resets
from dnnffi.bench.streams.resets import RESET_RATES
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
    compare,
    compared_shapes,
    figures,
    targets,
)
from dnnffi.execution.comparison import TOLERANCES

# Rows about runs of tests: formats of the fields of a record, and of those that `_run` adds.
COUNTS = {"Tests": "{passed:,} passed, {failed:,} failed, {error:,} error, {skipped:,} skipped"}
RUN_ON = {"Run on": "{state}, dnnffi {dnnffi}, {date}"}
COMPARED = {"Problems": "{compared:,} compared with the reference"}
VERIFIED = {"Verified on": "{verified}", "With": "NumPy {numpy}, Python {python}"}
ENVIRONMENT = RUN_ON | {
    "Device": "{device}, {devices} in the machine",
    "Driver": "{driver}, CUDA {cuda}",
    "cuDNN": "{cudnn}",
    "With": "CuPy {cupy}, NumPy {numpy}, Python {python}",
}


@shows("gpu.json")
def gpu_record(record: Record) -> Iterator[Block]:
    """Yield the last run of the tests on a GPU."""
    yield _run(record, COUNTS | ENVIRONMENT)


@shows("memcheck.json")
def memcheck_record(record: Record) -> Iterator[Block]:
    """Yield the runs under compute-sanitizer."""
    rows = [("Errors found", f"{sum(run['errors'] for run in record['runs']):,}")]
    for run in record["runs"]:
        rows.append((f"Tests, {run['tool']}", f"{run['result']} ({' '.join(run['tests'])})"))
    yield rows + _run(record, ENVIRONMENT)


@shows("miopen.json")
def checked_record(record: Record) -> Iterator[Block]:
    """Yield a run of tests that compare problems with the reference."""
    yield _run(record, COUNTS | COMPARED | RUN_ON | VERIFIED)


def _run(record: Record, rows: Mapping[str, str]) -> Pairs:
    major, minor = divmod(int(record.get("cuda_driver_api", 0)), 1000)
    fields = record | {
        "state": record.state(record.get("source")),
        "cuda": f"{major}.{minor // 10}",
        "compared": sum(record.get("problems", {}).values()),
    }
    return [(words, text.format_map(fields)) for words, text in rows.items()]


@shows("oracle_torch.txt")
def text_record(record: Record) -> Iterator[Block]:
    """Yield a file of text without its hashes."""
    yield Literal(record["text"])
    yield f"A record of {record.state(record['source'])}."


@shows("call_overhead.json")
def call_overhead(record: Record) -> Iterator[Block]:
    """Yield microseconds of the host: the C call, what the executor adds, and whole calls."""
    yield [
        {
            "Problem": row["problem"],
            "C call": fixed(row["raw"], 1),
            "executor": f"{row['executor'] - row['raw']:+.1f}",
            "dnnffi.lstm and its like": fixed(row.get("functional"), 1),
            "of it allocations": fixed(row.get("allocations"), 1),
            "of it the launch": fixed(row.get("launch"), 1),
            "PyTorch": fixed(row.get("torch"), 1),
        }
        for row in record["rows"]
    ]
    yield record.conditions()


@shows("call_overhead.json")
def call_parts(record: Record) -> Iterator[Block]:
    """Yield microseconds of the host of each part of a call of new sizes."""
    parts = {
        "kernel": "launch of a kernel by dnnffi's runtime",
        "product": "matrix product by cuBLASLt",
        "array": "array of CuPy",
        "tensor": "tensor of PyTorch",
    }
    found = record.get("parts", {})
    yield [
        {"Part of a call": words, "Host, µs": fixed(found.get(name), 1)}
        for name, words in parts.items()
    ]
    yield record.conditions()


@shows("call_overhead.json")
def tuning_report(record: Record) -> Iterator[Block]:
    """Yield what `report()` said of the first problem that the host cost was measured of."""
    yield Literal(record["reports"][0])
    yield record.conditions()


DEVICE_LENGTHS = {
    ("call", "full"): ("a call, full rows", 1.05),
    ("call", "half padding"): ("a call, half of it padding", 1.15),
    ("plan", "full"): ("the largest batch of a plan", 1.05),
    ("plan", "half as long"): ("half of its steps", 1.3),
}
"""Words and aims for what `device_lengths.json` compares."""


@shows("device_lengths.json")
def device_lengths(record: Record) -> Iterator[Block]:
    """Yield the times with lengths in device memory, divided by those of what they replace."""
    table = []
    for (shape, phase), rows in grouped(record["rows"], "shape", "phase").items():
        cells = {"Network": shape, "Pass": PHASE_WORDS[phase]}
        for row in rows:
            words, aim = DEVICE_LENGTHS[row["entry"], row["rows"]]
            ratio = row["device_ms"] / row["known_ms"]
            cells[f"{words} (aim {aim:g})"] = f"{ratio:.2f} ({row['device_ms']:.3f} ms)"
        table.append(cells)
    yield table
    yield record.conditions()


@shows("first_call.json")
def first_call(record: Record) -> Iterator[Block]:
    """Yield seconds of calls with nothing compiled or measured before."""
    yield [
        {
            "Network": row["shape"],
            "Calls": PHASE_WORDS[row["phase"]],
            "First, s": fixed(row["first_s"], 2),
            "Longest, s": f"{row['longest_s']:.2f} (call {row['longest_call']})",
            "All 60, s": fixed(row["sum_s"], 2),
            "Last, ms": fixed(row["last_s"] * 1e3, 2),
        }
        for row in record["rows"]
    ]
    yield record.conditions()


@shows("voice_activity.json")
def voice_activity(record: Record) -> Iterator[Block]:
    """Yield the times of a chunk of one stream, and the throughput of many."""
    ours, peer = (record["chunk_us"].get(name, {}) for name in ("dnnffi", "onnxruntime"))
    many = record["streams"]
    rows = {
        "one stream, minimum, µs a chunk": (ours["minimum"], peer.get("minimum"), 0),
        "one stream, median, µs a chunk": (ours["median"], peer.get("median"), 0),
        f"{many['count']} streams, ms a chunk": (many["chunk_ms"], None, 2),
        f"{many['count']} streams, hours of audio a second": (many["hours_per_second"], None, 2),
    }
    head = "Silero VAD, chunks of 32 ms"
    yield [
        {head: words, "dnnffi": fixed(own, digits), "onnxruntime": fixed(other, digits)}
        for words, (own, other, digits) in rows.items()
    ]
    yield record.conditions()


@shows("bench_vulkan.json")
def vulkan_bench(record: Record) -> Iterator[Block]:
    """Yield the time of each call on Vulkan, its parts, and the bounds of the adapter."""
    yield [
        {
            "Problem": row["problem"],
            "Call": call,
            "Median (least), ms": f"{ms:.2f} ({row['least_ms'][call]:.2f})",
            "Of the reference's": (
                f"{ms / row['median_ms']['reference']:.2f} "
                f"({row['least_ms'][call] / row['least_ms']['reference']:.2f})"
            ),
            "Bound, ms": f"{row['bound_ms'][call]:.2f}" if call in row["bound_ms"] else "",
            "Dispatches": str(row["dispatches"].get(call, "")),
            "Submissions": str(row["submissions"]) if call == "auto" else "",
        }
        for row in record["rows"]
        for call, ms in row["median_ms"].items()
    ]
    parts = ("Prepare", "Submit", "Wait", "Results")
    yield [
        {"Network": row["problem"]}
        | {part: f"{row['parts_us'][part.lower()]:,.0f}" for part in parts}
        for row in record["rows"]
    ]
    yield f"{vulkan_bounds(record['bounds'])} {record.conditions()}"


def vulkan_bounds(bounds: Mapping[str, Any]) -> str:
    """Return the measured bounds of an adapter in sentences."""
    num_threads = bounds["copy_threads"]
    by_all = f", by {num_threads} threads in {bounds['copy_ms']:.2f} ms" if num_threads > 1 else ""
    return (
        f"Kernels that do nothing else: {bounds['gflops']:,.0f} GFLOP/s; a dispatch after another "
        f"takes {bounds['dispatch_us']:.1f} µs, a submission that is waited for "
        f"{bounds['submission_us']:.0f} µs ({bounds['submission_wgpu_py_us']:.0f} µs by wgpu-py's "
        f"thread, {bounds['submission_asleep_us']:.0f} µs where the caller sleeps). 13 MB are "
        f"copied out of mapped memory in {bounds['copy_one_thread_ms']:.2f} ms{by_all}."
    )


AIM_WORDS = {
    EAGER: "PyTorch",
    GRAPH: "PyTorch in a CUDA graph",
    **{"": "-", None: "-", True: "yes", False: "no"},
}
"""Words for fields of aims that are not shown as they are."""
MEASURED = ("What", "Aim", "Measured", "Reached")
"""Heads of aims that are not compared with a peer."""


def _aims(found: Iterable[Sequence[Any]], *heads: str) -> Rows:
    """Return a row for each aim; ``heads`` are of its fields, in the order of `Target`."""
    return [
        {words: AIM_WORDS.get(cell, cell) for words, cell in zip(heads, aim, strict=False)}
        for aim in found
    ]


@shows("bench_rnn.json")
def bench_targets(record: Record) -> Iterator[Block]:
    """Yield the aims for networks on an H200, and what was measured."""
    heads = ("What", "Against", "Aim", "dnnffi", "Reached", "cuDNN alone", "The functions")
    yield _aims(targets(record), *heads)


@shows("stream.json")
def stream_aims(record: Record) -> Iterator[Block]:
    """Yield the aims for streams of batches, and what was measured."""
    found = streams.targets(record)
    yield _aims(found, "What", "Against", "Aim", "dnnffi's functions", "Reached")


@shows("stream_resets.json")
def reset_aims(record: Record) -> Iterator[Block]:
    """Yield the aims for batches with resets, and what was measured."""
    found = streams.reset_targets(record)
    yield _aims(found, "What", "Against", "Aim", "Measured", "Reached")


@shows("callers.json")
def caller_aims(record: Record) -> Iterator[Block]:
    """Yield the aims for a call through each entry, and what was measured."""
    found = callers.targets(record)
    yield _aims([(one.what, one.aim, one.measured, one.reached) for one in found], *MEASURED)


NETWORK_MODELS = {
    FUNCTIONS: "dnnffi",
    CAPTURED: "RNNPlan.capture",
    RAW: "cuDNN alone",
    EAGER: "PyTorch",
    GRAPH: "PyTorch in a graph",
}
IMAGE_MODELS = {
    model: model
    for model in (FUNCTIONS, *OF_IMAGES, EAGER, "torch benchmark", "torch traced", GRAPH)
}


@shows("bench_rnn.json")
def bench_record(record: Record) -> Iterator[Block]:
    """Yield the times of all networks."""
    return _times(record, NETWORK_MODELS)


@shows("bench_cnn.json")
def bench_images(record: Record) -> Iterator[Block]:
    """Yield the times of all image CNNs."""
    return _times(record, IMAGE_MODELS)


def _times(record: Record, models: Mapping[str, str]) -> Iterator[Block]:
    """Yield milliseconds by ``models``, with their words, and host microseconds of two of them."""
    hosts = {FUNCTIONS: "host µs, dnnffi", EAGER: "host µs, PyTorch"}
    for phase, words in PHASE_WORDS.items():
        yield f"{words.capitalize()}:"
        columns = {head: (figures(record, one, phase), 3) for one, head in models.items()}
        for one, head in hosts.items():
            columns[head] = figures(record, one, phase, "host_us"), 1
        yield table_of(_shapes(record), columns, "Shape")
    yield record.conditions()


def _shapes(record: Mapping[str, Any]) -> list[str]:
    return [shape["name"] for shape in record["shapes"]]


@shows("bench_rnn.json")
def bench_plans(record: Record) -> Iterator[Block]:
    """Yield microseconds of the host of each way to call a network, in both phases."""
    titles = {model: model for model in OURS} | {EAGER: "PyTorch"}
    columns = {
        f"{words}, {title}": (figures(record, model, phase, "host_us"), 1)
        for phase, words in PHASE_WORDS.items()
        for model, title in titles.items()
    }
    yield table_of(_shapes(record), columns, "Shape")
    yield record.conditions()


@shows("bench_rnn.json")
def bench_gain(record: Record) -> Iterator[Block]:
    """Yield milliseconds of cuDNN's fastest algorithm in a graph and of a captured plan.

    The last row has the geometric means of the ratios: over `compared_shapes`, else over all.
    """
    names = _shapes(record)
    compared = compared_shapes(record) or names
    columns: Columns = {}
    for phase, words in PHASE_WORDS.items():
        raw, own = (figures(record, model, phase) for model in (RAW, CAPTURED))
        columns |= ratio_columns(words, "cuDNN", raw, own)
    title = "geometric mean"
    if len(compared) < len(names):
        title += f", {len(compared)} shapes of the set performance with rows of equal length"
    last = {"Shape": title} | dict.fromkeys(columns, "")
    for phase, words in PHASE_WORDS.items():
        found = compare(record, CAPTURED, RAW, phase, compared)
        last[f"{words}, ratio"] = fixed(found and found.mean, 2)
    yield [*table_of(names, columns, "Shape"), last]
    yield record.conditions()


@shows("own_stress.json")
def own_stress(record: Record) -> Iterator[Block]:
    """Yield the result of a run of benchmarks/own_stress.py."""
    wrong = record["differing_words"]
    found = f"{wrong:,} words of four bytes differed" if wrong else "not a bit differed"
    yield (
        f"{record['launches']:,} launches of {record['problems']} problems in "
        f"{record['seconds']:g} s, {record['graph_launches']:,} graphs and "
        f"{record['direct_calls']:,} direct calls on {record['threads']} threads beside "
        f"{record['products_beside']:,} matrix products: {found} from the first results."
    )
    yield record.conditions()


@shows("stream.json")
def stream_bench(record: Record) -> Iterator[Block]:
    """Yield the time of a batch of each stream, and how it was measured."""
    yield stream_rows(record)
    yield f"{stream_conditions(record)} {record.conditions()}"
    if any("known_ms" in row for row in record["rows"]):
        yield "Milliseconds of a batch in the same epoch run once more, all sizes known:"
        yield stream_rows(record, "known_ms")


STREAM_RATIOS = {
    "dnnffi / tuned plan": (STREAM_FUNCTIONS, TUNED_PLAN),
    "better of PyTorch / dnnffi": (streams.BEST_TORCH, STREAM_FUNCTIONS),
    **{
        f"{model} / dnnffi": (model, STREAM_FUNCTIONS)
        for model in (with_resets(STREAM_FUNCTIONS, rate) for rate in RESET_RATES)
    },
}
"""The two models of each ratio of streams, by its words."""


def stream_rows(record: Record, key: str = "ms") -> Rows:
    """Return milliseconds of a batch by stream, and the geometric means of each set's ratios.

    ``key`` is the field of the times: "ms", with the seconds of the first epoch, or "known_ms".
    """
    models = dict.fromkeys(row["model"] for row in record["rows"] if "ms" in row)
    pairs = {words: two for words, two in STREAM_RATIOS.items() if streams.ratios(record, *two)}
    columns = {f"{model}, ms": (streams.figures(record, model, key), 3) for model in models}
    columns |= {words: (streams.ratios(record, *two, key=key), 2) for words, two in pairs.items()}
    if key == "ms":
        first = streams.figures(record, STREAM_FUNCTIONS, "first_epoch_s")
        columns["first epoch, s"] = first, 2
    rows = table_of(_shapes(record), columns, "Stream")
    for name in streams.sets_of(record):
        means = {"Stream": f"geometric mean, {name}"} | dict.fromkeys(columns, "")
        for words, two in pairs.items():
            mean = streams.mean_ratio(record, *two, streams.streams_of(record, name), key)
            means[words] = fixed(mean, 2)
        rows.append(means)
    return rows


def stream_conditions(record: Record) -> str:
    """Return the numbers of batches and turns, the noise, and the seeds, in sentences."""
    said = [f"{streams.conditions(record)}."]
    noise = [(streams.spread(row), row) for row in record["rows"] if "ms" in row]
    if noise:
        worst, row = max(noise, key=lambda one: one[0])
        said.append(
            f"Between the turns of a model a time differs by at most {worst:.0%} of its median "
            f"({row['model']}, {row['shape']})."
        )
    if "seed" in record:
        said.append(f"The seed of the set random: {record['seed']}.")
    return " ".join(said)


@shows("callers.json")
def caller_bench(record: Record) -> Iterator[Block]:
    """Yield milliseconds and host microseconds of a call through each entry."""
    yield [
        {"Entry": entry, "Pass": words}
        | {name: _milliseconds_and_host(record, entry, phase, name) for name in _shapes(record)}
        for phase, words in PHASE_WORDS.items()
        for entry in dict.fromkeys(row["model"] for row in record["rows"] if "ms" in row)
    ]
    yield record.conditions()


def _milliseconds_and_host(record: Record, entry: str, phase: str, network: str) -> str:
    """Return the time of a call in milliseconds, and in brackets the host's in microseconds."""
    ms, host = (figures(record, entry, phase, key).get(network) for key in ("ms", "host_us"))
    return NOT_MEASURED if ms is None else f"{ms:.3f} ({host:.1f})"


PRECISE = TOLERANCES["float32", "strict"]  # TF32 is about seven times as far off


@shows("bench_conv.json")
def conv_aims(record: Record) -> Iterator[Block]:
    """Yield the aims for convolutions, and what was measured."""
    aims: list[tuple[str, str, str, bool]] = []
    for (config,), kernels in _with_torch(record["kernels"]).items():
        aims += _kernel_aims(config, kernels)
    for row in record["host"]:
        peer = f"; PyTorch {row['torch']:.1f} µs" if "torch" in row else ""
        for name, key, most in (("a held plan", "held", 6), ("dnnffi.conv", "functional", 12)):
            what = f"host cost of a call of {name}, {row['problem']}"
            aims.append((what, f"<= {most} µs", f"{row[key]:.1f} µs{peer}", row[key] <= most))
    for (config,), calls in _with_torch(record["first"]).items():
        own, peer = (median(row[name] for row in calls) for name in ("dnnffi", "torch"))
        measured = f"{own:.2f} ms; PyTorch {peer:.2f} ms; medians of {len(calls)} problems"
        aims.append(
            (f"first call of a new problem, {config}", "<= PyTorch's", measured, own <= peer)
        )
    yield _aims(aims, *MEASURED)


def _with_torch(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Any]]:
    """Return the rows that were also measured with PyTorch, by type and layout."""
    return grouped((row for row in rows if "torch" in row), "config")


def _kernel_aims(config: str, kernels: Collection[Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the aims for the kernels of one type and layout, which were measured with PyTorch."""
    what = f"kernels, PyTorch's time over dnnffi's, {config}"
    ratios = _ratios(kernels, "torch")
    mean, lowest = geometric_mean(ratios), min(ratios)
    yield f"{what}, geometric mean", ">= 1.0", f"{mean:.2f} of {len(ratios)}", mean >= 1
    yield f"{what}, lowest", ">= 0.95", f"{lowest:.2f}", lowest >= 0.95
    errors = [row["errors"] for row in kernels if "errors" in row]
    if errors:
        lowest = min(_ratios([row for row in kernels if not _is_imprecise(row)], "torch"))
        own, peer = (max(one[name] for one in errors) for name in ("dnnffi", "torch"))
        both = f"{own:.0e}; PyTorch {peer:.0e}"
        yield f"{what}, lowest where both are precise", ">= 0.95", f"{lowest:.2f}", lowest >= 0.95
        yield f"error, largest, {config}", f"<= {PRECISE:.0e}", both, own <= PRECISE


def _ratios(rows: Iterable[Mapping[str, Any]], peer: str, own: str = "dnnffi") -> list[float]:
    """Return the time of a peer over that of ``own`` for each row that has both."""
    return [row[peer] / row[own] for row in rows if peer in row and own in row]


def _is_imprecise(row: Mapping[str, Any]) -> bool:
    """Return whether PyTorch's result is less precise than float32 has to be."""
    return "errors" in row and row["errors"]["torch"] > PRECISE


@shows("bench_conv.json")
def conv_layers(record: Record) -> Iterator[Block]:
    """Yield microseconds of each layer by type and operation, and PyTorch's time over them."""
    results = {"forward": "y", "backward_data": "dx", "backward_weights": "dw"}
    columns: dict[str, dict[str, Any]] = {}
    layers = dict.fromkeys(f"{row['set']} {row['layer']}" for row in record["kernels"])
    for row in record["kernels"]:
        words = f"{row['config']}, {results[row['operation']]}"
        columns.setdefault(words, {})[f"{row['set']} {row['layer']}"] = row
    yield [
        {"Layer": layer} | {words: _kernel(rows.get(layer, {})) for words, rows in columns.items()}
        for layer in layers
    ]
    yield record.conditions()


def _kernel(row: Mapping[str, Any]) -> str:
    text = fixed(row.get("dnnffi"), 1)
    if "dnnffi" in row and "torch" in row:
        error = f"; error {row['errors']['torch']:.0e}" if _is_imprecise(row) else ""
        text += f" ({row['torch'] / row['dnnffi']:.2f}{error})"
    return text


@shows("bench_depthwise.json")
def depthwise_bench(record: Record) -> Iterator[Block]:
    """Yield how many times as fast untuned plans are on depthwise layers: mean and lowest."""
    rows = []
    for (config, operation), layers in grouped(record["kernels"], "config", "operation").items():
        words = operation.replace("_", " ")
        row = {"Arrays": config, "Operation": words, "Layers": str(len(layers))}
        for head, peer in (("PyTorch", "torch"), ("cuDNN's heuristics", "cudnn")):
            found = _ratios(layers, peer)
            row[head] = f"{geometric_mean(found):.2f}; {min(found):.2f}" if found else NOT_MEASURED
        rows.append(row)
    yield rows
    yield record.conditions()


@shows("bench_jax_conv.json")
def jax_conv(record: Record) -> Iterator[Block]:
    """Yield the time of XLA's convolutions over that of dnnffi's: mean, minimum, maximum."""
    rows = []
    measured = [row for row in record["rows"] if "error" not in row]
    groups = grouped(measured, "set", "config", "operation")
    for (name, config, operation), layers in groups.items():
        ours = _ratios(layers, "jax", "djax")
        row = {"Layers of": name, "Type and layout": config}
        row |= {"Operation": operation.replace("_", " "), "Layers": str(len(layers))}
        row["XLA / dnnffi.jax.conv"] = _mean_and_range(ours)
        row["XLA faster in"] = str(sum(one < 1 for one in ours)) if ours else NOT_MEASURED
        row["XLA / plan"] = _mean_and_range(_ratios(layers, "jax"))
        rows.append(row)
    yield rows
    left_out = [f"{count} layers of {name}" for name, count in record["left_out"].items() if count]
    said = f" Not measured for want of time: {', '.join(left_out)}." if left_out else ""
    yield record.conditions() + said


def _mean_and_range(found: Collection[float]) -> str:
    if not found:
        return NOT_MEASURED
    return f"{geometric_mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


@shows("bench_jax.json")
def jax_aims(record: Record) -> Iterator[Block]:
    """Yield the aims for networks in JAX, and the least that a call takes."""
    of_plan, of_peer = [], []
    for row, phase in product(record["rows"], PHASE_WORDS):
        times = jax_times(row[phase])
        own, peers = times.get("dnnffi.jax"), _jax_peers(times)
        if own is not None and "plan" in times:
            of_plan.append(times["plan"] / own)
        if own is not None and peers and row["shape"].split()[1] != "f32":
            of_peer.append(min(peers) / own)
    aims = {
        "the captured plan": (0.97, of_plan),
        "JAX's fastest, float16 and bfloat16": (1.0, of_peer),
    }
    yield [
        {
            "Against": words,
            "Aim": f">= {aim:.2f}x",
            "Geometric mean": fixed(mean_of(found), 2),
            "Lowest": fixed(min(found, default=None), 2),
            "Reached": f"{sum(ratio >= aim for ratio in found)} of {len(found)}",
        }
        for words, (aim, found) in aims.items()
    ]
    least = sorted({f"{1e3 * row['nothing']:.0f}" for row in record["rows"]}, key=int)
    took = f"from {least[0]} to {least[-1]}" if len(least) > 1 else least[0]
    yield (
        f"A compiled function that adds one to a number took {took} µs a call in the same "
        "loops, the least that a call in JAX takes."
    )


def jax_times(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures alone: of a peer that could not run a shape the record has a message."""
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def jax_scans(times: Mapping[str, float]) -> dict[str, float]:
    """Return the times of the scans in JAX by the number of steps that are unrolled."""
    return {
        name.removeprefix("scan "): ms for name, ms in times.items() if name.startswith("scan ")
    }


def _jax_peers(times: Mapping[str, float]) -> list[float]:
    return [ms for name, ms in times.items() if name not in ("dnnffi.jax", "plan")]


@shows("bench_jax.json")
def jax_bench(record: Record) -> Iterator[Block]:
    """Yield milliseconds of networks in JAX, of a captured plan, and of JAX's own."""
    for phase, words in PHASE_WORDS.items():
        yield f"{words.capitalize()}:"
        yield [_jax_network(row["shape"], jax_times(row[phase])) for row in record["rows"]]
    yield record.conditions("machine_rows")


def _jax_network(shape: str, times: Mapping[str, float]) -> dict[str, str]:
    own, peers = times.get("dnnffi.jax"), _jax_peers(times)
    scans = {steps: ms for steps, ms in jax_scans(times).items() if steps != "1"}
    steps = min(scans, key=scans.__getitem__, default=None)
    return {
        "Shape": shape,
        "dnnffi.jax": fixed(own, 3),
        "Captured plan": fixed(times.get("plan"), 3),
        "Scan": fixed(times.get("scan 1"), 3),
        "Scan, unrolled": f"{scans[steps]:.3f} ({steps})" if steps else NOT_MEASURED,
        "Flax": fixed(times.get("flax"), 3),
        "jax.experimental.rnn": fixed(times.get("jax.experimental.rnn"), 3),
        "Fastest peer / dnnffi.jax": fixed(min(peers) / own if own and peers else None, 2),
    }


@shows("bench_jax.json")
def jax_devices(record: Record) -> Iterator[Block]:
    """Yield milliseconds of a step on several GPUs, and the throughput compared with one GPU."""
    aims = {2: ">= 1.95x", 4: ">= 3.85x"}
    yield [
        {
            "GPUs": str(row["devices"]),
            "shard_map, ms": fixed(row["shard_map"], 2),
            "shard_map, throughput": f"{row['shard_map throughput']:.2f}x",
            "jit, ms": fixed(row["jit"], 2),
            "jit, throughput": f"{row['jit throughput']:.2f}x",
            "Aim": aims.get(row["devices"], "-"),
            "The sum alone, ms": f"{row['sum']:.2f}" if "sum" in row else "-",
            "Each GPU alone, ms": ", ".join(f"{ms:.2f}" for ms in row.get("alone", ())) or "-",
        }
        for row in record["devices"]
    ]
    yield record.conditions("machine_devices")


@shows("bench_jax.json")
def jax_handler(record: Record) -> Iterator[Block]:
    """Yield the host cost of a handler of JAX that computes nothing."""
    yield f"A call of nine buffers that computes nothing: {record['handler_us']:.1f} µs."
    yield record.conditions("machine_handler_us")
