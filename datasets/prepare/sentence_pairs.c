/* Makes sentence pairs as in BERT's create_pretraining_data.py.
 *
 * The sentences of a document are taken in order until they fill an example: T - 3 tokens, or for a
 * fraction short_fraction of the documents a random length from 2 on. A random number of these
 * sentences, at least one, is the first segment. In half of the pairs, and if there is only one
 * sentence, the second segment is random. It begins at a random sentence of another document and
 * fills the example. The sentences that were not used start the next example. Otherwise the second
 * segment has the sentences that follow. While a pair is too long, the longer segment loses its
 * first or its last token, at random.
 *
 * With sentence_order (ALBERT), no segment is random: the second one always has the sentences that
 * follow, and in half of the pairs the two are swapped. A single sentence is divided at a random
 * token; one of a single token makes no pair.
 *
 * A RoBERTa tokenizer makes no pairs. Whole sentences of one document are packed as long as they
 * fit. A sentence that is longer than an example is divided. This is DOC-SENTENCES of Liu et al.
 * 2019, arXiv:1907.11692, section 4.2.
 *
 * The other document is always in the same split, so no training example contains a sentence of the
 * validation set. All random numbers depend on (seed, document), so the output does not depend on
 * the number of workers.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section A.2; sentence_order: Lan et al. 2019,
 *           arXiv:1909.11942, section 3.1 */
#include "datasets/prepare/sentence_pairs.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"

enum {
    SPECIAL_TOKENS = 3, /* [CLS] A [SEP] B [SEP] */
    TRIES_MAX = 100     /* to draw another document */
};

/* Tokens [first, end) of an array. */
struct segment {
    const int32_t *ids;
    int64_t first, end;
};

struct pair_builder {
    const struct prepare_options *options;
    struct token_spool *spool;
    struct prepare_output *output;
    struct tokenizer_specials specials;
    int64_t document_count;
    int64_t validation_documents; /* the last documents; 0: random split, or no validation set */
    uint64_t stream_key, draws;   /* random stream of the document, and numbers drawn from it */

    /* the current document */
    int64_t document; /* index */
    int64_t sentence_count;
    int64_t *sentence_starts; /* [sentence_count + 1] offsets in ids */
    int32_t *ids;
    int64_t sentence_starts_capacity, ids_capacity;

    int32_t *other_ids; /* sentences of another document */
    int64_t other_capacity;
    int32_t *example; /* [sequence_tokens] */
};

/* Draws a random number in [0, below). */
static uint64_t draw_below(struct pair_builder *p, uint64_t below)
{
    return random_below(p->stream_key, p->draws++, below);
}

/* Makes room for `count` items. */
static status reserve_buffer(void **array, int64_t *capacity, int64_t count, size_t item_bytes)
{
    if (count <= *capacity) {
        return STATUS_OK;
    }
    int64_t new_capacity = count + count / 2;
    TRY(memory_grow(array, (size_t)new_capacity, item_bytes,
                    "the tokens or sentences of a document"));
    *capacity = new_capacity;
    return STATUS_OK;
}

static bool is_random_split(const struct pair_builder *p)
{
    return p->options->shuffle_split && p->options->validation_fraction > 0.0 &&
           p->validation_documents == 0;
}

static bool is_validation_document(const struct pair_builder *p, int64_t document)
{
    if (!is_random_split(p)) {
        return document >= p->document_count - p->validation_documents;
    }
    int64_t stratum = (int64_t)floor((double)document * p->options->validation_fraction), end = 0;
    int64_t drawn_document = prepare_output_draw_from_stratum(p->options, stratum, &end);
    if (document >= end) { /* rounding gave the stratum before */
        drawn_document = prepare_output_draw_from_stratum(p->options, stratum + 1, &end);
    }
    return document == drawn_document;
}

/* Draws a document of the same split, other than the current one if possible. */
static int64_t draw_other_document(struct pair_builder *p)
{
    bool in_validation = is_validation_document(p, p->document);
    int64_t first = in_validation && p->validation_documents > 0
                        ? p->document_count - p->validation_documents
                        : 0;
    int64_t count = in_validation && p->validation_documents > 0
                        ? p->validation_documents
                        : p->document_count - p->validation_documents;
    for (int i = 0; i < TRIES_MAX; i++) {
        int64_t document = first + (int64_t)draw_below(p, (uint64_t)count);
        if (in_validation && is_random_split(p)) { /* one of the validation documents */
            int64_t end;
            document = prepare_output_draw_from_stratum(
                p->options, (int64_t)((double)document * p->options->validation_fraction), &end);
        }
        if (document < p->document_count && document != p->document &&
            is_validation_document(p, document) == in_validation) {
            return document;
        }
    }
    return p->document;
}

/* Reads sentences of another document, from a random one on, until there are `target` tokens. */
static status read_random_segment(struct pair_builder *p, int64_t target, struct segment *out)
{
    int64_t first = 0, end = 0, starts[2];
    TRY(token_spool_read_document(p->spool, draw_other_document(p), &first, &end));
    first += (int64_t)draw_below(p, (uint64_t)(end - first));
    TRY(token_spool_read_sentence_starts(p->spool, first, 2, starts));
    int64_t begin = starts[0];
    while (starts[1] - begin < target && ++first < end) {
        TRY(token_spool_read_sentence_starts(p->spool, first, 2, starts));
    }
    int64_t count = starts[1] - begin;
    TRY(reserve_buffer((void **)&p->other_ids, &p->other_capacity, count, sizeof *p->other_ids));
    TRY(token_spool_read_tokens(p->spool, begin, count, p->other_ids));
    *out = (struct segment){p->other_ids, 0, count};
    return STATUS_OK;
}

static void truncate_pair(struct pair_builder *p, struct segment *a, struct segment *b,
                          int64_t limit)
{
    for (;;) {
        int64_t a_tokens = a->end - a->first, b_tokens = b->end - b->first;
        if (a_tokens + b_tokens <= limit) {
            return;
        }
        struct segment *longer = a_tokens > b_tokens ? a : b;
        if (draw_below(p, 2) == 0) {
            longer->first++;
        } else {
            longer->end--;
        }
    }
}

static int64_t copy_segment(int32_t *to, const struct segment *s)
{
    memcpy(to, s->ids + s->first, (size_t)(s->end - s->first) * sizeof *to);
    return s->end - s->first;
}

/* label: the second segment is random, or the segments are swapped. */
static status write_example(struct pair_builder *p, int64_t tokens, int64_t first_segment,
                            bool label)
{
    const uint32_t first = (uint32_t)first_segment, next = label;
    const uint32_t *const values[] = {
        [EXAMPLE_FIRST_SEGMENT] = &first, [EXAMPLE_NEXT_SENTENCE] = &next};
    bool in_validation = is_validation_document(p, p->document);
    return prepare_output_write_example(
        p->output, in_validation ? PREPARE_SPLIT_VALIDATION : PREPARE_SPLIT_TRAIN, p->example,
        tokens, values);
}

static status write_pair(struct pair_builder *p, struct segment a, struct segment b, bool label)
{
    truncate_pair(p, &a, &b, p->options->sequence_tokens - SPECIAL_TOKENS);
    int32_t *e = p->example;
    int64_t used = 0;
    e[used++] = p->specials.cls;
    used += copy_segment(e + used, &a);
    e[used++] = p->specials.sep;
    int64_t first_segment = used;
    used += copy_segment(e + used, &b);
    e[used++] = p->specials.sep;
    return write_example(p, used, first_segment, label);
}

/* Makes one pair of sentences [*first, end). *first receives the first sentence that was
 * not used. */
static status make_pair(struct pair_builder *p, int64_t *first, int64_t end, int64_t target)
{
    int64_t count = end - *first;
    int64_t middle = *first + (count > 1 ? 1 + (int64_t)draw_below(p, (uint64_t)(count - 1)) : 1);
    bool random = count == 1 || draw_below(p, 2) == 0;
    struct segment a = {p->ids, p->sentence_starts[*first], p->sentence_starts[middle]};
    struct segment b = {p->ids, p->sentence_starts[middle], p->sentence_starts[end]};
    if (random) {
        TRY(read_random_segment(p, target - (a.end - a.first), &b));
    }
    *first = random ? middle : end;
    return write_pair(p, a, b, random);
}

/* Makes one pair of sentences [first, end) in their order or swapped. */
static status make_ordered_pair(struct pair_builder *p, int64_t first, int64_t end)
{
    int64_t begin = p->sentence_starts[first], stop = p->sentence_starts[end];
    int64_t count = end - first, tokens = stop - begin;
    if (tokens < 2) {
        return STATUS_OK;
    }
    int64_t middle =
        count > 1 ? p->sentence_starts[first + 1 + (int64_t)draw_below(p, (uint64_t)(count - 1))]
                  : begin + 1 + (int64_t)draw_below(p, (uint64_t)(tokens - 1));
    struct segment parts[2] = {{p->ids, begin, middle}, {p->ids, middle, stop}};
    bool swapped = draw_below(p, 2) == 0;
    return write_pair(p, parts[swapped], parts[!swapped], swapped);
}

static status read_document(struct pair_builder *p)
{
    int64_t first = 0, end = 0;
    TRY(token_spool_read_document(p->spool, p->document, &first, &end));
    p->sentence_count = end - first;
    TRY(reserve_buffer((void **)&p->sentence_starts, &p->sentence_starts_capacity,
                       p->sentence_count + 1, sizeof *p->sentence_starts));
    TRY(token_spool_read_sentence_starts(p->spool, first, p->sentence_count + 1,
                                         p->sentence_starts));
    int64_t begin = p->sentence_starts[0], tokens = p->sentence_starts[p->sentence_count] - begin;
    TRY(reserve_buffer((void **)&p->ids, &p->ids_capacity, tokens, sizeof *p->ids));
    for (int64_t i = 0; i <= p->sentence_count; i++) {
        p->sentence_starts[i] -= begin;
    }
    return token_spool_read_tokens(p->spool, begin, tokens, p->ids);
}

/* Writes tokens [first, end) of the document between <s> and </s>, as one or more examples. */
static status write_token_range(struct pair_builder *p, int64_t first, int64_t end)
{
    const int64_t limit = p->options->sequence_tokens - 2;
    for (; first < end; first += limit) {
        int64_t count = number_min(end - first, limit);
        p->example[0] = p->specials.cls;
        memcpy(p->example + 1, p->ids + first, (size_t)count * sizeof *p->ids);
        p->example[count + 1] = p->specials.sep;
        TRY(write_example(p, count + 2, count + 2, false));
    }
    return STATUS_OK;
}

/* Packs whole sentences into examples. */
static status pack_sentences(struct pair_builder *p)
{
    const int64_t limit = p->options->sequence_tokens - 2;
    for (int64_t first = 0, end; first < p->sentence_count; first = end) {
        end = first + 1;
        while (end < p->sentence_count &&
               p->sentence_starts[end + 1] - p->sentence_starts[first] <= limit) {
            end++;
        }
        TRY(write_token_range(p, p->sentence_starts[first], p->sentence_starts[end]));
    }
    return STATUS_OK;
}

/* Makes all examples of the current document. */
static status make_examples(struct pair_builder *p)
{
    TRY(read_document(p));
    if (tokenizer_is_roberta(p->options->tokenizer)) {
        return pack_sentences(p);
    }
    int64_t limit = p->options->sequence_tokens - SPECIAL_TOKENS, target = limit;
    p->stream_key = random_key(p->options->pair_seed, RANDOM_PAIRS, (uint64_t)p->document, 0);
    p->draws = 0;
    if (random_uniform(p->stream_key, p->draws++) < (float)p->options->short_fraction) {
        target = 2 + (int64_t)draw_below(p, (uint64_t)(limit - 1));
    }
    for (int64_t first = 0, end = 1; first < p->sentence_count; end++) {
        if (end == p->sentence_count ||
            p->sentence_starts[end] - p->sentence_starts[first] >= target) {
            if (p->options->sentence_order) {
                TRY(make_ordered_pair(p, first, end));
                first = end;
            } else {
                TRY(make_pair(p, &first, end, target));
                end = first;
            }
        }
    }
    return STATUS_OK;
}

/* Computes the number of validation documents. A single document is divided into two. */
static status choose_validation_documents(struct pair_builder *p)
{
    double fraction = p->options->validation_fraction;
    p->document_count = token_spool_document_count(p->spool);
    REQUIRE(p->document_count > 0, STATUS_DATA,
            "the inputs contain no sentences; give files with text");
    if (fraction <= 0.0 || (p->options->shuffle_split && p->document_count > 1)) {
        return STATUS_OK;
    }
    if (p->document_count == 1) {
        TRY(token_spool_divide_document(p->spool, fraction));
        p->document_count = 2;
    }
    p->validation_documents = prepare_output_count_validation(p->document_count, fraction);
    return STATUS_OK;
}

static status make_all_examples(struct pair_builder *p)
{
    TRY(ALLOCATE(p->example, p->options->sequence_tokens, "an example"));
    TRY(choose_validation_documents(p));
    for (p->document = 0; p->document < p->document_count; p->document++) {
        TRY(make_examples(p));
        log_progress("sentence pairs of %" PRId64 " of %" PRId64 " documents", p->document + 1,
                     p->document_count);
    }
    return STATUS_OK;
}

status sentence_pairs_write(const struct prepare_options *options, struct token_spool *spool,
                            struct prepare_output *output)
{
    struct pair_builder p = {.options = options,
                             .spool = spool,
                             .output = output,
                             .specials = tokenizer_get_specials(options->tokenizer)};
    status result = make_all_examples(&p);
    free(p.sentence_starts);
    free(p.ids);
    free(p.other_ids);
    free(p.example);
    return result;
}
