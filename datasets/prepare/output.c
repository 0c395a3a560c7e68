/* Writes shards in one pass over the input.
 *
 * Shards are written to a temporary folder inside of the output folder. The size of the validation
 * set is known only at the end, when the documents (or the tokens of a single document) are
 * counted. Therefore all shards are first written as training data. At the end, the shard in which
 * the validation set starts is rewritten as two shards. The shards after it move to the validation
 * set.
 *
 * With a random split, the split of each document is known when the document starts: one document
 * is drawn of each stratum of 1 / validation_fraction documents.
 *
 * The final names contain the number of shards, so the shards are renamed last. After a crash
 * before the renaming, the earlier shards are still there. A crash during the renaming leaves an
 * incomplete set, which the loader refuses. */
#include "datasets/prepare/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"

enum { COPY_TOKENS = 32768, SHARDS_MAX = 99999 };
#define UNFINISHED ".unfinished"

struct finished_shard {
    int file_number; /* in its temporary name */
    int64_t tokens;
    int64_t documents;       /* documents that start in this shard */
    bool continues_document; /* the first document started in the shard before */
};

struct split_shards {
    const char *name;
    struct shard_writer *writer;
    struct finished_shard *shards; /* if writer is not NULL, the last one is not finished */
    int count;
};

struct prepare_output {
    const struct prepare_options *options;
    struct shard_header header;
    char temporary_folder[FILE_PATH_BYTES];
    int lock_file;        /* descriptor of the temporary folder, which is locked; -1: not locked */
    int next_file_number; /* for temporary names */
    struct split_shards train, validation;
    struct split_shards *current; /* split of the current document */
    int64_t document_tokens;      /* of the current document */
    int64_t documents, tokens;
    int32_t begin_id;         /* token at the start of a document; -1: none */
    int32_t last_id;          /* of the last document with tokens */
    bool begins_with_end;     /* the current document begins with the end token */
    int64_t joined_documents; /* without a begin or end token between them and the one before */
    int64_t next_stratum, drawn_document, stratum_end; /* random split */
    size_t new_folder_bytes;  /* length of the first part of the output path that did not exist */
    bool has_explicit_splits; /* examples were written to an explicit split */
    char *labels_json;        /* label names, for every shard; NULL: none */
};

static status get_temporary_path(const struct prepare_output *o, int number,
                                 char out[FILE_PATH_BYTES])
{
    char name[32];
    snprintf(name, sizeof name, "part-%06d.h5", number);
    return file_join(out, o->temporary_folder, name);
}

/* Locks an open folder. *locked is false if a preparation that has ended removed the folder. */
static status lock_open_folder(const struct prepare_output *o, int file, bool *locked,
                               bool *is_exclusive)
{
    int error = flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    REQUIRE(
        error != EWOULDBLOCK, STATUS_CREATE,
        "another `bireme prepare` is writing to %s; wait for it or choose another output folder",
        o->options->output);
    if (error != 0) {
        log_warning("LOCK",
                    "%s: this file system does not support locks (%s); make sure that no other "
                    "`bireme prepare` writes to the folder",
                    o->options->output, strerror(error));
    }
    /* The owner of the lock removes the folder before it releases the lock. */
    *locked = file_is_at_path(file, o->temporary_folder);
    *is_exclusive = error == 0;
    return STATUS_OK;
}

/* Creates the temporary folder if it does not exist, and opens it. *file is -1 if it was removed in
 * the meantime. A symbolic link is not followed, because the output folder can be a foreign one. */
static status open_folder(const struct prepare_output *o, int *file)
{
    const char *path = o->temporary_folder;
    TRY(file_make_folders(o->options->output));
    bool created = mkdir(path, 0777) == 0 || errno == EEXIST;
    *file = created ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    REQUIRE(*file >= 0 || (errno != ENOTDIR && errno != ELOOP), STATUS_CREATE,
            "%s is not a folder; remove it or choose another output folder", path);
    REQUIRE(*file >= 0 || errno == ENOENT, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create %s: %s", path, strerror(errno));
    return STATUS_OK;
}

/* Removes the locked folder if it has content, which a killed preparation or another program left.
 * *locked is then false. Without a lock, another preparation may use the content. */
static status remove_filled_folder(const struct prepare_output *o, bool is_exclusive, bool *locked)
{
    DIR *folder = opendir(o->temporary_folder);
    REQUIRE(folder != NULL, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot read %s: %s", o->temporary_folder, strerror(errno));
    int entries = 0;
    while (entries <= 2 && readdir(folder) != NULL) { /* "." and ".." */
        entries++;
    }
    closedir(folder);
    *locked = entries <= 2;
    REQUIRE(*locked || is_exclusive, STATUS_CREATE,
            "%s has files; remove it if no other `bireme prepare` writes to %s",
            o->temporary_folder, o->options->output);
    return *locked ? STATUS_OK : file_remove_tree(o->temporary_folder);
}

/* Creates and locks the temporary folder, which is then empty. */
static status lock_folder(struct prepare_output *o)
{
    bool locked = false, is_exclusive = false;
    status result = STATUS_OK;
    while (!locked && result == STATUS_OK) {
        int file;
        TRY(open_folder(o, &file));
        if (file < 0) {
            continue;
        }
        result = lock_open_folder(o, file, &locked, &is_exclusive);
        if (result == STATUS_OK && locked) {
            result = remove_filled_folder(o, is_exclusive, &locked);
        }
        o->lock_file = result == STATUS_OK && locked ? file : -1;
        if (o->lock_file < 0) {
            close(file);
        }
    }
    return result;
}

/* Returns the length of the first part of the path that does not exist; 0: all parts exist. */
static size_t find_new_folder(const char *path)
{
    char prefix[FILE_PATH_BYTES];
    for (const char *end = path; *end != '\0';) {
        end += 1 + strcspn(end + 1, "/");
        snprintf(prefix, sizeof prefix, "%.*s", (int)(end - path), path);
        if (!file_exists(prefix)) {
            return (size_t)(end - path);
        }
    }
    return 0;
}

/* Removes the folders of the output path that were created, unless they contain files. */
static void remove_new_folders(const struct prepare_output *o)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s", o->options->output);
    while (o->new_folder_bytes > 0 && strlen(path) >= o->new_folder_bytes &&
           (rmdir(path) == 0 || errno == ENOENT)) {
        char *slash = strrchr(path, '/');
        *(slash != NULL ? slash : path) = '\0';
    }
}

status prepare_output_open(const struct prepare_options *options, enum example_kind kind,
                           struct prepare_output **out)
{
    *out = NULL;
    struct prepare_output *o = NULL;
    TRY(ALLOCATE(o, 1, "an output"));
    o->options = options;
    o->lock_file = -1;
    o->train.name = "train";
    o->validation.name = "validation";
    o->header.kind = kind;
    o->header.vocab_size = tokenizer_max_vocab_size(options->tokenizer);
    o->header.eos_id = tokenizer_eos(options->tokenizer);
    o->begin_id = tokenizer_bos(options->tokenizer);
    o->header.join_encoding = options->join_encoding;
    snprintf(o->header.tokenizer_sha256, sizeof o->header.tokenizer_sha256, "%s",
             tokenizer_sha256(options->tokenizer));
    o->new_folder_bytes = find_new_folder(options->output);
    status result = STATUS_OK;
    TRY_GOTO(result, failed, file_join(o->temporary_folder, options->output, UNFINISHED));
    TRY_GOTO(result, failed, lock_folder(o));
    *out = o;
    return STATUS_OK;
failed:
    prepare_output_close(&o);
    return result;
}

void prepare_output_close(struct prepare_output **output)
{
    struct prepare_output *o = *output;
    if (o == NULL) {
        return;
    }
    *output = NULL;
    struct status_note pending; /* keep the error that led to this call */
    status_take(&pending);
    shard_writer_abandon(&o->train.writer);
    shard_writer_abandon(&o->validation.writer);
    if (o->lock_file >= 0) { /* the lock is held: the folder belongs to this process */
        file_remove_tree(o->temporary_folder);
        close(o->lock_file);
    }
    if (pending.code != STATUS_OK) {
        remove_new_folders(o);
    }
    status_clear();
    status_restore(&pending);
    free(o->train.shards);
    free(o->validation.shards);
    free(o->labels_json);
    free(o);
}

status prepare_output_set_labels(struct prepare_output *o, const struct labels *labels)
{
    return labels_to_json(labels, &o->labels_json);
}

const char *prepare_output_temporary_folder(const struct prepare_output *o)
{
    return o->temporary_folder;
}

int64_t prepare_output_count_validation(int64_t examples, double fraction)
{
    int64_t count = (int64_t)floor((double)examples * fraction + 0.5);
    return count < 1 ? 1 : count > examples - 1 ? examples - 1 : count;
}

int64_t prepare_output_draw_from_stratum(const struct prepare_options *options, int64_t stratum,
                                         int64_t *end)
{
    double fraction = options->validation_fraction;
    int64_t begin = stratum == 0 ? 0 : (int64_t)floor((double)stratum / fraction + 1e-9);
    *end = (int64_t)floor((double)(stratum + 1) / fraction + 1e-9);
    uint64_t key = random_key(options->split_seed, RANDOM_SPLIT, 0, 0);
    return begin + (int64_t)random_below(key, (uint64_t)stratum, (uint64_t)(*end - begin));
}

/* Returns the split of the document that starts now. */
static struct split_shards *choose_split(struct prepare_output *o)
{
    double fraction = o->options->validation_fraction;
    if (!o->options->shuffle_split || fraction <= 0.0) {
        return &o->train;
    }
    while (o->documents >= o->stratum_end) {
        o->drawn_document =
            prepare_output_draw_from_stratum(o->options, o->next_stratum++, &o->stratum_end);
    }
    return o->documents == o->drawn_document ? &o->validation : &o->train;
}

static status close_writer(struct split_shards *split)
{
    if (split->writer == NULL) {
        return STATUS_OK;
    }
    split->shards[split->count - 1].tokens = shard_writer_tokens(split->writer);
    return shard_writer_close(&split->writer);
}

static status add_shard(struct split_shards *split, struct finished_shard shard)
{
    REQUIRE(split->count < SHARDS_MAX, STATUS_DATA, "more than %d shards; increase --shard-tokens",
            SHARDS_MAX);
    TRY(GROW(split->shards, split->count + 1, "shards"));
    split->shards[split->count++] = shard;
    return STATUS_OK;
}

static status create_writer(const struct prepare_output *o, const char *path,
                            struct shard_writer **out)
{
    TRY(shard_writer_create(path, &o->header, out));
    return o->labels_json != NULL ? shard_writer_write_labels(*out, o->labels_json) : STATUS_OK;
}

static status open_next_writer(struct prepare_output *o, struct split_shards *split)
{
    TRY(close_writer(split));
    char path[FILE_PATH_BYTES];
    struct finished_shard shard = {.file_number = o->next_file_number++,
                                   .continues_document = o->document_tokens > 0};
    TRY(get_temporary_path(o, shard.file_number, path));
    TRY(add_shard(split, shard));
    return create_writer(o, path, &split->writer);
}

/* Returns whether the token separates documents. */
static bool is_mark(const struct prepare_output *o, int32_t id)
{
    return id >= 0 && (id == o->header.eos_id || id == o->begin_id);
}

status prepare_output_write_tokens(void *output, const int32_t *ids, int64_t count)
{
    struct prepare_output *o = output;
    if (count > 0 && o->document_tokens == 0) {
        o->current = choose_split(o);
        o->begins_with_end = ids[0] == o->header.eos_id;
        o->joined_documents += o->documents > 0 && !is_mark(o, ids[0]) && !is_mark(o, o->last_id);
    }
    o->last_id = count > 0 ? ids[count - 1] : o->last_id;
    struct split_shards *split = o->current;
    while (count > 0) {
        int64_t limit = o->options->shard_tokens;
        if (split->writer == NULL || shard_writer_tokens(split->writer) == limit) {
            TRY(open_next_writer(o, split));
        }
        int64_t capacity = limit - shard_writer_tokens(split->writer);
        int64_t n = number_min(count, capacity);
        TRY(shard_writer_append_tokens(split->writer, ids, n));
        split->shards[split->count - 1].documents += o->document_tokens == 0;
        o->document_tokens += n;
        o->tokens += n;
        ids += n;
        count -= n;
    }
    return STATUS_OK;
}

status prepare_output_write_example(struct prepare_output *o, enum prepare_split split,
                                    const int32_t *ids, int64_t count,
                                    const uint32_t *const *values)
{
    struct split_shards *target = split == PREPARE_SPLIT_BY_FRACTION ? choose_split(o)
                                  : split == PREPARE_SPLIT_TRAIN     ? &o->train
                                                                     : &o->validation;
    const struct example_format *format = example_get_format(o->header.kind);
    o->has_explicit_splits = o->has_explicit_splits || split != PREPARE_SPLIT_BY_FRACTION;
    REQUIRE(count <= o->options->shard_tokens, STATUS_USAGE,
            "an example of %" PRId64 " tokens does not fit into a shard of %" PRId64
            " tokens; increase --shard-tokens",
            count, o->options->shard_tokens);
    if (target->writer == NULL ||
        shard_writer_tokens(target->writer) + count > o->options->shard_tokens) {
        TRY(open_next_writer(o, target));
    }
    TRY(shard_writer_append_tokens(target->writer, ids, count));
    for (int i = 0; i < format->columns; i++) {
        TRY(shard_writer_append_values(target->writer, i, values[i],
                                       format->column[i].per_token ? count : 1));
    }
    target->shards[target->count - 1].documents++;
    o->documents++;
    o->tokens += count;
    return shard_writer_end_document(target->writer);
}

status prepare_output_end_document(void *output)
{
    struct prepare_output *o = output;
    if (o->document_tokens == 0) {
        return STATUS_OK;
    }
    if (o->options->append_eod && !o->begins_with_end && o->last_id != o->header.eos_id) {
        TRY(prepare_output_write_tokens(o, &(int32_t){(int32_t)o->header.eos_id}, 1));
    }
    o->documents++;
    o->document_tokens = 0;
    return shard_writer_end_document(o->current->writer);
}

/* Copies the column values of an example with tokens [first, end). */
static status copy_columns(struct shard *from, int64_t example, int64_t first, int64_t end,
                           struct shard_writer *to)
{
    const struct example_format *format = example_get_format(shard_get_header(from)->kind);
    uint32_t values[1024];
    for (int i = 0; i < format->columns; i++) {
        bool per_token = format->column[i].per_token;
        int64_t index = per_token ? first : example, stop = per_token ? end : example + 1;
        for (int64_t count; index < stop; index += count) {
            count = number_min(stop - index, 1024);
            TRY(shard_read_column(from, i, index, count, values));
            TRY(shard_writer_append_values(to, i, values, count));
        }
    }
    return STATUS_OK;
}

/* Copies tokens [first, end) of a shard, with their documents and columns, to a new shard. Adds the
 * number of documents to *copied. */
static status copy_documents(struct shard *from, int64_t first, int64_t end,
                             struct shard_writer *to, int64_t *copied)
{
    int32_t *ids = NULL;
    TRY(ALLOCATE(ids, COPY_TOKENS, "the tokens of a shard"));
    status result = STATUS_OK;
    int64_t document = 0;
    TRY_GOTO(result, done, shard_find_document(from, first, &document));
    while (first < end) {
        int64_t stop = 0;
        TRY_GOTO(result, done, shard_read_documents(from, document + 1, 1, &stop));
        bool complete = stop <= end;
        stop = complete ? stop : end;
        TRY_GOTO(result, done, copy_columns(from, document, first, stop, to));
        for (int64_t count; first < stop; first += count) {
            count = number_min(stop - first, COPY_TOKENS);
            TRY_GOTO(result, done, shard_read(from, first, count, ids));
            TRY_GOTO(result, done, shard_writer_append_tokens(to, ids, count));
        }
        TRY_GOTO(result, done, shard_writer_end_document(to));
        document++;
        ++*copied;
    }
done:
    free(ids);
    return result;
}

/* Copies tokens [first, end) of a shard to a new shard of a split. */
static status copy_token_range(struct prepare_output *o, struct shard *from, int64_t first,
                               int64_t end, struct split_shards *split)
{
    char path[FILE_PATH_BYTES];
    struct finished_shard shard = {.file_number = o->next_file_number++, .tokens = end - first};
    TRY(get_temporary_path(o, shard.file_number, path));
    struct shard_writer *w = NULL;
    status result = create_writer(o, path, &w);
    if (result == STATUS_OK) {
        result = copy_documents(from, first, end, w, &shard.documents);
    }
    if (result != STATUS_OK) {
        shard_writer_abandon(&w);
        return result;
    }
    TRY(shard_writer_close(&w));
    return add_shard(split, shard);
}

/* Divides a shard: the tokens before `token` stay in the training set, the others go to the
 * validation set. */
static status divide_shard(struct prepare_output *o, struct finished_shard shard, int64_t token)
{
    char path[FILE_PATH_BYTES];
    struct shard *from;
    TRY(get_temporary_path(o, shard.file_number, path));
    TRY(shard_open(path, &from));
    status result = copy_token_range(o, from, 0, token, &o->train);
    if (result == STATUS_OK) {
        o->train.shards[o->train.count - 1].documents -= shard.continues_document;
        result = copy_token_range(o, from, token, shard.tokens, &o->validation);
    }
    KEEP_FIRST(result, shard_close(&from));
    TRY(result);
    REQUIRE(unlink(path) == 0, STATUS_WRITE, "cannot remove %s: %s", path, strerror(errno));
    return STATUS_OK;
}

/* Divides the shards of `all`: tokens from `token` on become the validation set, the others become
 * the training set. */
static status move_tail_to_validation(struct prepare_output *o, struct split_shards all,
                                      int64_t token)
{
    o->train.shards = o->validation.shards = NULL;
    o->train.count = o->validation.count = 0;
    status result = STATUS_OK;
    for (int i = 0; i < all.count && result == STATUS_OK; i++) {
        struct finished_shard s = all.shards[i];
        if (token >= s.tokens) {
            result = add_shard(&o->train, s);
        } else if (token <= 0) {
            result = add_shard(&o->validation, s);
        } else {
            result = divide_shard(o, s, token);
        }
        token -= s.tokens;
    }
    free(all.shards);
    return result;
}

/* Finds the first token of document `number`. Both are counted over all shards of the split. */
static status find_document_token(const struct prepare_output *o, const struct split_shards *split,
                                  int64_t number, int64_t *out)
{
    int64_t token = 0;
    for (int i = 0; i < split->count; token += split->shards[i++].tokens) {
        const struct finished_shard *s = &split->shards[i];
        if (number >= s->documents) {
            number -= s->documents;
            continue;
        }
        char path[FILE_PATH_BYTES];
        struct shard *shard;
        int64_t start = 0;
        TRY(get_temporary_path(o, s->file_number, path));
        TRY(shard_open(path, &shard));
        status result = shard_read_documents(shard, number + s->continues_document, 1, &start);
        KEEP_FIRST(result, shard_close(&shard));
        *out = token + start;
        return result;
    }
    RAISE(STATUS_INTERNAL, "document %" PRId64 " is not in any shard", number);
}

/* Moves the last documents to the validation set. A single document of text is divided. */
static status move_last_documents(struct prepare_output *o)
{
    double fraction = o->options->validation_fraction;
    bool drawn = o->validation.count > 0; /* the random split drew the only document */
    struct split_shards all = drawn ? o->validation : o->train;
    if (o->documents == 1) {
        int64_t token = (int64_t)floor((1.0 - fraction) * (double)o->tokens);
        REQUIRE(token > 0 && token < o->tokens, STATUS_DATA,
                "%" PRId64
                " tokens are too few for a validation fraction of %g; give more text, or "
                "another fraction",
                o->tokens, fraction);
        return move_tail_to_validation(o, all, token);
    }
    int64_t count = prepare_output_count_validation(o->documents, fraction), token = 0;
    TRY(find_document_token(o, &all, o->documents - count, &token));
    return move_tail_to_validation(o, all, token);
}

static status divide_into_splits(struct prepare_output *o)
{
    TRY(close_writer(&o->train));
    TRY(close_writer(&o->validation));
    int count = o->options->input_count + o->options->validation_input_count;
    char *const *inputs =
        o->options->input_count > 0 ? o->options->inputs : o->options->validation_inputs;
    REQUIRE(o->tokens > 0, STATUS_DATA, "%s%s no tokens", inputs[0],
            count > 1 ? " and the other files of the input have" : " has");
    if (o->options->validation_fraction <= 0.0) {
        return STATUS_OK;
    }
    REQUIRE(
        o->documents > 1 || o->header.kind == EXAMPLE_TEXT, STATUS_DATA,
        "there is only one example, which cannot be divided into a training and a validation set; "
        "give more rows, or --validation-input instead of --validation-fraction");
    if (!o->has_explicit_splits && (!o->options->shuffle_split || o->documents == 1)) {
        return move_last_documents(o);
    }
    REQUIRE(o->train.count > 0 && o->validation.count > 0, STATUS_DATA,
            "a validation fraction of %g of %" PRId64
            " documents leaves the %s set empty; give another fraction",
            o->options->validation_fraction, o->documents,
            o->train.count > 0 ? "validation" : "training");
    return STATUS_OK;
}

/* Returns whether the name is train-NNNNN-of-NNNNN.h5 or validation-NNNNN-of-NNNNN.h5, and this
 * preparation writes such a set. */
static bool is_replaced_shard(const struct prepare_output *o, const char *name)
{
    int of;
    const char *number = shard_set_parse_number(name, &of);
    bool has_training = o->options->input_count > 0;
    return number != NULL &&
           ((has_training && strncmp(name, "train-", (size_t)(number - name)) == 0) ||
            strncmp(name, "validation-", (size_t)(number - name)) == 0);
}

/* Removes the shards of the same sets with final names from the output folder. */
static status remove_shards(const struct prepare_output *o)
{
    DIR *folder = opendir(o->options->output);
    REQUIRE(folder != NULL, STATUS_CREATE, "cannot read %s: %s", o->options->output,
            strerror(errno));
    status result = STATUS_OK;
    for (struct dirent *entry; result == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        char path[FILE_PATH_BYTES];
        if (!is_replaced_shard(o, entry->d_name)) {
            continue;
        }
        result = file_join(path, o->options->output, entry->d_name);
        if (result == STATUS_OK && unlink(path) != 0) {
            result = RAISE_STATUS(status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                                  "cannot replace %s: %s", path, strerror(errno));
        }
    }
    closedir(folder);
    return result;
}

static status rename_shards(const struct prepare_output *o, const struct split_shards *split)
{
    for (int i = 0; i < split->count; i++) {
        char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES], name[64];
        snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", split->name, i, split->count);
        TRY(get_temporary_path(o, split->shards[i].file_number, from));
        TRY(file_join(to, o->options->output, name));
        REQUIRE(rename(from, to) == 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                "cannot create %s: %s", to, strerror(errno));
    }
    return STATUS_OK;
}

static int64_t count_documents(const struct split_shards *split)
{
    int64_t documents = 0;
    for (int i = 0; i < split->count; i++) {
        documents += split->shards[i].documents;
    }
    return documents;
}

static int64_t count_tokens(const struct split_shards *split)
{
    int64_t tokens = 0;
    for (int i = 0; i < split->count; i++) {
        tokens += split->shards[i].tokens;
    }
    return tokens;
}

status prepare_output_finish(struct prepare_output *o, struct prepare_report *report)
{
    TRY(divide_into_splits(o));
    TRY(remove_shards(o));
    status result = rename_shards(o, &o->train);
    if (result == STATUS_OK) {
        result = rename_shards(o, &o->validation);
    }
    if (result != STATUS_OK) {
        struct status_note pending;
        status_take(&pending);
        remove_shards(o); /* shards that already have final names are not a complete set */
        status_clear();
        return status_restore(&pending);
    }
    TRY(file_sync(o->options->output));
    report->documents = o->documents;
    report->joined_documents = o->joined_documents;
    report->train_examples = count_documents(&o->train);
    report->validation_examples = count_documents(&o->validation);
    report->train_tokens = count_tokens(&o->train);
    report->validation_tokens = count_tokens(&o->validation);
    report->train_shards = o->train.count;
    report->validation_shards = o->validation.count;
    return STATUS_OK;
}
