/* The state of a wave of 32 lanes and the instructions that change it. interpreter/records.py has
 * the same two structures for Python. */
#ifndef WAVE_H
#define WAVE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 32, VECTOR_REGISTERS = 512, SCALAR_REGISTERS = 128 };
enum { VCC = 106, NULL_REGISTER = 124, EXEC = 126 };

enum source_kind { ABSENT, SCALAR, VECTOR, CONSTANT };
struct source {
    uint8_t kind, negate, absolute;
    uint8_t half; /* 1: the upper half; of packed operands also op_sel_hi, neg_lo, neg_hi */
    uint32_t reg;
    uint64_t value; /* of a constant */
};

struct instruction {
    uint16_t op;
    uint8_t high_half; /* of the destination */
    uint8_t clamp, dual;
    uint8_t flags; /* fma_mix: which sources are halves; buffers: enum buffer_flags */
    uint8_t space, access, bytes, returns_old;
    uint32_t destination, carry_out;
    int32_t target, offset, second_offset;
    uint64_t next; /* address of the following instruction */
    struct source sources[4];
};

struct wave {
    uint32_t s[SCALAR_REGISTERS + 1]; /* a pair may begin at the last */
    uint32_t v[VECTOR_REGISTERS][LANES];
    uint32_t scc, at;
    bool done;
    char *scratch;
    uint32_t scratch_bytes; /* of a lane */
};

struct group {
    char *lds;
    uint32_t lds_bytes;
};

void set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool access_memory(struct wave *w, const struct instruction *n, struct group *group);
void vector_alu(struct wave *w, const struct instruction *n);

/* Bits and numbers. */

static inline float as_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double as_f64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float as_f16(uint32_t bits)
{
    uint16_t low = (uint16_t)bits;
    _Float16 value;
    memcpy(&value, &low, sizeof value);
    return (float)value;
}

static inline uint16_t bits_of_f16(double number)
{
    _Float16 value = (_Float16)number;
    uint16_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Values of source operands in a lane. */

static inline uint32_t scalar_u32(const struct wave *w, const struct source *x)
{
    return x->kind == SCALAR ? w->s[x->reg] : (uint32_t)x->value;
}

static inline uint64_t scalar_u64(const struct wave *w, const struct source *x)
{
    if (x->kind != SCALAR) return x->value;
    return w->s[x->reg] | (uint64_t)w->s[x->reg + 1] << 32;
}

static inline uint32_t lane_u32(const struct wave *w, const struct source *x, int lane)
{
    return x->kind == VECTOR ? w->v[x->reg][lane] : scalar_u32(w, x);
}

static inline uint64_t lane_u64(const struct wave *w, const struct source *x, int lane)
{
    if (x->kind != VECTOR) return scalar_u64(w, x);
    return w->v[x->reg][lane] | (uint64_t)w->v[x->reg + 1][lane] << 32;
}

static inline void set_scalar(struct wave *w, uint32_t reg, uint32_t value)
{
    if (reg != NULL_REGISTER) w->s[reg] = value;
}

static inline bool is_active(const struct wave *w, int lane)
{
    return w->s[EXEC] >> lane & 1;
}

#endif
