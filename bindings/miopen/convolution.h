/* Convolutions: descriptor, find mode, immediate mode, bias. Strides, dilations and paddings are host
   memory; alpha and beta point to a float, for half tensors too. */

typedef enum {
    miopenConvolution = 0,
    miopenTranspose = 1,
    miopenGroupConv = 2,
    miopenDepthwise = 3
} miopenConvolutionMode_t;

typedef enum {
    MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL = 0,
    MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC = 1,
    MIOPEN_CONVOLUTION_ATTRIB_FP8_ROUNDING_MODE = 2
} miopenConvolutionAttrib_t;

typedef enum {
    miopenConvolutionFindModeNormal = 1,
    miopenConvolutionFindModeFast = 2,
    miopenConvolutionFindModeHybrid = 3,
    miopenConvolutionFindModeDynamicHybrid = 5
} miopenConvolutionFindMode_t;

typedef struct miopenConvolutionDescriptor *miopenConvolutionDescriptor_t;

miopenStatus_t miopenCreateConvolutionDescriptor(miopenConvolutionDescriptor_t *conv_desc);
miopenStatus_t miopenDestroyConvolutionDescriptor(miopenConvolutionDescriptor_t conv_desc);
miopenStatus_t miopenInitConvolutionNdDescriptor(
    miopenConvolutionDescriptor_t conv_desc,
    int spatial_dim,
    const int *padding,
    const int *stride,
    const int *dilation,
    miopenConvolutionMode_t mode);
miopenStatus_t miopenGetConvolutionSpatialDim(
    miopenConvolutionDescriptor_t conv_desc, int *spatial_dim);
miopenStatus_t miopenGetConvolutionNdDescriptor(
    miopenConvolutionDescriptor_t conv_desc,
    int requested_spatial_dim,
    int *spatial_dim,
    int *padding,
    int *stride,
    int *dilation,
    miopenConvolutionMode_t *mode);
miopenStatus_t miopenSetConvolutionGroupCount(
    miopenConvolutionDescriptor_t conv_desc, int group_count);
miopenStatus_t miopenGetConvolutionGroupCount(
    miopenConvolutionDescriptor_t conv_desc, int *group_count);
miopenStatus_t miopenSetTransposeConvNdOutputPadding(
    miopenConvolutionDescriptor_t conv_desc, int spatial_dim, const int *output_padding);
miopenStatus_t miopenGetConvolutionNdForwardOutputDim(
    miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenTensorDescriptor_t w_desc,
    int *num_dims,
    int *dims);
miopenStatus_t miopenSetConvolutionAttribute(
    miopenConvolutionDescriptor_t conv_desc, const miopenConvolutionAttrib_t attribute, int value);
miopenStatus_t miopenGetConvolutionAttribute(
    miopenConvolutionDescriptor_t conv_desc, const miopenConvolutionAttrib_t attribute, int *value);
miopenStatus_t miopenSetConvolutionFindMode(
    miopenConvolutionDescriptor_t conv_desc, miopenConvolutionFindMode_t find_mode);
miopenStatus_t miopenGetConvolutionFindMode(
    const miopenConvolutionDescriptor_t conv_desc, miopenConvolutionFindMode_t *find_mode);

/* Algorithms have the same numbers in each direction. */

typedef enum {
    miopenConvolutionAlgoGEMM = 0,
    miopenConvolutionAlgoDirect = 1,
    miopenConvolutionAlgoFFT = 2,
    miopenConvolutionAlgoWinograd = 3,
    miopenConvolutionAlgoImplicitGEMM = 5
} miopenConvAlgorithm_t;
typedef int miopenConvFwdAlgorithm_t;
typedef int miopenConvBwdDataAlgorithm_t;
typedef int miopenConvBwdWeightsAlgorithm_t;

/* Find mode. The first member is one of a union of three, one for each direction. */

typedef struct {
    int fwd_algo;
    float time;
    size_t memory;
} miopenConvAlgoPerf_t;

miopenStatus_t miopenConvolutionForwardGetWorkSpaceSize(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t w_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t y_desc,
    size_t *workspace_size);
miopenStatus_t miopenFindConvolutionForwardAlgorithm(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const miopenTensorDescriptor_t w_desc,
    const dev_ptr w,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t y_desc,
    dev_ptr y,
    const int request_algo_count,
    int *returned_algo_count,
    miopenConvAlgoPerf_t *perf_results,
    dev_ptr workspace,
    size_t workspace_size,
    bool exhaustive_search);
miopenStatus_t miopenConvolutionForward(
    miopenHandle_t handle,
    const void *alpha,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const miopenTensorDescriptor_t w_desc,
    const dev_ptr w,
    const miopenConvolutionDescriptor_t conv_desc,
    miopenConvFwdAlgorithm_t algo,
    const void *beta,
    const miopenTensorDescriptor_t y_desc,
    dev_ptr y,
    dev_ptr workspace,
    size_t workspace_size);
miopenStatus_t miopenConvolutionBackwardDataGetWorkSpaceSize(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t w_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dx_desc,
    size_t *workspace_size);
miopenStatus_t miopenFindConvolutionBackwardDataAlgorithm(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const miopenTensorDescriptor_t w_desc,
    const dev_ptr w,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dx_desc,
    dev_ptr dx,
    const int request_algo_count,
    int *returned_algo_count,
    miopenConvAlgoPerf_t *perf_results,
    dev_ptr workspace,
    size_t workspace_size,
    bool exhaustive_search);
miopenStatus_t miopenConvolutionBackwardData(
    miopenHandle_t handle,
    const void *alpha,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const miopenTensorDescriptor_t w_desc,
    const dev_ptr w,
    const miopenConvolutionDescriptor_t conv_desc,
    miopenConvBwdDataAlgorithm_t algo,
    const void *beta,
    const miopenTensorDescriptor_t dx_desc,
    dev_ptr dx,
    dev_ptr workspace,
    size_t workspace_size);
miopenStatus_t miopenConvolutionBackwardWeightsGetWorkSpaceSize(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dw_desc,
    size_t *workspace_size);
miopenStatus_t miopenFindConvolutionBackwardWeightsAlgorithm(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dw_desc,
    dev_ptr dw,
    const int request_algo_count,
    int *returned_algo_count,
    miopenConvAlgoPerf_t *perf_results,
    dev_ptr workspace,
    size_t workspace_size,
    bool exhaustive_search);
miopenStatus_t miopenConvolutionBackwardWeights(
    miopenHandle_t handle,
    const void *alpha,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const miopenConvolutionDescriptor_t conv_desc,
    miopenConvBwdWeightsAlgorithm_t algo,
    const void *beta,
    const miopenTensorDescriptor_t dw_desc,
    dev_ptr dw,
    dev_ptr workspace,
    size_t workspace_size);

/* Immediate mode. */

typedef struct {
    float time;
    size_t workspace_size;
    uint64_t solution_id;
    miopenConvAlgorithm_t algorithm;
} miopenConvSolution_t;

miopenStatus_t miopenConvolutionForwardGetSolutionCount(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t w_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t y_desc,
    size_t *solution_count);
miopenStatus_t miopenConvolutionForwardGetSolution(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t w_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t y_desc,
    const size_t max_solution_count,
    size_t *solution_count,
    miopenConvSolution_t *solutions);
miopenStatus_t miopenConvolutionForwardCompileSolution(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t w_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t y_desc,
    const uint64_t solution_id);
miopenStatus_t miopenConvolutionForwardImmediate(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t w_desc,
    const dev_ptr w,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t y_desc,
    dev_ptr y,
    dev_ptr workspace,
    size_t workspace_size,
    const uint64_t solution_id);
miopenStatus_t miopenConvolutionBackwardDataGetSolutionCount(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t w_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dx_desc,
    size_t *solution_count);
miopenStatus_t miopenConvolutionBackwardDataGetSolution(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t w_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dx_desc,
    const size_t max_solution_count,
    size_t *solution_count,
    miopenConvSolution_t *solutions);
miopenStatus_t miopenConvolutionBackwardDataCompileSolution(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t w_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dx_desc,
    const uint64_t solution_id);
miopenStatus_t miopenConvolutionBackwardDataImmediate(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const miopenTensorDescriptor_t w_desc,
    const dev_ptr w,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dx_desc,
    dev_ptr dx,
    dev_ptr workspace,
    size_t workspace_size,
    const uint64_t solution_id);
miopenStatus_t miopenConvolutionBackwardWeightsGetSolutionCount(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dw_desc,
    size_t *solution_count);
miopenStatus_t miopenConvolutionBackwardWeightsGetSolution(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dw_desc,
    const size_t max_solution_count,
    size_t *solution_count,
    miopenConvSolution_t *solutions);
miopenStatus_t miopenConvolutionBackwardWeightsCompileSolution(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const miopenTensorDescriptor_t x_desc,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dw_desc,
    const uint64_t solution_id);
miopenStatus_t miopenConvolutionBackwardWeightsImmediate(
    miopenHandle_t handle,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t dw_desc,
    dev_ptr dw,
    dev_ptr workspace,
    size_t workspace_size,
    const uint64_t solution_id);

/* The bias [1, K, 1, ...] is added to y; its gradient is the sum of dy. */

miopenStatus_t miopenConvolutionForwardBias(
    miopenHandle_t handle,
    const void *alpha,
    const miopenTensorDescriptor_t b_desc,
    const dev_ptr b,
    const void *beta,
    const miopenTensorDescriptor_t y_desc,
    dev_ptr y);
miopenStatus_t miopenConvolutionBackwardBias(
    miopenHandle_t handle,
    const void *alpha,
    const miopenTensorDescriptor_t dy_desc,
    const dev_ptr dy,
    const void *beta,
    const miopenTensorDescriptor_t db_desc,
    dev_ptr db);
