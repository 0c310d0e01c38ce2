"""Pairs of recurrent kernels for the host, and the problems that these are for."""

from __future__ import annotations

from typing import NamedTuple

import conformance
from backends.own.recurrent.emulated_network import Network, kernel_config, kind_of

from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec

ALLOWED = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-3, "strict": 2e-6}
"""Relative errors of an array in the Euclidean norm."""


class Setup(NamedTuple):
    """A pair of kernels, compiled once; ``forward`` and ``backward`` go to `kernel_config`.

    With several ``layers`` they have all of a network's at once.
    """

    mode: str
    dtype: str
    hidden: int
    forward: dict
    backward: dict | None = None
    ragged: bool = False
    clip: str = ""
    strict: bool = False
    layers: int = 1
    narrow: bool = False

    def __str__(self):
        words = [self.mode, self.dtype, f"H{self.hidden}"]
        words += ["training" if self.backward else "inference", "ragged" if self.ragged else ""]
        words += ["strict" if self.strict else "", "narrow" if self.narrow else ""]
        words += [f"{self.layers}-at-once" if self.layers > 1 else ""]
        return "-".join(word for word in (*words, self.clip) if word)

    def problem(self, rng, **fixed):
        """Draw a problem that these kernels are for."""
        spec = RNNSpec(
            mode=self.mode,
            input_size=int(rng.integers(1, 10)),
            hidden_size=self.hidden,
            num_layers=self.layers if self.layers > 1 else int(rng.integers(1, 3)),
            bidirectional=self.layers == 1 and bool(rng.integers(2)),
            bias=bool(rng.integers(4)),
            dtype=self.dtype,
        )
        layouts = ("dense", "batch_first")
        if self.ragged:
            layouts = ("packed", "lengths", "batch_first_lengths")
        sizes = {"steps": int(rng.integers(1 + self.ragged, 8)), "batch": int(rng.integers(1, 20))}
        clip = {"clip": (-0.3, 0.2), "clip_nan": self.clip} if self.clip else {}
        return conformance.problem_of(
            *(spec, layouts[rng.integers(len(layouts))]),
            **(sizes | fixed),
            rng=rng,
            training=self.backward is not None,
            options=RNNOptions(**clip, math="strict" if self.strict else "default"),
        )

    def network(self, cublas, problem, **how):
        """The problem on these kernels."""
        if self.layers > 1:
            how["room"] = 100  # for all groups
        forward = kernel_config(kind_of(problem, False, self.layers, self.narrow), **self.forward)
        backward = None
        if self.backward is not None:
            backward = kernel_config(kind_of(problem, True, self.layers), **self.backward)
        return Network(cublas, problem, forward, backward, **how)
