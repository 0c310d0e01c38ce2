/* Checks of arguments that the three calls on a problem share. */
#ifndef STANDIN_ARGUMENTS_H
#define STANDIN_ARGUMENTS_H

#include "space.h"

/* The region of an array of numbers, and of a buffer whose size the caller named. */
struct region array_region(
    const struct problem *problem, const char *name, const void *array, size_t count,
    enum access access, enum presence presence);
struct region weights_region(
    const struct problem *problem, const char *name, const void *weights, size_t bytes,
    enum access access);

/* Check that the sizes that the caller named are enough. */
struct named_sizes {
    size_t weights, workspace, reserve;
};
cudnnStatus_t check_sizes(
    const struct problem *problem, cudnnForwardMode_t mode, const struct named_sizes *sizes);

/* Check that cell states are given for the LSTM alone. */
cudnnStatus_t check_cell_array(const struct problem *problem, const char *name, const void *array);

/* Check that lengths in device memory are NULL, or those of the descriptors. */
cudnnStatus_t check_device_lengths(const struct problem *problem, const int32_t lengths[]);

/* Check that an array of a backward call has the contents that the forward call was given. */
cudnnStatus_t check_same(const char *name, uint64_t given_now, uint64_t given_to_forward);

#endif
