/* Tests of inputs: compressed data of each format with several sizes of reads, several members,
 * empty data, damaged and truncated data, pipes that are read twice, the recognition of JSON. */
#include <fcntl.h>

#include "base/input/input.h"
#include "base/input/line_reader.h"
#include "base/memory.h"
#include "tests/datasets/folder.h"

enum { TEXT_BYTES = 30011 };

static char text[TEXT_BYTES];
static const char *const programs[] = {"gzip", "zstd", "xz", "bzip2"};

/* RUN_SHELL - run a formatted command; whether it succeeded. */
#define RUN_SHELL(...) (snprintf(command, sizeof command, __VA_ARGS__), system(command) == 0)
static char command[3 * FILE_PATH_BYTES];

/* Reads a file in pieces of this size. Returns the number of bytes; -1 after STATUS_DATA. */
static int64_t read_input(const char *path, size_t piece, char *out, size_t capacity)
{
    struct input in;
    size_t used = 0, got = 1;
    CHECK_OK(input_open(path, &in));
    status result = STATUS_OK;
    while (got > 0 && result == STATUS_OK) {
        size_t limit = piece < capacity - used ? piece : capacity - used;
        CHECK(limit > 0);
        result = input_read(&in, out + used, limit, &got);
        used += result == STATUS_OK ? got : 0;
    }
    input_close(&in);
    if (result != STATUS_OK) {
        CHECK_EQUAL(result, STATUS_DATA);
        CHECK(strstr(status_pending()->text, path) != NULL);
        status_clear();
        return -1;
    }
    return (int64_t)used;
}

static void check_text(const char *path, size_t piece, int copies)
{
    static char out[2 * TEXT_BYTES + 1];
    CHECK_EQUAL(read_input(path, piece, out, sizeof out), copies * TEXT_BYTES);
    for (int i = 0; i < copies; i++) {
        CHECK(memcmp(out + i * TEXT_BYTES, text, TEXT_BYTES) == 0);
    }
}

/* Damages each of the bytes: the data is refused, or it is the same (a field that does not matter,
 * such as the time in a gzip header). */
static void check_damage(const char *path, const char *program)
{
    static char out[4 * TEXT_BYTES];
    size_t bytes;
    char *data = folder_read(path, &bytes), *damaged = folder_file("damaged");
    int refused = 0, equal = 0;
    for (size_t i = 0; i < bytes; i += i < 40 || i + 60 > bytes ? 1 : 37) {
        data[i] ^= 0x10;
        folder_write(damaged, data, bytes);
        data[i] ^= 0x10;
        int64_t got = read_input(damaged, 4096, out, sizeof out);
        bool same = got == TEXT_BYTES && memcmp(out, text, TEXT_BYTES) == 0;
        bool plain = got == (int64_t)bytes; /* the format is no longer recognized */
        if (!same && !plain && got != -1) {
            fprintf(stderr, "%s: damage at byte %zu of %zu is not noticed\n", program, i, bytes);
            exit(1);
        }
        refused += got == -1;
        equal += same;
    }
    CHECK(refused > 60 && equal < 40);
    for (size_t i = 8; i<bytes; i += i + 40> bytes ? 1 : 997) {
        folder_write(damaged, data, i);
        CHECK_EQUAL(read_input(damaged, 4096, out, sizeof out), -1);
    }
    free(data);
}

/* Zero bytes after the data, as tapes and tar write them, are accepted where the program of the
 * format accepts them. Other bytes after them are not. */
static void check_padding(const char *path, const char *program)
{
    static char out[2 * TEXT_BYTES];
    char *padded = folder_file("padded");
    if (strcmp(program, "zstd") == 0) {
        return;
    }
    CHECK(RUN_SHELL("(cat %s; head -c 70000 /dev/zero) >%s", path, padded));
    check_text(padded, 1000, 1);
    CHECK(RUN_SHELL("(cat %s; head -c 8 /dev/zero; cat %s) >%s", path, path, padded));
    if (strcmp(program, "gzip") == 0) {
        CHECK_EQUAL(read_input(padded, 4096, out, sizeof out), -1);
    }
}

static void test_formats(void)
{
    char *plain = folder_file("plain"), *file = folder_file("packed"), *twice = folder_file("two");
    static char out[16];
    folder_write(plain, text, TEXT_BYTES);
    check_text(plain, 7, 1);
    for (int i = 0; i < 4; i++) {
        if (!RUN_SHELL("%s -c <%s >%s", programs[i], plain, file)) {
            printf("not checked: no program %s\n", programs[i]);
            continue;
        }
        check_text(file, 1, 1);
        check_text(file, 1 << 20, 1);
        CHECK(RUN_SHELL("cat %s %s >%s", file, file, twice));
        check_text(twice, 1000, 2);
        check_padding(file, programs[i]);
        check_damage(file, programs[i]);
        CHECK(RUN_SHELL("%s -c </dev/null >%s", programs[i], file));
        CHECK_EQUAL(read_input(file, 16, out, sizeof out), 0);
    }
    CHECK(input_has_suffix("a.csv", ".csv") && input_has_suffix("a.csv.gz", ".csv"));
    CHECK(!input_has_suffix("a.csv.gzip", ".csv") && !input_has_suffix(".csv", ".csv"));
    CHECK(input_has_suffix("a.b.jsonl.zst", ".jsonl") && !input_has_suffix("jsonl.xz", ".jsonl"));
}

/* A pipe can be read again after input_keep; a moved struct input stays valid. */
static void test_streams(void)
{
    char *plain = folder_file("plain"), *pipe_path = folder_file("pipe");
    CHECK(mkfifo(pipe_path, 0600) == 0);
    CHECK(input_is_stream(pipe_path) && input_is_stream("-") && !input_is_stream(plain));
    CHECK(RUN_SHELL("gzip -c <%s >%s &", plain, pipe_path));
    CHECK_OK(input_keep(pipe_path, folder_file("kept")));
    CHECK_OK(input_keep(plain, folder_file("kept")));
    check_text(pipe_path, 100, 1);
    check_text(pipe_path, 1 << 16, 1);
    struct input in;
    struct line_reader lines;
    bool is_json = true, found = false;
    CHECK_OK(input_open(pipe_path, &in));
    CHECK_OK(input_looks_like_json(&in, &is_json));
    CHECK(!is_json);
    CHECK_OK(line_reader_open_input(&in, &lines));
    memset(&in, 0xff, sizeof in);
    CHECK_OK(line_reader_next(&lines, &found));
    CHECK(found && lines.bytes > 0 && memcmp(lines.line, text, lines.bytes) == 0);
    line_reader_close(&lines);
}

static void test_json(void)
{
    static const struct {
        const char *text;
        bool is_json;
    } cases[] = {{"{\"a\": 1}\n", true},
                 {" \n{\"", true},
                 {"[{\"a\"", true},
                 {"", false},
                 {"{", false},
                 {"{x}", false},
                 {"a,b\n", false},
                 {"[x]", false},
                 {"\xEF\xBB\xBF{\"a\"", true},
                 {"\xEF\xBB\xBF"
                  "a,b\n",
                  false},
                 {"\xEF\xBB", false}};
    for (int i = 0; i < COUNT(cases); i++) {
        char *path = folder_file("json"), out[16];
        struct input in;
        bool is_json;
        size_t got;
        folder_write(path, cases[i].text, strlen(cases[i].text));
        CHECK_OK(input_open(path, &in));
        CHECK_OK(input_looks_like_json(&in, &is_json));
        CHECK_EQUAL(is_json, cases[i].is_json);
        for (size_t used = 0; used < strlen(cases[i].text); used += got) {
            CHECK_OK(input_read(&in, out, sizeof out, &got)); /* nothing was consumed */
            CHECK(got > 0 && memcmp(out, cases[i].text + used, got) == 0);
        }
        input_close(&in);
    }
}

int main(void)
{
    struct input in;
    folder_make();
    for (int i = 0; i < TEXT_BYTES; i++) { /* text that is neither random nor trivial */
        text[i] = (char)(i % 61 == 60 ? '\n' : 'a' + (i * i / 7 + i) % 23);
    }
    test_formats();
    test_streams();
    test_json();
    CHECK_FAILS(input_open(folder_path, &in), STATUS_DATA, "is a folder");
    CHECK_FAILS(input_open(folder_file("missing"), &in), STATUS_NO_INPUT, "cannot open");
    return 0;
}
