#include "trainer/train/reference_logprobs.h"

#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/shard_logps.h"
#include "trainer/formats/weights/adapter_base.h"
#include "trainer/formats/weights/fingerprint.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/stop_signal.h"
#include "trainer/train/step/step.h"

/* Blocks of a data set. The side file is written and stop signals are checked after each. */
enum { BLOCKS = 64 };

/* ---- one data set ---- */

struct set {
    struct session *session;
    const struct data_setup *data;
    struct loader_source source;
    struct shard_logps_key key;
    char path[FILE_PATH_BYTES]; /* of the side file */
    double *values;
    int64_t done;
};

static struct loader_options get_loader_options(const struct set *s)
{
    const struct recipe *r = s->data->recipe;
    return (struct loader_options){
        .sources = &s->source,
        .source_count = 1,
        .sequence_tokens = r->data.sequence_length,
        .global_sequences = r->batch.micro_size * s->data->ranks,
        .micro_sequences = r->batch.micro_size,
        .rank = s->data->rank,
        .ranks = s->data->ranks,
        .interleave_micro_batches =
            true, /* the same micro-batches, so the same bits, at any number of ranks */
        .kind = EXAMPLE_PREFERENCE_PAIRS,
        .shared_prompt = objective_spec_shares_prompt(r),
        .vocab_size = s->data->vocabulary,
        .tokenizer_sha256 = s->data->tokenizer_sha256,
        .first_sample = s->done,
    };
}

static status name_side_file(struct set *s)
{
    char folder[FILE_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", s->source.path);
    int used = snprintf(s->path, sizeof s->path, "%s/reference-%.12s-%.12s.hdf5", dirname(folder),
                        s->key.weights, s->key.data);
    REQUIRE(used < FILE_PATH_BYTES, STATUS_USAGE, "path too long: %s", s->source.path);
    return STATUS_OK;
}

/* Fills in the key of the side file and allocates the values. */
static status prepare_set(struct set *s)
{
    struct loader *loader = NULL;
    struct loader_options options = get_loader_options(s);
    TRY(loader_open(&options, &loader));
    s->key.pairs = loader_samples(loader);
    snprintf(s->key.data, sizeof s->key.data, "%s", loader_fingerprint(loader));
    TRY(loader_close(&loader));
    bool uses_bf16 = s->data->recipe->train.precision != PRECISION_FP32;
    snprintf(s->key.precision, sizeof s->key.precision, "%s", uses_bf16 ? "bf16" : "fp32");
    snprintf(s->key.tokenizer_sha256, sizeof s->key.tokenizer_sha256, "%s",
             s->data->tokenizer_sha256 != NULL ? s->data->tokenizer_sha256 : "");
    TRY(ALLOCATE(s->values, 2 * s->key.pairs, "pairs"));
    return name_side_file(s);
}

static status read_side_file(struct set *s)
{
    if (comm_rank(s->session->mesh.world) != 0) {
        return STATUS_OK;
    }
    status result = shard_logps_read(s->path, &s->key, s->values, &s->done);
    if (result == STATUS_NO_INPUT) {
        status_clear();
        return STATUS_OK;
    }
    return result;
}

static status load_side_file(struct set *s)
{
    struct comm *world = s->session->mesh.world;
    TRY(comm_agree(world, read_side_file(s)));
    TRY(comm_broadcast(world, &s->done, sizeof s->done, 0));
    return comm_broadcast(world, s->values, 2 * (size_t)s->done * sizeof *s->values, 0);
}

/* Computes pairs [done, end) on all ranks and writes the side file. */
static status compute_block(struct set *s, struct step *step, int64_t end)
{
    struct session *session = s->session;
    struct loader *loader = NULL;
    double sums[OBJECTIVE_SUMS];
    struct loader_options options = get_loader_options(s);
    options.limit_samples = end;
    TRY(comm_agree(session->mesh.world, loader_open(&options, &loader)));
    memset(s->values + 2 * s->done, 0, 2 * (size_t)(end - s->done) * sizeof *s->values);
    status result = step_evaluate(step, loader, NULL, sums);
    KEEP_FIRST(result, loader_close(&loader));
    TRY(result);
    TRY(comm_sum_doubles(session->mesh.data, s->values + 2 * s->done, 2 * (end - s->done)));
    s->done = end;
    bool is_root = comm_rank(session->mesh.world) == 0;
    return comm_agree(session->mesh.world,
                      is_root ? shard_logps_write(s->path, &s->key, s->values, end) : STATUS_OK);
}

/* Agrees on stop signals. The finished pairs are in the side file, so a restart continues there. */
static status check_stop(const struct set *s)
{
    bool stop = false;
    TRY(comm_agree_flag(s->session->mesh.world, stop_signal_received(), &stop));
    if (stop) {
        log_text("stopped after the reference log-probabilities of %" PRId64 " of %" PRId64
                 " pairs; they are in "
                 "%s; run the same command to continue",
                 s->done, s->key.pairs, s->path);
    }
    return stop ? STATUS_STOPPED : STATUS_OK;
}

static status compute_set(struct set *s)
{
    struct session *session = s->session;
    int64_t pairs = s->key.pairs, batch = get_loader_options(s).global_sequences;
    int64_t block = (pairs / BLOCKS / batch + 1) * batch;
    struct step *step = NULL;
    struct step_parts parts = {
        .mesh = session->mesh,
        .kernels = session->kernels,
        .model = session->model,
        .objective = &objective_dpo_reference,
        .micro_rows = derive_rows(s->data->recipe),
        .reference_logps = s->values,
    };
    TRY(comm_agree(session->mesh.world, step_create(&parts, &step)));
    status result = STATUS_OK;
    while (result == STATUS_OK && s->done < pairs) {
        int64_t end = number_min(s->done + block, pairs);
        result = compute_block(s, step, end);
        log_progress("reference: %" PRId64 " of %" PRId64 " pairs of %s", s->done, pairs,
                     s->source.path);
        KEEP_FIRST(result, check_stop(s));
    }
    KEEP_FIRST(result, step_destroy(&step));
    return result;
}

/* The caller owns *values, also after an error. */
static status load_or_compute_set(struct set *s, double **values)
{
    struct comm *world = s->session->mesh.world;
    status result = comm_agree(world, prepare_set(s));
    *values = s->values;
    TRY(result);
    TRY(load_side_file(s));
    if (s->done == s->key.pairs) {
        log_info("reference log-probabilities of %" PRId64 " pairs from %s", s->key.pairs, s->path);
        return STATUS_OK;
    }
    log_info("computing the reference log-probabilities of %" PRId64 " pairs of %s, %" PRId64
             " are done",
             s->key.pairs, s->source.path, s->done);
    TRY(compute_set(s));
    log_info("reference log-probabilities stored in %s", s->path);
    return STATUS_OK;
}

/* ---- all data sets ---- */

status reference_logprobs_compute(struct session *session, const struct data_setup *data,
                                  bool adapters, struct reference_logprobs *out)
{
    const struct recipe *r = data->recipe;
    *out = (struct reference_logprobs){.sources = r->data.train_count};
    TRY(comm_agree(session->mesh.world,
                   fingerprint_of_session(session, adapters, out->weights_fingerprint)));
    for (int i = 0; i <= out->sources; i++) {
        bool validation = i == out->sources;
        const char *path = validation ? r->data.validation : r->data.train[i].path;
        struct set s = {.session = session, .data = data, .source = {path, 1}};
        memcpy(s.key.weights, out->weights_fingerprint, sizeof s.key.weights);
        if (path[0] != '\0') {
            TRY(load_or_compute_set(&s, validation ? &out->validation : &out->values[i]));
        }
    }
    return STATUS_OK;
}

void reference_logprobs_destroy(struct reference_logprobs *r)
{
    for (int i = 0; i < r->sources; i++) {
        free(r->values[i]);
    }
    free(r->validation);
    *r = (struct reference_logprobs){0};
}
