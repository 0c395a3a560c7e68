/* Times of the waits of the computing stream for collectives of NCCL.
 *
 * comm_wait only queues a wait, so the time of the call does not show how long the GPU waits.
 * Therefore a timed event is recorded on the computing stream before the wait, and another one
 * after it. If the collective is complete when the stream arrives, the events follow each other at
 * once. The host reads their times later, when the device has passed them, so that no call waits
 * for the device. */
#include "comm/device/nccl_impl.h"

status nccl_waits_create(struct nccl_state *s)
{
    struct device *dev = s->options.device;
    for (int i = 0; i < NCCL_WAITS && !device_is_host(dev); i++) {
        TRY(device_event_create_timed(dev, &s->waits.begin[i]));
        TRY(device_event_create_timed(dev, &s->waits.end[i]));
    }
    return STATUS_OK;
}

void nccl_waits_destroy(struct nccl_state *s)
{
    for (int i = 0; i < NCCL_WAITS; i++) {
        (void)device_event_destroy(s->options.device, &s->waits.begin[i]);
        (void)device_event_destroy(s->options.device, &s->waits.end[i]);
    }
}

status nccl_waits_queue(struct nccl_state *s, struct event *event)
{
    struct device *dev = s->options.device;
    struct stream *stream = s->options.stream;
    struct nccl_waits *w = &s->waits;
    if (!s->comm->waits_on_device) {
        return device_stream_wait(dev, stream, event);
    }
    TRY(nccl_waits_read(s->comm, false));
    if (w->recorded - w->read == NCCL_WAITS) {
        return device_stream_wait(dev, stream, event);
    }
    TRY(device_event_record(dev, w->begin[w->recorded % NCCL_WAITS], stream));
    TRY(device_stream_wait(dev, stream, event));
    TRY(device_event_record(dev, w->end[w->recorded % NCCL_WAITS], stream));
    w->recorded++;
    return STATUS_OK;
}

status nccl_waits_read(struct comm *comm, bool discard)
{
    struct nccl_state *s = comm->state;
    struct device *dev = s->options.device;
    struct nccl_waits *w = &s->waits;
    bool done = true;
    while (w->read < w->recorded) {
        uint64_t i = w->read % NCCL_WAITS;
        double seconds = 0;
        TRY(device_event_done(dev, w->end[i], &done));
        if (!done) {
            break;
        }
        TRY(device_event_seconds(dev, w->begin[i], w->end[i], &seconds));
        comm->times.exposed_seconds += seconds;
        w->read++;
    }
    w->read = discard ? w->recorded : w->read;
    return STATUS_OK;
}
