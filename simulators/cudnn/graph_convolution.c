/* The three convolutions as plain loops: one product for each meeting of x, w and y. */
#include <string.h>

#include "graph.h"

enum { SPATIAL = 3 };

/* Sizes with three spatial dimensions; those that are missing come first, of size 1. */
struct shape {
    int64_t images, channels, spatial[SPATIAL];
};

static struct shape shape_of(const struct backend *tensor)
{
    int64_t rank = count_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    struct shape shape = {
        int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, 0, 1),
        int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, 1, 1),
        {1, 1, 1},
    };
    for (int64_t d = 2; d < rank; d++)
        shape.spatial[SPATIAL - rank + d] = int64_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, d, 1);
    return shape;
}

static int64_t index_in(
    const struct shape *shape, int64_t image, int64_t channel, const int64_t at[SPATIAL])
{
    int64_t index = image * shape->channels + channel;
    for (int d = 0; d < SPATIAL; d++) index = index * shape->spatial[d] + at[d];
    return index;
}

/* Steps to the next point; false after the last. */
static bool next(const struct shape *shape, int64_t at[SPATIAL])
{
    for (int d = SPATIAL - 1; d >= 0; d--) {
        if (++at[d] < shape->spatial[d]) return true;
        at[d] = 0;
    }
    return false;
}

struct movement {
    int64_t stride[SPATIAL], dilation[SPATIAL], padding[SPATIAL];
    bool flips;
};

static struct movement movement_of(const struct backend *convolution)
{
    struct movement m = {{1, 1, 1}, {1, 1, 1}, {0, 0, 0}, false};
    int64_t rank = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0, 0);
    for (int64_t d = 0; d < rank; d++) {
        int64_t to = SPATIAL - rank + d;
        m.stride[to] = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, d, 1);
        m.dilation[to] = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, d, 1);
        m.padding[to] = int64_of(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, d, 0);
    }
    m.flips = enum_of(convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
        == CUDNN_CONVOLUTION;
    return m;
}

/* Compute the position in x of a tap of the filter for an output; false in the padding. */
static bool meets(
    const struct movement *m, const struct shape *x, const struct shape *w,
    const int64_t output[SPATIAL], const int64_t tap[SPATIAL], int64_t input[SPATIAL])
{
    for (int d = 0; d < SPATIAL; d++) {
        int64_t step = m->flips ? w->spatial[d] - 1 - tap[d] : tap[d];
        input[d] = output[d] * m->stride[d] - m->padding[d] + step * m->dilation[d];
        if (input[d] < 0 || input[d] >= x->spatial[d]) return false;
    }
    return true;
}

/* The indices of x, w and y among the operands of an operation. */
struct role {
    cudnnBackendAttributeName_t convolution;
    int x, w, y;
};

static struct role role_of(const struct backend *operation)
{
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return (struct role){CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, 1, 2, 0};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return (struct role){CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, 0, 1, 2};
    default: return (struct role){CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, 1, 0, 2};
    }
}

void convolve(
    const struct backend *operation, const double *first, const double *second, double *result)
{
    const struct operands names = operands_of(operation);
    const struct role role = role_of(operation);
    struct shape shapes[3];
    for (int i = 0; i < 3; i++) shapes[i] = shape_of(descriptor_of(operation, names.names[i], 0));
    const struct shape *x = &shapes[role.x], *w = &shapes[role.w], *y = &shapes[role.y];
    const struct movement m = movement_of(descriptor_of(operation, role.convolution, 0));
    const struct shape *written = &shapes[0];
    int64_t size = written->images * written->channels;
    for (int d = 0; d < SPATIAL; d++) size *= written->spatial[d];
    memset(result, 0, (size_t)size * sizeof *result);

    int64_t per_group = w->images / (x->channels / w->channels);
    for (int64_t n = 0; n < x->images; n++)
        for (int64_t k = 0; k < w->images; k++)
            for (int64_t c = 0; c < w->channels; c++) {
                int64_t channel = k / per_group * w->channels + c;
                int64_t output[SPATIAL] = {0}, tap[SPATIAL] = {0}, input[SPATIAL];
                do {
                    do {
                        if (!meets(&m, x, w, output, tap, input)) continue;
                        int64_t at[3];
                        at[role.x] = index_in(x, n, channel, input);
                        at[role.w] = index_in(w, k, c, tap);
                        at[role.y] = index_in(y, n, k, output);
                        result[at[0]] += first[at[1]] * second[at[2]];
                    } while (next(w, tap));
                } while (next(y, output));
            }
}
