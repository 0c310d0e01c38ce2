/* Checks of a descriptor's attributes together: shapes, counts, types. */
#include "graph.h"
#include "numbers.h"

struct operands operands_of(const struct backend *operation)
{
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return (struct operands){
            3,
            {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W}};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return (struct operands){
            3,
            {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return (struct operands){
            3,
            {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return (struct operands){
            find_attribute(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC) == NULL ? 2 : 3,
            {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
             CUDNN_ATTR_OPERATION_POINTWISE_BDESC}};
    default: return (struct operands){0};
    }
}

static cudnnStatus_t check_tensor(const struct backend *tensor)
{
    int64_t rank = count_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    REQUIRE(
        rank == count_of(tensor, CUDNN_ATTR_TENSOR_STRIDES), CUDNN_STATUS_BAD_PARAM,
        "there are %lld dimensions and another number of strides", (long long)rank);
    for (int64_t i = 0; i < rank; i++)
        REQUIRE(
            int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, i, 0) >= 0
                && int64_of(tensor, CUDNN_ATTR_TENSOR_STRIDES, i, 0) >= 0,
            CUDNN_STATUS_BAD_PARAM, "dimension or stride %lld is negative", (long long)i);
    size_t size = number_size(enum_of(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, -1));
    int64_t alignment = int64_of(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0, 0);
    REQUIRE(size != 0, CUDNN_STATUS_NOT_SUPPORTED, "the data type is not known here");
    REQUIRE(
        alignment > 0 && alignment % (int64_t)size == 0, CUDNN_STATUS_BAD_PARAM,
        "an alignment of %lld bytes", (long long)alignment);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_convolution(const struct backend *convolution)
{
    static const struct {
        cudnnBackendAttributeName_t name;
        int64_t least;
    } arrays[] = {
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, 1},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0},
    };
    int64_t rank = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0, 0);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        REQUIRE(
            count_of(convolution, arrays[i].name) == rank, CUDNN_STATUS_BAD_PARAM,
            "attribute %d has not one element for each dimension", (int)arrays[i].name);
        for (int64_t d = 0; d < rank; d++)
            REQUIRE(
                int64_of(convolution, arrays[i].name, d, 0) >= arrays[i].least,
                CUDNN_STATUS_BAD_PARAM, "element %lld of attribute %d is too small",
                (long long)d, (int)arrays[i].name);
    }
    return CUDNN_STATUS_SUCCESS;
}

static int64_t dim(const struct backend *tensor, int64_t index)
{
    return int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, index, 1);
}

/* Elements from the first to the last in memory, and how many there are. */
static int64_t span_of(const struct backend *tensor, int64_t *elements)
{
    int64_t span = 1;
    *elements = 1;
    for (int64_t d = 0; d < count_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS); d++) {
        span += (dim(tensor, d) - 1) * int64_of(tensor, CUDNN_ATTR_TENSOR_STRIDES, d, 1);
        *elements *= dim(tensor, d);
    }
    return span;
}

/* As in cuDNN 9.19, images may have gaps, filters not. */
static cudnnStatus_t check_strides(
    const struct backend *x, const struct backend *w, const struct backend *y)
{
    int64_t elements;
    REQUIRE(
        span_of(x, &elements) >= elements && span_of(y, &elements) >= elements,
        CUDNN_STATUS_BAD_PARAM, "elements of an image overlap");
    REQUIRE(
        span_of(w, &elements) == elements, CUDNN_STATUS_BAD_PARAM, "a filter with gaps");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_convolved(
    const struct backend *convolution, const struct backend *x, const struct backend *w,
    const struct backend *y)
{
    int64_t rank = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0, 0);
    const struct backend *tensors[] = {x, w, y};
    for (int i = 0; i < 3; i++)
        REQUIRE(
            count_of(tensors[i], CUDNN_ATTR_TENSOR_DIMENSIONS) == rank + 2,
            CUDNN_STATUS_BAD_PARAM, "a tensor has not %lld dimensions", (long long)rank + 2);
    REQUIRE(
        dim(w, 1) > 0 && dim(x, 1) > 0 && dim(x, 1) % dim(w, 1) == 0, CUDNN_STATUS_BAD_PARAM,
        "%lld channels and a filter for %lld", (long long)dim(x, 1), (long long)dim(w, 1));
    TRY(check_strides(x, w, y));
    int64_t groups = dim(x, 1) / dim(w, 1);
    REQUIRE(
        dim(w, 0) % groups == 0, CUDNN_STATUS_BAD_PARAM, "%lld filters in %lld groups",
        (long long)dim(w, 0), (long long)groups);
    REQUIRE(
        dim(x, 0) == dim(y, 0) && dim(w, 0) == dim(y, 1), CUDNN_STATUS_BAD_PARAM,
        "images or filters of the output are another number");
    for (int64_t d = 0; d < rank; d++) {
        int64_t padded = dim(x, d + 2)
            + int64_of(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, d, 0)
            + int64_of(convolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, d, 0);
        int64_t dilation = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, d, 1);
        int64_t stride = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, d, 1);
        int64_t reach = padded - dilation * (dim(w, d + 2) - 1) - 1;
        REQUIRE(
            reach >= 0 && dim(y, d + 2) == reach / stride + 1, CUDNN_STATUS_BAD_PARAM,
            "dimension %lld of the output is %lld", (long long)d, (long long)dim(y, d + 2));
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Stricter than cuDNN 9.19, which does not look at shapes here. */
static cudnnStatus_t check_broadcast(const struct backend *from, const struct backend *to)
{
    int64_t rank = count_of(to, CUDNN_ATTR_TENSOR_DIMENSIONS);
    bool fits = count_of(from, CUDNN_ATTR_TENSOR_DIMENSIONS) == rank;
    for (int64_t d = 0; d < rank; d++)
        fits = fits && (dim(from, d) == 1 || dim(from, d) == dim(to, d));
    REQUIRE(fits, CUDNN_STATUS_BAD_PARAM, "a tensor does not broadcast to the other");
    return CUDNN_STATUS_SUCCESS;
}

/* cuDNN 9.19 takes either type and reads the bits as what is computed in. */
static cudnnStatus_t check_scales(
    const struct backend *operation, const struct backend *how, cudnnBackendAttributeName_t type,
    cudnnBackendAttributeName_t one, cudnnBackendAttributeName_t other)
{
    size_t size = enum_of(how, type, -1) == CUDNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
    const struct attribute *scales[] = {
        find_attribute(operation, one), find_attribute(operation, other)};
    for (int i = 0; i < 2; i++)
        REQUIRE(
            scales[i] == NULL || scales[i]->size == size, CUDNN_STATUS_BAD_PARAM,
            "a scale of %zu bytes where %zu are computed with", scales[i]->size, size);
    return CUDNN_STATUS_SUCCESS;
}

/* check_convolved, and a check of the scales. */
#define CHECK_CONVOLUTION(prefix, x, w, y) \
    do { \
        const struct backend *how = \
            descriptor_of(desc, CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_CONV_DESC, 0); \
        TRY(check_scales( \
            desc, how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_ALPHA, \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_BETA)); \
        return check_convolved(how, x, w, y); \
    } while (0)

cudnnStatus_t check_operands(const struct backend *desc)
{
    struct operands operands = operands_of(desc);
    const struct backend *t[3] = {NULL};
    for (int i = 0; i < operands.count; i++) t[i] = descriptor_of(desc, operands.names[i], 0);
    switch (desc->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return check_tensor(desc);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return check_convolution(desc);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        CHECK_CONVOLUTION(FORWARD, t[1], t[2], t[0]);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        CHECK_CONVOLUTION(BWD_DATA, t[0], t[1], t[2]);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        CHECK_CONVOLUTION(BWD_FILTER, t[1], t[0], t[2]);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        TRY(check_scales(
            desc, descriptor_of(desc, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0),
            CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1,
            CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2));
        TRY(check_broadcast(t[1], t[0]));
        return t[2] == NULL ? CUDNN_STATUS_SUCCESS : check_broadcast(t[2], t[0]);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        REQUIRE(
            count_of(desc, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
                == count_of(desc, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS),
            CUDNN_STATUS_BAD_PARAM, "there are not as many addresses as uids");
        return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_SUCCESS;
    }
}
