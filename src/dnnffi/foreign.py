"""Another name of `dnnffi.device.external`, under which users know it."""

from dnnffi.annotations import show_annotations
from dnnffi.device.external import DeviceArray, array_at, device_array, using
from dnnffi.device.external import ExternalMemory as ForeignMemory

__all__ = ["DeviceArray", "ForeignMemory", "array_at", "device_array", "using"]

show_annotations(*map(globals().__getitem__, __all__))
