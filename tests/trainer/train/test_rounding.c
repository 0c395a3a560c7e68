/* Stochastic rounding of the bf16 weights and of bf16 moments. Each element uses the same random
 * number as on one rank, for every tensor-parallel size and ZeRO stage. Weights that are rounded
 * again, as after a resume, have the same bits. The gradient of an element depends only on its
 * position in the whole parameter. The moments and the master weights of AdamW then have the same
 * bits too. A rollback restores the moments.
 * ctest: ranks 2 4 */
#include "kernels/cpu/matmul.h"
#include "tests/check.h"
#include "tests/trainer/model/tiny_gpt2.h"

#include "base/random.h"
#include "trainer/train/rollback.h"
#include "trainer/train/step/sharded_optimizer.h"

enum { ROWS = 14, STEPS = 2, SEED = 21 };

static const struct model_config config = {
    TINY_GPT2,
    .tied = true,
    .frozen = "transformer.wpe.weight",
};

static struct kernels *kernels;

struct training {
    struct mesh mesh;
    struct model *model;
    struct sharded_optimizer *update;
};

static void training_create(struct training *t, struct mesh mesh, int stage,
                            enum optimizer_kind kind, enum dtype moments)
{
    *t = (struct training){.mesh = mesh};
    CHECK_OK(model_create(kernels, &config, mesh.tensor, false, ROWS, true, &t->model));
    CHECK_OK(model_connect(t->model));
    CHECK_OK(model_init_weights(t->model, SEED, 1));
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
                      .moment_dtype = moments,
                      .seed = SEED},
        .zero_stage = stage,
        .bucket_elems = 1000,
        .micro_batches = 1,
    };
    CHECK_OK(sharded_optimizer_create(&options, &t->update));
    CHECK_OK(sharded_optimizer_round_weights(t->update, 0));
}

static void training_destroy(struct training *t)
{
    CHECK_OK(sharded_optimizer_destroy(&t->update));
    CHECK_OK(model_destroy(&t->model));
}

/* Called for each element of a parameter; `local` and `whole` are its offsets on this rank and in
 * the whole parameter. */
typedef void visit_element(void *user, int64_t local, int64_t whole);

static void visit_elements(const struct model_parameter *p, visit_element *visit, void *user)
{
    for (int j = 0; j < p->shard_count; j++) {
        const struct model_shard *shard = &p->shards[j];
        for (int64_t e = 0; e < shard->rows * shard->columns; e++) {
            int64_t row = shard->row + e / shard->columns;
            visit(user, shard->first + e,
                  row * p->whole_columns + shard->column + e % shard->columns);
        }
    }
}

struct gradient_writer {
    uint64_t key;
    float *gradient;
};

static void write_gradient(void *user, int64_t local, int64_t whole)
{
    const struct gradient_writer *w = user;
    w->gradient[local] = random_normal(w->key, (uint64_t)whole);
}

/* Only the first data-parallel rank has a gradient other than 0, so that the sum is exact. */
static void update_weights(struct training *t, int64_t number)
{
    int count;
    const struct model_parameter *p = model_parameters(t->model, &count);
    struct bucket_set *buckets = sharded_optimizer_buckets(t->update);
    CHECK_OK(bucket_begin_micro_batch(buckets));
    for (int i = count - 1; i >= 0; i--) {
        struct gradient_writer w = {random_key(9, RANDOM_TEST, (uint64_t)number, (uint64_t)i),
                                    sharded_optimizer_gradients(t->update)[i]};
        if (p[i].trained) {
            CHECK_OK(bucket_advance(buckets, p[i].first + p[i].rows * p[i].columns));
            memset(w.gradient, 0, (size_t)(p[i].rows * p[i].columns) * sizeof *w.gradient);
            if (comm_rank(t->mesh.data) == 0) {
                visit_elements(&p[i], write_gradient, &w);
            }
        }
    }
    CHECK_OK(bucket_end_micro_batch(buckets));
    CHECK_OK(bucket_finish(buckets));
    CHECK_OK(sharded_optimizer_step(t->update, number, 1e-2, 1, 1));
    CHECK_OK(sharded_optimizer_wait_all(t->update));
}

/* Returns the master weight of an element of the flat buffer; NULL if another rank holds it. */
static const float *find_master(const struct training *t, int64_t element)
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

/* Returns a bf16 moment (0 or 1) of an element of the flat buffer; NULL if another rank holds it,
 * or if the moments are not bf16. */
static const bf16 *find_moment(const struct training *t, int moment, int64_t element)
{
    int count = 0;
    const struct optimizer *o = sharded_optimizer_inner(t->update);
    const struct optimizer_range *ranges = optimizer_ranges(o, &count);
    const bf16 *all = moment == 0 ? optimizer_moment1(o) : optimizer_moment2(o);
    for (int i = 0; i < count && optimizer_moment_dtype(o) == DTYPE_BF16; i++) {
        int64_t in = element - ranges[i].first;
        if (in >= 0 && in < ranges[i].count) {
            return all + ranges[i].moment_offset + in;
        }
    }
    return NULL;
}

struct comparison {
    const struct training *sharded, *single;
    const struct model_parameter *local, *whole;
    uint64_t key;
    bool same_masters;
    int64_t checked; /* elements with a master weight on this rank */
    int64_t changed; /* of these, elements that differ from rounding to nearest */
    int64_t moments; /* bf16 moments other than 0 on this rank */
};

static void compare_moments(struct comparison *c, int64_t local, int64_t whole)
{
    for (int i = 0; i < 2 && c->local->trained; i++) {
        const bf16 *moment = find_moment(c->sharded, i, c->local->first + local);
        if (moment != NULL) {
            CHECK_EQUAL(*moment, *find_moment(c->single, i, c->whole->first + whole));
            c->moments += *moment != 0;
        }
    }
}

static void compare_element(void *user, int64_t local, int64_t whole)
{
    struct comparison *c = user;
    int64_t element = c->local->first + local;
    compare_moments(c, local, whole);
    bf16 actual = model_bf16_weights(c->sharded->model)[element];
    CHECK(!c->same_masters ||
          actual == model_bf16_weights(c->single->model)[c->whole->first + whole]);
    const float *master = find_master(c->sharded, element);
    if (master == NULL) {
        return;
    }
    bf16 nearest = f32_to_bf16(*master);
    bf16 stochastic = f32_to_bf16_stochastic(*master, random_u16(c->key, (uint64_t)whole));
    CHECK(actual == (c->local->trained ? stochastic : nearest));
    c->checked++;
    c->changed += actual != nearest;
}

static void compare_weights(const struct training *sharded, const struct training *single,
                            int64_t number, bool same_masters)
{
    int count;
    const struct model_parameter *p = model_parameters(sharded->model, &count);
    struct comparison c = {.sharded = sharded, .single = single, .same_masters = same_masters};
    for (int i = 0; i < count; i++) {
        c.local = &p[i];
        c.whole = &model_parameters(single->model, &count)[i];
        c.key = random_key(SEED, RANDOM_ROUNDING, (uint64_t)number, (uint64_t)i);
        visit_elements(&p[i], compare_element, &c);
    }
    CHECK(c.checked > 100 && c.changed > c.checked / 8); /* 1/4 for evenly distributed weights */
    bool has_moments =
        optimizer_moment_dtype(sharded_optimizer_inner(sharded->update)) == DTYPE_BF16;
    CHECK((c.moments > 100) == (has_moments && number > 0));
}

/* Rounds the master weights again, as after a resume, and compares the bits. */
static void test_resume(const struct training *t)
{
    size_t bytes = (size_t)model_elems(t->model) * sizeof(bf16);
    bf16 *copy = malloc(bytes);
    CHECK(copy != NULL);
    memcpy(copy, model_bf16_weights(t->model), bytes);
    CHECK_OK(model_sync_bf16(t->model));
    CHECK(memcmp(copy, model_bf16_weights(t->model), bytes) != 0);
    CHECK_OK(sharded_optimizer_round_weights(t->update, STEPS));
    CHECK(memcmp(copy, model_bf16_weights(t->model), bytes) == 0);
    free(copy);
}

/* A step changes the moments, and a rollback restores all their bits. */
static void test_rollback(struct training *t)
{
    const struct session session = {
        .device = kernels_device(kernels), .kernels = kernels, .model = t->model};
    const struct optimizer *o = sharded_optimizer_inner(t->update);
    size_t bytes = (size_t)optimizer_elems(o) * dtype_bytes(optimizer_moment_dtype(o));
    char *before = malloc(2 * bytes);
    struct rollback *rollback = NULL;
    CHECK(before != NULL);
    memcpy(before, optimizer_moment1(o), bytes);
    memcpy(before + bytes, optimizer_moment2(o), bytes);
    CHECK_OK(rollback_create(&session, t->update, &rollback));
    CHECK_OK(rollback_copy(rollback));
    update_weights(t, STEPS + 1);
    CHECK(memcmp(before, optimizer_moment1(o), bytes) != 0);
    CHECK(memcmp(before + bytes, optimizer_moment2(o), bytes) != 0);
    CHECK_OK(rollback_restore(rollback));
    CHECK(memcmp(before, optimizer_moment1(o), bytes) == 0);
    CHECK(memcmp(before + bytes, optimizer_moment2(o), bytes) == 0);
    rollback_destroy(&rollback);
    free(before);
}

static void test_layout(struct mesh mesh, struct mesh self, int stage, enum optimizer_kind kind,
                        enum dtype moments)
{
    struct training single, sharded;
    training_create(&single, self, 0, kind, moments);
    training_create(&sharded, mesh, stage, kind, moments);
    compare_weights(&sharded, &single, 0, true);
    CHECK_OK(sharded_optimizer_release_weights(sharded.update));
    for (int64_t s = 1; s <= STEPS; s++) {
        update_weights(&single, s);
        update_weights(&sharded, s);
        compare_weights(&sharded, &single, s, kind == OPTIMIZER_ADAMW);
    }
    test_resume(&single);
    if (sharded_optimizer_weights(sharded.update) == NULL) {
        test_resume(&sharded);
    }
    test_rollback(&sharded);
    training_destroy(&sharded);
    training_destroy(&single);
}

static void test_layouts(struct comm *world, struct comm *self)
{
    const struct mesh self_mesh = {self, self, self};
    int ranks = comm_size(world);
    for (int tensor = 1; tensor <= ranks; tensor++) {
        struct mesh mesh;
        if (ranks % tensor != 0) {
            continue;
        }
        CHECK_OK(mesh_create(world, tensor, &mesh));
        for (int stage = 0; stage <= (tensor < ranks ? 2 : 0); stage++) {
            for (enum dtype moments = DTYPE_F32; moments <= DTYPE_BF16; moments++) {
                test_layout(mesh, self_mesh, stage, OPTIMIZER_ADAMW, moments);
                test_layout(mesh, self_mesh, stage, OPTIMIZER_LAMB, moments);
            }
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
    bool has_bf16 = matmul_supports(DTYPE_BF16);
    if (has_bf16) {
        CHECK_OK(kernels_create(dev, DTYPE_BF16, 1, &limits, &kernels));
        test_layouts(world, self);
        CHECK_OK(kernels_destroy(&kernels));
    }
    CHECK_OK(device_destroy(&dev));
    CHECK_OK(comm_destroy(&self));
    CHECK_OK(comm_destroy(&world));
    if (!has_bf16) {
        CHECK_SKIP("no bf16 on this processor");
    }
    return 0;
}
