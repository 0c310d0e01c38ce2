"""PyTorch's names: any order, prefixes, everything inferred, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from equations import bare, check, expect
from hypothesis import given
from hypothesis import strategies as st

import dnnffi
from dnnffi import RNNSpec, RNNWeights, testing


def state_of(spec, prefix="", seed=0):
    """A state dictionary as torch.nn gives it, written down apart from dnnffi's names."""
    names = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    return {
        f"{prefix}{names.get(p.name, 'weight_hr')}_l{p.layer}{'_reverse' * p.direction}": array
        for p, array in zip(spec.parameter_shapes(), testing.weights(spec, seed), strict=True)
    }


class Module:
    """A module, which has a state and is none."""

    def state_dict(self):
        raise AssertionError("it is not called")


def lstm_state(**keywords):
    keywords = {"mode": "lstm", "input_size": 3, "hidden_size": 5} | keywords
    return state_of(RNNSpec(**keywords))


@given(testing.specs(), st.randoms(use_true_random=False))
def test_names_in_any_order_give_pytorchs_arrays(spec, shuffler):
    state = state_of(spec)
    items = list(state.items())
    shuffler.shuffle(items)
    weights = RNNWeights.from_torch(dict(items), spec.mode)
    assert (weights.spec, weights.backend) == (spec, "cudnn")
    for found, expected in zip(weights.arrays(), state.values(), strict=True):
        np.testing.assert_array_equal(found, expected)


@given(testing.specs(), st.sampled_from(["cudnn", "miopen", "torch", "reference"]))
def test_there_and_back(spec, backend):
    if spec.proj_size and backend == "miopen":
        return
    state = state_of(spec)
    weights = RNNWeights.from_torch(state, spec.mode, backend=backend)
    assert weights.backend == ("torch" if backend == "reference" else backend)
    back = weights.to_torch(prefix="net.")
    assert list(back) == [f"net.{name}" for name in state]
    for found, expected in zip(back.values(), state.values(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_it_is_the_network_of_pytorchs_equations(mode, bidirectional):
    spec = RNNSpec(
        mode=mode,
        input_size=3,
        hidden_size=4,
        num_layers=2,
        bidirectional=bidirectional,
        dtype="float64",
    )
    state = state_of(spec)
    check(RNNWeights.from_torch(state, mode), expect(bare(mode), spec, list(state.values())))


def test_of_a_model_the_names_with_the_prefix_count():
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=5)
    state = state_of(spec, "encoder.rnn.") | {"head.weight": np.zeros((2, 5), "float32")}
    assert RNNWeights.from_torch(state, "gru", prefix="encoder.rnn.").spec == spec


def two_networks():
    encoder = RNNSpec(mode="gru", input_size=3, hidden_size=5)
    decoder = RNNSpec(mode="lstm", input_size=2, hidden_size=4, bidirectional=True)
    return state_of(encoder, "encoder.") | state_of(decoder, "net.decoder."), encoder, decoder


def test_the_only_network_of_a_model_needs_no_prefix():
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=5)
    state = state_of(spec, "net.encoder.") | {"head.weight": np.zeros((2, 5), "float32")}
    assert RNNWeights.from_torch(state).spec == spec


def test_the_prefixes_of_several_networks_are_listed():
    state, *_ = two_networks()
    message = r"^state_dict: 2 networks; pass prefix='encoder\.' or prefix='net\.decoder\.'$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_torch(state)
    with pytest.raises(ValueError, match=r"^state_dict: no network with prefix 'x'; pass prefix='"):
        RNNWeights.from_torch(state, prefix="x")


def test_a_prefix_may_be_the_beginning_of_only_one():
    state, encoder, decoder = two_networks()
    assert RNNWeights.from_torch(state, prefix="net.").spec == decoder
    assert RNNWeights.from_torch(state, prefix="encoder.").spec == encoder


def test_the_network_at_the_top_is_taken_by_an_empty_prefix():
    state, *_ = two_networks()
    top = RNNSpec(mode="lstm", input_size=1, hidden_size=2)
    assert RNNWeights.from_torch(state | state_of(top), prefix="").spec == top
    with pytest.raises(ValueError, match=r"^state_dict: 3 networks; pass prefix='encoder.' or "):
        RNNWeights.from_torch(state | state_of(top))


def test_a_list_of_prefixes_stacks_networks():
    first = RNNSpec(mode="gru", input_size=3, hidden_size=5, num_layers=2)
    second = RNNSpec(mode="gru", input_size=5, hidden_size=5)
    state = state_of(first, "a.") | state_of(second, "b.", seed=1)
    weights = RNNWeights.from_torch(state, prefix=["a.", "b."])
    assert weights.spec == RNNSpec(mode="gru", input_size=3, hidden_size=5, num_layers=3)
    for found, expected in zip(weights.arrays(), state.values(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_stacked_networks_are_of_one_mode():
    state, *_ = two_networks()
    with pytest.raises(ValueError, match=r"^layers must be of one mode; got gru, lstm$"):
        RNNWeights.from_torch(state, prefix=["encoder.", "net.decoder."])


def test_what_is_there_instead_is_named():
    message = r"^state_dict: no weights of an RNN .*; its names are kernel$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_torch({"kernel": np.zeros((3, 5))}, "gru")
    with pytest.raises(ValueError, match=r"its names are none$"):
        RNNWeights.from_torch({}, "gru")


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("bias", [True, False])
def test_names_of_a_cell_are_a_layer(mode, bias):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=5, bias=bias)
    state = {name.removesuffix("_l0"): one for name, one in state_of(spec, "net.cell.").items()}
    weights = RNNWeights.from_torch(state, mode)
    assert weights.spec == spec
    for found, expected in zip(weights.arrays(), state.values(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_cells_are_stacked_by_their_prefixes():
    spec = RNNSpec(mode="lstm", input_size=5, hidden_size=5, num_layers=2)
    first = RNNSpec(mode="lstm", input_size=5, hidden_size=5)
    state = {
        name.removesuffix("_l0"): one
        for at in (0, 1)
        for name, one in state_of(first, f"cells.{at}.", seed=at).items()
    }
    assert RNNWeights.from_torch(state, prefix=["cells.0.", "cells.1."]).spec == spec


def test_a_cell_with_other_arrays_is_refused():
    state = {"weight_ih": np.zeros((20, 3)), "weight_hh": np.zeros((20, 5)), "bias": np.zeros(20)}
    with pytest.raises(ValueError, match=r"^state_dict: unexpected: bias$"):
        RNNWeights.from_torch(state)


@pytest.mark.parametrize("proj_size", [0, 2])
def test_the_mode_is_seen_in_the_shapes(proj_size):
    assert RNNWeights.from_torch(lstm_state(proj_size=proj_size)).spec.mode == "lstm"
    assert RNNWeights.from_torch(lstm_state(mode="gru")).spec.mode == "gru"


def test_the_nonlinearity_is_not_seen_in_the_shapes():
    message = r"^weight_ih_l0 has shape \(5, 3\), .*: pass mode='rnn_tanh' or mode='rnn_relu'$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_torch(lstm_state(mode="rnn_relu"))


def test_shapes_of_no_mode_are_refused():
    state = {"weight_ih": np.zeros((10, 3)), "weight_hh": np.zeros((10, 5))}
    with pytest.raises(ValueError, match=r"^weight_ih has shape \(10, 3\), and shapes do not show"):
        RNNWeights.from_torch(state)


OWN_NAMES = {"w": "weight_ih_l0", "r": "weight_hh_l0", "bw": "bias_ih_l0", "br": "bias_hh_l0"}


def own_state():
    state = dict(zip(OWN_NAMES, lstm_state().values(), strict=True))
    return state | {"head": np.zeros((2, 5))}


def test_a_mapping_of_names_selects_and_renames():
    weights = RNNWeights.from_torch(own_state(), names=OWN_NAMES)
    for found, expected in zip(weights.arrays(), lstm_state().values(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("names", "prefix", "error", "message"),
    [
        (["w"], None, TypeError, r"names must be a mapping of str to str; got \['w'\]$"),
        ({"w": 1}, None, TypeError, r"names must be a mapping of str to str; got "),
        (OWN_NAMES, "", ValueError, "names has whole names: pass either names or prefix$"),
        (OWN_NAMES | {"q": "x"}, None, ValueError, "state_dict: missing: q; its names are w, r, "),
        (OWN_NAMES | {"w": "weight_hh_l0"}, None, ValueError, "names gives several arrays one na"),
        (OWN_NAMES | {"head": "head"}, None, ValueError, "state_dict: unexpected: head$"),
        ({"w": "weight_ih_l0"}, None, ValueError, "state_dict: missing: weight_hh_l0$"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(names, prefix, error, message):
    with pytest.raises(error, match=f"^{message}"):
        RNNWeights.from_torch(own_state(), names=names, prefix=prefix)


def test_missing_and_unexpected_names_are_listed():
    state = lstm_state(num_layers=2)
    del state["bias_hh_l0"], state["weight_hh_l1"]
    state["scale"] = np.zeros(1)
    message = r"^state_dict: missing: bias_hh_l0, weight_hh_l1; unexpected: scale$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.from_torch(state, "lstm")


def test_a_layer_that_is_left_out_is_missing():
    state = {k: v for k, v in lstm_state(num_layers=3).items() if "_l1" not in k}
    with pytest.raises(ValueError, match=r"missing: weight_ih_l1, weight_hh_l1, bias_ih_l1, bias_"):
        RNNWeights.from_torch(state, "lstm")


@pytest.mark.parametrize(
    ("mode", "asked"), [("lstm", "gru"), ("gru", "lstm"), ("gru", "rnn_tanh"), ("rnn_relu", "gru")]
)
def test_the_weights_of_another_mode_are_recognised(mode, asked):
    with pytest.raises(ValueError, match=rf"weight_ih_l0 must have .*it is that of mode .*{mode}"):
        RNNWeights.from_torch(lstm_state(mode=mode), asked)


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0"])
def test_a_transposed_matrix_is_named(name):
    state = lstm_state()
    state[name] = state[name].T
    with pytest.raises(ValueError, match=rf"^{name} must have .*; it is transposed$"):
        RNNWeights.from_torch(state, "lstm")


def test_a_layer_of_another_width_is_named():
    state = lstm_state(num_layers=2)
    state["weight_ih_l1"] = state["weight_ih_l1"][:, :4]
    with pytest.raises(ValueError, match=r"^layer 1, direction 0: w_ih must have shape \(20, 5\)"):
        RNNWeights.from_torch(state, "lstm")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ([], "lstm"),
            TypeError,
            "state_dict must be a mapping of names; got list; RNNWeights.pack takes a list in PyTo",
        ),
        (("net.pt",), TypeError, r"state_dict .*; got str: RNNWeights\.load\(path\) reads files$"),
        ((Module(), "lstm"), TypeError, r"state_dict must be .*; got Module; pass module\.state_d"),
        (
            (lstm_state() | {3: np.zeros(1)}, "lstm"),
            TypeError,
            "state_dict must have names that are str; got 3$",
        ),
        ((lstm_state(), "LSTM"), ValueError, "mode must be one of lstm, gru, .*; got 'LSTM'"),
        ((lstm_state() | {"bias_ih_l0": [0]}, "lstm"), TypeError, "bias_ih_l0 must be a NumPy"),
        (
            (lstm_state() | {"bias_ih_l0": np.zeros(20)}, "lstm"),
            TypeError,
            "layer 0, direction 0: b_ih must have the dtype of the first array, float32; got",
        ),
        (
            ({k: v.astype(int) for k, v in lstm_state().items()}, "lstm"),
            TypeError,
            "weight_ih_l0 must have one of the dtypes",
        ),
        (
            (lstm_state() | {"bias_ih_l0": np.zeros(5, "float32")}, "lstm"),
            ValueError,
            r"bias_ih_l0 must have shape \(20,\); got \(5,\)",
        ),
        (
            (lstm_state() | {"weight_hh_l0": np.zeros(5, "float32")}, "lstm"),
            ValueError,
            r"weight_hh_l0 must have shape \[G\*H, O\]; got \(5,\)",
        ),
    ],
)
def test_what_is_refused(arguments, error, message):
    with pytest.raises(error, match=f"^{message}"):
        RNNWeights.from_torch(*arguments)


def test_prefix_and_backend_are_checked():
    for prefix in (3, [], ["a.", 3]):
        with pytest.raises(TypeError, match=r"^prefix must be a str, or a list of them; got "):
            RNNWeights.from_torch(lstm_state(), "lstm", prefix=prefix)
    with pytest.raises(ValueError, match=r"^backend must be one of cudnn, miopen, torch; got 'x'$"):
        RNNWeights.from_torch(lstm_state(), "lstm", backend="x")


def test_sorted_names_are_not_read_in_their_order():
    # Files sort them so: the biases come first.
    state = lstm_state()
    by_name = RNNWeights.from_torch(dict(sorted(state.items())), "lstm")
    x = np.random.default_rng(1).standard_normal((4, 2, 3)).astype("float32")
    expected, _ = dnnffi.lstm(x, None, list(state.values()))
    found, _ = dnnffi.lstm(x, None, by_name)
    np.testing.assert_array_equal(found, expected)


class OfAnotherDtype:
    """A tensor whose dtype NumPy does not take, as it refuses bfloat16."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **keywords):
        raise RuntimeError("Unsupported dtype in DLTensor.")


def test_a_tensor_that_numpy_does_not_take_is_named():
    state = lstm_state() | {"weight_hh_l0": OfAnotherDtype()}
    message = (
        r"^weight_hh_l0 cannot be seen as an array .*\(Unsupported dtype in DLTensor\.\); if it"
    )
    with pytest.raises(TypeError, match=message):
        RNNWeights.from_torch(state, "lstm")


@pytest.mark.parametrize(
    ("backend", "layout"),
    [(None, "cudnn"), ("cudnn", "cudnn"), ("miopen", "miopen"), ("reference", "torch")],
)
def test_the_layout_is_the_default_unless_it_is_named(backend, layout):
    assert RNNWeights.from_torch(lstm_state(), "lstm", backend=backend).backend == layout
