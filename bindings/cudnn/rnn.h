/* Recurrent networks, by the functions that came with version 8 and remain in 9. */

typedef enum {
    CUDNN_RNN_ALGO_STANDARD = 0,
    CUDNN_RNN_ALGO_PERSIST_STATIC = 1,
    CUDNN_RNN_ALGO_PERSIST_DYNAMIC = 2,
    CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H = 3
} cudnnRNNAlgo_t;

typedef enum {
    CUDNN_FWD_MODE_INFERENCE = 0,
    CUDNN_FWD_MODE_TRAINING = 1
} cudnnForwardMode_t;

typedef enum {
    CUDNN_RNN_RELU = 0,
    CUDNN_RNN_TANH = 1,
    CUDNN_LSTM = 2,
    CUDNN_GRU = 3
} cudnnRNNMode_t;

typedef enum {
    CUDNN_RNN_NO_BIAS = 0,
    CUDNN_RNN_SINGLE_INP_BIAS = 1,
    CUDNN_RNN_DOUBLE_BIAS = 2,
    CUDNN_RNN_SINGLE_REC_BIAS = 3
} cudnnRNNBiasMode_t;

typedef enum {
    CUDNN_UNIDIRECTIONAL = 0,
    CUDNN_BIDIRECTIONAL = 1
} cudnnDirectionMode_t;

typedef enum {
    CUDNN_LINEAR_INPUT = 0,
    CUDNN_SKIP_INPUT = 1
} cudnnRNNInputMode_t;

typedef enum {
    CUDNN_RNN_CLIP_NONE = 0,
    CUDNN_RNN_CLIP_MINMAX = 1
} cudnnRNNClipMode_t;

typedef enum {
    CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED = 0,
    CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED = 1,
    CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED = 2
} cudnnRNNDataLayout_t;

typedef enum {
    CUDNN_WGRAD_MODE_ADD = 0,
    CUDNN_WGRAD_MODE_SET = 1
} cudnnWgradMode_t;

/* Bits of aux_flags. */
#define CUDNN_RNN_PADDED_IO_DISABLED 0
#define CUDNN_RNN_PADDED_IO_ENABLED 1

/* RNN descriptor */

typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *desc);
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t desc);
cudnnStatus_t cudnnSetRNNDescriptor_v8(
    cudnnRNNDescriptor_t desc,
    cudnnRNNAlgo_t algo,
    cudnnRNNMode_t cell_mode,
    cudnnRNNBiasMode_t bias_mode,
    cudnnDirectionMode_t direction_mode,
    cudnnRNNInputMode_t input_mode,
    cudnnDataType_t data_type,
    cudnnDataType_t math_precision,
    cudnnMathType_t math_type,
    int32_t input_size,
    int32_t hidden_size,
    int32_t proj_size,
    int32_t num_layers,
    cudnnDropoutDescriptor_t dropout_desc,
    uint32_t aux_flags);
cudnnStatus_t cudnnGetRNNDescriptor_v8(
    cudnnRNNDescriptor_t desc,
    cudnnRNNAlgo_t *algo,
    cudnnRNNMode_t *cell_mode,
    cudnnRNNBiasMode_t *bias_mode,
    cudnnDirectionMode_t *direction_mode,
    cudnnRNNInputMode_t *input_mode,
    cudnnDataType_t *data_type,
    cudnnDataType_t *math_precision,
    cudnnMathType_t *math_type,
    int32_t *input_size,
    int32_t *hidden_size,
    int32_t *proj_size,
    int32_t *num_layers,
    cudnnDropoutDescriptor_t *dropout_desc,
    uint32_t *aux_flags);
/* The _v8 pair alone says what clipping does to NaN; the _v9 pair came with version 9. */
cudnnStatus_t cudnnRNNSetClip_v8(
    cudnnRNNDescriptor_t desc,
    cudnnRNNClipMode_t clip_mode,
    cudnnNanPropagation_t clip_nan,
    double lower,
    double upper);
cudnnStatus_t cudnnRNNGetClip_v8(
    cudnnRNNDescriptor_t desc,
    cudnnRNNClipMode_t *clip_mode,
    cudnnNanPropagation_t *clip_nan,
    double *lower,
    double *upper);
cudnnStatus_t cudnnRNNSetClip_v9(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t clip_mode, double lower, double upper);
cudnnStatus_t cudnnRNNGetClip_v9(
    cudnnRNNDescriptor_t desc, cudnnRNNClipMode_t *clip_mode, double *lower, double *upper);
cudnnStatus_t cudnnBuildRNNDynamic(
    cudnnHandle_t handle, cudnnRNNDescriptor_t desc, int batch_size);

/* RNN data descriptor. Lengths and padding value are host memory. */

typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *desc);
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t desc);
cudnnStatus_t cudnnSetRNNDataDescriptor(
    cudnnRNNDataDescriptor_t desc,
    cudnnDataType_t data_type,
    cudnnRNNDataLayout_t layout,
    int max_length,
    int batch_size,
    int vector_size,
    const int lengths[],
    void *padding_fill);
cudnnStatus_t cudnnGetRNNDataDescriptor(
    cudnnRNNDataDescriptor_t desc,
    cudnnDataType_t *data_type,
    cudnnRNNDataLayout_t *layout,
    int *max_length,
    int *batch_size,
    int *vector_size,
    int num_lengths_requested,
    int lengths[],
    void *padding_fill);

/* Sizes in bytes, and where a gate's matrix and bias lie in the weight space. */

cudnnStatus_t cudnnGetRNNTempSpaceSizes(
    cudnnHandle_t handle,
    cudnnRNNDescriptor_t desc,
    cudnnForwardMode_t forward_mode,
    cudnnRNNDataDescriptor_t x_desc,
    size_t *workspace_size,
    size_t *reserve_size);
cudnnStatus_t cudnnGetRNNWeightSpaceSize(
    cudnnHandle_t handle, cudnnRNNDescriptor_t desc, size_t *weight_size);
cudnnStatus_t cudnnGetRNNWeightParams(
    cudnnHandle_t handle,
    cudnnRNNDescriptor_t desc,
    int32_t pseudo_layer,
    size_t weight_size,
    const dev_ptr weights,
    int32_t linear_layer,
    cudnnTensorDescriptor_t matrix_desc,
    dev_ptr *matrix,
    cudnnTensorDescriptor_t bias_desc,
    dev_ptr *bias);

/* Forward, backward data, backward weights, in the order in which they must run. */

cudnnStatus_t cudnnRNNForward(
    cudnnHandle_t handle,
    cudnnRNNDescriptor_t desc,
    cudnnForwardMode_t forward_mode,
    const dev_ptr_int32 dev_lengths,
    cudnnRNNDataDescriptor_t x_desc,
    const dev_ptr x,
    cudnnRNNDataDescriptor_t y_desc,
    dev_ptr y,
    cudnnTensorDescriptor_t h_desc,
    const dev_ptr h_0,
    dev_ptr h_n,
    cudnnTensorDescriptor_t c_desc,
    const dev_ptr c_0,
    dev_ptr c_n,
    size_t weight_size,
    const dev_ptr weights,
    size_t workspace_size,
    dev_ptr workspace,
    size_t reserve_size,
    dev_ptr reserve);
cudnnStatus_t cudnnRNNBackwardData_v8(
    cudnnHandle_t handle,
    cudnnRNNDescriptor_t desc,
    const dev_ptr_int32 dev_lengths,
    cudnnRNNDataDescriptor_t y_desc,
    const dev_ptr y,
    const dev_ptr dy,
    cudnnRNNDataDescriptor_t x_desc,
    dev_ptr dx,
    cudnnTensorDescriptor_t h_desc,
    const dev_ptr h_0,
    const dev_ptr dh_n,
    dev_ptr dh_0,
    cudnnTensorDescriptor_t c_desc,
    const dev_ptr c_0,
    const dev_ptr dc_n,
    dev_ptr dc_0,
    size_t weight_size,
    const dev_ptr weights,
    size_t workspace_size,
    dev_ptr workspace,
    size_t reserve_size,
    dev_ptr reserve);
cudnnStatus_t cudnnRNNBackwardWeights_v8(
    cudnnHandle_t handle,
    cudnnRNNDescriptor_t desc,
    cudnnWgradMode_t add_gradient,
    const dev_ptr_int32 dev_lengths,
    cudnnRNNDataDescriptor_t x_desc,
    const dev_ptr x,
    cudnnTensorDescriptor_t h_desc,
    const dev_ptr h_0,
    cudnnRNNDataDescriptor_t y_desc,
    const dev_ptr y,
    size_t weight_size,
    dev_ptr dweights,
    size_t workspace_size,
    dev_ptr workspace,
    size_t reserve_size,
    dev_ptr reserve);
