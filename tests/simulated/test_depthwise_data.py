"""The kernels for forward and data of depthwise convolutions, their CUDA source run as C."""

from __future__ import annotations

import itertools
import json

import conformance_conv
import numpy as np
import pytest
from conformance import deviation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dnnffi import testing
from dnnffi.backends.conv_interface import OWN, ConvAddresses, EngineChoice, addresses_of
from dnnffi.backends.cudnn.conv_executor import EngineExecutors, own_choices
from dnnffi.backends.own.depthwise import faster, gather, pixels, planes
from dnnffi.backends.own.depthwise.gather import DepthwiseGather, has_kernel, tile_for, tiles
from dnnffi.backends.own.depthwise.tile import Tile
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.convolution import tuning as conv_tuning
from dnnffi.convolution.backend import conv_backends
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS

DTYPES = ("float32", "float16", "bfloat16")
GATHERS = (FORWARD, BACKWARD_DATA)


def problem_of(operation=FORWARD, sizes=(9, 7), channels=4, batch=2, kernel=(3, 3), **more):
    """``more`` is of the specification and of the problem."""
    of_problem = ("layout", "activation", "residual", "alpha", "bias")
    rest = {name: more.pop(name) for name in of_problem if name in more}
    spec = ConvSpec(
        **{"in_channels": channels, "out_channels": channels, "groups": channels, **more},
        kernel=kernel,
    )
    return ConvProblem.of(operation, spec, (batch, spec.in_channels, *sizes), **rest)


def put(simulator, array, *, last):
    """An array of the host, without gaps in the layout, and its elements in the order of memory."""
    if array is None:
        return None
    if last and array.ndim > 1:
        array = np.moveaxis(array, 1, -1)
    return simulator.asarray(np.ascontiguousarray(array))


def run(simulator, problem, tile, seed=0, **more):
    """(found, expected); what no thread writes is not a number."""
    arrays = testing.conv_inputs(problem, seed)
    last = problem.channels_last
    given = [put(simulator, one, last=last) for one in conformance_conv.arguments(problem, arrays)]
    n, channels, *sizes = problem.result_shape
    shape = (n, *sizes, channels) if last else problem.result_shape
    guard = 64  # elements after the result
    room = simulator.memory.empty((int(np.prod(shape)) + guard,), given[0].dtype)
    room.view(np.uint8)[...] = 0xFF
    kernel = DepthwiseGather(problem, simulator.memory, tile, **more)
    assert kernel.workspace_bytes == 0
    at = ConvAddresses(*addresses_of(given), room.data.ptr)
    kernel.run(Launch(simulator.memory.current_stream(), 0), at)
    assert (np.array(room[-guard:]).view(np.uint8) == 0xFF).all()
    found = np.array(room[:-guard]).reshape(shape)
    if last:
        found = np.moveaxis(found, -1, 1)
    return found, conformance_conv.expected(problem, arrays)


def check(simulator, problem, tile, seed=0, **more):
    found, expected = run(simulator, problem, tile, seed, **more)
    assert deviation(found, expected) <= conformance_conv.tolerance(problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", GATHERS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "sizes"), [((3, 3), (14, 14)), ((5, 5), (9, 28)), ((7, 7), (7, 7))]
)
def test_layers_of_networks(simulator, dtype, layout, operation, stride, kernel, sizes):
    padding = tuple(size // 2 for size in kernel)
    problem = problem_of(
        operation, sizes, kernel=kernel, stride=stride, padding=padding, dtype=dtype, layout=layout
    )
    # The tiles have nothing to do with the type, but for one or two channels of a thread.
    for tile in tiles(problem) if dtype == "float32" else tiles(problem)[:1]:
        check(simulator, problem, tile)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", GATHERS)
@pytest.mark.parametrize(
    ("sizes", "geometry"),
    [
        ((37,), {"kernel": (5,), "padding": 2, "stride": 3, "channels": 33}),
        ((1, 1), {"kernel": (7, 7), "padding": 3, "batch": 1}),
        ((11, 13), {"kernel": (2, 6), "padding": (0, 5), "stride": (2, 1), "channels": 3}),
        ((13, 10), {"kernel": (3, 3), "padding": 4, "dilation": (2, 3), "stride": 2}),
        ((12, 9), {"kernel": (1, 1), "stride": (3, 4), "channels": 1}),
        ((60, 50), {"kernel": (3, 3), "padding": 1, "channels": 2}),
        ((100, 8), {"kernel": (3, 3), "padding": 1, "stride": 2, "channels": 1}),
        ((4, 200), {"kernel": (3, 3), "padding": 1, "stride": 2, "channels": 1}),
        ((5, 5), {"kernel": (3, 3), "padding": 1, "channels": 70, "batch": 1}),
        ((6, 5), {"kernel": (3, 3), "padding": 1, "transposed": True, "stride": 2}),
        ((6, 5), {"kernel": (4, 3), "transposed": True, "stride": 3, "output_padding": (2, 1)}),
        ((8, 10), {"kernel": (3, 3), "padding": ((0, 1), (0, 1)), "stride": 2}),
        ((8, 10), {"kernel": (5, 4), "padding": ((4, 0), (0, 3)), "channels": 3}),
        ((9,), {"kernel": (7,), "padding": ((0, 6),), "stride": 3, "channels": 33}),
        ((6, 5), {"kernel": (3, 3), "padding": ((0, 1), (2, 0)), "transposed": True, "stride": 2}),
    ],
    ids=str,
)
def test_other_geometry(simulator, layout, operation, sizes, geometry):
    problem = problem_of(operation, sizes, layout=layout, **geometry)
    for tile in tiles(problem):
        check(simulator, problem, tile)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "more",
    [
        {"bias": True},
        {"residual": True, "alpha": -0.3},
        {"activation": "relu"},
        {"bias": True, "residual": True, "activation": "relu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_what_follows_a_forward(simulator, layout, dtype, more, transposed):
    problem = problem_of(layout=layout, dtype=dtype, padding=1, transposed=transposed, **more)
    for tile in tiles(problem):
        check(simulator, problem, tile)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_planes(simulator, layout):
    # No multiple of those of a block, of which there are several.
    problem = problem_of(sizes=(7, 7), channels=705, batch=3, padding=1, layout=layout)
    if layout == CHANNELS_FIRST:
        assert 3 * 705 % tiles(problem)[0].many != 0
    for tile in tiles(problem):
        check(simulator, problem, tile)


def test_several_tiles_of_a_thread(simulator, monkeypatch):
    # Few blocks, as for images that are too large for a test.
    monkeypatch.setattr(pixels, "_BLOCKS", 2)
    problem = problem_of(sizes=(31, 20), channels=64, padding=1, layout=CHANNELS_LAST)
    for tile in tiles(problem)[:2]:
        check(simulator, problem, tile)


@st.composite
def problems(draw):
    """Draw any problem that has a kernel, with small images."""
    rank = draw(st.integers(1, 2))

    def each(least, most):
        return tuple(draw(st.integers(least, most)) for _ in range(rank))

    kernel, stride, dilation = each(1, 7), each(1, 3), each(1, 2)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw(st.tuples(*[st.integers(0, span - 1)] * 2)) for span in spans)
    sizes = [
        max(1, span - sum(sides)) + draw(st.integers(0, 12))
        for span, sides in zip(spans, padding, strict=True)
    ]
    operation = draw(st.sampled_from(GATHERS))
    more = {}
    if operation == FORWARD:
        more = {
            "bias": draw(st.booleans()),
            "residual": draw(st.booleans()),
            "activation": draw(st.sampled_from([None, "relu"])),
        }
    return problem_of(
        operation,
        sizes,
        channels=draw(st.integers(1, 9)),
        batch=draw(st.integers(1, 3)),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        dtype=draw(st.sampled_from(DTYPES)),
        layout=draw(st.sampled_from(LAYOUTS)),
        **more,
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_problem(simulator, data):
    problem = data.draw(problems())
    tile = data.draw(st.sampled_from(tiles(problem)))
    check(simulator, problem, tile, data.draw(st.integers(0, 2**16)))


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(BACKWARD_WEIGHTS),
        problem_of(dtype="float64"),
        problem_of(out_channels=8),
        problem_of(groups=2),
        problem_of(sizes=(5, 5, 5), kernel=(2, 2, 2)),
        problem_of(sizes=(12, 12), kernel=(5, 10)),
        problem_of(sizes=(20, 20), dilation=8),
        problem_of(stride=5),
        problem_of(padding=(0, 3)),
        problem_of(sizes=(8, 5000), layout=CHANNELS_FIRST),
        problem_of(sizes=(2**15, 2**15), padding=1, layout=CHANNELS_LAST),
        problem_of(sizes=(2**10, 2**10), batch=2**10 + 1, layout=CHANNELS_LAST),
        problem_of(sizes=(2**19, 2**10), channels=1, batch=1, padding=1),
    ],
    ids=str,
)
def test_what_it_is_not_for(problem):
    assert not has_kernel(problem)


# General kernels, for all sizes of a layer


def sources(simulator, monkeypatch):
    """The sources that are compiled from now on."""
    compiled = set()
    kernel = simulator.memory.kernel

    def seen(source, name, headers):
        compiled.add((source, headers))
        return kernel(source, name, headers)

    monkeypatch.setattr(simulator.memory, "kernel", seen)
    return compiled


LAYERS = [
    {"padding": 1},
    {"padding": 1, "stride": 2},
    {"kernel": (5, 5), "padding": 2, "bias": True, "activation": "relu"},
    {"kernel": (7, 7), "padding": 3},
    {"kernel": (2, 6), "padding": (0, 5), "stride": (2, 1)},
    {"padding": 1, "transposed": True, "stride": 2},
    {"padding": 2, "dilation": 2, "dtype": "float16"},
]
SIZES = [(1, 9, 7), (2, 5, 12), (1, 30, 4), (3, 6, 16), (1, 14, 14), (2, 21, 3), (1, 2, 8)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", GATHERS)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_general_kernel_computes_every_size_with_the_tile_of_another(
    simulator, monkeypatch, layer, operation, layout
):
    if operation == BACKWARD_DATA:
        layer = {name: value for name, value in layer.items() if name not in FOLLOWS}
    compiled = sources(simulator, monkeypatch)
    first = problem_of(operation, (28, 28), batch=8, layout=layout, **layer)
    tile = tiles(first)[0]
    for batch, *sizes in SIZES:
        problem = problem_of(operation, tuple(sizes), batch=batch, layout=layout, **layer)
        if has_kernel(problem):
            check(simulator, problem, tile_for(problem, tile), specialized=False)
    # With channels first, one kernel for each number of elements read and written at once.
    assert len(compiled) == 1 if layout == CHANNELS_LAST else len(compiled) <= 5


FOLLOWS = ("bias", "activation")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_general_kernels_of_any_geometry(shared_simulator, data):
    draw = data.draw
    rank = draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    layer = {
        "kernel": kernel,
        "stride": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "padding": tuple(draw(st.integers(0, size - 1)) for size in kernel),
        "channels": draw(st.integers(1, 9)),
        "layout": draw(st.sampled_from(LAYOUTS)),
    }
    operation = draw(st.sampled_from(GATHERS))
    one, other = (
        problem_of(
            operation,
            tuple(draw(st.integers(max(kernel), 20)) for _ in range(rank)),
            batch=draw(st.integers(1, 3)),
            **layer,
        )
        for _ in range(2)
    )
    tile = draw(st.sampled_from(tiles(one)))
    carried = tile_for(other, tile)
    assert carried == tile or carried in tiles(other)
    check(shared_simulator, other, carried, specialized=False)


def test_a_tile_without_room_in_shared_memory_is_the_nearest_that_has(simulator):
    small, large = (problem_of(sizes=(n, n), channels=512, batch=16, padding=1) for n in (14, 60))
    tile = tiles(small)[0]
    assert tile.many == 8
    assert tile_for(problem_of(sizes=(20, 20), channels=512, padding=1), tile) == tile
    found = tile_for(large, tile)
    assert found in tiles(large)
    assert found.many < tile.many


def test_wide_rows_have_a_tile_that_fits_into_shared_memory():
    layer = {"kernel": (7, 7), "padding": 3, "channels": 1, "batch": 1}
    refused = 0
    for width in range(200, 2200, 50):
        problem = problem_of(sizes=(16, width), **layer)
        if not has_kernel(problem):
            refused += 1
            continue
        for down in range(1, 9):
            tile = tile_for(problem, Tile(down, 4, 1))
            for specialized in (False, True):
                made = gather._made(problem, tile, specialized=specialized)
                assert made.shared_bytes <= planes.SHARED_BYTES
                assert made.sizes["CELLS"] <= made.constants["MAX_CELLS"]
    assert 0 < refused < 40


def test_a_tile_with_more_bands_than_a_grid_has_is_the_nearest_with_fewer():
    tall = problem_of(sizes=(2**17, 2**10), channels=1, batch=1, padding=1)
    made = gather._made(tall, tile_for(tall, Tile(1, 4, 1)))
    assert made.grid[1] < 2**16


@pytest.mark.parametrize(
    "tile",
    [Tile(0, 4, 1), Tile(9, 4, 1), Tile(4, 9, 1), Tile(4, -4, 1), Tile(4, 4, 3), Tile(4, 4, 512)],
    ids=str,
)
def test_a_tile_that_no_size_has_is_refused(tile):
    assert tile_for(problem_of(padding=1), tile) is None


def test_tiles_of_backward_data_begin_at_a_multiple_of_the_stride():
    problem = problem_of(BACKWARD_DATA, padding=1, stride=2)
    assert tile_for(problem, Tile(3, 4, 1)) is None
    assert tile_for(problem, Tile(16, 16, 1)) is not None
    assert tile_for(problem, Tile(18, 16, 1)) is None


def test_channels_of_a_thread_divide_the_channels():
    problem = problem_of(layout=CHANNELS_LAST, channels=6, padding=1)
    assert tile_for(problem, Tile(2, 2, 2)) == Tile(2, 2, 2)
    assert tile_for(problem, Tile(2, 2, 4)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_sizes_of_a_class_compile_nothing(simulator, no_record, monkeypatch, layout):
    row = faster.Measured(FORWARD, layout, "float32", 3, 1)
    monkeypatch.setitem(faster.FASTER, row, faster.Sizes((4, 4), (4, 16)))
    compiled = sources(simulator, monkeypatch)

    def run(batch, sizes):
        problem = problem_of(padding=1, sizes=sizes, batch=batch, layout=layout)
        arrays = testing.conv_inputs(problem, 0)
        found = conformance_conv.run(problem, arrays, simulator.asarray, "cudnn")
        assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5
        (plan,) = (one for one in simulator.conv.plans.values() if one.problem == problem)
        assert plan._of_thread().executor.choice.engine == OWN
        return plan.report()

    least = faster.MIN_BATCH
    assert "for all sizes" not in run(least, (8, 8))
    assert "for all sizes of the layer, tiles of" in run(least, (7, 8))
    assert len(compiled) == 2  # the class's first problem has a kernel with its sizes
    for batch, sizes in [(least + 3, (6, 8)), (least + 1, (5, 12)), (least + 12, (6, 4))]:
        run(batch, sizes)
    assert len(compiled) == 2
    run(least, (8, 8))
    assert len(compiled) == 2


# Problems for which the kernel is offered


@pytest.fixture
def no_record(tmp_path, monkeypatch):
    """Keep measurements in a folder of the test."""
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))


def executors_of(simulator, problem, **more):
    return EngineExecutors(simulator.library, problem, current_launch(simulator.library), **more)


@pytest.mark.parametrize("operation", GATHERS)
def test_every_tile_is_a_candidate_and_used_where_it_is_fastest(
    simulator, no_record, monkeypatch, operation
):
    problem = problem_of(operation, padding=1)._replace(options=ConvOptions(tune="now"))
    choices = own_choices(problem)
    assert len(choices) == len(tiles(problem)) > 1
    # The second of them is the fastest by far.
    order = itertools.count()
    times = {1: 1.0}
    monkeypatch.setattr(conv_tuning, "_time", lambda *_: times.get(next(order), 4.0))
    arrays = testing.conv_inputs(problem, 0)
    given = [put(simulator, one, last=False) for one in conformance_conv.arguments(problem, arrays)]
    backend = conv_backends.of("cudnn")
    for source in ("measured", "disk"):
        plan = backend.plan(problem, 0)
        assert plan.finder.tuning.source == source
        assert plan.finder.tuning.choice == choices[1]
        assert {str(choice) for choice in choices} <= set(plan.finder.tuning.times)
        assert f"tiles of {choices[1].knobs[0][1]} by" in plan.report()
        found = plan.run(*given)
        assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5
        plan.close()
        backend.clear()


def test_cudnn_is_asked_where_nothing_was_measured(simulator):
    executor = next(executors_of(simulator, problem_of(padding=1)))
    assert executor.choice.engine != OWN
    executor.close()
    simulator.control.standin_reset()


def test_it_runs_without_measuring_where_a_record_says_that_it_is_faster(simulator, monkeypatch):
    problem = problem_of(padding=1, batch=faster.MIN_BATCH)
    row = faster.Measured(FORWARD, CHANNELS_FIRST, "float32", 3, 1)
    monkeypatch.setitem(faster.FASTER, row, faster.Sizes((4, 4), (7, 9)))
    arrays = testing.conv_inputs(problem, 0)
    plan = conv_backends.of("cudnn").plan(problem, 0)
    assert "picked by a record of such layers for x [32, 4, 9, 7]; not measured" in plan.report()
    found = plan.run(simulator.asarray(arrays.x), simulator.asarray(arrays.w), None, None)
    assert deviation(found, conformance_conv.expected(problem, arrays)) < 1e-5
    plan.close()


@pytest.mark.parametrize(
    "more",
    [
        {"sizes": (9, 10)},
        {"sizes": (6, 7)},
        {"channels": 5},
        {"channels": 3},
        {"batch": faster.MIN_BATCH - 1},
        {"padding": 2},
        {"kernel": (3, 5), "padding": (1, 2)},
        {"stride": (1, 2)},
        {"dilation": 2},
        {"layout": CHANNELS_LAST},
        {"dtype": "float16"},
        {"operation": BACKWARD_DATA},
        {"transposed": True},
    ],
    ids=str,
)
def test_a_record_is_of_such_layers_alone(monkeypatch, more):
    row = faster.Measured(FORWARD, CHANNELS_FIRST, "float32", 3, 1)
    monkeypatch.setitem(faster.FASTER, row, faster.Sizes((4, 4), (7, 9)))
    usual = {"padding": 1, "batch": faster.MIN_BATCH}
    assert faster.is_faster(problem_of(**usual))
    assert not faster.is_faster(problem_of(**usual | more))


def test_a_tile_on_disk_that_is_none_of_the_problems(simulator):
    problem = problem_of(padding=1)
    choice = own_choices(problem)[0]
    again = EngineChoice.read(json.loads(json.dumps(choice)))
    assert again == choice
    other = choice._replace(knobs=(("down", 3), ("across", 3), ("many", 3)))
    executors = executors_of(simulator, problem)
    assert executors.made_again(again).choice == choice
    with pytest.raises(ValueError, match="dnnffi's kernel down=3 across=3 many=3 is not for"):
        executors.made_again(other)
    simulator.control.standin_reset()
