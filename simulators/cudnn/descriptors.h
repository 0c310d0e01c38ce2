/* The structures of handles and descriptors. */
#ifndef STANDIN_DESCRIPTORS_H
#define STANDIN_DESCRIPTORS_H

#include <pthread.h>

#include "objects.h"

struct cudnnContext {
    struct object object;
    pthread_t thread;
    cudaStream_t stream;
};

struct cudnnTensorStruct {
    struct object object;
    cudnnDataType_t type;
    int rank;
    int dims[CUDNN_DIM_MAX];
    int strides[CUDNN_DIM_MAX];
};

struct cudnnFilterStruct {
    struct object object;
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int rank;
    int dims[CUDNN_DIM_MAX];
};

struct cudnnDropoutStruct {
    struct object object;
    float dropout;
    void *states;
    unsigned long long seed;
};

struct cudnnRNNStruct {
    struct object object;
    cudnnRNNAlgo_t algorithm;
    cudnnRNNMode_t mode;
    cudnnRNNBiasMode_t bias_mode;
    cudnnDirectionMode_t direction_mode;
    cudnnRNNInputMode_t input_mode;
    cudnnDataType_t type;
    cudnnDataType_t math_precision;
    cudnnMathType_t math_type;
    int32_t input_size;
    int32_t hidden_size;
    int32_t proj_size;
    int32_t num_layers;
    cudnnDropoutDescriptor_t dropout; /* not owned; it may be gone */
    uint32_t flags;
    cudnnRNNClipMode_t clip_mode;
    cudnnNanPropagation_t clip_nan;
    double clip_lower, clip_upper;
    int dynamic_batch; /* of cudnnBuildRNNDynamic, 0 where it did not run */
};

struct cudnnRNNDataStruct {
    struct object object;
    cudnnDataType_t type;
    cudnnRNNDataLayout_t layout;
    int max_length;
    int batch;
    int vector_size;
    int *lengths;
    bool fills_padding;
    double padding; /* room for one number of any type */
};

/* Check that a handle is live and belongs to this thread. */
cudnnStatus_t check_handle(cudnnHandle_t handle);

/* Set the descriptor to that of a packed tensor of three dimensions. */
void describe_tensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rows, int columns);

#endif
