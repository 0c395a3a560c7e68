/* Encodes text with a SentencePiece model: normalization, then Unigram or BPE. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/sentencepiece/sentencepiece_impl.h"

void sentencepiece_emit(const struct sentencepiece *s, int32_t id, const char *text, size_t bytes,
                        struct sentencepiece_output *out)
{
    bool is_unknown = id == s->unknown;
    if (is_unknown && s->byte_fallback) {
        for (size_t i = 0; i < bytes; i++) {
            out->ids[out->count++] = s->byte_ids[(unsigned char)text[i]];
        }
    } else if (!is_unknown || !out->after_unknown) {
        out->ids[out->count++] = id;
    }
    out->after_unknown = is_unknown;
    out->end += bytes;
    if (out->ends != NULL && out->count > 0) {
        out->ends[out->count - 1] = (uint32_t)out->end;
    }
}

/* Writes the end offsets of the pieces on the best path, the last piece first. Returns
 * their number. */
static int64_t list_ends(const struct unigram_step *steps, size_t bytes, uint32_t *ends)
{
    int64_t count = 0;
    for (size_t end = bytes; end > 0; end = steps[end].begin) {
        ends[count++] = (uint32_t)end;
    }
    return count;
}

static status encode_unigram(const struct sentencepiece *s, const char *text, size_t bytes,
                             struct sentencepiece_output *out)
{
    struct unigram_step *steps = NULL;
    uint32_t *ends = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, GROW(steps, bytes + 1, "a text"));
    TRY_GOTO(result, done, GROW(ends, bytes + 1, "a text"));
    unigram_find_path(&s->unigram, text, bytes, steps);
    for (int64_t i = list_ends(steps, bytes, ends) - 1; i >= 0; i--) {
        const struct unigram_step *step = &steps[ends[i]];
        sentencepiece_emit(s, step->id, text + step->begin, ends[i] - step->begin, out);
    }
done:
    free(steps);
    free(ends);
    return result;
}

static status encode_pieces(const struct sentencepiece *s, const char *text, size_t bytes,
                            struct sentencepiece_output *out)
{
    if (bytes == 0) {
        return STATUS_OK;
    }
    return s->is_bpe ? sentencepiece_merge(s, text, bytes, out)
                     : encode_unigram(s, text, bytes, out);
}

status sentencepiece_encode(const struct sentencepiece *s, const char *text, size_t bytes,
                            int32_t *ids, int64_t *count)
{
    struct sentencepiece_output out = {.ids = ids};
    status result = encode_pieces(s, text, bytes, &out);
    *count = out.count;
    return result;
}

status sentencepiece_split(const struct sentencepiece *s, const char *text, size_t bytes,
                           int32_t *ids, uint32_t *ends, int64_t *count)
{
    struct sentencepiece_output out = {.ids = ids, .ends = ends};
    status result = encode_pieces(s, text, bytes, &out);
    *count = out.count;
    return result;
}
