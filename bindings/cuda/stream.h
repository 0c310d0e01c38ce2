/* Streams, events, and the capture of a stream as a graph. */

enum { CU_STREAM_NON_BLOCKING = 1 };

CUresult cuStreamCreate(stream_ptr *phStream, unsigned int Flags);
CUresult cuStreamDestroy_v2(stream_ptr hStream);
CUresult cuStreamSynchronize(stream_ptr hStream);
CUresult cuStreamWaitEvent(stream_ptr hStream, event_ptr hEvent, unsigned int Flags);

enum { CU_EVENT_DEFAULT = 0, CU_EVENT_DISABLE_TIMING = 2 };

CUresult cuEventCreate(event_ptr *phEvent, unsigned int Flags);
CUresult cuEventDestroy_v2(event_ptr hEvent);
CUresult cuEventRecord(event_ptr hEvent, stream_ptr hStream);
CUresult cuEventSynchronize(event_ptr hEvent);
CUresult cuEventElapsedTime(float *pMilliseconds, event_ptr hStart, event_ptr hEnd);

enum { CU_STREAM_CAPTURE_STATUS_NONE = 0 };
typedef int CUstreamCaptureStatus;

enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
typedef int CUstreamCaptureMode;

CUresult cuStreamBeginCapture_v2(stream_ptr hStream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(stream_ptr hStream, graph_ptr *phGraph);
CUresult cuStreamIsCapturing(stream_ptr hStream, CUstreamCaptureStatus *captureStatus);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

/* Version 2, because no header of CUDA 12.0 has a newer one. */
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
CUresult cuStreamGetCaptureInfo_v2(
    stream_ptr hStream, CUstreamCaptureStatus *captureStatus_out, uint64_t *id_out,
    CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out);

CUresult cuGraphDestroy(graph_ptr hGraph);
CUresult cuGraphInstantiateWithFlags(
    graph_exec_ptr *phGraphExec, graph_ptr hGraph, unsigned long long flags);
CUresult cuGraphUpload(graph_exec_ptr hGraphExec, stream_ptr hStream);
CUresult cuGraphLaunch(graph_exec_ptr hGraphExec, stream_ptr hStream);
CUresult cuGraphExecDestroy(graph_exec_ptr hGraphExec);
