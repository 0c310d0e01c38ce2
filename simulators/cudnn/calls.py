"""Direct calls of the stand-in by cuDNN's own functions, with arrays that it knows."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.device.dtypes import dtype_object
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import weight_layout
from simulators.cudnn import build

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
LAYOUTS = {"sequence_major": 0, "packed": 1, "batch_major": 2}
INFERENCE, TRAINING = 0, 1
SUCCESS = 0

# The arguments of the three calls, in cuDNN's order.
FORWARD = (
    *("handle", "rnn", "mode", "lengths", "x_desc", "x", "y_desc", "y", "h_desc", "hx", "hy"),
    *("c_desc", "cx", "cy", "weights_size", "weights", "workspace_size", "workspace"),
    *("reserve_size", "reserve"),
)
BACKWARD_DATA = (
    *("handle", "rnn", "lengths", "y_desc", "y", "dy", "x_desc", "dx", "h_desc", "hx", "dhy"),
    *("dhx", "c_desc", "cx", "dcy", "dcx", "weights_size", "weights", "workspace_size"),
    *("workspace", "reserve_size", "reserve"),
)
BACKWARD_WEIGHTS = (
    *("handle", "rnn", "add", "lengths", "x_desc", "x", "h_desc", "hx", "y_desc", "y"),
    *("weights_size", "dweights", "workspace_size", "workspace", "reserve_size", "reserve"),
)
CALLS = {
    "cudnnRNNForward": FORWARD,
    "cudnnRNNBackwardData_v8": BACKWARD_DATA,
    "cudnnRNNBackwardWeights_v8": BACKWARD_WEIGHTS,
}


def small(mode="lstm", **fields):
    """Return a spec of small sizes in float64."""
    return RNNSpec(
        **({"mode": mode, "input_size": 3, "hidden_size": 4, "dtype": "float64"} | fields)
    )


def dropout_descriptor(standin, p, seed=1):
    """Return a dropout descriptor with states of its own."""
    desc, handle = standin.descriptor("Dropout"), standin.handle()
    size = ffi.new("size_t *")
    standin("cudnnDropoutGetStatesSize", handle, size)
    states = standin.bytes(size[0])
    standin("cudnnSetDropoutDescriptor", desc, handle, p, address(states), states.nbytes, seed)
    return desc, states


class StandinError(Exception):
    """A call returned a status; ``status`` is its name."""

    def __init__(self, function, status, message):
        super().__init__(f"{function}: {status}: {message}")
        self.status = status
        self.message = message


class Standin:
    """An open stand-in: its functions by cuDNN's names, and the objects and memory made by it."""

    def __init__(self, path):
        self.lib = ffi.dlopen(str(path))
        self.control_ffi, self.control = build.control(path)
        self.arrays = []
        self.objects = []

    def __call__(self, function, *arguments):
        """Call a function that returns a status; raise it as `StandinError` unless success."""
        status = getattr(self.lib, function)(*arguments)
        if status != SUCCESS:
            raise StandinError(function, self.status_name(status), self.last_error())

    def status_name(self, status):
        return ffi.string(self.lib.cudnnGetErrorString(status)).decode()

    def last_error(self):
        message = ffi.new("char[]", 512)
        self.lib.cudnnGetLastErrorString(message, 512)
        return ffi.string(message).decode()

    @property
    def violations(self):
        return self.control.standin_violations()

    @property
    def last_violation(self):
        return self.control_ffi.string(self.control.standin_last_violation()).decode()

    def handle(self):
        out = ffi.new("cudnnHandle_t *")
        self("cudnnCreate", out)
        self.objects.append(("cudnnDestroy", out[0]))
        return out[0]

    def descriptor(self, kind):
        out = ffi.new(f"cudnn{kind}Descriptor_t *")
        self(f"cudnnCreate{kind}Descriptor", out)
        self.objects.append((f"cudnnDestroy{kind}Descriptor", out[0]))
        return out[0]

    def forget(self, pointer):
        """Note that the test destroyed an object itself."""
        self.objects = [(name, kept) for name, kept in self.objects if kept != pointer]

    def array(self, values, dtype):
        array = np.array(values, dtype_object(dtype), order="C")
        assert self.control.standin_register(address(array), array.nbytes) == 0
        self.arrays.append(array)
        return array

    def full(self, shape, dtype, value=np.nan):
        return self.array(np.full(shape, value), dtype)

    def bytes(self, size):
        return self.array(np.full(size, 0xA5), "uint8")

    def release(self):
        """Destroy and unregister everything made so far."""
        for destroy, pointer in reversed(self.objects):
            self(destroy, pointer)
        for array in self.arrays:
            assert self.control.standin_unregister(address(array)) == 0
        self.objects, self.arrays = [], []

    @contextmanager
    def scope(self):
        """Release everything at the end, and see that no object or allocation is left."""
        self.control.standin_reset()
        try:
            yield self
        finally:
            self.control.standin_reset()
            self.release()
        assert self.control.standin_live(b"*") == 0
        assert self.control.standin_registered() == 0


def address(array):
    """Return the address of an array; 0 for None."""
    return 0 if array is None else array.__array_interface__["data"][0]


class Network:
    """Descriptors and arrays of one problem, and the three calls on them.

    ``values`` holds every argument of the calls by name (see `FORWARD` and the others): arrays,
    descriptors, numbers. A call takes other values by keyword.
    """

    def __init__(
        self,
        standin,
        spec,
        steps,
        batch,
        *,
        layout="sequence_major",
        lengths=None,
        mode=TRAINING,
        clip=None,
        clip_nan=1,
        dropout=None,
        padding=0.0,
        algorithm=0,
        seed=0,
    ):
        self.standin, self.spec, self.steps, self.batch = standin, spec, steps, batch
        self.layout = layout
        self.lengths = [steps] * batch if lengths is None else list(lengths)
        values = self.values = {"mode": mode, "lengths": None, "add": 0}
        values["handle"] = standin.handle()
        values["dropout"] = dropout
        self.describe(clip, clip_nan, dropout, padding, algorithm)
        self.allocate(np.random.default_rng(seed))

    def describe(self, clip, clip_nan, dropout, padding, algorithm):
        spec, standin, values = self.spec, self.standin, self.values
        rnn = values["rnn"] = standin.descriptor("RNN")
        standin(
            "cudnnSetRNNDescriptor_v8",
            rnn,
            algorithm,
            MODES[spec.mode],
            2 if spec.bias else 0,
            int(spec.bidirectional),
            0,
            DATA_TYPES[spec.dtype],
            DATA_TYPES["float64" if spec.dtype == "float64" else "float32"],
            0,
            spec.input_size,
            spec.hidden_size,
            spec.proj_size or spec.hidden_size,
            spec.num_layers,
            ffi.NULL if dropout is None else dropout,
            int(self.layout != "packed"),
        )
        if clip is not None:
            standin("cudnnRNNSetClip_v8", rnn, 1, clip_nan, *clip)
        width = spec.output_size * spec.num_directions
        values["x_desc"] = self.sequences(spec.input_size, padding)
        values["y_desc"] = self.sequences(width, padding)
        values["h_desc"] = self.tensor(spec.h_shape(self.batch))
        values["c_desc"] = self.tensor(
            (spec.num_layers * spec.num_directions, self.batch, spec.hidden_size)
        )

    def sequences(self, vector_size, padding=0.0, **changes):
        spec, desc = self.spec, self.standin.descriptor("RNNData")
        given = {
            "dtype": DATA_TYPES[spec.dtype],
            "layout": LAYOUTS[self.layout],
            "steps": self.steps,
            "batch": self.batch,
            "vector_size": vector_size,
            "lengths": self.lengths,
        } | changes
        fill = ffi.NULL
        if padding is not None:
            number = np.array([padding], dtype_object(spec.dtype))
            fill = ffi.from_buffer(number.view(np.uint8))
        self.standin("cudnnSetRNNDataDescriptor", desc, *given.values(), fill)
        return desc

    def tensor(self, shape, strides=None, dtype=None):
        desc = self.standin.descriptor("Tensor")
        if strides is None:
            strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        number = DATA_TYPES[dtype or self.spec.dtype]
        self.standin("cudnnSetTensorNdDescriptor", desc, number, len(shape), shape, strides)
        return desc

    def allocate(self, rng):
        spec, standin, values = self.spec, self.standin, self.values
        dtype = spec.dtype
        lead = [sum(self.lengths)] if self.layout == "packed" else [self.steps, self.batch]
        if self.layout == "batch_major":
            lead.reverse()
        x_shape = (*lead, spec.input_size)
        y_shape = (*lead, spec.output_size * spec.num_directions)
        h_shape = spec.h_shape(self.batch)
        c_shape = (h_shape[0], self.batch, spec.hidden_size) if spec.has_cell else None

        def random(shape, scale=1.0):
            if shape is None:
                return None
            return standin.array(rng.normal(scale=scale, size=shape), dtype)

        def empty(shape):
            return None if shape is None else standin.full(shape, dtype)

        values["x"], values["y"], values["dx"] = random(x_shape), empty(y_shape), empty(x_shape)
        values["dy"] = random(y_shape)
        for name, shape in (("h", h_shape), ("c", c_shape)):
            values[f"{name}x"], values[f"{name}y"] = random(shape), empty(shape)
            values[f"d{name}x"], values[f"d{name}y"] = empty(shape), random(shape)
        size = weight_layout(spec, "cudnn").size
        values["weights"] = random((size,), 0.5)
        values["dweights"] = standin.full((size,), dtype, 0.0)
        values["weights_size"] = values["weights"].nbytes
        workspace, reserve = self.space_sizes()
        values["workspace_size"], values["reserve_size"] = workspace, reserve
        values["workspace"] = standin.bytes(workspace)
        values["reserve"] = standin.bytes(reserve) if reserve else None

    def space_sizes(self):
        values = self.values
        workspace, reserve = ffi.new("size_t *"), ffi.new("size_t *")
        self.standin(
            "cudnnGetRNNTempSpaceSizes",
            values["handle"],
            values["rnn"],
            values["mode"],
            values["x_desc"],
            workspace,
            reserve,
        )
        return workspace[0], reserve[0]

    def call(self, function, **changes):
        """Make one of the three calls on `values`, some of them replaced."""
        values = self.values | changes
        arguments = []
        for name in CALLS[function]:
            value = values[name]
            is_address = value is None or isinstance(value, np.ndarray)
            arguments.append(address(value) if is_address else value)
        types = ffi.typeof(getattr(self.standin.lib, function)).args
        # A descriptor of the wrong kind is for the stand-in to see, not for cffi.
        for index, (kind, value) in enumerate(zip(types, arguments, strict=True)):
            if isinstance(value, ffi.CData):
                arguments[index] = ffi.cast(kind, value)
        self.standin(function, *arguments)

    def forward(self, **changes):
        self.call("cudnnRNNForward", **changes)

    def backward_data(self, **changes):
        self.call("cudnnRNNBackwardData_v8", **changes)

    def backward_weights(self, **changes):
        self.call("cudnnRNNBackwardWeights_v8", **changes)

    def run(self):
        """All three calls."""
        self.forward()
        self.backward_data()
        self.backward_weights()

    def weight_arrays(self, flat):
        """Return the flat weights, or their gradients, as arrays in PyTorch's order."""
        arrays = []
        for offset, shape in weight_layout(self.spec, "cudnn").blocks():
            size = int(np.prod(shape))
            arrays.append(flat[offset : offset + size].reshape(shape))
        return arrays
