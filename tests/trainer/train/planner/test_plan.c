/* Plans against closed forms: GPT-2 small, several ranks, shards; and the output of the command.
 * ctest: targets bireme */
#include <jansson.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/shard/shard.h"
#include "tests/check.h"
#include "trainer/train/planner/plan.h"

static char folder[] = "/tmp/bireme-plan-XXXXXX";

static struct recipe make_recipe(const char *text)
{
    struct recipe recipe;
    CHECK_OK(recipe_parse("plan.yaml", text, strlen(text), NULL, 0, &recipe));
    return recipe;
}

static const char gpt2[] = "model: {vocab_size: 50257}\nbatch: {global_size: 12, micro_size: 4}\n"
                           "parallel: {threads: 2}\ntrain: {max_steps: 100}\n";

static void test_parameters(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct plan plan;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_EQUAL(plan.parameters, 124439808); /* the size of OpenAI's "124M" */
    CHECK_EQUAL(plan.part[PLAN_TOKEN_EMBEDDING], 50257 * 768);
    CHECK_EQUAL(plan.part[PLAN_POSITION_EMBEDDING], 1024 * 768);
    CHECK_EQUAL(plan.part[PLAN_ATTENTION], 12 * (4 * 768 * 768 + 4 * 768));
    CHECK_EQUAL(plan.part[PLAN_FEED_FORWARD], 12 * (8 * 768 * 768 + 5 * 768));
    CHECK_EQUAL(plan.part[PLAN_NORMS], 25 * 2 * 768);
    CHECK_EQUAL(plan.part[PLAN_OUTPUT], 0);
    CHECK_EQUAL(plan.rank_parameters, plan.parameters);

    recipe.model.tie_word_embeddings = false;
    struct plan untied;
    CHECK_OK(plan_make(&recipe, 1, &untied));
    CHECK_EQUAL(untied.part[PLAN_OUTPUT], 50257 * 768);
    CHECK_EQUAL(untied.parameters, plan.parameters + 50257 * 768);
    CHECK(untied.token_flops == plan.token_flops); /* an embedding lookup has no FLOPs */
}

/* T5 with 2 layers of the encoder and 3 of the decoder. Sources and targets have 64 tokens; with
 * denoise, 9 of 63 are noise in 3 spans, and both sides have the sentinels and an end token. */
static void test_encoder_decoder(void)
{
    struct recipe recipe = make_recipe(
        "objective: seq2seq\nmodel: {architecture: t5, vocab_size: 512, hidden_size: 64, "
        "num_layers: 2, num_decoder_layers: 3, num_heads: 4, intermediate_size: 128}\n"
        "data: {sequence_length: 64}\nbatch: {global_size: 8, micro_size: 4}\n"
        "train: {max_steps: 1}\n");
    struct plan plan;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    const double square = 64 * 64, layer = 4 * square + 2 * 64 * 128, head = 512 * 64;
    CHECK_EQUAL(plan.parameters,
                (int64_t)(5 * layer + 3 * 4 * square + head) + 15 * 64 + 2 * 32 * 4);
    CHECK_EQUAL(plan.tokens, 8 * 128);
    double source = 2 * layer + 3 * 2 * square, target = 3 * layer + 3 * 2 * square + head;
    double scores = 2 * 64 * 64 + 3 * 64 * 64 / 2.0 + 3 * 64 * 64; /* of a pair */
    CHECK(plan.gemm_flops == 6 * (source + target) / 2);
    CHECK(plan.token_flops == plan.gemm_flops + 12 * 64 * scores / 128);
    CHECK(plan.token_flops_full_attention ==
          plan.gemm_flops + 12 * 64 * (scores + 3 * 64 * 64 / 2.0) / 128);
    recipe.parallel.tensor = 2;
    CHECK_OK(plan_make(&recipe, 2, &plan));
    /* reductions of [64, C] in f32 in both directions, and 24 bytes per row of a target */
    CHECK(plan.tensor_bytes == 8 * 64 * ((10 + 20) * 64 * 4.0 + 24));
    int64_t activations = plan.bytes[PLAN_ACTIVATIONS];
    recipe.parallel.sequence = true;
    CHECK_OK(plan_make(&recipe, 2, &plan));
    /* scatters and gathers; the gradients of 15 norms in two micro-batches */
    CHECK(plan.tensor_bytes == 8 * 64 * ((10 + 20 + 14 + 29) * 64 * 2.0 + 24) + 2 * 15 * 64 * 4.0);
    CHECK(plan.bytes[PLAN_ACTIVATIONS] < activations);
    recipe.parallel.tensor = 1;
    recipe.objective = OBJECTIVE_DENOISE;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_EQUAL(plan.tokens, 8 * (54 + 3 + 1 + 9 + 3 + 1));
    double share = 58.0 / 71; /* of the source */
    CHECK_NEAR(plan.gemm_flops / (6 * (source * share + target * (1 - share))), 1, 1e-12);

    /* before the tokenizer exists, which gives the first input of the decoder */
    recipe = make_recipe("objective: seq2seq\nmodel: {architecture: marian, vocab_size: 512}\n"
                         "data: {tokenizer: none, train: none/train-*.h5}\n"
                         "train: {max_steps: 1}\n");
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_OK(plan_check(&recipe, true, &plan));
    CHECK_EQUAL(plan.unchecked_count, 2);
    struct plan separate;
    recipe.model.share_encoder_decoder_embeddings = false;
    CHECK_OK(plan_make(&recipe, 1, &separate));
    CHECK_EQUAL(separate.parameters, plan.parameters + 512 * 768);
    CHECK(separate.gemm_flops == plan.gemm_flops); /* the table of the encoder has no GEMM */
}

static void test_step(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct plan plan;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    double gemm_parameters = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
    double token = 6 * gemm_parameters + 6.0 * 12 * 1024 * 768;
    CHECK(plan.token_flops == token);
    CHECK(plan.step_flops == token * 12 * 1024);
    CHECK_EQUAL(plan.tokens, 12 * 1024);
    CHECK_EQUAL(plan.micro_steps, 3);
    CHECK(plan.sent_bytes == 0);
    CHECK_OK(plan_make(&recipe, 5, &plan));
    CHECK_EQUAL(plan.micro_steps, 1); /* 12 sequences over 5 ranks: at most 3 per rank */
    CHECK_EQUAL(plan.tokens, 12 * 1024);
    CHECK(plan.step_flops == token * 12 * 1024);
}

/* The flat buffer has some padding: the vocabulary is rounded up to whole vectors, and parameters
 * start at cache lines. */
static void check_padded_bytes(int64_t bytes, int64_t element_bytes, int64_t parameters)
{
    CHECK(bytes >= element_bytes * parameters &&
          bytes <= element_bytes * (parameters + 64 * 768 + 32 * 200));
}

static void test_memory(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct plan one, two, low_precision;
    CHECK_OK(plan_make(&recipe, 1, &one));
    check_padded_bytes(one.bytes[PLAN_WEIGHTS], 4, one.parameters);
    CHECK_EQUAL(one.bytes[PLAN_GRADIENTS], one.bytes[PLAN_WEIGHTS]);
    CHECK_EQUAL(one.bytes[PLAN_OPTIMIZER], 2 * one.bytes[PLAN_WEIGHTS]);
    check_padded_bytes(one.buffers.snapshot, 12, one.parameters);
    int64_t sum = 0;
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        CHECK(one.bytes[kind] > 0);
        sum += one.bytes[kind];
    }
    CHECK_EQUAL(one.total_bytes, sum);
    CHECK_EQUAL(one.bytes[PLAN_BUFFERS], one.buffers.kernels + one.buffers.loaders +
                                             one.buffers.snapshot + one.buffers.writer +
                                             one.buffers.communication + one.buffers.program);
    CHECK_OK(plan_make(&recipe, 2, &two));
    CHECK(two.sent_bytes == (double)two.bytes[PLAN_GRADIENTS]); /* 2 (R - 1) / R = 1 */
    CHECK_EQUAL(two.buffers.communication, two.bytes[PLAN_GRADIENTS] / 2);
    CHECK(llabs(2 * two.buffers.snapshot - one.buffers.snapshot) < one.buffers.snapshot / 50);
    recipe.train.precision = PRECISION_BF16;
    recipe.checkpoint.async = false;
    CHECK_OK(plan_make(&recipe, 1, &low_precision));
    CHECK_EQUAL(2 * low_precision.bytes[PLAN_WEIGHTS], 3 * one.bytes[PLAN_WEIGHTS]);
    CHECK(low_precision.bytes[PLAN_ACTIVATIONS] < one.bytes[PLAN_ACTIVATIONS]);
    CHECK_EQUAL(low_precision.buffers.snapshot, 0);
    recipe.train.device = RECIPE_DEVICE_CUDA; /* a GPU needs the snapshot in any case */
    CHECK_OK(plan_make(&recipe, 1, &low_precision));
    check_padded_bytes(low_precision.buffers.snapshot, 12, low_precision.parameters);
}

static void write_shard(const char *name, int64_t tokens)
{
    char path[FILE_PATH_BYTES];
    struct shard_writer *writer;
    struct shard_header header = {.vocab_size = 50, .eos_id = -1};
    memset(header.tokenizer_sha256, 'a', HASH_TEXT_BYTES - 1);
    CHECK_OK(file_join(path, folder, name));
    CHECK_OK(shard_writer_create(path, &header, &writer));
    int32_t *ids = calloc((size_t)tokens, sizeof *ids);
    CHECK(ids != NULL);
    CHECK_OK(shard_writer_append_tokens(writer, ids, tokens));
    CHECK_OK(shard_writer_end_document(writer));
    CHECK_OK(shard_writer_close(&writer));
    free(ids);
}

static void test_data(void)
{
    char text[1024];
    struct plan plan;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(text, sizeof text,
             "model: {vocab_size: 50, hidden_size: 8, num_heads: 2, num_layers: 1, "
             "max_position_embeddings: 10}\nbatch: {global_size: 6}\n"
             "data: {train: '%s/train-*.h5'}\n"
             "train: {epochs: 2.5}\nschedule: {warmup_ratio: 0.1}\n",
             folder);
    struct recipe recipe = make_recipe(text);
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_OK(plan_check(&recipe, false, &plan));
    CHECK_EQUAL(plan.unchecked_count, 1);
    CHECK(strstr(plan.unchecked[0], "plan.yaml:3:8: data.train: no shard matches") != NULL);
    CHECK(strstr(plan.unchecked[0], "`bireme prepare --objective clm") != NULL);
    CHECK_EQUAL(plan.epoch_samples, -1);
    CHECK_EQUAL(plan.total_steps, 0);
    write_shard("train-a.h5", 101); /* 10 windows of 10 tokens and the next token */
    write_shard("train-b.h5", 100); /* 9 windows */
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_OK(plan_check(&recipe, false, &plan));
    CHECK_EQUAL(plan.unchecked_count, 0);
    CHECK_EQUAL(plan.train_tokens, 201);
    CHECK_EQUAL(plan.epoch_samples, 19);
    CHECK(plan.epoch_steps == 19.0 / 6);
    CHECK_EQUAL(plan.total_steps, 8); /* 2.5 epochs: 47.5 windows / 6 */
    CHECK_EQUAL(plan.warmup_steps, 1);
    recipe.model.vocab_size = 51;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_FAILS(plan_check(&recipe, false, &plan), STATUS_DATA, "plan.yaml:3:8: data.train: ");
    recipe.model.vocab_size = 50;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    snprintf(recipe.model.init_from, sizeof recipe.model.init_from, "%s/nowhere", folder);
    CHECK_OK(plan_check(&recipe, false, &plan));
    CHECK_EQUAL(plan.unchecked_count, 1);
    recipe.model.init_from[0] = '\0';
    char path[FILE_PATH_BYTES];
    CHECK_OK(file_join(path, folder, "train-c.h5"));
    CHECK_OK(file_write(path, "no shard", 8));
    CHECK_FAILS(plan_check(&recipe, false, &plan), STATUS_DATA, "train-c.h5");
    CHECK_OK(file_remove_tree(folder));
}

/* Each of two tensor-parallel ranks holds half of every matrix and of the padded token table, and
 * all norms and positions. */
static void test_tensor_parallel(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct plan one, two, four;
    CHECK_OK(plan_make(&recipe, 1, &one));
    recipe.parallel.tensor = 2;
    CHECK_OK(plan_make(&recipe, 2, &two));
    CHECK(two.tensor == 2 && two.data == 1 && two.parameters == one.parameters);
    int64_t split = 12 * (12 * 768 * 768 + 7 * 768) / 2 + 25152 * 768; /* half of 50,304 */
    int64_t replicated = 1024 * 768 + 25 * 2 * 768 + 12 * 2 * 768;
    CHECK_EQUAL(two.rank_parameters, split + replicated);
    check_padded_bytes(two.bytes[PLAN_WEIGHTS], 4, two.rank_parameters);
    CHECK(two.bytes[PLAN_ACTIVATIONS] < one.bytes[PLAN_ACTIVATIONS]);
    /* 12 sequences: 50 all-reduces of [N, C] in f32 over two ranks, and 24 bytes per row */
    double rows = 12.0 * 1024;
    CHECK(two.sent_bytes == 50 * rows * 768 * 4 + 24 * rows);
    recipe.parallel.sequence = true;
    struct plan sequence_parallel;
    CHECK_OK(plan_make(&recipe, 2, &sequence_parallel));
    CHECK(sequence_parallel.bytes[PLAN_ACTIVATIONS] < two.bytes[PLAN_ACTIVATIONS]);
    double norms = 25.0 * 2 * 768 * 4 * 3; /* three micro-batches, two ranks */
    CHECK(sequence_parallel.sent_bytes == (50 + 74) * rows * 768 * 2 + norms + 24 * rows);
    recipe.parallel.sequence = false;
    CHECK_OK(plan_make(&recipe, 4, &four));
    CHECK(four.data == 2 && four.rank_parameters == two.rank_parameters);
    CHECK(four.sent_bytes == two.sent_bytes / 2 + (double)four.bytes[PLAN_GRADIENTS]);
}

static void test_refused(void)
{
    struct plan plan;
    struct recipe recipe = make_recipe(gpt2);
    recipe.parallel.tensor = 2;
    CHECK_FAILS(plan_make(&recipe, 3, &plan), STATUS_RECIPE, "set parallel.tensor to one of 1, 3");
    CHECK_FAILS(plan_make(&recipe, 15, &plan), STATUS_RECIPE,
                "set parallel.tensor to one of 1, 3"); /* 5 does not divide the 12 heads */
    recipe = make_recipe("data: {tokenizer: /nowhere/tokenizer}\ntrain: {max_steps: 1}\n");
    CHECK_FAILS(plan_make(&recipe, 1, &plan), STATUS_NO_INPUT,
                "plan.yaml:1:8: data.tokenizer: there is no folder /nowhere/tokenizer; ");
}

/* A plan for a GPU that does not exist here reports it, and checks the settings as on a GPU. */
static void test_absent_gpu(void)
{
    struct plan plan;
    struct recipe recipe = make_recipe(gpt2);
    recipe.train.device = RECIPE_DEVICE_CUDA;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK(plan.device == DEVICE_CUDA);
    CHECK_OK(plan_check(&recipe, false, &plan));
    CHECK(strstr(plan.unchecked[0], "plan.yaml: train.device: device cuda: ") != NULL);
    CHECK(strstr(plan.unchecked[0], "; train would end with code 69") != NULL);
    recipe.parallel.reproducible = true;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_FAILS(plan_check(&recipe, false, &plan), STATUS_UNAVAILABLE, "parallel.reproducible");
}

/* ---- the command ---- */

static char output[1 << 17];

/* Runs the program, stores its standard output in output[] and returns its exit code. */
static int run_program(const char *arguments)
{
    const char *program = getenv("BIREME_PROGRAM");
    const char *source = getenv("BIREME_SOURCE_DIR");
    if (program == NULL || source == NULL || access(program, X_OK) != 0) {
        CHECK_SKIP("BIREME_PROGRAM does not name a program");
    }
    char command[4096];
    snprintf(command, sizeof command, "cd '%s' && '%s' %s", source, program, arguments);
    FILE *pipe = popen(command, "r");
    CHECK(pipe != NULL);
    size_t bytes = fread(output, 1, sizeof output - 1, pipe);
    output[bytes] = '\0';
    int ended = pclose(pipe);
    CHECK(WIFEXITED(ended));
    return WEXITSTATUS(ended);
}

static void test_command(void)
{
    CHECK_EQUAL(run_program("plan recipes/gpt2_124m.yaml model.vocab_size=50257 --ranks 4 --json"),
                0);
    json_t *plan = json_loads(output, 0, NULL);
    CHECK(json_is_object(plan));
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "parameters")), 124439808);
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "ranks")), 4);
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "tokens_per_step")), 524288);
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "total_steps")), 19560);
    CHECK(json_is_null(json_object_get(plan, "steps_per_epoch")));
    CHECK(json_is_null(json_object_get(plan, "epochs")));
    CHECK_EQUAL(json_object_size(json_object_get(plan, "rank_bytes")), PLAN_KINDS);
    const json_t *settings = json_object_get(plan, "settings");
    const json_t *model = json_object_get(settings, "model");
    CHECK_EQUAL(json_integer_value(json_object_get(model, "hidden_size")), 768);
    CHECK(json_number_value(json_object_get(model, "layer_norm_epsilon")) == 1e-5);
    json_decref(plan);
    CHECK_EQUAL(run_program("plan recipes/gpt2_124m.yaml model.vocab_size=50257"), 0);
    CHECK(strstr(output, "124,439,808") != NULL && strstr(output, "hidden_size: 768") == NULL);
    CHECK_EQUAL(run_program("plan recipes/gpt2_124m.yaml model.vocab_size=50257 --settings"), 0);
    CHECK(strstr(output, "hidden_size: 768") != NULL);
    CHECK_EQUAL(
        run_program(
            "plan recipes/gpt2_124m.yaml model.vocab_size=50257 train.precision=bf16 --ranks 8 "
            "--cluster recipes/clusters/a100_sxm_80gb.yaml --json"),
        0);
    plan = json_loads(output, 0, NULL);
    const json_t *prediction = json_object_get(plan, "prediction");
    CHECK(json_number_value(json_object_get(prediction, "step_seconds")) > 0);
    /* Each part has its name and a former name. */
    static const char *const names[][2] = {{"gemm_seconds", "products_seconds"},
                                           {"elementwise_seconds", "passes_seconds"},
                                           {"launch_seconds", "starts_seconds"}};
    for (int i = 0; i < COUNT(names); i++) {
        double value = json_number_value(json_object_get(prediction, names[i][0]));
        CHECK(value > 0);
        CHECK(value == json_number_value(json_object_get(prediction, names[i][1])));
    }
    CHECK(json_array_size(json_object_get(plan, "layouts")) > 3);
    json_decref(plan);
    CHECK_EQUAL(run_program("plan --help"), 0);
    CHECK(strstr(output, "--ranks N") != NULL && strstr(output, "(default: 1)") != NULL);
}

/* The output for people has scaled units and fits into 79 columns. */
static void test_text(void)
{
    static const char *const arguments[] = {
        "plan recipes/gpt2_124m.yaml model.vocab_size=50257 --ranks 2",
        "plan recipes/llama_1b.yaml model.vocab_size=32000 train.precision=bf16 --ranks 64 "
        "train.max_minutes=600 --cluster recipes/clusters/h100_sxm.yaml",
        "plan recipes/gpt2_124m.yaml model.vocab_size=50257 train.on_spike=rollback "
        "parallel.tensor=2 train.max_steps=1000000000 --ranks 4096 model.num_layers=100 "
        "--cluster recipes/clusters/a100_sxm_80gb.yaml",
    };
    static const char *const expected[][4] = {
        {" 237 MiB  [1]\n", "reduce_dtype: bf16 halves", " 10.3 G\n", "with 2 ranks per host"},
        {"a prediction from the rates in the cluster file\n", " days  on 64 GPUs = ",
         "train.max_minutes ends it at about step", "with 8 ranks per host"},
        {"rollback copy", " device hours\n", "of 80.0 GiB\n", "exposed tensor-parallel"}};
    for (int i = 0; i < COUNT(arguments); i++) {
        CHECK_EQUAL(run_program(arguments[i]), 0);
        for (int e = 0; e < 4; e++) {
            if (strstr(output, expected[i][e]) == NULL) {
                fprintf(stderr, "no '%s' in:\n%s", expected[i][e], output);
                exit(1);
            }
        }
        size_t longest = 0;
        for (const char *line = output; *line != '\0'; line += strcspn(line, "\n") + 1) {
            longest = strcspn(line, "\n") > longest ? strcspn(line, "\n") : longest;
        }
        CHECK(longest > 60 && longest <= 79);
    }
    CHECK_EQUAL(run_program("plan recipes/gpt2_124m.yaml model.vocab_size=50257 --ranks 2 "
                            "parallel.reduce_dtype=bf16"),
                0);
    CHECK(strstr(output, " 237 MiB\n") != NULL && strstr(output, "[2]") == NULL);
}

/* A plan for a cluster of GPUs counts the memory of GPU ranks, also on a machine without GPUs. */
static void test_gpu_cluster(void)
{
    static const char gpt[] = "plan recipes/gpt2_124m.yaml model.vocab_size=50257 --ranks 16 "
                              "--cluster recipes/clusters/h100_sxm.yaml --json";
    CHECK_EQUAL(run_program(gpt), 0);
    json_t *plan = json_loads(output, 0, NULL);
    const json_t *prediction = json_object_get(plan, "prediction");
    const json_t *buffers = json_object_get(plan, "buffers");
    CHECK_EQUAL(json_integer_value(json_object_get(buffers, "communication")), 0);
    CHECK(json_integer_value(json_object_get(buffers, "pinned")) > 0);
    double seconds = json_number_value(json_object_get(prediction, "step_seconds")) * 19560;
    CHECK_NEAR(json_number_value(json_object_get(plan, "run_seconds")), seconds, 1e-6 * seconds);
    CHECK_NEAR(json_number_value(json_object_get(plan, "device_hours")), seconds * 16 / 3600,
               1e-6 * seconds);
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "devices")), 16);
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "node_ranks")), 8);
    json_int_t host_bytes = json_integer_value(json_object_get(plan, "rank_bytes_total")) -
                            json_integer_value(json_object_get(plan, "device_bytes"));
    CHECK(host_bytes > 0);
    CHECK_EQUAL(json_integer_value(json_object_get(plan, "host_bytes")), 8 * host_bytes);
    CHECK(json_is_true(json_object_get(plan, "gpu")));
    const json_t *train = json_object_get(json_object_get(plan, "settings"), "train");
    CHECK_TEXT(json_string_value(json_object_get(train, "device")), "auto");
    json_decref(plan);
    char command[512];
    snprintf(command, sizeof command, "%s parallel.reproducible=true 2>&1", gpt);
    CHECK_EQUAL(run_program(command), 69); /* as train on a GPU */
    CHECK(strstr(output, "parallel.reproducible: order-independent sums") != NULL);
}

/* The host memory of a node with GPUs is compared with node.memory_gib. */
static void test_host_memory(void)
{
    static const char cluster[] =
        "device: {memory_gib: 80, memory_gb_per_second: 2850, gemm_tflops_fp32: 50, "
        "attention_tflops_fp32: 20}\nnode: {devices: 8, memory_gib: 1, gb_per_second: 360}\n"
        "network: {gb_per_second: 45}\noverlap: 0.8\n";
    char path[] = "/tmp/bireme-plan-XXXXXX", command[256];
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    CHECK_OK(file_write(path, cluster, strlen(cluster)));
    snprintf(command, sizeof command,
             "plan recipes/gpt2_124m.yaml model.vocab_size=50257 --ranks 16 --cluster %s "
             "checkpoint.async=false 2>&1",
             path);
    CHECK_EQUAL(run_program(command), 78);
    CHECK(strstr(output, "NODE DOES NOT FIT: needed") != NULL);
    CHECK(strstr(output, "the 8 ranks of a node need ") != NULL);
    CHECK(strstr(output, " of host memory, but a node of the cluster has 1.00 GiB; ") != NULL);
    CHECK(unlink(path) == 0);
}

static void test_version(void)
{
    CHECK_EQUAL(run_program("--version"), 0);
    char version[256];
    snprintf(version, sizeof version, "%.255s", output);
    CHECK_EQUAL(run_program("-v"), 0);
    CHECK(strncmp(version, "bireme ", 7) == 0 && strncmp(version, output, strlen(version)) == 0);
}

static void test_errors(void)
{
    static const struct {
        const char *arguments;
        int code;
        const char *expected;
    } cases[] = {
        {"", 64, "a command is missing"},
        {"plam", 64, "did you mean 'plan'?"},
        {"plan", 64, "RECIPE.yaml is missing"},
        {"plan recipes/gpt2_124m.yaml", 66, "recipes/gpt2_124m.yaml:15:3: data.tokenizer: "},
        {"plan recipes/gpt2_124m.yaml --rank 2", 64, "did you mean '--ranks'?"},
        {"plan recipes/gpt2_124m.yaml --ranks 1e3", 64, "write 1000"},
        {"plan recipes/gpt2_124m.yaml --ranks", 64, "--ranks needs a value: N"},
        {"plan recipes/gpt2_124m.yaml --ranks 0", 64, "--ranks 0: must be between 1"},
        {"plan recipes/gpt2_124m.yaml --json=1", 64, "--json takes no value"},
        {"plan recipes/gpt2_124m.yaml --json --json", 64, "--json is given twice"},
        {"plan recipes/nothing.yaml", 66, "recipes/nothing.yaml"},
        {"plan recipes/README.md", 78, "recipes/README.md:"},
        {"plan recipes/gpt2_124m.yaml model.num_head=3", 78, "did you mean 'model.num_heads'?"},
        {"plan recipes/gpt2_124m.yaml model.vocab_size=9 --cluster none.yaml", 66, "none.yaml"},
        {"plan recipes/gpt2_124m.yaml parallel.tensor=2", 78, "set parallel.tensor to 1"},
        {"train --config recipes/gpt2_124m.yaml", 64, "give the recipe without an option"},
        {"report run", 64, ".html or bireme report RUN_DIR... --plot"},
        {"generate --checkpoint run The", 64, "unexpected argument 'The'; write --prompt 'The'"},
        {"generate --checkpoint run --prompt The cat", 64, "put a prompt with spaces in quotes"},
        {"inspect", 64, "PATH is missing"},
        {"inspect a b", 64, "unexpected argument 'b'"},
        {"inspect /nowhere", 66, "/nowhere does not exist"},
        {"checkpoint list /nowhere", 66, "there is no checkpoint at /nowhere; name a run folder"},
        {"checkpoint verify recipes/README.md", 66,
         "recipes/README.md is a file; name a run folder"},
        {"score --checkpoint /nowhere", 66,
         "there is no checkpoint at /nowhere; name a run folder"},
        {"inspect recipes/gpt2_124m.yaml", 65, "recipes/gpt2_124m.yaml"},
        {"inspect recipes", 65, "recipes is not a checkpoint"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "%s 2>&1", cases[i].arguments);
        int code = run_program(arguments);
        size_t lines = 0;
        for (const char *c = output; *c != '\0'; c++) {
            lines += *c == '\n';
        }
        if (code != cases[i].code || lines != 1 || strstr(output, cases[i].expected) == NULL) {
            fprintf(stderr, "bireme %s: code %d, expected %d and one line with '%s'; output:\n%s",
                    cases[i].arguments, code, cases[i].code, cases[i].expected, output);
            exit(1);
        }
    }
}

/* A plan that does not fit is printed, and the exit code is 78. The message lists the settings that
 * need less memory, and none that is in force. */
static void test_memory_limit(void)
{
    static const char large[] =
        "plan recipes/gpt2_124m.yaml model.vocab_size=50257 model.hidden_size=32768 "
        "model.num_heads=256 model.num_layers=100 2>&1 ";
    static const struct {
        const char *arguments, *expected, *absent;
        int code;
    } cases[] = {
        {"train.device=cpu batch.micro_size=1", "does not fit: a rank needs",
         "batch.micro_size=1 (", 78},
        {"train.device=cuda", "train would end with code 69", "needs less", 0},
        {"train.device=auto", "warning: a rank needs", "zero_stage=1 (", 0},
        {"--cluster recipes/clusters/h100_sxm.yaml --ranks 8",
         "but a GPU of the cluster has 80.0 GiB; settings that need less: batch.micro_size=1 (",
         "tensor=4 (", 78},
        {"--cluster recipes/clusters/h100_sxm.yaml --ranks 8 batch.micro_size=1 "
         "train.activation_checkpointing=full parallel.zero_stage=2",
         "settings that need less: train.precision=bf16 (", "zero_stage=2 (", 78},
        {"--cluster recipes/clusters/h100_sxm.yaml --ranks 8 batch.micro_size=1 "
         "train.activation_checkpointing=full parallel.tensor=8 optimizer.state_dtype=bf16",
         "80.0 GiB; no other setting needs clearly less with 8 ranks; use more ranks",
         "micro_size=1 (", 78},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "%s%s", large, cases[i].arguments);
        CHECK_EQUAL(run_program(arguments), cases[i].code);
        CHECK(strstr(output, cases[i].expected) != NULL);
        CHECK(strstr(output, cases[i].absent) == NULL);
        CHECK(strstr(output, "memory per rank") != NULL);
    }
}

/* Moments in bf16 need half the memory, also in a snapshot and in the copy for a rollback. An 8B
 * model then fits one GPU of 141 GB; with fp32 moments the remedy is named. */
static void test_moments(void)
{
    static const char plan[] = "plan recipes/llama3_8b.yaml model.vocab_size=128256 --ranks 1 "
                               "--cluster recipes/clusters/h200_sxm.yaml 2>&1";
    struct recipe recipe = make_recipe(gpt2);
    struct plan full, half;
    recipe.train.on_spike = ON_SPIKE_ROLLBACK;
    CHECK_OK(plan_make(&recipe, 1, &full));
    recipe.optimizer.state_dtype = PRECISION_BF16;
    CHECK_OK(plan_make(&recipe, 1, &half));
    int64_t saved = full.bytes[PLAN_OPTIMIZER] / 2;
    CHECK_EQUAL(full.bytes[PLAN_OPTIMIZER] - half.bytes[PLAN_OPTIMIZER], saved);
    CHECK_EQUAL(full.buffers.rollback - half.buffers.rollback, saved);
    CHECK_EQUAL(full.bytes[PLAN_WEIGHTS], half.bytes[PLAN_WEIGHTS]);
    check_padded_bytes(half.buffers.snapshot, 8, half.parameters);
    char arguments[512];
    CHECK_EQUAL(run_program(plan), 0);
    CHECK(strstr(output, "109 GiB  of 131 GiB") != NULL);
    snprintf(arguments, sizeof arguments, "%s optimizer.state_dtype=fp32", plan);
    CHECK_EQUAL(run_program(arguments), 78);
    CHECK(strstr(output, "settings that need less: optimizer.state_dtype=bf16 (109 GiB)") != NULL);
}

/* The search keeps the settings of the command line, and a plan for a cluster needs its devices. */
static void test_fixed_settings(void)
{
    static const char gpt[] = "plan recipes/gpt2_124m.yaml model.vocab_size=50257 --ranks 8 "
                              "--cluster recipes/clusters/h100_sxm.yaml";
    char arguments[512];
    snprintf(arguments, sizeof arguments, "%s parallel.tensor=2 batch.micro_size=3 --json", gpt);
    CHECK_EQUAL(run_program(arguments), 0);
    json_t *plan = json_loads(output, 0, NULL), *layout;
    const json_t *layouts = json_object_get(plan, "layouts");
    size_t i;
    CHECK_EQUAL(json_array_size(layouts), 3); /* ZeRO 0, 1 and 2 */
    json_array_foreach(layouts, i, layout)
    {
        CHECK_EQUAL(json_integer_value(json_object_get(layout, "tensor")), 2);
        CHECK_EQUAL(json_integer_value(json_object_get(layout, "micro_size")), 3);
    }
    json_decref(plan);
    snprintf(arguments, sizeof arguments, "%s parallel.zero_stage=1", gpt);
    CHECK_EQUAL(run_program(arguments), 0);
    CHECK(strstr(output, "  fixed on the command line: parallel.zero_stage\n") != NULL);
    CHECK(strstr(output, "device memory ") != NULL && strstr(output, "memory of a rank") == NULL);
    snprintf(arguments, sizeof arguments, "%s train.device=cpu 2>&1", gpt);
    CHECK_EQUAL(run_program(arguments), 78);
    CHECK(strstr(output, "describes GPUs; plan with train.device=cuda") != NULL);
}

int main(void)
{
    test_parameters();
    test_encoder_decoder();
    test_step();
    test_memory();
    test_data();
    test_tensor_parallel();
    test_refused();
    test_absent_gpu();
    test_command();
    test_text();
    test_gpu_cluster();
    test_host_memory();
    test_version();
    test_errors();
    test_memory_limit();
    test_moments();
    test_fixed_settings();
    return 0;
}
