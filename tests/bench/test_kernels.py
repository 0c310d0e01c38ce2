"""The C of the fused kernels, compiled for the host, against the formulas in NumPy."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from dnnffi.bench import kernels, relu

BATCH, HIDDEN = 3, 5
WIDE = {"gx", "gh", "gates", "d_gates"}
SOURCES = kernels.SOURCES | relu.SOURCES


def parameters(text):
    """(whether raw, name) of "raw T gx, T c, int64 hidden", without hidden."""
    words = [parameter.split() for parameter in text.split(", ")]
    return [("raw" in word, word[-1]) for word in words if word[-1] != "hidden"]


def function(name):
    """A C function that does for every element what the kernel does for one."""
    inputs, outputs, text = SOURCES[name]
    arguments, names = ["long long count", "long long hidden"], []
    for raw, parameter in parameters(inputs) + parameters(outputs):
        arguments.append(f"double *{parameter if raw else parameter + '_all'}")
        if not raw:
            names.append(f"#define {parameter} {parameter}_all[element]")
    ends = [f"#undef {line.split()[1]}" for line in names]
    return "\n".join(
        [
            f"void {name}({', '.join(arguments)}) {{",
            *names,
            "for (long long element = 0; element < count; element++) {",
            text,
            "}",
            *ends,
            "}",
        ]
    )


@pytest.fixture(scope="module")
def compiled(compiler, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "kernels.c"
    head = "#include <math.h>\ntypedef double T;\ntypedef double A;\n"
    source.write_text(head + "\n".join(map(function, SOURCES)))
    library = folder / "kernels.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", str(source), "-o", str(library), "-lm"],
        check=True,
    )
    return ctypes.CDLL(str(library))


def run(compiled, name, *arrays):
    pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for array in arrays]
    getattr(compiled, name)(ctypes.c_longlong(BATCH * HIDDEN), ctypes.c_longlong(HIDDEN), *pointers)


@pytest.mark.parametrize("name", kernels.SOURCES)
def test_c_and_numpy_say_the_same(compiled, name):
    inputs, outputs, _ = kernels.SOURCES[name]
    rng = np.random.default_rng(0)

    def array(parameter):
        if parameter == "bias":
            return rng.standard_normal(4 * HIDDEN)
        return rng.uniform(0.1, 0.9, (BATCH, HIDDEN * (4 if parameter in WIDE else 1)))

    given = [array(parameter) for _, parameter in parameters(inputs)]
    written = [array(parameter) for _, parameter in parameters(outputs)]
    expected = [out.copy() for out in written]
    getattr(kernels.kernels(np), name)(*given, *expected)
    run(compiled, name, *given, *written)
    for out, right in zip(written, expected, strict=True):
        np.testing.assert_allclose(out, right, rtol=1e-12)


@pytest.mark.parametrize(("name", "terms"), [("relu_backward", 1), ("relu_backward_sum", 2)])
def test_c_and_numpy_let_a_gradient_through_a_relu_alike(compiled, name, terms):
    rng = np.random.default_rng(0)
    y = np.maximum(rng.standard_normal((BATCH, HIDDEN, 1, 1)), 0)
    gradients = [rng.standard_normal(y.shape) for _ in range(terms)]
    found = np.empty_like(y)
    run(compiled, name, y, *gradients, found)
    expected = np.where(y > 0, sum(gradients), 0)
    assert 0 < np.count_nonzero(expected) < y.size
    assert np.array_equal(relu.relu_backward(np, y, *gradients), expected)
    assert np.array_equal(found, expected)
