/* Tests of error notes, arrays, arenas, devices, bf16 rounding, files and hashes. */
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/device/arena.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/tensor.h"
#include "tests/check.h"

static status require_below_3(int value)
{
    REQUIRE(value < 3, STATUS_RECIPE, "value %d is not below 3", value);
    return STATUS_OK;
}

static status pass_error(int value)
{
    TRY(require_below_3(value));
    return STATUS_OK;
}

static void test_status(void)
{
    CHECK_OK(pass_error(1));
    CHECK(pass_error(7) == STATUS_RECIPE);
    CHECK(pass_error(8) == STATUS_RECIPE); /* the first note stays pending */
    CHECK_TEXT(status_pending()->text, "value 7 is not below 3");
    status_identify(3, 4, "somewhere");
    status_set_step(12);
    char line[256];
    struct status_note note;
    status_take(&note);
    CHECK(status_pending()->code == STATUS_OK);
    status_format(&note, line, sizeof line);
    CHECK_TEXT(line, "error: rank 3 host somewhere: value 7 is not below 3 [E-RECIPE]");
    CHECK(pass_error(9) == STATUS_RECIPE);
    status_format(status_pending(), line, sizeof line);
    CHECK_TEXT(line, "error: rank 3 host somewhere step 12: value 9 is not below 3 [E-RECIPE]");
    status_identify(0, 1, NULL);
    status_format(status_pending(), line, sizeof line);
    CHECK_TEXT(line, "error: step 12: value 9 is not below 3 [E-RECIPE]");
    status_format(&note, line, sizeof line);
    CHECK_TEXT(line, "error: value 7 is not below 3 [E-RECIPE]");
    status_identify(2, 0, NULL); /* MPI has not reported the ranks */
    status_format(&note, line, sizeof line);
    CHECK_TEXT(line, "error: rank 2 host somewhere: value 7 is not below 3 [E-RECIPE]");
    snprintf(note.text, sizeof note.text, "%s", "a\nb\033");
    status_format(&note, line, sizeof line);
    CHECK_TEXT(line, "error: rank 2 host somewhere: a b? [E-RECIPE]");
    CHECK(status_change(STATUS_DATA) == STATUS_DATA);
    status_format(status_pending(), line, sizeof line);
    CHECK_TEXT(line, "error: rank 2 host somewhere step 12: value 9 is not below 3 [E-DATA]");
    status_clear();
    CHECK(status_change(STATUS_DATA) == STATUS_DATA); /* no note is pending */
    CHECK(!status_print());
}

static void test_arrays(void)
{
    static const char *const names[] = {"a", "b", "c"};
    int32_t single[1] = {0};
    CHECK_EQUAL(COUNT(names), 3);
    CHECK_EQUAL(COUNT(single), 1);
    CHECK_EQUAL(sizeof COUNT(names), sizeof(int));

    int64_t *values = NULL;
    CHECK_OK(ALLOCATE(values, 1009, "values"));
    for (int64_t i = 0; i < 1009; i++) {
        CHECK(values[i] == 0);
        values[i] = i;
    }
    CHECK_OK(GROW(values, 2017, "values"));
    for (int64_t i = 0; i < 1009; i++) {
        CHECK(values[i] == i);
    }
    values[2016] = 1;
    int64_t *before = values; /* a failure leaves the array unchanged */
    CHECK_FAILS(GROW(values, SIZE_MAX / 8 + 2, "values"), STATUS_INTERNAL,
                "out of memory for values");
    CHECK_FAILS(GROW(values, INT64_C(-1), "values"), STATUS_INTERNAL, "out of memory for values");
    CHECK(values == before && values[1008] == 1008 && values[2016] == 1);
    free(values);

    int64_t word = 0, *huge = &word;
    CHECK_FAILS(ALLOCATE(huge, SIZE_MAX / 8 + 2, "a huge array"), STATUS_INTERNAL,
                "out of memory for a huge array");
    CHECK(huge == NULL);
    char *empty = NULL; /* 0 elements are not an error */
    CHECK_OK(GROW(empty, 0, "text"));
    CHECK(empty != NULL);
    free(empty);
    CHECK_OK(ALLOCATE(empty, 0, "text"));
    CHECK(empty != NULL);
    free(empty);
}

static void test_copies(void)
{
    char *copy = NULL;
    CHECK_OK(memory_copy_text(&copy, "", "a text"));
    CHECK_TEXT(copy, "");
    free(copy);
    CHECK_OK(memory_copy_text(&copy, "loss", "a text"));
    CHECK_TEXT(copy, "loss");
    free(copy);
    CHECK_OK(memory_copy_text(&copy, NULL, "a text"));
    CHECK(copy == NULL);
    CHECK_OK(memory_copy_bytes(&copy, "loss", 2, "a text"));
    CHECK_TEXT(copy, "lo");
    free(copy);
}

/* An array keeps its elements while it grows, and n additions reallocate it O(log n) times. */
static void test_reserve(void)
{
    enum { ELEMENTS = 10007 };
    int32_t *values = NULL;
    int64_t capacity = 0;
    int reallocations = 0;
    for (int32_t i = 0; i < ELEMENTS; i++) {
        int64_t before = capacity;
        CHECK_OK(RESERVE(values, capacity, i + 1, "values"));
        CHECK(capacity > i && capacity <= 2 * (int64_t)i + 17);
        reallocations += capacity != before;
        values[i] = i;
    }
    CHECK(reallocations < 20);
    for (int32_t i = 0; i < ELEMENTS; i++) {
        CHECK(values[i] == i);
    }
    int32_t *unchanged = values;
    int64_t before = capacity;
    CHECK_OK(RESERVE(values, capacity, capacity, "values"));
    CHECK(values == unchanged && capacity == before);
    CHECK_FAILS(RESERVE(values, capacity, INT64_C(1) << 62, "values"), STATUS_INTERNAL,
                "out of memory for values");
    CHECK(values == unchanged && capacity == before && values[ELEMENTS - 1] == ELEMENTS - 1);
    free(values);
}

static void test_arena(void)
{
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    struct arena arena;
    void *a, *b;
    CHECK_OK(arena_create(dev, 0, "a test", &arena)); /* measures the size */
    CHECK_OK(arena_take(&arena, 100, &a));
    CHECK_OK(arena_take(&arena, 1, &b));
    CHECK(a == NULL && b == NULL);
    size_t bytes = arena.peak;
    CHECK_EQUAL(bytes, 128 + 64);
    arena_destroy(&arena);
    CHECK_OK(arena_create(dev, bytes, "a test", &arena));
    CHECK_OK(arena_take(&arena, 100, &a));
    size_t mark = arena_mark(&arena);
    CHECK_OK(arena_take(&arena, 1, &b));
    CHECK((char *)b - (char *)a == 128);
    CHECK_FAILS(arena_take(&arena, 1, &b), STATUS_INTERNAL, "a test");
    arena_release(&arena, mark);
    CHECK_OK(arena_take(&arena, 64, &b));
    CHECK_EQUAL(arena.peak, bytes);
    arena_destroy(&arena);
    struct stream *stream = NULL; /* on the CPU, work is done immediately */
    struct event *event = NULL;
    unsigned char identity[DEVICE_IDENTITY_BYTES];
    bool done = false;
    CHECK_OK(device_stream_create(dev, 1, &stream));
    CHECK_OK(device_event_create(dev, &event));
    CHECK_OK(device_event_record(dev, event, stream));
    CHECK_OK(device_stream_wait(dev, NULL, event));
    CHECK_OK(device_event_done(dev, event, &done));
    CHECK(done && device_stream_handle(dev, stream) == NULL);
    CHECK_OK(device_event_create_timed(dev, &event));
    double seconds = 1;
    CHECK_OK(device_event_seconds(dev, event, event, &seconds));
    CHECK_EQUAL(seconds, 0);
    device_identity(dev, identity);
    CHECK(identity[0] == 0 && identity[DEVICE_IDENTITY_BYTES - 1] == 0);
    CHECK_OK(device_event_destroy(dev, &event));
    CHECK_OK(device_stream_destroy(dev, &stream));
    CHECK_OK(device_destroy(&dev));
    CHECK_FAILS(device_create(DEVICE_CUDA, 0, &dev), STATUS_UNAVAILABLE, "CUDA");
}

static void test_bf16(void)
{
    CHECK(f32_to_bf16(1.0f) == 0x3f80);
    CHECK(f32_to_bf16(1.00390625f) == 0x3f80); /* a tie: to even */
    CHECK(f32_to_bf16(1.01171875f) == 0x3f82);
    CHECK(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    CHECK(isinf(bf16_to_f32(f32_to_bf16(INFINITY))));
    for (uint32_t i = 0; i < 0x7f80; i++) {
        CHECK(f32_to_bf16(bf16_to_f32((bf16)i)) == i);
    }
}

/* Another process removes an empty folder of the path, as a `bireme prepare` that fails does. */
static void test_removed_folders(void)
{
    char folder[] = "/tmp/bireme-test-XXXXXX", parent[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(file_join(parent, folder, "parent"));
    CHECK_OK(file_join(path, parent, "own"));
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            rmdir(parent);
            usleep(100); /* without a pause, a hundred attempts in sequence can fail */
        }
    }
    for (int i = 0; i < 300; i++) {
        CHECK_OK(file_make_folders(path));
        CHECK(file_is_folder(path) && rmdir(path) == 0);
    }
    CHECK(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    CHECK_OK(file_remove_tree(folder));
}

static void test_files(void)
{
    char folder[] = "/tmp/bireme-test-XXXXXX", path[FILE_PATH_BYTES], text[HASH_TEXT_BYTES];
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(file_join(path, folder, "a/b/c"));
    CHECK_OK(file_make_folders(path));
    CHECK_OK(file_make_folders(path));
    CHECK(file_is_folder(path));
    CHECK_OK(file_join(path, folder, "a/abc"));
    CHECK_OK(file_write(path, "abc", 3));
    CHECK_FAILS(file_make_folders(path), STATUS_CREATE, "not a folder");
    CHECK_EQUAL(file_size(path), 3);
    char *content = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(path, 3, &content, &bytes));
    CHECK(bytes == 3 && strcmp(content, "abc") == 0);
    free(content);
    CHECK_FAILS(file_read(path, 2, &content, &bytes), STATUS_DATA, "at most 2");
    int64_t size = 0;
    CHECK_OK(hash_file(path, text, &size)); /* FIPS 180-2, appendix B.1 */
    CHECK_TEXT(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_EQUAL(size, 3);
    CHECK_FAILS(file_read("/nowhere/x", 9, &content, &bytes), STATUS_NO_INPUT, "/nowhere/x");
    CHECK_OK(file_join(path, folder, "pipe"));
    CHECK(mkfifo(path, 0600) == 0);
    alarm(10); /* no process writes to the pipe */
    CHECK_FAILS(file_read(path, 9, &content, &bytes), STATUS_DATA, "not a regular file");
    alarm(0);
    CHECK(pass_error(7) == STATUS_RECIPE);
    file_discard_tree(folder);
    CHECK(status_pending()->code == STATUS_RECIPE); /* the note remains */
    CHECK_TEXT(status_pending()->text, "value 7 is not below 3");
    status_clear();
    CHECK(!file_exists(folder));
    file_discard_tree(folder);
    CHECK(status_pending()->code == STATUS_OK);
    CHECK_OK(file_remove_tree(folder));
}

/* A view of the last two of three columns: the stride differs from the number of columns. */
static void test_tensor_get(void)
{
    float numbers[] = {1, 2, 3, 4, 5, 6};
    bf16 halves[] = {f32_to_bf16(1), f32_to_bf16(2), f32_to_bf16(3),
                     f32_to_bf16(4), f32_to_bf16(5), f32_to_bf16(6)};
    const struct tensor views[] = {
        tensor_columns(tensor_view(numbers, DTYPE_F32, 2, 3), 1, 2),
        tensor_columns(tensor_view(halves, DTYPE_BF16, 2, 3), 1, 2),
    };
    for (int i = 0; i < COUNT(views); i++) {
        CHECK_NEAR(tensor_get(views[i], 0, 0), 2, 0);
        CHECK_NEAR(tensor_get(views[i], 1, 1), 6, 0);
    }
}

int main(void)
{
    test_status();
    test_arrays();
    test_copies();
    test_reserve();
    test_arena();
    test_bf16();
    test_tensor_get();
    test_files();
    test_removed_folders();
    return 0;
}
