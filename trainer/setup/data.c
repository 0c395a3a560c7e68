#include "trainer/setup/data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "datasets/loader/data_check.h"
#include "datasets/shard/labels.h"
#include "datasets/shard/shard_set.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"

status data_require_train(const struct recipe *recipe)
{
    if (recipe->data.train_count > 0) {
        return STATUS_OK;
    }
    return recipe_raise(recipe, STATUS_RECIPE, "data.train",
                        "no training data; set it to the shards that `bireme prepare` wrote");
}

bool data_is_text(const char *path)
{
    static const char signature[] = {'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};
    char head[sizeof signature];
    struct stat about;
    bool is_file = stat(path, &about) == 0 && S_ISREG(about.st_mode);
    FILE *file = is_file && !text_has_suffix(path, ".h5") ? fopen(path, "rb") : NULL;
    if (file == NULL) {
        return false;
    }
    size_t got = fread(head, 1, sizeof head, file);
    fclose(file);
    return got > 0 && (got < sizeof head || memcmp(head, signature, sizeof head) != 0);
}

void data_write_command(const struct recipe *r, const char *tokenizer, const char *options,
                        char *out, size_t bytes)
{
    enum example_kind kind = objective_spec_example(r);
    enum recipe_objective objective = kind == EXAMPLE_PREFERENCE_PAIRS ? OBJECTIVE_DPO
                                      : kind == EXAMPLE_TEXT           ? OBJECTIVE_CLM
                                                                       : r->objective;
    bool is_sft_pair = objective == OBJECTIVE_SFT && kind == EXAMPLE_SEQ2SEQ;
    snprintf(out, bytes, "create shards with `bireme prepare --objective %s%s --tokenizer %s %s`",
             recipe_objective_name(objective), is_sft_pair ? " --encoder-decoder" : "",
             tokenizer[0] != '\0' ? tokenizer : "DIR", options);
}

/* Adds the recipe's line and key to an error and, if there are no shards, the command that creates
 * them. */
static status add_location(const struct recipe *r, const char *key, const char *path, status result)
{
    char remedy[4 * RECIPE_PATH_BYTES] = "", options[2 * RECIPE_PATH_BYTES + 64];
    const char *slash = strrchr(path, '/');
    if (result == STATUS_NO_INPUT) {
        bool is_validation = strcmp(key, "data.validation") == 0;
        snprintf(options, sizeof options, "%s --output %.*s%s%s",
                 r->objective == OBJECTIVE_SEQ2SEQ ? "--source FILE... --target FILE..."
                                                   : "--input FILE...",
                 slash != NULL ? (int)(slash - path) : 0, path, slash != NULL ? "" : ".",
                 is_validation ? " --validation-fraction 0.1" : "");
        data_write_command(r, r->data.tokenizer, options, remedy, sizeof remedy);
    } else if (result == STATUS_DATA && data_is_text(path)) {
        snprintf(options, sizeof options, "--input %s --output DIR", path);
        data_write_command(r, r->data.tokenizer, options, remedy, sizeof remedy);
    }
    return recipe_annotate_error(r, key, result, remedy);
}

/* Sets data.text_pairs. Errors are left to the functions that open all shards. */
static void read_text_pairs(struct recipe *r)
{
    enum example_kind kind = objective_spec_example(r);
    bool has_pairs = kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_REGRESS;
    if (has_pairs && r->data.train_count > 0 &&
        shard_set_read_text_pairs(r->data.train[0].path, &r->data.text_pairs) != STATUS_OK) {
        status_clear();
    }
}

status data_check_text_pairs(const struct recipe *r, const char *path)
{
    bool text_pairs = false;
    if (!r->data.text_pairs) {
        return STATUS_OK;
    }
    TRY(shard_set_read_text_pairs(path, &text_pairs));
    REQUIRE(text_pairs, STATUS_DATA,
            "%s has examples with one text, but the model was trained on pairs of texts; prepare "
            "rows with text and text_pair",
            path);
    return STATUS_OK;
}

status data_read_labels(struct recipe *r, char **out)
{
    struct labels labels;
    *out = NULL;
    read_text_pairs(r);
    enum example_kind kind = objective_spec_example(r);
    bool named =
        kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_CLASSIFY_TOKENS || kind == EXAMPLE_CHOOSE;
    if (!named || r->data.train_count == 0) {
        return STATUS_OK;
    }
    const char *path = r->data.train[0].path;
    TRY(add_location(r, "data.train", path, shard_set_read_labels(path, out)));
    if (*out == NULL) {
        return recipe_raise(r, STATUS_DATA, "data.train",
                            "%s has no labels; prepare it with --objective %s", path,
                            recipe_objective_name(r->objective));
    }
    TRY(labels_parse_json(*out, path, &labels));
    int count = labels.count;
    labels_free(&labels);
    if (r->model.num_labels > 0 && r->model.num_labels != count) {
        return recipe_raise(r, STATUS_RECIPE, "model.num_labels",
                            "%" PRId64 ", but %s has %d labels; set it to %d or null",
                            r->model.num_labels, path, count, count);
    }
    r->model.num_labels = count;
    return STATUS_OK;
}

/* Logs how the examples of a set are packed into sequences. */
static void log_packing(const char *what, const struct data_setup *d, const struct loader *loader)
{
    struct packing_rules rules;
    struct packing_report p = loader_packing_report(loader);
    if (!objective_spec_packing(d->recipe, &rules)) {
        return;
    }
    double capacity = (double)p.packs * (double)d->recipe->data.sequence_length;
    log_info("%s: %" PRId64 " examples in %" PRId64 " sequences, %" PRId64
             " tokens, %.1f%% of the sequence length",
             what, p.examples, p.packs, p.tokens, 100 * (double)p.tokens / capacity);
    if (p.truncated > 0) {
        log_warning("SFT-CUT",
                    "%s: %" PRId64 " examples are longer than sft.max_length, %" PRId64 "; %" PRId64
                    " tokens were truncated",
                    what, p.truncated, rules.max_length, p.truncated_tokens);
    }
    if (p.empty > 0) {
        log_warning("SFT-EMPTY",
                    "%s: %" PRId64
                    " examples without a trained token within sft.max_length, %" PRId64
                    ", were skipped",
                    what, p.empty, rules.max_length);
    }
}

/* Logs the share of each source of a mixture. */
static void log_mixture(const struct recipe *r, const struct loader *loader)
{
    for (int i = 0; i < r->data.train_count && r->data.train_count > 1; i++) {
        int64_t examples;
        double share = loader_source_share(loader, i, &examples);
        log_info("data.train: %.1f%% of the samples from %s, %" PRId64 " sample%s", 100 * share,
                 r->data.train[i].path, examples, text_plural(examples));
    }
}

static enum shard_join get_shard_join(enum recipe_tristate join)
{
    switch (join) {
    case RECIPE_TRUE:
        return SHARD_JOIN_TRUE;
    case RECIPE_FALSE:
        return SHARD_JOIN_FALSE;
    case RECIPE_AUTO:
        break;
    }
    return SHARD_JOIN_ANY;
}

void data_set_vocabulary(const struct recipe *r, int64_t vocabulary, struct loader_options *out)
{
    int64_t targets = derive_decoder_vocabulary(r, vocabulary);
    bool separate = targets != vocabulary;
    out->vocab_size = number_max(vocabulary, targets);
    out->source_vocab_size = separate ? vocabulary : 0;
    out->target_vocab_size = separate ? targets : 0;
}

static struct loader_options get_loader_options(const struct data_setup *d,
                                                const struct loader_source *sources, int count)
{
    const struct recipe *r = d->recipe;
    struct loader_options options = {
        .sources = sources,
        .source_count = count,
        .mixing = {r->data.mixing == MIXING_EXAMPLES, (double)r->data.mixing_maximum,
                   r->data.mixing_temperature},
        .sequence_tokens = r->data.sequence_length,
        .global_sequences = r->batch.global_size,
        .micro_sequences = r->batch.micro_size,
        .rank = d->rank,
        .ranks = d->ranks,
        .interleave_micro_batches = r->parallel.reproducible,
        .seed = (uint64_t)r->seed,
        .document_mask = r->data.document_mask,
        .kind = objective_spec_example(r),
        .decoder_start = d->decoder_start,
        .tokenizer_sha256 = d->tokenizer_sha256,
        .labels_sha256 = d->labels_sha256,
        .join_encoding = get_shard_join(r->sft.join_encoding),
        .head_reads_last_row = derive_reads_last_row(r),
        .max_texts = r->model.num_labels,
        .shared_prompt = objective_spec_shares_prompt(r),
        .head_reads_responses = objective_spec_head(r) != MODEL_HEAD_LM,
        .masking = d->masking != NULL ? *d->masking : (struct masking){0},
        .denoise = d->denoise != NULL ? *d->denoise : (struct denoise){0},
    };
    data_set_vocabulary(r, d->vocabulary, &options);
    return options;
}

/* Returns the path of the training source that the pending error names. */
static const char *find_failed_source(const struct recipe *r)
{
    for (int i = 1; i < r->data.train_count; i++) {
        if (strstr(status_pending()->text, r->data.train[i].path) != NULL) {
            return r->data.train[i].path;
        }
    }
    return r->data.train[0].path;
}

status data_open_train(const struct data_setup *d, int64_t first_sample, struct loader **out)
{
    const struct recipe *r = d->recipe;
    struct loader_source sources[RECIPE_SOURCES_MAX];
    for (int i = 0; i < r->data.train_count; i++) {
        sources[i] = (struct loader_source){r->data.train[i].path, r->data.train[i].weight};
    }
    struct loader_options options = get_loader_options(d, sources, r->data.train_count);
    options.shuffle = r->data.shuffle;
    options.first_sample = first_sample;
    struct packing_rules rules;
    (void)objective_spec_packing(r, &rules);
    options.count_global_batch =
        options.kind == EXAMPLE_SENTENCE_PAIRS || options.kind >= EXAMPLE_CLASSIFY;
    options.packing = &rules;
    options.reference_logps = d->reference;
    status result = loader_open(&options, out);
    return add_location(r, "data.train", find_failed_source(r), result);
}

status data_open_validation(const struct data_setup *d, int64_t samples, struct loader **out)
{
    const char *path = d->recipe->data.validation;
    struct loader_source source = {path, 1};
    struct loader_options options = get_loader_options(d, &source, 1);
    options.limit_samples = samples;
    struct packing_rules rules;
    (void)objective_spec_packing(d->recipe, &rules);
    options.packing = &rules;
    options.reference_logps = d->validation_reference != NULL ? &d->validation_reference : NULL;
    return add_location(d->recipe, "data.validation", path, loader_open(&options, out));
}

/* Counts the samples of one evaluation: the recipe's batches, at most the whole validation set.
 * Compares the data with the training data. */
static status check_validation(const struct data_setup *d, const struct loader *train,
                               int64_t *samples)
{
    const struct recipe *r = d->recipe;
    struct loader *loader = NULL;
    *samples = 0;
    if (r->data.validation[0] == '\0') {
        return add_location(r, "data.train", r->data.train[0].path,
                            data_check_compare(train, NULL));
    }
    TRY(add_location(r, "data.validation", r->data.validation,
                     data_check_text_pairs(r, r->data.validation)));
    TRY(data_open_validation(d, 0, &loader));
    int64_t all = loader_samples(loader);
    int64_t requested = r->evaluate.batches * r->batch.global_size;
    *samples = requested > 0 && requested < all ? requested : all;
    log_packing("data.validation", d, loader);
    status result =
        add_location(r, "data.validation", r->data.validation, data_check_compare(train, loader));
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}

status data_validate(const struct data_setup *d, struct data_summary *out)
{
    struct loader *loader = NULL;
    TRY(data_require_train(d->recipe));
    TRY(data_open_train(d, 0, &loader));
    out->train_samples = loader_samples(loader);
    out->train_tokens = loader_tokens(loader);
    snprintf(out->fingerprint, sizeof out->fingerprint, "%s", loader_fingerprint(loader));
    snprintf(out->tokenizer_sha256, sizeof out->tokenizer_sha256, "%s",
             data_check_tokenizer(loader));
    log_packing("data.train", d, loader);
    log_mixture(d->recipe, loader);
    if (out->train_samples < d->recipe->batch.global_size) {
        log_warning("ROWS",
                    "the training data has %" PRId64 " sample%s, fewer than a batch of "
                    "batch.global_size, %" PRId64 ", so each batch repeats some",
                    out->train_samples, text_plural(out->train_samples),
                    d->recipe->batch.global_size);
    }
    status result = check_validation(d, loader, &out->evaluate_samples);
    KEEP_FIRST(result, loader_close(&loader));
    return result;
}

status data_count_steps(const struct recipe *r, int64_t samples, int64_t *out)
{
    *out = r->train.max_steps;
    if (!(r->train.epochs > 0)) {
        return STATUS_OK; /* recipe_check_resolve has checked the schedule */
    }
    double all =
        samples < 0 ? 0 : ceil(r->train.epochs * (double)samples / (double)r->batch.global_size);
    double decay = r->schedule.name == SCHEDULE_WSD ? r->schedule.decay_ratio * all : 0;
    *out = (int64_t)all;
    if (samples >= 0 && r->schedule.warmup_steps > 0 &&
        (double)r->schedule.warmup_steps + decay > all + 1e-6) {
        return recipe_raise(r, STATUS_RECIPE, "schedule.warmup_steps",
                            "%" PRId64 "%s: more than the %" PRId64
                            " steps of train.epochs; use fewer "
                            "warm-up steps or more epochs",
                            r->schedule.warmup_steps,
                            decay > 0 ? " plus schedule.decay_ratio of all steps" : "", *out);
    }
    return STATUS_OK;
}
