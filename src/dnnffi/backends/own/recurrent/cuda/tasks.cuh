#pragma once
/* The cells that a thread computes in a step, and their places in the ring. */

#include "config.cuh"
#include "tiles.cuh"

namespace dnnffi {

/* The cells of a thread in one of its warp's tasks: one unit, one or two rows. */
struct Task
{
    int octet, column,
        odd;       /* of the block's units, of the rows; which of two rows it is, if a thread has one */
    int unit, row; /* of the thread, in the block */
    int lane;      /* of the thread in its warp */
    int alike;     /* with FMA: number among the ALIKE threads that compute the same cell */
    bool there;

    DEVICE Task(int number, int warp, int lane_) : lane(lane_), alike(0)
    {
        if constexpr (FMA) {
            const int thread = warp * 32 + lane;
            octet = column = odd = 0;
            unit = thread / PARTS;
            row = thread % PARTS / ALIKE;
            alike = thread % ALIKE;
            there = unit < UNITS;
            return;
        }
        const int task = warp + number * WARPS, pair = CELLS == 1 ? task / 2 : task;
        odd = CELLS == 1 ? task % 2 : 0;
        octet = pair / COLUMNS;
        column = pair % COLUMNS;
        unit = octet * 8 + lane / 4;
        row = column * 8 + lane % 4 * 2 + odd;
        there = task < TASKS;
    }

    /* Whether the thread is the one that writes the cell's results. */
    DEVICE bool owns() const { return there && (!FMA || alike == 0); }
};

/* The place in the block of number `i` of a task's words. */
struct WordPlace
{
    int word, row;

    DEVICE WordPlace(int i, const Task &task)
        : word(task.octet * (8 / K_WORD) + i / (4 * CELLS)),
          row(task.column * 8 + (CELLS == 2 ? i % 8 : i % 4 * 2 + task.odd))
    {
    }
};

/* The element of a task's cell number `e` in an array of a slot. What is not known at compile time is added to
   the pointer first: the rest are offsets within the instructions, not further registers (seen in H100's
   code). */
DEVICE Element &element(uint4 *slot, int array, const Task &task, int e)
{
    Element *const first = (Element *)slot + ((task.unit / WORD * ROWS + task.row) * WORD + task.unit % WORD);
    return first[(array * ARRAY_WORDS * ROWS + e) * WORD];
}

/* A word of what is multiplied, from what a task has written into an array of a slot. A NARROW kernel
   multiplies it by a `scale`. */
DEVICE uint4 factors_of(const uint4 *ring, int array, int word, int row, float scale = 1)
{
    const uint4 *from = ring + (K_WORD / WORD * word * ROWS + row) + array * ARRAY_WORDS * ROWS;
    if constexpr (!NARROW) return as_factors(*from);
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + ROWS);
    return make_uint4(
        two_of_float16(scale * low.x, scale * low.y), two_of_float16(scale * low.z, scale * low.w),
        two_of_float16(scale * high.x, scale * high.y), two_of_float16(scale * high.z, scale * high.w));
}

} // namespace dnnffi
