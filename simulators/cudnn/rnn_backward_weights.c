/* Backward weights, from the gradients that backward data left in the reserve space. */
#include "arguments.h"
#include "cell.h"
#include "layers.h"

struct arguments {
    cudnnWgradMode_t mode;
    const int32_t *lengths;
    cudnnTensorDescriptor_t h_desc;
    cudnnRNNDataDescriptor_t y_desc;
    const void *x, *hx, *y;
    void *dweights, *workspace, *reserve;
    struct named_sizes sizes;
};

static void add_step(
    const struct problem *p, struct slot slot, const double *input, size_t input_size, double *d_gx,
    double *d_gh, struct weights gradients)
{
    size_t gates = p->gates * p->hidden;
    gate_gradients(p, &slot, d_gx, d_gh);
    add_outer_product(gradients.w_ih, gates, input_size, d_gx, input);
    add_outer_product(gradients.w_hh, gates, p->output, d_gh, slot.h_before);
    add(gradients.b_ih, d_gx, gates);
    add(gradients.b_hh, d_gh, gates);
    if (p->is_projected)
        add_outer_product(gradients.w_hr, p->output, p->hidden, slot.d_output, slot.unprojected);
}

static void backward_weights(const struct problem *p, const struct arguments *a)
{
    struct pool pool = open_workspace(a->workspace, a->sizes.workspace);
    struct kept kept = kept_in_reserve(p, a->reserve);
    struct weights gradients = take_weights(p, &pool);
    double *input = take_sequences(p, &pool);
    double *d_gx = take(&pool, p->gates * p->hidden), *d_gh = take(&pool, p->gates * p->hidden);
    for (size_t k = 0; k < p->pseudo_layers; k++) {
        size_t layer = k / p->directions, size = layer_input_size(p, layer);
        load_layer_input(p, layer, a->x, &kept, input);
        clear_weights(p, gradients);
        for (size_t t = 0; t < p->steps; t++)
            for (size_t b = 0; b < p->batch; b++)
                if (is_running(p, t, b))
                    add_step(
                        p, slot_at(p, &kept, k, t, b), vector_at(p, input, size, t, b), size, d_gx,
                        d_gh, gradients);
        add_weights(p, k, gradients, a->dweights);
    }
}

static cudnnStatus_t check_memory(const struct problem *p, const struct arguments *a)
{
    const struct region regions[] = {
        array_region(p, "x", a->x, p->rows * p->input, READ, NEEDED),
        array_region(p, "hx", a->hx, h_count(p), READ, OPTIONAL),
        array_region(p, "y", a->y, p->rows * p->width, READ, NEEDED),
        weights_region(p, "the gradient of the weights", a->dweights, a->sizes.weights, WRITE),
        workspace_region(a->workspace, a->sizes.workspace),
        reserve_region(a->reserve, a->sizes.reserve),
    };
    return check_regions(regions, sizeof regions / sizeof *regions);
}

static cudnnStatus_t check(
    const struct problem *p, const struct arguments *a, struct given *given)
{
    REQUIRE(
        a->mode == CUDNN_WGRAD_MODE_ADD,
        a->mode == CUDNN_WGRAD_MODE_SET ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_BAD_PARAM,
        "weight gradient mode %d", (int)a->mode);
    TRY(check_y(p, a->y_desc));
    TRY(check_h(p, a->h_desc));
    TRY(check_sizes(p, CUDNN_FWD_MODE_TRAINING, &a->sizes));
    TRY(check_device_lengths(p, a->lengths));
    TRY(check_memory(p, a));
    TRY(check_reserve(p, a->reserve, DATA_DONE, given));
    TRY(check_same("x", fingerprint_of_sequences(p, a->x, p->input), given->x));
    TRY(check_same("y", fingerprint_of_sequences(p, a->y, p->width), given->y));
    return check_same("hx", fingerprint_of(p, a->hx, h_count(p)), given->hx);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode, const int32_t lengths[],
    cudnnRNNDataDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t h_desc, const void *hx,
    cudnnRNNDataDescriptor_t y_desc, const void *y, size_t weights_size, void *dweights,
    size_t workspace_size, void *workspace, size_t reserve_size, void *reserve)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    struct problem problem;
    TRY(make_problem(rnn, x_desc, &problem));
    const struct arguments arguments = {
        .mode = mode,
        .lengths = lengths,
        .h_desc = h_desc,
        .y_desc = y_desc,
        .x = x,
        .hx = hx,
        .y = y,
        .dweights = dweights,
        .workspace = workspace,
        .reserve = reserve,
        .sizes = {weights_size, workspace_size, reserve_size},
    };
    struct given given;
    TRY(check(&problem, &arguments, &given));
    backward_weights(&problem, &arguments);
    seal_reserve(&problem, reserve, WEIGHTS_DONE, &given);
    return CUDNN_STATUS_SUCCESS;
}
