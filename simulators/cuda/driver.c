/*
 * A libcuda without a device: device memory is memory of the host, work is done at once or, on a
 * stream that is captured, when its graph is launched. It checks arguments, counts calls and
 * objects, refuses what CUDA refuses in a capture, and injects failures for tests.
 */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901
};
enum { UNIFIED = 4 };
enum { NON_BLOCKING = 1, NOT_TIMED = 2, THREAD_LOCAL = 1, RELAXED = 2 };
enum { DEVICES = 2, MOST_ARGUMENTS = 8, MOST_FUNCTIONS = 64, MOST_WORKS = 64, MOST_STREAMS = 64 };

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

/* Arguments of a launch for tests. */
typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    uint64_t stream, function;
    int is_cooperative, device;
    unsigned char arguments[8 * MOST_ARGUMENTS];
} Record;

/* A copy, a memset (without a source) or a launch of a kernel (without a target). */
typedef struct {
    void *target;
    const void *source;
    size_t nbytes;
    int value;
    Record launch;
} Work;

typedef struct {
    int count;
    Work works[MOST_WORKS];
} Graph;

/* `capture` is the number of the capture that a stream is in; the origin has the graph. */
typedef struct {
    int device, mode;
    uint64_t capture;
    Graph *graph;
} Stream;

typedef struct {
    int is_timed;
    uint64_t capture;
    Graph *graph;
    float milliseconds;
} Event;

Record standin_launch;
/* Number of arguments of the kernel, 8 bytes each. */
int standin_num_arguments;
int standin_launches, standin_shared_bytes;
/* Numbers of live objects. */
int standin_streams, standin_events, standin_graphs, standin_executables;
int standin_buffers;
/* Milliseconds that each copy, memset and launch takes. */
float standin_work_milliseconds;

static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[64];
    int calls;
} functions[MOST_FUNCTIONS];
static char failing[64];
static int failing_status, failing_after;
static float now_milliseconds;
static uint64_t captures;
static Stream *streams[MOST_STREAMS];
static char contexts[DEVICES];
static _Thread_local char *current;
static _Thread_local int mode;     /* of the thread; 0 is the global one */
static _Thread_local int captured; /* captures of this thread that forbid unsafe calls */

/* Let a call of `function` return `status`: the next one, or one after `calls` that succeed. */
void standin_fail(const char *function, int status, int calls)
{
    strncpy(failing, function, sizeof failing - 1);
    failing_status = status;
    failing_after = calls;
}

void standin_drop_context(void) { current = 0; }

/* Return the device of the thread's context, -1 without a context. */
int standin_context_device(void) { return current ? (int)(current - contexts) : -1; }

int standin_calls(const char *function)
{
    for (int n = 0; n < MOST_FUNCTIONS; n++)
        if (!strcmp(functions[n].name, function)) return functions[n].calls;
    return 0;
}

void standin_reset(void)
{
    memset(functions, 0, sizeof functions);
    failing[0] = 0;
    standin_launches = standin_shared_bytes = 0;
    standin_num_arguments = 3;
    standin_work_milliseconds = 1;
    current = 0;
}

/* Count a call, and return the status that a test set for it. */
static int entered(const char *function)
{
    int status = SUCCESS;
    pthread_mutex_lock(&recording);
    for (int n = 0; n < MOST_FUNCTIONS; n++) {
        if (!functions[n].name[0]) strncpy(functions[n].name, function, 63);
        if (!strcmp(functions[n].name, function)) {
            functions[n].calls++;
            break;
        }
    }
    if (!strcmp(failing, function) && failing_after-- <= 0) {
        failing[0] = 0;
        status = failing_status;
    }
    pthread_mutex_unlock(&recording);
    return status;
}

#define CHECK(condition, status)                                                                   \
    do {                                                                                           \
        if (!(condition)) return status;                                                           \
    } while (0)

#define BEGIN                                                                                      \
    do {                                                                                           \
        int status = entered(__func__);                                                            \
        CHECK(!status, status);                                                                    \
    } while (0)

#define IN_CONTEXT                                                                                 \
    do {                                                                                           \
        CHECK(current, INVALID_CONTEXT);                                                           \
        BEGIN;                                                                                     \
    } while (0)

/* Check a call that a capturing thread may make in relaxed mode only. */
#define SAFE CHECK(!captured || mode == RELAXED, CAPTURE_UNSUPPORTED)

/* Errors */

int cuGetErrorName(int status, const char **text)
{
    CHECK(status <= 999, INVALID_VALUE);
    *text = status == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OTHER";
    return SUCCESS;
}

int cuGetErrorString(int status, const char **text)
{
    *text = "what the driver says of it";
    return status > 999 ? INVALID_VALUE : SUCCESS;
}

/* Devices and contexts */

int cuInit(unsigned int flags)
{
    BEGIN;
    return flags ? INVALID_VALUE : SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    BEGIN;
    *version = 13000;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    BEGIN;
    *count = DEVICES;
    return SUCCESS;
}

/* A device is not its ordinal here, though it is with CUDA. */
int cuDeviceGet(int *device, int ordinal)
{
    BEGIN;
    CHECK(ordinal >= 0 && ordinal < DEVICES, INVALID_DEVICE);
    *device = 10 + ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int nbytes, int device)
{
    BEGIN;
    snprintf(name, nbytes, "Stand-in %d", device - 10);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *nbytes, int device)
{
    BEGIN;
    *nbytes = (size_t)(device - 9) << 30;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    BEGIN;
    switch (attribute) {
    case 16: *value = 132; break;
    case 38: *value = 50 << 20; break;
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 97: *value = 227 << 10; break;
    default: return INVALID_VALUE;
    }
    return device >= 10 && device < 10 + DEVICES ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN;
    *context = &contexts[device - 10];
    return SUCCESS;
}

int cuCtxGetCurrent(void **context)
{
    BEGIN;
    *context = current;
    return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
    BEGIN;
    current = context;
    return SUCCESS;
}

int cuCtxGetDevice(int *device)
{
    IN_CONTEXT;
    *device = 10 + (int)(current - contexts);
    return SUCCESS;
}

/* Memory */

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    IN_CONTEXT;
    *total = 1 << 30;
    *free_bytes = *total - ((size_t)standin_executables << 20);
    return SUCCESS;
}

int cuMemAlloc_v2(void **address, size_t nbytes)
{
    IN_CONTEXT;
    SAFE;
    CHECK(nbytes, INVALID_VALUE);
    *address = malloc(nbytes);
    memset(*address, 0xA5, nbytes);
    standin_buffers++;
    return SUCCESS;
}

int cuMemFree_v2(void *address)
{
    IN_CONTEXT;
    SAFE;
    free(address);
    standin_buffers--;
    return SUCCESS;
}

/* Work on streams: done at once, or kept for the graph. */

/* Streams that were not created here are not captured. */
static Stream *captured_stream(void *stream)
{
    for (int n = 0; n < MOST_STREAMS; n++)
        if (stream && streams[n] == stream) return streams[n]->capture ? stream : 0;
    return 0;
}

static void run(const Work *work)
{
    now_milliseconds += standin_work_milliseconds;
    if (!work->target) {
        standin_launch = work->launch;
        standin_launches++;
    } else if (work->source) {
        memmove(work->target, work->source, work->nbytes);
    } else {
        memset(work->target, work->value, work->nbytes);
    }
}

static int enqueue(void *stream, const Work *work)
{
    Stream *found = captured_stream(stream);
    int status = SUCCESS;
    pthread_mutex_lock(&recording);
    if (!found) {
        run(work);
    } else if (found->graph->count == MOST_WORKS) {
        status = INVALID_VALUE;
    } else {
        found->graph->works[found->graph->count++] = *work;
    }
    pthread_mutex_unlock(&recording);
    return status;
}

int cuMemcpyAsync(void *target, const void *source, size_t nbytes, void *stream)
{
    IN_CONTEXT;
    CHECK(target && source && nbytes, INVALID_VALUE);
    Work work = {.target = target, .source = source, .nbytes = nbytes};
    return enqueue(stream, &work);
}

/* The fields of a CUDA_MEMCPY2D that are read, in its order. */
typedef struct {
    size_t source_x, source_y;
    int source_type;
    const void *source_host, *source, *source_array;
    size_t source_pitch, target_x, target_y;
    int target_type;
    void *target_host, *target, *target_array;
    size_t target_pitch, width, rows;
} RowCopy;

int cuMemcpy2DAsync_v2(const RowCopy *copy, void *stream)
{
    IN_CONTEXT;
    CHECK(copy->source_type == UNIFIED && copy->target_type == UNIFIED, INVALID_VALUE);
    CHECK(copy->source && copy->target && copy->width && copy->rows, INVALID_VALUE);
    CHECK(copy->source_pitch >= copy->width && copy->target_pitch >= copy->width, INVALID_VALUE);
    CHECK(!copy->source_x && !copy->source_y && !copy->target_x && !copy->target_y, INVALID_VALUE);
    for (size_t row = 0; row < copy->rows; row++) {
        Work work = {.target = (char *)copy->target + row * copy->target_pitch,
                     .source = (const char *)copy->source + row * copy->source_pitch,
                     .nbytes = copy->width};
        const int status = enqueue(stream, &work);
        if (status) return status;
    }
    return SUCCESS;
}

int cuMemsetD8Async(void *target, unsigned char value, size_t nbytes, void *stream)
{
    IN_CONTEXT;
    CHECK(target && nbytes, INVALID_VALUE);
    Work work = {.target = target, .nbytes = nbytes, .value = value};
    return enqueue(stream, &work);
}

/* Streams */

int cuStreamCreate(Stream **stream, unsigned int flags)
{
    IN_CONTEXT;
    SAFE;
    CHECK(flags == NON_BLOCKING, INVALID_VALUE);
    *stream = calloc(1, sizeof **stream);
    (*stream)->device = standin_context_device();
    standin_streams++;
    for (int n = 0; n < MOST_STREAMS; n++) {
        if (!streams[n]) {
            streams[n] = *stream;
            return SUCCESS;
        }
    }
    return OUT_OF_MEMORY;
}

int cuStreamDestroy_v2(Stream *stream)
{
    IN_CONTEXT;
    for (int n = 0; n < MOST_STREAMS; n++)
        if (streams[n] == stream) streams[n] = 0;
    free(stream);
    standin_streams--;
    return SUCCESS;
}

int cuStreamSynchronize(void *stream)
{
    IN_CONTEXT;
    return captured_stream(stream) ? CAPTURE_UNSUPPORTED : SUCCESS;
}

/* Events */

int cuEventCreate(Event **event, unsigned int flags)
{
    IN_CONTEXT;
    CHECK(!flags || flags == NOT_TIMED, INVALID_VALUE);
    *event = calloc(1, sizeof **event);
    (*event)->is_timed = !flags;
    standin_events++;
    return SUCCESS;
}

int cuEventDestroy_v2(Event *event)
{
    IN_CONTEXT;
    free(event);
    standin_events--;
    return SUCCESS;
}

int cuEventRecord(Event *event, void *stream)
{
    IN_CONTEXT;
    Stream *found = captured_stream(stream);
    event->capture = found ? found->capture : 0;
    event->graph = found ? found->graph : 0;
    event->milliseconds = now_milliseconds;
    return SUCCESS;
}

/* A stream that waits for an event of a capture joins that. */
int cuStreamWaitEvent(Stream *stream, Event *event, unsigned int flags)
{
    IN_CONTEXT;
    CHECK(!flags, INVALID_VALUE);
    if (!event->capture) return SUCCESS;
    CHECK((uintptr_t)stream > 2, CAPTURE_UNSUPPORTED);
    CHECK(!stream->capture || stream->capture == event->capture, CAPTURE_UNSUPPORTED);
    stream->capture = event->capture;
    stream->graph = event->graph;
    return SUCCESS;
}

int cuEventSynchronize(Event *event)
{
    IN_CONTEXT;
    return event->capture ? CAPTURE_UNSUPPORTED : SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, Event *start, Event *end)
{
    IN_CONTEXT;
    CHECK(start->is_timed && end->is_timed, INVALID_HANDLE);
    *milliseconds = end->milliseconds - start->milliseconds;
    return SUCCESS;
}

/* Captures */

int cuStreamBeginCapture_v2(Stream *stream, int wanted)
{
    IN_CONTEXT;
    CHECK((uintptr_t)stream > 2 && !stream->capture, CAPTURE_UNSUPPORTED);
    stream->mode = wanted;
    stream->capture = ++captures;
    stream->graph = calloc(1, sizeof *stream->graph);
    captured += wanted != RELAXED;
    standin_graphs++;
    return SUCCESS;
}

int cuStreamEndCapture(Stream *stream, Graph **graph)
{
    int status = entered(__func__);
    *graph = 0;
    CHECK(stream->capture, INVALID_VALUE);
    captured -= stream->mode != RELAXED;
    stream->capture = 0;
    *graph = stream->graph;
    if (status) { /* an invalid capture has no graph */
        free(*graph);
        *graph = 0;
        standin_graphs--;
    }
    return status;
}

int cuStreamIsCapturing(void *stream, int *status)
{
    IN_CONTEXT;
    *status = captured_stream(stream) != 0;
    return SUCCESS;
}

int cuStreamGetCaptureInfo_v2(
    void *stream, int *status, uint64_t *id, void **graph, void **dependencies, size_t *count)
{
    IN_CONTEXT;
    CHECK(!graph && !dependencies && !count, INVALID_VALUE);
    Stream *found = captured_stream(stream);
    *status = found != 0;
    *id = found ? found->capture : 4711;
    return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *exchanged)
{
    BEGIN;
    int before = mode;
    mode = *exchanged;
    *exchanged = before;
    return SUCCESS;
}

/* Graphs */

int cuGraphInstantiateWithFlags(Graph **executable, const Graph *graph, unsigned long long flags)
{
    IN_CONTEXT;
    CHECK(!flags, INVALID_VALUE);
    *executable = malloc(sizeof *graph);
    memcpy(*executable, graph, sizeof *graph);
    standin_executables++;
    return SUCCESS;
}

int cuGraphDestroy(Graph *graph)
{
    BEGIN;
    free(graph);
    standin_graphs--;
    return SUCCESS;
}

int cuGraphUpload(Graph *executable, Stream *stream)
{
    IN_CONTEXT;
    return executable && stream ? SUCCESS : INVALID_VALUE;
}

int cuGraphLaunch(const Graph *executable, void *stream)
{
    IN_CONTEXT;
    for (int n = 0; n < executable->count; n++) {
        int status = enqueue(stream, &executable->works[n]);
        CHECK(!status, status);
    }
    return SUCCESS;
}

int cuGraphExecDestroy(Graph *executable)
{
    BEGIN;
    SAFE;
    free(executable);
    standin_executables--;
    return SUCCESS;
}

/* Modules and kernels: a module and its function are the address of the context's byte. */

int cuModuleLoadData(void **module, const char *image)
{
    IN_CONTEXT;
    SAFE;
    CHECK(!memcmp(image, "\177ELF", 4) || !memcmp(image, "//", 2), INVALID_IMAGE);
    *module = current;
    return SUCCESS;
}

int cuModuleUnload(void *module)
{
    BEGIN;
    return module ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    BEGIN;
    CHECK(strcmp(name, "absent"), NOT_FOUND);
    *function = module;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    IN_CONTEXT;
    CHECK(function && attribute == 8, INVALID_VALUE);
    standin_shared_bytes = value;
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, void *function, int threads, size_t shared_bytes)
{
    IN_CONTEXT;
    CHECK(function, INVALID_VALUE);
    *blocks = 2048 / threads - (int)(shared_bytes >> 16);
    return SUCCESS;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *function, const Config *config)
{
    IN_CONTEXT;
    CHECK(function && config->num_attributes == 1 && config->attributes->id == 4, INVALID_VALUE);
    const unsigned int *blocks = (const unsigned int *)config->attributes->value;
    CHECK(blocks[1] == 1 && blocks[2] == 1 && config->grid[0] % blocks[0] == 0, INVALID_VALUE);
    *clusters = 100 / (int)blocks[0] - (int)(config->shared_bytes >> 16);
    return SUCCESS;
}

int cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **extra)
{
    IN_CONTEXT;
    CHECK(arguments && !extra, INVALID_VALUE);
    Work work = {0};
    Record *record = &work.launch;
    memcpy(record->grid, config->grid, sizeof config->grid);
    memcpy(record->block, config->block, sizeof config->block);
    record->shared_bytes = config->shared_bytes;
    record->stream = (uint64_t)(uintptr_t)config->stream;
    record->function = (uint64_t)(uintptr_t)function;
    record->device = (int)((char *)function - contexts);
    for (int n = 0; n < standin_num_arguments; n++)
        memcpy(record->arguments + 8 * n, arguments[n], 8);
    for (unsigned int n = 0; n < config->num_attributes; n++) {
        const Attribute *attribute = &config->attributes[n];
        record->is_cooperative = attribute->id == 2 && *(const int *)attribute->value;
    }
    return enqueue(config->stream, &work);
}
