/* RNN data descriptors: sequences of x or y. The checks are those of libcudnn 9.19, but for rows of
   length 0, which it takes when they are padded and dnnffi never makes. */
#include <stdlib.h>
#include <string.h>

#include "descriptors.h"
#include "numbers.h"

static cudnnStatus_t check_sequences(
    cudnnDataType_t type, cudnnRNNDataLayout_t layout, int max_length, int batch, int vector_size,
    const int lengths[])
{
    REQUIRE(
        layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED
            || layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED
            || layout == CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
        CUDNN_STATUS_BAD_PARAM, "there is no layout %d", (int)layout);
    REQUIRE(
        max_length >= 1 && batch >= 1 && vector_size >= 1, CUDNN_STATUS_BAD_PARAM,
        "%d steps, a batch of %d, vectors of %d", max_length, batch, vector_size);
    REQUIRE_OUTPUT(lengths);
    REQUIRE(
        type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_FLOAT
            || type == CUDNN_DATA_DOUBLE,
        CUDNN_STATUS_NOT_SUPPORTED, "data type %d", (int)type);
    REQUIRE(
        max_length <= max_steps(), CUDNN_STATUS_NOT_SUPPORTED, "%d steps are more than %d",
        max_length, max_steps());
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_lengths(
    cudnnRNNDataLayout_t layout, int max_length, int batch, const int lengths[])
{
    for (int b = 0; b < batch; b++)
        REQUIRE(
            0 <= lengths[b] && lengths[b] <= max_length, CUDNN_STATUS_BAD_PARAM,
            "length %d of row %d, with %d steps", lengths[b], b, max_length);
    if (layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED) return CUDNN_STATUS_SUCCESS;
    for (int b = 1; b < batch; b++)
        REQUIRE(
            lengths[b] <= lengths[b - 1], CUDNN_STATUS_BAD_PARAM,
            "packed rows must not grow longer: %d after %d", lengths[b], lengths[b - 1]);
    REQUIRE(
        lengths[0] == max_length && lengths[batch - 1] > 0, CUDNN_STATUS_BAD_PARAM,
        "packed rows of %d to %d steps, with %d steps", lengths[batch - 1], lengths[0],
        max_length);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *desc)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(desc);
    void *created;
    TRY(object_create(RNN_DATA, sizeof **desc, &created));
    *desc = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t desc)
{
    BEGIN_CALL();
    if (desc == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check(desc, RNN_DATA));
    free(desc->lengths);
    desc->lengths = NULL;
    object_destroy(desc);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(
    cudnnRNNDataDescriptor_t desc, cudnnDataType_t type, cudnnRNNDataLayout_t layout,
    int max_length, int batch, int vector_size, const int lengths[], void *padding)
{
    BEGIN_CALL();
    TRY(object_check(desc, RNN_DATA));
    TRY(check_sequences(type, layout, max_length, batch, vector_size, lengths));
    TRY(check_lengths(layout, max_length, batch, lengths));
    size_t bytes = (size_t)batch * sizeof *lengths;
    int *copy = malloc(bytes);
    REQUIRE(copy != NULL, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    memcpy(copy, lengths, bytes);
    free(desc->lengths);
    desc->object.is_set = true;
    desc->type = type;
    desc->layout = layout;
    desc->max_length = max_length;
    desc->batch = batch;
    desc->vector_size = vector_size;
    desc->lengths = copy;
    desc->fills_padding = padding != NULL;
    if (padding != NULL) memcpy(&desc->padding, padding, number_size(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNDataDescriptor(
    cudnnRNNDataDescriptor_t desc, cudnnDataType_t *type, cudnnRNNDataLayout_t *layout,
    int *max_length, int *batch, int *vector_size, int lengths_requested, int lengths[],
    void *padding)
{
    BEGIN_CALL();
    TRY(object_check(desc, RNN_DATA));
    REQUIRE(
        lengths_requested >= 0, CUDNN_STATUS_BAD_PARAM, "%d lengths requested", lengths_requested);
    REQUIRE(
        lengths_requested == 0 || lengths != NULL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        "there is no room for the lengths");
    if (type != NULL) *type = desc->type;
    if (layout != NULL) *layout = desc->layout;
    if (max_length != NULL) *max_length = desc->max_length;
    if (batch != NULL) *batch = desc->batch;
    if (vector_size != NULL) *vector_size = desc->vector_size;
    int count = lengths_requested < desc->batch ? lengths_requested : desc->batch;
    if (count > 0) memcpy(lengths, desc->lengths, (size_t)count * sizeof *lengths);
    if (padding != NULL && desc->fills_padding)
        memcpy(padding, &desc->padding, number_size(desc->type));
    return CUDNN_STATUS_SUCCESS;
}
