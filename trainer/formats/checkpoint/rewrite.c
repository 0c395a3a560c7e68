/* Writes the files of all ranks one after the other, with the code of a save (write.c), into a
 * temporary folder that is published at the end. */
#include "trainer/formats/checkpoint/rewrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/staged_folder.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"
#include "trainer/formats/checkpoint/reader.h"

/* ---- tensor sets of the source ---- */

/* Lists the tensors of one set with their full shapes, in the orientation of the file. */
static status list_tensors(const struct manifest *m, const char *set,
                           struct checkpoint_tensor_set *out)
{
    struct checkpoint_tensor *tensors = NULL;
    TRY(ALLOCATE(tensors, m->tensor_count, "tensors"));
    *out = (struct checkpoint_tensor_set){.name = set, .tensors = tensors};
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        if (strcmp(t->set, set) == 0) {
            tensors[out->count++] = (struct checkpoint_tensor){
                .name = t->name,
                .dtype = t->dtype,
                .dimensions = t->dimensions,
                .global_shape = {t->shape[0], t->shape[1]},
                .rows = t->shape[0],
                .columns = t->shape[1],
            };
        }
    }
    return STATUS_OK;
}

static bool is_listed(const struct checkpoint_tensor_set *sets, int count, const char *set)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(sets[i].name, set) == 0) {
            return true;
        }
    }
    return false;
}

static status list_sets(const struct manifest *m,
                        struct checkpoint_tensor_set sets[CHECKPOINT_SETS_MAX], int *count)
{
    for (int i = 0; i < m->tensor_count; i++) {
        const char *set = m->tensors[i].set;
        if (!is_listed(sets, *count, set)) {
            REQUIRE(*count < CHECKPOINT_SETS_MAX, STATUS_CHECKPOINT,
                    "at most %d tensor sets are supported", CHECKPOINT_SETS_MAX);
            TRY(list_tensors(m, set, &sets[(*count)++]));
        }
    }
    return STATUS_OK;
}

/* ---- files ---- */

/* Writes the files of all ranks, one rank after the other. */
static status write_ranks(struct checkpoint_save_state *save,
                          const struct checkpoint_tensor_set *sets, int count)
{
    const struct checkpoint_attachments *tokenizer = save->tokenizer;
    for (save->rank = 0; save->rank < save->ranks; save->rank++) {
        save->tokenizer = save->rank == 0 ? tokenizer : NULL;
        save->extra_file_text = save->rank == 0 ? save->source->extra_file_text : NULL;
        status result = checkpoint_shards_create(save, sets, count, save->ranks, save->rank);
        if (result == STATUS_OK) {
            result = checkpoint_write_files(save);
        }
        checkpoint_shards_destroy(save);
        TRY(result);
    }
    return STATUS_OK;
}

/* Writes the manifest. It borrows the strings of the source's manifest for the call. */
static status write_manifest(struct checkpoint_save_state *save)
{
    const struct manifest *from = save->source->manifest;
    struct manifest *written = &save->written;
    written->state = from->state;
    written->ranks = save->ranks;
    written->dropout_scheme = from->dropout_scheme;
    written->version = from->version;
    written->recipe = from->recipe;
    written->data_fingerprint = from->data_fingerprint;
    status result = checkpoint_write_manifest(save->folder, written);
    written->version = written->recipe = written->data_fingerprint = NULL;
    return result;
}

static status write_all(struct checkpoint_save_state *save)
{
    struct checkpoint_tensor_set sets[CHECKPOINT_SETS_MAX] = {0};
    int count = 0;
    status result = list_sets(save->source->manifest, sets, &count);
    if (result == STATUS_OK) {
        result = write_ranks(save, sets, count);
    }
    for (int i = 0; i < count; i++) {
        free((void *)sets[i].tensors);
    }
    TRY(result);
    return write_manifest(save);
}

static double compute_bytes(const struct manifest *m)
{
    double bytes = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        bytes += (double)t->shape[0] * (double)t->shape[1] * (double)dtype_bytes(t->dtype);
    }
    return bytes;
}

/* ---- from a source ---- */

static status write_source(const struct checkpoint_source *source,
                           const struct checkpoint_attachments *tokenizer, const char *output,
                           int ranks)
{
    struct checkpoint_save_state save = {
        .ranks = ranks,
        .source = source,
        .tokenizer = source->tokenizer_dir != NULL ? tokenizer : NULL,
        .state = source->manifest->state,
        .extra_file_name = source->extra_file_name,
    };
    struct staged_folder folder;
    TRY(staged_folder_create(output, compute_bytes(source->manifest), &folder));
    snprintf(save.folder, sizeof save.folder, "%s", folder.path);
    status result = staged_folder_finish(&folder, write_all(&save));
    manifest_destroy(&save.written);
    return result;
}

status checkpoint_rewrite(const struct checkpoint_source *source, const char *output, int ranks)
{
    struct checkpoint_attachments tokenizer = {0};
    status result = STATUS_OK;
    if (source->tokenizer_dir != NULL) {
        result =
            checkpoint_attachments_read(source->tokenizer_dir, source->tokenizer_files, &tokenizer);
    }
    if (result == STATUS_OK) {
        result = write_source(source, &tokenizer, output, ranks);
    }
    checkpoint_attachments_destroy(&tokenizer);
    return result;
}

/* ---- from another checkpoint ---- */

static status read_block(void *reader, const struct manifest_tensor *tensor,
                         const int64_t offset[2], const int64_t shape[2], float *out)
{
    return checkpoint_reader_read(reader, tensor, offset, shape, out);
}

status checkpoint_reshard(const char *folder, const char *output, int ranks)
{
    char tokenizer[FILE_PATH_BYTES];
    struct checkpoint_reader *reader = NULL;
    TRY(file_join(tokenizer, folder, "tokenizer"));
    TRY(checkpoint_reader_open(folder, &reader));
    struct checkpoint_source source = {
        .manifest = checkpoint_reader_manifest(reader),
        .tokenizer_dir = file_is_folder(tokenizer) ? tokenizer : NULL,
        .context = reader,
        .read = read_block,
    };
    status result = checkpoint_rewrite(&source, output, ranks);
    checkpoint_reader_close(&reader);
    return result;
}
