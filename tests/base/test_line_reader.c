/* Tests of lines: sizes around a block of 64 KiB and around the limit of 64 MiB, with and without a
 * newline at the end; many short lines; NUL characters; empty files; errors of the caller. Long
 * lines are holes of sparse files, so that reading them is fast. */
#include <fcntl.h>

#include "base/input/line_reader.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/datasets/folder.h"

enum { BLOCK = 64 << 10, LIMIT = 64 << 20, SHORT_BYTES = 5 * BLOCK + 7, OFFSET = 100 };

static char *path;

/* Writes `before` empty lines, a line of this length, and the rest. The line is 'a', NULs, 'b'. */
static void write_line(size_t before, size_t bytes, const char *rest)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && before <= OFFSET);
    char newlines[OFFSET];
    memset(newlines, '\n', sizeof newlines);
    CHECK(write(file, newlines, before) == (ssize_t)before);
    CHECK(ftruncate(file, (off_t)(before + bytes)) == 0);
    if (bytes > 0) {
        CHECK(pwrite(file, "a", 1, (off_t)before) == 1);
        CHECK(pwrite(file, "b", 1, (off_t)(before + bytes - 1)) == 1);
    }
    size_t length = strlen(rest);
    CHECK(pwrite(file, rest, length, (off_t)(before + bytes)) == (ssize_t)length);
    CHECK(close(file) == 0);
}

static void read_empty_lines(struct line_reader *r, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool found;
        CHECK_OK(line_reader_next(r, &found));
        CHECK(found && r->bytes == 0 && r->line[0] == '\0' && r->has_newline);
    }
}

static void expect_end(struct line_reader *r)
{
    for (int i = 0; i < 2; i++) {
        bool found = true;
        CHECK_OK(line_reader_next(r, &found));
        CHECK(!found);
    }
    line_reader_close(r);
}

static void expect_last_line(struct line_reader *r, int64_t number)
{
    bool found;
    CHECK_OK(line_reader_next(r, &found));
    CHECK(found && !r->has_newline && !r->too_long);
    CHECK_EQUAL(r->number, number);
    CHECK_TEXT(r->line, "last");
    expect_end(r);
}

/* A line of this length is read whole: after empty lines, with a line after it or at the end. */
static void check_size(size_t before, size_t bytes, const char *rest)
{
    struct line_reader r;
    bool found;
    write_line(before, bytes, rest);
    CHECK_OK(line_reader_open(path, &r));
    read_empty_lines(&r, before);
    CHECK_OK(line_reader_next(&r, &found));
    CHECK_EQUAL(found, bytes > 0 || rest[0] == '\n');
    if (!found) {
        expect_end(&r);
        return;
    }
    CHECK_EQUAL(r.bytes, bytes);
    CHECK_EQUAL(r.number, before + 1);
    CHECK(!r.too_long && r.has_newline == (rest[0] == '\n') && r.line[bytes] == '\0');
    CHECK(bytes < 2 || (r.line[0] == 'a' && r.line[1] == (bytes == 2 ? 'b' : '\0')));
    CHECK(bytes == 0 || r.line[bytes - 1] == 'b');
    CHECK_OK(line_reader_check_length(&r));
    if (strcmp(rest, "\nlast") == 0) {
        expect_last_line(&r, (int64_t)before + 2);
    } else {
        expect_end(&r);
    }
}

static void test_sizes(void)
{
    static const size_t sizes[] = {0,         1,         2,         BLOCK - 1, BLOCK,
                                   BLOCK + 1, 2 * BLOCK, LIMIT - 1, LIMIT};
    static const char *const rests[] = {"", "\n", "\nlast"};
    for (int i = 0; i < COUNT(sizes); i++) {
        for (int k = 0; k < COUNT(rests); k++) {
            check_size(0, sizes[i], rests[k]);
            check_size(OFFSET, sizes[i], rests[k]);
        }
    }
}

/* A line of one byte more, or of many more, is too long; the line after it can be read. */
static void test_too_long(void)
{
    static const size_t sizes[] = {LIMIT + 1, LIMIT + BLOCK, LIMIT + BLOCK + 1, 3 * (size_t)LIMIT};
    for (int i = 0; i < COUNT(sizes); i++) {
        for (size_t before = 0; before <= OFFSET; before += OFFSET) {
            struct line_reader r;
            char message[128];
            bool found;
            write_line(before, sizes[i], "\nlast");
            CHECK_OK(line_reader_open(path, &r));
            read_empty_lines(&r, before);
            CHECK_OK(line_reader_next(&r, &found));
            CHECK(found && r.too_long && !r.has_newline && r.line[0] == 'a');
            CHECK_EQUAL(r.bytes, LIMIT);
            snprintf(message, sizeof message, "lines:%zu: the line has more than 64 MiB",
                     before + 1);
            CHECK_FAILS(line_reader_check_length(&r), STATUS_DATA, message);
            expect_last_line(&r, (int64_t)before + 2);
        }
    }
    struct line_reader r;
    bool found;
    CHECK_OK(line_reader_open("/dev/zero", &r)); /* an endless line is reported at once */
    CHECK_OK(line_reader_next(&r, &found));
    CHECK(found && r.too_long);
    line_reader_close(&r);
}

/* Lines of random lengths, of which many end at the border of a block. */
static void test_many_lines(void)
{
    char *text = malloc(SHORT_BYTES);
    uint64_t key = random_key(5, RANDOM_TEST, 0, 0);
    struct line_reader r;
    CHECK(text != NULL);
    for (size_t i = 0; i < SHORT_BYTES; i++) {
        bool at_border = i % BLOCK == 0 || i % BLOCK == BLOCK - 1;
        uint64_t value = random_u64(key, i);
        text[i] = (char)(at_border || value % 600 == 0 ? '\n' : value % 256);
    }
    folder_write(path, text, SHORT_BYTES);
    CHECK_OK(line_reader_open(path, &r));
    int64_t number = 0;
    for (size_t begin = 0; begin < SHORT_BYTES;) {
        const char *newline = memchr(text + begin, '\n', SHORT_BYTES - begin);
        size_t end = newline != NULL ? (size_t)(newline - text) : SHORT_BYTES;
        bool found;
        CHECK_OK(line_reader_next(&r, &found));
        CHECK(found && r.number == ++number && r.has_newline == (newline != NULL));
        CHECK(r.bytes == end - begin && memcmp(r.line, text + begin, r.bytes) == 0);
        begin = end + 1;
    }
    CHECK(number > 500);
    expect_end(&r);
    free(text);
}

static status refuse_second(void *user, const char *line, size_t bytes)
{
    ++*(int *)user;
    CHECK(line[bytes] == '\0');
    REQUIRE(strcmp(line, "no") != 0, STATUS_DATA, "not a good line");
    return STATUS_OK;
}

static void test_visits(void)
{
    int visits = 0;
    folder_write(path, "yes\nno\nyes\n", 11);
    CHECK_FAILS(line_reader_read(path, refuse_second, &visits), STATUS_DATA,
                "lines:2: not a good line");
    CHECK_EQUAL(visits, 2);
    write_line(1, LIMIT + 1, "\n");
    CHECK_FAILS(line_reader_read(path, refuse_second, &visits), STATUS_DATA,
                "lines:2: the line has more than 64 MiB");
    CHECK_EQUAL(visits, 3);
    CHECK_FAILS(line_reader_read(folder_file("none"), refuse_second, &visits), STATUS_NO_INPUT,
                "cannot open");
    CHECK_FAILS(line_reader_read(folder_path, refuse_second, &visits), STATUS_DATA, "is a folder");
}

int main(void)
{
    folder_make();
    path = folder_file("lines");
    CHECK_EQUAL(LINE_READER_BYTES_MAX, LIMIT);
    test_sizes();
    test_too_long();
    test_many_lines();
    test_visits();
    return 0;
}
