/* Tensor and filter descriptors. Limits are those that libcudnn 9.19 was seen to have. */
#include <stdlib.h>
#include <string.h>

#include "descriptors.h"
#include "numbers.h"

static cudnnStatus_t check_dims(int rank, int least, const int dims[])
{
    REQUIRE(
        rank >= least, CUDNN_STATUS_BAD_PARAM, "%d dimensions are fewer than %d", rank, least);
    REQUIRE(
        rank <= CUDNN_DIM_MAX, CUDNN_STATUS_NOT_SUPPORTED, "%d dimensions are more than %d", rank,
        CUDNN_DIM_MAX);
    REQUIRE_OUTPUT(dims);
    for (int i = 0; i < rank; i++)
        REQUIRE(dims[i] > 0, CUDNN_STATUS_BAD_PARAM, "dimension %d is %d", i, dims[i]);
    return CUDNN_STATUS_SUCCESS;
}

/* Elements from the first to the last in memory; at most INT_MAX + 1 of them count. */
static int64_t extent(int rank, const int dims[], const int strides[])
{
    int64_t last = 0;
    for (int i = 0; i < rank; i++) {
        last += (dims[i] - (int64_t)1) * llabs(strides[i]);
        if (last > INT32_MAX) return (int64_t)INT32_MAX + 1;
    }
    return last + 1;
}

static cudnnStatus_t check_strides(int rank, const int dims[], const int strides[])
{
    REQUIRE_OUTPUT(strides);
    for (int i = 0; i < rank; i++)
        REQUIRE(
            strides[i] != 0 || dims[i] == 1, CUDNN_STATUS_BAD_PARAM, "stride %d is 0", i);
    REQUIRE(
        extent(rank, dims, strides) <= INT32_MAX, CUDNN_STATUS_NOT_SUPPORTED,
        "the tensor spans more than %d elements", INT32_MAX);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_type(cudnnDataType_t type)
{
    REQUIRE(number_size(type) != 0, CUDNN_STATUS_BAD_PARAM, "there is no data type %d", (int)type);
    return CUDNN_STATUS_SUCCESS;
}

static void set_tensor(
    cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank, const int dims[],
    const int strides[])
{
    tensor->object.is_set = true;
    tensor->type = type;
    tensor->rank = rank;
    memcpy(tensor->dims, dims, (size_t)rank * sizeof *dims);
    memcpy(tensor->strides, strides, (size_t)rank * sizeof *strides);
}

void describe_tensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rows, int columns)
{
    if (rows == 0) {
        /* cuDNN describes a missing matrix or bias by no dimensions. */
        tensor->object.is_set = true;
        tensor->rank = 0;
        return;
    }
    const int dims[] = {1, rows, columns}, strides[] = {rows * columns, columns, 1};
    set_tensor(tensor, type, 3, dims, strides);
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *desc)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(desc);
    void *created;
    TRY(object_create(TENSOR, sizeof **desc, &created));
    *desc = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc)
{
    BEGIN_CALL();
    if (desc == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check(desc, TENSOR));
    object_destroy(desc);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(
    cudnnTensorDescriptor_t desc, cudnnDataType_t type, int rank, const int dims[],
    const int strides[])
{
    BEGIN_CALL();
    TRY(object_check(desc, TENSOR));
    TRY(check_type(type));
    TRY(check_dims(rank, 2, dims));
    TRY(check_strides(rank, dims, strides));
    set_tensor(desc, type, rank, dims, strides);
    return CUDNN_STATUS_SUCCESS;
}

/* Strides of a packed tensor: in the order of the dimensions, or with the second one last. */
static void packed_strides(cudnnTensorFormat_t format, int rank, const int dims[], int strides[])
{
    int64_t stride = 1;
    if (format == CUDNN_TENSOR_NHWC) {
        strides[1] = 1;
        stride = dims[1];
    }
    for (int i = rank - 1; i >= 0; i--) {
        if (format == CUDNN_TENSOR_NHWC && i == 1) continue;
        strides[i] = stride <= INT32_MAX ? (int)stride : INT32_MAX;
        if (stride <= INT32_MAX) stride *= dims[i];
    }
}

cudnnStatus_t cudnnSetTensorNdDescriptorEx(
    cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format, cudnnDataType_t type, int rank,
    const int dims[])
{
    BEGIN_CALL();
    TRY(object_check(desc, TENSOR));
    TRY(check_type(type));
    TRY(check_dims(rank, 2, dims));
    REQUIRE(
        format == CUDNN_TENSOR_NCHW || format == CUDNN_TENSOR_NHWC,
        format == CUDNN_TENSOR_NCHW_VECT_C ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_BAD_PARAM,
        "there is no format %d here", (int)format);
    int strides[CUDNN_DIM_MAX];
    packed_strides(format, rank, dims, strides);
    TRY(check_strides(rank, dims, strides));
    set_tensor(desc, type, rank, dims, strides);
    return CUDNN_STATUS_SUCCESS;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(
    const cudnnTensorDescriptor_t desc, int rank_requested, cudnnDataType_t *type, int *rank,
    int dims[], int strides[])
{
    BEGIN_CALL();
    TRY(object_check(desc, TENSOR));
    REQUIRE_OUTPUT(type);
    REQUIRE_OUTPUT(rank);
    REQUIRE(rank_requested >= 0, CUDNN_STATUS_BAD_PARAM, "a rank of %d", rank_requested);
    int count = smaller(rank_requested, desc->rank);
    REQUIRE(
        count == 0 || (dims != NULL && strides != NULL), CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        "there is no room for the dimensions and strides");
    *type = desc->type;
    *rank = desc->rank;
    if (count == 0) return CUDNN_STATUS_SUCCESS;
    memcpy(dims, desc->dims, (size_t)count * sizeof *dims);
    memcpy(strides, desc->strides, (size_t)count * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t desc, size_t *size)
{
    BEGIN_CALL();
    TRY(object_check(desc, TENSOR));
    REQUIRE_OUTPUT(size);
    int64_t count = desc->rank == 0 ? 0 : extent(desc->rank, desc->dims, desc->strides);
    *size = (size_t)count * number_size(desc->type);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *desc)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(desc);
    void *created;
    TRY(object_create(FILTER, sizeof **desc, &created));
    *desc = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc)
{
    BEGIN_CALL();
    if (desc == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check(desc, FILTER));
    object_destroy(desc);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilterNdDescriptor(
    cudnnFilterDescriptor_t desc, cudnnDataType_t type, cudnnTensorFormat_t format, int rank,
    const int dims[])
{
    BEGIN_CALL();
    TRY(object_check(desc, FILTER));
    TRY(check_type(type));
    TRY(check_dims(rank, 3, dims));
    REQUIRE(
        format == CUDNN_TENSOR_NCHW || format == CUDNN_TENSOR_NHWC, CUDNN_STATUS_BAD_PARAM,
        "there is no format %d here", (int)format);
    desc->object.is_set = true;
    desc->type = type;
    desc->format = format;
    desc->rank = rank;
    memcpy(desc->dims, dims, (size_t)rank * sizeof *dims);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterNdDescriptor(
    const cudnnFilterDescriptor_t desc, int rank_requested, cudnnDataType_t *type,
    cudnnTensorFormat_t *format, int *rank, int dims[])
{
    BEGIN_CALL();
    TRY(object_check(desc, FILTER));
    REQUIRE_OUTPUT(type);
    REQUIRE_OUTPUT(format);
    REQUIRE_OUTPUT(rank);
    REQUIRE(rank_requested >= 0, CUDNN_STATUS_BAD_PARAM, "a rank of %d", rank_requested);
    int count = smaller(rank_requested, desc->rank);
    REQUIRE(
        count == 0 || dims != NULL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        "there is no room for the dimensions");
    *type = desc->type;
    *format = desc->format;
    *rank = desc->rank;
    if (count > 0) memcpy(dims, desc->dims, (size_t)count * sizeof *dims);
    return CUDNN_STATUS_SUCCESS;
}
