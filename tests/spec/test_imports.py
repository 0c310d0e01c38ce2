"""Importing dnnffi brings in only Python for the spec, and no library of a vendor."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dnnffi
from dnnffi.other_names import _MEANT

BLOCKED = ("numpy", "cupy", "cffi", "_cffi_backend", "torch", "ml_dtypes", "cuda", "hypothesis")


def python(code):
    """Run ``code`` in a new interpreter that finds dnnffi; what it prints."""
    path = f"import sys; sys.path.insert(0, {str(Path(dnnffi.__file__).parents[1])!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", path + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BLOCKER = f"""
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
"""


def test_specs_and_layouts_need_neither_numpy_nor_cupy_nor_cffi():
    code = """
import dnnffi
spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=5, proj_size=2)
print(dnnffi.weight_layout(spec, "cudnn").size, dnnffi.weight_layout(spec, "torch").size)
print(spec.x_shape(4, 2), spec.y_shape(4, 2), spec.h_shape(2), spec.c_shape(2))
print(len(dnnffi.weight_layout(spec, "cudnn").blocks()), len(spec.parameter_shapes()))
problem = dnnffi.RNNProblem.dense(spec, steps=4, batch=2, lengths=[4, 1])
print(problem.x_shape, issubclass(dnnffi.UnsupportedError, dnnffi.DnnffiError))
"""
    assert python(BLOCKER + code).splitlines() == [
        "150 150",
        "(4, 2, 3) (4, 2, 2) (1, 2, 2) (1, 2, 5)",
        "5 5",
        "(4, 2, 3) True",
    ]


def test_functions_do_not_import_jax():
    code = "import dnnffi, sys\ndnnffi.lstm, dnnffi.RNNPlan\nprint('jax' in sys.modules)"
    assert python(code) == "False\n"


def test_importing_dnnffi_imports_what_the_first_use_needs_and_no_more():
    code = """
import dnnffi, sys
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("dnnffi", "numpy")))
"""
    assert python(code) == "dnnffi dnnffi.importing dnnffi.operating_system\n"


def test_the_blocker_blocks():
    code = "import dnnffi\ntry:\n    dnnffi.lstm\nexcept ImportError as error:\n    print(error)"
    assert "is blocked" in python(BLOCKER + code)


def test_every_module_of_the_spec_is_pure_python():
    folder = Path(dnnffi.__file__).parent / "spec"
    names = sorted(f"dnnffi.spec.{path.stem}" for path in folder.glob("[!_]*.py"))
    assert len(names) >= 5
    python(BLOCKER + "".join(f"import {name}\n" for name in names))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_importing_and_the_reference_load_no_vendor_library():
    code = """
import dnnffi
for name in dnnffi.__all__:
    getattr(dnnffi, name)
import numpy as np
w = [np.zeros((4, 3)), np.zeros((4, 1))]
dnnffi.lstm(np.zeros((2, 2, 3)), None, w)
maps = open("/proc/self/maps").read()
print([word for word in ("libcudnn", "libcudart", "libMIOpen", "libamdhip") if word in maps])
print([name for name in ("cupy", "torch", "jax", "ml_dtypes") if name in sys.modules])
"""
    assert python(code).splitlines() == ["[]", "[]"]


def test_the_public_names_resolve_and_are_listed():
    for name in dnnffi.__all__:
        assert getattr(dnnffi, name).__name__ == name
    assert set(dnnffi.__all__) <= set(dir(dnnffi))
    listed = dnnffi.__dir__()
    assert len(set(listed)) == len(listed)
    assert {name for name in listed if not name.startswith("__")} == {*dnnffi.__all__, *PACKAGES}
    assert sorted(dnnffi.__all__) == dnnffi.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'dnnffi' has no attribute 'something'$"):
        dnnffi.something  # noqa: B018 - looking it up is what is tested


@pytest.mark.parametrize("name", ["__wrapped__", "_lstm"])
def test_a_private_name_is_told_nothing(name):
    with pytest.raises(AttributeError, match=rf"^module 'dnnffi' has no attribute '{name}'$"):
        getattr(dnnffi, name)


OTHER_NAMES = {
    # Mistyped
    "lsmt": "lstm",
    "RnnSpec": "RNNSpec",
    "lstm_forwrd": "lstm_forward",
    # cuDNN's and CuPy's
    "conv_backward_filter": "conv_backward_weights",
    "convolution_forward": "conv",
    "convolution_backward_data": "conv_backward_data",
    "convolution_backward_filter": "conv_backward_weights",
    "cudnnConvolutionBackwardFilter": "conv_backward_weights",
    "convolutionBackwardBias": "conv_backward_bias",
    "cudnnRNNForward": "lstm, gru, rnn_tanh or rnn_relu; to train, lstm_forward and its like",
    "cudnnRNNBackwardData_v8": "backward() of the context that lstm_forward and its like return",
    "DropoutStates": "DropoutState",
    "dropoutForward": "the keyword dropout of lstm_forward and its like, and DropoutState",
    "set_max_workspace_size": "options={'workspace_limit': bytes} of a convolution",
    "get_max_workspace_size": "options={'workspace_limit': bytes} of a convolution",
    "cudnn": "the keyword backend of a call",
    # PyTorch's
    "conv2d": "conv, for one to three dimensions",
    "Conv2d": "conv, for one to three dimensions",
    "conv_transpose2d": "conv_transpose",
    "LSTM": "lstm (a function), or dnnffi.torch.LSTM (a module of PyTorch)",
    "LSTMCell": "lstm, with one step",
    "lstm_backward": "lstm_forward, whose context has backward()",
    "linear": "matmul",
    "conv_relu": "conv, with activation='relu'",
    "depthwise_conv2d": "conv, with as many groups as channels",
    "from_torch": "RNNWeights.from_torch",
    "tune": "options={'tune': 'now'} of a call, or autotune() of a plan",
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_another_library_is_told_the_one_that_was_meant(name):
    message = rf" no attribute '{name}'; did you mean {re.escape(OTHER_NAMES[name])}\?$"
    with pytest.raises(AttributeError, match=message):
        getattr(dnnffi, name)


@pytest.mark.parametrize(
    "name",
    ["batch_normalization_forward_training", "BatchNorm2d", "pooling_forward", "softmax", "pool"],
)
def test_a_name_of_something_that_is_not_offered(name):
    message = rf" no attribute '{name}': dnnffi has recurrent networks and convolutions only"
    with pytest.raises(AttributeError, match=message):
        getattr(dnnffi, name)


@pytest.mark.parametrize("name", ["get_handle", "reset_handles"])
def test_a_name_of_something_that_is_not_needed(name):
    message = rf" no attribute '{name}': it is not needed, each thread has handles"
    with pytest.raises(AttributeError, match=message):
        getattr(dnnffi, name)


def test_what_is_meant_by_other_names_exists():
    for text in _MEANT.values():
        for name in re.findall(r"\b(?:RNNWeights\.\w+|conv_\w+|lstm_forward|matmul)\b", text):
            found = dnnffi
            for part in name.split("."):
                found = getattr(found, part)


PACKAGES = ("foreign", "jax", "testing", "torch", "typing")


def test_packages_are_listed_but_not_imported_with_everything():
    assert set(PACKAGES) <= set(dir(dnnffi))
    assert not set(PACKAGES) & set(dnnffi.__all__)


def test_packages_are_attributes_of_the_module():
    code = """
import dnnffi, sys
print(dnnffi.foreign.using.__name__, dnnffi.typing.Integers.__name__, dnnffi.testing.specs.__name__)
print(sorted(name for name in ("jax", "torch") if name in sys.modules))
"""
    assert python(code).splitlines() == ["using Integers specs", "[]"]


@pytest.mark.parametrize(
    ("name", "needed", "install"),
    [
        ("jax", "jax", "dnnffi.jax needs JAX. Install: "),
        ("torch", "torch", "dnnffi.torch needs PyTorch. Install: "),
        ("testing", "hypothesis", "dnnffi.testing needs Hypothesis. Install: "),
    ],
)
def test_a_package_without_what_it_needs_says_what_to_install(name, needed, install):
    code = f"""
import sys
sys.modules["{needed}"] = None
import dnnffi, inspect
try:
    dnnffi.{name}
except AttributeError as error:
    print(error)
try:
    from dnnffi import {name}
except ImportError as error:
    print(error)
print(hasattr(dnnffi, "{name}"), "{name}" in dict(inspect.getmembers(dnnffi)))
"""
    first, second, members = python(code).splitlines()
    assert first.startswith(f"dnnffi.{name} cannot be imported: {install}")
    assert second.startswith(install)
    assert members == "False False"
