/* Stand-in for the CUDA header of the same name, which cuDNN 8 includes. */
#include "cuda_runtime_api.h"
