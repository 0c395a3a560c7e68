#include "base/input/input.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "base/memory.h"

enum { BLOCK_BYTES = 64 << 10, STREAMS_MAX = 64 };
#define STANDARD_INPUT "standard input"

/* The formats, with the bytes with which their data begins. */
static const struct format {
    const char *magic; /* '?': any byte */
    size_t bytes;
    const char *name;
    int (*enable)(struct archive *reader); /* NULL: read by zlib */
} formats[] = {{"\x1F\x8B\x08", 3, "gzip", NULL},
               {"\x28\xB5\x2F\xFD", 4, "zstd", archive_read_support_filter_zstd},
               {"\xFD"
                "7zXZ\0",
                6, "xz", archive_read_support_filter_xz},
               {"BZh?1AY&", 8, "bzip2", archive_read_support_filter_bzip2},
               {"BZh?\x17rE8", 8, "bzip2", archive_read_support_filter_bzip2}}; /* no data */

struct input_decoder {
    struct input source; /* the compressed bytes; the caller may move its struct input */
    const struct format *format;
    struct archive *archive; /* not gzip */
    z_stream gzip;
    bool gzip_open; /* inflateEnd is needed */
    bool in_member; /* gzip: inside of a member; the file may not end here */
    bool padded;    /* gzip: zero bytes follow the last member, as tapes and tar write them */
    bool at_end;
    unsigned char block[BLOCK_BYTES]; /* compressed data */
};

/* ---- copies of streams ---- */

static struct kept_stream {
    char *path;
    int file;
} kept_streams[STREAMS_MAX];
static int kept_count;

static bool is_standard_input(const char *path)
{
    return path == NULL || strcmp(path, "-") == 0;
}

static const struct kept_stream *find_kept(const char *path)
{
    path = path == NULL ? "-" : path;
    for (int i = 0; i < kept_count; i++) {
        if (strcmp(kept_streams[i].path, path) == 0) {
            return &kept_streams[i];
        }
    }
    return NULL;
}

bool input_is_stream(const char *path)
{
    struct stat about;
    return is_standard_input(path) ||
           (stat(path, &about) == 0 && (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode)));
}

/* ---- open and close ---- */

status input_open(const char *path, struct input *out)
{
    const struct kept_stream *kept = find_kept(path);
    *out = (struct input){.file = STDIN_FILENO, .name = STANDARD_INPUT};
    if (kept != NULL) { /* a new description, so that reads begin at byte 0 */
        char copy[64];
        snprintf(copy, sizeof copy, "/proc/self/fd/%d", kept->file);
        out->name = is_standard_input(path) ? STANDARD_INPUT : path;
        out->file = open(copy, O_RDONLY | O_CLOEXEC);
    } else if (!is_standard_input(path)) {
        out->name = path;
        out->file = open(path, O_RDONLY | O_CLOEXEC);
    }
    REQUIRE(out->file >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", out->name, strerror(errno));
    struct stat about;
    if (fstat(out->file, &about) != 0 || S_ISDIR(about.st_mode)) {
        const char *name = out->name;
        input_close(out);
        RAISE(STATUS_DATA, "%s is a folder; name the files in it", name);
    }
    return STATUS_OK;
}

static void free_decoder(struct input_decoder *d)
{
    if (d != NULL) {
        archive_read_free(d->archive);
        if (d->gzip_open) {
            inflateEnd(&d->gzip);
        }
        free(d);
    }
}

void input_close(struct input *in)
{
    free_decoder(in->decoder);
    in->decoder = NULL;
    if (in->file > STDIN_FILENO) {
        close(in->file);
    }
    in->file = -1;
}

/* ---- bytes of the file ---- */

/* Reads bytes of the file. Bytes of the head that are not used yet come first. */
static ssize_t read_file_bytes(struct input *in, void *out, size_t max_bytes)
{
    size_t ahead = in->head_bytes - in->head_used;
    if (ahead > 0) {
        ahead = ahead < max_bytes ? ahead : max_bytes;
        memcpy(out, in->head + in->head_used, ahead);
        in->head_used += ahead;
        return (ssize_t)ahead;
    }
    ssize_t bytes;
    do {
        bytes = read(in->file, out, max_bytes);
    } while (bytes < 0 && errno == EINTR);
    return bytes;
}

static status raise_read_error(const struct input *in)
{
    RAISE(STATUS_DATA, "cannot read %s: %s", in->name, strerror(errno));
}

static bool is_prefix(const unsigned char *text, const char *magic, size_t bytes)
{
    bool equal = true;
    for (size_t i = 0; i < bytes; i++) {
        equal = equal && (magic[i] == '?' || text[i] == (unsigned char)magic[i]);
    }
    return equal;
}

/* Returns the format of the first bytes; NULL: none. *more is set if further bytes could decide. */
static const struct format *find_format(const struct input *in, bool *more)
{
    *more = false;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        size_t common = in->head_bytes < f->bytes ? in->head_bytes : f->bytes;
        if (is_prefix(in->head, f->magic, common)) {
            if (common == f->bytes) {
                return f;
            }
            *more = true;
        }
    }
    return NULL;
}

/* ---- decoders ---- */

static la_ssize_t read_archive_block(struct archive *archive, void *user, const void **block)
{
    struct input_decoder *d = user;
    ssize_t bytes = read_file_bytes(&d->source, d->block, BLOCK_BYTES);
    if (bytes < 0) {
        archive_set_error(archive, errno, "%s", strerror(errno));
    }
    *block = d->block;
    return bytes;
}

static status raise_damaged(const struct input *in, const char *reason)
{
    RAISE(STATUS_DATA, "%s: the %s data is damaged or truncated%s%s", in->name,
          in->decoder->format->name, reason != NULL ? ": " : "", reason != NULL ? reason : "");
}

static status open_archive(struct input *in)
{
    struct input_decoder *d = in->decoder;
    struct archive_entry *entry;
    d->archive = archive_read_new();
    REQUIRE(d->archive != NULL, STATUS_INTERNAL, "out of memory while reading %s", in->name);
    /* A warning means that libarchive would start another program. */
    REQUIRE(d->format->enable(d->archive) == ARCHIVE_OK, STATUS_UNAVAILABLE,
            "%s: this build of libarchive does not read %s; decompress the file first", in->name,
            d->format->name);
    bool opened = archive_read_support_format_raw(d->archive) == ARCHIVE_OK &&
                  archive_read_support_format_empty(d->archive) == ARCHIVE_OK &&
                  archive_read_open(d->archive, d, NULL, read_archive_block, NULL) == ARCHIVE_OK;
    int found = opened ? archive_read_next_header(d->archive, &entry) : ARCHIVE_FATAL;
    d->at_end = found == ARCHIVE_EOF;
    if (opened && archive_filter_code(d->archive, 0) == ARCHIVE_FILTER_NONE) {
        return raise_damaged(in, "its header is incomplete");
    }
    return found == ARCHIVE_OK || d->at_end ? STATUS_OK
                                            : raise_damaged(in, archive_error_string(d->archive));
}

static status read_archive(struct input *in, void *out, size_t max_bytes, size_t *got)
{
    struct input_decoder *d = in->decoder;
    la_ssize_t bytes = d->at_end ? 0 : archive_read_data(d->archive, out, max_bytes);
    TRY(bytes >= 0 ? STATUS_OK : raise_damaged(in, archive_error_string(d->archive)));
    d->at_end = d->at_end || bytes == 0;
    *got = (size_t)bytes;
    return STATUS_OK;
}

static status open_gzip(struct input *in)
{
    struct input_decoder *d = in->decoder;
    enum { GZIP_WINDOW = 15 + 16 }; /* the largest window; gzip, not zlib, headers */
    REQUIRE(inflateInit2(&d->gzip, GZIP_WINDOW) == Z_OK, STATUS_INTERNAL,
            "out of memory while reading %s", in->name);
    d->gzip_open = true;
    return STATUS_OK;
}

/* Refills the block of compressed data. The file may end only between two members. */
static status fill_gzip_block(struct input *in)
{
    struct input_decoder *d = in->decoder;
    ssize_t bytes = read_file_bytes(&d->source, d->block, BLOCK_BYTES);
    TRY(bytes >= 0 ? STATUS_OK : raise_read_error(in));
    TRY(bytes > 0 || !d->in_member ? STATUS_OK : raise_damaged(in, "it ends too early"));
    d->at_end = bytes == 0;
    d->gzip.next_in = d->block;
    d->gzip.avail_in = (uInt)bytes;
    return STATUS_OK;
}

/* Skips zero bytes after a member. Only the end of the file may follow them. */
static status skip_padding(struct input *in)
{
    struct input_decoder *d = in->decoder;
    for (; d->gzip.avail_in > 0 && *d->gzip.next_in == 0; d->gzip.next_in++, d->gzip.avail_in--) {
        d->padded = true;
    }
    return d->gzip.avail_in == 0 || !d->padded
               ? STATUS_OK
               : raise_damaged(in, "other bytes follow the zero bytes after its end");
}

static status read_gzip(struct input *in, void *out, size_t max_bytes, size_t *got)
{
    struct input_decoder *d = in->decoder;
    d->gzip.next_out = out;
    d->gzip.avail_out = (uInt)max_bytes;
    while (d->gzip.avail_out == max_bytes && !d->at_end) {
        if (d->gzip.avail_in == 0) {
            TRY(fill_gzip_block(in));
            continue;
        }
        TRY(d->in_member ? STATUS_OK : skip_padding(in));
        if (d->gzip.avail_in == 0) {
            continue;
        }
        d->in_member = true;
        int result = inflate(&d->gzip, Z_NO_FLUSH);
        TRY(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR
                ? STATUS_OK
                : raise_damaged(in, d->gzip.msg));
        if (result == Z_STREAM_END) { /* another member may follow */
            d->in_member = false;
            inflateReset(&d->gzip);
        }
    }
    *got = max_bytes - d->gzip.avail_out;
    return STATUS_OK;
}

/* Reads the first bytes and creates a decoder for compressed data. */
static status recognize_format(struct input *in)
{
    bool more = true;
    const struct format *format = NULL;
    in->recognized = true;
    while (more && in->head_bytes < sizeof in->head) {
        size_t kept = in->head_bytes;
        in->head_used = kept;
        ssize_t bytes = read_file_bytes(in, in->head + kept, sizeof in->head - kept);
        TRY(bytes >= 0 ? STATUS_OK : raise_read_error(in));
        in->head_bytes = kept + (size_t)bytes;
        format = find_format(in, &more);
        more = format == NULL && more && bytes > 0;
    }
    in->head_used = 0;
    if (format == NULL) {
        return STATUS_OK;
    }
    TRY(ALLOCATE(in->decoder, 1, "a decoder"));
    in->decoder->source = *in;
    in->decoder->format = format;
    return format->enable != NULL ? open_archive(in) : open_gzip(in);
}

/* Reads decompressed bytes. */
static status read_data(struct input *in, void *out, size_t max_bytes, size_t *got)
{
    TRY(in->recognized ? STATUS_OK : recognize_format(in));
    if (in->decoder != NULL) {
        return (in->decoder->format->enable != NULL ? read_archive : read_gzip)(in, out, max_bytes,
                                                                                got);
    }
    ssize_t bytes = read_file_bytes(in, out, max_bytes);
    TRY(bytes >= 0 ? STATUS_OK : raise_read_error(in));
    *got = (size_t)bytes;
    return STATUS_OK;
}

status input_read(struct input *in, void *out, size_t max_bytes, size_t *got)
{
    enum { READ_MAX = 1 << 30 };
    size_t ahead = in->peeked_bytes - in->peeked_used;
    max_bytes = max_bytes < READ_MAX ? max_bytes : READ_MAX;
    *got = 0;
    if (ahead == 0) {
        return read_data(in, out, max_bytes, got);
    }
    *got = ahead < max_bytes ? ahead : max_bytes;
    memcpy(out, in->peeked + in->peeked_used, *got);
    in->peeked_used += *got;
    return STATUS_OK;
}

/* Returns the position of the first peeked byte after a byte order mark and white space. */
static size_t find_text_start(const struct input *in)
{
    static const char bom[] = "\xEF\xBB\xBF";
    size_t common = in->peeked_bytes < 3 ? in->peeked_bytes : 3;
    size_t first = memcmp(in->peeked, bom, common) == 0 ? common : 0;
    while (first < in->peeked_bytes && strchr(" \t\r\n", in->peeked[first]) != NULL) {
        first++;
    }
    return first;
}

status input_looks_like_json(struct input *in, bool *out)
{
    enum { SMALL_BYTES = 8 }; /* a person may be typing */
    size_t got = 1, first;
    for (;;) {
        first = find_text_start(in);
        if (first + 1 < in->peeked_bytes || got == 0 || in->peeked_bytes >= SMALL_BYTES) {
            break;
        }
        TRY(read_data(in, in->peeked + in->peeked_bytes, SMALL_BYTES - in->peeked_bytes, &got));
        in->peeked_bytes += got;
    }
    const char *next = in->peeked + first + 1;
    *out = first + 1 < in->peeked_bytes &&
           ((in->peeked[first] == '{' && strchr("\"} \t", *next) != NULL) ||
            (in->peeked[first] == '[' && strchr("{ \n", *next) != NULL));
    return STATUS_OK;
}

status input_peek(struct input *in, const char **text, size_t *bytes)
{
    for (size_t got = 1; got > 0 && in->peeked_bytes < sizeof in->peeked;) {
        TRY(read_data(in, in->peeked + in->peeked_bytes, sizeof in->peeked - in->peeked_bytes,
                      &got));
        in->peeked_bytes += got;
    }
    *text = in->peeked;
    *bytes = in->peeked_bytes;
    return STATUS_OK;
}

/* ---- copies of streams: writing ---- */

static status create_temporary(const char *folder, int *out)
{
    char path[FILE_PATH_BYTES];
    TRY(file_make_folders(folder));
    TRY(file_join(path, folder, ".input-XXXXXX"));
    *out = mkstemp(path);
    REQUIRE(*out >= 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create a temporary file in %s: %s", folder, strerror(errno));
    unlink(path);
    (void)fcntl(*out, F_SETFD, FD_CLOEXEC);
    return STATUS_OK;
}

static status write_block(int file, const char *folder, const char *block, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(file, block, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(written > 0, status_from_errno(errno, STATUS_WRITE, STATUS_WRITE),
                "cannot write a temporary file in %s: %s", folder, strerror(errno));
        block += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

/* Copies the bytes as they are, compressed or not. */
static status copy_stream(struct input *in, int file, const char *folder)
{
    char *block = malloc(BLOCK_BYTES);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, block != NULL, STATUS_INTERNAL, "out of memory while reading %s",
                 in->name);
    for (ssize_t bytes = 1; bytes > 0;) {
        bytes = read_file_bytes(in, block, BLOCK_BYTES);
        TRY_GOTO(result, done, bytes >= 0 ? STATUS_OK : raise_read_error(in));
        TRY_GOTO(result, done, write_block(file, folder, block, (size_t)bytes));
    }
done:
    free(block);
    return result;
}

status input_keep(const char *path, const char *folder)
{
    struct input in;
    int file = -1;
    path = path == NULL ? "-" : path;
    if (!input_is_stream(path) || find_kept(path) != NULL) {
        return STATUS_OK;
    }
    REQUIRE(kept_count < STREAMS_MAX, STATUS_USAGE, "more than %d pipes as inputs", STREAMS_MAX);
    TRY(create_temporary(folder, &file));
    status result = input_open(path, &in);
    if (result == STATUS_OK) {
        result = copy_stream(&in, file, folder);
        input_close(&in);
    }
    char *name = NULL;
    if (result == STATUS_OK) {
        result = memory_copy_text(&name, path, "the name of an input");
    }
    if (result != STATUS_OK) {
        close(file);
        return result;
    }
    kept_streams[kept_count++] = (struct kept_stream){name, file};
    return STATUS_OK;
}

bool input_has_suffix(const char *path, const char *suffix)
{
    static const char *const compressions[] = {".gz", ".zst", ".xz", ".bz2"};
    size_t length = strlen(path), tail = strlen(suffix);
    for (int i = 0; i < COUNT(compressions); i++) {
        size_t bytes = strlen(compressions[i]);
        if (length > bytes && strcmp(path + length - bytes, compressions[i]) == 0) {
            length -= bytes;
            break;
        }
    }
    return length > tail && memcmp(path + length - tail, suffix, tail) == 0;
}
