"""GPUs of tests that choose divisions of recurrent layers without one."""

from dnnffi.backends.own.recurrent.config import Chip

H200 = Chip(132, 232_448, cluster_counts=(132, 66, 39, 30, 22, 17, 15, 15))
"""An H200, by its driver."""
