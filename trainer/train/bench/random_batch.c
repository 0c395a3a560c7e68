#include "trainer/train/bench/random_batch.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"
#include "trainer/objective/preference.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"

/* A batch while it is filled. */
struct builder {
    struct random_batch *out;
    const struct recipe *recipe;
    enum example_kind kind;
    int64_t vocabulary, labels; /* ids and classes to draw from */
    int64_t source_vocabulary;  /* ids of sources */
    int64_t tokens, texts;      /* of a text; of an example */
    int64_t source_tokens;      /* of a source */
    uint64_t key, drawn;
};

static int32_t draw_id(struct builder *b, int64_t below)
{
    return (int32_t)random_below(b->key, b->drawn++, (uint64_t)below);
}

/* ---- rows and segments ---- */

/* Appends the rows of a text from token `first` on. Targets before token `learned` are ignored. */
static void add_rows(struct builder *b, int64_t first, int64_t learned)
{
    struct random_batch *o = b->out;
    for (int64_t i = first; i < b->tokens; i++) {
        int64_t row = o->batch.rows++;
        o->inputs[row] = draw_id(b, b->vocabulary);
        o->targets[row] = i < learned ? BATCH_IGNORED : draw_id(b, b->vocabulary);
        o->positions[row] = (int32_t)i;
    }
}

static void end_segment(struct builder *b)
{
    struct batch *batch = &b->out->batch;
    int64_t rows = batch->rows - b->out->cu_rows[batch->segments];
    batch->longest = number_max(batch->longest, rows);
    b->out->cu_rows[++batch->segments] = (int32_t)batch->rows;
}

static void add_output(struct builder *b, int64_t row)
{
    b->out->output_rows[b->out->batch.outputs.count++] = (int32_t)row;
}

static void add_text(struct builder *b, int64_t learned)
{
    add_rows(b, 0, learned);
    end_segment(b);
}

/* ---- examples of each kind ---- */

/* Appends a sentence pair. Its masked rows are evenly spaced. */
static void add_sentence_pair(struct builder *b)
{
    const struct recipe *r = b->recipe;
    struct random_batch *o = b->out;
    int64_t first = o->batch.rows, most = r->mlm.max_predictions;
    int64_t masked = (int64_t)floor(r->mlm.mask_probability * (double)b->tokens + 0.5);
    masked = number_clamp(masked, 1, most);
    add_text(b, b->tokens);
    for (int64_t i = 0; i < masked; i++) {
        int64_t row = first + i * b->tokens / masked;
        o->targets[row] = o->labels[o->batch.outputs.count] = draw_id(b, b->vocabulary);
        add_output(b, row);
    }
}

/* Appends a preference pair, with or without a shared prompt, and its two last rows. */
static void add_preference_pair(struct builder *b, int64_t index)
{
    struct random_batch *o = b->out;
    bool shares_prompt = objective_spec_shares_prompt(b->recipe);
    int64_t first = o->batch.rows, prompt = b->tokens / 2;
    int64_t shared = shares_prompt && prompt > 0 ? prompt - 1 : 0;
    for (int64_t i = 0; i < RESPONSES; i++) {
        o->shared_prefix_offsets[RESPONSES * index + i] =
            (int32_t)(i == CHOSEN ? shared : o->batch.rows - first);
        add_rows(b, i == CHOSEN ? 0 : shared, prompt - 1);
        o->targets[o->batch.rows - 1] = BATCH_IGNORED; /* no token follows */
        o->reference_logps[RESPONSES * index + i] =
            -(double)(b->tokens - prompt) * log((double)b->vocabulary);
        add_output(b, o->batch.rows - 1);
        if (!shares_prompt || i == REJECTED) {
            end_segment(b);
        }
    }
}

/* Appends the texts of a task example and the rows that its head reads. */
static void add_task_texts(struct builder *b)
{
    enum model_head_kind head = objective_spec_head(b->recipe);
    bool reads_one_row = head == MODEL_HEAD_SEQUENCE || head == MODEL_HEAD_MULTIPLE_CHOICE;
    bool reads_last_row = reads_one_row && derive_reads_last_row(b->recipe);
    for (int64_t t = 0; t < b->texts; t++) {
        int64_t row = b->out->batch.rows + (reads_last_row ? b->tokens - 1 : 0);
        add_text(b, 0);
        int64_t end = reads_one_row ? row + 1 : b->out->batch.rows;
        for (; row < end; row++) {
            add_output(b, row);
        }
    }
}

/* Appends a source and its target. */
static void add_source_and_target(struct builder *b)
{
    struct random_batch *o = b->out;
    struct batch_source *source = &o->batch.source;
    for (int64_t i = 0; i < b->source_tokens; i++) {
        o->source_inputs[source->rows] = draw_id(b, b->source_vocabulary);
        o->source_positions[source->rows++] = (int32_t)i;
    }
    add_text(b, 0);
    o->source_cu_rows[o->batch.segments] = (int32_t)source->rows;
}

static void add_task_labels(struct builder *b, int64_t index)
{
    struct random_batch *o = b->out;
    switch (b->kind) {
    case EXAMPLE_ANSWER: /* the first and the last token */
        o->labels[2 * index] = draw_id(b, b->tokens);
        o->labels[2 * index + 1] = draw_id(b, b->tokens);
        break;
    case EXAMPLE_CHOOSE:
        o->labels[index] = draw_id(b, b->texts);
        break;
    case EXAMPLE_REGRESS:
        o->float_labels[index] = random_uniform(b->key, b->drawn++);
        break;
    default: /* one label per output */
        for (int64_t i = o->example_rows[index]; i < o->batch.outputs.count; i++) {
            o->labels[i] = draw_id(b, b->labels);
        }
    }
}

static void add_example(struct builder *b, int64_t index)
{
    struct random_batch *o = b->out;
    switch (b->kind) {
    case EXAMPLE_TEXT:
    case EXAMPLE_SFT:
        add_text(b, b->kind == EXAMPLE_SFT ? b->tokens / 2 : 0);
        break;
    case EXAMPLE_SENTENCE_PAIRS:
        add_sentence_pair(b);
        break;
    case EXAMPLE_SEQ2SEQ:
        add_source_and_target(b);
        break;
    case EXAMPLE_PREFERENCE_PAIRS:
        add_preference_pair(b, index);
        break;
    default:
        add_task_texts(b);
        add_task_labels(b, index);
    }
    o->example_rows[index + 1] = (int32_t)o->batch.outputs.count;
}

/* ---- the batch ---- */

/* Sets the pointers that kernels and objectives of this kind read. */
static void set_fields(struct builder *b)
{
    struct random_batch *o = b->out;
    struct batch *batch = &o->batch;
    bool has_responses = b->kind == EXAMPLE_PREFERENCE_PAIRS;
    if (b->kind == EXAMPLE_TEXT || b->kind == EXAMPLE_SFT) {
        return;
    }
    if (b->kind == EXAMPLE_SEQ2SEQ) {
        batch->kind = BATCH_SEQ2SEQ;
        batch->source.inputs = o->source_inputs;
        batch->source.positions = o->source_positions;
        batch->source.cu_rows = o->source_cu_rows;
        batch->source.longest = b->source_tokens;
        batch->tokens_seen = batch->source.rows + batch->rows;
        return;
    }
    batch->outputs.rows = o->output_rows;
    if (b->kind == EXAMPLE_SENTENCE_PAIRS) {
        batch->kind = BATCH_SENTENCE_PAIRS;
        batch->token_type_ids = o->token_type_ids;
        batch->outputs.targets = o->labels;
        batch->sentence_pairs.next_sentence = o->token_type_ids; /* zeros */
        return;
    }
    batch->outputs.example_rows = o->example_rows;
    if (has_responses) {
        batch->kind = BATCH_PREFERENCE_PAIRS;
        batch->preference_pairs.reference_logps = o->reference_logps;
        batch->preference_pairs.shared_prefix_offsets =
            objective_spec_shares_prompt(b->recipe) ? o->shared_prefix_offsets : NULL;
        if (objective_spec_head(b->recipe) == MODEL_HEAD_LM) {
            batch->outputs = (struct batch_outputs){0};
            batch->preference_pairs.first_targets = o->first_targets;
            batch->preference_pairs.target_rows = o->target_rows;
            batch->preference_pairs.target_ids = o->target_ids;
            batch_list_targets(batch, o->first_targets, o->target_rows, o->target_ids);
        }
        return;
    }
    batch->kind = BATCH_TASK;
    batch->targets = NULL;
    batch->token_type_ids = o->token_type_ids;
    batch->task.labels = b->kind == EXAMPLE_REGRESS || b->kind == EXAMPLE_EMBED ? NULL : o->labels;
    batch->task.float_labels = b->kind == EXAMPLE_REGRESS ? o->float_labels : NULL;
    batch->task.label_count = example_label_count(b->kind, batch->sequences, batch->outputs.count);
}

static status allocate_arrays(struct random_batch *o, int64_t rows, int64_t sequences)
{
    static const char what[] = "a random batch";
    TRY(ALLOCATE(o->inputs, rows, what));
    TRY(ALLOCATE(o->targets, rows, what));
    TRY(ALLOCATE(o->positions, rows, what));
    TRY(ALLOCATE(o->token_type_ids, rows, what));
    TRY(ALLOCATE(o->cu_rows, rows + 1, what));
    TRY(ALLOCATE(o->source_inputs, rows, what));
    TRY(ALLOCATE(o->source_positions, rows, what));
    TRY(ALLOCATE(o->source_cu_rows, rows + 1, what));
    TRY(ALLOCATE(o->output_rows, rows, what));
    TRY(ALLOCATE(o->labels, rows + 2 * sequences, what));
    TRY(ALLOCATE(o->example_rows, sequences + 1, what));
    TRY(ALLOCATE(o->shared_prefix_offsets, RESPONSES * sequences, what));
    TRY(ALLOCATE(o->first_targets, RESPONSES * sequences + 1, what));
    TRY(ALLOCATE(o->target_rows, rows, what));
    TRY(ALLOCATE(o->target_ids, rows, what));
    TRY(ALLOCATE(o->float_labels, sequences, what));
    return ALLOCATE(o->reference_logps, RESPONSES * sequences, what);
}

/* Sets the lengths of sources and targets, if the model has sources. */
static status set_lengths(struct builder *b)
{
    struct sample_lengths lengths;
    TRY(derive_sample_lengths(b->recipe, &lengths));
    b->source_tokens = llround(lengths.source);
    b->tokens = lengths.source > 0 ? llround(lengths.target) : b->tokens;
    return STATUS_OK;
}

status random_batch_create(const struct session *s, struct random_batch *out)
{
    const struct recipe *r = &s->recipe;
    const struct model_config *c = model_get_config(s->model);
    int64_t rows = derive_rows(r), sequences = r->batch.micro_size;
    struct builder b = {.out = out,
                        .recipe = r,
                        .kind = r->objective == OBJECTIVE_DENOISE ? EXAMPLE_SEQ2SEQ
                                                                  : objective_spec_example(r),
                        .vocabulary = c->vocabulary,
                        .source_vocabulary = model_source_vocabulary(c),
                        .labels = c->labels,
                        .tokens = r->data.sequence_length,
                        .texts = rows / sequences / r->data.sequence_length,
                        .key = random_key((uint64_t)r->seed, RANDOM_TEST, 0, 0)};
    *out = (struct random_batch){0};
    TRY(allocate_arrays(out, rows, sequences));
    TRY(set_lengths(&b));
    out->batch = (struct batch){.sequences = sequences,
                                .tokens = r->data.sequence_length,
                                .inputs = out->inputs,
                                .targets = out->targets,
                                .positions = out->positions,
                                .cu_rows = out->cu_rows,
                                .tokens_seen = rows};
    for (int64_t i = 0; i < sequences; i++) {
        add_example(&b, i);
    }
    set_fields(&b);
    return STATUS_OK;
}

void random_batch_destroy(struct random_batch *b)
{
    free(b->inputs);
    free(b->targets);
    free(b->positions);
    free(b->token_type_ids);
    free(b->cu_rows);
    free(b->source_inputs);
    free(b->source_positions);
    free(b->source_cu_rows);
    free(b->output_rows);
    free(b->labels);
    free(b->example_rows);
    free(b->shared_prefix_offsets);
    free(b->first_targets);
    free(b->target_rows);
    free(b->target_ids);
    free(b->float_labels);
    free(b->reference_logps);
}
