"""A character-level language model: one-hot characters, an LSTM, scores of the next character.

The LSTM and its gradient are dnnffi's; all else is array code that runs on NumPy and CuPy alike.

Symbols: T time steps, B rows of text read side by side, V characters of the alphabet, H hidden
size. Losses are in bits per character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, sqrt
from operator import matmul
from pathlib import Path
from types import ModuleType

import numpy as np

import dnnffi
from dnnffi import files
from dnnffi.cli.learning import cross_entropy
from dnnffi.device.arrays import array_module, to_host
from dnnffi.device.interface import NDArray
from dnnffi.formats.npz import NpzReader, to_npz
from dnnffi.spec.names import BackendName, LayoutName

NETWORK, HEAD = "network.npz", "head.npz"
"""The files of a trained model: the LSTM, and what lies behind it with the alphabet."""

State = tuple[NDArray, NDArray]
"""h and c of the LSTM, [L, B, H] each."""


@dataclass(frozen=True)
class Alphabet:
    """The characters that the model knows; number 0 stands for every other one."""

    characters: str

    @classmethod
    def of(cls, text: str, limit: int = 128) -> Alphabet:
        """The ``limit - 1`` most frequent characters of ``text``."""
        counts = np.bincount(_code_points(text))
        known = np.argsort(-counts, kind="stable")[: limit - 1]
        codes = sorted(int(code) for code in known if counts[code])
        return cls("\N{REPLACEMENT CHARACTER}" + "".join(map(chr, codes)))

    def __len__(self) -> int:
        """V."""
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The numbers of the characters of ``text``."""
        codes = _code_points(text)
        known = _code_points(self.characters)
        table = np.zeros(1 + max(codes.max(initial=0), known.max()), np.int32)
        table[known] = np.arange(len(known))
        return table[codes]

    def decode(self, numbers: Sequence[int]) -> str:
        """The characters of ``numbers``."""
        return "".join(self.characters[number] for number in numbers)


def _code_points(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def windows(numbers: NDArray, batch: int, steps: int) -> Iterator[tuple[NDArray, NDArray, bool]]:
    """Walk through the text endlessly, in windows of ``steps`` characters.

    The text is cut into ``batch`` rows that are read side by side, so that the state after a
    window is where the next one begins. Yields the characters [T, B], those that follow them
    [T, B], and whether the rows begin anew (the state is to be zero).
    """
    row = (len(numbers) - 1) // batch
    if row < steps:
        raise ValueError(f"{batch} rows of {steps} characters need {batch * steps + 1}")
    xp = array_module(numbers)
    inputs = xp.ascontiguousarray(numbers[: batch * row].reshape(batch, row).T)
    targets = xp.ascontiguousarray(numbers[1 : batch * row + 1].reshape(batch, row).T)
    while True:
        for start in range(0, row - steps + 1, steps):
            end = start + steps
            yield inputs[start:end], targets[start:end], start == 0


class CharModel:
    """The parameters, and the loss and its gradient.

    ``rnn`` holds the weights of the LSTM in the layout of ``backend``; ``w_out`` [V, H] and
    ``b_out`` [V] make scores of its output. ``parameters`` are the three buffers to train.
    """

    def __init__(
        self, xp: ModuleType, spec: dnnffi.RNNSpec, backend: BackendName, rng: np.random.Generator
    ) -> None:
        """Draw the parameters on the host, so that a seed means the same on every backend.

        ``xp`` is ``numpy`` or ``cupy``; the input size of ``spec`` is V.
        """
        hidden, characters = spec.hidden_size, spec.input_size

        def draw(shape: tuple[int, ...]) -> NDArray:
            bound = 1 / sqrt(hidden)
            return xp.asarray(rng.uniform(-bound, bound, shape).astype(spec.dtype))

        arrays = [draw(parameter.shape) for parameter in spec.parameter_shapes()]
        for parameter, array in zip(spec.parameter_shapes(), arrays, strict=True):
            if parameter.name == "b_ih":
                array[hidden : 2 * hidden] += 1  # the forget gates begin open
        layout: LayoutName = backend if backend in ("cudnn", "miopen") else "torch"
        self.spec = spec
        self.backend = backend
        self.rnn = dnnffi.RNNWeights.pack(arrays, spec, backend=layout)
        self.w_out = draw((characters, hidden))
        self.b_out = xp.zeros(characters, spec.dtype)
        self.parameters: list[NDArray] = [self.rnn.flat, self.w_out, self.b_out]
        self._one_hot = xp.eye(characters, dtype=spec.dtype)

    def loss_and_gradients(
        self, inputs: NDArray, targets: NDArray, state: State | None
    ) -> tuple[NDArray, list[NDArray], State]:
        """Loss, gradients in the order of ``parameters``, and the state behind the window.

        ``inputs`` and ``targets`` are numbers of characters [T, B]. The loss is an array without
        dimensions, so that a GPU is not waited for; the gradients are of the loss in nats. No
        gradient flows through ``state``: that truncates backpropagation at the window's start.
        """
        y, state, ctx = dnnffi.lstm_forward(
            self.embed(inputs),
            state,
            self.rnn,
            num_layers=self.spec.num_layers,
            backend=self.backend,
        )
        loss, d_y, d_out = self.head(y, targets)
        d_rnn = ctx.backward(d_y, need=("weights",)).weights.flat
        return loss, [d_rnn, *d_out], state

    def embed(self, inputs: NDArray) -> NDArray:
        """What the LSTM reads: one-hot characters [T, B, V]."""
        return self._one_hot[inputs]

    def head(
        self,
        y: NDArray,
        targets: NDArray,
        product: Callable[[NDArray, NDArray], NDArray] = matmul,
    ) -> tuple[NDArray, NDArray, list[NDArray]]:
        """What lies behind the LSTM: the loss, its gradient of y, and those of w_out and b_out.

        ``product`` multiplies two matrices.
        """
        outputs = y.reshape(-1, self.spec.hidden_size)  # [T*B, H]
        scores = product(outputs, self.w_out.T) + self.b_out  # [T*B, V]

        nats, d_scores = cross_entropy(scores, targets)
        d_y = product(d_scores, self.w_out).reshape(y.shape)
        return nats / log(2), d_y, [product(d_scores.T, outputs), d_scores.sum(axis=0)]

    def sample(self, alphabet: Alphabet, prompt: str, length: int, rng: np.random.Generator) -> str:
        """``prompt`` and ``length`` characters that the model writes behind it."""
        states: list[State | None] = [None]

        def run(x: NDArray) -> NDArray:
            y, states[0] = dnnffi.lstm(
                x, states[0], self.rnn, num_layers=self.spec.num_layers, backend=self.backend
            )
            return y

        head = self._one_hot, self.w_out, self.b_out
        return write_on(run, head, alphabet, prompt, length, rng)

    def save(self, folder: Path, alphabet: Alphabet) -> None:
        """Write what `generate` reads: the LSTM, as `RNNWeights.save` does, and the rest."""
        self.rnn.save(folder / NETWORK)
        w_out, b_out = to_host(self.w_out), to_host(self.b_out)
        characters = np.array(alphabet.characters)
        files.write(
            folder / HEAD, to_npz({"characters": characters, "w_out": w_out, "b_out": b_out})
        )


def generate(
    folder: Path,
    backend: BackendName,
    xp: ModuleType,
    prompt: str,
    length: int,
    rng: np.random.Generator,
) -> str:
    """``prompt`` and ``length`` characters by the model that `CharModel.save` wrote, on a backend.

    On "vulkan" the weights are uploaded once, and the state stays on the device. Raises ``OSError``
    and ``ValueError`` for files that are missing or damaged.
    """
    alphabet, w_out, b_out = _read_head(folder / HEAD)
    w_out, b_out = xp.asarray(w_out), xp.asarray(b_out)
    head = xp.eye(len(alphabet), dtype=w_out.dtype), w_out, b_out
    if backend == "vulkan":
        with dnnffi.load_rnn(folder / NETWORK) as context:

            def run(x: NDArray) -> NDArray:
                return context.run(x, keep_state=True)[0]

            return write_on(run, head, alphabet, prompt, length, rng)
    layout: LayoutName = backend if backend in ("cudnn", "miopen") else "torch"
    loaded = dnnffi.RNNWeights.load(folder / NETWORK, backend=layout)
    weights = loaded.like(xp.asarray(loaded.flat))
    states: list[State | None] = [None]

    def run_lstm(x: NDArray) -> NDArray:
        y, states[0] = dnnffi.lstm(x, states[0], weights, backend=backend)
        return y

    return write_on(run_lstm, head, alphabet, prompt, length, rng)


def _read_head(path: Path) -> tuple[Alphabet, NDArray, NDArray]:
    """Read the alphabet, w_out [V, H] and b_out [V]; errors as those of `generate`."""
    with files.open_regular(path) as file:
        try:
            reader = NpzReader(file)
            alphabet = Alphabet(reader.text("characters") or "")
            w_out, b_out = reader.array("w_out"), reader.array("b_out")
            if not len(alphabet) == len(w_out) == len(b_out) or (w_out.ndim, b_out.ndim) != (2, 1):
                raise ValueError("its arrays do not fit each other")
        except Exception as error:  # zipfile has many kinds of errors for damaged files
            raise ValueError(f"{path} is not a whole file of this demo: {error}") from error
    return alphabet, w_out, b_out


def write_on(
    run: Callable[[NDArray], NDArray],
    head: tuple[NDArray, NDArray, NDArray],
    alphabet: Alphabet,
    prompt: str,
    length: int,
    rng: np.random.Generator,
) -> str:
    """``prompt`` and ``length`` characters behind it.

    ``run`` gives the outputs of steps [T, 1, V], and begins where its last call ended; ``head`` is
    one-hot characters [V, V], w_out and b_out.
    """
    one_hot, w_out, b_out = head
    xp = array_module(w_out)
    numbers = [int(number) for number in alphabet.encode(prompt)]
    fresh = numbers
    for _ in range(length):
        y = run(one_hot[xp.asarray(fresh)][:, None])
        scores = to_host(w_out @ y[-1, 0] + b_out).astype(np.float64)
        fresh = [_draw(scores, rng)]
        numbers = numbers + fresh
    return alphabet.decode(numbers)


def _draw(scores: np.ndarray[tuple[int], np.dtype[np.float64]], rng: np.random.Generator) -> int:
    """A character by its probability, the likely ones favoured (temperature 0.8)."""
    scores[0] = -np.inf  # number 0 is no character
    weights = np.exp((scores - scores.max()) / 0.8)
    return int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right"))
