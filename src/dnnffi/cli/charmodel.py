"""A character-level language model: one-hot characters, an LSTM, scores of the next character.

dnnffi computes the LSTM and its gradient. The rest is array code for NumPy and CuPy.

Symbols: T time steps, B rows of text in a batch, V characters of the alphabet, H hidden size.
Losses are in bits per character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, sqrt
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
"""The files of a trained model: the LSTM; the output layer and the alphabet."""

State = tuple[NDArray, NDArray]
"""State (h, c) of the LSTM, each [L, B, H]."""


@dataclass(frozen=True)
class Alphabet:
    """The characters of the model; number 0 stands for all others."""

    characters: str

    @classmethod
    def of(cls, text: str, limit: int = 128) -> Alphabet:
        """Return the alphabet of the ``limit - 1`` most frequent characters of ``text``."""
        counts = np.bincount(_code_points(text))
        known = np.argsort(-counts, kind="stable")[: limit - 1]
        codes = sorted(int(code) for code in known if counts[code])
        return cls("\N{REPLACEMENT CHARACTER}" + "".join(map(chr, codes)))

    def __len__(self) -> int:
        """Return V, the number of characters."""
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the numbers of the characters of ``text``."""
        codes = _code_points(text)
        known = _code_points(self.characters)
        table = np.zeros(1 + max(codes.max(initial=0), known.max()), np.int32)
        table[known] = np.arange(len(known))
        return table[codes]

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the characters of ``numbers``."""
        return "".join(self.characters[number] for number in numbers)


def _code_points(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def windows(numbers: NDArray, batch: int, steps: int) -> Iterator[tuple[NDArray, NDArray, bool]]:
    """Yield windows of ``steps`` characters from a text, without end.

    The text is divided into ``batch`` rows. A window continues where the window before it ended,
    so the state is carried over. Each item has the characters [T, B], the characters that follow
    them [T, B], and whether the rows start again, with a state of zeros.
    """
    row = (len(numbers) - 1) // batch
    if row < steps:
        raise ValueError(
            f"the text has {len(numbers)} characters; {batch} rows of {steps} need at least "
            f"{batch * steps + 1}"
        )
    xp = array_module(numbers)
    inputs = xp.ascontiguousarray(numbers[: batch * row].reshape(batch, row).T)
    targets = xp.ascontiguousarray(numbers[1 : batch * row + 1].reshape(batch, row).T)
    while True:
        for start in range(0, row - steps + 1, steps):
            end = start + steps
            yield inputs[start:end], targets[start:end], start == 0


class CharModel:
    """The model's parameters, its loss and the gradients.

    ``rnn`` has the weights of the LSTM in the layout of ``backend``; ``w_out`` [V, H] and ``b_out``
    [V] are those of the output layer. ``parameters`` are the three buffers to train.
    """

    def __init__(
        self, xp: ModuleType, spec: dnnffi.RNNSpec, backend: BackendName, rng: np.random.Generator
    ) -> None:
        """Draw the parameters on the host, so that a seed gives the same ones on every backend.

        ``xp`` is ``numpy`` or ``cupy``; the input size of ``spec`` is V.
        """
        hidden, characters = spec.hidden_size, spec.input_size

        def draw(shape: tuple[int, ...]) -> NDArray:
            bound = 1 / sqrt(hidden)
            return xp.asarray(rng.uniform(-bound, bound, shape).astype(spec.dtype))

        arrays = [draw(parameter.shape) for parameter in spec.parameter_shapes()]
        for parameter, array in zip(spec.parameter_shapes(), arrays, strict=True):
            if parameter.name == "b_ih":
                array[hidden : 2 * hidden] += 1  # the forget gates start open
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
        """Return loss, gradients in the order of ``parameters``, and the state after the window.

        ``inputs`` and ``targets`` are numbers of characters [T, B]. The loss is an array without
        dimensions, so that the host does not wait for a GPU. The gradients are those of the loss in
        nats. They do not flow through ``state``: backpropagation stops at the window's start.
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
        """Return one-hot characters [T, B, V], the LSTM's input."""
        return self._one_hot[inputs]

    def head(self, y: NDArray, targets: NDArray) -> tuple[NDArray, NDArray, list[NDArray]]:
        """Compute the output layer: the loss, and its gradients of y and of (w_out, b_out)."""
        outputs = y.reshape(-1, self.spec.hidden_size)  # [T*B, H]
        scores = outputs @ self.w_out.T + self.b_out  # [T*B, V]

        nats, d_scores = cross_entropy(scores, targets)
        d_y = (d_scores @ self.w_out).reshape(y.shape)
        return nats / log(2), d_y, [d_scores.T @ outputs, d_scores.sum(axis=0)]

    def sample(self, alphabet: Alphabet, prompt: str, length: int, rng: np.random.Generator) -> str:
        """Return ``prompt`` and the next ``length`` characters, drawn from the model."""
        states: list[State | None] = [None]

        def run(x: NDArray) -> NDArray:
            y, states[0] = dnnffi.lstm(
                x, states[0], self.rnn, num_layers=self.spec.num_layers, backend=self.backend
            )
            return y

        head = self._one_hot, self.w_out, self.b_out
        return write_on(run, head, alphabet, prompt, length, rng)

    def save(self, folder: Path, alphabet: Alphabet) -> None:
        """Write the files that `generate` reads; `RNNWeights.save` writes the LSTM."""
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
    """Return ``prompt`` and ``length`` characters drawn from a model that `CharModel.save` wrote.

    On "vulkan" the weights are uploaded once, and the state stays on the device. Raises ``OSError``
    or ``ValueError`` for files that are missing, damaged or not of the same model.
    """
    alphabet, w_out, b_out = _read_head(folder / HEAD)
    w_out, b_out = xp.asarray(w_out), xp.asarray(b_out)
    head = xp.eye(len(alphabet), dtype=w_out.dtype), w_out, b_out
    if backend == "vulkan":
        with dnnffi.load_rnn(folder / NETWORK) as context:
            _check_fits(folder, context.spec, w_out)

            def run(x: NDArray) -> NDArray:
                return context.run(x, keep_state=True)[0]

            return write_on(run, head, alphabet, prompt, length, rng)
    layout: LayoutName = backend if backend in ("cudnn", "miopen") else "torch"
    loaded = dnnffi.RNNWeights.load(folder / NETWORK, backend=layout)
    _check_fits(folder, loaded.spec, w_out)
    weights = loaded.like(xp.asarray(loaded.flat))
    states: list[State | None] = [None]

    def run_lstm(x: NDArray) -> NDArray:
        y, states[0] = dnnffi.lstm(x, states[0], weights, backend=backend)
        return y

    return write_on(run_lstm, head, alphabet, prompt, length, rng)


def _check_fits(folder: Path, spec: dnnffi.RNNSpec, w_out: NDArray) -> None:
    """Raise ``ValueError`` unless the network of ``spec`` fits the head's w_out [V, H]."""
    characters, hidden = w_out.shape
    expected = {
        "mode": "lstm",
        "num_directions": 1,
        "proj_size": 0,
        "input_size": characters,
        "hidden_size": hidden,
        "dtype": w_out.dtype.name,
    }
    for name, value in expected.items():
        if (found := getattr(spec, name)) != value:
            raise ValueError(
                f"{folder / NETWORK} does not fit {folder / HEAD}: {name} must be {value!r}; got "
                f"{found!r}. Train again: python -m dnnffi demo"
            )


def _read_head(path: Path) -> tuple[Alphabet, NDArray, NDArray]:
    """Read the alphabet, w_out [V, H] and b_out [V]; raises the errors of `generate`."""
    with files.open_regular(path) as file:
        try:
            reader = NpzReader(file)
            alphabet = Alphabet(reader.text("characters") or "")
            w_out, b_out = reader.array("w_out"), reader.array("b_out")
            if not len(alphabet) == len(w_out) == len(b_out) or (w_out.ndim, b_out.ndim) != (2, 1):
                raise ValueError("the sizes of its arrays differ")
            if w_out.dtype != b_out.dtype:
                raise ValueError("the dtypes of its arrays differ")
        except Exception as error:  # zipfile raises many kinds of errors for damaged files
            raise ValueError(f"{path} is not a complete file of the demo: {error}") from error
    return alphabet, w_out, b_out


def write_on(
    run: Callable[[NDArray], NDArray],
    head: tuple[NDArray, NDArray, NDArray],
    alphabet: Alphabet,
    prompt: str,
    length: int,
    rng: np.random.Generator,
) -> str:
    """Return ``prompt`` and ``length`` drawn characters after it.

    ``run`` takes steps [T, 1, V] and returns their outputs; it continues from its last state.
    ``head`` is one-hot characters [V, V], w_out and b_out.
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
    """Draw a character from the model's probabilities at temperature 0.8."""
    if len(scores) < 2 or not np.isfinite(scores[1:]).all():
        raise ValueError(
            "the model's scores must be finite, of at least one character; got "
            f"{scores[1:].tolist()[:3]}. Train again: python -m dnnffi demo"
        )
    scores[0] = -np.inf  # number 0 stands for no single character
    weights = np.exp((scores - scores.max()) / 0.8)
    return int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right"))
