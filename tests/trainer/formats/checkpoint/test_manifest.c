/* Tests of manifest.h: names that could leave a folder, the tiling of a tensor by shards, and a
 * manifest with many tensors and files. */
#include <inttypes.h>

#include "base/memory.h"
#include "tests/check.h"
#include "tests/linear_time.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"
#include "trainer/formats/checkpoint/manifest.h"

enum { TENSOR_COUNT = 25000, SPLIT = 20000 };

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
static const char digest[] = DIGEST;
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

/* Checks a manifest with these lists of files and tensors. "<NUL>" stands for NUL bytes. fault:
 * NULL, or a part of the reason. */
static void check_lists(const char *lists, const char *fault)
{
    static const char header[] =
        "{\"format\": \"bireme-checkpoint\", \"format_version\": 1, \"version\": \"test\", "
        "\"step\": 1, \"samples\": 2, \"tokens\": 3, \"train_seconds\": 4.5, \"ranks\": 1, "
        "\"recipe\": \"\", \"data_fingerprint\": \"\"";
    char text[4096], hash[HASH_TEXT_BYTES], reason[MANIFEST_REASON_BYTES] = "";
    int bytes = snprintf(text, sizeof text, "%s, %s", header, lists);
    char *zero = strstr(text, "<NUL>");
    if (zero != NULL) {
        memset(zero, 0, strlen("<NUL>"));
    }
    CHECK_OK(hash_memory(text, (size_t)bytes, hash));
    bytes +=
        snprintf(text + bytes, sizeof text - (size_t)bytes, ",\n \"sha256\": \"%s\"\n}\n", hash);
    struct manifest m;
    bool good = manifest_parse(text, (size_t)bytes, &m, reason);
    if (good != (fault == NULL) || (!good && strstr(reason, fault) == NULL)) {
        fprintf(stderr, "%s: expected %s, found %s\n", lists, fault == NULL ? "no fault" : fault,
                good ? "no fault" : reason);
        exit(1);
    }
    CHECK(!good || (m.file_count == 1 && m.tensor_count == 1 && m.files[0].bytes == 7));
    if (good) { /* a save creates its folder first, so a missing folder is a write error */
        CHECK_FAILS(checkpoint_write_manifest("no-such-folder", &m), STATUS_WRITE,
                    "no-such-folder/manifest.json");
    }
    manifest_destroy(&m);
}

#define FILE_ITEM "\"name\": \"a.h5\", \"bytes\": 7, \"sha256\": \"" DIGEST "\""
#define FILES "\"files\": [{" FILE_ITEM "}]"
#define SHARD "\"file\": \"a.h5\", \"offset\": [0, 0], \"shape\": [4, 6]"
#define TENSOR "\"family\": \"model\", \"name\": \"x\", \"dtype\": \"f32\""
#define TENSORS "\"tensors\": [{" TENSOR ", \"shape\": [4, 6], \"pieces\": [{" SHARD "}]}]"
#define WITH_SHARD(text)                                                                           \
    FILES ", \"tensors\": [{" TENSOR ", \"shape\": [4, 6], \"pieces\": [" text "]}]"
#define WITH_SHAPE(text)                                                                           \
    FILES ", \"tensors\": [{" TENSOR ", \"shape\": " text ", \"pieces\": [{" SHARD "}]}]"

/* The fields of an item may have any order, and unknown fields are skipped. */
static void test_list_order(void)
{
    check_lists(FILES ", " TENSORS, NULL);
    check_lists(TENSORS ", " FILES, NULL);
    check_lists("\"files\":[ {\"new\": [{\"a\": [\"}\", 1e3]}], " FILE_ITEM "} ]," TENSORS, NULL);
    check_lists(FILES ", \"tensors\": [{\"pieces\": [{" SHARD "}], \"shape\": [4, 6], " TENSOR "}]",
                NULL);
    check_lists(FILES ", \"t\\u0065nsors\": [{" TENSOR
                      ", \"sh\\u0061pe\": [4, 6], \"pieces\": [{" SHARD "}]}]",
                NULL);
}

static void test_bad_lists(void)
{
    check_lists(FILES, "files or tensors is missing");
    check_lists(FILES ", \"tensors\": {}", "files or tensors is missing");
    check_lists(FILES ", " TENSORS ", " FILES, "'files' occurs twice");
    check_lists(FILES ", " TENSORS ", \"step\": 1", "'step' occurs twice");
    check_lists("\"files\": [{" FILE_ITEM "}, {" FILE_ITEM "}], " TENSORS, "listed twice");
    check_lists("\"files\": [{" FILE_ITEM ", \"bytes\": 7}], " TENSORS, "'bytes' occurs twice");
    check_lists("\"files\": [{" FILE_ITEM "},], " TENSORS, "not a JSON object");
    check_lists("\"files\": [{" FILE_ITEM "} {" FILE_ITEM "}], " TENSORS, "',' expected");
    check_lists("\"files\": [{" FILE_ITEM "]], " TENSORS, "expected");
    check_lists("\"files\": [1], " TENSORS, "not a JSON object");
    check_lists("\"files\": [{}], " TENSORS, "file 0 has no name");
    check_lists("\"files\": [{" FILE_ITEM "}, " TENSORS, "too early");
    check_lists("\"files\": [{\"new\": 01, " FILE_ITEM "}], " TENSORS, "line 1");
    check_lists(FILES ", \"tensors\": [<NUL>]", "not a JSON object");
    check_lists("\"files\": [{\"new\": \"<NUL>\", " FILE_ITEM "}], " TENSORS,
                "a control character");
    check_lists(WITH_SHARD(""), "'pieces' is empty");
    check_lists(WITH_SHARD("{" SHARD ", \"dataset\": 1}"), "no file, offset or shape");
    check_lists(WITH_SHARD("{" SHARD ", \"file\": \"a.h5\"}"), "'file' occurs twice");
    check_lists(WITH_SHARD("{" SHARD ", \"dataset\": \"../x\"}"), "invalid dataset name");
    check_lists(WITH_SHARD("{" SHARD "}, {" SHARD "}"), "two shards overlap");
    /* The name of a tensor does not become an error about missing memory. */
    check_lists(FILES ", \"tensors\": [{\"family\": \"model\", \"name\": \"out of memory for x\", "
                      "\"dtype\": \"f64\", \"shape\": [4], \"pieces\": [{}]}]",
                "manifest.json: out of memory for x");
}

static void test_bad_shapes(void)
{
    static const char *const shapes[] = {"[-1, 6]",
                                         "[4, 6, 1]",
                                         "[0, 6]",
                                         "[4.0, 6]",
                                         "[4e0, 6]",
                                         "[]",
                                         "[\"4\"]",
                                         "[null]",
                                         "[[4, 6]]",
                                         "[4, 6.]",
                                         "[04, 6]",
                                         "[4 6]",
                                         "[4, 6,]",
                                         "[1099511627777]",
                                         "[1099511627776, 2]",
                                         "[99999999999999999999]"};
    check_lists(WITH_SHAPE("[4, 6]"), NULL);
    check_lists(WITH_SHAPE("4"), "a tensor has no family, name, dtype, shape");
    for (int i = 0; i < COUNT(shapes); i++) {
        char lists[2048];
        snprintf(lists, sizeof lists, WITH_SHAPE("%s"), shapes[i]);
        check_lists(lists, i < 9 || i == 13 || i == 14 ? "x: invalid shape" : "line 1 column");
    }
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
    test_list_order();
    test_bad_lists();
    test_bad_shapes();
    check_linear_time("manifest", time_manifest, TENSOR_COUNT);
    return 0;
}
