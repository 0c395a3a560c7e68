#include "datasets/shard/shard_set.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/shard_set_impl.h"
#include "datasets/shard/shard_task.h"

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct shard_set_member *)a)->path,
                  ((const struct shard_set_member *)b)->path);
}

static status add_members(struct shard_set *set, const glob_t *found)
{
    TRY(ALLOCATE(set->members, found->gl_pathc, "shards"));
    for (size_t i = 0; i < found->gl_pathc; i++) {
        TRY(memory_copy_text(&set->members[i].path, found->gl_pathv[i], "a path"));
        set->count++;
    }
    qsort(set->members, (size_t)set->count, sizeof *set->members, compare_paths);
    return STATUS_OK;
}

static status find_members(struct shard_set *set, const char *path)
{
    glob_t found = {0};
    int failed = glob(path, GLOB_ERR, NULL, &found);
    status result = STATUS_OK;
    if (failed == 0) {
        result = add_members(set, &found);
    } else if (failed == GLOB_NOMATCH) {
        result = RAISE_STATUS(STATUS_NO_INPUT, "no shard matches %s", path);
    } else { /* the folder is missing or cannot be read */
        int error = failed == GLOB_ABORTED ? errno : ENOMEM;
        result = RAISE_STATUS(status_from_errno(error, STATUS_NO_INPUT, STATUS_INTERNAL),
                              "cannot search for shards at %s: %s", path, strerror(error));
    }
    globfree(&found);
    return result;
}

int shard_set_count_files(const char *path)
{
    glob_t found = {0};
    int count = glob(path, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return count;
}

const char *shard_set_parse_number(const char *path, int *of)
{
    static const char pattern[] = "-#####-of-#####.h5";
    size_t length = strlen(path), tail = sizeof pattern - 1;
    if (length <= tail) {
        return NULL;
    }
    const char *end = path + length - tail;
    for (size_t i = 0; i < tail; i++) {
        bool digit = end[i] >= '0' && end[i] <= '9';
        if (pattern[i] == '#' ? !digit : end[i] != pattern[i]) {
            return NULL;
        }
    }
    *of = 0;
    for (const char *digit = end + sizeof "-00000-of-" - 1; *digit != '.'; digit++) {
        *of = 10 * *of + (*digit - '0');
    }
    return end + 1;
}

static bool is_open(const struct shard_set_member *m)
{
    return m->shard != NULL || m->nvidia != NULL;
}

static status close_oldest(struct shard_set *set)
{
    struct shard_set_member *oldest = NULL;
    for (int i = 0; i < set->count; i++) {
        struct shard_set_member *m = &set->members[i];
        if (is_open(m) && (oldest == NULL || m->last_read < oldest->last_read)) {
            oldest = m;
        }
    }
    set->open_count--;
    nvidia_shard_close(&oldest->nvidia);
    return shard_close(&oldest->shard);
}

static bool is_same_header(const struct shard_header *a, const struct shard_header *b)
{
    return a->vocab_size == b->vocab_size && a->tokens == b->tokens &&
           a->documents == b->documents && a->token_bytes == b->token_bytes &&
           strcmp(a->tokenizer_sha256, b->tokenizer_sha256) == 0 &&
           strcmp(a->tokens_sha256, b->tokens_sha256) == 0 &&
           strcmp(a->examples_sha256, b->examples_sha256) == 0;
}

/* Returns a header for an NVIDIA shard, which stores none. */
static struct shard_header make_nvidia_header(const struct nvidia_shard *shard)
{
    int64_t examples = nvidia_shard_examples(shard);
    return (struct shard_header){.kind = EXAMPLE_SENTENCE_PAIRS,
                                 .eos_id = -1,
                                 .tokens = examples * nvidia_shard_tokens(shard),
                                 .documents = examples,
                                 .token_bytes = 4};
}

status shard_set_open_member(struct shard_set *set, struct shard_set_member *m)
{
    m->last_read = ++set->reads;
    if (is_open(m)) {
        return STATUS_OK;
    }
    if (set->open_count == set->open_limit) {
        TRY(close_oldest(set));
    }
    bool first_time = m->header.tokens == 0;
    if (first_time && set->kind == EXAMPLE_SENTENCE_PAIRS) {
        TRY(nvidia_shard_detect(m->path, &m->is_nvidia));
    }
    TRY(m->is_nvidia ? nvidia_shard_open(m->path, &m->nvidia) : shard_open(m->path, &m->shard));
    set->open_count++;
    struct shard_header header =
        m->is_nvidia ? make_nvidia_header(m->nvidia) : *shard_get_header(m->shard);
    REQUIRE(first_time || is_same_header(&m->header, &header), STATUS_DATA,
            "%s was replaced by another shard while it was in use", m->path);
    m->header = header;
    return STATUS_OK;
}

status shard_set_open(const struct shard_set_options *options, struct shard_set **out)
{
    *out = NULL;
    REQUIRE(options->sequence_tokens > 0 && options->open_limit > 0, STATUS_INTERNAL,
            "shard set: samples of %" PRId64 " tokens, %d open shards; both must be above 0",
            options->sequence_tokens, options->open_limit);
    struct shard_set *set;
    TRY(ALLOCATE(set, 1, "a set of shards"));
    set->sequence_tokens = options->sequence_tokens;
    set->open_limit = options->open_limit;
    set->vocab_size = options->vocab_size;
    set->kind = options->kind;
    status result = STATUS_OK;
    TRY_GOTO(result, failed, find_members(set, options->path));
    TRY_GOTO(result, failed, shard_set_check_complete(set));
    TRY_GOTO(result, failed, shard_set_check_members(set, options));
    *out = set;
    return STATUS_OK;
failed:
    shard_set_close(&set);
    return result;
}

status shard_set_close(struct shard_set **set)
{
    if (*set == NULL) {
        return STATUS_OK;
    }
    status result = STATUS_OK;
    for (int i = 0; i < (*set)->count; i++) {
        KEEP_FIRST(result, shard_close(&(*set)->members[i].shard));
        nvidia_shard_close(&(*set)->members[i].nvidia);
        free((*set)->members[i].path);
    }
    free((*set)->members);
    free(*set);
    *set = NULL;
    return result;
}

/* Opens the first shard that matches the path. */
static status open_first_shard(const char *path, struct shard **out)
{
    struct shard_set set = {0};
    *out = NULL;
    status result = find_members(&set, path);
    if (result == STATUS_OK) {
        result = shard_open(set.members[0].path, out);
    }
    for (int i = 0; i < set.count; i++) {
        free(set.members[i].path);
    }
    free(set.members);
    return result;
}

/* Checks all examples of an open shard of the kind classify or regress. */
static status find_text_pairs(struct shard *shard, bool *out)
{
    enum { EXAMPLES = 1024 };
    int64_t documents = shard_get_header(shard)->documents, starts[EXAMPLES + 1];
    uint32_t first_segments[EXAMPLES];
    for (int64_t first = 0, count; first < documents && *out; first += count) {
        count = number_min(documents - first, EXAMPLES);
        TRY(shard_read_documents(shard, first, count + 1, starts));
        TRY(shard_read_column(shard, EXAMPLE_TASK_FIRST_SEGMENT, first, count, first_segments));
        for (int64_t i = 0; i < count; i++) {
            *out = *out && (int64_t)first_segments[i] < starts[i + 1] - starts[i];
        }
    }
    return STATUS_OK;
}

status shard_set_read_text_pairs(const char *path, bool *out)
{
    struct shard *shard = NULL;
    *out = false;
    TRY(open_first_shard(path, &shard));
    enum example_kind kind = shard_get_header(shard)->kind;
    *out = kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_REGRESS;
    status result = find_text_pairs(shard, out);
    KEEP_FIRST(result, shard_close(&shard));
    return result;
}

status shard_set_read_labels(const char *path, char **out)
{
    struct shard *shard = NULL;
    *out = NULL;
    status result = open_first_shard(path, &shard);
    if (result == STATUS_OK) {
        result = memory_copy_text(out, shard_labels(shard), "label names");
    }
    KEEP_FIRST(result, shard_close(&shard));
    return result;
}

int shard_set_count(const struct shard_set *set)
{
    return set->count;
}

const char *shard_set_path(const struct shard_set *set, int index)
{
    return set->members[index].path;
}

const struct shard_header *shard_set_header(const struct shard_set *set, int index)
{
    return &set->members[index].header;
}

int64_t shard_set_samples(const struct shard_set *set)
{
    return set->samples;
}

int64_t shard_set_tokens(const struct shard_set *set)
{
    return set->tokens;
}

/* Returns the member that contains a sample: the last one that does not begin after it. Members
 * without samples are skipped, because the next member has the same first sample. */
static struct shard_set_member *find_member(const struct shard_set *set, int64_t sample)
{
    int low = 0, high = set->count;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (set->members[middle].first_sample <= sample) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &set->members[low];
}

/* Returns the first token of a sample in its shard. */
static int64_t compute_window_start(const struct shard_set *set, const struct shard_set_member *m,
                                    int64_t sample, int64_t shift)
{
    int64_t last = m->header.tokens - 1 - set->sequence_tokens;
    int64_t first = (sample - m->first_sample) * set->sequence_tokens + shift;
    return number_min(first, last);
}

status shard_set_read(struct shard_set *set, int64_t sample, int64_t shift, int32_t *tokens)
{
    struct shard_set_member *m = find_member(set, sample);
    TRY(shard_set_open_member(set, m));
    int64_t first = compute_window_start(set, m, sample, shift);
    return shard_read(m->shard, first, set->sequence_tokens + 1, tokens);
}

status shard_set_read_starts(struct shard_set *set, int64_t sample, int64_t shift, int32_t *offsets,
                             int64_t *count)
{
    struct shard_set_member *m = find_member(set, sample);
    TRY(shard_set_open_member(set, m));
    int64_t first = compute_window_start(set, m, sample, shift);
    int64_t last = first + set->sequence_tokens, document = 0;
    TRY(shard_find_document(m->shard, first, &document));
    *count = 0;
    int64_t starts[64], available = 0;
    for (document++; document < m->header.documents; document += available) {
        available = number_min(m->header.documents - document, 64);
        TRY(shard_read_documents(m->shard, document, available, starts));
        for (int64_t i = 0; i < available; i++) {
            if (starts[i] > last) {
                return STATUS_OK;
            }
            bool rises = starts[i] > (*count > 0 ? first + offsets[*count - 1] : first);
            REQUIRE(rises, STATUS_DATA, "%s: /documents does not increase at entry %" PRId64,
                    m->path, document + i);
            offsets[(*count)++] = (int32_t)(starts[i] - first);
        }
    }
    return STATUS_OK;
}

/* Reads a sentence pair of a Bireme shard. */
static status read_example(const struct shard_set_member *m, int64_t index, struct example *out)
{
    int64_t range[2];
    uint32_t first = 0, next = 0;
    TRY(shard_read_documents(m->shard, index, 2, range));
    out->tokens = range[1] - range[0];
    REQUIRE(out->tokens <= out->token_capacity, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64
            " tokens, more than the longest example according to its header",
            m->path, index, out->tokens);
    TRY(shard_read_column(m->shard, EXAMPLE_FIRST_SEGMENT, index, 1, &first));
    TRY(shard_read_column(m->shard, EXAMPLE_NEXT_SENTENCE, index, 1, &next));
    REQUIRE(first > 0 && first <= out->tokens && next <= 1, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64
            " tokens, a first segment of %u and next_sentence %u",
            m->path, index, out->tokens, first, next);
    TRY(shard_read(m->shard, range[0], out->tokens, out->ids));
    for (int64_t i = 0; i < out->tokens; i++) {
        out->token_type_ids[i] = i >= first;
    }
    out->next_sentence = (int32_t)next;
    out->masked = false;
    out->predictions = 0;
    return STATUS_OK;
}

static status read_pair(const struct shard_set *set, const struct shard_set_member *m,
                        int64_t index, struct example *out)
{
    int64_t range[2];
    uint32_t prompt = 0, chosen = 0;
    TRY(shard_read_documents(m->shard, index, 2, range));
    TRY(shard_read_column(m->shard, EXAMPLE_PROMPT, index, 1, &prompt));
    TRY(shard_read_column(m->shard, EXAMPLE_CHOSEN, index, 1, &chosen));
    TRY(shard_set_check_pair(set, m, index, range[1] - range[0], prompt, chosen));
    out->tokens = range[1] - range[0];
    out->prompt = prompt;
    out->chosen = chosen;
    return shard_read(m->shard, range[0], out->tokens, out->ids);
}

/* Reads the tokens of an example of the kind seq2seq; ids NULL: only its lengths. */
static status read_source_and_target(const struct shard_set *set, const struct shard_set_member *m,
                                     int64_t index, struct example *out, int32_t *ids)
{
    int64_t range[2];
    uint32_t source = 0;
    TRY(shard_read_documents(m->shard, index, 2, range));
    TRY(shard_read_column(m->shard, EXAMPLE_SOURCE, index, 1, &source));
    TRY(shard_set_check_source_and_target(set, m, index, range[1] - range[0], source));
    out->tokens = range[1] - range[0];
    out->source = source;
    return ids != NULL ? shard_read(m->shard, range[0], out->tokens, ids) : STATUS_OK;
}

status shard_set_read_lengths(struct shard_set *set, int64_t sample, int64_t *source,
                              int64_t *target)
{
    struct shard_set_member *m = find_member(set, sample);
    struct example e = {0};
    TRY(shard_set_open_member(set, m));
    TRY(read_source_and_target(set, m, sample - m->first_sample, &e, NULL));
    *source = e.source;
    *target = e.tokens - e.source;
    return STATUS_OK;
}

status shard_set_read_example(struct shard_set *set, int64_t sample, struct example *out)
{
    struct shard_set_member *m = find_member(set, sample);
    TRY(shard_set_open_member(set, m));
    int64_t index = sample - m->first_sample;
    if (set->kind == EXAMPLE_PREFERENCE_PAIRS) {
        return read_pair(set, m, index, out);
    }
    if (set->kind == EXAMPLE_SEQ2SEQ) {
        return read_source_and_target(set, m, index, out, out->ids);
    }
    if (set->kind >= EXAMPLE_CLASSIFY) {
        return shard_task_read(m->shard, index, set->sequence_tokens, out);
    }
    return m->is_nvidia ? nvidia_shard_read(m->nvidia, index, set->vocab_size, out)
                        : read_example(m, index, out);
}

status shard_set_range(struct shard_set *set, int64_t example, struct shard_set_range *out)
{
    struct shard_set_member *m = find_member(set, example);
    int64_t range[2];
    TRY(shard_set_open_member(set, m));
    TRY(shard_read_documents(m->shard, example - m->first_sample, 2, range));
    *out = (struct shard_set_range){m->first_token + range[0], m->first_token + range[1],
                                    (int)(m - set->members)};
    return STATUS_OK;
}

/* Returns the member that contains a token of the set. */
static struct shard_set_member *find_member_of_token(const struct shard_set *set, int64_t token)
{
    int low = 0, high = set->count;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (set->members[middle].first_token <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &set->members[low];
}

status shard_set_read_tokens(struct shard_set *set, int64_t first, int64_t count, int32_t *ids,
                             uint32_t *loss_mask)
{
    struct shard_set_member *m = find_member_of_token(set, first);
    TRY(shard_set_open_member(set, m));
    if (ids != NULL) {
        TRY(shard_read(m->shard, first - m->first_token, count, ids));
    }
    return loss_mask != NULL ? shard_read_column(m->shard, EXAMPLE_LOSS_MASK,
                                                 first - m->first_token, count, loss_mask)
                             : STATUS_OK;
}

void shard_set_locate(const struct shard_set *set, int64_t sample, int64_t shift, char *text,
                      int bytes)
{
    const struct shard_set_member *m = find_member(set, sample);
    if (set->kind != EXAMPLE_TEXT) {
        snprintf(text, (size_t)bytes, "%s example %" PRId64, m->path, sample - m->first_sample);
        return;
    }
    int64_t first = compute_window_start(set, m, sample, shift);
    snprintf(text, (size_t)bytes, "%s tokens %" PRId64 " to %" PRId64, m->path, first,
             first + set->sequence_tokens);
}

void shard_set_locate_token(const struct shard_set *set, int64_t token, char *text, int bytes)
{
    const struct shard_set_member *m = find_member_of_token(set, token);
    snprintf(text, (size_t)bytes, "%s token %" PRId64, m->path, token - m->first_token);
}

status shard_set_hash(const struct shard_set *set, struct hash *hash)
{
    for (int i = 0; i < set->count; i++) {
        const struct shard_header *h = &set->members[i].header;
        const char *slash = strrchr(set->members[i].path, '/');
        const char *name = slash != NULL ? slash + 1 : set->members[i].path;
        char text[512];
        int used =
            snprintf(text, sizeof text, "%.200s %" PRId64 " %" PRId64 " %" PRId64 " %s %s\n", name,
                     h->tokens, h->documents, h->vocab_size, h->tokenizer_sha256, h->tokens_sha256);
        TRY(hash_update(hash, text, (size_t)used));
        TRY(hash_update(hash, h->examples_sha256, strlen(h->examples_sha256)));
        if (set->members[i].is_nvidia) { /* an NVIDIA shard stores no hash */
            TRY(hash_update(hash, "nvidia\n", 7));
        }
        TRY(hash_update(hash, h->labels_sha256, strlen(h->labels_sha256)));
    }
    return STATUS_OK;
}
