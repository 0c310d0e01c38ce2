"""A CUDA device without an array library: the driver, its compiler, and launches of our kernels.

* ``loader``: where shared libraries are looked for.
* ``cuda``: libcuda, the driver. ``nvrtc``: libnvrtc, the compiler.
* ``kernel_cache``: compiled kernels on disk.
* ``kernels``: a kernel from its source, and its launch.

Nothing here knows CuPy or arrays: addresses, streams and devices are integers.
"""
