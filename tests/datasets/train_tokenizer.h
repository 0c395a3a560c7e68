/* Trains a tokenizer on text files. */
#pragma once

#include "datasets/tokenizer/tokenizer.h"

/* train_tokenizer - train on files; the arguments are as in tokenizer_train. */
static inline status train_tokenizer(enum tokenizer_kind kind, int64_t vocab_size,
                                     char *const *files, int count, int workers,
                                     struct tokenizer **out)
{
    const struct corpus_source source = {.files = files, .count = count};
    return tokenizer_train(kind, false, vocab_size, &source, workers, out);
}
