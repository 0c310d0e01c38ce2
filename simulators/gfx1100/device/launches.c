/* Kernel launches: checked against the metadata of the code object, then passed to the executor. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUP = 1024, MAX_ARGUMENT_BYTES = 4096, ARGUMENT_ALIGNMENT = 256 };

static gfx1100_executor executor;

void gfx1100_set_executor(gfx1100_executor chosen)
{
    executor = chosen;
}

struct geometry {
    uint32_t global[3], local[3]; /* in work-items */
    uint32_t dynamic_lds;
};

static bool check_geometry(const struct kernel *kernel, const struct geometry *g)
{
    uint64_t group = (uint64_t)g->local[0] * g->local[1] * g->local[2];
    uint32_t limit = kernel->max_group > 0 ? kernel->max_group : MAX_GROUP;
    if (group == 0 || group > limit) {
        gfx1100_report(
            "kernel %s: a group of %llu work-items, not 1 to %u", kernel->name,
            (unsigned long long)group, limit);
        return false;
    }
    if (g->global[0] == 0 || g->global[1] == 0 || g->global[2] == 0) {
        gfx1100_report("kernel %s: an empty grid", kernel->name);
        return false;
    }
    return true;
}

static bool check_buffer(
    const struct kernel *kernel, const struct argument *argument, const char *arguments)
{
    void *address;
    size_t offset, size;
    memcpy(&address, arguments + argument->offset, sizeof address);
    if (address == NULL) return true; /* an optional buffer */
    if (locate(address, 1, &offset, &size) == NO_ALLOCATION) {
        gfx1100_report(
            "kernel %s: argument %s = %p is not device memory", kernel->name, argument->name,
            address);
        return false;
    }
    device_log("  %s = %p, %zu into %zu bytes", argument->name, address, offset, size);
    return true;
}

static bool check_arguments(const struct kernel *kernel, const char *arguments, size_t bytes)
{
    for (size_t i = 0; i < kernel->argument_count; i++) {
        const struct argument *argument = &kernel->arguments[i];
        if (argument->kind == HIDDEN) continue;
        if (argument->offset + argument->size > bytes) {
            gfx1100_report(
                "kernel %s: %zu bytes of arguments end before %s", kernel->name, bytes,
                argument->name);
            return false;
        }
        if (argument->kind == GLOBAL_BUFFER && !check_buffer(kernel, argument, arguments))
            return false;
    }
    return true;
}

/* "hidden_block_count_y" is about axis 1. */
static bool is_about(const char *hidden, const char *prefix, int *axis)
{
    size_t length = strlen(prefix);
    if (strncmp(hidden, prefix, length) != 0) return false;
    *axis = hidden[length] - 'x';
    return *axis >= 0 && *axis < 3;
}

static uint64_t hidden_value(const char *hidden, const struct geometry *g)
{
    int axis;
    if (is_about(hidden, "hidden_block_count_", &axis)) return g->global[axis] / g->local[axis];
    if (is_about(hidden, "hidden_group_size_", &axis)) return g->local[axis];
    if (is_about(hidden, "hidden_remainder_", &axis)) return g->global[axis] % g->local[axis];
    if (strcmp(hidden, "hidden_grid_dims") == 0)
        return g->global[2] > 1 ? 3 : g->global[1] > 1 ? 2 : 1;
    return 0;
}

static void fill_hidden(const struct kernel *kernel, const struct geometry *g, char *segment)
{
    for (size_t i = 0; i < kernel->argument_count; i++) {
        const struct argument *argument = &kernel->arguments[i];
        if (argument->kind != HIDDEN) continue;
        uint64_t value = hidden_value(argument->hidden, g);
        size_t size = argument->size < sizeof value ? argument->size : sizeof value;
        memset(segment + argument->offset, 0, argument->size);
        memcpy(segment + argument->offset, &value, size);
    }
}

static hipError_t execute(
    const struct kernel *kernel, const struct geometry *g, const void *arguments, size_t bytes)
{
    size_t size = kernel->argument_bytes > bytes ? kernel->argument_bytes : bytes;
    void *segment;
    if (posix_memalign(&segment, ARGUMENT_ALIGNMENT, size + ARGUMENT_ALIGNMENT) != 0)
        return hipErrorOutOfMemory;
    memset(segment, 0, size + ARGUMENT_ALIGNMENT);
    if (bytes > 0) memcpy(segment, arguments, bytes);
    fill_hidden(kernel, g, segment);
    struct gfx1100_launch launch = {
        .name = kernel->name,
        .descriptor = kernel->descriptor,
        .image = kernel->object->image,
        .image_bytes = kernel->object->bytes,
        .dynamic_lds = g->dynamic_lds,
        .arguments = segment,
        .arguments_bytes = size,
    };
    memcpy(launch.global, g->global, sizeof launch.global);
    memcpy(launch.local, g->local, sizeof launch.local);
    int failed = executor(&launch);
    free(segment);
    if (failed) gfx1100_report("kernel %s could not be executed", kernel->name);
    gfx1100_check_red_zones();
    return failed ? hipErrorLaunchFailure : hipSuccess;
}

static hipError_t launch_packed(
    const struct kernel *kernel, const struct geometry *g, const void *arguments, size_t bytes)
{
    device_log(
        "launch %s, grid %u %u %u, group %u %u %u", kernel->name, g->global[0], g->global[1],
        g->global[2], g->local[0], g->local[1], g->local[2]);
    if (!check_geometry(kernel, g)) return hipErrorInvalidConfiguration;
    if (!check_arguments(kernel, arguments, bytes)) return hipErrorInvalidValue;
    if (executor == NULL) {
        gfx1100_report("kernel %s: there is no executor", kernel->name);
        return hipErrorNotSupported;
    }
    return execute(kernel, g, arguments, bytes);
}

/* Arguments come as one packed buffer, or as one pointer for each. */
static hipError_t launch(
    hipFunction_t function, const struct geometry *g, void **parameters, void **extra)
{
    const struct kernel *kernel = (const struct kernel *)function;
    if (kernel == NULL) return hipErrorInvalidHandle;
    if (extra != NULL) {
        const void *packed = NULL;
        size_t bytes = 0;
        for (; *extra != HIP_LAUNCH_PARAM_END; extra += 2) {
            if (extra[0] == HIP_LAUNCH_PARAM_BUFFER_POINTER) packed = extra[1];
            if (extra[0] == HIP_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t *)extra[1];
        }
        return launch_packed(kernel, g, packed, bytes);
    }
    char packed[MAX_ARGUMENT_BYTES] = {0};
    size_t bytes = 0, given = 0;
    for (size_t i = 0; i < kernel->argument_count; i++) {
        const struct argument *argument = &kernel->arguments[i];
        if (argument->kind == HIDDEN) continue;
        if (argument->offset + argument->size > sizeof packed) return hipErrorInvalidValue;
        memcpy(packed + argument->offset, parameters[given++], argument->size);
        if (argument->offset + argument->size > bytes) bytes = argument->offset + argument->size;
    }
    return launch_packed(kernel, g, packed, bytes);
}

/* The grid is given in work-items here, and in groups in the two below. */
API hipError_t hipExtModuleLaunchKernel(
    hipFunction_t function, uint32_t global_x, uint32_t global_y, uint32_t global_z,
    uint32_t local_x, uint32_t local_y, uint32_t local_z, size_t dynamic_lds, hipStream_t stream,
    void **parameters, void **extra, hipEvent_t start, hipEvent_t stop, uint32_t flags)
{
    (void)flags;
    BEGIN("launch");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    struct geometry g = {
        {global_x, global_y, global_z}, {local_x, local_y, local_z}, (uint32_t)dynamic_lds};
    if (start != NULL) hipEventRecord(start, stream);
    hipError_t status = launch(function, &g, parameters, extra);
    if (stop != NULL) hipEventRecord(stop, stream);
    END(status);
}

API hipError_t hipModuleLaunchKernel(
    hipFunction_t function, unsigned groups_x, unsigned groups_y, unsigned groups_z,
    unsigned local_x, unsigned local_y, unsigned local_z, unsigned dynamic_lds,
    hipStream_t stream, void **parameters, void **extra)
{
    BEGIN("launch");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    struct geometry g = {
        {groups_x * local_x, groups_y * local_y, groups_z * local_z},
        {local_x, local_y, local_z},
        dynamic_lds};
    END(launch(function, &g, parameters, extra));
}

API hipError_t hipModuleLaunchCooperativeKernel(
    hipFunction_t function, unsigned groups_x, unsigned groups_y, unsigned groups_z,
    unsigned local_x, unsigned local_y, unsigned local_z, unsigned dynamic_lds,
    hipStream_t stream, void **parameters)
{
    return hipModuleLaunchKernel(
        function, groups_x, groups_y, groups_z, local_x, local_y, local_z, dynamic_lds, stream,
        parameters, NULL);
}
