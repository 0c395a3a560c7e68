/* Shape checks, once and for every back-end; then the back-end's table, timed where asked.
 *
 * A shape that does not fit is our bug: the message says what was given so that it can be found. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/kernels_table.h"

/* ---- the profile ---- */

void kernels_profile(struct kernels *k, bool on)
{
    static const char *names[OPERATIONS] = {
#define OPERATION_NAME(name) #name,
        KERNELS_OPERATIONS(OPERATION_NAME)
#undef OPERATION_NAME
    };
    k->profiling = on;
    if (on) {
        memset(k->times, 0, sizeof k->times);
        for (int i = 0; i < OPERATIONS; i++) {
            k->times[i].operation = names[i];
        }
    }
}

static const double profile_deadline_seconds = 300;

_Static_assert((int)OPERATIONS <= (int)KERNELS_OPERATIONS_MAX,
               "more operations than a profile can hold");

int kernels_times(const struct kernels *k, struct kernels_time out[KERNELS_OPERATIONS_MAX])
{
    int count = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        if (k->times[i].calls > 0) {
            out[count++] = k->times[i];
        }
    }
    return count;
}

/* The time of a queued operation is what the host waits for it. */
static status count_work(struct kernels *k, enum kernels_operation operation, double start,
                         double flops, double bytes, status result)
{
    if (k->profiling) {
        KEEP_FIRST(result, device_wait(k->device, k->stream, profile_deadline_seconds));
        struct kernels_time *t = &k->times[operation];
        t->seconds += clock_seconds() - start;
        t->calls++;
        t->flops += flops;
        t->bytes += bytes;
    }
    return result;
}

/* DISPATCH - return what the back-end's `name` returns, timed where the profile is on. */
#define DISPATCH(k, name, flops, bytes, ...)                                                       \
    do {                                                                                           \
        REQUIRE((k)->table.name != NULL, STATUS_UNAVAILABLE,                                       \
                #name ": this back-end does not have it");                                         \
        double dispatch_start = (k)->profiling ? clock_seconds() : 0;                              \
        status dispatch_result = (k)->table.name(__VA_ARGS__);                                     \
        return count_work((k), OPERATION_##name, dispatch_start, (flops), (bytes),                 \
                          dispatch_result);                                                        \
    } while (0)

/* ---- what shapes must be ---- */

/* Whether arrays of integers can be read here. */
static bool host_memory(const struct kernels *k)
{
    return device_is_host(k->device);
}

static double bytes_of(struct tensor t)
{
    return t.data == NULL ? 0 : (double)t.rows * (double)t.columns * (double)dtype_bytes(t.dtype);
}

static status shape_check(const char *where, const char *what, struct tensor t, enum dtype dtype,
                          int64_t rows, int64_t columns)
{
    REQUIRE(t.data != NULL && t.dtype == dtype && t.rows == rows && t.columns == columns &&
                t.stride >= t.columns,
            STATUS_INTERNAL, "%s: %s is %s [%lld, %lld] stride %lld at %p, not %s [%lld, %lld]",
            where, what, dtype_name(t.dtype), (long long)t.rows, (long long)t.columns,
            (long long)t.stride, t.data, dtype_name(dtype), (long long)rows, (long long)columns);
    return STATUS_OK;
}

static status shape_check_optional(const char *where, const char *what, struct tensor t,
                                   enum dtype dtype, int64_t rows, int64_t columns)
{
    return t.data == NULL ? STATUS_OK : shape_check(where, what, t, dtype, rows, columns);
}

#define SHAPE(t, dtype, rows, columns) TRY(shape_check(__func__, #t, t, dtype, rows, columns))
#define SHAPE_OPTIONAL(t, dtype, rows, columns)                                                    \
    TRY(shape_check_optional(__func__, #t, t, dtype, rows, columns))

static status present_check(const char *where, const char *what, const void *pointer)
{
    REQUIRE(pointer != NULL, STATUS_INTERNAL, "%s: %s is missing", where, what);
    return STATUS_OK;
}

#define PRESENT(pointer) TRY(present_check(__func__, #pointer, pointer))

static status dropout_check(const char *where, const struct dropout *d)
{
    REQUIRE(d->probability >= 0 && d->probability < 1 && d->first >= 0, STATUS_INTERNAL,
            "%s: dropout %g from element %lld; the probability must be in [0, 1)", where,
            (double)d->probability, (long long)d->first);
    return STATUS_OK;
}

/* ---- matrix products ---- */

static double product_flops(struct tensor x, struct tensor w)
{
    return 2.0 * (double)x.rows * (double)w.rows * (double)w.columns;
}

status linear_forward(struct kernels *k, struct tensor y, struct tensor kept, struct tensor x,
                      struct tensor w, struct tensor bias, enum activation act)
{
    SHAPE(x, k->dtype, y.rows, w.columns);
    SHAPE(w, k->dtype, y.columns, x.columns);
    SHAPE(y, k->dtype, x.rows, w.rows);
    SHAPE_OPTIONAL(kept, k->dtype, x.rows, w.rows);
    SHAPE_OPTIONAL(bias, DTYPE_F32, 1, w.rows);
    REQUIRE(kept.data == NULL || act != ACTIVATION_NONE, STATUS_INTERNAL,
            "linear_forward: kept without an activation");
    DISPATCH(k, linear_forward, product_flops(x, w),
             bytes_of(y) + bytes_of(kept) + bytes_of(x) + bytes_of(w), k, y, kept, x, w, bias, act);
}

status linear_backward_input(struct kernels *k, struct tensor dx, struct tensor dy, struct tensor w,
                             enum activation act, struct tensor kept)
{
    SHAPE(dy, k->dtype, dx.rows, w.rows);
    SHAPE(w, k->dtype, dy.columns, dx.columns);
    SHAPE(dx, k->dtype, dy.rows, w.columns);
    if (act != ACTIVATION_NONE) {
        SHAPE(kept, k->dtype, dx.rows, dx.columns);
    }
    DISPATCH(k, linear_backward_input, product_flops(dy, w),
             bytes_of(dx) + bytes_of(dy) + bytes_of(w) + bytes_of(kept), k, dx, dy, w, act, kept);
}

status linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                              struct tensor dy, struct tensor x, bool overwrite)
{
    SHAPE(dy, k->dtype, x.rows, dy.columns);
    SHAPE(x, k->dtype, dy.rows, x.columns);
    SHAPE_OPTIONAL(dw, DTYPE_F32, dy.columns, x.columns);
    SHAPE_OPTIONAL(dbias, DTYPE_F32, 1, dy.columns);
    if (dw.data == NULL && dbias.data == NULL) {
        return STATUS_OK;
    }
    DISPATCH(k, linear_backward_weight, dw.data != NULL ? product_flops(x, dw) : 0,
             (overwrite ? 1 : 2) * bytes_of(dw) + bytes_of(dy) + bytes_of(x), k, dw, dbias, dy, x,
             overwrite);
}

status linear_add(struct kernels *k, struct tensor y, struct tensor x, struct tensor w, bool back)
{
    SHAPE(x, k->dtype, y.rows, back ? w.rows : w.columns);
    SHAPE(w, k->dtype, back ? x.columns : y.columns, back ? y.columns : x.columns);
    SHAPE(y, k->dtype, x.rows, back ? w.columns : w.rows);
    DISPATCH(k, linear_add, product_flops(x, w), 2 * bytes_of(y) + bytes_of(x) + bytes_of(w), k, y,
             x, w, back);
}

status activation_forward(struct kernels *k, struct tensor y, struct tensor kept,
                          enum activation act)
{
    SHAPE_OPTIONAL(kept, k->dtype, y.rows, y.columns);
    REQUIRE(act != ACTIVATION_NONE, STATUS_INTERNAL, "activation_forward: no activation");
    DISPATCH(k, activation_forward, (double)y.rows * (double)y.columns,
             2 * bytes_of(y) + bytes_of(kept), k, y, kept, act);
}

status scale(struct kernels *k, struct tensor x, float factor)
{
    SHAPE(x, k->dtype, x.rows, x.columns);
    DISPATCH(k, scale, (double)x.rows * (double)x.columns, 2 * bytes_of(x), k, x, factor);
}

status activation_backward(struct kernels *k, struct tensor dx, struct tensor dy,
                           struct tensor kept, enum activation act)
{
    SHAPE(dx, k->dtype, dy.rows, dy.columns);
    SHAPE(dy, k->dtype, dx.rows, dx.columns);
    SHAPE(kept, k->dtype, dx.rows, dx.columns);
    REQUIRE(act != ACTIVATION_NONE, STATUS_INTERNAL, "activation_backward: no activation");
    DISPATCH(k, activation_backward, (double)dx.rows * (double)dx.columns,
             bytes_of(dx) + bytes_of(dy) + bytes_of(kept), k, dx, dy, kept, act);
}

/* ---- SwiGLU and rotary positions ---- */

status swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up)
{
    SHAPE(y, k->dtype, gate_up.rows, y.columns);
    SHAPE(gate_up, k->dtype, y.rows, 2 * y.columns);
    DISPATCH(k, swiglu_forward, 6 * (double)y.rows * (double)y.columns,
             bytes_of(y) + bytes_of(gate_up), k, y, gate_up);
}

status swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                       struct tensor gate_up)
{
    SHAPE(dy, k->dtype, gate_up.rows, dy.columns);
    SHAPE(gate_up, k->dtype, dy.rows, 2 * dy.columns);
    SHAPE(d_gate_up, k->dtype, dy.rows, 2 * dy.columns);
    DISPATCH(k, swiglu_backward, 12 * (double)dy.rows * (double)dy.columns,
             bytes_of(dy) + 2 * bytes_of(gate_up), k, d_gate_up, dy, gate_up);
}

status rotary_apply(struct kernels *k, struct tensor x, struct tensor table,
                    const int32_t *positions, bool inverse)
{
    SHAPE(x, k->dtype, x.rows, x.columns);
    SHAPE(table, DTYPE_F32, table.rows, table.columns);
    REQUIRE(table.columns % 2 == 0 && x.columns % table.columns == 0, STATUS_INTERNAL,
            "rotary_apply: %lld columns in heads of %lld", (long long)x.columns,
            (long long)table.columns);
    PRESENT(positions);
    DISPATCH(k, rotary_apply, 3 * (double)x.rows * (double)x.columns, 2 * bytes_of(x), k, x, table,
             positions, inverse);
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
    TRY(dropout_check(__func__, &dropout));
    double tables = position_table.data == NULL ? 1 : 2;
    DISPATCH(k, embedding_forward, tables * (double)y.rows * (double)y.columns,
             (1 + tables) * bytes_of(y), k, y, tokens, positions, token_table, first_token,
             position_table, dropout);
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
    TRY(dropout_check(__func__, &dropout));
    double elements = (double)dy.rows * (double)dy.columns;
    double tables = (d_token_table.data != NULL) + (d_position_table.data != NULL);
    if (!(tables > 0)) {
        return STATUS_OK;
    }
    DISPATCH(k, embedding_backward, tables * elements, bytes_of(dy) + 8 * tables * elements, k,
             d_token_table, first_token, d_position_table, dy, tokens, positions, dropout);
}

/* ---- some of the rows ---- */

static status rows_check(const char *where, const int32_t *rows, int64_t count, int64_t all)
{
    for (int64_t i = 0; i < count; i++) {
        int32_t least = i > 0 ? rows[i - 1] + 1 : 0;
        REQUIRE(rows[i] >= least && rows[i] < all, STATUS_INTERNAL,
                "%s: row %lld is %d, not from %d on and below %lld", where, (long long)i, rows[i],
                least, (long long)all);
    }
    return STATUS_OK;
}

status gather_rows(struct kernels *k, struct tensor y, struct tensor x, const int32_t *rows)
{
    SHAPE(x, k->dtype, x.rows, y.columns);
    SHAPE(y, k->dtype, y.rows, x.columns);
    PRESENT(rows);
    TRY(rows_check(__func__, rows, host_memory(k) ? y.rows : 0, x.rows));
    DISPATCH(k, gather_rows, 0, 2 * bytes_of(y), k, y, x, rows);
}

status scatter_rows(struct kernels *k, struct tensor dx, struct tensor dy, const int32_t *rows,
                    bool overwrite)
{
    SHAPE(dx, k->dtype, dx.rows, dy.columns);
    SHAPE(dy, k->dtype, dy.rows, dx.columns);
    PRESENT(rows);
    TRY(rows_check(__func__, rows, host_memory(k) ? dy.rows : 0, dx.rows));
    DISPATCH(k, scatter_rows, overwrite ? 0 : (double)dy.rows * (double)dy.columns,
             bytes_of(dy) + (overwrite ? bytes_of(dx) : 2 * bytes_of(dy)), k, dx, dy, rows,
             overwrite);
}

/* ---- residual and norm ---- */

status dropout_apply(struct kernels *k, struct tensor y, struct tensor x, struct dropout dropout)
{
    SHAPE(y, k->dtype, x.rows, x.columns);
    SHAPE(x, k->dtype, y.rows, y.columns);
    TRY(dropout_check(__func__, &dropout));
    DISPATCH(k, dropout_apply, (double)x.rows * (double)x.columns, bytes_of(x) + bytes_of(y), k, y,
             x, dropout);
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
        SHAPE(gamma, DTYPE_F32, 1, c);
        SHAPE_OPTIONAL(beta, DTYPE_F32, 1, c);
        SHAPE_OPTIONAL(statistics, DTYPE_F32, n, 2);
        REQUIRE(epsilon > 0, STATUS_INTERNAL, "residual_norm_forward: epsilon %g", (double)epsilon);
        REQUIRE((beta.data != NULL) == (kind == NORM_LAYER), STATUS_INTERNAL,
                "residual_norm_forward: a layer norm has a beta, an RMS norm has none");
    }
    TRY(dropout_check(__func__, &dropout));
    DISPATCH(k, residual_norm_forward, 8.0 * (double)n * (double)c,
             bytes_of(x) + bytes_of(y) + 2 * bytes_of(delta), k, z, y, statistics, x, delta, gamma,
             beta, kind, epsilon, dropout);
}

status residual_norm_backward(struct kernels *k, struct tensor dz, struct tensor ddelta,
                              struct tensor dgamma, struct tensor dbeta, struct tensor dy,
                              struct tensor z, struct tensor statistics, struct tensor gamma,
                              enum norm_kind kind, enum norm_stream stream, struct dropout dropout)
{
    int64_t n = z.rows, c = z.columns;
    SHAPE(z, k->dtype, n, c);
    SHAPE(dz, k->dtype, n, c);
    SHAPE(dy, k->dtype, n, c);
    SHAPE_OPTIONAL(ddelta, k->dtype, n, c);
    SHAPE(gamma, DTYPE_F32, 1, c);
    SHAPE(dgamma, DTYPE_F32, 1, c);
    SHAPE_OPTIONAL(dbeta, DTYPE_F32, 1, c);
    SHAPE(statistics, DTYPE_F32, n, 2);
    REQUIRE((dbeta.data != NULL) == (kind == NORM_LAYER), STATUS_INTERNAL,
            "residual_norm_backward: a layer norm has a beta, an RMS norm has none");
    TRY(dropout_check(__func__, &dropout));
    DISPATCH(k, residual_norm_backward, 12.0 * (double)n * (double)c,
             bytes_of(z) + bytes_of(dy) + (stream == NORM_STREAM_NOTHING ? 1 : 2) * bytes_of(dz) +
                 bytes_of(ddelta),
             k, dz, ddelta, dgamma, dbeta, dy, z, statistics, gamma, kind, stream, dropout);
}

/* ---- attention ---- */

static bool branches_fit(const struct attention *a, int64_t i)
{
    const int32_t *b = a->branches, *q = a->cu_q + i, *k = a->cu_k + i;
    return b == NULL || (a->causal && a->window == 0 && q[0] == k[0] && q[1] == k[1] &&
                         b[2 * i] >= 0 && b[2 * i + 1] >= b[2 * i] && b[2 * i + 1] <= q[1] - q[0]);
}

static status attention_check(const char *where, const struct attention *a, int64_t rows_q,
                              int64_t rows_k, bool host)
{
    REQUIRE(a->heads > 0 && a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->head_width > 0 &&
                a->sequences >= 0 && a->window >= 0 && a->longest_q >= 0 && a->longest_k >= 0,
            STATUS_INTERNAL,
            "%s: %d heads over %d key-value heads of width %lld, %lld sequences of at most %lld "
            "queries and %lld keys, window %lld",
            where, a->heads, a->kv_heads, (long long)a->head_width, (long long)a->sequences,
            (long long)a->longest_q, (long long)a->longest_k, (long long)a->window);
    REQUIRE(a->first_head >= 0 && (a->all_heads == 0 || a->first_head + a->heads <= a->all_heads),
            STATUS_INTERNAL, "%s: heads %d to %d of %d", where, a->first_head,
            a->first_head + a->heads, a->all_heads);
    TRY(present_check(where, "cu_q", a->cu_q));
    TRY(present_check(where, "cu_k", a->cu_k));
    for (int64_t i = 0; host && i < a->sequences; i++) {
        int64_t queries = (int64_t)a->cu_q[i + 1] - a->cu_q[i];
        int64_t keys = (int64_t)a->cu_k[i + 1] - a->cu_k[i];
        REQUIRE(a->cu_q[i] >= 0 && a->cu_k[i] >= 0 && queries >= 0 && keys >= 0 &&
                    a->cu_q[i + 1] <= rows_q && a->cu_k[i + 1] <= rows_k &&
                    queries <= a->longest_q && keys <= a->longest_k,
                STATUS_INTERNAL,
                "%s: sequence %lld has queries %d to %d of %lld rows and keys %d to %d of %lld "
                "(longest %lld and %lld)",
                where, (long long)i, a->cu_q[i], a->cu_q[i + 1], (long long)rows_q, a->cu_k[i],
                a->cu_k[i + 1], (long long)rows_k, (long long)a->longest_q,
                (long long)a->longest_k);
        REQUIRE(branches_fit(a, i), STATUS_INTERNAL, "%s: branches of sequence %d", where, (int)i);
    }
    return dropout_check(where, &a->dropout);
}

/* Pairs of a query and a key that it sees, over all heads: half a rectangle where causal. */
static double attention_pairs(const struct attention *a)
{
    double pairs = 0;
    for (int64_t i = 0; i < a->sequences; i++) {
        double n = a->cu_q[i + 1] - a->cu_q[i], m = a->cu_k[i + 1] - a->cu_k[i];
        double seen = fmax(0, a->causal ? m - (n - 1) / 2 : m);
        pairs += n * (a->window > 0 ? fmin(seen, (double)a->window) : seen);
        const int32_t *b = a->branches;
        pairs -= b != NULL ? (b[2 * i + 1] - b[2 * i]) * (n - b[2 * i + 1]) : 0;
    }
    return pairs * a->heads;
}

status attention_forward(struct kernels *k, struct tensor o, struct tensor lse, struct tensor q,
                         struct tensor keys, struct tensor values, const struct attention *a)
{
    int64_t wide = a->heads * a->head_width, narrow = a->kv_heads * a->head_width;
    SHAPE(q, k->dtype, o.rows, wide);
    SHAPE(o, k->dtype, q.rows, wide);
    SHAPE(keys, k->dtype, values.rows, narrow);
    SHAPE(values, k->dtype, keys.rows, narrow);
    SHAPE_OPTIONAL(lse, DTYPE_F32, a->heads, q.rows);
    TRY(attention_check(__func__, a, q.rows, keys.rows, host_memory(k)));
    double flops =
        k->profiling && host_memory(k) ? 4 * attention_pairs(a) * (double)a->head_width : 0;
    DISPATCH(k, attention_forward, flops,
             bytes_of(q) + bytes_of(keys) + bytes_of(values) + bytes_of(o), k, o, lse, q, keys,
             values, a);
}

status attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                          struct tensor keys, struct tensor values, struct tensor o,
                          struct tensor lse, const struct attention *a)
{
    int64_t wide = a->heads * a->head_width, narrow = a->kv_heads * a->head_width;
    SHAPE(q, k->dtype, o.rows, wide);
    SHAPE(o, k->dtype, q.rows, wide);
    SHAPE(d_o, k->dtype, q.rows, wide);
    SHAPE(dq, k->dtype, q.rows, wide);
    SHAPE(keys, k->dtype, values.rows, narrow);
    SHAPE(values, k->dtype, keys.rows, narrow);
    SHAPE(dkeys, k->dtype, keys.rows, narrow);
    SHAPE(dvalues, k->dtype, keys.rows, narrow);
    SHAPE(lse, DTYPE_F32, a->heads, q.rows);
    TRY(attention_check(__func__, a, q.rows, keys.rows, host_memory(k)));
    double flops =
        k->profiling && host_memory(k) ? 10 * attention_pairs(a) * (double)a->head_width : 0;
    DISPATCH(k, attention_backward, flops,
             4 * bytes_of(q) + 2 * bytes_of(keys) + 2 * bytes_of(values), k, dq, dkeys, dvalues,
             d_o, q, keys, values, o, lse, a);
}

/* ---- classifier ---- */

status classifier_run(struct kernels *k, float *losses, int32_t *best, struct tensor dx,
                      struct tensor dw, struct tensor x, struct tensor w, const int32_t *targets,
                      const struct classifier *c)
{
    SHAPE(x, k->dtype, x.rows, w.columns);
    SHAPE(w, k->dtype, w.rows, x.columns);
    PRESENT(losses);
    PRESENT(targets);
    int64_t parts = c->parts.count > 1 ? c->parts.count : 1;
    REQUIRE(c->vocabulary > 0 && c->vocabulary <= parts * w.rows && c->parts.index >= 0 &&
                c->parts.index < parts && parts <= (k->limits.parts > 1 ? k->limits.parts : 1),
            STATUS_INTERNAL, "classifier_run: vocabulary %lld, part %d of %lld with %lld rows",
            (long long)c->vocabulary, c->parts.index, (long long)parts, (long long)w.rows);
    REQUIRE((c->entropies == NULL) == (c->mean_logits == NULL), STATUS_INTERNAL,
            "classifier_run: entropies without mean_logits, or these without those");
    SHAPE_OPTIONAL(c->bias, DTYPE_F32, 1, w.rows);
    if (c->gradient) {
        SHAPE(dx, k->dtype, x.rows, x.columns);
        SHAPE_OPTIONAL(dw, DTYPE_F32, w.rows, w.columns);
        SHAPE_OPTIONAL(c->dbias, DTYPE_F32, 1, w.rows);
        REQUIRE(c->bias.data != NULL || c->dbias.data == NULL, STATUS_INTERNAL,
                "classifier_run: dbias without bias");
    }
    for (int64_t i = 0; host_memory(k) && i < x.rows; i++) {
        REQUIRE(targets[i] == c->ignored || (targets[i] >= 0 && targets[i] < c->vocabulary),
                STATUS_INTERNAL, "classifier_run: target %d of row %lld is not in [0, %lld)",
                targets[i], (long long)i, (long long)c->vocabulary);
    }
    double products = c->gradient ? 2 + (dw.data != NULL) : 1;
    DISPATCH(k, classifier_run, products * product_flops(x, w),
             bytes_of(x) + bytes_of(w) + bytes_of(dx) + (c->overwrite ? 1 : 2) * bytes_of(dw), k,
             losses, best, dx, dw, x, w, targets, c);
}

status classifier_logits(struct kernels *k, struct tensor logits, struct tensor x, struct tensor w,
                         struct tensor bias)
{
    SHAPE(x, k->dtype, logits.rows, w.columns);
    SHAPE(w, k->dtype, w.rows, x.columns);
    SHAPE(logits, DTYPE_F32, x.rows, logits.columns);
    REQUIRE(logits.columns <= w.rows, STATUS_INTERNAL, "classifier_logits: %lld of %lld",
            (long long)logits.columns, (long long)w.rows);
    if (bias.data != NULL) {
        SHAPE(bias, DTYPE_F32, 1, bias.columns);
        REQUIRE(bias.columns >= logits.columns, STATUS_INTERNAL,
                "classifier_logits: %lld columns, a bias of %lld", (long long)logits.columns,
                (long long)bias.columns);
    }
    DISPATCH(k, classifier_logits, product_flops(x, w),
             bytes_of(x) + bytes_of(w) + bytes_of(logits), k, logits, x, w, bias);
}

/* ---- flat slices ---- */

static status require_rounding(const char *operation, const struct rounding *r)
{
    REQUIRE(!r->stochastic ||
                (r->first >= 0 && r->offset >= 0 && r->columns > 0 && r->pitch >= r->columns),
            STATUS_INTERNAL, "%s: rounds element %lld of %lld columns in %lld, from %lld on",
            operation, (long long)r->offset, (long long)r->columns, (long long)r->pitch,
            (long long)r->first);
    return STATUS_OK;
}

status adamw_update(struct kernels *k, float *weights, bf16 *copy, float *moment1, float *moment2,
                    const float *gradient, int64_t count, const struct adamw *settings)
{
    REQUIRE(count >= 0, STATUS_INTERNAL, "adamw_update: %lld elements", (long long)count);
    if (count == 0) {
        return STATUS_OK;
    }
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(gradient);
    TRY(require_rounding("adamw_update", &settings->rounding));
    DISPATCH(k, adamw_update, 14.0 * (double)count, (double)count * (copy == NULL ? 28.0 : 30.0), k,
             weights, copy, moment1, moment2, gradient, count, settings);
}

status lamb_moments(struct kernels *k, double *sums, const float *weights, float *moment1,
                    float *moment2, const float *gradient, int64_t count,
                    const struct adamw *settings)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "lamb_moments: %lld elements", (long long)count);
    PRESENT(sums);
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(gradient);
    DISPATCH(k, lamb_moments, 18.0 * (double)count, 24.0 * (double)count, k, sums, weights, moment1,
             moment2, gradient, count, settings);
}

status lamb_apply(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                  const float *moment2, int64_t count, const struct adamw *settings)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "lamb_apply: %lld elements", (long long)count);
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    TRY(require_rounding("lamb_apply", &settings->rounding));
    DISPATCH(k, lamb_apply, 8.0 * (double)count, (double)count * (copy == NULL ? 16.0 : 18.0), k,
             weights, copy, moment1, moment2, count, settings);
}

status weights_round(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                     const struct rounding *rounding)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "weights_round: %lld elements", (long long)count);
    PRESENT(copy);
    PRESENT(weights);
    TRY(require_rounding("weights_round", rounding));
    DISPATCH(k, weights_round, (double)count, 6.0 * (double)count, k, copy, weights, count,
             rounding);
}

status sum_of_squares(struct kernels *k, double *out, const float *x, int64_t count)
{
    REQUIRE(count >= 0 && (count == 0 || x != NULL), STATUS_INTERNAL,
            "sum_of_squares: %lld elements at %p", (long long)count, (const void *)x);
    DISPATCH(k, sum_of_squares, 2.0 * (double)count, 4.0 * (double)count, k, out, x, count);
}

status tally_rows(struct kernels *k, double *out, const struct tally *t, int64_t rows)
{
    REQUIRE(rows >= 0 && (t->best != NULL || t->entropies == NULL), STATUS_INTERNAL,
            "tally_rows: %lld rows, or entropies alone", (long long)rows);
    DISPATCH(k, tally_rows, (double)rows, 16.0 * (double)rows, k, out, t, rows);
}

status floats_add(struct kernels *k, float *to, const float *from, int64_t count)
{
    DISPATCH(k, floats_add, (double)count, 12.0 * (double)count, k, to, from, count);
}

status convert(struct kernels *k, struct tensor to, struct tensor from)
{
    SHAPE(from, from.dtype, to.rows, to.columns);
    SHAPE(to, to.dtype, from.rows, from.columns);
    DISPATCH(k, convert, (double)(to.rows * to.columns), bytes_of(to) + bytes_of(from), k, to,
             from);
}

/* ---- the floor ---- */

status kernels_floor(struct kernels *k, double (*seconds)[KERNELS_FLOOR_WAYS],
                     const struct product *products, int count)
{
    for (int i = 0; i < count; i++) {
        const struct product *p = &products[i];
        REQUIRE(p->rows > 0 && p->inner > 0 && p->outputs > 0 && p->count >= 0, STATUS_INTERNAL,
                "kernels_floor: product %d is %lld x %lld x %lld, %lld times", i,
                (long long)p->rows, (long long)p->inner, (long long)p->outputs,
                (long long)p->count);
    }
    REQUIRE(k->table.floor != NULL, STATUS_UNAVAILABLE, "this back-end has no floor to measure");
    return k->table.floor(k, seconds, products, count);
}
