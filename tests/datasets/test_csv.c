/* Tests of the CSV reader: a first row of many names in linear time, and the delimiter of a first
 * row with long names. The rules of the format are tested with `bireme prepare`
 * (test_shard_task.c). */
#include "base/memory.h"
#include "datasets/rows/row_file.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"

enum { NAMES = 500000, NAME_BYTES = 8 };

static status count_fields(void *user, struct jsonl_row *row)
{
    *(size_t *)user += json_object_size(row->value);
    return STATUS_OK;
}

/* Writes a first row of different names; the last one is `last`. */
static void write_names(const char *path, const char *last)
{
    char *text = malloc((size_t)NAMES * NAME_BYTES + 16);
    size_t used = 0;
    CHECK(text != NULL);
    for (int i = 0; i < NAMES - 1; i++) {
        used += (size_t)snprintf(text + used, NAME_BYTES + 1, "f%06d,", i);
    }
    used += (size_t)snprintf(text + used, 16, "%s\n", last);
    folder_write(path, text, used);
    free(text);
}

static status read_fields(const char *path, char delimiter, size_t *fields)
{
    struct jsonl_bad_rows bad = {.skip = false};
    int64_t bytes = 0;
    *fields = 0;
    struct row_format format = {.delimiter = delimiter};
    return row_file_read(&format, path, &bad, &bytes, count_fields, fields);
}

/* The whole first line determines the delimiter: the first read of a file returns a few bytes. */
static void test_delimiter(void)
{
    static const char *const texts[] = {"the_first_name;b\n1;2,3\n", "the_first_name\tb\n1\t2\n",
                                        "\xEF\xBB\xBFthe_first_name;b\n1;2",
                                        "the_first_name,b\n1,2\n"};
    for (int i = 0; i < COUNT(texts); i++) {
        size_t fields;
        const char *path = folder_file("table.csv");
        folder_write(path, texts[i], strlen(texts[i]));
        CHECK_OK(read_fields(path, '\0', &fields));
        CHECK_EQUAL(fields, 2);
    }
}

/* Keeps the second field of the last row. */
static status keep_field(void *user, struct jsonl_row *row)
{
    const char *text = json_string_value(json_object_get(row->value, "b"));
    CHECK(text != NULL);
    snprintf(user, 32, "%.31s", text);
    return STATUS_OK;
}

/* Between tabs, quotes are ordinary characters: a single one does not join lines. */
static void test_tabs(void)
{
    static const char *const fields[] = {"\"x", "x\"", "\"x\"", "x \"y\" z", "\"", "\"\"", "\"\r"};
    for (int i = 0; i < COUNT(fields); i++) {
        char text[64], field[32] = "none";
        struct jsonl_bad_rows bad = {.skip = false};
        int64_t bytes = 0;
        const char *path = folder_file("table.csv");
        int used = snprintf(text, sizeof text, "a\tb\nq\t%s\nr\t%s", fields[i], fields[i]);
        folder_write(path, text, (size_t)used);
        CHECK_OK(row_file_read(&(struct row_format){.delimiter = '\0'}, path, &bad, &bytes,
                               keep_field, field));
        CHECK(strncmp(field, fields[i], strcspn(fields[i], "\r")) == 0);
        CHECK(strchr(field, '\r') == NULL && strlen(field) > 0);
        size_t count;
        CHECK_OK(read_fields(path, '\0', &count));
        CHECK_EQUAL(count, 4); /* two rows of two fields */
    }
}

int main(void)
{
    const char *path;
    size_t fields;
    folder_make();
    path = folder_file("names.csv");
    write_names(path, "last");
    CHECK_OK(read_fields(path, ',', &fields));
    CHECK(fields == 0);
    write_names(path, "f000001");
    CHECK_FAILS(read_fields(path, ',', &fields), STATUS_DATA, "two fields have the name 'f000001'");
    folder_write(path, "a,b\n1,\"x,\n\"\"\"\n", 14);
    CHECK_OK(read_fields(path, ',', &fields));
    CHECK(fields == 2);
    test_delimiter();
    test_tabs();
    return 0;
}
