/* One step of one row: the cells, and their derivatives. */
#ifndef STANDIN_CELL_H
#define STANDIN_CELL_H

#include "space.h"

/* Compute the output [H] before any projection from gx = W x + b [G*H] and gh = R h + b' [G*H]. The
   LSTM's cell c [H] is read and written; the slot gets the values that the derivative needs. */
void cell_forward(
    const struct problem *problem, const double *gx, const double *gh, double *c,
    struct slot *slot, double *output);

/* Replace the gates by their gradients. d_output [H] is the gradient of the
   output before any projection; that of the cell, dc [H], is read and written. d_direct [H] gets
   the gradient of the state before the step, without the part through gh. */
void cell_backward(
    const struct problem *problem, struct slot *slot, const double *d_output, double *dc,
    double *d_direct);

/* Compute the gradients of gx and gh from a slot that cell_backward changed. */
void gate_gradients(
    const struct problem *problem, const struct slot *slot, double *d_gx, double *d_gh);

#endif
