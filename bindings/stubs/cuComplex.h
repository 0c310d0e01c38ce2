/* Stand-in for the CUDA header of the same name: what cuBLAS takes from it. */
#ifndef DNNFFI_STUB_CU_COMPLEX_H
#define DNNFFI_STUB_CU_COMPLEX_H

typedef struct { float x, y; } cuComplex;
typedef struct { double x, y; } cuDoubleComplex;

#endif
