"""dnnffi's entries on PyTorch's tensors, on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from bench.bench_models import SHAPES, check_against_the_reference, host, run

torch = pytest.importorskip("torch")

from dnnffi.bench.callers import problems, torch_models  # noqa: E402 - it imports PyTorch
from dnnffi.bench.model import ModelDef  # noqa: E402

EQUAL = sorted(name for name, shape in SHAPES.items() if not shape.lengths)
CREATORS = [
    creator
    for creator in torch_models.CREATORS
    if "cpu" in creator.places and "empty" not in creator.name
]


@pytest.mark.filterwarnings("ignore:weights given as separate arrays")
@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("creator", CREATORS, ids=lambda creator: creator.name)
def test_against_the_reference(creator, name):
    if creator.name == problems.TORCH_FLAT:
        check_flat(creator.create, SHAPES[name])
    else:
        check_against_the_reference(creator.create, SHAPES[name])


def check_flat(create, shape):
    """The gradient of flat weights has all of a list's elements, in the layout of PyTorch."""
    outputs, gradients = run(create, shape)
    expected, listed = run(torch_models.from_list, shape)
    for one, other in zip(host(outputs), host(expected), strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))
    torch.testing.assert_close(gradients.x, listed.x)
    (flat,) = gradients.weights
    torch.testing.assert_close(flat, torch.cat([one.flatten() for one in listed.weights]))


@pytest.mark.parametrize("name", ["one layer", "gru"])
def test_the_empty_function_has_the_operands_and_results_of_a_network(name):
    shape = SHAPES[name]
    for training in (False, True):
        (outputs, found) = run(torch_models.empty, shape, training=training)
        expected, gradients = run(torch_models.from_list, shape, training=training)
        assert [one.shape for one in host(outputs)] == [one.shape for one in host(expected)]
        assert not host(outputs)[0].any()
        if training:
            shapes = [one.shape for one in host(list(found))]
            assert shapes == [one.shape for one in host(list(gradients))]


def test_the_empty_function_keeps_its_operands_for_backward():
    for name, count in (("one layer", 7), ("relu", 6)):
        shape = SHAPES[name]
        y, last = torch_models.empty(shape, shape.draw(), "cpu", True).forward()
        assert len(y.grad_fn.saved_tensors) == count
        assert isinstance(last, tuple) == (name == "one layer")


def test_a_library_gives_arrays_on_the_host_and_new_memory():
    library = torch_models.torch_library("cpu")
    given = np.arange(6.0).reshape(2, 3)
    uploaded = library.upload(given)
    assert uploaded.tolist() == given.tolist()
    made = library.allocate((2, 3), "float16")
    assert (made.dtype, made.shape) == (torch.float16, (2, 3))
    assert library.stream is None


def test_entries_of_dnnffi_are_called_until_they_are_tuned():
    for creator in torch_models.CREATORS:
        assert (creator.tunes or creator.captures) is (
            creator.name.startswith("dnnffi") or creator.name == problems.NN_GRAPH
        )


def test_the_empty_function_can_be_called_again_and_again():
    shape = SHAPES["one layer"]
    model = torch_models.empty(shape, shape.draw(), "cpu", True)
    for _ in range(3):
        model.once()


def test_a_model_in_one_thread_has_its_backward_pass_there():
    def create(*arguments):
        return ModelDef(lambda: None, lambda outputs: torch._C._is_multithreading_enabled())

    model = torch_models.in_one_thread(create, None, None, "cpu", True)
    assert torch._C._is_multithreading_enabled()
    assert model.once() == (None, False)
    assert torch._C._is_multithreading_enabled()


def test_the_models_are_those_of_this_version():
    names = {creator.name for creator in torch_models.CREATORS}
    has_modules = hasattr(torch_models.dnnffi.torch, "LSTM")
    assert (problems.TORCH_MODULE in names) == has_modules
    assert {"dnnffi torch list", "dnnffi torch flat", "dnnffi allocator", "torch eager"} < names
