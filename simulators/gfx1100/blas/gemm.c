/* A reference rocBLAS: the functions that libMIOpen imports, computed on the host with sums in
 * double, each operand checked against the allocations of the device. */
#include "control.h"

#include <stdlib.h>
#include <string.h>

#define API GFX1100_API
enum { WAVE = 32 };

/* rocBLAS's own values. */
typedef enum { F16 = 150, F32 = 151, F64 = 152, I8 = 160, I32 = 162, BF16 = 168 } datatype;
typedef enum { SUCCESS = 0, NOT_IMPLEMENTED = 2, INVALID_POINTER = 3, INVALID_SIZE = 4 } status;
typedef enum { NONE = 111, TRANSPOSE = 112, CONJUGATE_TRANSPOSE = 113 } operation;

static size_t item_size(datatype type)
{
    switch (type) {
    case F64: return 8;
    case F32:
    case I32: return 4;
    case F16:
    case BF16: return 2;
    case I8: return 1;
    }
    return 0;
}

static double load(const void *array, datatype type, int64_t i)
{
    switch (type) {
    case F64: return ((const double *)array)[i];
    case F32: return ((const float *)array)[i];
    case I32: return ((const int32_t *)array)[i];
    case I8: return ((const int8_t *)array)[i];
    case F16: return (double)((const _Float16 *)array)[i];
    case BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)array)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    }
    return 0;
}

static uint16_t to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7FFF + (bits >> 16 & 1); /* to nearest, ties to even */
    return (uint16_t)(bits >> 16);
}

static void store(void *array, datatype type, int64_t i, double value)
{
    switch (type) {
    case F64: ((double *)array)[i] = value; break;
    case F32: ((float *)array)[i] = (float)value; break;
    case I32: ((int32_t *)array)[i] = (int32_t)value; break;
    case I8: ((int8_t *)array)[i] = (int8_t)value; break;
    case F16: ((_Float16 *)array)[i] = (_Float16)value; break;
    case BF16: ((uint16_t *)array)[i] = to_bfloat16((float)value); break;
    }
}

/* A matrix by columns; `item(i, j)` is at i + j * ld. */
struct matrix {
    void *start;
    datatype type;
    int64_t ld;
};

static double item(const struct matrix *m, int64_t i, int64_t j)
{
    return load(m->start, m->type, i + j * m->ld);
}

static double operand(const struct matrix *m, operation op, int64_t i, int64_t j)
{
    return op == NONE ? item(m, i, j) : item(m, j, i);
}

static bool is_inside(const struct matrix *m, int64_t rows, int64_t columns, const char *who)
{
    int64_t items = (columns - 1) * m->ld + rows;
    return gfx1100_inside(m->start, (size_t)items * item_size(m->type), who);
}

static bool is_operand(
    const struct matrix *m, operation op, int64_t rows, int64_t columns, const char *who)
{
    return op == NONE ? is_inside(m, rows, columns, who) : is_inside(m, columns, rows, who);
}

struct product { /* d = alpha op(a) op(b) + beta c */
    operation op_a, op_b;
    int64_t m, n, k;
    double alpha, beta;
    struct matrix a, b, c, d;
};

static status check_product(const struct product *p, const char *who)
{
    bool sizes_fit = p->m >= 0 && p->n >= 0 && p->k >= 0
        && p->a.ld >= (p->op_a == NONE ? p->m : p->k)
        && p->b.ld >= (p->op_b == NONE ? p->k : p->n) && p->c.ld >= p->m && p->d.ld >= p->m;
    if (!sizes_fit) {
        gfx1100_report("%s: sizes that do not fit together", who);
        return INVALID_SIZE;
    }
    if (!item_size(p->a.type) || !item_size(p->b.type) || !item_size(p->c.type)
        || !item_size(p->d.type))
        return NOT_IMPLEMENTED;
    if (p->m == 0 || p->n == 0) return SUCCESS;
    bool reads_ab = p->k > 0 && p->alpha != 0;
    if (reads_ab && !is_operand(&p->a, p->op_a, p->m, p->k, who)) return INVALID_POINTER;
    if (reads_ab && !is_operand(&p->b, p->op_b, p->k, p->n, who)) return INVALID_POINTER;
    if (p->beta != 0 && !is_inside(&p->c, p->m, p->n, who)) return INVALID_POINTER;
    return is_inside(&p->d, p->m, p->n, who) ? SUCCESS : INVALID_POINTER;
}

static void multiply(const struct product *p)
{
    gfx1100_work((uint64_t)(p->m * p->n * p->k) / WAVE + 1); /* a product in each lane at a time */
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            double sum = 0;
            for (int64_t l = 0; l < p->k && p->alpha != 0; l++)
                sum += operand(&p->a, p->op_a, i, l) * operand(&p->b, p->op_b, l, j);
            double value = p->alpha * sum;
            if (p->beta != 0) value += p->beta * item(&p->c, i, j); /* beta 0 reads no NaN */
            store(p->d.start, p->d.type, i + j * p->d.ld, value);
        }
}

static void *moved(const void *start, int64_t items, datatype type)
{
    return (char *)start + items * (int64_t)item_size(type);
}

API status rocblas_gemm_strided_batched_ex(
    void *handle, operation op_a, operation op_b, int m, int n, int k, const void *alpha,
    const void *a, datatype a_type, int lda, int64_t stride_a, const void *b, datatype b_type,
    int ldb, int64_t stride_b, const void *beta, const void *c, datatype c_type, int ldc,
    int64_t stride_c, void *d, datatype d_type, int ldd, int64_t stride_d, int batch,
    datatype compute, int algorithm, int32_t solution, uint32_t flags)
{
    (void)handle, (void)algorithm, (void)solution, (void)flags;
    for (int64_t i = 0; i < batch; i++) {
        struct product product = {
            op_a, op_b, m, n, k, load(alpha, compute, 0), load(beta, compute, 0),
            {moved(a, i * stride_a, a_type), a_type, lda},
            {moved(b, i * stride_b, b_type), b_type, ldb},
            {moved(c, i * stride_c, c_type), c_type, ldc},
            {moved(d, i * stride_d, d_type), d_type, ldd}};
        status checked = check_product(&product, "rocblas_gemm");
        if (checked != SUCCESS) return checked;
        multiply(&product);
    }
    return SUCCESS;
}

API status rocblas_gemm_ex(
    void *handle, operation op_a, operation op_b, int m, int n, int k, const void *alpha,
    const void *a, datatype a_type, int lda, const void *b, datatype b_type, int ldb,
    const void *beta, const void *c, datatype c_type, int ldc, void *d, datatype d_type, int ldd,
    datatype compute, int algorithm, int32_t solution, uint32_t flags)
{
    return rocblas_gemm_strided_batched_ex(
        handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c, c_type,
        ldc, 0, d, d_type, ldd, 0, 1, compute, algorithm, solution, flags);
}

/* libMIOpen imports these two for 8-bit floats, which dnnffi does not support. */
API status rocblas_gemm_ex3(void)
{
    return NOT_IMPLEMENTED;
}

API status rocblas_gemm_strided_batched_ex3(void)
{
    return NOT_IMPLEMENTED;
}

/* A vector with a stride is a matrix of one row: its elements are `stride` apart. */
API status rocblas_sgemv(
    void *handle, operation op, int m, int n, const float *alpha, const float *a, int lda,
    const float *x, int stride_x, const float *beta, float *y, int stride_y)
{
    (void)handle;
    if (stride_x <= 0 || stride_y <= 0) return NOT_IMPLEMENTED;
    int rows = op == NONE ? m : n, inner = op == NONE ? n : m;
    struct matrix row = {y, F32, stride_y};
    operation other = op == NONE ? TRANSPOSE : NONE;
    struct product product = { /* y' = alpha x' op(a)' + beta y' */
        NONE, other, 1, rows, inner, *alpha, *beta,
        {(void *)x, F32, stride_x}, {(void *)a, F32, lda}, row, row};
    status checked = check_product(&product, "rocblas_sgemv");
    if (checked == SUCCESS) multiply(&product);
    return checked;
}

API status rocblas_create_handle(void **handle)
{
    *handle = malloc(1);
    return *handle == NULL ? INVALID_POINTER : SUCCESS;
}

API status rocblas_destroy_handle(void *handle)
{
    free(handle);
    return SUCCESS;
}

API status rocblas_set_stream(void *handle, void *stream)
{
    (void)handle, (void)stream;
    return SUCCESS;
}

API status rocblas_get_atomics_mode(void *handle, int *mode)
{
    (void)handle;
    *mode = 1;
    return SUCCESS;
}

API status rocblas_set_atomics_mode(void *handle, int mode)
{
    (void)handle, (void)mode;
    return SUCCESS;
}

API const char *rocblas_status_to_string(status status)
{
    return status == SUCCESS ? "rocblas_status_success" : "an error of the reference BLAS";
}
