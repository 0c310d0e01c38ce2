/* The table of live objects: handles and descriptors. */
#ifndef STANDIN_OBJECTS_H
#define STANDIN_OBJECTS_H

#include "call.h"

enum kind { HANDLE, TENSOR, FILTER, DROPOUT, RNN, RNN_DATA, BACKEND, KINDS };

/* The first member of every object. */
struct object {
    enum kind kind;
    bool is_set;
};

/* A zeroed object of the given size at *out; out must not be NULL. */
cudnnStatus_t object_create(enum kind kind, size_t bytes, void **out);

/* Check that the pointer is a live object of the kind. It is not read before that is known. */
cudnnStatus_t object_check(const void *pointer, enum kind kind);

/* Check that the pointer is a live object of the kind that was set. */
cudnnStatus_t object_check_set(const void *pointer, enum kind kind);

/* Takes a live object out of the table. What it owns is the caller's to free. */
void object_destroy(void *pointer);

#endif
