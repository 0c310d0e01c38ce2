#pragma once
/* Parameters of the kernels that run all steps of a layer: one struct for each, passed by value. `params.py`
   has the same names in the same order. Each field has 8 bytes, so that no compiler pads between them.
   Kernels of all steps take them without `__grid_constant__`, which made them spill more.

   D: directions; P: positions, the rows of all steps; B: batch; H: HIDDEN. Strides are in elements, except
   `step_stride` and `row_stride`. Arrays of several LAYERS at once have a layer where those of one have a
   direction: "[D, ...]" is then [LAYERS, ...]. */

#include "dtype.cuh"

namespace dnnffi {

struct ForwardParams
{
    /* The kernel's own arrays. Those of layers at once are `layer_stride` apart. In training `gates` have
       SAVED columns: products of x become what the backward pass needs. */
    Element *gates;    /* [D, P, GATES or SAVED, PADDED]: on entry products of x, of the first layer alone */
    Element *c_before; /* [D, P, PADDED]: c before each step; LSTM in training */
    Element *h_before; /* [D, P, PADDED]: h before each step; in training */
    Element *y;        /* [P, D, H], of the last layer: the caller's, or dense rows of the kernel's own */
    Element *layer_y;  /* [P, H], of all layers but the last; null in inference */
    long long layer_stride; /* elements */
    /* Weights and biases of a layer. */
    const Element *matrices;       /* [GATES, H, H], row: unit; NARROW: of float16, [GATES, H, PADDED] */
    const float *matrix_scales;    /* [D, GATES, H]: what NARROW rows of matrices were divided by */
    const float *state_scales;     /* [D, B]: the same of the rows of h_0; null without h_0 */
    const Element *input_bias;     /* [GATES, H]; both biases are null without biases */
    const Element *recurrent_bias; /* [GATES, H] */
    /* States, with rows as the caller has them. */
    const Element *h_0; /* [D, B, H]; null: zeros */
    const Element *c_0; /* [D, B, H]; null: zeros */
    Element *h_n;       /* [D, B, H]; null: not asked for */
    Element *c_n;       /* [D, B, H]; null: not asked for */
    /* Memory of a launch. */
    /* [groups of the launch, SUBTILES, slots, SLOT_WORDS]: zeros before the first step; unused by clusters
       and without tensor cores. */
    uint4 *exchange;
    uint4 *streamed; /* [blocks, WARPS, K_STREAMED, WARP_TILES, 2, 32]: weights that are read in every step */
    /* RAGGED: tables of rows, see ragged_rows.cuh, and unless PACKED the positions from a step of a row to the
       next. */
    const int *lengths;         /* [B] */
    const int *caller_rows;     /* [B] */
    const int *first_positions; /* [B] */
    const int *step_offsets;    /* [T + 1]; null unless PACKED */
    long long position_stride;
    /* Sizes and strides. */
    long long steps;
    long long batch;
    /* From a step to the next, and from a row of the batch to the next in the same step, counted in rows of
       an array, which have the elements of one row of the batch in one step. RAGGED: of the caller's y, both
       0 where that is packed, and for layers that have another y. */
    long long step_stride;
    long long row_stride;
    long long positions;
    long long directions;
    long long matrix_stride; /* to the next direction, or layer; NARROW: in elements of float16 */
    long long bias_stride;   /* to the next direction, or layer */
    long long groups;        /* of a direction */
    long long first_group;   /* of this launch */
    /* Bounds of c, unless UNCLIPPED. */
    double clip_low;
    double clip_high;
    /* RESETS, see resets.cuh: of each row in each step, whether the state before it is replaced. Strides are in
       flags; both are 0 where the caller's arrays are packed. */
    const unsigned char *resets;
    long long reset_step_stride;
    long long reset_row_stride;
    const Element *reset_h;     /* [D, B or 1, H]: by what; null: zeros */
    const Element *reset_c;     /* [D, B or 1, H]; null: zeros */
    long long reset_state_rows; /* B or 1 */
    const float *reset_scales;  /* [D, B or 1]: as state_scales, of reset_h; null without it */
};

struct BackwardParams
{
    Element *gates;          /* [D, P, SAVED, PADDED]: on entry what the forward pass saved, then gradients */
    const Element *c_before; /* [D, P, PADDED] */
    const Element *h_before; /* [D, P, PADDED] */
    const Element *y;        /* [P, D, H], of the last layer */
    const Element *layer_y;  /* [P, H], of all layers but the last */
    long long layer_stride;
    const Element *dy;       /* [P, D, H], of the last layer */
    const Element *matrices; /* [GATES, H, H] */
    const Element *dh_n;     /* [D, B, H]; null: zeros */
    const Element *dc_n;     /* [D, B, H]; null: zeros */
    Element *dh_0;           /* [D, B, H]; null: not asked for */
    Element *dc_0;           /* [D, B, H]; null: not asked for */
    float *bias_sums;        /* [D, parts, SAVED, PADDED]: sums over some rows; null without biases. Those of
                                layers at once are `layer_stride` Elements apart */
    /* From here on as of the forward pass; the strides are those of y and dy. */
    uint4 *exchange;
    uint4 *streamed;
    const int *lengths;
    const int *caller_rows;
    const int *first_positions;
    const int *step_offsets;
    long long position_stride;
    long long steps;
    long long batch;
    long long step_stride;
    long long row_stride;
    long long positions;
    long long directions;
    long long matrix_stride;
    long long groups;
    long long first_group;
    double clip_low;
    double clip_high;
    const unsigned char *resets;
    long long reset_step_stride;
    long long reset_row_stride;
    Element *dreset_h; /* [D, B, H]: gradients of what replaced each row's states; null: not asked for */
    Element *dreset_c; /* [D, B, H]; null: not asked for */
};

} // namespace dnnffi
