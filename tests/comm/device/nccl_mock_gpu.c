/* The NCCL mock on emulated GPUs (tests/simt): collectives are queued on streams, and a stream that
 * is captured keeps them in its graph. The functions of the emulator are found in the program that
 * loaded the library.
 *
 * A collective runs when the emulator executes the stream. The host then waits for the other ranks,
 * so several communicators of a rank need SIMT_STREAMS=eager: otherwise two ranks can execute them
 * in different orders. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/comm/device/nccl_mock_impl.h"

static struct {
    bool is_loaded;
    void (*queue_function)(void *stream, void (*run)(void *), void *argument,
                           void (*release)(void *));
    unsigned long (*get_capture)(const void *stream);
    int (*allocate)(void **out, size_t bytes);
    int (*release)(void *memory);
} emulator;

static void load_function(const char *name, void *function)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &symbol, sizeof symbol);
}

bool nccl_mock_has_gpus(void)
{
    if (!emulator.is_loaded) {
        load_function("simt_get_capture", &emulator.get_capture);
        load_function("cudaMalloc", &emulator.allocate);
        load_function("cudaFree", &emulator.release);
        load_function("simt_queue_function", &emulator.queue_function);
        emulator.is_loaded = true;
    }
    return emulator.queue_function != NULL;
}

unsigned long nccl_mock_get_capture(const void *stream)
{
    return nccl_mock_has_gpus() ? emulator.get_capture(stream) : 0;
}

void *nccl_mock_gpu_allocate(size_t bytes)
{
    void *memory = NULL;
    return emulator.allocate(&memory, bytes) == 0 ? memory : NULL;
}

void nccl_mock_gpu_release(void *memory)
{
    (void)emulator.release(memory);
}

void nccl_mock_wait_for_graphs(struct nccl_comm *c, bool always)
{
    while (atomic_load(&c->persistent) > 0 && (always || !atomic_load(&c->aborted))) {
        clock_sleep(0.001);
    }
}

/* ---- collectives on streams ---- */

struct queued_call {
    struct nccl_comm *comm;
    struct call call;
    unsigned capture; /* number of the captured collective in its communicator; 0: not captured */
};

static void run_queued(void *argument)
{
    const struct queued_call *q = argument;
    enum nccl_result result = nccl_mock_run_collective(q->comm, &q->call, q->capture);
    if (result != NCCL_SUCCESS) {
        atomic_store(&q->comm->failure, result);
        atomic_store(&q->comm->result, result);
    }
}

static void release_queued(void *argument)
{
    struct queued_call *q = argument;
    if (q->capture != 0) {
        atomic_fetch_sub(&q->comm->persistent, 1);
    }
    free(q);
}

enum nccl_result nccl_mock_queue(struct nccl_comm *c, const struct call *call)
{
    struct queued_call *q = malloc(sizeof *q);
    if (q == NULL) {
        return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "out of memory");
    }
    *q = (struct queued_call){c, *call, call->capture != 0 ? ++c->captures : 0};
    if (q->capture != 0) {
        atomic_fetch_add(&c->persistent, 1);
    }
    emulator.queue_function(call->stream, run_queued, q, release_queued);
    return NCCL_SUCCESS;
}
