/* bireme bench: repeatable measurements of one optimizer step, of communication, of reading data. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "datasets/loader/loader.h"
#include "trainer/bench/bench.h"
#include "trainer/planner/cluster.h"
#include "trainer/cli/bench_impl.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/cli/json_output.h"
#include "trainer/setup/data.h"

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
    bool json, no_floor;
};

static bool is_override(const char *word)
{
    return strchr(word, '=') != NULL;
}

static status read_recipe(const struct request *q, struct recipe *out)
{
    if (q->recipe != NULL) {
        return recipe_read(q->recipe, q->overrides, q->override_count, out);
    }
    return recipe_parse("GPT-2 124M", preset, sizeof preset - 1, q->overrides, q->override_count,
                        out);
}

/* ---- step ---- */

static json_t *step_json(const struct session *s, const struct bench_step *b)
{
    double tokens = (double)b->tokens;
    json_t *report = json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "precision",
        dtype_name(kernels_dtype(s->kernels)), "ranks", comm_size(s->mesh.world), "tensor",
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
        json_array_append_new(operations,
                              json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f}", "name", o->name,
                                        "calls", (json_int_t)o->calls, "seconds", o->seconds,
                                        "floor_seconds", o->floor_seconds, "share", o->share,
                                        "flops", o->flops, "bytes", o->bytes));
    }
    json_object_set_new(report, "operations", operations);
    json_t *losses = json_array();
    for (int i = 0; i < b->first_loss_count; i++) {
        json_array_append_new(losses, json_real(b->first_losses[i]));
    }
    json_object_set_new(report, "first_losses", losses);
    if (b->floor_seconds > 0) {
        json_object_set_new(report, "floor_seconds", json_real(b->floor_seconds));
        json_object_set_new(report, "floor_tokens_per_second",
                            json_real(tokens / b->floor_seconds));
    }
    return report;
}

static void step_text(const struct session *s, const struct bench_step *b)
{
    double tokens = (double)b->tokens, counted = 0;
    int ranks = comm_size(s->mesh.world), threads = kernels_threads(s->kernels);
    printf("%s, %d rank%s x %d thread%s, %s\n", dtype_name(kernels_dtype(s->kernels)), ranks,
           text_plural(ranks), threads, text_plural(threads), kernels_description(s->kernels));
    printf("step   %8.2f ms  %10.0f tokens/s\n", 1e3 * b->step_seconds, tokens / b->step_seconds);
    if (b->floor_seconds > 0) {
        printf("floor  %8.2f ms  %10.0f tokens/s  (the step's matrix products alone; reached %.3f "
               "of it)\n",
               1e3 * b->floor_seconds, tokens / b->floor_seconds,
               b->floor_seconds / b->step_seconds);
    }
    printf("\n%-24s %6s %10s %7s %10s %9s %8s\n", "operation", "calls", "ms", "share", "floor ms",
           "GFLOP/s", "GB/s");
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        counted += o->seconds;
        printf("%-24s %6lld %10.3f %6.1f%% %10.3f %9.1f %8.1f\n", o->name, (long long)o->calls,
               1e3 * o->seconds, 100 * o->share, 1e3 * o->floor_seconds,
               1e-9 * o->flops / o->seconds, 1e-9 * o->bytes / o->seconds);
    }
    double rest = b->listed_seconds - counted;
    printf("%-24s %6s %10.3f %6.1f%%\n", "everything else", "", 1e3 * rest,
           100 * rest / b->listed_seconds);
    printf("copy: %.1f GB/s read and written", 1e-9 * b->copy_bytes_per_second);
    if (comm_size(s->mesh.data) > 1) {
        printf(
            "; data-parallel communication %.2f ms a step alone, %.2f ms exposed, %.0f %% hidden",
            1e3 * b->data.seconds, 1e3 * b->data.exposed_seconds, 100 * b->data.hidden_share);
    }
    if (comm_size(s->mesh.tensor) > 1) {
        printf("; tensor communication %.2f ms alone, %.2f ms exposed, %.0f %% hidden",
               1e3 * b->tensor.seconds, 1e3 * b->tensor.exposed_seconds,
               100 * b->tensor.hidden_share);
    }
    putchar('\n');
}

static status open_session(const struct request *q, struct comm *world, struct session *s)
{
    TRY(comm_agree(world, read_recipe(q, &s->recipe)));
    const struct recipe *r = &s->recipe;
    int64_t rows = session_rows(r);
    const char *tokenizer = r->model.vocab_size > 0 ? "" : r->data.tokenizer;
    TRY(session_start(s, world, tokenizer, rows, session_sequence(r), true));
    return model_connect(s->model);
}

static status time_step(const struct request *q, struct comm *world, bool floor, struct session *s,
                        struct bench_step *b)
{
    const struct objective *objective = NULL;
    TRY(open_session(q, world, s));
    TRY(comm_agree(world, objective_find(s->recipe.objective, &objective)));
    return bench_step_run(s, objective, (int)q->repeats, floor, b);
}

static status bench_kernels(const struct request *q, struct comm *world)
{
    struct session s = {0};
    TRY(open_session(q, world, &s));
    status result = comm_agree(world, bench_kernels_report(&s, (int)q->repeats, q->json));
    KEEP_FIRST(result, session_stop(&s));
    return result;
}

static status bench_step(const struct request *q, struct comm *world)
{
    struct session s = {0};
    struct bench_step b;
    TRY(time_step(q, world, !q->no_floor, &s, &b));
    status result = STATUS_OK;
    if (comm_rank(world) == 0) {
        if (q->json) {
            result = report_print(step_json(&s, &b));
        } else {
            step_text(&s, &b);
        }
    }
    KEEP_FIRST(result, session_stop(&s));
    return result;
}

/* ---- comm ---- */

static status time_all_reduce(struct comm *world, float *data, int64_t count, int64_t repeats,
                              double *seconds)
{
    *seconds = 1e300;
    for (int64_t i = 0; i <= repeats; i++) {
        TRY(comm_barrier(world));
        double start = clock_seconds();
        TRY(comm_all_reduce(world, data, count));
        double taken = clock_seconds() - start;
        *seconds = i > 0 && taken < *seconds ? taken : *seconds; /* the first one warms up */
    }
    return STATUS_OK;
}

static status bench_comm(const struct request *q, struct comm *world)
{
    static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 512 << 20};
    float *data = NULL;
    json_t *rows = json_array();
    TRY(comm_allocate(world, sizes[5], (void **)&data));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double seconds = 0;
        log_progress("all-reduce of %zu bytes, %lld times", sizes[i], (long long)q->repeats + 1);
        TRY(time_all_reduce(world, data, (int64_t)(sizes[i] / sizeof *data), q->repeats, &seconds));
        double start = clock_seconds();
        memmove(data, (char *)data + sizes[i] / 2, sizes[i] / 2);
        double copy = 2 * (clock_seconds() - start); /* the floor: reading and writing it once */
        json_array_append_new(rows, json_pack("{s:I, s:f, s:f, s:f}", "bytes", (json_int_t)sizes[i],
                                              "seconds", seconds, "bytes_per_second",
                                              (double)sizes[i] / seconds, "floor_seconds", copy));
        if (comm_rank(world) == 0 && !q->json) {
            printf("all-reduce %10zu bytes  %10.3f ms  %7.2f GB/s  (a copy of it: %.3f ms)\n",
                   sizes[i], 1e3 * seconds, 1e-9 * (double)sizes[i] / seconds, 1e3 * copy);
        }
    }
    TRY(comm_free(world, data));
    if (comm_rank(world) == 0 && q->json) {
        return report_print(json_pack("{s:s, s:i, s:o}", "comm", comm_kind(world), "ranks",
                                      comm_size(world), "all_reduce", rows));
    }
    json_decref(rows);
    return STATUS_OK;
}

/* ---- cluster ---- */

/* The rates of this host's ranks together, from a step's operations. */
static void describe_operations(const struct bench_step *b, bool rounded, int ranks,
                                struct cluster *out)
{
    enum { PRODUCTS, ATTENTION, PASSES, KINDS };
    double work[KINDS] = {0}, seconds[KINDS] = {0};
    for (int i = 0; i < b->operation_count; i++) {
        const struct bench_operation *o = &b->operations[i];
        bool products =
            strncmp(o->name, "linear", 6) == 0 || strncmp(o->name, "classifier", 10) == 0;
        bool attention = strncmp(o->name, "attention", 9) == 0;
        int kind = products ? PRODUCTS : attention ? ATTENTION : PASSES;
        work[kind] += kind == PASSES ? o->bytes : o->flops;
        seconds[kind] += o->seconds;
    }
    double products = 1e-12 * ranks * work[PRODUCTS] / seconds[PRODUCTS];
    double attention = 1e-12 * ranks * work[ATTENTION] / seconds[ATTENTION];
    *(rounded ? &out->device.product_tflops_bf16 : &out->device.product_tflops_fp32) = products;
    *(rounded ? &out->device.attention_tflops_bf16 : &out->device.attention_tflops_fp32) =
        attention;
    out->device.memory_gb_per_second = 1e-9 * ranks * work[PASSES] / seconds[PASSES];
}

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
    TRY(time_all_reduce(world, data, LARGE / sizeof *data, q->repeats, &seconds));
    out->gb_per_second = 1e-9 * 2 * (ranks - 1) * LARGE / seconds; /* of all ranks together */
    TRY(time_all_reduce(world, data, SMALL / sizeof *data, 10 * q->repeats, &seconds));
    out->latency_microseconds = 1e6 * seconds / (2 * (ranks - 1));
    return comm_free(world, data);
}

/* All ranks are taken to be on this host, whose cores together are the one device of the node. */
static status bench_cluster(const struct request *q, struct comm *world)
{
    struct session s = {0};
    struct bench_step b;
    struct cluster cluster = {.node = {.devices = 1}};
    TRY(time_step(q, world, false, &s, &b));
    int ranks = comm_size(world);
    describe_operations(&b, s.recipe.train.precision == PRECISION_BF16, ranks, &cluster);
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

static status read_everything(struct loader *loader, int64_t batches, int64_t *tokens)
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

static status bench_data(const struct request *q)
{
    struct recipe r;
    struct tokenizer *tokenizer = NULL;
    struct loader *loader = NULL;
    struct loader_source sources[RECIPE_SOURCES_MAX];
    int64_t tokens = 0;
    REQUIRE(q->recipe != NULL, STATUS_USAGE, "bench data needs a recipe: its data.train is read");
    TRY(read_recipe(q, &r));
    for (int i = 0; i < r.data.train_count; i++) {
        sources[i] = (struct loader_source){r.data.train[i].path, r.data.train[i].weight};
    }
    struct loader_options options = {
        .sources = sources,
        .source_count = r.data.train_count,
        .sequence_tokens = r.data.sequence_length,
        .global_sequences = r.batch.micro_size,
        .micro_sequences = r.batch.micro_size,
        .ranks = 1,
        .seed = (uint64_t)r.seed,
        .shuffle = r.data.shuffle,
        .document_mask = r.data.document_mask,
        .kind = job_data_kind(&r),
    };
    status result = session_tokenizer(&r, r.data.tokenizer, &tokenizer, &options.vocab_size);
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    TRY(result);
    log_info("reading %lld batches of %lld windows at random", 1000 * (long long)q->repeats,
             (long long)r.batch.micro_size);
    TRY(loader_open(&options, &loader));
    double start = clock_seconds();
    result = read_everything(loader, 1000 * q->repeats, &tokens);
    double seconds = clock_seconds() - start;
    KEEP_FIRST(result, loader_close(&loader));
    TRY(result);
    double rate = (double)tokens / seconds;
    if (q->json) {
        return report_print(json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)tokens, "seconds",
                                      seconds, "tokens_per_second", rate));
    }
    printf("%lld tokens in windows of %lld at random: %.1f million tokens/s\n", (long long)tokens,
           (long long)r.data.sequence_length + 1, 1e-6 * rate);
    return STATUS_OK;
}

/* ---- the command ---- */

enum kind { BENCH_STEP, BENCH_KERNELS, BENCH_COMM, BENCH_DATA, BENCH_CLUSTER, BENCH_KINDS };

static status run(enum kind kind, const struct request *q, struct comm *world)
{
    double start = clock_seconds();
    status result = kind == BENCH_COMM      ? bench_comm(q, world)
                    : kind == BENCH_DATA    ? bench_data(q)
                    : kind == BENCH_CLUSTER ? bench_cluster(q, world)
                    : kind == BENCH_KERNELS ? bench_kernels(q, world)
                                            : bench_step(q, world);
    if (result == STATUS_OK) {
        log_info("measured in %.1f s", clock_seconds() - start);
    }
    return result;
}

/* Both the kind and the recipe may be left out: the first word is a kind, or else the recipe. */
static status take_words(const struct options *options, enum kind *kind, struct request *q)
{
    static const char *const kinds[BENCH_KINDS] = {"step", "kernels", "comm", "data", "cluster"};
    char **words = options->operands;
    int next = 0, count = options->operand_count;
    *kind = BENCH_STEP;
    for (int i = 0; i < BENCH_KINDS && next == 0 && count > 0; i++) {
        if (strcmp(words[0], kinds[i]) == 0) {
            *kind = (enum kind)i;
            next = 1;
        }
    }
    if (next < count && !is_override(words[next])) {
        const char *word = words[next++];
        int nearest = text_nearest(word, kinds, BENCH_KINDS);
        REQUIRE(next > 1 || strpbrk(word, "./") != NULL || file_exists(word), STATUS_USAGE,
                "bench %s: neither step, kernels, comm, data or cluster, nor a recipe%s%s%s", word,
                nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? kinds[nearest] : "",
                nearest >= 0 ? "'?" : "");
        q->recipe = word;
    }
    q->overrides = words + next;
    q->override_count = count - next;
    return STATUS_OK;
}

status command_bench(int argc, char **argv)
{
    struct request q = {0};
    bool help = false;
    const struct option table[] = {
        {"repeats", OPTION_INTEGER, &q.repeats, "N", "5", "counted measurements", .least = 1,
         .most = 1000},
        {"no-floor", OPTION_FLAG, &q.no_floor, NULL, NULL, "step: do not time the floor"},
        {"json", OPTION_FLAG, &q.json, NULL, NULL, "one JSON object"},
    };
    struct options options = {
        .usage = "[mpirun -np N] bireme bench [step|kernels|comm|data|cluster] [RECIPE.yaml] "
                 "[section.key=value ...]",
        .about =
            "Told with nothing: step. Progress goes to standard error.\n"
            "step: one optimizer step on one micro-batch, each operation's time and share, and the "
            "floor: its matrix products alone.\n"
            "kernels: each operation alone beside the rate of a copy or of a product.\n"
            "comm: all-reduce between the ranks.\n"
            "data: random windows of the recipe's shards.\n"
            "cluster: describes this host for `plan --cluster`, from a step and, with several "
            "ranks, their all-reduce.\n"
            "Without a recipe: GPT-2 124M, 4 x 256 tokens.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "step|kernels|comm|data|cluster",
        .operands_least = 0,
        .operands_most = -1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    enum kind kind = BENCH_STEP;
    struct comm *world = NULL;
    TRY(take_words(&options, &kind, &q));
    TRY(comm_world_create(&argc, &argv, &world));
    log_quiet(comm_rank(world) != 0);
    status result = run(kind, &q, world);
    if (result != STATUS_OK) {
        comm_abort(world, result);
    }
    return comm_destroy(&world);
}
