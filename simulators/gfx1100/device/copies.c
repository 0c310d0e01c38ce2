/* Copies and memsets, done at once and checked against the allocations. */
#include "device.h"

#include <string.h>

static bool is_device_side(const char *who, const char *side, const void *address, size_t bytes, bool must)
{
    size_t offset, size;
    enum place place = locate(address, bytes, &offset, &size);
    if (place == IN_ALLOCATION) return true;
    if (place == PAST_ALLOCATION) return gfx1100_inside(address, bytes, who);
    if (must) gfx1100_report("%s: the %s %p is not device memory", who, side, address);
    return !must;
}

static hipError_t copy(
    const char *who, void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
    bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
    bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
    device_log("%s %p <- %p, %zu bytes, kind %d", who, to, from, bytes, kind);
    if (bytes == 0) return hipSuccess;
    if (to == NULL || from == NULL) return hipErrorInvalidValue;
    if (!is_device_side(who, "destination", to, bytes, to_device)) return hipErrorInvalidValue;
    if (!is_device_side(who, "source", from, bytes, from_device)) return hipErrorInvalidValue;
    memmove(to, from, bytes);
    return hipSuccess;
}

static hipError_t set(const char *who, void *to, int value, size_t bytes)
{
    device_log("%s %p, %zu bytes of %d", who, to, bytes, value);
    if (bytes == 0) return hipSuccess;
    if (!gfx1100_inside(to, bytes, who)) return hipErrorInvalidValue;
    memset(to, value, bytes);
    return hipSuccess;
}

API hipError_t hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind)
{
    BEGIN("copy");
    END(copy(__func__, to, from, bytes, kind));
}

API hipError_t hipMemcpyAsync(
    void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream)
{
    BEGIN("copy");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    END(copy(__func__, to, from, bytes, kind));
}

API hipError_t hipMemcpyWithStream(
    void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream)
{
    BEGIN("copy");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    END(copy(__func__, to, from, bytes, kind));
}

API hipError_t hipMemcpy2DAsync(
    void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
    hipMemcpyKind kind, hipStream_t stream)
{
    BEGIN("copy");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    REQUIRE(width <= to_pitch && width <= from_pitch, hipErrorInvalidPitchValue);
    hipError_t status = hipSuccess;
    for (size_t row = 0; row < rows && status == hipSuccess; row++)
        status = copy(__func__, (char *)to + row * to_pitch, (const char *)from + row * from_pitch,
                      width, kind);
    END(status);
}

#define COPY_BETWEEN(name, to_type, from_type, kind)                   \
    API hipError_t name(to_type to, from_type from, size_t bytes)      \
    {                                                                  \
        BEGIN("copy");                                                 \
        END(copy(__func__, to, from, bytes, kind));                    \
    }
COPY_BETWEEN(hipMemcpyDtoH, void *, hipDeviceptr_t, hipMemcpyDeviceToHost)
COPY_BETWEEN(hipMemcpyDtoD, hipDeviceptr_t, hipDeviceptr_t, hipMemcpyDeviceToDevice)

API hipError_t hipMemset(void *to, int value, size_t bytes)
{
    BEGIN("memset");
    END(set(__func__, to, value, bytes));
}

API hipError_t hipMemsetAsync(void *to, int value, size_t bytes, hipStream_t stream)
{
    BEGIN("memset");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    END(set(__func__, to, value, bytes));
}
