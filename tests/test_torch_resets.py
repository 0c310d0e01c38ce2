"""Resets of dnnffi.torch on the host: results, gradients, packed and unbatched input."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi

torch = pytest.importorskip("torch")

import dnnffi.torch  # noqa: E402 - needs torch

STEPS, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 3, 2, 4
DTYPE = torch.float64
CALLS = {
    "lstm": (dnnffi.torch.lstm, torch.nn.LSTM),
    "gru": (dnnffi.torch.gru, torch.nn.GRU),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def state(mode, rows, **more):
    parts = [torch.randn(2, rows, HIDDEN_SIZE, dtype=DTYPE, **more) for _ in range(2)]
    return tuple(parts) if mode == "lstm" else parts[0]


def by_episodes(module, x, resets, reset_to):
    """Results of a module of torch.nn, each row's episodes one after the other; one direction."""
    rows = []
    for row in range(x.shape[1]):
        first = [None if part is None else part[:, row : row + 1] for part in reset_to]
        hx, steps = None, []
        for t in range(x.shape[0]):
            if resets[t, row]:
                hx = tuple(first) if len(first) == 2 else first[0]
            y, hx = module(x[t : t + 1, row : row + 1], hx)
            steps.append(y)
        rows.append(torch.cat(steps))
    return torch.cat(rows, 1)


@pytest.mark.parametrize("mode", CALLS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_values_and_gradients_are_those_of_each_episode(mode, dtype):
    call, kind = CALLS[mode]
    module = kind(INPUT_SIZE, HIDDEN_SIZE, num_layers=2, dtype=DTYPE)
    x = torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE, requires_grad=True)
    resets = torch.rand(STEPS, BATCH) > 0.6
    reset_to = state(mode, BATCH, requires_grad=True)
    parts = reset_to if mode == "lstm" else (reset_to,)
    weights = list(module.parameters())
    expected = by_episodes(module, x, resets, parts)
    inputs = [x, *parts, *weights]
    wanted = torch.autograd.grad(expected.square().sum(), inputs, allow_unused=True)
    y, _ = call(x, None, weights, num_layers=2, resets=resets.to(dtype), reset_to=reset_to)
    torch.testing.assert_close(y, expected)
    found = torch.autograd.grad(y.square().sum(), inputs, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


@pytest.mark.parametrize("mode", CALLS)
def test_gradcheck_of_one_row_for_all(mode):
    call, kind = CALLS[mode]
    weights = list(kind(INPUT_SIZE, HIDDEN_SIZE, bidirectional=True, dtype=DTYPE).parameters())
    x = torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE, requires_grad=True)
    resets = torch.rand(STEPS, BATCH) > 0.5
    reset_to = state(mode, 1, requires_grad=True)
    parts = reset_to if mode == "lstm" else (reset_to,)

    def run(x, *parts):
        given = parts if mode == "lstm" else parts[0]
        return call(x, None, weights, bidirectional=True, resets=resets, reset_to=given)[0]

    torch.autograd.gradcheck(run, (x, *parts))


def test_modules_take_resets():
    module = dnnffi.torch.GRU(INPUT_SIZE, HIDDEN_SIZE, num_layers=2, batch_first=True, dtype=DTYPE)
    x, resets = torch.randn(BATCH, STEPS, INPUT_SIZE, dtype=DTYPE), torch.rand(BATCH, STEPS) > 0.5
    reset_to = state("gru", BATCH)
    y, h_n = module(x, resets=resets, reset_to=reset_to)
    weights = list(module.parameters())
    expected, last = dnnffi.torch.gru(
        *(x.transpose(0, 1), None, weights), num_layers=2, resets=resets.T, reset_to=reset_to
    )
    torch.testing.assert_close(y, expected.transpose(0, 1))
    torch.testing.assert_close(h_n, last)


def test_resets_of_packed_rows_are_packed_as_they_are():
    module = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, num_layers=2, dtype=DTYPE)
    lengths = torch.tensor([2, 5, 3])
    x, flags = torch.randn(STEPS, BATCH, INPUT_SIZE, dtype=DTYPE), torch.rand(STEPS, BATCH) > 0.5
    reset_to = state("lstm", BATCH)
    expected, _ = module(x, lengths=lengths, resets=flags, reset_to=reset_to)
    pack = torch.nn.utils.rnn.pack_padded_sequence
    packed, resets = (pack(one, lengths, enforce_sorted=False) for one in (x, flags))
    found, _ = module(packed, resets=resets.data, reset_to=reset_to)
    found, _ = torch.nn.utils.rnn.pad_packed_sequence(found)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("part", [0, 1])
def test_a_part_with_one_row_for_all_stays_among_packed_rows(part):
    module = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, num_layers=2, dtype=DTYPE)
    rows = [torch.randn(length, INPUT_SIZE, dtype=DTYPE) for length in (2, 5, 3)]
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    resets = torch.rand(len(packed.data)) > 0.5
    reset_to = list(state("lstm", len(rows)))
    reset_to[part] = reset_to[part][:, :1]
    found, _ = module(packed, resets=resets, reset_to=reset_to)
    reset_to[part] = reset_to[part].repeat(1, len(rows), 1)
    expected, _ = module(packed, resets=resets, reset_to=reset_to)
    torch.testing.assert_close(found.data, expected.data)


@pytest.mark.parametrize("name", ["hx", "reset_to"])
@pytest.mark.parametrize("form", ["packed", "without a batch"])
@pytest.mark.parametrize("count", [1, 3])
def test_states_of_another_structure_are_refused_by_name(name, form, count):
    module = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, dtype=DTYPE)
    x = torch.randn(STEPS, INPUT_SIZE, dtype=DTYPE)
    if form == "packed":
        x = torch.nn.utils.rnn.pack_sequence([x[:2], x], enforce_sorted=False)
    states = (torch.zeros(1, 2, HIDDEN_SIZE, dtype=DTYPE),) * count
    resets = torch.zeros(len(x[0]) if form == "packed" else STEPS, dtype=torch.bool)
    keywords = {"hx": states} if name == "hx" else {"resets": resets, "reset_to": states}
    with pytest.raises(TypeError, match=rf"^{name} of an LSTM must be"):
        module(x, **keywords)


def test_input_without_a_batch_has_resets_without_one():
    module = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, dtype=DTYPE)
    x, resets = torch.randn(STEPS, INPUT_SIZE, dtype=DTYPE), torch.rand(STEPS) > 0.5
    reset_to = tuple(torch.randn(1, HIDDEN_SIZE, dtype=DTYPE) for _ in range(2))
    found, _ = module(x, resets=resets, reset_to=reset_to)
    expected, _ = module(
        x[:, None], resets=resets[:, None], reset_to=tuple(one[:, None] for one in reset_to)
    )
    torch.testing.assert_close(found, expected[:, 0])


@pytest.mark.parametrize(
    ("resets", "reset_to", "words"),
    [
        (torch.ones(4), None, r"^resets must .* of input .*, \[5\]; got \[4\]"),
        (torch.ones(()), None, r"^resets must .* of input .*, \[5\]; got \[\]"),
        (torch.ones(STEPS), [(1, 5), (1, 4)], r"^reset_to\[0\] must .* \[1, 4\].*; got \[1, 5\]"),
        (torch.ones(STEPS), [(1, 4), (1, 1, 4)], r"^reset_to\[1\] must .*; got \[1, 1, 4\]"),
        (torch.ones(STEPS), [(), (1, 4)], r"^reset_to\[0\] must .*; got \[\]"),
    ],
)
def test_bad_shapes_of_resets_are_named_without_a_batch_if_the_input_has_none(
    resets, reset_to, words
):
    module = dnnffi.torch.LSTM(INPUT_SIZE, HIDDEN_SIZE, dtype=DTYPE)
    states = None if reset_to is None else [torch.zeros(shape, dtype=DTYPE) for shape in reset_to]
    with pytest.raises(ValueError, match=words):
        module(torch.zeros(STEPS, INPUT_SIZE, dtype=DTYPE), resets=resets.bool(), reset_to=states)


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"resets": [[True]]}, TypeError, r"got list; use torch.tensor\(resets\)$"),
        ({"resets": np.ones((STEPS, BATCH), bool)}, TypeError, "resets must be a torch.Tensor"),
        ({"resets": torch.ones(STEPS, BATCH)}, TypeError, "bool or integers; got torch.float32"),
        ({"resets": torch.ones(STEPS, 1, dtype=torch.bool)}, ValueError, "the shape of x"),
        ({"reset_to": torch.ones(1, 1, HIDDEN_SIZE)}, ValueError, "give resets, too"),
        (
            {"resets": torch.ones(STEPS, BATCH, dtype=torch.bool), "reset_to": 0.0},
            TypeError,
            "reset_to must be a torch.Tensor",
        ),
    ],
)
def test_bad_resets_are_refused(more, error, words):
    weights = list(torch.nn.GRU(INPUT_SIZE, HIDDEN_SIZE).parameters())
    with pytest.raises(error, match=words):
        dnnffi.torch.gru(torch.zeros(STEPS, BATCH, INPUT_SIZE), None, weights, **more)
