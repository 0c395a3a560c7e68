/* The checks of a set of shards when it is opened. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/shard_set_impl.h"

status shard_set_check_complete(const struct shard_set *set)
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

/* Checks that label numbers have the same meaning in all shards and in the model. */
static status check_labels(const struct shard_set_member *m, const char *sha256)
{
    REQUIRE(
        strcmp(m->header.labels_sha256, sha256) == 0, STATUS_DATA,
        "%s has %d labels that differ from the model or from the other shards, or are in another "
        "order; prepare the shards together, or with the same --labels, for example from a run "
        "(--labels runs/NAME)",
        m->path, m->header.label_count);
    return STATUS_OK;
}

static status check_join_encoding(const struct shard_set_member *m, enum shard_join required)
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
static status check_member(const struct shard_set *set, const struct shard_set_member *m,
                           const struct shard_set_options *options)
{
    enum example_kind expected_kind = set->kind, kind = m->header.kind;
    bool is_sft = (int)kind + (int)expected_kind == EXAMPLE_SFT + EXAMPLE_SEQ2SEQ;
    REQUIRE(kind == expected_kind, STATUS_DATA,
            "%s contains examples of the kind '%s', not '%s' as this objective requires; set "
            "--objective of `bireme prepare`%s",
            m->path, example_get_format(kind)->name, example_get_format(expected_kind)->name,
            is_sft ? ", with --encoder-decoder for sft of an encoder-decoder only" : "");
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

status shard_set_check_pair(const struct shard_set *set, const struct shard_set_member *m,
                            int64_t index, int64_t tokens, int64_t prompt, int64_t chosen)
{
    REQUIRE(prompt > 0 && chosen > 0 && prompt + chosen < tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens, a prompt of %" PRId64
            " and a chosen response of %" PRId64,
            m->path, index, tokens, prompt, chosen);
    int64_t rejected = tokens - prompt - chosen;
    int64_t longest = prompt + number_max(chosen, rejected);
    REQUIRE(longest <= set->sequence_tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64
            " tokens in prompt and response, but the sequence length is %" PRId64
            "; run `bireme prepare` with --sequence-length %" PRId64
            ", or raise data.sequence_length",
            m->path, index, longest, set->sequence_tokens, set->sequence_tokens);
    return STATUS_OK;
}

/* Checks the lengths of all pairs of a shard. */
static status check_pairs(const struct shard_set *set, const struct shard_set_member *m)
{
    enum { BLOCK = 256 };
    int64_t starts[BLOCK + 1];
    uint32_t prompt[BLOCK], chosen[BLOCK];
    for (int64_t first = 0; first < m->header.documents; first += BLOCK) {
        int64_t left = m->header.documents - first, count = number_min(left, BLOCK);
        TRY(shard_read_documents(m->shard, first, count + 1, starts));
        TRY(shard_read_column(m->shard, EXAMPLE_PROMPT, first, count, prompt));
        TRY(shard_read_column(m->shard, EXAMPLE_CHOSEN, first, count, chosen));
        for (int64_t i = 0; i < count; i++) {
            TRY(shard_set_check_pair(set, m, first + i, starts[i + 1] - starts[i], prompt[i],
                                     chosen[i]));
        }
    }
    return STATUS_OK;
}

status shard_set_check_source_and_target(const struct shard_set *set,
                                         const struct shard_set_member *m, int64_t index,
                                         int64_t tokens, int64_t source)
{
    REQUIRE(source > 0 && source < tokens, STATUS_DATA,
            "%s: example %" PRId64 " has %" PRId64 " tokens and a source of %" PRId64, m->path,
            index, tokens, source);
    int64_t target = tokens - source, longest = number_max(source, target);
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
static status check_sources(const struct shard_set *set, const struct shard_set_member *m)
{
    enum { BLOCK = 256 };
    int64_t starts[BLOCK + 1];
    uint32_t source[BLOCK];
    for (int64_t first = 0; first < m->header.documents; first += BLOCK) {
        int64_t left = m->header.documents - first, count = number_min(left, BLOCK);
        TRY(shard_read_documents(m->shard, first, count + 1, starts));
        TRY(shard_read_column(m->shard, EXAMPLE_SOURCE, first, count, source));
        for (int64_t i = 0; i < count; i++) {
            TRY(shard_set_check_source_and_target(set, m, first + i, starts[i + 1] - starts[i],
                                                  source[i]));
        }
    }
    return STATUS_OK;
}

status shard_set_check_members(struct shard_set *set, const struct shard_set_options *options)
{
    for (int i = 0; i < set->count; i++) {
        struct shard_set_member *m = &set->members[i];
        TRY(shard_set_open_member(set, m));
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
        TRY(shard_set_open_member(set, &set->members[i]));
        TRY(set->members[i].is_nvidia ? STATUS_OK : shard_verify(set->members[i].shard));
    }
    return STATUS_OK;
}
