"""What is asked of a backend: pure Python, no NumPy, CuPy or vendor library."""
