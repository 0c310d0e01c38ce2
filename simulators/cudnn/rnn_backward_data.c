/* Backward data. It leaves the gradients of the gates in the reserve space, where the gates were:
   a second run on the same reserve space would compute something else. */
#include <string.h>

#include "arguments.h"
#include "cell.h"
#include "layers.h"
#include "numbers.h"

struct arguments {
    const int32_t *lengths;
    cudnnRNNDataDescriptor_t y_desc;
    cudnnTensorDescriptor_t h_desc, c_desc;
    const void *y, *dy, *hx, *dhy, *cx, *dcy, *weights;
    void *dx, *dhx, *dcx, *workspace, *reserve;
    struct named_sizes sizes;
};

/* Gradients of the state of all rows in one pseudo-layer, and room for one step of one row. */
struct gradients {
    double *h; /* [B, O] */
    double *c; /* [B, H] */
    double *gx, *gh; /* [G*H] */
    double *unprojected, *direct; /* [H] */
};

static struct gradients take_gradients(const struct problem *p, struct pool *pool)
{
    return (struct gradients){
        .h = take(pool, p->batch * p->output),
        .c = take(pool, p->batch * p->hidden),
        .gx = take(pool, p->gates * p->hidden),
        .gh = take(pool, p->gates * p->hidden),
        .unprojected = take(pool, p->hidden),
        .direct = take(pool, p->hidden),
    };
}

/* The gradient of the output [O] becomes that before the projection [H]. */
static void unproject(
    const struct problem *p, const struct weights *w, const double *dh, struct slot slot,
    double *to)
{
    if (!p->is_projected) {
        memcpy(to, dh, p->hidden * sizeof *to);
        return;
    }
    memcpy(slot.d_output, dh, p->output * sizeof *dh);
    memset(to, 0, p->hidden * sizeof *to);
    add_transposed_product(w->w_hr, p->output, p->hidden, dh, to);
}

static void backward_step(
    const struct problem *p, const struct weights *w, size_t row, const double *d_output,
    double *d_input, size_t input_size, const struct gradients *d, struct slot slot)
{
    size_t gates = p->gates * p->hidden;
    double *dh = d->h + row * p->output, *dc = d->c + row * p->hidden;
    add(dh, d_output, p->output);
    unproject(p, w, dh, slot, d->unprojected);
    cell_backward(p, &slot, d->unprojected, dc, d->direct);
    gate_gradients(p, &slot, d->gx, d->gh);
    /* The LSTM alone has a projection, and its state comes back through the gates only. */
    if (p->is_projected)
        memset(dh, 0, p->output * sizeof *dh);
    else
        memcpy(dh, d->direct, p->output * sizeof *dh);
    add_transposed_product(w->w_hh, gates, p->output, d->gh, dh);
    add_transposed_product(w->w_ih, gates, input_size, d->gx, d_input);
}

static void backward_direction(
    const struct problem *p, size_t pseudo_layer, const struct weights *w, double *d_outputs,
    double *d_inputs, const struct gradients *d, const struct kept *kept)
{
    size_t size = layer_input_size(p, pseudo_layer / p->directions);
    size_t part = pseudo_layer % p->directions * p->output;
    for (size_t step = p->steps; step-- > 0;) {
        size_t t = is_reversed(p, pseudo_layer) ? p->steps - 1 - step : step;
        for (size_t b = 0; b < p->batch; b++)
            if (is_running(p, t, b))
                backward_step(
                    p, w, b, vector_at(p, d_outputs, p->width, t, b) + part,
                    vector_at(p, d_inputs, size, t, b), size, d,
                    slot_at(p, kept, pseudo_layer, t, b));
    }
}

static void load_dy(const struct problem *p, const void *dy, double *d_outputs)
{
    for (size_t t = 0; t < p->steps; t++)
        for (size_t b = 0; b < p->batch; b++)
            if (is_running(p, t, b))
                numbers_load(
                    p->type, dy, vector_index(p, t, b) * p->width, p->width,
                    vector_at(p, d_outputs, p->width, t, b));
}

static void store_dx(const struct problem *p, double *d_inputs, void *dx)
{
    bool has_padding = p->x->layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
    for (size_t t = 0; t < p->steps; t++)
        for (size_t b = 0; b < p->batch; b++) {
            if (!is_running(p, t, b) && !has_padding) continue;
            double *from = vector_at(p, d_inputs, p->input, t, b);
            numbers_store(p->type, dx, vector_index(p, t, b) * p->input, p->input, from);
        }
}

/* The gradient of a layer's input becomes that of the output of the layer before. */
static void undo_masks(
    const struct problem *p, size_t layer, const struct kept *kept, double *d_inputs)
{
    for (size_t t = 0; t < p->steps; t++)
        for (size_t b = 0; b < p->batch; b++) {
            const double *mask = mask_at(p, kept, layer - 1, t, b);
            double *d_input = vector_at(p, d_inputs, p->width, t, b);
            for (size_t i = 0; mask != NULL && i < p->width; i++) d_input[i] *= mask[i];
        }
}

static void backward_layer(
    const struct problem *p, const struct arguments *a, size_t layer, struct weights w,
    double *d_outputs, double *d_inputs, const struct gradients *d, const struct kept *kept)
{
    size_t count = p->steps * p->batch * layer_input_size(p, layer);
    memset(d_inputs, 0, count * sizeof *d_inputs);
    for (size_t direction = 0; direction < p->directions; direction++) {
        size_t k = layer * p->directions + direction;
        load_weights(p, k, a->weights, w);
        load_state(p, a->dhy, k, p->output, d->h);
        load_state(p, a->dcy, k, p->hidden, d->c);
        backward_direction(p, k, &w, d_outputs, d_inputs, d, kept);
        store_state(p, a->dhx, k, p->output, d->h);
        store_state(p, a->dcx, k, p->hidden, d->c);
    }
}

static void backward_data(const struct problem *p, const struct arguments *a)
{
    struct pool pool = open_workspace(a->workspace, a->sizes.workspace);
    struct kept kept = kept_in_reserve(p, a->reserve);
    struct weights w = take_weights(p, &pool);
    double *d_outputs = take_sequences(p, &pool), *d_inputs = take_sequences(p, &pool);
    struct gradients d = take_gradients(p, &pool);
    load_dy(p, a->dy, d_outputs);
    for (size_t layer = p->layers; layer-- > 0;) {
        backward_layer(p, a, layer, w, d_outputs, d_inputs, &d, &kept);
        if (layer == 0) break;
        undo_masks(p, layer, &kept, d_inputs);
        double *swapped = d_outputs;
        d_outputs = d_inputs;
        d_inputs = swapped;
    }
    store_dx(p, d_inputs, a->dx);
}

static cudnnStatus_t check_memory(const struct problem *p, const struct arguments *a)
{
    const struct region regions[] = {
        array_region(p, "y", a->y, p->rows * p->width, READ, NEEDED),
        array_region(p, "dy", a->dy, p->rows * p->width, READ, NEEDED),
        array_region(p, "dx", a->dx, p->rows * p->input, WRITE, NEEDED),
        array_region(p, "hx", a->hx, h_count(p), READ, OPTIONAL),
        array_region(p, "dhy", a->dhy, h_count(p), READ, OPTIONAL),
        array_region(p, "dhx", a->dhx, h_count(p), WRITE, OPTIONAL),
        array_region(p, "cx", a->cx, c_count(p), READ, OPTIONAL),
        array_region(p, "dcy", a->dcy, c_count(p), READ, OPTIONAL),
        array_region(p, "dcx", a->dcx, c_count(p), WRITE, OPTIONAL),
        weights_region(p, "the weight space", a->weights, a->sizes.weights, READ),
        workspace_region(a->workspace, a->sizes.workspace),
        reserve_region(a->reserve, a->sizes.reserve),
    };
    return check_regions(regions, sizeof regions / sizeof *regions);
}

static cudnnStatus_t check(
    const struct problem *p, const struct arguments *a, struct given *given)
{
    TRY(check_y(p, a->y_desc));
    TRY(check_h(p, a->h_desc));
    TRY(check_c(p, a->c_desc));
    TRY(check_cell_array(p, "cx", a->cx));
    TRY(check_cell_array(p, "dcy", a->dcy));
    TRY(check_cell_array(p, "dcx", a->dcx));
    TRY(check_sizes(p, CUDNN_FWD_MODE_TRAINING, &a->sizes));
    TRY(check_device_lengths(p, a->lengths));
    TRY(check_memory(p, a));
    TRY(check_reserve(p, a->reserve, FORWARD_DONE, given));
    TRY(check_same("y", fingerprint_of_sequences(p, a->y, p->width), given->y));
    TRY(check_same("hx", fingerprint_of(p, a->hx, h_count(p)), given->hx));
    TRY(check_same("cx", fingerprint_of(p, a->cx, c_count(p)), given->cx));
    return check_same(
        "the weight space", fingerprint_of(p, a->weights, weights_count(p)), given->weights);
}

cudnnStatus_t cudnnRNNBackwardData_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
    cudnnRNNDataDescriptor_t y_desc, const void *y, const void *dy,
    cudnnRNNDataDescriptor_t x_desc, void *dx, cudnnTensorDescriptor_t h_desc, const void *hx,
    const void *dhy, void *dhx, cudnnTensorDescriptor_t c_desc, const void *cx, const void *dcy,
    void *dcx, size_t weights_size, const void *weights, size_t workspace_size, void *workspace,
    size_t reserve_size, void *reserve)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    struct problem problem;
    TRY(make_problem(rnn, x_desc, &problem));
    const struct arguments arguments = {
        .lengths = lengths,
        .y_desc = y_desc,
        .h_desc = h_desc,
        .c_desc = c_desc,
        .y = y,
        .dy = dy,
        .hx = hx,
        .dhy = dhy,
        .cx = cx,
        .dcy = dcy,
        .weights = weights,
        .dx = dx,
        .dhx = dhx,
        .dcx = dcx,
        .workspace = workspace,
        .reserve = reserve,
        .sizes = {weights_size, workspace_size, reserve_size},
    };
    struct given given;
    TRY(check(&problem, &arguments, &given));
    backward_data(&problem, &arguments);
    seal_reserve(&problem, reserve, DATA_DONE, &given);
    return CUDNN_STATUS_SUCCESS;
}
