"""A kernel for the weight gradient of a depthwise convolution, an alternative to the vendor's.

One more candidate where candidates are measured. On an H200 it was the fastest for the layers of
MobileNetV2 with a stride (`docs/convolution.md`).
"""

from __future__ import annotations

from math import prod

from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.depthwise.axis import plane
from dnnffi.device.interface import Launch, MemoryWithGraphs
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.conv_problem import BACKWARD_WEIGHTS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST

_TYPES = {"float32": "float", "float64": "double"}
_THREADS = 128
_SHARED_BYTES = 48 * 1024
_BLOCKS = 8  # for each multiprocessor
_MOST_POSITIONS = 2**30  # of one channel: the kernel counts on by ints, in steps far below that

_SOURCE = """
#define REAL {real}
#define HIGH {high}
#define WIDE {wide}
#define THREADS {threads}

/* A block sums over some of the positions of one output channel, then over its threads. */
extern "C" __global__ void depthwise_weights(
    const REAL *dy, const REAL *x, REAL *sums, long long batch, long long channels,
    long long for_each_input, long long height, long long width, long long rows,
    long long columns, long long stride_h, long long stride_w, long long padding_h,
    long long padding_w, long long dilation_h, long long dilation_w)
{{
    __shared__ REAL shared[HIGH * WIDE][THREADS];
    REAL sum[HIGH * WIDE];
    const int channel = blockIdx.x, thread = threadIdx.x, step = gridDim.y * THREADS;
    const int size = (int)(rows * columns), count = (int)(batch * size), across = (int)columns;
    const long long inputs = channels / for_each_input, input = channel / for_each_input;
    for (int tap = 0; tap < HIGH * WIDE; tap++) sum[tap] = 0;
    for (int at = blockIdx.y * THREADS + thread; at < count; at += step) {{
        const int n = at / size, place = at - n * size, row = place / across;
        const REAL gradient = dy[(n * channels + channel) * size + place];
        const REAL *image = x + (n * inputs + input) * height * width;
        const int top = row * (int)stride_h - (int)padding_h;
        const int left = (place - row * across) * (int)stride_w - (int)padding_w;
#pragma unroll
        for (int i = 0; i < HIGH; i++) {{
            const int y = top + i * (int)dilation_h;
            if (y < 0 || y >= (int)height) continue;
#pragma unroll
            for (int j = 0; j < WIDE; j++) {{
                const int z = left + j * (int)dilation_w;
                if (z >= 0 && z < (int)width)
                    sum[i * WIDE + j] += gradient * image[y * (int)width + z];
            }}
        }}
    }}
    for (int tap = 0; tap < HIGH * WIDE; tap++) shared[tap][thread] = sum[tap];
    for (int half = THREADS / 2; half > 0; half /= 2) {{
        __syncthreads();
        if (thread < half)
            for (int tap = 0; tap < HIGH * WIDE; tap++)
                shared[tap][thread] += shared[tap][thread + half];
    }}
    if (thread == 0)
        for (int tap = 0; tap < HIGH * WIDE; tap++)
            sums[(blockIdx.y * channels + channel) * HIGH * WIDE + tap] = shared[tap][0];
}}

extern "C" __global__ void sum_parts(
    const REAL *sums, REAL *dw, long long count, long long parts)
{{
    const int first = blockIdx.x * THREADS + threadIdx.x;
    for (long long at = first; at < count; at += gridDim.x * THREADS) {{
        REAL sum = 0;
        for (long long part = 0; part < parts; part++) sum += sums[part * count + at];
        dw[at] = sum;
    }}
}}
"""


class DepthwiseWeights:
    """Runs one problem, where it `has_kernel`. Gives the same bits in every run.

    ``workspace_bytes`` is what `run` needs.
    """

    def __init__(self, problem: ConvProblem, device: int, memory: MemoryWithGraphs) -> None:
        spec = problem.spec
        high, wide = plane(spec.kernel, 1)
        source = _SOURCE.format(real=_TYPES[spec.dtype], high=high, wide=wide, threads=_THREADS)
        self._sum = memory.kernel(source, "depthwise_weights")
        self._sum_parts = memory.kernel(source, "sum_parts")
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
        and spec.dtype in _TYPES
        and len(spec.kernel) <= 2
        and taps * _THREADS * ITEM_SIZES[spec.dtype] <= _SHARED_BYTES
        and max(problem.batch * prod(problem.y_shape[2:]), prod(problem.sizes)) <= _MOST_POSITIONS
    )
