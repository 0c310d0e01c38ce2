/* Settings and counters of the stand-in for tests. Plain C, because cffi reads the file too. */
typedef struct {
    uint64_t version;       /* result of cublasLtGetVersion */
    char fail[64];          /* the function that fails next, once */
    int status;             /* its status */
    uint32_t least;         /* minimum alignment in bytes for an algorithm */
    int no_result;          /* without algorithm: 0 a status, 1 an empty list, 2 a bad result */
    int64_t live[5];        /* handles, layouts, operations, preferences; handles ever made */
    uint32_t alignment;     /* of the last product's algorithm */
    uint32_t reductions;    /* the mask that it was chosen with; 7 is all */
    int compute;            /* its compute type */
    uintptr_t stream;
    uint64_t products;
} standin_t;
extern standin_t standin;
