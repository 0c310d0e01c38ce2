"""The networks that are measured through each way to call dnnffi."""

from __future__ import annotations

from dnnffi.bench.shapes import Shape

CALLERS = (
    Shape("lstm", "float16", 100, 64, 512, 512),
    Shape("lstm", "float32", 100, 64, 512, 512),
    Shape("gru", "float32", 100, 32, 256, 256, layers=2),
    Shape("lstm", "float32", 20, 1, 128, 128),
)
"""Three networks whose calls are limited by the GPU, and one that is limited by the host."""

TINY = (
    Shape("lstm", "float32", 5, 3, 4, 6),
    Shape("gru", "float32", 5, 3, 4, 6, layers=2),
)
"""Small networks for a CPU and for the tests."""

SETS: dict[str, tuple[Shape, ...]] = {"callers": CALLERS, "tiny": TINY}

FUNCTIONS = "dnnffi"
NEW_ARRAYS = "dnnffi new arrays"
ALLOCATOR = "dnnffi allocator"
TORCH_LIST, TORCH_FLAT = "dnnffi torch list", "dnnffi torch flat"
TORCH_MODULE = "dnnffi torch module"
TORCH_ONE_THREAD = "dnnffi torch module, one thread"
TORCH_GRAPH = "dnnffi torch module, one graph"
JAX = "dnnffi jax"
TORCH, NN_GRAPH = "torch eager", "torch graph"
EMPTY_AUTOGRAD, EMPTY_JAX = "empty autograd function", "empty jax function"
EMPTY_ONE_THREAD = "empty autograd function, one thread"
