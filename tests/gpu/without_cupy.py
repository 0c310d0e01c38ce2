"""Programs of an environment without CuPy: ``without_cupy.py NAME`` runs one of them."""

from __future__ import annotations

import os
import sys

sys.modules["cupy"] = None  # type: ignore[assignment]  # an import of CuPy fails from here on
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import numpy as np  # noqa: E402

import dnnffi  # noqa: E402
from dnnffi.rnn.network import CALLS_BEFORE_TUNING  # noqa: E402

STEPS, BATCH, INPUT, HIDDEN = 20, 16, 32, 64


def options_of_torch(torch, **others):
    return {
        "allocator": lambda shape, dtype: torch.empty(
            shape, dtype=getattr(torch, dtype), device="cuda"
        ),
        "stream": lambda: torch.cuda.current_stream().cuda_stream,
        **others,
    }


def network_of_torch(torch):
    """A module, x, and the flat weights of the module."""
    torch.manual_seed(0)
    module = torch.nn.LSTM(INPUT, HIDDEN, num_layers=2, device="cuda")
    x = torch.randn(STEPS, BATCH, INPUT, device="cuda")
    spec = dnnffi.RNNSpec(mode="lstm", input_size=INPUT, hidden_size=HIDDEN, num_layers=2)
    arrays = [p.detach().cpu().numpy() for p in module.parameters()]
    flat = torch.from_numpy(dnnffi.RNNWeights.pack(arrays, spec).flat).cuda()
    return module, x, dnnffi.RNNWeights(flat, spec)


def difference(one, other):
    """The largest difference of two tensors, relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max())


def loop_on_tensors(own_stream):
    """A loop with an allocator is measured, compares own kernels, and is replayed."""
    import torch

    module, x, weights = network_of_torch(torch)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    options = options_of_torch(torch)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(4 * CALLS_BEFORE_TUNING):
            y, (h_n, c_n) = dnnffi.lstm(x, None, weights, options=options)
            x *= 1  # work of the user's own between the calls
            expected, _ = module(x)
            assert difference(y, expected) < 5e-3  # TF32
            del y, h_n, c_n, expected
    (plan,) = dnnffi.cached_plans()
    check_measured(plan)
    assert plan.operations.graph_count > 0, plan.report()


def training_on_tensors():
    """Training with an allocator is measured and replayed, and has PyTorch's gradients."""
    import torch

    module, x, weights = network_of_torch(torch)
    options = options_of_torch(torch)
    expected_x = x.clone().requires_grad_()
    y, _ = module(expected_x)
    dy = torch.randn_like(y)
    y.backward(dy)
    for _ in range(4 * CALLS_BEFORE_TUNING):
        y, _, ctx = dnnffi.lstm_forward(x, None, weights, options=options)
        gradients = ctx.backward(dy)
        assert difference(gradients.x, expected_x.grad) < 5e-3
        del y, ctx, gradients
    (plan,) = dnnffi.cached_plans()
    check_measured(plan)
    assert plan.operations.graph_count > 0, plan.report()


def own_kernels_on_tensors():
    """Own kernels run with an allocator if they are named: dense, ragged, and in a capture."""
    import torch

    module, x, weights = network_of_torch(torch)
    options = options_of_torch(torch, algorithm="own")
    for lengths in (None, tuple(range(STEPS, STEPS - BATCH, -1))):
        for _ in range(3):
            y, _ = dnnffi.lstm(x, None, weights, lengths=lengths, options=options)
        expected = module(x)[0]
        for row, length in enumerate(lengths or ()):
            expected[length:, row] = 0
        assert difference(y, expected) < 5e-3
    for plan in dnnffi.cached_plans():
        assert plan.inspect()["algorithm"] == "own", plan.report()
    # A capture of the user's, with a plan that exists, and with a new plan.
    for steps in (STEPS, STEPS - 1):
        given = x[:steps].contiguous()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y, _ = dnnffi.lstm(given, None, weights, options=options)
        graph.replay()
        torch.cuda.synchronize()
        assert difference(y, module(given)[0]) < 5e-3


def dropout_of_own_kernels_on_tensors():
    """The same state drops the same, from call to call and after it was saved and restored."""
    import torch

    _, x, weights = network_of_torch(torch)
    options = options_of_torch(torch, algorithm="own", tune="off")

    def forward(state):
        y, _, _ = dnnffi.lstm_forward(
            x, None, weights, dropout=0.5, dropout_state=state, options=options
        )
        return y.clone()

    first, second = dnnffi.DropoutState(3), dnnffi.DropoutState(3)
    assert torch.equal(forward(first), forward(second))
    restored = dnnffi.DropoutState.restore(first.save())
    assert torch.equal(forward(restored), forward(second))


def threads_on_tensors():
    """Threads that used no device before run calls with an allocator, on streams of their own."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    module, x, weights = network_of_torch(torch)
    expected = module(x)[0].detach()
    torch.cuda.synchronize()

    def work(_):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2 * CALLS_BEFORE_TUNING):
                y, _ = dnnffi.lstm(x, None, weights, options=options_of_torch(torch))
            stream.synchronize()
            return difference(y, expected)

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(4))) < 5e-3


def modules_of_torch():
    """A module and a convolution of dnnffi.torch learn what those of torch.nn do."""
    import torch

    import dnnffi.torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    steps = {
        "torch.nn": (torch.nn.LSTM, torch.nn.functional.conv1d),
        "dnnffi": (dnnffi.torch.LSTM, dnnffi.torch.conv),
    }
    trained = {}
    for name, (module_class, conv) in steps.items():
        torch.manual_seed(0)
        module = module_class(INPUT, HIDDEN, num_layers=2, device="cuda")
        kernel = (0.1 * torch.randn(8, HIDDEN, 3, device="cuda")).requires_grad_()
        optimizer = torch.optim.SGD([*module.parameters(), kernel], lr=0.1)
        x = torch.randn(STEPS, BATCH, INPUT, device="cuda")
        for _ in range(4 * CALLS_BEFORE_TUNING):
            y, _ = module(x)
            loss = (conv(y.permute(1, 2, 0).contiguous(), kernel) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained[name] = [*module.parameters(), kernel]
    for one, other in zip(*trained.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)


def full_device():
    """A call runs although there is no memory to measure on."""
    import torch

    module, x, weights = network_of_torch(torch)
    expected = module(x)[0].detach()
    options = options_of_torch(torch)
    dnnffi.lstm(x, None, weights, options=options)  # makes the handle of cuDNN
    blocks = [torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(2)]
    del blocks[0]  # in PyTorch's pool: for results, not for the driver
    kept, nbytes = [], 2**30
    while nbytes >= 2**20:
        try:
            kept.append(dnnffi_buffer(nbytes))
        except MemoryError:
            nbytes //= 2
    for _ in range(2 * CALLS_BEFORE_TUNING):
        y, _ = dnnffi.lstm(x, None, weights, options=options)
    assert difference(y, expected) < 5e-3
    del kept


def convolutions_on_tensors():
    """Convolutions of dnnffi.torch and their gradients, in both layouts, with a bias; measured."""
    import torch

    import dnnffi.torch

    torch.manual_seed(0)
    for layout in (torch.contiguous_format, torch.channels_last):
        for groups in (1, 16):
            shapes = ((4, 16, 20, 24), (16, 16 // groups, 3, 3))
            x, w = (torch.randn(s, device="cuda").to(memory_format=layout) for s in shapes)
            given = [one.requires_grad_() for one in (x, w, torch.randn(16, device="cuda"))]
            expected = torch.nn.functional.conv2d(*given, padding=1, groups=groups)
            dy = torch.randn_like(expected)
            wanted = torch.autograd.grad(expected, given, dy)
            options = {"tune": "now", "math": "strict"}
            for _ in range(8):  # some of them are replayed
                y = dnnffi.torch.conv(*given, padding=1, groups=groups, options=options)
                found = torch.autograd.grad(y, given, dy)
            for one, other in zip((y, *found), (expected, *wanted), strict=True):
                assert difference(one, other) < 5e-3  # PyTorch's TF32
            assert y.is_contiguous(memory_format=layout)
    reports = [plan.report() for plan in dnnffi.cached_plans()]
    assert len(reports) == 12
    assert all("measured in this process" in report for report in reports), reports


def dnnffi_buffer(nbytes):
    from dnnffi.runtime.devices import device_runtime

    return device_runtime("cuda").allocate(nbytes)


def programs_of_jax():
    """Programs of JAX run own kernels, named or found to be the fastest."""
    import jax

    from dnnffi import jax as djax

    spec = dnnffi.RNNSpec(mode="lstm", input_size=INPUT, hidden_size=HIDDEN, num_layers=2)
    weights = [
        jax.numpy.asarray(array)
        for array in dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).to("torch").arrays()
    ]
    x = jax.random.normal(jax.random.key(0), (STEPS, BATCH, INPUT))

    def loss(x, weights, **keywords):
        return (djax.lstm(x, None, weights, num_layers=2, **keywords)[0] ** 2).sum()

    def gradients(**keywords):
        return jax.jit(jax.grad(lambda x, w: loss(x, w, **keywords), (0, 1)))(x, weights)

    expected = gradients(implementation="scan")
    for keywords in ({"options": {"algorithm": "own"}}, {}):
        for _ in range(3):
            found = gradients(**keywords)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            scale = float(abs(other).max())
            assert float(abs(one - other).max()) < 1e-2 * scale, keywords  # TF32
        name = djax.tune(spec, BATCH, STEPS)
        print(f"measured: {name}")
        assert name.split()[0] in ("own", "cudnn")
    from dnnffi.rnn.backend import rnn_backends

    times = rnn_backends.external("cudnn").tuner.find(measured_problem(spec), 0).times
    assert any(name.startswith("own") for name in times), times


def measured_problem(spec):
    return dnnffi.RNNProblem.dense(spec, steps=STEPS, batch=BATCH, training=True)


def check_measured(plan):
    """Own kernels and cuDNN were measured, with the same results."""
    times = plan.finder.choice.times
    assert any(name.startswith("own") for name in times), plan.report()
    assert any(name.startswith("cudnn") for name in times), plan.report()
    print(plan.report())


PROGRAMS = {
    "loop": lambda: loop_on_tensors(own_stream=False),
    "loop on a stream": lambda: loop_on_tensors(own_stream=True),
    "training": training_on_tensors,
    "own kernels": own_kernels_on_tensors,
    "dropout": dropout_of_own_kernels_on_tensors,
    "threads": threads_on_tensors,
    "modules": modules_of_torch,
    "full device": full_device,
    "convolutions": convolutions_on_tensors,
    "JAX": programs_of_jax,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    assert sys.modules["cupy"] is None
