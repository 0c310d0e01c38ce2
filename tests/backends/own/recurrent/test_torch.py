"""dnnffi's own kernels on tensors of PyTorch, emulated on the host: calls of known networks."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from simulated.gpu_tensors import (  # noqa: E402 - needs torch
    all_tensors_on_gpu,
    on_gpu,
    played_gpu,
)
from torch.utils.checkpoint import checkpoint  # noqa: E402

import dnnffi  # noqa: E402
import dnnffi.torch  # noqa: E402
from dnnffi.backends.cublas import library  # noqa: E402
from dnnffi.device import memory  # noqa: E402
from dnnffi.torch import network  # noqa: E402
from dnnffi.torch.known import TensorContext  # noqa: E402
from simulators.cuda.emulator import EmulatedMemory, emulate_kernels  # noqa: E402
from simulators.cudnn import build  # noqa: E402
from simulators.cudnn.library import open_simulator  # noqa: E402

STEPS, BATCH, INPUT_SIZE, HIDDEN_SIZE = 4, 3, 3, 5
OPTIONS = {"algorithm": "own", "math": "strict", "tune": "off"}


@pytest.fixture
def gpu(cublas, monkeypatch):
    """Memory of tensors on which dnnffi's own kernels run."""
    with open_simulator(build.build()) as simulator, played_gpu(simulator, monkeypatch) as made:
        external = simulator.library.without_cupy().memory
        emulate_kernels(monkeypatch, external, EmulatedMemory(room=6))
        monkeypatch.setattr(memory, "kernel_problem", lambda: "")
        monkeypatch.setattr(library, "load", lambda: cublas)
        yield made


@pytest.fixture
def known(monkeypatch):
    """Whether each call of `run_known` has run its network."""
    calls = []
    run_known = network.run_known

    def counted(*arguments, **keywords):
        found = run_known(*arguments, **keywords)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(network, "run_known", counted)
    return calls


class Network:
    """A network and the arguments of its calls, on the host and on the GPU that is played."""

    def __init__(self, mode, num_layers=1):
        self._mode = mode
        self.spec = dnnffi.RNNSpec(
            mode=mode, input_size=INPUT_SIZE, hidden_size=HIDDEN_SIZE, num_layers=num_layers
        )
        rng = np.random.default_rng(0)
        weights = dnnffi.RNNWeights.random(self.spec, rng)
        self.weights = torch.tensor(weights.to("cudnn").flat, requires_grad=True)
        self._rng = rng
        self.flat = on_gpu(self.weights)

    def draw(self, *shape):
        return torch.tensor(self._rng.standard_normal(shape, "f4"), requires_grad=True)

    def states(self, rows=BATCH):
        shape = self.spec.num_layers, rows, HIDDEN_SIZE
        return [self.draw(*shape) for _ in range(2 if self._mode == "lstm" else 1)]

    def as_hx(self, states):
        return None if states is None else tuple(states) if len(states) == 2 else states[0]

    def call(self, x, states, weights, place, reset_to=None, **keywords):
        if reset_to is not None:
            keywords["reset_to"] = self.as_hx(reset_to)
        if place == "gpu":
            keywords["options"] = OPTIONS
        function = getattr(dnnffi.torch, self._mode)
        rest = {"spec": self.spec, "layout": "cudnn", "num_layers": self.spec.num_layers}
        y, last = function(x, self.as_hx(states), weights, **rest, **keywords)
        return y, *(last if isinstance(last, tuple) else (last,))


def plain(tensor):
    return tensor.detach().as_subclass(torch.Tensor)


def flags():
    drawn = np.random.default_rng(1).random((STEPS, BATCH)) < 0.4
    return torch.tensor(drawn)


KINDS = {
    "plain": {},
    "zeros": {"hx": False},
    "lengths on the host": {"lengths": [4, 2, 1]},
    "lengths on the GPU": {"lengths": torch.tensor([2, 4, 3], dtype=torch.int32)},
    "resets": {"resets": flags()},
    "resets to given states": {"resets": flags(), "reset_to": BATCH},
    "resets to one row": {"resets": flags(), "reset_to": 1},
    "batch first": {"batch_first": True},
    "packed": {"batch_sizes": [3, 2, 2, 1]},
    "two layers": {"num_layers": 2},
}


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_of_the_reference(gpu, known, mode, kind):
    keywords = dict(KINDS[kind])
    made = Network(mode, keywords.pop("num_layers", 1))
    shape = (STEPS, BATCH, INPUT_SIZE)
    if "batch_sizes" in keywords:
        shape = (sum(keywords["batch_sizes"]), INPUT_SIZE)
    elif "batch_first" in keywords:
        shape = (BATCH, STEPS, INPUT_SIZE)
    states = made.states() if keywords.pop("hx", True) else []
    if "reset_to" in keywords:
        keywords["reset_to"] = made.states(keywords["reset_to"])
    of_rows = keywords.get("reset_to", [])
    x = made.draw(*shape)
    on_host = x, *states, made.weights, *of_rows
    expected = made.call(x, states or None, made.weights, "cpu", **keywords)
    sums = [made.draw(*one.shape).detach() for one in expected]
    wanted = torch.autograd.grad(expected, on_host, sums)
    for _ in range(3):
        ours, hx, reset_to = (
            list(map(on_gpu, some)) for some in ([x], states, keywords.get("reset_to", []))
        )
        more = {
            name: on_gpu(value) if isinstance(value, torch.Tensor) else value
            for name, value in keywords.items()
        }
        if reset_to:
            more["reset_to"] = reset_to
        found = made.call(ours[0], hx or None, made.flat, "gpu", **more)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(plain(one), plain(other), rtol=1e-4, atol=1e-4)
        given = *ours, *hx, made.flat, *reset_to
        got = torch.autograd.grad(found, given, list(map(on_gpu, sums)))
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(plain(one), plain(other), rtol=1e-3, atol=1e-3)
    # The core copies one row for all, which is expanded, to a row for each.
    assert known == [False, *[kind != "resets to one row"] * 2]


def test_dropout_repeats_the_masks_of_its_state(gpu, known):
    made, x = Network("gru", num_layers=2), on_gpu(torch.ones(STEPS, BATCH, INPUT_SIZE))
    results = []
    for _ in range(2):
        more = {"dropout": 0.5, "dropout_state": dnnffi.DropoutState(3)}
        for _ in range(2):
            y, _ = made.call(x, None, made.flat, "gpu", **more)
            (gradient,) = torch.autograd.grad(y, made.flat, on_gpu(torch.ones(y.shape)))
            results.append((plain(y), plain(gradient)))
    first, second, *again = results
    assert not torch.equal(first[0], second[0])
    for one, other in zip((first, second), again, strict=True):
        assert all(map(torch.equal, one, other))
    assert known == [False, True] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_network_is_known_whose_weights_are_copied_in_each_call(gpu, known, monkeypatch, dtype):
    """Lists of tensors in memory of their own, under autocast in another dtype."""
    if dtype is torch.float16:
        monkeypatch.setattr(network, "autocast_dtype", lambda x: dtype)
    module = torch.nn.GRU(INPUT_SIZE, HIDDEN_SIZE)
    x = torch.randn(STEPS, BATCH, INPUT_SIZE)
    expected, _ = module(x)
    wanted = torch.autograd.grad(expected.sum(), list(module.parameters()))
    options = {"algorithm": "own", "tune": "off"}
    for _ in range(3):
        given = list(map(on_gpu, module.parameters()))
        y, _ = dnnffi.torch.gru(on_gpu(x), None, given, options=options)
        assert y.dtype is dtype
        torch.testing.assert_close(plain(y).float(), expected.detach(), rtol=1e-2, atol=1e-2)
        found = torch.autograd.grad(y, given, on_gpu(torch.ones(y.shape, dtype=dtype)))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(plain(one), other, rtol=1e-2, atol=2e-2)
    assert known == [False, True, True]


def step(made, x, states=None):
    return made.call(x, states, made.flat, "gpu")


@pytest.fixture
def known_network(gpu):
    made = Network("lstm")
    x = on_gpu(made.draw(STEPS, BATCH, INPUT_SIZE))
    for _ in range(2):
        step(made, x)
    return made, x


def test_an_expanded_gradient_is_that_of_its_values(known_network):
    made, x = known_network
    y, *_ = step(made, x)
    (expected,) = torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape)))
    y, *_ = step(made, x)
    (found,) = torch.autograd.grad(y, x, on_gpu(torch.ones(())).expand(y.shape))
    assert torch.equal(plain(found), plain(expected))


def test_results_without_a_gradient_count_as_zeros(known_network):
    made, x = known_network
    _, h_n, _ = step(made, x)
    (found,) = torch.autograd.grad(h_n, x, on_gpu(torch.ones(h_n.shape)))
    y, h_n, _ = step(made, x)
    zeros, ones = on_gpu(torch.zeros(y.shape)), on_gpu(torch.ones(h_n.shape))
    (expected,) = torch.autograd.grad((y, h_n), x, (zeros, ones))
    assert torch.equal(plain(found), plain(expected))
    assert found.any()


def test_x_that_is_not_contiguous_is_copied(known_network, known):
    made, x = known_network
    expected, *_ = step(made, x)
    turned = on_gpu(plain(x).transpose(0, 1).contiguous()).transpose(0, 1)
    found, *_ = step(made, turned)
    assert torch.equal(plain(found), plain(expected))
    assert known == [True, False]


def test_a_graph_that_is_retained_runs_again_and_a_spent_one_says_so(known_network):
    made, x = known_network
    y, *_ = step(made, x)
    dy = on_gpu(torch.ones(y.shape))
    first, second = (torch.autograd.grad(y, x, dy, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(plain(first), plain(second))
    y, *_ = made.call(x, None, made.flat, "gpu", retain=False)
    torch.autograd.grad(y, x, dy, retain_graph=True)
    with pytest.raises(dnnffi.ContextError, match="for the second time"):
        torch.autograd.grad(y, x, dy)


def test_rows_without_a_step_keep_their_states(known_network):
    made, x = known_network
    states = list(map(on_gpu, made.states()))
    for _ in range(2):
        y, *last = made.call(x, states, made.flat, "gpu", lengths=[0] * BATCH)
        assert not plain(y).any()
        found = torch.autograd.grad(last, states, [on_gpu(torch.ones(h.shape)) for h in last])
        for one, other, gradient in zip(last, states, found, strict=True):
            assert torch.equal(plain(one), plain(other))
            assert torch.equal(plain(gradient), torch.ones(other.shape))


def test_a_state_alone_is_refused(known_network):
    made, x = known_network
    h, _ = map(on_gpu, made.states())
    for states in ((h, None), (None, h)):
        with pytest.raises(TypeError, match=r"^[hc]_0 must be an array; give hx=None"):
            step(made, x, states)


def test_arguments_of_a_known_network_are_checked(known_network):
    made, x = known_network
    h, c = map(on_gpu, made.states(BATCH + 1))
    with pytest.raises(ValueError, match=r"^h_0 must have shape"):
        step(made, x, (h, c))
    with pytest.raises(TypeError, match=r"^x must have the dtype of the weights, float32"):
        step(made, x.double())
    with pytest.raises(ValueError, match=r"^x must have 3 as its last dimension"):
        step(made, on_gpu(made.draw(STEPS, BATCH, INPUT_SIZE + 1)))


def test_sizes_of_packed_rows_with_resets_are_read_once(known_network):
    made, _ = known_network
    x, resets = on_gpu(made.draw(8, INPUT_SIZE)), on_gpu(torch.zeros(8, dtype=torch.bool))
    sizes = [3, 2, 2, 1]
    expected, *_ = made.call(x, None, made.flat, "gpu", batch_sizes=sizes)
    found, *_ = made.call(x, None, made.flat, "gpu", batch_sizes=iter(sizes), resets=resets)
    torch.testing.assert_close(plain(found), plain(expected))
    with pytest.raises(TypeError, match=r"^batch_sizes must be a sequence of integers; got int"):
        made.call(x, None, made.flat, "gpu", batch_sizes=5, resets=resets)


def test_lengths_are_read_once(known_network, known):
    """The core gets them, too: an x that is not contiguous is not used as it is."""
    made, x = known_network
    turned = on_gpu(plain(x).transpose(0, 1).contiguous()).transpose(0, 1)
    expected, *_ = made.call(x, None, made.flat, "gpu", lengths=[4, 2, 1])
    found, *_ = made.call(turned, None, made.flat, "gpu", lengths=iter([4, 2, 1]))
    assert torch.equal(plain(found), plain(expected))
    assert known[-1] is False


@pytest.mark.parametrize("options", [5, [], "own"])
def test_options_of_another_type_are_refused(known_network, options):
    made, x = known_network
    with pytest.raises(TypeError, match=r"^options must be a dict or None"):
        dnnffi.torch.lstm(x, None, made.flat, spec=made.spec, options=options)


def test_an_unknown_keyword_is_that_of_the_function(known_network):
    made, x = known_network
    words = r"^lstm_forward\(\) got an unexpected keyword argument 'foo'"
    with pytest.raises(TypeError, match=words):
        made.call(x, None, made.flat, "gpu", foo=1)


def test_weights_between_two_elements_are_refused_in_each_call(known_network):
    made, x = known_network
    nbytes = 4 * made.flat.numel()
    odd = torch.zeros(nbytes + 1, dtype=torch.uint8)[1:]
    misaligned = on_gpu(torch.empty(0).set_(odd.untyped_storage(), 0, (made.flat.numel(),)))
    misaligned.data = torch.frombuffer(odd.numpy(), dtype=torch.float32)
    for _ in range(2):
        with pytest.raises(ValueError, match="must begin at a multiple of 4 bytes"):
            dnnffi.torch.lstm(x, None, misaligned, spec=made.spec, options=OPTIONS)


def test_weights_that_are_negated_lazily_are_copied(known_network):
    made, x = known_network
    expected, *_ = step(made, x)
    negative = torch._neg_view(on_gpu(-plain(made.flat)))
    assert negative.is_neg()
    found, _ = dnnffi.torch.lstm(x, None, negative, spec=made.spec, layout="cudnn", options=OPTIONS)
    torch.testing.assert_close(plain(found), plain(expected))


def test_a_write_to_resets_before_backward_is_noticed(known_network):
    made, x = known_network
    resets = on_gpu(flags())
    for _ in range(2):
        y, *_ = made.call(x, None, made.flat, "gpu", resets=resets)
        resets.logical_not_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape)))


def test_a_write_before_backward_is_noticed_by_autograd(known_network):
    made, x = known_network
    y, *_ = step(made, x)
    made.flat.data = made.flat.data  # its memory, which is counted apart
    with torch.no_grad():
        made.flat.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape)))


# Memory that is free when the backward pass runs


@pytest.fixture
def all_on_gpu(gpu, monkeypatch):
    """Every tensor is on the GPU, also one that autograd or a hook makes."""
    with all_tensors_on_gpu(monkeypatch, gpu):
        yield gpu


def test_backward_reads_the_resets_that_hooks_for_saved_tensors_kept(all_on_gpu):
    made = Network("gru")
    x, resets = made.draw(STEPS, BATCH, INPUT_SIZE), torch.zeros(STEPS, BATCH, dtype=torch.bool)
    resets[1, 0] = resets[2, 1] = True

    def call():
        more = {"spec": made.spec, "layout": "cudnn", "resets": resets, "options": OPTIONS}
        return dnnffi.torch.gru(x, None, made.weights, **more)[0]

    y = call()
    (expected,) = torch.autograd.grad(y, x, torch.ones_like(y))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        y = call()
    resets.logical_not_()
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(found, expected)


def in_a_checkpoint(made, x, weights):
    y, *_ = checkpoint(step_of, made, x, weights, use_reentrant=False, preserve_rng_state=False)
    return y


def with_moved_tensors(made, x, weights):
    hooks = (lambda tensor: tensor.detach().clone().numpy(), torch.from_numpy)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        return step_of(made, x, weights)[0]


def with_other_memory(made, x, weights):
    x = x.detach().requires_grad_()
    y, *_ = step_of(made, x, weights)
    x.data = x.data.clone()
    return y


def step_of(made, x, weights):
    return made.call(x * 1.0 if x.requires_grad else x, None, weights, "gpu")


def with_other_memory_of_weights(made, x, weights):
    y, *_ = step_of(made, x, weights)
    if weights.is_leaf:
        weights.data = weights.data.clone()
    return y


WAYS = [in_a_checkpoint, with_moved_tensors, with_other_memory, with_other_memory_of_weights]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("is_known", [False, True])
def test_the_backward_pass_reads_no_memory_that_is_free(all_on_gpu, known, way, is_leaf, is_known):
    made = Network("lstm")
    x, flat = made.draw(STEPS, BATCH, INPUT_SIZE), made.weights

    def weights():
        return flat if is_leaf else flat * 1.0

    y, *_ = step_of(made, x, weights())
    dy = torch.ones(y.shape)
    (expected,) = torch.autograd.grad(y, flat, dy)
    if not is_known:
        dnnffi.clear_plans()
    known.clear()
    y = way(made, x, weights())
    assert known[0] is is_known
    all_on_gpu.spoil_free_memory()
    (found,) = torch.autograd.grad(y, flat, dy)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda tensor: tensor[:1]])
def test_a_hook_that_gives_back_another_tensor_is_refused(known_network, change):
    made, x = known_network
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, change):
        y, *_ = step(made, x)
    with pytest.raises(ValueError, match=r"^[xy] must come back as it was saved, torch\.float32"):
        torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape)))


def test_weights_whose_memory_was_freed_are_refused(all_on_gpu):
    made, x = Network("lstm"), torch.ones(STEPS, BATCH, INPUT_SIZE)
    for _ in range(2):
        y, *_ = made.call(x, None, made.weights, "gpu")
    storage = made.weights.untyped_storage()
    all_on_gpu.release(storage.data_ptr())
    storage.resize_(0)
    with pytest.raises(dnnffi.ContextError, match=r"^the memory of the weights was freed"):
        torch.autograd.grad(y, made.weights, torch.ones(y.shape))


def test_a_spent_backward_pass_keeps_no_weights(known_network):
    made, x = known_network
    y, *_ = step(made, x)
    assert y.grad_fn.first_weight.data_ptr() == made.flat.data_ptr()
    torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape)))
    assert y.grad_fn.first_weight is None
    assert y.grad_fn.context._weights is None


def test_a_copy_of_the_weights_is_kept_for_the_backward_pass(all_on_gpu, known):
    parameters = list(torch.nn.GRU(INPUT_SIZE, HIDDEN_SIZE).parameters())
    x, found = torch.randn(STEPS, BATCH, INPUT_SIZE), []
    for _ in range(2):
        y, _ = dnnffi.torch.gru(x, None, parameters, options=OPTIONS)
        all_on_gpu.spoil_free_memory()
        found.append(torch.autograd.grad(y, parameters, torch.ones(y.shape)))
    assert known == [False, True]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_what_a_backward_pass_has_saved_is_gone_with_it(known_network, monkeypatch):
    made, x = known_network
    contexts = []
    init = TensorContext.__init__

    def kept(self, *arguments):
        init(self, *arguments)
        contexts.append(self)

    monkeypatch.setattr(TensorContext, "__init__", kept)
    y, *_ = step(made, x)
    assert not contexts[0].is_spent
    torch.autograd.grad(y, x, on_gpu(torch.ones(y.shape)), retain_graph=False)
    assert contexts[0].is_spent
