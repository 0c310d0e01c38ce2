"""The simulator of cuDNN by itself: its objects, and what tests ask of it and tell it."""

from __future__ import annotations

import pytest

from dnnffi.backends.cudnn._cdef import ffi
from simulators.cudnn.calls import CALLS, Network, StandinError, small

# Objects


@pytest.mark.parametrize("kind", ["Tensor", "Filter", "Dropout", "RNN", "RNNData"])
def test_counts_objects_and_sees_them_destroyed_twice(standin, kind):
    name = {"RNNData": "rnn_data"}.get(kind, kind.lower()).encode()
    live = standin.control.standin_live
    assert live(name) == 0
    descs = [standin.descriptor(kind) for _ in range(3)]
    assert live(name) == live(b"*") == 3
    destroy = f"cudnnDestroy{kind}Descriptor"
    standin(destroy, descs[1])
    standin.forget(descs[1])
    assert live(name) == 2
    with pytest.raises(StandinError, match="was destroyed"):
        standin(destroy, descs[1])
    with pytest.raises(StandinError, match="is no object of this library"):
        standin(destroy, ffi.cast(f"cudnn{kind}Descriptor_t", 4096))
    standin(destroy, ffi.NULL)
    assert standin.violations == 2


def test_has_every_function_that_dnnffi_declares(standin):
    functions = [
        name for name in dir(standin.lib) if name.startswith("cudnn") and not name.isupper()
    ]
    assert len(functions) > 40
    for name in functions:
        assert getattr(standin.lib, name)


def test_the_arguments_are_those_of_the_declarations(standin):
    for function, names in CALLS.items():
        assert len(ffi.typeof(getattr(standin.lib, function)).args) == len(names)


# Controls


def test_registers_memory(standin):
    register, unregister = standin.control.standin_register, standin.control.standin_unregister
    assert register(4096, 64) == 0
    for start, size in ((4096, 64), (4159, 1), (4090, 7), (0, 64), (8192, 0)):
        assert register(start, size) == -1
    assert register(4160, 64) == register(4032, 64) == 0
    assert standin.control.standin_registered() == 3
    assert unregister(4100) == -1
    assert [unregister(start) for start in (4032, 4096, 4160)] == [0, 0, 0]
    assert unregister(4096) == -1
    assert standin.violations == 7


def test_fails_on_request(standin):
    control = standin.control
    assert control.standin_fail(b"cudnnCreateTensorDescriptor", 2, 4000) == 0
    standin.descriptor("Tensor")
    with pytest.raises(StandinError, match=r"CUDNN_STATUS_INTERNAL_ERROR: .* on request"):
        standin.descriptor("Tensor")
    assert control.standin_live(b"tensor") == 1
    assert standin.control_ffi.string(control.standin_failed()) == b"cudnnCreateTensorDescriptor"
    standin.descriptor("Tensor")
    assert standin.violations == 0


def test_fails_at_any_call_but_a_destroying_one(standin):
    control = standin.control
    desc = standin.descriptor("Tensor")
    control.standin_fail(b"*", 1, 5000)
    standin("cudnnDestroyTensorDescriptor", desc)
    standin.forget(desc)
    with pytest.raises(StandinError, match="CUDNN_STATUS_EXECUTION_FAILED"):
        standin.descriptor("Filter")
    control.standin_fail(b"*", 1, 5000)
    control.standin_fail(b"*", 0, 0)
    standin.descriptor("Filter")


def test_fails_only_what_there_is(standin):
    assert standin.control.standin_fail(b"cudnnCraete", 1, 4000) == -1
    assert standin.control.standin_fail(b"cudnnGetVersion", 1, 4000) == -1
    assert standin.control.standin_live(b"tensors") == -1


def test_counts_calls(standin):
    calls = standin.control.standin_calls
    standin.descriptor("Tensor")
    standin.descriptor("Tensor")
    standin.lib.cudnnGetVersion()
    assert calls(b"cudnnCreateTensorDescriptor") == 2
    assert calls(b"cudnnGetVersion") == 1
    assert calls(b"*") == 2
    assert calls(b"cudnnCraete") == 2**64 - 1
    standin.control.standin_reset()
    assert calls(b"cudnnCreateTensorDescriptor") == calls(b"*") == 0


def test_logs_streams(standin):
    net = Network(standin, small("gru"), 4, 3)
    standin("cudnnSetStream", net.values["handle"], 0x100)
    net.forward()
    standin("cudnnSetStream", net.values["handle"], 0x200)
    assert standin.control.standin_last_stream() == 0x200
    assert standin.control.standin_stream_of(b"cudnnRNNForward") == 0x100
    out = ffi.new("stream_ptr *")
    standin("cudnnGetStream", net.values["handle"], out)
    assert out[0] == 0x200


def test_knobs(standin):
    control, lib = standin.control, standin.lib
    assert lib.cudnnGetVersion() == 91900
    control.standin_set_version(8906)
    assert lib.cudnnGetVersion() == 8906
    net = Network(standin, small("gru"), 4, 3)
    control.standin_set_max_steps(3)
    with pytest.raises(StandinError, match=r"CUDNN_STATUS_NOT_SUPPORTED: .* 4 steps are more"):
        net.sequences(3)
    assert (standin.violations, control.standin_refusals()) == (0, 1)
    control.standin_reset()
    net.sequences(3)
    assert lib.cudnnGetVersion() == 91900
