/* The documents of a preparation for sentence pairs, encoded, in files of their own: the second sentence of a
 * pair may come from any document, and which are held out is known only at the end. So the input is read and
 * encoded once, in a stream, and then these files are read, one document at a time and a few sentences at random;
 * memory does not depend on the size of either. The files lie in the output's unfinished folder and go with it.
 *
 *   tokens     int32: ids of all sentences, one after the other
 *   sentences  int64 [s + 1]: where each begins in tokens
 *   documents  int64 [d + 1]: the first sentence of each */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "datasets/prepare/input.h"

enum { BUFFER_BYTES = 256 << 10 };
#define DOCUMENT_TOKENS_MOST                                                                       \
    (INT64_C(4) << 20) /* a longer one goes on as another: it is read whole */

struct part {
    FILE *file;
    char path[FILE_PATH_BYTES];
};

struct spool {
    struct part tokens, sentences, documents;
    int64_t token_count, sentence_count, document_count;
    int64_t sentence_start,
        document_start;     /* first token, first sentence, of those that are being written */
    int64_t document_token; /* first token of the document */
};

static status part_open(struct part *p, const char *folder, const char *name)
{
    TRY(file_join(p->path, folder, name));
    p->file = fopen(p->path, "w+b");
    REQUIRE(p->file != NULL, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create %s: %s", p->path, strerror(errno));
    setvbuf(p->file, NULL, _IOFBF, BUFFER_BYTES);
    return STATUS_OK;
}

static status part_write(struct part *p, const void *data, size_t bytes)
{
    REQUIRE(fwrite(data, 1, bytes, p->file) == bytes,
            status_from_errno(errno, STATUS_WRITE, STATUS_WRITE), "cannot write %s: %s", p->path,
            strerror(errno));
    return STATUS_OK;
}

static status part_read(const struct part *p, int64_t first, int64_t count, size_t item_bytes,
                        void *out)
{
    size_t left = (size_t)count * item_bytes;
    off_t place = (off_t)first * (off_t)item_bytes;
    for (char *to = out; left > 0;) {
        ssize_t got = pread(fileno(p->file), to, left, place);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(got > 0, STATUS_DATA, "cannot read %s: %s", p->path,
                got < 0 ? strerror(errno) : "it was cut off");
        to += got;
        place += got;
        left -= (size_t)got;
    }
    return STATUS_OK;
}

status spool_open(const char *folder, struct spool **out)
{
    *out = NULL;
    struct spool *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory: a spool");
    status result = part_open(&s->tokens, folder, "tokens");
    KEEP_FIRST(result, part_open(&s->sentences, folder, "sentences"));
    KEEP_FIRST(result, part_open(&s->documents, folder, "documents"));
    if (result != STATUS_OK) {
        spool_close(&s);
        return result;
    }
    *out = s;
    return STATUS_OK;
}

void spool_close(struct spool **spool)
{
    struct spool *s = *spool;
    if (s == NULL) {
        return;
    }
    *spool = NULL;
    struct part *parts[] = {&s->tokens, &s->sentences, &s->documents};
    for (int i = 0; i < 3; i++) {
        if (parts[i]->file != NULL) {
            fclose(parts[i]->file); /* what it holds was needed before, or is not any more */
        }
    }
    free(s);
}

static status end_sentence(struct spool *s)
{
    if (s->token_count == s->sentence_start) {
        return STATUS_OK;
    }
    TRY(part_write(&s->sentences, &s->sentence_start, sizeof s->sentence_start));
    s->sentence_start = s->token_count;
    s->sentence_count++;
    return s->token_count - s->document_token >= DOCUMENT_TOKENS_MOST ? spool_end_document(s)
                                                                      : STATUS_OK;
}

status spool_tokens(void *spool, const int32_t *ids, int64_t count)
{
    struct spool *s = spool;
    for (int64_t from = 0, i = 0; i <= count; i++) {
        if (i < count && ids[i] != PREPARE_SENTENCE_END) {
            continue;
        }
        TRY(part_write(&s->tokens, ids + from, (size_t)(i - from) * sizeof *ids));
        s->token_count += i - from;
        from = i + 1;
        TRY(i < count ? end_sentence(s) : STATUS_OK);
    }
    return STATUS_OK;
}

status spool_end_document(void *spool)
{
    struct spool *s = spool;
    TRY(s->token_count > s->sentence_start ? end_sentence(s) : STATUS_OK);
    if (s->sentence_count == s->document_start) {
        return STATUS_OK;
    }
    TRY(part_write(&s->documents, &s->document_start, sizeof s->document_start));
    s->document_start = s->sentence_count;
    s->document_token = s->token_count;
    s->document_count++;
    return STATUS_OK;
}

status spool_finish(struct spool *s)
{
    TRY(part_write(&s->sentences, &s->sentence_start, sizeof s->sentence_start));
    TRY(part_write(&s->documents, &s->document_start, sizeof s->document_start));
    struct part *parts[] = {&s->tokens, &s->sentences, &s->documents};
    for (int i = 0; i < 3; i++) {
        REQUIRE(fflush(parts[i]->file) == 0, status_from_errno(errno, STATUS_WRITE, STATUS_WRITE),
                "cannot write %s: %s", parts[i]->path, strerror(errno));
    }
    return STATUS_OK;
}

int64_t spool_documents(const struct spool *s)
{
    return s->document_count;
}

int64_t spool_sentences(const struct spool *s)
{
    return s->sentence_count;
}

status spool_document(const struct spool *s, int64_t document, int64_t *first, int64_t *end)
{
    int64_t range[2];
    TRY(part_read(&s->documents, document, 2, sizeof *range, range));
    *first = range[0];
    *end = range[1];
    return STATUS_OK;
}

status spool_starts(const struct spool *s, int64_t first, int64_t count, int64_t *starts)
{
    return part_read(&s->sentences, first, count, sizeof *starts, starts);
}

status spool_read(const struct spool *s, int64_t first, int64_t count, int32_t *ids)
{
    return part_read(&s->tokens, first, count, sizeof *ids, ids);
}

status spool_divide(struct spool *s, double fraction)
{
    int64_t wanted = (int64_t)((1.0 - fraction) * (double)s->token_count), start = 0, cut = 1;
    while (cut < s->sentence_count - 1) {
        TRY(spool_starts(s, cut, 1, &start));
        if (start >= wanted) {
            break;
        }
        cut++;
    }
    REQUIRE(s->sentence_count > 1, STATUS_DATA,
            "one sentence is too little to hold out a fraction of %g", fraction);
    const int64_t documents[] = {0, cut, s->sentence_count};
    rewind(s->documents.file);
    TRY(part_write(&s->documents, documents, sizeof documents));
    REQUIRE(fflush(s->documents.file) == 0, STATUS_WRITE, "cannot write %s: %s", s->documents.path,
            strerror(errno));
    s->document_count = 2;
    return STATUS_OK;
}
