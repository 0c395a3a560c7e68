/* Checks the shapes of every operation, then calls the back-end's function and profiles
 * it (profile.c).
 *
 * Shapes that do not fit are a defect of the caller. The message contains all values to find it. */
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>

#include "base/number.h"
#include "kernels/checks.h"

/* ---- checks ---- */

/* Returns whether the host can read integer arrays of this device. */
static bool is_host_memory(const struct kernels *k)
{
    return device_is_host(k->device);
}

static status check_dropout(const char *where, const struct dropout *d)
{
    bool valid = d->probability >= 0 && d->probability < 1;
    int threshold = valid ? dropout_threshold(d->probability) : 0;
    REQUIRE(valid && (d->probability > 0 ? threshold > 0 && threshold < 65536 : true) &&
                d->first >= 0,
            STATUS_INTERNAL,
            "%s: dropout %g from element %" PRId64
            "; the probability must be in [0, 1) and must not round to 0 or 1 in units of 1/65536",
            where, (double)d->probability, d->first);
    return STATUS_OK;
}

/* ---- matrix multiplication ---- */

status linear_forward(struct kernels *k, struct tensor y, struct tensor saved, struct tensor x,
                      struct tensor w, struct tensor bias, enum activation act)
{
    TRY(check_linear_forward(__func__, k, y, saved, x, w, bias, act));
    DISPATCH(k, linear_forward, count_gemm_flops(x, w),
             compute_tensor_bytes(y) + compute_tensor_bytes(saved) + compute_tensor_bytes(x) +
                 compute_tensor_bytes(w),
             k, y, saved, x, w, bias, act);
}

status linear_backward_input(struct kernels *k, struct tensor dx, struct bias_gradient dbias,
                             struct tensor dy, struct tensor w, enum activation act,
                             struct tensor saved)
{
    TRY(check_linear_backward_input(__func__, k, dx, dbias, dy, w, act, saved));
    DISPATCH(k, linear_backward_input, count_gemm_flops(dy, w),
             compute_tensor_bytes(dx) + compute_tensor_bytes(dy) + compute_tensor_bytes(w) +
                 compute_tensor_bytes(saved),
             k, dx, dbias, dy, w, act, saved);
}

status linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                              struct tensor dy, struct tensor x, bool overwrite)
{
    TRY(check_linear_backward_weight(__func__, k, dw, dbias, dy, x));
    if (dw.data == NULL && dbias.data == NULL) {
        return STATUS_OK;
    }
    DISPATCH(k, linear_backward_weight, dw.data != NULL ? count_gemm_flops(x, dw) : 0,
             (overwrite ? 1 : 2) * compute_tensor_bytes(dw) + compute_tensor_bytes(dy) +
                 compute_tensor_bytes(x),
             k, dw, dbias, dy, x, overwrite);
}

status linear_add(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                  bool backward)
{
    SHAPE(x, k->dtype, y.rows, backward ? w.rows : w.columns);
    SHAPE(w, k->dtype, backward ? x.columns : y.columns, backward ? y.columns : x.columns);
    SHAPE(y, k->dtype, x.rows, backward ? w.columns : w.rows);
    DISPATCH(k, linear_add, count_gemm_flops(x, w),
             2 * compute_tensor_bytes(y) + compute_tensor_bytes(x) + compute_tensor_bytes(w), k, y,
             x, w, backward);
}

status activation_forward(struct kernels *k, struct tensor y, struct tensor saved,
                          enum activation act)
{
    SHAPE_OPTIONAL(saved, k->dtype, y.rows, y.columns);
    TRY(check_activation(__func__, act));
    REQUIRE(act != ACTIVATION_NONE, STATUS_INTERNAL, "activation_forward: no activation");
    DISPATCH(k, activation_forward, (double)y.rows * (double)y.columns,
             2 * compute_tensor_bytes(y) + compute_tensor_bytes(saved), k, y, saved, act);
}

status op_scale(struct kernels *k, struct tensor x, float factor)
{
    SHAPE(x, x.dtype == DTYPE_F32 ? DTYPE_F32 : k->dtype, x.rows, x.columns);
    DISPATCH(k, op_scale, (double)x.rows * (double)x.columns, 2 * compute_tensor_bytes(x), k, x,
             factor);
}

status op_softcap(struct kernels *k, struct tensor x, float cap)
{
    SHAPE(x, DTYPE_F32, x.rows, x.columns);
    REQUIRE(cap > 0, STATUS_INTERNAL, "op_softcap: cap %g; must be above 0", (double)cap);
    DISPATCH(k, op_softcap, (double)x.rows * (double)x.columns, 2 * compute_tensor_bytes(x), k, x,
             cap);
}

status activation_backward(struct kernels *k, struct tensor dx, struct tensor dy,
                           struct tensor saved, enum activation act)
{
    SHAPE(dx, k->dtype, dy.rows, dy.columns);
    SHAPE(dy, k->dtype, dx.rows, dx.columns);
    SHAPE(saved, k->dtype, dx.rows, dx.columns);
    TRY(check_activation(__func__, act));
    REQUIRE(act != ACTIVATION_NONE, STATUS_INTERNAL, "activation_backward: no activation");
    DISPATCH(k, activation_backward, (double)dx.rows * (double)dx.columns,
             compute_tensor_bytes(dx) + compute_tensor_bytes(dy) + compute_tensor_bytes(saved), k,
             dx, dy, saved, act);
}

/* ---- gated linear units and rotary position embedding ---- */

status swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up)
{
    SHAPE(y, k->dtype, gate_up.rows, y.columns);
    SHAPE(gate_up, k->dtype, y.rows, 2 * y.columns);
    DISPATCH(k, swiglu_forward, 6 * (double)y.rows * (double)y.columns,
             compute_tensor_bytes(y) + compute_tensor_bytes(gate_up), k, y, gate_up);
}

status swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                       struct tensor gate_up)
{
    SHAPE(dy, k->dtype, gate_up.rows, dy.columns);
    SHAPE(gate_up, k->dtype, dy.rows, 2 * dy.columns);
    SHAPE(d_gate_up, k->dtype, dy.rows, 2 * dy.columns);
    DISPATCH(k, swiglu_backward, 12 * (double)dy.rows * (double)dy.columns,
             compute_tensor_bytes(dy) + 2 * compute_tensor_bytes(gate_up), k, d_gate_up, dy,
             gate_up);
}

static status require_gelu(enum activation act)
{
    REQUIRE(act == ACTIVATION_GELU_TANH || act == ACTIVATION_GELU_ERF, STATUS_INTERNAL,
            "geglu: activation %d is not a GELU", (int)act);
    return STATUS_OK;
}

status geglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up, enum activation act)
{
    SHAPE(y, k->dtype, gate_up.rows, y.columns);
    SHAPE(gate_up, k->dtype, y.rows, 2 * y.columns);
    TRY(require_gelu(act));
    DISPATCH(k, geglu_forward, 10 * (double)y.rows * (double)y.columns,
             compute_tensor_bytes(y) + compute_tensor_bytes(gate_up), k, y, gate_up, act);
}

status geglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                      struct tensor gate_up, enum activation act)
{
    SHAPE(dy, k->dtype, gate_up.rows, dy.columns);
    SHAPE(gate_up, k->dtype, dy.rows, 2 * dy.columns);
    SHAPE(d_gate_up, k->dtype, dy.rows, 2 * dy.columns);
    TRY(require_gelu(act));
    DISPATCH(k, geglu_backward, 18 * (double)dy.rows * (double)dy.columns,
             compute_tensor_bytes(dy) + 2 * compute_tensor_bytes(gate_up), k, d_gate_up, dy,
             gate_up, act);
}

status rotary_apply(struct kernels *k, struct tensor x, struct tensor table,
                    const int32_t *positions, int64_t head_width, bool inverse)
{
    SHAPE(x, k->dtype, x.rows, x.columns);
    SHAPE(table, DTYPE_F32, table.rows, table.columns);
    REQUIRE(table.columns % 2 == 0 && table.columns <= head_width && x.columns % head_width == 0,
            STATUS_INTERNAL,
            "rotary_apply: %" PRId64 " columns in heads of %" PRId64 ", %" PRId64
            " rotated; heads must divide the columns, and an even part of a head must rotate",
            x.columns, head_width, table.columns);
    PRESENT(positions);
    DISPATCH(k, rotary_apply, 3 * (double)x.rows * (double)x.columns, 2 * compute_tensor_bytes(x),
             k, x, table, positions, head_width, inverse);
}

/* ---- embedding ---- */

status embedding_forward(struct kernels *k, struct tensor y, const int32_t *tokens,
                         const int32_t *positions, struct tensor token_table, int64_t first_token,
                         struct tensor position_table, struct dropout dropout)
{
    SHAPE(y, k->dtype, y.rows, token_table.columns);
    SHAPE(token_table, k->dtype, token_table.rows, y.columns);
    SHAPE_OPTIONAL(position_table, k->dtype, position_table.rows, y.columns);
    PRESENT(tokens);
    if (position_table.data != NULL) {
        PRESENT(positions);
    }
    TRY(check_dropout(__func__, &dropout));
    double tables = position_table.data == NULL ? 1 : 2;
    DISPATCH(k, embedding_forward, tables * (double)y.rows * (double)y.columns,
             (1 + tables) * compute_tensor_bytes(y), k, y, tokens, positions, token_table,
             first_token, position_table, dropout);
}

status embedding_backward(struct kernels *k, struct tensor d_token_table, int64_t first_token,
                          struct tensor d_position_table, struct tensor dy, const int32_t *tokens,
                          const int32_t *positions, struct dropout dropout)
{
    SHAPE(dy, k->dtype, dy.rows, dy.columns);
    SHAPE_OPTIONAL(d_token_table, DTYPE_F32, d_token_table.rows, dy.columns);
    SHAPE_OPTIONAL(d_position_table, DTYPE_F32, d_position_table.rows, dy.columns);
    PRESENT(tokens);
    if (d_position_table.data != NULL) {
        PRESENT(positions);
    }
    TRY(check_dropout(__func__, &dropout));
    double elements = (double)dy.rows * (double)dy.columns;
    double tables = (d_token_table.data != NULL) + (d_position_table.data != NULL);
    if (!(tables > 0)) {
        return STATUS_OK;
    }
    DISPATCH(k, embedding_backward, tables * elements,
             compute_tensor_bytes(dy) + 8 * tables * elements, k, d_token_table, first_token,
             d_position_table, dy, tokens, positions, dropout);
}

/* ---- selected rows ---- */

static status check_rows(const char *where, const int32_t *rows, int64_t count, int64_t all)
{
    for (int64_t i = 0; i < count; i++) {
        int32_t lowest = i > 0 ? rows[i - 1] + 1 : 0;
        REQUIRE(rows[i] >= lowest && rows[i] < all, STATUS_INTERNAL,
                "%s: row %" PRId64
                " is %d; rows must increase strictly: it must be in [%d, %" PRId64 ")",
                where, i, rows[i], lowest, all);
    }
    return STATUS_OK;
}

status op_gather_rows(struct kernels *k, struct tensor y, struct tensor x, const int32_t *rows)
{
    SHAPE(x, k->dtype, x.rows, y.columns);
    SHAPE(y, k->dtype, y.rows, x.columns);
    PRESENT(rows);
    TRY(check_rows(__func__, rows, is_host_memory(k) ? y.rows : 0, x.rows));
    DISPATCH(k, op_gather_rows, 0, 2 * compute_tensor_bytes(y), k, y, x, rows);
}

status op_scatter_rows(struct kernels *k, struct tensor dx, struct tensor dy, const int32_t *rows,
                       bool overwrite)
{
    SHAPE(dx, k->dtype, dx.rows, dy.columns);
    SHAPE(dy, k->dtype, dy.rows, dx.columns);
    PRESENT(rows);
    TRY(check_rows(__func__, rows, is_host_memory(k) ? dy.rows : 0, dx.rows));
    DISPATCH(k, op_scatter_rows, overwrite ? 0 : (double)dy.rows * (double)dy.columns,
             compute_tensor_bytes(dy) +
                 (overwrite ? compute_tensor_bytes(dx) : 2 * compute_tensor_bytes(dy)),
             k, dx, dy, rows, overwrite);
}

/* ---- residual addition and norm ---- */

status dropout_apply(struct kernels *k, struct tensor y, struct tensor x, struct dropout dropout)
{
    SHAPE(y, k->dtype, x.rows, x.columns);
    SHAPE(x, k->dtype, y.rows, y.columns);
    TRY(check_dropout(__func__, &dropout));
    DISPATCH(k, dropout_apply, (double)x.rows * (double)x.columns,
             compute_tensor_bytes(x) + compute_tensor_bytes(y), k, y, x, dropout);
}

status residual_norm_forward(struct kernels *k, struct tensor z, struct tensor y,
                             struct tensor statistics, struct tensor x, struct tensor delta,
                             struct tensor gamma, struct tensor beta, enum norm_kind kind,
                             float epsilon, struct dropout dropout)
{
    int64_t n = x.rows, c = x.columns;
    SHAPE(x, k->dtype, n, c);
    SHAPE_OPTIONAL(delta, k->dtype, n, c);
    if (delta.data != NULL) {
        SHAPE(z, k->dtype, n, c);
    }
    if (y.data != NULL) {
        SHAPE(y, k->dtype, n, c);
        SHAPE_OPTIONAL(gamma, DTYPE_F32, 1, c);
        SHAPE_OPTIONAL(beta, DTYPE_F32, 1, c);
        SHAPE_OPTIONAL(statistics, DTYPE_F32, n, 2);
        REQUIRE(epsilon > 0, STATUS_INTERNAL,
                "residual_norm_forward: epsilon is %g; it must be above 0", (double)epsilon);
        REQUIRE(beta.data == NULL || kind == NORM_LAYER, STATUS_INTERNAL,
                "residual_norm_forward: an RMS norm has no beta");
    }
    TRY(check_dropout(__func__, &dropout));
    DISPATCH(k, residual_norm_forward, 8.0 * (double)n * (double)c,
             compute_tensor_bytes(x) + compute_tensor_bytes(y) + 2 * compute_tensor_bytes(delta), k,
             z, y, statistics, x, delta, gamma, beta, kind, epsilon, dropout);
}

status residual_norm_backward(struct kernels *k, struct tensor dz, struct tensor ddelta,
                              struct tensor dgamma, struct tensor dbeta, struct bias_gradient dbias,
                              struct tensor dy, struct tensor z, struct tensor statistics,
                              struct tensor gamma, enum norm_kind kind, enum norm_residual residual,
                              struct dropout dropout)
{
    int64_t n = z.rows, c = z.columns;
    SHAPE(z, k->dtype, n, c);
    SHAPE(dz, k->dtype, n, c);
    SHAPE(dy, k->dtype, n, c);
    SHAPE_OPTIONAL(ddelta, k->dtype, n, c);
    SHAPE_OPTIONAL(gamma, DTYPE_F32, 1, c);
    SHAPE_OPTIONAL(dgamma, DTYPE_F32, 1, c);
    SHAPE_OPTIONAL(dbeta, DTYPE_F32, 1, c);
    SHAPE_OPTIONAL(dbias.sums, DTYPE_F32, 1, c);
    SHAPE(statistics, DTYPE_F32, n, 2);
    REQUIRE(dbeta.data == NULL || kind == NORM_LAYER, STATUS_INTERNAL,
            "residual_norm_backward: an RMS norm has no beta");
    REQUIRE((dgamma.data == NULL) == (gamma.data == NULL), STATUS_INTERNAL,
            "residual_norm_backward: of gamma and its gradient, only one is absent");
    TRY(check_dropout(__func__, &dropout));
    DISPATCH(k, residual_norm_backward, 12.0 * (double)n * (double)c,
             compute_tensor_bytes(z) + compute_tensor_bytes(dy) +
                 (residual == NORM_RESIDUAL_NONE ? 1 : 2) * compute_tensor_bytes(dz) +
                 compute_tensor_bytes(ddelta),
             k, dz, ddelta, dgamma, dbeta, dbias, dy, z, statistics, gamma, kind, residual,
             dropout);
}

/* ---- attention ---- */

static bool is_shared_prefix_valid(const struct attention *a, int64_t i)
{
    const int32_t *b = a->shared_prefix_offsets, *q = a->cu_q + i, *k = a->cu_k + i;
    return b == NULL || (a->causal && a->window == 0 && q[0] == k[0] && q[1] == k[1] &&
                         b[2 * i] >= 0 && b[2 * i + 1] >= b[2 * i] && b[2 * i + 1] <= q[1] - q[0]);
}

static status check_attention_bias(const char *where, const struct attention *a)
{
    struct tensor table = a->bias.table, gradient = a->bias.gradient;
    if (table.data == NULL) {
        return STATUS_OK;
    }
    SHAPE(table, DTYPE_F32, table.rows, a->heads);
    SHAPE_OPTIONAL(gradient, DTYPE_F32, table.rows, a->heads);
    int64_t exact = (a->causal ? table.rows : table.rows / 2) / 2;
    REQUIRE(exact > 0 && table.rows <= ATTENTION_BUCKETS_MAX && a->bias.max_distance > exact &&
                a->shared_prefix_offsets == NULL && a->softcap == 0,
            STATUS_INTERNAL,
            "%s: bias of %" PRId64 " buckets up to the distance %" PRId64
            "; must be 4 to %d buckets, a distance above the exact buckets, no shared prefixes "
            "and no soft-cap",
            where, table.rows, a->bias.max_distance, ATTENTION_BUCKETS_MAX);
    return STATUS_OK;
}

static status check_attention(const char *where, const struct attention *a, int64_t rows_q,
                              int64_t rows_k, bool host)
{
    REQUIRE(a->heads > 0 && a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->head_width > 0 &&
                a->sequences >= 0 && a->window >= 0 && a->longest_q >= 0 && a->longest_k >= 0,
            STATUS_INTERNAL,
            "%s: %d heads over %d key-value heads of width %" PRId64 ", %" PRId64
            " sequences of at most %" PRId64 " queries and %" PRId64 " keys, window %" PRId64
            "; heads and width must be above 0, key-value heads must divide the heads, and the "
            "others must be at least 0",
            where, a->heads, a->kv_heads, a->head_width, a->sequences, a->longest_q, a->longest_k,
            a->window);
    REQUIRE(a->first_head >= 0 && (a->all_heads == 0 || a->first_head + a->heads <= a->all_heads),
            STATUS_INTERNAL, "%s: heads [%d, %d) are outside of the %d heads", where, a->first_head,
            a->first_head + a->heads, a->all_heads);
    REQUIRE(a->head_width <= ATTENTION_WIDTH_MAX && a->scale > 0, STATUS_INTERNAL,
            "%s: head width %" PRId64 ", scale %g; must be at most %d and above 0", where,
            a->head_width, (double)a->scale, ATTENTION_WIDTH_MAX);
    TRY(check_attention_bias(where, a));
    REQUIRE(a->softcap >= 0, STATUS_INTERNAL, "%s: softcap %g; must be at least 0", where,
            (double)a->softcap);
    TRY(check_present(where, "cu_q", a->cu_q));
    TRY(check_present(where, "cu_k", a->cu_k));
    for (int64_t i = 0; host && i < a->sequences; i++) {
        int64_t queries = (int64_t)a->cu_q[i + 1] - a->cu_q[i];
        int64_t keys = (int64_t)a->cu_k[i + 1] - a->cu_k[i];
        REQUIRE(a->cu_q[i] >= 0 && a->cu_k[i] >= 0 && queries >= 0 && keys >= 0 &&
                    a->cu_q[i + 1] <= rows_q && a->cu_k[i + 1] <= rows_k &&
                    queries <= a->longest_q && keys <= a->longest_k,
                STATUS_INTERNAL,
                "%s: sequence %" PRId64 " has queries %d to %d of %" PRId64
                " rows and keys %d to %d of %" PRId64
                "; offsets must not decrease, and the longest ranges are %" PRId64 " and %" PRId64,
                where, i, a->cu_q[i], a->cu_q[i + 1], rows_q, a->cu_k[i], a->cu_k[i + 1], rows_k,
                a->longest_q, a->longest_k);
        REQUIRE(
            is_shared_prefix_valid(a, i), STATUS_INTERNAL,
            "%s: shared_prefix_offsets of sequence %d are wrong; they need causal self-attention "
            "without a window and 0 <= first <= second <= queries",
            where, (int)i);
    }
    return check_dropout(where, &a->dropout);
}

/* Checks the operands that the forward and the backward pass have. */
static status check_attention_operands(const char *where, const struct kernels *k, struct tensor o,
                                       struct tensor q, struct tensor keys, struct tensor values,
                                       const struct attention *a)
{
    int64_t q_columns = a->heads * a->head_width, kv_columns = a->kv_heads * a->head_width;
    TRY(check_shape(where, "q", q, k->dtype, o.rows, q_columns));
    TRY(check_shape(where, "o", o, k->dtype, q.rows, q_columns));
    TRY(check_shape(where, "keys", keys, k->dtype, values.rows, kv_columns));
    TRY(check_shape(where, "values", values, k->dtype, keys.rows, kv_columns));
    return check_attention(where, a, q.rows, keys.rows, is_host_memory(k));
}

/* Counts the visible keys of n queries with a causal mask and a window over m keys. The first query
 * attends to m - n + 1 keys, and each later query to one more, up to the window. */
static double count_window_pairs(double n, double m, double window)
{
    double first = fmax(0, m - n + 1), narrow = fmin(fmax(0, window - first), n);
    return narrow * first + narrow * (narrow - 1) / 2 + (n - narrow) * window;
}

/* Counts the keys after each of n queries that it attends to, with a window and no causal mask. The
 * last query has 0 such keys, and each earlier query has one more, up to window - 1. */
static double count_later_pairs(double n, double window)
{
    return count_window_pairs(n, n, window) - n;
}

/* Counts the pairs of a query and a visible key over all heads; about half of them if causal. */
static double count_attention_pairs(const struct attention *a)
{
    double pairs = 0;
    for (int64_t i = 0; i < a->sequences; i++) {
        double n = a->cu_q[i + 1] - a->cu_q[i], m = a->cu_k[i + 1] - a->cu_k[i];
        double seen = fmax(0, a->causal ? m - (n - 1) / 2 : m);
        double window = (double)a->window;
        pairs += window == 0 ? n * seen : count_window_pairs(n, m, window);
        pairs += window == 0 || a->causal ? 0 : count_later_pairs(n, window);
        const int32_t *b = a->shared_prefix_offsets;
        pairs -= b != NULL ? (b[2 * i + 1] - b[2 * i]) * (n - b[2 * i + 1]) : 0;
    }
    return pairs * a->heads;
}

status attention_forward(struct kernels *k, struct tensor o, struct tensor lse, struct tensor q,
                         struct tensor keys, struct tensor values, const struct attention *a)
{
    TRY(check_attention_operands(__func__, k, o, q, keys, values, a));
    SHAPE_OPTIONAL(lse, DTYPE_F32, a->heads, q.rows);
    double flops = k->profiling && is_host_memory(k)
                       ? 4 * count_attention_pairs(a) * (double)a->head_width
                       : 0;
    DISPATCH(k, attention_forward, flops,
             compute_tensor_bytes(q) + compute_tensor_bytes(keys) + compute_tensor_bytes(values) +
                 compute_tensor_bytes(o),
             k, o, lse, q, keys, values, a);
}

status attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                          struct tensor keys, struct tensor values, struct tensor o,
                          struct tensor lse, const struct attention *a)
{
    TRY(check_attention_operands(__func__, k, o, q, keys, values, a));
    SHAPE(d_o, k->dtype, q.rows, q.columns);
    SHAPE(dq, k->dtype, q.rows, q.columns);
    SHAPE(dkeys, k->dtype, keys.rows, keys.columns);
    SHAPE(dvalues, k->dtype, keys.rows, keys.columns);
    SHAPE(lse, DTYPE_F32, a->heads, q.rows);
    double flops = k->profiling && is_host_memory(k)
                       ? 10 * count_attention_pairs(a) * (double)a->head_width
                       : 0;
    DISPATCH(k, attention_backward, flops,
             4 * compute_tensor_bytes(q) + 2 * compute_tensor_bytes(keys) +
                 2 * compute_tensor_bytes(values),
             k, dq, dkeys, dvalues, d_o, q, keys, values, o, lse, a);
}

/* ---- classifier ---- */

status classifier_run(struct kernels *k, float *losses, int32_t *argmax, struct tensor dx,
                      struct tensor dw, struct tensor x, struct tensor w, const int32_t *targets,
                      const struct classifier *c)
{
    SHAPE(x, k->dtype, x.rows, w.columns);
    SHAPE(w, k->dtype, w.rows, x.columns);
    PRESENT(losses);
    PRESENT(targets);
    int64_t shards = number_max(c->vocabulary_shard.count, 1);
    REQUIRE(c->vocabulary > 0 && c->vocabulary <= shards * w.rows &&
                c->vocabulary_shard.index >= 0 && c->vocabulary_shard.index < shards &&
                shards <= number_max(k->limits.vocabulary_shards, 1),
            STATUS_INTERNAL,
            "classifier_run: vocabulary %" PRId64 ", shard %d of %" PRId64 " with %" PRId64
            " rows each; the shards must contain the vocabulary, and the index must be below the "
            "planned number of shards",
            c->vocabulary, c->vocabulary_shard.index, shards, w.rows);
    REQUIRE((c->entropies == NULL) == (c->mean_logits == NULL), STATUS_INTERNAL,
            "classifier_run: entropies without mean_logits, or mean_logits without entropies");
    REQUIRE(c->softcap >= 0 && c->label_smoothing >= 0 && c->label_smoothing < 1, STATUS_INTERNAL,
            "classifier_run: softcap %g, smoothing %g; must be at least 0, smoothing below 1",
            (double)c->softcap, c->label_smoothing);
    SHAPE_OPTIONAL(c->bias, DTYPE_F32, 1, w.rows);
    if (c->gradient) {
        SHAPE(dx, k->dtype, x.rows, x.columns);
        SHAPE_OPTIONAL(dw, DTYPE_F32, w.rows, w.columns);
        SHAPE_OPTIONAL(c->dbias, DTYPE_F32, 1, w.rows);
        REQUIRE(c->bias.data != NULL || c->dbias.data == NULL, STATUS_INTERNAL,
                "classifier_run: dbias without bias");
    }
    for (int64_t i = 0; is_host_memory(k) && i < x.rows; i++) {
        REQUIRE(targets[i] == c->ignored || (targets[i] >= 0 && targets[i] < c->vocabulary),
                STATUS_INTERNAL,
                "classifier_run: target %d of row %" PRId64 " is not in [0, %" PRId64 ")",
                targets[i], i, c->vocabulary);
    }
    double gemms = c->gradient ? 2 + (dw.data != NULL) : 1;
    DISPATCH(k, classifier_run, gemms * count_gemm_flops(x, w),
             compute_tensor_bytes(x) + compute_tensor_bytes(w) + compute_tensor_bytes(dx) +
                 (c->overwrite ? 1 : 2) * compute_tensor_bytes(dw),
             k, losses, argmax, dx, dw, x, w, targets, c);
}

status classifier_logits(struct kernels *k, struct tensor logits, struct tensor x, struct tensor w,
                         struct tensor bias)
{
    SHAPE(x, k->dtype, logits.rows, w.columns);
    SHAPE(w, k->dtype, w.rows, x.columns);
    SHAPE(logits, DTYPE_F32, x.rows, logits.columns);
    REQUIRE(logits.columns <= w.rows, STATUS_INTERNAL,
            "classifier_logits: %" PRId64 " logits, but w has only %" PRId64 " rows",
            logits.columns, w.rows);
    if (bias.data != NULL) {
        SHAPE(bias, DTYPE_F32, 1, bias.columns);
        REQUIRE(bias.columns >= logits.columns, STATUS_INTERNAL,
                "classifier_logits: %" PRId64 " logits, but the bias has only %" PRId64,
                logits.columns, bias.columns);
    }
    DISPATCH(k, classifier_logits, count_gemm_flops(x, w),
             compute_tensor_bytes(x) + compute_tensor_bytes(w) + compute_tensor_bytes(logits), k,
             logits, x, w, bias);
}

/* ---- flat slices ---- */

status op_sum_of_squares(struct kernels *k, double *out, const float *x, int64_t count)
{
    REQUIRE(count >= 0 && (count == 0 || x != NULL), STATUS_INTERNAL,
            "op_sum_of_squares: %" PRId64 " elements at %p; must be at least 0, at an address",
            count, (const void *)x);
    DISPATCH(k, op_sum_of_squares, 2.0 * (double)count, 4.0 * (double)count, k, out, x, count);
}

status op_loss_stats(struct kernels *k, double *out, const struct loss_rows *t, int64_t rows)
{
    REQUIRE(rows >= 0 && (t->argmax != NULL || t->entropies == NULL), STATUS_INTERNAL,
            "op_loss_stats: %" PRId64 " rows; must be at least 0, and entropies need argmax", rows);
    DISPATCH(k, op_loss_stats, (double)rows, 16.0 * (double)rows, k, out, t, rows);
}

status op_add(struct kernels *k, float *to, const float *from, int64_t count)
{
    DISPATCH(k, op_add, (double)count, 12.0 * (double)count, k, to, from, count);
}

status op_cast(struct kernels *k, struct tensor to, struct tensor from)
{
    SHAPE(from, from.dtype, to.rows, to.columns);
    SHAPE(to, to.dtype, from.rows, from.columns);
    DISPATCH(k, op_cast, (double)(to.rows * to.columns),
             compute_tensor_bytes(to) + compute_tensor_bytes(from), k, to, from);
}

status op_copy(struct kernels *k, struct tensor to, struct tensor from)
{
    return to.dtype != from.dtype
               ? op_cast(k, to, from)
               : device_copy(k->device, k->stream, to.data, from.data, tensor_bytes(from));
}

/* ---- roofline ---- */

status kernels_roofline(struct kernels *k, double (*seconds)[KERNELS_ROOFLINE_ALGORITHMS],
                        const struct gemm_shape *shapes, int count)
{
    for (int i = 0; i < count; i++) {
        const struct gemm_shape *p = &shapes[i];
        REQUIRE(p->rows > 0 && p->inner > 0 && p->outputs > 0 && p->count >= 0, STATUS_INTERNAL,
                "kernels_roofline: GEMM %d is %" PRId64 " x %" PRId64 " x %" PRId64 ", %" PRId64
                " times; sizes must be above 0, the count at least 0",
                i, p->rows, p->inner, p->outputs, p->count);
    }
    REQUIRE(k->table.roofline != NULL, STATUS_UNAVAILABLE,
            "this back-end cannot measure a roofline");
    return k->table.roofline(k, seconds, shapes, count);
}
