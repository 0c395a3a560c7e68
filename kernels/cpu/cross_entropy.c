/* The classifier: logits, cross-entropy and their gradients, a chunk of rows at a time.
 *
 *   z = x w^T + bias,  loss = log(sum exp(z - max z)) - (z_target - max z),
 *   dz = (softmax(z) - onehot(target)) * row_scale,  dx = dz w,  dw += dz^T x
 *
 * Logits are made in tiles of the vocabulary. While a tile is in a core's cache it becomes
 * e = exp(z - m) with m the largest of the tile's row, and m and the sum of e are kept. When all
 * tiles are there the rows' true maximum and sum are known, and a tile of dz is e times a factor of
 * its row, but for the target's element; it is made right before the product that adds its rows of
 * dw. So one exponential an element, and in memory only e: in the products' type, for CHUNK rows,
 * and not at all where no gradient is wanted.
 *
 * Parts of the vocabulary on other ranks are one more level of tiles: each part merges its tiles to one
 * line a row, the lines of all parts are gathered, and every part merges them in the same order.
 *
 * Order     statistics are kept by tile and merged in the order of the tiles: the threads change
 *           nothing
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867 */
#include <math.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

/* Measured at V = 50,304, C = 768: each chunk reads and writes all of dw. */
enum { CHUNK = 512, BLOCK_ROWS = 256, TILE = 384 };

/* What one part of the vocabulary knows of a row. */
struct line {
    float largest, sum; /* of exp(z - largest) */
    float weighted,
        total;       /* sums of (z - largest) exp(z - largest) and of z, where they are wanted */
    float at_target; /* the logit, in the target's part */
    int32_t best;
};

struct sweep {
    const struct classifier *c;
    int64_t first, vocabulary; /* the first id of this part, and how many of its rows exist */
    struct tensor x, w, dx, dw;
    const int32_t *targets;
    float *losses;
    int32_t *best;
    float *entropies, *mean_logits; /* NULL: not wanted */
    int64_t tiles;
    struct tensor z; /* f32: e's own memory, or a block for each thread */
    struct tensor e; /* [rows, V], absent where no gradient is wanted and z is not kept */
    bool private_z;
    float *largest, *sum;    /* [tiles, rows]; largest becomes the factor of e */
    float *weighted, *total; /* [tiles, rows]; NULL: not wanted */
    int32_t *where;          /* [tiles, rows] */
    float *at_target;        /* [rows]: the logit, then its gradient */
    struct line *lines;      /* [rows] of this part */
    struct line *all;        /* [parts, rows] */
    int parts;
};

static int64_t chunk_rows(int64_t rows)
{
    return rows < CHUNK ? rows : CHUNK;
}

static int64_t tile_count(int64_t vocabulary)
{
    return (vocabulary + TILE - 1) / TILE;
}

static size_t lines_bytes(int64_t rows, int parts)
{
    return (size_t)(rows * parts) * sizeof(struct line);
}

static size_t sweep_bytes(enum dtype dtype, int threads, int64_t rows, int64_t vocabulary,
                          int parts, bool gradient)
{
    size_t each = (size_t)(tile_count(vocabulary) * rows) * 4;
    size_t bytes = 5 * cpu_scratch_rounded(each) + cpu_scratch_rounded((size_t)rows * 4) +
                   cpu_scratch_rounded(lines_bytes(rows, 1));
    bytes += parts > 1 ? cpu_scratch_rounded(lines_bytes(rows, parts)) : 0;
    if (gradient) {
        bytes += cpu_scratch_rounded((size_t)(rows * vocabulary) * dtype_bytes(dtype));
    }
    if (!gradient || dtype != DTYPE_F32) {
        bytes += cpu_scratch_rounded((size_t)threads * BLOCK_ROWS * TILE * sizeof(float));
    }
    return bytes;
}

size_t CPU(classifier_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    int64_t rows = chunk_rows(limits->rows);
    size_t losses = sweep_bytes(dtype, threads, rows, limits->vocabulary, limits->parts, false);
    size_t both = sweep_bytes(dtype, threads, rows, limits->vocabulary, limits->parts, true);
    return limits->training && both > losses ? both : losses;
}

/* ---- a tile of logits, in the cache ---- */

static float row_largest(const float *z, int64_t count)
{
    vector most = vector_set(-INFINITY);
    int64_t j = 0;
    for (; j + VECTOR_LANES <= count; j += VECTOR_LANES) {
        most = vector_max(most, vector_load(z + j));
    }
    float largest = vector_maximum(most);
    for (; j < count; j++) {
        largest = z[j] > largest ? z[j] : largest;
    }
    return largest;
}

/* The first place of the largest; where all is NaN, the last place. */
static int32_t row_where(const float *z, int64_t count, float largest)
{
    int64_t at = 0;
    while (at < count - 1 && z[at] != largest) {
        at++;
    }
    return (int32_t)at;
}

/* Sums over a tile's row. */
struct row_sums {
    float exponentials;
    float weighted, total; /* as in struct line */
};

/* e = exp(z - largest), zero from `count` to the end of the tile, and its sums; moments: the other two
 * sums too. */
static inline struct row_sums row_exponentials(struct tensor e, int64_t at, const float *z,
                                               int64_t count, int64_t columns, float largest,
                                               bool moments)
{
    vector sum = {0}, weighted = {0}, total = {0}, zero = {0};
    struct row_sums rest = {0};
    for (int64_t j = 0; j < count; j += VECTOR_LANES) {
        int64_t left = count - j;
        vector x = vector_get(z, DTYPE_F32, j, left), y = math_exp(x - largest);
        if (left >= VECTOR_LANES) {
            sum += y;
            weighted += moments ? y * (x - largest) : zero;
            total += moments ? x : zero;
        }
        for (int64_t i = 0; left < VECTOR_LANES && i < left; i++) {
            rest.exponentials += y[i];
            rest.weighted += y[i] * (x[i] - largest);
            rest.total += x[i];
        }
        if (e.data != NULL) {
            vector_put(e.data, e.dtype, at + j, y, left);
        }
    }
    for (int64_t j = count; e.data != NULL && j < columns; j += VECTOR_LANES) {
        vector_put(e.data, e.dtype, at + j, zero, columns - j);
    }
    rest.exponentials += vector_sum(sum);
    rest.weighted += vector_sum(weighted);
    rest.total += vector_sum(total);
    return rest;
}

static void tile_exponentials(void *context, struct matmul_block block)
{
    const struct sweep *s = context;
    int64_t left = s->vocabulary - block.column;
    int64_t count = left < 0 ? 0 : left < block.columns ? left : block.columns;
    for (int64_t i = 0; i < block.rows; i++) {
        int64_t row = block.row + i, place = block.column / TILE * s->x.rows + row;
        const float *z = (const float *)s->z.data;
        z += s->private_z ? (int64_t)block.thread * BLOCK_ROWS * TILE + i * TILE
                          : row * s->z.stride + block.column;
        int64_t target = s->targets[row] - s->first - block.column;
        if (s->targets[row] != s->c->ignored && target >= 0 && target < count) {
            s->at_target[row] = z[target];
        }
        float largest = row_largest(z, count);
        s->largest[place] = largest;
        if (s->best != NULL) {
            s->where[place] = (int32_t)(s->first + block.column) + row_where(z, count, largest);
        }
        int64_t at = row * s->e.stride + block.column;
        if (s->weighted == NULL) {
            s->sum[place] =
                row_exponentials(s->e, at, z, count, block.columns, largest, false).exponentials;
            continue;
        }
        struct row_sums sums = row_exponentials(s->e, at, z, count, block.columns, largest, true);
        s->sum[place] = sums.exponentials;
        s->weighted[place] = sums.weighted;
        s->total[place] = sums.total;
    }
}

/* ---- the rows, from their tiles ---- */

/* Adds a part's sums to a line whose `largest` is at least the part's. */
static void line_add(struct line *line, const struct line *part)
{
    float distance = part->largest - line->largest;
    float factor = part->sum == 0 ? 0 : expf(distance);
    line->sum += part->sum == 0 ? 0 : part->sum * factor;
    line->weighted += part->sum == 0 ? 0 : (part->weighted + distance * part->sum) * factor;
    line->total += part->total;
}

static struct line line_of_tiles(const struct sweep *s, int64_t row)
{
    struct line line = {.largest = -INFINITY};
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t place = t * s->x.rows + row;
        if (s->largest[place] > line.largest || t == 0) {
            line.largest = s->largest[place];
            line.best = s->best == NULL ? 0 : s->where[place];
        }
    }
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t place = t * s->x.rows + row;
        bool moments = s->weighted != NULL;
        line_add(&line, &(struct line){.largest = s->largest[place],
                                       .sum = s->sum[place],
                                       .weighted = moments ? s->weighted[place] : 0,
                                       .total = moments ? s->total[place] : 0});
    }
    int64_t target = s->targets[row] - s->first;
    bool here = s->targets[row] != s->c->ignored && target >= 0 && target < s->vocabulary;
    line.at_target = here ? s->at_target[row] : 0;
    return line;
}

static struct line line_of_parts(const struct sweep *s, int64_t row)
{
    struct line line = s->all[row];
    if (s->parts == 1) {
        return line;
    }
    for (int p = 1; p < s->parts; p++) {
        const struct line *part = &s->all[p * s->x.rows + row];
        if (part->largest > line.largest) {
            line.largest = part->largest;
            line.best = part->best;
        }
    }
    line.sum = line.weighted = line.total = 0;
    for (int p = 0; p < s->parts; p++) {
        line_add(&line, &s->all[p * s->x.rows + row]);
    }
    if (s->targets[row] != s->c->ignored) {
        line.at_target = s->all[s->targets[row] / s->w.rows * s->x.rows + row].at_target;
    }
    return line;
}

static void row_finish(const struct sweep *s, int64_t row)
{
    struct line line = line_of_parts(s, row);
    bool counted = s->targets[row] != s->c->ignored;
    float scale = !counted ? 0 : s->c->row_scale == NULL ? 1.0f : s->c->row_scale[row];
    for (int64_t t = 0; t < s->tiles; t++) {
        int64_t place = t * s->x.rows + row;
        float part = s->sum[place];
        s->largest[place] =
            part == 0 ? 0 : scale * (expf(s->largest[place] - line.largest) / line.sum);
    }
    float distance = counted ? line.at_target - line.largest : 0;
    s->losses[row] = counted ? logf(line.sum) - distance : 0;
    s->at_target[row] = scale * (expf(distance) / line.sum - 1.0f);
    if (s->best != NULL) {
        s->best[row] = line.best;
    }
    if (s->entropies != NULL) {
        s->entropies[row] = logf(line.sum) - line.weighted / line.sum;
        s->mean_logits[row] = line.total / (float)s->c->vocabulary;
    }
}

static status rows_merge(int threads, const struct sweep *s)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->x.rows; row++) {
        s->lines[row] = line_of_tiles(s, row);
    }
    if (s->parts > 1) {
        TRY(s->c->parts.gather(s->c->parts.context, s->all, s->lines, lines_bytes(s->x.rows, 1)));
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->x.rows; row++) {
        row_finish(s, row);
    }
    return STATUS_OK;
}

/* dz in the place of e, for the tile whose rows of dw come next. */
static void tile_gradient(void *context, struct matmul_block block)
{
    const struct sweep *s = context;
    for (int64_t row = 0; row < s->x.rows; row++) {
        float factor = s->largest[block.row / TILE * s->x.rows + row];
        int64_t at = row * s->e.stride + block.row;
        cpu_prefetch(s->e, row + 2, block.row, block.rows);
        for (int64_t j = 0; j < block.rows; j += VECTOR_LANES) {
            int64_t left = block.rows - j;
            vector y = vector_get(s->e.data, s->e.dtype, at + j, left) * factor;
            vector_put(s->e.data, s->e.dtype, at + j, y, left);
        }
        int64_t target = s->targets[row] - s->first - block.row;
        if (s->targets[row] != s->c->ignored && target >= 0 && target < block.rows) {
            vector_put(s->e.data, s->e.dtype, at + target, vector_set(s->at_target[row]), 1);
        }
    }
    if (s->c->dbias.data != NULL) {
        CPU(column_sums)
        (s->c->dbias.data, s->e, (struct cpu_range){block.row, block.row + block.rows},
         s->c->overwrite);
    }
}

/* Where nobody wants dw. */
static void all_tile_gradients(int threads, const struct sweep *s)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->w.rows; row += TILE) {
        int64_t left = s->w.rows - row;
        tile_gradient((void *)s,
                      (struct matmul_block){.row = row, .rows = left < TILE ? left : TILE});
    }
}

/* ---- a chunk ---- */

static status sweep_gradients(struct kernels *k, struct sweep *s)
{
    if (s->dw.data == NULL) {
        all_tile_gradients(k->threads, s);
        return STATUS_OK;
    }
    return matmul_product(k, &(struct matmul_call){
                                 .c = s->dw,
                                 .a = s->e,
                                 .transpose_a = true,
                                 .b = s->x,
                                 .accumulate = !s->c->overwrite,
                                 .unit_rows = TILE,
                                 .unit_columns = s->dw.columns,
                                 .before = tile_gradient,
                                 .context = s,
                             });
}

static status sweep_products(struct kernels *k, struct sweep *s)
{
    TRY(matmul_product(k, &(struct matmul_call){
                              .c = s->z,
                              .a = s->x,
                              .b = s->w,
                              .transpose_b = true,
                              .bias = s->c->bias,
                              .unit_rows = BLOCK_ROWS,
                              .unit_columns = TILE,
                              .private_elements = s->private_z ? BLOCK_ROWS * TILE : 0,
                              .after = tile_exponentials,
                              .context = s,
                          }));
    TRY(rows_merge(k->threads, s));
    if (!s->c->gradient) {
        return STATUS_OK;
    }
    TRY(sweep_gradients(k, s));
    return matmul_product(k, &(struct matmul_call){.c = s->dx, .a = s->e, .b = s->w});
}

static status sweep_take(struct kernels *k, struct sweep *s)
{
    struct arena *scratch = &cpu_of(k)->scratch;
    int64_t rows = s->x.rows, vocabulary = s->w.rows;
    size_t each = (size_t)(s->tiles * rows) * 4;
    TRY(arena_take(scratch, each, (void **)&s->largest));
    TRY(arena_take(scratch, each, (void **)&s->sum));
    TRY(arena_take(scratch, each, (void **)&s->where));
    if (s->entropies != NULL) {
        TRY(arena_take(scratch, each, (void **)&s->weighted));
        TRY(arena_take(scratch, each, (void **)&s->total));
    }
    TRY(arena_take(scratch, (size_t)rows * 4, (void **)&s->at_target));
    TRY(arena_take(scratch, lines_bytes(rows, 1), (void **)&s->lines));
    s->all = s->lines;
    if (s->parts > 1) {
        TRY(arena_take(scratch, lines_bytes(rows, s->parts), (void **)&s->all));
    }
    s->e = tensor_absent();
    if (s->c->gradient) {
        s->e = tensor_view(NULL, k->dtype, rows, vocabulary);
        TRY(arena_take(scratch, (size_t)(rows * vocabulary) * dtype_bytes(k->dtype), &s->e.data));
    }
    s->private_z = !s->c->gradient || k->dtype != DTYPE_F32;
    s->z = s->e;
    if (s->private_z) {
        s->z = (struct tensor){NULL, DTYPE_F32, rows, vocabulary, TILE};
        TRY(arena_take(scratch, (size_t)k->threads * BLOCK_ROWS * TILE * sizeof(float),
                       &s->z.data));
    }
    return STATUS_OK;
}

status CPU(classifier_run)(struct kernels *k, float *losses, int32_t *best, struct tensor dx,
                           struct tensor dw, struct tensor x, struct tensor w,
                           const int32_t *targets, const struct classifier *c)
{
    struct arena *scratch = &cpu_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t before = c->parts.index * w.rows, left = c->vocabulary - before;
    status result = STATUS_OK;
    for (int64_t first = 0; first < x.rows && result == STATUS_OK; first += CHUNK) {
        int64_t count = chunk_rows(x.rows - first);
        struct classifier part = *c;
        part.row_scale = c->row_scale == NULL ? NULL : c->row_scale + first;
        part.overwrite = c->overwrite && first == 0;
        struct sweep s = {
            .c = &part,
            .first = before,
            .vocabulary = left < 0        ? 0
                          : left < w.rows ? left
                                          : w.rows,
            .x = tensor_rows(x, first, count),
            .w = w,
            .dx = tensor_rows(dx, first, count),
            .dw = dw,
            .targets = targets + first,
            .losses = losses + first,
            .best = best == NULL ? NULL : best + first,
            .entropies = c->entropies == NULL ? NULL : c->entropies + first,
            .mean_logits = c->mean_logits == NULL ? NULL : c->mean_logits + first,
            .tiles = tile_count(w.rows),
            .parts = c->parts.count > 1 ? c->parts.count : 1,
        };
        result = sweep_take(k, &s);
        if (result == STATUS_OK) {
            result = sweep_products(k, &s);
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
    if (x.rows <= FEW_ROWS) {
        CPU(few_rows_product)(k, logits, x, existing, bias);
        return STATUS_OK;
    }
    return matmul_product(k, &(struct matmul_call){
                                 .c = logits,
                                 .a = x,
                                 .b = existing,
                                 .transpose_b = true,
                                 .bias = bias,
                             });
}
