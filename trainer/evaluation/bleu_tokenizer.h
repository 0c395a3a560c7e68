/* The tokenizers of BLEU. They give the same tokens as sacreBLEU.
 *
 *   13a    mteval-v13a of WMT: separates ASCII punctuation and symbols, but keeps numbers whole
 *   intl   mteval-v14 with international tokenization: the same for all punctuation of Unicode
 *   char   each character is a token
 *   none   the text is already tokenized
 *
 * A tokenizer separates tokens by white space. It ignores white space at the end of a text.
 *
 * Source    Post 2018, arXiv:1804.08771; https://github.com/mjpost/sacrebleu */
#pragma once

#include "base/status.h"
#include "base/text_buffer.h"

enum bleu_tokenizer { BLEU_13A, BLEU_INTL, BLEU_CHAR, BLEU_NONE, BLEU_TOKENIZERS };

/* bleu_tokenizer_name - return the name in signatures: "13a", "intl", "char" or "none". */
const char *bleu_tokenizer_name(enum bleu_tokenizer kind);

/* bleu_tokenizer_find - return the tokenizer with this name; BLEU_TOKENIZERS if there is none. */
enum bleu_tokenizer bleu_tokenizer_find(const char *name);

/* bleu_tokenizer_apply - write the tokens of a text, with white space between them, to *out.
 *
 * Memory    replaces the content of *out; *scratch is used for intermediate texts
 * Errors    STATUS_INTERNAL (out of memory) */
status bleu_tokenizer_apply(enum bleu_tokenizer kind, const char *text, size_t bytes,
                            struct text_buffer *out, struct text_buffer *scratch);
