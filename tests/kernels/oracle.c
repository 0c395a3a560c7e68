/* Implements the oracle (oracle.h): one loop per formula, in double precision. */
#include "tests/kernels/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "base/random.h"

double oracle_largest(struct tensor t)
{
    double largest = 0;
    for (int64_t i = 0; i < t.rows; i++) {
        for (int64_t j = 0; j < t.columns; j++) {
            double value = fabs(oracle_get(t, i, j)); /* with fmax, gcc 12 crashes for arm64 */
            largest = value > largest ? value : largest;
        }
    }
    return largest;
}

static void add_to_element(struct tensor t, int64_t row, int64_t column, double value)
{
    oracle_set(t, row, column, oracle_get(t, row, column) + value);
}

static bool is_present(struct tensor t)
{
    return t.data != NULL;
}

double oracle_dropout_factor(struct dropout dropout, int64_t element)
{
    if (!(dropout.probability > 0)) {
        return 1.0;
    }
    double threshold = floor((double)dropout.probability * 65536 + 0.5);
    uint32_t drawn = random_u16(dropout.key, (uint64_t)(dropout.first + element));
    return drawn >= threshold ? 65536 / (65536 - threshold) : 0.0;
}

/* ---- matrix multiplication ---- */

void oracle_linear_forward(struct tensor y, struct tensor pre, struct tensor x, struct tensor w,
                           struct tensor bias, enum activation act)
{
    for (int64_t n = 0; n < y.rows; n++) {
        for (int64_t m = 0; m < y.columns; m++) {
            double sum = is_present(bias) ? oracle_get(bias, 0, m) : 0.0;
            for (int64_t k = 0; k < x.columns; k++) {
                sum += oracle_get(x, n, k) * oracle_get(w, m, k);
            }
            if (is_present(pre)) {
                oracle_set(pre, n, m, sum);
            }
            oracle_set(y, n, m, oracle_activation(sum, act));
        }
    }
}

void oracle_linear_backward_input(struct tensor dx, struct tensor dy, struct tensor w,
                                  enum activation act, struct tensor pre)
{
    for (int64_t n = 0; n < dx.rows; n++) {
        for (int64_t k = 0; k < dx.columns; k++) {
            double sum = 0;
            for (int64_t m = 0; m < dy.columns; m++) {
                sum += oracle_get(dy, n, m) * oracle_get(w, m, k);
            }
            if (is_present(pre)) {
                sum *= oracle_activation_derivative(oracle_get(pre, n, k), act);
            }
            oracle_set(dx, n, k, sum);
        }
    }
}

void oracle_linear_backward_weight(struct tensor dw, struct tensor dbias, struct tensor dy,
                                   struct tensor x)
{
    for (int64_t m = 0; m < dw.rows; m++) {
        for (int64_t k = 0; k < dw.columns; k++) {
            double sum = 0;
            for (int64_t n = 0; n < dy.rows; n++) {
                sum += oracle_get(dy, n, m) * oracle_get(x, n, k);
            }
            add_to_element(dw, m, k, sum);
        }
        double sum = 0;
        for (int64_t n = 0; n < dy.rows; n++) {
            sum += oracle_get(dy, n, m);
        }
        if (is_present(dbias)) {
            add_to_element(dbias, 0, m, sum);
        }
    }
}

/* ---- rotary position embedding ---- */

void oracle_rotary_apply(struct tensor x, int64_t head_width, int64_t rotated, double theta,
                         const int32_t *positions, bool inverse)
{
    for (int64_t n = 0; n < x.rows; n++) {
        for (int64_t c = 0; c < x.columns; c++) {
            int64_t i = c % head_width;
            if (i >= rotated / 2) {
                continue;
            }
            double angle = positions[n] * pow(theta, -2.0 * (double)i / (double)rotated);
            double cosine = cos(angle), sine = inverse ? -sin(angle) : sin(angle);
            double a = oracle_get(x, n, c), b = oracle_get(x, n, c + rotated / 2);
            oracle_set(x, n, c, a * cosine - b * sine);
            oracle_set(x, n, c + rotated / 2, b * cosine + a * sine);
        }
    }
}

/* ---- embedding ---- */

void oracle_embedding_forward(struct tensor y, const int32_t *tokens, const int32_t *positions,
                              struct tensor token_table, struct tensor position_table,
                              struct dropout dropout)
{
    for (int64_t n = 0; n < y.rows; n++) {
        for (int64_t c = 0; c < y.columns; c++) {
            double sum = oracle_get(token_table, tokens[n], c);
            if (is_present(position_table)) {
                sum += oracle_get(position_table, positions[n], c);
            }
            oracle_set(y, n, c, sum * oracle_dropout_factor(dropout, n * y.columns + c));
        }
    }
}

void oracle_embedding_backward(struct tensor d_token_table, struct tensor d_position_table,
                               struct tensor dy, const int32_t *tokens, const int32_t *positions,
                               struct dropout dropout)
{
    for (int64_t n = 0; n < dy.rows; n++) {
        for (int64_t c = 0; c < dy.columns; c++) {
            double factor = oracle_dropout_factor(dropout, n * dy.columns + c);
            double gradient = oracle_get(dy, n, c) * factor;
            add_to_element(d_token_table, tokens[n], c, gradient);
            if (is_present(d_position_table)) {
                add_to_element(d_position_table, positions[n], c, gradient);
            }
        }
    }
}

/* ---- selected rows ---- */

void oracle_gather_rows(struct tensor y, struct tensor x, const int32_t *rows)
{
    for (int64_t i = 0; i < y.rows; i++) {
        for (int64_t c = 0; c < y.columns; c++) {
            oracle_set(y, i, c, oracle_get(x, rows[i], c));
        }
    }
}

void oracle_scatter_rows(struct tensor dx, struct tensor dy, const int32_t *rows, bool overwrite)
{
    for (int64_t n = 0; overwrite && n < dx.rows; n++) {
        for (int64_t c = 0; c < dx.columns; c++) {
            oracle_set(dx, n, c, 0);
        }
    }
    for (int64_t i = 0; i < dy.rows; i++) {
        for (int64_t c = 0; c < dy.columns; c++) {
            add_to_element(dx, rows[i], c, oracle_get(dy, i, c));
        }
    }
}

/* ---- residual addition and norm ---- */

static void compute_norm_statistics(struct tensor z, int64_t row, enum norm_kind kind,
                                    double epsilon, double *mean, double *reciprocal)
{
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < z.columns; c++) {
        sum += oracle_get(z, row, c);
    }
    *mean = kind == NORM_LAYER ? sum / (double)z.columns : 0.0;
    for (int64_t c = 0; c < z.columns; c++) {
        double difference = oracle_get(z, row, c) - *mean;
        squares += difference * difference;
    }
    *reciprocal = 1.0 / sqrt(squares / (double)z.columns + epsilon);
}

/* Returns an element of gamma; 1 if the norm has no weight. */
static double get_gamma(struct tensor gamma, int64_t c)
{
    return is_present(gamma) ? oracle_get(gamma, 0, c) : 1.0;
}

void oracle_residual_norm_forward(struct tensor z, struct tensor y, struct tensor statistics,
                                  struct tensor x, struct tensor delta, struct tensor gamma,
                                  struct tensor beta, enum norm_kind kind, double epsilon,
                                  struct dropout dropout)
{
    if (is_present(delta)) {
        for (int64_t n = 0; n < x.rows; n++) {
            for (int64_t c = 0; c < x.columns; c++) {
                double factor = oracle_dropout_factor(dropout, n * x.columns + c);
                oracle_set(z, n, c, oracle_get(x, n, c) + factor * oracle_get(delta, n, c));
            }
        }
    }
    if (!is_present(y)) {
        return;
    }
    struct tensor in = is_present(delta) ? z : x;
    for (int64_t n = 0; n < in.rows; n++) {
        double mean, reciprocal;
        compute_norm_statistics(in, n, kind, epsilon, &mean, &reciprocal);
        oracle_set(statistics, n, 0, mean);
        oracle_set(statistics, n, 1, reciprocal);
        for (int64_t c = 0; c < in.columns; c++) {
            double shift = is_present(beta) ? oracle_get(beta, 0, c) : 0.0;
            double normal = (oracle_get(in, n, c) - mean) * reciprocal;
            oracle_set(y, n, c, normal * get_gamma(gamma, c) + shift);
        }
    }
}

/* Returns the gradient of y. After a post-norm, the residual stream continues from y, so that dz is
 * part of it. */
static double get_output_gradient(struct tensor dz, struct tensor dy, int64_t n, int64_t c,
                                  enum norm_residual residual)
{
    return oracle_get(dy, n, c) + (residual == NORM_RESIDUAL_POST ? oracle_get(dz, n, c) : 0.0);
}

/* With h = (z - mean) r and g = dy gamma: dz = r (g - mean(g) - h mean(g h)). RMS norm subtracts no
 * mean; there, the term mean(g) is absent. */
void oracle_residual_norm_backward(struct tensor dz, struct tensor ddelta, struct tensor dgamma,
                                   struct tensor dbeta, struct tensor dbias, struct tensor dy,
                                   struct tensor z, struct tensor statistics, struct tensor gamma,
                                   enum norm_kind kind, enum norm_residual residual,
                                   struct dropout dropout)
{
    int64_t columns = dy.columns;
    for (int64_t n = 0; n < dy.rows; n++) {
        double mean = oracle_get(statistics, n, 0), r = oracle_get(statistics, n, 1);
        double sum_g = 0, sum_gh = 0;
        for (int64_t c = 0; c < columns; c++) {
            double g = get_output_gradient(dz, dy, n, c, residual) * get_gamma(gamma, c);
            sum_g += g;
            sum_gh += g * (oracle_get(z, n, c) - mean) * r;
        }
        double mean_g = kind == NORM_LAYER ? sum_g / (double)columns : 0.0;
        double mean_gh = sum_gh / (double)columns;
        for (int64_t c = 0; c < columns; c++) {
            double h = (oracle_get(z, n, c) - mean) * r;
            double d = get_output_gradient(dz, dy, n, c, residual);
            if (is_present(dgamma)) {
                add_to_element(dgamma, 0, c, d * h);
            }
            if (is_present(dbeta)) {
                add_to_element(dbeta, 0, c, d);
            }
            double gradient = r * (d * get_gamma(gamma, c) - mean_g - h * mean_gh);
            double before = residual == NORM_RESIDUAL_PRE ? oracle_get(dz, n, c) : 0.0;
            oracle_set(dz, n, c, before + gradient);
            if (is_present(ddelta)) {
                double factor = oracle_dropout_factor(dropout, n * columns + c);
                oracle_set(ddelta, n, c, (before + gradient) * factor);
            }
            if (is_present(dbias)) {
                add_to_element(dbias, 0, c, oracle_get(is_present(ddelta) ? ddelta : dz, n, c));
            }
        }
    }
}

/* ---- classifier ---- */

void oracle_classifier_logits(struct tensor logits, struct tensor x, struct tensor w,
                              struct tensor bias)
{
    for (int64_t n = 0; n < logits.rows; n++) {
        for (int64_t v = 0; v < logits.columns; v++) {
            double sum = is_present(bias) ? oracle_get(bias, 0, v) : 0;
            for (int64_t c = 0; c < x.columns; c++) {
                sum += oracle_get(x, n, c) * oracle_get(w, v, c);
            }
            oracle_set(logits, n, v, sum);
        }
    }
}

/* Computes the entropy -sum p log p and the mean logit of row n. */
static void compute_entropy_and_mean(int64_t n, const struct classifier *c, const double *logits,
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

/* Returns the probability of an id in the labels of a row. */
static double get_label(const struct classifier *c, int32_t target, int64_t id)
{
    double smoothing = c->label_smoothing;
    return (id == target ? 1 - smoothing : 0) + smoothing / (double)c->vocabulary;
}

/* Computes one row with logits l and labels q: loss = log(sum exp(l)) - sum q l and
 * dl = (softmax(l) - q) scale. */
static void compute_classifier_row(double *loss, int32_t *argmax, struct tensor dx,
                                   struct tensor dw, struct tensor x, struct tensor w, int64_t n,
                                   int32_t target, const struct classifier *c, double *logits)
{
    for (int64_t v = 0; v < c->vocabulary && c->softcap > 0; v++) {
        logits[v] = c->softcap * tanh(logits[v] / c->softcap);
    }
    double max = -INFINITY, sum = 0;
    int32_t best = 0;
    for (int64_t v = 0; v < c->vocabulary; v++) {
        if (logits[v] > max) {
            max = logits[v];
            best = (int32_t)v;
        }
    }
    for (int64_t v = 0; v < c->vocabulary; v++) {
        sum += exp(logits[v] - max);
    }
    bool is_counted = target != c->ignored;
    *loss = 0;
    for (int64_t v = 0; is_counted && v < c->vocabulary; v++) {
        *loss += get_label(c, target, v) * (max + log(sum) - logits[v]);
    }
    if (argmax != NULL) {
        argmax[n] = best;
    }
    if (c->entropies != NULL) {
        compute_entropy_and_mean(n, c, logits, max + log(sum));
    }
    if (!c->gradient) {
        return;
    }
    double scale = c->row_scale != NULL ? c->row_scale[n] : 1.0;
    for (int64_t k = 0; k < x.columns; k++) {
        double gradient = 0;
        for (int64_t v = 0; is_counted && v < c->vocabulary; v++) {
            double p = exp(logits[v] - max) / sum;
            double d = scale * (p - get_label(c, target, v));
            d *= c->softcap > 0 ? 1 - pow(logits[v] / c->softcap, 2) : 1;
            gradient += d * oracle_get(w, v, k);
            add_to_element(dw, v, k, d * oracle_get(x, n, k));
            if (k == 0 && is_present(c->dbias)) {
                add_to_element(c->dbias, 0, v, d);
            }
        }
        oracle_set(dx, n, k, gradient);
    }
}

void oracle_classifier_run(double *losses, int32_t *argmax, struct tensor dx, struct tensor dw,
                           struct tensor x, struct tensor w, const int32_t *targets,
                           const struct classifier *c)
{
    double *logits = malloc((size_t)c->vocabulary * sizeof *logits);
    for (int64_t n = 0; logits != NULL && n < x.rows; n++) {
        for (int64_t v = 0; v < c->vocabulary; v++) {
            logits[v] = is_present(c->bias) ? oracle_get(c->bias, 0, v) : 0;
            for (int64_t k = 0; k < x.columns; k++) {
                logits[v] += oracle_get(x, n, k) * oracle_get(w, v, k);
            }
        }
        compute_classifier_row(&losses[n], argmax, dx, dw, x, w, n, targets[n], c, logits);
    }
    free(logits);
}

/* ---- flat slices ---- */

static bf16 round_weight(float weight, const struct rounding *r, int64_t i)
{
    if (!r->stochastic) {
        return f32_to_bf16(weight);
    }
    int64_t row = (r->offset + i) / r->columns, column = (r->offset + i) % r->columns;
    int64_t index = r->first + row * r->pitch + column;
    return f32_to_bf16_stochastic(weight, random_u16(r->key, (uint64_t)index));
}

void oracle_round_weights(bf16 *copy, const float *weights, int64_t count,
                          const struct rounding *rounding)
{
    for (int64_t i = 0; i < count; i++) {
        copy[i] = round_weight(weights[i], rounding, i);
    }
}

static double get_moment(const void *moments, int64_t i, const struct adamw *s)
{
    return s->moment_dtype == DTYPE_BF16 ? (double)bf16_to_f32(((const bf16 *)moments)[i])
                                         : (double)((const float *)moments)[i];
}

/* index: 0 or 1, the moment. */
static void set_moment(void *moments, int64_t i, double value, int index, const struct adamw *s)
{
    if (s->moment_dtype == DTYPE_F32) {
        ((float *)moments)[i] = (float)value;
        return;
    }
    struct rounding rounding = s->rounding;
    rounding.stochastic = true;
    rounding.key = s->moment_keys[index];
    ((bf16 *)moments)[i] = round_weight((float)value, &rounding, i);
}

void oracle_adamw_update(float *weights, bf16 *copy, void *moment1, void *moment2,
                         const float *gradient, int64_t count, const struct adamw *s)
{
    for (int64_t i = 0; i < count; i++) {
        double g = (double)gradient[i] * s->gradient_scale;
        double m = s->beta1 * get_moment(moment1, i, s) + (1.0 - s->beta1) * g;
        double v = s->beta2 * get_moment(moment2, i, s) + (1.0 - s->beta2) * g * g;
        double step = m / s->correction1 / (sqrt(v / s->correction2) + s->epsilon);
        double w = weights[i];
        w -= s->learning_rate * (step + s->weight_decay * w);
        set_moment(moment1, i, m, 0, s);
        set_moment(moment2, i, v, 1, s);
        weights[i] = (float)w;
        if (copy != NULL) {
            copy[i] = round_weight(weights[i], &s->rounding, i);
        }
    }
}

static double compute_lamb_direction(double w, double m, double v, const struct adamw *s)
{
    return m / s->correction1 / (sqrt(v / s->correction2) + s->epsilon) + s->weight_decay * w;
}

void oracle_lamb_moments(double *sums, const float *weights, void *moment1, void *moment2,
                         const float *gradient, int64_t count, const struct adamw *s)
{
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < count; i++) {
        double g = (double)gradient[i] * s->gradient_scale, w = weights[i];
        double m = s->beta1 * get_moment(moment1, i, s) + (1.0 - s->beta1) * g;
        double v = s->beta2 * get_moment(moment2, i, s) + (1.0 - s->beta2) * g * g;
        set_moment(moment1, i, m, 0, s);
        set_moment(moment2, i, v, 1, s);
        double u =
            compute_lamb_direction(w, get_moment(moment1, i, s), get_moment(moment2, i, s), s);
        sums[0] += w * w;
        sums[1] += u * u;
    }
}

void oracle_lamb_apply(float *weights, bf16 *copy, const void *moment1, const void *moment2,
                       int64_t count, const struct adamw *s)
{
    for (int64_t i = 0; i < count; i++) {
        double u = compute_lamb_direction(weights[i], get_moment(moment1, i, s),
                                          get_moment(moment2, i, s), s);
        weights[i] = (float)(weights[i] - s->learning_rate * u);
        if (copy != NULL) {
            copy[i] = round_weight(weights[i], &s->rounding, i);
        }
    }
}

double oracle_sum_of_squares(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * x[i];
    }
    return sum;
}

double oracle_sum_of_floats(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i];
    }
    return sum;
}

void oracle_cast(struct tensor to, struct tensor from)
{
    for (int64_t n = 0; n < to.rows; n++) {
        for (int64_t c = 0; c < to.columns; c++) {
            oracle_set(to, n, c, oracle_get(from, n, c));
        }
    }
}
