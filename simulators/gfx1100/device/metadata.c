/* Read the metadata note of an AMDGPU code object: the part of msgpack that it uses. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each read moves `at` on; beyond the end, or at an unexpected type, `failed` is set
 * and every further read gives 0. */
struct reader {
    const unsigned char *at, *end;
    bool failed;
};

static uint64_t big_endian(struct reader *r, int bytes)
{
    if (r->end - r->at < bytes) r->failed = true;
    if (r->failed) return 0;
    uint64_t value = 0;
    while (bytes-- > 0) value = value << 8 | *r->at++;
    return value;
}

static unsigned peek(struct reader *r)
{
    if (r->at >= r->end) r->failed = true;
    return r->failed ? 0xC1 : *r->at; /* 0xC1 begins nothing */
}

/* The number of entries of a map (fixed 0x80, long 0xDE) or an array (0x90, 0xDC); -1 if the next
 * thing is none. */
static int64_t entries(struct reader *r, unsigned fixed, unsigned with_16_bits)
{
    unsigned first = peek(r);
    if ((first & 0xF0) == fixed) return *r->at++ & 0x0F;
    if (first != with_16_bits && first != with_16_bits + 1) return -1;
    r->at++;
    return (int64_t)big_endian(r, first == with_16_bits ? 2 : 4);
}

static int64_t map_entries(struct reader *r)
{
    return entries(r, 0x80, 0xDE);
}

static int64_t array_entries(struct reader *r)
{
    return entries(r, 0x90, 0xDC);
}

struct text {
    const char *start;
    size_t length;
};

static bool read_text(struct reader *r, struct text *text)
{
    unsigned first = peek(r);
    size_t length;
    if ((first & 0xE0) == 0xA0) {
        r->at++;
        length = first & 0x1F;
    } else if (first >= 0xD9 && first <= 0xDB) {
        r->at++;
        length = big_endian(r, 1 << (first - 0xD9));
    } else {
        return false;
    }
    if ((size_t)(r->end - r->at) < length) r->failed = true;
    if (r->failed) return false;
    *text = (struct text){(const char *)r->at, length};
    r->at += length;
    return true;
}

static uint64_t read_integer(struct reader *r)
{
    unsigned first = peek(r);
    if (r->failed) return 0;
    r->at++;
    if (first < 0x80) return first;
    if (first >= 0xCC && first <= 0xCF) return big_endian(r, 1 << (first - 0xCC));
    if (first >= 0xD0 && first <= 0xD3) return big_endian(r, 1 << (first - 0xD0));
    r->failed = true;
    return 0;
}

static void skip(struct reader *r)
{
    struct text text;
    if (read_text(r, &text) || r->failed) return;
    int64_t map = map_entries(r), array = map < 0 ? array_entries(r) : -1;
    for (int64_t i = 0; i < 2 * map && !r->failed; i++) skip(r);
    for (int64_t i = 0; i < array && !r->failed; i++) skip(r);
    if (map >= 0 || array >= 0) return;
    unsigned first = peek(r);
    bool is_small = first < 0x80 || first >= 0xE0;
    bool is_constant = first == 0xC0 || first == 0xC2 || first == 0xC3; /* nil and booleans */
    if (is_small || is_constant) r->at++;
    else read_integer(r);
}

static bool is(struct text text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.start, word, text.length) == 0;
}

static struct text expect_text(struct reader *r)
{
    struct text text = {"", 0};
    if (!read_text(r, &text)) r->failed = true;
    return text;
}

static char *copied(struct text text)
{
    return strndup(text.start, text.length);
}

static void read_value_kind(struct reader *r, struct argument *argument)
{
    struct text kind = expect_text(r);
    argument->kind = BY_VALUE;
    if (is(kind, "global_buffer")) argument->kind = GLOBAL_BUFFER;
    if (kind.length < 6 || memcmp(kind.start, "hidden", 6) != 0) return;
    argument->kind = HIDDEN;
    snprintf(argument->hidden, sizeof argument->hidden, "%.*s", (int)kind.length, kind.start);
}

static void read_argument(struct reader *r, struct argument *argument)
{
    for (int64_t left = map_entries(r); left > 0 && !r->failed; left--) {
        struct text key = expect_text(r);
        if (is(key, ".offset")) argument->offset = (uint32_t)read_integer(r);
        else if (is(key, ".size")) argument->size = (uint32_t)read_integer(r);
        else if (is(key, ".value_kind")) read_value_kind(r, argument);
        else if (is(key, ".name")) {
            struct text name = expect_text(r);
            snprintf(argument->name, sizeof argument->name, "%.*s", (int)name.length, name.start);
        } else skip(r);
    }
}

static void read_arguments(struct reader *r, struct kernel *kernel)
{
    int64_t count = array_entries(r);
    if (count < 0 || count > r->end - r->at) r->failed = true;
    if (r->failed || count == 0) return;
    kernel->arguments = calloc((size_t)count, sizeof *kernel->arguments);
    kernel->argument_count = (size_t)count;
    for (int64_t i = 0; i < count && !r->failed; i++) read_argument(r, &kernel->arguments[i]);
}

static void read_kernel(struct reader *r, struct kernel *kernel)
{
    for (int64_t left = map_entries(r); left > 0 && !r->failed; left--) {
        struct text key = expect_text(r);
        if (is(key, ".name")) kernel->name = copied(expect_text(r));
        else if (is(key, ".symbol")) kernel->descriptor = copied(expect_text(r));
        else if (is(key, ".kernarg_segment_size"))
            kernel->argument_bytes = (uint32_t)read_integer(r);
        else if (is(key, ".max_flat_workgroup_size"))
            kernel->max_group = (uint32_t)read_integer(r);
        else if (is(key, ".wavefront_size")) kernel->wavefront = (uint32_t)read_integer(r);
        else if (is(key, ".args")) read_arguments(r, kernel);
        else skip(r);
    }
    if (kernel->name == NULL || kernel->descriptor == NULL) r->failed = true;
}

static void read_kernels(struct reader *r, struct code_object *object)
{
    int64_t count = array_entries(r);
    if (count < 0 || count > r->end - r->at) r->failed = true;
    if (r->failed || count == 0) return;
    /* Objects that were linked from several keep one note of each. */
    size_t before = object->kernel_count;
    object->kernels = realloc(
        object->kernels, (before + (size_t)count) * sizeof *object->kernels);
    memset(object->kernels + before, 0, (size_t)count * sizeof *object->kernels);
    object->kernel_count += (size_t)count;
    for (size_t i = before; i < object->kernel_count && !r->failed; i++) {
        object->kernels[i].object = object;
        read_kernel(r, &object->kernels[i]);
    }
}

bool read_metadata(struct code_object *object, const void *note, size_t bytes)
{
    struct reader reader = {note, (const unsigned char *)note + bytes, false}, *r = &reader;
    for (int64_t left = map_entries(r); left > 0 && !r->failed; left--) {
        if (is(expect_text(r), "amdhsa.kernels")) read_kernels(r, object);
        else skip(r);
    }
    return !r->failed;
}
