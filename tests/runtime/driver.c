/* A libcuda that launches nothing: it checks its arguments and records what it was told. */

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE = 1, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { DEVICES = 2, MOST_ARGUMENTS = 8 };

typedef struct {
    int id;
    char pad[4];
    uint64_t value[8];
} Attribute;

typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    void *stream;
    Attribute *attributes;
    unsigned int num_attributes;
} Config;

/* What the tests read. */
typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    uint64_t stream, function;
    int is_cooperative, device;
    unsigned char arguments[8 * MOST_ARGUMENTS];
} Record;

Record standin_launch;
/* How many arguments of 8 bytes the kernel takes. */
int standin_num_arguments;

int standin_launches, standin_retains, standin_attributes, standin_unloads, standin_shared_bytes;

static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;
static char failing[64];
static int failing_status;
static char contexts[DEVICES];
static _Thread_local char *current;

/* Let the next call of `function` return `status`. */
void standin_fail(const char *function, int status)
{
    strncpy(failing, function, sizeof failing - 1);
    failing_status = status;
}

void standin_drop_context(void) { current = 0; }

static int fails(const char *function)
{
    if (strcmp(failing, function)) return SUCCESS;
    failing[0] = 0;
    return failing_status;
}

#define BEGIN                                                                                      \
    do {                                                                                           \
        int status = fails(__func__);                                                              \
        if (status) return status;                                                                 \
    } while (0)

int cuInit(unsigned int flags)
{
    BEGIN;
    return flags ? INVALID_VALUE : SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return SUCCESS;
}

int cuGetErrorName(int status, const char **text)
{
    if (status > 999) return INVALID_VALUE;
    *text = status == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OTHER";
    return SUCCESS;
}

int cuGetErrorString(int status, const char **text)
{
    *text = "what the driver says of it";
    return status > 999 ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= DEVICES) return 101;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    standin_attributes++;
    switch (attribute) {
    case 16: *value = 132; break;
    case 38: *value = 50 << 20; break;
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 97: *value = 227 << 10; break;
    default: return INVALID_VALUE;
    }
    return device >= 0 && device < DEVICES ? SUCCESS : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN;
    standin_retains++;
    *context = &contexts[device];
    return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
    current = context;
    return SUCCESS;
}

/* A module and its function are the address of a byte. */
int cuModuleLoadData(void **module, const char *image)
{
    BEGIN;
    if (!current) return INVALID_CONTEXT;
    if (memcmp(image, "\177ELF", 4) && memcmp(image, "//", 2)) return INVALID_IMAGE;
    *module = current;
    return SUCCESS;
}

int cuModuleUnload(void *module)
{
    standin_unloads++;
    return module ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    if (!strcmp(name, "absent")) return NOT_FOUND;
    *function = module;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    if (!function || attribute != 8) return INVALID_VALUE;
    standin_shared_bytes = value;
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, void *function, int threads, size_t shared_bytes)
{
    if (!current) return INVALID_CONTEXT;
    if (!function) return INVALID_VALUE;
    *blocks = 2048 / threads - (int)(shared_bytes >> 16);
    return SUCCESS;
}

int cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **extra)
{
    BEGIN;
    if (!current) return INVALID_CONTEXT;
    if (!arguments || extra) return INVALID_VALUE;
    pthread_mutex_lock(&recording);
    Record *record = &standin_launch;
    memcpy(record->grid, config->grid, sizeof config->grid);
    memcpy(record->block, config->block, sizeof config->block);
    record->shared_bytes = config->shared_bytes;
    record->stream = (uint64_t)(uintptr_t)config->stream;
    record->function = (uint64_t)(uintptr_t)function;
    record->device = (int)((char *)function - contexts);
    for (int n = 0; n < standin_num_arguments; n++)
        memcpy(record->arguments + 8 * n, arguments[n], 8);
    record->is_cooperative = 0;
    for (unsigned int n = 0; n < config->num_attributes; n++) {
        const Attribute *attribute = &config->attributes[n];
        record->is_cooperative = attribute->id == 2 && *(const int *)attribute->value;
    }
    standin_launches++;
    pthread_mutex_unlock(&recording);
    return SUCCESS;
}
