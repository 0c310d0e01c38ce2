#include "layers.h"

#include <string.h>

#include "numbers.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct weights take_weights(const struct problem *p, struct pool *pool)
{
    size_t gates = p->gates * p->hidden;
    return (struct weights){
        .w_ih = take(pool, gates * larger(p->input, p->width)),
        .w_hh = take(pool, gates * p->output),
        .w_hr = take(pool, p->output * p->hidden),
        .b_ih = take(pool, gates),
        .b_hh = take(pool, gates),
    };
}

/* An array of a pseudo-layer: its offset in the weight space, its copy in double, its size. */
struct part {
    size_t place;
    double *numbers;
    size_t count;
};
enum { PARTS = 5 };

static void parts_of(
    const struct problem *p, size_t pseudo_layer, struct weights w, struct part parts[PARTS])
{
    struct placement place = weights_of(p, pseudo_layer);
    size_t gates = p->gates * p->hidden, biases = p->is_biased ? gates : 0;
    parts[0] = (struct part){place.w_ih, w.w_ih, gates * place.input};
    parts[1] = (struct part){place.w_hh, w.w_hh, gates * p->output};
    parts[2] = (struct part){place.w_hr, w.w_hr, p->is_projected ? p->output * p->hidden : 0};
    parts[3] = (struct part){place.b_ih, w.b_ih, biases};
    parts[4] = (struct part){place.b_hh, w.b_hh, biases};
}

void clear_weights(const struct problem *p, struct weights w)
{
    size_t gates = p->gates * p->hidden, item = sizeof(double);
    memset(w.w_ih, 0, gates * larger(p->input, p->width) * item);
    memset(w.w_hh, 0, gates * p->output * item);
    memset(w.w_hr, 0, p->output * p->hidden * item);
    memset(w.b_ih, 0, gates * item);
    memset(w.b_hh, 0, gates * item);
}

void load_weights(
    const struct problem *p, size_t pseudo_layer, const void *space, struct weights w)
{
    struct part parts[PARTS];
    parts_of(p, pseudo_layer, w, parts);
    clear_weights(p, w);
    for (size_t i = 0; i < PARTS; i++)
        numbers_load(p->type, space, parts[i].place, parts[i].count, parts[i].numbers);
}

void add_weights(
    const struct problem *p, size_t pseudo_layer, struct weights gradients, void *space)
{
    struct part parts[PARTS];
    parts_of(p, pseudo_layer, gradients, parts);
    for (size_t i = 0; i < PARTS; i++)
        for (size_t j = 0; j < parts[i].count; j++) {
            size_t index = parts[i].place + j;
            double before = number_load(p->type, space, index);
            number_store(p->type, space, index, before + parts[i].numbers[j]);
        }
}

double *take_sequences(const struct problem *p, struct pool *pool)
{
    return take(pool, p->steps * p->batch * larger(p->input, p->width));
}

double *vector_at(
    const struct problem *p, double *sequences, size_t size, size_t step, size_t row)
{
    return sequences + (step * p->batch + row) * size;
}

/* The outputs of all directions of a layer side by side, as far as they are not dropped. */
static void load_output(
    const struct problem *p, size_t layer, const struct kept *kept, size_t step, size_t row,
    double *to)
{
    for (size_t d = 0; d < p->directions; d++) {
        struct slot slot = slot_at(p, kept, layer * p->directions + d, step, row);
        memcpy(to + d * p->output, slot.output, p->output * sizeof *to);
    }
    const double *mask = mask_at(p, kept, layer, step, row);
    for (size_t i = 0; mask != NULL && i < p->width; i++) to[i] *= mask[i];
}

void load_layer_input(
    const struct problem *p, size_t layer, const void *x, const struct kept *kept, double *input)
{
    size_t size = layer_input_size(p, layer);
    for (size_t t = 0; t < p->steps; t++)
        for (size_t b = 0; b < p->batch; b++) {
            if (!is_running(p, t, b)) continue;
            double *to = vector_at(p, input, size, t, b);
            if (layer == 0)
                numbers_load(p->type, x, vector_index(p, t, b) * size, size, to);
            else
                load_output(p, layer - 1, kept, t, b, to);
        }
}

void load_state(
    const struct problem *p, const void *tensor, size_t pseudo_layer, size_t size, double *to)
{
    size_t count = p->batch * size;
    if (tensor == NULL)
        memset(to, 0, count * sizeof *to);
    else
        numbers_load(p->type, tensor, pseudo_layer * count, count, to);
}

void store_state(
    const struct problem *p, void *tensor, size_t pseudo_layer, size_t size, const double *from)
{
    size_t count = p->batch * size;
    if (tensor != NULL) numbers_store(p->type, tensor, pseudo_layer * count, count, from);
}

void affine(
    const double *matrix, const double *bias, size_t rows, size_t columns, const double *v,
    double *to)
{
    for (size_t i = 0; i < rows; i++) {
        double sum = bias == NULL ? 0 : bias[i];
        for (size_t j = 0; j < columns; j++) sum += matrix[i * columns + j] * v[j];
        to[i] = sum;
    }
}

void add_transposed_product(
    const double *matrix, size_t rows, size_t columns, const double *v, double *to)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) to[j] += matrix[i * columns + j] * v[i];
}

void add_outer_product(
    double *matrix, size_t rows, size_t columns, const double *a, const double *b)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) matrix[i * columns + j] += a[i] * b[j];
}

void add(double *to, const double *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}
