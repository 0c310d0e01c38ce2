/* The frame around every call: lock, count, requested failure, and how a call is refused. */
#ifndef STANDIN_CALL_H
#define STANDIN_CALL_H

#include <stdbool.h>

#include "vendor.h"

struct call {
    cudnnStatus_t status;
};

struct call call_begin(const char *function);
void call_end(struct call *call);

/* Opens every function of the library; the lock is held until it returns. */
#define BEGIN_CALL() \
    struct call call __attribute__((cleanup(call_end))) = call_begin(__func__); \
    if (call.status != CUDNN_STATUS_SUCCESS) return call.status

/* BEGIN_CALL for functions that return no status. */
#define BEGIN_PLAIN_CALL() \
    struct call call __attribute__((cleanup(call_end), unused)) = call_begin(__func__)

/* The lock for functions that are not the library's. */
#define BEGIN_CONTROL() \
    struct call call __attribute__((cleanup(call_end), unused)) = control_begin(__func__)
struct call control_begin(const char *function);

/* Records a violation or a refusal of the running call, by the status, and returns the status. */
__attribute__((format(printf, 2, 3))) cudnnStatus_t refuse(
    cudnnStatus_t status, const char *format, ...);

#define REQUIRE(condition, status, ...) \
    do { \
        if (!(condition)) return refuse(status, __VA_ARGS__); \
    } while (0)

#define TRY(expression) \
    do { \
        cudnnStatus_t status_ = (expression); \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_; \
    } while (0)

#define REQUIRE_OUTPUT(pointer) \
    REQUIRE((pointer) != NULL, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s is NULL", #pointer)

/* The stream that the running call is on. */
void call_on_stream(cudaStream_t stream);
void stream_was_set(cudaStream_t stream);

int max_steps(void);
int max_operations(void);
bool handles_stay_with_threads(void);

#endif
