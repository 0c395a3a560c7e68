/* The shards of the tensor-parallel ranks tile each parameter exactly once, unless it is
 * replicated. Initial weights do not depend on the number of ranks.
 * ctest: ranks 2 3 */
#include "tests/check.h"
#include "tests/trainer/model/tiny_gpt2.h"
#include "trainer/model/model.h"

static struct model_config config = {
    TINY_GPT2,
    .tied = false,
};

struct parts {
    struct model_parameter *parameters;
    int count;
    int64_t elements;
};

static struct parts make_parts(int ranks, int rank)
{
    struct parts p;
    CHECK_OK(model_layout(&config, ranks, rank, &p.parameters, &p.count, &p.elements));
    return p;
}

/* Counts how many shards contain each element. A rank's shards are contiguous from offset 0. */
static void count_elements(const struct model_parameter *p, int *counts)
{
    int64_t next = 0;
    for (int i = 0; i < p->shard_count; i++) {
        const struct model_shard *shard = &p->shards[i];
        CHECK_EQUAL(shard->first, next);
        CHECK(p->dimensions == 1 || shard->columns == p->columns);
        CHECK(shard->row >= 0 && shard->row + shard->rows <= p->whole_rows);
        CHECK(shard->column >= 0 && shard->column + shard->columns <= p->whole_columns);
        for (int64_t row = 0; row < shard->rows; row++) {
            for (int64_t column = 0; column < shard->columns; column++) {
                counts[(shard->row + row) * p->whole_columns + shard->column + column]++;
            }
        }
        next += shard->rows * shard->columns;
    }
    CHECK_EQUAL(next, model_parameter_elems(p));
    CHECK(next <= p->rows * p->columns);
}

static void test_tiling(int ranks)
{
    struct parts whole = make_parts(1, 0);
    for (int i = 0; i < whole.count; i++) {
        const struct model_parameter *w = &whole.parameters[i];
        int64_t size = w->whole_rows * w->whole_columns;
        int *counts = calloc((size_t)size, sizeof *counts);
        CHECK(counts != NULL);
        CHECK_EQUAL(w->shard_count, 1);
        CHECK_EQUAL(model_parameter_elems(w), size);
        for (int rank = 0; rank < ranks; rank++) {
            struct parts part = make_parts(ranks, rank);
            const struct model_parameter *p = &part.parameters[i];
            CHECK_EQUAL(part.count, whole.count);
            CHECK(strcmp(p->name, w->name) == 0 && p->dimensions == w->dimensions);
            CHECK(p->whole_rows == w->whole_rows && p->whole_columns == w->whole_columns);
            CHECK(p->replicated == w->replicated && p->transposed == w->transposed);
            count_elements(p, counts);
            free(part.parameters);
        }
        for (int64_t e = 0; e < size; e++) {
            CHECK_EQUAL(counts[e], w->replicated ? ranks : 1);
        }
        free(counts);
    }
    free(whole.parameters);
}

/* Checks shapes and offsets of the rank's shards for one example. */
static void test_split(void)
{
    struct parts part = make_parts(3, 1);
    const struct model_parameter *tokens = &part.parameters[0], *qkv = &part.parameters[4];
    CHECK_TEXT(qkv->name, "transformer.h.0.attn.c_attn.weight");
    CHECK_EQUAL(tokens->rows, 32); /* 65 tokens over 3 ranks, in whole vectors: 32, 32 and 1 */
    CHECK_EQUAL(tokens->shards[0].row, 32);
    CHECK_EQUAL(qkv->rows, 24);
    CHECK_EQUAL(qkv->shard_count, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(qkv->shards[i].row == 24 * i + 8 && qkv->shards[i].rows == 8);
        CHECK(part.parameters[5].shards[i].column == 24 * i + 8);
    }
    const struct model_parameter *projection = &part.parameters[6], *bias = &part.parameters[7];
    CHECK(projection->shards[0].column == 8 && projection->columns == 8 && projection->rows == 24);
    CHECK(bias->replicated && !projection->replicated && !tokens->replicated);
    free(part.parameters);
    part = make_parts(4, 3);
    CHECK_EQUAL(part.parameters[0].shard_count, 0); /* only padding */
    free(part.parameters);
    struct model_parameter *none;
    int count;
    int64_t elements;
    struct model_config llama = config;
    llama.architecture = "llama";
    llama.adapter = (struct model_adapter){4, 4, 0, "q_proj,lm_head"};
    CHECK_FAILS(model_layout(&llama, 1, 0, &none, &count, &elements), STATUS_RECIPE, "lm_head");
    llama.adapter = (struct model_adapter){0};
    llama.frozen = "*.q_proj.weight";
    CHECK_FAILS(model_layout(&llama, 1, 0, &none, &count, &elements), STATUS_RECIPE, "q_proj");
    CHECK_FAILS(model_layout(&config, 5, 0, &none, &count, &elements), STATUS_INTERNAL, "12 heads");
    CHECK(none == NULL);
}

static struct model *make_model(struct kernels *k, struct comm *tensor)
{
    struct model *m;
    CHECK_OK(model_create(k, &config, tensor, false, 14, false, &m));
    CHECK_OK(model_init_weights(m, 1337, 2));
    return m;
}

static void test_initial_weights(struct comm *world)
{
    struct device *dev;
    struct kernels *k;
    struct kernels_limits limits = {.rows = 14,
                                    .width = 24,
                                    .inner = 60,
                                    .heads = 12,
                                    .head_width = 2,
                                    .sequence = 7,
                                    .vocabulary = 96};
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    struct model *whole = make_model(k, NULL), *part = make_model(k, world);
    int count;
    const struct model_parameter *w = model_parameters(whole, &count);
    const struct model_parameter *p = model_parameters(part, &count);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < p[i].shard_count; j++) {
            const struct model_shard *shard = &p[i].shards[j];
            for (int64_t e = 0; e < shard->rows * shard->columns; e++) {
                int64_t row = shard->row + e / shard->columns;
                int64_t column = shard->column + e % shard->columns;
                CHECK(model_weights(part)[p[i].first + shard->first + e] ==
                      model_weights(whole)[w[i].first + row * w[i].columns + column]);
            }
        }
        for (int64_t e = model_parameter_elems(&p[i]); e < p[i].rows * p[i].columns; e++) {
            CHECK(model_weights(part)[p[i].first + e] == 0);
        }
    }
    CHECK_OK(model_destroy(&part));
    CHECK_OK(model_destroy(&whole));
    CHECK_OK(kernels_destroy(&k));
    CHECK_OK(device_destroy(&dev));
}

/* Returns the FNV-1a hash of the bits of all weights. */
static uint64_t hash_weights(struct model *m)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    const float *weights = model_weights(m);
    for (int64_t i = 0; i < model_elems(m); i++) {
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(1099511628211);
    }
    return hash;
}

/* The bits of initial weights do not depend on the number of threads, and are the same as in the
 * first version. The embedding has 13 pieces. */
static void test_threads(void)
{
    static const int threads[] = {1, 2, 7, 300};
    const struct model_config original = config;
    struct device *dev;
    struct kernels *k;
    config.vocabulary = 8971;
    const struct kernels_limits limits = {.rows = 14,
                                          .width = 24,
                                          .inner = 60,
                                          .heads = 12,
                                          .head_width = 2,
                                          .sequence = 7,
                                          .vocabulary = model_vocabulary_rows(&config, 1)};
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    for (int i = 0; i < 4; i++) {
        struct model *m;
        CHECK_OK(model_create(k, &config, NULL, false, 14, false, &m));
        CHECK_OK(model_init_weights(m, 1337, threads[i]));
        CHECK_EQUAL(hash_weights(m), UINT64_C(4438396690364554998));
        CHECK_OK(model_destroy(&m));
    }
    CHECK_OK(kernels_destroy(&k));
    CHECK_OK(device_destroy(&dev));
    config = original;
}

int main(int argc, char **argv)
{
    struct comm *world;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    if (comm_size(world) == 1) {
        for (int ranks = 1; ranks <= 12; ranks++) {
            if (config.heads % ranks == 0) {
                test_tiling(ranks);
            }
        }
        test_split();
        test_threads();
    }
    test_initial_weights(world);
    const struct model_config original = config;
    config.architecture = "bert";
    config.token_types = 2;
    config.next_sentence = config.tied = true;
    for (int ranks = 1; ranks <= 4 && comm_size(world) == 1; ranks++) {
        test_tiling(ranks);
    }
    test_initial_weights(world);
    config = original;
    config.architecture = "llama"; /* two heads share a key-value head */
    config.kv_heads = 6;
    if (comm_size(world) == 1) {
        test_tiling(2);
        test_tiling(6);
    }
    test_initial_weights(world);
    config.architecture = "qwen2"; /* the biases of queries, keys and values are split */
    if (comm_size(world) == 1) {
        test_tiling(2);
        config.head_width = 4; /* twice the width of the stream together */
        test_tiling(6);
    }
    test_initial_weights(world);
    CHECK_OK(comm_destroy(&world));
    return 0;
}
