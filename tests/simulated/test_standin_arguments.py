"""The simulator of cuDNN by itself: that it refuses every kind of wrong argument."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dnnffi.backends.cudnn._cdef import ffi
from simulators.cudnn.calls import (
    CALLS,
    DATA_TYPES,
    LAYOUTS,
    Network,
    StandinError,
    address,
    dropout_descriptor,
    small,
)

CALL_NAMES = dict(zip(("forward", "data", "weights"), CALLS, strict=True))

# Refused arguments: the calls before, the change, the status, a part of the message.


def other_handle(net):
    handle = net.standin.handle()
    net.standin("cudnnDestroy", handle)
    net.standin.forget(handle)
    return {"handle": handle}


def destroyed(name, kind):
    def change(net):
        desc = net.standin.descriptor(kind)
        net.standin(f"cudnnDestroy{kind}Descriptor", desc)
        net.standin.forget(desc)
        return {name: desc}

    return change


def fresh(name, kind):
    return lambda net: {name: net.standin.descriptor(kind)}


def sequences(name, **changes):
    def change(net):
        spec = net.spec
        size = spec.input_size if name == "x_desc" else spec.output_size * spec.num_directions
        given = {"vector_size": size} | changes
        return {name: net.sequences(**given)}

    return change


def tensor(name, shape, strides=None, dtype=None):
    return lambda net: {name: net.tensor(shape, strides, dtype)}


def value(**changes):
    return lambda net: changes


def one_less(name):
    return lambda net: {name: net.values[name] - 1}


def same_as(name, other):
    return lambda net: {name: net.values[other]}


def shifted(name, by):
    """The array at another address; ``by`` counts bytes."""

    def change(net):
        start = address(net.values[name]) + by
        return {name: Address(start)}

    return change


class Address(int):
    """An address that no array stands for."""


def not_registered(name):
    def change(net):
        array = np.array(net.values[name])
        net.keep = array
        return {name: array}

    return change


def too_short(name):
    """An array of its own that lacks the last element."""

    def change(net):
        array = net.values[name]
        return {name: net.standin.full(array.size - 1, net.spec.dtype, 0.0)}

    return change


def touched(name, index=0):
    def change(net):
        net.values[name].reshape(-1)[index] += 1
        return {}

    return change


ALL = ("forward", "data", "weights")
SIZES = "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT"
SHAPES = "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"
NO_BOUND = "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"
NULL = "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"
MISALIGNED = "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"
BAD = "CUDNN_STATUS_BAD_PARAM"
UNSUPPORTED = "CUDNN_STATUS_NOT_SUPPORTED"

# The network: LSTM, I 3, H 4, P 2, two layers, both directions, T 4, B 3, lengths 2 4 1, float64.
WRONG = [
    (ALL, value(handle=ffi.NULL), BAD, "handle is NULL"),
    (ALL, other_handle, BAD, "handle was destroyed"),
    (ALL, same_as("handle", "rnn"), BAD, "a rnn was given as the handle"),
    (ALL, value(rnn=ffi.NULL), BAD, "rnn is NULL"),
    (ALL, destroyed("rnn", "RNN"), BAD, "rnn was destroyed"),
    (ALL, fresh("rnn", "RNN"), BAD, "created but not set"),
    (ALL, same_as("rnn", "x_desc"), BAD, "a rnn_data was given as the rnn"),
    (ALL, same_as("x_desc", "h_desc"), BAD, "a tensor was given as the rnn_data"),
    (ALL, destroyed("x_desc", "RNNData"), BAD, "rnn_data was destroyed"),
    (ALL, destroyed("y_desc", "RNNData"), BAD, "rnn_data was destroyed"),
    (ALL, destroyed("h_desc", "Tensor"), BAD, "tensor was destroyed"),
    (ALL[:2], destroyed("c_desc", "Tensor"), BAD, "tensor was destroyed"),
    (ALL, fresh("x_desc", "RNNData"), BAD, "created but not set"),
    (ALL, sequences("x_desc", vector_size=4), SHAPES, "the input size is 3"),
    (ALL, sequences("x_desc", dtype=DATA_TYPES["float32"]), BAD, "x has data type 0"),
    (ALL, sequences("y_desc", vector_size=2), SHAPES, "the network gives 4"),
    (ALL, sequences("y_desc", dtype=DATA_TYPES["float32"]), BAD, "x and y differ"),
    (ALL, sequences("y_desc", layout=LAYOUTS["batch_major"]), BAD, "x and y differ"),
    (ALL, sequences("y_desc", steps=5), BAD, "x and y differ"),
    (ALL, sequences("y_desc", batch=2, lengths=[2, 4]), BAD, "x and y differ"),
    (ALL, sequences("y_desc", lengths=[2, 3, 1]), BAD, "row 1 has length 4 in x and 3 in y"),
    (ALL, tensor("h_desc", [4, 3, 4]), SHAPES, "h tensor has 4 in dimension 2"),
    (ALL, tensor("h_desc", [2, 3, 2]), SHAPES, "h tensor has 2 in dimension 0"),
    (ALL, tensor("h_desc", [12, 2]), SHAPES, "h tensor has 2 dimensions"),
    (ALL, tensor("h_desc", [4, 3, 2, 2]), SHAPES, "h tensor has 2 in dimension 3"),
    (ALL, tensor("h_desc", [4, 3, 2], [8, 2, 1]), BAD, "not packed"),
    (ALL, tensor("h_desc", [4, 3, 2], dtype="float32"), BAD, "h tensor has data type 0"),
    (ALL[:2], tensor("c_desc", [4, 3, 2]), SHAPES, "c tensor has 2 in dimension 2"),
    (ALL, one_less("weights_size"), SIZES, "a weight space of"),
    (ALL, one_less("workspace_size"), SIZES, "a workspace of"),
    (ALL, one_less("reserve_size"), SIZES, "a reserve space of"),
    (ALL, too_short("y"), NO_BOUND, "y: its"),
    (ALL, not_registered("y"), NO_BOUND, "y: its"),
    (ALL, not_registered("workspace"), NO_BOUND, "the workspace: its"),
    (ALL, shifted("reserve", 16), NO_BOUND, "the reserve space: its"),
    (ALL, shifted("y", 2), MISALIGNED, "y is not aligned"),
    (ALL, shifted("workspace", 8), MISALIGNED, "the workspace is not aligned"),
    (ALL, too_short("hx"), NO_BOUND, "hx: its"),
    (ALL, value(y=None), NULL, "y is NULL"),
    (ALL, value(workspace=None), NULL, "the workspace is NULL"),
    (ALL, value(reserve=None), NULL, "the reserve space is NULL"),
    (ALL, same_as("workspace", "reserve"), BAD, "overlap"),
    (ALL[::2], too_short("x"), NO_BOUND, "x: its"),
    (ALL[::2], value(x=None), NULL, "x is NULL"),
    (ALL[:2], too_short("weights"), NO_BOUND, "the weight space: its"),
    (ALL[:2], too_short("cx"), NO_BOUND, "cx: its"),
    (ALL[:1], value(mode=2), BAD, "no forward mode 2"),
    (ALL[:1], too_short("hy"), NO_BOUND, "hy: its"),
    (ALL[:1], too_short("cy"), NO_BOUND, "cy: its"),
    (ALL[:1], same_as("hy", "hx"), BAD, "hx and hy overlap"),
    (ALL[:1], same_as("cy", "weights"), BAD, "overlap"),
    (ALL[1:2], too_short("dx"), NO_BOUND, "dx: its"),
    (ALL[1:2], too_short("dy"), NO_BOUND, "dy: its"),
    (ALL[1:2], value(dy=None), NULL, "dy is NULL"),
    (ALL[1:2], too_short("dhx"), NO_BOUND, "dhx: its"),
    (ALL[1:2], too_short("dcy"), NO_BOUND, "dcy: its"),
    (ALL[1:2], same_as("dhx", "dhy"), BAD, "dhy and dhx overlap"),
    (ALL[1:], same_as("y", "dy"), BAD, "y is not what it was in forward"),
    (ALL[1:2], touched("weights"), BAD, "the weight space is not what it was"),
    (ALL[1:2], value(cx=None), BAD, "cx is not what it was"),
    (ALL[1:], value(hx=None), BAD, "hx is not what it was"),
    (ALL[1:], touched("reserve", -1), BAD, "the reserve space was changed"),
    (ALL[2:], touched("x"), BAD, "x is not what it was"),
    (ALL[2:], too_short("dweights"), NO_BOUND, "the gradient of the weights: its"),
    (ALL[2:], same_as("dweights", "x"), NO_BOUND, "the gradient of the weights: its"),
    (ALL[2:], value(add=1), UNSUPPORTED, "weight gradient mode 1"),
    (ALL[2:], value(add=2), BAD, "weight gradient mode 2"),
]


def ready_for(standin, call):
    """A network on which everything ran that comes before a call."""
    spec = small("lstm", num_layers=2, bidirectional=True, proj_size=2)
    net = Network(standin, spec, 4, 3, lengths=[2, 4, 1])
    if call != "forward":
        net.forward()
    if call == "weights":
        net.backward_data()
    return net


@pytest.mark.parametrize(
    ("call", "change", "status", "message"),
    [
        pytest.param(call, change, status, message, id=f"{index}-{call}")
        for index, (calls, change, status, message) in enumerate(WRONG)
        for call in calls
    ],
)
def test_refuses_a_wrong_argument(standin, call, change, status, message):
    net = ready_for(standin, call)
    changes = change(net)
    outputs = {name: np.array(net.values[name]) for name in ("y", "hy", "dx", "dhx", "dweights")}
    before = standin.violations, standin.control.standin_refusals()
    with pytest.raises(StandinError) as error:
        net.call(CALL_NAMES[call], **changes)
    assert error.value.status == status
    assert message in error.value.message
    is_violation = status != UNSUPPORTED
    after = standin.violations, standin.control.standin_refusals()
    assert after == (before[0] + is_violation, before[1] + (not is_violation))
    if is_violation:
        assert standin.last_violation == error.value.message
    for name, array in outputs.items():
        np.testing.assert_array_equal(net.values[name], array)


def refused(net, call, message, **changes):
    with pytest.raises(StandinError) as error:
        net.call(CALL_NAMES[call], **changes)
    assert message in error.value.message


def test_refuses_the_calls_in_another_order(standin):
    net = Network(standin, small("gru"), 4, 3)
    refused(net, "data", "no training forward filled the reserve space")
    net.forward()
    refused(net, "weights", "must be backward data, it was forward")
    net.backward_data()
    refused(net, "data", "must be forward, it was backward data")
    net.backward_weights()
    refused(net, "weights", "must be backward data, it was backward weights")
    net.forward()
    net.backward_data()


def test_a_copy_of_the_reserve_space_can_go_back_again(standin):
    net = Network(standin, small("lstm", num_layers=2), 4, 3)
    net.forward()
    copy = standin.array(net.values["reserve"], "uint8")
    net.backward_data()
    net.backward_weights()
    first = [net.values[name].copy() for name in ("dx", "dhx", "dcx", "dweights")]
    net.values["dweights"][:] = 0
    net.backward_data(reserve=copy)
    net.backward_weights(reserve=copy)
    for name, array in zip(("dx", "dhx", "dcx", "dweights"), first, strict=True):
        np.testing.assert_array_equal(net.values[name], array)


def test_backward_changes_the_reserve_space(standin):
    net = Network(standin, small("lstm"), 4, 3)
    net.forward()
    before = net.values["reserve"].copy()
    net.backward_data()
    header = 128
    assert not np.array_equal(net.values["reserve"][header:], before[header:])


def test_refuses_the_reserve_space_of_another_network(standin):
    net = Network(standin, small("lstm"), 4, 3)
    other = Network(standin, small("lstm"), 4, 3, clip=(-1.0, 1.0))
    other.forward()
    refused(net, "data", "had other descriptors", reserve=other.values["reserve"])


@pytest.mark.parametrize("name", ["cx", "cy"])
def test_refuses_a_cell_state_where_there_is_no_cell(standin, name):
    net = Network(standin, small("gru"), 4, 3)
    refused(net, "forward", f"{name} was given", **{name: net.values["hx"]})


def test_takes_any_cell_descriptor_where_there_is_no_cell(standin):
    net = Network(standin, small("gru"), 4, 3)
    net.forward(c_desc=ffi.NULL)
    net.forward(c_desc=standin.descriptor("Tensor"))
    refused(net, "forward", "given as the tensor", c_desc=net.values["rnn"])


@pytest.mark.parametrize("rank", [3, 5, 8])
def test_takes_states_with_trailing_dimensions_of_one(standin, rank):
    net = Network(standin, small("lstm"), 4, 3)
    shape = [1, 3, 4, *[1] * (rank - 3)]
    net.forward(h_desc=net.tensor(shape), c_desc=net.tensor(shape))


def test_refuses_padded_layouts_without_the_flag(standin):
    net = Network(standin, small("gru"), 4, 3, layout="packed", lengths=[4, 3, 1])
    padded = net.sequences(3, layout=LAYOUTS["sequence_major"])
    refused(net, "forward", "without CUDNN_RNN_PADDED_IO_ENABLED", x_desc=padded)


def test_takes_the_lengths_in_device_memory_if_they_agree(standin):
    net = Network(standin, small("gru"), 4, 3, lengths=[2, 4, 1])
    net.forward(lengths=standin.array([2, 4, 1], "int32"))
    refused(net, "forward", "row 1 has", lengths=standin.array([2, 3, 1], "int32"))
    refused(net, "forward", "the lengths: its", lengths=standin.array([2, 4], "int32"))


def test_persistent_algorithms_want_rows_of_equal_length(standin):
    net = Network(standin, small("gru", dtype="float32"), 4, 3, algorithm=1)
    net.forward()
    ragged = net.sequences(3, lengths=[4, 3, 4])
    refused(net, "forward", "rows of equal length", x_desc=ragged)
    assert standin.violations == 0


def test_the_dynamic_algorithm_is_built_for_a_batch(standin):
    with pytest.raises(StandinError, match="did not run for a batch of 3"):
        Network(standin, small("gru"), 4, 3, algorithm=2)
    rnn = standin.objects[-5][1]
    assert standin.objects[-5][0] == "cudnnDestroyRNNDescriptor"
    handle = standin.objects[-6][1]
    standin("cudnnBuildRNNDynamic", handle, rnn, 2)
    with pytest.raises(StandinError, match="did not run for a batch of 3"):
        Network(standin, small("gru"), 4, 3, algorithm=2)


def test_refuses_dropout_whose_descriptor_is_gone(standin):
    dropout, _ = dropout_descriptor(standin, 0.5)
    net = Network(standin, small("gru", num_layers=2), 4, 3, dropout=dropout)
    standin("cudnnDestroyDropoutDescriptor", dropout)
    standin.forget(dropout)
    refused(net, "forward", "the dropout was destroyed")


def test_refuses_dropout_without_good_states(standin):
    dropout, states = dropout_descriptor(standin, 0.5)
    net = Network(standin, small("gru", num_layers=2), 4, 3, dropout=dropout)
    states[:] = 0
    refused(net, "forward", "the states were not set up")
    handle = net.values["handle"]
    for name, arguments, message in (
        ("Set", (0.5, 0, 0), "no states to drop with"),
        ("Set", (1.5, address(states), states.nbytes), "a dropout of 1.5"),
        ("Set", (0.5, address(states), states.nbytes - 1), "are needed"),
        ("Set", (0.5, address(states), states.nbytes + 1), "its 1025 bytes do not lie inside"),
        ("Restore", (0.5, address(states), states.nbytes), "the states were not set up"),
        ("Restore", (0.0, 0, 0), "no states to restore"),
    ):
        with pytest.raises(StandinError, match=message):
            standin(f"cudnn{name}DropoutDescriptor", dropout, handle, *arguments, 1)
    standin("cudnnSetDropoutDescriptor", dropout, handle, 0.0, 0, 0, 1)


def test_sees_a_handle_on_another_thread(standin):
    net = Network(standin, small("gru"), 4, 3)
    messages = []

    def work():
        try:
            net.forward()
        except StandinError as error:
            messages.append(error.message)

    def elsewhere():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    elsewhere()
    assert messages == ["cudnnRNNForward: the handle is that of another thread"]
    standin.control.standin_check_threads(0)
    elsewhere()
    assert len(messages) == 1
