"""Convolutions of the real libMIOpen by every solver; their kernels differ from those of RNNs."""

from __future__ import annotations

import numpy as np
import pytest

N, C, H, W, K, R, S = 2, 3, 8, 9, 4, 3, 3
PADDING = ((0, 0), (0, 0), (1, 1), (1, 1))
TOLERANCE = 2e-6
MAX_SOLUTIONS = 64


class Convolution:
    """A convolution with one line of padding, and its gradients, in float64."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.x, self.w, self.dy = (
            (rng.standard_normal(shape) / 2).astype("float32")
            for shape in ((N, C, H, W), (K, C, R, S), (N, K, H, W))
        )
        self._x = np.pad(self.x.astype("float64"), PADDING)
        self.y = np.zeros((N, K, H, W))
        self.dw = np.zeros((K, C, R, S))
        dx = np.zeros(self._x.shape)
        for r in range(R):
            for s in range(S):
                here = np.s_[:, :, r : r + H, s : s + W]
                self.y += np.einsum("nchw,kc->nkhw", self._x[here], self.w[:, :, r, s])
                self.dw[:, :, r, s] = np.einsum("nkhw,nchw->kc", self.dy, self._x[here])
                dx[here] += np.einsum("nkhw,kc->nchw", self.dy, self.w[:, :, r, s])
        self.dx = dx[:, :, 1:-1, 1:-1]


# Direction: the operands in the order of the calls, and the result.
DIRECTIONS = {
    "Forward": ("w", "x", "y"),
    "BackwardData": ("dy", "w", "dx"),
    "BackwardWeights": ("dy", "x", "dw"),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_solution_gives_the_result_of_the_definition(session, direction):
    problem = Convolution()
    convolution = session.new("Convolution")
    session.check("miopenInitConvolutionNdDescriptor", convolution, 2, [1, 1], [1, 1], [1, 1], 0)
    first, second, result = DIRECTIONS[direction]
    tensors = {name: session.tensor(getattr(problem, name).shape) for name in (first, second)}
    wanted = getattr(problem, result)
    of_result = session.tensor(wanted.shape)
    first_array, second_array = (session.upload(getattr(problem, name)) for name in (first, second))
    asked = (tensors[first], tensors[second], convolution, of_result)

    count = session.ffi.new("size_t *")
    solutions = session.ffi.new("miopenConvSolution_t[]", MAX_SOLUTIONS)
    name = f"miopenConvolution{direction}"
    session.run(f"{name}GetSolution", *asked, MAX_SOLUTIONS, count, solutions)
    assert count[0] > 0
    for solution in solutions[0 : count[0]]:
        workspace = session.allocate(solution.workspace_size)
        found = session.allocate(4 * wanted.size)
        session.run(f"{name}CompileSolution", *asked, solution.solution_id)
        session.run(
            *(f"{name}Immediate", tensors[first], first_array, tensors[second], second_array),
            *(convolution, of_result, found, workspace, solution.workspace_size),
            solution.solution_id,
        )
        array = session.download(found, wanted.shape, "float32")
        assert abs(array - wanted).max() < TOLERANCE, solution.solution_id
