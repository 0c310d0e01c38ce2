"""Microseconds a step of an LSTM over its hidden size: cuDNN, dnnffi's kernels, and the device.

    python benchmarks/own_steps.py [--json FILE] [--seconds 120] [--sizes 256 512]

For each hidden size, dtype and batch the fastest algorithm of cuDNN and the fastest of dnnffi's
kernels run as CUDA graphs, inference, on arrays of two lengths. The difference of the two times
over the difference of the lengths is the time of a step: what is done once, such as loading weights
into registers, is not in it. x has eight columns, so that of the product with x, which both
compute for all steps at once, little more is in a step than that its results are written and read.

What the device allows (`limit`) is the larger of two times, plus an exchange: the products of a
step at the peak of its data sheet, and the weights that fit neither into registers nor into shared
memory, read from L2, or what does not fit there either from memory. The bandwidths and the exchange
of a word between two blocks are measured here, the sizes are those that the driver says. Where the
weights fit into one multiprocessor, the limit may be that of multiprocessors that exchange nothing
but between their warps, with the rows divided among them.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dnnffi
from dnnffi import files
from dnnffi.bench.clocks import CupyClock
from dnnffi.cli.machine import machine
from dnnffi.device.cupy import import_cupy
from dnnffi.rnn.backend import rnn_backends
from dnnffi.rnn.tuning import tune
from dnnffi.spec.options import RNNOptions

SIZES = (32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
DTYPES = ("float16", "float32")
BATCHES = (1, 64)
INPUTS = 8
FACTOR_BYTES = 2  # in float32, too, our kernels multiply factors of float16
MIN_ROWS = 8  # that an instruction of the peak multiplies: of fewer, the others are idle

PEAK = {"H100": 989.4, "H200": 989.4}
"""TFLOPS of dense products of float16 by the name of the device, from NVIDIA's data sheets.

Of the H100 SXM and the H200; the sheets have twice that, "with sparsity".
"""

SOURCE = r"""
extern "C" __global__ void read_all(const uint4 *data, long long words, int passes, unsigned *sink)
{
    const long long all = (long long)gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (int pass = 0; pass < passes; pass++) {
        #pragma unroll 8
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += all) {
            uint4 word;
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                         : "l"(data + i));
            sum ^= word.x ^ word.y ^ word.z ^ word.w;
        }
    }
    if (sum == 1) *sink = sum;
}

// Two blocks tell each other the number of the round and wait for the other's.
extern "C" __global__ void exchange(unsigned *words, int rounds)
{
    unsigned *own = words + 64 * blockIdx.x, *other = words + 64 * (1 - blockIdx.x);
    for (unsigned round = 1; round <= (unsigned)rounds; round++) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(own), "r"(round) : "memory");
        unsigned seen;
        do {
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                         : "=r"(seen) : "l"(other) : "memory");
        } while (seen < round);
    }
}

// The same between the warps of a block, through shared memory and a barrier.
extern "C" __global__ void barrier(unsigned *sink, int rounds)
{
    __shared__ unsigned words[2][256];
    unsigned value = threadIdx.x;
    for (int round = 0; round < rounds; round++) {
        words[round & 1][threadIdx.x] = value;
        __syncthreads();
        value = words[round & 1][(threadIdx.x + 33) & 255] + 1;
    }
    sink[threadIdx.x & 127] = value;
}
"""


class Device(NamedTuple):
    """The capacities, rates and latencies of a device that bound a step.

    Sizes are in bytes, rates in bytes per microsecond, latencies in microseconds.

    ``peak`` is floating-point operations per microsecond by dtype, None if no data sheet is known
    here.
    """

    multiprocessors: int
    register_bytes: int  # of a multiprocessor
    shared_bytes: int  # of a multiprocessor
    l2_bytes: int
    l2_rate: float
    memory_rate: float
    exchange_us: float  # between two blocks
    barrier_us: float  # between the warps of a block
    peak: float | None


def limit(device: Device, hidden_size: int, batch: int) -> float | None:
    """Microseconds below which no step of an LSTM can be; None without a data sheet."""
    if device.peak is None:
        return None
    matrix = 4 * hidden_size**2
    of_one = device.register_bytes + device.shared_bytes
    streamed = max(0, matrix * FACTOR_BYTES - device.multiprocessors * of_one)
    from_l2 = streamed / device.l2_rate
    from_memory = max(0, streamed - device.l2_bytes) / device.memory_rate
    products = 2 * matrix * max(batch, MIN_ROWS) / device.peak
    together = max(products, from_l2, from_memory) + device.exchange_us
    if matrix * FACTOR_BYTES > of_one:
        return together
    rows = max(ceil(batch / device.multiprocessors), MIN_ROWS)
    alone = 2 * matrix * rows * device.multiprocessors / device.peak
    return min(together, alone + device.barrier_us)


def steps_of(hidden_size: int) -> tuple[int, int]:
    """Return the two lengths: long ones where a step is short."""
    return (50, 250) if hidden_size <= 1024 else (20, 80)


def measured_device() -> Device:
    """Return the current device, with what is measured of it."""
    cupy = import_cupy()
    device = cupy.cuda.Device()
    found, clock = device.attributes, CupyClock()
    multiprocessors, l2_bytes = found["MultiProcessorCount"], found["L2CacheSize"]
    kernels = cupy.RawModule(code=SOURCE)
    read_all, exchange, barrier = map(kernels.get_function, ("read_all", "exchange", "barrier"))
    sink = cupy.zeros(128, "uint32")

    def rate(nbytes: int, passes: int) -> float:
        """Bytes a microsecond of reading a buffer many times, by all multiprocessors."""
        data = cupy.zeros(nbytes, "uint8")

        def taken(passes: int) -> float:
            def call() -> None:
                read_all(
                    (2 * multiprocessors,),
                    (1024,),
                    (data, np.int64(nbytes // 16), np.int32(passes), sink),
                )

            return min(clock.time(call, 3)[0] for _ in range(5)) * 1e3

        taken(1)
        return nbytes * passes / (taken(2 * passes) - taken(passes))

    def a_round(kernel: Any, blocks: int, threads: int) -> float:
        """Microseconds of one of many rounds."""

        def taken(rounds: int) -> float:
            def call() -> None:
                sink.fill(0)
                kernel((blocks,), (threads,), (sink, np.int32(rounds)))

            return min(clock.time(call, 1)[0] for _ in range(5)) * 1e3

        taken(10)
        return (taken(20_000) - taken(10_000)) / 10_000

    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    sheet = next((PEAK[word] for word in name.split() if word in PEAK), None)
    return Device(
        multiprocessors,
        4 * found["MaxRegistersPerMultiprocessor"],
        found["MaxSharedMemoryPerMultiprocessor"],
        l2_bytes,
        # A third of L2: each of its halves may keep a copy.
        l2_rate=rate(l2_bytes // 3 // 4096 * 4096, 20),
        memory_rate=rate(16 * l2_bytes, 2),
        exchange_us=a_round(exchange, 2, 1),
        barrier_us=a_round(barrier, 1, 256),
        peak=sheet and sheet * 1e6,
    )


def slope(short: dict[str, float], long: dict[str, float], steps: tuple[int, int]) -> Any:
    """Return the candidate that is fastest on the longer arrays, and microseconds of a step of it.

    Both are of milliseconds by candidate; None where none ran both.
    """
    both = [name for name in long if name in short]
    if not both:
        return None
    best = min(both, key=long.__getitem__)
    least, most = steps
    return {"candidate": best, "us": (long[best] - short[best]) * 1e3 / (most - least)}


def replayed(spec: dnnffi.RNNSpec, steps: int, batch: int, algorithm: str) -> dict[str, float]:
    """Milliseconds of each candidate as a graph: of cuDNN for "auto", else of dnnffi's kernels."""
    backend: Any = rnn_backends.of("cudnn")
    memory = backend.memory
    options = RNNOptions(algorithm=algorithm)
    problem = dnnffi.RNNProblem.dense(spec, steps=steps, batch=batch, options=options)
    candidates = backend.candidates if algorithm == "own" else backend.candidates.of_vendor
    if not candidates.offers(problem):
        return {}
    device, launch_on = memory.current_device(), backend.resources.launch
    found = tune(candidates, problem, device, memory, launch_on, budget=inf)
    times = {} if found is None else found.times
    return {name: t.replayed for name, t in times.items() if t.replayed is not None}


def row_of(hidden_size: int, batch: int, dtype: str, device: Device) -> dict[str, Any]:
    """Measure one row of the record."""
    spec = dnnffi.RNNSpec(mode="lstm", input_size=INPUTS, hidden_size=hidden_size, dtype=dtype)
    steps = steps_of(hidden_size)
    row = {"hidden_size": hidden_size, "batch": batch, "dtype": dtype, "steps": steps}
    for name, algorithm in (("cudnn", "auto"), ("own", "own")):
        short, long = (replayed(spec, count, batch, algorithm) for count in steps)
        row[name] = slope(short, long, steps)
    return row | {"limit_us": limit(device, hidden_size, batch)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the record there")
    parser.add_argument("--seconds", type=float, default=120.0, help="begin nothing after that")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="hidden sizes")
    options = parser.parse_args()
    began = time.perf_counter()
    device = measured_device()
    print(device)
    rows, left_out = [], 0
    for hidden_size, batch, dtype in product(options.sizes, BATCHES, DTYPES):
        if time.perf_counter() - began > options.seconds:
            left_out += 1
            continue
        rows.append(row_of(hidden_size, batch, dtype, device))
        print(rows[-1], flush=True)
    if left_out:
        print(f"{left_out} problems left out after {options.seconds:g} s")
    if options.json:
        record = {"machine": machine("gpu", ()), "device": device._asdict(), "rows": rows}
        files.write_json(options.json, record)


if __name__ == "__main__":
    main()
