/* The random numbers of dropout. Their state is device memory, and a counter in it advances. */
#ifndef STANDIN_DROPOUT_H
#define STANDIN_DROPOUT_H

#include "descriptors.h"

/* Check that a descriptor can drop: it is live and set, and its states are still those set up. */
cudnnStatus_t check_dropout(cudnnDropoutDescriptor_t dropout);

/* Fills a mask with 0 (probability p of the descriptor) or 1 / (1 - p). */
void draw_mask(cudnnDropoutDescriptor_t dropout, double *mask, size_t count);

#endif
