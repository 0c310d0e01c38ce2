"""Tests of the predicted weight layout against the real libMIOpen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dnnffi import testing, weight_layout
from dnnffi.backends.miopen.descriptors import RNNDescriptor, RNNInfo
from dnnffi.backends.miopen.layout import weight_parameters, weight_space_size
from dnnffi.backends.miopen.library import ALGORITHMS, RNN_DATA_TYPES
from dnnffi.spec.checks import ITEM_SIZES

networks = testing.specs(dtypes=list(RNN_DATA_TYPES), max_size=300, max_layers=5, projection=False)


def described(spec, algorithm, library):
    info = RNNInfo(
        spec.mode,
        spec.hidden_size,
        spec.num_layers,
        spec.bidirectional,
        spec.bias,
        spec.dtype,
        algorithm,
    )
    return RNNDescriptor(info, library=library)


@settings(max_examples=300)
@given(spec=networks, algorithm=st.sampled_from(list(ALGORITHMS)))
def test_prediction_is_what_the_library_says(library, spec, algorithm):
    with described(spec, algorithm, library) as descriptor:
        found = weight_parameters(descriptor, spec)
    assert found == weight_layout(spec, "miopen").parameters


@settings(max_examples=300)
@given(spec=networks, algorithm=st.sampled_from(list(ALGORITHMS)))
def test_predicted_size_is_what_the_library_says(library, handle, spec, algorithm):
    with described(spec, algorithm, library) as descriptor:
        found = weight_space_size(descriptor, handle, spec)
    assert found == weight_layout(spec, "miopen").size * ITEM_SIZES[spec.dtype]
