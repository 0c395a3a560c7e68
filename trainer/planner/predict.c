#include "trainer/planner/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/partition.h"
#include "trainer/setup/session.h"

/* What the rank with most work computes with: the rates of its share of a device. */
struct rates {
    double products, attention; /* FLOP/s */
    double memory;              /* bytes/s */
    double start;               /* seconds */
    double share;               /* of a device */
};

static double positive(double a)
{
    return a > 0 ? a : 0;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static status missing(const struct cluster *cluster, const char *key)
{
    RAISE(STATUS_RECIPE, "%s: %s is missing; this recipe and layout cannot be predicted without it",
          cluster->path, key);
}

/* How many of a group's ranks, which lie `stride` apart, are on one node. Without a network all ranks are. */
static int group_on_node(const struct cluster *cluster, int ranks, int group, int stride)
{
    int per_node =
        cluster->network.gb_per_second > 0 ? least(ranks, (int)cluster->node.devices) : ranks;
    int together = per_node / stride;
    return least(group, together > 0 ? together : 1);
}

static status find_rates(const struct recipe *r, const struct plan *plan,
                         const struct cluster *cluster, struct rates *out)
{
    bool rounded = r->train.precision == PRECISION_BF16;
    int on_node = group_on_node(cluster, plan->ranks, plan->ranks, 1);
    double share = (double)cluster->node.devices / on_node;
    double products =
        rounded ? cluster->device.product_tflops_bf16 : cluster->device.product_tflops_fp32;
    double attention =
        rounded ? cluster->device.attention_tflops_bf16 : cluster->device.attention_tflops_fp32;
    out->share = share < 1 ? share : 1;
    if (products == 0) {
        return missing(cluster,
                       rounded ? "device.product_tflops_bf16" : "device.product_tflops_fp32");
    }
    if (attention == 0) {
        return missing(cluster,
                       rounded ? "device.attention_tflops_bf16" : "device.attention_tflops_fp32");
    }
    out->products = 1e12 * products * out->share;
    out->attention = 1e12 * attention * out->share;
    out->memory = 1e9 * cluster->device.memory_gb_per_second * out->share;
    out->start = 1e-6 * cluster->device.operation_microseconds;
    return STATUS_OK;
}

/* Bytes that a rank may use. */
static double device_share(const struct cluster *cluster, double share)
{
    return cluster->device.memory_gib * 1073741824.0 * share;
}

/* ---- traffic ---- */

/* travel - seconds of `bytes` sent by each of a group's ranks in `collectives` rings. */
static status travel(const struct cluster *cluster, const struct plan *plan,
                     const struct rates *rates, int group, int stride, double bytes,
                     double collectives, double *out)
{
    *out = 0;
    if (group <= 1) {
        return STATUS_OK;
    }
    int together = group_on_node(cluster, plan->ranks, group, stride);
    bool leaves = together < group;
    if (cluster->node.link.gb_per_second == 0 && together > 1) {
        return missing(cluster, "node.gb_per_second");
    }
    double rate = 1e9 * cluster->node.link.gb_per_second * rates->share;
    double latency = cluster->node.link.latency_microseconds;
    if (leaves) {
        double network = 1e9 * cluster->network.gb_per_second * rates->share * together;
        rate = together > 1 ? fmin(rate, network) : network;
        latency = fmax(latency, cluster->network.latency_microseconds);
    }
    double messages = fmin(2 * (group - 1), 2 * ceil(log2(group)));
    *out = bytes / rate + collectives * messages * 1e-6 * latency;
    return STATUS_OK;
}

/* ---- a step ---- */

/* Layers whose forward pass is done once more in backward, of all of them: the last one's is still there. */
static double again_share(const struct recipe *r)
{
    double layers = (double)r->model.num_layers;
    return strcmp(r->train.activation_checkpointing, "none") != 0 ? (layers - 1) / layers : 0;
}

static bool again_all(const struct recipe *r)
{
    return strcmp(r->train.activation_checkpointing, "full") == 0;
}

/* Bytes that element-wise passes of one micro-batch's rows read and write, forward and backward. */
static double pass_bytes(const struct recipe *r, const struct plan *plan, double rows)
{
    double tensor = plan->tensor;
    double width = (double)r->model.hidden_size;
    double inner = (double)r->model.intermediate_size / tensor;
    double norms = 16 * width / (r->parallel.sequence ? tensor : 1);
    double layer = norms + 6 * inner + 3 * width / tensor + 2 * width / tensor;
    layer += again_share(r) * (again_all(r) ? layer / 3 : norms / 4 + 2 * inner);
    double elements =
        (double)r->model.num_layers * layer + 5 * width + 2 * (double)plan->vocabulary / tensor;
    return rows * elements * (r->train.precision == PRECISION_BF16 ? 2 : 4);
}

static void predict_work(const struct recipe *r, const struct plan *plan, const struct rates *rates,
                         struct prediction *out)
{
    struct range share = partition_share(r->batch.global_size, 1, plan->data, 0);
    double rows = (double)(share.count * (session_rows(r) / r->batch.micro_size));
    double micro = (double)plan->micro_steps, layers = (double)r->model.num_layers;
    double weights = (double)plan->rank_parameters;
    double again = again_all(r) ? again_share(r) : 0;
    double in_layers = (double)(plan->part[PLAN_ATTENTION] + plan->part[PLAN_FEED_FORWARD]);
    double products = plan->product_flops + again * 2 * in_layers;
    double attention = (7 + 2 * again) / 6 * (plan->token_flops - plan->product_flops);
    double owned = (double)plan->bytes[PLAN_OPTIMIZER] / 8;
    out->products = rows * products / plan->tensor / rates->products;
    out->attention = rows * attention / plan->tensor / rates->attention;
    out->passes = (pass_bytes(r, plan, rows) + weights * (8 * (micro - 1) + 4)) / rates->memory;
    out->optimizer = 34 * owned / rates->memory;
    out->starts = micro * layers * (12 + 22) * rates->start;
}

static status predict_traffic(const struct recipe *r, const struct plan *plan,
                              const struct cluster *cluster, const struct rates *rates,
                              struct prediction *out)
{
    double micro = (double)plan->micro_steps, layers = (double)r->model.num_layers;
    double buckets = ceil((double)plan->rank_parameters / (double)session_bucket_elements(r));
    double rounds = plan->zero_stage == 2 ? micro : 1;
    TRY(travel(cluster, plan, rates, plan->tensor, 1, plan->tensor_bytes, micro * (4 * layers + 2),
               &out->tensor_traffic));
    TRY(travel(cluster, plan, rates, plan->data, plan->tensor,
               plan->sent_bytes - plan->tensor_bytes, rounds * buckets, &out->data_traffic));
    double forward = (out->products + out->attention + out->passes) / 3 / micro;
    double window = 2 * forward * rounds + (plan->zero_stage > 0 ? forward : 0);
    double last = out->data_traffic / (rounds * buckets);
    out->data_exposed = fmax(positive(out->data_traffic - cluster->overlap * window), last);
    out->tensor_exposed = out->tensor_traffic / 2 +
                          positive(out->tensor_traffic / 2 - cluster->overlap * out->products / 3);
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
    TRY(find_rates(r, plan, cluster, &rates));
    predict_work(r, plan, &rates, out);
    TRY(predict_traffic(r, plan, cluster, &rates, out));
    out->step = out->products + out->attention + out->passes + out->optimizer + out->starts +
                out->tensor_exposed + out->data_exposed;
    out->tokens_per_second = (double)plan->tokens / out->step;
    double peak = 1e12 * cluster->device.peak_tflops * rates.share * plan->ranks;
    out->mfu = peak > 0 ? plan->step_flops / out->step / peak : 0;
    out->fits = (double)out->device_bytes <= device_share(cluster, rates.share);
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
    int64_t above = partition_share(r.batch.global_size, 1, plan.data, 0).count + 1;
    *out = 0;
    while (above - *out > 1) {
        r.batch.micro_size = (*out + above) / 2;
        TRY(plan_make(&r, ranks, &plan));
        bool fits = (double)plan.device_bytes <= device_share(cluster, rates.share);
        *(fits ? out : &above) = r.batch.micro_size;
    }
    return STATUS_OK;
}

/* ---- the best layout ---- */

static int compare(const void *a, const void *b)
{
    const struct prediction *x = a, *y = b;
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    return x->device_bytes < y->device_bytes ? -1 : x->device_bytes > y->device_bytes;
}

struct search {
    const struct cluster *cluster;
    struct prediction *found;
    int count, room;
};

/* try_micro_sizes - the fastest micro-batch of one layout, if any fits. */
static status try_micro_sizes(struct search *s, const struct recipe *recipe, int ranks)
{
    struct recipe r = *recipe;
    struct prediction best = {0};
    int64_t data = ranks / r.parallel.tensor;
    int64_t most = (r.batch.global_size + data - 1) / data;
    for (r.batch.micro_size = 1; r.batch.micro_size <= most; r.batch.micro_size *= 2) {
        struct plan plan;
        struct prediction p;
        TRY(plan_make(&r, ranks, &plan));
        TRY(predict_step(&r, &plan, s->cluster, &p));
        if (p.fits && (!best.fits || compare(&p, &best) < 0)) {
            best = p;
        }
    }
    if (best.fits && s->count < s->room) {
        s->found[s->count++] = best;
    }
    return STATUS_OK;
}

static bool can_share(const struct recipe *r, int ranks, int64_t tensor)
{
    return ranks % tensor == 0 && r->model.num_kv_heads % tensor == 0 && /* divides the heads */
           r->model.intermediate_size % tensor == 0;
}

static status try_all(struct search *s, const struct recipe *recipe, int ranks, int64_t vocabulary)
{
    struct recipe r = *recipe;
    r.model.vocab_size = vocabulary;
    for (int64_t tensor = 1; tensor <= ranks && tensor <= r.model.num_kv_heads; tensor++) {
        if (!can_share(&r, ranks, tensor)) {
            continue;
        }
        r.parallel.tensor = tensor;
        for (r.parallel.zero_stage = 0; r.parallel.zero_stage <= (tensor < ranks ? 2 : 0);
             r.parallel.zero_stage++) {
            TRY(try_micro_sizes(s, &r, ranks));
        }
    }
    return STATUS_OK;
}

status predict_layouts(const struct recipe *recipe, int ranks, const struct cluster *cluster,
                       struct prediction *out, int most, int *count)
{
    enum { ROOM = 4096 };
    struct plan plan;
    *count = 0;
    TRY(plan_make(recipe, ranks, &plan));
    struct search s = {.cluster = cluster, .room = ROOM};
    s.found = calloc(ROOM, sizeof *s.found);
    REQUIRE(s.found != NULL, STATUS_INTERNAL, "out of memory for %d layouts", ROOM);
    status result = try_all(&s, recipe, ranks, plan.vocabulary);
    if (result == STATUS_OK) {
        qsort(s.found, (size_t)s.count, sizeof *s.found, compare);
        *count = least(s.count, most);
        memcpy(out, s.found, (size_t)*count * sizeof *out);
    }
    free(s.found);
    return result;
}
