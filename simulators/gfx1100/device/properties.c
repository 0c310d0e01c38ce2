/* Properties of the device. Clock rates and sizes are those of a gfx1100 card, because libMIOpen
 * chooses kernels by them. */
#include "device.h"

#include <stdio.h>
#include <string.h>

enum {
    RUNTIME_VERSION = 60443484, /* ROCm 6.4.3 */
    COMPUTE_UNITS = 48,
    WAVEFRONT = 32,
    MAX_GROUP = 1024,
    LDS_BYTES = 65536,
    CLOCK_KHZ = 1700000,
    MEMORY_CLOCK_KHZ = 1600000,
    MEMORY_BUS_BITS = 384,
};
static const char NAME[] = "emulated gfx1100";

static hipError_t check_device(int device)
{
    return device == 0 ? hipSuccess : hipErrorInvalidDevice;
}

#define ANSWER(name, type, value)     \
    API hipError_t name(type *answer) \
    {                                 \
        BEGIN("device");              \
        *answer = (value);            \
        return hipSuccess;            \
    }
ANSWER(hipRuntimeGetVersion, int, RUNTIME_VERSION)
ANSWER(hipDriverGetVersion, int, RUNTIME_VERSION)
ANSWER(hipGetDeviceCount, int, 1)
ANSWER(hipGetDevice, int, 0)

API hipError_t hipInit(unsigned flags)
{
    (void)flags;
    BEGIN("device");
    return hipSuccess;
}

API hipError_t hipSetDevice(int device)
{
    BEGIN("device");
    END(check_device(device));
}

API hipError_t hipDeviceSynchronize(void)
{
    BEGIN("device");
    return hipSuccess;
}

API hipError_t hipDeviceReset(void)
{
    BEGIN("device");
    return hipSuccess;
}

API hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device)
{
    BEGIN("device");
    *bytes = DEFAULT_CAPACITY;
    END(check_device(device));
}

API hipError_t hipDeviceGet(hipDevice_t *device, int ordinal)
{
    BEGIN("device");
    *device = 0;
    END(check_device(ordinal));
}

API hipError_t hipDeviceGetName(char *name, int size, hipDevice_t device)
{
    BEGIN("device");
    snprintf(name, (size_t)size, "%s", NAME);
    END(check_device(device));
}

static void fill_properties(hipDeviceProp_tR0600 *p)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", NAME);
    snprintf(p->gcnArchName, sizeof p->gcnArchName, "gfx1100");
    p->totalGlobalMem = DEFAULT_CAPACITY;
    p->sharedMemPerBlock = p->sharedMemPerMultiprocessor = LDS_BYTES;
    p->maxSharedMemoryPerMultiProcessor = LDS_BYTES;
    p->regsPerBlock = 65536;
    p->warpSize = WAVEFRONT;
    p->maxThreadsPerBlock = MAX_GROUP;
    p->maxThreadsPerMultiProcessor = 2048;
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = MAX_GROUP;
        p->maxGridSize[i] = i == 0 ? INT32_MAX : 65535;
    }
    p->clockRate = CLOCK_KHZ;
    p->clockInstructionRate = 100000;
    p->memoryClockRate = MEMORY_CLOCK_KHZ;
    p->memoryBusWidth = MEMORY_BUS_BITS;
    p->l2CacheSize = 8 << 20;
    p->totalConstMem = p->memPitch = INT32_MAX;
    p->multiProcessorCount = COMPUTE_UNITS;
    p->major = 11;
    p->textureAlignment = 256;
    p->concurrentKernels = p->unifiedAddressing = p->cooperativeLaunch = 1;
    p->memoryPoolsSupported = p->canMapHostMemory = p->managedMemory = 1;
}

API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *properties, int device)
{
    BEGIN("device");
    REQUIRE(device == 0, hipErrorInvalidDevice);
    fill_properties(properties);
    return hipSuccess;
}

static int attribute(hipDeviceAttribute_t asked)
{
    switch (asked) {
    case hipDeviceAttributeMultiprocessorCount:
    case hipDeviceAttributePhysicalMultiProcessorCount: return COMPUTE_UNITS;
    case hipDeviceAttributeWarpSize: return WAVEFRONT;
    case hipDeviceAttributeMaxThreadsPerBlock:
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ: return MAX_GROUP;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor: return 2048;
    case hipDeviceAttributeMaxGridDimX: return INT32_MAX;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
    case hipDeviceAttributeSharedMemPerMultiprocessor: return LDS_BYTES;
    case hipDeviceAttributeClockRate: return CLOCK_KHZ;
    case hipDeviceAttributeMemoryClockRate: return MEMORY_CLOCK_KHZ;
    case hipDeviceAttributeMemoryBusWidth: return MEMORY_BUS_BITS;
    case hipDeviceAttributeComputeCapabilityMajor: return 11;
    case hipDeviceAttributeMemoryPoolsSupported:
    case hipDeviceAttributeManagedMemory:
    case hipDeviceAttributeConcurrentManagedAccess: return 1;
    default: return 0;
    }
}

API hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t asked, int device)
{
    BEGIN("device");
    REQUIRE(device == 0, hipErrorInvalidDevice);
    *value = attribute(asked);
    device_log("attribute %d is %d", (int)asked, *value);
    return hipSuccess;
}
