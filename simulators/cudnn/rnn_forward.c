/* Forward. */
#include <string.h>

#include "arguments.h"
#include "cell.h"
#include "dropout.h"
#include "layers.h"
#include "numbers.h"

struct arguments {
    cudnnForwardMode_t mode;
    const int32_t *lengths;
    cudnnRNNDataDescriptor_t y_desc;
    cudnnTensorDescriptor_t h_desc, c_desc;
    const void *x, *hx, *cx, *weights;
    void *y, *hy, *cy, *workspace, *reserve;
    struct named_sizes sizes;
};

/* The state of all rows in one pseudo-layer, and room for one step of one row. */
struct state {
    double *h; /* [B, O] */
    double *c; /* [B, H] */
    double *gx, *gh; /* [G*H] */
    double *unprojected; /* [H] */
};

static struct state take_state(const struct problem *p, struct pool *pool)
{
    return (struct state){
        .h = take(pool, p->batch * p->output),
        .c = take(pool, p->batch * p->hidden),
        .gx = take(pool, p->gates * p->hidden),
        .gh = take(pool, p->gates * p->hidden),
        .unprojected = take(pool, p->hidden),
    };
}

static void forward_step(
    const struct problem *p, const struct weights *w, const double *input, size_t input_size,
    size_t row, const struct state *state, struct slot slot)
{
    size_t gates = p->gates * p->hidden;
    double *h = state->h + row * p->output, *c = state->c + row * p->hidden;
    memcpy(slot.h_before, h, p->output * sizeof *h);
    affine(w->w_ih, w->b_ih, gates, input_size, input, state->gx);
    affine(w->w_hh, w->b_hh, gates, p->output, h, state->gh);
    cell_forward(p, state->gx, state->gh, c, &slot, state->unprojected);
    if (p->is_projected) {
        memcpy(slot.unprojected, state->unprojected, p->hidden * sizeof *h);
        affine(w->w_hr, NULL, p->output, p->hidden, state->unprojected, h);
    } else {
        memcpy(h, state->unprojected, p->output * sizeof *h);
    }
    /* The next step reads what was stored. */
    for (size_t i = 0; i < p->output; i++) slot.output[i] = h[i] = number_round(p->type, h[i]);
}

static void forward_direction(
    const struct problem *p, size_t pseudo_layer, const struct weights *w, double *input,
    const struct state *state, const struct kept *kept)
{
    size_t size = layer_input_size(p, pseudo_layer / p->directions);
    for (size_t step = 0; step < p->steps; step++) {
        size_t t = is_reversed(p, pseudo_layer) ? p->steps - 1 - step : step;
        for (size_t b = 0; b < p->batch; b++)
            if (is_running(p, t, b))
                forward_step(
                    p, w, vector_at(p, input, size, t, b), size, b, state,
                    slot_at(p, kept, pseudo_layer, t, b));
    }
}

static void forward_layers(
    const struct problem *p, const struct arguments *a, struct pool *pool,
    const struct kept *kept)
{
    struct weights w = take_weights(p, pool);
    double *input = take_sequences(p, pool);
    struct state state = take_state(p, pool);
    for (size_t k = 0; k < p->pseudo_layers; k++) {
        if (k % p->directions == 0) load_layer_input(p, k / p->directions, a->x, kept, input);
        load_weights(p, k, a->weights, w);
        load_state(p, a->hx, k, p->output, state.h);
        load_state(p, a->cx, k, p->hidden, state.c);
        forward_direction(p, k, &w, input, &state, kept);
        store_state(p, a->hy, k, p->output, state.h);
        store_state(p, a->cy, k, p->hidden, state.c);
    }
}

/* y of one step of one row: the outputs of the last layer, or what fills the padding. */
static void store_y(
    const struct problem *p, const struct kept *kept, cudnnRNNDataDescriptor_t y_desc, void *y,
    size_t step, size_t row)
{
    if (!is_running(p, step, row)) {
        bool has_padding = p->x->layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
        if (!has_padding || !y_desc->fills_padding) return;
        size_t first = vector_index(p, step, row) * p->width;
        for (size_t i = 0; i < p->width; i++)
            memcpy((char *)y + (first + i) * p->item, &y_desc->padding, p->item);
        return;
    }
    size_t first = vector_index(p, step, row) * p->width;
    for (size_t d = 0; d < p->directions; d++) {
        size_t last_layer = (p->layers - 1) * p->directions;
        struct slot slot = slot_at(p, kept, last_layer + d, step, row);
        numbers_store(p->type, y, first + d * p->output, p->output, slot.output);
    }
}

static cudnnStatus_t check(const struct problem *p, const struct arguments *a)
{
    TRY(check_y(p, a->y_desc));
    TRY(check_h(p, a->h_desc));
    TRY(check_c(p, a->c_desc));
    TRY(check_cell_array(p, "cx", a->cx));
    TRY(check_cell_array(p, "cy", a->cy));
    TRY(check_sizes(p, a->mode, &a->sizes));
    TRY(check_device_lengths(p, a->lengths));
    const struct region regions[] = {
        array_region(p, "x", a->x, p->rows * p->input, READ, NEEDED),
        array_region(p, "y", a->y, p->rows * p->width, WRITE, NEEDED),
        array_region(p, "hx", a->hx, h_count(p), READ, OPTIONAL),
        array_region(p, "hy", a->hy, h_count(p), WRITE, OPTIONAL),
        array_region(p, "cx", a->cx, c_count(p), READ, OPTIONAL),
        array_region(p, "cy", a->cy, c_count(p), WRITE, OPTIONAL),
        weights_region(p, "the weight space", a->weights, a->sizes.weights, READ),
        workspace_region(a->workspace, a->sizes.workspace),
        reserve_region(a->reserve, a->sizes.reserve),
    };
    bool is_training = a->mode == CUDNN_FWD_MODE_TRAINING;
    size_t count = sizeof regions / sizeof *regions;
    /* Inference has no use for a reserve space, the last one. */
    TRY(check_regions(regions, is_training ? count : count - 1));
    bool drops = is_training && p->dropout > 0;
    return drops ? check_dropout(p->rnn->dropout) : CUDNN_STATUS_SUCCESS;
}

static void forward(const struct problem *p, const struct arguments *a)
{
    bool is_training = a->mode == CUDNN_FWD_MODE_TRAINING;
    struct pool pool = open_workspace(a->workspace, a->sizes.workspace);
    struct kept kept =
        is_training ? kept_in_reserve(p, a->reserve) : kept_in_workspace(p, &pool);
    if (kept.masks != NULL) draw_mask(p->rnn->dropout, kept.masks, masks_count(p));
    forward_layers(p, a, &pool, &kept);
    for (size_t t = 0; t < p->steps; t++)
        for (size_t b = 0; b < p->batch; b++) store_y(p, &kept, a->y_desc, a->y, t, b);
    if (!is_training) return;
    const struct given given = {
        .x = fingerprint_of_sequences(p, a->x, p->input),
        .hx = fingerprint_of(p, a->hx, h_count(p)),
        .cx = fingerprint_of(p, a->cx, c_count(p)),
        .y = fingerprint_of_sequences(p, a->y, p->width),
        .weights = fingerprint_of(p, a->weights, weights_count(p)),
    };
    seal_reserve(p, a->reserve, FORWARD_DONE, &given);
}

cudnnStatus_t cudnnRNNForward(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
    const int32_t lengths[], cudnnRNNDataDescriptor_t x_desc, const void *x,
    cudnnRNNDataDescriptor_t y_desc, void *y, cudnnTensorDescriptor_t h_desc, const void *hx,
    void *hy, cudnnTensorDescriptor_t c_desc, const void *cx, void *cy, size_t weights_size,
    const void *weights, size_t workspace_size, void *workspace, size_t reserve_size,
    void *reserve)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    REQUIRE(
        mode == CUDNN_FWD_MODE_INFERENCE || mode == CUDNN_FWD_MODE_TRAINING,
        CUDNN_STATUS_BAD_PARAM, "there is no forward mode %d", (int)mode);
    struct problem problem;
    TRY(make_problem(rnn, x_desc, &problem));
    const struct arguments arguments = {
        .mode = mode,
        .lengths = lengths,
        .y_desc = y_desc,
        .h_desc = h_desc,
        .c_desc = c_desc,
        .x = x,
        .hx = hx,
        .cx = cx,
        .weights = weights,
        .y = y,
        .hy = hy,
        .cy = cy,
        .workspace = workspace,
        .reserve = reserve,
        .sizes = {weights_size, workspace_size, reserve_size},
    };
    TRY(check(&problem, &arguments));
    forward(&problem, &arguments);
    return CUDNN_STATUS_SUCCESS;
}
