/* Tests the gather of weights in memory of comm_allocate, over the mock of NCCL: every collective
 * reads and writes a window, unless NCCL has none (NCCL_MOCK), and the weights are the same. */
#include "comm/bucket/bucket.h"
#include "tests/comm/device/nccl_mock.h"
#include "tests/comm/world.h"
#include "tests/trainer/model/tiny_gpt2.h"
#include "trainer/model/model.h"

static const struct model_config config = {
    TINY_GPT2,
};

/* VALUES: number of different bytes in the expected weights */
enum { ROWS = 14, VALUES = 250 };

/* Returns the byte of a gathered weight. */
static unsigned char get_value(int64_t byte)
{
    return (unsigned char)(1 + byte % VALUES);
}

/* Writes the weights that this rank owns, gathers all, and compares them. */
static void gather_weights(struct comm *world, struct model *m, size_t element_bytes, int *buckets)
{
    struct bucket_segment segment = {model_elems(m), false};
    struct bucket_options options = {.comm = world,
                                     .segments = &segment,
                                     .segment_count = 1,
                                     .bucket_elems = 4096,
                                     .scatter = true,
                                     .micro_batches = 1};
    struct bucket_set *set = NULL;
    CHECK_OK(bucket_create(&options, &set));
    unsigned char *weights = element_bytes == sizeof(bf16) ? (unsigned char *)model_bf16_weights(m)
                                                           : (unsigned char *)model_weights(m);
    *buckets = bucket_count(set);
    int64_t bytes = model_elems(m) * (int64_t)element_bytes, each = (int64_t)element_bytes;
    memset(weights, 0xff, (size_t)bytes);
    for (int b = 0; b < *buckets; b++) {
        struct comm_range own = bucket_shard(set, b);
        for (int64_t i = own.first * each; i < (own.first + own.count) * each; i++) {
            weights[i] = get_value(i);
        }
    }
    for (int b = 0; b < *buckets; b++) {
        CHECK_OK(bucket_gather_start(set, b, weights, element_bytes));
    }
    CHECK_OK(bucket_gather_finish(set));
    for (int64_t i = 0; i < bytes; i++) {
        CHECK(weights[i] == get_value(i));
    }
    CHECK_OK(bucket_destroy(&set));
}

static void test_gather(struct comm *world, struct device *dev, enum dtype dtype)
{
    const struct kernels_limits limits = {.rows = ROWS,
                                          .width = config.width,
                                          .inner = config.inner,
                                          .heads = (int)config.heads,
                                          .head_width = 2,
                                          .sequence = config.positions,
                                          .vocabulary = model_vocabulary_rows(&config, 1),
                                          .training = true};
    const struct nccl_mock_counts *counts = nccl_mock_get_counts();
    struct kernels *k = NULL;
    struct model *m = NULL;
    int buckets = 0;
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &k));
    CHECK_OK(model_create(k, &config, NULL, false, ROWS, true, &m));
    int before = counts->windowed;
    gather_weights(world, m, dtype_bytes(dtype), &buckets);
    CHECK_EQUAL(counts->windowed, before);
    CHECK_OK(model_register_weights(m, world));
    gather_weights(world, m, dtype_bytes(dtype), &buckets);
    CHECK(buckets > 1);
    CHECK(getenv("NCCL_MOCK") != NULL ? counts->windowed == before
                                      : counts->windowed >= before + buckets);
    CHECK_FAILS(model_register_weights(m, world), STATUS_INTERNAL, "only once");
    CHECK_OK(model_destroy(&m));
    CHECK_OK(kernels_destroy(&k));
}

int main(int argc, char **argv)
{
    struct comm *world = NULL;
    struct device *dev = NULL;
    CHECK_OK(test_world_create(&argc, &argv, 0, &world));
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    test_gather(world, dev, DTYPE_F32);
    test_gather(world, dev, DTYPE_BF16);
    CHECK_OK(comm_destroy(&world));
    CHECK_OK(device_destroy(&dev));
    return 0;
}
