"""Directives that show the records in docs/verification.

``gpu-record`` shows the last run of the tests on a GPU and whether it was of this source,
``memcheck-record`` that under compute-sanitizer, ``miopen-record`` that on the emulated device,
``vulkan-record`` that on a Vulkan adapter and ``vulkan-bench`` what was measured there,
``support-table`` what they showed each backend to do, ``call-overhead`` the measured host cost of
a call, ``call-parts`` that of its parts, ``tuning-report`` what was measured for one of these
calls, ``bench-targets`` and ``bench-record`` those of the benchmark of networks, with their aims,
``bench-plans`` the host cost of its calls, ``bench-images`` the times of image CNNs,
``text-record`` a file as it is, ``speed-figure`` a picture of the benchmark, which README.md shows
too, ``bench-gain``, ``own-aims``, ``own-jax``, ``own-stress`` and ``steps-figure`` measurements of
dnnffi's own kernels, ``stream-aims``, ``stream-bench`` and ``stream-figure`` those of batches of
changing length, ``caller-aims`` and ``caller-bench`` what a call costs through each entry,
``jax-bench``, ``jax-devices`` and ``jax-handler`` the times of JAX programs, ``jax-conv`` XLA's
convolutions compared with dnnffi's, ``voice-activity`` the times of an example compared with
onnxruntime. Without a record they say so. ``rnn-table``, ``conv-table`` and
``wrong-engines`` show data of the code, ``loss-figure`` the losses that the code of its page
computes, ``diagram`` an SVG of the repository.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import caller_tables
import conv_table
import figures
import own_aims
import rnn_table
import stream_tables
from docutils import nodes
from docutils.parsers.rst import directives
from records import (
    BENCH_HEAD,
    BENCH_MODELS,
    CONV_HEAD,
    DOCS,
    FIRST_HEAD,
    GAIN_HEAD,
    IMAGE_HEAD,
    IMAGE_MODELS,
    JAX_AIM_HEAD,
    JAX_CONV_HEAD,
    JAX_DEVICES_HEAD,
    JAX_HEAD,
    OVERHEAD_HEAD,
    PART_HEAD,
    PLAN_HEAD,
    RECORDS,
    TARGET_HEAD,
    UNTUNED_HEAD,
    VOICE_HEAD,
    VULKAN_HEAD,
    VULKAN_PARTS_HEAD,
    bench_rows,
    conv_aims,
    conv_layers,
    conv_layers_head,
    first_rows,
    gain_rows,
    gpu_rows,
    jax_aims,
    jax_conv_rows,
    jax_device_rows,
    jax_least,
    jax_rows,
    measured_on,
    memcheck_rows,
    memory_of_own_kernels,
    miopen_rows,
    overhead_rows,
    part_rows,
    plan_rows,
    state_of,
    stress_text,
    target_rows,
    untuned_rows,
    voice_rows,
    vulkan_bounds,
    vulkan_parts,
    vulkan_rows,
)
from sphinx.util.docutils import SphinxDirective
from support_table import HEAD, RECORD_FILES, support_rows

from dnnffi.backends.cudnn.graph.known_wrong import TABLE
from dnnffi.bench.summary import PHASE_WORDS
from dnnffi.cli.sources import changed_parts, read_source_lines


def conditions(name: str, record: dict[str, Any]) -> str:
    """Return in words on which machine and state of the source the benchmark ``name`` ran."""
    machine = record["machine"]
    return measured_on(machine, changed_parts(name, machine.get("source")))


class Record(SphinxDirective):
    """A directive that shows a file of docs/verification.

    Its option ``fold`` is a title under which a reader has to open a long table.
    """

    file = ""
    num_open = 0
    """Number of nodes above the fold, which a reader need not open: the aims."""
    option_spec: ClassVar[Any] = {"fold": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        path = RECORDS / self.record_name
        self.env.note_dependency(str(path))
        if not path.exists():
            return self.missing(self.record_name)
        shown = self.show(path.read_text(encoding="utf-8"))
        head, tail = shown[: self.num_open], shown[self.num_open :]
        return [*head, *folded(self.options.get("fold"), tail)]

    @property
    def record_name(self) -> str:
        """The name of the file: the directive's argument, or its default."""
        return self.arguments[0] if self.arguments else self.file

    def changed(self, record: dict[str, Any]) -> list[str] | None:
        """Return the parts of the source that changed since the run of tests in a record."""
        return changed_parts(self.record_name, record.get("source"))

    def measured_on(self, record: dict[str, Any]) -> str:
        """Return in words on which machine and state of the source a benchmark ran."""
        return conditions(self.record_name, record)

    def show(self, text: str) -> list[nodes.Node]:
        """Return the record as nodes."""
        raise NotImplementedError

    def missing(self, name: str) -> list[nodes.Node]:
        """Return the nodes to show if there is no record."""
        return [nodes.paragraph(text=f"This checkout holds no such record ({name}).")]


class GpuRecord(Record):
    """``gpu-record``."""

    file = "gpu.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [table(gpu_rows(record, self.changed(record)))]


class MemcheckRecord(Record):
    """``memcheck-record``."""

    file = "memcheck.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [table(memcheck_rows(record, self.changed(record)))]


class MiopenRecord(Record):
    """``miopen-record``."""

    file = "miopen.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [table(miopen_rows(record, self.changed(record)))]


class VulkanRecord(Record):
    """``vulkan-record``, of another adapter than lavapipe with its file."""

    optional_arguments = 1
    file = "vulkan.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [table(miopen_rows(record, self.changed(record)))]


class VulkanBench(Record):
    """``vulkan-bench``, of another adapter than lavapipe with its file."""

    optional_arguments = 1
    file = "bench_vulkan.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        parts = vulkan_parts(record)
        return [
            table(vulkan_rows(record), VULKAN_HEAD),
            *([table(parts, VULKAN_PARTS_HEAD)] if parts else []),
            nodes.paragraph(text=vulkan_bounds(record) + self.measured_on(record)),
        ]


class SupportTable(SphinxDirective):
    """``support-table``."""

    def run(self) -> list[nodes.Node]:
        records: dict[str, dict[str, Any] | None] = {}
        for backend, name in RECORD_FILES.items():
            path = RECORDS / name
            self.env.note_dependency(str(path))
            records[backend] = json.loads(path.read_text("utf-8")) if path.exists() else None
        return [table(support_rows(records), HEAD)]


class ConvTable(SphinxDirective):
    """``conv-table``: the answers of the limits that the code checks."""

    made_by = conv_table

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # of code that no record stands for
        return [table(self.made_by.rows(), self.made_by.HEAD)]


class RNNTable(ConvTable):
    """``rnn-table``: the same of networks."""

    made_by = rnn_table


class TextRecord(Record):
    """``text-record FILE``."""

    required_arguments = 1

    def show(self, text: str) -> list[nodes.Node]:
        figures, hashes = read_source_lines(text)
        state = state_of(changed_parts(self.record_name, hashes))
        return [
            nodes.literal_block(figures, figures, language="text"),
            nodes.paragraph(text=f"A record of {state}."),
        ]


class Rows(Record):
    """A table of a benchmark's record, and where that was made."""

    head: tuple[str, ...] = ()

    @staticmethod
    def rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
        """Return the rows below the head."""
        raise NotImplementedError

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [
            table(self.rows(record), self.head),
            nodes.paragraph(text=self.measured_on(record)),
        ]


class CallOverhead(Rows):
    """``call-overhead``."""

    file, head, rows = "call_overhead.json", OVERHEAD_HEAD, staticmethod(overhead_rows)


class CallParts(Rows):
    """``call-parts``."""

    file, head, rows = "call_overhead.json", PART_HEAD, staticmethod(part_rows)


class VoiceActivity(Rows):
    """``voice-activity``, of a GPU with its file."""

    optional_arguments = 1
    file, head, rows = "voice_activity.json", VOICE_HEAD, staticmethod(voice_rows)


class FirstCall(Rows):
    """``first-call``."""

    file, head, rows = "first_call.json", FIRST_HEAD, staticmethod(first_rows)


class TuningReport(Record):
    """``tuning-report``: what `report()` said of a problem that the host cost was measured of."""

    file = "call_overhead.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        if not record.get("reports"):
            return self.missing(self.file)
        said = record["reports"][0]
        return [
            nodes.literal_block(said, said, language="text"),
            nodes.paragraph(text=self.measured_on(record)),
        ]

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="The record in this checkout holds no report.")]


class BenchTargets(Record):
    """``bench-targets``."""

    file = "bench_rnn.json"

    def show(self, text: str) -> list[nodes.Node]:
        return [table(target_rows(json.loads(text)), TARGET_HEAD)]

    def missing(self, name: str) -> list[nodes.Node]:
        return [table(target_rows(None), TARGET_HEAD)]


class BenchRecord(Record):
    """``bench-record``."""

    file = "bench_rnn.json"
    head = BENCH_HEAD
    models = tuple(BENCH_MODELS)

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [*self.tables(record), nodes.paragraph(text=self.measured_on(record))]

    def tables(self, record: dict[str, Any]) -> list[nodes.Node]:
        """Return the figures of every shape, a table for each phase."""
        found: list[nodes.Node] = []
        for phase, words in PHASE_WORDS.items():
            found.append(nodes.paragraph(text=f"{words.capitalize()}:"))
            found.append(table(bench_rows(record, phase, self.models), self.head))
        return found

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="Not measured yet.")]


class BenchPlans(BenchRecord):
    """``bench-plans``."""

    def tables(self, record: dict[str, Any]) -> list[nodes.Node]:
        return [table(plan_rows(record), PLAN_HEAD)]


class BenchGain(BenchRecord):
    """``bench-gain``, of another record with its file."""

    optional_arguments = 1

    def tables(self, record: dict[str, Any]) -> list[nodes.Node]:
        return [table(gain_rows(record), GAIN_HEAD)]


class OwnRecords(SphinxDirective):
    """A directive that shows the benchmark's figures of dnnffi's own kernels.

    Its option ``fold`` is that of `Record`.
    """

    option_spec: ClassVar[Any] = Record.option_spec

    def run(self) -> list[nodes.Node]:
        found = {name: self._read(name) for name in ("bench_rnn.json", "bench_own.json")}
        records = {name: record for name, record in found.items() if record is not None}
        return folded(self.options.get("fold"), self.show(records, self._read("bench_jax.json")))

    def _read(self, name: str) -> Any:
        path = RECORDS / name
        self.env.note_dependency(str(path))
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def show(self, records: dict[str, Any], jax: dict[str, Any] | None) -> list[nodes.Node]:
        """Return what is shown of the benchmarks, by their files, and of that in JAX."""
        raise NotImplementedError


class OwnAims(OwnRecords):
    """``own-aims``."""

    def show(self, records: dict[str, Any], jax: dict[str, Any] | None) -> list[nodes.Node]:
        said = [memory_of_own_kernels(records.values())]
        seeds = [str(record["seed"]) for record in records.values() if "seed" in record]
        said += [f"The seed of the networks drawn at random: {seed}." for seed in seeds]
        said += [conditions(name, record) for name, record in records.items()]
        paragraphs = [nodes.paragraph(text=text) for text in said]
        rows = own_aims.rows(list(records.values()), jax, self._read("own_steps.json"))
        return [table(rows, own_aims.HEAD), *paragraphs]


class OwnJax(OwnRecords):
    """``own-jax``."""

    def show(self, records: dict[str, Any], jax: dict[str, Any] | None) -> list[nodes.Node]:
        rows = [] if jax is None else own_aims.jax_rows(list(records.values()), jax)
        if not rows:
            return [nodes.paragraph(text="Not measured yet.")]
        return [table(rows, own_aims.JAX_HEAD)]


class OwnStress(Record):
    """``own-stress``."""

    file = "own_stress.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        said = (stress_text(record), self.measured_on(record))
        return [nodes.paragraph(text=one) for one in said]


class StreamAims(Record):
    """``stream-aims``: the aims for streams of batches."""

    file = "stream.json"

    def show(self, text: str) -> list[nodes.Node]:
        return [table(stream_tables.aim_rows(json.loads(text)), stream_tables.AIM_HEAD)]

    def missing(self, name: str) -> list[nodes.Node]:
        return [table(stream_tables.aim_rows(None), stream_tables.AIM_HEAD)]


class StreamBench(Record):
    """``stream-bench``: the time of a batch, of another record with its file."""

    optional_arguments = 1
    file = "stream.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        said = f"{stream_tables.words(record)} {self.measured_on(record)}"
        shown: list[nodes.Node] = [
            table(stream_tables.rows(record), stream_tables.head(record)),
            nodes.paragraph(text=said),
        ]
        if stream_tables.has_known_sizes(record):
            words = "Milliseconds of a batch in the same epoch run once more, all sizes known:"
            known = {"known": True}
            shown += [
                nodes.paragraph(text=words),
                table(stream_tables.rows(record, **known), stream_tables.head(record, **known)),
            ]
        return shown

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="Not measured yet.")]


class CallerAims(Record):
    """``caller-aims``: the aims for a call through each entry."""

    file = "callers.json"

    def show(self, text: str) -> list[nodes.Node]:
        return [table(caller_tables.aim_rows(json.loads(text)), caller_tables.AIM_HEAD)]

    def missing(self, name: str) -> list[nodes.Node]:
        return [table(caller_tables.aim_rows(None), caller_tables.AIM_HEAD)]


class CallerBench(Record):
    """``caller-bench``: the time of a call and its host cost through each entry."""

    file = "callers.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [
            table(caller_tables.rows(record), caller_tables.head(record)),
            nodes.paragraph(text=self.measured_on(record)),
        ]

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="Not measured yet.")]


class BenchImages(BenchRecord):
    """``bench-images``."""

    file = "bench_cnn.json"
    head = IMAGE_HEAD
    models = IMAGE_MODELS


class ConvBench(Record):
    """``conv-bench``."""

    file = "bench_conv.json"
    num_open = 1

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [
            table(conv_aims(record), CONV_HEAD),
            table(conv_layers(record), conv_layers_head(record)),
            nodes.paragraph(text=self.measured_on(record)),
        ]

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="Not measured yet.")]


class DepthwiseBench(ConvBench):
    """``depthwise-bench``."""

    file = "bench_depthwise.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        return [
            table(untuned_rows(record), UNTUNED_HEAD),
            nodes.paragraph(text=self.measured_on(record)),
        ]


class JaxBench(Record):
    """``jax-bench``."""

    file = "bench_jax.json"
    part = "rows"
    num_open = 2

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        if not record.get(self.part):
            return self.missing(self.file)
        machine = {"machine": record[f"machine_{self.part}"]}
        return [*self.tables(record), nodes.paragraph(text=self.measured_on(machine))]

    def tables(self, record: dict[str, Any]) -> list[nodes.Node]:
        """Return the aims, then a table of all shapes for each phase."""
        found = [table(jax_aims(record), JAX_AIM_HEAD), nodes.paragraph(text=jax_least(record))]
        for phase, words in PHASE_WORDS.items():
            found.append(nodes.paragraph(text=f"{words.capitalize()}:"))
            found.append(table(jax_rows(record, phase), JAX_HEAD))
        return found

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="Not measured yet.")]


class JaxDevices(JaxBench):
    """``jax-devices``."""

    part = "devices"

    def tables(self, record: dict[str, Any]) -> list[nodes.Node]:
        return [table(jax_device_rows(record), JAX_DEVICES_HEAD)]


class JaxHandler(JaxBench):
    """``jax-handler``."""

    part = "handler_us"

    def tables(self, record: dict[str, Any]) -> list[nodes.Node]:
        text = f"A call of nine buffers that computes nothing: {record[self.part]:.1f} µs."
        return [nodes.paragraph(text=text)]


class JaxConv(JaxBench):
    """``jax-conv``."""

    file = "bench_jax_conv.json"

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        left_out = {name: count for name, count in record["left_out"].items() if count}
        words = ", ".join(f"{count} layers of {name}" for name, count in left_out.items())
        said = f" Not measured for want of time: {words}." if words else ""
        return [
            table(jax_conv_rows(record), JAX_CONV_HEAD),
            nodes.paragraph(text=self.measured_on(record) + said),
        ]


class RecordFigure(Record):
    """A figure that is drawn from a record, in both layouts.

    figure_name : name of its file in the repository, and prefix of its ids
    label : description for readers who do not see it
    """

    figure_name = label = ""

    def draw(self, record: dict[str, Any], layout: figures.Layout) -> Any:
        """Return the figure in a layout; None if the record lacks its values."""
        raise NotImplementedError

    def show(self, text: str) -> list[nodes.Node]:
        record = json.loads(text)
        if self.draw(record, figures.WIDE) is None:
            return self.missing(self.file)
        wide, narrow = (figures.svg(self.draw(record, one)) for one in LAYOUTS)
        _write(DOCS / f"{self.figure_name}.svg", wide)
        return [raw(figures.in_both_layouts(self.figure_name, self.label, wide, narrow))]


class SpeedFigure(RecordFigure):
    """``speed-figure``, which README.md shows from its file."""

    file = "bench_rnn.json"
    figure_name = "speed"
    label = "Bars: milliseconds of a call of dnnffi and of its peers, by network and phase"
    draw = staticmethod(figures.speed)


class StreamFigure(RecordFigure):
    """``stream-figure``, which README.md shows from its file; nothing without the record."""

    file = "stream.json"
    figure_name = "stream"
    label = "Bars: milliseconds of a batch of changing length, of dnnffi and PyTorch, by stream"
    draw = staticmethod(figures.streams)

    def missing(self, name: str) -> list[nodes.Node]:
        return []


class StepsFigure(RecordFigure):
    """``steps-figure``."""

    file = "own_steps.json"
    figure_name = "own_steps"
    label = "Curves: microseconds of a step over the hidden size, of cuDNN and of dnnffi's kernels"
    draw = staticmethod(figures.steps)

    def missing(self, name: str) -> list[nodes.Node]:
        return [nodes.paragraph(text="Not measured yet.")]


class LossFigure(SphinxDirective):
    """``loss-figure``: runs the blocks above it on NumPy, and draws their ``losses``."""

    final_argument_whitespace = True
    required_arguments = 1  # the title

    def run(self) -> list[nodes.Node]:
        path = Path(self.get_source_info()[0])
        above = path.read_text(encoding="utf-8").partition("{loss-figure}")[0]
        names: dict[str, Any] = {}
        for code in re.findall(r"^```python\n(.*?)^```$", above, re.MULTILINE | re.DOTALL):
            exec(compile(code, str(path), "exec"), names)
        title = self.arguments[0]
        wide, narrow = (
            figures.svg(figures.curve(names["losses"], title, layout)) for layout in LAYOUTS
        )
        return [raw(figures.in_both_layouts("loss", f"A curve: {title}", wide, narrow))]


class Diagram(SphinxDirective):
    """``diagram``: an SVG of the repository in the colours of the page; its text describes it.

    The file ``NAME_narrow.svg`` has the layout for a narrow column.
    """

    required_arguments = 1  # the file
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = DOCS / self.arguments[0]
        drawn = []
        for file in (path, path.with_name(f"{path.stem}_narrow.svg")):
            self.env.note_dependency(str(file))
            drawn.append(figures.with_dark_mode(file.read_text(encoding="utf-8")))
        return [raw(figures.in_both_layouts(path.stem, " ".join(self.content), *drawn))]


LAYOUTS = (figures.WIDE, figures.NARROW)


def raw(html: str) -> nodes.raw:
    """Return a node of HTML, which other builders leave out."""
    return nodes.raw("", html, format="html")


def folded(title: str | None, shown: list[nodes.Node]) -> list[nodes.Node]:
    """Return nodes under a title that opens them, or as they are without a title."""
    if title is None:
        return shown
    opening = f"<details class='fold'><summary>{escape(title)}</summary>"
    return [raw(opening), *shown, raw("</details>")]


def add_figure_style(app: Any, page: str, template: str, context: dict[str, Any], _: Any) -> None:
    """Add the CSS of figures to a page that has some."""
    if 'class="record-figure"' in context.get("body", ""):
        context["metatags"] = f"{context.get('metatags', '')}<style>{figures.page_style()}</style>"


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


class WrongEngines(SphinxDirective):
    """``wrong-engines``: the data that the code checks."""

    def run(self) -> list[nodes.Node]:
        rows = [
            (
                one.operation.replace("_", " "),
                str(one.engine),
                one.when,
                one.reason,
            )
            for one in TABLE
        ]
        return [table(rows, ("Operation", "Engine", "For", "Why"))]


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> nodes.table:
    """Return a table of plain text."""
    longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    group = nodes.tgroup(cols=len(longest))
    # A name of a shape is not to take six lines beside columns of short numbers.
    group += [nodes.colspec(colwidth=min(max(length, 9), 30)) for length in longest]
    if head:
        group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row) for row in rows))
    return nodes.table("", group, classes=["colwidths-given"])


def _row(texts: Iterable[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=text)) for text in texts))


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("gpu-record", GpuRecord)
    app.add_directive("memcheck-record", MemcheckRecord)
    app.add_directive("miopen-record", MiopenRecord)
    app.add_directive("vulkan-record", VulkanRecord)
    app.add_directive("vulkan-bench", VulkanBench)
    app.add_directive("support-table", SupportTable)
    app.add_directive("conv-table", ConvTable)
    app.add_directive("rnn-table", RNNTable)
    app.add_directive("text-record", TextRecord)
    app.add_directive("call-overhead", CallOverhead)
    app.add_directive("call-parts", CallParts)
    app.add_directive("voice-activity", VoiceActivity)
    app.add_directive("first-call", FirstCall)
    app.add_directive("tuning-report", TuningReport)
    app.add_directive("bench-gain", BenchGain)
    app.add_directive("own-aims", OwnAims)
    app.add_directive("own-jax", OwnJax)
    app.add_directive("own-stress", OwnStress)
    app.add_directive("steps-figure", StepsFigure)
    app.add_directive("caller-aims", CallerAims)
    app.add_directive("caller-bench", CallerBench)
    app.add_directive("stream-aims", StreamAims)
    app.add_directive("stream-bench", StreamBench)
    app.add_directive("stream-figure", StreamFigure)
    app.add_directive("bench-targets", BenchTargets)
    app.add_directive("bench-record", BenchRecord)
    app.add_directive("bench-images", BenchImages)
    app.add_directive("conv-bench", ConvBench)
    app.add_directive("depthwise-bench", DepthwiseBench)
    app.add_directive("jax-bench", JaxBench)
    app.add_directive("jax-conv", JaxConv)
    app.add_directive("jax-devices", JaxDevices)
    app.add_directive("jax-handler", JaxHandler)
    app.add_directive("wrong-engines", WrongEngines)
    app.add_directive("bench-plans", BenchPlans)
    app.add_directive("speed-figure", SpeedFigure)
    app.add_directive("loss-figure", LossFigure)
    app.add_directive("diagram", Diagram)
    app.connect("html-page-context", add_figure_style)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
