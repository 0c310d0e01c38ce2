"""Arrays of other libraries, without CuPy: inputs as they are, results from an allocator.

With ``options={"allocator": f}`` a call takes any object that shows its device memory by DLPack or
``__cuda_array_interface__``, and every result is an object that ``f(shape, dtype_name)`` returned.
Objects that show memory of the host, by DLPack or ``__array_interface__``, go to the reference in
the same way. `using` does the same for executors, and `device_array` and `array_at` make the arrays
that they take.
"""

from dnnffi.device.external.address import array_at
from dnnffi.device.external.array import DeviceArray, device_array
from dnnffi.device.external.memory import ExternalMemory
from dnnffi.device.external.use import using

__all__ = ["DeviceArray", "ExternalMemory", "array_at", "device_array", "using"]
