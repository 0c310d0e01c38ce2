"""Own CUDA kernels, for what is slow in the vendor's library and in array code."""
