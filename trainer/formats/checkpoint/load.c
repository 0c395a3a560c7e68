/* Loading tensors from a checkpoint of any layout. Each file is opened once. Each stored shard is
 * intersected with the blocks of this rank (reader_impl.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"
#include "trainer/formats/checkpoint/reader.h"
#include "trainer/formats/checkpoint/reader_impl.h"
#include "trainer/formats/checkpoint/verify.h"

/* A load in progress. */
struct load {
    const char *folder;
    const struct manifest *manifest;
    const struct checkpoint_tensor_set *sets;
    int count;
    float *buffer;                     /* [CHECKPOINT_READ_ELEMENTS] */
    bool heads_may_differ;             /* the rules of checkpoint_load_pretrained */
    bool is_subset;                    /* the folder may store more tensors; nothing is logged */
    struct head_list *random, *unused; /* heads that are not loaded, for one line of the log */
};

/* ---- names and shapes ---- */

static bool has_shape(const struct checkpoint_tensor *t, const struct manifest_tensor *m)
{
    int64_t columns = t->dimensions == 2 ? t->global_shape[1] : 1;
    return m->dimensions == t->dimensions && m->shape[0] == t->global_shape[0] &&
           m->shape[1] == columns;
}

/* Returns whether a tensor belongs to a task's head, by the names of Hugging Face transformers. */
static bool is_head(const char *name)
{
    static const char *const heads[] = {"cls.", "lm_head.", "classifier.", "score.", "qa_outputs."};
    bool head = strstr(name, ".pooler.dense.") != NULL;
    for (int i = 0; i < COUNT(heads); i++) {
        head = head || strncmp(name, heads[i], strlen(heads[i])) == 0;
    }
    return head;
}

/* Names of heads as "classifier.*, bert.pooler.*". */
struct head_list {
    char text[512];
};

/* Returns the length of the part of a tensor's name that names its head: up to "pooler", two
 * components after "cls.", else one. */
static size_t measure_head_name(const char *name)
{
    const char *pooler = strstr(name, ".pooler.");
    if (pooler != NULL) {
        return (size_t)(pooler - name) + strlen(".pooler");
    }
    size_t cls = strncmp(name, "cls.", 4) == 0 ? 4 : 0;
    return cls + strcspn(name + cls, ".");
}

/* Adds the head of a tensor, unless the list contains it. */
static void add_head(struct head_list *list, const char *tensor)
{
    char name[MANIFEST_NAME_BYTES];
    snprintf(name, sizeof name, "%.*s.*", (int)measure_head_name(tensor), tensor);
    size_t used = strlen(list->text);
    if (strstr(list->text, name) == NULL) {
        snprintf(list->text + used, sizeof list->text - used, "%s%s", used > 0 ? ", " : "", name);
    }
}

static void log_heads(const struct load *load)
{
    const char *random = load->random->text, *unused = load->unused->text;
    bool both = random[0] != '\0' && unused[0] != '\0';
    if (!load->is_subset && (random[0] != '\0' || unused[0] != '\0')) {
        log_info("%s%s%s%s%s", random[0] != '\0' ? "new, at random: " : "", random,
                 both ? "; " : "", unused[0] != '\0' ? "not used: " : "", unused);
    }
}

/* Finds the stored tensor for a tensor of this run. Returns NULL if it does not exist, or if it is
 * a head that may differ and has another shape. */
static const struct manifest_tensor *find_stored(const struct load *load, const char *set,
                                                 const struct checkpoint_tensor *t)
{
    const struct manifest_tensor *m = manifest_find_tensor(load->manifest, set, t->name);
    bool may_differ = load->heads_may_differ && is_head(t->name);
    return m != NULL && may_differ && !has_shape(t, m) ? NULL : m;
}

static status check_shape(const struct checkpoint_tensor *t, const struct manifest_tensor *m,
                          const char *folder)
{
    int64_t columns = t->dimensions == 2 ? t->global_shape[1] : 1;
    REQUIRE(has_shape(t, m), STATUS_CHECKPOINT,
            "%s: %s has the shape [%" PRId64 ", %" PRId64 "] there and [%" PRId64 ", %" PRId64
            "] in this run; use the model settings that wrote it, or another run_dir",
            folder, t->name, m->shape[0], m->shape[1], t->global_shape[0], columns);
    return STATUS_OK;
}

/* Checks that every tensor of a set is stored. Sets needed[i] for each stored tensor i in use. */
static status check_needed(const struct load *load, const struct checkpoint_tensor_set *set,
                           double *needed)
{
    for (int i = 0; i < set->count; i++) {
        const struct checkpoint_tensor *t = &set->tensors[i];
        const struct manifest_tensor *m = find_stored(load, set->name, t);
        if (m == NULL && load->heads_may_differ && is_head(t->name)) {
            add_head(load->random, t->name);
            continue;
        }
        REQUIRE(m != NULL, STATUS_CHECKPOINT,
                "%s: %s-*.h5 contain no tensor %s, which this run needs; use the model settings "
                "that wrote it, or another run_dir",
                load->folder, set->name, t->name);
        TRY(check_shape(t, m, load->folder));
        needed[m - load->manifest->tensors] = 1;
    }
    return STATUS_OK;
}

static bool is_set_loaded(const struct load *load, const char *set)
{
    for (int f = 0; f < load->count; f++) {
        if (strcmp(load->sets[f].name, set) == 0) {
            return true;
        }
    }
    return false;
}

/* Fails if a stored tensor is needed by no rank: another, larger model wrote the checkpoint. */
static status check_unneeded(const struct load *load, const double *needed)
{
    for (int i = 0; i < load->manifest->tensor_count && !load->is_subset; i++) {
        const struct manifest_tensor *m = &load->manifest->tensors[i];
        if (needed[i] == 0 && load->heads_may_differ && is_head(m->name) &&
            is_set_loaded(load, m->set)) {
            add_head(load->unused, m->name);
            continue;
        }
        REQUIRE(needed[i] > 0 || !is_set_loaded(load, m->set), STATUS_CHECKPOINT,
                "%s contains %s (%s), which this run's model does not have; use the model settings "
                "that wrote it, or another run_dir",
                load->folder, m->name, m->set);
    }
    return STATUS_OK;
}

static status check_tensors(struct comm *world, struct load *load)
{
    struct head_list random = {""}, unused = {""};
    load->random = &random;
    load->unused = &unused;
    double *needed = NULL;
    status result = ALLOCATE(needed, load->manifest->tensor_count + 1, "tensors");
    for (int f = 0; f < load->count && result == STATUS_OK; f++) {
        result = check_needed(load, &load->sets[f], needed);
    }
    result = comm_agree(world, result);
    if (result == STATUS_OK) {
        result = comm_sum_doubles(world, needed, load->manifest->tensor_count + 1);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, check_unneeded(load, needed));
    }
    if (result == STATUS_OK) {
        log_heads(load);
    }
    load->random = load->unused = NULL;
    free(needed);
    return result;
}

/* ---- data ---- */

/* Reads a shard of a tensor in device memory, through a copy of the tensor in host memory. */
static status read_to_device(const struct load *load, const struct checkpoint_tensor_set *set,
                             hid_t file, const char *path, const struct checkpoint_tensor *t,
                             const struct manifest_tensor *m, const struct manifest_shard *s)
{
    if (!checkpoint_reader_overlaps(t, s)) {
        return STATUS_OK;
    }
    size_t bytes = (size_t)(t->rows * t->columns) * dtype_bytes(t->dtype);
    struct checkpoint_tensor host = *t;
    TRY(memory_allocate_array(&host.data, bytes + 1, 1, t->name));
    status result = device_read(set->device, set->stream, host.data, t->data, bytes);
    if (result == STATUS_OK) {
        result = checkpoint_reader_read_overlap(file, path, &host, m, s, load->buffer);
    }
    if (result == STATUS_OK) {
        result = device_write(set->device, set->stream, t->data, host.data, bytes);
    }
    free(host.data);
    return result;
}

/* Reads all shards that the file number `index` stores. */
static status read_tensors(const struct load *load, hid_t file, const char *path, int index)
{
    for (int f = 0; f < load->count; f++) {
        const struct checkpoint_tensor_set *set = &load->sets[f];
        for (int i = 0; i < set->count; i++) {
            const struct checkpoint_tensor *t = &set->tensors[i];
            const struct manifest_tensor *m = find_stored(load, set->name, t);
            for (int p = 0; m != NULL && p < m->shard_count; p++) {
                const struct manifest_shard *s = &m->shards[p];
                if (s->file == index) {
                    TRY(set->device != NULL
                            ? read_to_device(load, set, file, path, t, m, s)
                            : checkpoint_reader_read_overlap(file, path, t, m, s, load->buffer));
                }
            }
        }
    }
    return STATUS_OK;
}

/* Returns whether the file stores tensors of a set that is loaded. */
static bool is_file_needed(const struct load *load, int index)
{
    for (int i = 0; i < load->manifest->tensor_count; i++) {
        const struct manifest_tensor *m = &load->manifest->tensors[i];
        for (int p = 0; p < m->shard_count; p++) {
            if (m->shards[p].file == index) {
                return is_set_loaded(load, m->set);
            }
        }
    }
    return false;
}

static status read_files(const struct load *load)
{
    for (int i = 0; i < load->manifest->file_count; i++) {
        if (!is_file_needed(load, i)) {
            continue;
        }
        char path[FILE_PATH_BYTES];
        hid_t file;
        TRY(file_join(path, load->folder, load->manifest->files[i].name));
        TRY(checkpoint_reader_open_file(path, &file));
        status result = read_tensors(load, file, path, i);
        KEEP_FIRST(result, h5file_close(path, &file));
        TRY(result);
    }
    return STATUS_OK;
}

/* Logs each set that is stored in another type than this run uses. */
static void log_conversions(const struct load *load)
{
    for (int f = 0; f < load->count; f++) {
        const struct checkpoint_tensor_set *set = &load->sets[f];
        const struct checkpoint_tensor *t = set->count > 0 ? &set->tensors[0] : NULL;
        const struct manifest_tensor *m = t != NULL ? find_stored(load, set->name, t) : NULL;
        if (m != NULL && m->dtype != t->dtype) {
            log_info("%s: the tensors of %s-*.h5 are stored in %s and converted to %s",
                     load->folder, set->name, dtype_name(m->dtype), dtype_name(t->dtype));
        }
    }
}

static status check_and_read(struct comm *world, struct load *load)
{
    TRY(check_tensors(world, load));
    log_conversions(load);
    status result = ALLOCATE(load->buffer, CHECKPOINT_READ_ELEMENTS, "a block of values");
    if (result == STATUS_OK) {
        result = read_files(load);
    }
    free(load->buffer);
    return comm_agree(world, result);
}

/* ---- entry points ---- */

/* Reads the manifest and calls `act` with it. */
static status run_load(struct comm *world, const struct load *options,
                       status (*act)(struct comm *world, struct load *load))
{
    const char *folder = options->folder;
    struct manifest manifest;
    bool good = false;
    char reason[MANIFEST_REASON_BYTES];
    TRY(checkpoint_read_manifest(world, folder, &manifest, &good, reason));
    status result = STATUS_OK;
    if (!good) {
        result = RAISE_STATUS(STATUS_CHECKPOINT, "%s: %s", folder, reason);
        result = comm_agree(world, result);
    } else {
        struct load load = *options;
        load.manifest = &manifest;
        result = act(world, &load);
    }
    manifest_destroy(&manifest);
    return result;
}

status checkpoint_load(struct comm *world, const char *folder,
                       const struct checkpoint_tensor_set *sets, int count)
{
    struct load load = {.folder = folder, .sets = sets, .count = count};
    return run_load(world, &load, check_and_read);
}

status checkpoint_load_pretrained(struct comm *world, const char *folder,
                                  const struct checkpoint_tensor_set *sets, int count)
{
    struct load load = {.folder = folder, .sets = sets, .count = count, .heads_may_differ = true};
    return run_load(world, &load, check_and_read);
}

status checkpoint_load_subset(struct comm *world, const char *folder,
                              const struct checkpoint_tensor_set *sets, int count)
{
    struct load load = {.folder = folder,
                        .sets = sets,
                        .count = count,
                        .heads_may_differ = true,
                        .is_subset = true};
    return run_load(world, &load, check_and_read);
}

status checkpoint_check_tensors(struct comm *world, const char *folder,
                                const struct checkpoint_tensor_set *sets, int count,
                                bool heads_may_differ)
{
    struct load load = {
        .folder = folder, .sets = sets, .count = count, .heads_may_differ = heads_may_differ};
    return run_load(world, &load, check_tensors);
}
