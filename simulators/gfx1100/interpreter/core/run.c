/* Run the groups of a grid one after the other, and the waves of a group in turns, from barrier to
 * barrier. */
#include "helpers.h"
#include "opcodes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

struct program {
    const struct instruction *instructions;
    uint32_t count;
    uint64_t base;        /* the address of the code object in memory */
    const int32_t *index; /* of the instruction at base + 4 i, or -1 */
    uint32_t index_count;
};

struct grid {
    uint32_t global[3], local[3];
    uint32_t entry;      /* index of the first instruction */
    uint32_t lds_bytes, scratch_bytes;
    uint32_t user_data_count, group_ids; /* bits: which group ids follow the user data */
    const uint32_t *user_data;
};

enum outcome { AT_BARRIER, ENDED, FAILED };

static __thread char error[256];

API const char *interpreter_error(void)
{
    return error;
}

API size_t interpreter_record_size(void)
{
    return sizeof(struct instruction);
}

void set_error(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(error, sizeof error, format, values);
    va_end(values);
}

static void load_scalars(struct wave *w, const struct instruction *n)
{
    uint64_t address = (scalar_u64(w, &n->sources[0]) & ~(uint64_t)3) + (uint64_t)(int64_t)n->offset;
    if (n->sources[1].kind == SCALAR) address += scalar_u32(w, &n->sources[1]);
    uint32_t words[16];
    memcpy(words, (const void *)address, n->bytes); /* the base may be overwritten below */
    for (int i = 0; i < n->bytes / 4; i++) set_scalar(w, n->destination + (uint32_t)i, words[i]);
}

static bool jump(const struct program *p, uint64_t address, uint32_t *at)
{
    uint64_t word = (address - p->base) / 4;
    if (address < p->base || word >= p->index_count || p->index[word] < 0) {
        set_error("jump to %#llx, which has no instruction", (unsigned long long)address);
        return false;
    }
    *at = (uint32_t)p->index[word];
    return true;
}

static void set_next(struct wave *w, const struct instruction *n)
{
    w->s[n->destination] = (uint32_t)n->next;
    w->s[n->destination + 1] = (uint32_t)(n->next >> 32);
}

/* Both halves of a dual instruction read the registers as they were before. */
static void vector_alu_pair(struct wave *w, const struct instruction *first)
{
    uint32_t before[LANES], result[LANES];
    uint32_t *reg = w->v[first->destination];
    memcpy(before, reg, sizeof before);
    vector_alu(w, first);
    memcpy(result, reg, sizeof result);
    memcpy(reg, before, sizeof before);
    vector_alu(w, first + 1);
    memcpy(reg, result, sizeof result);
}

static enum outcome run_wave(
    struct wave *w, const struct program *p, struct group *group, uint64_t *count)
{
    uint32_t *s = w->s, scc = w->scc, at = w->at;
    for (;;) {
        if (at >= p->count) {
            set_error("ran past the end of the code");
            return FAILED;
        }
        const struct instruction *n = &p->instructions[at++];
        ++*count;
        s[NULL_REGISTER] = 0;
        const uint32_t a = scalar_u32(w, &n->sources[0]), b = scalar_u32(w, &n->sources[1]);
        const uint64_t A = scalar_u64(w, &n->sources[0]), B = scalar_u64(w, &n->sources[1]);
        const uint32_t old = s[n->destination % SCALAR_REGISTERS];
        uint32_t d = 0;
        uint64_t D = 0;
        switch (n->op) {
        case OP_UNKNOWN: set_error("unknown instruction %u", at - 1); return FAILED;
        case OP_NOP: break;
        case OP_ENDPGM: w->done = true; return ENDED;
        case OP_BARRIER:
            w->at = at;
            w->scc = scc;
            return AT_BARRIER;
        case OP_READ_FIRST_LANE: {
            int lane = s[EXEC] ? __builtin_ctz(s[EXEC]) : 0;
            set_scalar(w, n->destination, lane_u32(w, &n->sources[0], lane));
            break;
        }
        case OP_READ_LANE:
            set_scalar(w, n->destination, lane_u32(w, &n->sources[0], b % LANES));
            break;
        case OP_WRITE_LANE: w->v[n->destination][b % LANES] = a; break;
        case OP_SCALAR_LOAD: load_scalars(w, n); break;
        case OP_GET_PC: set_next(w, n); break;
        case OP_SWAP_PC: set_next(w, n); /* fall through */
        case OP_SET_PC:
            if (!jump(p, A, &at)) return FAILED;
            break;
        case OP_MEMORY:
            if (!access_memory(w, n, group)) return FAILED;
            break;
#include "scalar.inc"
        default:
            if (n->dual) {
                vector_alu_pair(w, n);
                at++;
            } else {
                vector_alu(w, n);
            }
        }
    }
}

static uint32_t minimum(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* User data, then the group ids; v0 has the three ids of a work-item in 10 bits each. */
static void start_wave(
    struct wave *w, const struct grid *g, const uint32_t id[3], const uint32_t size[3],
    uint32_t first, uint32_t lanes)
{
    uint32_t next = g->user_data_count;
    memset(w, 0, sizeof *w);
    memcpy(w->s, g->user_data, g->user_data_count * sizeof *g->user_data);
    for (int i = 0; i < 3; i++)
        if (g->group_ids >> i & 1) w->s[next++] = id[i];
    w->s[EXEC] = lanes == LANES ? UINT32_MAX : (1u << lanes) - 1;
    w->at = g->entry;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        uint32_t item = first + lane, row = item / size[0];
        w->v[0][lane] = row / size[1] << 20 | row % size[1] << 10 | item % size[0];
    }
}

static bool run_group(
    const struct program *p, const struct grid *g, const uint32_t id[3], struct wave *waves,
    struct group *group, char *scratch, uint64_t *count)
{
    uint32_t size[3]; /* less than the local size at the end of a grid */
    for (int i = 0; i < 3; i++)
        size[i] = minimum(g->global[i] - id[i] * g->local[i], g->local[i]);
    uint32_t items = size[0] * size[1] * size[2], wave_count = (items + LANES - 1) / LANES;
    memset(group->lds, 0, group->lds_bytes);
    for (uint32_t i = 0; i < wave_count; i++) {
        start_wave(&waves[i], g, id, size, i * LANES, minimum(items - i * LANES, LANES));
        waves[i].scratch = scratch + (size_t)i * LANES * g->scratch_bytes;
        waves[i].scratch_bytes = g->scratch_bytes;
    }
    for (uint32_t running = wave_count; running > 0;)
        for (uint32_t i = 0; i < wave_count; i++) {
            if (waves[i].done) continue;
            if (run_wave(&waves[i], p, group, count) == FAILED) return false;
            running -= waves[i].done;
        }
    return true;
}

/* Return 0, or 1 with the reason in interpreter_error(). Add the executed instructions to `count`. */
API int interpreter_run(const struct program *p, const struct grid *g, uint64_t *count)
{
    uint32_t groups[3];
    for (int i = 0; i < 3; i++) groups[i] = (g->global[i] + g->local[i] - 1) / g->local[i];
    size_t waves = ((size_t)g->local[0] * g->local[1] * g->local[2] + LANES - 1) / LANES;
    struct wave *wave = malloc(waves * sizeof *wave);
    struct group group = {calloc(1, g->lds_bytes + 1), g->lds_bytes};
    char *scratch = calloc(1, waves * LANES * g->scratch_bytes + 1);
    bool good = wave != NULL && group.lds != NULL && scratch != NULL;
    if (!good) set_error("out of host memory");
    uint32_t id[3];
    for (id[2] = 0; id[2] < groups[2] && good; id[2]++)
        for (id[1] = 0; id[1] < groups[1] && good; id[1]++)
            for (id[0] = 0; id[0] < groups[0] && good; id[0]++)
                good = run_group(p, g, id, wave, &group, scratch, count);
    free(wave);
    free(group.lds);
    free(scratch);
    return good ? 0 : 1;
}
