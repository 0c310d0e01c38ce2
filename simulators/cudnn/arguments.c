#include "arguments.h"

struct region array_region(
    const struct problem *p, const char *name, const void *array, size_t count, enum access access,
    enum presence presence)
{
    return (struct region){name, array, count * p->item, p->item, access, presence};
}

struct region weights_region(
    const struct problem *p, const char *name, const void *weights, size_t bytes,
    enum access access)
{
    return (struct region){name, weights, bytes, p->item, access, NEEDED};
}

static cudnnStatus_t check_size(const char *name, size_t named, size_t needed)
{
    REQUIRE(
        named >= needed, CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
        "%s of %zu bytes; %zu are needed", name, named, needed);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_sizes(
    const struct problem *p, cudnnForwardMode_t mode, const struct named_sizes *sizes)
{
    TRY(check_size("a weight space", sizes->weights, weights_count(p) * p->item));
    TRY(check_size("a workspace", sizes->workspace, workspace_bytes(p, mode)));
    if (mode == CUDNN_FWD_MODE_INFERENCE) return CUDNN_STATUS_SUCCESS;
    return check_size("a reserve space", sizes->reserve, reserve_bytes(p));
}

cudnnStatus_t check_cell_array(const struct problem *p, const char *name, const void *array)
{
    REQUIRE(
        p->has_cell || array == NULL, CUDNN_STATUS_BAD_PARAM,
        "%s was given to a network without a cell", name);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_device_lengths(const struct problem *p, const int32_t lengths[])
{
    const struct region region = {
        "the lengths", lengths, p->batch * sizeof *lengths, sizeof *lengths, READ, OPTIONAL};
    TRY(check_regions(&region, 1));
    for (size_t b = 0; lengths != NULL && b < p->batch; b++)
        REQUIRE(
            lengths[b] == p->x->lengths[b], CUDNN_STATUS_BAD_PARAM,
            "row %zu has length %d on the device and %d in x", b, lengths[b], p->x->lengths[b]);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_same(const char *name, uint64_t given_now, uint64_t given_to_forward)
{
    REQUIRE(
        given_now == given_to_forward, CUDNN_STATUS_BAD_PARAM, "%s is not what it was in forward",
        name);
    return CUDNN_STATUS_SUCCESS;
}
