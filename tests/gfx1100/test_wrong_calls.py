"""Answers of the real libMIOpen to wrong calls, and faults that only the device notices.

If libMIOpen accepts a wrong call, dnnffi has to check the arguments before it.
"""

from __future__ import annotations

import numpy as np
import pytest
from gfx1100.conftest import violations
from gfx1100.rnn_network import Network, Problem

from dnnffi.spec.rnn import RNNSpec

SUCCESS, BAD_PARAMETER, UNKNOWN_ERROR = 0, 3, 7
STEPS, BATCH = 3, 2
LAUNCH_FAILED = 719
DOUBLE = 6


class Call:
    """A training forward pass of an LSTM, with arguments that a test replaces."""

    def __init__(self, session):
        self.session = session
        self.spec = spec = RNNSpec(mode="lstm", input_size=5, hidden_size=5)
        self.network = network = Network(session, spec)
        problem = Problem(network, STEPS, BATCH)
        state = network.tensor(*spec.h_shape(BATCH))
        xs = self.tensors(spec.input_size)
        sizes = (session.handle, network.descriptor, STEPS, xs)
        workspace_bytes = session.size("miopenGetRNNWorkspaceSize", *sizes)
        reserve_bytes = session.size("miopenGetRNNTrainingReserveSize", *sizes)
        self.arguments = {
            "steps": STEPS,
            "xs": xs,
            "x": session.upload(problem.x),
            "h_0_tensor": state,
            "h_0": session.upload(problem.h_0),
            "c_0_tensor": state,
            "c_0": session.upload(problem.c_0),
            "weight_tensor": network.weight_tensor,
            "w": session.upload(network.pack(problem.weights)),
            "ys": self.tensors(spec.hidden_size),
            "y": session.allocate(problem.dy.nbytes),
            "h_n_tensor": state,
            "h_n": session.allocate(problem.h_0.nbytes),
            "c_n_tensor": state,
            "c_n": session.allocate(problem.c_0.nbytes),
            "workspace": session.allocate(workspace_bytes),
            "workspace_bytes": workspace_bytes,
            "reserve": session.allocate(reserve_bytes),
            "reserve_bytes": reserve_bytes,
        }

    def tensors(self, size, batches=(BATCH,) * STEPS):
        return self.session.tensors([self.network.tensor(batch, size) for batch in batches])

    def __call__(self, **replaced):
        assert replaced.keys() <= self.arguments.keys()
        arguments = (self.arguments | replaced).values()
        name, descriptor = "miopenRNNForwardTraining", self.network.descriptor
        return self.session.call(name, self.session.handle, descriptor, *arguments)


@pytest.fixture
def call(session):
    made = Call(session)
    assert made() == SUCCESS
    return made


@pytest.mark.parametrize("size", ["workspace_bytes", "reserve_bytes"])
def test_space_that_is_too_small_is_an_unknown_error(call, size):
    assert call(**{size: call.arguments[size] - 4}) == UNKNOWN_ERROR


def test_a_batch_that_grows_is_a_bad_parameter(call):
    assert call(xs=call.tensors(call.spec.input_size, (1, 2, 2))) == BAD_PARAMETER


def test_no_input_is_a_bad_parameter(call):
    assert call(x=call.session.null) == BAD_PARAMETER


def test_double_precision_is_refused(call):
    arguments = (call.network.descriptor, 5, 1, 0, 0, 2, 1, 0, DOUBLE)
    assert call.session.call("miopenSetRNNDescriptor", *arguments) != SUCCESS


def test_swapped_buffers_are_not_noticed(call):
    x, y = call.arguments["x"], call.arguments["y"]
    assert call(x=y, y=x) == SUCCESS


def test_an_input_on_the_host_is_found_by_the_device(call):
    host = np.zeros(64, "float32")
    call(x=call.session.ffi.cast("void *", host.ctypes.data))
    assert violations(call.session.hip) != []


def test_an_input_that_is_too_short_is_found_by_the_device(call):
    call(x=call.session.allocate(4))
    assert any("run past the end" in text for text in violations(call.session.hip))


def test_a_failed_launch_is_an_unknown_error(call):
    hip = call.session.hip
    hip.gfx1100_fail(b"launch", 1, LAUNCH_FAILED)
    assert call() == UNKNOWN_ERROR
    assert not hip.gfx1100_fault_is_armed()
    assert call() == SUCCESS


def test_the_library_itself_allocates_nothing_in_a_call(call):
    hip = call.session.hip
    before = hip.gfx1100_calls(b"allocation")
    assert call() == SUCCESS
    assert hip.gfx1100_calls(b"allocation") == before
