#include "trainer/inference/prediction/answer_search.h"

#include "base/number.h"

#include <math.h>

status answer_search_open(const struct session *s, const struct text *question,
                          const struct text *context, struct answer_search *out)
{
    int64_t positions = model_positions(model_get_config(s->model));
    int64_t length = s->recipe.data.sequence_length;
    *out = (struct answer_search){
        .context = *context,
        .no_answer_threshold = s->recipe.answer.no_answer_threshold,
        .best.score = -INFINITY,
        .none.score = INFINITY,
    };
    return qa_windows_encode(s->tokenizer, question, context, number_min(length, positions),
                             &out->windows);
}

void answer_search_add(struct answer_search *a, const struct qa_windows_window *window,
                       const float *outputs, int64_t tokens, int64_t max_tokens)
{
    const struct qa_windows *w = &a->windows;
    struct answer_span s = answer_span_best(outputs, tokens, window->context_start,
                                            window->context_tokens, max_tokens);
    if (s.score > a->best.score) {
        int64_t shift = window->first_context_token - window->context_start;
        a->best = s;
        a->begin = w->char_begin.ids[shift + s.first];
        a->end = w->char_end.ids[shift + s.last];
    }
    struct answer_span none = answer_span_none(outputs, tokens);
    a->none = none.score < a->none.score ? none : a->none;
}

struct answer answer_search_end(const struct answer_search *a)
{
    if (a->none.score - a->best.score > a->no_answer_threshold) {
        return (struct answer){.probability = a->none.probability};
    }
    return (struct answer){
        .begin_bytes = qa_windows_byte_offset(&a->context, a->begin),
        .end_bytes = qa_windows_byte_offset(&a->context, a->end),
        .begin = a->begin,
        .end = a->end,
        .probability = a->best.probability,
    };
}

void answer_search_close(struct answer_search *a)
{
    qa_windows_free(&a->windows);
}
