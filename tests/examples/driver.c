/* A libcuda for `cuda_driver.py`: memory of the host, and one kernel that is called as a function. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    int64_t integers[2];
    double number;
} Launch;

Launch standin_launch;
int standin_allocations;
static char context, module, function;
static void *current;

int cuInit(unsigned int flags) { return flags ? INVALID_VALUE : SUCCESS; }

int cuGetErrorName(int status, const char **text)
{
    *text = status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : 101;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    if (attribute != 75 && attribute != 76) return INVALID_VALUE;
    *value = attribute == 75 ? 9 : 0;
    return device == 0 ? SUCCESS : 101;
}

int cuDevicePrimaryCtxRetain(void **to, int device)
{
    *to = &context;
    return device == 0 ? SUCCESS : 101;
}

int cuCtxSetCurrent(void *given)
{
    current = given;
    return given == &context ? SUCCESS : INVALID_CONTEXT;
}

int cuMemAllocAsync(void **address, size_t nbytes, void *stream)
{
    if (!current || stream) return INVALID_CONTEXT;
    if (!nbytes) return INVALID_VALUE;
    *address = nbytes > (size_t)1 << 40 ? 0 : malloc(nbytes);
    if (!*address) return OUT_OF_MEMORY;
    standin_allocations++;
    return SUCCESS;
}

int cuMemFreeAsync(void *address, void *stream)
{
    if (stream) return INVALID_CONTEXT;
    free(address);
    standin_allocations--;
    return SUCCESS;
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t nbytes)
{
    memcpy(to, from, nbytes);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, const void *from, size_t nbytes)
{
    memcpy(to, from, nbytes);
    return SUCCESS;
}

int cuModuleLoadData(void **to, const char *image)
{
    if (memcmp(image, "\177ELF", 4)) return INVALID_VALUE;
    *to = &module;
    return SUCCESS;
}

int cuModuleGetFunction(void **to, void *of, const char *name)
{
    if (of != &module || strcmp(name, "fill")) return NOT_FOUND;
    *to = &function;
    return SUCCESS;
}

/* The kernel takes two integers and a number. */
int cuLaunchKernel(void *what, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                   unsigned int shared_bytes, void *stream, void **arguments, void **extra)
{
    if (what != &function || stream || extra) return INVALID_VALUE;
    standin_launch = (Launch){{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                              {*(int64_t *)arguments[0], *(int64_t *)arguments[1]},
                              *(double *)arguments[2]};
    return SUCCESS;
}
