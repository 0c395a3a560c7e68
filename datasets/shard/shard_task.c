#include "datasets/shard/shard_task.h"

#include <math.h>
#include <string.h>

struct place { /* of an example in its shard */
    struct shard *shard;
    int64_t index, first;
};

static status column(const struct place *p, int number, uint32_t *out)
{
    return shard_read_column(p->shard, number, p->index, 1, out);
}

static void one_text(struct example *e, uint32_t first_segment)
{
    for (int64_t i = 0; i < e->tokens; i++) {
        e->segments[i] = i >= first_segment;
    }
    e->texts = 1;
    e->text_first[0] = 0;
    e->text_first[1] = (int32_t)e->tokens;
}

static status require_segment(const struct place *p, const struct example *e, uint32_t first)
{
    REQUIRE(first > 0 && first <= e->tokens, STATUS_DATA,
            "%s: example %lld has %lld tokens and a first segment of %u", shard_path(p->shard),
            (long long)p->index, (long long)e->tokens, first);
    return STATUS_OK;
}

static status require_label(const struct place *p, uint32_t label, int64_t limit)
{
    REQUIRE((int64_t)label < limit, STATUS_DATA, "%s: example %lld has the label %u of %lld",
            shard_path(p->shard), (long long)p->index, label, (long long)limit);
    return STATUS_OK;
}

/* ---- kinds ---- */

static status read_text(const struct place *p, struct example *e)
{
    const struct shard_header *h = shard_header_of(p->shard);
    uint32_t first = 0, label = 0;
    TRY(column(p, EXAMPLE_TASK_FIRST_SEGMENT, &first));
    TRY(column(p, EXAMPLE_TASK_LABEL, &label));
    TRY(require_segment(p, e, first));
    one_text(e, first);
    e->predictions = 1;
    if (h->kind == EXAMPLE_REGRESS) {
        memcpy(&e->number, &label, sizeof e->number);
        REQUIRE(isfinite(e->number), STATUS_DATA, "%s: example %lld has the label %g",
                shard_path(p->shard), (long long)p->index, (double)e->number);
        return STATUS_OK;
    }
    e->labels[0] = (int32_t)label;
    return require_label(p, label, h->labels);
}

static status read_words(const struct place *p, struct example *e)
{
    TRY(shard_read_column(p->shard, EXAMPLE_TOKEN_LABEL, p->first, e->tokens,
                          (uint32_t *)e->labels));
    one_text(e, (uint32_t)e->tokens);
    e->predictions = 0;
    for (int64_t i = 0; i < e->tokens; i++) {
        int32_t label = e->labels[i];
        if (label != EXAMPLE_NO_LABEL) {
            TRY(require_label(p, (uint32_t)label, shard_header_of(p->shard)->labels));
            e->positions[e->predictions] = (int32_t)i;
            e->labels[e->predictions++] = label;
        }
    }
    REQUIRE(e->predictions > 0, STATUS_DATA, "%s: example %lld has no label", shard_path(p->shard),
            (long long)p->index);
    return STATUS_OK;
}

static void read_all(struct example *e)
{
    e->predictions = e->tokens;
    for (int64_t i = 0; i < e->tokens; i++) {
        e->positions[i] = (int32_t)i;
    }
}

static status read_tokens(const struct place *p, const struct example *e, int number, int32_t *out)
{
    return shard_read_column(p->shard, number, p->first, e->tokens, (uint32_t *)out);
}

/* Positions are free until they are filled in. */
static status read_marks(const struct place *p, struct example *e)
{
    int32_t *blank = e->positions, *marks = e->marks = e->labels + 2;
    TRY(read_tokens(p, e, EXAMPLE_ANSWER_FROM, blank));
    TRY(read_tokens(p, e, EXAMPLE_ANSWER_TO, marks));
    for (int64_t i = e->tokens - 1; i > 0; i--) {
        blank[i] = (uint32_t)blank[i] > (uint32_t)marks[i - 1] ? EXAMPLE_BEHIND_BLANK : 0;
    }
    blank[0] = 0;
    TRY(read_tokens(p, e, EXAMPLE_ANSWER_RIGHT, marks));
    for (int64_t i = 0; i < e->tokens; i++) {
        marks[i] = (marks[i] & (EXAMPLE_BEHIND_BLANK - 1)) | blank[i];
    }
    return STATUS_OK;
}

static status read_window(const struct place *p, struct example *e)
{
    uint32_t first = 0, ends[2] = {0}, row = 0;
    TRY(column(p, EXAMPLE_ANSWER_FIRST_SEGMENT, &first));
    TRY(column(p, EXAMPLE_ANSWER_BEGIN, &ends[0]));
    TRY(column(p, EXAMPLE_ANSWER_END, &ends[1]));
    TRY(require_segment(p, e, first));
    REQUIRE(ends[0] <= ends[1] && ends[1] < e->tokens && e->predictions_room >= 2, STATUS_DATA,
            "%s: example %lld has %lld tokens and an answer from %u to %u", shard_path(p->shard),
            (long long)p->index, (long long)e->tokens, ends[0], ends[1]);
    one_text(e, first);
    TRY(column(p, EXAMPLE_ANSWER_ROW, &row));
    e->row = (int32_t)(row & INT32_MAX);
    TRY(read_marks(p, e));
    read_all(e);
    e->labels[0] = (int32_t)ends[0];
    e->labels[1] = (int32_t)ends[1];
    return STATUS_OK;
}

/* Marks lie where segments will. */
static status find_texts(const struct place *p, int64_t sequence_tokens, struct example *e)
{
    e->texts = 0;
    TRY(shard_read_column(p->shard, EXAMPLE_SEVERAL_MARK, p->first, e->tokens,
                          (uint32_t *)e->segments));
    for (int64_t i = 0; i < e->tokens; i++) {
        bool begins = (e->segments[i] & EXAMPLE_BEGINS_TEXT) != 0;
        REQUIRE(
            (i > 0 || begins) && (!begins || e->texts < e->texts_room), STATUS_DATA,
            "%s: example %lld has more than %lld texts, or none; model.num_labels says how many "
            "choices there are at most",
            shard_path(p->shard), (long long)p->index, (long long)e->texts_room);
        if (begins) {
            e->text_first[e->texts++] = (int32_t)i;
        }
        e->segments[i] &= EXAMPLE_SECOND_SEGMENT;
    }
    e->text_first[e->texts] = (int32_t)e->tokens;
    for (int64_t i = 0; i < e->texts; i++) {
        int32_t tokens = e->text_first[i + 1] - e->text_first[i];
        REQUIRE(
            tokens <= sequence_tokens, STATUS_DATA,
            "%s: example %lld has a text of %d tokens, the sequence length is %lld; run `bireme "
            "prepare` with --sequence-length %lld, or raise data.sequence_length",
            shard_path(p->shard), (long long)p->index, tokens, (long long)sequence_tokens,
            (long long)sequence_tokens);
    }
    return STATUS_OK;
}

static status read_several(const struct place *p, int64_t sequence_tokens, struct example *e)
{
    uint32_t label = 0;
    TRY(find_texts(p, sequence_tokens, e));
    if (shard_header_of(p->shard)->kind == EXAMPLE_EMBED) {
        REQUIRE(e->texts == 2, STATUS_DATA, "%s: example %lld has %lld texts instead of 2",
                shard_path(p->shard), (long long)p->index, (long long)e->texts);
        read_all(e);
        return STATUS_OK;
    }
    TRY(column(p, EXAMPLE_SEVERAL_LABEL, &label));
    e->labels[0] = (int32_t)label;
    e->predictions = e->texts;
    return require_label(p, label, e->texts);
}

status shard_task_read(struct shard *shard, int64_t index, int64_t sequence_tokens,
                       struct example *out)
{
    enum example_kind kind = shard_header_of(shard)->kind;
    struct place p = {shard, index, 0};
    int64_t range[2];
    TRY(shard_read_documents(shard, index, 2, range));
    p.first = range[0];
    out->tokens = range[1] - range[0];
    REQUIRE(out->tokens <= out->room, STATUS_DATA,
            "%s: example %lld has %lld tokens, room is for %lld", shard_path(shard),
            (long long)index, (long long)out->tokens, (long long)out->room);
    TRY(shard_read(shard, range[0], out->tokens, out->ids));
    switch (kind) {
    case EXAMPLE_CLASSIFY_TOKENS:
        return read_words(&p, out);
    case EXAMPLE_ANSWER:
        return read_window(&p, out);
    case EXAMPLE_CHOOSE:
    case EXAMPLE_EMBED:
        return read_several(&p, sequence_tokens, out);
    default:
        return read_text(&p, out);
    }
}
