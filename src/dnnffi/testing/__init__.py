"""Hypothesis strategies for problems and their arrays, to property-test an embedding.

They draw whatever `dnnffi.RNNSpec`, `dnnffi.RNNProblem`, `dnnffi.ConvSpec` and `dnnffi.ConvProblem`
allow, small enough for thousands of examples. They include cases that backends get wrong: sizes of
one and odd sizes, rows that end early in any order, no row of T steps, inputs that the last step of
a kernel leaves unread, dilated kernels, as many groups as channels. A test that compares your own
code with the reference::

    from hypothesis import given, strategies as st
    from dnnffi import testing

    @given(testing.problems(testing.specs(modes=("gru",))), st.integers(0, 2**32 - 1))
    def test_wrapper(problem, seed):
        a = testing.inputs(problem, seed)
        y, h_n = dnnffi.gru(a.x, a.hx, a.weights, **testing.keywords(problem))
        ...

Needs Hypothesis, which dnnffi itself does not.
"""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401 - only whether it is there
except ImportError as error:
    from dnnffi.installing import install_extra

    raise ImportError(
        f"dnnffi.testing needs Hypothesis. Install: {install_extra('testing')}"
    ) from error

from dnnffi.annotations import show_annotations
from dnnffi.testing.conv import (
    ConvInputs,
    conv_inputs,
    conv_keywords,
    conv_options,
    conv_problems,
    conv_specs,
)
from dnnffi.testing.draw import DTYPES
from dnnffi.testing.rnn import (
    LAYOUTS,
    MODES,
    Inputs,
    batch_sizes,
    inputs,
    keywords,
    lengths,
    options,
    problems,
    resets,
    specs,
    weights,
)

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "MODES",
    "ConvInputs",
    "Inputs",
    "batch_sizes",
    "conv_inputs",
    "conv_keywords",
    "conv_options",
    "conv_problems",
    "conv_specs",
    "inputs",
    "keywords",
    "lengths",
    "options",
    "problems",
    "resets",
    "specs",
    "weights",
]

show_annotations(*map(globals().__getitem__, __all__))
