"""Find speech in a recording with the network of Silero VAD, whole, on dnnffi.

    pip install onnx
    pip install --no-deps silero-vad==6.2.3  # the weights; without PyTorch, which is not needed
    python examples/voice_activity.py speech.wav  # mono, 16 bits, 16 kHz; a test signal without it
    python examples/voice_activity.py --streams 1000 --device gpu

Neither PyTorch nor onnxruntime takes part. Every 32 ms the network gives the probability that
somebody speaks:

    the last 64 samples, 512 new ones, and 64 mirrored at the end     [B, 640]
    a short-time Fourier transform, as a convolution of stride 128    [B, 258, 4]
    magnitudes                                                        [B, 129, 4]
    four convolutions with ReLU, two of them of stride 2              [B, 128]
    an LSTM, whose state goes from one chunk to the next              [B, 128]
    ReLU, a product with one row of weights, sigmoid                  [B]

B streams are computed together, on NumPy or on CuPy arrays. The weights of the convolutions are
read by the package onnx, those of the LSTM by `dnnffi.RNNWeights.from_onnx`. The network and its
weights are those of silero-vad (MIT license), https://github.com/snakers4/silero-vad.
"""

from __future__ import annotations

import argparse
import time
import wave
from importlib.metadata import PackageNotFoundError, files

import numpy as np

import dnnffi

RATE = 16000
CHUNK = 512  # samples
CONTEXT = 64  # samples before a chunk
MIRRORED = 64  # samples after it, which repeat its last ones in reverse
FILE = "silero_vad_16k_sequence.onnx"
INSTALL = "pip install --no-deps silero-vad==6.2.3"


class Network:
    """The weights on one device, and what they compute; ``xp`` is NumPy or CuPy.

    Parameters
    ----------
    convolutions : weights and bias of the transform (whose bias is None), of the four convolutions
        of the encoder, and of the last one
    lstm : `RNNWeights`
    """

    def __init__(self, xp, convolutions, lstm):
        self.xp = xp
        # cuDNN may otherwise round float32 to TF32, which has a mantissa of 10 bits.
        self.options = None if xp is np else {"math": "strict"}
        (transform, _), *encoder, (output, output_bias) = convolutions
        # A kernel of 256 samples at every 128th sample is a kernel of length 2 at every block of
        # 128 samples, which are its channels.
        bins, _, length = transform.shape
        transform = transform.reshape(bins, 2, length // 2).swapaxes(1, 2)
        # The last two convolutions have one position, so each is a product: with two positions of
        # its input, and with one. The rest of their kernels sees the zeros around these.
        (w_2, b_2), (w_3, b_3) = encoder[2:]
        dense = (w_2[:, :, 1:], b_2), (w_3[:, :, 1], b_3), (output, output_bias)
        self.transform = xp.asarray(np.ascontiguousarray(transform))
        self.encoder = [(xp.asarray(w), xp.asarray(bias)) for w, bias in encoder[:2]]
        *self.dense, self.output = [
            (xp.asarray(np.ascontiguousarray(w.reshape(len(w), -1).T)), xp.asarray(bias))
            for w, bias in dense
        ]
        self.lstm = lstm.like(xp.asarray(lstm.flat))

    def features(self, frames):
        """Return the output of the encoder [N, 128] of frames [N, 640]."""
        xp = self.xp
        blocks = frames.reshape(len(frames), -1, self.transform.shape[1]).swapaxes(1, 2)
        # Contiguous, as otherwise the channels would be last in all results.
        spectrum = dnnffi.conv(xp.ascontiguousarray(blocks), self.transform, options=self.options)
        spectrum *= spectrum
        bins = spectrum.shape[1] // 2
        x = xp.sqrt(spectrum[:, :bins] + spectrum[:, bins:])
        for stride, (w, bias) in enumerate(self.encoder, 1):
            x = dnnffi.conv(
                *(x, w, bias), stride=stride, padding=1, activation="relu", options=self.options
            )
        x = x.reshape(len(x), -1)
        for w, bias in self.dense:
            x = xp.maximum(x @ w + bias, 0)
        return x

    def probabilities(self, frames, state):
        """Probabilities [T, B] of T chunks of B streams, and the next state.

        ``frames`` are [T, B, 640]; ``state`` is h and c [1, B, 128], or None at the beginning.
        """
        steps, batch, samples = frames.shape
        x = self.features(frames.reshape(steps * batch, samples))
        x = x.reshape(steps, batch, -1)
        y, state = dnnffi.lstm(x, state, self.lstm, options=self.options)
        w, bias = self.output
        logits = self.xp.maximum(y, 0) @ w + bias
        return 1 / (1 + self.xp.exp(-logits[:, :, 0])), state


class Streams:
    """Streams of which one chunk comes at a time: their last samples and the state of the LSTM."""

    def __init__(self, network, batch):
        self.network, self.state = network, None
        self.frames = network.xp.zeros((1, batch, CONTEXT + CHUNK + MIRRORED), "float32")

    def add(self, chunks):
        """Probabilities [B] of the next chunks [B, 512], samples from -1 to 1."""
        fill(self.frames[0], self.frames[0, :, CHUNK : CHUNK + CONTEXT], chunks)
        probabilities, self.state = self.network.probabilities(self.frames, self.state)
        return probabilities[0]


def fill(frames, context, chunks):
    """Write chunks [N, 512] into ``frames`` [N, 640], with the samples before and after them."""
    frames[:, :CONTEXT] = context
    frames[:, CONTEXT : CONTEXT + CHUNK] = chunks
    frames[:, CONTEXT + CHUNK :] = chunks[:, -2 : -2 - MIRRORED : -1]


def read_network(path, xp=np):
    """Return the network for 16 kHz in an ONNX file of silero-vad."""
    try:
        import onnx
    except ImportError:
        raise SystemExit("This example needs the package onnx: pip install onnx") from None
    try:
        graphs = list(graphs_in(onnx.load(path).graph))
    except Exception as error:  # protobuf's errors, too
        raise SystemExit(f"{path} cannot be read as an ONNX model: {error}") from error
    tensors = {one.name: one for graph in graphs for one in graph.initializer}
    for node in (node for graph in graphs for node in graph.node if node.op_type == "Constant"):
        for attribute in node.attribute:
            if attribute.name == "value":
                tensors[node.output[0]] = attribute.t
    for graph in graphs:
        convolutions = [
            [onnx.numpy_helper.to_array(tensors[name]) for name in node.input[1:]]
            for node in graph.node
            if node.op_type == "Conv"
        ]
        # A file for two sampling rates has a network for each; at 16 kHz there are 129 frequencies.
        if len(convolutions) == 6 and convolutions[0][0].shape == (258, 1, 256):
            convolutions[0].append(None)
            # If a network has several LSTM nodes, they have the same weights.
            inside = (node for inner in graphs_in(graph) for node in inner.node)
            name = next((node.name for node in inside if node.op_type == "LSTM"), None)
            if name is not None:
                lstm = dnnffi.RNNWeights.from_onnx(path, node=name)
                return Network(xp, convolutions, lstm)
    raise SystemExit(f"{path} has no network of Silero VAD for 16 kHz with a node LSTM; use {FILE}")


def graphs_in(graph):
    """Yield a graph, and the graphs in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_in(attribute.g)


def installed_model():
    """Return the path of the model in the package silero-vad, which is not imported."""
    try:
        found = next((one for one in files("silero-vad") or () if one.name == FILE), None)
    except PackageNotFoundError:
        found = None
    if found is None:
        raise SystemExit(f"No model: {INSTALL}, or name an ONNX file of it with --model")
    return found.locate()


def read_wav(path):
    """Return the samples of a WAV file as float32 from -1 to 1."""
    try:
        with wave.open(str(path)) as file:
            found = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
            content = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} cannot be read as WAV: {error}") from error
    if found != (1, 16, RATE):
        channels, bits, rate = found
        raise SystemExit(
            f"{path} must have 1 channel of 16 bits at 16000 Hz; got {channels} of {bits} bits at "
            f"{rate} Hz. Convert it: ffmpeg -i {path} -ac 1 -ar 16000 -sample_fmt s16 new.wav"
        )
    count = len(content) // 2  # a file that was cut may end within a sample
    if not count:
        raise SystemExit(f"{path} has no samples")
    return np.frombuffer(content, "<i2", count).astype("float32") / 32768


def synthetic_speech(seconds=8.0, seed=0):
    """Vowels in noise: from 1 to 3 s, and from 4.5 to 7 s.

    A pulse for each period of a voice goes through resonances, the formants of changing vowels.
    """
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * t) + 8 * np.sin(2 * np.pi * 3.1 * t)
    phase = np.cumsum(pitch) / RATE
    vowels = np.array(  # frequencies of three formants in Hz
        [
            [730, 1090, 2440],
            [270, 2290, 3010],
            [570, 840, 2410],
            [300, 870, 2240],
            [530, 1840, 2480],
        ]
    )
    at = (t * 4.3).astype(int)  # syllables: 4.3 in a second
    order = rng.integers(len(vowels), size=at[-1] + 2)
    part = t * 4.3 - at
    share = np.clip((part - 0.7) / 0.3, 0, 1)[:, None]
    formants = (1 - share) * vowels[order[at]] + share * vowels[order[at + 1]]
    voice = np.zeros_like(t)
    for harmonic in range(1, 40):
        frequency = harmonic * pitch
        gain = sum(
            level / (1 + ((frequency - formants[:, one]) / width) ** 2)
            for one, (level, width) in enumerate(((1.0, 80), (0.6, 110), (0.3, 160)))
        )
        voice += gain * np.sin(2 * np.pi * harmonic * phase) * (frequency < RATE / 2)
    syllables = np.clip(1.6 * np.sin(np.pi * part), 0, 1) ** 0.7
    spoken = ((t >= 1) & (t < 3)) | ((t >= 4.5) & (t < 7))
    signal = 0.25 * voice * syllables * spoken + 0.003 * rng.standard_normal(len(t))
    return signal.astype("float32")


def chunks_of(samples):
    """Return the chunks [T, 512] of a recording; the last is filled with zeros."""
    padded = np.zeros(-(-len(samples) // CHUNK) * CHUNK, "float32")
    padded[: len(samples)] = samples
    return padded.reshape(-1, CHUNK)


def segments(probabilities, start=0.5, end=0.35, silence=0.1, shortest=0.25):
    """Yield the first and last second of each part with speech.

    Speech begins with a probability of ``start``, and ends where it is below ``end`` for
    ``silence`` seconds. Parts of less than ``shortest`` seconds are left out.
    """
    seconds = CHUNK / RATE
    began = quiet = None
    for at, probability in enumerate([*probabilities, *[0.0] * (1 + int(silence / seconds))]):
        if probability >= start:
            began = at if began is None else began
            quiet = None
        elif began is not None and (quiet is not None or probability < end):
            quiet = at if quiet is None else quiet
            if (at + 1 - quiet) * seconds >= silence:
                if (quiet - began) * seconds >= shortest:
                    yield began * seconds, quiet * seconds
                began = quiet = None


def arrays_on(device):
    """NumPy, or CuPy for "gpu"."""
    if device == "cpu":
        return np
    try:
        import cupy
    except ImportError:
        raise SystemExit(
            "--device gpu needs CuPy and cuDNN: pip install '.[cuda13]', or '.[cuda12]' for a "
            "driver before 580"
        ) from None
    if not cupy.cuda.is_available():
        raise SystemExit("--device gpu: CuPy finds no GPU")
    return cupy


def run(network, chunks, batch):
    """Probabilities [T, B] of B streams, one chunk of each at a time, and the seconds they took.

    Each stream plays the chunks [T, 512], one chunk later than the stream before it.
    """
    xp = network.xp
    streams, found = Streams(network, batch), []
    played = xp.asarray(chunks)
    order = (xp.arange(len(chunks))[:, None] - xp.arange(batch)) % len(chunks)
    streams.add(played[order[0]])  # prepares plans
    streams = Streams(network, batch)
    began = time.perf_counter()
    for step in range(len(chunks)):
        found.append(streams.add(played[order[step]]))
    probabilities = xp.stack(found)
    if xp is not np:
        probabilities = probabilities.get()  # waits for the device
    return probabilities, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wav", nargs="?", help="mono, 16 bits, 16 kHz; a test signal without it")
    parser.add_argument("--model", help=f"an ONNX file of silero-vad ({INSTALL})")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="NumPy or CuPy")
    parser.add_argument("--streams", type=int, default=1, help="recordings at once")
    options = parser.parse_args()
    if options.streams < 1:
        parser.error(f"argument --streams: must be at least 1; got {options.streams}")
    network = read_network(options.model or installed_model(), arrays_on(options.device))
    samples = read_wav(options.wav) if options.wav else synthetic_speech()
    chunks = chunks_of(samples)
    probabilities, seconds = run(network, chunks, options.streams)
    length = len(samples) / RATE
    print(f"{options.wav or 'A test signal'}: {length:.2f} s; speech")
    for began, ended in segments(probabilities[:, 0]):
        print(f"  from {began:6.2f} to {ended:6.2f} s")
    speed = options.streams * length / seconds
    print(
        f"{options.streams} stream{'s' * (options.streams > 1)} on {network.xp.__name__}: "
        f"{1e3 * seconds / len(chunks):.2f} ms a chunk of 32 ms, "
        f"{speed:,.0f} times as fast as the audio ({speed / 3600:.2f} hours a second)"
    )


if __name__ == "__main__":
    main()
