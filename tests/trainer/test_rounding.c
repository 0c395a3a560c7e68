/* Stochastic rounding of the weights' copy, by updates of a model that ranks share: each element draws what it draws on
 * a rank alone, at any tensor layout and ZeRO stage, and a copy that is made anew, as after a resume, is the step's own.
 * The gradients are a function of the element's place in the whole, so that AdamW's masters are the same bits too. */
#include "tests/check.h"

#include "base/random.h"
#include "trainer/train/sharded_optimizer.h"

enum { ROWS = 14, STEPS = 2, SEED = 21 };

static const struct model_config config = {
    .architecture = "gpt2",
    .layers = 2,
    .width = 24,
    .heads = 12,
    .inner = 60,
    .positions = 7,
    .vocabulary = 65,
    .activation = ACTIVATION_GELU_TANH,
    .norm_epsilon = 1e-5f,
    .initializer_range = 0.02f,
    .tied = true,
    .frozen = "transformer.wpe.weight",
};

static struct kernels *kernels;

struct trained {
    struct mesh mesh;
    struct model *model;
    struct sharded_optimizer *update;
};

static void trained_make(struct trained *t, struct mesh mesh, int stage, enum optimizer_kind kind)
{
    *t = (struct trained){.mesh = mesh};
    CHECK_OK(model_create(kernels, &config, mesh.tensor, false, ROWS, true, &t->model));
    CHECK_OK(model_connect(t->model));
    CHECK_OK(model_init_weights(t->model, SEED));
    const struct sharded_optimizer_options options = {
        .mesh = &t->mesh,
        .kernels = kernels,
        .model = t->model,
        .optimizer = {.beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .weight_decay = 0.1,
                      .kind = kind,
                      .stochastic_rounding = true,
                      .seed = SEED},
        .zero_stage = stage,
        .bucket_elems = 1000,
        .micro_batches = 1,
    };
    CHECK_OK(sharded_optimizer_create(&options, &t->update));
    CHECK_OK(sharded_optimizer_round_weights(t->update, 0));
}

static void trained_release(struct trained *t)
{
    CHECK_OK(sharded_optimizer_destroy(&t->update));
    CHECK_OK(model_destroy(&t->model));
}

/* Calls with every element of a parameter: where it lies in this rank's part, and in the whole. */
typedef void visit(void *user, int64_t here, int64_t whole);

static void each_element(const struct model_parameter *p, visit *see, void *user)
{
    for (int j = 0; j < p->shard_count; j++) {
        const struct model_shard *piece = &p->shards[j];
        for (int64_t e = 0; e < piece->rows * piece->columns; e++) {
            int64_t row = piece->row + e / piece->columns;
            see(user, piece->first + e,
                row * p->whole_columns + piece->column + e % piece->columns);
        }
    }
}

struct writing {
    uint64_t key;
    float *gradient;
};

static void write_gradient(void *user, int64_t here, int64_t whole)
{
    const struct writing *w = user;
    w->gradient[here] = random_normal(w->key, (uint64_t)whole);
}

/* The first data-parallel rank has the gradient, the others have none: the sum is exact. */
static void step(struct trained *t, int64_t number)
{
    int count;
    const struct model_parameter *p = model_parameters(t->model, &count);
    struct bucket_set *buckets = sharded_optimizer_buckets(t->update);
    CHECK_OK(bucket_begin_micro_batch(buckets));
    for (int i = count - 1; i >= 0; i--) {
        struct writing w = {random_key(9, RANDOM_TEST, (uint64_t)number, (uint64_t)i),
                            sharded_optimizer_gradients(t->update)[i]};
        if (p[i].trained) {
            CHECK_OK(bucket_advance(buckets, p[i].first + p[i].rows * p[i].columns));
            memset(w.gradient, 0, (size_t)(p[i].rows * p[i].columns) * sizeof *w.gradient);
            if (comm_rank(t->mesh.data) == 0) {
                each_element(&p[i], write_gradient, &w);
            }
        }
    }
    CHECK_OK(bucket_end_micro_batch(buckets));
    CHECK_OK(bucket_finish(buckets));
    CHECK_OK(sharded_optimizer_step(t->update, number, 1e-2, 1, 1));
    CHECK_OK(sharded_optimizer_wait_all(t->update));
}

/* This rank's master of an element of the flat buffer; NULL: another's. */
static const float *master_of(const struct trained *t, int64_t element)
{
    int count = 0;
    const struct optimizer_range *ranges = sharded_optimizer_weight_ranges(t->update, &count);
    if (sharded_optimizer_weights(t->update) == NULL) {
        return model_weights(t->model) + element;
    }
    for (int i = 0; i < count; i++) {
        int64_t in = element - ranges[i].first;
        if (in >= 0 && in < ranges[i].count) {
            return sharded_optimizer_weights(t->update) + ranges[i].moment_offset + in;
        }
    }
    return NULL;
}

struct comparison {
    const struct trained *shared, *alone;
    const struct model_parameter *here, *whole;
    uint64_t key;
    bool same_masters;
    int64_t seen,
        drawn; /* elements whose masters are known, and of them those that nearest rounds otherwise */
};

static void compare_element(void *user, int64_t here, int64_t whole)
{
    struct comparison *c = user;
    int64_t element = c->here->first + here;
    bf16 got = model_bf16_weights(c->shared->model)[element];
    CHECK(!c->same_masters || got == model_bf16_weights(c->alone->model)[c->whole->first + whole]);
    const float *master = master_of(c->shared, element);
    if (master == NULL) {
        return;
    }
    bf16 nearest = f32_to_bf16(*master);
    bf16 drawn = f32_to_bf16_stochastic(*master, random_u16(c->key, (uint64_t)whole));
    CHECK(got == (c->here->trained ? drawn : nearest));
    c->seen++;
    c->drawn += got != nearest;
}

static void compare(const struct trained *shared, const struct trained *alone, int64_t number,
                    bool same_masters)
{
    int count;
    const struct model_parameter *p = model_parameters(shared->model, &count);
    struct comparison c = {.shared = shared, .alone = alone, .same_masters = same_masters};
    for (int i = 0; i < count; i++) {
        c.here = &p[i];
        c.whole = &model_parameters(alone->model, &count)[i];
        c.key = random_key(SEED, RANDOM_ROUNDING, (uint64_t)number, (uint64_t)i);
        each_element(&p[i], compare_element, &c);
    }
    CHECK(c.seen > 100 && c.drawn > c.seen / 8); /* a quarter, were the weights spread evenly */
}

/* As after a resume: from the masters alone. */
static void compare_again(const struct trained *t)
{
    size_t bytes = (size_t)model_elements(t->model) * sizeof(bf16);
    bf16 *copy = malloc(bytes);
    CHECK(copy != NULL);
    memcpy(copy, model_bf16_weights(t->model), bytes);
    CHECK_OK(model_sync_bf16(t->model));
    CHECK(memcmp(copy, model_bf16_weights(t->model), bytes) != 0);
    CHECK_OK(sharded_optimizer_round_weights(t->update, STEPS));
    CHECK(memcmp(copy, model_bf16_weights(t->model), bytes) == 0);
    free(copy);
}

static void test_layout(struct mesh mesh, struct mesh single, int stage, enum optimizer_kind kind)
{
    struct trained alone, shared;
    trained_make(&alone, single, 0, kind);
    trained_make(&shared, mesh, stage, kind);
    compare(&shared, &alone, 0, true);
    CHECK_OK(sharded_optimizer_release_weights(shared.update));
    for (int64_t s = 1; s <= STEPS; s++) {
        step(&alone, s);
        step(&shared, s);
        compare(&shared, &alone, s, kind == OPTIMIZER_ADAMW);
    }
    compare_again(&alone);
    if (sharded_optimizer_weights(shared.update) == NULL) {
        compare_again(&shared);
    }
    trained_release(&shared);
    trained_release(&alone);
}

static void test_layouts(struct comm *world, struct comm *self)
{
    const struct mesh single = {self, self, self};
    int ranks = comm_size(world);
    for (int tensor = 1; tensor <= ranks; tensor++) {
        struct mesh mesh;
        if (ranks % tensor != 0) {
            continue;
        }
        CHECK_OK(mesh_create(world, tensor, &mesh));
        for (int stage = 0; stage <= (tensor < ranks ? 2 : 0); stage++) {
            test_layout(mesh, single, stage, OPTIMIZER_ADAMW);
            test_layout(mesh, single, stage, OPTIMIZER_LAMB);
        }
        CHECK_OK(mesh_destroy(&mesh));
    }
}

int main(int argc, char **argv)
{
    struct comm *world, *self;
    struct device *dev;
    const struct kernels_limits limits = {.rows = ROWS,
                                          .width = config.width,
                                          .inner = config.inner,
                                          .heads = (int)config.heads,
                                          .head_width = 2,
                                          .sequence = 7,
                                          .vocabulary = 96,
                                          .training = true};
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    bool able = kernels_supports(dev, DTYPE_BF16);
    if (able) {
        CHECK_OK(kernels_create(dev, DTYPE_BF16, 1, &limits, &kernels));
        test_layouts(world, self);
        CHECK_OK(kernels_destroy(&kernels));
    }
    CHECK_OK(device_destroy(&dev));
    CHECK_OK(comm_destroy(&self));
    CHECK_OK(comm_destroy(&world));
    if (!able) {
        CHECK_SKIP("no bf16 on this processor");
    }
    return 0;
}
