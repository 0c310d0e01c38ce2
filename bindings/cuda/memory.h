/* Memory of the current device and pinned memory of the host. */

CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuMemAlloc_v2(dev_ptr *dptr, size_t bytesize);
CUresult cuMemFree_v2(dev_ptr dptr);

CUresult cuMemHostAlloc(host_ptr *pp, size_t bytesize, unsigned int Flags);
CUresult cuMemFreeHost(host_ptr p);

/* The addresses tell the direction. */
CUresult cuMemcpyAsync(dev_ptr dst, dev_ptr src, size_t ByteCount, stream_ptr hStream);
CUresult cuMemsetD8Async(dev_ptr dstDevice, unsigned char uc, size_t N, stream_ptr hStream);
