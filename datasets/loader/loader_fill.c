/* What the loader's thread puts into a slot: the next micro-batch of this rank's share of a step, of windows, sentence
 * pairs, texts of a task, preference pairs or packs. */
#include <string.h>

#include "datasets/loader/loader_impl.h"

/* This rank's share of the step that begins with sample `first`: the first `larger` ranks have one
 * sample more (comm/partition.h's rule). */
void loader_begin_step(struct loader *l, int64_t first)
{
    int64_t left = l->limit - first, global = l->options.global_sequences;
    int64_t count = left < global ? (left > 0 ? left : 0) : global;
    int64_t each = count / l->options.ranks, larger = count % l->options.ranks;
    int64_t rank = l->options.rank;
    l->step_first = l->counted = first;
    l->share_known = false;
    l->share = (struct batch_share){0};
    l->rows_before = l->masked_before = 0;
    l->next_row = first * l->options.sequence_tokens;
    if (l->options.deal) {
        l->share_end = first + count;
        l->next = first + rank * l->options.micro_sequences;
        return;
    }
    l->next = first + rank * each + (rank < larger ? rank : larger);
    l->share_end = l->next + each + (rank < larger ? 1 : 0);
    l->counted = loader_is_packed(&l->options) ? first : l->next;
}

/* Targets and positions of one sample, one segment for each document in it where they are masked. */
static void add_rows(struct loader *l, struct slot *s, int64_t row, const int32_t *starts,
                     int64_t start_count)
{
    struct batch *b = &s->batch;
    int64_t tokens = l->options.sequence_tokens, begin = 0;
    memcpy(s->inputs + row, l->window, (size_t)tokens * sizeof *s->inputs);
    memcpy(s->targets + row, l->window + 1, (size_t)tokens * sizeof *s->targets);
    for (int64_t i = 0; i <= start_count; i++) {
        int64_t end = i < start_count ? starts[i] : tokens;
        if (i < start_count) {
            s->targets[row + end - 1] = BATCH_IGNORED; /* it would be another document's token */
        }
        if (end == begin) {
            continue; /* a document begins with the target of the last row */
        }
        for (int64_t j = begin; j < end; j++) {
            s->positions[row + j] = (int32_t)(j - begin);
        }
        s->cu_rows[++b->segments] = (int32_t)(row + end);
        b->longest = end - begin > b->longest ? end - begin : b->longest;
        begin = end;
    }
}

/* The example that l->example holds, at the end of the batch. */
static void add_example(struct loader *l, struct slot *s, int64_t index)
{
    struct batch *b = &s->batch;
    const struct example *e = &l->example;
    int64_t row = b->rows;
    memcpy(s->inputs + row, e->ids, (size_t)e->tokens * sizeof *s->inputs);
    memcpy(s->segment_ids + row, e->segments, (size_t)e->tokens * sizeof *s->segment_ids);
    for (int64_t i = 0; i < e->tokens; i++) {
        s->positions[row + i] = (int32_t)i;
        s->targets[row + i] = BATCH_IGNORED;
    }
    for (int64_t i = 0; i < e->predictions; i++) {
        s->masked_rows[b->masked] = (int32_t)(row + e->positions[i]);
        s->masked_ids[b->masked++] = e->labels[i];
        s->targets[row + e->positions[i]] = e->labels[i];
    }
    s->next_sentence[index] = e->next_sentence;
    b->rows += e->tokens;
    b->longest = e->tokens > b->longest ? e->tokens : b->longest;
    s->cu_rows[++b->segments] = (int32_t)b->rows;
}

/* The labels of a task's example that comes behind `index` others, of which the head reads `rows` rows. */
static void add_labels(const struct loader *l, struct slot *s, int64_t index, int64_t rows)
{
    const struct example *e = &l->example;
    int32_t *labels = s->masked_ids;
    switch (l->options.kind) {
    case EXAMPLE_ANSWER:
        memcpy(labels + 2 * index, e->labels, 2 * sizeof *labels);
        s->next_sentence[index] = e->row;
        break;
    case EXAMPLE_CLASSIFY:
    case EXAMPLE_CHOOSE:
        labels[index] = e->labels[0];
        break;
    case EXAMPLE_CLASSIFY_TOKENS:
        memcpy(labels + rows, e->labels, (size_t)e->predictions * sizeof *labels);
        break;
    default:
        s->numbers[index] = e->number;
    }
}

/* The example of a task, likewise: each of its texts is a segment. */
static void add_task(struct loader *l, struct slot *s, int64_t index)
{
    struct batch *b = &s->batch;
    const struct example *e = &l->example;
    int64_t row = b->rows;
    memcpy(s->inputs + row, e->ids, (size_t)e->tokens * sizeof *s->inputs);
    memcpy(s->segment_ids + row, e->segments, (size_t)e->tokens * sizeof *s->segment_ids);
    add_labels(l, s, index, b->masked);
    for (int64_t t = 0; t < e->texts; t++) {
        int32_t first = e->text_first[t], end = e->text_first[t + 1];
        for (int32_t i = first; i < end; i++) {
            s->positions[row + i] = i - first;
            s->targets[row + i] = l->options.kind == EXAMPLE_ANSWER ? e->marks[i] : BATCH_IGNORED;
        }
        b->longest = end - first > b->longest ? end - first : b->longest;
        s->cu_rows[++b->segments] = (int32_t)(row + end);
    }
    for (int64_t i = 0; i < e->predictions; i++) {
        s->masked_rows[b->masked++] = (int32_t)(row + e->positions[i]);
    }
    s->example_rows[index + 1] = (int32_t)b->masked;
    b->rows += e->tokens;
}

/* Sentence pair number `index` of the run, masked; or a text of a task, with the row that its head reads. */
static status read_pair(struct loader *l, int64_t index)
{
    struct order_place place = order_at(&l->order, index);
    struct example *e = &l->example;
    TRY(shard_set_example(l->sets[place.source], place.sample, e));
    for (int64_t t = 0; loader_reads_one(&l->options) && t < e->texts; t++) {
        e->positions[t] = l->options.last_rows ? e->text_first[t + 1] - 1 : e->text_first[t];
    }
    if (e->masked || loader_is_task(&l->options)) {
        return STATUS_OK;
    }
    REQUIRE(l->options.masking.kinds != NULL, STATUS_DATA,
            "the examples are not masked in their files: masking needs a tokenizer with a [MASK]");
    uint64_t example = (uint64_t)place.source << 48 ^ (uint64_t)place.sample;
    e->predictions =
        masking_apply(&l->options.masking, l->options.seed, place.epoch, example, e->ids, e->tokens,
                      e->positions, e->labels, e->segments + e->room);
    return STATUS_OK;
}

/* What the share of a step adds up to, before it is handed out. */
static status look_ahead(struct loader *l)
{
    for (int64_t i = l->next; i < l->share_end && l->options.looks_ahead; i++) {
        int64_t micro_batch = (i - l->step_first) / l->options.micro_sequences;
        if (l->options.deal && micro_batch % l->options.ranks != l->options.rank) {
            continue;
        }
        TRY(read_pair(l, i));
        l->share.rows += l->example.tokens;
        l->share.masked += l->example.predictions;
        l->share.examples++;
    }
    l->share_known = true;
    return STATUS_OK;
}

/* Rows that were dealt to other ranks. */
static status count_others(struct loader *l)
{
    for (; l->counted < l->next && l->options.looks_ahead; l->counted++) {
        TRY(read_pair(l, l->counted));
        l->rows_before += l->example.tokens;
        l->masked_before += l->example.predictions;
    }
    return STATUS_OK;
}

/* What is to be learned of a task's examples. */
static void give_labels(const struct loader *l, struct slot *s)
{
    bool numbers = l->options.kind == EXAMPLE_REGRESS;
    s->batch.example_rows = s->example_rows;
    s->batch.labels = numbers || l->options.kind == EXAMPLE_EMBED ? NULL : s->masked_ids;
    s->batch.numbers = numbers ? s->numbers : NULL;
    s->batch.masked_ids = NULL;
    s->batch.next_sentence = l->options.kind == EXAMPLE_ANSWER ? s->next_sentence : NULL;
    s->batch.first_masked = l->masked_before;
}

static status fill_examples(struct loader *l, struct slot *s)
{
    TRY(l->share_known ? STATUS_OK : look_ahead(l));
    TRY(count_others(l));
    s->batch.rows = 0;
    s->batch.share = l->share;
    s->batch.first_row = l->rows_before;
    s->batch.segment_ids = s->segment_ids;
    s->batch.next_sentence = s->next_sentence;
    s->batch.masked_rows = s->masked_rows;
    s->batch.masked_ids = s->masked_ids;
    if (loader_is_task(&l->options)) {
        give_labels(l, s);
        s->example_rows[0] = 0;
    }
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        s->samples[i] = l->next + i;
        TRY(read_pair(l, l->next + i));
        (loader_is_task(&l->options) ? add_task : add_example)(l, s, i);
    }
    l->rows_before += s->batch.rows;
    l->masked_before += s->batch.masked;
    l->counted = l->next + s->batch.sequences;
    if (s->batch.masked == 0 && s->batch.sequences > 0 && !loader_is_task(&l->options)) {
        s->masked_rows[0] = 0;
        s->masked_ids[0] = BATCH_IGNORED;
        s->batch.masked = 1;
    }
    return STATUS_OK;
}

struct packing_epoch loader_epoch(const struct loader *l, const struct order_place *place)
{
    return (struct packing_epoch){l->options.seed, (uint64_t)place->epoch, (uint64_t)place->source,
                                  l->options.shuffle};
}

/* Rows of other ranks' packs. */
static void count_other_packs(struct loader *l)
{
    for (; l->counted < l->next; l->counted++) {
        struct order_place place = order_at(&l->order, l->counted);
        l->next_row += packing_pack_rows(l->packs[place.source], place.sample);
    }
}

static status fill_packs(struct loader *l, struct slot *s)
{
    count_other_packs(l);
    struct packing_rows rows = {.inputs = s->inputs,
                                .targets = s->targets,
                                .positions = s->positions,
                                .cu_rows = s->cu_rows,
                                .ids = l->window,
                                .marks = l->marks};
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct order_place place = order_at(&l->order, l->next + i);
        struct packing_epoch epoch = loader_epoch(l, &place);
        s->samples[i] = l->next + i;
        TRY(packing_read(l->packs[place.source], &epoch, l->sets[place.source], place.sample,
                         &rows));
    }
    s->batch.first_row = l->next_row;
    l->next_row += rows.rows;
    l->counted = l->next + s->batch.sequences;
    s->batch.rows = rows.rows;
    s->batch.seen = rows.seen;
    s->batch.segments = rows.segments;
    s->batch.longest = rows.longest;
    return STATUS_OK;
}

/* A pair's answer behind its prompt, but for the first `shared` tokens, at the end of the batch. */
static void add_answer(struct slot *s, const struct example *e, int64_t shared, bool chosen)
{
    struct batch *b = &s->batch;
    const int32_t *answer = e->ids + e->prompt + (chosen ? 0 : e->chosen);
    int64_t tokens = chosen ? e->prompt + e->chosen : e->tokens - e->chosen;
    for (int64_t i = shared; i < tokens; i++, b->rows++) {
        bool counted = i + 1 >= e->prompt && i + 1 < tokens;
        s->inputs[b->rows] = i < e->prompt ? e->ids[i] : answer[i - e->prompt];
        s->targets[b->rows] = counted ? answer[i + 1 - e->prompt] : BATCH_IGNORED;
        s->positions[b->rows] = (int32_t)i;
    }
    s->masked_rows[b->masked++] = (int32_t)b->rows - 1;
}

static void end_segment(struct slot *s)
{
    struct batch *b = &s->batch;
    int64_t rows = b->rows - s->cu_rows[b->segments];
    b->longest = rows > b->longest ? rows : b->longest;
    s->cu_rows[++b->segments] = (int32_t)b->rows;
}

/* l->example, pair i of the batch. */
static void add_preference(const struct loader *l, struct slot *s, int64_t i)
{
    const struct example *e = &l->example;
    int64_t first = s->batch.rows;
    bool together = l->options.shared_prompt;
    int64_t shared = together && e->prompt > 0 ? e->prompt - 1 : 0;
    add_answer(s, e, 0, true);
    s->branches[2 * i] = (int32_t)shared;
    s->branches[2 * i + 1] = (int32_t)(s->batch.rows - first);
    if (!together) {
        end_segment(s);
    }
    add_answer(s, e, shared, false);
    end_segment(s);
    s->example_rows[i + 1] = (int32_t)s->batch.masked;
}

static status fill_preferences(struct loader *l, struct slot *s)
{
    const double *const *reference = l->options.reference;
    s->batch.rows = 0;
    s->batch.branches = l->options.shared_prompt ? s->branches : NULL;
    s->batch.masked_rows = l->options.last_of_answers ? s->masked_rows : NULL;
    s->batch.example_rows = l->options.last_of_answers ? s->example_rows : NULL;
    s->example_rows[0] = 0;
    s->batch.reference = reference != NULL ? s->reference : NULL;
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct order_place place = order_at(&l->order, l->next + i);
        s->samples[i] = l->next + i;
        TRY(shard_set_example(l->sets[place.source], place.sample, &l->example));
        add_preference(l, s, i);
        s->batch.seen += l->example.tokens + l->example.prompt;
        if (reference != NULL) {
            memcpy(s->reference + 2 * i, reference[place.source] + 2 * place.sample,
                   2 * sizeof *s->reference);
        }
    }
    s->batch.masked = l->options.last_of_answers ? s->batch.masked : 0;
    return STATUS_OK;
}

static status fill_windows(struct loader *l, struct slot *s)
{
    int64_t tokens = l->options.sequence_tokens;
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct order_place place = order_at(&l->order, l->next + i);
        struct shard_set *set = l->sets[place.source];
        int64_t start_count = 0;
        s->samples[i] = l->next + i;
        TRY(shard_set_read(set, place.sample, place.shift, l->window));
        if (l->options.document_mask) {
            TRY(shard_set_starts(set, place.sample, place.shift, l->starts, &start_count));
        }
        add_rows(l, s, i * tokens, l->starts, start_count);
    }
    return STATUS_OK;
}

status loader_fill(struct loader *l, struct slot *s)
{
    int64_t tokens = l->options.sequence_tokens;
    int64_t left = l->share_end - l->next, most = l->options.micro_sequences;
    int64_t sequences = left < most ? (left > 0 ? left : 0) : most;
    int64_t stride = l->options.deal ? most * l->options.ranks : most;
    s->end = l->step_first >= l->limit;
    s->last = !s->end && stride >= left;
    s->batch =
        (struct batch){.sequences = sequences,
                       .tokens = tokens,
                       .rows = sequences * tokens,
                       .inputs = s->inputs,
                       .targets = s->targets,
                       .positions = s->positions,
                       .cu_rows = s->cu_rows,
                       .first_row = l->next * tokens * (loader_is_preference(&l->options) ? 2 : 1),
                       .samples = s->samples};
    s->cu_rows[0] = 0;
    TRY(loader_is_masked(&l->options) || loader_is_task(&l->options) ? fill_examples(l, s)
        : loader_is_preference(&l->options)                          ? fill_preferences(l, s)
        : loader_is_packed(&l->options)                              ? fill_packs(l, s)
                                                                     : fill_windows(l, s));
    s->batch.seen = s->batch.seen > s->batch.rows ? s->batch.seen : s->batch.rows;
    l->next += stride;
    if (s->last) {
        loader_begin_step(l, l->step_first + l->options.global_sequences);
    }
    return STATUS_OK;
}
