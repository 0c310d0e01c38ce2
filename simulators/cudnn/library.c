/* Versions, names of statuses, handles. */
#include "descriptors.h"

/* Versions that cuDNN 9.19 for CUDA 13 reports. */
enum { CUDART_VERSION_OF_9_19 = 13010, MAX_DEVICE_OF_9_19 = 1210 };

size_t cudnnGetCudartVersion(void)
{
    BEGIN_PLAIN_CALL();
    return CUDART_VERSION_OF_9_19;
}

size_t cudnnGetMaxDeviceVersion(void)
{
    BEGIN_PLAIN_CALL();
    return MAX_DEVICE_OF_9_19;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    BEGIN_PLAIN_CALL();
#define NAME(status) \
    case status: return #status
    /* An int: a status may be any number to the caller. */
    switch ((int)status) {
        NAME(CUDNN_STATUS_SUCCESS);
        NAME(CUDNN_STATUS_NOT_INITIALIZED);
        NAME(CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH);
        NAME(CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH);
        NAME(CUDNN_STATUS_DEPRECATED);
        NAME(CUDNN_STATUS_LICENSE_ERROR);
        NAME(CUDNN_STATUS_RUNTIME_IN_PROGRESS);
        NAME(CUDNN_STATUS_RUNTIME_FP_OVERFLOW);
        NAME(CUDNN_STATUS_BAD_PARAM);
        NAME(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
        NAME(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
        NAME(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
        NAME(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
        NAME(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
        NAME(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
        NAME(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
        NAME(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
        NAME(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_PADDING);
        NAME(CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM);
        NAME(CUDNN_STATUS_INTERNAL_ERROR);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM);
        NAME(CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED);
        NAME(CUDNN_STATUS_EXECUTION_FAILED);
        NAME(CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER);
        NAME(CUDNN_STATUS_EXECUTION_FAILED_CUBLAS);
        NAME(CUDNN_STATUS_EXECUTION_FAILED_CUDART);
        NAME(CUDNN_STATUS_EXECUTION_FAILED_CURAND);
    default: return "CUDNN_UNKNOWN_STATUS";
    }
#undef NAME
}

cudnnStatus_t check_handle(cudnnHandle_t handle)
{
    TRY(object_check(handle, HANDLE));
    REQUIRE(
        !handles_stay_with_threads() || pthread_equal(handle->thread, pthread_self()),
        CUDNN_STATUS_BAD_PARAM, "the handle is that of another thread");
    call_on_stream(handle->stream);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(handle);
    void *created;
    TRY(object_create(HANDLE, sizeof **handle, &created));
    *handle = created;
    (*handle)->thread = pthread_self();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    BEGIN_CALL();
    if (handle == NULL) return CUDNN_STATUS_SUCCESS;
    TRY(object_check(handle, HANDLE));
    object_destroy(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    handle->stream = stream;
    stream_was_set(stream);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    BEGIN_CALL();
    TRY(check_handle(handle));
    REQUIRE_OUTPUT(stream);
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}
