/* Workspace and reserve space: their sizes and contents. Both hold doubles. */
#ifndef STANDIN_SPACE_H
#define STANDIN_SPACE_H

#include "memory.h"
#include "problem.h"

/* The values that the forward pass keeps of one step of one row in one pseudo-layer; vectors of H
   numbers unless stated otherwise. Parts that the network does not need are NULL. */
struct slot {
    double *gates;       /* LSTM i f g o; GRU r z n and gh of n; else h. Later their gradients */
    double *h_before;    /* [O] the state that the step read */
    double *output;      /* [O] the state that it left */
    double *c_before;    /* LSTM: the cell that the step read */
    double *tanh_c;      /* LSTM: tanh of the cell that it left */
    double *clipped_before, *clipped; /* LSTM: 1 where these two were clipped, else 0 */
    double *unprojected; /* the output before the projection */
    double *d_output;    /* [O] the gradient of output, which backward data adds where there is a
                            projection: the gradient of its weights needs it */
};

/* The values that the forward pass keeps: in the reserve space for training, in the workspace for
   inference. */
struct kept {
    double *slots;
    double *masks; /* [L-1, T, B, O*D], NULL where nothing is dropped */
};

struct slot slot_at(
    const struct problem *problem, const struct kept *kept, size_t pseudo_layer, size_t step,
    size_t row);

/* The mask on the output of a layer at a step of a row: [O*D], NULL where nothing is dropped. */
const double *mask_at(
    const struct problem *problem, const struct kept *kept, size_t layer, size_t step, size_t row);

size_t masks_count(const struct problem *problem);

size_t workspace_bytes(const struct problem *problem, cudnnForwardMode_t mode);
size_t reserve_bytes(const struct problem *problem);

/* The regions of workspace and reserve space in a call, with the sizes that the caller named. */
struct region workspace_region(void *workspace, size_t bytes);
struct region reserve_region(void *reserve, size_t bytes);
enum { SPACE_ALIGNMENT = 16 };

/* Hands out parts of a workspace one after the other. */
struct pool {
    double *next;
    double *end;
};

/* Fill the workspace with NaN, since no call may rely on its contents or on zeros. */
struct pool open_workspace(void *workspace, size_t bytes);
double *take(struct pool *pool, size_t count);

struct kept kept_in_workspace(const struct problem *problem, struct pool *pool);
struct kept kept_in_reserve(const struct problem *problem, void *reserve);

/* The last call that completed on a reserve space. */
enum phase { FORWARD_DONE = 1, DATA_DONE, WEIGHTS_DONE };

/* Fingerprints of arrays of a forward call, which the backward calls must be given again. */
struct given {
    uint64_t x, hx, cx, y, weights;
};

/* Fingerprint of the vectors of x or y that are not padding. */
uint64_t fingerprint_of_sequences(
    const struct problem *problem, const void *vectors, size_t vector_size);
/* Fingerprint of numbers; NULL is zeros. */
uint64_t fingerprint_of(const struct problem *problem, const void *numbers, size_t count);

/* Closes a reserve space after a call that changed it. */
void seal_reserve(
    const struct problem *problem, void *reserve, enum phase phase, const struct given *given);

/* Check that a reserve space is that of a training forward pass of this problem, has reached the
   phase, and was not changed since. Store the fingerprints of the forward call in *given. */
cudnnStatus_t check_reserve(
    const struct problem *problem, const void *reserve, enum phase phase, struct given *given);

#endif
