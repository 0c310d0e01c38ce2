"""Tests of bad input, which is refused before it reaches the device, and of device faults."""

from __future__ import annotations

import pickle
import re
import sys
import weakref

import numpy as np
import pytest

import dnnffi
from dnnffi import RNNSpec, testing
from dnnffi.backends.vulkan import device as devices
from dnnffi.backends.vulkan.sequence import Sequence
from dnnffi.installing import install_extra

SPEC = RNNSpec(mode="gru", input_size=5, hidden_size=7)


@pytest.fixture
def no_device(monkeypatch):
    """Pretend that no adapter was opened yet."""
    monkeypatch.setattr(devices, "_devices", devices.OnceCell())


def test_without_wgpu_the_error_names_the_install_command(monkeypatch, no_device):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(dnnffi.LibraryNotFoundError, match=re.escape(install_extra("vulkan"))):
        dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC)
    weights = dnnffi.RNNWeights.pack(testing.weights(SPEC, 0), SPEC)
    with pytest.raises(ImportError, match="wgpu"):
        dnnffi.gru(np.zeros((1, 1, 5), "f4"), None, weights, backend="vulkan")


def test_without_an_adapter_the_error_names_a_driver(device, monkeypatch, no_device):
    gpu = devices.wgpu_module().gpu
    monkeypatch.setattr(type(gpu), "enumerate_adapters_sync", lambda self: [])
    with pytest.raises(dnnffi.LibraryNotFoundError, match="apt install mesa-vulkan-drivers"):
        dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC)


def test_opengl_is_no_adapter(device):
    assert {adapter.api for adapter in devices.adapters()} <= {"Vulkan", "Metal", "D3D12"}


@pytest.mark.parametrize("number", ["0", 0.0, True])
def test_the_number_of_an_adapter_is_an_integer(device, number):
    with pytest.raises(TypeError, match=r"^device must be an integer; got (str|float|bool)$"):
        dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC, device=number)


def test_an_adapter_that_is_not_there(device):
    with pytest.raises(ValueError, match=r"^device must be from 0 to \d+ \(0: .*; got 99"):
        dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC, device=99)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"hx": np.zeros((1, 3, 6), "f4")}, ValueError, r"^h_0 must have shape \(1, 3, 7\)"),
        ({"hx": np.zeros((2, 3, 7), "f4")}, ValueError, r"^h_0 must have shape \(1, 3, 7\)"),
        ({"hx": np.zeros((1, 3, 7))}, TypeError, r"^h_0 must have the dtype of the weights"),
        ({"hx": (np.zeros((1, 3, 7), "f4"),) * 2}, TypeError, r"^h_0 must be one array"),
        ({"x": np.zeros((4, 3, 6), "f4")}, ValueError, r"^x must have 5 as its last dimension"),
        ({"x": np.zeros((4, 5), "f4")}, ValueError, r"^x must have 3 dimensions"),
        ({"x": np.zeros((4, 3, 5))}, TypeError, r"^x must have the dtype of the weights"),
        ({"x": [1.0]}, TypeError, r"^x must be a NumPy"),
        ({"x": np.zeros((0, 3, 5), "f4")}, ValueError, r"at least one time step"),
        ({"lengths": [1, 2]}, ValueError, r"^lengths must have one entry for each of the 3"),
        ({"lengths": [1, 2, 5]}, ValueError, r"^lengths\[2\] must be from 0 to 4"),
        ({"batch_first": 1}, TypeError, r"^batch_first must be True or False"),
        ({"keep_state": 1}, TypeError, r"^keep_state must be True or False"),
        ({"options": {"algorithm": "own"}}, dnnffi.UnsupportedError, r"one of backend 'cudnn'"),
        ({"options": {"validate": True}}, ValueError, r"^options\['validate'\]"),
        ({"options": {"clop": 1}}, ValueError, r"^options: unknown key 'clop'"),
    ],
)
def test_wrong_arguments_are_named(gru, x, submissions, keywords, error, message):
    with pytest.raises(error, match=message):
        gru.run(**{"x": x} | keywords)
    assert not submissions


@pytest.mark.parametrize(
    ("weights", "spec", "error", "message"),
    [
        (testing.weights(SPEC, 0), None, TypeError, r"^spec must be given"),
        (testing.weights(SPEC, 0)[:3], SPEC, ValueError, r"^weights: expected 4 arrays; got 3"),
        (
            testing.weights(SPEC, 0),
            RNNSpec(mode="lstm", input_size=5, hidden_size=7),
            ValueError,
            r"^weights\[0\] \(w_ih of layer 0, direction 0\) must have shape \(28, 5\)",
        ),
        (
            dnnffi.RNNWeights.pack(testing.weights(SPEC, 0), SPEC),
            RNNSpec(mode="lstm", input_size=5, hidden_size=7),
            ValueError,
            r"^spec is .*lstm.*; the weights are those of .*gru",
        ),
        ("weights", SPEC, TypeError, r"^arrays must be a sequence"),
        (testing.weights(SPEC, 0), "gru", TypeError, r"^spec must be an RNNSpec"),
    ],
)
def test_wrong_weights_are_named(device, writes, weights, spec, error, message):
    with pytest.raises(error, match=message):
        dnnffi.pack_rnn(weights, spec)
    assert not writes


def test_another_backend_packs_nothing():
    with pytest.raises(ValueError, match=r"^backend must be one of vulkan; got 'cudnn'"):
        dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC, backend="cudnn")


def test_weights_of_another_function_are_refused(device, x):
    weights = dnnffi.RNNWeights.pack(testing.weights(SPEC, 0), SPEC)
    with pytest.raises(ValueError, match=r"^weights are of mode 'gru', but rnn_tanh was called"):
        dnnffi.rnn_tanh(x, None, weights, backend="vulkan")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_are_refused_by_name(device, dtype, refused):
    spec = RNNSpec(mode="gru", input_size=5, hidden_size=7, dtype=dtype)
    with pytest.raises(dnnffi.UnsupportedError, match=f"float16 or float32, not {dtype}") as error:
        dnnffi.pack_rnn(testing.weights(spec, 0), spec)
    refused(dtype, error.value)


def test_clipping_is_refused_by_name(device, refused):
    spec = RNNSpec(mode="lstm", input_size=5, hidden_size=7)
    with (
        dnnffi.pack_rnn(testing.weights(spec, 0), spec) as context,
        pytest.raises(dnnffi.UnsupportedError, match="the cell of an LSTM is not cl") as error,
    ):
        context.run(np.zeros((1, 1, 5), "f4"), options={"clip": (-1.0, 1.0)})
    refused("clip", error.value)


def test_training_and_plans_name_who_has_them(x, refused):
    weights = dnnffi.RNNWeights.pack(testing.weights(SPEC, 0), SPEC)
    with pytest.raises(dnnffi.UnsupportedError, match="cudnn, miopen and reference train") as error:
        dnnffi.gru_forward(x, None, weights, backend="vulkan")
    refused("training", error.value)
    with pytest.raises(dnnffi.UnsupportedError, match="pack_rnn"):
        dnnffi.RNNPlan(SPEC, batch=3, steps=4, backend="vulkan")
    with pytest.raises(
        dnnffi.UnsupportedError, match="it has no convolutions; cudnn, miopen and"
    ) as error:
        dnnffi.conv(np.zeros((1, 1, 3), "f4"), np.zeros((1, 1, 3), "f4"), backend="vulkan")
    refused("convolution", error.value)


def test_kernels_of_all_steps_have_no_projection(device):
    spec = RNNSpec(mode="lstm", input_size=5, hidden_size=7, proj_size=3)
    with (
        dnnffi.pack_rnn(testing.weights(spec, 0), spec) as context,
        pytest.raises(dnnffi.UnsupportedError, match=r"'persistent'.*'stepwise' does"),
    ):
        context.run(np.zeros((1, 1, 5), "f4"), options={"algorithm": "persistent"})


def test_loops_longer_than_a_cpu_runs_are_refused(device, monkeypatch):
    # Mesa ends a kernel's loops after 65535 iterations without an error.
    monkeypatch.setattr(device, "cpu", True)
    spec = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=2048)
    weights = [np.zeros(shape, "f4") for _, _, _, shape in spec.parameter_shapes()]
    x = np.zeros((2, 1, 1), "f4")
    with dnnffi.pack_rnn(weights, spec) as context:
        context.run(x)
        with pytest.raises(dnnffi.UnsupportedError, match=r"65535 turns .*'stepwise' runs it"):
            context.run(x, options={"algorithm": "persistent"})
    spec = RNNSpec(mode="rnn_tanh", input_size=4 * 65535, hidden_size=1)
    weights = [np.zeros(shape, "f4") for _, _, _, shape in spec.parameter_shapes()]
    with pytest.raises(dnnffi.UnsupportedError, match=r"w_ih of layer 0 has rows of 262140 el"):
        dnnffi.pack_rnn(weights, spec)


def test_weights_beyond_what_the_adapter_binds_are_named(device, monkeypatch):
    monkeypatch.setattr(device, "max_binding_bytes", 200)
    with pytest.raises(dnnffi.UnsupportedError, match=r"w_ih of layer 0 takes 672 bytes.* 200"):
        dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC)


def test_rows_beyond_what_the_adapter_binds_are_named(device, gru, monkeypatch):
    monkeypatch.setattr(device, "max_binding_bytes", 2000)
    with pytest.raises(dnnffi.UnsupportedError, match=r"the gates of .* 1000 rows .* 2000 bytes"):
        gru.run(np.zeros((2, 1000, 5), "f4"))


def test_sequences_beyond_the_largest_buffer_are_named(device, gru, monkeypatch):
    monkeypatch.setattr(device, "max_bytes", 2000)
    with pytest.raises(dnnffi.UnsupportedError, match=r"takes .* bytes; a buffer of this adapter"):
        gru.run(np.zeros((200, 10, 5), "f4"))


def test_after_a_refusal_the_context_still_runs(device, gru, x, monkeypatch):
    right, _ = gru.run(x)
    with monkeypatch.context() as patch:
        patch.setattr(device, "max_bytes", 2000)
        with pytest.raises(dnnffi.UnsupportedError):
            gru.run(np.zeros((200, 10, 5), "f4"))
    found, _ = gru.run(x)
    np.testing.assert_array_equal(found, right)


def test_buffers_of_other_sizes_make_room_for_a_new_one(gru, x, monkeypatch):
    gru.run(x[:2])
    idle = weakref.ref(gru._network._idle[0])
    make = devices.Device.buffer

    def limited(self, what, nbytes, usage, mapped=False):
        if idle() is not None and what == "the results":
            with self.errors(f"a buffer for {what}"):
                raise RuntimeError("Not enough memory left.")
        return make(self, what, nbytes, usage, mapped)

    monkeypatch.setattr(devices.Device, "buffer", limited)
    assert gru.run(x)[0].shape == (4, 3, 7)


def test_a_closed_context_is_refused(device, x):
    context = dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC)
    context.close()
    context.close()
    assert context.closed
    for use in (
        lambda: context.run(x),
        context.unpack,
        context.reset,
        lambda: context.save("network.npz"),
    ):
        with pytest.raises(ValueError, match=r"^this context is closed"):
            use()


def test_a_lost_device_is_said_and_opened_anew(x, no_device, device):
    before = dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC)
    right, _ = before.run(x)
    weights = dnnffi.RNNWeights.pack(testing.weights(SPEC, 0), SPEC)
    dnnffi.gru(x, None, weights, backend="vulkan")
    before._network.device.native.destroy()
    with pytest.raises(dnnffi.VulkanError, match="lost; what was packed on it is gone"):
        before.run(x)
    with pytest.raises(dnnffi.VulkanError, match="lost"):
        before.run(x[:2])  # which has no buffers yet
    with pytest.raises(dnnffi.VulkanError, match="lost"):
        before.unpack()
    with dnnffi.pack_rnn(testing.weights(SPEC, 0), SPEC) as context:
        np.testing.assert_array_equal(context.run(x)[0], right)
    np.testing.assert_array_equal(dnnffi.gru(x, None, weights, backend="vulkan")[0], right)


def test_two_threads_do_not_share_a_stream(gru, x):
    mine = gru._network._try_lock.take()
    with pytest.raises(ValueError, match="another thread runs this context with keep_state=True"):
        gru.run(x, keep_state=True)
    del mine
    gru.run(x, keep_state=True)


def test_a_call_that_fails_keeps_the_state_that_was(gru, x, monkeypatch):
    gru.run(x[:2], keep_state=True)
    whole, _ = gru.run(x)

    def fail(*arguments):
        raise RuntimeError("no more")

    kept = []
    for owner, name in ((gru._network.device.queue, "submit"), (Sequence, "read")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(dnnffi.VulkanError, match="no more") as error:
                gru.run(x[2:], keep_state=True)
            kept.append(error.value)  # and with it the frames of the call
    rest, _ = gru.run(x[2:], keep_state=True)
    np.testing.assert_allclose(rest, whole[2:], atol=1e-6)


def test_another_process_is_refused(gru, x, monkeypatch):
    monkeypatch.setattr(devices.os, "getpid", lambda: 0)
    with pytest.raises(dnnffi.VulkanError, match="this process was forked"):
        gru.run(x)


def test_a_context_is_not_pickled(gru):
    with pytest.raises(TypeError, match="load_rnn"):
        pickle.dumps(gru)
