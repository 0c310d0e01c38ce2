"""The random numbers of dropout between threads, signal handlers and forks, on the reference."""

from __future__ import annotations

import copy
import pickle
import signal
import threading

import numpy as np
import pytest
from stress.bounds import bounded, in_child, switching_often

import dnnffi
from dnnffi.reference import rnn as reference
from dnnffi.rnn.reference_plan import HostGenerator
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=3, dtype="float64")
PROBLEM = RNNProblem.dense(SPEC, steps=4, batch=2, training=True, dropout=0.4)
STEPS, BATCH = 4, 2


@pytest.fixture(autouse=True)
def no_hang():
    with bounded():
        yield


@pytest.fixture
def on_signal():
    """Says what SIGUSR1 does; ``on_signal(f)``."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda does: signal.signal(signal.SIGUSR1, lambda number, frame: does())
    signal.signal(signal.SIGUSR1, before)


def train(state, spec=SPEC):
    """y of one forward pass in training."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(spec.x_shape(STEPS, BATCH))
    flat = rng.uniform(-0.5, 0.5, dnnffi.weight_layout(spec, "torch").size)
    weights = dnnffi.RNNWeights(flat, spec, backend="torch").arrays()
    keywords = {"num_layers": spec.num_layers, "dropout": 0.4, "dropout_state": state}
    return dnnffi.lstm_forward(x, None, weights, **keywords)[0]


def drawn(seed, count):
    """The masks of ``count`` forwards, by a generator of NumPy's."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return [reference.dropout_masks(SPEC, STEPS, BATCH, 0.4, rng) for _ in range(count)]


def test_forwards_draw_what_follows():
    generator = HostGenerator(7)
    found = [generator.masks(PROBLEM) for _ in range(3)]
    np.testing.assert_array_equal(found, drawn(7, 3))


def test_a_restored_generator_goes_on():
    generator, again = HostGenerator(7), HostGenerator(8)
    generator.masks(PROBLEM)
    again.restore(generator.save())
    np.testing.assert_array_equal(again.masks(PROBLEM), drawn(7, 2)[1])
    np.testing.assert_array_equal(again.save(), np.frombuffer(_state(7, 2), np.uint8))


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_of_a_state_goes_on_by_itself(again, used):
    state = dnnffi.DropoutState(7)
    if used:
        train(state)
    made = again(state)
    expected = [train(state) for _ in range(2)]
    np.testing.assert_array_equal([train(made) for _ in range(2)], expected)


def _state(seed, forwards):
    """Return the bytes of NumPy's PCG64 state after some forward passes."""
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(forwards):
        reference.dropout_masks(SPEC, STEPS, BATCH, 0.4, rng)
    state = rng.bit_generator.state["state"]
    return state["state"].to_bytes(16, "little") + state["inc"].to_bytes(16, "little")


def test_threads_draw_each_number_once():
    generator, found = HostGenerator(7), []
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(25):
            found.append(generator.masks(PROBLEM))

    with switching_often():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert _sorted(found) == _sorted(drawn(7, 100))


def _sorted(masks):
    return sorted(np.array(one).tobytes() for one in masks)


@pytest.mark.parametrize("what", ["save", "train", "first use"])
def test_a_handler_in_the_first_use_of_a_state(on_signal, what):
    state, found = dnnffi.DropoutState(7), []
    place = "reference device 0"
    on_signal(
        {
            "save": lambda: found.append(state.save()),
            "train": lambda: found.append(train(state)),
            "first use": lambda: found.append(state.generator(place, HostGenerator)),
        }[what]
    )

    def make(seed):
        signal.raise_signal(signal.SIGUSR1)
        return HostGenerator(seed)

    generator = state.generator(place, make)
    assert len(found) == 1
    assert state.generator(place, make) is generator
    if what == "first use":
        assert found == [generator]


def test_a_handler_in_the_middle_of_a_forward_draws_others(on_signal, monkeypatch):
    generator, found, masks = HostGenerator(7), [], reference.dropout_masks

    def interrupted(*arguments):
        if not found:
            found.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return masks(*arguments)

    on_signal(lambda: found.append(generator.masks(PROBLEM)))
    monkeypatch.setattr(reference, "dropout_masks", interrupted)
    found[0:1] = [generator.masks(PROBLEM)]
    monkeypatch.undo()
    assert _sorted(found) == _sorted(drawn(7, 2))


def test_an_interrupted_first_use_leaves_a_state_as_it_was(on_signal):
    state = dnnffi.DropoutState(7)

    def interrupt():
        raise KeyboardInterrupt

    def make(seed):
        signal.raise_signal(signal.SIGUSR1)

    on_signal(interrupt)
    with pytest.raises(KeyboardInterrupt):
        state.generator("reference device 0", make)
    np.testing.assert_array_equal(train(state), train(dnnffi.DropoutState(7)))


def test_an_interrupted_restored_state_is_still_restored(on_signal):
    state = dnnffi.DropoutState(7)
    train(state)
    restored = dnnffi.DropoutState.restore(state.save())

    def interrupt():
        raise KeyboardInterrupt

    class Interrupted(HostGenerator):
        def restore(self, states):
            signal.raise_signal(signal.SIGUSR1)

    on_signal(interrupt)
    with pytest.raises(KeyboardInterrupt):
        restored.generator("reference device 0", Interrupted)
    assert restored.save() == state.save()
    np.testing.assert_array_equal(train(restored), train(state))


@pytest.mark.parametrize("during", ["first use", "forward"])
def test_a_child_may_use_a_state_that_a_thread_is_using(monkeypatch, during):
    state, inside, done = dnnffi.DropoutState(7), threading.Event(), threading.Event()
    masks = reference.dropout_masks

    def wait(*arguments):
        inside.set()
        done.wait()
        return HostGenerator(7) if during == "first use" else masks(*arguments)

    if during == "forward":
        train(state)
        monkeypatch.setattr(reference, "dropout_masks", wait)
        target = lambda: train(state)  # noqa: E731
    else:
        target = lambda: state.generator("reference device 0", wait)  # noqa: E731
    thread = threading.Thread(target=target)
    thread.start()
    inside.wait()

    def work():
        reference.dropout_masks = masks
        assert state.save()["seed"] == 7
        train(state)

    try:
        in_child(work)
    finally:
        done.set()
        thread.join()


def test_a_child_may_fork_while_threads_draw():
    # NumPy's own generators have locks too.
    state, done = dnnffi.DropoutState(7), threading.Event()
    train(state)

    def draw():
        while not done.is_set():
            train(state)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with switching_often():
            for _ in range(10):
                in_child(lambda: train(state))
    finally:
        done.set()
        for thread in threads:
            thread.join()


OWN = "cudnn device 0, algorithm 'own' with an allocator"


def of(place="reference device 0", states=b"\1" * 32):
    """A saved state of seed 7, with parts that `DropoutState.save` may not give."""
    return {"seed": 7, "place": place, "states": states}


@pytest.mark.parametrize(
    ("place", "states"),
    [
        ("reference device 0", b"\1" * 32),
        ("cudnn device 1", b"x" * 100),
        ("miopen device 0 with an allocator", bytes(8)),
        (OWN, (7).to_bytes(16, "little")),
    ],
)
def test_what_was_saved_is_restored(place, states):
    assert dnnffi.DropoutState.restore(of(place, states)).save() == of(place, states)


@pytest.mark.parametrize(
    ("saved", "error", "message"),
    [
        (b"", TypeError, "saved must be a dict of DropoutState.save; got bytes"),
        ({"place": None, "states": None}, ValueError, ".*; it has no 'seed'"),
        ({"seed": 1, "states": None}, ValueError, ".*; it has no 'place'"),
        ({"seed": 1, "place": None}, ValueError, ".*; it has no 'states'"),
        ({"seed": "7", "place": None, "states": None}, TypeError, "seed must be an integer.*"),
        (of(place=None), ValueError, "saved must have both 'place' and 'states', or None for both"),
        (of(states=None), ValueError, "saved must have both 'place' and 'states', .*"),
        (of(place=0), TypeError, r"saved\['place'\] must be a str or None; got int"),
        (of(place="garbage"), ValueError, r"saved\['place'\] must be like .*; got 'garbage'"),
        (of(states="7" * 32), TypeError, r"saved\['states'\] must be bytes or None; got str"),
        (of(states=[1] * 32), TypeError, r"saved\['states'\] must be bytes or None; got list"),
        (of(states=b""), ValueError, ".* of reference device 0 must have 32 bytes; got 0"),
        (of(states=b"x" * 31), ValueError, ".* of reference device 0 must have 32 bytes; got 31"),
        (of(states=bytes(32)), ValueError, ".* are damaged: the increment must be odd"),
        (of("cudnn device 1", b""), ValueError, ".* of cudnn device 1 must have bytes; got 0"),
        (of("miopen device 0", bytes(9)), ValueError, ".* must have 8 bytes; got 9"),
        (of("miopen device 0", b"\xff" * 8), ValueError, ".* are damaged: more than 2.* uses"),
        (of(OWN, bytes(15)), ValueError, ".* must have 16 bytes; got 15"),
        (of(OWN, bytes(16)), ValueError, ".* are those of another seed than 7"),
    ],
)
def test_what_was_not_saved_is_not_restored(saved, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        dnnffi.DropoutState.restore(saved)
