"""cuDNN's graph API as Python objects: tensors, operations, engines, plans.

A descriptor is complete and finalized when its constructor returns. What it holds is read from the
library where the library gives it back. Tensors, operations and graphs need no GPU (seen on 9.19);
heuristics, configurations and plans do.
"""
