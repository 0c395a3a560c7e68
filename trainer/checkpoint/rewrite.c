/* Written by the same code as a save, one rank's files after the other, under a temporary name until whole. */
#include "trainer/checkpoint/rewrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/checkpoint_impl.h"
#include "base/staged_folder.h"

/* The tensors of one family as one rank would hold all of them, in the file's own orientation. */
static status list_tensors(const struct manifest *m, const char *stem,
                           struct checkpoint_family *out)
{
    struct checkpoint_tensor *tensors = calloc((size_t)m->tensor_count, sizeof *tensors);
    REQUIRE(tensors != NULL, STATUS_INTERNAL, "out of memory for %d tensors", m->tensor_count);
    *out = (struct checkpoint_family){.stem = stem, .tensors = tensors};
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        if (strcmp(t->family, stem) == 0) {
            tensors[out->count++] = (struct checkpoint_tensor){
                .name = t->name,
                .dimensions = t->dimensions,
                .global_shape = {t->shape[0], t->shape[1]},
                .rows = t->shape[0],
                .columns = t->shape[1],
            };
        }
    }
    return STATUS_OK;
}

static bool listed(const struct checkpoint_family *families, int count, const char *stem)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(families[i].stem, stem) == 0) {
            return true;
        }
    }
    return false;
}

static status list_families(const struct manifest *m,
                            struct checkpoint_family families[CHECKPOINT_FAMILIES_MAX], int *count)
{
    for (int i = 0; i < m->tensor_count; i++) {
        const char *stem = m->tensors[i].family;
        if (!listed(families, *count, stem)) {
            REQUIRE(*count < CHECKPOINT_FAMILIES_MAX, STATUS_CHECKPOINT,
                    "%d families of tensors at most", CHECKPOINT_FAMILIES_MAX);
            TRY(list_tensors(m, stem, &families[(*count)++]));
        }
    }
    return STATUS_OK;
}

/* The files of all ranks, one rank after the other. */
static status write_ranks(struct checkpoint_job *job, const struct checkpoint_family *families,
                          int count)
{
    const struct checkpoint_files *tokenizer = job->tokenizer;
    for (job->rank = 0; job->rank < job->ranks; job->rank++) {
        job->tokenizer = job->rank == 0 ? tokenizer : NULL;
        job->beside_text = job->rank == 0 ? job->source->beside_text : NULL;
        status result = checkpoint_pieces_create(job, families, count, job->ranks, job->rank);
        if (result == STATUS_OK) {
            result = checkpoint_write_files(job);
        }
        checkpoint_pieces_destroy(job);
        TRY(result);
    }
    return STATUS_OK;
}

/* The manifest's texts change hands for the moment of writing. */
static status write_manifest(struct checkpoint_job *job)
{
    const struct manifest *from = job->source->manifest;
    struct manifest *part = &job->part;
    part->state = from->state;
    part->ranks = job->ranks;
    part->version = from->version;
    part->recipe = from->recipe;
    part->data_fingerprint = from->data_fingerprint;
    status result = checkpoint_write_manifest(job->folder, part);
    part->version = part->recipe = part->data_fingerprint = NULL;
    return result;
}

static status write_all(struct checkpoint_job *job)
{
    struct checkpoint_family families[CHECKPOINT_FAMILIES_MAX] = {0};
    int count = 0;
    status result = list_families(job->source->manifest, families, &count);
    if (result == STATUS_OK) {
        result = write_ranks(job, families, count);
    }
    for (int i = 0; i < count; i++) {
        free((void *)families[i].tensors);
    }
    TRY(result);
    return write_manifest(job);
}

static double bytes_of(const struct manifest *m)
{
    double elements = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        elements += (double)m->tensors[i].shape[0] * (double)m->tensors[i].shape[1];
    }
    return elements * (double)sizeof(float);
}

static status write_source(const struct checkpoint_source *source,
                           const struct checkpoint_files *tokenizer, const char *output, int ranks)
{
    struct checkpoint_job job = {
        .ranks = ranks,
        .source = source,
        .tokenizer = source->tokenizer_dir != NULL ? tokenizer : NULL,
        .state = source->manifest->state,
        .beside_name = source->beside_name,
    };
    struct checkpoint_output folder;
    TRY(checkpoint_output_create(output, bytes_of(source->manifest), &folder));
    snprintf(job.folder, sizeof job.folder, "%s", folder.path);
    status result = checkpoint_output_finish(&folder, write_all(&job));
    manifest_destroy(&job.part);
    return result;
}

status checkpoint_source_write(const struct checkpoint_source *source, const char *output,
                               int ranks)
{
    struct checkpoint_files tokenizer = {0};
    status result = STATUS_OK;
    if (source->tokenizer_dir != NULL) {
        result = checkpoint_files_read(source->tokenizer_dir, source->tokenizer_files, &tokenizer);
    }
    if (result == STATUS_OK) {
        result = write_source(source, &tokenizer, output, ranks);
    }
    checkpoint_files_destroy(&tokenizer);
    return result;
}
