"""The emulated device itself: what it computes, and that it finds what kernels may not do."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dnnffi.device.dtypes import dtype_object
from simulators.cuda.emulator import EmulatedKernel, EmulatorError, functions

SHARED = "extern __shared__ __align__(16) unsigned char memory[];"


@pytest.fixture(scope="module", autouse=True)
def compilers(compiler, cxx_compiler):
    """Require the compilers of C and C++."""


def launch(body, *arguments, blocks=2, threads=64, shared_bytes=256, seeds=1):
    """Run a kernel whose first argument is an array of integers."""
    source = f'extern "C" __global__ void kernel(int *out, long long n) {{ {body} }}'
    kernel = EmulatedKernel(source, "kernel", cooperative=True)
    for _ in range(seeds):
        kernel((blocks,), (threads,), arguments, shared_mem=shared_bytes)


def run(body, **how):
    out = np.zeros(256, np.int32)
    launch(body, out.ctypes.data, 3, **how)
    return out


def test_each_thread_knows_who_it_is():
    out = run("out[blockIdx.x * blockDim.x + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;")
    assert out[:128].tolist() == [*range(64), *range(1000, 1064)]


def test_a_barrier_shows_what_all_threads_wrote():
    body = f"""{SHARED}
        int *mine = (int *)memory, t = threadIdx.x;
        mine[t] = t;
        __syncthreads();
        out[blockIdx.x * 64 + t] = mine[63 - t];"""
    assert run(body, seeds=10)[:64].tolist() == list(range(63, -1, -1))


def test_without_a_barrier_some_thread_is_too_early():
    body = f"""{SHARED}
        int *mine = (int *)memory, t = threadIdx.x;
        mine[t] = t;
        out[blockIdx.x * 64 + t] = mine[63 - t];"""
    assert run(body, seeds=1)[:64].tolist() != list(range(63, -1, -1))


def test_a_warp_exchanges_values():
    body = "out[threadIdx.x] = (int)__shfl_xor_sync(~0u, (float)threadIdx.x, 5);"
    assert run(body)[:64].tolist() == [t ^ 5 for t in range(64)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if (threadIdx.x < 32) __syncthreads();", "no thread can go on|ended in front of"),
        ("if (threadIdx.x != 3) __syncwarp();", "no thread can go on"),
        (
            "if (threadIdx.x % 2) __syncwarp(); else __shfl_xor_sync(~0u, 1.0f, 1);",
            "lanes of a warp do not do the same",
        ),
        (f"{SHARED} memory[256 + threadIdx.x] = 1;", "wrote past its memory"),
        ("uint4 word; for (;;) device_load(&word, (void *)((long)out & ~15l));", "wait for ever"),
        ("uint4 word; device_load(&word, (char *)((long)out & ~15l) + 4);", "not aligned"),
        ("device_copy((char *)out, (char *)out + 8);", "not aligned"),
    ],
)
def test_what_no_kernel_may_do_is_found(body, words):
    with pytest.raises(EmulatorError, match=words):
        run(body, threads=64)


def test_a_store_into_a_block_that_has_ended_is_found():
    """Detect the store even if no thread is left to run."""
    body = "uint4 word{}; device_send(1 - blockIdx.x, 0, &word, 16, 64);"
    with pytest.raises(EmulatorError, match="a store into a block that has ended"):
        run(body, threads=32, seeds=10)


def test_a_store_is_seen_in_the_end():
    body = """uint4 word = make_uint4(blockIdx.x, threadIdx.x, 7, n);
        device_store((char *)(((long)out + 15) & ~15l) + 16 * threadIdx.x * (blockIdx.x + 1) *
                     (threadIdx.x < 8 && !blockIdx.x), &word);"""
    out = np.zeros(256, np.int32)
    first = -out.ctypes.data % 16 // 4
    launch(body, out.ctypes.data, 3, blocks=1, threads=32)
    assert out[first + 4 : first + 8].tolist() == [0, 1, 7, 3]


def test_stores_to_one_word_stay_in_order():
    body = """char *at = (char *)(((long)out + 15) & ~15l) + 16 * threadIdx.x;
        for (int i = 0; i < 20; i++) {
            uint4 word = make_uint4(i, i, i, i);
            device_store(at, &word);
        }"""
    out = np.zeros(256, np.int32)
    first = -out.ctypes.data % 16 // 4
    launch(body, out.ctypes.data, 3, blocks=1, threads=32)
    assert (out[first : first + 128] == 19).all()


def test_a_copy_is_done_when_it_was_waited_for():
    body = f"""{SHARED}
        char *to = (char *)memory + 16 * threadIdx.x, *from = (char *)(((long)out + 15) & ~15l);
        device_copy(to, from);
        device_commit();
        device_wait(0);
        out[200 + threadIdx.x] = *(int *)to;"""
    out = np.full(256, 5, np.int32)
    launch(body, out.ctypes.data, 3, blocks=1, threads=32, shared_bytes=512, seeds=5)
    assert (out[200:232] == 5).all()


CONVERT = """
extern "C" void to_real(const Element *from, float *to, long count)
{
    for (long i = 0; i < count; i++) to[i] = real(from[i]);
}
extern "C" void to_element(const float *from, Element *to, long count)
{
    for (long i = 0; i < count; i++) to[i] = rounded(from[i]);
}
"""


@pytest.mark.parametrize(("number", "dtype"), [("FLOAT16", "float16"), ("BFLOAT16", "bfloat16")])
def test_numbers_of_16_bits_are_those_of_numpy(number, dtype):
    library = functions(
        {"DTYPE": number, "FACTORS": number, "STRICT": False},
        ("element.cuh",),
        CONVERT,
    )
    bits = np.arange(2**16, dtype="u2")
    found, back = np.zeros(2**16, "f4"), np.zeros(2**18, "u2")
    with np.errstate(invalid="ignore", over="ignore"):
        values = bits.view(dtype_object(dtype)).astype("f4")
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (bits, found))
        library.to_real(*pointers, ctypes.c_long(2**16))
        np.testing.assert_array_equal(found, values)
        # All numbers, the middles between two of them, and what is just beside those.
        middle = (values.view("u4") + (0x1000 if dtype == "float16" else 0x8000)).view("f4")
        beside = (middle.view("u4") + 1).view("f4"), (middle.view("u4") - 1).view("f4")
        wide = np.concatenate([values, middle, *beside])
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (wide, back))
        library.to_element(*pointers, ctypes.c_long(len(wide)))
        expected = wide.astype(dtype_object(dtype)).astype("f4")
        np.testing.assert_array_equal(back.view(dtype_object(dtype)).astype("f4"), expected)
