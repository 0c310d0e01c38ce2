#include "space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

struct header {
    uint64_t magic;
    uint64_t phase;
    uint64_t problem;
    uint64_t contents; /* of all that follows the header */
    struct given given;
    uint64_t first_mask, masks; /* place in bytes, and number */
};

enum { HEADER_SIZE = 128 };
_Static_assert(sizeof(struct header) <= HEADER_SIZE, "the header has outgrown its place");
static const uint64_t RESERVE_MAGIC = 0x5ea7ed57a7e50002;

/* Slots */

static size_t gates_kept(const struct problem *p)
{
    return p->mode == CUDNN_LSTM || p->mode == CUDNN_GRU ? 4 : 1;
}

/* Takes the parts of a slot one after the other; from NULL only counts them. */
static size_t lay_out_slot(const struct problem *p, double *at, struct slot *slot)
{
    size_t cell = p->has_cell ? p->hidden : 0;
    const struct {
        double **part;
        size_t count;
    } parts[] = {
        {&slot->gates, gates_kept(p) * p->hidden},
        {&slot->h_before, p->output},
        {&slot->output, p->output},
        {&slot->c_before, cell},
        {&slot->tanh_c, cell},
        {&slot->clipped_before, cell},
        {&slot->clipped, cell},
        {&slot->unprojected, p->is_projected ? p->hidden : 0},
        {&slot->d_output, p->is_projected ? p->output : 0},
    };
    size_t total = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].part = at == NULL || parts[i].count == 0 ? NULL : at + total;
        total += parts[i].count;
    }
    return total;
}

static size_t slot_count(const struct problem *p)
{
    struct slot slot;
    return lay_out_slot(p, NULL, &slot);
}

static size_t slots_count(const struct problem *p)
{
    return p->pseudo_layers * p->steps * p->batch * slot_count(p);
}

struct slot slot_at(
    const struct problem *p, const struct kept *kept, size_t pseudo_layer, size_t step, size_t row)
{
    size_t index = (pseudo_layer * p->steps + step) * p->batch + row;
    struct slot slot;
    lay_out_slot(p, kept->slots + index * slot_count(p), &slot);
    return slot;
}

/* Masks */

size_t masks_count(const struct problem *p)
{
    return p->dropout > 0 ? (p->layers - 1) * p->steps * p->batch * p->width : 0;
}

const double *mask_at(
    const struct problem *p, const struct kept *kept, size_t layer, size_t step, size_t row)
{
    if (kept->masks == NULL) return NULL;
    return kept->masks + ((layer * p->steps + step) * p->batch + row) * p->width;
}

/* Sizes */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The number of doubles that suffices for the pool of each of the three calls. */
static size_t scratch_count(const struct problem *p)
{
    size_t widest = larger(p->input, p->width), gates = p->gates * p->hidden;
    size_t weights = gates * (widest + p->output + 2) + p->output * p->hidden;
    size_t sequences = 2 * p->steps * p->batch * widest;
    size_t states = p->batch * (p->output + p->hidden);
    return weights + sequences + states + 2 * gates + 2 * p->hidden;
}

size_t workspace_bytes(const struct problem *p, cudnnForwardMode_t mode)
{
    size_t kept = mode == CUDNN_FWD_MODE_INFERENCE ? slots_count(p) : 0;
    return (scratch_count(p) + kept) * sizeof(double);
}

size_t reserve_bytes(const struct problem *p)
{
    return HEADER_SIZE + (slots_count(p) + masks_count(p)) * sizeof(double);
}

struct region workspace_region(void *workspace, size_t bytes)
{
    return (struct region){"the workspace", workspace, bytes, SPACE_ALIGNMENT, WRITE, NEEDED};
}

struct region reserve_region(void *reserve, size_t bytes)
{
    return (struct region){"the reserve space", reserve, bytes, SPACE_ALIGNMENT, WRITE, NEEDED};
}

struct pool open_workspace(void *workspace, size_t bytes)
{
    memset(workspace, 0xff, bytes);
    double *numbers = workspace;
    return (struct pool){numbers, numbers + bytes / sizeof *numbers};
}

double *take(struct pool *pool, size_t count)
{
    if (count > (size_t)(pool->end - pool->next)) {
        fprintf(stderr, "stand-in: its own size of the workspace is too small\n");
        abort();
    }
    double *part = pool->next;
    pool->next += count;
    return part;
}

struct kept kept_in_workspace(const struct problem *p, struct pool *pool)
{
    return (struct kept){.slots = take(pool, slots_count(p))};
}

struct kept kept_in_reserve(const struct problem *p, void *reserve)
{
    double *slots = (double *)((char *)reserve + HEADER_SIZE);
    return (struct kept){slots, masks_count(p) > 0 ? slots + slots_count(p) : NULL};
}

/* Fingerprints: FNV-1a over words of 8 bytes. */

static const uint64_t FINGERPRINT_OF_NOTHING = 0xcbf29ce484222325;

static uint64_t fingerprint(uint64_t so_far, const void *memory, size_t bytes)
{
    const unsigned char *from = memory;
    while (bytes > 0) {
        uint64_t word = 0;
        size_t taken = bytes < sizeof word ? bytes : sizeof word;
        memcpy(&word, from, taken);
        so_far = (so_far ^ word) * 0x100000001b3;
        so_far ^= so_far >> 29;
        from += taken;
        bytes -= taken;
    }
    return so_far;
}

static uint64_t with_number(uint64_t so_far, double number)
{
    return fingerprint(so_far, &number, sizeof number);
}

static uint64_t fingerprint_of_problem(const struct problem *p)
{
    const struct cudnnRNNStruct *rnn = p->rnn;
    const double numbers[] = {
        rnn->algorithm, rnn->mode, rnn->bias_mode, rnn->direction_mode, rnn->type,
        rnn->math_precision, rnn->math_type, rnn->input_size, rnn->hidden_size, rnn->proj_size,
        rnn->num_layers, rnn->clip_mode, rnn->clip_nan, rnn->clip_lower, rnn->clip_upper,
        p->dropout, p->x->layout, p->x->max_length, p->x->batch,
    };
    uint64_t result = FINGERPRINT_OF_NOTHING;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        result = with_number(result, numbers[i]);
    return fingerprint(result, p->x->lengths, p->batch * sizeof *p->x->lengths);
}

uint64_t fingerprint_of_sequences(const struct problem *p, const void *vectors, size_t vector_size)
{
    size_t bytes = vector_size * p->item;
    uint64_t result = FINGERPRINT_OF_NOTHING;
    for (size_t t = 0; t < p->steps; t++)
        for (size_t b = 0; b < p->batch; b++)
            if (is_running(p, t, b))
                result = fingerprint(
                    result, (const char *)vectors + vector_index(p, t, b) * bytes, bytes);
    return result;
}

uint64_t fingerprint_of(const struct problem *p, const void *numbers, size_t count)
{
    if (numbers != NULL) return fingerprint(FINGERPRINT_OF_NOTHING, numbers, count * p->item);
    uint64_t result = FINGERPRINT_OF_NOTHING;
    static const double zeros[64];
    for (size_t bytes = count * p->item; bytes > 0;) {
        size_t part = bytes < sizeof zeros ? bytes : sizeof zeros;
        result = fingerprint(result, zeros, part);
        bytes -= part;
    }
    return result;
}

static uint64_t fingerprint_of_contents(const struct problem *p, const void *reserve)
{
    return fingerprint(
        FINGERPRINT_OF_NOTHING, (const char *)reserve + HEADER_SIZE,
        reserve_bytes(p) - HEADER_SIZE);
}

/* The reserve space as a whole */

void seal_reserve(
    const struct problem *p, void *reserve, enum phase phase, const struct given *given)
{
    const struct header header = {
        .magic = RESERVE_MAGIC,
        .phase = phase,
        .problem = fingerprint_of_problem(p),
        .contents = fingerprint_of_contents(p, reserve),
        .given = *given,
        .first_mask = HEADER_SIZE + slots_count(p) * sizeof(double),
        .masks = masks_count(p),
    };
    memcpy(reserve, &header, sizeof header);
}

static const char *const phase_names[] = {
    [FORWARD_DONE] = "forward", [DATA_DONE] = "backward data", [WEIGHTS_DONE] = "backward weights",
};

cudnnStatus_t check_reserve(
    const struct problem *p, const void *reserve, enum phase phase, struct given *given)
{
    struct header header;
    memcpy(&header, reserve, sizeof header);
    REQUIRE(
        header.magic == RESERVE_MAGIC && header.phase >= FORWARD_DONE
            && header.phase <= WEIGHTS_DONE,
        CUDNN_STATUS_BAD_PARAM, "no training forward filled the reserve space");
    REQUIRE(
        header.problem == fingerprint_of_problem(p), CUDNN_STATUS_BAD_PARAM,
        "the forward that filled the reserve space had other descriptors");
    REQUIRE(
        header.phase == phase, CUDNN_STATUS_BAD_PARAM,
        "the last that ran on the reserve space must be %s, it was %s", phase_names[phase],
        phase_names[header.phase]);
    REQUIRE(
        header.contents == fingerprint_of_contents(p, reserve), CUDNN_STATUS_BAD_PARAM,
        "the reserve space was changed since %s", phase_names[phase]);
    *given = header.given;
    return CUDNN_STATUS_SUCCESS;
}

size_t standin_dropout_masks(const void *reserve, size_t bytes, double *masks, size_t count)
{
    BEGIN_CONTROL();
    struct header header;
    if (reserve == NULL || bytes < sizeof header) return 0;
    memcpy(&header, reserve, sizeof header);
    if (header.magic != RESERVE_MAGIC) return 0;
    size_t copied = count < header.masks ? count : header.masks;
    if (header.first_mask + copied * sizeof *masks > bytes) return 0;
    if (copied > 0)
        memcpy(masks, (const char *)reserve + header.first_mask, copied * sizeof *masks);
    return header.masks;
}
