#include "kernels/cpu/reference.h"

#include <math.h>
#include <stdlib.h>

#include "base/random.h"

static const double pi = 3.14159265358979323846;

double reference_get(struct tensor t, int64_t row, int64_t column)
{
    int64_t at = row * t.stride + column;
    if (t.dtype == REFERENCE_F64) {
        return ((const double *)t.data)[at];
    }
    return t.dtype == DTYPE_F32 ? ((const float *)t.data)[at]
                                : bf16_to_f32(((const bf16 *)t.data)[at]);
}

void reference_set(struct tensor t, int64_t row, int64_t column, double value)
{
    int64_t at = row * t.stride + column;
    if (t.dtype == REFERENCE_F64) {
        ((double *)t.data)[at] = value;
    } else if (t.dtype == DTYPE_F32) {
        ((float *)t.data)[at] = (float)value;
    } else {
        ((bf16 *)t.data)[at] = f32_to_bf16((float)value);
    }
}

static void add(struct tensor t, int64_t row, int64_t column, double value)
{
    reference_set(t, row, column, reference_get(t, row, column) + value);
}

static bool present(struct tensor t)
{
    return t.data != NULL;
}

/* gelu(x) = x Phi(x), with the normal distribution or its tanh approximation
 * Phi(x) ~ (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks, Gimpel 2016). */
double reference_activation(double x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_GELU_ERF:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    case ACTIVATION_TANH:
        return tanh(x);
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

double reference_activation_slope(double x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH: {
        double t = tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x));
        double inner = sqrt(2.0 / pi) * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
    }
    case ACTIVATION_GELU_ERF:
        return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2.0 * pi);
    case ACTIVATION_TANH:
        return 1.0 - tanh(x) * tanh(x);
    case ACTIVATION_NONE:
        break;
    }
    return 1.0;
}

double reference_keep(struct dropout dropout, int64_t element)
{
    if (!(dropout.probability > 0)) {
        return 1.0;
    }
    float u = random_uniform(dropout.key, (uint64_t)(dropout.first + element));
    return u >= dropout.probability ? 1.0 / (1.0 - (double)dropout.probability) : 0.0;
}

/* ---- matrix products ---- */

void reference_linear_forward(struct tensor y, struct tensor pre, struct tensor x, struct tensor w,
                              struct tensor bias, enum activation act)
{
    for (int64_t n = 0; n < y.rows; n++) {
        for (int64_t m = 0; m < y.columns; m++) {
            double sum = present(bias) ? reference_get(bias, 0, m) : 0.0;
            for (int64_t k = 0; k < x.columns; k++) {
                sum += reference_get(x, n, k) * reference_get(w, m, k);
            }
            if (present(pre)) {
                reference_set(pre, n, m, sum);
            }
            reference_set(y, n, m, reference_activation(sum, act));
        }
    }
}

void reference_linear_backward_input(struct tensor dx, struct tensor dy, struct tensor w,
                                     enum activation act, struct tensor pre)
{
    for (int64_t n = 0; n < dx.rows; n++) {
        for (int64_t k = 0; k < dx.columns; k++) {
            double sum = 0;
            for (int64_t m = 0; m < dy.columns; m++) {
                sum += reference_get(dy, n, m) * reference_get(w, m, k);
            }
            if (present(pre)) {
                sum *= reference_activation_slope(reference_get(pre, n, k), act);
            }
            reference_set(dx, n, k, sum);
        }
    }
}

void reference_linear_backward_weight(struct tensor dw, struct tensor dbias, struct tensor dy,
                                      struct tensor x)
{
    for (int64_t m = 0; m < dw.rows; m++) {
        for (int64_t k = 0; k < dw.columns; k++) {
            double sum = 0;
            for (int64_t n = 0; n < dy.rows; n++) {
                sum += reference_get(dy, n, m) * reference_get(x, n, k);
            }
            add(dw, m, k, sum);
        }
        double sum = 0;
        for (int64_t n = 0; n < dy.rows; n++) {
            sum += reference_get(dy, n, m);
        }
        if (present(dbias)) {
            add(dbias, 0, m, sum);
        }
    }
}

/* ---- SwiGLU and rotary positions ---- */

void reference_swiglu_forward(struct tensor y, struct tensor gate_up)
{
    for (int64_t n = 0; n < y.rows; n++) {
        for (int64_t c = 0; c < y.columns; c++) {
            double gate = reference_get(gate_up, n, c);
            double up = reference_get(gate_up, n, y.columns + c);
            reference_set(y, n, c, gate / (1 + exp(-gate)) * up);
        }
    }
}

void reference_swiglu_backward(struct tensor d_gate_up, struct tensor dy, struct tensor gate_up)
{
    for (int64_t n = 0; n < dy.rows; n++) {
        for (int64_t c = 0; c < dy.columns; c++) {
            double gate = reference_get(gate_up, n, c);
            double up = reference_get(gate_up, n, dy.columns + c);
            double s = 1 / (1 + exp(-gate)), d = reference_get(dy, n, c);
            reference_set(d_gate_up, n, c, d * up * (s + gate * s * (1 - s)));
            reference_set(d_gate_up, n, dy.columns + c, d * gate * s);
        }
    }
}

void reference_rotary_apply(struct tensor x, int64_t width, double theta, const int32_t *positions,
                            bool inverse)
{
    for (int64_t n = 0; n < x.rows; n++) {
        for (int64_t c = 0; c < x.columns; c++) {
            int64_t i = c % width;
            if (i >= width / 2) {
                continue;
            }
            double angle = positions[n] * pow(theta, -2.0 * (double)i / (double)width);
            double cosine = cos(angle), sine = inverse ? -sin(angle) : sin(angle);
            double a = reference_get(x, n, c), b = reference_get(x, n, c + width / 2);
            reference_set(x, n, c, a * cosine - b * sine);
            reference_set(x, n, c + width / 2, b * cosine + a * sine);
        }
    }
}

/* ---- embedding ---- */

void reference_embedding_forward(struct tensor y, const int32_t *tokens, const int32_t *positions,
                                 struct tensor token_table, struct tensor position_table,
                                 struct dropout dropout)
{
    for (int64_t n = 0; n < y.rows; n++) {
        for (int64_t c = 0; c < y.columns; c++) {
            double sum = reference_get(token_table, tokens[n], c);
            if (present(position_table)) {
                sum += reference_get(position_table, positions[n], c);
            }
            reference_set(y, n, c, sum * reference_keep(dropout, n * y.columns + c));
        }
    }
}

void reference_embedding_backward(struct tensor d_token_table, struct tensor d_position_table,
                                  struct tensor dy, const int32_t *tokens, const int32_t *positions,
                                  struct dropout dropout)
{
    for (int64_t n = 0; n < dy.rows; n++) {
        for (int64_t c = 0; c < dy.columns; c++) {
            double part = reference_get(dy, n, c) * reference_keep(dropout, n * dy.columns + c);
            add(d_token_table, tokens[n], c, part);
            if (present(d_position_table)) {
                add(d_position_table, positions[n], c, part);
            }
        }
    }
}

/* ---- some of the rows ---- */

void reference_gather_rows(struct tensor y, struct tensor x, const int32_t *rows)
{
    for (int64_t i = 0; i < y.rows; i++) {
        for (int64_t c = 0; c < y.columns; c++) {
            reference_set(y, i, c, reference_get(x, rows[i], c));
        }
    }
}

void reference_scatter_rows(struct tensor dx, struct tensor dy, const int32_t *rows, bool overwrite)
{
    for (int64_t n = 0; overwrite && n < dx.rows; n++) {
        for (int64_t c = 0; c < dx.columns; c++) {
            reference_set(dx, n, c, 0);
        }
    }
    for (int64_t i = 0; i < dy.rows; i++) {
        for (int64_t c = 0; c < dy.columns; c++) {
            add(dx, rows[i], c, reference_get(dy, i, c));
        }
    }
}

/* ---- residual and norm ---- */

static void norm_statistics(struct tensor z, int64_t row, enum norm_kind kind, double epsilon,
                            double *mean, double *reciprocal)
{
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < z.columns; c++) {
        sum += reference_get(z, row, c);
    }
    *mean = kind == NORM_LAYER ? sum / (double)z.columns : 0.0;
    for (int64_t c = 0; c < z.columns; c++) {
        double apart = reference_get(z, row, c) - *mean;
        squares += apart * apart;
    }
    *reciprocal = 1.0 / sqrt(squares / (double)z.columns + epsilon);
}

void reference_residual_norm_forward(struct tensor z, struct tensor y, struct tensor statistics,
                                     struct tensor x, struct tensor delta, struct tensor gamma,
                                     struct tensor beta, enum norm_kind kind, double epsilon,
                                     struct dropout dropout)
{
    if (present(delta)) {
        for (int64_t n = 0; n < x.rows; n++) {
            for (int64_t c = 0; c < x.columns; c++) {
                double keep = reference_keep(dropout, n * x.columns + c);
                reference_set(z, n, c, reference_get(x, n, c) + keep * reference_get(delta, n, c));
            }
        }
    }
    if (!present(y)) {
        return;
    }
    struct tensor in = present(delta) ? z : x;
    for (int64_t n = 0; n < in.rows; n++) {
        double mean, reciprocal;
        norm_statistics(in, n, kind, epsilon, &mean, &reciprocal);
        reference_set(statistics, n, 0, mean);
        reference_set(statistics, n, 1, reciprocal);
        for (int64_t c = 0; c < in.columns; c++) {
            double shift = present(beta) ? reference_get(beta, 0, c) : 0.0;
            double normal = (reference_get(in, n, c) - mean) * reciprocal;
            reference_set(y, n, c, normal * reference_get(gamma, 0, c) + shift);
        }
    }
}

/* The gradient of y. */
static double norm_arriving(struct tensor dz, struct tensor dy, int64_t n, int64_t c,
                            enum norm_stream stream)
{
    return reference_get(dy, n, c) + (stream == NORM_STREAM_NORM ? reference_get(dz, n, c) : 0.0);
}

/* With h = (z - mean) r and g = dy gamma: dz = r (g - mean(g) - h mean(g h)), where the term
 * mean(g) belongs to the subtracted mean and is absent for RMS. */
void reference_residual_norm_backward(struct tensor dz, struct tensor ddelta, struct tensor dgamma,
                                      struct tensor dbeta, struct tensor dy, struct tensor z,
                                      struct tensor statistics, struct tensor gamma,
                                      enum norm_kind kind, enum norm_stream stream,
                                      struct dropout dropout)
{
    int64_t columns = dy.columns;
    for (int64_t n = 0; n < dy.rows; n++) {
        double mean = reference_get(statistics, n, 0), r = reference_get(statistics, n, 1);
        double sum_g = 0, sum_gh = 0;
        for (int64_t c = 0; c < columns; c++) {
            double g = norm_arriving(dz, dy, n, c, stream) * reference_get(gamma, 0, c);
            sum_g += g;
            sum_gh += g * (reference_get(z, n, c) - mean) * r;
        }
        double mean_g = kind == NORM_LAYER ? sum_g / (double)columns : 0.0;
        double mean_gh = sum_gh / (double)columns;
        for (int64_t c = 0; c < columns; c++) {
            double h = (reference_get(z, n, c) - mean) * r;
            double d = norm_arriving(dz, dy, n, c, stream);
            add(dgamma, 0, c, d * h);
            if (present(dbeta)) {
                add(dbeta, 0, c, d);
            }
            double part = r * (d * reference_get(gamma, 0, c) - mean_g - h * mean_gh);
            double before = stream == NORM_STREAM_SUM ? reference_get(dz, n, c) : 0.0;
            reference_set(dz, n, c, before + part);
            if (present(ddelta)) {
                double keep = reference_keep(dropout, n * columns + c);
                reference_set(ddelta, n, c, (before + part) * keep);
            }
        }
    }
}

/* ---- attention, one query row at a time ----
 *
 * s_j = scale q . k_j over the visible keys, p = softmax(s), o = sum_j m_j p_j v_j, where m is the
 * dropout factor. Backward, with d = sum_j m_j p_j (d_o . v_j) = d_o . o:
 *   dv_j += m_j p_j d_o,   ds_j = p_j (m_j (d_o . v_j) - d),
 *   dq = scale sum_j ds_j k_j,   dk_j += scale ds_j q. */

/* One query row of one head of one sequence. */
struct row {
    const struct attention *a;
    int head, kv_head;
    int64_t row;                      /* of q and o */
    int64_t first_key;                /* row of this sequence's key 0 */
    int64_t begin, end;               /* visible keys, counted within the sequence */
    int64_t hidden_begin, hidden_end; /* but for these */
};

static double dot(struct tensor a, int64_t a_row, int64_t a_head, struct tensor b, int64_t b_row,
                  int64_t b_head, int64_t width)
{
    double sum = 0;
    for (int64_t d = 0; d < width; d++) {
        sum += reference_get(a, a_row, a_head * width + d) *
               reference_get(b, b_row, b_head * width + d);
    }
    return sum;
}

static double keep(const struct row *r, int64_t key)
{
    const struct attention *a = r->a;
    int64_t row = r->row * (a->all_heads > 0 ? a->all_heads : a->heads) + a->first_head + r->head;
    return reference_keep(a->dropout, row * a->longest_k + key);
}

static struct row row_of(const struct attention *a, int64_t sequence, int64_t i, int head)
{
    int64_t n = a->cu_q[sequence + 1] - a->cu_q[sequence];
    int64_t m = a->cu_k[sequence + 1] - a->cu_k[sequence];
    int64_t end = a->causal ? i + m - n + 1 : m;
    int64_t begin = a->window > 0 && end > a->window ? end - a->window : 0;
    struct row r = {a,
                    head,
                    head / (a->heads / a->kv_heads),
                    a->cu_q[sequence] + i,
                    a->cu_k[sequence],
                    begin,
                    end < 0 ? 0 : end,
                    0,
                    0};
    if (a->branches != NULL && i >= a->branches[2 * sequence + 1]) {
        r.hidden_begin = a->branches[2 * sequence];
        r.hidden_end = a->branches[2 * sequence + 1];
    }
    return r;
}

/* The visible scores of a row; returns the logarithm of the sum of their exponentials. */
static double scores(double *s, const struct row *r, struct tensor q, struct tensor keys)
{
    int64_t width = r->a->head_width;
    double most = -INFINITY, sum = 0;
    for (int64_t j = r->begin; j < r->end; j++) {
        bool hidden = j >= r->hidden_begin && j < r->hidden_end;
        s[j] = hidden ? -INFINITY
                      : r->a->scale *
                            dot(q, r->row, r->head, keys, r->first_key + j, r->kv_head, width);
        most = s[j] > most ? s[j] : most;
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        sum += exp(s[j] - most);
    }
    return r->begin < r->end ? most + log(sum) : -INFINITY;
}

static void forward_row(struct tensor o, struct tensor lse, struct tensor q, struct tensor keys,
                        struct tensor values, const struct row *r, double *s)
{
    int64_t width = r->a->head_width;
    double logsum = scores(s, r, q, keys);
    for (int64_t d = 0; d < width; d++) {
        double sum = 0;
        for (int64_t j = r->begin; j < r->end; j++) {
            sum += keep(r, j) * exp(s[j] - logsum) *
                   reference_get(values, r->first_key + j, r->kv_head * width + d);
        }
        reference_set(o, r->row, r->head * width + d, sum);
    }
    if (lse.data != NULL) {
        reference_set(lse, r->head, r->row, logsum);
    }
}

static void backward_row(struct tensor dq, double *dkeys, double *dvalues, struct tensor d_o,
                         struct tensor q, struct tensor keys, struct tensor values, struct tensor o,
                         struct tensor lse, const struct row *r, double *s)
{
    int64_t width = r->a->head_width, columns = width * r->a->kv_heads;
    scores(s, r, q, keys);
    double logsum = reference_get(lse, r->head, r->row);
    double d_dot_o = dot(d_o, r->row, r->head, o, r->row, r->head, width);
    for (int64_t d = 0; d < width; d++) {
        reference_set(dq, r->row, r->head * width + d, 0);
    }
    double *sums = calloc((size_t)width, sizeof *sums);
    for (int64_t j = r->begin; sums != NULL && j < r->end; j++) {
        double p = exp(s[j] - logsum);
        double dp = dot(d_o, r->row, r->head, values, r->first_key + j, r->kv_head, width);
        double ds = r->a->scale * p * (keep(r, j) * dp - d_dot_o);
        for (int64_t d = 0; d < width; d++) {
            int64_t at = (r->first_key + j) * columns + r->kv_head * width + d;
            dvalues[at] += keep(r, j) * p * reference_get(d_o, r->row, r->head * width + d);
            dkeys[at] += ds * reference_get(q, r->row, r->head * width + d);
            sums[d] += ds * reference_get(keys, r->first_key + j, r->kv_head * width + d);
        }
    }
    for (int64_t d = 0; sums != NULL && d < width; d++) {
        reference_set(dq, r->row, r->head * width + d, sums[d]);
    }
    free(sums);
}

void reference_attention_forward(struct tensor o, struct tensor lse, struct tensor q,
                                 struct tensor keys, struct tensor values,
                                 const struct attention *a)
{
    double *s = malloc((size_t)(keys.rows + 1) * sizeof *s);
    for (int64_t i = 0; s != NULL && i < a->sequences; i++) {
        for (int64_t row = 0; row < a->cu_q[i + 1] - a->cu_q[i]; row++) {
            for (int head = 0; head < a->heads; head++) {
                struct row r = row_of(a, i, row, head);
                forward_row(o, lse, q, keys, values, &r, s);
            }
        }
    }
    free(s);
}

void reference_attention_backward(struct tensor dq, struct tensor dkeys, struct tensor dvalues,
                                  struct tensor d_o, struct tensor q, struct tensor keys,
                                  struct tensor values, struct tensor o, struct tensor lse,
                                  const struct attention *a)
{
    size_t count = (size_t)(keys.rows * keys.columns + 1);
    double *s = malloc((size_t)(keys.rows + 1) * sizeof *s);
    double *dk = calloc(count, sizeof *dk), *dv = calloc(count, sizeof *dv);
    bool ready = s != NULL && dk != NULL && dv != NULL;
    for (int64_t i = 0; ready && i < a->sequences; i++) {
        for (int64_t row = 0; row < a->cu_q[i + 1] - a->cu_q[i]; row++) {
            for (int head = 0; head < a->heads; head++) {
                struct row r = row_of(a, i, row, head);
                backward_row(dq, dk, dv, d_o, q, keys, values, o, lse, &r, s);
            }
        }
    }
    for (int64_t i = 0; ready && i < a->sequences; i++) {
        for (int64_t row = a->cu_k[i]; row < a->cu_k[i + 1]; row++) {
            for (int64_t c = 0; c < keys.columns; c++) {
                reference_set(dkeys, row, c, dk[row * keys.columns + c]);
                reference_set(dvalues, row, c, dv[row * keys.columns + c]);
            }
        }
    }
    free(s);
    free(dk);
    free(dv);
}

/* ---- classifier ---- */

void reference_classifier_logits(struct tensor logits, struct tensor x, struct tensor w,
                                 struct tensor bias)
{
    for (int64_t n = 0; n < logits.rows; n++) {
        for (int64_t v = 0; v < logits.columns; v++) {
            double sum = present(bias) ? reference_get(bias, 0, v) : 0;
            for (int64_t c = 0; c < x.columns; c++) {
                sum += reference_get(x, n, c) * reference_get(w, v, c);
            }
            reference_set(logits, n, v, sum);
        }
    }
}

/* entropy = - sum p log p, and the mean of l. */
static void classifier_moments(int64_t n, const struct classifier *c, const double *logits,
                               double log_sum)
{
    double entropy = 0, total = 0;
    for (int64_t v = 0; v < c->vocabulary; v++) {
        entropy += exp(logits[v] - log_sum) * (log_sum - logits[v]);
        total += logits[v];
    }
    c->entropies[n] = (float)entropy;
    c->mean_logits[n] = (float)(total / (double)c->vocabulary);
}

/* One row: loss = log(sum exp(l)) - l[target], d l = (softmax(l) - onehot) scale. */
static void classifier_row(double *loss, int32_t *best, struct tensor dx, struct tensor dw,
                           struct tensor x, struct tensor w, int64_t n, int32_t target,
                           const struct classifier *c, const double *logits)
{
    double most = -INFINITY, sum = 0;
    int32_t which = 0;
    for (int64_t v = 0; v < c->vocabulary; v++) {
        if (logits[v] > most) {
            most = logits[v];
            which = (int32_t)v;
        }
    }
    for (int64_t v = 0; v < c->vocabulary; v++) {
        sum += exp(logits[v] - most);
    }
    bool counted = target != c->ignored;
    *loss = counted ? most + log(sum) - logits[target] : 0.0;
    if (best != NULL) {
        best[n] = which;
    }
    if (c->entropies != NULL) {
        classifier_moments(n, c, logits, most + log(sum));
    }
    if (!c->gradient) {
        return;
    }
    double scale = c->row_scale != NULL ? c->row_scale[n] : 1.0;
    for (int64_t k = 0; k < x.columns; k++) {
        double gradient = 0;
        for (int64_t v = 0; counted && v < c->vocabulary; v++) {
            double p = exp(logits[v] - most) / sum;
            double d = scale * (p - (v == target ? 1.0 : 0.0));
            gradient += d * reference_get(w, v, k);
            add(dw, v, k, d * reference_get(x, n, k));
            if (k == 0 && present(c->dbias)) {
                add(c->dbias, 0, v, d);
            }
        }
        reference_set(dx, n, k, gradient);
    }
}

void reference_classifier_run(double *losses, int32_t *best, struct tensor dx, struct tensor dw,
                              struct tensor x, struct tensor w, const int32_t *targets,
                              const struct classifier *c)
{
    double *logits = malloc((size_t)c->vocabulary * sizeof *logits);
    for (int64_t n = 0; logits != NULL && n < x.rows; n++) {
        for (int64_t v = 0; v < c->vocabulary; v++) {
            logits[v] = present(c->bias) ? reference_get(c->bias, 0, v) : 0;
            for (int64_t k = 0; k < x.columns; k++) {
                logits[v] += reference_get(x, n, k) * reference_get(w, v, k);
            }
        }
        classifier_row(&losses[n], best, dx, dw, x, w, n, targets[n], c, logits);
    }
    free(logits);
}

/* ---- flat slices ---- */

static bf16 rounded(float weight, const struct rounding *r, int64_t i)
{
    if (!r->stochastic) {
        return f32_to_bf16(weight);
    }
    int64_t row = (r->offset + i) / r->columns, column = (r->offset + i) % r->columns;
    int64_t index = r->first + row * r->pitch + column;
    return f32_to_bf16_drawn(weight, random_half(r->key, (uint64_t)index));
}

void reference_weights_round(bf16 *copy, const float *weights, int64_t count,
                             const struct rounding *rounding)
{
    for (int64_t i = 0; i < count; i++) {
        copy[i] = rounded(weights[i], rounding, i);
    }
}

void reference_adamw_update(float *weights, bf16 *copy, float *moment1, float *moment2,
                            const float *gradient, int64_t count, const struct adamw *s)
{
    for (int64_t i = 0; i < count; i++) {
        double g = (double)gradient[i] * s->gradient_scale;
        double m = s->beta1 * (double)moment1[i] + (1.0 - s->beta1) * g;
        double v = s->beta2 * (double)moment2[i] + (1.0 - s->beta2) * g * g;
        double step = m / s->correction1 / (sqrt(v / s->correction2) + s->epsilon);
        double w = weights[i];
        w -= s->learning_rate * (step + s->weight_decay * w);
        moment1[i] = (float)m;
        moment2[i] = (float)v;
        weights[i] = (float)w;
        if (copy != NULL) {
            copy[i] = rounded(weights[i], &s->rounding, i);
        }
    }
}

static double lamb_direction(double w, double m, double v, const struct adamw *s)
{
    return m / s->correction1 / (sqrt(v / s->correction2) + s->epsilon) + s->weight_decay * w;
}

void reference_lamb_moments(double *sums, const float *weights, float *moment1, float *moment2,
                            const float *gradient, int64_t count, const struct adamw *s)
{
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < count; i++) {
        double g = (double)gradient[i] * s->gradient_scale, w = weights[i];
        moment1[i] = (float)(s->beta1 * (double)moment1[i] + (1.0 - s->beta1) * g);
        moment2[i] = (float)(s->beta2 * (double)moment2[i] + (1.0 - s->beta2) * g * g);
        double u = lamb_direction(w, moment1[i], moment2[i], s);
        sums[0] += w * w;
        sums[1] += u * u;
    }
}

void reference_lamb_apply(float *weights, bf16 *copy, const float *moment1, const float *moment2,
                          int64_t count, const struct adamw *s)
{
    for (int64_t i = 0; i < count; i++) {
        double u = lamb_direction(weights[i], moment1[i], moment2[i], s);
        weights[i] = (float)(weights[i] - s->learning_rate * u);
        if (copy != NULL) {
            copy[i] = rounded(weights[i], &s->rounding, i);
        }
    }
}

double reference_sum_of_squares(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * x[i];
    }
    return sum;
}

double reference_sum_of_floats(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i];
    }
    return sum;
}

void reference_convert(struct tensor to, struct tensor from)
{
    for (int64_t n = 0; n < to.rows; n++) {
        for (int64_t c = 0; c < to.columns; c++) {
            reference_set(to, n, c, reference_get(from, n, c));
        }
    }
}
