"""A restored dropout state is refused on another backend."""

from __future__ import annotations

import numpy as np
import pytest

import dnnffi


@pytest.mark.parametrize("place", ["cudnn device 0", None])
def test_a_state_that_was_saved_elsewhere_is_refused(place):
    spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
    weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    states = None if place is None else b"states"
    state = dnnffi.DropoutState.restore({"seed": 7, "place": place, "states": states})
    x, keywords = np.ones((5, 2, 3), np.float32), {"dropout": 0.5, "dropout_state": state}
    if place is None:
        dnnffi.gru_forward(x, None, weights, **keywords)
        return
    with pytest.raises(ValueError, match=f"^dropout_state belongs to {place} and cannot be used"):
        dnnffi.gru_forward(x, None, weights, **keywords)
