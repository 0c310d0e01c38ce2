"""cuDNN's graph API as Python objects: tensors, operations, engines, plans.

A descriptor is complete and finalized when its constructor returns. What it holds is read from the
library where the library gives it back. Tensors, operations and graphs need no GPU (seen on 9.19);
heuristics, configurations and plans do.
"""

from dnnffi.backends.cudnn.graph.descriptor import BackendDescriptor
from dnnffi.backends.cudnn.graph.engine import (
    Engine,
    EngineConfig,
    EngineHeuristics,
    Knob,
    KnobChoice,
    KnobInfo,
    OperationGraph,
)
from dnnffi.backends.cudnn.graph.execution import (
    ExecutionPlan,
    VariantPack,
    VariantPacks,
    execute,
)
from dnnffi.backends.cudnn.graph.operations import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
    ConvolutionOperation,
    Operation,
    Pointwise,
    PointwiseOperation,
    Reduction,
    ReductionOperation,
)
from dnnffi.backends.cudnn.graph.tensor import ALIGNMENT, Tensor

__all__ = [
    "ALIGNMENT",
    "BackendDescriptor",
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardFilter",
    "ConvolutionForward",
    "ConvolutionOperation",
    "Engine",
    "EngineConfig",
    "EngineHeuristics",
    "ExecutionPlan",
    "Knob",
    "KnobChoice",
    "KnobInfo",
    "Operation",
    "OperationGraph",
    "Pointwise",
    "PointwiseOperation",
    "Reduction",
    "ReductionOperation",
    "Tensor",
    "VariantPack",
    "VariantPacks",
    "execute",
]
