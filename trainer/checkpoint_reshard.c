/* A checkpoint cut anew, as another number of ranks would have written it: read box by box and written by
 * the same code as a save, under a temporary name until it is whole. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/h5file.h"
#include "trainer/checkpoint_impl.h"
#include "trainer/checkpoint_tools.h"

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
                          int count, const char *tokenizer)
{
    for (job->rank = 0; job->rank < job->ranks; job->rank++) {
        job->tokenizer_dir = job->rank == 0 ? tokenizer : NULL;
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
    const struct manifest *from = checkpoint_reader_manifest(job->reader);
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

static status write_all(struct checkpoint_job *job, const char *source)
{
    struct checkpoint_family families[CHECKPOINT_FAMILIES_MAX] = {0};
    int count = 0;
    char tokenizer[FILE_PATH_BYTES];
    TRY(file_join(tokenizer, source, "tokenizer"));
    status result = list_families(checkpoint_reader_manifest(job->reader), families, &count);
    if (result == STATUS_OK) {
        result = write_ranks(job, families, count, file_is_folder(tokenizer) ? tokenizer : NULL);
    }
    for (int i = 0; i < count; i++) {
        free((void *)families[i].tensors);
    }
    TRY(result);
    TRY(write_manifest(job));
    return checkpoint_folder_publish(job->parent, job->temporary, job->name);
}

static double bytes_of(const struct manifest *m)
{
    double bytes = 0;
    for (int i = 0; i < m->file_count; i++) {
        bytes += (double)m->files[i].bytes;
    }
    return bytes;
}

/* "DIR/NAME" into parent and name; a name that a temporary one can be made of. */
static status split_path(const char *output, struct checkpoint_job *job)
{
    char parent[FILE_PATH_BYTES], name[FILE_PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", output);
    snprintf(name, sizeof name, "%s", output);
    const char *last = basename(name);
    REQUIRE(strlen(output) < sizeof name && strlen(last) < 32 && last[0] != '.' && last[0] != '/',
            STATUS_USAGE, "--output %s: its last part must be a name of at most 31 characters",
            output);
    snprintf(job->parent, sizeof job->parent, "%s", dirname(parent));
    snprintf(job->name, sizeof job->name, "%s", last);
    checkpoint_temporary_name(job->name, job->temporary);
    return file_join(job->folder, job->parent, job->temporary);
}

status checkpoint_reshard(const char *source, const char *output, int ranks)
{
    struct checkpoint_job job = {.ranks = ranks};
    REQUIRE(!file_exists(output), STATUS_CREATE, "%s exists already; name a folder that does not",
            output);
    TRY(split_path(output, &job));
    TRY(checkpoint_reader_open(source, &job.reader));
    const struct manifest *from = checkpoint_reader_manifest(job.reader);
    job.state = from->state;
    status result = file_make_folders(job.parent);
    if (result == STATUS_OK) {
        result = checkpoint_folder_space(job.parent, 1.05 * bytes_of(from));
    }
    if (result == STATUS_OK) {
        result = file_make_folders(job.folder);
    }
    if (result == STATUS_OK) {
        result = write_all(&job, source);
        if (result != STATUS_OK) {
            struct status_note first;
            status_take(&first);
            (void)file_remove_tree(job.folder);
            status_restore(&first);
        }
    }
    manifest_destroy(&job.part);
    checkpoint_reader_close(&job.reader);
    return result;
}
