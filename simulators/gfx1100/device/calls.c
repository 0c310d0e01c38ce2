/* Every call of a HIP function: counted, logged, failed on demand; and violations. */
#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FUNCTIONS = 128, KEPT_VIOLATIONS = 64, MESSAGE_BYTES = 512 };

static pthread_mutex_t mutex;
static pthread_once_t made = PTHREAD_ONCE_INIT;

/* Names are string constants of the callers. */
static struct function {
    const char *name, *topic;
    uint64_t calls;
} functions[MAX_FUNCTIONS];
static size_t function_count;

static struct {
    char what[64];
    uint64_t calls_left;
    hipError_t status;
} fault;

static char messages[KEPT_VIOLATIONS][MESSAGE_BYTES];
static uint64_t violation_count;
static __thread hipError_t last_error;

static void make_mutex(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &attributes);
}

void lock(void)
{
    pthread_once(&made, make_mutex);
    pthread_mutex_lock(&mutex);
}

void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* GFX1100_LOG names a file, "-" for the error output. */
static FILE *log_file(void)
{
    static bool opened;
    static FILE *file;
    const char *name = getenv("GFX1100_LOG");
    if (!opened && name != NULL) file = strcmp(name, "-") == 0 ? stderr : fopen(name, "a");
    opened = true;
    return file;
}

static void write_log(const char *prefix, const char *format, va_list values)
{
    lock();
    FILE *file = log_file();
    if (file != NULL) {
        fputs(prefix, file);
        vfprintf(file, format, values);
        fputc('\n', file);
        fflush(file);
    }
    unlock();
}

void device_log(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    write_log("", format, values);
    va_end(values);
}

void gfx1100_report(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    write_log("VIOLATION ", format, values);
    va_end(values);
    lock();
    if (violation_count < KEPT_VIOLATIONS) {
        va_start(values, format);
        vsnprintf(messages[violation_count], MESSAGE_BYTES, format, values);
        va_end(values);
    }
    violation_count++;
    unlock();
}

static bool is_named(const char *what, const char *function, const char *topic)
{
    return strcmp(what, function) == 0 || strcmp(what, topic) == 0;
}

static void count_call(const char *name, const char *topic)
{
    size_t i = 0;
    while (i < function_count && strcmp(functions[i].name, name) != 0) i++;
    if (i == MAX_FUNCTIONS) return;
    if (i == function_count) functions[function_count++] = (struct function){name, topic, 0};
    functions[i].calls++;
}

hipError_t begin_call(const char *function, const char *topic)
{
    hipError_t status = hipSuccess;
    lock();
    count_call(function, topic);
    if (fault.calls_left > 0 && is_named(fault.what, function, topic) && --fault.calls_left == 0)
        status = fault.status;
    unlock();
    if (status != hipSuccess) device_log("%s fails on demand", function);
    return end_call(function, status);
}

hipError_t end_call(const char *function, hipError_t status)
{
    if (status != hipSuccess) {
        last_error = status;
        device_log("%s returns %d", function, status);
    }
    return status;
}

void gfx1100_fail(const char *function_or_topic, uint64_t n, int status)
{
    lock();
    snprintf(fault.what, sizeof fault.what, "%s", function_or_topic ? function_or_topic : "");
    fault.calls_left = n;
    fault.status = (hipError_t)status;
    unlock();
}

bool gfx1100_fault_is_armed(void)
{
    lock();
    bool armed = fault.calls_left > 0;
    unlock();
    return armed;
}

uint64_t gfx1100_calls(const char *function_or_topic)
{
    uint64_t calls = 0;
    lock();
    for (size_t i = 0; i < function_count; i++)
        if (is_named(function_or_topic, functions[i].name, functions[i].topic))
            calls += functions[i].calls;
    unlock();
    return calls;
}

uint64_t gfx1100_violations(void)
{
    lock();
    uint64_t count = violation_count;
    unlock();
    return count;
}

const char *gfx1100_violation(uint64_t index)
{
    return index < gfx1100_violations() && index < KEPT_VIOLATIONS ? messages[index] : NULL;
}

void gfx1100_reset(void)
{
    lock();
    violation_count = 0;
    function_count = 0;
    unlock();
    gfx1100_fail(NULL, 0, hipSuccess);
    gfx1100_set_capacity(DEFAULT_CAPACITY);
    gfx1100_set_fill(DEFAULT_FILL);
}

API hipError_t hipGetLastError(void)
{
    hipError_t status = last_error;
    last_error = hipSuccess;
    return status;
}

API hipError_t hipPeekAtLastError(void)
{
    return last_error;
}

API const char *hipGetErrorString(hipError_t status)
{
    static __thread char text[48];
    if (status == hipSuccess) return "no error";
    if (status == hipErrorOutOfMemory) return "out of memory";
    snprintf(text, sizeof text, "HIP error %d of the emulated gfx1100", status);
    return text;
}

API const char *hipGetErrorName(hipError_t status)
{
    if (status == hipSuccess) return "hipSuccess";
    return status == hipErrorOutOfMemory ? "hipErrorOutOfMemory" : "hipErrorUnknown";
}
