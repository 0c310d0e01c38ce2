"""The folder with the depthwise kernels."""

from dnnffi.backends.own.source import KernelFolder

FOLDER = KernelFolder("dnnffi.backends.own.depthwise")
