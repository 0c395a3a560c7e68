#include "trainer/formats/weights/open.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/hardware.h"
#include "trainer/setup/objective_spec.h"

/* Parses the recipe of a checkpoint. The parallel layout is reset to one tensor-parallel rank and
 * rounding to nearest; the caller's overrides come last. */
static status parse_recipe(const struct checkpoint_info *found, char *const *overrides,
                           int override_count, struct recipe *out)
{
    enum { PRESETS = 2 };
    char one_rank[] = "parallel.tensor=1",
         round_to_nearest[] = "optimizer.stochastic_rounding=false";
    char **list = NULL;
    TRY(ALLOCATE(list, override_count + PRESETS, "settings"));
    list[0] = one_rank;
    list[1] = round_to_nearest; /* the setting is invalid in fp32, which an override may select */
    for (int i = 0; i < override_count; i++) {
        list[i + PRESETS] = overrides[i];
    }
    status result = saved_recipe_parse(found, list, override_count + PRESETS, out);
    free(list);
    return result;
}

/* Limits the stored number of threads to the cores of this machine: the checkpoint can come from a
 * larger one. An override of the caller stays as it is. */
static status limit_threads(struct recipe *r, struct comm *world, char *const *overrides,
                            int override_count)
{
    static const char setting[] = "parallel.threads=";
    struct recipe free_choice = *r;
    free_choice.parallel.threads = 0;
    int cores = 1;
    TRY(hardware_count_threads(&free_choice, world, &cores));
    for (int i = 0; i < override_count; i++) {
        if (strncmp(overrides[i], setting, sizeof setting - 1) == 0) {
            return STATUS_OK;
        }
    }
    r->parallel.threads = number_min(r->parallel.threads, cores);
    return STATUS_OK;
}

/* Reads the label names of a task head from the tokenizer's folder. */
static status read_labels(struct session *s)
{
    char *text = NULL;
    if (objective_spec_head(&s->recipe) == MODEL_HEAD_LM) {
        return STATUS_OK;
    }
    TRY(labels_read(s->tokenizer_dir, &s->labels));
    if (s->labels.count == 0) {
        return STATUS_OK;
    }
    status result = labels_to_json(&s->labels, &text);
    if (result == STATUS_OK) {
        result = labels_hash(text, s->labels_sha256);
    }
    free(text);
    return result;
}

static status start_session(struct session *s, struct comm *world,
                            const struct checkpoint_info *found, char *const *overrides,
                            int override_count, int64_t rows)
{
    struct recipe *r = &s->recipe;
    status result = parse_recipe(found, overrides, override_count, r);
    KEEP_FIRST(result, file_join(s->tokenizer_dir, found->folder, "tokenizer"));
    snprintf(s->checkpoint, sizeof s->checkpoint, "%s", found->folder);
    TRY(comm_agree(world, result));
    TRY(limit_threads(r, world, overrides, override_count));
    int64_t micro_batch_rows = derive_rows(r);
    int64_t positions = r->model.max_position_embeddings;
    rows = number_max(rows, micro_batch_rows);
    rows = number_max(rows, positions);
    TRY(comm_agree(world, read_labels(s)));
    if (!tokenizer_exists(s->tokenizer_dir)) {
        s->tokenizer_dir[0] = '\0';
    }
    return session_start(s, world, s->tokenizer_dir, rows, positions, false);
}

status weights_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows)
{
    struct checkpoint_info found;
    struct state_dict weights = {0};
    TRY(comm_agree(world, checkpoint_resolve(world, path, true, &found)));
    status result = start_session(s, world, &found, overrides, override_count, rows);
    if (result == STATUS_OK) {
        result = model_connect(s->model);
    }
    if (result == STATUS_OK && s->recipe.adapter.type != ADAPTER_NONE) {
        result = adapter_base_load(s, world, false);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, state_dict_create_session_weights(s, NULL, NULL, &weights));
    }
    if (result == STATUS_OK) {
        result = checkpoint_load(world, found.folder, &weights.tensor_set, 1);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, model_sync_bf16(s->model));
    }
    state_dict_destroy(&weights);
    free(found.recipe_text);
    return result;
}

/* Compares a tokenizer with the tokenizer of the initial weights. */
static status compare_tokenizers(const struct recipe *r, const struct tokenizer *tokenizer,
                                 const struct tokenizer *stored, const char *folder)
{
    enum { TOKEN_BYTES = 40 };
    if (strcmp(tokenizer_sha256(stored), tokenizer_sha256(tokenizer)) == 0) {
        return STATUS_OK;
    }
    int32_t id = tokenizer_find_difference(tokenizer, stored);
    if (id < 0 && (tokenizer_has_target(tokenizer) || tokenizer_has_target(stored))) {
        tokenizer = tokenizer_target(tokenizer);
        stored = tokenizer_target(stored);
        id = tokenizer_find_difference(tokenizer, stored);
    }
    if (id < 0 || r->model.ignore_mismatched_tokenizer) {
        log_warning(
            "TOKENIZER",
            "data.tokenizer %s (%" PRId64
            " tokens) is not the tokenizer of the initial weights, %s (%" PRId64 " tokens), %s",
            r->data.tokenizer, tokenizer_vocab_size(tokenizer), folder,
            tokenizer_vocab_size(stored),
            id < 0 ? "but their common ids are the same tokens" : "so the ids mean other texts");
        return STATUS_OK;
    }
    char *texts[2] = {NULL, NULL};
    const struct tokenizer *tokenizers[2] = {tokenizer, stored};
    for (int i = 0; i < 2; i++) { /* only for the message */
        (void)tokenizer_decode(tokenizers[i], &id, 1, false, &texts[i], NULL);
        status_clear();
    }
    status result = recipe_raise(
        r, STATUS_RECIPE, "data.tokenizer",
        "not the tokenizer of the initial weights, %s: id %d is '%.*s' instead of '%.*s'. "
        "Prepare the data with that tokenizer, or set model.ignore_mismatched_tokenizer=true if "
        "the model is to learn the new ids",
        folder, id, TOKEN_BYTES, texts[0] != NULL ? texts[0] : "", TOKEN_BYTES,
        texts[1] != NULL ? texts[1] : "");
    free(texts[0]);
    free(texts[1]);
    return result;
}

/* Compares the tokenizer of the data instead, for a recipe without a tokenizer. Only the SHA-256 of
 * that tokenizer is known, so its ids cannot be compared. */
static status compare_data(const struct recipe *r, const char *data_sha256,
                           const struct tokenizer *stored, const char *folder)
{
    if (strcmp(tokenizer_sha256(stored), data_sha256) == 0) {
        return STATUS_OK;
    }
    if (r->model.ignore_mismatched_tokenizer) {
        log_warning("TOKENIZER",
                    "data.train was not prepared with the tokenizer of the initial weights, %s, so "
                    "the ids mean other texts",
                    folder);
        return STATUS_OK;
    }
    return recipe_raise(r, STATUS_DATA, "data.train",
                        "not prepared with the tokenizer of the initial weights, %s. "
                        "Prepare the data with that tokenizer, set data.tokenizer to compare the "
                        "ids, or set model.ignore_mismatched_tokenizer=true",
                        folder);
}

status weights_check_tokenizer(const struct recipe *recipe, const struct tokenizer *tokenizer,
                               const char *data_sha256, const char *checkpoint)
{
    char folder[FILE_PATH_BYTES];
    struct tokenizer *stored = NULL;
    if ((tokenizer == NULL && data_sha256[0] == '\0') ||
        file_join(folder, checkpoint, "tokenizer") != STATUS_OK || !tokenizer_exists(folder) ||
        tokenizer_open(folder, &stored) != STATUS_OK) {
        status_clear(); /* training does not need the stored tokenizer */
        return STATUS_OK;
    }
    status result = tokenizer != NULL ? compare_tokenizers(recipe, tokenizer, stored, folder)
                                      : compare_data(recipe, data_sha256, stored, folder);
    KEEP_FIRST(result, tokenizer_destroy(&stored));
    return result;
}

status weights_require_single_stack(const struct session *s, const char *checkpoint)
{
    enum recipe_architecture architecture = s->recipe.model.architecture;
    REQUIRE(!recipe_architecture_has_decoder(architecture), STATUS_UNAVAILABLE,
            "%s is an encoder-decoder (%s); use `bireme generate`, `translate`, `summarize` or "
            "`evaluate`",
            checkpoint, recipe_architecture_name(architecture));
    return STATUS_OK;
}

status weights_require_tokenizer(const struct session *s, const char *checkpoint, const char *user)
{
    REQUIRE(s->tokenizer != NULL, STATUS_DATA,
            "%s contains no tokenizer, but %s needs one; import or train with a tokenizer",
            checkpoint, user);
    return STATUS_OK;
}

status weights_require_causal(const struct session *s, const char *checkpoint)
{
    TRY(weights_require_single_stack(s, checkpoint));
    REQUIRE(!objective_spec_is_masked(&s->recipe), STATUS_DATA,
            "%s predicts masked tokens, not next tokens; use `bireme %s`", checkpoint,
            objective_spec_command(&s->recipe));
    REQUIRE(objective_spec_head(&s->recipe) == MODEL_HEAD_LM, STATUS_DATA,
            "%s was trained with objective %s and does not predict next tokens; use `bireme %s`",
            checkpoint, recipe_objective_name(s->recipe.objective),
            objective_spec_command(&s->recipe));
    return STATUS_OK;
}

status weights_require_generator(const struct session *s, const char *checkpoint)
{
    return recipe_architecture_has_decoder(s->recipe.model.architecture)
               ? STATUS_OK
               : weights_require_causal(s, checkpoint);
}

status weights_require_seq2seq(const struct session *s, const char *checkpoint)
{
    enum recipe_architecture architecture = s->recipe.model.architecture;
    REQUIRE(recipe_architecture_has_decoder(architecture), STATUS_DATA,
            "%s has the architecture %s, which is not an encoder-decoder; use `bireme %s`",
            checkpoint, recipe_architecture_name(architecture), objective_spec_command(&s->recipe));
    return STATUS_OK;
}
