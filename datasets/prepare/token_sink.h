/* Destination of encoded documents: the shards (output.h) or a token spool (token_spool.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define TOKEN_SINK_SENTENCE_END (-1) /* among the ids: end of a sentence */

struct token_sink {
    void *user; /* argument of both functions */
    status (*write_tokens)(void *user, const int32_t *ids, int64_t count);
    status (*end_document)(void *user);
    /* Ids contain TOKEN_SINK_SENTENCE_END after each sentence, and no begin or end tokens. */
    bool marks_sentences;
};
