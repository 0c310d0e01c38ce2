"""The fastrnns suite: networks of dnnffi and of its peers, timed side by side.

It is in the package so that ``python -m dnnffi bench`` runs where a wheel is installed;
``benchmarks/`` has what needs a checkout.
"""
