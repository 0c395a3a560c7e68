#include "datasets/shard/shard_set.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "datasets/shard/nvidia_shard.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_task.h"

/* A shard of the set. */
struct member {
    char *path;
    struct shard_header header;
    int64_t first_sample;        /* number of its first sample in the set */
    int64_t first_token;         /* number of its first token in the set */
    struct shard *shard;         /* NULL: not open */
    struct nvidia_shard *nvidia; /* used instead of shard if is_nvidia */
    bool is_nvidia;
    uint64_t last_read; /* value of set->reads at the last read; the oldest is closed first */
};

struct shard_set {
    struct member *members;
    int count;
    int open_count, open_limit;
    uint64_t reads; /* reads so far */
    int64_t sequence_tokens, vocab_size;
    enum example_kind kind;
    int64_t samples, tokens;
};

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct member *)a)->path, ((const struct member *)b)->path);
}

static status add_members(struct shard_set *set, const glob_t *found)
{
    set->members = calloc(found->gl_pathc, sizeof *set->members);
    REQUIRE(set->members != NULL, STATUS_INTERNAL, "out of memory for %zu shards", found->gl_pathc);
    for (size_t i = 0; i < found->gl_pathc; i++) {
        set->members[i].path = strdup(found->gl_pathv[i]);
        REQUIRE(set->members[i].path != NULL, STATUS_INTERNAL, "out of memory for a path");
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

/* Checks that no file of a preparation is missing on disk, and that no two preparations are mixed.
 * Otherwise training would silently use other data. A glob may select only some of the files. */
static status check_complete(const struct shard_set *set)
{
    for (int i = 0; i < set->count; i++) {
        int of = 0, previous_of = 0;
        const char *path = set->members[i].path, *number = shard_set_parse_number(path, &of);
        if (number == NULL) {
            continue;
        }
        int stem = (int)(number - path);
        const char *previous = i > 0 ? set->members[i - 1].path : "";
        bool same_stem = i > 0 && strncmp(previous, path, (size_t)stem) == 0 &&
                         shard_set_parse_number(previous, &previous_of) == previous + stem;
        REQUIRE(!same_stem || previous_of == of, STATUS_DATA,
                "%s and %s belong to two different preparations; remove the files of one of them",
                previous, path);
        for (int member = 0; member < of && !same_stem; member++) {
            char expected[FILE_PATH_BYTES];
            snprintf(expected, sizeof expected, "%.*s%05d-of-%05d.h5", stem, path, member, of);
            REQUIRE(file_exists(expected), STATUS_DATA,
                    "%s is missing: the set of %s is incomplete; run `bireme prepare` again",
                    expected, path);
        }
    }
    return STATUS_OK;
}

static bool is_open(const struct member *m)
{
    return m->shard != NULL || m->nvidia != NULL;
}

static status close_oldest(struct shard_set *set)
{
    struct member *oldest = NULL;
    for (int i = 0; i < set->count; i++) {
        struct member *m = &set->members[i];
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

/* Checks that label numbers have the same meaning in all shards and in the model. */
static status check_labels(const struct member *m, const char *sha256)
{
    REQUIRE(strcmp(m->header.labels_sha256, sha256) == 0, STATUS_DATA,
            "%s has %d labels that differ from those of the model or of the other shards, or are "
            "in another order; prepare the shards together, or with the same --labels, for example "
            "those of a run (--labels runs/NAME)",
            m->path, m->header.label_count);
    return STATUS_OK;
}

static status check_join_encoding(const struct member *m, enum shard_join required)
{
    bool joined = m->header.join_encoding;
    REQUIRE(m->header.kind != EXAMPLE_SFT || required == SHARD_JOIN_ANY ||
                joined == (required == SHARD_JOIN_TRUE),
            STATUS_DATA,
            "%s has prompts and completions that were encoded %s, but sft.join_encoding is %s; set "
            "it to %s, or run `bireme prepare` %s --join-encoding",
            m->path, joined ? "together" : "separately", joined ? "false" : "true",
            joined ? "true" : "false", joined ? "without" : "with");
    return STATUS_OK;
}

/* Checks the kind, the longest example, the labels and the tokenizer of a shard. */
static status check_member(const struct shard_set *set, const struct member *m,
                           const struct shard_set_options *options)
{
    enum example_kind expected_kind = set->kind;
    REQUIRE(m->header.kind == expected_kind, STATUS_DATA,
            "%s contains examples of the kind '%s', not '%s' as this objective requires; set "
            "--objective of `bireme prepare`",
            m->path, example_get_format(m->header.kind)->name,
            example_get_format(expected_kind)->name);
    bool has_length_limit =
        set->kind == EXAMPLE_SENTENCE_PAIRS ||
        (set->kind >= EXAMPLE_CLASSIFY && set->kind < EXAMPLE_CHOOSE); /* kinds with one text */
    REQUIRE(m->header.longest_tokens <= set->sequence_tokens || !has_length_limit, STATUS_DATA,
            "%s has examples of up to %" PRId64 " tokens, but the sequence length is %" PRId64
            "; run `bireme prepare` with --sequence-length %" PRId64
            ", or set data.sequence_length to %" PRId64,
            m->path, m->header.longest_tokens, set->sequence_tokens, set->sequence_tokens,
            m->header.longest_tokens);
    TRY(check_labels(m, options->labels_sha256 != NULL ? options->labels_sha256
                                                       : set->members[0].header.labels_sha256));
    TRY(check_join_encoding(m, options->join_encoding));
    return m->is_nvidia
               ? STATUS_OK
               : shard_check_tokenizer(m->shard, options->vocab_size, options->tokenizer_sha256);
}

static status open_member(struct shard_set *set, struct member *m)
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

/* Checks that prompt and responses are not empty, and that the prompt with either response has at
 * most T tokens. */
static status check_pair(const struct shard_set *set, const struct member *m, int64_t index,
                         int64_t tokens, int64_t prompt, int64_t chosen)
{
    REQUIRE(prompt > 0 && chosen > 0 && prompt + chosen < tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens, a prompt of %" PRId64
            " and a chosen response of %" PRId64,
            m->path, index, tokens, prompt, chosen);
    int64_t rejected = tokens - prompt - chosen;
    int64_t longest = prompt + (chosen > rejected ? chosen : rejected);
    REQUIRE(longest <= set->sequence_tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64
            " tokens in prompt and response, but the sequence length is %" PRId64
            "; run `bireme prepare` with --sequence-length %" PRId64
            ", or raise data.sequence_length",
            m->path, index, longest, set->sequence_tokens, set->sequence_tokens);
    return STATUS_OK;
}

/* Checks the lengths of all pairs of a shard. */
static status check_pairs(const struct shard_set *set, const struct member *m)
{
    enum { BLOCK = 256 };
    int64_t starts[BLOCK + 1];
    uint32_t prompt[BLOCK], chosen[BLOCK];
    for (int64_t first = 0; first < m->header.documents; first += BLOCK) {
        int64_t left = m->header.documents - first, count = left < BLOCK ? left : BLOCK;
        TRY(shard_read_documents(m->shard, first, count + 1, starts));
        TRY(shard_read_column(m->shard, EXAMPLE_PROMPT, first, count, prompt));
        TRY(shard_read_column(m->shard, EXAMPLE_CHOSEN, first, count, chosen));
        for (int64_t i = 0; i < count; i++) {
            TRY(check_pair(set, m, first + i, starts[i + 1] - starts[i], prompt[i], chosen[i]));
        }
    }
    return STATUS_OK;
}

/* Checks that source and target are not empty and have at most T tokens each. */
static status check_source_and_target(const struct shard_set *set, const struct member *m,
                                      int64_t index, int64_t tokens, int64_t source)
{
    REQUIRE(source > 0 && source < tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens and a source of %" PRId64, m->path,
            index, tokens, source);
    int64_t target = tokens - source, longest = source > target ? source : target;
    REQUIRE(longest <= set->sequence_tokens, STATUS_DATA,
            "%s: example %" PRId64 " has a %s of %" PRId64
            " tokens, but the sequence length is %" PRId64
            "; run `bireme prepare` with --sequence-length %" PRId64
            ", or raise data.sequence_length",
            m->path, index, source >= target ? "source" : "target", longest, set->sequence_tokens,
            set->sequence_tokens);
    return STATUS_OK;
}

/* Checks the lengths of all examples of a shard of the kind seq2seq. */
static status check_sources(const struct shard_set *set, const struct member *m)
{
    enum { BLOCK = 256 };
    int64_t starts[BLOCK + 1];
    uint32_t source[BLOCK];
    for (int64_t first = 0; first < m->header.documents; first += BLOCK) {
        int64_t left = m->header.documents - first, count = left < BLOCK ? left : BLOCK;
        TRY(shard_read_documents(m->shard, first, count + 1, starts));
        TRY(shard_read_column(m->shard, EXAMPLE_SOURCE, first, count, source));
        for (int64_t i = 0; i < count; i++) {
            TRY(check_source_and_target(set, m, first + i, starts[i + 1] - starts[i], source[i]));
        }
    }
    return STATUS_OK;
}

static status check_members(struct shard_set *set, const struct shard_set_options *options)
{
    for (int i = 0; i < set->count; i++) {
        struct member *m = &set->members[i];
        TRY(open_member(set, m));
        TRY(check_member(set, m, options));
        TRY(set->kind == EXAMPLE_PREFERENCE_PAIRS ? check_pairs(set, m)
            : set->kind == EXAMPLE_SEQ2SEQ        ? check_sources(set, m)
                                                  : STATUS_OK);
        m->first_sample = set->samples;
        m->first_token = set->tokens;
        int64_t samples = set->kind != EXAMPLE_TEXT ? m->header.documents
                                                    : (m->header.tokens - 1) / set->sequence_tokens;
        if (samples == 0) {
            log_warning("SHARD-SHORT",
                        "%s has %" PRId64 " tokens, fewer than the %" PRId64 " of one sample",
                        m->path, m->header.tokens, set->sequence_tokens + 1);
        }
        set->samples += samples;
        set->tokens += m->header.tokens;
    }
    REQUIRE(set->samples > 0, STATUS_DATA,
            "%s contains %" PRId64 " tokens and no sample of %" PRId64
            " (sequence length + 1); use a shorter sequence_length or more text",
            options->path, set->tokens, set->sequence_tokens + 1);
    if (set->tokens > SHARD_SET_VERIFY_TOKENS) {
        return STATUS_OK;
    }
    for (int i = 0; i < set->count; i++) {
        TRY(open_member(set, &set->members[i]));
        TRY(set->members[i].is_nvidia ? STATUS_OK : shard_verify(set->members[i].shard));
    }
    return STATUS_OK;
}

status shard_set_open(const struct shard_set_options *options, struct shard_set **out)
{
    *out = NULL;
    REQUIRE(options->sequence_tokens > 0 && options->open_limit > 0, STATUS_INTERNAL,
            "invalid options: samples of %" PRId64 " tokens, %d open shards",
            options->sequence_tokens, options->open_limit);
    struct shard_set *set;
    TRY(ALLOCATE(set, 1, "a set of shards"));
    set->sequence_tokens = options->sequence_tokens;
    set->open_limit = options->open_limit;
    set->vocab_size = options->vocab_size;
    set->kind = options->kind;
    status result = STATUS_OK;
    TRY_GOTO(result, failed, find_members(set, options->path));
    TRY_GOTO(result, failed, check_complete(set));
    TRY_GOTO(result, failed, check_members(set, options));
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
        count = documents - first < EXAMPLES ? documents - first : EXAMPLES;
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
    if (result == STATUS_OK && shard_labels(shard) != NULL) {
        *out = strdup(shard_labels(shard));
        if (*out == NULL) {
            result = RAISE_STATUS(STATUS_INTERNAL, "out of memory for label names");
        }
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
static struct member *find_member(const struct shard_set *set, int64_t sample)
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
static int64_t compute_window_start(const struct shard_set *set, const struct member *m,
                                    int64_t sample, int64_t shift)
{
    int64_t last = m->header.tokens - 1 - set->sequence_tokens;
    int64_t first = (sample - m->first_sample) * set->sequence_tokens + shift;
    return first < last ? first : last;
}

status shard_set_read(struct shard_set *set, int64_t sample, int64_t shift, int32_t *tokens)
{
    struct member *m = find_member(set, sample);
    TRY(open_member(set, m));
    int64_t first = compute_window_start(set, m, sample, shift);
    return shard_read(m->shard, first, set->sequence_tokens + 1, tokens);
}

status shard_set_read_starts(struct shard_set *set, int64_t sample, int64_t shift, int32_t *offsets,
                             int64_t *count)
{
    struct member *m = find_member(set, sample);
    TRY(open_member(set, m));
    int64_t first = compute_window_start(set, m, sample, shift);
    int64_t last = first + set->sequence_tokens, document = 0;
    TRY(shard_find_document(m->shard, first, &document));
    *count = 0;
    int64_t starts[64], available = 0;
    for (document++; document < m->header.documents; document += available) {
        available = m->header.documents - document < 64 ? m->header.documents - document : 64;
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
static status read_example(const struct member *m, int64_t index, struct example *out)
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

static status read_pair(const struct shard_set *set, const struct member *m, int64_t index,
                        struct example *out)
{
    int64_t range[2];
    uint32_t prompt = 0, chosen = 0;
    TRY(shard_read_documents(m->shard, index, 2, range));
    TRY(shard_read_column(m->shard, EXAMPLE_PROMPT, index, 1, &prompt));
    TRY(shard_read_column(m->shard, EXAMPLE_CHOSEN, index, 1, &chosen));
    TRY(check_pair(set, m, index, range[1] - range[0], prompt, chosen));
    out->tokens = range[1] - range[0];
    out->prompt = prompt;
    out->chosen = chosen;
    return shard_read(m->shard, range[0], out->tokens, out->ids);
}

/* Reads the tokens of an example of the kind seq2seq; ids NULL: only its lengths. */
static status read_source_and_target(const struct shard_set *set, const struct member *m,
                                     int64_t index, struct example *out, int32_t *ids)
{
    int64_t range[2];
    uint32_t source = 0;
    TRY(shard_read_documents(m->shard, index, 2, range));
    TRY(shard_read_column(m->shard, EXAMPLE_SOURCE, index, 1, &source));
    TRY(check_source_and_target(set, m, index, range[1] - range[0], source));
    out->tokens = range[1] - range[0];
    out->source = source;
    return ids != NULL ? shard_read(m->shard, range[0], out->tokens, ids) : STATUS_OK;
}

status shard_set_read_lengths(struct shard_set *set, int64_t sample, int64_t *source,
                              int64_t *target)
{
    struct member *m = find_member(set, sample);
    struct example e = {0};
    TRY(open_member(set, m));
    TRY(read_source_and_target(set, m, sample - m->first_sample, &e, NULL));
    *source = e.source;
    *target = e.tokens - e.source;
    return STATUS_OK;
}

status shard_set_read_example(struct shard_set *set, int64_t sample, struct example *out)
{
    struct member *m = find_member(set, sample);
    TRY(open_member(set, m));
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
    struct member *m = find_member(set, example);
    int64_t range[2];
    TRY(open_member(set, m));
    TRY(shard_read_documents(m->shard, example - m->first_sample, 2, range));
    *out = (struct shard_set_range){m->first_token + range[0], m->first_token + range[1],
                                    (int)(m - set->members)};
    return STATUS_OK;
}

/* Returns the member that contains a token of the set. */
static struct member *find_member_of_token(const struct shard_set *set, int64_t token)
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
    struct member *m = find_member_of_token(set, first);
    TRY(open_member(set, m));
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
    const struct member *m = find_member(set, sample);
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
    const struct member *m = find_member_of_token(set, token);
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
