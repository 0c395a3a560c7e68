/* bireme bench: repeatable measurements of an optimizer step, communication and data loading. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "datasets/loader/loader.h"
#include "trainer/cli/bench_impl.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/session.h"
#include "trainer/train/bench/bench.h"
#include "trainer/train/planner/cluster.h"

/* GPT-2 124M on one micro-batch of 4 x 256 tokens. */
static const char preset[] = "objective: clm\n"
                             "run_dir: none\n"
                             "model: {architecture: gpt2, num_layers: 12, hidden_size: 768,\n"
                             "        num_heads: 12, intermediate_size: 3072,\n"
                             "        max_position_embeddings: 1024, vocab_size: 50257}\n"
                             "data: {train: none, sequence_length: 256}\n"
                             "batch: {global_size: 4, micro_size: 4}\n"
                             "train: {max_steps: 1}\n"
                             "evaluate: {every: null}\n";

struct request {
    const char *recipe;
    char *const *overrides;
    int override_count;
    int64_t repeats;
    bool json, no_roofline;
};

static bool is_override(const char *argument)
{
    return strchr(argument, '=') != NULL;
}

static status read_recipe(const struct request *q, struct comm *world, struct recipe *out)
{
    const struct initial_model_request request = {.recipe_path = q->recipe,
                                                  .overrides = q->overrides,
                                                  .override_count = q->override_count,
                                                  .optional = true};
    if (q->recipe != NULL) {
        return initial_model_read_recipe(&request, world, out);
    }
    return comm_agree(world, recipe_parse("GPT-2 124M", preset, sizeof preset - 1, q->overrides,
                                          q->override_count, out));
}

/* ---- step ---- */

/* The names with "floor" are the former names (docs/reference/metrics.md). */
static json_t *make_step_json(const struct session *s, const struct bench_step *b)
{
    double tokens = (double)b->tokens;
    json_t *report = json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "precision",
        derive_precision_name(&s->recipe), "ranks", comm_size(s->mesh.world), "tensor",
        comm_size(s->mesh.tensor), "threads", kernels_threads(s->kernels), "backend",
        kernels_description(s->kernels), "tokens", (json_int_t)b->tokens, "step_seconds",
        b->step_seconds, "tokens_per_second", tokens / b->step_seconds, "comm_seconds",
        b->data.seconds, "comm_exposed_seconds", b->data.exposed_seconds, "comm_hidden_share",
        b->data.hidden_share, "tensor_comm_seconds", b->tensor.seconds,
        "tensor_comm_exposed_seconds", b->tensor.exposed_seconds, "tensor_comm_hidden_share",
        b->tensor.hidden_share, "copy_bytes_per_second", b->copy_bytes_per_second);
    json_t *operations = json_array();
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        json_array_append_new(
            operations,
            json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name", o->name, "calls",
                      (json_int_t)o->calls, "seconds", o->seconds, "roofline_seconds",
                      o->roofline_seconds, "floor_seconds", o->roofline_seconds, "share", o->share,
                      "flops", o->flops, "bytes", o->bytes, "idle_share", o->idle_share));
    }
    json_object_set_new(report, "operations", operations);
    json_t *losses = json_array();
    for (int i = 0; i < b->first_loss_count; i++) {
        json_array_append_new(losses, json_real(b->first_losses[i]));
    }
    json_object_set_new(report, "first_losses", losses);
    if (b->device_bytes > 0) {
        json_object_set_new(report, "device_bytes", json_integer(b->device_bytes));
    }
    if (b->roofline_seconds > 0) {
        double rate = tokens / b->roofline_seconds;
        json_object_set_new(report, "roofline_seconds", json_real(b->roofline_seconds));
        json_object_set_new(report, "roofline_tokens_per_second", json_real(rate));
        json_object_set_new(report, "floor_seconds", json_real(b->roofline_seconds));
        json_object_set_new(report, "floor_tokens_per_second", json_real(rate));
    }
    return report;
}

static void print_communication(const char *name, const struct comm *group,
                                const struct bench_traffic *t)
{
    if (comm_size(group) > 1) {
        printf("%s-parallel communication: %.2f ms per step, %.2f ms exposed, %.0f %% hidden\n",
               name, 1e3 * t->seconds, 1e3 * t->exposed_seconds, 100 * t->hidden_share);
    }
}

static void print_step_text(const struct session *s, const struct bench_step *b)
{
    double tokens = (double)b->tokens, listed = 0;
    int ranks = comm_size(s->mesh.world), threads = kernels_threads(s->kernels);
    printf("%s, %d rank%s x %d thread%s, %s\n", derive_precision_name(&s->recipe), ranks,
           text_plural(ranks), threads, text_plural(threads), kernels_description(s->kernels));
    printf("step      %8.2f ms  %10.0f tokens/s\n", 1e3 * b->step_seconds,
           tokens / b->step_seconds);
    if (b->roofline_seconds > 0) {
        printf("roofline  %8.2f ms  %10.0f tokens/s  (GEMMs of the step only)\n"
               "          the step reaches %.3f of the roofline\n",
               1e3 * b->roofline_seconds, tokens / b->roofline_seconds,
               b->roofline_seconds / b->step_seconds);
    }
    printf("\n%-22s %5s %8s %7s %11s %7s %6s %6s\n", "operation", "calls", "ms", "of step",
           "roofline ms", "GFLOP/s", "GB/s", "idle");
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        listed += o->seconds;
        printf("%-22s %5" PRId64 " %8.3f %6.1f%% %11.3f %7.1f %6.1f %5.1f%%\n", o->name, o->calls,
               1e3 * o->seconds, 100 * o->share, 1e3 * o->roofline_seconds,
               1e-9 * o->flops / o->seconds, 1e-9 * o->bytes / o->seconds, 100 * o->idle_share);
    }
    double rest = b->profiled_seconds - listed;
    printf("%-22s %5s %8.3f %6.1f%%\n", "other", "", 1e3 * rest, 100 * rest / b->profiled_seconds);
    printf("idle: share of the time in GEMMs in which threads have no work (unequal units)\n"
           "copy: %.1f GB/s (read and written bytes)\n",
           1e-9 * b->copy_bytes_per_second);
    print_communication("data", s->mesh.data, &b->data);
    print_communication("tensor", s->mesh.tensor, &b->tensor);
}

static status open_session(const struct request *q, struct comm *world, struct session *s)
{
    TRY(read_recipe(q, world, &s->recipe));
    const struct recipe *r = &s->recipe;
    int64_t rows = derive_rows(r);
    const char *tokenizer = r->model.vocab_size > 0 ? "" : r->data.tokenizer;
    TRY(session_start(s, world, tokenizer, rows, derive_longest_sequence(r), true));
    return model_connect(s->model);
}

static status time_step(const struct request *q, struct comm *world, bool roofline,
                        struct session *s, struct bench_step *b)
{
    TRY(open_session(q, world, s));
    return bench_step_run(s, objective_spec_objective(&s->recipe), (int)q->repeats, roofline, b);
}

static status run_kernels(const struct request *q, struct comm *world)
{
    struct session s = {0};
    TRY(open_session(q, world, &s));
    status result = comm_agree(world, bench_kernels_report(&s, (int)q->repeats, q->json));
    KEEP_FIRST(result, session_stop(&s));
    return result;
}

static status run_step(const struct request *q, struct comm *world)
{
    struct session s = {0};
    struct bench_step b;
    TRY(time_step(q, world, !q->no_roofline, &s, &b));
    status result = STATUS_OK;
    if (comm_rank(world) == 0) {
        if (q->json) {
            result = json_output_print(make_step_json(&s, &b));
        } else {
            print_step_text(&s, &b);
        }
    }
    KEEP_FIRST(result, session_stop(&s));
    return result;
}

/* ---- comm ---- */

/* Copies the second half of the buffer to the first one and back: as many bytes as the buffer
 * has. */
static void copy_halves(float *data, int64_t count)
{
    size_t half = (size_t)(count / 2);
    memmove(data, data + half, half * sizeof *data);
    memmove(data + half, data, half * sizeof *data);
}

/* Computes the shortest time of an all-reduce, or of a copy of as many bytes on each rank. */
static status time_buffer(struct comm *world, bool is_copy, float *data, int64_t count,
                          int64_t repeats, double *seconds)
{
    *seconds = 1e300;
    for (int64_t i = 0; i <= repeats; i++) {
        TRY(comm_barrier(world));
        double start = clock_seconds();
        if (is_copy) {
            copy_halves(data, count);
        } else {
            TRY(comm_all_reduce(world, data, count));
        }
        double elapsed = clock_seconds() - start;
        /* The first repetition is a warm-up. */
        *seconds = i > 0 && elapsed < *seconds ? elapsed : *seconds;
    }
    return STATUS_OK;
}

static status run_comm(const struct request *q, struct comm *world)
{
    static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20};
    float *data = NULL;
    json_t *rows = json_array();
    TRY(comm_allocate(world, sizes[5], (void **)&data));
    for (int i = 0; i < COUNT(sizes); i++) {
        int64_t count = (int64_t)(sizes[i] / sizeof *data);
        double seconds = 0, copy = 0;
        log_progress("measuring all-reduce of %zu bytes, %" PRId64 " times", sizes[i],
                     q->repeats + 1);
        TRY(time_buffer(world, false, data, count, q->repeats, &seconds));
        TRY(time_buffer(world, true, data, count, q->repeats, &copy));
        json_array_append_new(rows, json_pack("{s:I, s:f, s:f, s:f, s:f}", "bytes",
                                              (json_int_t)sizes[i], "seconds", seconds,
                                              "bytes_per_second", (double)sizes[i] / seconds,
                                              "copy_seconds", copy, "floor_seconds", copy));
        if (comm_rank(world) == 0 && !q->json) {
            char time[TEXT_NUMBER_BYTES], copy_time[TEXT_NUMBER_BYTES];
            printf("all-reduce %10zu bytes  %10s  %7.2f GB/s  (copy: %s)\n", sizes[i],
                   text_scale_seconds(seconds, time), 1e-9 * (double)sizes[i] / seconds,
                   text_scale_seconds(copy, copy_time));
        }
    }
    TRY(comm_free(world, data));
    if (comm_rank(world) == 0 && q->json) {
        return json_output_print(json_pack("{s:s, s:i, s:o}", "comm", comm_kind(world), "ranks",
                                           comm_size(world), "all_reduce", rows));
    }
    json_decref(rows);
    return STATUS_OK;
}

/* ---- cluster ---- */

/* Computes the rates of all ranks together from the operations of a step. */
static void describe_operations(const struct bench_step *b, bool is_bf16, int ranks,
                                struct cluster *out)
{
    enum { GEMM, FP8_GEMM, ATTENTION, PASSES, KINDS };
    double work[KINDS] = {0}, seconds[KINDS] = {0};
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        bool is_gemm =
            strncmp(o->name, "linear", 6) == 0 || strncmp(o->name, "classifier", 10) == 0;
        bool is_fp8 = strncmp(o->name, "fp8_linear", 10) == 0;
        bool is_attention = strncmp(o->name, "attention", 9) == 0;
        int kind = is_gemm ? GEMM : is_fp8 ? FP8_GEMM : is_attention ? ATTENTION : PASSES;
        work[kind] += kind == PASSES ? o->bytes : o->flops;
        seconds[kind] += o->seconds;
    }
    double gemm = 1e-12 * ranks * work[GEMM] / seconds[GEMM];
    double attention = 1e-12 * ranks * work[ATTENTION] / seconds[ATTENTION];
    *(is_bf16 ? &out->device.gemm_tflops_bf16 : &out->device.gemm_tflops_fp32) = gemm;
    *(is_bf16 ? &out->device.attention_tflops_bf16 : &out->device.attention_tflops_fp32) =
        attention;
    if (seconds[FP8_GEMM] > 0) {
        out->device.gemm_tflops_fp8 = 1e-12 * ranks * work[FP8_GEMM] / seconds[FP8_GEMM];
    }
    out->device.memory_gb_per_second = 1e-9 * ranks * work[PASSES] / seconds[PASSES];
}

/* Measures the bandwidth and the latency between the ranks. */
static status describe_link(const struct request *q, struct comm *world, struct cluster_link *out)
{
    enum { LARGE = 64 << 20, SMALL = 4 << 10 };
    int ranks = comm_size(world);
    double seconds = 0;
    float *data = NULL;
    if (ranks == 1) {
        return STATUS_OK;
    }
    TRY(comm_allocate(world, LARGE, (void **)&data));
    TRY(time_buffer(world, false, data, LARGE / sizeof *data, q->repeats, &seconds));
    out->gb_per_second = 1e-9 * 2 * (ranks - 1) * LARGE / seconds; /* all ranks together */
    TRY(time_buffer(world, false, data, SMALL / sizeof *data, 10 * q->repeats, &seconds));
    out->latency_microseconds = 1e6 * seconds / (2 * (ranks - 1));
    return comm_free(world, data);
}

/* Assumes that all ranks run on this host. Its cores together are the only device of the node. */
static status run_cluster(const struct request *q, struct comm *world)
{
    struct session s = {0};
    struct bench_step b;
    struct cluster cluster = {.node = {.devices = 1}};
    TRY(time_step(q, world, false, &s, &b));
    int ranks = comm_size(world);
    describe_operations(&b, s.recipe.train.precision != PRECISION_FP32, ranks, &cluster);
    cluster.device.memory_gib =
        (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1073741824.0;
    snprintf(cluster.name, sizeof cluster.name, "measured with %d rank%s: %.200s", ranks,
             text_plural(ranks), kernels_description(s.kernels));
    TRY(describe_link(q, world, &cluster.node.link));
    if (comm_rank(world) == 0) {
        cluster_write(&cluster, stdout);
    }
    return session_stop(&s);
}

/* ---- data ---- */

static status read_batches(struct loader *loader, int64_t batches, int64_t *tokens)
{
    for (int64_t i = 0; i < batches; i++) {
        struct batch batch;
        bool last = false, end = false;
        TRY(loader_next(loader, &batch, &last, &end));
        if (end) {
            break;
        }
        *tokens += batch.rows;
    }
    return STATUS_OK;
}

/* Measures the loader of one rank. A step has one micro-batch. */
static status time_loader(const struct data_setup *d, int64_t batches, int64_t *tokens,
                          double *seconds)
{
    struct loader *loader = NULL;
    TRY(data_open_train(d, 0, &loader));
    log_info("reading %" PRId64 " batches of %" PRId64 " windows at random positions", batches,
             d->recipe->batch.micro_size);
    double start = clock_seconds();
    status result = read_batches(loader, batches, tokens);
    *seconds = clock_seconds() - start;
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}

static status time_data(const struct recipe *r, int64_t batches, int64_t *tokens, double *seconds)
{
    struct tokenizer *t = NULL;
    struct masking masking = {0};
    struct denoise denoise = {0};
    struct data_setup data = {.recipe = r, .ranks = 1, .masking = &masking, .denoise = &denoise};
    TRY(data_require_train(r));
    TRY(session_tokenizer(r, r->data.tokenizer, &t, &data.vocabulary));
    data.tokenizer_sha256 = t != NULL ? tokenizer_sha256(t) : NULL;
    data.decoder_start = derive_first_input(r, t);
    status result = derive_masking(r, t, data.vocabulary, &masking);
    if (result == STATUS_OK) {
        result = derive_denoise(r, t, data.vocabulary, &denoise);
    }
    if (result == STATUS_OK) {
        result = time_loader(&data, batches, tokens, seconds);
    }
    free((void *)masking.token_kinds);
    free((void *)denoise.sentence_ends);
    KEEP_FIRST(result, tokenizer_destroy(&t));
    return result;
}

static status run_data(const struct request *q, struct comm *world)
{
    struct recipe r;
    int64_t tokens = 0;
    double seconds;
    REQUIRE(q->recipe != NULL, STATUS_USAGE,
            "bench data needs a recipe, because it reads data.train; usage: bireme bench data "
            "RECIPE.yaml");
    TRY(read_recipe(q, world, &r));
    r.batch.global_size = r.batch.micro_size;
    r.parallel.reproducible = false;
    TRY(time_data(&r, 1000 * q->repeats, &tokens, &seconds));
    double rate = (double)tokens / seconds;
    if (q->json) {
        return json_output_print(json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)tokens,
                                           "seconds", seconds, "tokens_per_second", rate));
    }
    printf("%" PRId64 " tokens in windows of %" PRId64
           " tokens at random positions: %.1f million tokens/s\n",
           tokens, r.data.sequence_length + 1, 1e-6 * rate);
    return STATUS_OK;
}

/* ---- the command ---- */

enum kind { BENCH_STEP, BENCH_KERNELS, BENCH_COMM, BENCH_DATA, BENCH_CLUSTER, BENCH_KINDS };

static status run_benchmark(enum kind kind, const struct request *q, struct comm *world)
{
    double start = clock_seconds();
    status result = kind == BENCH_COMM      ? run_comm(q, world)
                    : kind == BENCH_DATA    ? run_data(q, world)
                    : kind == BENCH_CLUSTER ? run_cluster(q, world)
                    : kind == BENCH_KERNELS ? run_kernels(q, world)
                                            : run_step(q, world);
    if (result == STATUS_OK) {
        log_info("the measurement took %.1f s", clock_seconds() - start);
    }
    return result;
}

/* Parses [KIND] [RECIPE] [OVERRIDE...]. The first argument is the kind or the recipe. */
static status parse_operands(const struct options *options, enum kind *kind, struct request *q)
{
    static const char *const kinds[BENCH_KINDS] = {"step", "kernels", "comm", "data", "cluster"};
    char **arguments = options->operands;
    int next = 0, count = options->operand_count;
    *kind = BENCH_STEP;
    for (int i = 0; i < BENCH_KINDS && next == 0 && count > 0; i++) {
        if (strcmp(arguments[0], kinds[i]) == 0) {
            *kind = (enum kind)i;
            next = 1;
        }
    }
    if (next < count && !is_override(arguments[next])) {
        const char *argument = arguments[next++];
        int nearest = text_nearest(argument, kinds, BENCH_KINDS);
        REQUIRE(
            next > 1 || strpbrk(argument, "./") != NULL || file_exists(argument), STATUS_USAGE,
            "bench %s: must be step, kernels, comm, data, cluster or the path of a recipe%s%s%s",
            argument, nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? kinds[nearest] : "",
            nearest >= 0 ? "'?" : "");
        q->recipe = argument;
    }
    q->overrides = arguments + next;
    q->override_count = count - next;
    return STATUS_OK;
}

status command_bench(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"repeats", OPTION_INTEGER, &q.repeats, "N", "5",
         "number of measurements after the warm-up", .min = 1, .max = 1000},
        {"no-roofline", OPTION_FLAG, &q.no_roofline, NULL, NULL,
         "step: do not measure the roofline", .former_name = "no-floor"},
        {"json", OPTION_FLAG, &q.json, NULL, NULL, "print one JSON object"},
    };
    struct options options = {
        .usage = "[mpirun -np N] bireme bench [BENCHMARK] [RECIPE.yaml] [section.key=value ...] "
                 "[options]",
        .description =
            "Runs a benchmark and prints the result. Progress is printed to standard error.\n\n"
            "  step     (default) one optimizer step on one micro-batch: time of each operation "
            "and its\n"
            "           part of the step, and the roofline: the time of the GEMMs of the step "
            "only\n"
            "  kernels  each operation separately, compared with the rate of a copy or of a GEMM\n"
            "  comm     all-reduce between the ranks\n"
            "  data     reading random windows of the shards of the recipe\n"
            "  cluster  description of this host for `plan --cluster`, from a step and, with "
            "several ranks,\n"
            "           an all-reduce\n\n"
            "Without a recipe, GPT-2 124M with 4 x 256 tokens is used.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme bench step recipes/mine.yaml\n"
                    "bireme bench kernels\n"
                    "mpirun -np 2 bireme bench cluster >here.yaml",
        .operand_name = "step|kernels|comm|data|cluster",
        .operands_min = 0,
        .operands_max = -1,
    };
    OPTIONS_PARSE(&options, argc, argv);
    REQUIRE(options.operand_count > 0 || argc > 1, STATUS_USAGE,
            "the benchmark is missing: step (may take minutes on all cores), kernels, comm, data "
            "or cluster; usage: %s",
            options.usage);
    enum kind kind = BENCH_STEP;
    struct comm *world = NULL;
    TRY(parse_operands(&options, &kind, &q));
    TRY(comm_world_create(&argc, &argv, &world));
    log_quiet(comm_rank(world) != 0);
    status result = run_benchmark(kind, &q, world);
    if (result != STATUS_OK) {
        comm_abort(world, result);
    }
    return comm_destroy(&world);
}
