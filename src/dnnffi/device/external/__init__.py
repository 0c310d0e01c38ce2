"""Device arrays of other libraries, without CuPy: inputs as they are, results from an allocator.

With ``options={"allocator": f}`` a call takes any object that shows its device memory by DLPack or
``__cuda_array_interface__``, and every result is an object that ``f(shape, dtype_name)`` returned.
`using` does the same for executors, and `device_array` makes the arrays that they take.
"""

from dnnffi.device.external.array import DeviceArray, device_array
from dnnffi.device.external.memory import ExternalMemory
from dnnffi.device.external.use import using

__all__ = ["DeviceArray", "ExternalMemory", "device_array", "using"]
