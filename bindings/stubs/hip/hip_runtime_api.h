/* Stand-in for the HIP header of the same name: what the vendor's headers take from it. */
#ifndef DNNFFI_STUB_HIP_RUNTIME_API_H
#define DNNFFI_STUB_HIP_RUNTIME_API_H

#include <stddef.h> /* the real ones bring size_t and the integers of fixed width */
#include <stdint.h>

typedef struct ihipStream_t *hipStream_t;

#endif
