/* One RNN problem, put together from the descriptors of a call, and where its numbers lie. */
#ifndef STANDIN_PROBLEM_H
#define STANDIN_PROBLEM_H

#include "descriptors.h"

/* T steps, B batch, I input size, H hidden size, P projection size, O = P or H, L layers,
   D directions, G gates. A pseudo-layer is one direction of one layer; there are L*D. */
struct problem {
    const struct cudnnRNNStruct *rnn;
    const struct cudnnRNNDataStruct *x; /* NULL where only the network matters */
    cudnnRNNMode_t mode;
    cudnnDataType_t type;
    size_t item; /* bytes of a number */
    size_t layers, directions, pseudo_layers, gates;
    size_t input, hidden, output;
    size_t width; /* O*D, of y */
    bool has_cell, is_projected, is_biased;
    double dropout; /* between layers; 0 where nothing can be dropped */
    size_t steps, batch;
    size_t rows; /* of x and y in memory: of all steps, padding included */
};

/* The network of an RNN descriptor. */
cudnnStatus_t make_network(cudnnRNNDescriptor_t rnn, struct problem *problem);

/* The network on the sequences of x. */
cudnnStatus_t make_problem(
    cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t x, struct problem *problem);

/* Check that the other descriptors of a call agree with the problem. */
cudnnStatus_t check_y(const struct problem *problem, cudnnRNNDataDescriptor_t y);
cudnnStatus_t check_h(const struct problem *problem, cudnnTensorDescriptor_t h);
cudnnStatus_t check_c(const struct problem *problem, cudnnTensorDescriptor_t c);

size_t layer_input_size(const struct problem *problem, size_t layer);
bool is_reversed(const struct problem *problem, size_t pseudo_layer);

/* Return whether a row is still running at a step. */
bool is_running(const struct problem *problem, size_t step, size_t row);

/* Return the index in memory of the vector of a step and a row. A packed one must be running. */
size_t vector_index(const struct problem *problem, size_t step, size_t row);

/* The number of elements of hx, and of cx. */
size_t h_count(const struct problem *problem);
size_t c_count(const struct problem *problem);

/* The offsets of a pseudo-layer's arrays in the weight space, in elements: w_ih [G*H, input],
   w_hh [G*H, O], w_hr [P, H], b_ih and b_hh [G*H]. An array that the network lacks is empty. */
struct placement {
    size_t input;
    size_t w_ih, w_hh, w_hr, b_ih, b_hh;
};
struct placement weights_of(const struct problem *problem, size_t pseudo_layer);
size_t weights_count(const struct problem *problem);

#endif
