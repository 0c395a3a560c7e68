#include "datasets/shard/example.h"

#include <string.h>

static const struct example_format formats[EXAMPLE_KINDS] = {
    [EXAMPLE_TEXT] = {"text", 1, 0, {{0}}},
    [EXAMPLE_SENTENCE_PAIRS] = {"sentence_pairs",
                                1,
                                2,
                                {[EXAMPLE_FIRST_SEGMENT] = {"first_segment", 4, false, false},
                                 [EXAMPLE_NEXT_SENTENCE] = {"next_sentence", 1, false, false}}},
    [EXAMPLE_PREFERENCE_PAIRS] = {"preference_pairs",
                                  1,
                                  2,
                                  {[EXAMPLE_PROMPT] = {"prompt", 4, false, false},
                                   [EXAMPLE_CHOSEN] = {"chosen", 4, false, false}}},
    [EXAMPLE_SFT] = {"sft", 1, 1, {[EXAMPLE_LOSS_MASK] = {"loss_mask", 1, true, false}}},
    [EXAMPLE_SEQ2SEQ] = {"seq2seq", 1, 1, {[EXAMPLE_SOURCE] = {"source", 4, false, false}}},
    [EXAMPLE_CLASSIFY] = {"classify",
                          1,
                          2,
                          {[EXAMPLE_TASK_FIRST_SEGMENT] = {"first_segment", 4, false, false},
                           [EXAMPLE_TASK_LABEL] = {"label", 4, false, false}}},
    [EXAMPLE_REGRESS] =
        {"regress",
         1,
         2,
         {[EXAMPLE_TASK_FIRST_SEGMENT] = {"first_segment", 4, false, false},
          [EXAMPLE_TASK_LABEL] = {"label", 4, false, true}}},
    [EXAMPLE_CLASSIFY_TOKENS] =
        {"classify_tokens", 1, 1, {[EXAMPLE_TOKEN_LABEL] = {"label", 4, true, false}}},
    [EXAMPLE_ANSWER] =
        {"answer",
         2,
         7,
         {[EXAMPLE_ANSWER_FIRST_SEGMENT] = {"first_segment", 4, false, false},
          [EXAMPLE_ANSWER_BEGIN] = {"begin", 4, false, false},
          [EXAMPLE_ANSWER_END] = {"end", 4, false, false},
          [EXAMPLE_ANSWER_ROW] = {"row", 4, false, false},
          [EXAMPLE_ANSWER_FROM] = {"from", 4, true, false},
          [EXAMPLE_ANSWER_TO] = {"to", 4, true, false},
          [EXAMPLE_ANSWER_RIGHT] = {"right", 4, true, false}}},
    [EXAMPLE_CHOOSE] =
        {"choose",
         1,
         2,
         {[EXAMPLE_TEXTS_MARK] = {"mark", 1, true, false},
          [EXAMPLE_TEXTS_LABEL] = {"label", 4, false, false}}},
    [EXAMPLE_EMBED] = {"embed", 1, 1, {[EXAMPLE_TEXTS_MARK] = {"mark", 1, true, false}}},
};

const struct example_format *example_get_format(enum example_kind kind)
{
    return &formats[kind];
}

enum example_kind example_find_kind(const char *name)
{
    int kind = 0;
    while (kind < EXAMPLE_KINDS && strcmp(formats[kind].name, name) != 0) {
        kind++;
    }
    return (enum example_kind)kind;
}
