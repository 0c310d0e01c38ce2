/* RNN descriptors: what cudnnSetRNNDescriptor_v8 takes is what libcudnn 9.19 was seen to take. */
#include <math.h>

#include "descriptors.h"

static bool is_between(int value, int lowest, int highest)
{
    return lowest <= value && value <= highest;
}

/* Data types, and the precisions that each may be computed in. */
static bool is_precision_of(cudnnDataType_t type, cudnnDataType_t precision)
{
    switch (type) {
    case CUDNN_DATA_HALF:
        return precision == CUDNN_DATA_HALF || precision == CUDNN_DATA_FLOAT;
    case CUDNN_DATA_BFLOAT16: case CUDNN_DATA_FLOAT: return precision == CUDNN_DATA_FLOAT;
    case CUDNN_DATA_DOUBLE: return precision == CUDNN_DATA_DOUBLE;
    default: return false;
    }
}

static cudnnStatus_t check_modes(const struct cudnnRNNStruct *rnn)
{
    const struct {
        const char *name;
        int value, highest;
    } modes[] = {
        {"algorithm", (int)rnn->algorithm, CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H},
        {"cell mode", (int)rnn->mode, CUDNN_GRU},
        {"bias mode", (int)rnn->bias_mode, CUDNN_RNN_SINGLE_REC_BIAS},
        {"direction mode", (int)rnn->direction_mode, CUDNN_BIDIRECTIONAL},
        {"input mode", (int)rnn->input_mode, CUDNN_SKIP_INPUT},
        {"math type", (int)rnn->math_type, CUDNN_FMA_MATH},
        {"flags", (int)rnn->flags, CUDNN_RNN_PADDED_IO_ENABLED},
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        REQUIRE(
            is_between(modes[i].value, 0, modes[i].highest), CUDNN_STATUS_BAD_PARAM,
            "there is no %s %d", modes[i].name, modes[i].value);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_sizes(const struct cudnnRNNStruct *rnn)
{
    REQUIRE(
        rnn->input_size >= 1 && rnn->hidden_size >= 1 && rnn->num_layers >= 1,
        CUDNN_STATUS_BAD_PARAM, "input size %d, hidden size %d, %d layers", rnn->input_size,
        rnn->hidden_size, rnn->num_layers);
    REQUIRE(
        rnn->proj_size >= 1, CUDNN_STATUS_BAD_PARAM,
        "projection size %d; without a projection it is the hidden size", rnn->proj_size);
    REQUIRE(
        rnn->proj_size <= rnn->hidden_size, CUDNN_STATUS_NOT_SUPPORTED,
        "projection size %d above the hidden size", rnn->proj_size);
    REQUIRE(
        rnn->proj_size == rnn->hidden_size || rnn->mode == CUDNN_LSTM, CUDNN_STATUS_NOT_SUPPORTED,
        "only the LSTM has a projection");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_algorithm(const struct cudnnRNNStruct *rnn)
{
    if (rnn->algorithm == CUDNN_RNN_ALGO_STANDARD) return CUDNN_STATUS_SUCCESS;
    REQUIRE(
        rnn->bias_mode == CUDNN_RNN_DOUBLE_BIAS, CUDNN_STATUS_NOT_SUPPORTED,
        "the persistent algorithms need two biases a gate");
    REQUIRE(
        rnn->proj_size == rnn->hidden_size, CUDNN_STATUS_NOT_SUPPORTED,
        "the persistent algorithms have no projection");
    REQUIRE(
        rnn->type != CUDNN_DATA_DOUBLE || rnn->algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC,
        CUDNN_STATUS_NOT_SUPPORTED, "this persistent algorithm does not compute in double");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_rnn(const struct cudnnRNNStruct *rnn)
{
    TRY(check_modes(rnn));
    TRY(check_sizes(rnn));
    REQUIRE(
        is_precision_of(rnn->type, rnn->math_precision), CUDNN_STATUS_NOT_SUPPORTED,
        "data type %d in precision %d", (int)rnn->type, (int)rnn->math_precision);
    return check_algorithm(rnn);
}

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *desc)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(desc);
    void *created;
    TRY(object_create(RNN, sizeof **desc, &created));
    *desc = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t desc)
{
    BEGIN_CALL();
    if (desc == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check(desc, RNN));
    object_destroy(desc);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(
    cudnnRNNDescriptor_t desc, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
    cudnnRNNBiasMode_t bias_mode, cudnnDirectionMode_t direction_mode,
    cudnnRNNInputMode_t input_mode, cudnnDataType_t type, cudnnDataType_t math_precision,
    cudnnMathType_t math_type, int32_t input_size, int32_t hidden_size, int32_t proj_size,
    int32_t num_layers, cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    BEGIN_CALL();
    TRY(object_check(desc, RNN));
    if (dropout != NULL) TRY(object_check(dropout, DROPOUT));
    /* Clipping and the plan of the dynamic algorithm do not outlive this, as in cuDNN. */
    const struct cudnnRNNStruct rnn = {
        .object = {.kind = RNN, .is_set = true},
        .algorithm = algorithm,
        .mode = mode,
        .bias_mode = bias_mode,
        .direction_mode = direction_mode,
        .input_mode = input_mode,
        .type = type,
        .math_precision = math_precision,
        .math_type = math_type,
        .input_size = input_size,
        .hidden_size = hidden_size,
        .proj_size = proj_size,
        .num_layers = num_layers,
        .dropout = dropout,
        .flags = flags,
    };
    TRY(check_rnn(&rnn));
    *desc = rnn;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNDescriptor_v8(
    cudnnRNNDescriptor_t desc, cudnnRNNAlgo_t *algorithm, cudnnRNNMode_t *mode,
    cudnnRNNBiasMode_t *bias_mode, cudnnDirectionMode_t *direction_mode,
    cudnnRNNInputMode_t *input_mode, cudnnDataType_t *type, cudnnDataType_t *math_precision,
    cudnnMathType_t *math_type, int32_t *input_size, int32_t *hidden_size, int32_t *proj_size,
    int32_t *num_layers, cudnnDropoutDescriptor_t *dropout, uint32_t *flags)
{
    BEGIN_CALL();
    TRY(object_check(desc, RNN));
    REQUIRE(
        desc->object.is_set, CUDNN_STATUS_NOT_INITIALIZED, "the rnn was created but not set");
#define READ_BACK(field) \
    if ((field) != NULL) *(field) = desc->field
    READ_BACK(algorithm);
    READ_BACK(mode);
    READ_BACK(bias_mode);
    READ_BACK(direction_mode);
    READ_BACK(input_mode);
    READ_BACK(type);
    READ_BACK(math_precision);
    READ_BACK(math_type);
    READ_BACK(input_size);
    READ_BACK(hidden_size);
    READ_BACK(proj_size);
    READ_BACK(num_layers);
    READ_BACK(dropout);
    READ_BACK(flags);
#undef READ_BACK
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_clip(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t mode, cudnnNanPropagation_t nan, double lower,
    double upper)
{
    TRY(object_check(desc, RNN));
    REQUIRE(
        is_between((int)mode, CUDNN_RNN_CLIP_NONE, CUDNN_RNN_CLIP_MINMAX), CUDNN_STATUS_BAD_PARAM,
        "there is no clip mode %d", (int)mode);
    REQUIRE(
        is_between((int)nan, CUDNN_NOT_PROPAGATE_NAN, CUDNN_PROPAGATE_NAN), CUDNN_STATUS_BAD_PARAM,
        "there is no NaN propagation %d", (int)nan);
    REQUIRE(lower <= upper, CUDNN_STATUS_BAD_PARAM, "clip bounds %g and %g", lower, upper);
    desc->clip_mode = mode;
    desc->clip_nan = nan;
    desc->clip_lower = lower;
    desc->clip_upper = upper;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_clip(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t *mode, double *lower, double *upper)
{
    TRY(object_check(desc, RNN));
    if (mode != NULL) *mode = desc->clip_mode;
    if (lower != NULL) *lower = desc->clip_lower;
    if (upper != NULL) *upper = desc->clip_upper;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNSetClip_v8(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t mode, cudnnNanPropagation_t nan, double lower,
    double upper)
{
    BEGIN_CALL();
    return set_clip(desc, mode, nan, lower, upper);
}

cudnnStatus_t cudnnRNNSetClip_v9(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t mode, double lower, double upper)
{
    BEGIN_CALL();
    return set_clip(desc, mode, CUDNN_PROPAGATE_NAN, lower, upper);
}

cudnnStatus_t cudnnRNNGetClip_v8(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t *mode, cudnnNanPropagation_t *nan, double *lower,
    double *upper)
{
    BEGIN_CALL();
    TRY(get_clip(desc, mode, lower, upper));
    if (nan != NULL) *nan = desc->clip_nan;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNGetClip_v9(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t *mode, double *lower, double *upper)
{
    BEGIN_CALL();
    return get_clip(desc, mode, lower, upper);
}

cudnnStatus_t cudnnBuildRNNDynamic(cudnnHandle_t handle, cudnnRNNDescriptor_t desc, int batch)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    TRY(object_check_set(desc, RNN));
    REQUIRE(
        desc->algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC, CUDNN_STATUS_BAD_PARAM,
        "the algorithm is not the dynamic one");
    REQUIRE(batch >= 1, CUDNN_STATUS_BAD_PARAM, "a batch of %d", batch);
    desc->dynamic_batch = batch;
    return CUDNN_STATUS_SUCCESS;
}
