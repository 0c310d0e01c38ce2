/* libcuda, CUDA's driver: errors, devices, contexts, modules and the launch of a kernel. */

/* The statuses that are told apart; cuGetErrorName knows the others. */
typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_CONTEXT = 201
};

CUresult cuGetErrorName(CUresult error, const char **pStr);
CUresult cuGetErrorString(CUresult error, const char **pStr);

CUresult cuInit(unsigned int Flags);

/* MAJOR * 1000 + MINOR * 10 of the newest CUDA that the driver supports. */
CUresult cuDriverGetVersion(int *driverVersion);

typedef int CUdevice;

enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
};
typedef int CUdevice_attribute;

CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int len, CUdevice dev);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev);
CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev);

/* A context by its address; 0 where a thread has none. */
CUresult cuDevicePrimaryCtxRetain(context_ptr *pctx, CUdevice dev);
CUresult cuCtxGetCurrent(context_ptr *pctx);
CUresult cuCtxSetCurrent(context_ptr ctx);
CUresult cuCtxGetDevice(CUdevice *device);

typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule hmod);
CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name);

enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
typedef int CUfunction_attribute;

CUresult cuFuncSetAttribute(function_ptr hfunc, CUfunction_attribute attrib, int value);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *numBlocks, function_ptr func, int blockSize, size_t dynamicSMemSize);

/* An attribute has a value of 64 bytes. That of a cooperative launch is an int at its beginning, that
   of clusters three unsigned ints: the blocks of one in each dimension. */
enum { CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4 };
typedef struct {
    int id;
    char pad[4];
    uint64_t value[8];
} CUlaunchAttribute;

typedef struct {
    unsigned int gridDimX;
    unsigned int gridDimY;
    unsigned int gridDimZ;
    unsigned int blockDimX;
    unsigned int blockDimY;
    unsigned int blockDimZ;
    unsigned int sharedMemBytes;
    stream_ptr hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

CUresult cuOccupancyMaxActiveClusters(
    int *numClusters, function_ptr func, const CUlaunchConfig *config);

CUresult cuLaunchKernelEx(
    const CUlaunchConfig *config, function_ptr f, void **kernelParams, void **extra);
