/* A libcublasLt that computes with loops on host memory, and checks its arguments.

   Matrices are in column-major order, as in the real library. Arguments that break its contract are
   refused with status 7, CUBLAS_STATUS_INVALID_VALUE. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define dev_ptr void *
typedef void *stream_ptr;
typedef struct layout *layout_ptr;
typedef struct operation *operation_ptr;
typedef struct preference *preference_ptr;
#include "library.h"
#include "matmul.h"

#include "control.h"

enum { INVALID = 7, LIVE = 0x11fe, DEAD = 0xdead };
enum { HANDLES, LAYOUTS, OPERATIONS, PREFERENCES, EVER };

struct cublasLtContext {
    int mark;
};
struct layout {
    int mark, type, batch;
    uint64_t rows, columns;
    int64_t leading, stride;
};
struct operation {
    int mark, compute, scale, transposed[2];
};
struct preference {
    int mark;
    uint64_t workspace;
    uint32_t reductions, alignment[4];
};
/* Contents of the 64 bytes of an algorithm. */
struct choice {
    uint64_t sizes[3], workspace;
    uint32_t alignment, reductions;
};
_Static_assert(sizeof(struct choice) <= sizeof(cublasLtMatmulAlgo_t), "a choice is too long");

standin_t standin;

static void count(int kind, int change)
{
    atomic_fetch_add((_Atomic int64_t *)&standin.live[kind], change);
}

#define BEGIN() \
    if (!strcmp(standin.fail, __func__)) return *standin.fail = 0, standin.status
#define NEW(kind, out, ...) \
    do { \
        if (!(out) || !(*(out) = malloc(sizeof **(out)))) return INVALID; \
        **(out) = __VA_ARGS__; \
        count(kind, 1); \
    } while (0)
#define END(kind, object) \
    do { \
        if (!(object) || (object)->mark != LIVE) return INVALID; \
        (object)->mark = DEAD; \
        free(object); \
        count(kind, -1); \
    } while (0)
#define CHECK(condition) \
    if (!(condition)) return INVALID

size_t cublasLtGetVersion(void) { return standin.version; }
const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == INVALID ? "CUBLAS_STATUS_INVALID_VALUE"
        : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
        : "CUBLAS_STATUS_OF_ANOTHER_KIND";
}
const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == INVALID ? "an unsupported value or parameter" : "something else";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    BEGIN();
    NEW(HANDLES, handle, (struct cublasLtContext){LIVE});
    count(EVER, 1);
    return 0;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    END(HANDLES, handle);
    return 0;
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    layout_ptr *layout, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t leading)
{
    BEGIN();
    CHECK(rows && columns && leading >= (int64_t)rows);
    NEW(LAYOUTS, layout, (struct layout){LIVE, type, 1, rows, columns, leading, 0});
    return 0;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(layout_ptr layout)
{
    END(LAYOUTS, layout);
    return 0;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    layout_ptr layout, cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t size)
{
    BEGIN();
    CHECK(layout && layout->mark == LIVE && value);
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == 4)
        return layout->batch = *(const int32_t *)value, 0;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_COLS && size == 8)
        return layout->columns = *(const uint64_t *)value, 0;
    CHECK(attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == 8);
    return layout->stride = *(const int64_t *)value, 0;
}

cublasStatus_t cublasLtMatmulDescCreate(
    operation_ptr *operation, cublasComputeType_t compute, cudaDataType_t scale)
{
    BEGIN();
    NEW(OPERATIONS, operation, (struct operation){LIVE, compute, scale, {0, 0}});
    return 0;
}
cublasStatus_t cublasLtMatmulDescDestroy(operation_ptr operation)
{
    END(OPERATIONS, operation);
    return 0;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(
    operation_ptr operation, cublasLtMatmulDescAttributes_t attribute, const void *value,
    size_t size)
{
    BEGIN();
    const int side = (int)attribute - CUBLASLT_MATMUL_DESC_TRANSA;
    CHECK(operation && operation->mark == LIVE && value && size == 4 && (side == 0 || side == 1));
    operation->transposed[side] = *(const int32_t *)value;
    CHECK(operation->transposed[side] == CUBLAS_OP_N || operation->transposed[side] == CUBLAS_OP_T);
    return 0;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(preference_ptr *preference)
{
    BEGIN();
    NEW(PREFERENCES, preference, (struct preference){LIVE, 0, 7, {256, 256, 256, 256}});
    return 0;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(preference_ptr preference)
{
    END(PREFERENCES, preference);
    return 0;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    preference_ptr preference, cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
    size_t size)
{
    BEGIN();
    CHECK(preference && preference->mark == LIVE && value);
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size == 8)
        return preference->workspace = *(const uint64_t *)value, 0;
    CHECK(size == 4);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return preference->reductions = *(const uint32_t *)value, 0;
    const int side = (int)attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    CHECK(side >= 0 && side < 4);
    return preference->alignment[side] = *(const uint32_t *)value, 0;
}

/* Return whether the operands are compatible, and set the sizes m, n, k of the product. */
static int fits(
    operation_ptr operation, layout_ptr a, layout_ptr b, layout_ptr c, layout_ptr d,
    uint64_t sizes[3])
{
    layout_ptr all[] = {a, b, c, d};
    if (!operation || operation->mark != LIVE || operation->scale != CUDA_R_32F) return 0;
    if (operation->compute != CUBLAS_COMPUTE_32F
        && !(operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type == CUDA_R_32F))
        return 0;
    for (int i = 0; i < 4; i++)
        if (!all[i] || all[i]->mark != LIVE || all[i]->type != a->type || all[i]->batch != a->batch)
            return 0;
    const int *transposed = operation->transposed;
    sizes[0] = transposed[0] ? a->columns : a->rows;
    sizes[1] = transposed[1] ? b->rows : b->columns;
    sizes[2] = transposed[0] ? a->rows : a->columns;
    return sizes[2] == (transposed[1] ? b->columns : b->rows)
        && sizes[0] == c->rows && sizes[1] == c->columns
        && sizes[0] == d->rows && sizes[1] == d->columns;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, operation_ptr operation, layout_ptr a_layout, layout_ptr b_layout,
    layout_ptr c_layout, layout_ptr d_layout, preference_ptr preference, int asked,
    cublasLtMatmulHeuristicResult_t results[], int *found)
{
    BEGIN();
    struct choice choice = {0};
    CHECK(handle && handle->mark == LIVE && asked == 1 && results && found);
    CHECK(preference && preference->mark == LIVE);
    CHECK(fits(operation, a_layout, b_layout, c_layout, d_layout, choice.sizes));
    choice.alignment = preference->alignment[0];
    for (int side = 1; side < 4; side++) CHECK(preference->alignment[side] == choice.alignment);
    choice.reductions = preference->reductions;
    /* The two algorithms of a product need different workspaces. */
    choice.workspace = 1000 * choice.alignment;
    if (choice.workspace > preference->workspace) choice.workspace = 0;
    memset(results, 0, sizeof *results);
    memcpy(&results->algo, &choice, sizeof choice);
    results->workspaceSize = choice.workspace;
    *found = 1;
    if (choice.alignment < standin.least) {
        if (!standin.no_result) return CUBLAS_STATUS_NOT_SUPPORTED;
        *found = standin.no_result != 1;
        if (standin.no_result == 2) results->state = INVALID;
    }
    return 0;
}

static float from_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits >> 15 ? -1 : 1;
    float value = (float)(exponent ? fraction + 1024 : fraction);
    if (exponent == 31) return fraction ? value - value + 0.0f / 0.0f * sign : sign / 0.0f;
    for (int n = exponent ? exponent : 1; n < 25; n++) value /= 2;
    for (int n = 25; n < exponent; n++) value *= 2;
    return sign * value;
}

/* Round to nearest, ties to even. */
static uint16_t to_half(float value)
{
    const uint16_t sign = value < 0 ? 0x8000 : 0;
    float rest = value < 0 ? -value : value;
    if (value != value) return 0x7e00;
    int exponent = 25;
    for (; exponent > 1 && rest < 1024; exponent--) rest *= 2;
    for (; exponent < 31 && rest >= 2048; exponent++) rest /= 2;
    if (exponent >= 31) return sign | 0x7c00;
    uint32_t whole = (uint32_t)rest;
    const float left = rest - (float)whole;
    whole += left > 0.5f || (left == 0.5f && (whole & 1));
    /* The bit 1024 and a carry of rounding add to the exponent. */
    return sign | (uint16_t)(((uint32_t)(exponent - 1) << 10) + whole);
}

static double read(int type, const void *data, int64_t at)
{
    union { uint32_t bits; float value; } wide;
    if (type == CUDA_R_32F) return ((const float *)data)[at];
    if (type == CUDA_R_16F) return from_half(((const uint16_t *)data)[at]);
    wide.bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    return wide.value;
}

static void write(int type, void *data, int64_t at, double value)
{
    union { float value; uint32_t bits; } wide = {(float)value};
    if (type == CUDA_R_32F) ((float *)data)[at] = wide.value;
    else if (type == CUDA_R_16F) ((uint16_t *)data)[at] = to_half(wide.value);
    else {
        wide.bits += 0x7fff + (wide.bits >> 16 & 1);
        ((uint16_t *)data)[at] = (uint16_t)(wide.bits >> 16);
    }
}

cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, operation_ptr operation, const void *alpha, const dev_ptr a,
    layout_ptr a_layout, const dev_ptr b, layout_ptr b_layout, const void *beta, const dev_ptr c,
    layout_ptr c_layout, dev_ptr d, layout_ptr d_layout, const cublasLtMatmulAlgo_t *algorithm,
    dev_ptr workspace, size_t workspace_bytes, stream_ptr stream)
{
    BEGIN();
    struct choice choice;
    uint64_t sizes[3];
    CHECK(handle && handle->mark == LIVE && algorithm && c == d && c_layout == d_layout);
    CHECK(fits(operation, a_layout, b_layout, c_layout, d_layout, sizes));
    memcpy(&choice, algorithm, sizeof choice);
    CHECK(!memcmp(choice.sizes, sizes, sizeof sizes));
    CHECK(a && b && d && !(((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % choice.alignment));
    CHECK(workspace_bytes >= choice.workspace && (uintptr_t)workspace % 256 == 0);
    if (choice.workspace) {
        CHECK(workspace);
        memset(workspace, 0xa5, choice.workspace);
    }
    const float scale = *(const float *)alpha, kept = *(const float *)beta;
    const int *transposed = operation->transposed;
    for (int batch = 0; batch < a_layout->batch; batch++)
        for (int64_t column = 0; column < (int64_t)sizes[1]; column++)
            for (int64_t row = 0; row < (int64_t)sizes[0]; row++) {
                double sum = 0;
                for (int64_t i = 0; i < (int64_t)sizes[2]; i++) {
                    const int64_t left = transposed[0] ? i + row * a_layout->leading
                                                       : row + i * a_layout->leading;
                    const int64_t right = transposed[1] ? column + i * b_layout->leading
                                                        : i + column * b_layout->leading;
                    sum += read(a_layout->type, a, left + batch * a_layout->stride)
                        * read(b_layout->type, b, right + batch * b_layout->stride);
                }
                const int64_t at = row + column * d_layout->leading + batch * d_layout->stride;
                sum *= scale;
                if (kept != 0) sum += kept * read(d_layout->type, c, at);
                write(d_layout->type, d, at, sum);
            }
    standin.alignment = choice.alignment;
    standin.reductions = choice.reductions;
    standin.compute = operation->compute;
    standin.stream = (uintptr_t)stream;
    atomic_fetch_add((_Atomic uint64_t *)&standin.products, 1);
    return 0;
}
