#include "datasets/rows/aligned_lines.h"

#include <inttypes.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/text.h"
#include "base/utf8.h"

enum { SOURCE, TARGET, FILES };

struct aligned_reader {
    const char *paths[FILES];
    struct line_reader lines[FILES];
    bool found[FILES]; /* the file has a line with this number */
    struct jsonl_bad_rows *bad;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
};

static bool is_blank(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && text_is_space(text[i])) {
        i++;
    }
    return i == bytes;
}

/* Makes a JSON string of a line. Omits a byte order mark at the beginning of the file and a
 * carriage return at the end of the line. */
static status make_text(const struct line_reader *r, json_t **out)
{
    const char *text = r->line;
    size_t bytes = r->bytes;
    bool has_mark = r->number == 1 && bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0;
    text += has_mark ? 3 : 0;
    bytes -= has_mark ? 3 : 0;
    bytes -= bytes > 0 && text[bytes - 1] == '\r';
    TRY(line_reader_check_length(r));
    REQUIRE(!is_blank(text, bytes), STATUS_DATA, "the line is empty");
    *out = json_stringn(text, bytes); /* NULL if the text is not UTF-8 */
    REQUIRE(*out != NULL, STATUS_DATA, "the line is not valid UTF-8; " UTF8_REMEDY);
    return STATUS_OK;
}

/* Checks that both files have this line, and makes a row of it. After an error, row->path is the
 * file with the fault. */
static status make_row(const struct aligned_reader *a, struct jsonl_row *row)
{
    static const char *const fields[FILES] = {"source", "target"};
    for (int i = 0; i < FILES; i++) {
        REQUIRE(a->found[i], STATUS_DATA,
                "%s has no line %" PRId64 ", but %s has one; line i of both files must belong "
                "together",
                a->paths[i], a->lines[i].number, a->paths[1 - i]);
    }
    for (int i = 0; i < FILES; i++) {
        json_t *text = NULL;
        row->path = a->paths[i];
        TRY(make_text(&a->lines[i], &text));
        REQUIRE(json_object_set_new(row->value, fields[i], text) == 0, STATUS_INTERNAL,
                "out of memory for a row");
    }
    row->path = a->paths[SOURCE];
    return STATUS_OK;
}

static status use_lines(struct aligned_reader *a)
{
    struct jsonl_row row = {.path = a->paths[SOURCE],
                            .line = a->lines[SOURCE].number,
                            .value = json_object(),
                            .bytes = a->lines[SOURCE].bytes + a->lines[TARGET].bytes};
    REQUIRE(row.value != NULL, STATUS_INTERNAL, "out of memory for a row");
    status result = make_row(a, &row);
    if (result == STATUS_OK) {
        result = a->use(a->user, &row);
        a->bad->has_good_row = a->bad->has_good_row || result == STATUS_OK;
    }
    json_decref(row.value);
    return result == STATUS_DATA && !row.fatal ? jsonl_report_bad_row(a->bad, row.path, row.line)
                                               : result;
}

static status read_lines(struct aligned_reader *a, int64_t *bytes)
{
    for (bool more = true; more;) {
        for (int i = 0; i < FILES; i++) {
            TRY(line_reader_next(&a->lines[i], &a->found[i]));
            *bytes += a->found[i] ? (int64_t)a->lines[i].bytes + a->lines[i].has_newline : 0;
        }
        more = a->found[SOURCE] || a->found[TARGET];
        TRY(more ? use_lines(a) : STATUS_OK);
    }
    return STATUS_OK;
}

status aligned_lines_read(const char *source, const char *target, struct jsonl_bad_rows *bad,
                          int64_t *bytes, status (*use)(void *user, struct jsonl_row *row),
                          void *user)
{
    struct aligned_reader a = {.paths = {source, target}, .bad = bad, .use = use, .user = user};
    TRY(line_reader_open(source, &a.lines[SOURCE]));
    status result = line_reader_open(target, &a.lines[TARGET]);
    if (result == STATUS_OK) {
        result = read_lines(&a, bytes);
        line_reader_close(&a.lines[TARGET]);
    }
    line_reader_close(&a.lines[SOURCE]);
    return result;
}
