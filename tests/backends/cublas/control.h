/* What tests tell the stand-in and ask of it. Plain C, so that cffi reads the file too. */
typedef struct {
    uint64_t version;       /* what cublasLtGetVersion gives */
    char fail[64];          /* the function that fails next, once */
    int status;             /* and what it returns */
    uint32_t least;         /* bytes of alignment under which there is no algorithm */
    int no_result;          /* how there is none: 0 a status, 1 an empty list, 2 a bad result */
    int64_t live[5];        /* handles, layouts, operations, preferences; handles ever made */
    uint32_t alignment;     /* of the last product's algorithm */
    uint32_t reductions;    /* the mask that it was chosen with; 7 is all */
    int compute;            /* what it was computed in */
    uintptr_t stream;
    uint64_t products;
} standin_t;
extern standin_t standin;
