#pragma once
/* The part of a layer that a block computes, and what the ways to exchange have in common. */

#include "config.cuh"

namespace dnnffi {

/* Which rows, units, layer and direction a block has, as one of its threads sees it. What every step uses is
   `retained`. */
struct Block
{
    int warp, lane; /* of the thread */
    int rank;       /* of the block in its group */
    int order;      /* of its layer, in the order in which layers begin: 0 reads no other layer */
    int group;      /* of those of this launch */
    int number;     /* of the group among those of all launches */
    int direction;  /* 1: backward in time */
    int first_row;  /* of the group, in the order of the kernel's own arrays */

    /* `groups` are those of a direction, `first_group` is the first one of this launch. */
    DEVICE Block(int groups, int first_group)
        : warp(retained(threadIdx.x / 32)), lane(retained(threadIdx.x % 32)),
          rank(retained(blockIdx.x % BLOCKS)), order(LAYERS > 1 ? blockIdx.x / BLOCKS % LAYERS : 0),
          group(blockIdx.x / (BLOCKS * LAYERS)), number(first_group + group), direction(number / groups),
          first_row(number % groups * SUBTILES * ROWS)
    {
    }
};

/* How much of a group there is, besides its place. */
struct Extent
{
    int rows;  /* of the first sub-tile, those that exist */
    int last;  /* steps of this group: those of its first row, which is the longest */
    int steps; /* of the longest group */
};

/* What most ways to exchange do not do. */
struct NoScatter
{
    template <class Weights> DEVICE void scatter(int, int, const Weights &) const {}
    DEVICE void confirm(int) const {}
};

} // namespace dnnffi
