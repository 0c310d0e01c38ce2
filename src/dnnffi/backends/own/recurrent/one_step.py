"""The executor of networks with a single step, in inference: one kernel for each layer.

With no other step the weights need not stay on the chip, and blocks have nothing to tell each
other: see ``one_step.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.config import CELLS, CLIPS, DTYPES, WORD_BYTES, Kind
from dnnffi.backends.own.recurrent.kernels import one_step_kernel
from dnnffi.backends.own.recurrent.layout import Buffer, layer_weights
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
from dnnffi.spec.size_class import SizeClass
from dnnffi.spec.weights import weight_layout

_MOST_ROWS = 256
"""Of a problem: of more, a product of a library reads the matrices fewer times."""

_WARPS = 8
_ROWS = 8, 16, 32, 64


def is_one_step(problem: RNNProblem, sizes: SizeClass) -> bool:
    """Whether these kernels run the problems of a class of sizes."""
    is_full_step = sizes.max_steps == 1 and not sizes.is_ragged
    return is_full_step and not problem.training and sizes.max_rows <= _MOST_ROWS


class Division(NamedTuple):
    """The division of a layer among blocks and warps; see ``one_step.cu``."""

    kind: Kind
    inputs: int
    rows: int
    x_warps: int

    @property
    def octets(self) -> int:
        """Of the hidden units of a block: as many as fill a tile."""
        return 2 if self.kind.plain else 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * _WARPS

    @property
    def shared_bytes(self) -> int:
        """Of a block: the partial sums of all warps."""
        return _WARPS * self.octets * self.kind.gates * self.rows * 8 * 4

    def blocks(self, batch: int, directions: int) -> int:
        """Of a launch."""
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
                "OCTETS": self.octets,
                "ROWS": self.rows,
                "X_WARPS": self.x_warps,
                "H_WARPS": _WARPS - self.x_warps,
            }
        )


def division(
    kind: Kind, inputs: int, batch: int, directions: int, multiprocessors: int
) -> Division:
    """The division of a layer: as few rows a block as there are multiprocessors for.

    Each block reads all weights of its units. Warps are shared between x and h_0 as their steps of
    k are.
    """
    step = 4 * WORD_BYTES // ITEM_SIZES[kind.dtype]
    of_x, of_h = -(-inputs // step), -(-kind.hidden // step)
    x_warps = min(max(round(_WARPS * of_x / (of_x + of_h)), 1), _WARPS - 1)
    found = [Division(kind, inputs, rows, x_warps) for rows in _ROWS if rows < batch + 8]
    few = [one for one in found if one.blocks(batch, directions) <= multiprocessors]
    return (*few, found[-1])[0]


class OneStep(NamedTuple):
    """A way to run a problem: the divisions of its layers, one for each size of an input."""

    divisions: tuple[Division, ...]

    @classmethod
    def of(cls, problem: RNNProblem, kind: Kind, max_rows: int, multiprocessors: int) -> OneStep:
        """Return that of a network, for up to ``max_rows`` rows."""
        spec = problem.spec
        where = max_rows, spec.num_directions, multiprocessors
        sizes = map(spec.layer_input_size, range(spec.num_layers))
        return cls(tuple(division(kind, inputs, *where) for inputs in dict.fromkeys(sizes)))

    def kernels(self, problem: RNNProblem) -> Iterator[KernelSource]:
        """Yield what the executor launches."""
        for one in self.divisions:
            yield one.kernel()

    def network(
        self, problem: RNNProblem, device: int, memory: MemoryWithGraphs, algorithm: str
    ) -> OneStepNetwork:
        """Return the compiled network."""
        return OneStepNetwork(problem, device, memory, algorithm, self.divisions)


class _Layer(NamedTuple):
    """Constants of a layer for all batches: offsets in bytes, strides in elements.

    ``biases`` is None without them.
    """

    kernel: Kernel
    division: Division
    matrices: tuple[int, int]
    biases: tuple[int, int] | None
    strides: tuple[int, int]


class OneStepNetwork:
    """A network on these kernels, ready for any number of rows.

    Raises `UnsupportedError` if a kernel cannot be compiled.
    """

    def __init__(
        self,
        problem: RNNProblem,
        device: int,
        memory: MemoryWithGraphs,
        algorithm: str,
        divisions: tuple[Division, ...],
    ) -> None:
        self.device, self.algorithm = device, algorithm
        self.spec = spec = problem.spec
        self.weight_size: int = weight_layout(spec, "cudnn").size
        size = ITEM_SIZES[spec.dtype]
        self.row_bytes = spec.num_directions * spec.hidden_size * size
        by_inputs = {
            one.inputs: (memory.kernel(*one.kernel(), shared_bytes=one.shared_bytes), one)
            for one in divisions
        }
        self.layers = []
        for layer, weights in enumerate(layer_weights(spec)):
            self.layers.append(
                _Layer(
                    *by_inputs[spec.layer_input_size(layer)],
                    matrices=(weights.w_ih, weights.w_hh),
                    biases=(weights.b_ih, weights.b_hh) if spec.bias else None,
                    strides=(weights.matrix_stride // size, weights.bias_stride // size),
                )
            )

    def check(self, problem: RNNProblem) -> None:
        """All numbers of rows fit."""

    def bind(
        self, problem: RNNProblem, launch: Launch, generator: Any = None, *, is_exact: bool = False
    ) -> OneStepExecutor:
        """Return the executor of a problem of one step; nothing is drawn in an inference."""
        if problem.steps != 1 or problem.batch > _MOST_ROWS:
            raise UnsupportedError("dnnffi", "", f"this kernel is for one step; got {problem}")
        return OneStepExecutor(self, problem)


class OneStepExecutor(AddressExecutor):
    """A problem of one step on these kernels."""

    reserve_bytes = 0
    generator = None

    def __init__(self, network: OneStepNetwork, problem: RNNProblem) -> None:
        self.problem, self.device, self.algorithm = problem, network.device, network.algorithm
        self.weight_size = network.weight_size
        self._layers = network.layers
        spec = problem.spec
        low, high = problem.options.clip or (0.0, 0.0)
        self._sizes = problem.batch, spec.num_directions
        self._bounds = float(low), float(high)
        self._state_bytes = problem.batch * network.row_bytes  # of a layer
        room = Buffer()
        self._ys = [room.add(self._state_bytes) for _ in range(min(2, spec.num_layers - 1))]
        self.workspace_bytes = self.least_workspace_bytes = room.nbytes

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        x, weights, last = at.x, at.weights, len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            y = at.y if number == last else at.workspace + self._ys[number % 2]
            w_ih, w_hh = layer.matrices
            biases = 0, 0
            if layer.biases is not None:
                biases = weights + layer.biases[0], weights + layer.biases[1]
            states, division = number * self._state_bytes, layer.division
            params = OneStepParams(
                x=x,
                w_ih=weights + w_ih,
                w_hh=weights + w_hh,
                b_ih=biases[0],
                b_hh=biases[1],
                h_0=at.h_0 and at.h_0 + states,
                c_0=at.c_0 and at.c_0 + states,
                y=y,
                h_n=at.h_n and at.h_n + states,
                c_n=at.c_n and at.c_n + states,
                batch=self._sizes[0],
                directions=self._sizes[1],
                matrix_stride=layer.strides[0],
                bias_stride=layer.strides[1],
                clip_low=self._bounds[0],
                clip_high=self._bounds[1],
            )
            layer.kernel(
                (division.blocks(*self._sizes),),
                (division.threads,),
                (struct_of(params),),
                stream=launch.stream,
                shared_mem=division.shared_bytes,
            )
            x = y

    def backward_data(self, launch: Launch, at: BackwardDataAddresses) -> None:
        raise NotImplementedError("an inference has no backward")

    def backward_weights(
        self, launch: Launch, at: BackwardWeightsAddresses, accumulate: bool = False
    ) -> None:
        raise NotImplementedError("an inference has no backward")

    def close(self) -> None:
        """Nothing native is held."""
