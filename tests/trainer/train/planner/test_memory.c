/* The memory of a plan differs from the memory of a run by at most a tenth.
 *
 *   test_memory [RANKS [ZERO_STAGE [TENSOR [PRECISION|CHECKPOINTING|rollback|moments]]]]
 *
 * RANKS and TENSOR (ranks that share the model) are 1 or 2. With PRECISION fp32 or bf16, adapters
 * are trained on the final weights of a first run. CHECKPOINTING is selective or full. With
 * rollback, the run keeps a copy of weights and moments; with moments, these are bf16 too.
 * ctest: targets bireme
 * ctest: run adapters 1 0 1 fp32
 * ctest: run adapters_bf16 1 0 1 bf16
 * ctest: run selective 1 0 1 selective
 * ctest: run full 1 0 1 full
 * ctest: run rollback 1 0 1 rollback
 * ctest: run moments 1 0 1 moments
 * ctest: run 2_ranks 2
 * ctest: run 2_ranks_rollback 2 1 1 rollback
 * ctest: run 2_ranks_zero_1 2 1
 * ctest: run 2_ranks_zero_2 2 2
 * ctest: run 2_tensor 2 0 2 */
#include <jansson.h>
#include <unistd.h>

#include "base/file.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/tokenizer.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernels.h"
#include "tests/check.h"
#include "tests/datasets/train_tokenizer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static char folder[] = "/tmp/bireme-memory-XXXXXX";

static void join_path(const char *name, char path[FILE_PATH_BYTES])
{
    CHECK_OK(file_join(path, folder, name));
}

/* Makes a character tokenizer and a shard. */
static void make_data(void)
{
    char text[FILE_PATH_BYTES];
    char path[FILE_PATH_BYTES];
    struct tokenizer *t;
    struct shard_writer *w;
    join_path("text.txt", text);
    CHECK_OK(file_write(text, "abcdefghijklmnopqrstuvwxyz .\n", 29));
    char *files[] = {text};
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, files, 1, 1, &t));
    join_path("tokenizer", path);
    CHECK_OK(tokenizer_save(t, path));
    struct shard_header header = {.vocab_size = tokenizer_vocab_size(t), .eos_id = -1};
    snprintf(header.tokenizer_sha256, sizeof header.tokenizer_sha256, "%s", tokenizer_sha256(t));
    join_path("train.h5", path);
    CHECK_OK(shard_writer_create(path, &header, &w));
    for (int32_t i = 0; i < 20000; i++) {
        int32_t id = (int32_t)((i * 7 + i / 13) % header.vocab_size);
        CHECK_OK(shard_writer_append_tokens(w, &id, 1));
    }
    CHECK_OK(shard_writer_end_document(w));
    CHECK_OK(shard_writer_close(&w));
    CHECK_OK(tokenizer_destroy(&t));
}

static void make_recipe(const char *stage, int width)
{
    char text[4096];
    char path[FILE_PATH_BYTES];
    int bytes = snprintf(text, sizeof text,
                         "run_dir: '%s/run'\n"
                         "model: {num_layers: 4, hidden_size: %d, num_heads: 4, "
                         "max_position_embeddings: 64}\n"
                         "data: {tokenizer: '%s/tokenizer', train: '%s/train.h5', "
                         "validation: '%s/train.h5'}\n"
                         "batch: {global_size: 8, micro_size: 4}\n"
                         "parallel: {threads: 1, zero_stage: %s}\n"
                         "train: {max_steps: 3}\n"
                         "evaluate: {every: 2, batches: 1}\n"
                         "checkpoint: {every: 2}\nlog: {every: 1}\n",
                         folder, width, folder, folder, folder, stage);
    join_path("recipe.yaml", path);
    CHECK_OK(file_write(path, text, (size_t)bytes));
}

static void run_training(int ranks, int tensor, const char *overrides)
{
    char command[4 * FILE_PATH_BYTES];
    char mpirun[128] = "";
    if (ranks > 1) {
        snprintf(mpirun, sizeof mpirun,
                 "mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np %d ", ranks);
    }
    snprintf(command, sizeof command,
             "%s'%s' train '%s/recipe.yaml' parallel.tensor=%d parallel.sequence=%s %s "
             ">'%s/output' 2>&1",
             mpirun, getenv("BIREME_PROGRAM"), folder, tensor, tensor > 1 ? "true" : "false",
             overrides, folder);
    int ended = system(command);
    if (ended != 0) {
        snprintf(command, sizeof command, "cat '%s/output' >&2", folder);
        CHECK(system(command) == 0);
    }
    CHECK_EQUAL(ended, 0);
}

/* Compares the planned bytes of the start line with the largest memory_bytes of all lines. */
static void compare_bytes(int ranks, const char *run)
{
    char path[FILE_PATH_BYTES];
    char *text = NULL;
    double planned = 0;
    double used = 0;
    join_path(run, path);
    CHECK_OK(file_read(path, 1 << 20, &text, NULL));
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *entry = json_loads(line, 0, NULL);
        CHECK(entry != NULL);
        const char *kind;
        json_t *bytes;
        json_object_foreach(json_object_get(entry, "rank_bytes"), kind, bytes)
        {
            planned += json_number_value(bytes);
        }
        used = fmax(used, json_number_value(json_object_get(entry, "memory_bytes")));
        json_decref(entry);
    }
    free(text);
    printf("%d ranks: planned %.1f MB, used %.1f MB\n", ranks, planned / 1e6, used / 1e6);
    CHECK(used > 0 && fabs(planned - used) <= 0.1 * used);
}

/* Reads the first output of a program as JSON. */
static json_t *read_json(const char *command)
{
    FILE *output = popen(command, "r");
    CHECK(output != NULL);
    json_t *all = json_loadf(output, JSON_DISABLE_EOF_CHECK, NULL);
    pclose(output);
    CHECK(all != NULL);
    return all;
}

/* The shared memory of the plan is what the run needed in its checks of /dev/shm. */
static void compare_shared_memory(int ranks, int tensor, const char *overrides)
{
    char command[4 * FILE_PATH_BYTES];
    snprintf(command, sizeof command,
             "'%s' plan '%s/recipe.yaml' parallel.tensor=%d parallel.sequence=%s %s --ranks %d "
             "--json",
             getenv("BIREME_PROGRAM"), folder, tensor, tensor > 1 ? "true" : "false", overrides,
             ranks);
    json_t *plan = read_json(command);
    snprintf(command, sizeof command, "grep '\"event\":\"start\"' '%s/run/metrics.jsonl'", folder);
    json_t *start = read_json(command);
    json_int_t planned = json_integer_value(json_object_get(plan, "shared_memory_bytes"));
    json_int_t needed = json_integer_value(json_object_get(start, "shared_memory_bytes"));
    printf("shared memory: planned %lld, needed %lld\n", planned, needed);
    CHECK(json_is_integer(json_object_get(start, "shared_memory_bytes")));
    CHECK_EQUAL(planned, needed);
    CHECK((ranks > 1) == (planned > 0));
    json_decref(plan);
    json_decref(start);
}

static bool cpu_has_bf16(void)
{
    struct device *cpu;
    CHECK_OK(device_create(DEVICE_CPU, 0, &cpu));
    bool has_bf16 = matmul_supports(DTYPE_BF16);
    CHECK_OK(device_destroy(&cpu));
    return has_bf16;
}

static bool has_mpi(void)
{
    return system("\"$BIREME_PROGRAM\" --version | grep -q '^MPI  *MPI'") == 0;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 && strcmp(argv[1], "2") == 0 ? 2 : 1;
    int tensor = argc > 3 && strcmp(argv[3], "2") == 0 ? 2 : 1;
    const char *program = getenv("BIREME_PROGRAM");
    if (program == NULL || access(program, X_OK) != 0) {
        CHECK_SKIP("BIREME_PROGRAM does not name a program");
    }
    if (SANITIZED) {
        CHECK_SKIP("plans do not include the memory of a sanitizer");
    }
    if (ranks > 1 && !has_mpi()) {
        CHECK_SKIP("built without MPI");
    }
    bool recompute =
        argc > 4 && (strcmp(argv[4], "selective") == 0 || strcmp(argv[4], "full") == 0);
    bool moments = argc > 4 && strcmp(argv[4], "moments") == 0;
    bool rollback = moments || (argc > 4 && strcmp(argv[4], "rollback") == 0);
    bool adapters = argc > 4 && !recompute && !rollback;
    if (adapters && strcmp(argv[4], "bf16") == 0 && !cpu_has_bf16()) {
        CHECK_SKIP("no bf16 on this processor");
    }
    char setting[128] = "";
    if (recompute) {
        snprintf(setting, sizeof setting, "train.activation_checkpointing=%s", argv[4]);
    }
    if (rollback) {
        snprintf(setting, sizeof setting, "train.on_spike=rollback%s",
                 moments ? " optimizer.state_dtype=bf16" : "");
    }
    CHECK(mkdtemp(folder) != NULL);
    make_data();
    /* large, because the program itself varies by 10 MB */
    int width = adapters ? 576 : rollback ? 384 : 256;
    make_recipe(argc > 2 ? argv[2] : "0", width);
    run_training(ranks, tensor, adapters ? "train.max_steps=1 checkpoint.every=0" : setting);
    if (adapters) {
        char overrides[2 * FILE_PATH_BYTES + 256];
        snprintf(overrides, sizeof overrides,
                 "run_dir='%s/lora' model.init_from='%s/run' adapter.type=lora "
                 "adapter.targets=all-linear adapter.dropout=0.1 train.precision=%s",
                 folder, folder, argv[4]);
        run_training(ranks, tensor, overrides);
    }
    if (!adapters) {
        compare_shared_memory(ranks, tensor, setting);
    }
    if (ranks == 2 && argc == 2) {
        const char *settings = "parallel.reproducible=true train.max_steps=1 --resume never";
        run_training(ranks, tensor, settings);
        compare_shared_memory(ranks, tensor, "parallel.reproducible=true train.max_steps=1");
        run_training(ranks, tensor, "--resume never");
    }
    compare_bytes(ranks, adapters ? "lora/metrics.jsonl" : "run/metrics.jsonl");
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
