/* Stand-in for the CUDA header of the same name, which cuBLAS includes. */
#include "cuda_runtime_api.h"
