#include "dropout.h"

#include <string.h>

#include "memory.h"

struct states {
    uint64_t magic;
    uint64_t seed;
    uint64_t drawn;
};

enum { STATES_SIZE = 1024, STATES_ALIGNMENT = 8 };
static const uint64_t STATES_MAGIC = 0x5ea7ed57a7e50001;

/* A bijection that scatters the bits: the finalizer of SplitMix64. */
static uint64_t scatter(uint64_t bits)
{
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
}

/* The number of that index, from 0 to 1: a function of seed and index alone. */
static double uniform(uint64_t seed, uint64_t index)
{
    uint64_t bits = scatter(scatter(seed + 0x9e3779b97f4a7c15) + index * 0x9e3779b97f4a7c15);
    return (double)(bits >> 11) * 0x1p-53;
}

void draw_mask(cudnnDropoutDescriptor_t dropout, double *mask, size_t count)
{
    struct states *states = dropout->states;
    double p = dropout->dropout, scale = p < 1 ? 1 / (1 - p) : 0;
    for (size_t i = 0; i < count; i++)
        mask[i] = uniform(states->seed, states->drawn + i) >= p ? scale : 0;
    states->drawn += count;
}

static cudnnStatus_t check_states(const void *states, size_t bytes)
{
    REQUIRE(
        bytes >= STATES_SIZE, CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
        "states of %zu bytes; %d are needed", bytes, STATES_SIZE);
    const struct region region = {"states", states, bytes, STATES_ALIGNMENT, WRITE, NEEDED};
    return check_regions(&region, 1);
}

static cudnnStatus_t check_seeded(const struct states *states)
{
    REQUIRE(
        states->magic == STATES_MAGIC, CUDNN_STATUS_BAD_PARAM,
        "the states were not set up by cudnnSetDropoutDescriptor");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_dropout(cudnnDropoutDescriptor_t dropout)
{
    TRY(object_check_set(dropout, DROPOUT));
    TRY(check_states(dropout->states, STATES_SIZE));
    return check_seeded(dropout->states);
}

static cudnnStatus_t check_arguments(
    cudnnDropoutDescriptor_t desc, cudnnHandle_t handle, float dropout, const void *states,
    size_t bytes)
{
    TRY(check_handle(handle));
    TRY(object_check(desc, DROPOUT));
    REQUIRE(
        dropout >= 0 && dropout <= 1, CUDNN_STATUS_BAD_PARAM, "a dropout of %g",
        (double)dropout);
    REQUIRE(
        dropout == 0 || states != NULL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        "there are no states to drop with");
    return states == NULL ? CUDNN_STATUS_SUCCESS : check_states(states, bytes);
}

static void set_dropout(
    cudnnDropoutDescriptor_t desc, float dropout, void *states, unsigned long long seed)
{
    desc->object.is_set = true;
    desc->dropout = dropout;
    desc->states = states;
    desc->seed = seed;
}

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *desc)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(desc);
    void *created;
    TRY(object_create(DROPOUT, sizeof **desc, &created));
    *desc = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t desc)
{
    BEGIN_CALL();
    if (desc == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check(desc, DROPOUT));
    object_destroy(desc);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    REQUIRE_OUTPUT(size);
    *size = STATES_SIZE;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetDropoutDescriptor(
    cudnnDropoutDescriptor_t desc, cudnnHandle_t handle, float dropout, void *states, size_t bytes,
    unsigned long long seed)
{
    BEGIN_CALL();
    TRY(check_arguments(desc, handle, dropout, states, bytes));
    if (states != NULL) {
        memset(states, 0, bytes);
        *(struct states *)states = (struct states){.magic = STATES_MAGIC, .seed = seed};
    }
    set_dropout(desc, dropout, states, seed);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRestoreDropoutDescriptor(
    cudnnDropoutDescriptor_t desc, cudnnHandle_t handle, float dropout, void *states, size_t bytes,
    unsigned long long seed)
{
    BEGIN_CALL();
    TRY(check_arguments(desc, handle, dropout, states, bytes));
    REQUIRE(states != NULL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there are no states to restore");
    TRY(check_seeded(states));
    set_dropout(desc, dropout, states, seed);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetDropoutDescriptor(
    cudnnDropoutDescriptor_t desc, cudnnHandle_t handle, float *dropout, void **states,
    unsigned long long *seed)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    TRY(object_check(desc, DROPOUT));
    REQUIRE_OUTPUT(dropout);
    REQUIRE_OUTPUT(states);
    REQUIRE_OUTPUT(seed);
    *dropout = desc->dropout;
    *states = desc->states;
    *seed = desc->seed;
    return CUDNN_STATUS_SUCCESS;
}
