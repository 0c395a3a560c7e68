#include "trainer/formats/weights/initial_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "trainer/formats/checkpoint/reader.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/open.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/setup/derive.h"

/* ---- the recipe ---- */

/* Finds the checkpoint that a run resumes from. A run without one starts from the beginning, and
 * an error of a checkpoint is reported when the run opens its checkpoints. */
static status find_resumed(const char *resume, const struct recipe *recipe, struct comm *world,
                           struct checkpoint_info *out, bool *resumed)
{
    *resumed = false;
    if (resume == NULL) {
        return STATUS_OK;
    }
    const char *path = resume[0] != '\0' ? resume : recipe->run_dir;
    status result = checkpoint_find_recipe(world, path, false, out);
    *resumed = result == STATUS_OK;
    if (result == STATUS_INTERNAL) { /* out of memory */
        return result;
    }
    status_clear();
    return STATUS_OK;
}

/* Finds the checkpoint of model.init_from. out->found stays false if it may be missing. */
static status find_initial(const struct initial_model_request *q, const struct recipe *recipe,
                           struct comm *world, struct checkpoint_info *out)
{
    status result = checkpoint_find_recipe(world, recipe->model.init_from, true, out);
    if (result == STATUS_NO_INPUT && (q->optional || recipe->model.vocab_size > 0)) {
        status_clear();
        return STATUS_OK;
    }
    bool is_published = strncmp(recipe->model.init_from, "gpt2", strlen("gpt2")) == 0;
    const char *remedy = result != STATUS_NO_INPUT ? ""
                         : q->remedy != NULL       ? q->remedy
                         : is_published ? "to use a model of Hugging Face, download its folder and "
                                          "run `bireme import FOLDER --output DIR`"
                                        : "";
    return comm_agree(world, recipe_annotate_error(recipe, "model.init_from", result, remedy));
}

/* Completes a recipe with the settings of a checkpoint. Those of a resumed run are compared later,
 * with all others. */
static status complete_from(struct recipe *recipe, const struct checkpoint_info *found,
                            bool resumed)
{
    struct recipe initial;
    TRY(saved_recipe_parse(found, NULL, 0, &initial));
    TRY(resumed ? STATUS_OK : recipe_compare_initial(recipe, &initial));
    return recipe_complete(recipe, &initial);
}

/* Explains the values of init_from in nanoGPT, unless there is a folder with this name. */
static status refuse_keyword(const struct recipe *r)
{
    const char *value = r->model.init_from;
    bool is_resume = strcmp(value, "resume") == 0;
    if ((!is_resume && strcmp(value, "scratch") != 0) || file_exists(value)) {
        return STATUS_OK;
    }
    return recipe_raise(r, STATUS_RECIPE, "model.init_from",
                        is_resume ? "'resume' is not a folder; remove this setting: train resumes "
                                    "the run in run_dir by itself, and `train --resume PATH` "
                                    "resumes another run"
                                  : "'scratch' is not a folder; remove this setting: the initial "
                                    "weights are then random");
}

status initial_model_read_recipe(const struct initial_model_request *q, struct comm *world,
                                 struct recipe *out)
{
    struct checkpoint_info found = {0};
    TRY(comm_agree(world, recipe_read_draft(q->recipe_path, q->overrides, q->override_count, out)));
    TRY(comm_check_equal(world, "model.init_from", out->model.init_from));
    TRY(comm_agree(world, refuse_keyword(out)));
    if (out->model.init_from[0] == '\0') {
        return comm_agree(world, recipe_complete(out, NULL));
    }
    bool resumed = false;
    TRY(find_resumed(q->resume, out, world, &found, &resumed));
    if (!resumed) {
        TRY(find_initial(q, out, world, &found));
    }
    status result = found.found ? complete_from(out, &found, resumed) : recipe_complete(out, NULL);
    free(found.recipe_text);
    return comm_agree(world, result);
}

/* ---- the weights ---- */

/* Returns the stored token embedding, by the names of Hugging Face transformers; NULL: none. */
static const struct manifest_tensor *find_embedding(const struct manifest *m)
{
    static const char *const names[] = {"wte.weight", "word_embeddings.weight",
                                        "embed_tokens.weight"};
    for (int i = 0; i < m->tensor_count; i++) {
        for (int e = 0; e < COUNT(names); e++) {
            if (strcmp(m->tensors[i].set, "model") == 0 &&
                strstr(m->tensors[i].name, names[e]) != NULL) {
                return &m->tensors[i];
            }
        }
    }
    return NULL;
}

status initial_model_check_vocabulary(const struct recipe *r, const char *folder,
                                      int64_t vocabulary)
{
    struct checkpoint_reader *reader = NULL;
    TRY(checkpoint_reader_open(folder, &reader));
    const struct manifest_tensor *embedding = find_embedding(checkpoint_reader_manifest(reader));
    int64_t rows = embedding != NULL ? embedding->shape[0] : vocabulary;
    checkpoint_reader_close(&reader);
    if (rows != vocabulary) {
        bool given = recipe_is_given(r, "model.vocab_size");
        return recipe_raise(r, STATUS_RECIPE, given ? "model.vocab_size" : "data.tokenizer",
                            "%" PRId64 " token ids, but the model in %s has %" PRId64
                            "; use its tokenizer: %s/tokenizer",
                            vocabulary, folder, rows, folder);
    }
    return STATUS_OK;
}

/* Compares names and shapes of a subset of the parameters with a checkpoint. */
static status check_tensors(struct comm *world, const char *folder,
                            const struct state_dict_layout *layout, int64_t elements,
                            bool heads_may_differ)
{
    struct optimizer_range all = {.count = elements};
    struct state_dict_ranges ranges = {.ranges = &all, .count = 1};
    struct state_dict dict = {0};
    TRY(state_dict_create_weights(layout, &ranges, NULL, &dict));
    status result = checkpoint_check_tensors(world, folder, &dict.tensor_set, 1, heads_may_differ);
    state_dict_destroy(&dict);
    return result;
}

/* Finds the full model of model.init_from: the checkpoint itself, or the base model of adapters.
 * `adapters` receives the folder of adapters to continue with, or "". */
static status find_full_model(struct recipe *r, struct comm *world, char *adapters,
                              struct checkpoint_info *out)
{
    bool has_adapters = r->adapter.type != ADAPTER_NONE;
    adapters[0] = '\0';
    TRY(has_adapters ? adapter_base_find(r, world, adapters) : STATUS_OK);
    const char *key = has_adapters ? "adapter.base" : "model.init_from";
    const char *path = has_adapters ? r->adapter.base : r->model.init_from;
    TRY(recipe_annotate_error(r, key, checkpoint_resolve(world, path, true, out), ""));
    status result = has_adapters ? STATUS_OK : adapter_base_require_full_model(r, out);
    free(out->recipe_text);
    out->recipe_text = NULL;
    return result;
}

status initial_model_check(const struct recipe *recipe, struct comm *world, int64_t vocabulary,
                           const struct tokenizer *tokenizer)
{
    struct recipe r = *recipe; /* its adapter.base may be set */
    struct checkpoint_info found = {0};
    char adapters[FILE_PATH_BYTES];
    TRY(find_full_model(&r, world, adapters, &found));
    TRY(initial_model_check_vocabulary(&r, found.folder, vocabulary));
    TRY(weights_check_tokenizer(&r, tokenizer, "", found.folder));
    struct model_config config = derive_model_config(&r, vocabulary);
    struct model_parameter *parameters = NULL;
    struct state_dict_layout layout = {.writes_replicated = true,
                                       .subset = STATE_DICT_SUBSET_BASE_MODEL};
    int64_t elements = 0;
    TRY(model_layout(&config, 1, 0, &parameters, &layout.count, &elements));
    layout.parameters = parameters;
    bool may_differ = r.adapter.type == ADAPTER_NONE || config.head != MODEL_HEAD_LM;
    status result = check_tensors(world, found.folder, &layout, elements, may_differ);
    if (result == STATUS_OK && adapters[0] != '\0') {
        layout.subset = STATE_DICT_SUBSET_TRAINED;
        result = check_tensors(world, adapters, &layout, elements, true);
    }
    free(parameters);
    return result;
}

status initial_model_check_moments(const struct recipe *recipe, struct comm *world,
                                   int64_t vocabulary)
{
    struct checkpoint_info found = {0};
    status result = checkpoint_resolve(world, recipe->optimizer.init_from, false, &found);
    free(found.recipe_text);
    TRY(recipe_annotate_error(recipe, "optimizer.init_from", result, ""));
    struct model_config config = derive_model_config(recipe, vocabulary);
    struct model_parameter *parameters = NULL;
    struct state_dict_layout layout = {.writes_replicated = true,
                                       .subset = STATE_DICT_SUBSET_TRAINED};
    struct state_dict dict = {0};
    int64_t elements = 0;
    TRY(model_layout(&config, 1, 0, &parameters, &layout.count, &elements));
    layout.parameters = parameters;
    struct optimizer_range trained = {.count = model_trained_elems(parameters, layout.count)};
    struct state_dict_ranges ranges = {.ranges = &trained, .count = 1};
    result = state_dict_create_moments(&layout, &ranges, DTYPE_F32, NULL, NULL, &dict);
    if (result == STATUS_OK) {
        result = checkpoint_check_tensors(world, found.folder, &dict.tensor_set, 1, false);
    }
    state_dict_destroy(&dict);
    free(parameters);
    return result;
}
