#include "objects.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_names[KINDS] = {
    [HANDLE] = "handle", [TENSOR] = "tensor", [FILTER] = "filter",
    [DROPOUT] = "dropout", [RNN] = "rnn", [RNN_DATA] = "rnn_data", [BACKEND] = "backend",
};

static struct object **live;
static size_t live_count, live_capacity;

/* Memory of destroyed objects is freed late, so that their addresses are not reused by new objects,
   which would make a use after destroy look right. */
enum { DEAD = 4096 };
static struct object *dead[DEAD];
static size_t dead_next;

static size_t find(struct object *const *table, size_t count, const void *pointer)
{
    for (size_t i = 0; i < count; i++)
        if (table[i] == pointer) return i;
    return count;
}

static bool grow(void)
{
    if (live_count < live_capacity) return true;
    size_t capacity = live_capacity == 0 ? 64 : 2 * live_capacity;
    struct object **table = realloc(live, capacity * sizeof *table);
    if (table == NULL) return false;
    live = table;
    live_capacity = capacity;
    return true;
}

cudnnStatus_t object_create(enum kind kind, size_t bytes, void **out)
{
    struct object *object = grow() ? calloc(1, bytes) : NULL;
    REQUIRE(object != NULL, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    object->kind = kind;
    live[live_count++] = object;
    *out = object;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t object_check(const void *pointer, enum kind kind)
{
    const char *name = kind_names[kind];
    REQUIRE(pointer != NULL, CUDNN_STATUS_BAD_PARAM, "the %s is NULL", name);
    size_t index = find(live, live_count, pointer);
    if (index < live_count) {
        enum kind found = live[index]->kind;
        REQUIRE(
            found == kind, CUDNN_STATUS_BAD_PARAM, "a %s was given as the %s", kind_names[found],
            name);
        return CUDNN_STATUS_SUCCESS;
    }
    bool was_destroyed = find(dead, DEAD, pointer) < DEAD;
    return refuse(
        CUDNN_STATUS_BAD_PARAM, "the %s %s", name,
        was_destroyed ? "was destroyed" : "is no object of this library");
}

cudnnStatus_t object_check_set(const void *pointer, enum kind kind)
{
    TRY(object_check(pointer, kind));
    const struct object *object = pointer;
    REQUIRE(
        object->is_set, CUDNN_STATUS_BAD_PARAM, "the %s was created but not set",
        kind_names[kind]);
    return CUDNN_STATUS_SUCCESS;
}

void object_destroy(void *pointer)
{
    live[find(live, live_count, pointer)] = live[live_count - 1];
    live_count--;
    free(dead[dead_next]);
    dead[dead_next] = pointer;
    dead_next = (dead_next + 1) % DEAD;
}

int64_t standin_live(const char *kind)
{
    BEGIN_CONTROL();
    if (kind == NULL) return -1;
    if (strcmp(kind, "*") == 0) return (int64_t)live_count;
    for (size_t k = 0; k < KINDS; k++) {
        if (strcmp(kind, kind_names[k]) != 0) continue;
        int64_t count = 0;
        for (size_t i = 0; i < live_count; i++) count += live[i]->kind == k;
        return count;
    }
    return -1;
}
