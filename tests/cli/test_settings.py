"""Settings of a benchmark, by place and by argument."""

from __future__ import annotations

import json
import os

import pytest

from dnnffi.bench import runner
from dnnffi.bench.runner import QUICK, Settings
from dnnffi.bench.suites import SUITES
from dnnffi.cli import bench, demo, main


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    """The settings in the record of a run that measures nothing."""
    monkeypatch.setattr(runner.Runner, "rows", lambda self, shape, creators: [])

    def settings_of(place, *arguments):
        monkeypatch.setattr(bench, "_place", lambda asked: place)
        monkeypatch.setattr(bench, "_peers", lambda *asked: ())
        monkeypatch.setattr("dnnffi.cli.machine.machine", lambda place, peers: {"device": place})
        path = tmp_path / "bench.json"
        only = ["--shapes", "tiny", "--only", "tiny rnn"]
        assert main(["bench", "rnn", *only, "--json", str(path), *arguments]) == 0
        return json.loads(path.read_text(encoding="utf-8"))["settings"]

    return settings_of


@pytest.mark.parametrize(("arguments", "default"), [([], Settings()), (["--quick"], QUICK)])
def test_a_cpu_is_warm_after_three_calls(arguments, default, settings_of):
    assert settings_of("gpu", *arguments) == vars(default)
    assert settings_of("cpu", *arguments) == vars(default) | {"warm_up": 3}


@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_arguments_replace_the_defaults(place, settings_of):
    found = settings_of(place, "--rounds", "1", "--warm-up", "7")
    assert found == vars(Settings()) | {"rounds": 1, "warm_up": 7}


@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_no_peer_is_measured_if_none_is_asked_for(place):
    for suite in SUITES.values():
        assert bench._peers(suite, ("none",), place) == ()


@pytest.mark.parametrize("value", [None, "true"])
def test_jax_takes_no_memory_before_it_is_used_unless_the_user_says_so(value, monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setenv(name, "")  # puts back what was there
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert bench._peer_creators(SUITES["rnn"], ("none",), "cpu") == {}
    assert os.environ[name] == (value or "false")


@pytest.mark.parametrize(("command", "seed"), [("demo", "0"), ("bench rnn", "0"), ("demo", "7")])
def test_a_seed_may_be_0(command, seed, monkeypatch):
    asked = []
    for module in (bench, demo):
        monkeypatch.setattr(module, "run", lambda options: asked.append(options.seed) or 0)
    assert main([*command.split(), "--seed", seed]) == 0
    assert asked == [int(seed)]
