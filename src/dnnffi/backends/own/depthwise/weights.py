"""A kernel for the weight gradient of a depthwise convolution, an alternative to the vendor's.

One more candidate where candidates are measured. On an H200 it was the fastest for the layers of
MobileNetV2 with a stride (`docs/convolution.md`).
"""

from __future__ import annotations

from math import prod

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.depthwise.axis import plane
from dnnffi.backends.own.depthwise.source import FOLDER
from dnnffi.backends.own.source import DTYPES, Constant, KernelSource, kernel_source
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_problem import BACKWARD_WEIGHTS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST

_DTYPES = ("float32", "float64")
_THREADS = 128
_SHARED_BYTES = 48 * 1024
_BLOCKS = 8  # for each multiprocessor
_MOST_POSITIONS = 2**30  # of one channel: the kernel counts on by ints, in steps far below that


def weights_kernels(dtype: str, taps: tuple[int, int]) -> tuple[KernelSource, KernelSource]:
    """Return the kernels of ``weights.cu`` for a kernel of ``taps``, down and across."""
    constants: dict[str, Constant] = {
        "DTYPE": DTYPES[dtype],
        "HIGH": taps[0],
        "WIDE": taps[1],
        "THREADS": _THREADS,
    }
    source = kernel_source(FOLDER, "weights.cu", "depthwise_weights", constants)
    return source, source._replace(name="sum_parts")


class DepthwiseWeights:
    """Runs one problem, where it `has_kernel`. Gives the same bits in every run.

    ``workspace_bytes`` is what `run` needs.
    """

    def __init__(self, problem: ConvProblem, device: int, memory: MemoryWithGraphs) -> None:
        spec = problem.spec
        high, wide = plane(spec.kernel, 1)
        kernels = weights_kernels(spec.dtype, (high, wide))
        self._sum, self._sum_parts = (memory.kernel(*one) for one in kernels)
        n, channels, *output = problem.y_shape
        self._geometry: tuple[int, ...] = (
            *(n, channels, channels // spec.groups),
            *plane(problem.sizes, 1),
            *plane(tuple(output), 1),
            *plane(spec.stride, 1),
            *plane(spec.padding_before, 0),
            *plane(spec.dilation, 1),
        )
        self._channels = channels
        self._count = channels * high * wide
        wanted = _BLOCKS * memory.architecture(device).multiprocessors
        room = -(-n * prod(output) // _THREADS)
        self._parts = max(1, min(-(-wanted // channels), room))
        limit, size = problem.options.workspace_limit, self._count * ITEM_SIZES[spec.dtype]
        if limit is not None and self._parts * size > limit:
            self._parts = 1
        self.workspace_bytes = self._parts * size if self._parts > 1 else 0

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        """Enqueue it."""
        parts, stream = self._parts, launch.stream
        sums = at.workspace if parts > 1 else at.result
        arguments = (at.first, at.second, sums, *self._geometry)
        self._sum((self._channels, parts), (_THREADS,), arguments, stream=stream)
        if parts > 1:
            blocks = -(-self._count // _THREADS)
            arguments = (sums, at.result, self._count, parts)
            self._sum_parts((blocks,), (_THREADS,), arguments, stream=stream)

    def close(self) -> None:
        """Nothing is held."""

    def __str__(self) -> str:
        return f"a kernel of dnnffi's; workspace {self.workspace_bytes} bytes"


def has_kernel(problem: ConvProblem) -> bool:
    """Whether `DepthwiseWeights` can run a problem."""
    spec = problem.spec
    taps = prod(spec.kernel)
    return (
        problem.operation == BACKWARD_WEIGHTS
        and problem.layout == CHANNELS_FIRST
        and not spec.transposed
        and spec.groups == spec.in_channels
        and spec.dtype in _DTYPES
        and len(spec.kernel) <= 2
        and taps * _THREADS * ITEM_SIZES[spec.dtype] <= _SHARED_BYTES
        and max(problem.batch * prod(problem.y_shape[2:]), prod(problem.sizes)) <= _MOST_POSITIONS
    )
