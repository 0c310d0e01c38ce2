"""Tests of a network of dnnffi's own kernels with new sizes: results, and fast binding."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, kernel_config, kind_of
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.cublas.product import Matrix, RowsProducts, _Descriptors, _Layouts
from dnnffi.backends.own.recurrent import small_products
from dnnffi.backends.own.recurrent.buffer_layout import bound
from dnnffi.backends.own.recurrent.network import OwnNetwork
from dnnffi.device.interface import Launch, StreamAt
from dnnffi.errors import CublasError, UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=24, dtype="float32", num_layers=2)
SIZES = [(1, 1), (2, 9), (7, 3), (5, 17), (3, 8)]


def problem_of(steps, batch, ragged, seed=0, training=True):
    layout = "lengths" if ragged else "dense"
    rng = np.random.default_rng(seed)
    return conformance.problem_of(SPEC, layout, steps, batch, rng, training=training)


class Shared(Network):
    """A problem that runs on the network of another problem."""

    def __init__(self, network, problem, is_exact=False):
        self._shared, self._is_exact = network, is_exact
        super().__init__(None, problem, None)

    def made(self, *_):
        self._shared.network.memory = self.memory
        return self._shared.network.bind(self.problem, self.launch, is_exact=self._is_exact)

    def __exit__(self, *raised):
        self.executor.close()


@pytest.fixture(params=["small products", "cuBLASLt"])
def products(request, monkeypatch):
    """The implementation of all matrix products outside of the recurrent kernels."""
    if request.param == "cuBLASLt":
        monkeypatch.setattr(small_products, "MAX_MACS", 0)
    return request.param


@pytest.fixture(params=[False, True], ids=["full", "ragged"])
def network(request, cublas, products):
    """A network that was made for a batch of five rows and four steps."""
    problem = problem_of(4, 5, request.param)
    configurations = [kernel_config(kind_of(problem, backward)) for backward in (False, True)]
    with Network(cublas, problem, *configurations) as made:
        made.is_ragged = request.param
        yield made


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(("steps", "batch"), SIZES)
def test_any_sizes_give_the_references_results(network, steps, batch, is_exact):
    if network.is_ragged and steps == 1:
        steps = 2
    problem = problem_of(steps, batch, network.is_ragged, seed=batch)
    if (problem.lengths is None) == network.is_ragged:
        pytest.skip("the drawn lengths are all the same")
    case = conformance.Case(problem, True, batch)
    arrays = conformance.arrays_of(case)
    with Shared(network, problem, is_exact) as bound:
        found = bound.results(arrays)
    expected = conformance.expected(case, arrays)
    assert conformance.deviation(found.y, expected.y) < 2e-3
    assert conformance.deviation(found.dx, expected.dx) < 2e-3
    for one, right in zip(found.dweights, expected.dweights, strict=True):
        assert conformance.deviation(one, right) < 2e-3


def test_a_network_for_ragged_rows_runs_rows_of_equal_lengths(cublas):
    made_for = problem_of(4, 5, ragged=True)
    configurations = [kernel_config(kind_of(made_for, backward)) for backward in (False, True)]
    problem = problem_of(3, 4, ragged=False)
    case = conformance.Case(problem, True, 0)
    arrays = conformance.arrays_of(case)
    with Network(cublas, made_for, *configurations) as network:
        equal = problem._replace(lengths=(3,) * 4)
        with Shared(network, equal) as bound:
            found = bound.results(arrays)
    expected = conformance.expected(case, arrays)
    for one, right in (
        (found.y, expected.y),
        (found.dx, expected.dx),
        *zip(found.dweights, expected.dweights, strict=True),
    ):
        assert conformance.deviation(one, right) < 2e-3


class WithNewSizes(Network):
    """A network whose problem is bound again, as one whose sizes are used once."""

    def made(self, *arguments):
        super().made(*arguments).close()
        return self.network.bind(self.problem, self.launch)


@pytest.mark.parametrize("layout", ["dense", "lengths"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("hidden", [10, 16])
@pytest.mark.parametrize("mode", conformance.MODES)
def test_small_products_are_right_for_any_network(cublas, mode, hidden, dtype, layout):
    fields = {"input_size": 3, "hidden_size": hidden, "num_layers": 2, "bidirectional": True}
    spec, rng = RNNSpec(mode=mode, dtype=dtype, **fields), np.random.default_rng(0)
    problem = conformance.problem_of(spec, layout, 5, 4, rng, training=True)
    case = conformance.Case(problem, True, 0)
    arrays = conformance.arrays_of(case)
    configs = [kernel_config(kind_of(problem, backward)) for backward in (False, True)]
    with WithNewSizes(cublas, problem, *configs) as network:
        assert network.executor._buffers.small_products is not None
        found = network.results(arrays, accumulate=arrays.weights)
    expected = conformance.expected(case, arrays)
    weights = [one.astype(np.float64) for one in arrays.weights]
    sums = [one + own for one, own in zip(expected.dweights, weights, strict=True)]
    for one, right in [(found.y, expected.y), (found.dx, expected.dx)]:
        assert conformance.deviation(one, right) < 5e-3
    for one, right in zip(found.dweights, sums, strict=True):
        assert conformance.deviation(one, right) < 5e-3


def test_new_sizes_compile_nothing_and_ask_the_library_once_for_a_power_of_two(
    network, products, monkeypatch
):
    asked = []
    choose = _Descriptors.choose
    monkeypatch.setattr(
        _Descriptors,
        "choose",
        lambda self, limit: asked.append(self._layouts.rows) or choose(self, limit),
    )
    for name in ("kernel", "constant", "blocks_at_once", "architecture", "shared_bytes"):
        monkeypatch.setattr(network.memory, name, lambda *_, name=name: pytest.fail(name))
    bind = network.network.bind
    for steps in range(2, 40):
        for batch in (2, 3, 5, 8):
            lengths = [steps - row % 2 for row in range(batch)] if network.is_ragged else None
            problem = RNNProblem.dense(
                SPEC, steps=steps, batch=batch, lengths=lengths, training=True
            )
            bind(problem, network.launch)
    of_network = sum(1 + len(one._training) for one in network.network.products.values())
    most = 0 if products == "small products" else 8 * of_network  # of up to 320 positions
    assert len(asked) <= most


def test_positions_above_the_largest_power_of_two_of_int32_have_algorithms(cublas):
    few = problem_of(4, 5, False, training=False)
    with Network(cublas, few, kernel_config(kind_of(few))) as made:
        made.network.close()  # descriptors that are made for new rows check their number
        many = RNNProblem.dense(SPEC, steps=2**24, batch=65)
        assert made.network.bind(many, made.launch).problem is many


def test_kernels_for_full_rows_are_not_for_ragged_ones_nor_the_other_way_round(network):
    other = problem_of(5, 4, not network.is_ragged)
    kinds = ("ragged", "full") if network.is_ragged else ("full", "ragged")
    with pytest.raises(UnsupportedError, match="for {} rows, not for {} ones".format(*kinds)):
        network.network.bind(other, network.launch)


def test_kernels_for_padded_rows_are_not_for_packed_ones(network):
    packed = RNNProblem.packed(network.network.spec, (3, 2, 1), training=True)
    with pytest.raises(UnsupportedError, match="rows, not for packed ones"):
        network.network.bind(packed, network.launch)


def test_layers_at_once_refuse_rows_that_do_not_fit_at_the_same_time(cublas):
    problem = problem_of(4, 5, False, training=False)
    one = kernel_config(kind_of(problem, layers=2))
    with Network(cublas, problem, one) as made:
        assert isinstance(made.network, OwnNetwork)
        with pytest.raises(UnsupportedError, match="blocks of 128 threads"):
            made.network.bind(problem_of(4, 100, False, training=False), made.launch)


def test_where_the_algorithms_for_more_rows_do_not_run_the_library_is_asked_for_these(
    cublas, monkeypatch
):
    products = RowsProducts(cublas, 0, "float32")
    product = products.product(Matrix(None, 4), Matrix(4, 2), Matrix(None, 2))
    algorithms, run, asked = product.choose(8), _Descriptors.run, []

    def refusing(self, launch, chosen, *rest):
        asked.append(chosen is algorithms)
        if chosen is algorithms:
            raise CublasError(7, "INVALID_VALUE", "cublasLtMatmul")
        run(self, launch, chosen, *rest)

    monkeypatch.setattr(_Descriptors, "run", refusing)
    a, b, c = np.ones((3, 4), "f4"), np.ones((4, 2), "f4"), np.zeros((3, 2), "f4")
    workspace = np.zeros(algorithms.workspace_bytes + 256, np.uint8)
    at = tuple(one.ctypes.data for one in (a, b, c))
    aligned = workspace.ctypes.data + -workspace.ctypes.data % 256
    for _ in range(2):
        product.run(Launch(StreamAt(0), 0), 3, algorithms, at, aligned)
    assert np.array_equal(c, np.full((3, 2), 4))
    assert asked == [True, False, True, False]
    assert len(product._exact) == 1
    products.close()


def test_products_of_the_same_rows_set_them_once(cublas, monkeypatch):
    products, numbers = RowsProducts(cublas, 0, "float32"), []
    set_rows = _Layouts.set_rows
    monkeypatch.setattr(
        _Layouts, "set_rows", lambda self, rows: numbers.append(rows) or set_rows(self, rows)
    )
    x = Matrix(None, 4)
    forward = products.product(x, Matrix(4, 2), Matrix(None, 2))
    weights = products.product(Matrix(None, 2, transposed=True), x, Matrix(2, 4))
    a, b, c = np.ones((8, 4), "f4"), np.ones((4, 2), "f4"), np.zeros((8, 2), "f4")
    gradient, workspace = np.zeros((2, 4), "f4"), np.zeros(2**20, np.uint8)
    aligned = workspace.ctypes.data + -workspace.ctypes.data % 256
    launch = Launch(StreamAt(0), 0)

    def at(*arrays):
        return tuple(array.ctypes.data for array in arrays)

    chosen = {product: product.choose(8) for product in (forward, weights)}
    for rows in (8, 3, 3, 5):
        for product, addresses in ((forward, at(a, b, c)), (weights, at(c, a, gradient))):
            product.run(launch, rows, chosen[product], addresses, aligned)
        assert np.array_equal(c[:rows], np.full((rows, 2), 4))
        assert np.array_equal(gradient, np.full((2, 4), 4 * rows))
    assert numbers == [3, 5]
    products.close()


def test_matrices_that_follow_each_other_do_so_for_every_number_of_rows(cublas):
    products = RowsProducts(cublas, 0, "float32")
    weights = Matrix(4, 2, batch_stride=4 * 2)
    follows = Matrix(None, 2, leading=3, batch_stride=None)
    product = products.product(Matrix(None, 4), weights, follows, batch=2)
    chosen, random = product.choose(8), np.random.default_rng(0)
    x, both = (random.integers(-4, 5, shape).astype("f4") for shape in ((8, 4), (2, 4, 2)))
    workspace = np.zeros(chosen.workspace_bytes + 256, np.uint8)
    aligned = workspace.ctypes.data + -workspace.ctypes.data % 256
    for rows in (8, 3, 5):
        found = np.zeros((2, rows, 3), "f4")
        at = tuple(one.ctypes.data for one in (x, both, found))
        product.run(Launch(StreamAt(0), 0), rows, chosen, at, aligned)
        assert np.array_equal(found[..., :2], x[:rows] @ both)
        assert not found[..., 2].any()
    products.close()


def test_sizes_up_to_the_same_bounds_share_a_layout(network):
    bind = network.network.bind

    def buffers(steps):
        lengths = [steps, steps, steps, steps, steps - 1] if network.is_ragged else None
        problem = RNNProblem.dense(SPEC, steps=steps, batch=5, lengths=lengths, training=True)
        return bind(problem, network.launch)._buffers

    assert buffers(50) is buffers(51)
    assert buffers(50) is not buffers(52)


@given(count=st.integers(1, 2**40))
def test_bounds_are_at_most_an_eighth_above_and_between_the_same_powers_of_two(count):
    above = bound(count)
    assert count <= above <= count * 9 / 8
    assert (above - 1).bit_length() == (count - 1).bit_length()
    assert bound(above) == above


@pytest.mark.parametrize("steps", [3, 60, 100])
def test_buffers_of_new_sizes_are_at_most_an_eighth_larger_than_needed(network, steps):
    problem = problem_of(steps, 5, network.is_ragged, seed=3)
    needed = network.network.bind(problem, network.launch, is_exact=True)
    found = network.network.bind(problem, network.launch)
    alignment = 256 * 24  # of all parts together
    assert needed.reserve_bytes <= found.reserve_bytes <= needed.reserve_bytes * 9 / 8 + alignment
