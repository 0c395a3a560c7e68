#include "datasets/tokenizer/corpus.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)4 << 20)

struct corpus {
    char *const *files;
    int count;
    int current; /* files[current] is open, or the next to open where file < 0 */
    int file;
    int64_t offset; /* in the file, of the carried bytes */
    size_t carried;
    char *carry; /* read already, belongs to the next piece */
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
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return STATUS_OK;
}

void corpus_close(struct corpus *c)
{
    if (c != NULL) {
        if (c->file >= 0) {
            close(c->file);
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

static status next_of_file(struct corpus *c, struct corpus_piece *piece)
{
    bool ended = false;
    TRY(fill(c, piece, &ended));
    if (ended) {
        close(c->file);
        c->file = -1;
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
        }
        TRY(next_of_file(c, piece));
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
