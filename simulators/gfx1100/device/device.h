/* Declarations that the files of the device library share. */
#ifndef GFX1100_DEVICE_H
#define GFX1100_DEVICE_H

#include "control.h"

#include <hip/hip_runtime_api.h>

#include <pthread.h>

#define API GFX1100_API

/* calls.c: one lock for all state; each HIP function begins and ends here. */
void lock(void);
void unlock(void);
void device_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
hipError_t begin_call(const char *function, const char *topic);
hipError_t end_call(const char *function, hipError_t status);

#define BEGIN(topic)                                             \
    do {                                                         \
        hipError_t injected_ = begin_call(__func__, topic);      \
        if (injected_ != hipSuccess) return injected_;           \
    } while (0)
#define END(status) return end_call(__func__, status)
#define REQUIRE(condition, status)      \
    do {                                \
        if (!(condition)) END(status);  \
    } while (0)

/* memory.c */
enum { DEFAULT_FILL = 0xFF };
#define DEFAULT_CAPACITY ((size_t)16 << 30)
enum place { IN_ALLOCATION, PAST_ALLOCATION, NO_ALLOCATION };
enum place locate(const void *address, size_t bytes, size_t *offset, size_t *size);

/* streams.c */
bool is_stream(hipStream_t stream, const char *who);

/* metadata.c: metadata of the kernels of a code object. */
enum argument_kind { BY_VALUE, GLOBAL_BUFFER, HIDDEN };
struct argument {
    uint32_t offset, size;
    enum argument_kind kind;
    char hidden[40]; /* the value_kind of a hidden one */
    char name[48];
};
struct kernel {
    char *name, *descriptor;
    uint32_t argument_bytes, max_group, wavefront;
    struct argument *arguments;
    size_t argument_count;
    const struct code_object *object;
};
struct code_object {
    char *image;
    size_t bytes;
    struct kernel *kernels;
    size_t kernel_count;
    struct code_object *next;
};
/* Read one AMDGPU metadata note into the object; false if it cannot be parsed. */
bool read_metadata(struct code_object *object, const void *note, size_t bytes);

#endif
