"""The entry that describes a backend to the rest of dnnffi."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnnffi.backends.conv_interface import ConvResources, SearchedSource, TunableSource
from dnnffi.backends.rnn_interface import CandidateSource, PackedNetwork
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.backends.vendor.limits import Limits, network_refusal
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.names import BackendName, LayoutName
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


class Backend(NamedTuple):
    """One backend.

    name : as users give it
    title : as the documentation's columns are headed
    kind, platform : of the arrays that it takes: "cuda" and "CUDA", "rocm" and "ROCm", or "host"
    by_name : whether it is used only where it is named, and not by what an array asks for
    load, loaded : open its library, and tell which is open; None where it needs none
    candidates : who offers ways to run a network, from the library; the vendor's own first
    convolutions : who makes executors of convolutions, from the resources
    pack : keep the weights of a network, arrays on the host, on device so and so; None where calls
        take weights as they are
    adapters : the devices that ``pack`` numbers, each as text
    tunes : whether candidates of networks are measured, and replayed as graphs, on CuPy's arrays
    rnn_limits, conv_limits : what it does not have
    fusion_limits : of bias, residual and ReLU in the kernel of a convolution
    bias_gradient_limits : of the gradient of a bias without CuPy, by dtype

    The limits but the first two are None where the question does not arise.
    """

    name: BackendName
    title: str
    kind: str
    platform: str
    by_name: bool = False
    load: Callable[[], VendorLibrary] | None = None
    loaded: Callable[[], VendorLibrary | None] | None = None
    candidates: Callable[[VendorLibrary], tuple[CandidateSource, ...]] | None = None
    convolutions: Callable[[ConvResources], SearchedSource | TunableSource] | None = None
    pack: Callable[[RNNSpec, Sequence[Any], int | None], PackedNetwork] | None = None
    adapters: Callable[[], Sequence[object]] | None = None
    tunes: bool = False
    rnn_limits: Limits[RNNProblem] = ()
    conv_limits: Limits[ConvProblem] = ()
    fusion_limits: Limits[ConvProblem] | None = None
    bias_gradient_limits: Limits[Any] | None = None

    @property
    def layout(self) -> LayoutName:
        """The layout of the weights that it takes: a vendor's own, or PyTorch's."""
        return self.name if self.name in ("cudnn", "miopen") else "torch"

    def check_network(self, problem: RNNProblem, library: Any) -> None:
        """Raise `UnsupportedError` for a network that the backend is known not to have."""
        if error := network_refusal(self.name, self.title, self.rnn_limits, problem, library):
            raise error
