#include "datasets/tokenizer/corpus.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "datasets/rows/jsonl.h"

#define PIECE_BYTES ((size_t)4 << 20)

/* The texts of JSON Lines, one after the other. */
struct rows {
    FILE *file; /* NULL: the open file is plain text */
    char *line;
    size_t line_bytes;
    int64_t number; /* of the line, from 1 */
    json_t *row;
    const char *text; /* of the row; `left` bytes have still to be read */
    size_t left;
    struct jsonl_bad bad;
};

struct corpus {
    char *const *files;
    int count;
    int current; /* files[current] is open, or the next to open where file < 0 */
    int file;
    int64_t offset; /* in the file, of the carried bytes */
    size_t carried;
    char *carry; /* read already, belongs to the next piece */
    struct rows rows;
    pthread_mutex_t lock;
};

status corpus_open(char *const *files, int count, struct corpus **out)
{
    *out = NULL;
    struct corpus *c = calloc(1, sizeof *c);
    REQUIRE(c != NULL, STATUS_INTERNAL, "out of memory: a corpus");
    c->carry = malloc(PIECE_BYTES);
    if (c->carry == NULL) {
        free(c);
        RAISE(STATUS_INTERNAL, "out of memory: a corpus");
    }
    c->files = files;
    c->count = count;
    c->file = -1;
    c->rows.bad.skip = true;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return STATUS_OK;
}

static void close_file(struct corpus *c)
{
    if (c->rows.file != NULL) {
        fclose(c->rows.file); /* and what is below it */
    } else if (c->file >= 0) {
        close(c->file);
    }
    json_decref(c->rows.row);
    free(c->rows.line);
    c->rows = (struct rows){.bad = c->rows.bad};
    c->file = -1;
}

void corpus_close(struct corpus *c)
{
    if (c != NULL) {
        close_file(c);
        if (c->rows.bad.count > 0) {
            log_warning("BAD-ROWS", "%lld row%s skipped", (long long)c->rows.bad.count,
                        c->rows.bad.count == 1 ? " was" : "s were");
        }
        pthread_mutex_destroy(&c->lock);
        free(c->carry);
        free(c);
    }
}

void corpus_piece_free(struct corpus_piece *piece)
{
    free(piece->text);
    *piece = (struct corpus_piece){0};
}

status corpus_check(const char *path, const char *text, size_t bytes)
{
    static const struct {
        const char *head;
        size_t bytes;
        const char *name;
    } known[] = {{"\x1F\x8B", 2, "gzip"},
                 {"\x28\xB5\x2F\xFD", 4, "zstd"},
                 {"\xFD"
                  "7zXZ",
                  5, "xz"},
                 {"PK\x03\x04", 4, "zip"},
                 {"PAR1", 4, "Parquet"},
                 {"\x89HDF\r\n", 6, "HDF5"},
                 {"\xFF\xFE", 2, "UTF-16"},
                 {"\xFE\xFF", 2, "UTF-16"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool same = bytes >= known[i].bytes && memcmp(text, known[i].head, known[i].bytes) == 0;
        REQUIRE(!same, STATUS_DATA, "%s is a %s file, no text; unpack or convert it first", path,
                known[i].name);
    }
    return STATUS_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Where the piece ends; `bytes` where there is no good place. */
static size_t cut(const char *text, size_t bytes)
{
    for (size_t at = bytes - 1; at > 0; at--) {
        if (is_blank(text[at]) && isgraph((unsigned char)text[at - 1])) {
            return at;
        }
    }
    size_t at = bytes;
    for (int i = 0; i < 3 && (text[at - 1] & 0xc0) == 0x80; i++) {
        at--;
    }
    bool begun = ((unsigned char)text[at - 1] & 0xc0) == 0xc0;
    return begun ? at - 1 : bytes;
}

static status take_row(struct rows *r, const char *text, size_t bytes)
{
    json_decref(r->row);
    r->row = NULL;
    TRY(jsonl_parse(text, bytes, &r->row));
    return jsonl_text(r->row, "text", &r->text, &r->left);
}

/* The next line with a text; r->left is 0 at the file's end. A row without one is told, and left out. */
static status next_row(struct rows *r, const char *path)
{
    while (r->left == 0) {
        ssize_t bytes = getline(&r->line, &r->line_bytes, r->file);
        if (bytes < 0) {
            REQUIRE(feof(r->file), STATUS_DATA, "cannot read %s: %s", path, strerror(errno));
            return STATUS_OK;
        }
        r->number++;
        bool marked = r->number == 1 && strncmp(r->line, "\xEF\xBB\xBF", 3) == 0;
        const char *text = r->line + (marked ? 3 : 0);
        if (text[strspn(text, " \t\r\n")] == '\0' && strlen(r->line) == (size_t)bytes) {
            continue;
        }
        status result = take_row(r, text, (size_t)(r->line + bytes - text));
        TRY(result == STATUS_DATA ? jsonl_refuse(&r->bad, path, r->number) : result);
    }
    return STATUS_OK;
}

static status fill(struct corpus *c, struct corpus_piece *piece, bool *ended)
{
    const char *path = c->files[c->current];
    memcpy(piece->text, c->carry, c->carried);
    piece->bytes = c->carried;
    piece->path = path;
    piece->offset = c->offset;
    *ended = false;
    while (piece->bytes < PIECE_BYTES && !*ended) {
        ssize_t got = read(c->file, piece->text + piece->bytes, PIECE_BYTES - piece->bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(got >= 0, STATUS_DATA, "cannot read %s: %s", path, strerror(errno));
        piece->bytes += (size_t)got;
        *ended = got == 0;
    }
    return STATUS_OK;
}

/* A row is a piece, or several: no word goes from one row to the next. */
static status next_of_rows(struct corpus *c, struct corpus_piece *piece)
{
    struct rows *r = &c->rows;
    piece->path = c->files[c->current];
    piece->offset = 0;
    TRY(next_row(r, piece->path));
    if (r->left == 0) {
        close_file(c);
        c->current++;
        return STATUS_OK;
    }
    piece->bytes = r->left < PIECE_BYTES ? r->left : PIECE_BYTES;
    memcpy(piece->text, r->text, piece->bytes);
    piece->bytes = piece->bytes < r->left ? cut(piece->text, piece->bytes) : piece->bytes;
    r->text += piece->bytes;
    r->left -= piece->bytes;
    return STATUS_OK;
}

static status next_of_file(struct corpus *c, struct corpus_piece *piece)
{
    bool ended = false;
    TRY(fill(c, piece, &ended));
    TRY(c->offset == 0 ? corpus_check(piece->path, piece->text, piece->bytes) : STATUS_OK);
    if (ended) {
        close_file(c);
        c->carried = 0;
        c->current++;
        return STATUS_OK;
    }
    size_t end = cut(piece->text, piece->bytes);
    c->carried = piece->bytes - end;
    memcpy(c->carry, piece->text + end, c->carried);
    piece->bytes = end;
    c->offset += (int64_t)end;
    return STATUS_OK;
}

static status next_locked(struct corpus *c, struct corpus_piece *piece)
{
    piece->bytes = 0;
    while (piece->bytes == 0 && c->current < c->count) {
        if (c->file < 0) {
            const char *path = c->files[c->current];
            c->file = open(path, O_RDONLY | O_CLOEXEC);
            REQUIRE(c->file >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
                    "cannot open %s: %s", path, strerror(errno));
            c->offset = 0;
            c->rows.file = jsonl_named(path) ? fdopen(c->file, "r") : NULL;
            REQUIRE(c->rows.file != NULL || !jsonl_named(path), STATUS_INTERNAL,
                    "out of memory: reading %s", path);
        }
        TRY(c->rows.file != NULL ? next_of_rows(c, piece) : next_of_file(c, piece));
    }
    return STATUS_OK;
}

status corpus_next(struct corpus *c, struct corpus_piece *piece)
{
    if (piece->text == NULL) {
        piece->text = malloc(PIECE_BYTES);
        REQUIRE(piece->text != NULL, STATUS_INTERNAL, "out of memory: a piece of text");
    }
    pthread_mutex_lock(&c->lock);
    status result = next_locked(c, piece);
    pthread_mutex_unlock(&c->lock);
    return result;
}
