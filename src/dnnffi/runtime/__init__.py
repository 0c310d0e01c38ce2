"""Devices of CUDA and ROCm without an array library; on CUDA the compiler and launches of kernels.

* ``loader``: where shared libraries are looked for.
* ``cuda``: libcuda, the driver. ``nvrtc``: libnvrtc, the compiler. ``hip``: libamdhip64 of ROCm.
* ``devices``: what the runtimes of CUDA and ROCm have in common.
* ``kernel_cache``: compiled kernels on disk.
* ``kernels``: a kernel from its source, and its launch.

Nothing here needs CuPy or its arrays: addresses and devices are integers.
"""
