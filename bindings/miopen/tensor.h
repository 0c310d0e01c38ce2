/* Tensor descriptors, which weights use too, and sequence descriptors of the newer RNN functions.
   Arrays of dimensions and strides are host memory. */

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

typedef struct miopenSeqTensorDescriptor *miopenSeqTensorDescriptor_t;

miopenStatus_t miopenCreateSeqTensorDescriptor(miopenSeqTensorDescriptor_t *desc);
miopenStatus_t miopenDestroySeqTensorDescriptor(miopenSeqTensorDescriptor_t desc);
