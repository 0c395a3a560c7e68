/* Compares predicted step times with closed forms and published runs. Tests cluster descriptions
 * with errors, and the search for layouts. */
#include <glob.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/train/planner/predict.h"

static char folder[] = "/tmp/bireme-predict-XXXXXX";
static char path[128];

static const char gpt2[] = "model: {vocab_size: 50257}\ndata: {sequence_length: 256}\n"
                           "batch: {global_size: 8, micro_size: 4}\ntrain: {max_steps: 1}\n";

/* Round rates: GEMM 1 TFLOP/s, attention 0.5 TFLOP/s, memory 100 GB/s, links of 10 and 1 GB/s. */
static const struct cluster simple = {
    .path = "simple.yaml",
    .device = {.memory_gib = 64,
               .peak_tflops = 2,
               .gemm_tflops_fp32 = 1,
               .attention_tflops_fp32 = 0.5,
               .memory_gb_per_second = 100},
    .node = {.devices = 2, .link = {.gb_per_second = 10, .latency_microseconds = 5}},
    .network = {.gb_per_second = 1, .latency_microseconds = 50},
};

static struct recipe make_recipe(const char *text)
{
    struct recipe recipe;
    CHECK_OK(recipe_parse("predict.yaml", text, strlen(text), NULL, 0, &recipe));
    return recipe;
}

static struct prediction make_prediction(const struct recipe *recipe, int ranks,
                                         const struct cluster *cluster)
{
    struct plan plan;
    struct prediction p;
    CHECK_OK(plan_make(recipe, ranks, &plan));
    CHECK_OK(predict_step(recipe, &plan, cluster, &p));
    return p;
}

static const double gemm_parameters = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
static const double parameters = 124439808;

static void test_one_rank(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct prediction p = make_prediction(&recipe, 1, &simple);
    double rows = 8 * 256;
    CHECK_NEAR(p.gemm_seconds, 6e-12 * rows * gemm_parameters, 1e-9);
    CHECK_NEAR(p.attention_seconds, 7 * rows * 12 * 256 * 768 / 0.5e12, 1e-9);
    /* Elements per row: 16 C of norms, 6 F, 3 C + 2 C. The second of two micro-batches adds to the
     * gradients. */
    double elements = 12 * (16 * 768 + 6 * 3072 + 5 * 768) + 5 * 768 + 2 * 50257;
    CHECK_NEAR(p.elementwise_seconds, (4 * rows * elements + 12 * parameters) / 100e9, 1e-9);
    CHECK_NEAR(p.optimizer_seconds, 34 * parameters / 100e9, 1e-3);
    CHECK(p.launch_seconds == 0 && p.tensor_exposed_seconds == 0 && p.data_exposed_seconds == 0);
    CHECK_NEAR(p.step_seconds,
               p.gemm_seconds + p.attention_seconds + p.elementwise_seconds + p.optimizer_seconds,
               1e-12);
    CHECK_NEAR(p.tokens_per_second, rows / p.step_seconds, 1e-6);
    double flops = rows * (6 * gemm_parameters + 6.0 * 12 * 256 * 768);
    CHECK_NEAR(p.mfu, flops / p.step_seconds / 2e12, 1e-9);
    struct cluster slow = simple;
    slow.device.operation_microseconds = 10;
    CHECK_NEAR(make_prediction(&recipe, 1, &slow).launch_seconds, 2 * 12 * 34 * 1e-5, 1e-12);
}

static void test_communication(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct prediction one = make_prediction(&recipe, 1, &simple),
                      two = make_prediction(&recipe, 2, &simple);
    CHECK_NEAR(two.gemm_seconds, one.gemm_seconds / 2, 1e-9);
    CHECK_NEAR(two.optimizer_seconds, one.optimizer_seconds, 1e-9); /* nothing is sharded */
    double bytes = 4 * parameters;                                  /* 2 (R - 1) / R = 1 */
    CHECK_NEAR(two.data_comm_seconds, bytes / 10e9, 1e-3);
    CHECK_NEAR(two.data_exposed_seconds, two.data_comm_seconds, 1e-12); /* no overlap */

    /* Two nodes are connected by two links of 1 GB/s. */
    struct prediction four = make_prediction(&recipe, 4, &simple);
    CHECK_NEAR(four.data_comm_seconds, 1.5 * bytes / 2e9, 5e-3);
    CHECK(four.devices == 4 && four.node_ranks == 2);

    struct cluster overlapping = simple;
    overlapping.overlap = 1;
    struct prediction overlapped = make_prediction(&recipe, 2, &overlapping);
    CHECK_NEAR(overlapped.data_comm_seconds, two.data_comm_seconds, 1e-12);
    double backward =
        2.0 / 3 * (two.gemm_seconds + two.attention_seconds + two.elementwise_seconds);
    CHECK(backward > two.data_comm_seconds &&
          overlapped.data_exposed_seconds < two.data_comm_seconds / 10);
    CHECK(overlapped.data_exposed_seconds > 0); /* the last bucket cannot overlap */

    recipe.parallel.tensor = 2;
    struct prediction tensor = make_prediction(&recipe, 2, &simple);
    double rows = 8 * 256;
    CHECK_NEAR(tensor.tensor_comm_seconds,
               (50 * rows * 768 * 4 + 24 * rows) / 10e9 + 100 * 2 * 5e-6, 1e-9);
    CHECK(tensor.data_comm_seconds == 0);
    overlapped = make_prediction(&recipe, 2, &overlapping);
    CHECK_NEAR(overlapped.tensor_exposed_seconds, tensor.tensor_comm_seconds / 2, 1e-9);
}

/* Four ranks on a node with one device: each rank has a quarter of the cores of a CPU. */
static void test_shared_device(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct cluster node = simple;
    node.node.devices = 1;
    node.network = (struct cluster_link){0};
    struct prediction one = make_prediction(&recipe, 1, &node),
                      four = make_prediction(&recipe, 4, &node);
    CHECK_NEAR(four.gemm_seconds, one.gemm_seconds, 1e-9);
    CHECK(four.devices == 1 && four.node_ranks == 4);
    CHECK_NEAR(four.optimizer_seconds, 4 * one.optimizer_seconds, 1e-9);
    CHECK_NEAR(four.data_comm_seconds, 1.5 * 4 * parameters / 2.5e9, 5e-3);
}

/* The matrices of 10 of the 12 layers, or of all layers, have FP8 operands. Their GEMMs are four
 * times as fast. The head stays in bf16. */
static void test_fp8(void)
{
    struct recipe recipe = make_recipe(gpt2);
    struct cluster cluster = simple;
    struct plan plan;
    struct prediction unused;
    const double layer = 6e-12 * 8 * 256 * 12 * 768 * 768; /* seconds in bf16 */
    cluster.device.gemm_tflops_bf16 = 1;
    cluster.device.attention_tflops_bf16 = 0.5;
    recipe.train.precision = PRECISION_BF16;
    struct prediction half = make_prediction(&recipe, 1, &cluster);
    recipe.train.activation_checkpointing = RECOMPUTE_FULL;
    struct prediction full = make_prediction(&recipe, 1, &cluster);
    CHECK_NEAR(half.gemm_seconds, 6e-12 * 8 * 256 * gemm_parameters, 1e-9);

    recipe.train.precision = PRECISION_FP8;
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_FAILS(predict_step(&recipe, &plan, &cluster, &unused), STATUS_RECIPE,
                "simple.yaml: device.gemm_tflops_fp8 is missing");
    cluster.device.gemm_tflops_fp8 = 4;
    /* Backward repeats the forward pass, a third of the FLOPs, except in the last layer. */
    struct prediction full_fp8 = make_prediction(&recipe, 1, &cluster);
    CHECK_NEAR(full.gemm_seconds - full_fp8.gemm_seconds, 0.75 * layer * 10 * 4 / 3, 1e-9);
    recipe.train.activation_checkpointing = RECOMPUTE_NONE;
    struct prediction inner = make_prediction(&recipe, 1, &cluster);
    CHECK_NEAR(half.gemm_seconds - inner.gemm_seconds, 0.75 * layer * 10, 1e-9);
    CHECK_NEAR(half.step_seconds - inner.step_seconds, 0.75 * layer * 10, 1e-9);
    recipe.fp8.first_last_layers_bf16 = false;
    struct prediction all = make_prediction(&recipe, 1, &cluster);
    CHECK_NEAR(half.gemm_seconds - all.gemm_seconds, 0.75 * layer * 12, 1e-9);
}

/* Published by llm.c: GPT-2 124M on 8 A100 takes about 300 ms for 524,288 tokens, and 1558M on 8
 * H100 takes 2.80 s for 1,048,576. The cluster descriptions were not fitted to these runs. */
static void test_published(const char *source)
{
    struct cluster cluster;
    snprintf(path, sizeof path, "%s/recipes/clusters/a100_sxm_80gb.yaml", source);
    CHECK_OK(cluster_read(path, &cluster));
    struct recipe recipe =
        make_recipe("model: {vocab_size: 50257}\ntrain: {max_steps: 1, precision: bf16}\n"
                    "parallel: {zero_stage: 1}\nbatch: {global_size: 512, micro_size: 64}\n");
    CHECK_NEAR(make_prediction(&recipe, 8, &cluster).step_seconds, 0.300, 0.1 * 0.300);

    snprintf(path, sizeof path, "%s/recipes/clusters/h100_sxm.yaml", source);
    CHECK_OK(cluster_read(path, &cluster));
    recipe =
        make_recipe("model: {vocab_size: 50257, num_layers: 48, hidden_size: 1600, num_heads: 25}\n"
                    "train: {max_steps: 1, precision: bf16}\nparallel: {zero_stage: 1}\n"
                    "batch: {global_size: 1024, micro_size: 16}\n");
    CHECK_NEAR(make_prediction(&recipe, 8, &cluster).step_seconds, 2.80, 0.1 * 2.80);
}

/* Finds the largest micro-batch that fits into memory. Activation checkpointing takes time and
 * saves memory. */
static void test_memory(void)
{
    struct cluster cluster = simple;
    struct recipe recipe = make_recipe(gpt2);
    struct prediction none = make_prediction(&recipe, 1, &simple);
    int64_t largest = 0;
    cluster.device.memory_gib = (double)none.device_bytes / 1073741824.0 + 0.01;
    CHECK_OK(predict_micro_size(&recipe, 1, &cluster, &largest));
    CHECK(largest >= recipe.batch.micro_size && largest < recipe.batch.global_size);
    recipe.batch.micro_size = largest;
    CHECK(make_prediction(&recipe, 1, &cluster).fits);
    recipe.batch.micro_size = largest + 1;
    CHECK(!make_prediction(&recipe, 1, &cluster).fits);
    cluster.device.memory_gib = 0.1;
    CHECK_OK(predict_micro_size(&recipe, 1, &cluster, &largest));
    CHECK_EQUAL(largest, 0);

    recipe = make_recipe(gpt2);
    recipe.train.activation_checkpointing = RECOMPUTE_FULL;
    struct prediction full = make_prediction(&recipe, 1, &simple);
    /* The closed form has no biases. */
    CHECK_NEAR(full.gemm_seconds - none.gemm_seconds, 2e-12 * 8 * 256 * 11 * 12.0 * 768 * 768,
               1e-3);
    CHECK_NEAR(full.attention_seconds, none.attention_seconds * (7 + 2 * 11.0 / 12) / 7, 1e-9);
    recipe.train.activation_checkpointing = RECOMPUTE_SELECTIVE;
    struct prediction selective = make_prediction(&recipe, 1, &simple);
    CHECK(selective.gemm_seconds == none.gemm_seconds &&
          selective.elementwise_seconds > none.elementwise_seconds);
    CHECK(full.device_bytes < selective.device_bytes && selective.device_bytes < none.device_bytes);
}

static void test_search(void)
{
    enum { LAYOUTS_MAX = 32 };
    struct prediction found[LAYOUTS_MAX];
    struct cluster cluster = simple;
    int count = 0;
    struct recipe recipe = make_recipe(gpt2);
    CHECK_OK(predict_layouts(&recipe, 2, &cluster, found, LAYOUTS_MAX, &count));
    CHECK_EQUAL(count, 4); /* ZeRO 0, 1 and 2, and tensor-parallel size 2 */
    for (int i = 1; i < count; i++) {
        CHECK(found[i - 1].step_seconds <= found[i].step_seconds && found[i].fits);
    }
    recipe.parallel.tensor = found[0].tensor;
    recipe.parallel.zero_stage = found[0].zero_stage;
    recipe.batch.micro_size = found[0].micro_size;
    CHECK(make_prediction(&recipe, 2, &cluster).step_seconds == found[0].step_seconds);

    /* The replicated state does not fit. The remaining layouts divide it and have smaller
     * micro-batches. */
    recipe = make_recipe(gpt2);
    cluster.device.memory_gib = 2.6; /* of CPU ranks: with snapshot and shared gradients */
    CHECK_OK(predict_layouts(&recipe, 2, &cluster, found, LAYOUTS_MAX, &count));
    CHECK(count > 0);
    for (int i = 0; i < count; i++) {
        CHECK(found[i].tensor == 2 || found[i].zero_stage > 0);
        CHECK((double)found[i].device_bytes <= 2.6 * 1073741824.0);
    }
    cluster.device.memory_gib = 0.1;
    CHECK_OK(predict_layouts(&recipe, 2, &cluster, found, LAYOUTS_MAX, &count));
    CHECK_EQUAL(count, 0);
    cluster = simple;
    CHECK_OK(predict_layouts(&recipe, 5, &cluster, found, LAYOUTS_MAX, &count));
    CHECK_EQUAL(count, 3); /* only ZeRO 0, 1 and 2: 5 does not divide 12 heads */

    /* Key-value heads are divided too: two of them fit two ranks, but not four. */
    recipe = make_recipe("model: {architecture: llama, vocab_size: 512, num_layers: 2, "
                         "hidden_size: 64, num_heads: 4, "
                         "num_kv_heads: 2, intermediate_size: 128}\ndata: {sequence_length: 64}\n"
                         "batch: {global_size: 8}\ntrain: {max_steps: 1}\n");
    CHECK_OK(predict_layouts(&recipe, 4, &cluster, found, LAYOUTS_MAX, &count));
    CHECK_EQUAL(count, 6);
    for (int i = 0; i < count; i++) {
        CHECK(found[i].tensor <= 2);
    }
}

/* ---- cluster descriptions ---- */

static void write_text(const char *text)
{
    snprintf(path, sizeof path, "%s/cluster.yaml", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void test_descriptions(const char *source)
{
    struct cluster cluster, reread;
    glob_t found;
    snprintf(path, sizeof path, "%s/recipes/clusters/*.yaml", source);
    CHECK(glob(path, 0, NULL, &found) == 0 && found.gl_pathc > 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        CHECK_OK(cluster_read(found.gl_pathv[i], &cluster));
    }
    globfree(&found);
    snprintf(path, sizeof path, "%s/cluster.yaml", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    cluster_write(&cluster, file);
    CHECK(fclose(file) == 0);
    CHECK_OK(cluster_read(path, &reread));
    snprintf(reread.path, sizeof reread.path, "%s", cluster.path);
    CHECK(memcmp(&cluster, &reread, sizeof cluster) == 0);
    /* Older files have the former names of two keys. */
    write_text("device: {memory_gib: 1, memory_gb_per_second: 1, product_tflops_fp32: 3, "
               "product_tflops_bf16: 5}\nnode: {devices: 1}\n");
    CHECK_OK(cluster_read(path, &reread));
    CHECK(reread.device.gemm_tflops_fp32 == 3 && reread.device.gemm_tflops_bf16 == 5);
}

static void test_refused(void)
{
    static const char incomplete[] =
        "device: {memory_gib: 1, memory_gb_per_second: 1}\nnode: {devices: 1}\n";
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"node: {devices: 1}\n", "device.memory_gib: missing"},
        {"device: {memory_gib: 1, memory_gb_per_second: 0}\nnode: {devices: 1}\n",
         "cluster.yaml:1:47: device.memory_gb_per_second: 0 must"},
        {"device: {memory_gb: 1}\n", "did you mean 'device.memory_gib'?"},
        {"device: {memory_gib: 1, memory_gib: 1}\n", "device.memory_gib: given twice"},
        {"node: {devices: 1.5}\n", "node.devices: "},
        {"overlap: 1.5\n", "overlap: 1.5 must be in [0, 1]"},
        {"overlap: nan\n", "overlap: "},
        {"", "cluster.yaml:1:1: the file is empty"},
        {"5\n", "cluster.yaml:1:1: must be a mapping of sections"},
    };
    struct cluster cluster;
    struct plan plan;
    struct prediction p;
    for (int i = 0; i < COUNT(cases); i++) {
        write_text(cases[i].text);
        CHECK_FAILS(cluster_read(path, &cluster), STATUS_RECIPE, cases[i].expected);
    }
    CHECK_FAILS(cluster_read("/nowhere/cluster.yaml", &cluster), STATUS_NO_INPUT, "/nowhere");
    write_text(incomplete);
    CHECK_OK(cluster_read(path, &cluster));
    struct recipe recipe = make_recipe(gpt2);
    CHECK_OK(plan_make(&recipe, 1, &plan));
    CHECK_FAILS(predict_step(&recipe, &plan, &cluster, &p), STATUS_RECIPE,
                "cluster.yaml: device.gemm_tflops_fp32 is missing");
    cluster = simple;
    cluster.node.link.gb_per_second = 0;
    CHECK_OK(plan_make(&recipe, 2, &plan));
    CHECK_FAILS(predict_step(&recipe, &plan, &cluster, &p), STATUS_RECIPE,
                "simple.yaml: node.gb_per_second is missing");
}

int main(void)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    CHECK(source != NULL && mkdtemp(folder) != NULL);
    test_one_rank();
    test_communication();
    test_shared_device();
    test_fp8();
    test_memory();
    test_search();
    test_refused();
    test_published(source);
    test_descriptions(source);
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
