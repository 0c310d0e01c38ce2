"""The records in docs/verification in words, so that no page repeats their figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
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
    figures,
    targets,
)

DOCS = Path(__file__).resolve().parent
RECORDS = DOCS / "verification"


def gpu_rows(record: dict[str, Any], source: str) -> list[tuple[str, str]]:
    """The record of a GPU run in words; ``source`` is the hash of the source as it is now."""
    return [_counts(record), *_environment_rows(record, source)]


def miopen_rows(record: dict[str, Any], source: str) -> list[tuple[str, str]]:
    """The record of a run on the emulated device, likewise."""
    return [
        _counts(record),
        ("Problems", f"{sum(record['problems'].values()):,} compared with the reference"),
        _run_on(record, source),
        ("Verified on", record["verified"]),
        ("With", f"NumPy {record['numpy']}, Python {record['python']}"),
    ]


def _counts(record: dict[str, Any]) -> tuple[str, str]:
    counts = [f"{record[kind]:,} {kind}" for kind in ("passed", "failed", "error", "skipped")]
    return ("Tests", ", ".join(counts))


def _run_on(record: dict[str, Any], source: str) -> tuple[str, str]:
    same = "this source" if record["src_sha256"] == source else "another state of the source"
    return ("Run on", f"{same}, dnnffi {record['dnnffi']}, {record['date']}")


def memcheck_rows(record: dict[str, Any], source: str) -> list[tuple[str, str]]:
    """The record of a run under memcheck, likewise."""
    runs = record["runs"]
    return [
        ("Errors found", f"{sum(run['errors'] for run in runs):,}"),
        *(("Tests", f"{run['result']} ({' '.join(run['tests'])})") for run in runs),
        *_environment_rows(record, source),
    ]


def _environment_rows(record: dict[str, Any], source: str) -> list[tuple[str, str]]:
    major, minor = divmod(int(record["cuda_driver_api"]), 1000)
    return [
        _run_on(record, source),
        ("Device", f"{record['device']}, {record['devices']} in the machine"),
        ("Driver", f"{record['driver']}, CUDA {major}.{minor // 10}"),
        ("cuDNN", str(record["cudnn"])),
        (
            "With",
            f"CuPy {record['cupy']}, NumPy {record['numpy']}, Python {record['python']}",
        ),
    ]


OVERHEAD_HEAD = ("Problem", "C call", "executor", "dnnffi.lstm and its like", "PyTorch")


def overhead_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a problem: microseconds of the C call, and how far each way of calling lies above."""
    rows = []
    for row in record["rows"]:
        above = [
            f"{row[key] - row['raw']:+.1f}" if key in row else "not measured"
            for key in ("executor", "functional", "torch")
        ]
        rows.append((row["problem"], f"{row['raw']:.1f}", *above))
    return rows


def measured_on(record: dict[str, Any], source: str) -> str:
    """The machine of a benchmark in words, and whether it ran the source as it is now."""
    machine = dict(record["machine"])
    found = machine.pop("src_sha256", None)
    which = {None: "a source whose hash it does not have", source: "this source"}
    of = which.get(found, "another state of the source")
    return f"A record of {of}: {', '.join(f'{name} {value}' for name, value in machine.items())}."


TARGET_HEAD = ("What", "Against", "Aim", "dnnffi", "Reached", "cuDNN alone", "The functions")
_PEER_WORDS = {EAGER: "PyTorch", GRAPH: "PyTorch in a CUDA graph", "": "-"}


def target_rows(record: dict[str, Any] | None) -> list[tuple[str, ...]]:
    """The aims for an H200 beside what a run of the benchmark measured; None for no run."""
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


CONV_HEAD = ("Layer", "Operation", "Type", "dnnffi µs", "PyTorch µs", "Ratio", "Plan")


def conv_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a layer, operation and type: microseconds; a ratio above 1 says dnnffi is faster."""
    rows = []
    for row in record["kernels"]:
        name = f"{row['set']} {row['layer']}"
        what = (name, row["operation"].replace("_", " "), row["config"])
        if "error" in row:
            rows.append((*what, row["error"], "", "", ""))
            continue
        own, other = row["dnnffi"], row.get("torch")
        beside = (NOT_MEASURED, "-") if other is None else (f"{other:.1f}", f"{other / own:.2f}")
        rows.append((*what, f"{own:.1f}", *beside, row["engine"].partition(";")[0]))
    return rows


def conv_summary(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Ratios by type, host costs and first calls, as pairs of what and how much."""
    rows = []
    for config in dict.fromkeys(row["config"] for row in record["kernels"]):
        ratios = [
            row["torch"] / row["dnnffi"]
            for row in record["kernels"]
            if row["config"] == config and "torch" in row
        ]
        if ratios:
            mean = geometric_mean(ratios)
            figures = f"{mean:.2f}, lowest {min(ratios):.2f}, of {len(ratios)}"
            rows.append((f"Kernels, PyTorch's time over dnnffi's, {config}", figures))
    for words, key, unit in (("Host cost of a call", "host", "µs"), ("First call", "first", "ms")):
        for row in record[key]:
            figures = ", ".join(f"{n} {v:.1f} {unit}" for n, v in row.items() if n != "problem")
            rows.append((f"{words}, {row['problem']}", figures))
    return rows
