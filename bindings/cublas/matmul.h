/* Products of matrices. Descriptors are made by the library, whose versions differ in their sizes:
   their addresses are integers here. */

typedef enum {
    CUBLASLT_MATRIX_LAYOUT_COLS = 3,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
} cublasLtMatrixLayoutAttribute_t;

cublasStatus_t cublasLtMatrixLayoutCreate(
    layout_ptr *layout,
    cudaDataType_t type,
    uint64_t rows,
    uint64_t columns,
    int64_t leading);
cublasStatus_t cublasLtMatrixLayoutDestroy(layout_ptr layout);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    layout_ptr layout,
    cublasLtMatrixLayoutAttribute_t attribute,
    const void *value,
    size_t size);

typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4
} cublasLtMatmulDescAttributes_t;

cublasStatus_t cublasLtMatmulDescCreate(
    operation_ptr *operation,
    cublasComputeType_t compute_type,
    cudaDataType_t scale_type);
cublasStatus_t cublasLtMatmulDescDestroy(operation_ptr operation);
cublasStatus_t cublasLtMatmulDescSetAttribute(
    operation_ptr operation,
    cublasLtMatmulDescAttributes_t attribute,
    const void *value,
    size_t size);

/* Methods of adding the partial sums of a split-K product; bits of a mask. */
typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
} cublasLtReductionScheme_t;

typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;

cublasStatus_t cublasLtMatmulPreferenceCreate(preference_ptr *preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(preference_ptr preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    preference_ptr preference,
    cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value,
    size_t size);

typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle,
    operation_ptr operation,
    layout_ptr a_layout,
    layout_ptr b_layout,
    layout_ptr c_layout,
    layout_ptr d_layout,
    preference_ptr preference,
    int asked,
    cublasLtMatmulHeuristicResult_t results[],
    int *found);

/* D = alpha op(A) op(B) + beta C. The two factors are on the host. */
cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle,
    operation_ptr operation,
    const void *alpha,
    const dev_ptr a,
    layout_ptr a_layout,
    const dev_ptr b,
    layout_ptr b_layout,
    const void *beta,
    const dev_ptr c,
    layout_ptr c_layout,
    dev_ptr d,
    layout_ptr d_layout,
    const cublasLtMatmulAlgo_t *algorithm,
    dev_ptr workspace,
    size_t workspace_bytes,
    stream_ptr stream);
