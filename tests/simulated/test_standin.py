"""The simulator of cuDNN by itself: that it computes what the reference does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.device.dtypes import dtype_object
from dnnffi.reference import rnn as reference
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes
from dnnffi.spec.weights import weight_layout
from simulators.cudnn.calls import (
    INFERENCE,
    LAYOUTS,
    MODES,
    Network,
    address,
    dropout_descriptor,
    small,
)


def expected_forward(net, **options):
    """The reference in float64 on the numbers that the stand-in was given."""
    values, spec = net.values, net.spec
    kept = {
        name: None if values[name] is None else values[name].astype(np.float64)
        for name in ("x", "hx", "cx", "weights")
    }
    if net.layout == "packed":
        options["batch_sizes"] = lengths_to_batch_sizes(net.lengths)
    else:
        options |= {"batch_first": net.layout == "batch_major", "lengths": net.lengths}
    weights = net.weight_arrays(kept["weights"])
    return reference.forward(spec, kept["x"], kept["hx"], kept["cx"], weights, **options)


def expected_backward(net, result):
    values = net.values
    given = (values[name] for name in ("dy", "dhy", "dcy"))
    return reference.backward(
        result.tape, *(None if a is None else a.astype(np.float64) for a in given)
    )


def assert_close(found, expected, tolerance):
    if expected is None:
        assert found is None
        return
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def assert_forward(net, result, tolerance):
    for name, expected in (("y", result.y), ("hy", result.h_n), ("cy", result.c_n)):
        assert_close(net.values[name], expected, tolerance)


def assert_as_reference(net, tolerance=1e-11, **options):
    """Run everything and compare everything."""
    net.run()
    result = expected_forward(net, **options)
    assert_forward(net, result, tolerance)
    gradients = expected_backward(net, result)
    for name, expected in (("dx", gradients.x), ("dhx", gradients.h_0), ("dcx", gradients.c_0)):
        assert_close(net.values[name], expected, tolerance)
    for array, expected in zip(
        net.weight_arrays(net.values["dweights"]), gradients.weights, strict=True
    ):
        assert_close(array, expected, tolerance)
    assert net.standin.violations == 0


@st.composite
def problems(draw):
    """(spec, T, B, layout, lengths), in float64."""
    hidden = draw(st.integers(1, 5))
    mode = draw(st.sampled_from(sorted(MODES)))
    projected = mode == "lstm" and hidden > 1 and draw(st.booleans())
    spec = RNNSpec(
        mode=mode,
        input_size=draw(st.integers(1, 5)),
        hidden_size=hidden,
        num_layers=draw(st.integers(1, 3)),
        bidirectional=draw(st.booleans()),
        bias=draw(st.booleans()),
        proj_size=draw(st.integers(1, hidden - 1)) if projected else 0,
        dtype="float64",
    )
    steps = draw(st.integers(1, 5))
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    lengths = draw(st.lists(st.integers(1, steps), min_size=1, max_size=4))
    if layout == "packed":
        lengths = sorted([steps, *lengths[1:]], reverse=True)
    return spec, steps, len(lengths), layout, lengths


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_computes_what_the_reference_does(standin_copy, problem, seed):
    spec, steps, batch, layout, lengths = problem
    with standin_copy.scope():
        assert_as_reference(
            Network(standin_copy, spec, steps, batch, layout=layout, lengths=lengths, seed=seed)
        )


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_infers_what_it_trains(standin_copy, problem, seed):
    spec, steps, batch, layout, lengths = problem
    results = []
    for mode in (0, 1):
        with standin_copy.scope():
            net = Network(
                standin_copy,
                spec,
                steps,
                batch,
                layout=layout,
                lengths=lengths,
                mode=mode,
                seed=seed,
            )
            net.forward()
            results.append([net.values[name] for name in ("y", "hy", "cy")])
    for inferred, trained in zip(*results, strict=True):
        np.testing.assert_array_equal(inferred, trained)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 1e-1)]
)
@pytest.mark.parametrize("mode", sorted(MODES))
def test_computes_in_each_data_type(standin, mode, dtype, tolerance):
    spec = small(mode, dtype=dtype, num_layers=2, bidirectional=True)
    assert_as_reference(Network(standin, spec, 5, 3), tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounds_as_numpy_does(standin, dtype):
    # One unit and one step: y = relu(w x) of every number that there is.
    every = np.arange(2**16, dtype=np.uint16).view(dtype_object(dtype))
    spec = small("rnn_relu", input_size=1, hidden_size=1, bias=False, dtype=dtype)
    net = Network(standin, spec, 1, len(every))
    net.values["x"][:] = every.reshape(1, -1, 1)
    net.values["weights"][:] = [1.125, 0]
    net.forward(hx=None)
    with np.errstate(all="ignore"):
        product = every.astype(np.float64) * 1.125
        expected = np.where(product < 0, 0, product).astype(every.dtype)
    found = net.values["y"].reshape(-1)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_gradients_are_the_differences_of_forward(standin, mode, layout):
    spec = small(mode, num_layers=2, bidirectional=True, proj_size=2 if mode == "lstm" else 0)
    lengths = [4, 3, 1] if layout == "packed" else [2, 4, 1]
    net = Network(standin, spec, 4, 3, layout=layout, lengths=lengths)
    values = net.values
    net.run()
    outputs = [name for name in ("y", "hy", "cy") if values[name] is not None]
    inputs = [name for name in ("x", "hx", "cx", "weights") if values[name] is not None]
    rng = np.random.default_rng(1)
    step = 1e-6
    for name in inputs:
        array, gradient = values[name], values[f"d{name}"]
        start, along = array.copy(), rng.normal(size=array.shape)
        sides = []
        for sign in (1, -1):
            array[:] = start + sign * step * along
            net.forward()
            sides.append(sum((values[f"d{one}"] * values[one]).sum() for one in outputs))
        array[:] = start
        numeric = (sides[0] - sides[1]) / (2 * step)
        assert numeric == pytest.approx((gradient * along).sum(), rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("clip_nan", ["propagate", "clip"])
def test_clips_the_cell(standin, clip_nan):
    spec = small("lstm", num_layers=2, bidirectional=True)
    net = Network(
        standin, spec, 5, 3, clip=(-0.1, 0.2), clip_nan=int(clip_nan == "propagate"), seed=3
    )
    assert_as_reference(net, clip=(-0.1, 0.2), clip_nan=clip_nan)
    net.values["cx"][0, 0, 0] = np.nan
    net.forward()
    result = expected_forward(net, clip=(-0.1, 0.2), clip_nan=clip_nan)
    assert np.isnan(result.y).any() == (clip_nan == "propagate")
    assert_forward(net, result, 1e-11)


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_passes_nan_and_infinity_on(standin, mode, value):
    net = Network(standin, small(mode, num_layers=2), 4, 3)
    net.values["x"][1, 0, 0] = value
    net.run()
    result = expected_forward(net)
    assert_forward(net, result, 1e-11)
    gradients = expected_backward(net, result)
    assert_close(net.values["dx"], gradients.x, 1e-11)


def test_missing_states_are_zeros_and_unwanted_ones_are_left_out(standin):
    net = Network(standin, small("lstm", num_layers=2), 4, 3)
    missing = dict.fromkeys(("hx", "cx", "hy", "cy", "dhx", "dcx", "dhy", "dcy"))
    net.forward(**missing)
    net.backward_data(**missing)
    net.backward_weights(hx=None)
    found = {name: net.values[name].copy() for name in ("y", "dx", "dweights")}
    for name in ("hx", "cx", "dhy", "dcy", "dweights"):
        net.values[name][:] = 0
    net.run()
    for name, array in found.items():
        np.testing.assert_array_equal(array, net.values[name])


def test_weight_gradients_are_added(standin):
    net = Network(standin, small("gru"), 4, 3)
    net.run()
    once = net.values["dweights"].copy()
    net.run()
    np.testing.assert_allclose(net.values["dweights"], 2 * once, rtol=1e-14)


@pytest.mark.parametrize("layout", ["sequence_major", "batch_major"])
@pytest.mark.parametrize("padding", [7.5, None])
def test_fills_padding_of_y_and_zeroes_that_of_dx(standin, layout, padding):
    lengths = [2, 4, 1]
    net = Network(standin, small("gru"), 4, 3, layout=layout, lengths=lengths, padding=padding)
    net.values["y"][:] = -3.0
    net.run()
    y, dx = net.values["y"], net.values["dx"]
    if layout == "batch_major":
        y, dx = y.swapaxes(0, 1), dx.swapaxes(0, 1)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(y[length:, row], -3.0 if padding is None else padding)
        np.testing.assert_array_equal(dx[length:, row], 0)


def test_what_is_in_the_padding_does_not_matter(standin):
    net = Network(standin, small("lstm"), 4, 3, lengths=[2, 4, 1])
    net.run()
    names = ("y", "hy", "cy", "dx", "dhx", "dcx", "dweights")
    before = {name: net.values[name].copy() for name in names}
    for row, length in enumerate(net.lengths):
        net.values["x"][length:, row] = np.nan
        net.values["dy"][length:, row] = np.nan
    net.values["dweights"][:] = 0
    net.run()
    for name in names:
        np.testing.assert_array_equal(net.values[name], before[name])


@pytest.mark.parametrize(
    "spec",
    [
        small("lstm", num_layers=2, bidirectional=True, proj_size=2),
        small("lstm", num_layers=3, bias=False, proj_size=3),
        small("gru", num_layers=2, bidirectional=True),
        small("rnn_tanh", num_layers=3, dtype="float16"),
    ],
    ids=str,
)
def test_says_where_the_weights_lie(standin, spec):
    net = Network(standin, spec, 1, 1)
    layout = weight_layout(spec, "cudnn")
    size = ffi.new("size_t *")
    standin("cudnnGetRNNWeightSpaceSize", net.values["handle"], net.values["rnn"], size)
    item = dtype_object(spec.dtype).itemsize
    assert size[0] == layout.size * item
    found = set()
    for pseudo_layer in range(spec.num_layers * spec.num_directions):
        for identity in range(2 * spec.num_gates + (spec.has_cell and spec.proj_size > 0)):
            for kind, offset, shape in weight_parameters(net, pseudo_layer, identity, size[0]):
                found.add((pseudo_layer, identity, kind, offset // item, shape))
    expected = set()
    for p in layout.parameters:
        gate = 0 if p.gate is None else spec.gates.index(p.gate)
        start = {"ih": 0, "hh": spec.num_gates, "hr": 2 * spec.num_gates}[p.name[2:]]
        pseudo_layer = p.layer * spec.num_directions + p.direction
        expected.add((pseudo_layer, start + gate, p.name[0], p.offset, p.shape))
    assert found == expected


def weight_parameters(net, pseudo_layer, identity, size):
    """(kind, offset in bytes, shape) of the matrix "w" and the bias "b" of a linear layer."""
    standin, base = net.standin, 1 << 20
    descs = standin.descriptor("Tensor"), standin.descriptor("Tensor")
    places = ffi.new("dev_ptr *"), ffi.new("dev_ptr *")
    standin(
        "cudnnGetRNNWeightParams",
        net.values["handle"],
        net.values["rnn"],
        pseudo_layer,
        size,
        base,
        identity,
        descs[0],
        places[0],
        descs[1],
        places[1],
    )
    for kind, desc, place in zip("wb", descs, places, strict=True):
        _, dims, _ = read_tensor(standin, desc)
        assert (len(dims) == 0) == (place[0] == 0)
        if dims:
            assert dims[0] == 1
            yield kind, place[0] - base, dims[1:] if kind == "w" else dims[1:2]


def read_tensor(standin, desc):
    dtype, rank = ffi.new("cudnnDataType_t *"), ffi.new("int *")
    dims, strides = ffi.new("int[8]"), ffi.new("int[8]")
    standin("cudnnGetTensorNdDescriptor", desc, 8, dtype, rank, dims, strides)
    return dtype[0], tuple(dims[0 : rank[0]]), tuple(strides[0 : rank[0]])


# Dropout


def masks_of(net):
    """The masks of the last forward: [T, B, O*D] for each layer but the last."""
    spec, reserve = net.spec, net.values["reserve"]
    shape = (spec.num_layers - 1, *spec.y_shape(net.steps, net.batch))
    masks = np.zeros(shape)
    count = net.standin.control.standin_dropout_masks(
        net.standin.control_ffi.cast("void *", address(reserve)),
        reserve.nbytes,
        net.standin.control_ffi.from_buffer("double[]", masks),
        masks.size,
    )
    assert count == masks.size
    return list(masks)


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_drops_between_layers(standin, mode, layout):
    spec = small(mode, num_layers=3, bidirectional=True)
    lengths = [4, 3, 1] if layout == "packed" else [2, 4, 1]
    dropout, states = dropout_descriptor(standin, 0.5)
    net = Network(standin, spec, 4, 3, layout=layout, lengths=lengths, dropout=dropout)
    net.forward()
    masks = masks_of(net)
    assert {0.0, 2.0} == set(np.unique(masks))
    seed_again(standin, net, states, 1)
    assert_as_reference(net, dropout=0.5, masks=masks)
    np.testing.assert_array_equal(masks_of(net), masks)


def seed_again(standin, net, states, seed):
    """Start the random numbers of a network's dropout again."""
    desc, handle = net.values["dropout"], net.values["handle"]
    place = address(states), states.nbytes
    standin("cudnnSetDropoutDescriptor", desc, handle, 0.5, *place, seed)


def test_random_numbers_advance_and_can_be_restored(standin):
    dropout, states = dropout_descriptor(standin, 0.5)
    net = Network(standin, small("gru", num_layers=2), 6, 4, dropout=dropout)
    saved = states.copy()
    net.forward()
    first = masks_of(net)
    net.forward()
    assert not np.array_equal(masks_of(net), first)
    states[:] = saved
    net.forward()
    np.testing.assert_array_equal(masks_of(net), first)
    seed_again(standin, net, states, 2)
    net.forward()
    assert not np.array_equal(masks_of(net), first)


def test_drops_as_often_as_asked(standin):
    dropout, _ = dropout_descriptor(standin, 0.25)
    spec = small("rnn_tanh", num_layers=2, hidden_size=32)
    net = Network(standin, spec, 100, 10, dropout=dropout)
    net.forward()
    (mask,) = masks_of(net)
    assert np.mean(mask == 0) == pytest.approx(0.25, abs=0.01)
    assert set(np.unique(mask)) == {0.0, 1 / 0.75}


@pytest.mark.parametrize(("p", "factor"), [(0.0, 1.0), (1.0, 0.0)])
def test_drops_nothing_or_all(standin, p, factor):
    dropout, states = dropout_descriptor(standin, p)
    before = states.copy()
    net = Network(standin, small("gru", num_layers=2), 4, 3, dropout=dropout)
    assert_as_reference(net, masks=[np.full((4, 3, 4), factor)])
    assert np.array_equal(states, before) == (p == 0)


def test_inference_drops_nothing(standin):
    dropout, states = dropout_descriptor(standin, 0.5)
    before = states.copy()
    net = Network(standin, small("gru", num_layers=2), 4, 3, dropout=dropout, mode=INFERENCE)
    net.forward()
    assert_forward(net, expected_forward(net), 1e-11)
    np.testing.assert_array_equal(states, before)
