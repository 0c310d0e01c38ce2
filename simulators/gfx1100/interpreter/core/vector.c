/* Vector instructions: the meaning of each, for every active lane. */
#include "helpers.h"
#include "opcodes.h"

/* Reads of source i of a lane as a type, and writes of its destination. */
static inline uint32_t read_u32(const struct wave *w, const struct source *x, int lane)
{
    return lane_u32(w, x, lane);
}

static inline int32_t read_i32(const struct wave *w, const struct source *x, int lane)
{
    return (int32_t)lane_u32(w, x, lane);
}

static inline uint64_t read_u64(const struct wave *w, const struct source *x, int lane)
{
    return lane_u64(w, x, lane);
}

static inline int64_t read_i64(const struct wave *w, const struct source *x, int lane)
{
    return (int64_t)lane_u64(w, x, lane);
}

static inline uint16_t read_u16(const struct wave *w, const struct source *x, int lane)
{
    uint32_t whole = lane_u32(w, x, lane);
    return (uint16_t)(x->half ? whole >> 16 : whole);
}

static inline int16_t read_i16(const struct wave *w, const struct source *x, int lane)
{
    return (int16_t)read_u16(w, x, lane);
}

#define READ_FLOAT(type, c_type, conversion, raw, absolute_value)                            \
    static inline c_type read_##type(const struct wave *w, const struct source *x, int lane) \
    {                                                                                        \
        c_type value = conversion(raw(w, x, lane));                                          \
        if (x->absolute) value = absolute_value(value);                                      \
        return x->negate ? -value : value;                                                   \
    }
READ_FLOAT(f16, float, as_f16, read_u16, fabsf)
READ_FLOAT(f32, float, as_f32, lane_u32, fabsf)
READ_FLOAT(f64, double, as_f64, lane_u64, fabs)

/* One half of a packed operand: bits 0 and 1 of `half` say which, 2 and 3 whether it is negated. */
static inline float read_packed(const struct wave *w, const struct source *x, int lane, int part)
{
    uint32_t whole = lane_u32(w, x, lane);
    float value = as_f16(x->half >> part & 1 ? whole >> 16 : whole);
    return x->half >> (2 + part) & 1 ? -value : value;
}

static inline float read_mixed(
    const struct wave *w, const struct instruction *n, int source, int lane)
{
    const struct source *x = &n->sources[source];
    return n->flags >> source & 1 ? read_f16(w, x, lane) : read_f32(w, x, lane);
}

static inline void write_u32(struct wave *w, const struct instruction *n, int lane, uint32_t value)
{
    w->v[n->destination][lane] = value;
}

static inline void write_u64(struct wave *w, const struct instruction *n, int lane, uint64_t value)
{
    w->v[n->destination][lane] = (uint32_t)value;
    w->v[n->destination + 1][lane] = (uint32_t)(value >> 32);
}

static inline void write_u16(struct wave *w, const struct instruction *n, int lane, uint32_t value)
{
    uint32_t *reg = &w->v[n->destination][lane];
    value &= 0xFFFF;
    *reg = n->high_half ? (*reg & 0xFFFF) | value << 16 : (*reg & 0xFFFF0000) | value;
}

static inline double clamped(const struct instruction *n, double value)
{
    if (!n->clamp) return value;
    return value > 1 ? 1 : value > 0 ? value : 0; /* and a NaN is 0 */
}

static inline void write_f16(struct wave *w, const struct instruction *n, int lane, double value)
{
    write_u16(w, n, lane, bits_of_f16(clamped(n, value)));
}

static inline void write_f32(struct wave *w, const struct instruction *n, int lane, float value)
{
    write_u32(w, n, lane, bits_of_f32((float)clamped(n, value)));
}

static inline void write_f64(struct wave *w, const struct instruction *n, int lane, double value)
{
    write_u64(w, n, lane, bits_of_f64(value));
}

void vector_alu(struct wave *w, const struct instruction *n)
{
    const uint32_t active = w->s[EXEC];
    uint32_t flags = 0; /* carries or results of a comparison, one for each lane */
#define EACH_LANE for (int lane = 0; lane < LANES; lane++) if (active >> lane & 1)
#define SOURCE(type, i) read_##type(w, &n->sources[i], lane)
#define FLAG(bit) flags |= (uint32_t)((bit) != 0) << lane
    switch (n->op) {
#include "vector.inc"
    default: break;
    }
}
