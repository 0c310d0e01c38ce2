"""Another name of `dnnffi.device.external`, under which users know it."""

from dnnffi.device.external import DeviceArray, array_at, device_array, using
from dnnffi.device.external import ExternalMemory as ForeignMemory

__all__ = ["DeviceArray", "ForeignMemory", "array_at", "device_array", "using"]
