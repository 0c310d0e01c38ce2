#include "problem.h"

#include "numbers.h"

static size_t gates_of(cudnnRNNMode_t mode)
{
    switch (mode) {
    case CUDNN_LSTM: return 4;
    case CUDNN_GRU: return 3;
    default: return 1;
    }
}

static cudnnStatus_t dropout_of(const struct cudnnRNNStruct *rnn, double *dropout)
{
    *dropout = 0;
    if (rnn->dropout == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check_set(rnn->dropout, DROPOUT));
    if (rnn->num_layers > 1) *dropout = rnn->dropout->dropout;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t make_network(cudnnRNNDescriptor_t rnn, struct problem *p)
{
    TRY(object_check_set(rnn, RNN));
    REQUIRE(
        rnn->input_mode == CUDNN_LINEAR_INPUT, CUDNN_STATUS_NOT_SUPPORTED,
        "the stand-in has no networks that skip the input");
    REQUIRE(
        rnn->bias_mode == CUDNN_RNN_NO_BIAS || rnn->bias_mode == CUDNN_RNN_DOUBLE_BIAS,
        CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has no networks with one bias a gate");
    size_t directions = rnn->direction_mode == CUDNN_BIDIRECTIONAL ? 2 : 1;
    *p = (struct problem){
        .rnn = rnn,
        .mode = rnn->mode,
        .type = rnn->type,
        .item = number_size(rnn->type),
        .layers = (size_t)rnn->num_layers,
        .directions = directions,
        .pseudo_layers = (size_t)rnn->num_layers * directions,
        .gates = gates_of(rnn->mode),
        .input = (size_t)rnn->input_size,
        .hidden = (size_t)rnn->hidden_size,
        .output = (size_t)rnn->proj_size,
        .width = (size_t)rnn->proj_size * directions,
        .has_cell = rnn->mode == CUDNN_LSTM,
        .is_projected = rnn->proj_size != rnn->hidden_size,
        .is_biased = rnn->bias_mode == CUDNN_RNN_DOUBLE_BIAS,
    };
    return dropout_of(rnn, &p->dropout);
}

static size_t total_length(const struct cudnnRNNDataStruct *x)
{
    size_t total = 0;
    for (int b = 0; b < x->batch; b++) total += (size_t)x->lengths[b];
    return total;
}

static cudnnStatus_t check_algorithm(const struct problem *p)
{
    if (p->rnn->algorithm == CUDNN_RNN_ALGO_STANDARD) return CUDNN_STATUS_SUCCESS;
    for (int b = 0; b < p->x->batch; b++)
        REQUIRE(
            p->x->lengths[b] == p->x->max_length, CUDNN_STATUS_NOT_SUPPORTED,
            "the persistent algorithms want rows of equal length");
    REQUIRE(
        p->rnn->algorithm != CUDNN_RNN_ALGO_PERSIST_DYNAMIC
            || p->rnn->dynamic_batch == p->x->batch,
        CUDNN_STATUS_BAD_PARAM, "cudnnBuildRNNDynamic did not run for a batch of %d",
        p->x->batch);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t make_problem(
    cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t x, struct problem *p)
{
    TRY(make_network(rnn, p));
    TRY(object_check_set(x, RNN_DATA));
    bool is_packed = x->layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
    REQUIRE(
        x->type == rnn->type, CUDNN_STATUS_BAD_PARAM, "x has data type %d, the network %d",
        (int)x->type, (int)rnn->type);
    REQUIRE(
        x->vector_size == rnn->input_size, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
        "vectors of x have %d elements, the input size is %d", x->vector_size, rnn->input_size);
    REQUIRE(
        is_packed || rnn->flags & CUDNN_RNN_PADDED_IO_ENABLED, CUDNN_STATUS_BAD_PARAM,
        "a padded layout without CUDNN_RNN_PADDED_IO_ENABLED");
    p->x = x;
    p->steps = (size_t)x->max_length;
    p->batch = (size_t)x->batch;
    p->rows = is_packed ? total_length(x) : p->steps * p->batch;
    return check_algorithm(p);
}

cudnnStatus_t check_y(const struct problem *p, cudnnRNNDataDescriptor_t y)
{
    TRY(object_check_set(y, RNN_DATA));
    REQUIRE(
        y->type == p->type && y->layout == p->x->layout && y->max_length == p->x->max_length
            && y->batch == p->x->batch,
        CUDNN_STATUS_BAD_PARAM, "x and y differ in data type, layout, steps or batch");
    for (int b = 0; b < y->batch; b++)
        REQUIRE(
            y->lengths[b] == p->x->lengths[b], CUDNN_STATUS_BAD_PARAM,
            "row %d has length %d in x and %d in y", b, p->x->lengths[b], y->lengths[b]);
    REQUIRE(
        (size_t)y->vector_size == p->width, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
        "vectors of y have %d elements; the network gives %zu", y->vector_size, p->width);
    return CUDNN_STATUS_SUCCESS;
}

/* A packed tensor [L*D, B, size], with dimensions of 1 after these as far as there are more. */
static cudnnStatus_t check_state(
    const struct problem *p, const char *name, cudnnTensorDescriptor_t tensor, size_t size)
{
    TRY(object_check_set(tensor, TENSOR));
    REQUIRE(
        tensor->type == p->type, CUDNN_STATUS_BAD_PARAM, "%s has data type %d, the network %d",
        name, (int)tensor->type, (int)p->type);
    REQUIRE(
        tensor->rank >= 3, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s has %d dimensions", name,
        tensor->rank);
    const size_t dims[] = {p->pseudo_layers, p->batch, size};
    size_t stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        size_t expected = i < 3 ? dims[i] : 1;
        REQUIRE(
            (size_t)tensor->dims[i] == expected, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "%s has %d in dimension %d; the network has %zu", name, tensor->dims[i], i, expected);
        REQUIRE(
            expected == 1 || (size_t)tensor->strides[i] == stride, CUDNN_STATUS_BAD_PARAM,
            "%s is not packed: stride %d of dimension %d", name, tensor->strides[i], i);
        stride *= expected;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_h(const struct problem *p, cudnnTensorDescriptor_t h)
{
    return check_state(p, "the h tensor", h, p->output);
}

cudnnStatus_t check_c(const struct problem *p, cudnnTensorDescriptor_t c)
{
    if (p->has_cell) return check_state(p, "the c tensor", c, p->hidden);
    /* Without a cell cuDNN does not look at it. */
    return c == NULL ? CUDNN_STATUS_SUCCESS : object_check(c, TENSOR);
}

size_t layer_input_size(const struct problem *p, size_t layer)
{
    return layer == 0 ? p->input : p->width;
}

bool is_reversed(const struct problem *p, size_t pseudo_layer)
{
    return pseudo_layer % p->directions == 1;
}

bool is_running(const struct problem *p, size_t step, size_t row)
{
    return step < (size_t)p->x->lengths[row];
}

size_t vector_index(const struct problem *p, size_t step, size_t row)
{
    switch (p->x->layout) {
    case CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED: return step * p->batch + row;
    case CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED: return row * p->steps + step;
    default: break;
    }
    /* Packed: the rows that run at a step are the first ones. */
    size_t before = 0;
    for (size_t b = 0; b < p->batch; b++) {
        size_t length = (size_t)p->x->lengths[b];
        before += length < step ? length : step;
    }
    return before + row;
}

size_t h_count(const struct problem *p)
{
    return p->pseudo_layers * p->batch * p->output;
}

size_t c_count(const struct problem *p)
{
    return p->pseudo_layers * p->batch * p->hidden;
}

static size_t matrices_count(const struct problem *p, size_t layer)
{
    size_t projection = p->is_projected ? p->output * p->hidden : 0;
    return p->gates * p->hidden * (layer_input_size(p, layer) + p->output) + projection;
}

static size_t bias_count(const struct problem *p)
{
    return p->is_biased ? p->gates * p->hidden : 0;
}

static size_t all_matrices_count(const struct problem *p)
{
    size_t later_layers = (p->layers - 1) * matrices_count(p, 1);
    return p->directions * (matrices_count(p, 0) + later_layers);
}

/* cuDNN's layout, as cudnnGetRNNWeightParams of 9.19 gives it on a GPU: the matrices of all
   pseudo-layers, then the biases of all. */
struct placement weights_of(const struct problem *p, size_t pseudo_layer)
{
    size_t layer = pseudo_layer / p->directions, direction = pseudo_layer % p->directions;
    size_t matrices = direction * matrices_count(p, layer);
    if (layer > 0)
        matrices += p->directions * (matrices_count(p, 0) + (layer - 1) * matrices_count(p, 1));
    size_t biases = all_matrices_count(p) + pseudo_layer * 2 * bias_count(p);
    struct placement place = {.input = layer_input_size(p, layer)};
    place.w_ih = matrices;
    place.w_hh = place.w_ih + p->gates * p->hidden * place.input;
    place.w_hr = place.w_hh + p->gates * p->hidden * p->output;
    place.b_ih = biases;
    place.b_hh = biases + bias_count(p);
    return place;
}

size_t weights_count(const struct problem *p)
{
    return all_matrices_count(p) + p->pseudo_layers * 2 * bias_count(p);
}
