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


def test_the_prefixes_that_there_are_are_named():
    state = state_of(RNNSpec(mode="gru", input_size=3, hidden_size=5), "encoder.")
    with pytest.raises(ValueError, match=r"no weight_ih_l0; there is one with prefix='encoder\.'$"):
        RNNWeights.from_torch(state, "gru")


def test_what_is_there_instead_is_named():
    with pytest.raises(ValueError, match=r"^state_dict has no weight_ih_l0; its names are kernel$"):
        RNNWeights.from_torch({"kernel": np.zeros((3, 5))}, "gru")
    with pytest.raises(ValueError, match=r"its names are none$"):
        RNNWeights.from_torch({}, "gru")


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
        (([], "lstm"), TypeError, "state_dict must be a mapping of names; got list$"),
        ((Module(), "lstm"), TypeError, r"state_dict must be .*; got Module; pass module\.state_d"),
        (
            (lstm_state() | {3: np.zeros(1)}, "lstm"),
            TypeError,
            "state_dict must have names that are str; got 3$",
        ),
        ((lstm_state(), "LSTM"), ValueError, "mode must be one of lstm, gru, .*; got 'LSTM'"),
        ((lstm_state(), None), ValueError, "mode must be one of .*; got None"),
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
    with pytest.raises(TypeError, match=r"^prefix must be a str; got NoneType$"):
        RNNWeights.from_torch(lstm_state(), "lstm", prefix=None)
    with pytest.raises(ValueError, match=r"^backend must be one of cudnn, miopen, torch; got 'x'$"):
        RNNWeights.from_torch(lstm_state(), "lstm", backend="x")


def test_sorted_names_are_not_read_in_their_order():
    # As files sort them: the biases come first.
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
