"""Image CNNs on NumPy compared with finite differences, and PyTorch's compared with them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from bench.bench_models import check, host

import dnnffi
from dnnffi.bench import image_models, relu
from dnnffi.bench.images import ImageShape
from dnnffi.bench.model import ModelDef
from dnnffi.device.arrays import in_layout

# Pictures so small that the last stages see one element of them.
SHAPES = {
    "resnet18": ImageShape("resnet18", "float64", "channels_first", 2, 8, width=3),
    "resnet50": ImageShape("resnet50", "float64", "channels_first", 2, 20, width=2),
}
NAMED = pytest.mark.parametrize("name", SHAPES)
LAYOUTS = pytest.mark.parametrize("layout", ["channels_first", "channels_last"])


def results(create, shape, *, training=True, **keywords):
    """The scores and, in training, all gradients."""
    outputs, gradients = create(shape, shape.draw(seed=1), "cpu", training, **keywords).once()
    return host([outputs[0], *(gradients or ())])


@NAMED
@LAYOUTS
def test_gradients_by_finite_differences(name, layout):
    shape = replace(SHAPES[name], layout=layout)
    data = shape.draw(seed=1)
    model = image_models.functions(shape, data, "cpu", True)
    _, gradients = model.once()

    def loss():
        return float((model.forward()[0] * data.dy).sum())

    rng = np.random.default_rng(3)
    step = 1e-6
    for array, gradient in zip(data.weights, gradients, strict=True):
        assert array.shape == gradient.shape
        place = tuple(rng.integers(0, array.shape))
        kept = array[place]
        array[place] = kept + step
        above = loss()
        array[place] = kept - step
        slope = (above - loss()) / (2 * step)
        array[place] = kept
        assert slope == pytest.approx(gradient[place], rel=1e-5, abs=1e-6)


@NAMED
@LAYOUTS
def test_inference_gives_the_scores_of_training(name, layout):
    shape = replace(SHAPES[name], layout=layout)
    trained = results(image_models.functions, shape)
    check(results(image_models.functions, shape, training=False), trained[:1])


@NAMED
def test_the_layout_changes_no_result_and_is_kept(name):
    last = replace(SHAPES[name], layout="channels_last")
    check(results(image_models.functions, SHAPES[name]), results(image_models.functions, last))
    model = image_models.functions(last, last.draw(), "cpu", True)
    for maps in model.forward()[1].maps:
        for one in maps:
            assert (
                one.strides == in_layout(one, channels_last=True).strides
                or one.size == len(one) * one.shape[1]
            )


def test_tuned_computes_the_same():
    shape = SHAPES["resnet18"]
    check(results(image_models.tuned, shape), results(image_models.functions, shape))


def test_captured_replays_the_tuned_model(monkeypatch):
    launched = []

    def capture_step(step):
        return SimpleNamespace(launch=lambda: launched.append(1), result=step())

    memory = SimpleNamespace(capture_step=capture_step)
    monkeypatch.setattr(image_models, "cupy_memory", lambda: memory)
    shape = SHAPES["resnet18"]
    check(results(image_models.captured, shape), results(image_models.tuned, shape))
    assert launched == [1]


def test_tuned_has_called_everything_before_it_is_timed(monkeypatch):
    options = []
    for name in ("conv", "conv_backward_data", "conv_backward_weights"):
        function = getattr(dnnffi, name)

        def call(*arrays, function=function, **keywords):
            options.append((function.__name__, keywords["options"]))
            return function(*arrays, **keywords)

        monkeypatch.setattr(dnnffi, name, call)
    shape = SHAPES["resnet18"]
    image_models.tuned(shape, shape.draw(), "cpu", True)
    assert {name for name, _ in options} == {
        *("conv", "conv_backward_data", "conv_backward_weights")
    }
    assert all(asked == {"tune": "now"} for _, asked in options)
    convs = len(shape.network.convs)
    assert len(options) == 3 * convs - 1  # nobody asks for the gradient of the pictures


def test_what_a_forward_saved_is_let_go_of_by_the_backward():
    shape = SHAPES["resnet18"]
    model = image_models.functions(shape, shape.draw(), "cpu", True)
    outputs = model.forward()
    saved = outputs[1]
    assert [len(maps) for maps in saved.maps] == [3] * 9  # a block's input and two convolutions
    model.backward(outputs)
    assert saved.maps == []


def test_relu_backward_takes_one_gradient_for_all_of_a_channel():
    y = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    channel = np.arange(1.0, 7).reshape(2, 3, 1, 1)
    found = relu.relu_backward(np, y, channel)
    assert np.array_equal(found, np.where(y > 0, channel, 0))


@pytest.mark.parametrize("training", [False, True])
def test_a_replayed_model_launches_in_forward_alone(training):
    launched = []
    model = ModelDef(lambda: ("y", "saved"), (lambda outputs: [outputs[1]]) if training else None)
    assert model.once() == (("y", "saved"), ["saved"] if training else None)
    replayed = ModelDef.of_graph(lambda: launched.append(1), model.once())
    assert replayed.once() == model.once()
    assert launched == [1]


def test_torch_gives_the_same_scores_and_gradients():
    torch_models = torch_image_models()
    for shape in SHAPES.values():
        expected = results(image_models.functions, shape)
        for layout in ("channels_first", "channels_last"):
            check(results(torch_models.eager, replace(shape, layout=layout)), expected)


@pytest.mark.parametrize("keywords", [{"search": True}, {"trace": True}], ids=str)
def test_torch_otherwise_called_gives_the_same(keywords):
    create = partial(torch_image_models().eager, **keywords)
    shape = SHAPES["resnet18"]
    expected = results(image_models.functions, shape)
    check(results(create, shape), expected)
    check(results(create, shape, training=False), expected[:1])


def test_each_model_of_torch_searches_or_not_as_it_says(monkeypatch):
    torch_models = torch_image_models()
    cudnn = torch_models.torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", False)
    shape = SHAPES["resnet18"]
    searching, plain = (
        torch_models.eager(shape, shape.draw(), "cpu", True, search=search)
        for search in (True, False)
    )
    for model, expected in ((searching, True), (plain, False), (searching, True)):
        outputs = model.forward()
        assert cudnn.benchmark is expected
        cudnn.benchmark = not expected
        model.backward(outputs)
        assert cudnn.benchmark is expected


def test_layouts_reach_torch(monkeypatch):
    torch_models = torch_image_models()
    scores, taken = torch_models.scores, []

    def watched(network, x, weights):
        taken.extend([x, *weights[::2]])
        return scores(network, x, weights)

    monkeypatch.setattr(torch_models, "scores", watched)
    shape = replace(SHAPES["resnet18"], layout="channels_last")
    model = torch_models.eager(shape, shape.draw(), "cpu", False)
    assert not model.forward()[0].requires_grad
    order = torch_models.torch.channels_last
    assert len(taken) == 1 + len(shape.network.convs)
    assert all(one.is_contiguous(memory_format=order) for one in taken)


def torch_image_models():
    pytest.importorskip("torch")
    from dnnffi.bench import torch_image_models

    return torch_image_models
