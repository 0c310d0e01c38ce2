/* The parts that the three calls share: arrays of a pseudo-layer, a layer's input, small products. */
#ifndef STANDIN_LAYERS_H
#define STANDIN_LAYERS_H

#include "space.h"

/* The arrays of a pseudo-layer in double, or their gradients; biases of a network without are
   zero. See struct placement for the shapes. */
struct weights {
    double *w_ih, *w_hh, *w_hr, *b_ih, *b_hh;
};

/* Zeros, in the pool's next place; large enough for any pseudo-layer. */
struct weights take_weights(const struct problem *problem, struct pool *pool);
void clear_weights(const struct problem *problem, struct weights weights);
void load_weights(
    const struct problem *problem, size_t pseudo_layer, const void *space, struct weights weights);
/* Adds gradients to those in the weight space. */
void add_weights(
    const struct problem *problem, size_t pseudo_layer, struct weights gradients, void *space);

/* Take memory for the input of any layer, or its gradient: [T, B, I or O*D]. */
double *take_sequences(const struct problem *problem, struct pool *pool);

/* The input of a layer: x, or what the layer before kept, as far as it is not dropped. Only rows
   that run at a step are touched. */
void load_layer_input(
    const struct problem *problem, size_t layer, const void *x, const struct kept *kept,
    double *input);

/* The vector of a step and a row of [T, B, size]. */
double *vector_at(
    const struct problem *problem, double *sequences, size_t size, size_t step, size_t row);

/* The part of a pseudo-layer in a tensor [L*D, B, size]. Without a tensor, zeros are loaded and
   nothing is stored. */
void load_state(
    const struct problem *problem, const void *tensor, size_t pseudo_layer, size_t size,
    double *to);
void store_state(
    const struct problem *problem, void *tensor, size_t pseudo_layer, size_t size,
    const double *from);

/* to = bias + M v;  to += M^T v;  M += a b^T; M is [rows, columns]. */
void affine(
    const double *matrix, const double *bias, size_t rows, size_t columns, const double *v,
    double *to);
void add_transposed_product(
    const double *matrix, size_t rows, size_t columns, const double *v, double *to);
void add_outer_product(
    double *matrix, size_t rows, size_t columns, const double *a, const double *b);
void add(double *to, const double *from, size_t count);

#endif
