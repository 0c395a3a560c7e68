/* Fills a slot with the next micro-batch of this rank: windows, sentence pairs, task examples,
 * preference pairs, packs, or sources with targets. */
#include <inttypes.h>
#include <string.h>

#include "base/number.h"
#include "datasets/loader/loader_impl.h"

void loader_begin_step(struct loader *l, int64_t first)
{
    int64_t left = l->limit - first, global = l->options.global_sequences;
    int64_t count = number_clamp(left, 0, global);
    /* as in comm/partition.h: the first `larger` ranks have one sample more */
    int64_t each = count / l->options.ranks, larger = count % l->options.ranks;
    int64_t rank = l->options.rank;
    l->step_first_sample = l->counted = first;
    l->counts_known = false;
    l->rank_counts = (struct batch_counts){0};
    l->rows_before = l->outputs_before = 0;
    l->next_row = l->next_source_row = first * l->options.sequence_tokens;
    if (l->options.interleave_micro_batches) {
        l->end_sample = first + count;
        l->next_sample = first + rank * l->options.micro_sequences;
        return;
    }
    l->next_sample = first + rank * each + number_min(rank, larger);
    l->end_sample = l->next_sample + each + (rank < larger ? 1 : 0);
    bool counts_rows = loader_is_packed(&l->options) || loader_is_seq2seq(&l->options);
    l->counted = counts_rows ? first : l->next_sample;
}

/* Adds a window at row `row`: inputs, targets, positions, and one segment for each document that
 * starts at `starts`. */
static void add_window(struct loader *l, struct loader_slot *s, int64_t row, const int32_t *starts,
                       int64_t start_count)
{
    struct batch *b = &s->batch;
    int64_t tokens = l->options.sequence_tokens, begin = 0;
    memcpy(s->inputs + row, l->window, (size_t)tokens * sizeof *s->inputs);
    memcpy(s->targets + row, l->window + 1, (size_t)tokens * sizeof *s->targets);
    for (int64_t i = 0; i <= start_count; i++) {
        int64_t end = i < start_count ? starts[i] : tokens;
        if (i < start_count) {
            s->targets[row + end - 1] =
                BATCH_IGNORED; /* the next token belongs to another document */
        }
        if (end == begin) {
            continue; /* the document starts with the target of the last row */
        }
        for (int64_t j = begin; j < end; j++) {
            s->positions[row + j] = (int32_t)(j - begin);
        }
        s->cu_rows[++b->segments] = (int32_t)(row + end);
        b->longest = number_max(b->longest, end - begin);
        begin = end;
    }
}

/* Copies the ids and the token types of an example to the rows from `row` on. */
static void copy_tokens(struct loader_slot *s, int64_t row, const struct example *e)
{
    memcpy(s->inputs + row, e->ids, (size_t)e->tokens * sizeof *s->inputs);
    memcpy(s->token_type_ids + row, e->token_type_ids,
           (size_t)e->tokens * sizeof *s->token_type_ids);
}

/* Appends l->example, a sentence pair, to the batch as number `index`. */
static void add_sentence_pair(struct loader *l, struct loader_slot *s, int64_t index)
{
    struct batch *b = &s->batch;
    const struct example *e = &l->example;
    int64_t row = b->rows;
    copy_tokens(s, row, e);
    for (int64_t i = 0; i < e->tokens; i++) {
        s->positions[row + i] = (int32_t)i;
        s->targets[row + i] = BATCH_IGNORED;
    }
    for (int64_t i = 0; i < e->predictions; i++) {
        s->output_rows[b->outputs.count] = (int32_t)(row + e->positions[i]);
        s->labels[b->outputs.count++] = e->labels[i];
        s->targets[row + e->positions[i]] = e->labels[i];
    }
    s->next_sentence[index] = e->next_sentence;
    b->rows += e->tokens;
    b->longest = number_max(b->longest, e->tokens);
    s->cu_rows[++b->segments] = (int32_t)b->rows;
}

/* Appends the labels of a task example. `index` examples and `rows` rows that the head reads
 * precede it. */
static void add_labels(const struct loader *l, struct loader_slot *s, int64_t index, int64_t rows)
{
    const struct example *e = &l->example;
    int32_t *labels = s->labels;
    switch (l->options.kind) {
    case EXAMPLE_ANSWER:
        memcpy(labels + 2 * index, e->labels, 2 * sizeof *labels);
        memcpy(s->token_flags + s->batch.rows, e->answer_flags,
               (size_t)e->tokens * sizeof *s->token_flags);
        s->dataset_rows[index] = e->input_row;
        break;
    case EXAMPLE_CLASSIFY:
    case EXAMPLE_CHOOSE:
        labels[index] = e->labels[0];
        break;
    case EXAMPLE_CLASSIFY_TOKENS:
        memcpy(labels + rows, e->labels, (size_t)e->predictions * sizeof *labels);
        break;
    default:
        s->float_labels[index] = e->float_label;
    }
}

/* Appends l->example, a task example, to the batch as number `index`. Each text is a segment. */
static void add_task_example(struct loader *l, struct loader_slot *s, int64_t index)
{
    struct batch *b = &s->batch;
    const struct example *e = &l->example;
    int64_t row = b->rows;
    copy_tokens(s, row, e);
    add_labels(l, s, index, b->outputs.count);
    for (int64_t t = 0; t < e->texts; t++) {
        int32_t first = e->text_starts[t], end = e->text_starts[t + 1];
        for (int32_t i = first; i < end; i++) {
            s->positions[row + i] = i - first;
        }
        b->longest = number_max(b->longest, end - first);
        s->cu_rows[++b->segments] = (int32_t)(row + end);
    }
    for (int64_t i = 0; i < e->predictions; i++) {
        s->output_rows[b->outputs.count++] = (int32_t)(row + e->positions[i]);
    }
    s->example_rows[index + 1] = (int32_t)b->outputs.count;
    b->rows += e->tokens;
}

/* Reads sample `index` of the run into l->example: a sentence pair, which is masked, or a task
 * example, with the rows that the head reads. */
static status read_example(struct loader *l, int64_t index)
{
    struct sample_position position = sample_order_find(&l->order, index);
    struct example *e = &l->example;
    TRY(shard_set_read_example(l->sets[position.source], position.sample, e));
    for (int64_t t = 0; loader_reads_one_row(&l->options) && t < e->texts; t++) {
        e->positions[t] =
            l->options.head_reads_last_row ? e->text_starts[t + 1] - 1 : e->text_starts[t];
    }
    if (e->masked || loader_is_task(&l->options)) {
        return STATUS_OK;
    }
    REQUIRE(l->options.masking.token_kinds != NULL, STATUS_DATA,
            "the examples are not masked in their files, and masking requires a tokenizer with a "
            "[MASK] token");
    uint64_t example = (uint64_t)position.source << 48 ^ (uint64_t)position.sample;
    e->predictions =
        masking_apply(&l->options.masking, l->options.seed, position.epoch, example, e->ids,
                      e->tokens, e->positions, e->labels, e->token_type_ids + e->token_capacity);
    return STATUS_OK;
}

/* Sets l->rank_counts: reads all samples of this rank in the step before its first micro-batch. */
static status count_step(struct loader *l)
{
    for (int64_t i = l->next_sample; i < l->end_sample && l->options.count_global_batch; i++) {
        int64_t micro_batch = (i - l->step_first_sample) / l->options.micro_sequences;
        if (l->options.interleave_micro_batches &&
            micro_batch % l->options.ranks != l->options.rank) {
            continue;
        }
        TRY(read_example(l, i));
        l->rank_counts.rows += l->example.tokens;
        l->rank_counts.outputs += l->example.predictions;
        l->rank_counts.examples++;
    }
    l->counts_known = true;
    return STATUS_OK;
}

/* Adds the rows of micro-batches of other ranks to the counts. */
static status count_other_ranks(struct loader *l)
{
    for (; l->counted < l->next_sample && l->options.count_global_batch; l->counted++) {
        TRY(read_example(l, l->counted));
        l->rows_before += l->example.tokens;
        l->outputs_before += l->example.predictions;
    }
    return STATUS_OK;
}

/* Sets the pointers of the batch for sentence pairs. */
static void set_sentence_pair_fields(struct loader_slot *s)
{
    s->batch.kind = BATCH_SENTENCE_PAIRS;
    s->batch.outputs.targets = s->labels;
    s->batch.sentence_pairs.next_sentence = s->next_sentence;
}

/* Sets the pointers of the batch for a task. */
static void set_task_fields(const struct loader *l, struct loader_slot *s)
{
    enum example_kind kind = l->options.kind;
    bool has_labels = kind != EXAMPLE_REGRESS && kind != EXAMPLE_EMBED;
    s->batch.kind = BATCH_TASK;
    s->batch.targets = NULL;
    s->batch.outputs.example_rows = s->example_rows;
    s->batch.outputs.first = l->outputs_before;
    s->batch.task.labels = has_labels ? s->labels : NULL;
    s->batch.task.float_labels = kind == EXAMPLE_REGRESS ? s->float_labels : NULL;
    s->batch.task.token_flags = kind == EXAMPLE_ANSWER ? s->token_flags : NULL;
    s->batch.task.dataset_rows = kind == EXAMPLE_ANSWER ? s->dataset_rows : NULL;
    s->example_rows[0] = 0;
}

static status fill_examples(struct loader *l, struct loader_slot *s)
{
    bool task = loader_is_task(&l->options);
    TRY(l->counts_known ? STATUS_OK : count_step(l));
    TRY(count_other_ranks(l));
    s->batch.rows = 0;
    s->batch.rank_counts = l->rank_counts;
    s->batch.first_row = l->rows_before;
    s->batch.token_type_ids = s->token_type_ids;
    s->batch.outputs.rows = s->output_rows;
    if (task) {
        set_task_fields(l, s);
    } else {
        set_sentence_pair_fields(s);
    }
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        s->samples[i] = l->next_sample + i;
        TRY(read_example(l, l->next_sample + i));
        (task ? add_task_example : add_sentence_pair)(l, s, i);
    }
    l->rows_before += s->batch.rows;
    l->outputs_before += s->batch.outputs.count;
    l->counted = l->next_sample + s->batch.sequences;
    if (task) {
        s->batch.task.label_count =
            example_label_count(l->options.kind, s->batch.sequences, s->batch.outputs.count);
    }
    if (s->batch.outputs.count == 0 && s->batch.sequences > 0 && !task) {
        s->output_rows[0] = 0; /* the head needs a row */
        s->labels[0] = BATCH_IGNORED;
        s->batch.outputs.count = 1;
    }
    return STATUS_OK;
}

struct packing_epoch loader_packing_epoch(const struct loader *l,
                                          const struct sample_position *position)
{
    return (struct packing_epoch){l->options.seed, (uint64_t)position->epoch,
                                  (uint64_t)position->source, l->options.shuffle};
}

/* Adds the rows of packs of other ranks to l->next_row. */
static void count_packs_of_other_ranks(struct loader *l)
{
    for (; l->counted < l->next_sample; l->counted++) {
        struct sample_position position = sample_order_find(&l->order, l->counted);
        l->next_row += packing_pack_rows(l->packs[position.source], position.sample);
    }
}

static status fill_packs(struct loader *l, struct loader_slot *s)
{
    count_packs_of_other_ranks(l);
    struct packing_rows rows = {.inputs = s->inputs,
                                .targets = s->targets,
                                .positions = s->positions,
                                .cu_rows = s->cu_rows,
                                .ids = l->window,
                                .loss_mask = l->loss_mask};
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct sample_position position = sample_order_find(&l->order, l->next_sample + i);
        struct packing_epoch epoch = loader_packing_epoch(l, &position);
        s->samples[i] = l->next_sample + i;
        TRY(packing_read(l->packs[position.source], &epoch, l->sets[position.source],
                         position.sample, &rows));
    }
    s->batch.first_row = l->next_row;
    l->next_row += rows.rows;
    l->counted = l->next_sample + s->batch.sequences;
    s->batch.rows = rows.rows;
    s->batch.tokens_seen = rows.tokens_seen;
    s->batch.segments = rows.segments;
    s->batch.longest = rows.longest;
    return STATUS_OK;
}

/* Appends prompt and response of a pair to the batch, without the first `shared` tokens. */
static void add_response(struct loader_slot *s, const struct example *e, int64_t shared,
                         bool chosen)
{
    struct batch *b = &s->batch;
    const int32_t *response = e->ids + e->prompt + (chosen ? 0 : e->chosen);
    int64_t tokens = chosen ? e->prompt + e->chosen : e->tokens - e->chosen;
    for (int64_t i = shared; i < tokens; i++, b->rows++) {
        bool counted = i + 1 >= e->prompt && i + 1 < tokens;
        s->inputs[b->rows] = i < e->prompt ? e->ids[i] : response[i - e->prompt];
        s->targets[b->rows] = counted ? response[i + 1 - e->prompt] : BATCH_IGNORED;
        s->positions[b->rows] = (int32_t)i;
    }
    s->output_rows[b->outputs.count++] = (int32_t)b->rows - 1;
}

/* Ends the last segment at the end of the batch. */
static void end_segment(struct loader_slot *s)
{
    struct batch *b = &s->batch;
    int64_t rows = b->rows - s->cu_rows[b->segments];
    b->longest = number_max(b->longest, rows);
    s->cu_rows[++b->segments] = (int32_t)b->rows;
}

/* Appends l->example, a preference pair, to the batch as number i. */
static void add_preference_pair(const struct loader *l, struct loader_slot *s, int64_t i)
{
    const struct example *e = &l->example;
    int64_t first = s->batch.rows;
    bool shared_prompt = l->options.shared_prompt;
    int64_t shared = shared_prompt && e->prompt > 0 ? e->prompt - 1 : 0;
    add_response(s, e, 0, true);
    s->shared_prefix_offsets[2 * i] = (int32_t)shared;
    s->shared_prefix_offsets[2 * i + 1] = (int32_t)(s->batch.rows - first);
    if (!shared_prompt) {
        end_segment(s);
    }
    add_response(s, e, shared, false);
    end_segment(s);
    s->example_rows[i + 1] = (int32_t)s->batch.outputs.count;
}

static status fill_preferences(struct loader *l, struct loader_slot *s)
{
    const double *const *reference = l->options.reference_logps;
    s->batch.kind = BATCH_PREFERENCE_PAIRS;
    s->batch.rows = 0;
    s->batch.preference_pairs.shared_prefix_offsets =
        l->options.shared_prompt ? s->shared_prefix_offsets : NULL;
    s->batch.preference_pairs.reference_logps = reference != NULL ? s->reference_logps : NULL;
    s->example_rows[0] = 0;
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct sample_position position = sample_order_find(&l->order, l->next_sample + i);
        s->samples[i] = l->next_sample + i;
        TRY(shard_set_read_example(l->sets[position.source], position.sample, &l->example));
        add_preference_pair(l, s, i);
        s->batch.tokens_seen += l->example.tokens + l->example.prompt;
        if (reference != NULL) {
            memcpy(s->reference_logps + 2 * i, reference[position.source] + 2 * position.sample,
                   2 * sizeof *s->reference_logps);
        }
    }
    if (l->options.head_reads_responses) {
        s->batch.outputs = (struct batch_outputs){s->batch.outputs.count, s->output_rows, NULL,
                                                  s->example_rows, 0};
        return STATUS_OK;
    }
    s->batch.outputs = (struct batch_outputs){0};
    s->batch.preference_pairs.first_targets = s->first_targets;
    s->batch.preference_pairs.target_rows = s->target_rows;
    s->batch.preference_pairs.target_ids = s->target_ids;
    batch_list_targets(&s->batch, s->first_targets, s->target_rows, s->target_ids);
    return STATUS_OK;
}

static uint64_t compute_denoise_key(const struct loader *l, struct sample_position position)
{
    uint64_t example = (uint64_t)position.source << 48 ^ (uint64_t)position.sample;
    return denoise_key(l->options.seed, position.epoch, example);
}

/* Reads the lengths of the source and the target of a sample. */
static status read_lengths(struct loader *l, struct sample_position position, int64_t *source,
                           int64_t *target)
{
    const struct denoise *d = &l->options.denoise;
    if (!loader_is_denoising(&l->options)) {
        return shard_set_read_lengths(l->sets[position.source], position.sample, source, target);
    }
    denoise_lengths(d, compute_denoise_key(l, position),
                    denoise_window_tokens(d, l->options.sequence_tokens), l->denoise_memory, source,
                    target);
    return STATUS_OK;
}

/* Reads the source and the target of a sample into l->example. */
static status read_source_and_target(struct loader *l, struct sample_position position)
{
    struct shard_set *set = l->sets[position.source];
    const struct denoise *d = &l->options.denoise;
    struct example *e = &l->example;
    int64_t target;
    if (!loader_is_denoising(&l->options)) {
        return shard_set_read_example(set, position.sample, e);
    }
    TRY(shard_set_read(set, position.sample, position.shift, l->window));
    denoise_apply(d, compute_denoise_key(l, position), d->languages[position.source], l->window,
                  denoise_window_tokens(d, l->options.sequence_tokens), l->denoise_memory, e->ids,
                  &e->source, &target);
    e->tokens = e->source + target;
    return STATUS_OK;
}

/* Checks ids against one of two vocabularies. A limit of 0 is none. */
static status check_side(struct loader *l, struct sample_position position, const char *name,
                         const int32_t *ids, int64_t count, int64_t vocabulary)
{
    for (int64_t i = 0; i < count && vocabulary > 0; i++) {
        if (ids[i] >= vocabulary) {
            char text[1024];
            shard_set_locate(l->sets[position.source], position.sample, 0, text, sizeof text);
            return RAISE_STATUS(STATUS_DATA,
                                "%s: the %s has the id %" PRId32 ", but the vocabulary of %ss has "
                                "%" PRId64 " ids; prepare the data with the tokenizer of the model",
                                text, name, ids[i], name, vocabulary);
        }
    }
    return STATUS_OK;
}

static status check_vocabularies(struct loader *l, struct sample_position position)
{
    const struct example *e = &l->example;
    TRY(check_side(l, position, "source", e->ids, e->source, l->options.source_vocab_size));
    return check_side(l, position, "target", e->ids + e->source, e->tokens - e->source,
                      l->options.target_vocab_size);
}

/* Adds the rows of sources and targets of other ranks to the next rows. */
static status count_pairs_of_other_ranks(struct loader *l)
{
    for (; l->counted < l->next_sample; l->counted++) {
        struct sample_position position = sample_order_find(&l->order, l->counted);
        int64_t source, target;
        TRY(read_lengths(l, position, &source, &target));
        l->next_source_row += source;
        l->next_row += target;
    }
    return STATUS_OK;
}

/* Appends l->example, a source and its target, to the batch. */
static void add_source_and_target(const struct loader *l, struct loader_slot *s)
{
    struct batch *b = &s->batch;
    const struct example *e = &l->example;
    const int32_t *target = e->ids + e->source;
    int64_t row = b->source.rows, target_rows = e->tokens - e->source;
    memcpy(s->source_inputs + row, e->ids, (size_t)e->source * sizeof *s->source_inputs);
    for (int64_t i = 0; i < e->source; i++) {
        s->source_positions[row + i] = (int32_t)i;
    }
    int32_t start = l->options.decoder_start;
    start = start == LOADER_START_LAST ? target[target_rows - 1] : start;
    for (int64_t i = 0; i < target_rows; i++) {
        s->inputs[b->rows + i] = i > 0 ? target[i - 1] : start;
        s->targets[b->rows + i] = target[i];
        s->positions[b->rows + i] = (int32_t)i;
    }
    b->source.rows += e->source;
    b->source.longest = number_max(b->source.longest, e->source);
    b->rows += target_rows;
    b->longest = number_max(b->longest, target_rows);
    b->segments++;
    s->source_cu_rows[b->segments] = (int32_t)b->source.rows;
    s->cu_rows[b->segments] = (int32_t)b->rows;
}

static status fill_sources_and_targets(struct loader *l, struct loader_slot *s)
{
    TRY(count_pairs_of_other_ranks(l));
    s->source_cu_rows[0] = 0;
    s->batch.kind = BATCH_SEQ2SEQ;
    s->batch.rows = 0;
    s->batch.first_row = l->next_row;
    s->batch.source = (struct batch_source){.inputs = s->source_inputs,
                                            .positions = s->source_positions,
                                            .cu_rows = s->source_cu_rows,
                                            .first_row = l->next_source_row};
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct sample_position position = sample_order_find(&l->order, l->next_sample + i);
        s->samples[i] = l->next_sample + i;
        TRY(read_source_and_target(l, position));
        TRY(check_vocabularies(l, position));
        add_source_and_target(l, s);
    }
    s->batch.tokens_seen = s->batch.source.rows + s->batch.rows;
    l->next_source_row += s->batch.source.rows;
    l->next_row += s->batch.rows;
    l->counted = l->next_sample + s->batch.sequences;
    return STATUS_OK;
}

static status fill_windows(struct loader *l, struct loader_slot *s)
{
    int64_t tokens = l->options.sequence_tokens;
    for (int64_t i = 0; i < s->batch.sequences; i++) {
        struct sample_position position = sample_order_find(&l->order, l->next_sample + i);
        struct shard_set *set = l->sets[position.source];
        int64_t start_count = 0;
        s->samples[i] = l->next_sample + i;
        TRY(shard_set_read(set, position.sample, position.shift, l->window));
        if (l->options.document_mask) {
            TRY(shard_set_read_starts(set, position.sample, position.shift, l->document_starts,
                                      &start_count));
        }
        add_window(l, s, i * tokens, l->document_starts, start_count);
    }
    return STATUS_OK;
}

status loader_fill(struct loader *l, struct loader_slot *s)
{
    int64_t tokens = l->options.sequence_tokens;
    int64_t left = l->end_sample - l->next_sample, limit = l->options.micro_sequences;
    int64_t sequences = number_clamp(left, 0, limit);
    int64_t stride = l->options.interleave_micro_batches ? limit * l->options.ranks : limit;
    s->end = l->step_first_sample >= l->limit;
    s->last = !s->end && stride >= left;
    s->batch = (struct batch){.sequences = sequences,
                              .tokens = tokens,
                              .rows = sequences * tokens,
                              .inputs = s->inputs,
                              .targets = s->targets,
                              .positions = s->positions,
                              .cu_rows = s->cu_rows,
                              .first_row = l->next_sample * tokens *
                                           (loader_is_preference(&l->options) ? 2 : 1),
                              .samples = s->samples};
    s->cu_rows[0] = 0;
    TRY(loader_is_masked(&l->options) || loader_is_task(&l->options) ? fill_examples(l, s)
        : loader_is_preference(&l->options)                          ? fill_preferences(l, s)
        : loader_is_seq2seq(&l->options) ? fill_sources_and_targets(l, s)
        : loader_is_packed(&l->options)  ? fill_packs(l, s)
                                         : fill_windows(l, s));
    s->batch.tokens_seen = number_max(s->batch.tokens_seen, s->batch.rows);
    l->next_sample += stride;
    if (s->last) {
        loader_begin_step(l, l->step_first_sample + l->options.global_sequences);
    }
    return STATUS_OK;
}
