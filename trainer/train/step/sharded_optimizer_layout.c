#include "trainer/train/step/sharded_optimizer_layout.h"

#include <stdlib.h>

#include "base/memory.h"
#include "comm/partition.h"

int sharded_optimizer_list_segments(const struct model_parameter *parameters, int parameter_count,
                                    int64_t layers, int stage, bool reproducible,
                                    struct bucket_segment *out)
{
    int count = 0;
    int64_t first = 0, elements = model_trained_elems(parameters, parameter_count);
    for (int64_t l = 0; l <= layers && (stage == 2 || reproducible); l++) {
        int64_t next = model_layer_first(parameters, parameter_count, l);
        if (l > 0 && next == first) { /* of a frozen layer, or of one with shared parameters */
            continue;
        }
        out[count++] = (struct bucket_segment){next - first, l > 0 && stage == 2};
        first = next;
    }
    out[count++] = (struct bucket_segment){elements - first, false};
    return count;
}

static bool has_adapters(const struct model_parameter *parameters, int count)
{
    bool adapters = false;
    for (int i = 0; i < count; i++) {
        adapters = adapters || model_is_adapter(&parameters[i]);
    }
    return adapters;
}

struct comm_range sharded_optimizer_frozen_range(const struct model_parameter *parameters,
                                                 int count, int64_t elements, int ranks, int rank)
{
    int64_t trained = model_trained_elems(parameters, count);
    bool adapters = has_adapters(parameters, count);
    struct comm_range frozen = partition_shard(adapters ? 0 : elements - trained, 1, ranks, rank);
    frozen.first += trained;
    return frozen;
}

/* ---- planned memory (sharded_optimizer.h) ---- */

/* Returns the elements that the first rank sends in a reduce-scatter of a segment. */
static int64_t count_scattered_elements(const struct bucket_segment *segment,
                                        const struct sharded_optimizer_plan *plan)
{
    struct bucket_options one = {.segments = segment,
                                 .segment_count = 1,
                                 .bucket_elems = plan->bucket_elems,
                                 .reproducible_micro_batches = plan->reproducible};
    return segment->count - bucket_owned_elems(&one, plan->ranks, 0);
}

/* Returns whether the f32 weights are sharded. Each rank then has all weights in bf16. */
static bool releases_weights(const struct sharded_optimizer_plan *plan)
{
    return plan->stage > 0 && plan->bf16;
}

/* Returns the bytes that rank 0 sends in a step. */
static double compute_sent_bytes(const struct sharded_optimizer_plan *plan,
                                 const struct bucket_segment *segments, int count,
                                 int64_t trained_vectors)
{
    double unit = plan->bf16_transport ? sizeof(bf16) : sizeof(float); /* of a gradient */
    bool released = releases_weights(plan);
    if (plan->stage == 0 && !plan->reproducible) {
        int64_t trained = model_trained_elems(plan->parameters, plan->parameter_count);
        return 2 * unit * (double)(trained - trained / plan->ranks);
    }
    double sent = released ? 8.0 * (double)(trained_vectors - trained_vectors / plan->ranks) : 0;
    for (int i = 0; i < count; i++) {
        bool each_micro_batch = segments[i].transient || plan->reproducible;
        int64_t reductions = each_micro_batch ? plan->micro_batches : 1;
        double bytes = unit * (double)reductions + (released ? 2 : 4);
        sent += bytes * (double)count_scattered_elements(&segments[i], plan);
    }
    return sent;
}

status sharded_optimizer_compute_bytes(const struct sharded_optimizer_plan *plan,
                                       struct sharded_optimizer_bytes *out)
{
    struct bucket_segment *segments = NULL;
    TRY(ALLOCATE(segments, (size_t)plan->layers + 2, "layers"));
    int64_t trained = model_trained_elems(plan->parameters, plan->parameter_count);
    int count =
        sharded_optimizer_list_segments(plan->parameters, plan->parameter_count, plan->layers,
                                        plan->stage, plan->reproducible, segments);
    struct bucket_options options = {.segments = segments,
                                     .segment_count = count,
                                     .bucket_elems = plan->bucket_elems,
                                     .reproducible_micro_batches = plan->reproducible,
                                     .bf16_transport = plan->bf16_transport};
    *out = (struct sharded_optimizer_bytes){0};
    bucket_memory_bytes(&options, plan->ranks, 0, &out->shared_gradients, &out->own_gradients);
    bucket_window_bytes(&options, plan->ranks, out->windows);
    out->owned_elems = plan->stage > 0 ? bucket_owned_elems(&options, plan->ranks, 0) : trained;
    out->moments = 2 * (int64_t)dtype_bytes(plan->moment_dtype) * out->owned_elems;
    int64_t vectors = 0, trained_vectors = 0, owned = out->owned_elems;
    owned += sharded_optimizer_frozen_range(plan->parameters, plan->parameter_count, plan->elements,
                                            plan->ranks, 0)
                 .count;
    for (int i = 0; i < plan->parameter_count; i++) {
        const struct model_parameter *p = &plan->parameters[i];
        int64_t vector = p->dimensions == 1 ? p->columns : 0;
        vectors += vector;
        trained_vectors += p->trained ? vector : 0;
    }
    bool released = releases_weights(plan);
    /* with adapters in bf16 the frozen matrices never exist in f32 */
    bool adapters = has_adapters(plan->parameters, plan->parameter_count);
    int64_t stored = released                 ? owned + vectors
                     : plan->bf16 && adapters ? trained + vectors
                                              : plan->elements;
    out->weights = 4 * stored + (plan->bf16 ? 2 * plan->elements : 0);
    out->sent = compute_sent_bytes(plan, segments, count, trained_vectors);
    free(segments);
    return STATUS_OK;
}
