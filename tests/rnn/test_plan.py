"""Plans that users hold, on the reference: their results, the arrays for these, and the order."""

from __future__ import annotations

import copy
import gc
import pickle
from weakref import ref

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNPlan, RNNSpec, RNNWeights
from dnnffi.errors import ContextError, LibraryNotFoundError, UnsupportedError
from dnnffi.rnn.backend import warn_of_dropout
from dnnffi.rnn.context import Context

STEPS, BATCH = 4, 2
SPECS = {mode: RNNSpec(mode=mode, input_size=3, hidden_size=5) for mode in ("lstm", "gru")}
SHAPES = {"y": (4, 2, 5), "x": (4, 2, 3), "h": (1, 2, 5)}
FORMS = {
    ("lstm", "forward"): "(y, (h_n, c_n))",
    ("gru", "forward"): "(y, h_n)",
    ("lstm", "backward_data"): "(dx, (dh_0, dc_0))",
    ("gru", "backward_data"): "(dx, dh_0)",
}


def random(shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("f4")


def weights_of(spec, backend="torch"):
    size = dnnffi.weight_layout(spec, backend).size
    return RNNWeights(random(size), spec, backend=backend)


def plan_of(mode, **keywords):
    return RNNPlan(
        SPECS[mode], batch=BATCH, steps=STEPS, training=True, backend="reference", **keywords
    )


def zeros(mode, first):
    """An ``out`` for results of which the first has the shape of x or y."""
    h, c = (np.zeros(SHAPES["h"], "f4") for _ in range(2))
    return np.zeros(SHAPES[first], "f4"), ((h, c) if mode == "lstm" else h)


def flattened(results):
    first, state = results
    return [first, *(state if isinstance(state, tuple) else (state,))]


def called(plan, mode, method, out=None):
    """``method`` with ``out``, after what has to come before it."""
    x, weights = random(SHAPES["x"]), weights_of(SPECS[mode])
    if method == "forward":
        return plan.forward(x, None, weights, out=out)
    plan.forward(x, None, weights)
    return plan.backward_data(random(SHAPES["y"], 1), out=out)


@pytest.mark.parametrize(("mode", "method"), FORMS)
def test_results_go_into_out(mode, method):
    with plan_of(mode) as plan:
        expected = flattened(called(plan, mode, method))
        for _ in range(2):  # a tuple that is known the second time
            out = zeros(mode, "y" if method == "forward" else "x")
            found = flattened(called(plan, mode, method, out))
            for one, own, right in zip(found, flattened(out), expected, strict=True):
                assert one is own
                np.testing.assert_array_equal(one, right)


@pytest.mark.parametrize(("mode", "method"), FORMS)
def test_out_has_the_structure_of_the_results(mode, method):
    first, state = zeros(mode, "y" if method == "forward" else "x")
    with plan_of(mode) as plan:
        for wrong in (first, (first,), (first, state, state), [first], {0: first, 1: state}, 3):
            with pytest.raises(TypeError) as caught:
                called(plan, mode, method, wrong)
            assert str(caught.value) == f"out must be {FORMS[mode, method]}"


@pytest.mark.parametrize(("mode", "method"), FORMS)
def test_no_array_of_out_is_missing(mode, method):
    first, state = zeros(mode, "y" if method == "forward" else "x")
    names = FORMS[mode, method].replace("(", "").replace(")", "").split(", ")
    with plan_of(mode) as plan:
        for wrong, name in (((None, state), names[0]), ((first, None), names[1])):
            with pytest.raises(TypeError) as caught:
                called(plan, mode, method, wrong)
            assert str(caught.value) == f"out must be {FORMS[mode, method]}; {name} is None"


@pytest.mark.parametrize(("mode", "method"), FORMS)
def test_arrays_of_out_have_the_shapes_of_the_results(mode, method):
    names = FORMS[mode, method].replace("(", "").replace(")", "").split(", ")
    with plan_of(mode) as plan:
        for index, name in enumerate(names):
            arrays = flattened(zeros(mode, "y" if method == "forward" else "x"))
            shape = arrays[index].shape
            arrays[index] = arrays[index][1:]
            first, *state = arrays
            with pytest.raises(ValueError) as caught:  # noqa: PT011 - all of the message is below
                called(plan, mode, method, (first, tuple(state) if mode == "lstm" else state[0]))
            got = (shape[0] - 1, *shape[1:])
            assert str(caught.value) == f"{name} must have shape {shape}; got {got}"


@pytest.mark.parametrize("method", ["forward", "backward_data"])
def test_arrays_of_out_are_of_the_dtype_contiguous_and_apart(method):
    first, shape = ("y", SHAPES["y"]) if method == "forward" else ("dx", SHAPES["x"])
    names = ("h_n", "c_n") if method == "forward" else ("dh_0", "dc_0")
    zero, (h, c) = zeros("lstm", "y" if method == "forward" else "x")
    for out, error, message in (
        ((zero.astype("f8"), (h, c)), TypeError, f"{first} must have dtype float32; got float64"),
        ((np.zeros(shape, "f4", order="F"), (h, c)), ValueError, f"{first} must be contiguous; "),
        ((zero, (h, h)), ValueError, f"{names[1]} and {names[0]} must not share memory"),
    ):
        with plan_of("lstm") as plan, pytest.raises(error, match=f"^{message}"):
            called(plan, "lstm", method, out)


def test_a_forward_after_a_refused_one_is_as_ever():
    out, (h, _) = zeros("lstm", "y")
    with plan_of("lstm") as plan:
        called(plan, "lstm", "forward")
        with pytest.raises(ValueError, match="share memory"):
            plan.forward(random(SHAPES["x"]), None, weights_of(SPECS["lstm"]), out=(out, (h, h)))
        plan.backward_data(random(SHAPES["y"], 1))  # of the first one


def test_results_of_out_are_arrays():
    y, (h_n, c_n) = zeros("lstm", "y")
    with plan_of("lstm") as plan:
        for wrong, name in (((y.tolist(), (h_n, c_n)), "y"), ((y, (h_n, c_n.tolist())), "c_n")):
            with pytest.raises(TypeError, match=rf"^{name} must be a NumPy or CuPy array, .* list"):
                called(plan, "lstm", "forward", wrong)


def test_a_list_of_out_may_change_between_calls():
    with plan_of("gru") as plan:
        out = list(zeros("gru", "y"))
        called(plan, "gru", "forward", out)
        out[0] = np.zeros(SHAPES["y"], "f4")
        called(plan, "gru", "forward", out)
        assert out[0].any()


def test_a_list_in_a_tuple_of_out_may_change_between_calls():
    with plan_of("lstm") as plan:
        y, (h_n, c_n) = zeros("lstm", "y")
        out = y, [h_n, c_n]
        called(plan, "lstm", "forward", out)
        out[1][1] = np.zeros(SHAPES["h"], "f4")
        called(plan, "lstm", "forward", out)
        assert out[1][1].any()


@pytest.mark.parametrize("mode", SPECS)
def test_a_tuple_of_out_is_looked_at_once(mode, monkeypatch):
    with plan_of(mode) as plan:
        out = zeros(mode, "y")
        expected = called(plan, mode, "forward")[0]
        called(plan, mode, "forward", out)
        monkeypatch.setattr("dnnffi.rnn.plan.pair", None)
        called(plan, mode, "forward", out)
        np.testing.assert_array_equal(out[0], expected)


def test_a_closed_plan_keeps_no_array():
    plan, out = plan_of("gru"), zeros("gru", "y")
    x, weights = random(SHAPES["x"]), weights_of(SPECS["gru"])
    kept = [ref(x), ref(weights.flat), *map(ref, out)]
    plan.forward(x, None, weights, out=out)
    plan.close()
    del x, weights, out
    gc.collect()
    assert [array() is None for array in kept] == [True] * 4


@pytest.mark.parametrize("mode", SPECS)
def test_both_backwards_at_once_are_one_after_the_other(mode):
    x, dy, weights = random(SHAPES["x"]), random(SHAPES["y"], 1), weights_of(SPECS[mode])
    with plan_of(mode) as plan:
        plan.forward(x, None, weights)
        data = flattened(plan.backward_data(dy))
        gradient = plan.backward_weights()
        plan.forward(x, None, weights)
        out, out_weights = zeros(mode, "x"), weights.like(np.zeros_like(weights.flat))
        both, found = plan.backward(dy, None, out, out_weights)
    assert found is out_weights
    np.testing.assert_array_equal(found.flat, gradient.flat)
    for one, own, right in zip(flattened(both), flattened(out), data, strict=True):
        assert one is own
        np.testing.assert_array_equal(one, right)


def test_the_gradient_of_the_weights_is_put_over_out_or_added():
    weights = weights_of(SPECS["gru"])
    with plan_of("gru") as plan:
        called(plan, "gru", "backward_data")
        gradient = plan.backward_weights()
        out = weights.like(np.ones_like(weights.flat))
        called(plan, "gru", "backward_data")
        assert plan.backward_weights(out) is out
        np.testing.assert_array_equal(out.flat, gradient.flat)
        called(plan, "gru", "backward_data")
        assert plan.backward_weights(out, accumulate=True) is out
        np.testing.assert_array_equal(out.flat, gradient.flat + gradient.flat)


def test_the_gradient_of_the_weights_is_apart_from_x():
    spec = SPECS["gru"]
    gradient = weights_of(spec)
    with plan_of("gru") as plan:
        plan.forward(gradient.flat[: 4 * 2 * 3].reshape(4, 2, 3), None, weights_of(spec))
        plan.backward_data()
        with pytest.raises(ValueError, match=r"^(x and out_weights|out_weights and x)"):
            plan.backward_weights(out=gradient)


@pytest.mark.parametrize("method", ["backward", "backward_weights"])
def test_the_gradient_of_the_weights_is_of_their_spec_and_layout(method):
    weights, other = weights_of(SPECS["gru"]), weights_of(SPECS["lstm"])
    with plan_of("gru") as plan:

        def run(out):
            if method == "backward":
                plan.backward(out_weights=out)
            else:
                plan.backward_weights(out)

        called(plan, "gru", "forward")
        with pytest.raises(TypeError, match=r"^out must be an RNNWeights; got ndarray$"):
            run(weights.flat)
        for wrong in (other, weights.to("cudnn")):
            with pytest.raises(ValueError, match=r"^out must have the spec and layout of the wei"):
                run(wrong)


def test_accumulate_needs_what_it_adds_to():
    with plan_of("gru") as plan:
        called(plan, "gru", "backward_data")
        with pytest.raises(ValueError, match=r"^accumulate=True needs out"):
            plan.backward_weights(accumulate=True)
        with pytest.raises(TypeError, match=r"^accumulate must be True or False"):
            plan.backward_weights(accumulate=1)


def test_each_backward_runs_once_in_its_order():
    with plan_of("gru") as plan:
        with pytest.raises(
            ContextError,
            match=r"^backward data runs once after each forward pass: call forward first$",
        ):
            plan.backward_data()
        with pytest.raises(ContextError, match=r"^backward weights runs once, after backward data"):
            plan.backward_weights()
        called(plan, "gru", "backward_data")
        with pytest.raises(
            ContextError,
            match=r"^backward data runs once after each forward pass: call forward first$",
        ):
            plan.backward_data()
        plan.backward_weights()
        with pytest.raises(ContextError, match=r"^backward weights runs once, after backward data"):
            plan.backward_weights()
        called(plan, "gru", "backward_data")
        called(plan, "gru", "forward")
        with pytest.raises(ContextError, match=r"^backward weights runs once, after backward data"):
            plan.backward_weights()


def test_a_plan_is_for_inference_unless_it_is_for_training():
    with RNNPlan(SPECS["gru"], batch=BATCH, steps=STEPS, backend="reference") as plan:
        assert (plan.problem.training, plan.device, plan.closed) == (False, 0, False)
        assert plan.problem.x_shape == SHAPES["x"]
        called(plan, "gru", "forward")
        with pytest.raises(ContextError, match=r"^this plan is for inference; make it with train"):
            plan.backward_data()


@pytest.mark.parametrize(
    "call",
    [
        lambda plan: called(plan, "gru", "forward"),
        lambda plan: plan.backward_data(),
        lambda plan: plan.backward_weights(),
        lambda plan: plan.backward(),
        lambda plan: plan.autotune(),
    ],
    ids=["forward", "backward_data", "backward_weights", "backward", "autotune"],
)
def test_a_closed_plan_refuses_each_call(call):
    plan = plan_of("gru")
    plan.autotune()  # nothing to measure
    plan.close()
    plan.close()
    assert plan.closed
    with pytest.raises(ValueError, match=r"^this plan is closed$"):
        call(plan)


def conv_plan(**keywords):
    spec = dnnffi.ConvSpec(in_channels=1, out_channels=1, kernel=(3,))
    return dnnffi.ConvPlan(spec, (1, 1, 8), **keywords)


def rnn_plan(**keywords):
    return RNNPlan(SPECS["gru"], batch=BATCH, steps=STEPS, **keywords)


NO_GPU = {
    "no CuPy": lambda: ImportError("CuPy is needed"),
    "no library": lambda: LibraryNotFoundError("libcudnn", ["a folder"], "pip install it"),
    "no driver": lambda: RuntimeError("cudaErrorNoDevice"),
}


@pytest.mark.parametrize("make", [rnn_plan, conv_plan])
@pytest.mark.parametrize("why", NO_GPU.values(), ids=NO_GPU)
def test_a_plan_of_a_library_that_cannot_be_used_says_why(make, why, monkeypatch):
    error = why()

    def missing(*args, **keywords):
        raise error

    monkeypatch.setattr("dnnffi.backends.resources.resources_of", missing)
    with pytest.raises(type(error)) as raised:
        make(backend="cudnn")
    assert raised.value is error


@pytest.mark.parametrize("device", [None, 0])
def test_a_plan_on_arrays_of_numpy_runs_on_the_reference(device):
    spec, x = SPECS["gru"], random(SHAPES["x"])
    weights = weights_of(spec)
    with rnn_plan(training=True, device=device) as plan:
        assert plan.problem.x_shape == SHAPES["x"]
        plan.autotune()
        y, _ = plan.forward(x, None, weights)
        np.testing.assert_array_equal(y, dnnffi.gru(x, None, weights)[0])
        assert plan.device == 0
        plan.backward(np.ones_like(y))


def test_a_first_call_that_fails_chooses_no_device():
    plan = rnn_plan()
    with pytest.raises(ValueError, match="x must have shape"):
        plan.forward(random((1, 1, 1)), None, weights_of(SPECS["gru"]))
    assert plan.device is None


@pytest.mark.parametrize("device", [None, 0])
def test_a_plan_runs_after_a_first_call_that_failed(device):
    plan, weights = rnn_plan(device=device), weights_of(SPECS["gru"])
    with pytest.raises(ValueError, match="x must have shape"):
        plan.forward(random((1, 1, 1)), None, weights)
    plan.forward(random(SHAPES["x"]), None, weights)
    assert plan.device == 0


def test_a_first_call_that_fails_keeps_no_array():
    plan, out = rnn_plan(), zeros("gru", "y")
    alive = ref(out[0])
    with pytest.raises(ValueError, match="x must have shape"):
        plan.forward(random((1, 1, 1)), None, weights_of(SPECS["gru"]), out=out)
    del out
    gc.collect()
    assert alive() is None


def test_a_convolution_plan_on_arrays_of_numpy_runs_on_the_reference():
    x, w = random((1, 1, 8)), random((1, 1, 3))
    with conv_plan() as plan:
        assert plan.device is None
        assert "the arrays of the first call choose the backend" in plan.report()
        plan.autotune()
        np.testing.assert_array_equal(plan.run(x, w), dnnffi.conv(x, w))
        assert plan.device == "host"


@pytest.mark.parametrize("make", [rnn_plan, conv_plan])
def test_a_device_of_a_plan_is_a_number_from_0(make):
    with pytest.raises(ValueError, match=r"^device must be from 0 to "):
        make(device=-1)
    with pytest.raises(TypeError, match=r"^device must be an integer; got str$"):
        make(device="0")


def test_a_device_that_the_backend_of_the_arrays_has_not_is_refused_at_the_first_call():
    plan = rnn_plan(device=1)
    with pytest.raises(ValueError, match=r"^device: backend 'reference' has none but 0; got 1$"):
        plan.forward(random(SHAPES["x"]), None, weights_of(SPECS["gru"]))
    with pytest.raises(ValueError, match=r"^device: backend 'reference' has none but 0; got 1$"):
        conv_plan(device=1).run(random((1, 1, 8)), random((1, 1, 3)))


@pytest.mark.parametrize(("arrays", "got"), [((), "no arrays"), ((None,), "None")], ids=["0", "1"])
def test_a_convolution_plan_needs_an_array_to_choose_by(arrays, got):
    with pytest.raises(TypeError, match=rf"^x must be an array; got {got}$"):
        conv_plan().run(*arrays)


BACKWARDS = {
    "backward_data": lambda plan: plan.backward_data(),
    "backward_weights": lambda plan: plan.backward_weights(),
    "backward": lambda plan: plan.backward(),
}


@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)
@pytest.mark.parametrize(
    ("training", "reason"), [(True, "needs a forward pass"), (False, "is for inference")]
)
def test_a_plan_that_was_never_called_has_no_backward(backward, training, reason):
    with pytest.raises(ContextError, match=reason):
        backward(rnn_plan(training=training))


CALLS = {
    "forward": (rnn_plan, lambda plan: called(plan, "gru", "forward")),
    "autotune": (rnn_plan, lambda plan: plan.autotune()),
    "capture": (rnn_plan, lambda plan: plan.capture(lambda: None)),
    "run": (conv_plan, lambda plan: plan.run(random((1, 1, 8)), random((1, 1, 3)))),
    "autotune of a convolution": (conv_plan, lambda plan: plan.autotune()),
} | {name: (rnn_plan, call) for name, call in BACKWARDS.items()}


@pytest.mark.parametrize(("make", "call"), CALLS.values(), ids=CALLS)
def test_a_plan_that_was_closed_before_its_first_call_refuses_it(make, call):
    plan = make()
    assert not plan.closed
    plan.close()
    plan.close()
    assert plan.closed
    with pytest.raises(ValueError, match=r"^this plan is closed$"):
        call(plan)


def context():
    spec = SPECS["gru"]
    return dnnffi.gru_forward(random(SHAPES["x"]), None, weights_of(spec))[-1]


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (
            context,
            "RNNContext .* Instead call backward in the process of the forward pass, and pickle",
        ),
        (lambda: rnn_plan(backend="reference"), "RNNPlan .* Instead pickle plan.problem and RNNW"),
        (lambda: conv_plan(backend="reference"), "ConvPlan .* Instead pickle the ConvSpec and"),
        (lambda: Context(None, 0), "Context .* Instead run the backward pass in the process"),
    ],
)
def test_what_belongs_to_a_process_says_what_can_be_pickled(make, advice, again):
    with pytest.raises(TypeError, match=f"^{advice}"):
        again(make())


def test_what_is_to_be_pickled_instead_can_be():
    plan = rnn_plan(backend="reference")
    weights = weights_of(SPECS["gru"])
    problem, copied = pickle.loads(pickle.dumps((plan.problem, weights)))
    assert problem == plan.problem
    np.testing.assert_array_equal(copied.flat, weights.flat)


def dropped(layers):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=5, num_layers=layers)
    yield lambda: dnnffi.gru_forward(random(SHAPES["x"]), None, weights_of(spec), dropout=0.5)
    yield lambda: RNNPlan(
        spec, batch=BATCH, steps=STEPS, training=True, dropout=0.5, backend="reference"
    )


@pytest.mark.parametrize("call", list(dropped(1)))
def test_dropout_in_one_layer_is_said_once_to_do_nothing(call):
    warn_of_dropout.cache_clear()
    with pytest.warns(UserWarning, match=r"^dropout is between layers: with num_layers=1") as said:
        call()
    assert [one.filename for one in said] == [__file__]
    call()  # a warning would be an error


@pytest.mark.parametrize("call", list(dropped(2)))
def test_dropout_between_layers_is_not_warned_of(call):
    warn_of_dropout.cache_clear()
    call()


def test_the_reference_has_one_device():
    for device in (None, 0):
        assert plan_of("gru", device=device).device == 0
    with pytest.raises(ValueError, match=r"^device: backend 'reference' has none but 0; got 1$"):
        plan_of("gru", device=1)


# Lengths of each call


def test_a_plan_for_the_largest_sizes_runs_each_batch_up_to_them():
    spec, rng = SPECS["lstm"], np.random.default_rng(0)
    weights = weights_of(spec)
    with RNNPlan(spec, max_batch=4, max_steps=6, training=True, backend="reference") as plan:
        for lengths in ([6, 0, 2, 1], [0] * 4, [3, 3, 0, 0], [6] * 4):
            x, dy = (rng.standard_normal((6, 4, size), "f4") for size in (3, 5))
            y, (h_n, _) = plan.forward(x, None, weights, lengths=np.array(lengths, "i4"))
            (dx, _), dweights = plan.backward(dy)
            expected, (expected_h, _), ctx = dnnffi.lstm_forward(x, None, weights, lengths=lengths)
            grads = ctx.backward(dy)
            for one, other in [(y, expected), (h_n, expected_h), (dx, grads.x)]:
                np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(dweights.flat, grads.weights.flat)


def test_lengths_belong_to_the_plan_or_to_each_call():
    spec, weights = SPECS["gru"], weights_of(SPECS["gru"])
    x, lengths = random((6, 4, 3)), np.array([6, 0, 2, 1], "i4")
    with RNNPlan(spec, max_batch=4, max_steps=6, backend="reference") as plan:
        with pytest.raises(TypeError, match=r"^lengths must be given in each call of a plan with"):
            plan.forward(x, None, weights)
        with pytest.raises(ValueError, match=r"^lengths must have one entry .* shape \(3,\)$"):
            plan.forward(x, None, weights, lengths=lengths[:3])
        with pytest.raises(TypeError, match=r"^lengths must be an array of integers .* got list$"):
            plan.forward(x, None, weights, lengths=[6, 0, 2, 1])
    with (
        RNNPlan(spec, batch=4, steps=6, backend="reference") as plan,
        pytest.raises(TypeError, match=r"^lengths are those of the plan; make it with max_batch"),
    ):
        plan.forward(x, None, weights, lengths=lengths)


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ({}, r"^give batch and steps, or max_batch and max_steps$"),
        ({"batch": 2}, r"^give batch and steps, or max_batch and max_steps$"),
        ({"max_steps": 2}, r"^give batch and steps, or max_batch and max_steps$"),
        ({"max_batch": 2, "max_steps": 2, "batch": 2}, r"^batch, steps and lengths must be left"),
        ({"batch": 2, "steps": 2, "max_batch": 2}, r"^batch, steps and lengths must be left"),
        ({"max_batch": 2, "max_steps": 2, "lengths": [1, 2]}, r"^batch, steps and lengths must"),
    ],
)
def test_a_plan_has_one_kind_of_sizes(sizes, error):
    with pytest.raises((TypeError, ValueError), match=error):
        RNNPlan(SPECS["gru"], **sizes)


# Resets


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("mode", SPECS)
def test_a_plan_with_resets_gives_what_functions_give(mode, rows):
    spec, rng = SPECS[mode], np.random.default_rng(0)
    weights = weights_of(spec)
    reset_to = None
    if rows:
        h = rng.standard_normal(spec.h_shape(rows), "f4")
        reset_to = (h, -h) if spec.has_cell else h
    with RNNPlan(spec, batch=4, steps=6, resets=True, training=True, backend="reference") as plan:
        for _ in range(2):
            x, dy = (rng.standard_normal((6, 4, size), "f4") for size in (3, 5))
            of_rows = {"resets": rng.random((6, 4)) < 0.3, "reset_to": reset_to}
            y, _ = plan.forward(x, None, weights, **of_rows)
            dx, _, of_resets = plan.backward_data(dy)
            function = getattr(dnnffi, f"{mode}_forward")
            expected, _, ctx = function(x, None, weights, **of_rows)
            grads = ctx.backward(dy)
            np.testing.assert_array_equal(y, expected)
            np.testing.assert_array_equal(dx, grads.x)
            if reset_to is None:
                assert of_resets is None
                continue
            found, expected = (
                one if spec.has_cell else (one,) for one in (of_resets, grads.reset_to)
            )
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_resets_are_for_a_plan_that_was_made_with_them():
    spec, weights = SPECS["gru"], weights_of(SPECS["gru"])
    x, flags = random((6, 4, 3)), np.zeros((6, 4), bool)
    sizes = {"batch": 4, "steps": 6, "backend": "reference"}
    with RNNPlan(spec, **sizes) as plan:
        with pytest.raises(TypeError, match=r"^resets are for a plan that was made with"):
            plan.forward(x, None, weights, resets=flags)
        with pytest.raises(ValueError, match=r"^reset_to is the state of resets; give resets"):
            plan.forward(x, None, weights, reset_to=np.zeros((1, 1, 5), "f4"))
    with RNNPlan(spec, resets=True, **sizes) as plan:
        with pytest.raises(TypeError, match=r"^resets must be given in each call of a plan with"):
            plan.forward(x, None, weights)
        with pytest.raises(ValueError, match=r"^resets must have the shape of x without"):
            plan.forward(x, None, weights, resets=flags[1:])


def reset_plan():
    return RNNPlan(SPECS["gru"], batch=2, steps=4, resets=True, training=True, backend="reference")


def test_the_state_of_resets_is_apart_from_results():
    out, flags = zeros("gru", "y"), np.zeros((4, 2), bool)
    more = {"out": out, "resets": flags, "reset_to": out[1]}
    with pytest.raises(ValueError, match=r"^(reset_to and h_n|h_n and reset_to) must not share"):
        reset_plan().forward(random(SHAPES["x"]), None, weights_of(SPECS["gru"]), **more)


def test_resets_are_apart_from_gradients():
    plan, out = reset_plan(), zeros("gru", "x")
    flags = out[0].reshape(-1).view("u1")[:8].reshape(4, 2)
    plan.forward(random(SHAPES["x"]), None, weights_of(SPECS["gru"]), resets=flags)
    with pytest.raises(ValueError, match=r"^(resets and dx|dx and resets) must not share"):
        plan.backward_data(out=out)


def test_lengths_are_apart_from_results():
    out = zeros("gru", "y")
    more = {"out": out, "lengths": out[0].reshape(-1).view("i4")[:2]}
    plan = RNNPlan(SPECS["gru"], max_batch=2, max_steps=4, backend="reference")
    with pytest.raises(ValueError, match=r"^(lengths and y|y and lengths) must not share"):
        plan.forward(random(SHAPES["x"]), None, weights_of(SPECS["gru"]), **more)


# Empty batches


def empty_plan(mode, **keywords):
    return RNNPlan(
        SPECS[mode], batch=0, steps=STEPS, training=True, backend="reference", **keywords
    )


@pytest.mark.parametrize("mode", SPECS)
def test_a_plan_for_an_empty_batch_gives_empty_results(mode):
    spec = SPECS[mode]
    x, weights = random((STEPS, 0, 3)), weights_of(spec)
    h = np.zeros((1, 0, 5), "f4")
    with empty_plan(mode) as plan:
        results = plan.forward(x, (h, h) if mode == "lstm" else h, weights)
        assert [one.shape for one in flattened(results)][:2] == [(STEPS, 0, 5), (1, 0, 5)]
        assert plan.forward(x, None, weights, out=results) == results
        data, gradient = plan.backward(random((STEPS, 0, 5)))
        assert [one.shape for one in flattened(data)][:2] == [(STEPS, 0, 3), (1, 0, 5)]
        assert gradient.layout == weights.layout
        assert not gradient.flat.any()
        assert "nothing runs: no row has a step" in plan.report()
        plan.autotune()
        with pytest.raises(UnsupportedError, match=r"a batch without a step.*has no graphs"):
            plan.capture(lambda: None)
    with pytest.raises(ValueError, match="closed"):
        plan.forward(x, None, weights)


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_empty_batch_adds_nothing_to_a_gradient(accumulate):
    weights = weights_of(SPECS["gru"])
    out = weights.like(np.ones_like(weights.flat))
    with empty_plan("gru") as plan:
        plan.forward(random((STEPS, 0, 3)), None, weights)
        plan.backward_data()
        assert plan.backward_weights(out=out, accumulate=accumulate) is out
        assert (out.flat == accumulate).all()
        with pytest.raises(ContextError, match="runs once"):
            plan.backward_weights()


def test_an_empty_batch_of_arrays_is_checked():
    with empty_plan("gru") as plan:
        with pytest.raises(ValueError, match=r"^x must have shape \(4, 0, 3\); got \(4, 1, 3\)$"):
            plan.forward(random((STEPS, 1, 3)), None, weights_of(SPECS["gru"]))
        with pytest.raises(ValueError, match=r"^h_0 must have shape \(1, 0, 5\)"):
            plan.forward(random((STEPS, 0, 3)), random((1, 2, 5)), weights_of(SPECS["gru"]))


def test_a_batch_without_rows_has_an_empty_gradient_of_reset_to():
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=5)
    weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    x, flags = np.zeros((4, 0, 3), "f4"), np.zeros((4, 0), bool)
    with dnnffi.RNNPlan(spec, batch=0, steps=4, resets=True, training=True) as plan:
        y, _ = plan.forward(x, None, weights, resets=flags, reset_to=np.zeros((1, 0, 5), "f4"))
        *_, of_reset_to = plan.backward_data(np.zeros_like(y))
    assert of_reset_to.shape == (1, 0, 5)
