/* bireme plan: estimates the cost of a recipe without training. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cores.h"
#include "base/log.h"
#include "base/text.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/cli/options.h"
#include "trainer/cli/recipe_json.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/planner/plan.h"
#include "trainer/planner/predict.h"
#include "trainer/setup/data.h"
#include "trainer/weights/initial_model.h"

enum { LAYOUTS_PRINTED = 8 };

/* ---- text output ---- */

static void print_count(const char *name, int64_t value)
{
    char text[32];
    printf("  %-24s %18s\n", name, json_output_format_count(value, text));
}

static void print_bytes(const char *name, int64_t bytes)
{
    char text[32];
    printf("  %-24s %18s  %10.1f MiB\n", name, json_output_format_count(bytes, text),
           (double)bytes / 1048576.0);
}

static void print_memory(const struct plan *plan)
{
    printf("memory per rank in bytes (%d rank%s)\n", plan->ranks, text_plural(plan->ranks));
    for (int i = 0; i < PLAN_KINDS; i++) {
        print_bytes(plan_kind_name((enum plan_kind)i), plan->bytes[i]);
    }
    print_bytes("  kernels", plan->buffers.kernels);
    print_bytes("  loaders", plan->buffers.loaders);
    if (plan->buffers.pinned > 0) {
        print_bytes("  page-locked", plan->buffers.pinned);
    }
    print_bytes("  snapshot", plan->buffers.snapshot);
    if (plan->buffers.rollback > 0) {
        print_bytes("  rollback copy", plan->buffers.rollback);
    }
    print_bytes("  checkpoint writer", plan->buffers.writer);
    print_bytes("  communication", plan->buffers.communication);
    print_bytes("  program", plan->buffers.program);
    print_bytes("total", plan->total_bytes);
    if (plan->ranks > 1) {
        print_bytes("in /dev/shm of a host", plan->shared_memory_bytes);
    }
    if (plan->device == DEVICE_CUDA) {
        bool too_large = plan->device_memory > 0 && plan->device_bytes > plan->device_memory;
        print_bytes(too_large ? "GPU DOES NOT FIT: needed" : "of it on the GPU",
                    plan->device_bytes);
    }
}

static void print_schedule(const struct recipe *r, const struct plan *plan)
{
    int64_t total = plan->total_steps;
    if (total == 0) {
        printf("schedule: unknown, because there are no training shards yet\n");
        return;
    }
    int64_t steps[] = {0, plan->warmup_steps, total / 2, total - 1};
    printf("schedule\n");
    print_count("steps", total);
    print_count("warm-up steps", plan->warmup_steps);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int64_t step = steps[i] < total ? steps[i] : total - 1;
        if (i > 0 && step <= steps[i - 1]) {
            continue;
        }
        printf("  learning rate of step %-12" PRId64 " %.6g\n", step + 1,
               schedule_learning_rate(r, step, total));
    }
}

static void print_step(const struct plan *plan)
{
    printf("per step\n");
    print_count("tokens", plan->tokens);
    print_count("micro-batches per rank", plan->micro_steps);
    printf("  %-24s %18.4g\n", "FLOPs", plan->step_flops);
    printf("  %-24s %18.4g\n", "FLOPs per token", plan->token_flops);
    print_bytes("sent by each rank", (int64_t)plan->sent_bytes);
}

static void print_seconds(const char *name, double seconds, double hidden)
{
    printf("  %-24s %15.3f ms", name, 1e3 * seconds);
    if (hidden > 0) {
        printf("  and %.3f ms overlapped with computation", 1e3 * hidden);
    }
    printf("\n");
}

/* The predictions for a cluster. */
struct cluster_forecast {
    struct cluster cluster;
    struct prediction step;
    int64_t micro_size; /* the largest that fits */
    struct prediction layouts[LAYOUTS_PRINTED];
    int layout_count;
};

static void print_layouts(const struct cluster_forecast *forecast)
{
    printf("layouts that fit into memory, the fastest first\n");
    printf("  %6s %6s %5s %10s %12s %14s %14s\n", "tensor", "data", "zero", "micro_size",
           "ms per step", "tokens/s", "MiB per rank");
    for (int i = 0; i < forecast->layout_count; i++) {
        const struct prediction *p = &forecast->layouts[i];
        printf("  %6d %6d %5d %10" PRId64 " %12.1f %14.0f %14.0f\n", p->tensor, p->data,
               p->zero_stage, p->micro_size, 1e3 * p->step_seconds, p->tokens_per_second,
               (double)p->device_bytes / 1048576.0);
    }
    if (forecast->layout_count == 0) {
        printf("  none\n");
    }
}

static void print_forecast(const struct cluster_forecast *forecast)
{
    const struct prediction *p = &forecast->step;
    printf("predicted for %s\n",
           forecast->cluster.name[0] != '\0' ? forecast->cluster.name : forecast->cluster.path);
    print_seconds("GEMMs", p->gemm_seconds, 0);
    print_seconds("attention", p->attention_seconds, 0);
    print_seconds("element-wise operations", p->elementwise_seconds, 0);
    print_seconds("optimizer", p->optimizer_seconds, 0);
    print_seconds("operation start-up", p->launch_seconds, 0);
    print_seconds("exposed tensor-parallel", p->tensor_exposed_seconds,
                  p->tensor_comm_seconds - p->tensor_exposed_seconds);
    print_seconds("exposed data-parallel", p->data_exposed_seconds,
                  p->data_comm_seconds - p->data_exposed_seconds);
    print_seconds("step", p->step_seconds, 0);
    printf("  %-24s %18.0f\n", "tokens/s", p->tokens_per_second);
    if (p->mfu > 0) {
        printf("  %-24s %16.1f %%\n", "MFU", 100 * p->mfu);
    }
    print_bytes(p->fits ? "device memory" : "DOES NOT FIT: needed", p->device_bytes);
    print_count("largest micro_size", forecast->micro_size);
    print_layouts(forecast);
}

static void print_data(const struct plan *plan)
{
    if (plan->epoch_samples < 0) {
        printf("training data: not found, not checked\n");
        return;
    }
    printf("training data\n");
    print_count("tokens", plan->train_tokens);
    print_count("sequences per epoch", plan->epoch_samples);
    printf("  %-24s %18.2f\n", "steps per epoch", plan->epoch_steps);
}

static status print_plan(const struct recipe *r, const struct plan *plan,
                         const struct cluster_forecast *forecast)
{
    printf("parameters\n");
    for (int i = 0; i < PLAN_PARTS; i++) {
        if (plan->part[i] > 0) {
            print_count(plan_part_name((enum plan_part)i), plan->part[i]);
        }
    }
    print_count("total", plan->parameters);
    if (plan->trained_parameters < plan->parameters) {
        print_count("trained", plan->trained_parameters);
    }
    print_memory(plan);
    print_step(plan);
    if (forecast != NULL) {
        print_forecast(forecast);
    }
    print_data(plan);
    print_schedule(r, plan);
    printf("settings\n");
    return recipe_write(r, stdout);
}

/* ---- JSON output ---- */

static json_t *make_real_or_null(double value, bool is_known)
{
    return is_known ? json_real(value) : json_null();
}

static json_t *make_memory_json(const struct plan *plan)
{
    json_t *bytes = json_object();
    for (int i = 0; i < PLAN_KINDS; i++) {
        json_object_set_new(bytes, plan_kind_name((enum plan_kind)i), json_integer(plan->bytes[i]));
    }
    return bytes;
}

static json_t *make_buffers_json(const struct plan_buffers *b)
{
    return json_pack("{sI sI sI sI sI sI sI sI}", "kernels", (json_int_t)b->kernels, "loaders",
                     (json_int_t)b->loaders, "pinned", (json_int_t)b->pinned, "snapshot",
                     (json_int_t)b->snapshot, "rollback", (json_int_t)b->rollback, "writer",
                     (json_int_t)b->writer, "communication", (json_int_t)b->communication,
                     "program", (json_int_t)b->program);
}

static json_t *make_parts_json(const struct plan *plan)
{
    json_t *parts = json_object();
    for (int i = 0; i < PLAN_PARTS; i++) {
        json_object_set_new(parts, plan_part_name((enum plan_part)i), json_integer(plan->part[i]));
    }
    return parts;
}

static void put_integer(json_t *object, const char *name, int64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

static json_t *make_prediction_json(const struct prediction *p)
{
    return json_pack(
        "{si si si sI sf sf sf sf sf sf sf sf sf sf sf sf sf sf sf sI sb}", "tensor", p->tensor,
        "data", p->data, "zero_stage", p->zero_stage, "micro_size", (json_int_t)p->micro_size,
        "step_seconds", p->step_seconds, "gemm_seconds", p->gemm_seconds, "products_seconds",
        p->gemm_seconds, "attention_seconds", p->attention_seconds, "elementwise_seconds",
        p->elementwise_seconds, "passes_seconds", p->elementwise_seconds, "optimizer_seconds",
        p->optimizer_seconds, "launch_seconds", p->launch_seconds, "starts_seconds",
        p->launch_seconds, "tensor_comm_seconds", p->tensor_comm_seconds, "tensor_exposed_seconds",
        p->tensor_exposed_seconds, "comm_seconds", p->data_comm_seconds, "exposed_seconds",
        p->data_exposed_seconds, "tokens_per_second", p->tokens_per_second, "mfu", p->mfu,
        "device_bytes", (json_int_t)p->device_bytes, "fits", p->fits);
}

static void put_forecast(json_t *all, const struct cluster_forecast *forecast)
{
    json_t *layouts = json_array();
    for (int i = 0; i < forecast->layout_count; i++) {
        json_array_append_new(layouts, make_prediction_json(&forecast->layouts[i]));
    }
    json_object_set_new(all, "cluster", json_string(forecast->cluster.name));
    json_object_set_new(all, "prediction", make_prediction_json(&forecast->step));
    put_integer(all, "largest_micro_size", forecast->micro_size);
    json_object_set_new(all, "layouts", layouts);
}

static json_t *make_plan_json(const struct recipe *r, const struct plan *plan)
{
    json_t *all = json_object();
    put_integer(all, "parameters", plan->parameters);
    put_integer(all, "trained_parameters", plan->trained_parameters);
    json_object_set_new(all, "parameters_by_kind", make_parts_json(plan));
    put_integer(all, "vocab_size", plan->vocabulary);
    put_integer(all, "ranks", plan->ranks);
    put_integer(all, "tensor", plan->tensor);
    put_integer(all, "data", plan->data);
    put_integer(all, "zero_stage", r->parallel.zero_stage);
    put_integer(all, "threads", plan->threads);
    put_integer(all, "rank_parameters", plan->rank_parameters);
    json_object_set_new(all, "rank_bytes", make_memory_json(plan));
    put_integer(all, "rank_bytes_total", plan->total_bytes);
    put_integer(all, "shared_memory_bytes", plan->shared_memory_bytes);
    put_integer(all, "device_bytes", plan->device_bytes);
    json_object_set_new(all, "buffers", make_buffers_json(&plan->buffers));
    put_integer(all, "tokens_per_step", plan->tokens);
    put_integer(all, "micro_steps", plan->micro_steps);
    json_object_set_new(all, "flops_per_step", json_real(plan->step_flops));
    json_object_set_new(all, "flops_per_token", json_real(plan->token_flops));
    json_object_set_new(all, "communicated_bytes_per_step", json_real(plan->sent_bytes));
    bool data = plan->epoch_samples >= 0;
    json_object_set_new(all, "train_tokens", data ? json_integer(plan->train_tokens) : json_null());
    json_object_set_new(all, "steps_per_epoch", make_real_or_null(plan->epoch_steps, data));
    bool steps = plan->total_steps > 0;
    json_object_set_new(all, "total_steps", steps ? json_integer(plan->total_steps) : json_null());
    json_object_set_new(all, "warmup_steps",
                        steps ? json_integer(plan->warmup_steps) : json_null());
    json_t *unchecked = json_array();
    for (int i = 0; i < plan->unchecked_count; i++) {
        json_array_append_new(unchecked, json_string(plan->unchecked[i]));
    }
    json_object_set_new(all, "not_checked", unchecked);
    json_object_set_new(all, "settings", recipe_json_build(r));
    return all;
}

static status print_json(const struct recipe *r, const struct plan *plan,
                         const struct cluster_forecast *forecast)
{
    json_t *all = make_plan_json(r, plan);
    if (forecast != NULL) {
        put_forecast(all, forecast);
    }
    int failed = json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(all);
    REQUIRE(failed == 0, STATUS_WRITE, "cannot write the plan to standard output");
    printf("\n");
    return STATUS_OK;
}

/* Adds to the error of missing data how to plan without the data. */
static status explain_missing_data(status result)
{
    struct status_note note;
    if (result != STATUS_NO_INPUT) {
        return result;
    }
    status_take(&note);
    RAISE(result, "%s; to plan without the data, set the vocabulary size: model.vocab_size=N",
          note.text);
}

struct request {
    const char *recipe, *cluster;
    char *const *overrides;
    int override_count;
    int64_t ranks;
    bool json;
};

static status predict_cluster(const struct request *q, const struct recipe *r,
                              const struct plan *plan, struct cluster_forecast *out)
{
    TRY(cluster_read(q->cluster, &out->cluster));
    TRY(predict_step(r, plan, &out->cluster, &out->step));
    TRY(predict_micro_size(r, (int)q->ranks, &out->cluster, &out->micro_size));
    return predict_layouts(r, (int)q->ranks, &out->cluster, out->layouts, LAYOUTS_PRINTED,
                           &out->layout_count);
}

static status read_recipe(const struct request *q, struct recipe *out)
{
    const struct initial_model_request request = {.recipe_path = q->recipe,
                                                  .overrides = q->overrides,
                                                  .override_count = q->override_count,
                                                  .resume = "",
                                                  .remedy = "to plan without it, set the sizes of "
                                                            "the model and model.vocab_size=N"};
    struct comm *self = NULL;
    TRY(comm_self_create(&self));
    status result = initial_model_read_recipe(&request, self, out);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* Reads the number of labels of a head from the shards. Missing shards are reported later. */
static status read_labels(struct recipe *r)
{
    char *labels = NULL;
    status result = data_read_labels(r, &labels);
    free(labels);
    if (result == STATUS_NO_INPUT) {
        status_clear();
        return STATUS_OK;
    }
    return explain_missing_data(result);
}

/* Fails if a rank needs more memory than the device that the plan is for: the GPU of the cluster,
 * the GPU of this machine, or this machine for train.device cpu. If train.device is auto and this
 * machine has no GPU, the run may be meant for another machine, so this is only a warning. */
static status check_memory(const struct recipe *r, const struct plan *plan,
                           const struct cluster_forecast *forecast)
{
    static const char advice[] =
        "lower batch.micro_size, or set train.activation_checkpointing: full, train.precision: "
        "bf16, or parallel.zero_stage or parallel.tensor with more ranks";
    const double gib = 1073741824.0;
    bool on_cpu = plan->device == DEVICE_CPU;
    double needed = (double)(on_cpu ? plan->total_bytes : plan->device_bytes);
    double available = (double)(on_cpu ? cores_memory_bytes("") : plan->device_memory);
    const char *device = on_cpu ? "this machine" : "the GPU of this machine";
    if (forecast != NULL) {
        needed = (double)forecast->step.device_bytes;
        available = forecast->step.fits ? 0 : forecast->cluster.device.memory_gib * gib;
        device = "a GPU of the cluster";
    }
    if (available <= 0 || needed <= available) {
        return STATUS_OK;
    }
    if (forecast == NULL && on_cpu && r->train.device == RECIPE_DEVICE_AUTO) {
        log_warning("MEMORY", "a rank needs %.1f GiB, but %s has %.1f GiB; %s", needed / gib,
                    device, available / gib, advice);
        return STATUS_OK;
    }
    RAISE(STATUS_RECIPE, "the plan does not fit: a rank needs %.1f GiB, but %s has %.1f GiB; %s",
          needed / gib, device, available / gib, advice);
}

static status run_plan(const struct request *q)
{
    struct recipe recipe;
    struct plan plan;
    struct cluster_forecast forecast = {0};
    bool has_cluster = q->cluster != NULL;
    TRY(read_recipe(q, &recipe));
    TRY(read_labels(&recipe));
    TRY(explain_missing_data(plan_make(&recipe, (int)q->ranks, &plan)));
    TRY(explain_missing_data(plan_check(&recipe, has_cluster, &plan)));
    if (has_cluster) {
        TRY(predict_cluster(q, &recipe, &plan, &forecast));
    }
    for (int i = 0; i < plan.unchecked_count; i++) {
        log_warning("NOT-CHECKED", "%s", plan.unchecked[i]);
    }
    const struct cluster_forecast *known = has_cluster ? &forecast : NULL;
    TRY(q->json ? print_json(&recipe, &plan, known) : print_plan(&recipe, &plan, known));
    return check_memory(&recipe, &plan, known);
}

status command_plan(int argc, char **argv)
{
    struct request q = {0};
    bool print_keys = false;
    bool help = false;
    const struct option table[] = {
        {"ranks", OPTION_INTEGER, &q.ranks, "N", "1", "number of ranks to plan for", 1, 1e6, NULL},
        {"cluster", OPTION_TEXT, &q.cluster, "FILE", NULL,
         "predict the time of a step on this cluster and find the fastest layout; see "
         "recipes/clusters and `bireme bench cluster`",
         0, 0, NULL},
        {"json", OPTION_FLAG, &q.json, NULL, NULL, "print one JSON document", 0, 0, NULL},
        {"document-keys", OPTION_FLAG, &print_keys, NULL, NULL,
         "print the reference of all recipe keys (recipes/README.md)", 0, 0, NULL},
    };
    struct options options = {
        .usage = "bireme plan RECIPE.yaml [section.key=value ...] [options]",
        .description =
            "Estimates the cost of a recipe without training: parameters, memory of each rank, "
            "FLOPs and bytes sent per step, steps per epoch, the learning rate schedule and every "
            "resolved setting. It checks the device, the tokenizer and the shards as train does "
            "and reports the same errors. With model.vocab_size=N, a recipe can be planned without "
            "its data. The parts that could not be checked are listed. If a rank needs more memory "
            "than "
            "the device has, the exit code is 78.",
        .table = table,
        .count = (int)(sizeof table / sizeof table[0]),
        .operand_name = "RECIPE.yaml",
        .operands_max = -1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    if (print_keys) {
        recipe_document(stdout);
        return STATUS_OK;
    }
    REQUIRE(options.operand_count > 0, STATUS_USAGE, "RECIPE.yaml is missing; usage: %s",
            options.usage);
    q.recipe = options.operands[0];
    q.overrides = options.operands + 1;
    q.override_count = options.operand_count - 1;
    return run_plan(&q);
}
