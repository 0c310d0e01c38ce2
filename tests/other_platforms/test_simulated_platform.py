"""dnnffi on a simulated Windows and macOS: import, reference, weights, cache, command line.

`make test-platforms` runs whole folders of tests in the same way.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_platform

import dnnffi

FOLDER = Path(simulated_platform.__file__).parent
PACKAGE = Path(dnnffi.__file__).parent
platforms = pytest.mark.parametrize("platform", simulated_platform.PLATFORMS)


def run(platform, code, *arguments):
    """Return what ``code`` prints on a simulated platform."""
    paths = os.pathsep.join((str(FOLDER), str(PACKAGE.parent)))
    begin = f"import simulated_platform\nsimulated_platform.simulate({platform!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


SEEN = """
import os, signal, sys
print(sys.platform, *(name for name in sys.argv[1:] if hasattr(os, name)))
for path in ("/proc/self/maps", b"/sys/module/nvidia/version"):
    try:
        open(path)
    except FileNotFoundError:
        print("hidden")
try:
    import fcntl
except ImportError as error:
    print(error)
"""


def test_the_simulation_hides_what_a_platform_lacks():
    names = ("fork", "O_NONBLOCK", "sched_getaffinity", "replace")
    assert run("win32", SEEN, *names).splitlines() == [
        "win32 replace",
        *("hidden", "hidden"),
        "import of fcntl halted; None in sys.modules",
    ]
    assert run("darwin", SEEN, *names).splitlines() == [
        "darwin fork O_NONBLOCK replace",
        *("hidden", "hidden"),
    ]


EVERY_MODULE = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
print("imported")
"""
NEED_OTHER_PACKAGES = ("jax", "torch", "bench", "testing", "__main__")


@platforms
def test_every_module_can_be_imported(platform):
    names = [
        ".".join(("dnnffi", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).with_suffix("").parts[0] not in NEED_OTHER_PACKAGES
        and path.name != "__init__.py"
    ]
    assert len(names) > 200
    assert run(platform, EVERY_MODULE, *names) == "imported\n"


CALLS = """
import numpy as np
import dnnffi

rng = np.random.default_rng(0)
spec = dnnffi.RNNSpec(mode="lstm", input_size=4, hidden_size=5)
weights = dnnffi.RNNWeights.random(spec, rng, like="torch")
x = rng.standard_normal((3, 2, 4)).astype("f4")
y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, weights)
image, kernel = (rng.standard_normal(shape).astype("f4") for shape in ((1, 3, 8, 8), (2, 3, 3, 3)))
for array in (y, ctx.backward(y).x, dnnffi.conv(image, kernel, padding="same")):
    print(array.tobytes().hex())
"""


@platforms
def test_the_reference_gives_the_bits_of_linux(platform):
    real = subprocess.run(
        [sys.executable, "-c", CALLS],
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run(platform, CALLS) == real.stdout


WEIGHTS = """
import sys
from pathlib import Path
import numpy as np
import dnnffi

spec = dnnffi.RNNSpec(mode="gru", input_size=4, hidden_size=5)
weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
for suffix in (".npz", ".safetensors"):
    path = Path(sys.argv[1]) / ("net" + suffix)
    for _ in range(2):  # the second replaces the first
        weights.save(path)
    print(np.array_equal(dnnffi.RNNWeights.load(path).flat, weights.flat))
print(*sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""


@platforms
def test_weights_are_saved_and_loaded(platform, tmp_path):
    assert run(platform, WEIGHTS, tmp_path).splitlines() == [
        *("True", "True"),
        "net.npz net.safetensors",
    ]


CACHE = """
import os, sys
from pathlib import Path
os.environ["DNNFFI_CACHE_DIR"] = sys.argv[1]
from dnnffi.cache_folder import cache_folder
from dnnffi.execution.store import Store
from dnnffi.runtime.kernel_cache import KernelCache, KernelKey

key = {"problem": 1}
Store("rnn").write(key, [1.5])
print(Store("rnn").read(key))
kernel = KernelKey("source", (), (), (13, 0), "sm_90")
cache = KernelCache(lambda: cache_folder() / "kernels")
cache.write(kernel, b"code")
print(cache.read(kernel))
"""


@platforms
def test_tuning_results_and_kernels_are_kept_on_disk(platform, tmp_path):
    assert run(platform, CACHE, tmp_path / "cache").splitlines() == ["[1.5]", "b'code'"]


FORK_HOOKS = """
import threading
from dnnffi.execution.locks import new_lock
from dnnffi.importing import import_lock
with import_lock, new_lock():
    import dnnffi
    print(dnnffi.lstm.__name__)
"""


@platforms
def test_locks_need_no_fork(platform):
    assert run(platform, FORK_HOOKS) == "lstm\n"


INFO = """
import sys
from dnnffi.cli import main
sys.exit(main(["info", "--verbose"]))
"""


@platforms
def test_info_reports(platform):
    told = run(platform, INFO)
    assert "NumPy" in told
    assert "attribute" not in told
    if platform == "darwin":
        assert "cuda-pathfinder: NVIDIA has no libraries for macOS" in told


# The one module that asks for the platform

GUARD = PACKAGE / "operating_system.py"


def uses_of_platform(path):
    """Names of `os` and `signal` that some platform lacks, and questions for the platform."""
    missing = {
        f"{module.__name__}.{name}"
        for module, names in simulated_platform.MISSING_NAMES["win32"].items()
        for name in names
    }
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in missing or name in ("sys.platform", "os.name"):
                yield name
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            if ast.unparse(node.args[0]) in ("os", "signal"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(("/proc/", "/sys/")):
                yield node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from {*simulated_platform.MISSING_MODULES["win32"], "posix"}.intersection(names)


def test_one_module_alone_asks_for_the_platform():
    assert len(list(uses_of_platform(GUARD))) >= 8
    found = {
        f"{path.relative_to(PACKAGE)}: {use}"
        for path in PACKAGE.rglob("*.py")
        if path != GUARD
        for use in uses_of_platform(path)
    }
    assert found == {
        # Paths that `read_kernel_file` of the same module gets.
        "runtime/loader.py: /proc/self/maps",
        "runtime/cuda/runtime.py: /sys/module/nvidia/version",
    }
