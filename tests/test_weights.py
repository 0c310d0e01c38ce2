"""RNNWeights on NumPy: packing, views, recognising views of one buffer, refusal of wrong input."""

from __future__ import annotations

import copy
import ctypes
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stress import user_arrays
from stress.user_arrays import UserArray

from dnnffi import RNNSpec, RNNWeights, UnsupportedError, testing, weight_layout
from dnnffi.device.dtypes import dtype_object

backends = st.sampled_from(["cudnn", "torch"])
all_backends = st.sampled_from(["cudnn", "miopen", "torch"])
unprojected = testing.specs(projection=False)
seeds = st.integers(0, 2**32 - 1)

# Layers, directions and a projection: the two layouts differ.
SPEC = RNNSpec(
    mode="lstm", input_size=3, hidden_size=5, num_layers=2, bidirectional=True, proj_size=2
)


def assert_equal_arrays(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def packed(spec=SPEC, backend="cudnn"):
    return RNNWeights.pack(testing.weights(spec, 0), spec, backend=backend)


def view_of(arrays, spec=SPEC, backend="cudnn"):
    return RNNWeights.view_of(arrays, spec, backend=backend)


# Packing


@given(testing.specs(), seeds, backends)
def test_arrays_is_the_inverse_of_pack(spec, seed, backend):
    arrays = testing.weights(spec, seed)
    weights = RNNWeights.pack(arrays, spec, backend=backend)
    assert_equal_arrays(weights.arrays(), arrays)
    assert weights.backend == backend
    assert weights.spec == spec
    assert weights.layout == weight_layout(spec, backend)
    assert weights.flat.shape == (weights.layout.size,)
    assert weights.flat.dtype == dtype_object(spec.dtype)


@given(testing.specs(), seeds, backends)
def test_each_gate_lies_where_the_layout_says(spec, seed, backend):
    arrays = testing.weights(spec, seed)
    names = [shape[:3] for shape in spec.parameter_shapes()]
    flat = RNNWeights.pack(arrays, spec, backend=backend).flat
    for parameter in weight_layout(spec, backend).parameters:
        array = arrays[names.index(parameter[:3])]
        gate = 0 if parameter.gate is None else spec.gates.index(parameter.gate)
        rows = parameter.shape[0]
        found = flat[parameter.offset : parameter.offset + parameter.size]
        np.testing.assert_array_equal(found, array[gate * rows : (gate + 1) * rows].ravel())


@given(testing.specs(), seeds)
def test_one_layout_is_packed_into_the_other(spec, seed):
    arrays = testing.weights(spec, seed)
    torch = RNNWeights.pack(arrays, spec, backend="torch")
    np.testing.assert_array_equal(torch.flat, np.concatenate([a.ravel() for a in arrays]))
    cudnn = RNNWeights.pack(torch.arrays(), spec, backend="cudnn")
    assert_equal_arrays(cudnn.arrays(), arrays)


def test_packing_copies_and_takes_any_strides():
    arrays = testing.weights(SPEC, 0)
    expected = [a.copy() for a in arrays]
    strided = [np.asfortranarray(a) for a in arrays]
    weights = RNNWeights.pack(iter(strided), SPEC)
    for array in strided:
        array[...] = 0
    assert_equal_arrays(weights.arrays(), expected)


def test_packing_into_a_given_buffer():
    out = np.empty(weight_layout(SPEC, "cudnn").size, np.float32)
    weights = RNNWeights.pack(testing.weights(SPEC, 0), SPEC, out=out)
    assert weights.flat is out
    np.testing.assert_array_equal(out, packed().flat)


# MIOpen's layout, which has the gates of an LSTM and of a GRU in another order


@given(unprojected, seeds)
def test_what_is_packed_for_miopen_comes_back(spec, seed):
    arrays = testing.weights(spec, seed)
    weights = RNNWeights.pack(arrays, spec, backend="miopen")
    assert weights.backend == "miopen"
    assert weights.layout == weight_layout(spec, "miopen")
    assert_equal_arrays(weights.arrays(), arrays)


@given(unprojected, seeds)
def test_each_gate_lies_where_miopen_looks_for_it(spec, seed):
    arrays = testing.weights(spec, seed)
    names = [shape[:3] for shape in spec.parameter_shapes()]
    flat = RNNWeights.pack(arrays, spec, backend="miopen").flat
    for parameter in weight_layout(spec, "miopen").parameters:
        array = arrays[names.index(parameter[:3])]
        rows = parameter.shape[0]
        first = spec.gates.index(parameter.gate) * rows
        found = flat[parameter.offset : parameter.offset + parameter.size]
        np.testing.assert_array_equal(found, array[first : first + rows].ravel())


def test_the_order_of_miopens_gates():
    # The permutation written by hand: i f g o becomes i f o g, r z n becomes z r n.
    for mode, order in (("lstm", (0, 1, 3, 2)), ("gru", (1, 0, 2))):
        spec = RNNSpec(mode=mode, input_size=2, hidden_size=3)
        arrays = testing.weights(spec, 0)
        flat = RNNWeights.pack(arrays, spec, backend="miopen").flat
        parts = [np.split(array, len(order)) for array in arrays]
        expected = [part[gate].ravel() for part in parts for gate in order]
        np.testing.assert_array_equal(flat, np.concatenate(expected))


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_arrays_out_of_miopens_order_are_copies(mode):
    spec = RNNSpec(mode=mode, input_size=2, hidden_size=3)
    weights = packed(spec, "miopen")
    first, second = weights.arrays(), weights.arrays()
    before = weights.flat.copy()
    for array in first:
        array[...] = 7
    np.testing.assert_array_equal(weights.flat, before)
    weights.flat[...] = 3
    assert not (second[0] == 3).any()
    assert all((array == 3).all() for array in weights.arrays())
    assert view_of(weights.arrays(), spec, "miopen") is None


@pytest.mark.parametrize("mode", ["rnn_tanh", "rnn_relu"])
def test_arrays_of_a_single_gate_are_views_in_miopens_layout_too(mode):
    spec = RNNSpec(mode=mode, input_size=2, hidden_size=3, num_layers=2, bidirectional=True)
    weights = packed(spec, "miopen")
    weights.arrays()[5][...] = 7
    assert (weights.flat == 7).sum() == weights.arrays()[5].size
    assert view_of(weights.arrays(), spec, "miopen") is not None


def test_miopens_layout_has_no_projection():
    with pytest.raises(UnsupportedError, match="no projection"):
        packed(SPEC, "miopen")
    with pytest.raises(UnsupportedError, match="no projection"):
        packed(SPEC).to("miopen")


# Conversion


@given(unprojected, seeds, all_backends, all_backends)
def test_conversion_is_packing_into_the_other_layout(spec, seed, source, target):
    arrays = testing.weights(spec, seed)
    found = RNNWeights.pack(arrays, spec, backend=source).to(target)
    expected = RNNWeights.pack(arrays, spec, backend=target)
    assert found.backend == target
    assert found.layout == expected.layout
    assert found.flat.dtype == expected.flat.dtype
    np.testing.assert_array_equal(found.flat, expected.flat)


@given(testing.specs(projection=True), seeds)
def test_conversion_with_a_projection(spec, seed):
    arrays = testing.weights(spec, seed)
    found = RNNWeights.pack(arrays, spec).to("torch")
    assert_equal_arrays(found.arrays(), arrays)
    assert_equal_arrays(found.to("cudnn").arrays(), arrays)


def test_conversion_into_its_own_layout_is_itself():
    weights = packed()
    assert weights.to("cudnn") is weights


def test_conversion_leaves_the_old_buffer_alone():
    weights = packed()
    before = weights.flat.copy()
    weights.to("torch").flat[...] = 0
    np.testing.assert_array_equal(weights.flat, before)


def test_conversion_into_an_unknown_layout():
    with pytest.raises(ValueError, match=r"^backend must be one of cudnn, .*; got 'jax'$"):
        packed().to("jax")


# Views


@given(testing.specs(), backends)
def test_writing_to_a_view_changes_flat(spec, backend):
    weights = RNNWeights.pack(testing.weights(spec, 0), spec, backend=backend)
    for number, view in enumerate(weights.arrays(), 1):
        view[...] = number
    numbers, counts = np.unique(weights.flat.astype("float64"), return_counts=True)
    assert numbers.tolist() == list(range(1, len(weights.arrays()) + 1))
    assert counts.tolist() == [view.size for view in weights.arrays()]


def test_writing_to_flat_changes_the_views():
    weights = packed()
    views = weights.arrays()
    weights.flat[...] = np.arange(weights.layout.size)
    assert views[0][0].tolist() == [0, 1, 2]
    assert all(np.shares_memory(view, weights.flat) for view in views)


def test_the_list_of_views_is_the_callers():
    weights = packed()
    weights.arrays().clear()
    assert len(weights.arrays()) == 20


# Recognising views of one buffer


@given(testing.specs(), backends)
def test_views_of_one_buffer_are_recognised(spec, backend):
    weights = RNNWeights.pack(testing.weights(spec, 0), spec, backend=backend)
    viewed = view_of(weights.arrays(), spec, backend)
    assert viewed.flat.ctypes.data == weights.flat.ctypes.data
    assert viewed.flat.shape == weights.flat.shape
    assert viewed.layout == weights.layout
    viewed.flat[...] = 7
    assert (weights.flat == 7).all()


@pytest.mark.parametrize("before", [0, 3])
def test_a_projected_lstm_without_biases_in_a_buffer_that_has_them(before):
    # PyTorch's flattened buffer holds zero biases after the three arrays of each direction.
    fields = {"mode": "lstm", "input_size": 3, "hidden_size": 5, "proj_size": 2, "num_layers": 2}
    spec, with_bias = RNNSpec(bias=False, **fields), RNNSpec(**fields)
    size, whole = (weight_layout(s, "cudnn").size for s in (spec, with_bias))
    buffer = np.arange(before + whole, dtype=np.float32)
    arrays = RNNWeights(buffer[before:], with_bias).arrays()
    arrays = [array for array in arrays if array.ndim == 2]
    assert len(arrays) == 6
    viewed = view_of(arrays, spec)
    assert viewed.flat.tolist() == list(range(before, before + size))
    assert np.shares_memory(viewed.flat, buffer)
    assert_equal_arrays(viewed.arrays(), arrays)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (4, 3), (6, 1)])
def test_views_of_a_buffer_of_bytes(before, after):
    weights = packed()
    raw = np.zeros(before + weights.flat.nbytes + after, np.uint8)
    flat = raw[before : before + weights.flat.nbytes].view(np.float32)
    flat[...] = weights.flat
    viewed = view_of(RNNWeights(flat, SPEC).arrays())
    assert viewed.flat.ctypes.data == flat.ctypes.data
    np.testing.assert_array_equal(viewed.flat, weights.flat)


def test_a_recognised_buffer_outlives_its_arrays():
    weights = packed()
    expected = weights.flat.copy()
    viewed = view_of(weights.arrays())
    del weights
    np.testing.assert_array_equal(viewed.flat, expected)


def test_copies_are_not_views():
    assert view_of([array.copy() for array in packed().arrays()]) is None


def test_one_copy_among_views_is_seen():
    for index in range(20):
        arrays = packed().arrays()
        arrays[index] = arrays[index].copy()
        assert view_of(arrays) is None


def test_views_in_another_order_are_not_the_layout():
    arrays = packed().arrays()
    arrays[2], arrays[3] = arrays[3], arrays[2]
    assert view_of(arrays) is None


def test_a_buffer_of_another_layout_is_not_taken():
    assert view_of(packed(backend="torch").arrays(), backend="cudnn") is None
    assert view_of(packed(backend="cudnn").arrays(), backend="torch") is None


def test_a_gap_between_the_arrays_is_seen():
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=5, bias=False)
    w_ih, w_hh = 45, 75
    buffer = np.zeros(w_ih + 1 + w_hh, np.float32)
    arrays = [buffer[:w_ih].reshape(15, 3), buffer[w_ih + 1 :].reshape(15, 5)]
    assert view_of(arrays, spec) is None
    arrays[1] = buffer[w_ih:-1].reshape(15, 5)
    assert view_of(arrays, spec) is not None


def test_a_transposed_view_is_not_the_array():
    spec = RNNSpec(mode="rnn_tanh", input_size=5, hidden_size=5)
    arrays = packed(spec).arrays()
    arrays[1] = arrays[1].T
    assert view_of(arrays, spec) is None


def test_a_view_of_another_shape_is_not_the_array():
    spec = RNNSpec(mode="rnn_tanh", input_size=5, hidden_size=5)
    arrays = packed(spec).arrays()
    arrays[2] = arrays[2].reshape(1, 5)
    assert view_of(arrays, spec) is None


def test_a_view_of_another_dtype_is_not_the_array():
    arrays = packed().arrays()
    arrays[3] = arrays[3].view(np.int32)
    assert view_of(arrays) is None


def test_neighbours_of_different_owners_are_not_one_buffer():
    # Two allocations may touch; no array spans both.
    buffer = packed().flat
    arrays = [
        np.frombuffer(memoryview(a), a.dtype).reshape(a.shape)
        for a in RNNWeights(buffer, SPEC).arrays()
    ]
    assert view_of(arrays) is None


# Refusals


SIZE = weight_layout(SPEC, "cudnn").size


class Exporter:
    """An array that has DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_a_buffer_from_dlpack_is_not_copied():
    buffer = np.zeros(SIZE, np.float32)
    weights = RNNWeights(Exporter(buffer), SPEC)
    buffer[...] = 3
    assert (weights.flat == 3).all()


@pytest.mark.parametrize("flat", [[0.0] * SIZE, None, "flat", 1.0], ids=["list", "None", "", "1"])
def test_flat_is_an_array(flat):
    with pytest.raises(TypeError, match=r"^flat must be a NumPy or CuPy array"):
        RNNWeights(flat, SPEC)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_flat_has_the_dtype_of_the_spec(dtype):
    with pytest.raises(
        TypeError, match=rf"^flat must have dtype float32; got {dtype}; use flat\.ast"
    ):
        RNNWeights(np.zeros(SIZE, dtype), SPEC)


@pytest.mark.parametrize("shape", [(SIZE - 1,), (SIZE + 1,), (1, SIZE), (0,), ()], ids=str)
def test_flat_has_the_size_of_the_layout(shape):
    with pytest.raises(ValueError, match=rf"^flat must have shape \({SIZE},\); got "):
        RNNWeights(np.zeros(shape, np.float32), SPEC)


def test_flat_is_contiguous():
    with pytest.raises(ValueError, match=r"^flat must be contiguous$"):
        RNNWeights(np.zeros(2 * SIZE, np.float32)[::2], SPEC)


def test_spec_and_backend_are_known():
    with pytest.raises(TypeError, match=r"^spec must be an RNNSpec; got dict$"):
        RNNWeights(np.zeros(SIZE, np.float32), {})
    with pytest.raises(ValueError, match=r"^backend must be one of cudnn, .*; got 'jax'$"):
        RNNWeights(np.zeros(SIZE, np.float32), SPEC, backend="jax")


@pytest.mark.parametrize("count", [0, 19, 21])
def test_packing_wants_every_array(count):
    arrays = (testing.weights(SPEC, 0) * 2)[:count]
    with pytest.raises(ValueError, match=rf"^weights: expected 20 arrays; got {count}$"):
        RNNWeights.pack(arrays, SPEC)


@pytest.mark.parametrize("index", [0, 7, 19])
def test_packing_names_an_array_of_the_wrong_shape(index):
    arrays = testing.weights(SPEC, 0)
    arrays[index] = arrays[index][:-1]
    with pytest.raises(ValueError, match=rf"^weights\[{index}\] \(.*must have shape .*; got"):
        RNNWeights.pack(arrays, SPEC)


@pytest.mark.parametrize("index", [0, 7, 19])
def test_packing_names_an_array_of_the_wrong_dtype(index):
    arrays = testing.weights(SPEC, 0)
    arrays[index] = arrays[index].astype("float64")
    message = (
        rf"^weights\[{index}\] must have dtype float32; got float64; use weights\[{index}\]\.ast"
    )
    with pytest.raises(TypeError, match=message):
        RNNWeights.pack(arrays, SPEC)


def test_packing_names_what_is_no_array():
    arrays = testing.weights(SPEC, 0)
    arrays[3] = arrays[3].tolist()
    with pytest.raises(
        TypeError, match=r"^weights\[3\] must be a NumPy or CuPy array.*; got list; use "
    ):
        RNNWeights.pack(arrays, SPEC)


def test_packing_refuses_a_masked_array():
    arrays = testing.weights(SPEC, 0)
    arrays[1] = np.ma.masked_less(arrays[1], 0)
    with pytest.raises(TypeError, match=r"^weights\[1\] must be a plain array; got MaskedArray$"):
        RNNWeights.pack(arrays, SPEC)


@pytest.mark.parametrize("gather", [set, frozenset, dict.fromkeys])
def test_arrays_without_an_order_are_not_packed(gather):
    # Arrays of other libraries may be put in a set.
    arrays = gather(Exporter(array) for array in testing.weights(SPEC, 0))
    name = type(arrays).__name__
    with pytest.raises(TypeError, match=rf"^arrays must be a sequence of arrays; got {name}$"):
        RNNWeights.pack(arrays, SPEC)


def test_packing_checks_the_given_buffer():
    with pytest.raises(ValueError, match=r"must have shape \(640,\); got \(3,\)$"):
        RNNWeights.pack(testing.weights(SPEC, 0), SPEC, out=np.zeros(3, np.float32))


@pytest.mark.parametrize("backend", ["torch", "cudnn"])
def test_the_given_buffer_is_apart_from_the_arrays(backend):
    weights = packed(backend="torch")
    before = weights.flat.copy()
    with pytest.raises(ValueError, match=r"^weights\[0\] and out must not share memory: one is"):
        RNNWeights.pack(weights.arrays(), SPEC, backend=backend, out=weights.flat)
    np.testing.assert_array_equal(weights.flat, before)


UNPACKED = {
    "too few": (lambda a: a[:-1], ValueError, r"^weights: expected 20 arrays; got 19$"),
    "of another dtype": (
        lambda a: [*a[:-1], a[-1].astype("i4")],
        TypeError,
        r"^weights\[19\] must have dtype float32; got int32$",
    ),
    "larger": (
        lambda a: [*a[:-1], np.stack([a[-1]] * 2)],
        ValueError,
        r"^weights\[19\] \(.*\) must have shape \(2, 5\); got \(2, 2, 5\)$",
    ),
    "of no array": (lambda a: [*a[:-1], a[-1].tolist()], TypeError, r"^weights\[19\] must be a "),
    "None": (lambda a: None, TypeError, r"^arrays must be a sequence of arrays; got NoneType$"),
}


def test_arrays_to_unpack_into_share_no_memory():
    arrays = [np.zeros_like(array) for array in testing.weights(SPEC, 0)]
    memory = np.zeros((arrays[0].shape[0], arrays[0].shape[1] + 1), np.float32)
    arrays[0], other = memory[:, :-1], memory[: arrays[1].shape[0], 1:]
    index = next(number for number, one in enumerate(arrays[1:], 1) if one.shape == other.shape)
    arrays[index] = other
    with pytest.raises(ValueError, match="must not share memory"):
        packed(backend="torch").unpack(arrays)


@pytest.mark.parametrize(("make", "error", "message"), UNPACKED.values(), ids=list(UNPACKED))
def test_arrays_to_unpack_into_are_checked_before_any_is_written(make, error, message):
    arrays = [np.zeros_like(array) for array in testing.weights(SPEC, 0)]
    with pytest.raises(error, match=message):
        packed(backend="torch").unpack(make(arrays))
    assert not any(array.any() for array in arrays)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda a: [], ValueError, r"^weights: expected 20 arrays; got 0$"),
        (lambda a: a[:-1], ValueError, r"^weights: expected 20 arrays; got 19$"),
        (lambda a: {}, TypeError, r"^arrays must be a sequence of arrays; got dict$"),
        (lambda a: [*a[:-1], [[1, 2]]], TypeError, r"^weights\[19\] must be a NumPy or CuPy array"),
    ],
    ids=["none", "too few", "a dict", "of no array"],
)
def test_what_may_be_a_view_is_checked(make, error, message):
    with pytest.raises(error, match=message):
        view_of(make(packed().arrays()))


# Weights with another buffer, and the attributes of weights


def test_another_buffer_of_the_same_layout():
    weights = packed(backend="torch")
    other = weights.like(np.ones(SIZE, np.float32))
    assert other.backend == "torch"
    assert other.spec == SPEC
    assert (other.arrays()[5] == 1).all()
    with pytest.raises(ValueError, match=r"^flat must have shape"):
        weights.like(np.ones(3, np.float32))


def test_completion_shows_what_users_need():
    assert [name for name in dir(packed()) if not name.startswith("_")] == [
        *("all_from_onnx", "arrays", "backend", "flat", "from_equinox", "from_flax", "from_keras"),
        *("from_onnx", "from_torch", "layout", "like", "load", "pack", "random", "save", "spec"),
        *("to", "to_keras", "to_onnx", "to_torch", "unpack", "view_of"),
    ]


# Arrays on a device, without CuPy


@pytest.fixture
def on_device(monkeypatch):
    """A function that makes a user's array of one of NumPy's."""
    user_arrays.install(monkeypatch)
    return partial(UserArray.of, lambda nbytes: (ctypes.c_char * nbytes)())


def test_arrays_on_a_device_without_an_allocator_are_packed_on_the_host(on_device):
    arrays = packed().arrays()
    for those in ([on_device(a) for a in arrays], [*arrays[:1], *map(on_device, arrays[1:])]):
        found = RNNWeights.pack(those, SPEC)
        assert type(found.flat) is np.ndarray
        np.testing.assert_array_equal(found.flat, packed().flat)


def test_a_conversion_of_weights_on_a_device_is_on_the_host(on_device):
    found = RNNWeights(on_device(packed().flat), SPEC).to("torch")
    assert type(found.flat) is np.ndarray
    np.testing.assert_array_equal(found.flat, packed().to("torch").flat)


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "after arrays()"])
@pytest.mark.parametrize("backend", ["cudnn", "torch"])
def test_copies_have_a_buffer_of_their_own_and_views_into_it(backend, used):
    weights = packed(backend=backend)
    if used:
        weights.arrays()
    before = weights.flat.copy()
    for made in (copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
        assert type(made) is RNNWeights
        assert made.layout == weights.layout
        np.testing.assert_array_equal(made.flat, before)
        made.flat[...] = 9
        assert all((view == 9).all() for view in made.arrays())
        np.testing.assert_array_equal(weights.flat, before)


def test_a_shallow_copy_shares_the_buffer():
    weights = packed()
    assert copy.copy(weights).flat is weights.flat


def test_repr_tells_spec_layout_and_size():
    assert repr(packed()) == f"RNNWeights({SPEC!r}, backend='cudnn', size=640)"
