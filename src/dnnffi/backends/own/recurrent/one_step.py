"""The forward pass of networks with a single step: one kernel for each layer.

With no other step the weights need not stay on the chip, and blocks exchange nothing: see
``one_step.cu``. `one_step_training` adds the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.config import CELLS, CLIPS, DTYPES, WORD_BYTES, Kind
from dnnffi.backends.own.recurrent.kernels import one_step_kernel
from dnnffi.backends.own.recurrent.layout import Buffer, LayerWeights, layer_weights
from dnnffi.backends.own.recurrent.params import OneStepParams
from dnnffi.backends.own.source import KernelSource
from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs
from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn_size_class import RNNSizeClass
from dnnffi.spec.weights import weight_layout

MAX_ROWS = 256
"""Limit of the rows of a problem. With more, a library's product reads the matrices fewer times."""

_WARPS = 8
_ROWS = 8, 16, 32, 64


def is_one_step(sizes: RNNSizeClass) -> bool:
    """Whether these kernels run the problems of a class of sizes."""
    return sizes.max_steps == 1 and not sizes.is_ragged and sizes.max_rows <= MAX_ROWS


class Division(NamedTuple):
    """The division of a layer among blocks and warps; see ``one_step.cu``."""

    kind: Kind
    inputs: int
    rows: int
    x_warps: int

    @property
    def octets(self) -> int:
        """Octets of hidden units of a block: as many as fill a tile."""
        return 2 if self.kind.plain else 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * _WARPS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the partial sums of all warps."""
        return _WARPS * self.octets * self.kind.gates * self.rows * 8 * 4

    def blocks(self, batch: int, directions: int) -> int:
        """Return the blocks of a launch."""
        return -(-self.kind.hidden // (8 * self.octets)) * -(-batch // self.rows) * directions

    def kernel(self) -> KernelSource:
        """Return the kernel."""
        kind = self.kind
        return one_step_kernel(
            {
                "INPUTS": self.inputs,
                "HIDDEN": kind.hidden,
                "CELL": CELLS[kind.mode],
                "DTYPE": DTYPES[kind.dtype],
                "FACTORS": DTYPES[kind.dtype],
                "STRICT": kind.strict,
                "CLIP": CLIPS[kind.clip],
                "TRAINING": kind.training,
                "OCTETS": self.octets,
                "ROWS": self.rows,
                "X_WARPS": self.x_warps,
                "H_WARPS": _WARPS - self.x_warps,
            }
        )


def division(
    kind: Kind, inputs: int, batch: int, directions: int, multiprocessors: int
) -> Division:
    """Return the division of a layer: as few rows a block as there are multiprocessors for.

    Each block reads all weights of its units. Warps are divided between x and h_0 in proportion to
    their steps of k.
    """
    step = 4 * WORD_BYTES // ITEM_SIZES[kind.dtype]
    of_x, of_h = -(-inputs // step), -(-kind.hidden // step)
    x_warps = min(max(round(_WARPS * of_x / (of_x + of_h)), 1), _WARPS - 1)
    found = [Division(kind, inputs, rows, x_warps) for rows in _ROWS if rows < batch + 8]
    few = [one for one in found if one.blocks(batch, directions) <= multiprocessors]
    return (*few, found[-1])[0]


def divisions(
    problem: RNNProblem, kind: Kind, max_rows: int, multiprocessors: int
) -> tuple[Division, ...]:
    """Return the divisions of the layers of a network, one for each number of inputs."""
    spec = problem.spec
    where = max_rows, spec.num_directions, multiprocessors
    sizes = map(spec.layer_input_size, range(spec.num_layers))
    return tuple(division(kind, inputs, *where) for inputs in dict.fromkeys(sizes))


class CompiledLayer(NamedTuple):
    """Constants of a layer for all batches.

    ``strides`` are the elements from the matrices, and from the biases, of a direction to the next.
    """

    kernel: Kernel
    division: Division
    weights: LayerWeights
    strides: tuple[int, int]


class OneStepNetwork:
    """A network on these kernels, ready for any number of rows, in inference.

    Raises `UnsupportedError` if a kernel cannot be compiled.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        memory: MemoryWithGraphs,
        algorithm: str,
        of_layers: Sequence[Division],
    ) -> None:
        self.device, self.algorithm = device, algorithm
        self.spec = spec = problem.spec
        self.weight_size: int = weight_layout(spec, "cudnn").size
        self.item_bytes = size = ITEM_SIZES[spec.dtype]
        self.row_bytes = spec.num_directions * spec.hidden_size * size
        low, high = problem.options.clip or (0.0, 0.0)
        self.clip = float(low), float(high)
        by_inputs = {
            one.inputs: (memory.kernel(*one.kernel(), shared_bytes=one.shared_bytes), one)
            for one in of_layers
        }
        self.layers = [
            CompiledLayer(
                *by_inputs[spec.layer_input_size(layer)],
                weights=weights,
                strides=(weights.matrix_stride // size, weights.bias_stride // size),
            )
            for layer, weights in enumerate(layer_weights(spec))
        ]

    def check(self, problem: RNNProblem) -> None:
        """Raise `UnsupportedError` if a problem is not of one step, or has too many rows."""
        if problem.steps != 1 or problem.batch > MAX_ROWS:
            raise UnsupportedError(
                "dnnffi",
                "",
                f"these kernels are for one step of at most {MAX_ROWS} rows; got {problem}",
            )

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> OneStepLayers:
        """Return the executor of a problem of one step; inference draws no random numbers."""
        self.check(problem)
        return OneStepExecutor(self, problem)

    def close(self) -> None:
        """Do nothing: no native resources are held."""


class OneStepLayers(AddressExecutor):
    """A problem of one step on these kernels: its layers, whose arrays the executors provide."""

    generator: Any = None

    def __init__(self, network: OneStepNetwork, problem: RNNProblem) -> None:
        self.problem, self.device, self.algorithm = problem, network.device, network.algorithm
        self.weight_size = network.weight_size
        self._layers = network.layers
        self._clip = network.clip
        self._sizes = problem.batch, problem.spec.num_directions
        self._state_bytes = problem.batch * network.row_bytes  # of a layer

    def _run_layer(
        self, launch: Launch, layer: int, x: int, y: int, at: ForwardAddresses, saved: int = 0
    ) -> None:
        """Enqueue the step of a layer; ``saved`` is what it leaves for a backward pass."""
        of_layer, weights, states = self._layers[layer], at.weights, layer * self._state_bytes
        division, has_bias = of_layer.division, self.problem.spec.bias
        params = OneStepParams(
            x=x,
            w_ih=weights + of_layer.weights.w_ih,
            w_hh=weights + of_layer.weights.w_hh,
            b_ih=weights + of_layer.weights.b_ih if has_bias else 0,
            b_hh=weights + of_layer.weights.b_hh if has_bias else 0,
            h_0=at.h_0 and at.h_0 + states,
            c_0=at.c_0 and at.c_0 + states,
            y=y,
            h_n=at.h_n and at.h_n + states,
            c_n=at.c_n and at.c_n + states,
            batch=self._sizes[0],
            directions=self._sizes[1],
            matrix_stride=of_layer.strides[0],
            bias_stride=of_layer.strides[1],
            clip_low=self._clip[0],
            clip_high=self._clip[1],
            saved=saved,
        )
        of_layer.kernel(
            (division.blocks(*self._sizes),),
            (division.threads,),
            (struct_of(params),),
            stream=launch.stream,
            shared_mem=division.shared_bytes,
        )

    def close(self) -> None:
        """Do nothing: no native resources are held."""


class OneStepExecutor(OneStepLayers):
    """A problem of one step on these kernels, in inference."""

    reserve_bytes = 0

    def __init__(self, network: OneStepNetwork, problem: RNNProblem) -> None:
        super().__init__(network, problem)
        workspace = Buffer()
        inner_layers = problem.spec.num_layers - 1
        self._ys = [workspace.add(self._state_bytes) for _ in range(min(2, inner_layers))]
        self.workspace_bytes = self.least_workspace_bytes = workspace.nbytes

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        x, last = at.x, len(self._layers) - 1
        for layer in range(last + 1):
            y = at.y if layer == last else at.workspace + self._ys[layer % 2]
            self._run_layer(launch, layer, x, y, at)
            x = y

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        raise NotImplementedError("an inference has no backward pass")

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        raise NotImplementedError("an inference has no backward pass")
