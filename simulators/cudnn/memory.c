#include "memory.h"

#include <stdlib.h>

struct allocation {
    uintptr_t address;
    size_t bytes;
};

static struct allocation *allocations;
static size_t allocation_count, allocation_capacity;

static bool overlap(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static bool is_registered(uintptr_t address, size_t bytes)
{
    for (size_t i = 0; i < allocation_count; i++) {
        const struct allocation *one = &allocations[i];
        if (address < one->address || address - one->address >= one->bytes) continue;
        return bytes <= one->bytes - (address - one->address);
    }
    return false;
}

static cudnnStatus_t check_region(const struct region *region)
{
    uintptr_t address = (uintptr_t)region->address;
    if (address == 0) {
        REQUIRE(
            region->presence == OPTIONAL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s is NULL",
            region->name);
        return CUDNN_STATUS_SUCCESS;
    }
    REQUIRE(
        address % region->alignment == 0, CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
        "%s is not aligned to %zu bytes", region->name, region->alignment);
    REQUIRE(
        is_registered(address, region->bytes), CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "%s: its %zu bytes do not lie inside device memory that is allocated", region->name,
        region->bytes);
    return CUDNN_STATUS_SUCCESS;
}

static bool in_conflict(const struct region *a, const struct region *b)
{
    if (a->address == NULL || b->address == NULL) return false;
    if (a->access == READ && b->access == READ) return false;
    return overlap((uintptr_t)a->address, a->bytes, (uintptr_t)b->address, b->bytes);
}

cudnnStatus_t check_regions(const struct region *regions, size_t count)
{
    for (size_t i = 0; i < count; i++) TRY(check_region(&regions[i]));
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            REQUIRE(
                !in_conflict(&regions[i], &regions[j]), CUDNN_STATUS_BAD_PARAM,
                "%s and %s overlap", regions[j].name, regions[i].name);
    return CUDNN_STATUS_SUCCESS;
}

static bool grow(void)
{
    if (allocation_count < allocation_capacity) return true;
    size_t capacity = allocation_capacity == 0 ? 256 : 2 * allocation_capacity;
    struct allocation *table = realloc(allocations, capacity * sizeof *table);
    if (table == NULL) return false;
    allocations = table;
    allocation_capacity = capacity;
    return true;
}

static cudnnStatus_t add(uintptr_t address, size_t bytes)
{
    REQUIRE(address != 0 && bytes != 0, CUDNN_STATUS_BAD_PARAM, "there is no memory to register");
    for (size_t i = 0; i < allocation_count; i++)
        REQUIRE(
            !overlap(address, bytes, allocations[i].address, allocations[i].bytes),
            CUDNN_STATUS_BAD_PARAM, "the memory overlaps an allocation that is registered");
    REQUIRE(grow(), CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    allocations[allocation_count++] = (struct allocation){address, bytes};
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t take_away(uintptr_t address)
{
    for (size_t i = 0; i < allocation_count; i++) {
        if (allocations[i].address != address) continue;
        allocations[i] = allocations[--allocation_count];
        return CUDNN_STATUS_SUCCESS;
    }
    return refuse(CUDNN_STATUS_BAD_PARAM, "no allocation is registered at the address");
}

int standin_register(uintptr_t address, size_t bytes)
{
    BEGIN_CONTROL();
    return add(address, bytes) == CUDNN_STATUS_SUCCESS ? 0 : -1;
}

int standin_unregister(uintptr_t address)
{
    BEGIN_CONTROL();
    return take_away(address) == CUDNN_STATUS_SUCCESS ? 0 : -1;
}

size_t standin_registered(void)
{
    BEGIN_CONTROL();
    return allocation_count;
}
