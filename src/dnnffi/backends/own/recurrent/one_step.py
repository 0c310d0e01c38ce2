"""How does a network run a single step, in inference? One kernel for each layer.

With no other step the weights need not stay on the chip, and blocks have nothing to tell each
other: see ``one_step.cuh``.
"""

from __future__ import annotations

from typing import NamedTuple

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
from dnnffi.device.interface import Launch, MemoryWithGraphs
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


def divisions(problem: RNNProblem, kind: Kind, multiprocessors: int) -> dict[int, Division]:
    """Of the layers of a problem, by the size of their input."""
    spec = problem.spec
    where = problem.batch, spec.num_directions, multiprocessors
    sizes = map(spec.layer_input_size, range(spec.num_layers))
    return {inputs: division(kind, inputs, *where) for inputs in dict.fromkeys(sizes)}


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
        self._size = ITEM_SIZES[spec.dtype]
        low, high = problem.options.clip or (0.0, 0.0)
        self._bounds = float(low), float(high)
        self._kernels = {
            inputs: (one, memory.kernel(*one.kernel())) for inputs, one in divisions.items()
        }
        self._weights = layer_weights(spec)
        room = Buffer()
        nbytes = problem.batch * spec.num_directions * spec.hidden_size * self._size
        self._ys = [room.add(nbytes) for _ in range(min(2, spec.num_layers - 1))]
        self.workspace_bytes = self.least_workspace_bytes = room.nbytes

    def forward(self, launch: Launch, at: ForwardAddresses) -> None:
        spec, batch = self.problem.spec, self.problem.batch
        directions, x = spec.num_directions, at.x
        of_layer = directions * batch * spec.hidden_size * self._size
        for layer, weights in enumerate(self._weights):
            one, kernel = self._kernels[spec.layer_input_size(layer)]
            y = at.y
            if layer < spec.num_layers - 1:
                y = at.workspace + self._ys[layer % 2]
            states = (array and array + layer * of_layer for array in (at.h_0, at.c_0))
            last = (array and array + layer * of_layer for array in (at.h_n, at.c_n))
            biases = (at.weights + weights.b_ih, at.weights + weights.b_hh) if spec.bias else (0, 0)
            arguments = (
                *(x, at.weights + weights.w_ih, at.weights + weights.w_hh, *biases),
                *(*states, y, *last),
                *(batch, directions),
                *(weights.matrix_stride // self._size, weights.bias_stride // self._size),
                *self._bounds,
            )
            kernel(
                (one.blocks(batch, directions),),
                (one.threads,),
                arguments,
                stream=launch.stream,
                shared_mem=one.shared_bytes,
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
