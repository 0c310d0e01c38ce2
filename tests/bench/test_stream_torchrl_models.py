"""TorchRL's models of streams with resets on the CPU, against the reference.

If TorchRL is not installed, its modules are replaced by one that steps through a network of
PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
from bench import stream_models
from bench.stream_models import RESET_STREAMS, check_against_the_reference

torch = pytest.importorskip("torch")

from dnnffi.bench.streams import torch_models  # noqa: E402 - it imports PyTorch
from dnnffi.bench.streams.problems import Stream  # noqa: E402
from dnnffi.bench.streams.resets import SETS  # noqa: E402


class Rollout(dict):
    """Stand-in for TensorDict."""

    def __init__(self, entries, batch_size):
        super().__init__(entries)
        assert all(list(entry.shape[:2]) == batch_size for entry in entries.values())


class Module:
    """Stand-in for GRUModule and LSTMModule that runs one step after another."""

    def __init__(
        self, *, in_keys, out_keys, default_recurrent_mode, gru=None, lstm=None, **options
    ):
        assert default_recurrent_mode
        self._network, self._states = gru or lstm, in_keys[1:]
        self._is_lstm = lstm is not None
        assert self._network.batch_first
        assert out_keys == ["y", *(("next", state) for state in self._states)]

    def __call__(self, rollout):
        before = [rollout[name] for name in self._states]  # each [B, T, 1, H]
        state = [each[:, 0].transpose(0, 1).contiguous() for each in before]
        outputs = []
        for step in range(rollout["x"].shape[1]):
            reset = rollout["is_init"][None, :, step]
            state = [
                torch.where(reset, other[:, step].transpose(0, 1), one)
                for one, other in zip(state, before, strict=True)
            ]
            y, last = self._network(
                rollout["x"][:, step : step + 1], tuple(state) if self._is_lstm else state[0]
            )
            state = list(last) if self._is_lstm else [last]
            outputs.append(y)
        rollout["y"] = torch.cat(outputs, 1)
        rollout["next"] = dict(zip(self._states, state, strict=True))
        return rollout


def stand_in(name, **names):
    module = ModuleType(name)
    vars(module).update(names)
    return module


@pytest.fixture(scope="module")
def models():
    """The module with the models, made of TorchRL or of the stand-in."""
    name = "dnnffi.bench.streams.torchrl_models"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "torchrl", stand_in("torchrl"))
            modules = stand_in("torchrl.modules", GRUModule=Module, LSTMModule=Module)
            patch.setitem(sys.modules, "torchrl.modules", modules)
            patch.setitem(sys.modules, "tensordict", stand_in("tensordict", TensorDict=Rollout))
            patch.delitem(sys.modules, name, raising=False)
            made = importlib.import_module(name)
            patch.delitem(sys.modules, name)
            return made


@pytest.fixture(autouse=True)
def learning_rate(monkeypatch):
    monkeypatch.setattr(torch_models, "LEARNING_RATE", stream_models.RATE)


@pytest.fixture
def on_cpu(models):
    return [creator for creator in models.RESET_CREATORS if "cpu" in creator.places]


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", RESET_STREAMS)
def test_each_batch_gives_what_the_reference_gives(on_cpu, number, name):
    check_against_the_reference(on_cpu[number].create, RESET_STREAMS[name])


def test_results_do_not_stay_in_a_batch(on_cpu):
    stream = RESET_STREAMS["lstm training"]
    made = on_cpu[0].create(stream, stream.draw(), "cpu", True)
    loaded = made.load(stream.epochs().later[0])
    before = set(loaded.rollout.keys())
    made.step(loaded)
    assert set(loaded.rollout.keys()) == before == {"x", "h", "c", "is_init"}


def test_a_batch_is_in_memory_as_the_modules_read_it(on_cpu):
    stream = RESET_STREAMS["gru training"]
    loaded = on_cpu[0].create(stream, stream.draw(), "cpu", True).load(stream.epochs().later[0])
    dy = loaded.dy.transpose(0, 1)
    assert all(one.is_contiguous() for one in (dy, *loaded.rollout.values()))


def test_the_models_are_of_both_rates_and_of_both_kernels(models):
    assert [creator.name for creator in models.RESET_CREATORS] == [
        "torchrl pad resets 1%",
        "torchrl pad resets 10%",
        "torchrl triton tf32 resets 10%",
        "torchrl triton bf16 resets 10%",
    ]


def test_kernels_in_triton_take_float32_alone(models):
    half, single = SETS["episodes"][0], SETS["episodes"][2]
    assert (half.dtype, single.dtype) == ("float16", "float32")
    for creator in models.RESET_CREATORS[2:]:
        assert creator.limits.why_not(half) == "float32 only"
        assert creator.limits.why_not(single) == ""


def test_other_networks_are_refused_with_the_reason(models):
    stream = Stream("rnn_tanh", "float32", 2, 9, 3, 4, 5)
    assert models.RESET_CREATORS[0].limits.why_not(stream) == "gru and lstm only"
