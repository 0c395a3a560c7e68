/* Implements the oracle of attention (oracle.h), one query row at a time.
 *
 * Forward: s_j = scale q . k_j for the visible keys j, p = softmax(s), o = sum_j m_j p_j v_j, where
 * m_j is the dropout factor. Backward, with d = sum_j m_j p_j (d_o . v_j) = d_o . o:
 *   dv_j += m_j p_j d_o,   ds_j = p_j (m_j (d_o . v_j) - d),
 *   dq = scale sum_j ds_j k_j,   dk_j += scale ds_j q
 * With a soft-cap c, s_j = c tanh(scale q . k_j / c), and ds_j has the factor 1 - (s_j / c)^2. A
 * bias is added to s_j after it; its gradient is ds_j without this factor. */
#include <math.h>
#include <stdlib.h>

#include "tests/kernels/oracle.h"

/* A query row of one head and the keys that it attends to. */
struct query_row {
    const struct attention *a;
    int head, kv_head;
    int64_t row;                      /* in q and o */
    int64_t position;                 /* among the keys of the sequence */
    int64_t first_key;                /* row of key 0 of the sequence */
    int64_t begin, end;               /* range of visible keys of the sequence */
    int64_t hidden_begin, hidden_end; /* keys that are not visible in this range */
};

static double compute_dot(struct tensor a, int64_t a_row, int64_t a_head, struct tensor b,
                          int64_t b_row, int64_t b_head, int64_t width)
{
    double sum = 0;
    for (int64_t d = 0; d < width; d++) {
        sum += oracle_get(a, a_row, a_head * width + d) * oracle_get(b, b_row, b_head * width + d);
    }
    return sum;
}

static double get_dropout_factor(const struct query_row *r, int64_t key)
{
    const struct attention *a = r->a;
    int64_t row = r->row * (a->all_heads > 0 ? a->all_heads : a->heads) + a->first_head + r->head;
    return oracle_dropout_factor(a->dropout, row * ((a->longest_k + 7) / 8 * 8) + key);
}

static struct query_row make_query_row(const struct attention *a, int64_t sequence, int64_t i,
                                       int head)
{
    int64_t queries = a->cu_q[sequence + 1] - a->cu_q[sequence];
    int64_t keys = a->cu_k[sequence + 1] - a->cu_k[sequence];
    int64_t position = i + keys - queries; /* the key that is the query itself */
    int64_t end = a->causal ? position + 1 : a->window > 0 ? position + a->window : keys;
    int64_t begin = a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
    end = end < keys ? end : keys;
    struct query_row r = {a,
                          head,
                          head / (a->heads / a->kv_heads),
                          a->cu_q[sequence] + i,
                          i + keys - queries,
                          a->cu_k[sequence],
                          begin,
                          end < 0 ? 0 : end,
                          0,
                          0};
    if (a->shared_prefix_offsets != NULL && i >= a->shared_prefix_offsets[2 * sequence + 1]) {
        r.hidden_begin = a->shared_prefix_offsets[2 * sequence];
        r.hidden_end = a->shared_prefix_offsets[2 * sequence + 1];
    }
    return r;
}

/* Returns the bucket of a key: the distance to it, or for long distances its logarithm. Keys after
 * the query have the second half of the buckets. */
static int64_t compute_bucket(const struct query_row *r, int64_t key)
{
    int64_t distance = key - r->position, buckets = r->a->bias.table.rows;
    if (!r->a->causal) {
        buckets /= 2;
    }
    int64_t after = !r->a->causal && distance > 0 ? buckets : 0, exact = buckets / 2;
    double size = fabs((double)distance);
    if (size < (double)exact) {
        return after + (int64_t)size;
    }
    /* Exact results of the logarithms are integers or far from one: 1e-9 covers their rounding. */
    double octaves =
        log(size / (double)exact) / log((double)r->a->bias.max_distance / (double)exact);
    int64_t bucket = exact + (int64_t)(octaves * (double)(buckets - exact) + 1e-9);
    return after + (bucket < buckets ? bucket : buckets - 1);
}

static bool has_bias(const struct attention *a)
{
    return a->bias.table.data != NULL;
}

/* Returns the score of a key before the bias. */
static double compute_capped_score(const struct query_row *r, struct tensor q, struct tensor keys,
                                   int64_t key)
{
    double cap = (double)r->a->softcap;
    double score = (double)r->a->scale * compute_dot(q, r->row, r->head, keys, r->first_key + key,
                                                     r->kv_head, r->a->head_width);
    return cap > 0 ? cap * tanh(score / cap) : score;
}

static double compute_bias(const struct query_row *r, int64_t key)
{
    return has_bias(r->a) ? oracle_get(r->a->bias.table, compute_bucket(r, key), r->head) : 0;
}

/* Computes the scores of a row; returns their log-sum-exp. */
static double compute_scores(double *s, const struct query_row *r, struct tensor q,
                             struct tensor keys)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = r->begin; j < r->end; j++) {
        bool hidden = j >= r->hidden_begin && j < r->hidden_end;
        s[j] = hidden ? -INFINITY : compute_capped_score(r, q, keys, j) + compute_bias(r, j);
        max = s[j] > max ? s[j] : max;
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        sum += exp(s[j] - max);
    }
    return r->begin < r->end ? max + log(sum) : -INFINITY;
}

static void compute_forward_row(struct tensor o, struct tensor lse, struct tensor q,
                                struct tensor keys, struct tensor values, const struct query_row *r,
                                double *s)
{
    int64_t width = r->a->head_width;
    double logsum = compute_scores(s, r, q, keys);
    for (int64_t j = r->begin; j < r->end; j++) {
        s[j] = get_dropout_factor(r, j) * exp(s[j] - logsum);
    }
    for (int64_t d = 0; d < width; d++) {
        double sum = 0;
        for (int64_t j = r->begin; j < r->end; j++) {
            sum += s[j] * oracle_get(values, r->first_key + j, r->kv_head * width + d);
        }
        oracle_set(o, r->row, r->head * width + d, sum);
    }
    if (lse.data != NULL) {
        oracle_set(lse, r->head, r->row, logsum);
    }
}

static void compute_backward_row(struct tensor dq, double *dkeys, double *dvalues,
                                 struct tensor d_o, struct tensor q, struct tensor keys,
                                 struct tensor values, struct tensor o, struct tensor lse,
                                 const struct query_row *r, double *s)
{
    int64_t width = r->a->head_width, columns = width * r->a->kv_heads;
    compute_scores(s, r, q, keys);
    double logsum = oracle_get(lse, r->head, r->row);
    double do_dot_o = compute_dot(d_o, r->row, r->head, o, r->row, r->head, width);
    for (int64_t d = 0; d < width; d++) {
        oracle_set(dq, r->row, r->head * width + d, 0);
    }
    double *sums = calloc((size_t)width, sizeof *sums);
    for (int64_t j = r->begin; sums != NULL && j < r->end; j++) {
        double p = exp(s[j] - logsum), factor = get_dropout_factor(r, j);
        double dp = compute_dot(d_o, r->row, r->head, values, r->first_key + j, r->kv_head, width);
        double ds = p * (factor * dp - do_dot_o);
        if (has_bias(r->a) && r->a->bias.gradient.data != NULL) {
            int64_t bucket = compute_bucket(r, j);
            oracle_set(r->a->bias.gradient, bucket, r->head,
                       oracle_get(r->a->bias.gradient, bucket, r->head) + ds);
        }
        ds *= r->a->scale;
        if (r->a->softcap > 0 && p > 0) { /* a hidden key has p = 0 and no finite score */
            double t = (s[j] - compute_bias(r, j)) / (double)r->a->softcap;
            ds *= 1 - t * t;
        }
        for (int64_t d = 0; d < width; d++) {
            int64_t at = (r->first_key + j) * columns + r->kv_head * width + d;
            dvalues[at] += factor * p * oracle_get(d_o, r->row, r->head * width + d);
            dkeys[at] += ds * oracle_get(q, r->row, r->head * width + d);
            sums[d] += ds * oracle_get(keys, r->first_key + j, r->kv_head * width + d);
        }
    }
    for (int64_t d = 0; sums != NULL && d < width; d++) {
        oracle_set(dq, r->row, r->head * width + d, sums[d]);
    }
    free(sums);
}

void oracle_attention_forward(struct tensor o, struct tensor lse, struct tensor q,
                              struct tensor keys, struct tensor values, const struct attention *a)
{
    double *s = malloc((size_t)(keys.rows + 1) * sizeof *s);
    for (int64_t i = 0; s != NULL && i < a->sequences; i++) {
        for (int64_t row = 0; row < a->cu_q[i + 1] - a->cu_q[i]; row++) {
            for (int head = 0; head < a->heads; head++) {
                struct query_row r = make_query_row(a, i, row, head);
                compute_forward_row(o, lse, q, keys, values, &r, s);
            }
        }
    }
    free(s);
}

void oracle_attention_backward(struct tensor dq, struct tensor dkeys, struct tensor dvalues,
                               struct tensor d_o, struct tensor q, struct tensor keys,
                               struct tensor values, struct tensor o, struct tensor lse,
                               const struct attention *a)
{
    size_t count = (size_t)(keys.rows * keys.columns + 1);
    double *s = malloc((size_t)(keys.rows + 1) * sizeof *s);
    double *dk = calloc(count, sizeof *dk), *dv = calloc(count, sizeof *dv);
    bool is_allocated = s != NULL && dk != NULL && dv != NULL;
    for (int64_t i = 0; is_allocated && i < a->sequences; i++) {
        for (int64_t row = 0; row < a->cu_q[i + 1] - a->cu_q[i]; row++) {
            for (int head = 0; head < a->heads; head++) {
                struct query_row r = make_query_row(a, i, row, head);
                compute_backward_row(dq, dk, dv, d_o, q, keys, values, o, lse, &r, s);
            }
        }
    }
    for (int64_t i = 0; is_allocated && i < a->sequences; i++) {
        for (int64_t row = a->cu_k[i]; row < a->cu_k[i + 1]; row++) {
            for (int64_t c = 0; c < keys.columns; c++) {
                oracle_set(dkeys, row, c, dk[row * keys.columns + c]);
                oracle_set(dvalues, row, c, dv[row * keys.columns + c]);
            }
        }
    }
    free(s);
    free(dk);
    free(dv);
}
