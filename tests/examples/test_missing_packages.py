"""Examples without the packages that they need."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
import os, runpy, sys
for name in ("cupy", "jax", "matplotlib", "onnx", "rich", "scipy", "torch"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# The last line that an example prints with only dnnffi installed, and options that keep it short.
ALONE = {
    "autograd_framework.py": ("--steps 1", "the loss did not fall to a fifth"),
    "char_graph.py": ("--steps 1", "Try --eager."),
    "jax_data_parallel.py": ("", "pip install '.[jax]'"),
    "nccl_data_parallel.py": ("--steps 1 --hidden 4 --batch 2", "sequences/s"),
    "recurrent_ppo.py": ("", "pip install '.[jax]'"),
    "resnet_block.py": ("--steps 1", "step    1"),
    "sigpy_conv.py": ("", "pip install scipy"),
    "thinc_lstm.py": ("--rows 2 --steps 2 --hidden 2", "a step along them"),
    "voice_activity.py": ("--model model.onnx", "pip install onnx"),
}


@pytest.mark.parametrize("name", ["jax_data_parallel.py", "recurrent_ppo.py"])
def test_an_example_in_jax_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(SystemExit, match=r"needs JAX .*pip install '\.\[jax\]'"):
        runpy.run_path(str(EXAMPLES / name))


@pytest.mark.parametrize("name", ALONE)
def test_an_example_with_dnnffi_alone_says_what_to_do(name, tmp_path):
    options, last = ALONE[name]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, EXAMPLES / name, *options.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "Traceback" not in done.stderr
    assert last in (done.stdout + done.stderr).splitlines()[-1]


def test_each_program_is_run_without_packages():
    programs = {
        path.name for path in EXAMPLES.glob("*.py") if '"__main__"' in path.read_text("utf-8")
    }
    assert programs - {"raw_addresses.py"} == ALONE.keys()  # that one needs a GPU, as it says


def test_the_index_lists_each_example():
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    missing = [
        path.name for path in EXAMPLES.glob("*.py") if f"[{path.name}]({path.name})" not in index
    ]
    assert not missing
