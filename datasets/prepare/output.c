/* Documents of ids into shards, in one pass over the input.
 *
 * Shards grow in a folder of their own inside the output folder. The share that is held out is known only
 * at the end, when the number of documents (or, for a single one, of tokens) is: all shards are written
 * as training data, and then the one in which the held-out part begins is rewritten as two, and those
 * after it change sides. With a split by chance each document's side is known when it begins: of each
 * stratum of 1 / fraction documents one is drawn. Only then the names, which tell the number of shards,
 * are given; a crash before leaves the old shards, a crash in between an incomplete set, which the
 * loader refuses. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "datasets/prepare/input.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_set.h"

enum { COPY_TOKENS = 32768, SHARDS_MOST = 99999 };
#define UNFINISHED ".unfinished"

struct done_shard {
    int number; /* of its temporary name */
    int64_t tokens;
    int64_t documents; /* that begin in it */
    bool continues;    /* its first entry goes on from the shard before */
};

struct side {
    const char *name;
    struct shard_writer *writer;
    struct done_shard *shards; /* the last one is being written while writer is not NULL */
    int count;
};

struct output {
    const struct prepare_options *options;
    struct shard_header header;
    char folder[FILE_PATH_BYTES]; /* of what is unfinished */
    int lock;                     /* that folder, locked */
    int numbers;                  /* temporary names given */
    struct side train, validation;
    struct side *now; /* of the current document */
    int64_t document_tokens;
    int64_t documents, tokens;
    int64_t stratum, drawn, stratum_end; /* of the split by chance */
    bool placed;                         /* examples have been told their side */
    char *labels;                        /* of every shard; NULL: none */
};

static status temporary_path(const struct output *o, int number, char out[FILE_PATH_BYTES])
{
    char name[32];
    snprintf(name, sizeof name, "part-%06d.h5", number);
    return file_join(out, o->folder, name);
}

static status lock_folder(struct output *o)
{
    o->lock = open(o->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(o->lock >= 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
            "cannot open %s: %s", o->folder, strerror(errno));
    REQUIRE(flock(o->lock, LOCK_EX | LOCK_NB) == 0, STATUS_CREATE,
            "another `bireme prepare` is writing to %s; wait for it or choose another folder",
            o->options->output);
    return STATUS_OK;
}

status output_open(const struct prepare_options *options, enum example_kind kind,
                   struct output **out)
{
    *out = NULL;
    struct output *o = calloc(1, sizeof *o);
    REQUIRE(o != NULL, STATUS_INTERNAL, "out of memory: an output");
    o->options = options;
    o->lock = -1;
    o->train.name = "train";
    o->validation.name = "validation";
    o->header.kind = kind;
    o->header.vocab_size = tokenizer_vocab_size(options->tokenizer);
    o->header.eos_id = tokenizer_eos(options->tokenizer);
    snprintf(o->header.tokenizer_sha256, sizeof o->header.tokenizer_sha256, "%s",
             tokenizer_sha256(options->tokenizer));
    status result = STATUS_OK;
    TRY_GOTO(result, failed, file_make_folders(options->output));
    TRY_GOTO(result, failed, file_join(o->folder, options->output, UNFINISHED));
    TRY_GOTO(result, failed, file_make_folders(o->folder));
    TRY_GOTO(result, failed, lock_folder(o));
    *out = o;
    return STATUS_OK;
failed:
    output_close(&o);
    return result;
}

void output_close(struct output **output)
{
    struct output *o = *output;
    if (o == NULL) {
        return;
    }
    *output = NULL;
    struct status_note kept; /* of the error that led here, if one did */
    status_take(&kept);
    shard_writer_abandon(&o->train.writer);
    shard_writer_abandon(&o->validation.writer);
    if (o->lock >= 0) { /* ours */
        file_remove_tree(o->folder);
        close(o->lock);
    }
    status_clear();
    status_restore(&kept);
    free(o->train.shards);
    free(o->validation.shards);
    free(o->labels);
    free(o);
}

status output_labels(struct output *o, const struct labels *labels)
{
    return labels_write(labels, &o->labels);
}

const char *output_folder(const struct output *o)
{
    return o->folder;
}

int64_t output_stratum(const struct prepare_options *options, int64_t stratum, int64_t *end)
{
    double fraction = options->validation_fraction;
    int64_t begin = stratum == 0 ? 0 : (int64_t)floor((double)stratum / fraction + 1e-9);
    *end = (int64_t)floor((double)(stratum + 1) / fraction + 1e-9);
    uint64_t key = random_key(options->split_seed, RANDOM_SPLIT, 0, 0);
    return begin + (int64_t)random_below(key, (uint64_t)stratum, (uint64_t)(*end - begin));
}

/* The side of the document that begins now. */
static struct side *choose_side(struct output *o)
{
    double fraction = o->options->validation_fraction;
    if (!o->options->shuffle_split || fraction <= 0.0) {
        return &o->train;
    }
    while (o->documents >= o->stratum_end) {
        o->drawn = output_stratum(o->options, o->stratum++, &o->stratum_end);
    }
    return o->documents == o->drawn ? &o->validation : &o->train;
}

static status close_writer(struct side *side)
{
    if (side->writer == NULL) {
        return STATUS_OK;
    }
    side->shards[side->count - 1].tokens = shard_writer_tokens(side->writer);
    return shard_writer_close(&side->writer);
}

static status add_shard(struct side *side, struct done_shard shard)
{
    REQUIRE(side->count < SHARDS_MOST, STATUS_DATA,
            "more than %d shards; give a larger --shard-tokens", SHARDS_MOST);
    struct done_shard *grown =
        realloc(side->shards, (size_t)(side->count + 1) * sizeof *side->shards);
    REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: %d shards", side->count + 1);
    side->shards = grown;
    side->shards[side->count++] = shard;
    return STATUS_OK;
}

static status create_writer(const struct output *o, const char *path, struct shard_writer **out)
{
    TRY(shard_writer_create(path, &o->header, out));
    return o->labels != NULL ? shard_writer_labels(*out, o->labels) : STATUS_OK;
}

static status next_writer(struct output *o, struct side *side)
{
    TRY(close_writer(side));
    char path[FILE_PATH_BYTES];
    struct done_shard shard = {.number = o->numbers++, .continues = o->document_tokens > 0};
    TRY(temporary_path(o, shard.number, path));
    TRY(add_shard(side, shard));
    return create_writer(o, path, &side->writer);
}

status output_tokens(void *output, const int32_t *ids, int64_t count)
{
    struct output *o = output;
    if (count > 0 && o->document_tokens == 0) {
        o->now = choose_side(o);
    }
    struct side *side = o->now;
    while (count > 0) {
        int64_t limit = o->options->shard_tokens;
        if (side->writer == NULL || shard_writer_tokens(side->writer) == limit) {
            TRY(next_writer(o, side));
        }
        int64_t room = limit - shard_writer_tokens(side->writer);
        int64_t part = count < room ? count : room;
        TRY(shard_writer_append(side->writer, ids, part));
        side->shards[side->count - 1].documents += o->document_tokens == 0;
        o->document_tokens += part;
        o->tokens += part;
        ids += part;
        count -= part;
    }
    return STATUS_OK;
}

status output_example(struct output *o, enum output_side where, const int32_t *ids, int64_t count,
                      const uint32_t *const *values)
{
    struct side *side = where == OUTPUT_AS_SPLIT ? choose_side(o)
                        : where == OUTPUT_TRAIN  ? &o->train
                                                 : &o->validation;
    const struct example_format *format = example_format_of(o->header.kind);
    o->placed = o->placed || where != OUTPUT_AS_SPLIT;
    REQUIRE(count <= o->options->shard_tokens, STATUS_USAGE,
            "shards of %lld tokens cannot hold an example of %lld",
            (long long)o->options->shard_tokens, (long long)count);
    if (side->writer == NULL ||
        shard_writer_tokens(side->writer) + count > o->options->shard_tokens) {
        TRY(next_writer(o, side));
    }
    TRY(shard_writer_append(side->writer, ids, count));
    for (int i = 0; i < format->columns; i++) {
        TRY(shard_writer_values(side->writer, i, values[i],
                                format->column[i].per_token ? count : 1));
    }
    side->shards[side->count - 1].documents++;
    o->documents++;
    o->tokens += count;
    return shard_writer_end_document(side->writer);
}

status output_end_document(void *output)
{
    struct output *o = output;
    if (o->document_tokens == 0) {
        return STATUS_OK;
    }
    o->documents++;
    o->document_tokens = 0;
    return shard_writer_end_document(o->now->writer);
}

/* The columns of an example, whose tokens are [first, end). */
static status copy_columns(struct shard *from, int64_t example, int64_t first, int64_t end,
                           struct shard_writer *to)
{
    const struct example_format *format = example_format_of(shard_header_of(from)->kind);
    uint32_t values[1024];
    for (int i = 0; i < format->columns; i++) {
        bool per_token = format->column[i].per_token;
        int64_t at = per_token ? first : example, stop = per_token ? end : example + 1;
        for (int64_t count; at < stop; at += count) {
            count = stop - at < 1024 ? stop - at : 1024;
            TRY(shard_read_column(from, i, at, count, values));
            TRY(shard_writer_values(to, i, values, count));
        }
    }
    return STATUS_OK;
}

/* Tokens [first, end) of a shard with their documents into a new one at the end of a side. */
static status copy_documents(struct shard *from, int64_t first, int64_t end,
                             struct shard_writer *to)
{
    int32_t *ids = malloc(COPY_TOKENS * sizeof *ids);
    REQUIRE(ids != NULL, STATUS_INTERNAL, "out of memory: a window");
    status result = STATUS_OK;
    int64_t document = 0;
    TRY_GOTO(result, done, shard_document_at(from, first, &document));
    while (first < end) {
        int64_t stop = 0;
        TRY_GOTO(result, done, shard_read_documents(from, document + 1, 1, &stop));
        bool complete = stop <= end;
        stop = complete ? stop : end;
        TRY_GOTO(result, done, copy_columns(from, document, first, stop, to));
        for (int64_t count; first < stop; first += count) {
            count = stop - first < COPY_TOKENS ? stop - first : COPY_TOKENS;
            TRY_GOTO(result, done, shard_read(from, first, count, ids));
            TRY_GOTO(result, done, shard_writer_append(to, ids, count));
        }
        TRY_GOTO(result, done, shard_writer_end_document(to));
        document++;
    }
done:
    free(ids);
    return result;
}

static status copy_part(struct output *o, struct shard *from, int64_t first, int64_t end,
                        struct side *side)
{
    char path[FILE_PATH_BYTES];
    struct done_shard shard = {.number = o->numbers++, .tokens = end - first};
    TRY(temporary_path(o, shard.number, path));
    struct shard_writer *w = NULL;
    status result = create_writer(o, path, &w);
    if (result == STATUS_OK) {
        result = copy_documents(from, first, end, w);
    }
    if (result != STATUS_OK) {
        shard_writer_abandon(&w);
        return result;
    }
    TRY(shard_writer_close(&w));
    return add_shard(side, shard);
}

/* Shard `index` of a side in two at its token `at`: the first part stays, the second is held out. */
static status cut_shard(struct output *o, struct done_shard cut, int64_t at)
{
    char path[FILE_PATH_BYTES];
    struct shard *from;
    TRY(temporary_path(o, cut.number, path));
    TRY(shard_open(path, &from));
    status result = copy_part(o, from, 0, at, &o->train);
    if (result == STATUS_OK) {
        result = copy_part(o, from, at, cut.tokens, &o->validation);
    }
    KEEP_FIRST(result, shard_close(&from));
    TRY(result);
    REQUIRE(unlink(path) == 0, STATUS_WRITE, "cannot remove %s: %s", path, strerror(errno));
    return STATUS_OK;
}

/* All tokens are on one side: those from token `at` of it on become the validation side. */
static status hold_out_from(struct output *o, struct side all, int64_t at)
{
    o->train.shards = o->validation.shards = NULL;
    o->train.count = o->validation.count = 0;
    status result = STATUS_OK;
    for (int i = 0; i < all.count && result == STATUS_OK; i++) {
        struct done_shard s = all.shards[i];
        if (at >= s.tokens) {
            result = add_shard(&o->train, s);
        } else if (at <= 0) {
            result = add_shard(&o->validation, s);
        } else {
            result = cut_shard(o, s, at);
        }
        at -= s.tokens;
    }
    free(all.shards);
    return result;
}

/* The first token of document `number`, counted over all shards of the side. */
static status find_document(const struct output *o, const struct side *side, int64_t number,
                            int64_t *out)
{
    int64_t token = 0;
    for (int i = 0; i < side->count; token += side->shards[i++].tokens) {
        const struct done_shard *s = &side->shards[i];
        if (number >= s->documents) {
            number -= s->documents;
            continue;
        }
        char path[FILE_PATH_BYTES];
        struct shard *shard;
        int64_t start = 0;
        TRY(temporary_path(o, s->number, path));
        TRY(shard_open(path, &shard));
        status result = shard_read_documents(shard, number + s->continues, 1, &start);
        KEEP_FIRST(result, shard_close(&shard));
        *out = token + start;
        return result;
    }
    RAISE(STATUS_INTERNAL, "document %lld is in no shard", (long long)number);
}

static status hold_out_last(struct output *o)
{
    double fraction = o->options->validation_fraction;
    bool drawn = o->validation.count > 0; /* a split by chance drew the only document */
    struct side all = drawn ? o->validation : o->train;
    REQUIRE(o->documents > 1 || o->header.kind == EXAMPLE_TEXT, STATUS_DATA,
            "one example cannot be divided into a training and a held-out part");
    if (o->documents == 1) {
        int64_t at = (int64_t)floor((1.0 - fraction) * (double)o->tokens);
        REQUIRE(at > 0 && at < o->tokens, STATUS_DATA,
                "%lld tokens are too few to hold out a fraction of %g", (long long)o->tokens,
                fraction);
        return hold_out_from(o, all, at);
    }
    int64_t held = (int64_t)floor((double)o->documents * fraction + 0.5), at = 0;
    held = held < 1 ? 1 : held > o->documents - 1 ? o->documents - 1 : held;
    TRY(find_document(o, &all, o->documents - held, &at));
    return hold_out_from(o, all, at);
}

static status split(struct output *o)
{
    TRY(close_writer(&o->train));
    TRY(close_writer(&o->validation));
    REQUIRE(o->tokens > 0, STATUS_DATA, "the inputs hold no tokens");
    if (o->options->validation_fraction <= 0.0) {
        return STATUS_OK;
    }
    if (!o->placed && (!o->options->shuffle_split || o->documents == 1)) {
        return hold_out_last(o);
    }
    REQUIRE(o->train.count > 0 && o->validation.count > 0, STATUS_DATA,
            "of %lld documents a fraction of %g leaves the %s part empty; give another fraction",
            (long long)o->documents, o->options->validation_fraction,
            o->train.count > 0 ? "validation" : "training");
    return STATUS_OK;
}

/* "train-00000-of-00004.h5" or "validation-...", of whatever number. */
static bool is_shard_name(const char *name)
{
    int of;
    const char *number = shard_set_number(name, &of);
    return number != NULL && (strncmp(name, "train-", (size_t)(number - name)) == 0 ||
                              strncmp(name, "validation-", (size_t)(number - name)) == 0);
}

/* Every set of shards that the output folder holds under its final name. */
static status remove_shards(const struct output *o)
{
    DIR *folder = opendir(o->options->output);
    REQUIRE(folder != NULL, STATUS_CREATE, "cannot read %s: %s", o->options->output,
            strerror(errno));
    status result = STATUS_OK;
    for (struct dirent *entry; result == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        char path[FILE_PATH_BYTES];
        if (!is_shard_name(entry->d_name)) {
            continue;
        }
        result = file_join(path, o->options->output, entry->d_name);
        if (result == STATUS_OK && unlink(path) != 0) {
            result = status_raise(status_from_errno(errno, STATUS_CREATE, STATUS_CREATE), __FILE__,
                                  __LINE__, "cannot replace %s: %s", path, strerror(errno));
        }
    }
    closedir(folder);
    return result;
}

static status name_shards(const struct output *o, const struct side *side)
{
    for (int i = 0; i < side->count; i++) {
        char from[FILE_PATH_BYTES], to[FILE_PATH_BYTES], name[64];
        snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", side->name, i, side->count);
        TRY(temporary_path(o, side->shards[i].number, from));
        TRY(file_join(to, o->options->output, name));
        REQUIRE(rename(from, to) == 0, status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                "cannot create %s: %s", to, strerror(errno));
    }
    return STATUS_OK;
}

static int64_t side_tokens(const struct side *side)
{
    int64_t tokens = 0;
    for (int i = 0; i < side->count; i++) {
        tokens += side->shards[i].tokens;
    }
    return tokens;
}

status output_finish(struct output *o, struct prepare_report *report)
{
    TRY(split(o));
    TRY(remove_shards(o));
    status result = name_shards(o, &o->train);
    if (result == STATUS_OK) {
        result = name_shards(o, &o->validation);
    }
    if (result != STATUS_OK) {
        struct status_note kept;
        status_take(&kept);
        remove_shards(o); /* what has its name already is no whole set */
        status_clear();
        return status_restore(&kept);
    }
    TRY(file_sync(o->options->output));
    report->documents = o->documents;
    report->train_tokens = side_tokens(&o->train);
    report->validation_tokens = side_tokens(&o->validation);
    report->train_shards = o->train.count;
    report->validation_shards = o->validation.count;
    return STATUS_OK;
}
