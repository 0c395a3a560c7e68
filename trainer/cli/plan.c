/* bireme plan: estimates the cost of a recipe without training. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread/cores.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/cli/output/plan_text.h"
#include "trainer/evaluation/report.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/recipe/recipe_json.h"
#include "trainer/setup/data.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/train/planner/memory_check.h"
#include "trainer/train/planner/plan.h"
#include "trainer/train/planner/predict.h"

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
    return json_pack("{sI sI sI sI sI sI sI sI sI}", "kernels", (json_int_t)b->kernels, "loaders",
                     (json_int_t)b->loaders, "pinned", (json_int_t)b->pinned, "snapshot",
                     (json_int_t)b->snapshot, "rollback", (json_int_t)b->rollback, "samples",
                     (json_int_t)b->samples, "writer", (json_int_t)b->writer, "communication",
                     (json_int_t)b->communication, "program", (json_int_t)b->program);
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

static void put_forecast(json_t *all, const struct plan *plan, const struct plan_forecast *forecast)
{
    json_t *layouts = json_array();
    for (int i = 0; i < forecast->layout_count; i++) {
        json_array_append_new(layouts, make_prediction_json(&forecast->layouts[i]));
    }
    json_object_set_new(all, "cluster", json_string(forecast->cluster.name));
    json_object_set_new(all, "prediction", make_prediction_json(&forecast->step));
    json_object_set_new(all, "gpu", json_boolean(cluster_is_gpu(&forecast->cluster)));
    put_integer(all, "devices", forecast->step.devices);
    double run_seconds = forecast->step.step_seconds * (double)plan->total_steps;
    bool steps = plan->total_steps > 0;
    json_object_set_new(all, "run_seconds", make_real_or_null(run_seconds, steps));
    json_object_set_new(all, "device_hours",
                        make_real_or_null(run_seconds / 3600 * forecast->step.devices, steps));
    put_integer(all, "node_ranks", forecast->step.node_ranks);
    put_integer(all, "host_bytes", forecast->step.host_bytes);
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
    bool epochs = steps && data && plan->epoch_steps > 0;
    json_object_set_new(
        all, "epochs",
        make_real_or_null(epochs ? (double)plan->total_steps / plan->epoch_steps : 0, epochs));
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
                         const struct plan_forecast *forecast)
{
    json_t *all = make_plan_json(r, plan);
    if (forecast != NULL) {
        put_forecast(all, plan, forecast);
    }
    int failed = json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(all);
    REQUIRE(failed == 0, STATUS_WRITE, "cannot write the plan to standard output: %s",
            strerror(errno));
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
    bool json, settings;
};

static status predict_cluster(const struct request *q, const struct recipe *r,
                              const struct plan *plan, struct plan_forecast *out)
{
    TRY(predict_step(r, plan, &out->cluster, &out->step));
    TRY(predict_micro_size(r, (int)q->ranks, &out->cluster, &out->micro_size));
    return predict_layouts(r, (int)q->ranks, &out->cluster, out->layouts, PLAN_LAYOUTS,
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

/* Reads the number of labels of a head from the shards, and checks evaluate.metric, which can name
 * a label. Missing shards are reported later. */
static status read_labels(struct recipe *r)
{
    char *labels = NULL;
    struct early_stopping_rule rule;
    status result = data_read_labels(r, &labels);
    if (result == STATUS_OK && labels != NULL) {
        result = evaluation_report_stopping_rule(r, objective_spec_objective(r), labels, &rule);
    }
    free(labels);
    if (result == STATUS_NO_INPUT) {
        status_clear();
        return STATUS_OK;
    }
    return explain_missing_data(result);
}

/* Fails if the ranks of a node with GPUs need more host memory than the node has. */
static status check_host_memory(const struct plan_forecast *forecast)
{
    const struct prediction *p = &forecast->step;
    double available = forecast->cluster.node.memory_gib * 1073741824.0;
    char needed_text[TEXT_NUMBER_BYTES], text[TEXT_NUMBER_BYTES];
    REQUIRE(
        available == 0 || (double)p->host_bytes <= available, STATUS_RECIPE,
        "the plan does not fit: the %d rank%s of a node need%s %s of host memory, but a node of "
        "the cluster has %s; use fewer ranks per node, or nodes with more memory",
        p->node_ranks, text_plural(p->node_ranks), p->node_ranks == 1 ? "s" : "",
        text_scale_bytes((double)p->host_bytes, needed_text), text_scale_bytes(available, text));
    return STATUS_OK;
}

/* Fails if a rank needs more memory than the device that the plan is for: the GPU of the cluster,
 * the GPU of this machine, or this machine for train.device cpu. If train.device is auto and this
 * machine has no GPU, the run may be meant for another machine, so this is only a warning. */
static status check_memory(const struct recipe *r, const struct plan *plan,
                           const struct plan_forecast *forecast)
{
    if (forecast != NULL) {
        TRY(memory_check_device(r, plan, forecast->step.memory_bytes,
                                device_kind_is_host(plan->device) ? "its share of a node"
                                                                  : "a GPU of the cluster",
                                true));
        return check_host_memory(forecast);
    }
    if (!device_kind_is_host(plan->device)) {
        return memory_check_device(r, plan, (double)plan->device_memory, "the GPU of this machine",
                                   true);
    }
    return memory_check_device(r, plan, (double)cores_memory_bytes(""), "this machine",
                               r->train.device == RECIPE_DEVICE_CPU);
}

/* Logs settings of a new BERT that have another default than BertConfig of transformers. */
static void log_bert_defaults(const struct recipe *r)
{
    if (r->model.architecture != ARCHITECTURE_BERT || r->model.init_from[0] != '\0') {
        return;
    }
    if (r->model.activation == RECIPE_GELU_TANH && !recipe_is_given(r, "model.activation")) {
        log_info("default: model.activation gelu_tanh; a BERT in transformers has gelu_erf");
    }
    if (!recipe_is_given(r, "model.layer_norm_epsilon")) {
        log_info("default: model.layer_norm_epsilon 1.0e-05; a BERT in transformers has 1.0e-12");
    }
}

static status run_plan(const struct request *q)
{
    struct recipe recipe, planned;
    struct plan plan;
    struct plan_forecast forecast = {0};
    bool has_cluster = q->cluster != NULL;
    TRY(read_recipe(q, &recipe));
    TRY(read_labels(&recipe));
    recipe_warn(&recipe);
    planned = recipe;
    if (has_cluster) {
        TRY(cluster_read(q->cluster, &forecast.cluster));
        TRY(predict_choose_device(&forecast.cluster, &planned));
    }
    TRY(explain_missing_data(plan_make(&planned, (int)q->ranks, &plan)));
    TRY(explain_missing_data(plan_check(&planned, has_cluster, &plan)));
    if (has_cluster) {
        TRY(predict_cluster(q, &planned, &plan, &forecast));
    }
    log_bert_defaults(&recipe);
    for (int i = 0; i < plan.unchecked_count; i++) {
        log_warning("NOT-CHECKED", "%s", plan.unchecked[i]);
    }
    const struct plan_forecast *known = has_cluster ? &forecast : NULL;
    TRY(q->json ? print_json(&recipe, &plan, known)
                : plan_text_print(&recipe, &plan, known, q->settings));
    return check_memory(&planned, &plan, known);
}

status command_plan(int argc, char **argv)
{
    struct request q = {0};
    bool print_keys = false;
    const struct option table[] = {
        {"ranks", OPTION_INTEGER, &q.ranks, "N", "1", "number of ranks to plan for", .min = 1,
         .max = 1e6},
        {"cluster", OPTION_TEXT, &q.cluster, "FILE", NULL,
         "predict the time of a step on this cluster and find the fastest layout; see "
         "recipes/clusters and `bireme bench cluster`"},
        {"settings", OPTION_FLAG, &q.settings, NULL, NULL, "also print every resolved setting"},
        {"json", OPTION_FLAG, &q.json, NULL, NULL,
         "print one JSON document, with exact numbers and every setting"},
        {"document-keys", OPTION_FLAG, &print_keys, NULL, NULL,
         "print the reference of all recipe keys (recipes/README.md)"},
    };
    struct options options = {
        .usage = "bireme plan RECIPE.yaml [section.key=value ...] [options]",
        .description =
            "Estimates the cost of a recipe without training: parameters, memory of each rank, "
            "FLOPs and bytes sent per step, steps per epoch and the learning rate schedule. With "
            "--cluster it also predicts the time of the whole run. It checks the device, the "
            "tokenizer and the shards as train does and reports the same errors. With "
            "model.vocab_size=N, a recipe can be planned without its data. A plan for a GPU needs "
            "no GPU. The parts that could not be checked are listed. If a rank needs more memory "
            "than the device has, the exit code is 78.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme plan recipes/mine.yaml --ranks 2\n"
                    "bireme plan recipes/gpt2_124m.yaml --ranks 8 \\\n"
                    "    --cluster recipes/clusters/h100_sxm.yaml \\\n"
                    "    model.vocab_size=50257 train.device=cuda",
        .operand_name = "RECIPE.yaml",
        .operands_max = -1,
    };
    OPTIONS_PARSE(&options, argc, argv);
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
