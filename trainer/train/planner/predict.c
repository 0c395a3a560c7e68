#include "trainer/train/planner/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "comm/partition.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"

/* Rates of one rank, for its share of a device. */
struct rates {
    double gemm, fp8_gemm, attention; /* FLOP/s */
    double memory;                    /* bytes/s */
    double launch;                    /* seconds */
    double share;                     /* fraction of a device */
};

static double clamp_positive(double a)
{
    return a > 0 ? a : 0;
}

static status fail_missing(const struct cluster *cluster, const char *key)
{
    RAISE(STATUS_RECIPE, "%s: %s is missing; the prediction for this recipe and layout requires it",
          cluster->path, key);
}

/* Counts the ranks of a group with distance `stride` that are on one node.
 *
 * Without a network in the description, all ranks are on one node. */
static int count_on_node(const struct cluster *cluster, int ranks, int group, int stride)
{
    int per_node = cluster->network.gb_per_second > 0
                       ? (int)number_min(ranks, (int)cluster->node.devices)
                       : ranks;
    int local_ranks = per_node / stride;
    return (int)number_min(group, local_ranks > 0 ? local_ranks : 1);
}

static status find_rates(const struct recipe *r, const struct plan *plan,
                         const struct cluster *cluster, struct rates *out)
{
    bool is_bf16 = r->train.precision != PRECISION_FP32;
    int on_node = count_on_node(cluster, plan->ranks, plan->ranks, 1);
    double share = (double)cluster->node.devices / on_node;
    double gemm = is_bf16 ? cluster->device.gemm_tflops_bf16 : cluster->device.gemm_tflops_fp32;
    double attention =
        is_bf16 ? cluster->device.attention_tflops_bf16 : cluster->device.attention_tflops_fp32;
    out->share = share < 1 ? share : 1;
    if (gemm == 0) {
        return fail_missing(cluster,
                            is_bf16 ? "device.gemm_tflops_bf16" : "device.gemm_tflops_fp32");
    }
    if (attention == 0) {
        return fail_missing(cluster, is_bf16 ? "device.attention_tflops_bf16"
                                             : "device.attention_tflops_fp32");
    }
    if (plan->fp8_flops > 0 && cluster->device.gemm_tflops_fp8 == 0) {
        return fail_missing(cluster, "device.gemm_tflops_fp8");
    }
    out->gemm = 1e12 * gemm * out->share;
    out->fp8_gemm = 1e12 * cluster->device.gemm_tflops_fp8 * out->share;
    out->attention = 1e12 * attention * out->share;
    out->memory = 1e9 * cluster->device.memory_gb_per_second * out->share;
    out->launch = 1e-6 * cluster->device.operation_microseconds;
    return STATUS_OK;
}

/* Returns the device memory that a rank may use, in bytes. */
static double get_memory_share(const struct cluster *cluster, double share)
{
    return cluster->device.memory_gib * 1073741824.0 * share;
}

/* ---- communication ---- */

/* Computes the time in which each rank of a group sends `bytes` in `collectives` rings or trees. */
static status predict_collectives(const struct cluster *cluster, const struct plan *plan,
                                  const struct rates *rates, int group, int stride, double bytes,
                                  double collectives, double *out)
{
    *out = 0;
    if (group <= 1) {
        return STATUS_OK;
    }
    int local_ranks = count_on_node(cluster, plan->ranks, group, stride);
    bool uses_network = local_ranks < group;
    if (cluster->node.link.gb_per_second == 0 && local_ranks > 1) {
        return fail_missing(cluster, "node.gb_per_second");
    }
    double rate = 1e9 * cluster->node.link.gb_per_second * rates->share;
    double latency = cluster->node.link.latency_microseconds;
    if (uses_network) {
        double network = 1e9 * cluster->network.gb_per_second * rates->share * local_ranks;
        rate = local_ranks > 1 ? fmin(rate, network) : network;
        latency = fmax(latency, cluster->network.latency_microseconds);
    }
    double messages = fmin(2 * (group - 1), 2 * ceil(log2(group)));
    *out = bytes / rate + collectives * messages * 1e-6 * latency;
    return STATUS_OK;
}

/* ---- a step ---- */

/* Returns the fraction of the layers that backward recomputes. The activations of the last layer
 * are still valid. */
static double get_recompute_share(const struct recipe *r)
{
    double layers = (double)r->model.num_layers;
    return r->train.activation_checkpointing != RECOMPUTE_NONE ? (layers - 1) / layers : 0;
}

static bool recomputes_all(const struct recipe *r)
{
    return r->train.activation_checkpointing == RECOMPUTE_FULL;
}

/* Counts the bytes that elementwise operations on `rows` rows access, forward and backward. */
static double compute_elementwise_bytes(const struct recipe *r, const struct plan *plan,
                                        double rows)
{
    double tensor = plan->tensor;
    double width = (double)r->model.hidden_size;
    double inner = (double)r->model.intermediate_size / tensor;
    double norms = 16 * width / (r->parallel.sequence ? tensor : 1);
    double layer = norms + 6 * inner + 3 * width / tensor + 2 * width / tensor;
    layer += get_recompute_share(r) * (recomputes_all(r) ? layer / 3 : norms / 4 + 2 * inner);
    double vocabulary = (double)derive_decoder_vocabulary(r, plan->vocabulary);
    double elements = (double)r->model.num_layers * layer + 5 * width + 2 * vocabulary / tensor;
    return rows * elements * (r->train.precision != PRECISION_FP32 ? 2 : 4);
}

/* Returns the time of all GEMMs for one row. The forward pass has a third of the FLOPs of a layer,
 * and the backward pass may repeat it. */
static double predict_gemms(const struct recipe *r, const struct plan *plan,
                            const struct rates *rates)
{
    double in_layers = (double)(plan->part[PLAN_ATTENTION] + plan->part[PLAN_FEED_FORWARD]);
    double again = recomputes_all(r) ? get_recompute_share(r) * 2 * in_layers : 0;
    double fp8 = plan->fp8_flops + fmin(again, plan->fp8_flops / 3);
    double seconds = (plan->gemm_flops + again - fp8) / rates->gemm;
    return (fp8 > 0 ? seconds + fp8 / rates->fp8_gemm : seconds) / plan->tensor;
}

static void predict_work(const struct recipe *r, const struct plan *plan, const struct rates *rates,
                         struct prediction *out)
{
    struct comm_range share = partition_shard(r->batch.global_size, 1, plan->data, 0);
    double rows = (double)plan->tokens * (double)share.count / (double)r->batch.global_size;
    double micro = (double)plan->micro_steps;
    double layers = (double)(r->model.num_layers + r->model.num_decoder_layers);
    double weights = (double)plan->rank_parameters;
    double recompute = recomputes_all(r) ? get_recompute_share(r) : 0;
    double attention = (7 + 2 * recompute) / 6 * (plan->token_flops - plan->gemm_flops);
    double moment_bytes = (double)dtype_bytes(derive_moment_dtype(r));
    double owned_elems = (double)plan->bytes[PLAN_OPTIMIZER] / (2 * moment_bytes);
    out->gemm_seconds = rows * predict_gemms(r, plan, rates);
    out->attention_seconds = rows * attention / plan->tensor / rates->attention;
    out->elementwise_seconds =
        (compute_elementwise_bytes(r, plan, rows) + weights * (8 * (micro - 1) + 4)) /
        rates->memory;
    out->optimizer_seconds = (18 + 4 * moment_bytes) * owned_elems / rates->memory;
    out->launch_seconds = micro * layers * (12 + 22) * rates->launch;
}

static status predict_communication(const struct recipe *r, const struct plan *plan,
                                    const struct cluster *cluster, const struct rates *rates,
                                    struct prediction *out)
{
    double micro = (double)plan->micro_steps, layers = (double)r->model.num_layers;
    double decoder = (double)r->model.num_decoder_layers;
    double reductions = 4 * layers + 2 + (decoder > 0 ? 6 * decoder + 2 : 0);
    double buckets = ceil((double)plan->rank_parameters / (double)derive_bucket_elems(r));
    double rounds = plan->zero_stage == 2 ? micro : 1;
    TRY(predict_collectives(cluster, plan, rates, plan->tensor, 1, plan->tensor_bytes,
                            micro * reductions, &out->tensor_comm_seconds));
    TRY(predict_collectives(cluster, plan, rates, plan->data, plan->tensor,
                            plan->sent_bytes - plan->tensor_bytes, rounds * buckets,
                            &out->data_comm_seconds));
    double forward =
        (out->gemm_seconds + out->attention_seconds + out->elementwise_seconds) / 3 / micro;
    double overlap_window = 2 * forward * rounds + (plan->zero_stage > 0 ? forward : 0);
    double last_bucket = out->data_comm_seconds / (rounds * buckets);
    out->data_exposed_seconds = fmax(
        clamp_positive(out->data_comm_seconds - cluster->overlap * overlap_window), last_bucket);
    out->tensor_exposed_seconds =
        out->tensor_comm_seconds / 2 +
        clamp_positive(out->tensor_comm_seconds / 2 - cluster->overlap * out->gemm_seconds / 3);
    return STATUS_OK;
}

status predict_choose_device(const struct cluster *cluster, struct recipe *r)
{
    enum recipe_device device = cluster_is_gpu(cluster) ? RECIPE_DEVICE_CUDA : RECIPE_DEVICE_CPU;
    if (r->train.device == RECIPE_DEVICE_AUTO) {
        r->train.device = device;
    }
    if (r->train.device != device) {
        bool on_cpu = r->train.device == RECIPE_DEVICE_CPU;
        return recipe_raise(r, STATUS_RECIPE, "train.device",
                            "%s, but %s describes %s; plan with train.device=%s",
                            on_cpu ? "cpu" : "cuda", cluster->path, on_cpu ? "GPUs" : "CPUs",
                            on_cpu ? "cuda" : "cpu");
    }
    return STATUS_OK;
}

status predict_step(const struct recipe *r, const struct plan *plan, const struct cluster *cluster,
                    struct prediction *out)
{
    struct rates rates;
    *out = (struct prediction){
        .tensor = plan->tensor,
        .data = plan->data,
        .zero_stage = plan->zero_stage,
        .micro_size = r->batch.micro_size,
        .device_bytes = plan->device_bytes,
    };
    out->node_ranks = count_on_node(cluster, plan->ranks, plan->ranks, 1);
    out->host_bytes = device_kind_is_host(plan->device)
                          ? 0
                          : (plan->total_bytes - plan->device_bytes) * out->node_ranks;
    out->devices = cluster->network.gb_per_second > 0
                       ? plan->ranks
                       : (int)number_min(plan->ranks, (int)cluster->node.devices);
    TRY(find_rates(r, plan, cluster, &rates));
    predict_work(r, plan, &rates, out);
    TRY(predict_communication(r, plan, cluster, &rates, out));
    out->step_seconds = out->gemm_seconds + out->attention_seconds + out->elementwise_seconds +
                        out->optimizer_seconds + out->launch_seconds + out->tensor_exposed_seconds +
                        out->data_exposed_seconds;
    out->tokens_per_second = (double)plan->tokens / out->step_seconds;
    double peak = 1e12 * cluster->device.peak_tflops * rates.share * plan->ranks;
    out->mfu = peak > 0 ? plan->step_flops / out->step_seconds / peak : 0;
    out->memory_bytes = get_memory_share(cluster, rates.share);
    out->fits = (double)out->device_bytes <= out->memory_bytes;
    return STATUS_OK;
}

status predict_micro_size(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                          int64_t *out)
{
    struct recipe r = *recipe;
    struct plan plan;
    struct rates rates;
    TRY(plan_make(&r, ranks, &plan));
    TRY(find_rates(&r, &plan, cluster, &rates));
    r.model.vocab_size = plan.vocabulary;
    int64_t limit = partition_shard(r.batch.global_size, 1, plan.data, 0).count + 1;
    *out = 0;
    while (limit - *out > 1) {
        r.batch.micro_size = (*out + limit) / 2;
        TRY(plan_make(&r, ranks, &plan));
        bool fits = (double)plan.device_bytes <= get_memory_share(cluster, rates.share);
        *(fits ? out : &limit) = r.batch.micro_size;
    }
    return STATUS_OK;
}

/* ---- the best layout ---- */

static int compare_predictions(const void *a, const void *b)
{
    const struct prediction *x = a, *y = b;
    if (x->step_seconds != y->step_seconds) {
        return x->step_seconds < y->step_seconds ? -1 : 1;
    }
    return x->device_bytes < y->device_bytes ? -1 : x->device_bytes > y->device_bytes;
}

struct search {
    const struct cluster *cluster;
    struct prediction *layouts;
    int count, capacity;
};

/* Appends the fastest micro-batch size of a layout, if one fits. */
static status try_micro_sizes(struct search *s, const struct recipe *recipe, int ranks)
{
    struct recipe r = *recipe;
    struct prediction best = {0};
    int64_t data = ranks / r.parallel.tensor;
    bool fixed = recipe_is_on_command_line(recipe, "batch.micro_size");
    int64_t first = fixed ? recipe->batch.micro_size : 1;
    int64_t last = fixed ? first : number_divide_up(r.batch.global_size, data);
    for (r.batch.micro_size = first; r.batch.micro_size <= last; r.batch.micro_size *= 2) {
        struct plan plan;
        struct prediction p;
        TRY(plan_make(&r, ranks, &plan));
        TRY(predict_step(&r, &plan, s->cluster, &p));
        if (p.fits && (!best.fits || compare_predictions(&p, &best) < 0)) {
            best = p;
        }
    }
    if (best.fits && s->count < s->capacity) {
        s->layouts[s->count++] = best;
    }
    return STATUS_OK;
}

static bool is_valid_tensor_size(const struct recipe *r, int ranks, int64_t tensor)
{
    return ranks % tensor == 0 && recipe_tensor_divisor(r) % tensor == 0 &&
           (!recipe_is_on_command_line(r, "parallel.tensor") || tensor == r->parallel.tensor);
}

static status try_layouts(struct search *s, const struct recipe *recipe, int ranks,
                          int64_t vocabulary)
{
    struct recipe r = *recipe;
    r.model.vocab_size = vocabulary;
    bool fixed = recipe_is_on_command_line(recipe, "parallel.zero_stage");
    for (int64_t tensor = 1; tensor <= ranks && tensor <= r.model.num_kv_heads; tensor++) {
        if (!is_valid_tensor_size(recipe, ranks, tensor)) {
            continue;
        }
        r.parallel.tensor = tensor;
        int64_t first = fixed ? recipe->parallel.zero_stage : 0;
        int64_t last = fixed ? first : tensor < ranks ? 2 : 0;
        for (r.parallel.zero_stage = first; r.parallel.zero_stage <= last;
             r.parallel.zero_stage++) {
            TRY(try_micro_sizes(s, &r, ranks));
        }
    }
    return STATUS_OK;
}

status predict_layouts(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                       struct prediction *out, int max_count, int *count)
{
    enum { CAPACITY = 4096 };
    struct plan plan;
    *count = 0;
    TRY(plan_make(recipe, ranks, &plan));
    struct search s = {.cluster = cluster, .capacity = CAPACITY};
    TRY(ALLOCATE(s.layouts, CAPACITY, "layouts"));
    status result = try_layouts(&s, recipe, ranks, plan.vocabulary);
    if (result == STATUS_OK) {
        qsort(s.layouts, (size_t)s.count, sizeof *s.layouts, compare_predictions);
        *count = (int)number_min(s.count, max_count);
        memcpy(out, s.layouts, (size_t)*count * sizeof *out);
    }
    free(s.layouts);
    return result;
}
