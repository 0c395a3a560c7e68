#include "trainer/setup/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/device/device.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/hardware.h"
#include "trainer/setup/objective_spec.h"

static status choose_vocabulary(const struct recipe *recipe, const struct tokenizer *tokenizer,
                                int64_t *out)
{
    int64_t tokenizer_size = tokenizer != NULL ? tokenizer_vocab_size(tokenizer) : 0;
    int64_t requested = recipe->model.vocab_size;
    *out = requested > 0 ? requested : tokenizer_size;
    if (*out == 0) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.vocab_size",
                            "missing, and data.tokenizer is not set either; set one of them");
    }
    bool inherited =
        recipe->model.init_from[0] != '\0' && !recipe_is_given(recipe, "model.vocab_size");
    if (*out < tokenizer_size && inherited) {
        return recipe_raise(recipe, STATUS_RECIPE, "data.tokenizer",
                            "%" PRId64 " ids, but the model in %s has %" PRId64
                            "; use the tokenizer of that model",
                            tokenizer_size, recipe->model.init_from, requested);
    }
    if (*out < tokenizer_size) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.vocab_size",
                            "%" PRId64 " is smaller than the tokenizer's %" PRId64
                            " ids; set it to null to use the tokenizer's size",
                            requested, tokenizer_size);
    }
    return STATUS_OK;
}

/* Checks that the decoder has all ids of the tokenizer of targets. */
static status check_targets(const struct recipe *recipe, const struct tokenizer *tokenizer,
                            int64_t vocabulary)
{
    int64_t ids = tokenizer != NULL ? tokenizer_vocab_size(tokenizer_target(tokenizer)) : 0;
    int64_t decoder = derive_decoder_vocabulary(recipe, vocabulary);
    bool has_decoder = recipe_architecture_has_decoder(recipe->model.architecture);
    if (has_decoder && tokenizer_has_target(tokenizer) && !derive_separate_embeddings(recipe)) {
        return recipe_raise(recipe, STATUS_RECIPE, "data.tokenizer",
                            "it has two vocabularies, which need two token tables; set "
                            "model.architecture to marian, "
                            "model.share_encoder_decoder_embeddings to false and "
                            "model.decoder_vocab_size to %" PRId64,
                            ids);
    }
    if (has_decoder && decoder < ids) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.decoder_vocab_size",
                            "%" PRId64 " is smaller than the %" PRId64
                            " ids of the targets; set it to %" PRId64,
                            decoder, ids, ids);
    }
    return STATUS_OK;
}

status session_tokenizer(const struct recipe *recipe, const char *folder, struct tokenizer **out,
                         int64_t *vocabulary)
{
    *out = NULL;
    status result = folder[0] != '\0' ? tokenizer_open(folder, out) : STATUS_OK;
    TRY(recipe_annotate_error(recipe, "data.tokenizer", result, ""));
    TRY(choose_vocabulary(recipe, *out, vocabulary));
    return check_targets(recipe, *out, *vocabulary);
}

/* Creates the objects that need no communication between devices. */
static status create_local_objects(struct session *s, struct comm *world, const char *tokenizer_dir,
                                   int64_t rows, int64_t sequence, bool training,
                                   struct model_config *config)
{
    const struct recipe *r = &s->recipe;
    int64_t vocabulary = 0;
    TRY(mesh_check(comm_size(world), (int)r->parallel.tensor, recipe_tensor_divisor(r)));
    TRY(mesh_create(world, (int)r->parallel.tensor, &s->mesh));
    TRY(hardware_count_threads(r, world, &s->threads));
    TRY(session_tokenizer(r, tokenizer_dir, &s->tokenizer, &vocabulary));
    TRY(derive_masking(r, s->tokenizer, vocabulary, &s->masking));
    TRY(derive_denoise(r, s->tokenizer, vocabulary, &s->denoise));
    *config = derive_model_config(r, vocabulary);
    /* inference may request any rows */
    if (!training && (objective_spec_is_masked(r) || objective_spec_head(r) != MODEL_HEAD_LM)) {
        config->output_rows = config->examples = rows;
    }
    TRY(training ? derive_check_fp8(r, config) : STATUS_OK); /* inference runs in bf16 */
    struct kernels_limits limits =
        derive_kernel_limits(config, (int)r->parallel.tensor, rows, sequence, training);
    return hardware_open_device(r, comm_local_rank(world), s->threads, &limits, &s->device,
                                &s->kernels);
}

/* Broadcasts rank 0's text. The caller frees *text with free() on every rank. */
static status broadcast_text(struct comm *world, char **text)
{
    int64_t bytes = *text != NULL ? (int64_t)strlen(*text) + 1 : 0;
    TRY(comm_broadcast(world, &bytes, sizeof bytes, 0));
    if (comm_rank(world) > 0 && bytes > 0) {
        TRY(comm_abort_on_error(world, ALLOCATE(*text, bytes, "the GEMM algorithms")));
    }
    return bytes > 0 ? comm_broadcast(world, *text, (size_t)bytes, 0) : STATUS_OK;
}

status session_tune(struct session *s, struct comm *world, bool measure)
{
    char *text = NULL;
    bool is_root = comm_rank(world) == 0;
    if (device_is_host(s->device)) {
        return STATUS_OK;
    }
    status result = kernels_tune(s->kernels, measure && is_root, is_root ? &text : NULL);
    KEEP_FIRST(result, broadcast_text(world, &text));
    if (result == STATUS_OK && !is_root && text != NULL) {
        result = kernels_tune_import(s->kernels, text);
    }
    free(text);
    kernels_graphs_enable(
        s->kernels, s->recipe.train.cuda_graphs); /* discard the graphs of the old algorithms */
    return comm_agree(world, result);
}

/* Moves the weights that ZeRO gathers to memory that NCCL registers. Staged communicators would
 * also allocate a copy of the weights on the host. */
static status register_weights(struct session *s, bool training)
{
    struct comm *data = s->mesh.data;
    bool is_gathered = training && s->recipe.parallel.zero_stage > 0 && comm_size(data) > 1;
    return is_gathered && strcmp(comm_kind(data), "nccl") == 0
               ? model_register_weights(s->model, data)
               : STATUS_OK;
}

status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training)
{
    struct model_config config = {0};
    TRY(comm_agree(
        world, create_local_objects(s, world, tokenizer_dir, rows, sequence, training, &config)));
    TRY(comm_agree(world, hardware_connect_devices(&s->mesh, s->device, s->kernels,
                                                   s->recipe.parallel.deterministic)));
    if (s->recipe.train.cuda_graphs) {
        TRY(comm_agree(world, comm_device_enable_graphs(s->mesh.tensor)));
    }
    TRY(hardware_compare_models(world, device_name(s->device), &s->same_devices));
    TRY(session_tune(s, world, false));
    TRY(comm_agree(world, model_create(s->kernels, &config, s->mesh.tensor,
                                       s->recipe.parallel.sequence, rows, training, &s->model)));
    return comm_agree(world, register_weights(s, training));
}

status session_stop(struct session *s)
{
    if (s->kernels != NULL) { /* graphs may contain collectives of the mesh */
        kernels_graphs_enable(s->kernels, false);
    }
    status result = model_destroy(&s->model);
    if (s->mesh.world != NULL) { /* its groups may hold device memory */
        KEEP_FIRST(result, mesh_destroy(&s->mesh));
    }
    KEEP_FIRST(result, kernels_destroy(&s->kernels));
    KEEP_FIRST(result, device_destroy(&s->device));
    KEEP_FIRST(result, tokenizer_destroy(&s->tokenizer));
    labels_free(&s->labels);
    free((void *)s->masking.token_kinds);
    s->masking.token_kinds = NULL;
    free((void *)s->denoise.sentence_ends);
    s->denoise.sentence_ends = NULL;
    return result;
}
