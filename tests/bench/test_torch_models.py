"""PyTorch's models on the CPU, against the reference; its graph needs a GPU."""

from __future__ import annotations

from functools import partial

import pytest
from bench.bench_models import ONE, SHAPES, TWO, check, check_against_the_reference, fitting, run

from dnnffi.bench import array_models
from dnnffi.bench.shapes import Shape

torch = pytest.importorskip("torch")

from dnnffi.bench import torch_models  # noqa: E402 - it imports PyTorch

OTHERWISE = {
    "torch graph",
    "torch script simple",
    "torch script layer norm",
    "torch script dropout",
}
CASES = [
    (creator, name)
    for creator in torch_models.CREATORS
    for name in fitting(creator)
    if creator.name not in OTHERWISE
]


@pytest.mark.parametrize(
    ("creator", "name"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_against_the_reference(creator, name):
    check_against_the_reference(creator.create, SHAPES[name])


def test_every_creator_is_tested():
    tested = {creator.name for creator, _ in CASES} | OTHERWISE
    assert tested == {creator.name for creator in torch_models.CREATORS}


@pytest.mark.parametrize(("variant", "own"), [("simple", "simple"), ("layer_norm", "normalised")])
def test_scripts_and_own_code_say_the_same(variant, own):
    outputs, gradients = run(partial(torch_models.scripted, variant=variant), ONE)
    expected, d_expected = run(getattr(array_models, own), ONE)
    check(outputs[:2], expected[:2])
    check(list(gradients), list(d_expected))


def test_scripted_dropout_drops_in_training_alone():
    create = partial(torch_models.scripted, variant="dropout")
    expected, _ = run(array_models.functional, TWO)
    inferred, _ = run(create, TWO, training=False)
    check(inferred[:2], expected[:2])
    trained, _ = run(create, TWO)
    assert not torch.allclose(trained[0], inferred[0])


def test_inference_records_no_gradients():
    outputs, _ = run(torch_models.eager, ONE, training=False)
    assert not outputs[0].requires_grad


def test_bfloat16_arrives_bit_by_bit():
    shape = Shape("gru", "bfloat16", 3, 2, 5, 4)
    data = shape.draw()
    model = torch_models.eager(shape, data, "cpu", training=True)
    module = model.forward.func
    arrays = [parameter.detach() for layer in module.all_weights for parameter in layer]
    for tensor, array in zip(
        [model.forward.args[0].detach(), *arrays], [data.x, *data.weights], strict=True
    ):
        assert tensor.dtype == torch.bfloat16
        assert (tensor.view(torch.int16).numpy() == array.view("int16")).all()
