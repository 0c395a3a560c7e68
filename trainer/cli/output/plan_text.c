#include "trainer/cli/output/plan_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/optimizer/schedule.h"

/* ---- rows ---- */

static void print_row(const char *name, const char *value, const char *note)
{
    printf("  %-26s %10s%s%s\n", name, value, note[0] != '\0' ? "  " : "", note);
}

static void print_count(const char *name, int64_t value)
{
    char text[32];
    print_row(name, json_output_scale_count(value, text), "");
}

static void print_bytes(const char *name, int64_t bytes)
{
    char text[TEXT_NUMBER_BYTES];
    print_row(name, text_scale_bytes((double)bytes, text), "");
}

/* Omits a row without bytes. */
static void print_used_bytes(const char *name, int64_t bytes)
{
    if (bytes > 0) {
        print_bytes(name, bytes);
    }
}

static void print_number(const char *name, double value)
{
    char text[TEXT_NUMBER_BYTES];
    print_row(name, text_scale_count(value, text), "");
}

/* ---- the model and its memory ---- */

static void print_parameters(const struct plan *plan)
{
    char text[TEXT_NUMBER_BYTES], exact[32];
    printf("parameters\n");
    for (int i = 0; i < PLAN_PARTS; i++) {
        if (plan->part[i] > 0) {
            print_count(plan_part_name((enum plan_part)i), plan->part[i]);
        }
    }
    print_row("total", text_scale_count((double)plan->parameters, text),
              json_output_format_count(plan->parameters, exact));
    if (plan->trained_parameters < plan->parameters) {
        print_row("trained", text_scale_count((double)plan->trained_parameters, text),
                  json_output_format_count(plan->trained_parameters, exact));
    }
}

static void print_buffers(const struct plan_buffers *b)
{
    char text[TEXT_NUMBER_BYTES];
    print_bytes("  kernels", b->kernels);
    print_bytes("  loaders", b->loaders);
    print_used_bytes("  page-locked", b->pinned);
    print_bytes("  snapshot", b->snapshot);
    print_used_bytes("  rollback copy", b->rollback);
    print_used_bytes("  samples", b->samples);
    print_bytes("  checkpoint writer", b->writer);
    if (b->communication > 0) {
        print_row("  communication", text_scale_bytes((double)b->communication, text), "[1]");
    }
    print_bytes("  program", b->program);
}

static void print_memory(const struct plan *plan, const struct plan_forecast *forecast)
{
    printf("memory per rank (%d rank%s)\n", plan->ranks, text_plural(plan->ranks));
    for (int i = 0; i < PLAN_KINDS; i++) {
        print_bytes(plan_kind_name((enum plan_kind)i), plan->bytes[i]);
    }
    print_buffers(&plan->buffers);
    print_bytes("total", plan->total_bytes);
    if (!device_kind_is_host(plan->device)) {
        bool too_large = plan->device_memory > 0 && plan->device_bytes > plan->device_memory;
        print_bytes(too_large ? "GPU DOES NOT FIT: needed" : "of it on the GPU",
                    plan->device_bytes);
    }
    if (plan->ranks > 1) {
        char text[TEXT_NUMBER_BYTES], note[64];
        int host_ranks = forecast != NULL ? forecast->step.node_ranks : plan->ranks;
        double bytes = (double)plan->shared_memory_bytes * host_ranks / plan->ranks;
        snprintf(note, sizeof note, "with %d rank%s per host", host_ranks, text_plural(host_ranks));
        print_row("in /dev/shm of a host", text_scale_bytes(bytes, text), note);
    }
    if (plan->buffers.communication > 0) {
        printf("  [1] values of the other ranks of a host, read from shared memory\n");
    }
}

/* ---- a step ---- */

static void print_step(const struct recipe *r, const struct plan *plan)
{
    char text[TEXT_NUMBER_BYTES];
    bool may_halve = plan->data > 1 && r->parallel.reduce_dtype == PRECISION_FP32;
    printf("per step\n");
    print_count("tokens", plan->tokens);
    print_count("micro-batches per rank", plan->micro_steps);
    print_number("FLOPs", plan->step_flops);
    print_number("FLOPs per token", plan->token_flops);
    print_row("sent by each rank", text_scale_bytes(plan->sent_bytes, text),
              may_halve ? "[2]" : "");
    if (may_halve) {
        printf("  [2] parallel.reduce_dtype: bf16 halves the bytes of gradients sent. It needs\n"
               "      half of the gradient memory in addition\n");
    }
}

static void print_seconds(const char *name, double seconds, double hidden)
{
    char text[TEXT_NUMBER_BYTES], hidden_text[TEXT_NUMBER_BYTES], note[96] = "";
    if (hidden > 0) {
        snprintf(note, sizeof note, "and %s overlapped", text_scale_seconds(hidden, hidden_text));
    }
    print_row(name, text_scale_seconds(seconds, text), note);
}

/* Lists the settings of the command line that the search of layouts does not change. */
static void print_fixed_settings(const struct recipe *r)
{
    static const char *const searched[] = {"parallel.tensor", "parallel.zero_stage",
                                           "batch.micro_size"};
    const char *lead = "  fixed on the command line: ";
    for (int i = 0; i < COUNT(searched); i++) {
        if (recipe_is_on_command_line(r, searched[i])) {
            printf("%s%s", lead, searched[i]);
            lead = ", ";
        }
    }
    printf("%s", lead[0] == ',' ? "\n" : "");
}

static void print_layouts(const struct recipe *r, const struct plan_forecast *forecast)
{
    char seconds[TEXT_NUMBER_BYTES], rate[TEXT_NUMBER_BYTES], bytes[TEXT_NUMBER_BYTES];
    printf("layouts that fit into memory, the fastest first\n");
    print_fixed_settings(r);
    printf("  %6s %6s %5s %10s %10s %10s %12s\n", "tensor", "data", "zero", "micro_size", "step",
           "tokens/s", "rank memory");
    for (int i = 0; i < forecast->layout_count; i++) {
        const struct prediction *p = &forecast->layouts[i];
        printf("  %6d %6d %5d %10" PRId64 " %10s %10s %12s\n", p->tensor, p->data, p->zero_stage,
               p->micro_size, text_scale_seconds(p->step_seconds, seconds),
               text_scale_count(p->tokens_per_second, rate),
               text_scale_bytes((double)p->device_bytes, bytes));
    }
    if (forecast->layout_count == 0) {
        printf("  none\n");
    }
}

/* Prints the host memory of a node with GPUs: snapshots, loaders, rollback copies and programs. */
static void print_host_memory(const struct plan_forecast *forecast)
{
    const struct prediction *p = &forecast->step;
    double available = forecast->cluster.node.memory_gib * 1073741824.0;
    char text[TEXT_NUMBER_BYTES], all[TEXT_NUMBER_BYTES], note[96];
    if (p->host_bytes == 0) {
        return;
    }
    bool fits = available == 0 || (double)p->host_bytes <= available;
    int used = snprintf(note, sizeof note, "with %d rank%s per node", p->node_ranks,
                        text_plural(p->node_ranks));
    if (available > 0) {
        snprintf(note + used, sizeof note - (size_t)used, ", of %s",
                 text_scale_bytes(available, all));
    }
    print_row(fits ? "host memory of a node" : "NODE DOES NOT FIT: needed",
              text_scale_bytes((double)p->host_bytes, text), note);
}

static void print_needed_memory(const struct plan_forecast *forecast)
{
    const struct prediction *p = &forecast->step;
    char text[TEXT_NUMBER_BYTES], all[TEXT_NUMBER_BYTES], note[64];
    snprintf(note, sizeof note, "of %s", text_scale_bytes(p->memory_bytes, all));
    const char *name = cluster_is_gpu(&forecast->cluster) ? "device memory" : "memory of a rank";
    print_row(p->fits ? name : "DOES NOT FIT: needed",
              text_scale_bytes((double)p->device_bytes, text), note);
}

static void print_forecast(const struct recipe *r, const struct plan_forecast *forecast)
{
    const struct prediction *p = &forecast->step;
    const struct cluster *cluster = &forecast->cluster;
    char text[TEXT_NUMBER_BYTES];
    printf("predicted step on %.60s\n", cluster->name[0] != '\0' ? cluster->name : cluster->path);
    if (cluster_is_gpu(cluster)) {
        printf("  a prediction from the rates in the cluster file\n");
    }
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
    print_number("tokens/s", p->tokens_per_second);
    if (p->mfu > 0) {
        snprintf(text, sizeof text, "%.1f %%", 100 * p->mfu);
        print_row("MFU", text, "");
    }
    print_needed_memory(forecast);
    print_host_memory(forecast);
    print_count("largest micro_size", forecast->micro_size);
    print_layouts(r, forecast);
}

/* ---- the run ---- */

static void print_data(const struct plan *plan)
{
    if (plan->epoch_samples < 0) {
        printf("training data: not found, not checked\n");
        return;
    }
    char text[32];
    printf("training data\n");
    print_count("tokens", plan->train_tokens);
    print_count("sequences per epoch", plan->epoch_samples);
    snprintf(text, sizeof text, "%.2f", plan->epoch_steps);
    print_row("steps per epoch", text, "");
}

/* Prints the time of all steps, and the step at which train.max_minutes ends the run. */
static void print_run_time(const struct recipe *r, const struct plan *plan,
                           const struct plan_forecast *forecast)
{
    const struct prediction *p = &forecast->step;
    double seconds = p->step_seconds * (double)plan->total_steps;
    double hours = seconds / 3600 * p->devices, limit = 60 * r->train.max_minutes;
    char text[TEXT_NUMBER_BYTES], count[32], scaled[TEXT_NUMBER_BYTES], note[96];
    bool is_exact = hours >= 100 && hours < 1e6;
    snprintf(note, sizeof note, "on %d %s%s = %s device hours", p->devices,
             cluster_is_gpu(&forecast->cluster) ? "GPU" : "device", text_plural(p->devices),
             is_exact ? json_output_format_count(llround(hours), count)
                      : text_scale_count(hours, scaled));
    print_row("predicted time", text_scale_seconds(seconds, text), note);
    if (limit > 0 && seconds > limit) {
        printf("  train.max_minutes ends it at about step %.0f, after %s\n",
               limit / p->step_seconds, text_scale_seconds(limit, text));
    }
    printf("  evaluations and checkpoints take additional time\n");
}

static void print_run(const struct recipe *r, const struct plan *plan,
                      const struct plan_forecast *forecast)
{
    int64_t total = plan->total_steps;
    if (total == 0) {
        printf("whole run: unknown, because there are no training shards yet\n");
        return;
    }
    int64_t steps[] = {0, plan->warmup_steps, total / 2, total - 1};
    printf("whole run\n");
    print_count("steps", total);
    print_count("tokens", total * plan->tokens);
    if (plan->epoch_steps > 0) {
        char epochs[32];
        snprintf(epochs, sizeof epochs, "%.2f", (double)total / plan->epoch_steps);
        print_row("epochs", epochs, "");
    }
    if (forecast != NULL) {
        print_run_time(r, plan, forecast);
    }
    print_count("warm-up steps", plan->warmup_steps);
    for (int i = 0; i < COUNT(steps); i++) {
        int64_t step = steps[i] < total ? steps[i] : total - 1;
        char name[48], rate[32];
        if (i > 0 && step <= steps[i - 1]) {
            continue;
        }
        snprintf(name, sizeof name, "learning rate, step %" PRId64, step + 1);
        snprintf(rate, sizeof rate, "%.4g", schedule_learning_rate(r, step, total));
        print_row(name, rate, "");
    }
}

status plan_text_print(const struct recipe *recipe, const struct plan *plan,
                       const struct plan_forecast *forecast, bool settings)
{
    print_parameters(plan);
    print_memory(plan, forecast);
    print_step(recipe, plan);
    if (forecast != NULL) {
        print_forecast(recipe, forecast);
    }
    print_data(plan);
    print_run(recipe, plan, forecast);
    if (plan->unchecked_count > 0) {
        printf("not checked: %d part%s of the recipe; see the warnings\n", plan->unchecked_count,
               text_plural(plan->unchecked_count));
    }
    if (!settings) {
        return STATUS_OK;
    }
    printf("settings\n");
    return recipe_write(recipe, stdout);
}
