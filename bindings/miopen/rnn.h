/* Recurrent networks: descriptor, sizes and places in the weight buffer, then the older functions,
   which take one tensor descriptor for each step, and the newer ones, which take sequences. */

typedef enum {
    miopenRNNRELU = 0,
    miopenRNNTANH = 1,
    miopenLSTM = 2,
    miopenGRU = 3
} miopenRNNMode_t;

typedef enum {
    miopenRNNlinear = 0,
    miopenRNNskip = 1
} miopenRNNInputMode_t;

typedef enum {
    miopenRNNdefault = 0,
    miopenRNNfundamental = 1,
    miopenRNNroundedDynamic = 2
} miopenRNNAlgo_t;

typedef enum {
    miopenRNNunidirection = 0,
    miopenRNNbidirection = 1
} miopenRNNDirectionMode_t;

typedef enum {
    miopenRNNNoBias = 0,
    miopenRNNwithBias = 1
} miopenRNNBiasMode_t;

typedef enum {
    miopenRNNIONotPadded = 0,
    miopenRNNIOWithPadding = 1
} miopenRNNPaddingMode_t;

typedef enum {
    miopenRNNTraining = 0,
    miopenRNNInference = 1
} miopenRNNFWDMode_t;

typedef enum {
    miopenRNNDataUnknownLayout = 0,
    miopenRNNDataSeqMajorNotPadded = 1,
    miopenRNNDataSeqMajorPadded = 2,
    miopenRNNDataBatchMajorPadded = 3
} miopenRNNBaseLayout_t;

/* RNN descriptor. The _V2 pair knows dropout between layers. */

typedef struct miopenRNNDescriptor *miopenRNNDescriptor_t;

miopenStatus_t miopenCreateRNNDescriptor(miopenRNNDescriptor_t *desc);
miopenStatus_t miopenDestroyRNNDescriptor(miopenRNNDescriptor_t desc);
miopenStatus_t miopenSetRNNDescriptor(
    miopenRNNDescriptor_t desc,
    int hidden_size,
    int num_layers,
    miopenRNNInputMode_t input_mode,
    miopenRNNDirectionMode_t direction_mode,
    miopenRNNMode_t cell_mode,
    miopenRNNBiasMode_t bias_mode,
    miopenRNNAlgo_t algo,
    miopenDataType_t data_type);
miopenStatus_t miopenGetRNNDescriptor(
    miopenRNNDescriptor_t desc,
    miopenRNNMode_t *cell_mode,
    miopenRNNAlgo_t *algo,
    miopenRNNInputMode_t *input_mode,
    miopenRNNDirectionMode_t *direction_mode,
    miopenRNNBiasMode_t *bias_mode,
    int *hidden_size,
    int *num_layers);
miopenStatus_t miopenSetRNNDescriptor_V2(
    miopenRNNDescriptor_t desc,
    int hidden_size,
    int num_layers,
    miopenDropoutDescriptor_t dropout_desc,
    miopenRNNInputMode_t input_mode,
    miopenRNNDirectionMode_t direction_mode,
    miopenRNNMode_t cell_mode,
    miopenRNNBiasMode_t bias_mode,
    miopenRNNAlgo_t algo,
    miopenDataType_t data_type);
miopenStatus_t miopenGetRNNDescriptor_V2(
    miopenRNNDescriptor_t desc,
    int *hidden_size,
    int *num_layers,
    miopenDropoutDescriptor_t *dropout_desc,
    miopenRNNInputMode_t *input_mode,
    miopenRNNDirectionMode_t *direction_mode,
    miopenRNNMode_t *cell_mode,
    miopenRNNBiasMode_t *bias_mode,
    miopenRNNAlgo_t *algo,
    miopenDataType_t *data_type);
miopenStatus_t miopenSetRNNPaddingMode(
    miopenRNNDescriptor_t desc, miopenRNNPaddingMode_t padding_mode);
miopenStatus_t miopenGetRNNPaddingMode(
    miopenRNNDescriptor_t desc, miopenRNNPaddingMode_t *padding_mode);

/* Sequences of a batch. Lengths are host memory; the padding marker is not used. */

miopenStatus_t miopenSetRNNDataSeqTensorDescriptor(
    miopenSeqTensorDescriptor_t desc,
    miopenDataType_t data_type,
    miopenRNNBaseLayout_t layout,
    int max_length,
    int batch_size,
    int vector_size,
    const int lengths[],
    void *padding_marker);
miopenStatus_t miopenGetRNNDataSeqTensorDescriptor(
    miopenSeqTensorDescriptor_t desc,
    miopenDataType_t *data_type,
    miopenRNNBaseLayout_t *layout,
    int *max_length,
    int *batch_size,
    int *vector_size,
    int num_lengths_requested,
    int lengths[],
    void *padding_marker);

/* Sizes in bytes, and where a gate's matrix and bias lie in the weight buffer. The Offset functions
   count elements and describe the part in the tensor descriptor that they are given. */

miopenStatus_t miopenGetRNNWorkspaceSize(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    int num_steps,
    const miopenTensorDescriptor_t *x_descs,
    size_t *size);
miopenStatus_t miopenGetRNNTrainingReserveSize(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    int num_steps,
    const miopenTensorDescriptor_t *x_descs,
    size_t *size);
miopenStatus_t miopenGetRNNTempSpaceSizes(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    miopenSeqTensorDescriptor_t x_desc,
    miopenRNNFWDMode_t forward_mode,
    size_t *workspace_size,
    size_t *reserve_size);
miopenStatus_t miopenGetRNNParamsSize(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    miopenTensorDescriptor_t x_desc,
    size_t *size,
    miopenDataType_t data_type);
miopenStatus_t miopenGetRNNParamsDescriptor(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    miopenTensorDescriptor_t x_desc,
    miopenTensorDescriptor_t w_desc,
    miopenDataType_t data_type);
miopenStatus_t miopenGetRNNLayerParamOffset(
    miopenRNNDescriptor_t desc,
    int pseudo_layer,
    miopenTensorDescriptor_t x_desc,
    int linear_layer,
    miopenTensorDescriptor_t matrix_desc,
    size_t *offset);
miopenStatus_t miopenGetRNNLayerBiasOffset(
    miopenRNNDescriptor_t desc,
    int pseudo_layer,
    miopenTensorDescriptor_t x_desc,
    int linear_layer,
    miopenTensorDescriptor_t bias_desc,
    size_t *offset);

/* One tensor descriptor for each step: forward, backward data, backward weights, in the order in
   which they must run. */

miopenStatus_t miopenRNNForwardInference(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    int num_steps,
    const miopenTensorDescriptor_t *x_descs,
    const dev_ptr x,
    miopenTensorDescriptor_t h_0_desc,
    const dev_ptr h_0,
    miopenTensorDescriptor_t c_0_desc,
    const dev_ptr c_0,
    miopenTensorDescriptor_t w_desc,
    const dev_ptr weights,
    const miopenTensorDescriptor_t *y_descs,
    dev_ptr y,
    miopenTensorDescriptor_t h_n_desc,
    dev_ptr h_n,
    miopenTensorDescriptor_t c_n_desc,
    dev_ptr c_n,
    dev_ptr workspace,
    size_t workspace_size);
miopenStatus_t miopenRNNForwardTraining(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    int num_steps,
    const miopenTensorDescriptor_t *x_descs,
    const dev_ptr x,
    miopenTensorDescriptor_t h_0_desc,
    const dev_ptr h_0,
    miopenTensorDescriptor_t c_0_desc,
    const dev_ptr c_0,
    miopenTensorDescriptor_t w_desc,
    const dev_ptr weights,
    const miopenTensorDescriptor_t *y_descs,
    dev_ptr y,
    miopenTensorDescriptor_t h_n_desc,
    dev_ptr h_n,
    miopenTensorDescriptor_t c_n_desc,
    dev_ptr c_n,
    dev_ptr workspace,
    size_t workspace_size,
    dev_ptr reserve,
    size_t reserve_size);
miopenStatus_t miopenRNNBackwardData(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    int num_steps,
    const miopenTensorDescriptor_t *y_descs,
    const dev_ptr y,
    const miopenTensorDescriptor_t *dy_descs,
    const dev_ptr dy,
    miopenTensorDescriptor_t dh_n_desc,
    const dev_ptr dh_n,
    miopenTensorDescriptor_t dc_n_desc,
    const dev_ptr dc_n,
    miopenTensorDescriptor_t w_desc,
    const dev_ptr weights,
    miopenTensorDescriptor_t h_0_desc,
    const dev_ptr h_0,
    miopenTensorDescriptor_t c_0_desc,
    const dev_ptr c_0,
    const miopenTensorDescriptor_t *dx_descs,
    dev_ptr dx,
    miopenTensorDescriptor_t dh_0_desc,
    dev_ptr dh_0,
    miopenTensorDescriptor_t dc_0_desc,
    dev_ptr dc_0,
    dev_ptr workspace,
    size_t workspace_size,
    dev_ptr reserve,
    size_t reserve_size);
miopenStatus_t miopenRNNBackwardWeights(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    int num_steps,
    const miopenTensorDescriptor_t *x_descs,
    const dev_ptr x,
    miopenTensorDescriptor_t h_0_desc,
    const dev_ptr h_0,
    const miopenTensorDescriptor_t *y_descs,
    const dev_ptr y,
    miopenTensorDescriptor_t dw_desc,
    dev_ptr dweights,
    dev_ptr workspace,
    size_t workspace_size,
    const dev_ptr reserve,
    size_t reserve_size);

/* The same on sequence descriptors. */

miopenStatus_t miopenRNNForward(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    miopenRNNFWDMode_t forward_mode,
    miopenSeqTensorDescriptor_t x_desc,
    const dev_ptr x,
    miopenTensorDescriptor_t h_desc,
    const dev_ptr h_0,
    dev_ptr h_n,
    miopenTensorDescriptor_t c_desc,
    const dev_ptr c_0,
    dev_ptr c_n,
    miopenSeqTensorDescriptor_t y_desc,
    dev_ptr y,
    const dev_ptr weights,
    size_t weight_size,
    dev_ptr workspace,
    size_t workspace_size,
    dev_ptr reserve,
    size_t reserve_size);
miopenStatus_t miopenRNNBackwardSeqData(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    miopenSeqTensorDescriptor_t y_desc,
    const dev_ptr y,
    const dev_ptr dy,
    miopenTensorDescriptor_t h_desc,
    const dev_ptr h_0,
    const dev_ptr dh_n,
    dev_ptr dh_0,
    miopenTensorDescriptor_t c_desc,
    const dev_ptr c_0,
    const dev_ptr dc_n,
    dev_ptr dc_0,
    miopenSeqTensorDescriptor_t x_desc,
    dev_ptr dx,
    const dev_ptr weights,
    size_t weight_size,
    dev_ptr workspace,
    size_t workspace_size,
    dev_ptr reserve,
    size_t reserve_size);
miopenStatus_t miopenRNNBackwardWeightsSeqTensor(
    miopenHandle_t handle,
    miopenRNNDescriptor_t desc,
    miopenSeqTensorDescriptor_t x_desc,
    const dev_ptr x,
    miopenTensorDescriptor_t h_desc,
    const dev_ptr h_0,
    miopenSeqTensorDescriptor_t y_desc,
    const dev_ptr y,
    dev_ptr dweights,
    size_t weight_size,
    dev_ptr workspace,
    size_t workspace_size,
    const dev_ptr reserve,
    size_t reserve_size);
