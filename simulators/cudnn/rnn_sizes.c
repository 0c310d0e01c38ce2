/* Sizes of weights, workspace and reserve space, and where the weights of a gate lie. */
#include "numbers.h"
#include "space.h"

cudnnStatus_t cudnnGetRNNTempSpaceSizes(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
    cudnnRNNDataDescriptor_t x, size_t *workspace, size_t *reserve)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    REQUIRE(
        mode == CUDNN_FWD_MODE_INFERENCE || mode == CUDNN_FWD_MODE_TRAINING,
        CUDNN_STATUS_BAD_PARAM, "there is no forward mode %d", (int)mode);
    struct problem problem;
    TRY(make_problem(rnn, x, &problem));
    if (workspace != NULL) *workspace = workspace_bytes(&problem, mode);
    if (reserve != NULL)
        *reserve = mode == CUDNN_FWD_MODE_TRAINING ? reserve_bytes(&problem) : 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t *size)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    REQUIRE_OUTPUT(size);
    struct problem network;
    TRY(make_network(rnn, &network));
    *size = weights_count(&network) * network.item;
    return CUDNN_STATUS_SUCCESS;
}

/* Offsets and sizes of a gate's matrix and bias, in elements; 0 rows for a missing one. */
struct linear_layer {
    size_t matrix, rows, columns;
    size_t bias, bias_rows;
};

/* Linear layers 0 to G-1 are those of the input, G to 2G-1 the recurrent ones, 2G the projection
   of the LSTM. */
static struct linear_layer linear_layer_of(const struct problem *p, size_t pseudo_layer, size_t id)
{
    struct placement place = weights_of(p, pseudo_layer);
    size_t gate = id % p->gates, H = p->hidden, bias_rows = p->is_biased ? H : 0;
    if (id < p->gates)
        return (struct linear_layer){
            place.w_ih + gate * H * place.input, H, place.input, place.b_ih + gate * H, bias_rows};
    if (id < 2 * p->gates)
        return (struct linear_layer){
            place.w_hh + gate * H * p->output, H, p->output, place.b_hh + gate * H, bias_rows};
    return (struct linear_layer){
        .matrix = place.w_hr, .rows = p->is_projected ? p->output : 0, .columns = H};
}

static void *address_of(const struct problem *p, const void *weights, size_t place, size_t rows)
{
    /* Only an address: the weights need not be there yet. */
    return rows == 0 ? NULL : (void *)((uintptr_t)weights + place * p->item);
}

cudnnStatus_t cudnnGetRNNWeightParams(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int32_t pseudo_layer, size_t size,
    const void *weights, int32_t id, cudnnTensorDescriptor_t matrix_desc, void **matrix,
    cudnnTensorDescriptor_t bias_desc, void **bias)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    struct problem p;
    TRY(make_network(rnn, &p));
    REQUIRE(
        pseudo_layer >= 0 && (size_t)pseudo_layer < p.pseudo_layers, CUDNN_STATUS_BAD_PARAM,
        "there is no pseudo-layer %d", pseudo_layer);
    size_t ids = 2 * p.gates + p.has_cell;
    REQUIRE(
        id >= 0 && (size_t)id < ids, CUDNN_STATUS_BAD_PARAM, "there is no linear layer %d", id);
    REQUIRE(
        size >= weights_count(&p) * p.item, CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
        "weights of %zu bytes; %zu are needed", size, weights_count(&p) * p.item);
    REQUIRE_OUTPUT(weights);
    REQUIRE_OUTPUT(matrix);
    REQUIRE_OUTPUT(bias);
    TRY(object_check(matrix_desc, TENSOR));
    TRY(object_check(bias_desc, TENSOR));
    struct linear_layer linear = linear_layer_of(&p, (size_t)pseudo_layer, (size_t)id);
    *matrix = address_of(&p, weights, linear.matrix, linear.rows);
    *bias = address_of(&p, weights, linear.bias, linear.bias_rows);
    describe_tensor(matrix_desc, p.type, (int)linear.rows, (int)linear.columns);
    describe_tensor(bias_desc, p.type, (int)linear.bias_rows, 1);
    return CUDNN_STATUS_SUCCESS;
}
