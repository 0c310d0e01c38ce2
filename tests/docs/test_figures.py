"""Tests that the figures of the pages show the data of the records."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import figures
import numpy as np
import pytest

from dnnffi.bench.shapes import FASTRNNS

DOCS = Path(__file__).parents[2] / "docs"
VERIFICATION = DOCS / "verification"
SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"device": "Some GPU", "cudnn": "9.19.0", "torch": "2.11", "date": "2026-01-02"}


def record(rows, machine=MACHINE):
    """Return a record of inference times of the first shape of fastrnns.

    ``rows`` has the milliseconds by model.
    """
    name = FASTRNNS[0].name
    return {
        "machine": machine,
        "shapes": [{"name": name}],
        "rows": [
            {"shape": name, "model": model, "phase": "inference", "ms": time}
            for model, time in rows.items()
        ],
    }


def drawn(record):
    """Draw the speeds of a record as SVG."""
    return figures.svg(figures.speed(record))


def texts(svg):
    return [one.text for one in ET.fromstring(svg).iter(f"{SVG}text")]


def lengths(svg):
    """Return the lengths of the bars relative to the longest.

    Bars are the only filled paths that are clipped.
    """
    paths = [one for one in ET.fromstring(svg).iter(f"{SVG}path") if one.get("clip-path")]
    bars = [one.get("d") for one in paths if "fill: none" not in one.get("style")]
    ends = [[float(x) for x in re.findall(r"[ML] (\S+)", bar)] for bar in bars]
    longest = max(max(x) - min(x) for x in ends)
    return [(max(x) - min(x)) / longest for x in ends]


def coordinates(path):
    """Return the points [x, y] of a path."""
    return [[float(x), float(y)] for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d"))]


def axis_values(axes, letter, values):
    """Return a function from a coordinate to the value on a logarithmic axis with grid lines."""
    grid = [
        coordinates(path)[0]["xy".index(letter)]
        for tick in axes.iter(f"{SVG}g")
        if (tick.get("id") or "").startswith(f"{letter}tick")
        for path in tick.iter(f"{SVG}path")
        if path.get("clip-path")
    ]
    assert len(grid) == len(values)
    slope, offset = np.polyfit(grid, np.log(values), 1)
    assert np.exp(slope * np.array(grid) + offset) == pytest.approx(values, rel=1e-3)
    return lambda place: float(np.exp(slope * place + offset))


def ticks(svg, letter):
    """Return the tick labels of an axis that the panels share, from the first panel with labels."""
    for axes in panels(svg):
        found = [
            float(text.text)
            for tick in axes.iter(f"{SVG}g")
            if (tick.get("id") or "").startswith(f"{letter}tick")
            for text in tick.iter(f"{SVG}text")
        ]
        if found:
            return found
    raise AssertionError(f"no panel has numbers at its {letter} axis")


def panels(svg):
    groups = ET.fromstring(svg).iter(f"{SVG}g")
    return [group for group in groups if (group.get("id") or "").startswith("axes_")]


def steps_in(svg):
    """Return the drawn points [hidden size, microseconds] of each line of each panel."""
    found = []
    for axes in panels(svg):
        hidden, us = (axis_values(axes, letter, ticks(svg, letter)) for letter in "xy")
        lines = [one.find(f"{SVG}path") for one in axes if one.get("id").startswith("line2d")]
        found.append([[[hidden(x), us(y)] for x, y in coordinates(line)] for line in lines])
    return found


def steps_of(record):
    """Return the points of `steps_in` as expected from the rows of a record."""
    kinds = sorted({(row["dtype"], row["batch"]) for row in record["rows"]})
    found = []
    for kind in kinds:
        rows = [row for row in record["rows"] if (row["dtype"], row["batch"]) == kind]
        of_lines = (
            [[row["hidden_size"], row[key] and row[key]["us"]] for row in rows]
            for key in ("cudnn", "own")
        )
        limit = [[row["hidden_size"], row["limit_us"]] for row in rows]
        lines = [[point for point in line if point[1]] for line in (*of_lines, limit)]
        found.append([line for line in lines if line])
    return found


def assert_same_steps(found, expected):
    assert [[len(line) for line in panel] for panel in found] == [
        [len(line) for line in panel] for panel in expected
    ]
    for panel, other in zip(found, expected, strict=True):
        for line, values in zip(panel, other, strict=True):
            assert np.array(line) == pytest.approx(np.array(values), rel=0.01)


def test_the_figure_in_the_checkout_is_that_of_the_record():
    record = json.loads((VERIFICATION / "bench_rnn.json").read_text(encoding="utf-8"))
    kept = (DOCS / "speed.svg").read_text(encoding="utf-8")
    new = drawn(record)
    # Another version of Matplotlib may place them differently.
    assert texts(kept) == texts(new), "make docs draws it"
    assert lengths(kept) == pytest.approx(lengths(new), abs=0.01), "make docs draws it"


def test_a_figure_is_the_same_text_in_every_run():
    one = record({"dnnffi": 1.0, "torch eager": 2.5})
    assert drawn(one) == drawn(one)


def test_bars_are_as_long_as_the_times():
    svg = drawn(record({"dnnffi": 1.0, "torch eager": 2.5}))
    assert lengths(svg) == pytest.approx([0.4, 1])
    assert {"1.00", "2.50", "dnnffi", "PyTorch"} <= set(texts(svg))


def test_the_summary_says_the_ratio_to_each_peer_and_the_machine():
    times = {"dnnffi": 1.0, "torch eager": 2.5, "torch graph": 0.75}
    said = {
        "as PyTorch, 1 shape: inference 2.50 (lowest 2.50)",
        "as PyTorch in a CUDA graph, 1 shape: inference 0.75 (lowest 0.75)",
        "Some GPU, cuDNN 9.19.0, PyTorch 2.11, 2026-01-02",
    }
    assert said <= set(texts(drawn(record(times))))


def test_jax_is_shown_once_it_was_measured():
    without = {"dnnffi": 1.0, "torch eager": 2.5}
    assert "JAX" not in texts(drawn(record(without)))
    svg = drawn(record(without | {"jax": 1.5}, MACHINE | {"jax": "0.7"}))
    assert "JAX" in texts(svg)
    assert lengths(svg) == pytest.approx([0.4, 1, 0.6])
    assert "Some GPU, cuDNN 9.19.0, PyTorch 2.11, JAX 0.7, 2026-01-02" in texts(svg)


def test_where_nothing_was_measured_there_is_no_figure():
    assert figures.speed(record({"torch eager": 2.5})) is None


def step(hidden_size, cudnn, own, limit, batch=1):
    return {
        "hidden_size": hidden_size,
        "batch": batch,
        "dtype": "float16",
        "cudnn": cudnn and {"candidate": "cudnn standard", "us": cudnn},
        "own": own and {"candidate": "own 1", "us": own},
        "limit_us": limit,
    }


def test_steps_are_drawn_over_the_hidden_size():
    rows = [step(64, 4.0, 1.0, 0.5), step(128, 5.0, None, 0.6), step(64, 6.0, 2.0, 0.7, batch=64)]
    figure = figures.steps({"machine": MACHINE, "rows": rows})
    first, second = figure.axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in first.lines}
    assert drawn == {
        "cuDNN's fastest algorithm": [[64, 4.0], [128, 5.0]],
        "dnnffi's own kernels": [[64, 1.0]],
        "what the device allows": [[64, 0.5], [128, 0.6]],
    }
    assert [line.get_ydata().tolist() for line in second.lines] == [[6.0], [2.0], [0.7]]
    said = texts(figures.svg(figure))
    assert {"float16, batch of 1", "float16, batch of 64", "dnnffi's own kernels"} <= set(said)
    assert "Some GPU, cuDNN 9.19.0, PyTorch 2.11, 2026-01-02" in said


def test_a_device_of_unknown_limits_has_two_lines():
    figure = figures.steps({"machine": MACHINE, "rows": [step(64, 4.0, 1.0, None)]})
    assert [line.get_label() for line in figure.axes[0].lines] == [
        "cuDNN's fastest algorithm",
        "dnnffi's own kernels",
    ]


def test_points_are_drawn_where_the_axes_have_their_values():
    rows = [step(64, 4.0, 1.0, 0.5), step(512, 50.0, None, 0.6), step(64, 6.0, 2.0, 7.0, batch=64)]
    record = {"machine": MACHINE, "rows": rows}
    assert_same_steps(steps_in(figures.svg(figures.steps(record))), steps_of(record))


@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03, 1.3])
def test_steps_of_other_times_are_another_figure(factor):
    rows = [step(64, 4.0, 1.0, 0.5), step(512, 50.0, 10.0, 0.6)]
    found = steps_in(figures.svg(figures.steps({"machine": MACHINE, "rows": rows})))
    scaled = [step(64, 4 * factor, factor, 0.5 * factor)]
    scaled += [step(512, 50 * factor, 10 * factor, 0.6 * factor)]
    with pytest.raises(AssertionError):
        assert_same_steps(found, steps_of({"rows": scaled}))


def test_the_steps_in_the_checkout_are_those_of_the_record():
    record = json.loads((VERIFICATION / "own_steps.json").read_text(encoding="utf-8"))
    kept = (DOCS / "own_steps.svg").read_text(encoding="utf-8")
    assert_same_steps(steps_in(kept), steps_of(record))
    assert texts(kept) == texts(figures.svg(figures.steps(record))), "make docs draws it"


def test_a_curve_is_logarithmic():
    figure = figures.curve([1.0, 0.1, 0.01], "a title")
    (line,) = figure.axes[0].lines
    first, second, third = line.get_transform().transform(line.get_xydata())[:, 1]
    assert first > second > third
    assert first - second == pytest.approx(second - third)
    assert "a title" in texts(figures.svg(figure))


LAYOUTS = ("WIDE", "NARROW")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_have_the_same_bars_and_labels(layout):
    one = record({"dnnffi": 1.0, "torch eager": 2.5})
    svg = figures.svg(figures.speed(one, getattr(figures, layout)))
    assert lengths(svg) == pytest.approx([0.4, 1], abs=0.01)
    assert {"1.00", "2.50", "dnnffi", "PyTorch", "LSTM, 1 layer, 100 steps", "inference"} <= set(
        texts(svg)
    )


def test_the_narrow_layout_fits_a_phone():
    figure = figures.speed(record({"dnnffi": 1.0, "torch eager": 2.5}), figures.NARROW)
    assert 96 * figure.get_size_inches()[0] <= 328
    root = ET.fromstring(figures.svg(figure))
    sizes = [
        float(found[1]) * 4 / 3
        for text in root.iter(f"{SVG}text")
        if (
            found := re.search(
                r"font: (?:\w+ )?([\d.]+)px|font-size: ([\d.]+)px", text.get("style")
            )
        )
        and found[1]
    ]
    assert all(pixels >= 10 for pixels in sizes)


def test_colours_are_variables_that_a_dark_system_sets():
    svg = drawn(record({"dnnffi": 1.0, "torch eager": 2.5}))
    for colour in figures.COLOURS:
        assert svg.count(colour.light) == svg.count(f"var({colour.variable}, {colour.light})")
    style = re.search(r"<style>@media \(prefers-color-scheme: dark\) \{ svg \{ (.*?) \} \}", svg)[1]
    for colour in figures.COLOURS:
        assert f"{colour.variable}: {colour.dark};" in style


def test_a_figure_in_a_page_has_ids_of_its_own_and_no_rules_for_the_page():
    svg = drawn(record({"dnnffi": 1.0, "torch eager": 2.5}))
    inlined = figures.inlined(svg, "one", 'says "what" it shows')
    assert "<style" not in inlined
    assert 'aria-label="says &quot;what&quot; it shows"' in inlined
    assert all(name.startswith("one-") for name in re.findall(r'\bid="([^"]+)', inlined))
    used = re.findall(r'url\(#([^)]+)|href="#([^"]+)', inlined)
    assert used
    assert all((first or second).startswith("one-") for first, second in used)


def test_the_style_of_the_pages_has_the_dark_colours_and_no_background():
    style = (DOCS / "_static" / "pages.css").read_text(encoding="utf-8")
    assert style.count('body[data-theme="dark"] .record-figure') == 1
    assert style.count("--figure-background: transparent;") == 1
    for colour in set(figures.COLOURS) - {figures.BACKGROUND}:
        assert style.count(f"{colour.variable}: {colour.dark};") == 2


def test_the_style_sheet_has_the_colour_of_text():
    style = figures.STYLE.read_text(encoding="utf-8")
    assert set(re.findall(r": ([0-9a-f]{6})$", style, re.MULTILINE)) == {figures.TEXT.light[1:]}


DIAGRAMS = ("own_step.svg", "own_step_narrow.svg")


def boxes_and_texts(name):
    """Return the small boxes of a diagram, and its texts with their sizes as a page shows them."""
    svg = (DOCS / name).read_text(encoding="utf-8")
    root = ET.fromstring(figures.inlined(svg, "one", "a diagram").replace("<svg ", XMLNS, 1))
    group = next(one for one in root if one.tag.endswith("}g"))
    boxes = [
        [float(one.get(key)) for key in ("x", "y", "width", "height")]
        for one in group.iter(f"{SVG}rect")
        if one.get("rx") == "4"
    ]
    texts = [
        (one.text, float(one.get("x")), float(one.get("y")), one.get("font-size"))
        for one in group.iter(f"{SVG}text")
        if one.get("transform") is None
    ]
    size = float(group.get("font-size"))  # of the drawing itself: the page has another
    return boxes, [(text, x, y, float(own or size)) for text, x, y, own in texts]


XMLNS = f'<svg xmlns="{SVG[1:-1]}" '


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_texts_of_a_diagram_fit_their_boxes(name):
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    boxes, texts = boxes_and_texts(name)
    inside = 0
    for text, x, y, size in texts:
        width = TextPath((0, 0), text, size=size, prop=FontProperties("DejaVu Sans")).get_extents()
        for left, top, across, down in boxes:
            if left < x < left + across and top < y < top + down:
                assert left <= x - width.width / 2, text
                assert x + width.width / 2 <= left + across, text
                inside += 1
    assert inside == 24


def test_a_narrow_diagram_fits_a_phone():
    svg = (DOCS / "own_step_narrow.svg").read_text(encoding="utf-8")
    assert float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1]) <= 312
    assert min(size for *_, size in boxes_and_texts("own_step_narrow.svg")[1]) >= 10
