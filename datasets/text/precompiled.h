/* The normalizer Precompiled of Hugging Face `tokenizers`: SentencePiece's character map.
 *
 * That package looks up each grapheme of less than 6 bytes, and takes the shortest string of the
 * map at its beginning for the whole grapheme. If there is none, or the grapheme is longer, it
 * looks up each of its characters. SentencePiece itself takes the longest string at
 * each position. */
#pragma once

#include "base/text_buffer.h"
#include "datasets/sentencepiece/charsmap.h"

/* precompiled_open - read a character map from its base64 text.
 *
 * Memory    *out is freed with precompiled_close
 * Errors    STATUS_DATA with path: not base64, or not a valid map; STATUS_INTERNAL (out of memory)
 */
status precompiled_open(const char *base64, size_t bytes, const char *path, struct charsmap **out);

/* precompiled_close - free a map; NULL is allowed. */
void precompiled_close(struct charsmap *map);

/* precompiled_run - append the normalized form of a text. Bytes that are not UTF-8 stay as
 * they are.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status precompiled_run(const struct charsmap *map, const char *text, size_t bytes,
                       struct text_buffer *out);
