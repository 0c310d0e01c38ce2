/* The library itself: version, errors, handle, stream, and the data types that every topic uses. */

/* An int comes back from a call as a plain Python int; the library names no number beyond these. */
typedef int miopenStatus_t;
enum {
    miopenStatusSuccess = 0,
    miopenStatusNotInitialized = 1,
    miopenStatusInvalidValue = 2,
    miopenStatusBadParm = 3,
    miopenStatusAllocFailed = 4,
    miopenStatusInternalError = 5,
    miopenStatusNotImplemented = 6,
    miopenStatusUnknownError = 7,
    miopenStatusUnsupportedOp = 8,
    miopenStatusGpuOperationsSkipped = 9,
    miopenStatusVersionMismatch = 10
};

typedef enum {
    miopenHalf = 0,
    miopenFloat = 1,
    miopenInt32 = 2,
    miopenInt8 = 3,
    miopenBFloat16 = 5,
    miopenDouble = 6,
    miopenInt64 = 9
} miopenDataType_t;

miopenStatus_t miopenGetVersion(size_t *major, size_t *minor, size_t *patch);
const char *miopenGetErrorString(miopenStatus_t status);

typedef struct miopenHandle *miopenHandle_t;

miopenStatus_t miopenCreate(miopenHandle_t *handle);
miopenStatus_t miopenCreateWithStream(miopenHandle_t *handle, stream_ptr stream);
miopenStatus_t miopenDestroy(miopenHandle_t handle);
miopenStatus_t miopenSetStream(miopenHandle_t handle, stream_ptr stream);
miopenStatus_t miopenGetStream(miopenHandle_t handle, stream_ptr *stream);
