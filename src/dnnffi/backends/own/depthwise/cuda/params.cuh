#pragma once
/* Parameters of the kernels for forward and backward data: one struct, passed by value. `gather.py` has the
   same names in the same order. Each field has 8 bytes, so that no compiler pads between them. Kernels for all
   sizes of a layer have a struct with these sizes, too.

   COUNT: planes with channels first; images with channels last, where x, residual and y have CHANNELS as their
   last dimension.

   y does not overlap another array. `__restrict__` says so in each function that reads or writes them: in a
   struct it has no effect (NVRTC 13.5), and without it no read can be moved across the stores before it. */

#include "element.cuh"

namespace dnnffi {

struct DepthwiseParams
{
    const Element *x;        /* [COUNT, INPUTS_Y, INPUTS_X] */
    const Element *w;        /* [CHANNELS, TAPS]: rows of WIDTH taps */
    const Element *bias;     /* [CHANNELS], if BIAS */
    const Element *residual; /* [COUNT, OUTPUTS_Y, OUTPUTS_X], if RESIDUAL */
    Element *y;              /* [COUNT, OUTPUTS_Y, OUTPUTS_X] */
    double alpha;            /* factor of residual */
};

} // namespace dnnffi
