/* Tests of manifest.h: names that could leave a folder, the tiling of a tensor by shards, and a
 * manifest with many tensors and files. */
#include <inttypes.h>

#include "base/memory.h"
#include "tests/check.h"
#include "tests/linear_time.h"
#include "trainer/formats/checkpoint/manifest.h"

enum { TENSORS = 25000, SPLIT = 20000 };

static const char digest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static const int64_t shape[2] = {4, 6}, start[2] = {0, 0};

static status add_shard(const char *set, const char *name, const char *dataset)
{
    struct manifest m = {0};
    CHECK_OK(manifest_add_file(&m, "model-00000-of-00001.h5", 1, digest));
    status result = manifest_add_shard(&m, set, name, DTYPE_F32, 2, shape,
                                       "model-00000-of-00001.h5", dataset, start, shape);
    manifest_destroy(&m);
    return result;
}

static void test_names(void)
{
    static const char *const bad_sets[] = {
        "", "../x", "a/b", "A", "9x", ".", "model ", "abcdefghijabcdefghijabcdefghijab"};
    static const char *const bad_paths[] = {"",     "/",      "/x",   "x/",
                                            "../x", "a/../b", "a//b", "a/b/c/d/e/f/g/h/i",
                                            ".x",   "a/.b",   "a b",  "a\nb"};
    struct manifest m = {0};
    CHECK_OK(add_shard("model", "wte.weight", "wte.weight"));
    CHECK_OK(add_shard("optimizer", "exp_avg/wte.weight", "exp_avg/wte.weight@1"));
    CHECK_OK(add_shard("abcdefghijabcdefghijabcdefghija", "x", "a/b/c"));
    CHECK_FAILS(manifest_add_file(&m, "a/b/c", 1, digest), STATUS_INTERNAL, "invalid file name");
    for (int i = 0; i < COUNT(bad_sets); i++) {
        CHECK_FAILS(add_shard(bad_sets[i], "x", "x"), STATUS_INTERNAL, "invalid tensor family");
    }
    for (int i = 0; i < COUNT(bad_paths); i++) {
        CHECK_FAILS(add_shard("model", bad_paths[i], "x"), STATUS_INTERNAL, "invalid tensor name");
        CHECK_FAILS(add_shard("model", "x", bad_paths[i]), STATUS_INTERNAL, "invalid dataset name");
        CHECK_FAILS(manifest_add_file(&m, bad_paths[i], 1, digest), STATUS_INTERNAL,
                    "invalid file name");
    }
    char longest[MANIFEST_NAME_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    longest[MANIFEST_NAME_BYTES] = '\0';
    CHECK_FAILS(manifest_add_file(&m, longest, 1, digest), STATUS_INTERNAL, "invalid file name");
    longest[MANIFEST_NAME_BYTES - 1] = '\0';
    CHECK_OK(manifest_add_file(&m, longest, 1, digest));
    manifest_destroy(&m);
}

/* Adds a shard of the tensor [rows, columns]. */
static void add_block(struct manifest *m, int64_t rows, int64_t columns, int64_t r0, int64_t r1,
                      int64_t c0, int64_t c1)
{
    int64_t whole[2] = {rows, columns}, offset[2] = {r0, c0}, extent[2] = {r1 - r0, c1 - c0};
    CHECK_OK(manifest_add_shard(m, "model", "x", DTYPE_F32, 2, whole, "a.h5", "x", offset, extent));
}

static void check_tiling(struct manifest *m, const char *fault)
{
    char reason[MANIFEST_REASON_BYTES] = "";
    bool good = manifest_check_tiling(m, reason);
    if (good != (fault == NULL) || (!good && strstr(reason, fault) == NULL)) {
        fprintf(stderr, "expected %s, found %s\n", fault == NULL ? "no fault" : fault, reason);
        exit(1);
    }
    manifest_destroy(m);
    CHECK_OK(manifest_add_file(m, "a.h5", 1, digest));
}

static void test_tiling(void)
{
    struct manifest m = {0};
    CHECK_OK(manifest_add_file(&m, "a.h5", 1, digest));
    for (int i = 3; i >= 0; i--) { /* a grid of 2 x 2, in reverse order */
        int64_t r = i / 2 * 2, c = i % 2 * 3;
        add_block(&m, 4, 6, r, r + 2, c, c + 3);
    }
    check_tiling(&m, NULL);
    add_block(&m, 4, 6, 0, 4, 3, 6); /* columns */
    add_block(&m, 4, 6, 0, 4, 0, 3);
    check_tiling(&m, NULL);
    add_block(&m, 4, 6, 0, 4, 0, 4);
    add_block(&m, 4, 6, 0, 4, 3, 6);
    check_tiling(&m, "two shards overlap");
    add_block(&m, 4, 6, 0, 3, 0, 6);
    add_block(&m, 4, 6, 2, 4, 0, 6);
    check_tiling(&m, "two shards overlap");
    add_block(&m, 4, 6, 0, 2, 0, 6);
    add_block(&m, 4, 6, 2, 4, 0, 5);
    check_tiling(&m, "cover 22 of 24");
    for (int64_t i = 0; i < SPLIT; i++) { /* all pairs would take minutes */
        add_block(&m, 4, SPLIT, 0, 4, i, i + 1);
    }
    check_tiling(&m, NULL);
    manifest_destroy(&m);
}

/* The type of a tensor survives the text; its shards must all have it. */
static void test_dtypes(void)
{
    struct manifest m = {0}, parsed;
    char reason[MANIFEST_REASON_BYTES] = "", *text = NULL;
    const int64_t half[2] = {2, 6}, second[2] = {2, 0};
    size_t bytes = 0;
    m.ranks = 1;
    m.version = strdup("test");
    m.recipe = strdup("");
    m.data_fingerprint = strdup("");
    CHECK_OK(manifest_add_file(&m, "a.h5", 1, digest));
    CHECK_OK(
        manifest_add_shard(&m, "optimizer", "x", DTYPE_BF16, 2, shape, "a.h5", "x", start, half));
    CHECK_FAILS(
        manifest_add_shard(&m, "optimizer", "x", DTYPE_F32, 2, shape, "a.h5", "x", second, half),
        STATUS_INTERNAL, "different dtypes");
    CHECK_OK(manifest_add_shard(&m, "optimizer", "x", DTYPE_BF16, 2, shape, "a.h5", "x@1", second,
                                half));
    CHECK_OK(manifest_add_shard(&m, "model", "x", DTYPE_F32, 2, shape, "a.h5", "x", start, shape));
    CHECK_OK(manifest_to_text(&m, &text, &bytes));
    CHECK(manifest_parse(text, bytes, &parsed, reason));
    CHECK_EQUAL(manifest_find_tensor(&parsed, "optimizer", "x")->dtype, DTYPE_BF16);
    CHECK_EQUAL(manifest_find_tensor(&parsed, "model", "x")->dtype, DTYPE_F32);
    manifest_destroy(&parsed);
    manifest_destroy(&m);
    free(text);
}

/* Returns the processor time of reading a manifest of `count` tensors, each in its own file. */
static double time_manifest(int count)
{
    struct manifest m = {.ranks = 1}, parsed;
    char name[32], file[32], reason[MANIFEST_REASON_BYTES] = "", *text = NULL;
    size_t bytes = 0;
    m.version = strdup("test");
    m.recipe = strdup("");
    m.data_fingerprint = strdup("");
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        snprintf(file, sizeof file, "model-%06d.h5", i);
        CHECK_OK(manifest_add_file(&m, file, 1, digest));
        CHECK_OK(
            manifest_add_shard(&m, "model", name, DTYPE_F32, 2, shape, file, name, start, shape));
    }
    CHECK_OK(manifest_to_text(&m, &text, &bytes));
    clock_t begin = clock();
    CHECK(manifest_parse(text, bytes, &parsed, reason));
    double seconds = linear_time_since(begin);
    CHECK_EQUAL(parsed.tensor_count, count);
    CHECK_EQUAL(parsed.file_count, count);
    const struct manifest_tensor *last = manifest_find_tensor(&parsed, "model", name);
    CHECK(last == &parsed.tensors[count - 1]);
    CHECK(manifest_find_tensor(&parsed, "optimizer", name) == NULL);
    CHECK(manifest_find_tensor(&parsed, "model", "tensor") == NULL);
    manifest_destroy(&parsed);
    manifest_destroy(&m);
    free(text);
    return seconds;
}

/* The dropout scheme is stored from 2 on. A manifest without it has scheme 1. */
static void test_dropout_scheme(void)
{
    for (int scheme = 0; scheme < 4; scheme++) {
        struct manifest m = {.ranks = 1, .dropout_scheme = scheme}, parsed;
        char reason[MANIFEST_REASON_BYTES] = "", *text = NULL;
        size_t bytes = 0;
        m.version = strdup("test");
        m.recipe = strdup("");
        m.data_fingerprint = strdup("");
        CHECK_OK(manifest_to_text(&m, &text, &bytes));
        CHECK((strstr(text, "dropout_law") != NULL) == (scheme > 1));
        CHECK(manifest_parse(text, bytes, &parsed, reason));
        CHECK_EQUAL(parsed.dropout_scheme, scheme < 1 ? 1 : scheme);
        manifest_destroy(&parsed);
        manifest_destroy(&m);
        free(text);
    }
}

int main(void)
{
    test_dropout_scheme();
    test_names();
    test_tiling();
    test_dtypes();
    check_linear_time("manifest", time_manifest, TENSORS);
    return 0;
}
