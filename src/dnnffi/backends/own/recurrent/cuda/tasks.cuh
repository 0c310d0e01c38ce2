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

/* The gate and the place in the block of number `i` of the words that a task sends. */
struct SentWord
{
    int gate, word, row;

    DEVICE SentWord(int i, const Task &task)
        : gate(i / TASK_WORDS), word(task.octet * (8 / K_WORD) + i % TASK_WORDS / (4 * CELLS)),
          row(task.column * 8 + (CELLS == 2 ? i % 8 : i % 4 * 2 + task.odd))
    {
    }

    /* The array of a slot that has it. */
    DEVICE int array() const
    {
        if (!BACKWARD) return STATE;
        if (TWO_N) return (gate + 3) % 4; /* first n's of h, last n's of x */
        return CELL == GRU && gate == 2 ? 3 : gate;
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

/* A word on its way to its targets. */
struct SendableWord : SentWord
{
    const uint4 *ring, *ahead; /* the slot; its factors, if they were read ahead */
    float scale;

    DEVICE SendableWord(const SentWord &word, const uint4 *ring_, const uint4 *ahead_, float scale_)
        : SentWord(word), ring(ring_), ahead(ahead_), scale(scale_)
    {
    }

    DEVICE uint4 factors() const { return ahead ? *ahead : factors_of(ring, array(), word, row, scale); }
};

/* Sends the words of a task to TARGETS: calls `send` with the number of a target and a word. The threads of a warp
   divide all of that. Of several words a thread reads all before it sends one, or each read would wait for what was
   sent before. */
template <int TARGETS, class Send>
DEVICE void send_words(const uint4 *ring, const Task &task, float scale, Send send)
{
    constexpr int COUNT = TASK_SENT * TARGETS, ROUNDS = (COUNT + 31) / 32;
    /* Rounds after which a thread has its first word again. */
    constexpr int REPEAT = TASK_SENT % 32 == 0 ? TASK_SENT / 32 : 32 % TASK_SENT == 0 ? 1 : ROUNDS;
    constexpr int READ = REPEAT < ROUNDS ? REPEAT : ROUNDS;
    const auto word_of = [&](int round, const uint4 *ahead) {
        return SendableWord(SentWord((task.lane + 32 * round) % TASK_SENT, task), ring, ahead, scale);
    };
    uint4 factors[READ];
    if (ROUNDS > 1) {
#pragma unroll
        for (int round = 0; round < READ; round++) factors[round] = word_of(round, nullptr).factors();
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const int i = task.lane + 32 * round;
        if (COUNT % 32 != 0 && i >= COUNT) continue;
        send(i / TASK_SENT, word_of(round, ROUNDS > 1 ? factors + round % READ : nullptr));
    }
}

} // namespace dnnffi
