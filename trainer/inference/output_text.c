#include "trainer/inference/output_text_impl.h"

#include <stdlib.h>
#include <string.h>

/* Returns how many bytes at the end must not be streamed yet: the start of a UTF-8 character or of
 * a stop string. */
static size_t count_withheld(const struct generate_options *o, const char *text, size_t bytes)
{
    size_t withheld = 0;
    for (size_t distance = 1; distance <= 3 && distance <= bytes; distance++) {
        unsigned char c = (unsigned char)text[bytes - distance];
        size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        if (c >= 0xc0) {
            withheld = length > distance ? distance : 0;
            break;
        }
    }
    for (int i = 0; i < o->stop_count; i++) {
        size_t length = strlen(o->stops[i]);
        for (size_t part = length - 1; part > withheld; part--) {
            if (part <= bytes && memcmp(text + bytes - part, o->stops[i], part) == 0) {
                withheld = part;
                break;
            }
        }
    }
    return withheld;
}

status output_text_join(const struct tokenizer *t, const struct generate_options *o,
                        const int32_t *ids, int64_t count, char **out, size_t *bytes)
{
    return o->whole_text ? tokenizer_decode(t, ids, count, true, out, bytes)
                         : tokenizer_decode_continued(t, ids, count, true, out, bytes);
}

/* Counts the bytes that further tokens cannot change. */
static status count_final_bytes(const struct tokenizer *t, const struct generate_options *o,
                                const int32_t *ids, int64_t count, size_t bytes, size_t *out)
{
    int64_t final_count = tokenizer_count_final(t, ids, count);
    char *text = NULL;
    *out = bytes;
    status result =
        final_count == count ? STATUS_OK : output_text_join(t, o, ids, final_count, &text, out);
    free(text);
    return result;
}

status output_text_decode(const struct tokenizer *t, const struct generate_options *o,
                          const int32_t *ids, int64_t count, bool is_last, char **out,
                          size_t *ready, bool *has_stop)
{
    size_t bytes = 0, final_bytes = 0;
    TRY(output_text_join(t, o, ids, count, out, &bytes));
    status result = count_final_bytes(t, o, ids, count, bytes, &final_bytes);
    if (result != STATUS_OK) {
        free(*out);
        *out = NULL;
        return result;
    }
    size_t stop = generate_find_stop(o, *out, bytes);
    *has_stop = stop < bytes;
    *ready = stop;
    if (!*has_stop && !is_last) {
        *ready = bytes - count_withheld(o, *out, bytes);
        *ready = *ready < final_bytes ? *ready : final_bytes;
    }
    return STATUS_OK;
}
