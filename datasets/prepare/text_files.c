/* A file is read in blocks, and a line may have any length. Blanks at the start of a line are
 * buffered until other text follows: a line of blanks only is a blank line. A carriage return
 * before a newline is not part of a document. */
#include "datasets/prepare/text_files.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/utf8.h"
#include "datasets/rows/corpus.h"
#include "datasets/rows/file_reader.h"

/* A block may end inside a character; its bytes then begin the next block. */
enum { READ_BYTES = 256 << 10, CHARACTER_BYTES = 4, BUFFER_BYTES = READ_BYTES + CHARACTER_BYTES };

/* State of the scan between two blocks. */
struct line_scanner {
    struct splitter *splitter;
    enum prepare_document_unit document_unit;
    const char *path;
    int64_t offset;       /* of the next byte in the file */
    bool in_document;     /* a paragraph or line with text has started */
    bool line_visible;    /* the current line has a byte that is not blank */
    bool pending_newline; /* a line of a paragraph ended; write a newline if text follows */
    size_t pending_count; /* buffered blanks */
    char pending[ENCODER_CHUNK_BYTES];
};

static status flush_pending_blanks(struct line_scanner *l)
{
    size_t count = l->pending_count;
    l->pending_count = 0;
    return splitter_write(l->splitter, l->pending, count);
}

static status add_visible(struct line_scanner *l, const char *text, size_t bytes)
{
    if (!l->in_document) {
        splitter_begin_document(l->splitter, (struct encoder_origin){l->path, l->offset, false});
        l->in_document = true;
    }
    if (l->pending_newline) {
        TRY(splitter_write(l->splitter, "\n", 1));
        l->pending_newline = false;
    }
    l->line_visible = true;
    TRY(flush_pending_blanks(l));
    return splitter_write(l->splitter, text, bytes);
}

/* Buffers a blank. If the buffer is full, the blanks count as text. */
static status add_blank(struct line_scanner *l, char c)
{
    if (l->pending_count == sizeof l->pending) {
        TRY(add_visible(l, "", 0));
    }
    l->pending[l->pending_count++] = c;
    return STATUS_OK;
}

/* Adds bytes of one line, without its newline. Blanks at the start of the line and every
 * carriage return are buffered. */
static status add_line_bytes(struct line_scanner *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        size_t visible = 0;
        while (visible < bytes &&
               (!text_is_space(text[visible]) || (l->line_visible && text[visible] != '\r'))) {
            visible++;
        }
        if (visible > 0) {
            TRY(add_visible(l, text, visible));
        } else {
            TRY(add_blank(l, *text));
            visible = 1;
        }
        l->offset += (int64_t)visible;
        text += visible;
        bytes -= visible;
    }
    return STATUS_OK;
}

static status end_line(struct line_scanner *l)
{
    bool visible = l->line_visible;
    bool returned = l->pending_count > 0 &&
                    l->pending[l->pending_count - 1] == '\r'; /* "\r\n" is a newline too */
    l->line_visible = false;
    if (visible) {
        l->pending_count -= returned;
        TRY(flush_pending_blanks(l));
    }
    l->pending_count = 0;
    l->offset++;
    if (l->document_unit == PREPARE_DOCUMENT_PARAGRAPH && visible) {
        l->pending_newline = true;
        return STATUS_OK;
    }
    l->pending_newline = false;
    if (!l->in_document) {
        return STATUS_OK;
    }
    l->in_document = false;
    return splitter_end_document(l->splitter);
}

static status scan_lines(struct line_scanner *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t count = newline != NULL ? (size_t)(newline - text) : bytes;
        TRY(add_line_bytes(l, text, count));
        if (newline == NULL) {
            return STATUS_OK;
        }
        TRY(end_line(l));
        text += count + 1;
        bytes -= count + 1;
    }
    return STATUS_OK;
}

static status finish_scan(struct line_scanner *l)
{
    TRY(end_line(l));
    if (l->in_document) { /* the end of the file ends a paragraph */
        l->in_document = false;
        return splitter_end_document(l->splitter);
    }
    return STATUS_OK;
}

/* Checks whether a file is UTF-8. */
struct utf8_check {
    const char *path;
    int64_t line;  /* of the next block, from 1 */
    bool required; /* the tokenizer would replace an invalid byte */
    bool failed;   /* an invalid byte was reported */
};

static int64_t count_newlines(const char *text, size_t bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        count += text[i] == '\n';
    }
    return count;
}

static status report_invalid(struct utf8_check *c, int64_t line, unsigned char byte)
{
    c->failed = true;
    REQUIRE(!c->required, STATUS_DATA, "%s:%" PRId64 ": the byte 0x%02x is not UTF-8; " UTF8_REMEDY,
            c->path, line, byte);
    log_warning("TEXT",
                "%s:%" PRId64 ": the byte 0x%02x is not UTF-8; such bytes are encoded as they "
                "are",
                c->path, line, byte);
    return STATUS_OK;
}

/* Checks a block. *checked receives its size without an incomplete character at its end. */
static status check_block(struct utf8_check *c, const char *text, size_t bytes, bool at_end,
                          size_t *checked)
{
    *checked = bytes;
    if (c->failed) {
        return STATUS_OK;
    }
    size_t valid = utf8_find_valid_end(text, bytes, 0);
    int64_t lines = count_newlines(text, valid);
    if (valid < bytes && (at_end || bytes - valid >= CHARACTER_BYTES)) {
        return report_invalid(c, c->line + lines, (unsigned char)text[valid]);
    }
    c->line += lines;
    *checked = valid;
    return STATUS_OK;
}

static status read_documents(struct prepare_input *in, struct file_reader *r,
                             struct line_scanner *l, char *buffer)
{
    bool whole = in->options->document_unit == PREPARE_DOCUMENT_FILE;
    bool keeps_bytes = tokenizer_keeps_bytes(in->options->tokenizer);
    struct utf8_check check = {.path = r->path, .line = 1, .required = !keeps_bytes};
    size_t kept = 0, checked;
    splitter_begin_document(in->splitter, (struct encoder_origin){r->path, 0, false});
    for (size_t got = 1; got > 0;) {
        bool first = r->bytes == 0;
        TRY(file_reader_read(r, buffer + kept, READ_BYTES, &got));
        TRY(first ? corpus_check_format(r->path, buffer, got) : STATUS_OK);
        TRY(check_block(&check, buffer, kept + got, got == 0, &checked));
        TRY(whole ? splitter_write(in->splitter, buffer, checked) : scan_lines(l, buffer, checked));
        kept = kept + got - checked;
        memmove(buffer, buffer + checked, kept);
    }
    return whole ? splitter_end_document(in->splitter) : finish_scan(l);
}

/* ---- rows ---- */

static status add_row(void *user, struct jsonl_row *row)
{
    struct prepare_input *in = user;
    const char *text;
    size_t bytes;
    TRY(jsonl_get_string(row->value, "text", &text, &bytes));
    row->fatal = true; /* errors from here on may belong to earlier rows */
    splitter_begin_document(in->splitter, (struct encoder_origin){row->path, row->line, true});
    TRY(splitter_write(in->splitter, text, bytes));
    return splitter_end_document(in->splitter);
}

static status read_rows(struct prepare_input *in, struct file_reader *r, const char *path)
{
    struct jsonl_bad_rows bad_rows = {.skip = in->options->skip_bad_rows,
                                      .count = in->report->bad_rows};
    status result = row_file_read_open(&in->options->format, r, path, &bad_rows, &in->report->bytes,
                                       add_row, in);
    in->report->bad_rows = bad_rows.count;
    return result;
}

/* ---- files ---- */

static status read_text(struct prepare_input *in, struct file_reader *r)
{
    struct line_scanner *l = NULL;
    char *buffer = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(l, 1, r->path));
    TRY_GOTO(result, done, ALLOCATE(buffer, BUFFER_BYTES, r->path));
    l->splitter = in->splitter;
    l->document_unit = in->options->document_unit;
    l->path = r->path;
    result = read_documents(in, r, l, buffer);
    in->report->bytes += r->bytes;
done:
    free(l);
    free(buffer);
    return result;
}

status text_files_read(struct prepare_input *in, const char *path)
{
    bool has_columns = in->options->format.columns.count > 0;
    bool is_rows = jsonl_has_extension(path) || (has_columns && row_file_is_table(path));
    struct file_reader r;
    TRY(file_reader_open(path, &r));
    status result = STATUS_OK;
    if (!is_rows && input_is_stream(path)) {
        result = input_looks_like_json(&r.input, &is_rows);
        is_rows = is_rows || has_columns;
    }
    if (result == STATUS_OK && !is_rows && (has_columns || in->options->format.delimiter != '\0')) {
        result = RAISE_STATUS(STATUS_USAGE,
                              "%s is read as plain text, which has no columns; leave out --columns "
                              "and --delimiter, or name rows *.jsonl, and tables *.csv or *.tsv "
                              "with --columns",
                              r.path);
    }
    if (result == STATUS_OK && !is_rows) {
        result = corpus_warn_rows(path, &r.input);
    }
    if (result == STATUS_OK) {
        result = is_rows ? read_rows(in, &r, path) : read_text(in, &r);
    }
    file_reader_close(&r);
    return result;
}
