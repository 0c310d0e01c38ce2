"""Specifications of what a backend runs: pure Python, no NumPy, CuPy or vendor library."""
