/* Tensor descriptors, which weights use too, what is computed on tensors, and sequence descriptors
   of the newer RNN functions. Arrays of dimensions and strides are host memory. */

typedef struct miopenTensorDescriptor *miopenTensorDescriptor_t;

miopenStatus_t miopenCreateTensorDescriptor(miopenTensorDescriptor_t *desc);
miopenStatus_t miopenDestroyTensorDescriptor(miopenTensorDescriptor_t desc);
miopenStatus_t miopenSetTensorDescriptor(
    miopenTensorDescriptor_t desc,
    miopenDataType_t data_type,
    int num_dims,
    const int dims[],
    const int strides[]);
/* The number of dimensions. */
miopenStatus_t miopenGetTensorDescriptorSize(miopenTensorDescriptor_t desc, int *num_dims);
miopenStatus_t miopenGetTensorDescriptor(
    miopenTensorDescriptor_t desc, miopenDataType_t *data_type, int dims[], int strides[]);
miopenStatus_t miopenGetTensorNumBytes(miopenTensorDescriptor_t desc, size_t *size);

/* Scalars are host memory: a float, for half tensors too. */

typedef enum {
    miopenTensorOpAdd = 0,
    miopenTensorOpMul = 1,
    miopenTensorOpMin = 2,
    miopenTensorOpMax = 3
} miopenTensorOp_t;

miopenStatus_t miopenSetTensor(
    miopenHandle_t handle, const miopenTensorDescriptor_t desc, dev_ptr data, const void *value);
/* c = op(alpha1 * a, alpha2 * b) + beta * c */
miopenStatus_t miopenOpTensor(
    miopenHandle_t handle,
    miopenTensorOp_t op,
    const void *alpha1,
    const miopenTensorDescriptor_t a_desc,
    const dev_ptr a,
    const void *alpha2,
    const miopenTensorDescriptor_t b_desc,
    const dev_ptr b,
    const void *beta,
    const miopenTensorDescriptor_t c_desc,
    dev_ptr c);

typedef struct miopenSeqTensorDescriptor *miopenSeqTensorDescriptor_t;

miopenStatus_t miopenCreateSeqTensorDescriptor(miopenSeqTensorDescriptor_t *desc);
miopenStatus_t miopenDestroySeqTensorDescriptor(miopenSeqTensorDescriptor_t desc);
