#include "datasets/sentencepiece/unigram_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/thread/thread.h"
#include "datasets/sentencepiece/unigram.h"

#define SEEDS ((int64_t)1000000)
#define ITERATIONS 2            /* of expectation maximization before pieces are dropped */
#define EXPECTED_MIN 0.5        /* smallest expected count of a piece */
#define KEPT 0.75               /* share of the pieces that remain */
#define SURPLUS 1.1             /* pieces after the last step, relative to the wanted ones */
#define ONE ((double)(1 << 20)) /* an expected count of 1 as an integer */

/* The vocabulary of one iteration. Characters are the first pieces. */
struct model {
    struct unigram_piece *pieces;
    int64_t count, characters;
    struct piece_trie trie;
    const struct unigram_word *words;
    int64_t word_count;
    int workers;
};

/* The part of one worker in a pass over the words. */
struct pass {
    const struct model *m;
    int64_t first, last; /* words */
    bool is_best;        /* count the pieces of the best segmentations, without fractions */
    int64_t *counts;     /* [piece] in units of 1 / ONE */
    double *forward;     /* [UNIGRAM_WORD_BYTES + 1] */
    double *backward;    /* the same */
    struct unigram_step *steps;
};

static status build_trie(struct model *m)
{
    piece_trie_free(&m->trie);
    m->trie = (struct piece_trie){0};
    struct piece_key *keys = NULL;
    TRY(ALLOCATE(keys, m->count, "pieces"));
    for (int64_t i = 0; i < m->count; i++) {
        keys[i] = (struct piece_key){m->pieces[i].text, m->pieces[i].bytes, (int32_t)i};
    }
    status result = piece_trie_build(&m->trie, keys, m->count);
    free(keys);
    return result;
}

/* ---- one word ---- */

/* Calls visit for each piece at text[begin]. */
typedef void piece_visitor(void *context, size_t begin, size_t end, int32_t id);

static void visit_pieces(const struct model *m, const char *text, size_t bytes, size_t begin,
                         piece_visitor *visit, void *context)
{
    uint32_t node = 0;
    for (size_t end = begin; end < bytes;) {
        node = piece_trie_next(&m->trie, node, (unsigned char)text[end++]);
        if (node == 0) {
            return;
        }
        if (m->trie.nodes[node].value >= 0) {
            visit(context, begin, end, m->trie.nodes[node].value);
        }
    }
}

static double add_logarithms(double a, double b)
{
    double larger = fmax(a, b), smaller = fmin(a, b);
    return smaller == -INFINITY ? larger : larger + log1p(exp(smaller - larger));
}

static void extend_forward(void *context, size_t begin, size_t end, int32_t id)
{
    struct pass *p = context;
    p->forward[end] = add_logarithms(p->forward[end], p->forward[begin] + p->m->pieces[id].score);
}

static void extend_backward(void *context, size_t begin, size_t end, int32_t id)
{
    struct pass *p = context;
    p->backward[begin] =
        add_logarithms(p->backward[begin], p->backward[end] + p->m->pieces[id].score);
}

/* A word in add_expected. */
struct expectation {
    struct pass *pass;
    double total; /* logarithm of the probability of the word */
    double count;
};

static void add_expected(void *context, size_t begin, size_t end, int32_t id)
{
    struct expectation *e = context;
    const struct pass *p = e->pass;
    double share = exp(p->forward[begin] + p->m->pieces[id].score + p->backward[end] - e->total);
    p->counts[id] += llround(e->count * share * ONE);
}

/* Adds the expected counts of the pieces of a word: the forward-backward algorithm. */
static void expect_word(struct pass *p, const struct unigram_word *word)
{
    for (size_t i = 0; i <= word->bytes; i++) {
        p->forward[i] = p->backward[i] = -INFINITY;
    }
    p->forward[0] = p->backward[word->bytes] = 0;
    for (size_t i = 0; i < word->bytes; i++) {
        if (p->forward[i] > -INFINITY) {
            visit_pieces(p->m, word->text, word->bytes, i, extend_forward, p);
        }
    }
    for (size_t i = word->bytes; i-- > 0;) {
        if (p->forward[i] > -INFINITY) {
            visit_pieces(p->m, word->text, word->bytes, i, extend_backward, p);
        }
    }
    struct expectation e = {p, p->forward[word->bytes], (double)word->count};
    for (size_t i = 0; i < word->bytes; i++) {
        if (p->forward[i] > -INFINITY) {
            visit_pieces(p->m, word->text, word->bytes, i, add_expected, &e);
        }
    }
}

/* The search for the best segmentation of a text, without the piece `excluded`. */
struct search {
    const struct model *m;
    struct unigram_step *steps;
    int32_t excluded; /* -1: none */
};

static void extend_best(void *context, size_t begin, size_t end, int32_t id)
{
    struct search *s = context;
    double score = s->steps[begin].score + s->m->pieces[id].score;
    if (id != s->excluded && score > s->steps[end].score) {
        s->steps[end] = (struct unigram_step){score, (uint32_t)begin, id};
    }
}

/* Finds the best segmentation; the score of steps[bytes] is -INFINITY if there is none. */
static void find_best(struct search *s, const char *text, size_t bytes)
{
    for (size_t i = 0; i <= bytes; i++) {
        s->steps[i] = (struct unigram_step){.score = -INFINITY};
    }
    s->steps[0].score = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (s->steps[i].score > -INFINITY) {
            visit_pieces(s->m, text, bytes, i, extend_best, s);
        }
    }
}

static void count_best_word(struct pass *p, const struct unigram_word *word)
{
    struct search s = {p->m, p->steps, -1};
    find_best(&s, word->text, word->bytes);
    for (size_t end = word->bytes; end > 0; end = p->steps[end].begin) {
        p->counts[p->steps[end].id] += word->count;
    }
}

/* ---- all words ---- */

/* Counts the words of one struct pass. */
static void run_pass(void *item)
{
    struct pass *p = item;
    for (int64_t i = p->first; i < p->last; i++) {
        if (p->is_best) {
            count_best_word(p, &p->m->words[i]);
        } else {
            expect_word(p, &p->m->words[i]);
        }
    }
}

static void free_pass(struct pass *p)
{
    free(p->counts);
    free(p->forward);
    free(p->backward);
    free(p->steps);
}

static status open_pass(struct pass *p, const struct model *m, int index, bool is_best)
{
    *p = (struct pass){.m = m,
                       .first = m->word_count * index / m->workers,
                       .last = m->word_count * (index + 1) / m->workers,
                       .is_best = is_best};
    TRY(ALLOCATE(p->counts, m->count, "the counts of pieces"));
    TRY(ALLOCATE(p->forward, UNIGRAM_WORD_BYTES + 1, "a word"));
    TRY(ALLOCATE(p->backward, UNIGRAM_WORD_BYTES + 1, "a word"));
    return ALLOCATE(p->steps, UNIGRAM_WORD_BYTES + 1, "a word");
}

/* Runs all passes and adds their counts to the counts of the first pass. */
static void run_passes(struct pass *passes, int workers)
{
    thread_run_each(run_pass, passes, sizeof *passes, workers);
    for (int i = 1; i < workers; i++) {
        for (int64_t id = 0; id < passes[0].m->count; id++) {
            passes[0].counts[id] += passes[i].counts[id];
        }
    }
}

/* Counts the pieces over all words. The caller frees *counts. */
static status count_pieces(const struct model *m, bool is_best, int64_t **counts)
{
    struct pass *passes = NULL;
    TRY(ALLOCATE(passes, m->workers, "workers"));
    status result = STATUS_OK;
    for (int i = 0; i < m->workers && result == STATUS_OK; i++) {
        result = open_pass(&passes[i], m, i, is_best);
    }
    if (result == STATUS_OK) {
        run_passes(passes, m->workers);
        *counts = passes[0].counts;
        passes[0].counts = NULL;
    }
    for (int i = 0; i < m->workers; i++) {
        free_pass(&passes[i]);
    }
    free(passes);
    return result;
}

/* ---- the two steps ---- */

/* Computes the digamma function for x > 0. */
static double compute_digamma(double x)
{
    double result = 0;
    for (; x < 7; x++) {
        result -= 1 / x;
    }
    x -= 0.5;
    double square = 1 / (x * x);
    return result + log(x) + square / 24 - square * square * 7 / 960 +
           square * square * square * 31 / 8064;
}

/* Computes new scores from expected counts, and drops pieces that are hardly expected. */
static void maximize_scores(struct model *m, const int64_t *counts)
{
    double sum = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < m->count; i++) {
        double expected = (double)counts[i] / ONE;
        if (i < m->characters || expected >= EXPECTED_MIN) {
            m->pieces[kept] = m->pieces[i];
            m->pieces[kept].score = fmax(expected, EXPECTED_MIN);
            sum += m->pieces[kept++].score;
        }
    }
    m->count = kept;
    double all = compute_digamma(sum);
    for (int64_t i = 0; i < kept; i++) {
        m->pieces[i].score = compute_digamma(m->pieces[i].score) - all;
    }
}

static status improve_scores(struct model *m)
{
    for (int i = 0; i < ITERATIONS; i++) {
        int64_t *counts = NULL;
        TRY(build_trie(m));
        TRY(count_pieces(m, false, &counts));
        maximize_scores(m, counts);
        free(counts);
    }
    return build_trie(m);
}

struct candidate {
    int64_t piece;
    double loss;
};

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->loss != y->loss ? (x->loss < y->loss ? 1 : -1)
                              : (x->piece > y->piece) - (x->piece < y->piece);
}

/* Computes how much the logarithm of the likelihood falls if a piece is replaced by its best
 * alternative. INFINITY: the piece must stay. -INFINITY: it is not used. */
static double compute_loss(struct search *s, const int64_t *counts, double sum, int64_t piece)
{
    const struct unigram_piece *p = &s->m->pieces[piece];
    if (piece < s->m->characters) {
        return INFINITY;
    }
    if (counts[piece] == 0) {
        return -INFINITY;
    }
    s->excluded = (int32_t)piece;
    find_best(s, p->text, p->bytes);
    double count = (double)counts[piece], alternative = 0;
    int parts = 0;
    for (size_t end = p->bytes; end > 0; end = s->steps[end].begin, parts++) {
        alternative += log((double)counts[s->steps[end].id] + count);
    }
    alternative -= parts * log(sum + count * (parts - 1));
    return count * (log(count) - log(sum) - alternative);
}

/* Drops the pieces with the smallest loss, so that `size` pieces remain. */
static status drop_pieces(struct model *m, int64_t size)
{
    int64_t *counts = NULL;
    TRY(count_pieces(m, true, &counts));
    struct candidate *order = NULL;
    struct unigram_piece *kept = NULL;
    struct search s = {m, NULL, -1};
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(order, m->count, "pieces"));
    TRY_GOTO(result, done, ALLOCATE(kept, m->count, "pieces"));
    TRY_GOTO(result, done, ALLOCATE(s.steps, UNIGRAM_WORD_BYTES + 1, "the path of a word"));
    double sum = 0;
    for (int64_t i = 0; i < m->count; i++) {
        sum += (double)counts[i];
    }
    for (int64_t i = 0; i < m->count; i++) {
        order[i] = (struct candidate){i, compute_loss(&s, counts, sum, i)};
    }
    qsort(order, (size_t)m->count, sizeof *order, compare_candidates);
    int64_t count = 0;
    while (count < m->count && count < size && order[count].loss > -INFINITY) {
        kept[count] = m->pieces[order[count].piece];
        count++;
    }
    memcpy(m->pieces, kept, (size_t)count * sizeof *kept);
    m->count = count;
done:
    free(counts);
    free(order);
    free(kept);
    free(s.steps);
    return result;
}

static int compare_scores(const void *a, const void *b)
{
    const struct unigram_piece *x = a, *y = b;
    if (x->score != y->score) {
        return x->score < y->score ? 1 : -1;
    }
    int difference = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return difference != 0 ? difference : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static status shrink_model(struct model *m, int64_t wanted)
{
    int64_t enough = (int64_t)(SURPLUS * (double)wanted);
    for (;;) {
        TRY(improve_scores(m));
        if (m->count <= enough) {
            break;
        }
        int64_t size = (int64_t)(KEPT * (double)m->count);
        TRY(drop_pieces(m, number_max(size, enough)));
    }
    int64_t strings = m->count - m->characters, room = wanted - m->characters;
    qsort(m->pieces + m->characters, (size_t)strings, sizeof *m->pieces, compare_scores);
    m->count = m->characters + number_min(strings, room);
    qsort(m->pieces, (size_t)m->count, sizeof *m->pieces, compare_scores);
    return STATUS_OK;
}

status unigram_train(const struct unigram_word *words, int64_t count, int64_t wanted, int workers,
                     struct unigram_piece **out, int64_t *pieces)
{
    struct model m = {.words = words, .word_count = count, .workers = workers};
    *out = NULL;
    TRY(unigram_find_seeds(words, count, SEEDS, &m.pieces, &m.count, &m.characters));
    double sum = 0;
    for (int64_t i = 0; i < m.count; i++) {
        sum += m.pieces[i].score;
    }
    for (int64_t i = 0; i < m.count; i++) {
        m.pieces[i].score = log(m.pieces[i].score / sum);
    }
    status result = shrink_model(&m, wanted);
    piece_trie_free(&m.trie);
    if (result != STATUS_OK) {
        free(m.pieces);
        return result;
    }
    *out = m.pieces;
    *pieces = m.count;
    return STATUS_OK;
}
