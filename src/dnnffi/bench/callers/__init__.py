"""The same network through each way to call dnnffi, compared with ``torch.nn`` on one device.

`dnnffi.bench.runner` measures calls in a loop. Empty calls have the same operands and compute
nothing: a ``torch.autograd.Function`` and a compiled JAX function. Their host time is the cost of
the caller's library, and is subtracted.

Each library has its own module with models, because a library may be missing.
"""
