"""Train a character-level LSTM in JAX, on all devices.

    python examples/jax_data_parallel.py                  # on all GPUs, or on the CPU
    python examples/jax_data_parallel.py --devices 1      # on one: the same losses
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/jax_data_parallel.py

The rows of text are divided among the devices, and each computes the gradients of its rows; the
weights are one flat array, so that one sum over the devices makes the gradient of all rows. JAX
computes this sum: `jax.shard_map` sums the gradient of an array of which every device has a copy.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

try:
    import jax
    import jax.numpy as jnp
    from jax import P
except ModuleNotFoundError as error:
    raise SystemExit(f"This example needs JAX ({error}): pip install '.[jax]'") from None

from char_lstm import Alphabet, read_text, windows  # examples/char_lstm.py
from command_line import HELP, count  # examples/command_line.py

import dnnffi
from dnnffi import jax as djax

RATE, DECAYS, TINY = 4e-3, (0.9, 0.999), 1e-8
CHARACTERS = 2_000_000
SIZES = {"steps": 200, "batch": 256, "window": 100, "hidden": 512, "layers": 2}
SIZES_ON_A_CPU = {"steps": 40, "batch": 16, "window": 32, "hidden": 64, "layers": 1}


def first_parameters(key, spec):
    """Return the LSTM's weights, and those that make scores [V] of its output."""
    rnn, out = jax.random.split(key)
    bound = spec.hidden_size**-0.5
    w_out = jax.random.uniform(
        out, (spec.input_size, spec.hidden_size), minval=-bound, maxval=bound
    )
    return {"rnn": djax.init(rnn, spec), "w_out": w_out, "b_out": jnp.zeros(spec.input_size)}


def loss_of(parameters, state, inputs, targets, spec):
    """Return the mean bits per character of a window [T, B], and the state after it."""
    x = jax.nn.one_hot(inputs, spec.input_size, dtype=spec.dtype)
    y, state = djax.lstm(x, state, parameters["rnn"], spec=spec)
    scores = jax.nn.log_softmax(y @ parameters["w_out"].T + parameters["b_out"])
    picked = jnp.take_along_axis(scores, targets[..., None], -1)
    return -picked.mean() / jnp.log(2.0), state


def adam(parameters, gradients, moments, count):
    """One step of Adam; ``moments`` are the means of the gradients and of their squares."""
    first, second = DECAYS
    mean, square = moments
    mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, mean, gradients)
    square = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, square, gradients)

    def new(p, m, v):
        return p - RATE * m / (1 - first**count) / (jnp.sqrt(v / (1 - second**count)) + TINY)

    return jax.tree.map(new, parameters, mean, square), (mean, square)


def make_step(mesh, spec):
    """Return a compiled step on arrays that lie on the mesh, the batch divided."""
    rows = P(None, "devices")

    def local(parameters, moments, count, state, inputs, targets):
        def mean(parameters):
            loss, last = loss_of(parameters, state, inputs, targets, spec)
            return jax.lax.pmean(loss, "devices"), last

        (loss, state), gradients = jax.value_and_grad(mean, has_aux=True)(parameters)
        parameters, moments = adam(parameters, gradients, moments, count)
        return parameters, moments, state, loss

    step = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P(), P(), (rows, rows), rows, rows),
        out_specs=(P(), P(), (rows, rows), P()),
    )
    return jax.jit(step, donate_argnums=(0, 1, 3))


def train(spec, numbers, options, devices):
    """Return the losses of all steps, and the steps per second after the first ten."""
    mesh = jax.make_mesh(
        (len(devices),),
        ("devices",),
        devices=devices,
        axis_types=(jax.sharding.AxisType.Auto,),
    )
    everywhere = jax.NamedSharding(mesh, P())
    divided = jax.NamedSharding(mesh, P(None, "devices"))
    parameters = jax.device_put(first_parameters(jax.random.key(0), spec), everywhere)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    moments = jax.device_put((zeros, jax.tree.map(jnp.copy, zeros)), everywhere)
    state_shape = spec.h_shape(options.batch)
    step, losses, started = make_step(mesh, spec), [], time.perf_counter()
    walk = windows(numbers, options.batch, options.window)
    for turn, (inputs, targets, restarts) in zip(range(options.steps), walk, strict=False):
        if restarts:
            state = jax.device_put(tuple(jnp.zeros(state_shape, spec.dtype) for _ in "hc"), divided)
        window = jax.device_put((inputs, targets), divided)
        step_count = jnp.float32(turn + 1)
        parameters, moments, state, loss = step(parameters, moments, step_count, state, *window)
        losses.append(loss)
        if turn == 9:
            jax.block_until_ready(loss)
            started = time.perf_counter()
    losses = [float(loss) for loss in losses]
    return losses, max(options.steps - 10, 0) / (time.perf_counter() - started)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=count, help="number of devices; default: all")
    parser.add_argument("--steps", type=count, help="number of training steps")
    parser.add_argument("--batch", type=count, help="rows of text on all devices")
    for name in ("window", "hidden", "layers"):
        parser.add_argument(f"--{name}", type=count, help=HELP[name])
    parser.add_argument("--text", type=Path, help="text to train on (default: Python's source)")
    devices = jax.devices()
    sizes = SIZES_ON_A_CPU if devices[0].platform == "cpu" else SIZES
    parser.set_defaults(**sizes)
    options = parser.parse_args(arguments)
    if options.devices and options.devices > len(devices):
        parser.error(f"--devices is {options.devices}; {len(devices)} are present")
    devices = devices[: options.devices]
    if options.batch % len(devices):
        parser.error(f"{options.batch} rows cannot be divided among {len(devices)} devices")
    text, origin = read_text(options.text, CHARACTERS)
    alphabet = Alphabet(text)
    spec = dnnffi.RNNSpec(
        mode="lstm",
        input_size=len(alphabet),
        hidden_size=options.hidden,
        num_layers=options.layers,
    )
    chosen = ", ".join(f"--{name} {getattr(options, name)}" for name in sizes)
    print(f"{origin}; {len(devices)} of {devices[0].platform}; sizes: {chosen}")
    losses, rate = train(spec, alphabet.encode(text), options, devices)
    print(f"bits per character: {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)}")
    print(f"{rate:.1f} steps/s, {rate * options.batch * options.window:,.0f} characters/s")
    return losses


if __name__ == "__main__":
    main()
