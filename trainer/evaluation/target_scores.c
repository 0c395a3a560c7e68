#include "trainer/evaluation/target_scores.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/source_text.h"

/* The samples of this rank in a global batch. */
struct group {
    int64_t count, capacity;
    struct token_list *sources, *targets; /* [capacity] */
    struct generate_output *outputs;      /* [capacity] */
};

struct run {
    const struct target_scores *t;
    struct loader *loader;
    struct text_scores *scores;
    struct group group;
};

/* ---- settings ---- */

/* Checks that the vocabulary has a continuation for each beam. The end token continues no beam,
 * except in the last step. */
static status check_beams(const struct recipe *r, const struct generation_context *context,
                          const struct generate_options *o)
{
    bool has_end = context->end_token >= 0 && context->end_token < context->vocabulary;
    int64_t most = context->vocabulary - (has_end && o->max_new_tokens > 1 ? 1 : 0);
    if (o->num_beams <= most || o->num_beams == 1) {
        return STATUS_OK;
    }
    if (r->evaluate.generation_num_beams > 0) {
        return recipe_raise(r, STATUS_RECIPE, "evaluate.generation_num_beams",
                            "%" PRId64 " beams are too many for a vocabulary of %" PRId64
                            " tokens; at most %" PRId64 " are possible",
                            o->num_beams, context->vocabulary, most);
    }
    RAISE(STATUS_DATA,
          "%s: num_beams is %" PRId64 ", too many for a vocabulary of %" PRId64
          " tokens; set evaluate.generation_num_beams to at most %" PRId64,
          GENERATION_CONFIG_FILE, o->num_beams, context->vocabulary, most);
}

status target_scores_read_options(const struct recipe *r, const char *tokenizer_folder,
                                  int64_t vocabulary, const struct tokenizer *tokenizer,
                                  int32_t decoder_start, struct generate_options *out)
{
    enum { NEW_TOKENS = 128 };
    const struct generation_context context = {
        .vocabulary = vocabulary,
        .positions = r->data.sequence_length,
        .end_token = tokenizer != NULL ? tokenizer_eos(tokenizer_target(tokenizer)) : -1,
        .max_new_tokens = NEW_TOKENS,
        .is_quiet = tokenizer == NULL,
    };
    int64_t longest = r->evaluate.generation_max_length, beams = r->evaluate.generation_num_beams;
    int64_t room = r->data.sequence_length - 1; /* after the start token */
    int64_t rows = r->batch.micro_size * r->data.sequence_length;
    *out = generation_config_unset();
    out->max_new_tokens = longest > 0 ? longest - 1 : out->max_new_tokens;
    out->num_beams = beams > 0 ? beams : out->num_beams;
    out->chunk_tokens = number_min(rows, 256);
    out->decoder_start = decoder_start;
    TRY(generation_config_complete(tokenizer_folder, &context, out));
    /* the memory of the kernels is planned for this length */
    out->max_new_tokens = number_min(out->max_new_tokens, room);
    return check_beams(r, &context, out);
}

int64_t target_scores_bytes(const struct recipe *r, const struct model_config *config,
                            enum dtype dtype)
{
    struct generate_options o;
    if (!r->evaluate.generate) {
        return 0;
    }
    if (target_scores_read_options(r, r->data.tokenizer, config->vocabulary, NULL, 0, &o) !=
        STATUS_OK) {
        status_clear();
        o.num_beams = r->evaluate.generation_num_beams;
    }
    int64_t sequences = o.num_beams > 1 ? o.num_beams : r->batch.micro_size;
    int64_t copies = o.num_beams > 1 ? 2 : 1; /* beams are moved between two caches */
    return copies * sequences *
           generate_pair_bytes(config, dtype, (int)r->parallel.tensor, r->data.sequence_length,
                               r->data.sequence_length);
}

/* ---- the samples of a global batch ---- */

static status reserve_samples(struct group *g, int64_t more)
{
    int64_t capacity = 2 * (g->count + more);
    if (g->count + more <= g->capacity) {
        return STATUS_OK;
    }
    TRY(GROW(g->sources, capacity, "sources"));
    TRY(GROW(g->targets, capacity, "targets"));
    TRY(GROW(g->outputs, capacity, "targets"));
    g->capacity = capacity;
    return STATUS_OK;
}

static status add_samples(struct group *g, const struct batch *batch)
{
    TRY(reserve_samples(g, batch->sequences));
    for (int64_t i = 0; i < batch->sequences; i++) {
        const int32_t *sources = batch->source.cu_rows + i, *targets = batch->cu_rows + i;
        int64_t at = g->count++;
        g->sources[at] = g->targets[at] = (struct token_list){0};
        g->outputs[at] = (struct generate_output){0};
        TRY(token_list_append(&g->sources[at], batch->source.inputs + sources[0],
                              sources[1] - sources[0]));
        TRY(token_list_append(&g->targets[at], batch->targets + targets[0],
                              targets[1] - targets[0]));
    }
    return STATUS_OK;
}

/* Reads the samples of the next global batch. */
static status read_group(struct run *r, bool *end)
{
    for (bool last = false; !last && !*end;) {
        struct batch batch;
        TRY(loader_next(r->loader, &batch, &last, end));
        TRY(*end ? STATUS_OK : add_samples(&r->group, &batch));
    }
    return STATUS_OK;
}

static void clear_group(struct group *g)
{
    while (g->count > 0) {
        g->count--;
        token_list_free(&g->sources[g->count]);
        token_list_free(&g->targets[g->count]);
        token_list_free(&g->outputs[g->count].tokens);
    }
}

static void free_group(struct group *g)
{
    clear_group(g);
    free(g->sources);
    free(g->targets);
    free(g->outputs);
}

/* ---- generation ---- */

/* Returns the language token of a target, which is never empty (shard_set.c); -1: the tokenizer has
 * none. */
static int32_t find_language(const struct tokenizer *t, const struct token_list *target)
{
    enum tokenizer_language place = tokenizer_language_place(t);
    bool is_first = place == TOKENIZER_LANGUAGE_FIRST;
    return place == TOKENIZER_LANGUAGE_NONE ? -1 : target->ids[is_first ? 0 : target->count - 1];
}

/* The samples of a group with one target language. */
struct selection {
    int64_t count;
    int64_t *samples;                /* [group.count] */
    struct token_list *sources;      /* [group.count] views */
    struct generate_output *outputs; /* [group.count] */
};

/* Generates the targets of the samples with this language, and marks them. */
static status generate_language(struct run *r, int32_t language, struct selection *s, bool *done)
{
    const struct target_scores *t = r->t;
    struct group *g = &r->group;
    struct generate_options options = t->options;
    s->count = 0;
    for (int64_t i = 0; i < g->count; i++) {
        if (find_language(t->tokenizer, &g->targets[i]) == language) {
            s->samples[s->count] = i;
            s->sources[s->count++] = g->sources[i];
            done[i] = true;
        }
    }
    if (language >= 0) {
        source_text_set_target(t->tokenizer, language, &options);
    }
    memset(s->outputs, 0, (size_t)s->count * sizeof *s->outputs);
    status result = generate_run_sorted(t->kernels, t->model, t->tokenizer, s->sources, s->count,
                                        t->batch_size, &options, s->outputs);
    for (int64_t i = 0; i < s->count; i++) { /* also after an error: the group frees them */
        g->outputs[s->samples[i]] = s->outputs[i];
    }
    return result;
}

/* Generates the targets of a group, one language after the other. */
static status generate_group(struct run *r)
{
    const struct group *g = &r->group;
    struct selection s = {0};
    bool *done = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, end, ALLOCATE(done, g->count, "targets"));
    TRY_GOTO(result, end, ALLOCATE(s.samples, g->count, "targets"));
    TRY_GOTO(result, end, ALLOCATE(s.sources, g->count, "targets"));
    TRY_GOTO(result, end, ALLOCATE(s.outputs, g->count, "targets"));
    for (int64_t i = 0; i < g->count; i++) {
        if (!done[i]) {
            int32_t language = find_language(r->t->tokenizer, &g->targets[i]);
            TRY_GOTO(result, end, generate_language(r, language, &s, done));
        }
    }
end:
    free(done);
    free(s.samples);
    free(s.sources);
    free(s.outputs);
    return result;
}

/* ---- scores ---- */

static status decode_text(const struct tokenizer *t, const struct token_list *ids, char **out)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(tokenizer_decode(t, ids->ids, ids->count, true, &text, &bytes));
    status result = generate_clean_text(text, bytes, out);
    free(text);
    return result;
}

static status score_sample(struct run *r, int64_t sample)
{
    const struct tokenizer *t = tokenizer_target(r->t->tokenizer);
    char *text = NULL, *reference = NULL;
    status result = decode_text(t, &r->group.outputs[sample].tokens, &text);
    if (result == STATUS_OK) {
        result = decode_text(t, &r->group.targets[sample], &reference);
    }
    if (result == STATUS_OK) {
        result = text_scores_add(r->scores, text, strlen(text), reference, strlen(reference));
    }
    free(text);
    free(reference);
    return result;
}

static status score_group(struct run *r, bool *end)
{
    TRY(read_group(r, end));
    TRY(generate_group(r));
    for (int64_t i = 0; i < r->group.count; i++) {
        TRY(score_sample(r, i));
    }
    return STATUS_OK;
}

/* Scores all targets. The ranks agree on errors and stops after each global batch, so that no rank
 * waits for the others longer than a deadline. */
static status score_all(struct run *r, bool *stop)
{
    const struct mesh *mesh = r->t->mesh;
    for (bool end = false; !end && !*stop;) {
        /* The ranks of a tensor-parallel group generate the same targets together. */
        status result = comm_abort_on_error(mesh->tensor, score_group(r, &end));
        clear_group(&r->group);
        TRY(comm_agree(mesh->world, result));
        TRY(stop_poll_run(r->t->poll, stop));
    }
    return STATUS_OK;
}

/* Adds the sums of all ranks and writes the scores. */
static status write_scores(struct run *r, struct metric *fields, int *count)
{
    int64_t sums = 0;
    double *values = text_scores_sums(r->scores, &sums);
    TRY(comm_sum_doubles(r->t->mesh->data, values, sums));
    for (int i = 0; i < TEXT_METRICS; i++) {
        fields[(*count)++] = metric_number(text_scores_name(i), text_scores_value(r->scores, i));
    }
    return STATUS_OK;
}

status target_scores_run(const struct target_scores *t, struct loader *loader,
                         struct metric *fields, int *count)
{
    struct target_scores copy = *t;
    struct run r = {.t = &copy, .loader = loader};
    bool stop = false;
    *count = 0;
    copy.options.tensor_group = t->mesh->tensor;
    copy.options.should_stop = t->poll != NULL ? t->poll->is_requested : NULL;
    status result = comm_agree(t->mesh->world,
                               text_scores_create((1U << TEXT_METRICS) - 1, BLEU_13A, &r.scores));
    if (result == STATUS_OK) {
        result = score_all(&r, &stop);
    }
    if (result == STATUS_OK && !stop) {
        result = write_scores(&r, fields, count);
    }
    text_scores_destroy(&r.scores);
    free_group(&r.group);
    return result;
}
