#include "trainer/formats/weights/adapter_base.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/fingerprint.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/formats/weights/state_dict.h"

/* ---- path ---- */

static bool has_adapters(const struct recipe *r)
{
    return r->adapter.type != ADAPTER_NONE;
}

status adapter_base_require_full_model(const struct recipe *recipe,
                                       const struct checkpoint_info *found)
{
    struct recipe saved;
    TRY(saved_recipe_parse(found, NULL, 0, &saved));
    if (has_adapters(&saved)) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.init_from",
                            "%s contains adapters only; set adapter.type to lora to continue with "
                            "them, or merge them with `bireme export` and `bireme import`",
                            found->folder);
    }
    return STATUS_OK;
}

static status require_same_adapters(const struct recipe *r, const struct recipe *saved,
                                    const char *folder)
{
    if (r->adapter.rank != saved->adapter.rank) {
        return recipe_raise(r, STATUS_RECIPE, "adapter.rank",
                            "%" PRId64 ", but the adapters in %s have rank %" PRId64
                            "; set this rank",
                            r->adapter.rank, folder, saved->adapter.rank);
    }
    bool same =
        r->adapter.alpha >= saved->adapter.alpha && r->adapter.alpha <= saved->adapter.alpha;
    if (!same) {
        return recipe_raise(r, STATUS_RECIPE, "adapter.alpha",
                            "%g, but the adapters in %s have alpha %g; set this value",
                            r->adapter.alpha, folder, saved->adapter.alpha);
    }
    if (!recipe_list_same_entries(r->adapter.targets, saved->adapter.targets)) {
        return recipe_raise(r, STATUS_RECIPE, "adapter.targets",
                            "%s, but %s contains adapters of %s; list these matrices",
                            r->adapter.targets, folder, saved->adapter.targets);
    }
    return STATUS_OK;
}

static status get_absolute_path(const char *path, char out[RECIPE_PATH_BYTES])
{
    char *absolute = realpath(path, NULL);
    REQUIRE(absolute != NULL && strlen(absolute) < RECIPE_PATH_BYTES, STATUS_NO_INPUT,
            "%s: the absolute path is unknown or too long", path);
    memcpy(out, absolute, strlen(absolute) + 1);
    free(absolute);
    return STATUS_OK;
}

static status set_base(struct recipe *r, const struct checkpoint_info *found, char *init_adapters)
{
    struct recipe saved;
    TRY(saved_recipe_parse(found, NULL, 0, &saved));
    if (has_adapters(&saved)) {
        TRY(require_same_adapters(r, &saved, found->folder));
        snprintf(init_adapters, FILE_PATH_BYTES, "%s", found->folder);
        if (r->adapter.base[0] == '\0') {
            memcpy(r->adapter.base, saved.adapter.base, sizeof r->adapter.base);
        }
        if (r->adapter.base_weights[0] == '\0') {
            memcpy(r->adapter.base_weights, saved.adapter.base_weights,
                   sizeof r->adapter.base_weights);
        }
        return STATUS_OK;
    }
    return r->adapter.base[0] == '\0' ? get_absolute_path(found->folder, r->adapter.base)
                                      : STATUS_OK;
}

status adapter_base_find(struct recipe *recipe, struct comm *world, char *init_adapters)
{
    struct checkpoint_info found = {0};
    init_adapters[0] = '\0';
    status result = checkpoint_resolve(world, recipe->model.init_from, true, &found);
    TRY(recipe_annotate_error(recipe, "model.init_from", result, ""));
    result = set_base(recipe, &found, init_adapters);
    free(found.recipe_text);
    return result;
}

status adapter_base_check(const struct recipe *r, const char *fingerprint)
{
    if (strcmp(r->adapter.base_weights, fingerprint) != 0) {
        return recipe_raise(r, STATUS_DATA, "adapter.base",
                            "the weights in %s have changed since the adapters were trained: their "
                            "fingerprint is %s now and was %s. Set adapter.base to the folder of "
                            "the original weights",
                            r->adapter.base, fingerprint, r->adapter.base_weights);
    }
    return STATUS_OK;
}

static status check_fingerprint(struct session *s, const struct fingerprint *sums)
{
    struct recipe *r = &s->recipe;
    char text[HASH_TEXT_BYTES];
    fingerprint_text(sums, text);
    if (r->adapter.base_weights[0] == '\0') {
        snprintf(r->adapter.base_weights, sizeof r->adapter.base_weights, "%s", text);
    }
    return adapter_base_check(r, text);
}

/* Loads the elements of a range that belong to a subset of the parameters, to `weights` on the
 * device. */
static status load_range(struct session *s, struct comm *world, const char *folder,
                         enum parameter_subset subset, struct comm_range range, float *weights)
{
    struct state_dict dict = {0};
    status result =
        comm_agree(world, state_dict_create_session_subset(s, subset, range, weights, &dict));
    if (result == STATUS_OK) {
        result = checkpoint_load_subset(world, folder, &dict.tensor_set, 1);
    }
    state_dict_destroy(&dict);
    return result;
}

/* Loads one block of frozen weights: in place, or through the buffer `transient` if the model
 * stores only a bf16 copy of them. `host` is a host buffer for the fingerprint, or NULL if weights
 * are in host memory. */
static status load_block(struct session *s, struct comm *world, const char *folder,
                         struct comm_range range, float *transient, float *host,
                         struct fingerprint *sums)
{
    size_t bytes = (size_t)range.count * sizeof *host;
    float *weights = transient != NULL ? transient : model_weights(s->model) + range.first;
    TRY(load_range(s, world, folder, STATE_DICT_SUBSET_FROZEN, range, weights));
    status result = STATUS_OK;
    if (host != NULL) {
        result = device_read(s->device, kernels_stream(s->kernels), host, weights, bytes);
    }
    if (result == STATUS_OK) {
        fingerprint_add_range(sums, s, FINGERPRINT_FROZEN, range, host != NULL ? host : weights);
        result = transient != NULL ? model_set_frozen(s->model, range, transient) : STATUS_OK;
    }
    return comm_agree(world, result);
}

static status load_frozen(struct session *s, struct comm *world, const char *folder,
                          struct fingerprint *sums)
{
    int count = 0;
    const struct model_parameter *p = model_parameters(s->model, &count);
    int64_t trained = model_trained_elems(p, count), end = model_elems(s->model);
    size_t bytes = FINGERPRINT_BLOCK_ELEMENTS * sizeof(float);
    float *transient = NULL, *host = NULL;
    status result = STATUS_OK;
    if (model_f32_elements(s->model) < end) {
        result = device_allocate(s->device, bytes, "frozen weights", (void **)&transient);
    }
    if (result == STATUS_OK && !device_is_host(s->device)) {
        result = ALLOCATE(host, FINGERPRINT_BLOCK_ELEMENTS, folder);
    }
    result = comm_agree(world, result);
    for (struct comm_range block = fingerprint_next_block(trained, end);
         block.count > 0 && result == STATUS_OK;
         block = fingerprint_next_block(block.first + block.count, end)) {
        result = load_block(s, world, folder, block, transient, host, sums);
    }
    device_release(s->device, transient, bytes);
    free(host);
    return result;
}

/* Checks that the base model has the names and shapes of the session's model, and initializes a
 * task head from the base model's head. */
static status load_task_head(struct session *s, struct comm *world, const char *folder)
{
    bool has_task_head = model_get_config(s->model)->head != MODEL_HEAD_LM;
    struct comm_range all = {0, model_elems(s->model)},
                      with_f32 = {0, model_f32_elements(s->model)};
    struct state_dict dict = {0};
    status result = comm_agree(
        world, state_dict_create_session_subset(s, STATE_DICT_SUBSET_BASE_MODEL, all, NULL, &dict));
    if (result == STATUS_OK) {
        result = checkpoint_check_tensors(world, folder, &dict.tensor_set, 1, has_task_head);
    }
    state_dict_destroy(&dict);
    TRY(result);
    return has_task_head ? load_range(s, world, folder, STATE_DICT_SUBSET_TASK_HEAD, with_f32,
                                      model_weights(s->model))
                         : STATUS_OK;
}

status adapter_base_load(struct session *s, struct comm *world, bool before_first_step)
{
    const struct recipe *r = &s->recipe;
    struct checkpoint_info found = {0};
    struct fingerprint sums = {{0}};
    status result = checkpoint_resolve(world, r->adapter.base, true, &found);
    result = recipe_annotate_error(
        r, "adapter.base", result,
        "The base model of these adapters is expected there. If it has moved, set "
        "adapter.base to its folder (`--set adapter.base=DIR`)");
    TRY(comm_agree(world, result));
    log_info("loading the base model from %s", found.folder);
    free(found.recipe_text);
    if (before_first_step) {
        int64_t vocabulary = model_source_vocabulary(model_get_config(s->model));
        TRY(comm_agree(world, initial_model_check_vocabulary(r, found.folder, vocabulary)));
        TRY(load_task_head(s, world, found.folder));
    }
    TRY(load_frozen(s, world, found.folder, &sums));
    TRY(comm_agree(world, fingerprint_all_reduce(s, &sums)));
    return comm_agree(world, check_fingerprint(s, &sums));
}
