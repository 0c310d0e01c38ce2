/* Stand-in for the CUDA header of the same name: what the vendor's headers take from it. */
#ifndef __LIBRARY_TYPES_H__
/* CUDA's own guard: where it is not defined, cuDNN 8 defines these names itself. */
#define __LIBRARY_TYPES_H__

typedef enum libraryPropertyType_t {
    MAJOR_VERSION,
    MINOR_VERSION,
    PATCH_LEVEL
} libraryPropertyType;

#endif
