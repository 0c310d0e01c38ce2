/* Backend descriptors: made, set, finalized, read. Which attributes there are is a table. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "descriptors.h"

struct rule {
    cudnnBackendDescriptorType_t owner;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int least, most;
    bool required;
    bool writable, readable;
    cudnnBackendDescriptorType_t refers_to; /* of descriptors that are set */
};

enum { MANY = 64 };
enum { NO = 0, YES = 1 };

#define OWNED(kind) CUDNN_BACKEND_##kind##_DESCRIPTOR
#define NAMED(name) CUDNN_ATTR_##name
#define TYPED(type) CUDNN_TYPE_##type
/* Attributes that cuDNN 9.19 does not give back are not readable here. Of the types that it takes for
   a number, only the one that dnnffi passes is here. */
#define VALUE(owner, name, type, least, most, required, readable) \
    {OWNED(owner), NAMED(name), TYPED(type), least, most, required, YES, readable, 0}
#define REFERENCE(owner, name, most, required, kind) \
    {OWNED(owner), NAMED(name), TYPED(BACKEND_DESCRIPTOR), 1, most, required, YES, NO, OWNED(kind)}
#define RESULT(owner, name, type) \
    {OWNED(owner), NAMED(name), TYPED(type), 0, MANY, NO, NO, YES, 0}
/* Any operation. */
#define OPERATION_TYPE (cudnnBackendDescriptorType_t)(-1)

#define CONVOLUTION_RULES(owner, prefix, x, w, y) \
    VALUE(owner, prefix##_ALPHA, FLOAT, 1, 1, YES, YES), \
    VALUE(owner, prefix##_BETA, FLOAT, 1, 1, YES, YES), \
    REFERENCE(owner, prefix##_CONV_DESC, 1, YES, CONVOLUTION), \
    REFERENCE(owner, prefix##_##x, 1, YES, TENSOR), \
    REFERENCE(owner, prefix##_##w, 1, YES, TENSOR), \
    REFERENCE(owner, prefix##_##y, 1, YES, TENSOR)

static const struct rule rules[] = {
    VALUE(TENSOR, TENSOR_UNIQUE_ID, INT64, 1, 1, YES, YES),
    VALUE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, 1, 1, YES, YES),
    VALUE(TENSOR, TENSOR_DIMENSIONS, INT64, 1, CUDNN_DIM_MAX, YES, YES),
    VALUE(TENSOR, TENSOR_STRIDES, INT64, 1, CUDNN_DIM_MAX, YES, YES),
    VALUE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, 1, 1, YES, NO),
    VALUE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, 1, 1, NO, YES),
    VALUE(CONVOLUTION, CONVOLUTION_COMP_TYPE, DATA_TYPE, 1, 1, YES, YES),
    VALUE(CONVOLUTION, CONVOLUTION_CONV_MODE, CONVOLUTION_MODE, 1, 1, YES, NO),
    VALUE(CONVOLUTION, CONVOLUTION_SPATIAL_DIMS, INT64, 1, 1, YES, YES),
    VALUE(CONVOLUTION, CONVOLUTION_DILATIONS, INT64, 1, CUDNN_DIM_MAX, YES, YES),
    VALUE(CONVOLUTION, CONVOLUTION_FILTER_STRIDES, INT64, 1, CUDNN_DIM_MAX, YES, YES),
    VALUE(CONVOLUTION, CONVOLUTION_PRE_PADDINGS, INT64, 1, CUDNN_DIM_MAX, YES, YES),
    VALUE(CONVOLUTION, CONVOLUTION_POST_PADDINGS, INT64, 1, CUDNN_DIM_MAX, YES, YES),
    VALUE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, 1, 1, YES, NO),
    VALUE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, 1, 1, YES, NO),
    CONVOLUTION_RULES(
        OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD, X, W, Y),
    CONVOLUTION_RULES(
        OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA, DX, W, DY),
    CONVOLUTION_RULES(
        OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER, X, DW, DY),
    REFERENCE(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, 1, YES, POINTWISE),
    REFERENCE(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, 1, YES, TENSOR),
    REFERENCE(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, 1, NO, TENSOR),
    REFERENCE(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, 1, YES, TENSOR),
    VALUE(OPERATION_POINTWISE, OPERATION_POINTWISE_ALPHA1, FLOAT, 1, 1, NO, NO),
    VALUE(OPERATION_POINTWISE, OPERATION_POINTWISE_ALPHA2, FLOAT, 1, 1, NO, NO),
    VALUE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, 1, 1, NO, NO),
    {OWNED(OPERATIONGRAPH), NAMED(OPERATIONGRAPH_OPS), TYPED(BACKEND_DESCRIPTOR), 1, MANY, YES,
     YES, NO, OPERATION_TYPE},
    RESULT(OPERATIONGRAPH, OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, INT64),
    REFERENCE(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, 1, YES, OPERATIONGRAPH),
    VALUE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, 1, 1, YES, NO),
    RESULT(ENGINEHEUR, ENGINEHEUR_RESULTS, BACKEND_DESCRIPTOR),
    REFERENCE(ENGINE, ENGINE_OPERATION_GRAPH, 1, YES, OPERATIONGRAPH),
    VALUE(ENGINE, ENGINE_GLOBAL_INDEX, INT64, 1, 1, YES, YES),
    RESULT(ENGINE, ENGINE_NUMERICAL_NOTE, NUMERICAL_NOTE),
    RESULT(ENGINE, ENGINE_BEHAVIOR_NOTE, BEHAVIOR_NOTE),
    VALUE(KNOB_CHOICE, KNOB_CHOICE_KNOB_TYPE, KNOB_TYPE, 1, 1, YES, YES),
    VALUE(KNOB_CHOICE, KNOB_CHOICE_KNOB_VALUE, INT64, 1, 1, YES, YES),
    {OWNED(ENGINECFG), NAMED(ENGINECFG_ENGINE), TYPED(BACKEND_DESCRIPTOR), 1, 1, YES, YES, YES,
     OWNED(ENGINE)},
    {OWNED(ENGINECFG), NAMED(ENGINECFG_KNOB_CHOICES), TYPED(BACKEND_DESCRIPTOR), 1, MANY, NO, YES,
     YES, OWNED(KNOB_CHOICE)},
    VALUE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, 1, 1, YES, NO),
    REFERENCE(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, 1, YES, ENGINECFG),
    RESULT(EXECUTION_PLAN, EXECUTION_PLAN_WORKSPACE_SIZE, INT64),
    VALUE(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, 1, MANY, NO, NO),
    VALUE(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, 1, MANY, NO, NO),
    VALUE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, 1, 1, NO, YES),
};
enum { RULES = sizeof rules / sizeof rules[0] };

static size_t element_size(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_FLOAT: return sizeof(float);
    case CUDNN_TYPE_DOUBLE: return sizeof(double);
    case CUDNN_TYPE_HANDLE: case CUDNN_TYPE_VOID_PTR: case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default: return sizeof(int);
    }
}

/* A scale is a float or a double, whatever is computed in; check_operands asks for the right one. */
static bool is_taken(const struct rule *rule, cudnnBackendAttributeType_t type)
{
    return rule->type == type || (rule->type == CUDNN_TYPE_FLOAT && type == CUDNN_TYPE_DOUBLE);
}

static const struct rule *find_rule(
    const struct backend *desc, cudnnBackendAttributeName_t name)
{
    for (size_t i = 0; i < RULES; i++)
        if (rules[i].owner == desc->type && rules[i].name == name) return &rules[i];
    return NULL;
}

/* Attributes */

static struct attribute *find(struct backend *desc, cudnnBackendAttributeName_t name)
{
    for (size_t i = 0; i < desc->attribute_count; i++)
        if (desc->attributes[i].name == name) return &desc->attributes[i];
    return NULL;
}

const struct attribute *find_attribute(
    const struct backend *desc, cudnnBackendAttributeName_t name)
{
    return find((struct backend *)desc, name);
}

cudnnStatus_t put_attribute(
    struct backend *desc, cudnnBackendAttributeName_t name, size_t size, int64_t count,
    const void *elements)
{
    struct attribute *attribute = find(desc, name);
    if (attribute == NULL) {
        REQUIRE(
            desc->attribute_count < MAX_ATTRIBUTES, CUDNN_STATUS_INTERNAL_ERROR,
            "there is no room for another attribute");
        attribute = &desc->attributes[desc->attribute_count++];
    } else {
        free(attribute->elements);
    }
    size_t bytes = (size_t)count * size;
    *attribute = (struct attribute){name, count, malloc(bytes == 0 ? 1 : bytes), size};
    REQUIRE(
        attribute->elements != NULL, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
        "out of memory");
    if (bytes > 0) memcpy(attribute->elements, elements, bytes);
    return CUDNN_STATUS_SUCCESS;
}

int64_t int64_of(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t index, int64_t otherwise)
{
    const struct attribute *found = find_attribute(desc, name);
    if (found == NULL || index >= found->count) return otherwise;
    return ((const int64_t *)found->elements)[index];
}

int enum_of(const struct backend *desc, cudnnBackendAttributeName_t name, int otherwise)
{
    const struct attribute *found = find_attribute(desc, name);
    return found == NULL ? otherwise : *(const int *)found->elements;
}

int64_t count_of(const struct backend *desc, cudnnBackendAttributeName_t name)
{
    const struct attribute *found = find_attribute(desc, name);
    return found == NULL ? 0 : found->count;
}

struct backend *descriptor_of(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t index)
{
    const struct attribute *found = find_attribute(desc, name);
    if (found == NULL || index >= found->count) return NULL;
    return ((struct backend *const *)found->elements)[index];
}

double float_of(const struct backend *desc, cudnnBackendAttributeName_t name, double otherwise)
{
    const struct attribute *found = find_attribute(desc, name);
    if (found == NULL) return otherwise;
    if (found->size == sizeof(double)) return *(const double *)found->elements;
    return *(const float *)found->elements;
}

bool is_virtual(const struct backend *tensor)
{
    const struct attribute *found = find_attribute(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    return found != NULL && *(const bool *)found->elements;
}

/* The functions of the library */

cudnnStatus_t check_finalized(const void *pointer, cudnnBackendDescriptorType_t type)
{
    TRY(object_check(pointer, BACKEND));
    const struct backend *desc = pointer;
    bool is_operation = operands_of(desc).count > 0;
    REQUIRE(
        type == OPERATION_TYPE ? is_operation : desc->type == type, CUDNN_STATUS_BAD_PARAM,
        "a backend descriptor of type %d is not of type %d", (int)desc->type, (int)type);
    REQUIRE(
        desc->object.is_set, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
        "a backend descriptor of type %d was not finalized", (int)desc->type);
    return CUDNN_STATUS_SUCCESS;
}

static bool is_known(cudnnBackendDescriptorType_t type)
{
    for (size_t i = 0; i < RULES; i++)
        if (rules[i].owner == type) return true;
    return false;
}

cudnnStatus_t cudnnBackendCreateDescriptor(
    cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *desc)
{
    BEGIN_CALL();
    REQUIRE_OUTPUT(desc);
    REQUIRE(
        is_known(type), CUDNN_STATUS_NOT_SUPPORTED, "there are no descriptors of type %d here",
        (int)type);
    void *created;
    TRY(object_create(BACKEND, sizeof(struct backend), &created));
    ((struct backend *)created)->type = type;
    *desc = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t pointer)
{
    BEGIN_CALL();
    TRY(object_check(pointer, BACKEND));
    struct backend *desc = pointer;
    for (size_t i = 0; i < desc->attribute_count; i++) free(desc->attributes[i].elements);
    desc->attribute_count = 0;
    object_destroy(desc);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_elements(const struct rule *rule, int64_t count, const void *elements)
{
    for (int64_t i = 0; i < count; i++) {
        if (rule->type == CUDNN_TYPE_HANDLE) TRY(check_handle(((cudnnHandle_t *)elements)[i]));
        if (rule->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
            TRY(check_finalized(((void **)elements)[i], rule->refers_to));
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(
    cudnnBackendDescriptor_t pointer, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    BEGIN_CALL();
    TRY(object_check(pointer, BACKEND));
    struct backend *desc = pointer;
    REQUIRE(
        !desc->object.is_set, CUDNN_STATUS_BAD_PARAM,
        "a descriptor that was finalized cannot be changed");
    const struct rule *rule = find_rule(desc, name);
    REQUIRE(
        rule != NULL && rule->writable, CUDNN_STATUS_BAD_PARAM,
        "a descriptor of type %d has no attribute %d to set", (int)desc->type, (int)name);
    REQUIRE(
        is_taken(rule, type), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
        "attribute %d is of type %d, not %d", (int)name, (int)rule->type, (int)type);
    REQUIRE(
        count >= rule->least && count <= rule->most, CUDNN_STATUS_BAD_PARAM,
        "attribute %d with %lld elements", (int)name, (long long)count);
    REQUIRE(
        count == 0 || elements != NULL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        "the elements are NULL");
    TRY(check_elements(rule, count, elements));
    return put_attribute(desc, name, element_size(type), count, elements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t pointer)
{
    BEGIN_CALL();
    TRY(object_check(pointer, BACKEND));
    struct backend *desc = pointer;
    REQUIRE(!desc->object.is_set, CUDNN_STATUS_BAD_PARAM, "the descriptor was finalized before");
    for (size_t i = 0; i < RULES; i++)
        REQUIRE(
            rules[i].owner != desc->type || !rules[i].required
                || find(desc, rules[i].name) != NULL,
            CUDNN_STATUS_BAD_PARAM, "attribute %d is needed and was not set",
            (int)rules[i].name);
    TRY(check_operands(desc));
    TRY(complete_engine_objects(desc));
    desc->object.is_set = true;
    return CUDNN_STATUS_SUCCESS;
}

/* Find an attribute that was set, or its default if it has one. */
static const struct attribute *with_default(
    const struct backend *desc, cudnnBackendAttributeName_t name)
{
    static bool no = false;
    static const struct attribute not_virtual = {CUDNN_ATTR_TENSOR_IS_VIRTUAL, 1, &no, sizeof no};
    const struct attribute *found = find_attribute(desc, name);
    return found == NULL && name == not_virtual.name ? &not_virtual : found;
}

static cudnnStatus_t fill(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t requested,
    int64_t *count, void *elements)
{
    *count = count_when_read(desc, name);
    /* A query of the number gets one more than there are: the count of a later read is what counts.
       A query of the number of knobs that are set gets 0 (seen on 9.19). */
    if (requested == 0) *count += name == CUDNN_ATTR_ENGINEHEUR_RESULTS;
    if (requested == 0 && name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES) *count = 0;
    for (int64_t i = 0; i < requested && i < *count; i++) {
        struct backend *target = ((struct backend **)elements)[i];
        TRY(object_check(target, BACKEND));
        REQUIRE(
            !target->object.is_set, CUDNN_STATUS_BAD_PARAM,
            "a descriptor to be filled was finalized before");
        TRY(fill_when_read(desc, name, i, target));
        target->object.is_set = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(
    cudnnBackendDescriptor_t const pointer, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t requested, int64_t *count, void *elements)
{
    BEGIN_CALL();
    TRY(object_check(pointer, BACKEND));
    const struct backend *desc = pointer;
    REQUIRE(
        desc->object.is_set, CUDNN_STATUS_NOT_INITIALIZED, "the descriptor was not finalized");
    REQUIRE_OUTPUT(count);
    const struct rule *rule = find_rule(desc, name);
    REQUIRE(
        rule != NULL, CUDNN_STATUS_BAD_PARAM, "a descriptor of type %d has no attribute %d",
        (int)desc->type, (int)name);
    REQUIRE(
        rule->readable, CUDNN_STATUS_NOT_SUPPORTED, "attribute %d cannot be read", (int)name);
    REQUIRE(
        is_taken(rule, type), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
        "attribute %d is of type %d, not %d", (int)name, (int)rule->type, (int)type);
    REQUIRE(
        requested == 0 || (requested > 0 && elements != NULL),
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there is no room for %lld elements",
        (long long)requested);
    if (is_filled_when_read(desc, name)) return fill(desc, name, requested, count, elements);
    const struct attribute *found = with_default(desc, name);
    *count = found == NULL ? 0 : found->count;
    REQUIRE(
        found == NULL || rule->type != CUDNN_TYPE_FLOAT || found->size == element_size(type),
        CUDNN_STATUS_BAD_PARAM, "attribute %d was set as another type", (int)name);
    int64_t copied = requested < *count ? requested : *count;
    if (copied > 0) memcpy(elements, found->elements, (size_t)copied * element_size(type));
    return CUDNN_STATUS_SUCCESS;
}
