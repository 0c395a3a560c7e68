/* Saves and loads checkpoints on any number of ranks. Loaded tensors have the same bits as the
 * saved ones, for every layout that writes them and every layout that reads them.
 * ctest: ranks 2 3 */
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "tests/check.h"
#include "trainer/formats/checkpoint/checkpoint.h"

static struct comm *world;
static int rank, ranks;
static char root[FILE_PATH_BYTES];

/* Odd and prime sizes, more than one chunk along rows and along columns, and one element. */
static const struct shape {
    const char *name;
    int dimensions;
    int64_t rows, columns; /* in memory */
    bool transposed;
} shapes[] = {{"a.matrix", 2, 131, 127, false},      {"b.transposed", 2, 131, 257, true},
              {"c.vector", 1, 1, 1300003, false},    {"d.one", 1, 1, 1, false},
              {"e.rows", 2, 1031, 1033, false},      {"f.rows_transposed", 2, 1031, 1033, true},
              {"g.wide", 2, 1, 1100003, false},      {"h.wide_transposed", 2, 3, 700001, true},
              {"i.column", 2, 4099, 1, false},       {"j.group/inner", 2, 5, 7, true},
              {"j.group/deep/inner", 1, 1, 3, false}};
enum { SHAPES = COUNT(shapes) };

/* The value of an element depends only on the tensor and on its position in the file. */
static float element_value(int tensor, int64_t row, int64_t column)
{
    uint32_t bits = (uint32_t)(row * 2654435761u + column * 40503u + (uint32_t)tensor * 97u);
    bits = (bits ^ bits >> 15) * 2246822519u;
    bits = (bits & 0x007fffffu) | 0x3f000000u | (bits & 0x80000000u);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int64_t count_elements(const struct checkpoint_tensor *t)
{
    return t->rows * t->columns;
}

static int64_t file_row(const struct checkpoint_tensor *t, int64_t e)
{
    if (t->dimensions == 1) {
        return t->offset[0] + e;
    }
    return t->offset[0] + (t->transposed ? e % t->columns : e / t->columns);
}

static int64_t file_column(const struct checkpoint_tensor *t, int64_t e)
{
    if (t->dimensions == 1) {
        return 0;
    }
    return t->offset[1] + (t->transposed ? e / t->columns : e % t->columns);
}

static void store_element(struct checkpoint_tensor *t, int64_t e, float value)
{
    if (t->dtype == DTYPE_BF16) {
        ((bf16 *)t->data)[e] = f32_to_bf16(value);
    } else {
        ((float *)t->data)[e] = value;
    }
}

static float load_element(const struct checkpoint_tensor *t, int64_t e)
{
    return t->dtype == DTYPE_BF16 ? bf16_to_f32(((const bf16 *)t->data)[e])
                                  : ((const float *)t->data)[e];
}

static void fill_tensor(struct checkpoint_tensor *t, int index)
{
    for (int64_t e = 0; e < count_elements(t); e++) {
        store_element(t, e, element_value(index, file_row(t, e), file_column(t, e)));
    }
}

static void overwrite_tensor(struct checkpoint_tensor *t)
{
    memset(t->data, 0xff, (size_t)count_elements(t) * dtype_bytes(t->dtype));
}

/* rounded: the tensor is or was stored in bf16. */
static void check_rounded(const struct checkpoint_tensor *t, int index, bool rounded)
{
    for (int64_t e = 0; e < count_elements(t); e++) {
        float expected = element_value(index, file_row(t, e), file_column(t, e));
        float got = load_element(t, e);
        expected = rounded ? bf16_to_f32(f32_to_bf16(expected)) : expected;
        if (memcmp(&got, &expected, sizeof expected) != 0) {
            fprintf(stderr, "%s: element %lld is %g, expected %g\n", t->name, (long long)e,
                    (double)got, (double)expected);
            exit(1);
        }
    }
}

static void check_values(const struct checkpoint_tensor *t, int index)
{
    check_rounded(t, index, false);
}

/* Allocates rows [first, first + rows), in memory order, of shape `index`. */
static struct checkpoint_tensor make_part(int index, int64_t first, int64_t rows)
{
    const struct shape *s = &shapes[index];
    struct checkpoint_tensor t = {.name = s->name,
                                  .dimensions = s->dimensions,
                                  .rows = rows,
                                  .columns = s->columns,
                                  .transposed = s->transposed};
    bool transposed = s->transposed;
    t.global_shape[0] = s->dimensions == 1 || transposed ? s->columns : s->rows;
    t.global_shape[1] = s->dimensions == 1 ? 1 : transposed ? s->rows : s->columns;
    t.offset[transposed ? 1 : 0] = first;
    t.data = malloc((size_t)(rows * s->columns + 1) * sizeof(float));
    CHECK(t.data != NULL);
    return t;
}

static void free_tensors(struct checkpoint_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        free(tensors[i].data);
    }
}

static struct checkpoint *open_run(const char *name, struct comm *replicas, bool async,
                                   const char *tokenizer)
{
    char run[FILE_PATH_BYTES];
    CHECK_OK(file_join(run, root, name));
    struct checkpoint_options options = {.run_dir = run,
                                         .tokenizer_dir = tokenizer,
                                         .recipe_text = "seed: 1\n# \"quoted\" \xc3\xa4\n",
                                         .data_fingerprint = "0123",
                                         .keep = 2,
                                         .async = async,
                                         .world = world,
                                         .replica_group = replicas};
    struct checkpoint *c = NULL;
    CHECK_OK(checkpoint_open(&options, &c));
    return c;
}

static void save_step(struct checkpoint *c, int64_t step, const struct checkpoint_tensor_set *sets,
                      int count)
{
    struct checkpoint_state state = {step, 3 * step, 5 * step, 0.1};
    double stall = -1;
    CHECK_OK(checkpoint_save(c, &state, sets, count, &stall));
    CHECK(stall >= 0);
    for (int i = 0; i < sets[0].count; i++) {
        CHECK(checkpoint_is_written(c) == 0 || checkpoint_is_written(c) == 1);
    }
}

static void publish_step(struct checkpoint *c, int64_t step)
{
    int64_t published = 0;
    CHECK_OK(checkpoint_publish(c, &published));
    CHECK_EQUAL(published, step);
    CHECK_OK(checkpoint_publish(c, &published));
    CHECK_EQUAL(published, -1);
}

static void check_found(struct checkpoint *c, int64_t step, struct checkpoint_info *found)
{
    CHECK_OK(checkpoint_find(c, NULL, found));
    CHECK(found->found);
    CHECK_EQUAL(found->state.step, step);
    CHECK_EQUAL(found->state.samples, 3 * step);
    CHECK_EQUAL(found->state.tokens, 5 * step);
    CHECK(found->state.train_seconds == 0.1);
    CHECK_EQUAL(found->saved_ranks, ranks);
    CHECK_TEXT(found->recipe_text, "seed: 1\n# \"quoted\" \xc3\xa4\n");
    CHECK_TEXT(found->data_fingerprint, "0123");
    free(found->recipe_text);
    found->recipe_text = NULL;
}

/* Replicated tensors. With `async` they change while the writer works on its snapshot. */
static void test_round_trip(bool async)
{
    struct checkpoint_tensor model[SHAPES], moments[2];
    for (int i = 0; i < SHAPES; i++) {
        model[i] = make_part(i, 0, shapes[i].rows);
        fill_tensor(&model[i], i);
    }
    moments[0] = make_part(0, 0, shapes[0].rows);
    moments[1] = make_part(1, 0, shapes[1].rows);
    moments[0].name = "exp_avg/a.matrix";
    moments[1].name = "exp_avg_sq/a.matrix";
    fill_tensor(&moments[0], 20);
    fill_tensor(&moments[1], 21);
    struct checkpoint_tensor_set sets[2] = {{"model", model, SHAPES}, {"optimizer", moments, 2}};
    struct checkpoint *c = open_run(async ? "async" : "sync", world, async, NULL);
    struct checkpoint_info found;
    CHECK_OK(checkpoint_find(c, NULL, &found));
    CHECK(!found.found);
    CHECK_OK(checkpoint_reserve(c, sets, 2));
    CHECK_EQUAL(checkpoint_is_written(c), 0);
    save_step(c, 7, sets, 2);
    if (async) {
        for (int i = 0; i < SHAPES; i++) {
            overwrite_tensor(&model[i]);
        }
    }
    publish_step(c, 7);
    for (int i = 0; i < SHAPES; i++) {
        overwrite_tensor(&model[i]);
    }
    check_found(c, 7, &found);
    CHECK_OK(checkpoint_load(world, found.folder, sets, 2));
    for (int i = 0; i < SHAPES; i++) {
        check_values(&model[i], i);
    }
    check_values(&moments[0], 20);
    check_values(&moments[1], 21);
    CHECK_OK(checkpoint_close(&c));
    free_tensors(model, SHAPES);
    free_tensors(moments, 2);
}

/* A checkpoint stores bf16 tensors in bf16. A load into the same type keeps the bits; a load into
 * the other one converts: exactly to f32, to nearest to bf16. */
static void test_dtypes(enum dtype saved, enum dtype loaded, bool async)
{
    struct checkpoint_tensor t[SHAPES], other[SHAPES];
    for (int i = 0; i < SHAPES; i++) {
        t[i] = make_part(i, 0, shapes[i].rows);
        other[i] = make_part(i, 0, shapes[i].rows);
        t[i].dtype = saved;
        other[i].dtype = loaded;
        fill_tensor(&t[i], i);
        overwrite_tensor(&other[i]);
    }
    struct checkpoint_tensor_set set = {"optimizer", t, SHAPES}, to = {"optimizer", other, SHAPES};
    struct checkpoint *c = open_run("dtypes", world, async, NULL);
    struct checkpoint_info found;
    int64_t bytes = 0, largest = 0;
    CHECK_OK(checkpoint_memory_bytes(&set, 1, 1, 0, &bytes));
    for (int i = 0; i < SHAPES; i++) {
        largest += count_elements(&t[i]) * (int64_t)dtype_bytes(saved);
    }
    CHECK(bytes >= largest && bytes < largest + 4 * SHAPES);
    save_step(c, 4, &set, 1);
    for (int i = 0; i < SHAPES && async; i++) {
        overwrite_tensor(&t[i]);
    }
    publish_step(c, 4);
    check_found(c, 4, &found);
    CHECK_OK(checkpoint_load(world, found.folder, &to, 1));
    for (int i = 0; i < SHAPES; i++) {
        check_rounded(&other[i], i, saved == DTYPE_BF16 || loaded == DTYPE_BF16);
    }
    CHECK_OK(checkpoint_archive_newer(c, -1));
    CHECK_OK(checkpoint_close(&c));
    free_tensors(t, SHAPES);
    free_tensors(other, SHAPES);
}

/* A checkpoint that is loaded and saved again has the same bytes. */
static void test_same_bytes(void)
{
    struct checkpoint *c = open_run("async", world, true, NULL);
    struct checkpoint_tensor model[SHAPES];
    for (int i = 0; i < SHAPES; i++) {
        model[i] = make_part(i, 0, shapes[i].rows);
        overwrite_tensor(&model[i]);
    }
    struct checkpoint_tensor_set set = {"model", model, SHAPES};
    struct checkpoint_info found;
    check_found(c, 7, &found);
    CHECK_OK(checkpoint_load(world, found.folder, &set, 1));
    save_step(c, 8, &set, 1);
    publish_step(c, 8);
    if (rank == 0) {
        for (int r = 0; r < ranks; r++) {
            char name[64], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES], parent[FILE_PATH_BYTES];
            char first[HASH_TEXT_BYTES], second[HASH_TEXT_BYTES];
            CHECK_OK(file_join(parent, found.folder, ".."));
            snprintf(name, sizeof name, "step-00000007/model-%05d-of-%05d.h5", r, ranks);
            CHECK_OK(file_join(a, parent, name));
            name[12] = '8';
            CHECK_OK(file_join(b, parent, name));
            CHECK_OK(hash_file(a, first, NULL));
            CHECK_OK(hash_file(b, second, NULL));
            CHECK_TEXT(first, second);
        }
    }
    CHECK_OK(checkpoint_close(&c));
    free_tensors(model, SHAPES);
}

/* As in tensor parallelism, every rank holds another part of each tensor. One part consists of two
 * pieces, as in a fused matrix. Then each rank loads whole tensors, and then other parts. */
static void test_sharded(void)
{
    struct comm *self = NULL;
    CHECK_OK(comm_split(world, rank, 0, &self));
    struct checkpoint *c = open_run("sharded", self, true, NULL);
    struct checkpoint_tensor local[3];
    int count = 0;
    int64_t first = 131 * rank / ranks, end = 131 * (rank + 1) / ranks;
    local[count++] = make_part(0, first, end - first);
    int64_t first_rows = (end - first) / 2;
    local[count++] = make_part(1, first, first_rows);
    local[count++] = make_part(1, first + first_rows, end - first - first_rows);
    fill_tensor(&local[0], 0);
    fill_tensor(&local[1], 1);
    fill_tensor(&local[2], 1);
    struct checkpoint_tensor_set set = {"model", local, count};
    save_step(c, 3, &set, 1);
    publish_step(c, 3);
    struct checkpoint_info found;
    check_found(c, 3, &found);

    struct checkpoint_tensor whole[2] = {make_part(0, 0, 131), make_part(1, 0, 131)};
    overwrite_tensor(&whole[0]);
    overwrite_tensor(&whole[1]);
    struct checkpoint_tensor_set all = {"model", whole, 2};
    CHECK_OK(checkpoint_load(world, found.folder, &all, 1));
    check_values(&whole[0], 0);
    check_values(&whole[1], 1);

    struct checkpoint_tensor other[2] = {make_part(0, 131 - end, end - first),
                                         make_part(1, 60, 71)};
    if (rank == 0) { /* together the ranks load all rows, but in other parts */
        free(other[1].data);
        other[1] = make_part(1, 0, 61);
    }
    struct checkpoint_tensor_set some = {"model", other, 2};
    CHECK_OK(checkpoint_load(world, found.folder, &some, 1));
    check_values(&other[0], 0);
    check_values(&other[1], 1);
    CHECK_OK(checkpoint_close(&c));
    CHECK_OK(comm_destroy(&self));
    free_tensors(local, 3);
    free_tensors(whole, 2);
    free_tensors(other, 2);
}

/* Other shapes, names and sets of tensors are refused on all ranks. */
static void test_refusals(void)
{
    struct checkpoint *c = open_run("sharded", world, true, NULL);
    struct checkpoint_info found;
    check_found(c, 3, &found);
    struct checkpoint_tensor t[2] = {make_part(0, 0, 131), make_part(1, 0, 131)};
    struct checkpoint_tensor_set set = {"model", t, 2};
    t[0].global_shape[0] = 132;
    CHECK_EQUAL(checkpoint_load(world, found.folder, &set, 1), STATUS_CHECKPOINT);
    t[0].global_shape[0] = 131;
    t[1].name = "b.other";
    CHECK_EQUAL(checkpoint_load(world, found.folder, &set, 1), STATUS_CHECKPOINT);
    set.count = 1; /* b.transposed is in the checkpoint, but no rank loads it */
    CHECK_EQUAL(checkpoint_load(world, found.folder, &set, 1), STATUS_CHECKPOINT);
    CHECK_EQUAL(checkpoint_find(c, "/nowhere/at/all", &found), STATUS_NO_INPUT);
    CHECK(!found.found);
    CHECK_OK(checkpoint_close(&c));
    free_tensors(t, 2);
}

/* Writes the final weights twice: the second folder replaces the first one. */
static void test_final(void)
{
    struct checkpoint *c = open_run("final", world, true, NULL);
    struct checkpoint_tensor t = make_part(5, 0, shapes[5].rows);
    struct checkpoint_tensor_set set = {"model", &t, 1};
    struct checkpoint_state state = {9, 27, 45, 0.1};
    char folder[FILE_PATH_BYTES];
    CHECK_OK(file_join(folder, root, "final/final"));
    fill_tensor(&t, 30);
    CHECK_OK(checkpoint_write_final(c, folder, &state, &set, 1));
    fill_tensor(&t, 31);
    CHECK_OK(checkpoint_write_final(c, folder, &state, &set, 1));
    overwrite_tensor(&t);
    struct checkpoint_info found;
    CHECK_OK(checkpoint_verify_folder(world, folder, &found));
    CHECK_EQUAL(found.state.step, 9);
    free(found.recipe_text);
    CHECK_OK(checkpoint_load(world, found.folder, &set, 1));
    check_values(&t, 31);
    CHECK_OK(checkpoint_close(&c));
    free_tensors(&t, 1);
}

/* Makes a folder that contains one file of this name. */
static void make_tokenizer(const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    CHECK_OK(file_join(path, folder, name));
    if (rank == 0) {
        CHECK_OK(file_make_folders(folder));
        CHECK_OK(file_write(path, "text", 4));
    }
    CHECK_OK(comm_barrier(world));
}

/* Each checkpoint has the tokenizer that was read at the start, even if its folder is deleted. */
static void test_tokenizer(void)
{
    char folder[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    struct checkpoint_tensor t = make_part(0, 0, 131);
    struct checkpoint_tensor_set set = {"model", &t, 1};
    struct checkpoint_info found;
    fill_tensor(&t, 0);
    CHECK_OK(file_join(folder, root, "deleted"));
    make_tokenizer(folder, "tokenizer.json");
    struct checkpoint *c = open_run("tokenizer", world, true, folder);
    if (rank == 0) {
        CHECK_OK(file_remove_tree(folder));
    }
    save_step(c, 1, &set, 1);
    publish_step(c, 1);
    check_found(c, 1, &found);
    CHECK_OK(file_join(folder, found.folder, "tokenizer/tokenizer.json"));
    CHECK_OK(file_read(folder, 10, &text, &bytes));
    CHECK(bytes == 4 && memcmp(text, "text", 4) == 0);
    free(text);
    CHECK_OK(checkpoint_close(&c));
    free_tensors(&t, 1);
}

/* If the writer fails on one rank, all ranks return its code. The failed checkpoint is removed and
 * the older one remains. */
static void test_writer_failure(void)
{
    struct checkpoint_tensor t = make_part(0, 0, 131);
    struct checkpoint_tensor_set set = {"model", &t, 1};
    fill_tensor(&t, 0);
    struct checkpoint *c = open_run("failing", world, true, NULL);
    save_step(c, 1, &set, 1);
    publish_step(c, 1);
    CHECK_OK(checkpoint_close(&c));
    char folder[FILE_PATH_BYTES], name[251] = {0};
    CHECK_OK(file_join(folder, root, "long"));
    make_tokenizer(folder, memset(name, 'x', sizeof name - 1));
    c = open_run("failing", world, true, folder); /* the file name is too long for rank 0 */
    save_step(c, 2, &set, 1);
    int64_t published = 0;
    CHECK_EQUAL(checkpoint_publish(c, &published), STATUS_WRITE);
    CHECK_EQUAL(published, -1);
    CHECK_EQUAL(checkpoint_is_written(c), 0);
    struct checkpoint_info found;
    check_found(c, 1, &found);
    CHECK_OK(checkpoint_archive_newer(c, -1));
    CHECK_OK(checkpoint_find(c, NULL, &found));
    CHECK(!found.found);
    CHECK_OK(checkpoint_close(&c));
    free_tensors(&t, 1);
}

int main(int argc, char **argv)
{
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    rank = comm_rank(world);
    ranks = comm_size(world);
    log_quiet(rank != 0);
    snprintf(root, sizeof root, "test-checkpoint-%d-%ld", ranks, (long)getpid());
    CHECK_OK(comm_broadcast(world, root, sizeof root, 0));
    test_round_trip(true);
    test_round_trip(false);
    test_dtypes(DTYPE_BF16, DTYPE_BF16, true);
    test_dtypes(DTYPE_BF16, DTYPE_F32, false);
    test_dtypes(DTYPE_F32, DTYPE_BF16, true);
    test_same_bytes();
    test_sharded();
    test_refusals();
    test_final();
    test_tokenizer();
    test_writer_failure();
    CHECK_OK(comm_barrier(world));
    if (rank == 0) {
        CHECK_OK(file_remove_tree(root));
    }
    CHECK_OK(comm_destroy(&world));
    return 0;
}
