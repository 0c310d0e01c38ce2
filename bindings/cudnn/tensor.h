/* Tensor and filter descriptors. Arrays of dimensions and strides are host memory. */

typedef enum {
    CUDNN_TENSOR_NCHW = 0,
    CUDNN_TENSOR_NHWC = 1,
    CUDNN_TENSOR_NCHW_VECT_C = 2
} cudnnTensorFormat_t;

typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *desc);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc);
cudnnStatus_t cudnnSetTensorNdDescriptor(
    cudnnTensorDescriptor_t desc,
    cudnnDataType_t data_type,
    int num_dims,
    const int dims[],
    const int strides[]);
cudnnStatus_t cudnnSetTensorNdDescriptorEx(
    cudnnTensorDescriptor_t desc,
    cudnnTensorFormat_t format,
    cudnnDataType_t data_type,
    int num_dims,
    const int dims[]);
cudnnStatus_t cudnnGetTensorNdDescriptor(
    const cudnnTensorDescriptor_t desc,
    int num_dims_requested,
    cudnnDataType_t *data_type,
    int *num_dims,
    int dims[],
    int strides[]);
cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t desc, size_t *size);

typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *desc);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc);
cudnnStatus_t cudnnSetFilterNdDescriptor(
    cudnnFilterDescriptor_t desc,
    cudnnDataType_t data_type,
    cudnnTensorFormat_t format,
    int num_dims,
    const int dims[]);
cudnnStatus_t cudnnGetFilterNdDescriptor(
    const cudnnFilterDescriptor_t desc,
    int num_dims_requested,
    cudnnDataType_t *data_type,
    cudnnTensorFormat_t *format,
    int *num_dims,
    int dims[]);
