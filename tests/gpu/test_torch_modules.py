"""The modules of dnnffi.torch on a GPU, compared with those of torch.nn."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

import dnnffi.torch  # noqa: E402 - needs torch
from dnnffi.torch import modules, weights  # noqa: E402

NAMES = ("LSTM", "GRU", "RNN")
STEPS, BATCH, INPUT_SIZE, HIDDEN_SIZE = 12, 5, 24, 32


@pytest.fixture(autouse=True)
def float32_without_tf32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def pair(name, **keywords):
    made = []
    for library in (torch.nn, dnnffi.torch):
        torch.manual_seed(0)
        module = getattr(library, name)
        made.append(module(INPUT_SIZE, HIDDEN_SIZE, device="cuda", **keywords))
    return made


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def flattened(value):
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in flattened(part)]
    return [] if value is None else [value]


def assert_same(theirs, ours, x, hx=None, **tolerances):
    outcomes = []
    for module in (theirs, ours, ours):  # in its second call the network is known
        results = flattened(module(x, hx))
        torch.manual_seed(1)
        by = [torch.randn(one.shape, device="cuda", dtype=one.dtype) for one in results]
        inputs = [x, *flattened(hx), *module.parameters()]
        outcomes.append([*results, *torch.autograd.grad(results, inputs, by)])
    expected, *of_ours = outcomes
    for outcome in of_ours:
        for one, found in zip(expected, outcome, strict=True):
            assert found.is_cuda
            assert found.dtype == one.dtype
            torch.testing.assert_close(found, one, **tolerances)


def is_one_buffer(module):
    given = [getattr(module, name) for name in module._flat_weights_names]
    mode = modules._MODES[module.mode]
    form = weights.list_form(mode, given, module.num_layers, module.bidirectional, None)
    return form.find_flat(given) is not None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "keywords",
    [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}, {"batch_first": True}],
    ids=str,
)
def test_results_and_gradients_are_those_of_torch_nn(name, keywords):
    theirs, ours = pair(name, **keywords)
    assert is_one_buffer(ours)
    rows = ours.num_layers * (2 if ours.bidirectional else 1)
    shape = (BATCH, STEPS) if ours.batch_first else (STEPS, BATCH)
    h_0 = draw(rows, BATCH, HIDDEN_SIZE)
    hx = (h_0, draw(rows, BATCH, HIDDEN_SIZE)) if name == "LSTM" else h_0
    assert_same(theirs, ours, draw(*shape, INPUT_SIZE), hx, rtol=1e-3, atol=1e-4)


def test_a_projection():
    theirs, ours = pair("LSTM", proj_size=8)
    assert is_one_buffer(ours)
    assert_same(theirs, ours, draw(STEPS, BATCH, INPUT_SIZE), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:RNN module weights are not part")
def test_a_list_that_is_not_in_one_buffer_is_concatenated(name):
    theirs, ours = pair(name, num_layers=2)
    for parameter in ours.parameters():
        parameter.data = parameter.data.clone()
    assert not is_one_buffer(ours)
    assert_same(theirs, ours, draw(STEPS, BATCH, INPUT_SIZE), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_of_a_padded_batch_compute_what_packing_does(name):
    theirs, ours = pair(name, num_layers=2)
    x, lengths = draw(STEPS, BATCH, INPUT_SIZE), [7, 12, 1, 12, 3]
    packed, last = theirs(pack_padded_sequence(x, lengths, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed)
    wanted = [expected, *flattened(last), packed.data]
    for _ in range(2):
        found, found_last = ours(x, lengths=lengths)
        packed_found, _ = ours(pack_padded_sequence(x, lengths, enforce_sorted=False))
        results = [found, *flattened(found_last), packed_found.data]
        for one, other in zip(results, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:RNN module weights are not part")
def test_autocast_computes_in_its_dtype_and_a_conversion_keeps_one_buffer(name, dtype):
    theirs, ours = pair(name, num_layers=2)
    x = draw(STEPS, BATCH, INPUT_SIZE)
    with torch.autocast("cuda", dtype=dtype):
        found, expected = ours(x)[0], theirs(x)[0]
    assert found.dtype == dtype  # torch.nn gives float16 for both (PyTorch 2.11)
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.1, atol=0.2)
    theirs.to(dtype)
    ours.to(dtype)
    assert is_one_buffer(ours)
    assert_same(theirs, ours, draw(STEPS, BATCH, INPUT_SIZE, dtype=dtype), rtol=0.1, atol=0.2)


def test_a_module_stays_in_one_buffer_where_it_goes():
    _, ours = pair("GRU", num_layers=2)
    assert is_one_buffer(copy.deepcopy(ours))
    assert is_one_buffer(ours.double())
    assert is_one_buffer(ours.cpu().cuda())
    allocated = torch.cuda.memory_allocated()
    with torch.no_grad():
        ours(draw(STEPS, BATCH, INPUT_SIZE, dtype=torch.float64))
    nbytes = sum(parameter.nbytes for parameter in ours.parameters())
    ours.cpu()
    assert torch.cuda.memory_allocated() <= allocated - nbytes


def test_training_with_dropout_and_autocast_lowers_the_loss():
    torch.manual_seed(0)
    module = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, 2, dropout=0.2, device="cuda")
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    x, target = draw(STEPS, BATCH, INPUT_SIZE).detach(), torch.zeros(BATCH, HIDDEN_SIZE).cuda()
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", dnnffi.PerformanceWarning)
        for step in range(60):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                _, (h_n, _) = module(x, lengths=[1 + (step + row) % STEPS for row in range(BATCH)])
                loss = (h_n[-1].float() - target - 0.5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_training_step_in_one_graph_takes_any_lengths():
    """Training by replays, on batches copied into the tensors of the capture, is that by calls."""
    torch.manual_seed(0)
    captured = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, num_layers=2, device="cuda")
    called = copy.deepcopy(captured)
    optimizers = {
        module: torch.optim.SGD(module.parameters(), lr=0.1) for module in (captured, called)
    }
    x = draw(STEPS, BATCH, INPUT_SIZE).detach()
    lengths = torch.full((BATCH,), STEPS, dtype=torch.int32, device="cuda")

    def step(module):
        optimizers[module].zero_grad(set_to_none=True)
        loss = module(x, lengths=lengths)[0].square().mean()
        loss.backward()
        optimizers[module].step()
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(12):
            step(captured)
            step(called)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loss = step(captured)
    for seed in range(4):
        torch.manual_seed(seed)
        x.normal_()
        lengths.copy_(torch.randint(0, STEPS + 1, (BATCH,)))
        graph.replay()
        torch.testing.assert_close(loss, step(called), rtol=1e-3, atol=1e-6)
    for one, other in zip(captured.parameters(), called.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
