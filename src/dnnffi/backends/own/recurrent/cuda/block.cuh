#pragma once
/* The part of a layer that a block computes, and what the ways to exchange have in common.

   The loops of `forward.cuh` and `backward.cuh` are templates of two types. A `Product` has the types
   `Weights` and `Factor`, and two constants that its file explains. An `Exchange` includes its product, and
   has
   - `Sums`, what `Gather::receive` adds products to, and `PartialSums`, through which the threads of a cell
     get the sums over k (`write`, `add_up`);
   - `Gather`, which `gather` returns: `request` asks for the first words of an exchange, `receive` waits for
     all of them and multiplies;
   - `send`, for the words of a task in a slot of the ring, if SENDS_WORDS; else `put`, for the values of a
     cell;
   - `scatter`, which with reduce-scatter, in a backward pass, multiplies what a turn has left and sends
     partial sums, which `gather` of the next turn reads;
   - `confirm`, which tells the layer that was read that it was, in a cluster of LAYERS;
   - HAS_SECOND_BARRIER, whether a second barrier ends a step;
   - `late`, whether words never came. */

#include "config.cuh"

namespace dnnffi {

/* The rows, units, layer and direction of a block, as one of its threads sees it. What every step uses is
   `retained`, where registers are left. */
struct Block
{
    int warp, lane;   /* of the thread */
    int rank;         /* of the block in its group */
    int order;        /* of its layer, in the order in which layers begin: 0 reads no other layer */
    int group;        /* of those of this launch */
    int number;       /* of the group among those of all launches */
    int direction;    /* 1: backward in time */
    int first_row;    /* of the group, in the order of the kernel's own arrays */
    int state_number; /* of the block's weights and states: its direction or, of several LAYERS, its layer */

    /* `groups` are those of a direction, `first_group` is the first one of this launch. */
    DEVICE Block(int groups, int first_group)
        : warp(retained(threadIdx.x / 32)), lane(retained(threadIdx.x % 32)),
          rank(retained(blockIdx.x % BLOCKS)), order(LAYERS > 1 ? blockIdx.x / BLOCKS % LAYERS : 0),
          group(retained(blockIdx.x / (BLOCKS * LAYERS))), number(first_group + group),
          direction(number / groups), first_row(number % groups * SUBTILES * ROWS),
          state_number(LAYERS == 1 ? direction
                       : BACKWARD  ? LAYERS - 1 - order
                                   : order)
    {
    }
};

/* Number of rows and steps of a group. */
struct Extent
{
    int rows;      /* of the first sub-tile, those that exist */
    int num_steps; /* of this group: those of its first row, which is the longest */
    int max_steps; /* those of the longest group */
};

/* Empty defaults: an exchange without a scatter phase and without receipts. */
struct ExchangeDefaults
{
    template <class Weights> DEVICE void scatter(int, int, Weights &) const {}
    DEVICE void confirm(int) const {}
};

} // namespace dnnffi
