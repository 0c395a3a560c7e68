/* Sentence pairs as BERT's create_pretraining_data.py makes them, from the documents of a spool.
 *
 * A document's sentences are taken in order until they fill an example (T - 3 tokens; for one document in ten a
 * length drawn from 2 on: "short sequences"). A random number of them, at least one, is the first segment. For half
 * of the pairs, and where there is only one sentence, the second is random: sentences from a random place of another
 * document on, as many as fill the rest; the sentences that were not used begin the next example. Otherwise it is the
 * sentences that follow. While a pair is too long, the longer segment loses a token at its beginning or its end.
 *
 * A tokenizer of RoBERTa's kind makes no pairs: whole sentences of one document follow each other as long as they fit,
 * and one that never fits is divided (DOC-SENTENCES of Liu et al. 2019, arXiv:1907.11692, section 4.2).
 *
 * Other documents are those of the same side: what is held out teaches nothing. All is drawn by (seed, document), so
 * that the output does not depend on the number of workers.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section A.2 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/random.h"
#include "datasets/prepare/input.h"

enum { AROUND = 3, TRIES = 100 }; /* [CLS] A [SEP] B [SEP] */

struct segment { /* tokens [first, end) of an array */
    const int32_t *ids;
    int64_t first, end;
};

struct pairs {
    const struct prepare_options *options;
    struct spool *spool;
    struct output *output;
    struct tokenizer_specials specials;
    int64_t documents, held; /* in all; held out at the end, where that is the way */
    uint64_t key, drawn;     /* the document's stream of numbers */

    int64_t document;
    int64_t sentences;
    int64_t *starts; /* [sentences + 1] of the document, from its own beginning */
    int32_t *ids;
    int64_t starts_room, ids_room;

    int32_t *other; /* sentences of another document */
    int64_t other_room;
    int32_t *example; /* [T] */
};

static uint64_t draw(struct pairs *p, uint64_t below)
{
    return random_below(p->key, p->drawn++, below);
}

static status grow(void **array, int64_t *room, int64_t count, size_t item_bytes)
{
    if (count <= *room) {
        return STATUS_OK;
    }
    int64_t more = count + count / 2;
    free(*array);
    *room = 0;
    *array = malloc((size_t)more * item_bytes);
    REQUIRE(*array != NULL, STATUS_INTERNAL, "out of memory: a document of %lld parts",
            (long long)count);
    *room = more;
    return STATUS_OK;
}

static bool by_chance(const struct pairs *p)
{
    return p->options->shuffle_split && p->options->validation_fraction > 0.0 && p->held == 0;
}

static bool is_held_out(const struct pairs *p, int64_t document)
{
    if (!by_chance(p)) {
        return document >= p->documents - p->held;
    }
    int64_t stratum = (int64_t)floor((double)document * p->options->validation_fraction), end = 0;
    int64_t drawn = output_stratum(p->options, stratum, &end);
    if (document >= end) { /* the division was rounded down too far */
        drawn = output_stratum(p->options, stratum + 1, &end);
    }
    return document == drawn;
}

/* A document of the same side, another one where there is one. */
static int64_t other_document(struct pairs *p)
{
    bool held = is_held_out(p, p->document);
    int64_t first = held && p->held > 0 ? p->documents - p->held : 0;
    int64_t count = held && p->held > 0 ? p->held : p->documents - p->held;
    for (int i = 0; i < TRIES; i++) {
        int64_t document = first + (int64_t)draw(p, (uint64_t)count);
        if (held && by_chance(p)) { /* one of those that were drawn */
            int64_t end;
            document = output_stratum(
                p->options, (int64_t)((double)document * p->options->validation_fraction), &end);
        }
        if (document < p->documents && document != p->document &&
            is_held_out(p, document) == held) {
            return document;
        }
    }
    return p->document;
}

/* Sentences from a random one of another document on, until there are `wanted` tokens. */
static status random_segment(struct pairs *p, int64_t wanted, struct segment *out)
{
    int64_t first = 0, end = 0, starts[2];
    TRY(spool_document(p->spool, other_document(p), &first, &end));
    first += (int64_t)draw(p, (uint64_t)(end - first));
    TRY(spool_starts(p->spool, first, 2, starts));
    int64_t begin = starts[0];
    while (starts[1] - begin < wanted && ++first < end) {
        TRY(spool_starts(p->spool, first, 2, starts));
    }
    int64_t count = starts[1] - begin;
    TRY(grow((void **)&p->other, &p->other_room, count, sizeof *p->other));
    TRY(spool_read(p->spool, begin, count, p->other));
    *out = (struct segment){p->other, 0, count};
    return STATUS_OK;
}

static void truncate_pair(struct pairs *p, struct segment *a, struct segment *b, int64_t most)
{
    for (;;) {
        int64_t a_tokens = a->end - a->first, b_tokens = b->end - b->first;
        if (a_tokens + b_tokens <= most) {
            return;
        }
        struct segment *longer = a_tokens > b_tokens ? a : b;
        if (draw(p, 2) == 0) {
            longer->first++;
        } else {
            longer->end--;
        }
    }
}

static int64_t put(int32_t *to, const struct segment *s)
{
    memcpy(to, s->ids + s->first, (size_t)(s->end - s->first) * sizeof *to);
    return s->end - s->first;
}

static status write_example(struct pairs *p, int64_t tokens, int64_t first_segment, bool random)
{
    const uint32_t first = (uint32_t)first_segment, next = random;
    const uint32_t *const values[] = {
        [EXAMPLE_FIRST_SEGMENT] = &first, [EXAMPLE_NEXT_SENTENCE] = &next};
    bool held = is_held_out(p, p->document);
    return output_example(p->output, held ? OUTPUT_VALIDATION : OUTPUT_TRAIN, p->example, tokens,
                          values);
}

static status write_pair(struct pairs *p, struct segment a, struct segment b, bool random)
{
    truncate_pair(p, &a, &b, p->options->sequence_tokens - AROUND);
    int32_t *e = p->example;
    int64_t used = 0;
    e[used++] = p->specials.cls;
    used += put(e + used, &a);
    e[used++] = p->specials.sep;
    int64_t first_segment = used;
    used += put(e + used, &b);
    e[used++] = p->specials.sep;
    return write_example(p, used, first_segment, random);
}

/* Of sentences [*first, end): one pair; *first becomes the first sentence that was not used. */
static status make_pair(struct pairs *p, int64_t *first, int64_t end, int64_t target)
{
    int64_t count = end - *first;
    int64_t middle = *first + (count > 1 ? 1 + (int64_t)draw(p, (uint64_t)(count - 1)) : 1);
    bool random = count == 1 || draw(p, 2) == 0;
    struct segment a = {p->ids, p->starts[*first], p->starts[middle]};
    struct segment b = {p->ids, p->starts[middle], p->starts[end]};
    if (random) {
        TRY(random_segment(p, target - (a.end - a.first), &b));
    }
    *first = random ? middle : end;
    return write_pair(p, a, b, random);
}

static status read_document(struct pairs *p)
{
    int64_t first = 0, end = 0;
    TRY(spool_document(p->spool, p->document, &first, &end));
    p->sentences = end - first;
    TRY(grow((void **)&p->starts, &p->starts_room, p->sentences + 1, sizeof *p->starts));
    TRY(spool_starts(p->spool, first, p->sentences + 1, p->starts));
    int64_t begin = p->starts[0], tokens = p->starts[p->sentences] - begin;
    TRY(grow((void **)&p->ids, &p->ids_room, tokens, sizeof *p->ids));
    for (int64_t i = 0; i <= p->sentences; i++) {
        p->starts[i] -= begin;
    }
    return spool_read(p->spool, begin, tokens, p->ids);
}

/* <s> tokens [first, end) of the document </s>, in as many examples as they need. */
static status write_sentences(struct pairs *p, int64_t first, int64_t end)
{
    const int64_t most = p->options->sequence_tokens - 2;
    for (; first < end; first += most) {
        int64_t count = end - first < most ? end - first : most;
        p->example[0] = p->specials.cls;
        memcpy(p->example + 1, p->ids + first, (size_t)count * sizeof *p->ids);
        p->example[count + 1] = p->specials.sep;
        TRY(write_example(p, count + 2, count + 2, false));
    }
    return STATUS_OK;
}

static status make_sentences(struct pairs *p)
{
    const int64_t most = p->options->sequence_tokens - 2;
    for (int64_t first = 0, end; first < p->sentences; first = end) {
        end = first + 1;
        while (end < p->sentences && p->starts[end + 1] - p->starts[first] <= most) {
            end++;
        }
        TRY(write_sentences(p, p->starts[first], p->starts[end]));
    }
    return STATUS_OK;
}

static status make_document(struct pairs *p)
{
    TRY(read_document(p));
    if (tokenizer_is_roberta(p->options->tokenizer)) {
        return make_sentences(p);
    }
    int64_t most = p->options->sequence_tokens - AROUND, target = most;
    p->key = random_key(p->options->pair_seed, RANDOM_PAIRS, (uint64_t)p->document, 0);
    p->drawn = 0;
    if (random_uniform(p->key, p->drawn++) < (float)p->options->short_fraction) {
        target = 2 + (int64_t)draw(p, (uint64_t)(most - 1));
    }
    for (int64_t first = 0, end = 1; first < p->sentences; end++) {
        if (end == p->sentences || p->starts[end] - p->starts[first] >= target) {
            TRY(make_pair(p, &first, end, target));
            end = first;
        }
    }
    return STATUS_OK;
}

/* How many of the last documents are held out; a single one is divided. */
static status hold_out(struct pairs *p)
{
    double fraction = p->options->validation_fraction;
    p->documents = spool_documents(p->spool);
    REQUIRE(p->documents > 0, STATUS_DATA, "the inputs hold no sentences");
    if (fraction <= 0.0 || (p->options->shuffle_split && p->documents > 1)) {
        return STATUS_OK;
    }
    if (p->documents == 1) {
        TRY(spool_divide(p->spool, fraction));
        p->documents = 2;
    }
    int64_t held = (int64_t)floor((double)p->documents * fraction + 0.5);
    p->held = held < 1 ? 1 : held > p->documents - 1 ? p->documents - 1 : held;
    return STATUS_OK;
}

static status make_all(struct pairs *p)
{
    p->example = malloc((size_t)p->options->sequence_tokens * sizeof *p->example);
    REQUIRE(p->example != NULL, STATUS_INTERNAL, "out of memory: an example");
    TRY(hold_out(p));
    for (p->document = 0; p->document < p->documents; p->document++) {
        TRY(make_document(p));
        log_progress("sentence pairs of %lld of %lld documents", (long long)p->document + 1,
                     (long long)p->documents);
    }
    return STATUS_OK;
}

status pairs_make(const struct prepare_options *options, struct spool *spool, struct output *output)
{
    struct pairs p = {.options = options,
                      .spool = spool,
                      .output = output,
                      .specials = tokenizer_specials_of(options->tokenizer)};
    status result = make_all(&p);
    free(p.starts);
    free(p.ids);
    free(p.other);
    free(p.example);
    return result;
}
