/* Stand-in for the CUDA header of the same name: what the vendor's headers take from it. */
#ifndef __LIBRARY_TYPES_H__
/* CUDA's own guard: where it is not defined, cuDNN 8 defines these names itself. */
#define __LIBRARY_TYPES_H__

typedef enum libraryPropertyType_t {
    MAJOR_VERSION,
    MINOR_VERSION,
    PATCH_LEVEL
} libraryPropertyType;

/* With the values of the real one. */
typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14
} cudaDataType;
typedef enum cudaDataType_t cudaDataType_t;

typedef int cudaEmulationMantissaControl;
typedef int cudaEmulationSpecialValuesSupport;

#endif
