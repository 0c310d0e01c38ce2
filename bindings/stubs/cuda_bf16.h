/* Stand-in for the CUDA header of the same name: what cuBLAS takes from it. */
#ifndef DNNFFI_STUB_CUDA_BF16_H
#define DNNFFI_STUB_CUDA_BF16_H

typedef struct { unsigned short x; } __nv_bfloat16;

#endif
