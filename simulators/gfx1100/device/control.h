/* Functions beyond HIP for tests, the reference BLAS and the executor.
 *
 * A violation is something that a real device would answer with a fault, or not at all: an access
 * outside of an allocation, a stream that was destroyed. It is counted and kept as text. */
#ifndef GFX1100_CONTROL_H
#define GFX1100_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GFX1100_API __attribute__((visibility("default")))

/* Numbers of live objects by kind, and bytes of the live allocations. */
GFX1100_API uint64_t gfx1100_live_allocations(void);
GFX1100_API uint64_t gfx1100_live_bytes(void);
GFX1100_API uint64_t gfx1100_live_streams(void);
GFX1100_API uint64_t gfx1100_live_events(void);
GFX1100_API uint64_t gfx1100_live_modules(void);

/* Number of calls of a HIP function, or of a topic: "allocation", "copy", "memset",
 * "launch", "module", "stream", "event", "release", "device". */
GFX1100_API uint64_t gfx1100_calls(const char *function_or_topic);

/* The n-th call from now (1 is the next) of a HIP function or a topic does nothing but return
 * `status`. One fault is armed at a time; n = 0 disarms it. */
GFX1100_API void gfx1100_fail(const char *function_or_topic, uint64_t n, int status);
/* Whether the armed fault is still to come. */
GFX1100_API bool gfx1100_fault_is_armed(void);

/* Bytes that can be allocated in all; 16 GiB unless set. */
GFX1100_API void gfx1100_set_capacity(size_t bytes);
/* The byte that fresh memory is filled with, 0xFF (a NaN in each type) unless set. */
GFX1100_API void gfx1100_set_fill(uint8_t byte);

GFX1100_API uint64_t gfx1100_violations(void);
/* The text of a violation, NULL beyond the last; the first 64 are kept. */
GFX1100_API const char *gfx1100_violation(uint64_t index);
/* Look for writes around each live allocation; each one found is a violation. */
GFX1100_API void gfx1100_check_red_zones(void);
/* Forget the violations, the armed fault and the numbers of calls; default capacity and fill. */
GFX1100_API void gfx1100_reset(void);

/* Whether `bytes` at `address` lie in one live allocation; a violation if not. */
GFX1100_API bool gfx1100_inside(const void *address, size_t bytes, const char *who);
/* Work that was done, in instructions of waves. Events tell the time by it alone: a million of them
 * is a millisecond, however long they took on the host. */
GFX1100_API void gfx1100_work(uint64_t instructions);
GFX1100_API void gfx1100_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A launch that passed the checks. The code object is an ELF image as it was loaded. */
struct gfx1100_launch {
    const char *name;       /* of the kernel */
    const char *descriptor; /* the symbol of its kernel descriptor */
    const void *image;
    size_t image_bytes;
    uint32_t global[3]; /* work-items */
    uint32_t local[3];  /* work-items of a group */
    uint32_t dynamic_lds;
    void *arguments; /* the kernel argument segment */
    size_t arguments_bytes;
};
/* Runs a launch and returns 0, or another number if it cannot. Without one, no kernel launches. */
typedef int (*gfx1100_executor)(const struct gfx1100_launch *);
GFX1100_API void gfx1100_set_executor(gfx1100_executor executor);

#endif
