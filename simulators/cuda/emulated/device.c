/* Run the threads of a cooperative launch on one thread of the host, each on a separate stack. A
   seeded choice determines which thread runs next, and when a thread's stores become visible.

   Threads switch at barriers, at collective operations of a warp, and at accesses of words that blocks
   exchange. Such words are stored late and in any order, as relaxed stores are; asynchronous copies
   are done at any time before they are waited for. Some blocks and warps sleep for a while. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "device.h"

enum { STACK = 1 << 16, GUARD = 4096, LATE_STORES = 1 << 12, COPIES = 256 };
enum { READY, AT_BARRIER, AT_PART_BARRIER, AT_MEETING, IN_WARP, ENDED };
#define MOST_IDLE 4000000L /* changes of threads without any that gets on */

struct copy {
    void *to;
    const void *from;
    int group;
};

struct thread {
    jmp_buf where;
    int state, started, place; /* in `ready` */
    int groups, copies;
    struct copy copy[COPIES];
};

struct warp {
    int arrived, asleep, met; /* `met` of the first warp of those that meet */
    collective *what;
    void *arguments[32];
};

struct block {
    int arrived, met, ended, asleep; /* `met` of the first block of a cluster */
    unsigned char *memory;
};

/* A barrier that counts bytes, 8 bytes in a block's memory. */
struct arrivals {
    int32_t bytes;
    uint16_t expected, phase;
};

struct store {
    uint32_t *at, value[4];
    struct arrivals *counted; /* by the barrier of this block, NULL for a store to device memory */
    int block, bytes;
};

struct index threadIdx, blockIdx, blockDim, gridDim;

static struct thread *threads;
static struct warp *warps;
static struct block *blocks;
static struct store stores[LATE_STORES];
static char *stacks;
static int *ready, ready_count, count, per_block, current, store_count, ended, expected;
static long idle, stacks_size;
static uint64_t dice;
static int lateness; /* average number of thread switches per store made visible */
static int period;   /* average number of thread switches between two choices of sleepers */
static jmp_buf host;
static char problem[256];
static void (*entry)(const void *);
static const void *entry_arguments;

static uint32_t draw(uint32_t below)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((dice >> 32) * below) >> 32);
}

static _Noreturn void fail(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    vsnprintf(problem, sizeof problem, format, rest);
    va_end(rest);
    _longjmp(host, 1);
}

static void arrived(struct arrivals *barrier, int bytes)
{
    barrier->bytes += bytes;
    if (!barrier->expected || barrier->bytes) return;
    barrier->expected = 0, barrier->phase ^= 1;
    idle = 0;
}

static void show(int number)
{
    /* Stores of a thread to one place stay in order. */
    for (int i = 0; i < number; i++)
        if (stores[i].at == stores[number].at) {
            number = i;
            break;
        }
    memcpy(stores[number].at, stores[number].value, stores[number].bytes);
    if (stores[number].counted) {
        if (blocks[stores[number].block].ended == per_block) fail("a store into a block that has ended");
        arrived(stores[number].counted, -stores[number].bytes);
    }
    memmove(&stores[number], &stores[number + 1], (--store_count - number) * sizeof *stores);
}

static void make_ready(int number)
{
    threads[number].state = READY;
    threads[number].place = ready_count;
    ready[ready_count++] = number;
}

static void take_out(int number, int why)
{
    int place = threads[number].place, last = ready[--ready_count];
    ready[place] = last, threads[last].place = place;
    threads[number].state = why;
}

static void set_indices(int number)
{
    current = number;
    threadIdx.x = number % per_block, blockIdx.x = number / per_block;
}

static void begin(void);

static _Noreturn void go_on(void)
{
    if (++idle > MOST_IDLE) fail("threads wait for ever");
    if (store_count && draw(lateness) == 0) show(draw(store_count));
    if (draw(period) == 0) {
        for (int b = 0; b < gridDim.x; b++) blocks[b].asleep = draw(3) == 0;
        for (int w = 0; w < count / 32; w++) warps[w].asleep = draw(3) == 0;
    }
    if (!ready_count) fail("no thread can go on: barriers that not all reach");
    int next = 0;
    for (int tries = 0; tries < 16; tries++) {
        next = ready[draw(ready_count)];
        if (!blocks[next / per_block].asleep && !warps[next / 32].asleep) break;
    }
    set_indices(next);
    if (threads[next].started) _longjmp(threads[next].where, 1);
    threads[next].started = 1;
    static ucontext_t fresh;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = stacks + (long)next * STACK;
    fresh.uc_stack.ss_size = STACK;
    makecontext(&fresh, begin, 0);
    setcontext(&fresh);
    abort();
}

static __attribute__((noinline)) void change(void)
{
    if (!_setjmp(threads[current].where)) go_on();
}

static void finish_copy(struct thread *self, int number)
{
    memcpy(self->copy[number].to, self->copy[number].from, 16);
    self->copy[number] = self->copy[--self->copies];
}

static void some_copies(struct thread *self)
{
    for (int i = self->copies; i-- > 0;)
        if (draw(8) == 0) finish_copy(self, i);
}

void device_copy(void *to, const void *from)
{
    struct thread *self = &threads[current];
    if (((uintptr_t)to | (uintptr_t)from) & 15) fail("a copy of a word that is not aligned");
    if (self->copies == COPIES) fail("more copies than there is room for");
    self->copy[self->copies++] = (struct copy){to, from, self->groups};
    if (draw(4) == 0) finish_copy(self, self->copies - 1);
}

void device_commit(void)
{
    threads[current].groups++;
    some_copies(&threads[current]);
}

void device_wait(int pending)
{
    struct thread *self = &threads[current];
    for (int i = self->copies; i-- > 0;)
        if (self->copy[i].group < self->groups - pending) finish_copy(self, i);
    some_copies(self);
}

static void store_late(struct store store, const void *value)
{
    if ((uintptr_t)store.at & (store.bytes - 1)) fail("a store of a word that is not aligned");
    if (store_count == LATE_STORES) show(0);
    memcpy(store.value, value, store.bytes);
    stores[store_count++] = store;
    if (draw(2)) change();
}

void device_store(void *at, const void *value)
{
    store_late((struct store){.at = at, .bytes = 16}, value);
}

void device_send(int block, unsigned at, const void *value, int bytes, unsigned barrier)
{
    unsigned char *memory = blocks[block].memory;
    struct arrivals *counted = (void *)(memory + barrier);
    store_late((struct store){(void *)(memory + at), {0}, counted, block, bytes}, value);
}

void device_begin_barrier(unsigned at)
{
    *(struct arrivals *)(blocks[blockIdx.x].memory + at) = (struct arrivals){0};
}

void device_expect(unsigned at, int bytes)
{
    struct arrivals *barrier = (struct arrivals *)(blocks[blockIdx.x].memory + at);
    if (barrier->expected) fail("two arrivals in a phase that has one");
    barrier->expected = 1;
    arrived(barrier, bytes);
}

int device_phase_ended(unsigned at, unsigned parity)
{
    const struct arrivals *barrier = (struct arrivals *)(blocks[blockIdx.x].memory + at);
    if (barrier->phase == parity) change();
    return barrier->phase != parity;
}

/* Synchronize `count` threads from `first` on; `arrived` counts the waiting ones, which are in `state`. */
static void meet(int *arrived, int first, int count, int state)
{
    idle = 0;
    if (++*arrived < count) {
        take_out(current, state);
        change();
        return;
    }
    *arrived = 0;
    for (int i = first; i < first + count; i++) {
        if (threads[i].state == ENDED) fail("a thread ended in front of a barrier");
        if (threads[i].state == state) make_ready(i);
    }
    change();
}

void device_meet(int of_cluster)
{
    int first = blockIdx.x / of_cluster * of_cluster;
    meet(&blocks[first].met, first * per_block, of_cluster * per_block, AT_MEETING);
}

void device_load(void *value, const void *at)
{
    if ((uintptr_t)at & 15) fail("a load of a word that is not aligned");
    if (draw(2)) change();
    memcpy(value, at, 16);
}

void *device_shared(void) { return blocks[blockIdx.x].memory; }

void device_barrier(void)
{
    meet(&blocks[blockIdx.x].arrived, blockIdx.x * per_block, per_block, AT_BARRIER);
}

void device_part_barrier(int part)
{
    int first = current / part * part;
    meet(&warps[first / 32].met, first, part, AT_PART_BARRIER);
}

void device_warp(collective *what, void *argument)
{
    struct warp *warp = &warps[current / 32];
    int first = current / 32 * 32;
    if (warp->arrived && warp->what != what) fail("lanes of a warp do not do the same");
    warp->what = what;
    warp->arguments[current % 32] = argument;
    if (++warp->arrived < 32) {
        take_out(current, IN_WARP);
        change();
        return;
    }
    warp->arrived = 0;
    what(warp->arguments);
    for (int i = first; i < first + 32; i++)
        if (threads[i].state == IN_WARP) make_ready(i);
    if (draw(4) == 0) change();
}

static void begin(void)
{
    entry(entry_arguments);
    struct thread *self = &threads[current];
    while (self->copies) finish_copy(self, 0);
    idle = 0;
    take_out(current, ENDED);
    blocks[current / per_block].ended++;
    if (++ended == expected) _longjmp(host, 1);
    go_on();
}

static __attribute__((noinline)) void play(void)
{
    if (!_setjmp(host)) go_on();
}

/* Make the pending stores visible, unless something failed: `show` may fail, too, and then jumps here. */
static __attribute__((noinline)) void show_the_rest(void)
{
    if (*problem || _setjmp(host)) return;
    while (store_count) show(0);
}

const char *device_run(
    void (*function)(const void *), const void *arguments, const int *grid, int threads_of_block,
    long shared_bytes, uint64_t seed, int absent)
{
    int most = 0;
    blockDim = (struct index){threads_of_block, 1, 1};
    gridDim = (struct index){grid[0], 1, 1};
    blockIdx = threadIdx = (struct index){0, 0, 0};
    per_block = threads_of_block, count = per_block * grid[0];
    ended = 0, expected = count - (absent >= 0) * per_block;
    dice = seed * 2654435761u + 88172645463325252u;
    for (int i = 0; i < 4; i++) draw(2);
    lateness = 1 << draw(6), period = 64 << draw(6);
    entry = function, entry_arguments = arguments;
    idle = store_count = ready_count = 0;
    problem[0] = 0;

    if (stacks_size < (long)count * STACK) {
        if (stacks_size) munmap(stacks, stacks_size);
        stacks_size = (long)count * STACK;
        stacks = mmap(0, stacks_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) return stacks_size = 0, "there is no memory for stacks";
    }
    threads = calloc(count, sizeof *threads);
    warps = calloc(count / 32 + 1, sizeof *warps);
    blocks = calloc(grid[0], sizeof *blocks);
    ready = calloc(count, sizeof *ready);
    for (int b = 0; b < grid[0]; b++) {
        blocks[b].memory = aligned_alloc(GUARD, (shared_bytes / GUARD + 2) * GUARD);
        memset(blocks[b].memory, 0xff, (shared_bytes / GUARD + 2) * GUARD);
    }
    for (int i = 0; i < count; i++)
        if (i / per_block != absent) make_ready(i);
    play();
    show_the_rest();
    for (int b = 0; b < grid[0]; b++) {
        for (long i = shared_bytes; i < (shared_bytes / GUARD + 2) * GUARD; i++)
            most |= blocks[b].memory[i] ^ 0xff;
        free(blocks[b].memory);
    }
    if (most && !*problem) snprintf(problem, sizeof problem, "a block wrote past its memory");
    free(threads), free(warps), free(blocks), free(ready);
    return problem;
}

/* Run the blocks of a kernel without barriers, one thread after another. */
void device_each(
    void (*function)(const void *), const void *arguments, const int *grid, int threads_of_block)
{
    blockDim = (struct index){threads_of_block, 1, 1};
    gridDim = (struct index){grid[0], grid[1], grid[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
                for (threadIdx.x = 0; threadIdx.x < threads_of_block; threadIdx.x++)
                    function(arguments);
}
