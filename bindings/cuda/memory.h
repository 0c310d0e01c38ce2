/* Memory of the current device. */

CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuMemAlloc_v2(dev_ptr *dptr, size_t bytesize);
CUresult cuMemFree_v2(dev_ptr dptr);

/* The addresses tell the direction. */
CUresult cuMemcpyAsync(dev_ptr dst, dev_ptr src, size_t ByteCount, stream_ptr hStream);
/* Addresses of the type CU_MEMORYTYPE_UNIFIED tell what memory they are of. */
enum { CU_MEMORYTYPE_UNIFIED = 4 };
typedef int CUmemorytype;
typedef struct {
    size_t srcXInBytes;
    size_t srcY;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    dev_ptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes;
    size_t dstY;
    CUmemorytype dstMemoryType;
    void *dstHost;
    dev_ptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes;
    size_t Height;
} CUDA_MEMCPY2D;

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, stream_ptr hStream);
CUresult cuMemsetD8Async(dev_ptr dstDevice, unsigned char uc, size_t N, stream_ptr hStream);
