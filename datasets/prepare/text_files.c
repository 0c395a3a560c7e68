/* Plain text: a file, a paragraph or a line is a document. All by portions; a line may be of any length. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "datasets/prepare/input.h"
#include "datasets/tokenizer/corpus.h"

enum { READ_BYTES = 256 << 10 };

status reader_open(const char *path, struct reader *out)
{
    *out = (struct reader){.file = open(path, O_RDONLY | O_CLOEXEC), .path = path};
    REQUIRE(out->file >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    struct stat about;
    if (fstat(out->file, &about) != 0 || S_ISDIR(about.st_mode)) {
        reader_close(out);
        RAISE(STATUS_DATA, "%s is a folder; name the files in it", path);
    }
    return STATUS_OK;
}

status reader_read(struct reader *r, char *out, size_t most, size_t *got)
{
    ssize_t bytes;
    do {
        bytes = read(r->file, out, most);
    } while (bytes < 0 && errno == EINTR);
    REQUIRE(bytes >= 0, STATUS_DATA, "cannot read %s at byte %lld: %s", r->path,
            (long long)r->bytes, strerror(errno));
    *got = (size_t)bytes;
    r->bytes += bytes;
    log_progress("%s: %lld MB read", r->path, (long long)r->bytes / 1000000);
    return STATUS_OK;
}

void reader_close(struct reader *r)
{
    if (r->file >= 0) {
        close(r->file);
        r->file = -1;
    }
}

/* Where the scan of lines stands between two portions. */
struct lines {
    struct cutter *cutter;
    enum prepare_documents documents;
    const char *path;
    int64_t place;     /* of the next byte, in the file */
    bool in_document;  /* a paragraph or a line with something in it */
    bool line_visible; /* this line has a byte that is no blank */
    bool owes_newline; /* a paragraph's line ended; its end belongs to the document if it goes on */
    size_t blanks;     /* blanks that wait for something visible after them */
    char waiting[PREPARE_PIECE_BYTES];
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static status flush_blanks(struct lines *l)
{
    size_t count = l->blanks;
    l->blanks = 0;
    return cutter_write(l->cutter, l->waiting, count);
}

static status add_visible(struct lines *l, const char *text, size_t bytes)
{
    if (!l->in_document) {
        cutter_begin(l->cutter, (struct origin){l->path, l->place, false});
        l->in_document = true;
    }
    if (l->owes_newline) {
        TRY(cutter_write(l->cutter, "\n", 1));
        l->owes_newline = false;
    }
    l->line_visible = true;
    TRY(flush_blanks(l));
    return cutter_write(l->cutter, text, bytes);
}

/* Blanks before a line's first visible byte are its own if one comes; more than fit are visible. */
static status add_blank(struct lines *l, char c)
{
    if (l->blanks == sizeof l->waiting) {
        TRY(add_visible(l, "", 0));
    }
    l->waiting[l->blanks++] = c;
    return STATUS_OK;
}

/* Bytes of one line, without its end. A run of blanks at a line's end is known as one only later. */
static status add_line_bytes(struct lines *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        size_t visible = 0;
        while (visible < bytes &&
               (!is_blank(text[visible]) || (l->line_visible && text[visible] != '\r'))) {
            visible++;
        }
        if (visible > 0) {
            TRY(add_visible(l, text, visible));
        } else {
            TRY(add_blank(l, *text));
            visible = 1;
        }
        l->place += (int64_t)visible;
        text += visible;
        bytes -= visible;
    }
    return STATUS_OK;
}

static status end_line(struct lines *l)
{
    bool visible = l->line_visible;
    bool returned = l->blanks > 0 && l->waiting[l->blanks - 1] == '\r'; /* "\r\n" ends a line too */
    l->line_visible = false;
    if (visible) {
        l->blanks -= returned;
        TRY(flush_blanks(l));
    }
    l->blanks = 0;
    l->place++;
    if (l->documents == PREPARE_PARAGRAPH && visible) {
        l->owes_newline = true;
        return STATUS_OK;
    }
    l->owes_newline = false;
    if (!l->in_document) {
        return STATUS_OK;
    }
    l->in_document = false;
    return cutter_end(l->cutter);
}

static status add_lines(struct lines *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t part = newline != NULL ? (size_t)(newline - text) : bytes;
        TRY(add_line_bytes(l, text, part));
        if (newline == NULL) {
            return STATUS_OK;
        }
        TRY(end_line(l));
        text += part + 1;
        bytes -= part + 1;
    }
    return STATUS_OK;
}

static status end_lines(struct lines *l)
{
    TRY(end_line(l));
    if (l->in_document) { /* a paragraph that the file's end closes */
        l->in_document = false;
        return cutter_end(l->cutter);
    }
    return STATUS_OK;
}

static status read_text(struct input *in, struct reader *r, struct lines *l, char *buffer)
{
    bool whole = in->options->documents == PREPARE_FILE;
    cutter_begin(in->cutter, (struct origin){r->path, 0, false});
    for (size_t got = 1; got > 0;) {
        bool first = r->bytes == 0;
        TRY(reader_read(r, buffer, READ_BYTES, &got));
        TRY(first ? corpus_check(r->path, buffer, got) : STATUS_OK);
        TRY(whole ? cutter_write(in->cutter, buffer, got) : add_lines(l, buffer, got));
    }
    return whole ? cutter_end(in->cutter) : end_lines(l);
}

status prepare_text(struct input *in, const char *path)
{
    struct reader r;
    TRY(reader_open(path, &r));
    struct lines *l = calloc(1, sizeof *l);
    char *buffer = malloc(READ_BYTES);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, l != NULL && buffer != NULL, STATUS_INTERNAL,
                 "out of memory: reading %s", path);
    l->cutter = in->cutter;
    l->documents = in->options->documents;
    l->path = path;
    result = read_text(in, &r, l, buffer);
    in->report->bytes += r.bytes;
done:
    free(l);
    free(buffer);
    reader_close(&r);
    return result;
}
