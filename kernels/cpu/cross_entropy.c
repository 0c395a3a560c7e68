/* The classifier: logits, cross-entropy and their gradients, for one chunk of rows at a time.
 *
 *   z = x w^T + bias,  loss = log(sum exp(z - max z)) - (z_target - max z)
 *   dz = (softmax(z) - onehot(target)) * row_scale,  dx = dz w,  dw += dz^T x
 *
 * With a soft-cap c, c tanh(z / c) replaces z before the loss. dz is then multiplied by the
 * derivative 1 - (z / c)^2 of the replaced z. Label smoothing replaces onehot(target) by
 * q = (1 - eps) onehot(target) + eps / V. It replaces z_target by the mean of z with the weights q.
 *
 * Blocking  The logits are computed in tiles of the vocabulary. While a tile is in the cache of a
 *           core it is replaced by e = exp(z - m), where m is the maximum of the row in the tile. m
 *           and the sum of e are kept. After all tiles, the maximum and sum of each row are known.
 *           Then a tile of dz is e times one factor per row, except for the target's element. dz is
 *           computed right before the GEMM that computes the same rows of dw. Therefore each
 *           element needs one exponential. Only e is stored, in the dtype of the GEMMs, for CHUNK
 *           rows; it is not stored without a gradient. The derivative of a soft-cap is computed
 *           from log(e) + m. With label smoothing dz is not 0 where e underflows. There, minus the
 *           derivative is stored in place of e.
 * Threads   Threads split the tiles, then the rows. Statistics are kept per tile and merged in the
 *           order of the tiles, so the bits do not depend on the number of threads.
 * Shards    Vocabulary shards of other ranks are one more level of tiles. Each shard merges its
 *           tiles to one struct row_stats per row. An all-gather collects them from all shards, and
 *           every shard merges them in the same order.
 *
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867 */
#include <math.h>

#include "base/number.h"
#include "kernels/cpu/classifier.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/math.h"

enum {
    CHUNK = CLASSIFIER_CHUNK,
    BLOCK_ROWS = CLASSIFIER_BLOCK_ROWS,
    TILE = CLASSIFIER_TILE,
};

/* The statistics of a row in one vocabulary shard. Shards exchange these bytes. */
struct row_stats {
    float max, sum;                /* sum of exp(z - max) */
    float weighted_sum, logit_sum; /* sums of (z - max) exp(z - max) and of z (needs_moments) */
    float target_logit;            /* logit of the target, if it is in this shard */
    int32_t argmax;
};

struct chunk {
    const struct classifier *c;
    int64_t first, vocabulary; /* first id of this shard, and its number of valid ids */
    struct tensor x, w, dx, dw;
    const int32_t *targets;
    float *losses;
    int32_t *argmax;
    float *entropies, *mean_logits; /* NULL: not requested */
    int64_t tiles;
    struct tensor z; /* f32: the memory of e, or one block per thread */
    struct tensor e; /* [rows, V]; absent if no gradient is requested */
    bool is_z_private;
    float *max, *sum;                 /* [tiles, rows]; sum is replaced by the factor of e */
    float *weighted_sum, *logit_sum;  /* [tiles, rows]; NULL: not requested */
    int32_t *tile_argmax;             /* [tiles, rows] */
    float *target_logit;              /* [rows]: the logit, then its gradient */
    struct row_stats *local_stats;    /* [rows], of this shard */
    struct row_stats *gathered_stats; /* [shards, rows] */
    int shards;
};

/* Returns the soft-cap if dz depends on its derivative where e is 0, else 0. */
static float get_stored_cap(const struct chunk *s)
{
    return s->c->label_smoothing > 0 ? s->c->softcap : 0;
}

/* Returns whether the sums for entropies, mean logits and label smoothing are computed. */
static bool needs_moments(const struct chunk *s)
{
    return s->entropies != NULL || s->c->label_smoothing > 0;
}

static int64_t get_chunk_rows(int64_t rows)
{
    return number_min(rows, CHUNK);
}

static size_t compute_stats_bytes(int64_t rows, int shards)
{
    return (size_t)(rows * shards) * sizeof(struct row_stats);
}

static size_t compute_chunk_bytes(enum dtype dtype, int threads, int64_t rows, int64_t vocabulary,
                                  int shards, bool gradient)
{
    size_t tile_floats_bytes = (size_t)(classifier_count_tiles(vocabulary) * rows) * 4;
    size_t bytes = 5 * cpu_scratch_align(tile_floats_bytes) + cpu_scratch_align((size_t)rows * 4) +
                   cpu_scratch_align(compute_stats_bytes(rows, 1));
    bytes += shards > 1 ? cpu_scratch_align(compute_stats_bytes(rows, shards)) : 0;
    if (gradient) {
        bytes += cpu_scratch_align((size_t)(rows * vocabulary) * dtype_bytes(dtype));
    }
    if (!gradient || dtype != DTYPE_F32) {
        bytes += cpu_scratch_align((size_t)threads * BLOCK_ROWS * TILE * sizeof(float));
    }
    return bytes;
}

size_t CPU(classifier_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    int64_t rows = get_chunk_rows(limits->rows);
    size_t losses = compute_chunk_bytes(dtype, threads, rows, limits->vocabulary,
                                        limits->vocabulary_shards, false);
    size_t both = compute_chunk_bytes(dtype, threads, rows, limits->vocabulary,
                                      limits->vocabulary_shards, true);
    return limits->training && both > losses ? both : losses;
}

/* ---- one tile of logits, in the cache ---- */

static float find_row_max(const float *z, int64_t count)
{
    vector max_vector = vector_set(-INFINITY);
    int64_t j = 0;
    for (; j + VECTOR_LANES <= count; j += VECTOR_LANES) {
        max_vector = vector_max(max_vector, vector_load(z + j));
    }
    float max = vector_maximum(max_vector);
    for (; j < count; j++) {
        max = z[j] > max ? z[j] : max;
    }
    return max;
}

/* Replaces the logits z of a row of a tile by cap tanh(z / cap). */
static void cap_logits(float *z, int64_t count, float cap)
{
    for (int64_t j = 0; j < count; j += VECTOR_LANES) {
        vector x = vector_get(z, DTYPE_F32, j, count - j);
        vector_put(z, DTYPE_F32, j, cap * math_tanh_relative(x * (1.0f / cap)), count - j);
    }
}

/* Returns the first index of the maximum; the last index if all elements are NaN. */
static int32_t find_max_index(const float *z, int64_t count, float max)
{
    int64_t at = 0;
    while (at < count - 1 && z[at] != max) {
        at++;
    }
    return (int32_t)at;
}

/* Sums over the row of a tile. */
struct row_sums {
    float exponentials;
    float weighted_sum, logit_sum; /* as in struct row_stats */
};

/* Replaces elements of e that are 0 by minus the derivative of the soft-cap at x; cap > 0. */
static inline vector store_cap_derivative(vector e, vector x, float cap)
{
    vector share = x * (1.0f / cap);
    return vector_select(e == 0.0f, share * share - 1.0f, e);
}

/* Computes e = exp(z - max) and its sum, and sets e to zero from `count` to the end of the tile.
 * moments: also computes the other two sums. stored_cap: see get_stored_cap. */
static inline struct row_sums exponentiate_row(struct tensor e, int64_t at, const float *z,
                                               int64_t count, int64_t columns, float max,
                                               bool moments, float stored_cap)
{
    vector sum = {0}, weighted_sum = {0}, logit_sum = {0}, zero = {0};
    struct row_sums rest = {0};
    for (int64_t j = 0; j < count; j += VECTOR_LANES) {
        int64_t left = count - j;
        vector x = vector_get(z, DTYPE_F32, j, left), y = math_exp(x - max);
        if (left >= VECTOR_LANES) {
            sum += y;
            weighted_sum += moments ? y * (x - max) : zero;
            logit_sum += moments ? x : zero;
        }
        for (int64_t i = 0; left < VECTOR_LANES && i < left; i++) {
            rest.exponentials += y[i];
            rest.weighted_sum += y[i] * (x[i] - max);
            rest.logit_sum += x[i];
        }
        if (e.data != NULL) {
            y = stored_cap > 0 ? store_cap_derivative(y, x, stored_cap) : y;
            vector_put(e.data, e.dtype, at + j, y, left);
        }
    }
    for (int64_t j = count; e.data != NULL && j < columns; j += VECTOR_LANES) {
        vector_put(e.data, e.dtype, at + j, zero, columns - j);
    }
    rest.exponentials += vector_sum(sum);
    rest.weighted_sum += vector_sum(weighted_sum);
    rest.logit_sum += vector_sum(logit_sum);
    return rest;
}

static void exponentiate_tile(void *context, struct matmul_block block)
{
    const struct chunk *s = context;
    int64_t left = s->vocabulary - block.column;
    int64_t count = number_clamp(left, 0, block.columns);
    for (int64_t i = 0; i < block.rows; i++) {
        int64_t row = block.row + i, index = block.column / TILE * s->x.rows + row;
        float *z = s->z.data;
        z += s->is_z_private ? (int64_t)block.thread * BLOCK_ROWS * TILE + i * TILE
                             : row * s->z.stride + block.column;
        if (s->c->softcap > 0) {
            cap_logits(z, count, s->c->softcap);
        }
        int64_t target = s->targets[row] - s->first - block.column;
        if (s->targets[row] != s->c->ignored && target >= 0 && target < count) {
            s->target_logit[row] = z[target];
        }
        float max = find_row_max(z, count);
        s->max[index] = max;
        if (s->argmax != NULL) {
            s->tile_argmax[index] =
                (int32_t)(s->first + block.column) + find_max_index(z, count, max);
        }
        int64_t at = row * s->e.stride + block.column;
        if (s->weighted_sum == NULL) {
            s->sum[index] =
                exponentiate_row(s->e, at, z, count, block.columns, max, false, 0).exponentials;
            continue;
        }
        struct row_sums sums =
            exponentiate_row(s->e, at, z, count, block.columns, max, true, get_stored_cap(s));
        s->sum[index] = sums.exponentials;
        s->weighted_sum[index] = sums.weighted_sum;
        s->logit_sum[index] = sums.logit_sum;
    }
}

/* ---- merging of tiles and shards ---- */

/* Adds the sums of a tile or shard to stats. stats->max must be at least the other maximum. */
static void merge_stats(struct row_stats *stats, const struct row_stats *other)
{
    float distance = other->max - stats->max;
    float factor = other->sum == 0 ? 0 : expf(distance);
    stats->sum += other->sum == 0 ? 0 : other->sum * factor;
    stats->weighted_sum +=
        other->sum == 0 ? 0 : (other->weighted_sum + distance * other->sum) * factor;
    stats->logit_sum += other->logit_sum;
}

static struct row_stats merge_tiles(const struct chunk *s, int64_t row)
{
    struct row_stats stats = {.max = -INFINITY};
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t index = t * s->x.rows + row;
        if (s->max[index] > stats.max || t == 0) {
            stats.max = s->max[index];
            stats.argmax = s->argmax == NULL ? 0 : s->tile_argmax[index];
        }
    }
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t index = t * s->x.rows + row;
        bool moments = s->weighted_sum != NULL;
        merge_stats(&stats,
                    &(struct row_stats){.max = s->max[index],
                                        .sum = s->sum[index],
                                        .weighted_sum = moments ? s->weighted_sum[index] : 0,
                                        .logit_sum = moments ? s->logit_sum[index] : 0});
    }
    int64_t target = s->targets[row] - s->first;
    bool in_shard = s->targets[row] != s->c->ignored && target >= 0 && target < s->vocabulary;
    stats.target_logit = in_shard ? s->target_logit[row] : 0;
    return stats;
}

static struct row_stats merge_shards(const struct chunk *s, int64_t row)
{
    struct row_stats stats = s->gathered_stats[row];
    if (s->shards == 1) {
        return stats;
    }
    for (int p = 1; p < s->shards; p++) {
        const struct row_stats *other = &s->gathered_stats[p * s->x.rows + row];
        if (other->max > stats.max) {
            stats.max = other->max;
            stats.argmax = other->argmax;
        }
    }
    stats.sum = stats.weighted_sum = stats.logit_sum = 0;
    for (int p = 0; p < s->shards; p++) {
        merge_stats(&stats, &s->gathered_stats[p * s->x.rows + row]);
    }
    if (s->targets[row] != s->c->ignored) {
        stats.target_logit =
            s->gathered_stats[s->targets[row] / s->w.rows * s->x.rows + row].target_logit;
    }
    return stats;
}

static void finish_row(const struct chunk *s, int64_t row)
{
    struct row_stats stats = merge_shards(s, row);
    bool counted = s->targets[row] != s->c->ignored;
    float scale = !counted ? 0 : s->c->row_scale == NULL ? 1.0f : s->c->row_scale[row];
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t index = t * s->x.rows + row;
        float part = s->sum[index];
        s->sum[index] = part == 0 ? 0 : scale * (expf(s->max[index] - stats.max) / stats.sum);
    }
    float distance = counted ? stats.target_logit - stats.max : 0;
    float smoothing = s->c->label_smoothing, ids = (float)s->c->vocabulary;
    float smoothed = distance;
    if (smoothing > 0) {
        smoothed = (1.0f - smoothing) * distance + smoothing * (stats.logit_sum / ids - stats.max);
    }
    s->losses[row] = counted ? logf(stats.sum) - smoothed : 0;
    s->target_logit[row] =
        scale * (expf(distance) / stats.sum - (1.0f - smoothing) - smoothing / ids);
    if (s->c->softcap > 0) {
        float share = stats.target_logit / s->c->softcap;
        s->target_logit[row] *= 1.0f - share * share;
    }
    if (s->argmax != NULL) {
        s->argmax[row] = stats.argmax;
    }
    if (s->entropies != NULL) {
        s->entropies[row] = logf(stats.sum) - stats.weighted_sum / stats.sum;
        s->mean_logits[row] = stats.logit_sum / (float)s->c->vocabulary;
    }
}

static status merge_rows(int threads, const struct chunk *s)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->x.rows; row++) {
        s->local_stats[row] = merge_tiles(s, row);
    }
    if (s->shards > 1) {
        TRY(s->c->vocabulary_shard.all_gather(s->c->vocabulary_shard.context, s->gathered_stats,
                                              s->local_stats, compute_stats_bytes(s->x.rows, 1)));
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->x.rows; row++) {
        finish_row(s, row);
    }
    return STATUS_OK;
}

/* Returns the probability that label smoothing gives each id, times the factor of the gradient. */
static float get_smoothed_share(const struct chunk *s, int64_t row)
{
    const struct classifier *c = s->c;
    bool counted = s->targets[row] != c->ignored;
    float scale = c->row_scale == NULL ? 1.0f : c->row_scale[row];
    return counted ? scale * c->label_smoothing / (float)c->vocabulary : 0;
}

/* Computes dz of a vector from its stored e = x and one factor. max, cap: of the row, if it
 * is capped. */
static inline vector compute_gradient(vector x, vector share, float factor, float max, float cap)
{
    if (cap <= 0) {
        return x * factor - share;
    }
    vector e = vector_select(x < 0.0f, vector_set(0), x);
    vector capped = (math_log(e) + max) * (1.0f / cap);
    vector derivative = vector_select(e > 0.0f, 1.0f - capped * capped, -x);
    return (e * factor - share) * derivative;
}

/* Replaces e by dz for the ids [row, row + rows) of a tile. The GEMM of these rows of dw then reads
 * dz. */
static void compute_tile_gradient(void *context, struct matmul_block block)
{
    const struct chunk *s = context;
    const float cap = s->c->softcap;
    const int64_t valid = s->vocabulary - block.row; /* ids that exist */
    for (int64_t row = 0; row < s->x.rows; row++) {
        int64_t index = block.row / TILE * s->x.rows + row;
        float factor = s->sum[index], max = s->max[index];
        vector share = vector_set(get_smoothed_share(s, row));
        int64_t at = row * s->e.stride + block.row;
        cpu_prefetch(s->e, row + 2, block.row, block.rows);
        for (int64_t j = 0; j < block.rows; j += VECTOR_LANES) {
            int64_t left = block.rows - j;
            if (j + VECTOR_LANES > valid) { /* the padding has no share */
                share = vector_select(vector_index() < (int32_t)(valid - j), share, vector_set(0));
            }
            vector e = vector_get(s->e.data, s->e.dtype, at + j, left);
            vector_put(s->e.data, s->e.dtype, at + j, compute_gradient(e, share, factor, max, cap),
                       left);
        }
        int64_t target = s->targets[row] - s->first - block.row;
        if (s->targets[row] != s->c->ignored && target >= 0 && target < block.rows) {
            vector_put(s->e.data, s->e.dtype, at + target, vector_set(s->target_logit[row]), 1);
        }
    }
    if (s->c->dbias.data != NULL) {
        CPU(column_sums)
        (s->c->dbias.data, s->e, (struct cpu_range){block.row, block.row + block.rows},
         s->c->overwrite);
    }
}

/* Computes dz of all ids. */
static void compute_all_gradients(int threads, const struct chunk *s)
{
    int64_t ids = classifier_gradient_ids(s->w.rows, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->w.rows; row += ids) {
        int64_t left = s->w.rows - row;
        compute_tile_gradient((void *)s,
                              (struct matmul_block){.row = row, .rows = number_min(left, ids)});
    }
}

/* ---- one chunk of rows ---- */

/* If there are few tiles for the threads, dz is computed first. Otherwise a tile of dz is in the
 * cache when dw reads it. */
static status compute_weight_gradient(struct kernels *k, struct chunk *s)
{
    bool few_tiles = classifier_has_few_tiles(s->w.rows, k->threads);
    if (s->dw.data == NULL || few_tiles) {
        compute_all_gradients(k->threads, s);
    }
    if (s->dw.data == NULL) {
        return STATUS_OK;
    }
    struct matmul_call call =
        classifier_weight_call(s->dw, s->e, s->x, !s->c->overwrite, k->threads);
    call.before = few_tiles ? NULL : compute_tile_gradient;
    call.context = s;
    return matmul_run(k, &call);
}

static status run_chunk(struct kernels *k, struct chunk *s)
{
    struct matmul_call logits =
        classifier_logits_call(s->z, s->x, s->w, s->c->bias, s->is_z_private);
    logits.after = exponentiate_tile;
    logits.context = s;
    TRY(matmul_run(k, &logits));
    TRY(merge_rows(k->threads, s));
    if (!s->c->gradient) {
        return STATUS_OK;
    }
    TRY(compute_weight_gradient(k, s));
    return matmul_run(k, &(struct matmul_call){.c = s->dx, .a = s->e, .b = s->w});
}

static status allocate_chunk(struct kernels *k, struct chunk *s)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    int64_t rows = s->x.rows, vocabulary = s->w.rows;
    size_t tile_floats_bytes = (size_t)(s->tiles * rows) * 4;
    TRY(arena_take(scratch, tile_floats_bytes, (void **)&s->max));
    TRY(arena_take(scratch, tile_floats_bytes, (void **)&s->sum));
    TRY(arena_take(scratch, tile_floats_bytes, (void **)&s->tile_argmax));
    if (needs_moments(s)) {
        TRY(arena_take(scratch, tile_floats_bytes, (void **)&s->weighted_sum));
        TRY(arena_take(scratch, tile_floats_bytes, (void **)&s->logit_sum));
    }
    TRY(arena_take(scratch, (size_t)rows * 4, (void **)&s->target_logit));
    TRY(arena_take(scratch, compute_stats_bytes(rows, 1), (void **)&s->local_stats));
    s->gathered_stats = s->local_stats;
    if (s->shards > 1) {
        TRY(arena_take(scratch, compute_stats_bytes(rows, s->shards), (void **)&s->gathered_stats));
    }
    s->e = tensor_absent();
    if (s->c->gradient) {
        s->e = tensor_view(NULL, k->dtype, rows, vocabulary);
        TRY(arena_take(scratch, (size_t)(rows * vocabulary) * dtype_bytes(k->dtype), &s->e.data));
    }
    s->is_z_private = !s->c->gradient || k->dtype != DTYPE_F32;
    s->z = s->e;
    if (s->is_z_private) {
        s->z = (struct tensor){NULL, DTYPE_F32, rows, vocabulary, TILE};
        TRY(arena_take(scratch, (size_t)k->threads * BLOCK_ROWS * TILE * sizeof(float),
                       &s->z.data));
    }
    return STATUS_OK;
}

status CPU(classifier_run)(struct kernels *k, float *losses, int32_t *argmax, struct tensor dx,
                           struct tensor dw, struct tensor x, struct tensor w,
                           const int32_t *targets, const struct classifier *c)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t first_id = c->vocabulary_shard.index * w.rows, left = c->vocabulary - first_id;
    status result = STATUS_OK;
    for (int64_t first = 0; first < x.rows && result == STATUS_OK; first += CHUNK) {
        int64_t count = get_chunk_rows(x.rows - first);
        struct classifier settings = *c;
        settings.row_scale = c->row_scale == NULL ? NULL : c->row_scale + first;
        settings.overwrite = c->overwrite && first == 0;
        struct chunk s = {
            .c = &settings,
            .first = first_id,
            .vocabulary = number_clamp(left, 0, w.rows),
            .x = tensor_rows(x, first, count),
            .w = w,
            .dx = tensor_rows(dx, first, count),
            .dw = dw,
            .targets = targets + first,
            .losses = losses + first,
            .argmax = argmax == NULL ? NULL : argmax + first,
            .entropies = c->entropies == NULL ? NULL : c->entropies + first,
            .mean_logits = c->mean_logits == NULL ? NULL : c->mean_logits + first,
            .tiles = classifier_count_tiles(w.rows),
            .shards = number_max(c->vocabulary_shard.count, 1),
        };
        result = allocate_chunk(k, &s);
        if (result == STATUS_OK) {
            result = run_chunk(k, &s);
        }
        arena_release(scratch, mark);
    }
    return result;
}

status CPU(classifier_logits)(struct kernels *k, struct tensor logits, struct tensor x,
                              struct tensor w, struct tensor bias)
{
    struct tensor existing = tensor_rows(w, 0, logits.columns);
    if (bias.data != NULL) {
        bias = tensor_columns(bias, 0, logits.columns);
    }
    if (x.rows <= KERNELS_FEW_ROWS) {
        CPU(few_rows_gemm)(k, logits, x, existing, bias, false);
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = logits,
                             .a = x,
                             .b = existing,
                             .transpose_b = true,
                             .bias = bias,
                         });
}

status CPU(op_softcap)(struct kernels *k, struct tensor x, float cap)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        cap_logits((float *)x.data + i * x.stride, x.columns, cap);
    }
    return STATUS_OK;
}
