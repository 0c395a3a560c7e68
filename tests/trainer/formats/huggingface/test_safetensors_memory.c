/* Memory of the header of a safetensors file and of an index of weights. The headers have almost
 * the largest size of the format. The program may use 64 MB more than the file: a tree of a whole
 * header takes up to 17 times its size. Files of 100 MB are written, which takes long on a loaded
 * machine.
 * ctest: timeout 180 */
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "tests/linear_time.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/huggingface/safetensors.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
enum { TENSORS_MAX = 1 << 18 };
static const int64_t header_bytes = 99000000, allowed_bytes = 64 << 20;

static char weights[FILE_PATH_BYTES];

/* A text that repeats `before`, the number of the repetition with `digits` digits, and `after`. */
struct text {
    const char *begin, *before;
    int digits;
    const char *after, *end;
    int count; /* at most this many repetitions */
};

static void write_text(FILE *file, const struct text *t)
{
    int64_t bytes = 0;
    fputs(t->begin, file);
    for (int i = 0; i < t->count && bytes < header_bytes; i++) {
        bytes += fprintf(file, "%s%0*d%s", t->before, t->digits, i, t->after);
    }
    fputs(t->end, file);
}

static void write_header(const char *path, struct text t)
{
    FILE *file = fopen(path, "wb");
    uint64_t bytes = 0;
    CHECK(file != NULL && fwrite(&bytes, sizeof bytes, 1, file) == 1);
    write_text(file, &t);
    bytes = (uint64_t)ftell(file) - sizeof bytes;
    CHECK(fseek(file, 0, SEEK_SET) == 0 && fwrite(&bytes, sizeof bytes, 1, file) == 1);
    CHECK(fclose(file) == 0);
}

static int64_t get_peak_bytes(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (int64_t)usage.ru_maxrss * 1024;
}

/* Calls `act` in a child process, which has its own peak of the memory. */
static void measure_memory(const char *name, int64_t bytes, void (*act)(const char *expected),
                           const char *expected)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        clock_t begin = clock();
        int64_t before = get_peak_bytes();
        act(expected);
        int64_t used = get_peak_bytes() - before;
        fprintf(stderr, "%s: files %.1f MB, memory %.1f MB, %.3f s\n", name, (double)bytes / 1e6,
                (double)used / 1e6, linear_time_since(begin));
        _exit(SANITIZED || used < bytes + allowed_bytes ? 0 : 1);
    }
    int ended;
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
}

static void open_weights(const char *expected)
{
    struct safetensors *file = NULL;
    if (expected != NULL) {
        CHECK_FAILS(safetensors_open(weights, &file), STATUS_DATA, expected);
        return;
    }
    int count;
    CHECK_OK(safetensors_open(weights, &file));
    const struct safetensors_tensor *tensors = safetensors_tensors(file, &count);
    for (int i = 0; i < count; i++) {
        CHECK(safetensors_find(file, tensors[i].name) == &tensors[i]);
    }
    safetensors_close(&file);
}

#define EMPTY "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}"

static void test_headers(void)
{
    static const struct {
        const char *name, *expected; /* NULL: the header is valid */
        struct text text;
    } cases[] = {
        {"too many tensors",
         "more than 262144 tensors",
         {"{\"__metadata__\":{}", ",\"", 1, "\":" EMPTY, "}", INT32_MAX}},
        {"262144 tensors",
         NULL,
         {"{\"__metadata__\":{}", ",\"", 300, "\":" EMPTY, "}", TENSORS_MAX}},
        {"many metadata",
         NULL,
         {"{\"__metadata__\":{\"a\":\"\"", ",\"", 1, "\":\"\"", "}}", INT32_MAX}},
        {"long metadata", NULL, {"{\"__metadata__\":{\"a\":\"", "\\n", 90, "", "\"}}", INT32_MAX}},
        {"long shape",
         "the value is too long",
         {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1", ",1", 1, "", "]}}", INT32_MAX}},
        {"long name",
         "a name has more than 4096 bytes",
         {"{\"", "\\u00e9", 90, "", "\":" EMPTY "}", INT32_MAX}},
        {"lists",
         "the description of a is not an object",
         {"{\"a\":[", "[],", 1, ",", "0]}", INT32_MAX}},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        write_header(weights, cases[i].text);
        measure_memory(cases[i].name, file_size(weights), open_weights, cases[i].expected);
    }
}

#define NAME "\"model-00001-of-00002.safetensors\""
static char folder[FILE_PATH_BYTES];

static void import_folder(const char *expected)
{
    check_refused(folder, STATUS_DATA, expected);
}

/* All names of the index are in the file. The import then finds no weights of the model. */
static void test_index(void)
{
    char index[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    copy_model("sharded", folder);
    join_path(path, folder, "model-00001-of-00002.safetensors");
    join_path(index, folder, "model.safetensors.index.json");
    write_header(path,
                 (struct text){"{\"w\":" EMPTY, ",\"", 200, "\":" EMPTY, "}", TENSORS_MAX - 1});
    FILE *file = fopen(index, "wb");
    CHECK(file != NULL);
    write_text(file, &(struct text){"{\"metadata\":{},\"weight_map\":{\"w\":" NAME, ",\"", 200,
                                    "\":" NAME, "}}", TENSORS_MAX - 1});
    CHECK(fclose(file) == 0);
    measure_memory("index", file_size(path) + file_size(index), import_folder,
                   "wte.weight is missing");
}

int main(void)
{
    huggingface_folder_start();
    join_path(weights, root, "large.safetensors");
    test_headers();
    test_index();
    CHECK_OK(file_remove_tree(root));
    return 0;
}
