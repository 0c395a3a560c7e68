/* The second sentence of a pair may come from any document, and the validation set is known only
 * at the end. Therefore the input is read and encoded once, from start to end, and stored in
 * temporary files. These files are then read, one document at a time and a few sentences at random
 * positions. The memory use does not depend on the size of the files. The files are in the
 * temporary folder of the output and are removed with it.
 *
 *   tokens     int32: ids of all sentences
 *   sentences  int64 [sentences + 1]: first token of each sentence
 *   documents  int64 [documents + 1]: first sentence of each document */
#include "datasets/prepare/token_spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/prepare/encoder.h"

enum { BUFFER_BYTES = 256 << 10 };
/* Documents are read whole. A longer one is divided. */
#define DOCUMENT_TOKENS_MAX (INT64_C(4) << 20)

struct spool_file {
    FILE *file;
    char path[FILE_PATH_BYTES];
};

struct token_spool {
    struct spool_file tokens, sentences, documents;
    int64_t token_count, sentence_count, document_count;
    int64_t sentence_first_token;    /* of the sentence that is being written */
    int64_t document_first_sentence; /* of the document that is being written */
    int64_t document_first_token;
};

static status open_file(struct spool_file *f, const char *folder, const char *name)
{
    int descriptor;
    TRY(file_join(f->path, folder, name));
    TRY(file_open_output(f->path, O_RDWR | O_EXCL, &descriptor));
    f->file = fdopen(descriptor, "w+b");
    if (f->file == NULL) {
        close(descriptor);
        RAISE(STATUS_INTERNAL, "out of memory for %s", f->path);
    }
    setvbuf(f->file, NULL, _IOFBF, BUFFER_BYTES);
    return STATUS_OK;
}

static status write_file(struct spool_file *f, const void *data, size_t bytes)
{
    REQUIRE(fwrite(data, 1, bytes, f->file) == bytes,
            status_from_errno(errno, STATUS_WRITE, STATUS_WRITE), "cannot write %s: %s", f->path,
            strerror(errno));
    return STATUS_OK;
}

static status read_file(const struct spool_file *f, int64_t first, int64_t count, size_t item_bytes,
                        void *out)
{
    size_t left = (size_t)count * item_bytes;
    off_t offset = (off_t)first * (off_t)item_bytes;
    for (char *to = out; left > 0;) {
        ssize_t got = pread(fileno(f->file), to, left, offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(got > 0, STATUS_DATA, "cannot read %s: %s", f->path,
                got < 0 ? strerror(errno) : "the file is truncated");
        to += got;
        offset += got;
        left -= (size_t)got;
    }
    return STATUS_OK;
}

status token_spool_open(const char *folder, struct token_spool **out)
{
    *out = NULL;
    struct token_spool *s = NULL;
    TRY(ALLOCATE(s, 1, "a spool"));
    status result = open_file(&s->tokens, folder, "tokens");
    KEEP_FIRST(result, open_file(&s->sentences, folder, "sentences"));
    KEEP_FIRST(result, open_file(&s->documents, folder, "documents"));
    if (result != STATUS_OK) {
        token_spool_close(&s);
        return result;
    }
    *out = s;
    return STATUS_OK;
}

void token_spool_close(struct token_spool **spool)
{
    struct token_spool *s = *spool;
    if (s == NULL) {
        return;
    }
    *spool = NULL;
    struct spool_file *files[] = {&s->tokens, &s->sentences, &s->documents};
    for (int i = 0; i < 3; i++) {
        if (files[i]->file != NULL) {
            fclose(files[i]->file); /* errors do not matter: the data is no longer needed */
        }
    }
    free(s);
}

static status end_sentence(struct token_spool *s)
{
    if (s->token_count == s->sentence_first_token) {
        return STATUS_OK;
    }
    TRY(write_file(&s->sentences, &s->sentence_first_token, sizeof s->sentence_first_token));
    s->sentence_first_token = s->token_count;
    s->sentence_count++;
    return s->token_count - s->document_first_token >= DOCUMENT_TOKENS_MAX
               ? token_spool_end_document(s)
               : STATUS_OK;
}

status token_spool_write_tokens(void *spool, const int32_t *ids, int64_t count)
{
    struct token_spool *s = spool;
    for (int64_t from = 0, i = 0; i <= count; i++) {
        if (i < count && ids[i] != ENCODER_SENTENCE_END) {
            continue;
        }
        TRY(write_file(&s->tokens, ids + from, (size_t)(i - from) * sizeof *ids));
        s->token_count += i - from;
        from = i + 1;
        TRY(i < count ? end_sentence(s) : STATUS_OK);
    }
    return STATUS_OK;
}

status token_spool_end_document(void *spool)
{
    struct token_spool *s = spool;
    TRY(s->token_count > s->sentence_first_token ? end_sentence(s) : STATUS_OK);
    if (s->sentence_count == s->document_first_sentence) {
        return STATUS_OK;
    }
    TRY(write_file(&s->documents, &s->document_first_sentence, sizeof s->document_first_sentence));
    s->document_first_sentence = s->sentence_count;
    s->document_first_token = s->token_count;
    s->document_count++;
    return STATUS_OK;
}

status token_spool_finish(struct token_spool *s)
{
    TRY(write_file(&s->sentences, &s->sentence_first_token, sizeof s->sentence_first_token));
    TRY(write_file(&s->documents, &s->document_first_sentence, sizeof s->document_first_sentence));
    struct spool_file *files[] = {&s->tokens, &s->sentences, &s->documents};
    for (int i = 0; i < 3; i++) {
        REQUIRE(fflush(files[i]->file) == 0, status_from_errno(errno, STATUS_WRITE, STATUS_WRITE),
                "cannot write %s: %s", files[i]->path, strerror(errno));
    }
    return STATUS_OK;
}

int64_t token_spool_document_count(const struct token_spool *s)
{
    return s->document_count;
}

int64_t token_spool_sentence_count(const struct token_spool *s)
{
    return s->sentence_count;
}

status token_spool_read_document(const struct token_spool *s, int64_t document, int64_t *first,
                                 int64_t *end)
{
    int64_t range[2];
    TRY(read_file(&s->documents, document, 2, sizeof *range, range));
    *first = range[0];
    *end = range[1];
    return STATUS_OK;
}

status token_spool_read_sentence_starts(const struct token_spool *s, int64_t first, int64_t count,
                                        int64_t *starts)
{
    return read_file(&s->sentences, first, count, sizeof *starts, starts);
}

status token_spool_read_tokens(const struct token_spool *s, int64_t first, int64_t count,
                               int32_t *ids)
{
    return read_file(&s->tokens, first, count, sizeof *ids, ids);
}

status token_spool_divide_document(struct token_spool *s, double fraction)
{
    int64_t target = (int64_t)((1.0 - fraction) * (double)s->token_count), start = 0, second = 1;
    while (second < s->sentence_count - 1) {
        TRY(token_spool_read_sentence_starts(s, second, 1, &start));
        if (start >= target) {
            break;
        }
        second++;
    }
    REQUIRE(s->sentence_count > 1, STATUS_DATA,
            "one sentence is too little for a validation fraction of %g; give more text", fraction);
    const int64_t documents[] = {0, second, s->sentence_count};
    rewind(s->documents.file);
    TRY(write_file(&s->documents, documents, sizeof documents));
    REQUIRE(fflush(s->documents.file) == 0, STATUS_WRITE, "cannot write %s: %s", s->documents.path,
            strerror(errno));
    s->document_count = 2;
    return STATUS_OK;
}
