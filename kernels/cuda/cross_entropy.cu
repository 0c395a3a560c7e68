/* The classifier: logits, cross-entropy and their gradients, a chunk of rows at a time.
 *
 *   z = x w^T + bias,  loss = log(sum exp(z - max z)) - (z_target - max z),
 *   dz = (softmax(z) - onehot(target)) * row_scale,  dx = dz w,  dw += dz^T x
 *
 * Logits are f32, for `classifier_rows` rows at a time. A block reads its row twice: once for the largest
 * and the sum of exponentials, online, and once to write dz (in the products' type; over the
 * logits where that is f32). The second time the row comes from the cache; a third reading in between is
 * for entropies and mean logits, where they are wanted. Where the vocabulary is shared
 * out these are two launches, and the parts' lines are gathered in between.
 *
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867 */
#include "kernels/cuda/operation.cuh"

enum { ROW_THREADS = 512, SHORT_ROW_THREADS = 128, SHORT_ROW = 4096 };

/* What one part of the vocabulary knows of a row. */
struct line {
    float largest, sum; /* of exp(z - largest) */
    float weighted,
        total;       /* sums of (z - largest) exp(z - largest) and of z, where they are wanted */
    float at_target; /* the logit, in the target's part */
    int32_t best;
};
static_assert(sizeof(struct line) == CUDA_LINE_BYTES, "as the workspace is planned");

template <typename T> struct rows_task {
    const float *logits;
    T *dz;                     /* nullptr: no gradient */
    int64_t stride;            /* of both */
    int64_t padded;            /* columns that a product reads: zeros from the vocabulary on */
    int64_t first, vocabulary; /* the first id of this part, and how many of its columns exist */
    int64_t ignored;
    struct line *lines;     /* [rows]: only these are wanted; nullptr: the rest */
    const struct line *all; /* [parts, rows]: gathered; nullptr: the whole vocabulary is here */
    int parts;
    int64_t rows, part_ids; /* of the call, of a part */
    int64_t all_ids;        /* V of all parts */
    const int32_t *targets;
    const float *row_scale; /* nullptr: 1 */
    float *losses;
    int32_t *best;                  /* nullptr: nobody asks */
    float *entropies, *mean_logits; /* nullptr: nobody asks */
};

/* The largest of some logits, the first place where it is, and the sum of exp(z - largest). */
struct softmax_part {
    float largest, sum;
    int32_t where;
};

GPU_INLINE float shrink(float from, float to)
{
    return from == to ? 1.0f : expf(from - to);
}

GPU_INLINE struct softmax_part merge(struct softmax_part a, struct softmax_part b)
{
    bool second = b.largest > a.largest || (b.largest == a.largest && b.where < a.where);
    float largest = second ? b.largest : a.largest;
    float sum = a.sum * shrink(a.largest, largest) + b.sum * shrink(b.largest, largest);
    return {largest, sum, second ? b.where : a.where};
}

GPU_INLINE struct softmax_part merge_eight(struct softmax_part p, const float (&z)[EIGHT],
                                           int64_t first, int64_t left)
{
    float largest = p.largest;
    for (int i = 0; i < EIGHT; i++) {
        if (i < left && z[i] > largest) {
            largest = z[i];
            p.where = static_cast<int32_t>(first + i);
        }
    }
    p.sum *= shrink(p.largest, largest);
    p.largest = largest;
    for (int i = 0; i < EIGHT; i++) {
        if (i < left) {
            p.sum += expf(z[i] - largest);
        }
    }
    return p;
}

GPU_INLINE struct softmax_part merge_block(struct softmax_part p, struct softmax_part *scratch)
{
    for (int with = 16; with > 0; with /= 2) {
        struct softmax_part other = {__shfl_xor_sync(~0u, p.largest, with),
                                     __shfl_xor_sync(~0u, p.sum, with),
                                     __shfl_xor_sync(~0u, p.where, with)};
        p = threadIdx.x & with ? merge(other, p) : merge(p, other);
    }
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = p;
    }
    __syncthreads();
    p = scratch[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++) {
        p = merge(p, scratch[i]);
    }
    return p;
}

/* A line's weighted sum where the largest is at least its own. */
GPU_INLINE float weighted_at(const struct line &line, float largest)
{
    return line.sum == 0 ? 0.0f
                         : (line.weighted + (line.largest - largest) * line.sum) *
                               shrink(line.largest, largest);
}

/* All parts' lines, in the order of the parts. */
template <typename T>
GPU_INLINE struct line merge_parts(const rows_task<T> &task, int64_t n, int32_t target)
{
    struct line line = task.all[n];
    for (int i = 1; i < task.parts; i++) {
        struct line part = task.all[i * task.rows + n];
        float largest = part.largest > line.largest ? part.largest : line.largest;
        line.weighted = weighted_at(line, largest) + weighted_at(part, largest);
        line.total += part.total;
        line.sum =
            line.sum * shrink(line.largest, largest) + part.sum * shrink(part.largest, largest);
        line.best = part.largest > line.largest ? part.best : line.best;
        line.largest = largest;
    }
    if (target != task.ignored) {
        line.at_target = task.all[target / task.part_ids * task.rows + n].at_target;
    }
    return line;
}

/* Sums over a row. */
struct moments {
    float weighted, total; /* as in struct line */
};

template <typename T>
GPU_INLINE struct moments row_moments(const rows_task<T> &task, const float *z, float largest,
                                      struct moments *scratch)
{
    struct moments m = {0, 0};
    float x[EIGHT];
    int64_t first = static_cast<int64_t>(threadIdx.x) * EIGHT;
    for (int64_t c = first; c < task.vocabulary; c += blockDim.x * EIGHT) {
        load_eight<true>(x, z + c, EIGHT);
        for (int i = 0; i < EIGHT; i++) {
            if (c + i < task.vocabulary) {
                m.weighted += (x[i] - largest) * expf(x[i] - largest);
                m.total += x[i];
            }
        }
    }
    for (int with = 16; with > 0; with /= 2) {
        m.weighted += __shfl_xor_sync(~0u, m.weighted, with);
        m.total += __shfl_xor_sync(~0u, m.total, with);
    }
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = m;
    }
    __syncthreads();
    m = scratch[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++) {
        m.weighted += scratch[i].weighted;
        m.total += scratch[i].total;
    }
    return m;
}

/* The whole block's part of a row. */
template <typename T>
GPU_INLINE struct line row_line(const rows_task<T> &task, const float *z, int64_t target,
                                struct softmax_part *scratch, struct moments *sums)
{
    struct softmax_part p = {-INFINITY, 0.0f, INT32_MAX};
    float x[EIGHT];
    int64_t first = static_cast<int64_t>(threadIdx.x) * EIGHT;
    for (int64_t c = first; c < task.vocabulary; c += blockDim.x * EIGHT) {
        load_eight<true>(x, z + c, EIGHT);
        p = merge_eight(p, x, c, task.vocabulary - c);
    }
    p = merge_block(p, scratch);
    struct moments m = {0, 0};
    if (task.entropies != nullptr) {
        m = row_moments(task, z, p.largest, sums);
    }
    int32_t best = static_cast<int32_t>(task.first) + (p.where == INT32_MAX ? 0 : p.where);
    float at_target = target >= 0 && target < task.vocabulary ? z[target] : 0.0f;
    return {p.largest, p.sum, m.weighted, m.total, at_target, best};
}

template <typename T>
__global__ void __launch_bounds__(ROW_THREADS) cross_entropy_rows(const rows_task<T> task)
{
    GPU_SHARED(struct softmax_part, scratch, ROW_THREADS / 32);
    GPU_SHARED(struct moments, sums, ROW_THREADS / 32);
    int64_t n = blockIdx.x, first = static_cast<int64_t>(threadIdx.x) * EIGHT;
    const float *z = task.logits + n * task.stride;
    int32_t whole_target = task.targets[n];
    bool counted = whole_target != task.ignored;
    int64_t target = counted ? whole_target - task.first : -1;
    struct line p = task.all == nullptr ? row_line(task, z, target, scratch, sums)
                                        : merge_parts(task, n, whole_target);
    if (task.lines != nullptr) {
        if (threadIdx.x == 0) {
            task.lines[n] = p;
        }
        return;
    }
    if (threadIdx.x == 0) {
        task.losses[n] = counted ? logf(p.sum) - (p.at_target - p.largest) : 0.0f;
        if (task.best != nullptr) {
            task.best[n] = p.best;
        }
        if (task.entropies != nullptr) {
            task.entropies[n] = logf(p.sum) - p.weighted / p.sum;
            task.mean_logits[n] = p.total / static_cast<float>(task.all_ids);
        }
    }
    float x[EIGHT];
    if (task.dz == nullptr) {
        return;
    }
    __syncthreads(); /* the target's logit was read: dz may lie over it */
    float scale = !counted ? 0.0f : task.row_scale == nullptr ? 1.0f : task.row_scale[n];
    for (int64_t c = first; c < task.padded; c += blockDim.x * EIGHT) {
        load_eight<true>(x, z + c, EIGHT);
        for (int i = 0; i < EIGHT; i++) {
            float share = expf(x[i] - p.largest) / p.sum - (c + i == target ? 1.0f : 0.0f);
            x[i] = counted && c + i < task.vocabulary ? scale * share : 0.0f;
        }
        store_eight<true>(task.dz + n * task.stride + c, x, EIGHT);
    }
}

/* ---- host ---- */

struct chunk {
    struct tensor logits, dz, x, dx;
    void *sums; /* scratch */
    struct line *lines, *all;
};

static status chunk_products(struct kernels *k, const struct chunk *c, struct tensor w,
                             struct tensor dw, struct tensor dbias, bool overwrite)
{
    if (dbias.data != NULL) {
        TRY(cuda_column_sums(k, static_cast<float *>(dbias.data), c->dz, overwrite, c->sums));
    }
    struct cuda_product p = {};
    p.c = c->dx;
    p.a = c->dz;
    p.b = w;
    TRY(cuda_product_run(k, &p));
    if (dw.data == NULL) {
        return STATUS_OK;
    }
    p = {};
    p.c = dw;
    p.a = c->dz;
    p.transpose_a = true;
    p.b = c->x;
    p.add = !overwrite;
    return cuda_product_run(k, &p);
}

template <typename T>
static status chunk_rows_run(struct kernels *k, const struct chunk *ch, const struct classifier *c,
                             const int32_t *targets, float *losses, int32_t *best, int64_t first)
{
    int64_t before = c->parts.index * ch->logits.columns, left = c->vocabulary - before;
    rows_task<T> task = {static_cast<const float *>(ch->logits.data),
                         static_cast<T *>(ch->dz.data),
                         ch->logits.stride,
                         ch->logits.stride,
                         before,
                         left < 0 ? 0 : smaller(left, ch->logits.columns),
                         c->ignored,
                         nullptr,
                         nullptr,
                         c->parts.count,
                         ch->x.rows,
                         ch->logits.columns,
                         c->vocabulary,
                         targets + first,
                         c->row_scale == NULL ? NULL : c->row_scale + first,
                         losses + first,
                         best == NULL ? NULL : best + first,
                         c->entropies == NULL ? NULL : c->entropies + first,
                         c->mean_logits == NULL ? NULL : c->mean_logits + first};
    unsigned threads = ch->logits.columns <= SHORT_ROW ? SHORT_ROW_THREADS : ROW_THREADS;
    if (c->parts.count > 1) {
        task.lines = ch->lines;
        LAUNCH(k, cross_entropy_rows<T>, static_cast<unsigned>(ch->x.rows), threads, 0, task);
        TRY(c->parts.gather(c->parts.context, ch->all, ch->lines, cuda_lines_bytes(ch->x.rows, 1)));
        task.lines = nullptr;
        task.all = ch->all;
    }
    LAUNCH(k, cross_entropy_rows<T>, static_cast<unsigned>(ch->x.rows), threads, 0, task);
    return STATUS_OK;
}

/* The chunk's logits, where there is a gradient dz, and lines where there are parts. */
static status chunk_take(struct kernels *k, struct chunk *c, int64_t vocabulary, bool gradient,
                         int parts)
{
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch), bytes = cuda_logits_bytes(c->x.rows, vocabulary);
    void *logits, *dz;
    TRY(arena_take(scratch, bytes, &logits));
    dz = logits;
    if (gradient && k->dtype == DTYPE_BF16) {
        TRY(arena_take(scratch, bytes / 2, &dz));
    }
    if (gradient) {
        TRY(arena_take(scratch, cuda_column_sums_scratch(vocabulary), &c->sums));
    }
    if (parts > 1) {
        void *lines, *all;
        TRY(arena_take(scratch, cuda_lines_bytes(c->x.rows, 1), &lines));
        TRY(arena_take(scratch, cuda_lines_bytes(c->x.rows, parts), &all));
        c->lines = static_cast<struct line *>(lines);
        c->all = static_cast<struct line *>(all);
    }
    arena_release(scratch, mark);
    c->logits = tensor_view(logits, DTYPE_F32, c->x.rows, vocabulary);
    c->logits.stride = cuda_logits_stride(vocabulary);
    c->dz = gradient ? c->logits : tensor_absent();
    if (gradient) {
        c->dz.data = dz;
        c->dz.dtype = k->dtype;
    }
    return STATUS_OK;
}

extern "C" status cuda_classifier_run(struct kernels *k, float *losses, int32_t *best,
                                      struct tensor dx, struct tensor dw, struct tensor x,
                                      struct tensor w, const int32_t *targets,
                                      const struct classifier *c)
{
    int64_t most = cuda_of(k)->classifier_rows;
    for (int64_t first = 0; first < x.rows; first += most) {
        struct chunk ch = {};
        int64_t rows = smaller(x.rows - first, most);
        ch.x = tensor_rows(x, first, rows);
        ch.dx = tensor_rows(dx, first, rows);
        TRY(chunk_take(k, &ch, w.rows, c->gradient, c->parts.count));
        struct cuda_product p = {};
        p.c = ch.logits;
        p.a = ch.x;
        p.b = w;
        p.transpose_b = true;
        p.bias = c->bias;
        TRY(cuda_product_run(k, &p));
        if (k->dtype == DTYPE_F32) {
            TRY(chunk_rows_run<float>(k, &ch, c, targets, losses, best, first));
        } else {
            TRY(chunk_rows_run<bf16>(k, &ch, c, targets, losses, best, first));
        }
        if (c->gradient) {
            TRY(chunk_products(k, &ch, w, dw, c->dbias, c->overwrite && first == 0));
        }
    }
    return STATUS_OK;
}

extern "C" status cuda_classifier_logits(struct kernels *k, struct tensor logits, struct tensor x,
                                         struct tensor w, struct tensor bias)
{
    struct cuda_product p = {};
    if (bias.data != NULL) {
        p.bias = tensor_columns(bias, 0, logits.columns);
    }
    p.c = logits;
    p.a = x;
    p.b = tensor_rows(w, 0, logits.columns);
    p.transpose_b = true;
    return cuda_product_run(k, &p);
}
