/* The initial weights of a run, and its reference model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/formats/weights/open.h"
#include "trainer/setup/data.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/train/job_impl.h"

/* Loads the Adam moments of optimizer.init_from. The step count starts at 0. */
static status load_initial_moments(struct job *job)
{
    const char *from = job->session.recipe.optimizer.init_from;
    if (from[0] == '\0') {
        return STATUS_OK;
    }
    struct checkpoint_info found = {0};
    status resolved = checkpoint_resolve(job->world, from, false, &found);
    resolved = recipe_annotate_error(&job->session.recipe, "optimizer.init_from", resolved, "");
    TRY(comm_agree(job->world, resolved));
    log_info("optimizer moments from %s, saved at step %" PRId64 "; steps are counted from 0",
             found.folder, found.state.step);
    status result =
        checkpoint_load(job->world, found.folder, &job->state_dicts[JOB_MOMENTS].tensor_set, 1);
    free(found.recipe_text);
    return result;
}

/* Loads the base model of new or existing adapters. The path and the fingerprint of the base model
 * become part of the recipe that checkpoints store. */
static status load_initial_adapters(struct job *job)
{
    struct session *s = &job->session;
    char init_adapters[FILE_PATH_BYTES];
    TRY(comm_agree(job->world, adapter_base_find(&s->recipe, job->world, init_adapters)));
    TRY(adapter_base_load(s, job->world, true));
    TRY(comm_agree(job->world,
                   weights_check_tokenizer(&s->recipe, s->tokenizer, job->data_tokenizer_sha256,
                                           s->recipe.adapter.base)));
    free(job->recipe_text);
    job->recipe_text = NULL;
    TRY(comm_agree(job->world, job_write_recipe_text(&s->recipe, &job->recipe_text)));
    job->init_adapters = init_adapters[0] != '\0';
    if (!job->init_adapters) {
        return STATUS_OK;
    }
    log_info("adapters from %s", init_adapters);
    return checkpoint_load_pretrained(job->world, init_adapters,
                                      &job->state_dicts[JOB_WEIGHTS].tensor_set, 1);
}

static status load_initial_weights(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    struct checkpoint_info found = {0};
    status resolved = checkpoint_resolve(job->world, r->model.init_from, true, &found);
    resolved = recipe_annotate_error(r, "model.init_from", resolved, "");
    KEEP_FIRST(resolved,
               resolved == STATUS_OK ? adapter_base_require_full_model(r, &found) : resolved);
    int64_t vocabulary = model_source_vocabulary(model_get_config(job->session.model));
    KEEP_FIRST(resolved, resolved == STATUS_OK
                             ? initial_model_check_vocabulary(r, found.folder, vocabulary)
                             : resolved);
    TRY(comm_agree(job->world, resolved));
    log_info("weights from %s", found.folder);
    status result =
        comm_agree(job->world, weights_check_tokenizer(r, job->session.tokenizer,
                                                       job->data_tokenizer_sha256, found.folder));
    if (result == STATUS_OK) {
        result = checkpoint_load_pretrained(job->world, found.folder,
                                            &job->state_dicts[JOB_WEIGHTS].tensor_set, 1);
    }
    free(found.recipe_text);
    return result;
}

bool job_has_adapters(const struct job *job)
{
    return job->session.recipe.adapter.type != ADAPTER_NONE;
}

status job_initialize_weights(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    if (job->weights_initialized) {
        return STATUS_OK;
    }
    TRY(comm_agree(job->world, model_init_weights(job->session.model, (uint64_t)r->seed,
                                                  job->session.threads)));
    if (r->model.init_from[0] == '\0') {
        return STATUS_OK;
    }
    TRY(job_has_adapters(job) ? load_initial_adapters(job) : load_initial_weights(job));
    TRY(load_initial_moments(job));
    return comm_agree(job->world, model_sync_bf16(job->session.model));
}

status job_initialize_before_resume(struct job *job)
{
    if (!job_has_adapters(job) && !objective_spec_has_reference(&job->session.recipe)) {
        return STATUS_OK;
    }
    TRY(job_initialize_weights(job));
    job->weights_initialized = true;
    return STATUS_OK;
}

status job_compute_reference(struct job *job)
{
    const struct recipe *r = &job->session.recipe;
    char text[2 * HASH_TEXT_BYTES];
    if (!objective_spec_has_reference(r)) {
        return STATUS_OK;
    }
    struct data_setup data = job_get_data_setup(job);
    TRY(reference_logprobs_compute(&job->session, &data, job->init_adapters, &job->reference));
    snprintf(text, sizeof text, "%s%s", job->data_fingerprint, job->reference.weights_fingerprint);
    return comm_agree(job->world, hash_memory(text, strlen(text), job->data_fingerprint));
}
