/* Streams and events. All work is done at once, so a stream orders nothing; calls
 * check that it exists. */
#include "device.h"

#include <stdlib.h>

/* One list for each kind; a handle is the address of its object. */
struct object {
    double recorded_ms;
    bool is_recorded;
    struct object *next;
};
struct kind {
    const char *name;
    struct object *first;
    uint64_t count;
};
static struct kind streams = {"stream", NULL, 0}, events = {"event", NULL, 0};

static struct object *make(struct kind *kind)
{
    struct object *object = calloc(1, sizeof *object);
    if (object == NULL) return NULL;
    lock();
    object->next = kind->first;
    kind->first = object;
    kind->count++;
    unlock();
    return object;
}

static struct object *find(struct kind *kind, void *handle, const char *who)
{
    lock();
    struct object *object = kind->first;
    while (object != NULL && (void *)object != handle) object = object->next;
    unlock();
    if (object == NULL) gfx1100_report("%s: %p is not a live %s", who, handle, kind->name);
    return object;
}

static hipError_t destroy(struct kind *kind, void *handle, const char *who)
{
    struct object *object = find(kind, handle, who);
    if (object == NULL) return hipErrorInvalidHandle;
    lock();
    struct object **link = &kind->first;
    while (*link != object) link = &(*link)->next;
    *link = object->next;
    kind->count--;
    unlock();
    free(object);
    return hipSuccess;
}

bool is_stream(hipStream_t stream, const char *who)
{
    bool is_default = stream == NULL || stream == hipStreamPerThread;
    return is_default || find(&streams, stream, who) != NULL;
}

/* The clock of the device. libMIOpen chooses by measured times; the host's clock depends on the load
 * of the machine, so its choices would change from run to run. */
static uint64_t work;

void gfx1100_work(uint64_t instructions)
{
    lock();
    work += instructions;
    unlock();
}

static double now_ms(void)
{
    lock();
    double ms = (double)work / 1e6;
    unlock();
    return ms;
}

static hipError_t make_stream(hipStream_t *stream)
{
    if (stream == NULL) return hipErrorInvalidValue;
    *stream = (hipStream_t)make(&streams);
    return *stream == NULL ? hipErrorOutOfMemory : hipSuccess;
}

API hipError_t hipStreamCreate(hipStream_t *stream)
{
    BEGIN("stream");
    END(make_stream(stream));
}

API hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags)
{
    (void)flags;
    BEGIN("stream");
    END(make_stream(stream));
}

API hipError_t hipStreamCreateWithPriority(hipStream_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    BEGIN("stream");
    END(make_stream(stream));
}

API hipError_t hipStreamDestroy(hipStream_t stream)
{
    BEGIN("release");
    END(destroy(&streams, stream, __func__));
}

API hipError_t hipStreamSynchronize(hipStream_t stream)
{
    BEGIN("stream");
    END(is_stream(stream, __func__) ? hipSuccess : hipErrorInvalidHandle);
}

API hipError_t hipStreamQuery(hipStream_t stream)
{
    BEGIN("stream");
    END(is_stream(stream, __func__) ? hipSuccess : hipErrorInvalidHandle);
}

API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags)
{
    (void)flags;
    BEGIN("stream");
    bool live = is_stream(stream, __func__) && find(&events, event, __func__) != NULL;
    END(live ? hipSuccess : hipErrorInvalidHandle);
}

API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned *flags)
{
    BEGIN("stream");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    *flags = 0;
    return hipSuccess;
}

API hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *status)
{
    BEGIN("stream");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    *status = hipStreamCaptureStatusNone;
    return hipSuccess;
}

static hipError_t make_event(hipEvent_t *event)
{
    if (event == NULL) return hipErrorInvalidValue;
    *event = (hipEvent_t)make(&events);
    return *event == NULL ? hipErrorOutOfMemory : hipSuccess;
}

API hipError_t hipEventCreate(hipEvent_t *event)
{
    BEGIN("event");
    END(make_event(event));
}

API hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags)
{
    (void)flags;
    BEGIN("event");
    END(make_event(event));
}

API hipError_t hipEventDestroy(hipEvent_t event)
{
    BEGIN("release");
    END(destroy(&events, event, __func__));
}

API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream)
{
    BEGIN("event");
    REQUIRE(is_stream(stream, __func__), hipErrorInvalidHandle);
    struct object *object = find(&events, event, __func__);
    REQUIRE(object != NULL, hipErrorInvalidHandle);
    object->recorded_ms = now_ms();
    object->is_recorded = true;
    return hipSuccess;
}

API hipError_t hipEventSynchronize(hipEvent_t event)
{
    BEGIN("event");
    END(find(&events, event, __func__) ? hipSuccess : hipErrorInvalidHandle);
}

API hipError_t hipEventQuery(hipEvent_t event)
{
    BEGIN("event");
    END(find(&events, event, __func__) ? hipSuccess : hipErrorInvalidHandle);
}

API hipError_t hipEventElapsedTime(float *ms, hipEvent_t start, hipEvent_t stop)
{
    BEGIN("event");
    struct object *from = find(&events, start, __func__), *to = find(&events, stop, __func__);
    REQUIRE(from != NULL && to != NULL, hipErrorInvalidHandle);
    REQUIRE(from->is_recorded && to->is_recorded, hipErrorInvalidHandle);
    double elapsed = to->recorded_ms - from->recorded_ms;
    *ms = elapsed > 1e-3 ? (float)elapsed : 1e-3f; /* libMIOpen divides by it */
    return hipSuccess;
}

uint64_t gfx1100_live_streams(void)
{
    return streams.count;
}

uint64_t gfx1100_live_events(void)
{
    return events.count;
}
