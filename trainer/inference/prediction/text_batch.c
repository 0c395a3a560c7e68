#include "trainer/inference/prediction/text_batch.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/inference/finite_outputs.h"
#include "trainer/setup/derive.h"

static bool is_encoder(const struct text_batch *b)
{
    return recipe_architecture_is_encoder(b->session->recipe.model.architecture);
}

status text_batch_create(const struct session *s, struct text_batch *out)
{
    int64_t micro = derive_rows(&s->recipe), positions = model_get_config(s->model)->positions;
    *out = (struct text_batch){.session = s, .max_rows = number_max(micro, positions)};
    TRY(ALLOCATE(out->ids, 3 * (size_t)out->max_rows, "a batch of tokens"));
    out->positions = out->ids + out->max_rows;
    out->token_type_ids = out->positions + out->max_rows;
    return STATUS_OK;
}

void text_batch_destroy(struct text_batch *b)
{
    free(b->ids);
    *b = (struct text_batch){0};
}

status text_batch_check(const struct text_batch *b, const struct token_list *ids)
{
    const char *name = is_encoder(b) ? "the text with [CLS] and [SEP]" : "the text";
    REQUIRE(ids->count > 0, STATUS_DATA, "the text has no tokens; give a text that is not empty");
    return model_require_positions(model_get_config(b->session->model), name, ids->count, 0,
                                   STATUS_DATA);
}

bool text_batch_fits(const struct text_batch *b, int64_t tokens)
{
    return b->count < TEXT_BATCH_TEXTS && b->cu_rows[b->count] + tokens <= b->max_rows;
}

void text_batch_add(struct text_batch *b, const struct token_list *ids, int64_t first)
{
    int32_t row = b->cu_rows[b->count];
    for (int64_t i = 0; i < ids->count; i++) {
        b->ids[row + i] = ids->ids[i];
        b->positions[row + i] = (int32_t)i;
        b->token_type_ids[row + i] = is_encoder(b) && i >= first;
    }
    b->cu_rows[++b->count] = (int32_t)(row + ids->count);
}

status text_batch_set(struct text_batch *b, const struct token_list *ids, int64_t first)
{
    TRY(text_batch_check(b, ids));
    text_batch_clear(b);
    text_batch_add(b, ids, first);
    return STATUS_OK;
}

void text_batch_clear(struct text_batch *b)
{
    b->count = 0;
}

struct model_input text_batch_input(const struct text_batch *b)
{
    return (struct model_input){
        .rows = b->cu_rows[b->count],
        .tokens = b->ids,
        .positions = b->positions,
        .segments = b->count,
        .cu_rows = b->cu_rows,
        .longest = model_get_config(b->session->model)->positions,
        .token_type_ids = b->token_type_ids,
    };
}

int64_t text_batch_mask_rows(const struct text_batch *b, int index, int32_t *rows)
{
    int32_t mask = tokenizer_get_specials(b->session->tokenizer).mask;
    int64_t count = 0;
    for (int32_t row = b->cu_rows[index]; row < b->cu_rows[index + 1]; row++) {
        if (b->ids[row] == mask) {
            rows[count++] = row;
        }
    }
    return count;
}

int32_t text_batch_head_row(const struct text_batch *b, int index)
{
    return derive_reads_last_row(&b->session->recipe) ? b->cu_rows[index + 1] - 1
                                                      : b->cu_rows[index];
}

status text_batch_head_outputs(const struct text_batch *b, const int32_t *rows, int64_t count,
                               float *outputs)
{
    const struct session *s = b->session;
    struct model_input input = text_batch_input(b);
    struct tensor hidden;
    input.output_rows = rows;
    input.outputs = count;
    TRY(model_forward(s->model, &input, &hidden));
    struct model_label_head head = model_get_label_head(s->model, &input, NULL);
    int64_t labels = model_get_config(s->model)->labels;
    TRY(classifier_logits(s->kernels, tensor_view(outputs, DTYPE_F32, count, labels), hidden,
                          head.weight, head.bias));
    return finite_outputs_check(outputs, count * labels);
}

status text_batch_vocabulary_rows(const struct text_batch *b, const int32_t *rows, int64_t count,
                                  struct tensor *hidden)
{
    struct model_input input = text_batch_input(b);
    input.output_rows = rows;
    input.outputs = count;
    return model_forward(b->session->model, &input, hidden);
}

status text_batch_logits(const struct text_batch *b, struct tensor hidden, float *logits)
{
    const struct session *s = b->session;
    int64_t vocabulary = model_get_config(s->model)->vocabulary;
    TRY(model_logits(s->model, tensor_view(logits, DTYPE_F32, hidden.rows, vocabulary), hidden));
    return finite_outputs_check(logits, hidden.rows * vocabulary);
}
