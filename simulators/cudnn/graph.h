/* Backend descriptors: their attributes, and the functions on them. */
#ifndef STANDIN_GRAPH_H
#define STANDIN_GRAPH_H

#include "objects.h"

struct attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    void *elements; /* owned */
    size_t size;    /* of an element */
};

enum { MAX_ATTRIBUTES = 16 };

struct backend {
    struct object object; /* is_set: finalized */
    cudnnBackendDescriptorType_t type;
    size_t attribute_count;
    struct attribute attributes[MAX_ATTRIBUTES];
};

/* Check that a descriptor is live, of the type, and finalized. */
cudnnStatus_t check_finalized(const void *pointer, cudnnBackendDescriptorType_t type);

/* Attributes, set by the caller or not. An absent one reads as NULL, 0 or the last argument. */
const struct attribute *find_attribute(
    const struct backend *desc, cudnnBackendAttributeName_t name);
cudnnStatus_t put_attribute(
    struct backend *desc, cudnnBackendAttributeName_t name, size_t size, int64_t count,
    const void *elements);
int64_t int64_of(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t index, int64_t otherwise);
int enum_of(const struct backend *desc, cudnnBackendAttributeName_t name, int otherwise);
double float_of(const struct backend *desc, cudnnBackendAttributeName_t name, double otherwise);
int64_t count_of(const struct backend *desc, cudnnBackendAttributeName_t name);
struct backend *descriptor_of(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t index);

/* Check that the attributes fit together; called once by cudnnBackendFinalize. */
cudnnStatus_t check_operands(const struct backend *desc);
/* Fill in the library's own attributes of graphs, engines, configurations and plans. */
cudnnStatus_t complete_engine_objects(struct backend *desc);
/* Descriptors that the library fills when they are read: how many, and the filling of one. */
bool is_filled_when_read(const struct backend *desc, cudnnBackendAttributeName_t name);
int64_t count_when_read(const struct backend *desc, cudnnBackendAttributeName_t name);
cudnnStatus_t fill_when_read(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t index,
    struct backend *target);

bool is_virtual(const struct backend *tensor);

/* The attributes that hold an operation's tensors, the written one first. */
struct operands {
    int count;
    cudnnBackendAttributeName_t names[3];
};
struct operands operands_of(const struct backend *operation);

/* Compute one of the three convolutions from its operands; doubles in the order of dimensions. */
void convolve(
    const struct backend *operation, const double *first, const double *second, double *result);

#endif
