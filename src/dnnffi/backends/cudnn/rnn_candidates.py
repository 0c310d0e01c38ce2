"""The candidates that cuDNN offers for a recurrent problem, and the random numbers of dropout."""

from __future__ import annotations

from dnnffi.backends.cudnn.algorithm import known_wrong
from dnnffi.backends.cudnn.descriptors import DropoutDescriptor
from dnnffi.backends.cudnn.limits import RNN_LIMITS
from dnnffi.backends.cudnn.rnn_executor import CudnnRNNExecutor
from dnnffi.backends.vendor import dropout
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.rnn_candidates import VendorCandidates
from dnnffi.spec.problem import RNNProblem

# cuDNN compiles persist_dynamic for each problem, which takes up to several seconds (9.19, H200),
# and beyond these sizes it was the slowest of all by far: it is tried where it can win.
_DYNAMIC_HIDDEN = 256
_DYNAMIC_BATCH = 16


class CudnnCandidates(VendorCandidates):
    """The algorithms of a libcudnn. What else it refuses is found out when one is made."""

    costly = frozenset({"persist_dynamic"})

    def __init__(self, library: VendorLibrary) -> None:
        super().__init__("cudnn", CudnnRNNExecutor, Generator, library, RNN_LIMITS)

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        """Return the algorithm that the caller named, or "standard" and those that may beat it."""
        named = problem.options.algorithm
        if named != "auto":
            return (named,)
        if len(set(problem.row_lengths)) > 1:
            return ("standard",)  # the call alone would refuse the others, which is too late
        offered = ["standard", "persist_static", "persist_static_small_h"]
        if problem.spec.hidden_size <= _DYNAMIC_HIDDEN and problem.batch <= _DYNAMIC_BATCH:
            offered.append("persist_dynamic")
        return tuple(a for a in offered if not known_wrong(problem, a))


class Generator(dropout.Generator):
    """A seeded random number generator of cuDNN on one device; each use advances its states."""

    _descriptor = DropoutDescriptor

    def _start(self, handle: Handle) -> None:
        # The probability does not matter to the states: descriptors bring their own.
        DropoutDescriptor(
            handle, 0.5, self._states, self.seed, initialize=True, library=self.library
        ).close()
