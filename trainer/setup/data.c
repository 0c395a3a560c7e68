#include "trainer/setup/data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/device.h"
#include "base/log.h"
#include "datasets/shard/labels.h"
#include "datasets/shard/shard_set.h"

/* Objectives that have a head of their own. */
static const struct {
    const char *objective;
    enum example_kind kind;
    enum model_task task;
} tasks[] = {
    {"classify", EXAMPLE_CLASSIFY, MODEL_TEXTS},
    {"regress", EXAMPLE_REGRESS, MODEL_TEXTS},
    {"classify_tokens", EXAMPLE_CLASSIFY_TOKENS, MODEL_TOKENS},
    {"answer", EXAMPLE_ANSWER, MODEL_SPANS},
    {"choose", EXAMPLE_CHOOSE, MODEL_CHOICES},
    {"embed", EXAMPLE_EMBED, MODEL_VECTORS},
    {"reward", EXAMPLE_PREFERENCE_PAIRS, MODEL_TEXTS},
};

enum { TASKS = sizeof tasks / sizeof tasks[0] };

static int find_task(const struct recipe *recipe)
{
    int i = 0;
    while (i < TASKS && strcmp(tasks[i].objective, recipe->objective) != 0) {
        i++;
    }
    return i;
}

enum model_task job_data_task(const struct recipe *recipe)
{
    int i = find_task(recipe);
    return i < TASKS ? tasks[i].task : MODEL_WORDS;
}

bool job_data_last_rows(const struct recipe *recipe)
{
    return strcmp(recipe->model.architecture, "bert") != 0 &&
           strcmp(recipe->model.architecture, "roberta") != 0;
}

bool job_data_has_reference(const struct recipe *recipe)
{
    return strcmp(recipe->objective, "dpo") == 0;
}

enum example_kind job_data_kind(const struct recipe *recipe)
{
    struct packing_rules unused;
    int task = find_task(recipe);
    if (task < TASKS) {
        return tasks[task].kind;
    }
    if (job_data_has_reference(recipe)) {
        return EXAMPLE_PREFERENCE_PAIRS;
    }
    if (strcmp(recipe->objective, "mlm") == 0) {
        return EXAMPLE_SENTENCE_PAIRS;
    }
    return job_data_packing(recipe, &unused) ? EXAMPLE_SFT : EXAMPLE_TEXT;
}

status job_data_named(const struct recipe *recipe)
{
    if (recipe->data.train_count > 0) {
        return STATUS_OK;
    }
    return recipe_raise(recipe, STATUS_RECIPE, "data.train",
                        "nothing to train on; name the shards that `bireme prepare` wrote");
}

/* blame - the place of the key, and where shards are missing the command that makes them. */
static status blame(const struct recipe *r, const char *key, const char *path, status result)
{
    char remedy[3 * RECIPE_PATH_BYTES] = "";
    if (result == STATUS_NO_INPUT) {
        const char *slash = strrchr(path, '/');
        const char *tokenizer = r->data.tokenizer;
        bool pairs = job_data_kind(r) == EXAMPLE_PREFERENCE_PAIRS;
        snprintf(remedy, sizeof remedy,
                 "make shards with `bireme prepare --objective %s --tokenizer %s --input FILE... "
                 "--output %.*s%s`",
                 pairs ? "dpo" : r->objective, tokenizer[0] != '\0' ? tokenizer : "DIR",
                 slash != NULL ? (int)(slash - path) : 0, path, slash != NULL ? "" : ".");
    }
    return recipe_blame(r, key, result, remedy);
}

status job_data_labels(struct recipe *r, char **out)
{
    struct labels labels;
    *out = NULL;
    enum example_kind kind = job_data_kind(r);
    bool named =
        kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_CLASSIFY_TOKENS || kind == EXAMPLE_CHOOSE;
    if (!named || r->data.train_count == 0) {
        return STATUS_OK;
    }
    const char *path = r->data.train[0].path;
    TRY(blame(r, "data.train", path, shard_set_labels(path, out)));
    if (*out == NULL) {
        return recipe_raise(r, STATUS_DATA, "data.train",
                            "%s has no labels; prepare it with --objective %s", path, r->objective);
    }
    TRY(labels_read_text(*out, path, &labels));
    int count = labels.count;
    labels_free(&labels);
    if (r->model.num_labels > 0 && r->model.num_labels != count) {
        return recipe_raise(r, STATUS_RECIPE, "model.num_labels", "%lld, but %s has %d labels",
                            (long long)r->model.num_labels, path, count);
    }
    r->model.num_labels = count;
    return STATUS_OK;
}

bool job_data_packing(const struct recipe *recipe, struct packing_rules *out)
{
    static const enum packing_kind kinds[] = {
        [SFT_PACK_NONE] = PACKING_NONE,
        [SFT_PACK_BFD] = PACKING_BFD,
        [SFT_PACK_BFD_SPLIT] = PACKING_BFD_SPLIT,
        [SFT_PACK_WRAPPED] = PACKING_WRAPPED,
    };
    static const uint32_t learned[] = {
        [COMPLETION_AUTO] = EXAMPLE_IS_PRESET,
        [COMPLETION_TRUE] = EXAMPLE_IS_COMPLETION,
        [COMPLETION_FALSE] = 0,
    };
    *out = (struct packing_rules){
        .kind = kinds[recipe->sft.packing],
        .max_length = recipe->sft.max_length,
        .learn = learned[recipe->sft.completion_only_loss] |
                 (recipe->sft.assistant_only_loss ? EXAMPLE_IS_ANSWER : 0),
        .skip_empty = recipe->sft.skip_empty,
    };
    return strcmp(recipe->objective, "sft") == 0;
}

/* What became of the examples of a set, told once. */
static void tell_packing(const char *what, const struct job_data *d, const struct loader *loader)
{
    struct packing_rules rules;
    struct packing_report p = loader_packing(loader);
    if (!job_data_packing(d->recipe, &rules)) {
        return;
    }
    double room = (double)p.packs * (double)d->recipe->data.sequence_length;
    log_info("%s: %lld examples in %lld sequences, %lld tokens, %.1f%% of the sequence length",
             what, (long long)p.examples, (long long)p.packs, (long long)p.tokens,
             100 * (double)p.tokens / room);
    if (p.cut > 0) {
        log_warning("SFT-CUT",
                    "%s: %lld examples are longer than sft.max_length, %lld; %lld tokens were cut "
                    "off",
                    what, (long long)p.cut, (long long)rules.max_length, (long long)p.cut_tokens);
    }
    if (p.empty > 0) {
        log_warning("SFT-EMPTY",
                    "%s: %lld examples with nothing to learn within sft.max_length, %lld, were "
                    "left out",
                    what, (long long)p.empty, (long long)rules.max_length);
    }
}

bool job_data_shares_prompt(const struct recipe *r)
{
    bool cpu = r->train.device == RECIPE_DEVICE_CPU ||
               (r->train.device == RECIPE_DEVICE_AUTO && device_count(DEVICE_CUDA) == 0);
    return job_data_kind(r) == EXAMPLE_PREFERENCE_PAIRS &&
           (r->dpo.shared_prefix == PREFIX_AUTO ? cpu : r->dpo.shared_prefix == PREFIX_TRUE);
}

static struct loader_options options_of(const struct job_data *d,
                                        const struct loader_source *sources, int count)
{
    const struct recipe *r = d->recipe;
    return (struct loader_options){
        .sources = sources,
        .source_count = count,
        .sequence_tokens = r->data.sequence_length,
        .global_sequences = r->batch.global_size,
        .micro_sequences = r->batch.micro_size,
        .rank = d->rank,
        .ranks = d->ranks,
        .deal = r->parallel.reproducible,
        .seed = (uint64_t)r->seed,
        .document_mask = r->data.document_mask,
        .kind = job_data_kind(r),
        .vocab_size = d->vocabulary,
        .tokenizer_sha256 = d->tokenizer_sha256,
        .labels_sha256 = d->labels_sha256,
        .last_rows = job_data_last_rows(r),
        .texts = r->model.num_labels,
        .shared_prompt = job_data_shares_prompt(r),
        .last_of_answers = job_data_task(r) != MODEL_WORDS,
        .masking = d->masking != NULL ? *d->masking : (struct masking){0},
    };
}

/* Of a mixture, the part that the error names. */
static const char *named_source(const struct recipe *r)
{
    for (int i = 1; i < r->data.train_count; i++) {
        if (strstr(status_pending()->text, r->data.train[i].path) != NULL) {
            return r->data.train[i].path;
        }
    }
    return r->data.train[0].path;
}

status job_data_train(const struct job_data *d, int64_t first_sample, struct loader **out)
{
    const struct recipe *r = d->recipe;
    struct loader_source sources[RECIPE_SOURCES_MAX];
    for (int i = 0; i < r->data.train_count; i++) {
        sources[i] = (struct loader_source){r->data.train[i].path, r->data.train[i].weight};
    }
    struct loader_options options = options_of(d, sources, r->data.train_count);
    options.shuffle = r->data.shuffle;
    options.first_sample = first_sample;
    struct packing_rules rules;
    (void)job_data_packing(r, &rules);
    options.looks_ahead =
        options.kind == EXAMPLE_SENTENCE_PAIRS || options.kind >= EXAMPLE_CLASSIFY;
    options.packing = &rules;
    options.reference = d->reference;
    status result = loader_open(&options, out);
    return blame(r, "data.train", named_source(r), result);
}

status job_data_validation(const struct job_data *d, int64_t samples, struct loader **out)
{
    const char *path = d->recipe->data.validation;
    struct loader_source source = {path, 1};
    struct loader_options options = options_of(d, &source, 1);
    options.limit_samples = samples;
    struct packing_rules rules;
    (void)job_data_packing(d->recipe, &rules);
    options.packing = &rules;
    options.reference = d->held_reference != NULL ? &d->held_reference : NULL;
    return blame(d->recipe, "data.validation", path, loader_open(&options, out));
}

/* How much one evaluation reads: the recipe's batches, at most the whole held-out part. */
static status survey_validation(const struct job_data *d, int64_t *samples)
{
    const struct recipe *r = d->recipe;
    struct loader *loader = NULL;
    *samples = 0;
    if (r->data.validation[0] == '\0') {
        return STATUS_OK;
    }
    TRY(job_data_validation(d, 0, &loader));
    int64_t whole = loader_samples(loader), asked = r->evaluate.batches * r->batch.global_size;
    *samples = asked > 0 && asked < whole ? asked : whole;
    tell_packing("data.validation", d, loader);
    return loader_close(&loader);
}

status job_data_survey(const struct job_data *d, struct job_data_survey *out)
{
    struct loader *loader = NULL;
    TRY(job_data_named(d->recipe));
    TRY(job_data_train(d, 0, &loader));
    out->train_samples = loader_samples(loader);
    out->train_tokens = loader_tokens(loader);
    snprintf(out->fingerprint, sizeof out->fingerprint, "%s", loader_fingerprint(loader));
    tell_packing("data.train", d, loader);
    TRY(loader_close(&loader));
    return survey_validation(d, &out->evaluate_samples);
}

status job_data_steps(const struct recipe *r, int64_t samples, int64_t *out)
{
    *out = r->train.max_steps;
    if (!(r->train.epochs > 0)) {
        return STATUS_OK; /* the recipe's own check has seen to the rest */
    }
    double all =
        samples < 0 ? 0 : ceil(r->train.epochs * (double)samples / (double)r->batch.global_size);
    double decay = r->schedule.name == SCHEDULE_WSD ? r->schedule.decay_ratio * all : 0;
    *out = (int64_t)all;
    if (samples >= 0 && r->schedule.warmup_steps > 0 &&
        (double)r->schedule.warmup_steps + decay > all + 1e-6) {
        return recipe_raise(
            r, STATUS_RECIPE, "schedule.warmup_steps",
            "%lld%s: more than the %lld steps of train.epochs", (long long)r->schedule.warmup_steps,
            decay > 0 ? ", with schedule.decay_ratio of all steps" : "", (long long)*out);
    }
    return STATUS_OK;
}
