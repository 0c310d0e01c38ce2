"""The weight layout that MIOpen itself reports, in the form of `dnnffi.weight_layout`."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import RNNDescriptor, TensorDescriptor
from dnnffi.backends.miopen.library import DATA_TYPES
from dnnffi.backends.vendor.handle import Handle
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import Parameter

# By the number that MIOpen gives the gate, on the input side; G more on the recurrent side. Tests
# compare what follows from it with `dnnffi.spec.weights`, which has an order of its own.
_GATES = {"lstm": ("i", "f", "o", "g"), "gru": ("z", "r", "n")}


def weight_space_size(descriptor: RNNDescriptor, handle: Handle, spec: RNNSpec) -> int:
    """Bytes of the weight buffer (``miopenGetRNNParamsSize``). It needs a device."""
    library = descriptor.library
    size = ffi.new("size_t *")
    with TensorDescriptor(spec.dtype, (1, spec.input_size), library=library) as x:
        arguments = handle.pointer, descriptor.pointer, x.pointer, size, DATA_TYPES[spec.dtype]
        library.call("miopenGetRNNParamsSize", *arguments, problem=spec)
    return int(size[0])


def weight_parameters(descriptor: RNNDescriptor, spec: RNNSpec) -> tuple[Parameter, ...]:
    """Every gate's matrix and bias, by offset, which counts elements. It needs no device.

    As ``miopenGetRNNLayerParamOffset`` and ``miopenGetRNNLayerBiasOffset`` give them;
    ``descriptor`` is one of ``spec``.
    """
    library = descriptor.library
    gates = _GATES.get(spec.mode, spec.gates)
    kinds = [("miopenGetRNNLayerParamOffset", "w")]
    if spec.bias:
        kinds.append(("miopenGetRNNLayerBiasOffset", "b"))
    offset = ffi.new("size_t *")
    found = []
    with (
        TensorDescriptor(spec.dtype, (1, spec.input_size), library=library) as x,
        TensorDescriptor(spec.dtype, (1,), library=library) as part,
    ):
        for pseudo_layer in range(spec.num_layers * spec.num_directions):
            layer, direction = divmod(pseudo_layer, spec.num_directions)
            for identity in range(2 * len(gates)):
                side, gate = divmod(identity, len(gates))
                for function, kind in kinds:
                    asked = descriptor.pointer, pseudo_layer, x.pointer, identity
                    library.call(function, *asked, part.pointer, offset, problem=spec)
                    name = f"{kind}_{('ih', 'hh')[side]}"
                    shape = part.read().shape
                    found.append(
                        Parameter(layer, direction, name, gates[gate], int(offset[0]), shape)
                    )
    return tuple(sorted(found, key=lambda parameter: parameter.offset))
