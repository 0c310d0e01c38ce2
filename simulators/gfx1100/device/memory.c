/* Device memory: host memory between red zones, filled with NaN when it is fresh. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { RED_ZONE = 256, RED = 0xA5, FREED = 0xDD };

struct allocation {
    unsigned char *start;
    size_t size;
    struct allocation *next;
};

static struct allocation *allocations;
static uint64_t live_count;
static size_t live_bytes;
static size_t capacity = DEFAULT_CAPACITY;
static uint8_t fill = DEFAULT_FILL;

static struct allocation *find(const void *address)
{
    const unsigned char *at = address;
    struct allocation *a = allocations;
    while (a != NULL && !(at >= a->start && at < a->start + a->size)) a = a->next;
    return a;
}

enum place locate(const void *address, size_t bytes, size_t *offset, size_t *size)
{
    lock();
    struct allocation *a = find(address);
    enum place place = NO_ALLOCATION;
    if (a != NULL) {
        *offset = (size_t)((const unsigned char *)address - a->start);
        *size = a->size;
        place = bytes <= *size - *offset ? IN_ALLOCATION : PAST_ALLOCATION;
    }
    unlock();
    return place;
}

bool gfx1100_inside(const void *address, size_t bytes, const char *who)
{
    size_t offset, size;
    enum place place = locate(address, bytes, &offset, &size);
    if (place == NO_ALLOCATION) gfx1100_report("%s: %p is not device memory", who, address);
    if (place == PAST_ALLOCATION)
        gfx1100_report(
            "%s: %zu bytes at %p run past the end of an allocation of %zu bytes, %zu into it", who,
            bytes, address, size, offset);
    return place == IN_ALLOCATION;
}

static void check_red_zones(const struct allocation *a)
{
    for (size_t i = 0; i < RED_ZONE; i++) {
        bool before = a->start[-1 - (ptrdiff_t)i] != RED, after = a->start[a->size + i] != RED;
        if (!before && !after) continue;
        gfx1100_report(
            "written %zu bytes %s an allocation of %zu bytes at %p", i + 1,
            before ? "before" : "after", a->size, (void *)a->start);
        return;
    }
}

void gfx1100_check_red_zones(void)
{
    lock();
    for (const struct allocation *a = allocations; a != NULL; a = a->next) check_red_zones(a);
    unlock();
}

static hipError_t allocate(void **address, size_t size)
{
    if (address == NULL) return hipErrorInvalidValue;
    *address = NULL;
    if (size == 0) return hipSuccess;
    if (size > capacity || live_bytes > capacity - size) return hipErrorOutOfMemory;
    void *whole;
    struct allocation *a = malloc(sizeof *a);
    if (a == NULL || posix_memalign(&whole, RED_ZONE, size + 2 * RED_ZONE) != 0) {
        free(a);
        return hipErrorOutOfMemory;
    }
    memset(whole, RED, size + 2 * RED_ZONE);
    *a = (struct allocation){(unsigned char *)whole + RED_ZONE, size, allocations};
    memset(a->start, fill, size);
    allocations = a;
    live_bytes += size;
    live_count++;
    *address = a->start;
    device_log("%zu bytes allocated at %p", size, *address);
    return hipSuccess;
}

static hipError_t locked_allocate(void **address, size_t size)
{
    lock();
    hipError_t status = allocate(address, size);
    unlock();
    return status;
}

static hipError_t release(void *address)
{
    if (address == NULL) return hipSuccess;
    struct allocation **link = &allocations;
    while (*link != NULL && (*link)->start != address) link = &(*link)->next;
    struct allocation *a = *link;
    if (a == NULL) {
        gfx1100_report("freed %p, which is no live allocation", address);
        return hipErrorInvalidValue;
    }
    check_red_zones(a);
    *link = a->next;
    live_bytes -= a->size;
    live_count--;
    memset(a->start, FREED, a->size);
    free(a->start - RED_ZONE);
    free(a);
    device_log("freed %p", address);
    return hipSuccess;
}

static hipError_t locked_release(void *address)
{
    lock();
    hipError_t status = release(address);
    unlock();
    return status;
}

API hipError_t hipMalloc(void **address, size_t size)
{
    BEGIN("allocation");
    END(locked_allocate(address, size));
}

API hipError_t hipExtMallocWithFlags(void **address, size_t size, unsigned flags)
{
    (void)flags;
    BEGIN("allocation");
    END(locked_allocate(address, size));
}

API hipError_t hipMallocManaged(void **address, size_t size, unsigned flags)
{
    (void)flags;
    BEGIN("allocation");
    END(locked_allocate(address, size));
}

API hipError_t hipHostMalloc(void **address, size_t size, unsigned flags)
{
    (void)flags;
    BEGIN("allocation");
    END(locked_allocate(address, size));
}

API hipError_t hipMallocAsync(void **address, size_t size, hipStream_t stream)
{
    BEGIN("allocation");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    END(locked_allocate(address, size));
}

API hipError_t hipFree(void *address)
{
    BEGIN("release");
    END(locked_release(address));
}

API hipError_t hipHostFree(void *address)
{
    BEGIN("release");
    END(locked_release(address));
}

API hipError_t hipFreeAsync(void *address, hipStream_t stream)
{
    BEGIN("release");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    END(locked_release(address));
}

API hipError_t hipMemGetInfo(size_t *available, size_t *total)
{
    BEGIN("device");
    lock();
    if (total != NULL) *total = capacity;
    if (available != NULL) *available = capacity > live_bytes ? capacity - live_bytes : 0;
    unlock();
    return hipSuccess;
}

API hipError_t hipMemPtrGetInfo(void *address, size_t *size)
{
    size_t offset;
    BEGIN("device");
    END(locate(address, 0, &offset, size) == IN_ALLOCATION ? hipSuccess : hipErrorInvalidValue);
}

API hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *address)
{
    size_t offset, size;
    BEGIN("device");
    memset(attributes, 0, sizeof *attributes);
    attributes->type = hipMemoryTypeUnregistered;
    if (locate(address, 0, &offset, &size) == NO_ALLOCATION) return hipSuccess;
    attributes->type = hipMemoryTypeDevice;
    attributes->devicePointer = (void *)address;
    return hipSuccess;
}

API hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t *pool, int device)
{
    BEGIN("device");
    REQUIRE(device == 0, hipErrorInvalidDevice);
    *pool = (hipMemPool_t)1;
    return hipSuccess;
}

API hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t kept)
{
    (void)pool, (void)kept;
    BEGIN("device");
    return hipSuccess;
}

void gfx1100_set_capacity(size_t bytes)
{
    lock();
    capacity = bytes;
    unlock();
}

void gfx1100_set_fill(uint8_t byte)
{
    lock();
    fill = byte;
    unlock();
}

uint64_t gfx1100_live_allocations(void)
{
    return live_count;
}

uint64_t gfx1100_live_bytes(void)
{
    return live_bytes;
}
