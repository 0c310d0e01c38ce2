#include "call.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_SIZE = 512 };
enum { DEFAULT_VERSION = 91900, DEFAULT_MAX_STEPS = 65535, DEFAULT_MAX_OPERATIONS = 4 };

/* PLAIN functions return no status; a caller cannot recover from a failed DESTROYS. */
enum sort { PLAIN, DESTROYS, RETURNS_STATUS };

struct function {
    const char *name;
    enum sort sort;
    uint64_t calls;
    uint64_t fail_at; /* the number of the call, 0 for none */
    cudnnStatus_t fail_with;
    cudaStream_t stream;
};

static struct function functions[] = {
    {.name = "cudnnGetVersion", .sort = PLAIN},
    {.name = "cudnnGetCudartVersion", .sort = PLAIN},
    {.name = "cudnnGetMaxDeviceVersion", .sort = PLAIN},
    {.name = "cudnnGetErrorString", .sort = PLAIN},
    {.name = "cudnnGetLastErrorString", .sort = PLAIN},
    {.name = "cudnnCreate", .sort = RETURNS_STATUS},
    {.name = "cudnnDestroy", .sort = DESTROYS},
    {.name = "cudnnSetStream", .sort = RETURNS_STATUS},
    {.name = "cudnnGetStream", .sort = RETURNS_STATUS},
    {.name = "cudnnCreateTensorDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnDestroyTensorDescriptor", .sort = DESTROYS},
    {.name = "cudnnSetTensorNdDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnSetTensorNdDescriptorEx", .sort = RETURNS_STATUS},
    {.name = "cudnnGetTensorNdDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnGetTensorSizeInBytes", .sort = RETURNS_STATUS},
    {.name = "cudnnCreateFilterDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnDestroyFilterDescriptor", .sort = DESTROYS},
    {.name = "cudnnSetFilterNdDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnGetFilterNdDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnCreateDropoutDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnDestroyDropoutDescriptor", .sort = DESTROYS},
    {.name = "cudnnDropoutGetStatesSize", .sort = RETURNS_STATUS},
    {.name = "cudnnSetDropoutDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnRestoreDropoutDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnGetDropoutDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnCreateRNNDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnDestroyRNNDescriptor", .sort = DESTROYS},
    {.name = "cudnnSetRNNDescriptor_v8", .sort = RETURNS_STATUS},
    {.name = "cudnnGetRNNDescriptor_v8", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNSetClip_v8", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNSetClip_v9", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNGetClip_v8", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNGetClip_v9", .sort = RETURNS_STATUS},
    {.name = "cudnnBuildRNNDynamic", .sort = RETURNS_STATUS},
    {.name = "cudnnCreateRNNDataDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnDestroyRNNDataDescriptor", .sort = DESTROYS},
    {.name = "cudnnSetRNNDataDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnGetRNNDataDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnGetRNNTempSpaceSizes", .sort = RETURNS_STATUS},
    {.name = "cudnnGetRNNWeightSpaceSize", .sort = RETURNS_STATUS},
    {.name = "cudnnGetRNNWeightParams", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNForward", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNBackwardData_v8", .sort = RETURNS_STATUS},
    {.name = "cudnnRNNBackwardWeights_v8", .sort = RETURNS_STATUS},
    {.name = "cudnnBackendCreateDescriptor", .sort = RETURNS_STATUS},
    {.name = "cudnnBackendDestroyDescriptor", .sort = DESTROYS},
    {.name = "cudnnBackendFinalize", .sort = RETURNS_STATUS},
    {.name = "cudnnBackendSetAttribute", .sort = RETURNS_STATUS},
    {.name = "cudnnBackendGetAttribute", .sort = RETURNS_STATUS},
    {.name = "cudnnBackendExecute", .sort = RETURNS_STATUS},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static struct function any = {.name = "*"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct function *running; /* NULL in a control function */
static const char *running_name;

static uint64_t violations, refusals;
static char last_violation[MESSAGE_SIZE];
static const char *last_failed = "";
static cudaStream_t last_stream;
static size_t version = DEFAULT_VERSION;
static int steps_limit = DEFAULT_MAX_STEPS;
static int operations_limit = DEFAULT_MAX_OPERATIONS;
static bool threads_checked = true;

/* The last error of a thread; as in cuDNN, reading it clears it. */
static _Thread_local char last_error[MESSAGE_SIZE];

static struct function *find(const char *name)
{
    if (name == NULL) return NULL;
    if (strcmp(name, any.name) == 0) return &any;
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (strcmp(name, functions[i].name) == 0) return &functions[i];
    return NULL;
}

static bool counted_as_failing(struct function *function)
{
    function->calls++;
    return function->calls == function->fail_at;
}

/* A forked child finds the lock free, and the data that it guards consistent. */
static void begin_fork(void) { pthread_mutex_lock(&lock); }
static void end_fork(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void be_told_of_forks(void)
{
    pthread_atfork(begin_fork, end_fork, end_fork);
}

struct call call_begin(const char *name)
{
    pthread_mutex_lock(&lock);
    running = find(name);
    running_name = name;
    if (running == NULL) {
        fprintf(stderr, "stand-in: %s is missing in the table of functions\n", name);
        abort();
    }
    struct function *failing = counted_as_failing(running) ? running : NULL;
    if (running->sort == RETURNS_STATUS && counted_as_failing(&any)) failing = &any;
    if (failing == NULL) return (struct call){CUDNN_STATUS_SUCCESS};
    last_failed = running->name;
    snprintf(last_error, sizeof last_error, "%s: failed on request of the test", name);
    return (struct call){failing->fail_with};
}

struct call control_begin(const char *name)
{
    pthread_mutex_lock(&lock);
    running = NULL;
    running_name = name;
    return (struct call){CUDNN_STATUS_SUCCESS};
}

void call_end(struct call *call)
{
    (void)call;
    pthread_mutex_unlock(&lock);
}

static bool is_not_supported(cudnnStatus_t status)
{
    return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t refuse(cudnnStatus_t status, const char *format, ...)
{
    char reason[MESSAGE_SIZE / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    snprintf(last_error, sizeof last_error, "%s: %s", running_name, reason);
    if (is_not_supported(status)) {
        refusals++;
    } else {
        violations++;
        memcpy(last_violation, last_error, sizeof last_violation);
    }
    return status;
}

void call_on_stream(cudaStream_t stream)
{
    if (running != NULL) running->stream = stream;
}

void stream_was_set(cudaStream_t stream)
{
    last_stream = stream;
}

int max_steps(void)
{
    return steps_limit;
}

int max_operations(void)
{
    return operations_limit;
}

bool handles_stay_with_threads(void)
{
    return threads_checked;
}

size_t cudnnGetVersion(void)
{
    BEGIN_PLAIN_CALL();
    return version;
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    BEGIN_PLAIN_CALL();
    if (message == NULL || max_size == 0) {
        refuse(CUDNN_STATUS_BAD_PARAM, "there is no room for the message");
        return;
    }
    snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

uint64_t standin_violations(void)
{
    BEGIN_CONTROL();
    return violations;
}

uint64_t standin_refusals(void)
{
    BEGIN_CONTROL();
    return refusals;
}

const char *standin_last_violation(void)
{
    return last_violation;
}

int standin_fail(const char *name, uint64_t nth, int status)
{
    BEGIN_CONTROL();
    struct function *function = find(name);
    if (function == NULL || function->sort == PLAIN) {
        if (function != &any) return -1;
    }
    function->fail_at = nth == 0 ? 0 : function->calls + nth;
    function->fail_with = (cudnnStatus_t)status;
    return 0;
}

const char *standin_failed(void)
{
    BEGIN_CONTROL();
    return last_failed;
}

uint64_t standin_calls(const char *name)
{
    BEGIN_CONTROL();
    const struct function *function = find(name);
    return function == NULL ? UINT64_MAX : function->calls;
}

uintptr_t standin_last_stream(void)
{
    BEGIN_CONTROL();
    return (uintptr_t)last_stream;
}

uintptr_t standin_stream_of(const char *name)
{
    BEGIN_CONTROL();
    const struct function *function = find(name);
    return function == NULL ? UINTPTR_MAX : (uintptr_t)function->stream;
}

void standin_set_version(size_t number)
{
    BEGIN_CONTROL();
    version = number;
}

void standin_set_max_steps(int steps)
{
    BEGIN_CONTROL();
    steps_limit = steps;
}

void standin_set_max_operations(int operations)
{
    BEGIN_CONTROL();
    operations_limit = operations;
}

void standin_check_threads(int on)
{
    BEGIN_CONTROL();
    threads_checked = on != 0;
}

static void forget(struct function *function)
{
    function->calls = 0;
    function->fail_at = 0;
    function->stream = NULL;
}

void standin_reset(void)
{
    BEGIN_CONTROL();
    for (size_t i = 0; i < FUNCTIONS; i++) forget(&functions[i]);
    forget(&any);
    violations = refusals = 0;
    last_violation[0] = last_error[0] = '\0';
    last_failed = "";
    last_stream = NULL;
    version = DEFAULT_VERSION;
    steps_limit = DEFAULT_MAX_STEPS;
    operations_limit = DEFAULT_MAX_OPERATIONS;
    threads_checked = true;
}
