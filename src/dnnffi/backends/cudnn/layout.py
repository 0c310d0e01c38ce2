"""The weight layout that cuDNN itself reports, in the form of `dnnffi.weight_layout`."""

from __future__ import annotations

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.cudnn.descriptors import RNNDescriptor, TensorDescriptor
from dnnffi.backends.vendor.handle import Handle
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import Parameter

# Any aligned address serves: the library only adds offsets to it.
_BASE = 1 << 20


def weight_space_size(descriptor: RNNDescriptor, handle: Handle) -> int:
    """Bytes of the weight buffer (``cudnnGetRNNWeightSpaceSize``)."""
    library = descriptor.library
    size = ffi.new("size_t *")
    arguments = handle.pointer, descriptor.pointer, size
    library.call("cudnnGetRNNWeightSpaceSize", *arguments, problem=descriptor)
    return int(size[0])


def weight_parameters(
    descriptor: RNNDescriptor, handle: Handle, spec: RNNSpec
) -> tuple[Parameter, ...]:
    """Every gate's matrix and bias as ``cudnnGetRNNWeightParams`` gives it, by offset.

    ``descriptor`` is one of ``spec``. Offsets count elements.
    """
    library = descriptor.library
    size = weight_space_size(descriptor, handle)
    item = ITEM_SIZES[spec.dtype]
    identities: list[tuple[str, str, str | None]] = [
        *(("w_ih", "b_ih", gate) for gate in spec.gates),
        *(("w_hh", "b_hh", gate) for gate in spec.gates),
    ]
    if spec.proj_size:
        identities.append(("w_hr", "", None))
    addresses = ffi.new("dev_ptr *"), ffi.new("dev_ptr *")
    found = []
    with (
        TensorDescriptor(spec.dtype, (1, 1, 1), library=library) as matrix,
        TensorDescriptor(spec.dtype, (1, 1, 1), library=library) as bias,
    ):
        for pseudo_layer in range(spec.num_layers * spec.num_directions):
            layer, direction = divmod(pseudo_layer, spec.num_directions)
            for identity, (matrix_name, bias_name, gate) in enumerate(identities):
                library.call(
                    "cudnnGetRNNWeightParams",
                    *(handle.pointer, descriptor.pointer, pseudo_layer, size, _BASE, identity),
                    *(matrix.pointer, addresses[0], bias.pointer, addresses[1]),
                    problem=spec,
                )
                for name, address, tensor in (
                    (matrix_name, addresses[0][0], matrix),
                    (bias_name, addresses[1][0], bias),
                ):
                    if not address:
                        continue
                    # [1, rows, columns] of a matrix, [1, rows, 1] of a bias
                    shape = tensor.read().shape[1:]
                    offset = (int(address) - _BASE) // item
                    shape = shape if name.startswith("w") else shape[:1]
                    found.append(Parameter(layer, direction, name, gate, offset, shape))
    return tuple(sorted(found, key=lambda parameter: parameter.offset))
