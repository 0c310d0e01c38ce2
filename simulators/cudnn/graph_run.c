/* Running a plan: checks every address, then computes the operations one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "descriptors.h"
#include "graph.h"
#include "memory.h"
#include "numbers.h"

enum { MAX_TENSORS = 32, WORKSPACE_ALIGNMENT = 16 };

/* A tensor of the graph in one run. */
struct value {
    const struct backend *tensor;
    void *address;   /* NULL where it is virtual */
    double *numbers; /* in the order of dimensions, NULL until they are known; owned */
    bool is_written;
    char name[32];
};

struct run {
    size_t count;
    struct value values[MAX_TENSORS];
};

static size_t size_of(const struct backend *tensor)
{
    int64_t size = 1;
    for (int64_t d = 0; d < count_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS); d++)
        size *= int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, d, 1);
    return (size_t)size;
}

/* Return the offset in memory, in elements, of the element with a number. */
static size_t offset_of(const struct backend *tensor, size_t number)
{
    int64_t offset = 0;
    for (int64_t d = count_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS) - 1; d >= 0; d--) {
        size_t dim = (size_t)int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, d, 1);
        offset += (int64_t)(number % dim) * int64_of(tensor, CUDNN_ATTR_TENSOR_STRIDES, d, 1);
        number /= dim;
    }
    return (size_t)offset;
}

static cudnnDataType_t type_of(const struct backend *tensor)
{
    return enum_of(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, 0);
}

static int64_t uid_of(const struct backend *tensor)
{
    return int64_of(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0, 0);
}

static struct value *value_of(struct run *run, const struct backend *tensor)
{
    for (size_t i = 0; i < run->count; i++)
        if (uid_of(run->values[i].tensor) == uid_of(tensor)) return &run->values[i];
    return NULL;
}

static cudnnStatus_t find_address(
    const struct backend *pack, const struct backend *tensor, void **address)
{
    for (int64_t i = 0; i < count_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS); i++)
        if (int64_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i, 0) == uid_of(tensor)) {
            const struct attribute *pointers =
                find_attribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
            *address = ((void **)pointers->elements)[i];
            return CUDNN_STATUS_SUCCESS;
        }
    return refuse(
        CUDNN_STATUS_BAD_PARAM, "the variant pack has no tensor %lld",
        (long long)uid_of(tensor));
}

static cudnnStatus_t add_value(
    struct run *run, const struct backend *pack, const struct backend *tensor, bool is_written)
{
    TRY(check_finalized(tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    struct value *value = value_of(run, tensor);
    if (value == NULL) {
        REQUIRE(run->count < MAX_TENSORS, CUDNN_STATUS_INTERNAL_ERROR, "too many tensors");
        value = &run->values[run->count++];
        *value = (struct value){.tensor = tensor};
        snprintf(value->name, sizeof value->name, "tensor %lld", (long long)uid_of(tensor));
        if (!is_virtual(tensor)) TRY(find_address(pack, tensor, &value->address));
    }
    REQUIRE(
        value->tensor == tensor, CUDNN_STATUS_BAD_PARAM, "two tensors have the uid %lld",
        (long long)uid_of(tensor));
    value->is_written = value->is_written || is_written;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_memory(
    const struct run *run, const struct backend *plan, const struct backend *pack)
{
    struct region regions[MAX_TENSORS + 1];
    size_t count = 0;
    for (size_t i = 0; i < run->count; i++) {
        const struct value *value = &run->values[i];
        if (is_virtual(value->tensor)) continue;
        size_t elements = offset_of(value->tensor, size_of(value->tensor) - 1) + 1;
        regions[count++] = (struct region){
            value->name,
            value->address,
            elements * number_size(type_of(value->tensor)),
            (size_t)int64_of(value->tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0, 1),
            value->is_written ? WRITE : READ,
            NEEDED,
        };
    }
    size_t bytes = (size_t)int64_of(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 0, 0);
    const struct attribute *workspace = find_attribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    void *address = workspace == NULL ? NULL : *(void **)workspace->elements;
    if (bytes > 0)
        regions[count++] = (struct region){
            "the workspace", address, bytes, WORKSPACE_ALIGNMENT, WRITE, NEEDED};
    TRY(check_regions(regions, count));
    if (bytes > 0) memset(address, 0xFF, bytes);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t load(struct value *value)
{
    if (value->numbers != NULL) return CUDNN_STATUS_SUCCESS;
    size_t size = size_of(value->tensor);
    value->numbers = calloc(size, sizeof *value->numbers);
    REQUIRE(
        value->numbers != NULL, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
        "out of memory");
    if (is_virtual(value->tensor)) return CUDNN_STATUS_SUCCESS;
    for (size_t i = 0; i < size; i++)
        value->numbers[i] = number_load(
            type_of(value->tensor), value->address, offset_of(value->tensor, i));
    return CUDNN_STATUS_SUCCESS;
}

static void store(struct value *value)
{
    cudnnDataType_t type = type_of(value->tensor);
    for (size_t i = 0; i < size_of(value->tensor); i++)
        if (is_virtual(value->tensor))
            value->numbers[i] = number_round(type, value->numbers[i]);
        else
            number_store(type, value->address, offset_of(value->tensor, i), value->numbers[i]);
}

/* The number of the element of a tensor that is broadcast to an element of another. */
static size_t broadcast(const struct backend *from, const struct backend *to, size_t number)
{
    size_t result = 0, step = 1;
    for (int64_t d = count_of(to, CUDNN_ATTR_TENSOR_DIMENSIONS) - 1; d >= 0; d--) {
        size_t dim = (size_t)int64_of(to, CUDNN_ATTR_TENSOR_DIMENSIONS, d, 1);
        size_t own = (size_t)int64_of(from, CUDNN_ATTR_TENSOR_DIMENSIONS, d, 1);
        if (own > 1) result += number % dim * step;
        step *= own;
        number /= dim;
    }
    return result;
}

static cudnnStatus_t run_pointwise(const struct backend *operation, struct value *const v[3])
{
    const struct backend *how =
        descriptor_of(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0);
    TRY(check_finalized(how, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
    int mode = enum_of(how, CUDNN_ATTR_POINTWISE_MODE, -1);
    REQUIRE(
        (mode == CUDNN_POINTWISE_ADD) == (v[2] != NULL),
        CUDNN_STATUS_BAD_PARAM, "mode %d with another number of tensors", mode);
    double alpha1 = float_of(operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1);
    double alpha2 = float_of(operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1);
    for (size_t i = 0; i < size_of(v[0]->tensor); i++) {
        double x = alpha1 * v[1]->numbers[broadcast(v[1]->tensor, v[0]->tensor, i)];
        double b = v[2] == NULL
            ? 0
            : alpha2 * v[2]->numbers[broadcast(v[2]->tensor, v[0]->tensor, i)];
        switch (mode) {
        case CUDNN_POINTWISE_ADD: x += b; break;
        case CUDNN_POINTWISE_RELU_FWD: x = x < 0 ? 0 : x; break;
        default: return refuse(CUDNN_STATUS_NOT_SUPPORTED, "there is no mode %d here", mode);
        }
        v[0]->numbers[i] = x;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run_convolution(const struct backend *operation, struct value *const v[3])
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t alpha, beta, convolution;
    } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC},
    };
    size_t kind = 0;
    while (kinds[kind].type != operation->type) kind++;
    TRY(check_finalized(
        descriptor_of(operation, kinds[kind].convolution, 0),
        CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
    size_t size = size_of(v[0]->tensor);
    double *result = malloc(size * sizeof *result);
    REQUIRE(
        result != NULL, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    convolve(operation, v[1]->numbers, v[2]->numbers, result);
    double alpha = float_of(operation, kinds[kind].alpha, 1);
    double beta = float_of(operation, kinds[kind].beta, 0);
    /* Old numbers are not read where they do not count: they may be NaN. */
    for (size_t i = 0; i < size; i++)
        v[0]->numbers[i] = alpha * result[i] + (beta == 0 ? 0 : beta * v[0]->numbers[i]);
    free(result);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run_operation(struct run *run, const struct backend *operation)
{
    struct operands operands = operands_of(operation);
    struct value *v[3] = {NULL};
    for (int i = 0; i < operands.count; i++) {
        v[i] = value_of(run, descriptor_of(operation, operands.names[i], 0));
        REQUIRE(
            i == 0 || !is_virtual(v[i]->tensor) || v[i]->numbers != NULL, CUDNN_STATUS_BAD_PARAM,
            "%s is read before it is written", v[i]->name);
        TRY(load(v[i]));
    }
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: TRY(run_pointwise(operation, v)); break;
    default: TRY(run_convolution(operation, v));
    }
    store(v[0]);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t run_plan(
    struct run *run, const struct backend *plan, const struct backend *pack)
{
    const struct backend *graph = descriptor_of(plan, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0);
    TRY(check_finalized(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
    int64_t count = count_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < count; i++) {
        const struct backend *operation = descriptor_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
        TRY(object_check_set(operation, BACKEND));
        struct operands operands = operands_of(operation);
        for (int t = 0; t < operands.count; t++)
            TRY(add_value(run, pack, descriptor_of(operation, operands.names[t], 0), t == 0));
    }
    TRY(check_memory(run, plan, pack));
    for (int64_t i = 0; i < count; i++)
        TRY(run_operation(run, descriptor_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i)));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(
    cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    TRY(check_finalized(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    TRY(check_finalized(pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    struct run run = {0};
    cudnnStatus_t status = run_plan(&run, plan, pack);
    for (size_t i = 0; i < run.count; i++) free(run.values[i].numbers);
    return status;
}
