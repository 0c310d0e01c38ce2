/* Loads, stores and atomics of the vector memory, LDS, scratch and buffer instructions. */
#include "opcodes.h"
#include "wave.h"

enum buffer_flags { HAS_OFFSET = 1, HAS_INDEX = 2 };

/* Address of a lane's access, and the number of its bytes in range. Beyond the end of LDS or of a
 * buffer, loads give 0 and stores do nothing; an access that crosses the end of a buffer is cut
 * between its words. */
struct place {
    char *address;
    int inside;
};

static int all_or_nothing(const struct instruction *n, bool outside)
{
    return outside ? 0 : n->bytes;
}

static struct place global_place(const struct wave *w, const struct instruction *n, int lane)
{
    const struct source *base = &n->sources[1];
    uint64_t address = lane_u64(w, &n->sources[0], lane);
    if (base->kind == SCALAR) /* a base in scalar registers and a 32-bit offset of each lane */
        address = scalar_u64(w, base) + lane_u32(w, &n->sources[0], lane);
    return (struct place){(char *)(address + (uint64_t)(int64_t)n->offset), n->bytes};
}

static struct place lds_place(
    const struct wave *w, const struct instruction *n, int lane, const struct group *group,
    int32_t offset)
{
    uint64_t at = (uint64_t)lane_u32(w, &n->sources[0], lane) + (uint32_t)offset;
    return (struct place){group->lds + at, all_or_nothing(n, at + n->bytes > group->lds_bytes)};
}

static bool scratch_place(
    const struct wave *w, const struct instruction *n, int lane, struct place *place)
{
    const struct source *address = &n->sources[0], *base = &n->sources[1];
    int64_t at = n->offset;
    if (address->kind == VECTOR) at += lane_u32(w, address, lane);
    if (base->kind == SCALAR) at += scalar_u32(w, base);
    *place = (struct place){w->scratch + (size_t)lane * w->scratch_bytes + at, n->bytes};
    if (at >= 0 && at + n->bytes <= w->scratch_bytes) return true;
    set_error("scratch access at %lld of %u bytes", (long long)at, w->scratch_bytes);
    return false;
}

/* A buffer is described by four scalar registers: base, stride, records and how to check. */
static struct place buffer_place(const struct wave *w, const struct instruction *n, int lane)
{
    const uint32_t *resource = &w->s[n->sources[1].reg];
    uint64_t base = resource[0] | (uint64_t)(resource[1] & 0xFFFF) << 32;
    uint32_t stride = resource[1] >> 16 & 0x3FFF, records = resource[2];
    bool is_raw = stride == 0 || (resource[3] >> 28 & 3) == 3;
    uint32_t soffset = scalar_u32(w, &n->sources[3]), reg = n->sources[0].reg;
    uint32_t index = 0, offset = (uint32_t)n->offset;
    if (n->flags & HAS_INDEX) index = w->v[reg++][lane];
    if (n->flags & HAS_OFFSET) offset += w->v[reg][lane];
    uint64_t at = offset + (uint64_t)stride * index;
    uint64_t room = records > soffset ? records - soffset : 0;
    int inside = all_or_nothing(n, is_raw ? at + n->bytes > room : index >= records);
    if (is_raw && inside == 0 && at < room) inside = (int)((room - at) / 4 * 4);
    return (struct place){(char *)(base + soffset + at), inside};
}

static void load(struct wave *w, const struct instruction *n, int lane, struct place from)
{
    uint32_t words[4] = {0}, *reg = &w->v[n->destination][lane];
    memcpy(words, from.address, from.inside);
    uint32_t value = words[0];
    uint32_t extended = n->bytes == 1 ? (uint32_t)(int8_t)value : (uint32_t)(int16_t)value;
    switch (n->access) {
    case LOAD_SIGNED: *reg = extended; return;
    case LOAD_HALF:
    case LOAD_HALF_SIGNED:
        if (n->access == LOAD_HALF_SIGNED) value = extended & 0xFFFF;
        *reg = n->high_half ? (*reg & 0xFFFF) | value << 16 : (*reg & 0xFFFF0000) | value;
        return;
    default:
        for (int i = 0; i < (n->bytes + 3) / 4; i++) w->v[n->destination + i][lane] = words[i];
    }
}

static void store(
    const struct wave *w, const struct instruction *n, int lane, const struct source *data,
    struct place to)
{
    uint32_t words[4];
    for (int i = 0; i < (n->bytes + 3) / 4; i++) words[i] = w->v[data->reg + i][lane];
    if (n->access == STORE_HIGH_HALF || (n->bytes < 4 && data->half)) words[0] >>= 16;
    memcpy(to.address, words, to.inside);
}

static void atomic(struct wave *w, const struct instruction *n, int lane, char *at)
{
    const uint32_t reg = n->sources[2].reg;
    uint32_t old, now, given = w->v[reg][lane];
    memcpy(&old, at, sizeof old);
    switch (n->access) {
    case ATOMIC_ADD_U32: now = old + given; break;
    case ATOMIC_ADD_F32: now = bits_of_f32(as_f32(old) + as_f32(given)); break;
    default: now = old == w->v[reg + 1][lane] ? given : old; /* compare and swap */
    }
    memcpy(at, &now, sizeof now);
    if (n->returns_old) w->v[n->destination][lane] = old;
}

/* Two accesses to LDS in one instruction. The address may be in a destination register. */
static void access_pair(
    struct wave *w, const struct instruction *n, int lane, const struct group *group)
{
    const int words = n->bytes / 4;
    struct place places[2] = {
        lds_place(w, n, lane, group, n->offset), lds_place(w, n, lane, group, n->second_offset)};
    for (int i = 0; i < 2; i++) {
        if (n->access == STORE_PAIR) {
            store(w, n, lane, &n->sources[2 + i], places[i]);
            continue;
        }
        uint32_t loaded[2] = {0};
        memcpy(loaded, places[i].address, places[i].inside);
        for (int j = 0; j < words; j++) w->v[n->destination + i * words + j][lane] = loaded[j];
    }
}

/* Values move between lanes; no memory is touched. */
static void exchange(struct wave *w, const struct instruction *n)
{
    const struct source *data = &n->sources[2];
    uint32_t moved[LANES] = {0};
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_active(w, lane)) continue;
        uint32_t bytes = lane_u32(w, &n->sources[0], lane) + (uint32_t)n->offset;
        int other = bytes / 4 % LANES;
        if (n->access == PULL) moved[lane] = is_active(w, other) ? lane_u32(w, data, other) : 0;
        else moved[other] = lane_u32(w, data, lane);
    }
    for (int lane = 0; lane < LANES; lane++)
        if (is_active(w, lane)) w->v[n->destination][lane] = moved[lane];
}

static bool find_place(
    const struct wave *w, const struct instruction *n, int lane, const struct group *group,
    struct place *place)
{
    switch (n->space) {
    case GLOBAL: *place = global_place(w, n, lane); return true;
    case LDS: *place = lds_place(w, n, lane, group, n->offset); return true;
    case BUFFER: *place = buffer_place(w, n, lane); return true;
    default: return scratch_place(w, n, lane, place);
    }
}

bool access_memory(struct wave *w, const struct instruction *n, struct group *group)
{
    if (n->access == PULL || n->access == PUSH) {
        exchange(w, n);
        return true;
    }
    for (int lane = 0; lane < LANES; lane++) {
        struct place place;
        if (!is_active(w, lane)) continue;
        if (n->access == LOAD_PAIR || n->access == STORE_PAIR) {
            access_pair(w, n, lane, group);
            continue;
        }
        if (!find_place(w, n, lane, group, &place)) return false;
        switch (n->access) {
        case STORE:
        case STORE_HIGH_HALF:
            store(w, n, lane, &n->sources[2], place);
            break;
        case ATOMIC_ADD_U32:
        case ATOMIC_ADD_F32:
        case ATOMIC_COMPARE_SWAP:
            if (place.inside == n->bytes) atomic(w, n, lane, place.address);
            break;
        default: load(w, n, lane, place);
        }
    }
    return true;
}
