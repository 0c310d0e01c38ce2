"""The executor of networks with a single step, in inference: one kernel for each layer.

With no other step the weights need not stay on the chip, and blocks have nothing to tell each
other: see ``one_step.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dnnffi.backends.own.recurrent.geometry import CELLS, DTYPES, WORD_BYTES, Kind
from dnnffi.backends.own.recurrent.kernels import SourceAndName, one_step_kernel
from dnnffi.backends.own.recurrent.layout import Buffer, layer_weights
from dnnffi.backends.own.recurrent.rows import rows_of
from dnnffi.backends.rnn_interface import (
    AddressExecutor,
    BackwardDataAddresses,
    BackwardWeightsAddresses,
    ForwardAddresses,
)
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout

_MOST_ROWS = 64
"""Of a problem: of more, a product of a library reads the matrices fewer times."""

_WARPS = 8
_ROWS = 8, 16, 32


def is_one_step(problem: RNNProblem) -> bool:
    """Whether these kernels run the problem."""
    return (
        not problem.training
        and problem.batch <= _MOST_ROWS
        and max(problem.row_lengths) == 1
        and rows_of(problem).tables is None
    )


class Division(NamedTuple):
    """How a layer is divided among blocks and warps; see ``one_step.cuh``."""

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

    def kernel(self) -> SourceAndName:
        """The source of the kernel, and its name."""
        kind = self.kind
        return one_step_kernel(
            {
                "INPUTS": self.inputs,
                "HIDDEN": kind.hidden,
                "CELL": CELLS[kind.mode],
                "DTYPE": DTYPES[kind.dtype],
                "STRICT": int(kind.strict),
                "CLIP": kind.clip,
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
    """A way to run a problem: its layers' divisions, by the size of their input."""

    divisions: dict[int, Division]

    @classmethod
    def of(cls, problem: RNNProblem, kind: Kind, multiprocessors: int) -> OneStep:
        """That of a problem of one step."""
        spec = problem.spec
        where = problem.batch, spec.num_directions, multiprocessors
        sizes = map(spec.layer_input_size, range(spec.num_layers))
        return cls({inputs: division(kind, inputs, *where) for inputs in dict.fromkeys(sizes)})

    def kernels(self, problem: RNNProblem) -> Iterator[SourceAndName]:
        """What the executor launches."""
        for one in self.divisions.values():
            yield one.kernel()

    def executor(
        self,
        problem: RNNProblem,
        launch: Launch,
        memory: MemoryWithGraphs,
        algorithm: str,
        generator: Any,
    ) -> OneStepExecutor:
        """The executor; nothing is drawn in an inference."""
        return OneStepExecutor(problem, launch, memory, algorithm, self.divisions)


class _Layer(NamedTuple):
    """What is the same in every call: offsets in bytes, strides in elements.

    ``biases`` is None without them, ``y`` of the last layer, whose is the caller's.
    """

    kernel: Kernel
    blocks: tuple[int]
    threads: tuple[int]
    shared_bytes: int
    matrices: tuple[int, int]
    biases: tuple[int, int] | None
    strides: tuple[int, int]
    states: int
    y: int | None


class OneStepExecutor(AddressExecutor):
    """A problem of one step on these kernels.

    Raises what CuPy raises where one cannot be compiled.
    """

    reserve_bytes = 0
    generator = None

    def __init__(
        self,
        problem: RNNProblem,
        launch: Launch,
        memory: MemoryWithGraphs,
        algorithm: str,
        divisions: dict[int, Division],
    ) -> None:
        self.problem, self.device, self.algorithm = problem, launch.device, algorithm
        spec = problem.spec
        self.weight_size: int = weight_layout(spec, "cudnn").size
        low, high = problem.options.clip or (0.0, 0.0)
        self._sizes = problem.batch, spec.num_directions
        self._bounds = float(low), float(high)
        size, room = ITEM_SIZES[spec.dtype], Buffer()
        nbytes = problem.batch * spec.num_directions * spec.hidden_size * size
        ys = [room.add(nbytes) for _ in range(min(2, spec.num_layers - 1))]
        self.workspace_bytes = self.least_workspace_bytes = room.nbytes
        kernels = {inputs: memory.kernel(*one.kernel()) for inputs, one in divisions.items()}
        self._layers = []
        for layer, weights in enumerate(layer_weights(spec)):
            inputs, last = spec.layer_input_size(layer), layer == spec.num_layers - 1
            one = divisions[inputs]
            self._layers.append(
                _Layer(
                    kernels[inputs],
                    (one.blocks(*self._sizes),),
                    (one.threads,),
                    one.shared_bytes,
                    matrices=(weights.w_ih, weights.w_hh),
                    biases=(weights.b_ih, weights.b_hh) if spec.bias else None,
                    strides=(weights.matrix_stride // size, weights.bias_stride // size),
                    states=layer * nbytes,
                    y=None if last else ys[layer % 2],
                )
            )

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        x, weights = at.x, at.weights
        for layer in self._layers:
            y = at.y if layer.y is None else at.workspace + layer.y
            w_ih, w_hh = layer.matrices
            biases = 0, 0
            if layer.biases is not None:
                biases = weights + layer.biases[0], weights + layer.biases[1]
            states = layer.states
            layer.kernel(
                layer.blocks,
                layer.threads,
                (
                    *(x, weights + w_ih, weights + w_hh, *biases),
                    at.h_0 and at.h_0 + states,
                    at.c_0 and at.c_0 + states,
                    y,
                    at.h_n and at.h_n + states,
                    at.c_n and at.c_n + states,
                    *self._sizes,
                    *layer.strides,
                    *self._bounds,
                ),
                stream=launch.stream,
                shared_mem=layer.shared_bytes,
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
