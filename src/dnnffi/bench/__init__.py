"""Benchmarks of networks in dnnffi, PyTorch and JAX, as ``python -m dnnffi bench`` runs them.

They are part of the package so that an installed wheel can run them. Benchmarks that need a
checkout are in ``benchmarks/``.
"""
