"""Networks one step at a time, as the carry of a loop: `dnnffi.jax.rnn.functions` on one step."""

from __future__ import annotations

from typing import Any

from dnnffi.jax.rnn.functions import gru, lstm, rnn_relu, rnn_tanh
from dnnffi.rnn.steps import run_step
from dnnffi.spec.names import LayoutName
from dnnffi.spec.rnn import RNNSpec


def lstm_step(
    x: Any,
    hx: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, tuple[Any, Any]]:
    """Compute one step of an LSTM; return ``y, (h_n, c_n)``.

    What `lstm` computes for a sequence of one step, with all that holds for it: jit, gradients,
    vmap. A state that it returns is that of the next step, and may be the carry of ``lax.scan``.

    Parameters
    ----------
    x : [B, I], or [I] for one row without a batch
    hx : (h_0 [L, B, O], c_0 [L, B, H]), or None for zeros. [L, 1, ...] serves all rows of the
        batch; [L, O] and [L, H] belong to x [I]
    weights, spec, layout, num_layers, implementation, options : as for `lstm`, of one direction

    y is [B, O], or [O] for x [I]; h_n is [L, B, O] and c_n [L, B, H], or without B.

    Raises
    ------
    TypeError, ValueError
        The error names the argument: a wrong number of dimensions, weights of two directions.
    UnsupportedError, LibraryNotFoundError
        As of `lstm`.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import dnnffi
    >>> from dnnffi import jax as djax
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = djax.init(jax.random.key(0), spec)
    >>> hx = jnp.zeros((1, 2, 4)), jnp.zeros((1, 2, 4))
    >>> def step(hx, x):
    ...     y, hx = djax.lstm_step(x, hx, weights)
    ...     return hx, y
    >>> hx, y = jax.lax.scan(step, hx, jnp.ones((5, 2, 3)))
    >>> y.shape, hx[0].shape
    ((5, 2, 4), (1, 2, 4))
    """
    return run_step(
        *(lstm, x, hx, weights),
        spec=spec,
        layout=layout,
        num_layers=num_layers,
        implementation=implementation,
        options=options,
    )


def gru_step(
    x: Any,
    h_0: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, Any]:
    """Compute one step of a GRU; return ``y, h_n``.

    Arguments and errors are those of `lstm_step`, except one state ``h_0`` [L, B, H] or None.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import dnnffi
    >>> from dnnffi import jax as djax
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> weights = djax.init(jax.random.key(0), spec)
    >>> y, h_n = djax.gru_step(jnp.ones(3), None, weights)  # one row
    >>> y.shape, h_n.shape
    ((4,), (1, 4))
    """
    return run_step(
        *(gru, x, h_0, weights),
        spec=spec,
        layout=layout,
        num_layers=num_layers,
        implementation=implementation,
        options=options,
    )


def rnn_tanh_step(
    x: Any,
    h_0: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, Any]:
    """Compute one step of an RNN with tanh; return ``y, h_n``.

    Arguments and errors are those of `lstm_step`, except one state ``h_0`` [L, B, H] or None.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import dnnffi
    >>> from dnnffi import jax as djax
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> weights = djax.init(jax.random.key(0), spec)
    >>> y, h_n = djax.rnn_tanh_step(jnp.ones(3), None, weights)  # one row
    >>> y.shape, h_n.shape
    ((4,), (1, 4))
    """
    return run_step(
        *(rnn_tanh, x, h_0, weights),
        spec=spec,
        layout=layout,
        num_layers=num_layers,
        implementation=implementation,
        options=options,
    )


def rnn_relu_step(
    x: Any,
    h_0: Any,
    weights: Any,
    *,
    spec: RNNSpec | None = None,
    layout: LayoutName | None = None,
    num_layers: int = 1,
    implementation: str | None = None,
    options: Any = None,
) -> tuple[Any, Any]:
    """Compute one step of an RNN with ReLU; return ``y, h_n``.

    Arguments and errors are those of `lstm_step`, except one state ``h_0`` [L, B, H] or None.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import dnnffi
    >>> from dnnffi import jax as djax
    >>> spec = dnnffi.RNNSpec(mode="rnn_relu", input_size=3, hidden_size=4)
    >>> weights = djax.init(jax.random.key(0), spec)
    >>> y, h_n = djax.rnn_relu_step(jnp.ones(3), None, weights)  # one row
    >>> y.shape, h_n.shape
    ((4,), (1, 4))
    """
    return run_step(
        *(rnn_relu, x, h_0, weights),
        spec=spec,
        layout=layout,
        num_layers=num_layers,
        implementation=implementation,
        options=options,
    )
