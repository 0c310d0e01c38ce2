"""CUDA kernels of our own, where neither the vendor's library nor array code is fast."""
