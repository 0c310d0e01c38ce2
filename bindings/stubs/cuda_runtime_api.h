/* Stand-in for the CUDA header of the same name: what the vendor's headers take from it. */
#ifndef DNNFFI_STUB_CUDA_RUNTIME_API_H
#define DNNFFI_STUB_CUDA_RUNTIME_API_H

#include <stddef.h> /* the real one brings size_t */

#include "library_types.h"

typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;

#endif
