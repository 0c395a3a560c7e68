#include "datasets/shard/shard_task.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* An example to read. */
struct location {
    struct shard *shard;
    int64_t index, first; /* of the example; of its first token */
};

/* Reads the value of a column that has one value per example. */
static status read_example_value(const struct location *p, int column, uint32_t *out)
{
    return shard_read_column(p->shard, column, p->index, 1, out);
}

/* Sets the example to one text. Tokens after the first `first_segment` ones are segment 1. */
static void set_single_text(struct example *e, uint32_t first_segment)
{
    for (int64_t i = 0; i < e->tokens; i++) {
        e->token_type_ids[i] = i >= first_segment;
    }
    e->texts = 1;
    e->text_starts[0] = 0;
    e->text_starts[1] = (int32_t)e->tokens;
}

static status check_segment(const struct location *p, const struct example *e, uint32_t first)
{
    REQUIRE(first > 0 && first <= e->tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens and a first segment of %u tokens",
            shard_path(p->shard), p->index, e->tokens, first);
    return STATUS_OK;
}

static status check_label(const struct location *p, uint32_t label, int64_t limit)
{
    REQUIRE((int64_t)label < limit, STATUS_DATA,
            "%s: example %" PRId64 " has the label number %u, but there are %" PRId64 " labels",
            shard_path(p->shard), p->index, label, limit);
    return STATUS_OK;
}

/* ---- kinds ---- */

static status read_text(const struct location *p, struct example *e)
{
    const struct shard_header *h = shard_get_header(p->shard);
    uint32_t first = 0, label = 0;
    TRY(read_example_value(p, EXAMPLE_TASK_FIRST_SEGMENT, &first));
    TRY(read_example_value(p, EXAMPLE_TASK_LABEL, &label));
    TRY(check_segment(p, e, first));
    set_single_text(e, first);
    e->predictions = 1;
    if (h->kind == EXAMPLE_REGRESS) {
        memcpy(&e->float_label, &label, sizeof e->float_label);
        REQUIRE(isfinite(e->float_label), STATUS_DATA, "%s: example %" PRId64 " has the label %g",
                shard_path(p->shard), p->index, (double)e->float_label);
        return STATUS_OK;
    }
    e->labels[0] = (int32_t)label;
    return check_label(p, label, h->label_count);
}

static status read_token_labels(const struct location *p, struct example *e)
{
    TRY(shard_read_column(p->shard, EXAMPLE_TOKEN_LABEL, p->first, e->tokens,
                          (uint32_t *)e->labels));
    set_single_text(e, (uint32_t)e->tokens);
    e->predictions = 0;
    for (int64_t i = 0; i < e->tokens; i++) {
        int32_t label = e->labels[i];
        if (label != EXAMPLE_NO_LABEL) {
            TRY(check_label(p, (uint32_t)label, shard_get_header(p->shard)->label_count));
            e->positions[e->predictions] = (int32_t)i;
            e->labels[e->predictions++] = label;
        }
    }
    REQUIRE(e->predictions > 0, STATUS_DATA, "%s: example %" PRId64 " has no label",
            shard_path(p->shard), p->index);
    return STATUS_OK;
}

/* Lets the head read all tokens. */
static void select_all_tokens(struct example *e)
{
    e->predictions = e->tokens;
    for (int64_t i = 0; i < e->tokens; i++) {
        e->positions[i] = (int32_t)i;
    }
}

/* Reads the values of a column that has one value per token. */
static status read_token_values(const struct location *p, const struct example *e, int column,
                                int32_t *out)
{
    return shard_read_column(p->shard, column, p->first, e->tokens, (uint32_t *)out);
}

/* Reads the flags of all tokens. It uses e->positions, which are set later, as scratch memory. */
static status read_answer_flags(const struct location *p, struct example *e)
{
    int32_t *space = e->positions, *flags = e->answer_flags = e->labels + 2;
    TRY(read_token_values(p, e, EXAMPLE_ANSWER_FROM, space));
    TRY(read_token_values(p, e, EXAMPLE_ANSWER_TO, flags));
    for (int64_t i = e->tokens - 1; i > 0; i--) {
        space[i] = (uint32_t)space[i] > (uint32_t)flags[i - 1] ? EXAMPLE_AFTER_SPACE : 0;
    }
    space[0] = 0;
    TRY(read_token_values(p, e, EXAMPLE_ANSWER_RIGHT, flags));
    for (int64_t i = 0; i < e->tokens; i++) {
        flags[i] = (flags[i] & (EXAMPLE_AFTER_SPACE - 1)) | space[i];
    }
    return STATUS_OK;
}

static status read_answer(const struct location *p, struct example *e)
{
    uint32_t first = 0, ends[2] = {0}, row = 0;
    TRY(read_example_value(p, EXAMPLE_ANSWER_FIRST_SEGMENT, &first));
    TRY(read_example_value(p, EXAMPLE_ANSWER_BEGIN, &ends[0]));
    TRY(read_example_value(p, EXAMPLE_ANSWER_END, &ends[1]));
    TRY(check_segment(p, e, first));
    REQUIRE(ends[0] <= ends[1] && ends[1] < e->tokens && e->prediction_capacity >= 2, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens and an answer from %u to %u",
            shard_path(p->shard), p->index, e->tokens, ends[0], ends[1]);
    set_single_text(e, first);
    TRY(read_example_value(p, EXAMPLE_ANSWER_ROW, &row));
    e->input_row = (int32_t)(row & INT32_MAX);
    TRY(read_answer_flags(p, e));
    select_all_tokens(e);
    e->labels[0] = (int32_t)ends[0];
    e->labels[1] = (int32_t)ends[1];
    return STATUS_OK;
}

/* Finds the texts of an example and sets its token types. Until then e->token_type_ids contains
 * the marks. */
static status find_texts(const struct location *p, int64_t sequence_tokens, struct example *e)
{
    e->texts = 0;
    TRY(shard_read_column(p->shard, EXAMPLE_TEXTS_MARK, p->first, e->tokens,
                          (uint32_t *)e->token_type_ids));
    for (int64_t i = 0; i < e->tokens; i++) {
        bool begins = (e->token_type_ids[i] & EXAMPLE_BEGINS_TEXT) != 0;
        REQUIRE((i > 0 || begins) && (!begins || e->texts < e->text_capacity), STATUS_DATA,
                "%s: example %" PRId64 " has more than %" PRId64
                " texts, or none; model.num_labels sets the largest number of choices",
                shard_path(p->shard), p->index, e->text_capacity);
        if (begins) {
            e->text_starts[e->texts++] = (int32_t)i;
        }
        e->token_type_ids[i] &= EXAMPLE_SECOND_SEGMENT;
    }
    e->text_starts[e->texts] = (int32_t)e->tokens;
    for (int64_t i = 0; i < e->texts; i++) {
        int32_t tokens = e->text_starts[i + 1] - e->text_starts[i];
        REQUIRE(tokens <= sequence_tokens, STATUS_DATA,
                "%s: example %" PRId64
                " has a text of %d tokens, but the sequence length is %" PRId64
                "; run `bireme prepare` with --sequence-length %" PRId64
                ", or raise data.sequence_length",
                shard_path(p->shard), p->index, tokens, sequence_tokens, sequence_tokens);
    }
    return STATUS_OK;
}

static status read_multiple_texts(const struct location *p, int64_t sequence_tokens,
                                  struct example *e)
{
    uint32_t label = 0;
    TRY(find_texts(p, sequence_tokens, e));
    if (shard_get_header(p->shard)->kind == EXAMPLE_EMBED) {
        REQUIRE(e->texts == 2, STATUS_DATA,
                "%s: example %" PRId64 " has %" PRId64 " texts instead of 2", shard_path(p->shard),
                p->index, e->texts);
        select_all_tokens(e);
        return STATUS_OK;
    }
    TRY(read_example_value(p, EXAMPLE_TEXTS_LABEL, &label));
    e->labels[0] = (int32_t)label;
    e->predictions = e->texts;
    return check_label(p, label, e->texts);
}

status shard_task_read(struct shard *shard, int64_t index, int64_t sequence_tokens,
                       struct example *out)
{
    enum example_kind kind = shard_get_header(shard)->kind;
    struct location p = {shard, index, 0};
    int64_t range[2];
    TRY(shard_read_documents(shard, index, 2, range));
    p.first = range[0];
    out->tokens = range[1] - range[0];
    REQUIRE(out->tokens <= out->token_capacity, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens, but the buffer holds %" PRId64,
            shard_path(shard), index, out->tokens, out->token_capacity);
    TRY(shard_read(shard, range[0], out->tokens, out->ids));
    switch (kind) {
    case EXAMPLE_CLASSIFY_TOKENS:
        return read_token_labels(&p, out);
    case EXAMPLE_ANSWER:
        return read_answer(&p, out);
    case EXAMPLE_CHOOSE:
    case EXAMPLE_EMBED:
        return read_multiple_texts(&p, sequence_tokens, out);
    default:
        return read_text(&p, out);
    }
}
