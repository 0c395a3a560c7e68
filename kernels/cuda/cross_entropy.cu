/* Classifier: logits, cross-entropy and their gradients, one chunk of rows at a time.
 *
 *   z = x w^T + bias,  loss = log(sum exp(z - max z)) - (z_target - max z),
 *   dz = (softmax(z) - onehot(target)) * row_scale,  dx = dz w,  dw += dz^T x
 * With a soft-cap c, c tanh(z / c) replaces each logit that is read, and dz is multiplied by the
 * derivative 1 - (z / c)^2 of the replaced z. Label smoothing replaces onehot(target) by
 * q = (1 - eps) onehot(target) + eps / V, and z_target by the mean of z with the weights q.
 *
 * Logits are f32; a chunk has `classifier_rows` rows. A block reads its row twice: once for the
 * maximum and the sum of exponentials (online softmax), and once to write dz. The second read comes
 * from the cache. dz has the type of the GEMMs and overwrites the logits if that type is f32. For
 * entropies, mean logits and label smoothing, the block reads the row a third time in between. If
 * the vocabulary is sharded over ranks, these are two launches, and the statistics of the rows
 * (struct row_stats) are gathered in between.
 *
 * Launch    a block for each row of the chunk; 512 threads, or 128 for rows of up to 4096 logits;
 *           shared memory: 12 + 8 bytes for each of 16 warps
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867 */
#include "kernels/cuda/operation.cuh"

enum { ROW_THREADS = 512, SHORT_ROW_THREADS = 128, SHORT_ROW = 4096 };

/* Statistics of a row over one shard of the vocabulary. */
struct row_stats {
    float largest, sum;    /* of exp(z - largest) */
    float weighted, total; /* sums of (z - largest) exp(z - largest) and of z, if requested */
    float at_target;       /* the logit of the target; only in the shard that contains the target */
    int32_t best;
};
static_assert(sizeof(struct row_stats) == CUDA_ROW_STATS_BYTES, "workspace.c plans with this size");

template <typename T> struct rows_task {
    const float *logits;
    T *dz;                     /* nullptr: no gradient */
    int64_t stride;            /* of both */
    int64_t padded;            /* columns that the GEMMs read; zeros from the vocabulary on */
    int64_t first, vocabulary; /* first id of this shard, and its number of existing ids */
    int64_t ignored;
    struct row_stats
        *local_stats; /* [rows]: write only these statistics; nullptr: write the results */
    const struct row_stats *all_stats; /* [parts, rows]: gathered statistics; nullptr: no shards */
    int parts;
    int64_t rows, part_ids; /* rows of this launch, ids of each shard */
    int64_t all_ids;        /* V over all shards */
    float softcap;          /* 0: none */
    float smoothing;        /* of the labels; 0: none */
    const int32_t *targets;
    const float *row_scale; /* nullptr: 1 */
    float *losses;
    int32_t *best;                  /* nullptr: not requested */
    float *entropies, *mean_logits; /* nullptr: not requested */
};

GPU_INLINE float cap_logit(float z, float cap)
{
    return cap * tanhf(z / cap);
}

/* Reads eight logits of a row. */
template <bool CAPPED, typename T>
GPU_INLINE void load_logits(float (&x)[EIGHT], const rows_task<T> &task, const float *z)
{
    load_eight<true>(x, z, EIGHT);
    for (int i = 0; i < EIGHT && CAPPED; i++) {
        x[i] = cap_logit(x[i], task.softcap);
    }
}

/* Partial softmax: the maximum of some logits, its first index, and the sum of exp(z - maximum). */
struct softmax_part {
    float largest, sum;
    int32_t index;
};

GPU_INLINE float rescale_factor(float from, float to)
{
    return from == to ? 1.0f : expf(from - to);
}

GPU_INLINE struct softmax_part merge_parts(struct softmax_part a, struct softmax_part b)
{
    bool second = b.largest > a.largest || (b.largest == a.largest && b.index < a.index);
    float largest = second ? b.largest : a.largest;
    float sum =
        a.sum * rescale_factor(a.largest, largest) + b.sum * rescale_factor(b.largest, largest);
    return {largest, sum, second ? b.index : a.index};
}

GPU_INLINE struct softmax_part merge_eight(struct softmax_part p, const float (&z)[EIGHT],
                                           int64_t first, int64_t left)
{
    float largest = p.largest;
    for (int i = 0; i < EIGHT; i++) {
        if (i < left && z[i] > largest) {
            largest = z[i];
            p.index = static_cast<int32_t>(first + i);
        }
    }
    p.sum *= rescale_factor(p.largest, largest);
    p.largest = largest;
    for (int i = 0; i < EIGHT; i++) {
        if (i < left) {
            p.sum += expf(z[i] - largest);
        }
    }
    return p;
}

GPU_INLINE struct softmax_part merge_over_block(struct softmax_part p, struct softmax_part *scratch)
{
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        struct softmax_part other = {__shfl_xor_sync(~0u, p.largest, lane_mask),
                                     __shfl_xor_sync(~0u, p.sum, lane_mask),
                                     __shfl_xor_sync(~0u, p.index, lane_mask)};
        p = threadIdx.x & lane_mask ? merge_parts(other, p) : merge_parts(p, other);
    }
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = p;
    }
    __syncthreads();
    p = scratch[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++) {
        p = merge_parts(p, scratch[i]);
    }
    return p;
}

/* Returns the weighted sum relative to a maximum that is at least the one of the statistics. */
GPU_INLINE float rescale_weighted(const struct row_stats &stats, float largest)
{
    return stats.sum == 0 ? 0.0f
                          : (stats.weighted + (stats.largest - largest) * stats.sum) *
                                rescale_factor(stats.largest, largest);
}

/* Merges the statistics of all shards, in the order of the shards. */
template <typename T>
GPU_INLINE struct row_stats merge_shards(const rows_task<T> &task, int64_t n, int32_t target)
{
    struct row_stats stats = task.all_stats[n];
    for (int i = 1; i < task.parts; i++) {
        struct row_stats part = task.all_stats[i * task.rows + n];
        float largest = part.largest > stats.largest ? part.largest : stats.largest;
        stats.weighted = rescale_weighted(stats, largest) + rescale_weighted(part, largest);
        stats.total += part.total;
        stats.sum = stats.sum * rescale_factor(stats.largest, largest) +
                    part.sum * rescale_factor(part.largest, largest);
        stats.best = part.largest > stats.largest ? part.best : stats.best;
        stats.largest = largest;
    }
    if (target != task.ignored) {
        stats.at_target = task.all_stats[target / task.part_ids * task.rows + n].at_target;
    }
    return stats;
}

/* Sums over a row, for entropies and mean logits. */
struct row_sums {
    float weighted, total; /* as in struct row_stats */
};

template <bool CAPPED, typename T>
GPU_INLINE struct row_sums sum_row(const rows_task<T> &task, const float *z, float largest,
                                   struct row_sums *scratch)
{
    struct row_sums m = {0, 0};
    float x[EIGHT];
    int64_t first = static_cast<int64_t>(threadIdx.x) * EIGHT;
    for (int64_t c = first; c < task.vocabulary; c += blockDim.x * EIGHT) {
        load_logits<CAPPED>(x, task, z + c);
        for (int i = 0; i < EIGHT; i++) {
            if (c + i < task.vocabulary) {
                m.weighted += (x[i] - largest) * expf(x[i] - largest);
                m.total += x[i];
            }
        }
    }
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        m.weighted += __shfl_xor_sync(~0u, m.weighted, lane_mask);
        m.total += __shfl_xor_sync(~0u, m.total, lane_mask);
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

/* Computes the statistics of a row of this shard; all threads of the block call it. */
template <bool CAPPED, typename T>
GPU_INLINE struct row_stats compute_row_stats(const rows_task<T> &task, const float *z,
                                              int64_t target, struct softmax_part *scratch,
                                              struct row_sums *sums)
{
    struct softmax_part p = {-INFINITY, 0.0f, INT32_MAX};
    float x[EIGHT];
    int64_t first = static_cast<int64_t>(threadIdx.x) * EIGHT;
    for (int64_t c = first; c < task.vocabulary; c += blockDim.x * EIGHT) {
        load_logits<CAPPED>(x, task, z + c);
        p = merge_eight(p, x, c, task.vocabulary - c);
    }
    p = merge_over_block(p, scratch);
    struct row_sums m = {0, 0};
    if (task.entropies != nullptr || task.smoothing > 0) {
        m = sum_row<CAPPED>(task, z, p.largest, sums);
    }
    int32_t best = static_cast<int32_t>(task.first) + (p.index == INT32_MAX ? 0 : p.index);
    float at_target = target >= 0 && target < task.vocabulary ? z[target] : 0.0f;
    at_target = CAPPED ? cap_logit(at_target, task.softcap) : at_target;
    return {p.largest, p.sum, m.weighted, m.total, at_target, best};
}

template <typename T, bool CAPPED>
__global__ void __launch_bounds__(ROW_THREADS) cross_entropy_rows(const rows_task<T> task)
{
    GPU_SHARED(struct softmax_part, scratch, ROW_THREADS / 32);
    GPU_SHARED(struct row_sums, sums, ROW_THREADS / 32);
    int64_t n = blockIdx.x, first = static_cast<int64_t>(threadIdx.x) * EIGHT;
    const float *z = task.logits + n * task.stride;
    int32_t whole_target = task.targets[n];
    bool counted = whole_target != task.ignored;
    int64_t target = counted ? whole_target - task.first : -1;
    struct row_stats p = task.all_stats == nullptr
                             ? compute_row_stats<CAPPED>(task, z, target, scratch, sums)
                             : merge_shards(task, n, whole_target);
    if (task.local_stats != nullptr) {
        if (threadIdx.x == 0) {
            task.local_stats[n] = p;
        }
        return;
    }
    float distance = p.at_target - p.largest, ids = static_cast<float>(task.all_ids);
    if (task.smoothing > 0) {
        distance =
            (1.0f - task.smoothing) * distance + task.smoothing * (p.total / ids - p.largest);
    }
    if (threadIdx.x == 0) {
        task.losses[n] = counted ? logf(p.sum) - distance : 0.0f;
        if (task.best != nullptr) {
            task.best[n] = p.best;
        }
        if (task.entropies != nullptr) {
            task.entropies[n] = logf(p.sum) - p.weighted / p.sum;
            task.mean_logits[n] = p.total / ids;
        }
    }
    float x[EIGHT];
    if (task.dz == nullptr) {
        return;
    }
    __syncthreads(); /* the target's logit has been read: dz may overwrite it */
    float scale = !counted ? 0.0f : task.row_scale == nullptr ? 1.0f : task.row_scale[n];
    float of_target = 1.0f - task.smoothing, of_each = task.smoothing / ids;
    for (int64_t c = first; c < task.padded; c += blockDim.x * EIGHT) {
        load_logits<CAPPED>(x, task, z + c);
        for (int i = 0; i < EIGHT; i++) {
            float label = (c + i == target ? of_target : 0.0f) + of_each;
            float gradient = expf(x[i] - p.largest) / p.sum - label;
            float share = CAPPED ? x[i] / task.softcap : 0.0f;
            gradient *= CAPPED ? 1.0f - share * share : 1.0f;
            x[i] = counted && c + i < task.vocabulary ? scale * gradient : 0.0f;
        }
        store_eight<true>(task.dz + n * task.stride + c, x, EIGHT);
    }
}

__global__ void __launch_bounds__(ROW_THREADS)
    softcap_rows(float *x, int64_t rows, int64_t columns, int64_t stride, float cap)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < rows * columns; i += step) {
        float *at = x + i / columns * stride + i % columns;
        *at = cap_logit(*at, cap);
    }
}

/* ---- host ---- */

struct chunk {
    struct tensor logits, dz, x, dx;
    void *sums; /* scratch */
    struct row_stats *local_stats, *all_stats;
};

static status run_gradient_gemms(struct kernels *k, const struct chunk *c, struct tensor w,
                                 struct tensor dw, struct tensor dbias, bool overwrite)
{
    if (dbias.data != NULL) {
        TRY(cuda_column_sums(k, static_cast<float *>(dbias.data), c->dz, overwrite, c->sums));
    }
    struct cuda_gemm p = {};
    p.c = c->dx;
    p.a = c->dz;
    p.b = w;
    TRY(cuda_gemm_run(k, &p));
    if (dw.data == NULL) {
        return STATUS_OK;
    }
    p = {};
    p.c = dw;
    p.a = c->dz;
    p.transpose_a = true;
    p.b = c->x;
    p.accumulate = !overwrite;
    return cuda_gemm_run(k, &p);
}

template <typename T>
static status launch_statistics(struct kernels *k, const rows_task<T> &task, unsigned threads)
{
    unsigned rows = static_cast<unsigned>(task.rows);
    if (task.softcap > 0) {
        LAUNCH(k, (cross_entropy_rows<T, true>), rows, threads, 0, task);
    } else {
        LAUNCH(k, (cross_entropy_rows<T, false>), rows, threads, 0, task);
    }
    return STATUS_OK;
}

template <typename T>
static status launch_rows(struct kernels *k, const struct chunk *ch, const struct classifier *c,
                          const int32_t *targets, float *losses, int32_t *best, int64_t first)
{
    int64_t first_id = c->vocabulary_shard.index * ch->logits.columns,
            existing = c->vocabulary - first_id;
    rows_task<T> task = {static_cast<const float *>(ch->logits.data),
                         static_cast<T *>(ch->dz.data),
                         ch->logits.stride,
                         ch->logits.stride,
                         first_id,
                         existing < 0 ? 0 : min_int64(existing, ch->logits.columns),
                         c->ignored,
                         nullptr,
                         nullptr,
                         c->vocabulary_shard.count,
                         ch->x.rows,
                         ch->logits.columns,
                         c->vocabulary,
                         c->softcap,
                         c->label_smoothing,
                         targets + first,
                         c->row_scale == NULL ? NULL : c->row_scale + first,
                         losses + first,
                         best == NULL ? NULL : best + first,
                         c->entropies == NULL ? NULL : c->entropies + first,
                         c->mean_logits == NULL ? NULL : c->mean_logits + first};
    unsigned threads = ch->logits.columns <= SHORT_ROW ? SHORT_ROW_THREADS : ROW_THREADS;
    if (c->vocabulary_shard.count > 1) {
        task.local_stats = ch->local_stats;
        TRY(launch_statistics(k, task, threads));
        TRY(c->vocabulary_shard.all_gather(c->vocabulary_shard.context, ch->all_stats,
                                           ch->local_stats, cuda_row_stats_bytes(ch->x.rows, 1)));
        task.local_stats = nullptr;
        task.all_stats = ch->all_stats;
    }
    return launch_statistics(k, task, threads);
}

/* Takes scratch memory for a chunk: logits, dz if there is a gradient, and statistics if there are
 * shards. */
static status take_chunk(struct kernels *k, struct chunk *c, int64_t vocabulary, bool gradient,
                         int parts)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
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
        void *local_stats, *all_stats;
        TRY(arena_take(scratch, cuda_row_stats_bytes(c->x.rows, 1), &local_stats));
        TRY(arena_take(scratch, cuda_row_stats_bytes(c->x.rows, parts), &all_stats));
        c->local_stats = static_cast<struct row_stats *>(local_stats);
        c->all_stats = static_cast<struct row_stats *>(all_stats);
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
    int64_t chunk_rows = cuda_get_state(k)->classifier_rows;
    for (int64_t first = 0; first < x.rows; first += chunk_rows) {
        struct chunk ch = {};
        int64_t rows = min_int64(x.rows - first, chunk_rows);
        ch.x = tensor_rows(x, first, rows);
        ch.dx = tensor_rows(dx, first, rows);
        TRY(take_chunk(k, &ch, w.rows, c->gradient, c->vocabulary_shard.count));
        struct cuda_gemm p = {};
        p.c = ch.logits;
        p.a = ch.x;
        p.b = w;
        p.transpose_b = true;
        p.bias = c->bias;
        TRY(cuda_gemm_run(k, &p));
        if (k->dtype == DTYPE_F32) {
            TRY(launch_rows<float>(k, &ch, c, targets, losses, best, first));
        } else {
            TRY(launch_rows<bf16>(k, &ch, c, targets, losses, best, first));
        }
        if (c->gradient) {
            TRY(run_gradient_gemms(k, &ch, w, dw, c->dbias, c->overwrite && first == 0));
        }
    }
    return STATUS_OK;
}

extern "C" status cuda_classifier_logits(struct kernels *k, struct tensor logits, struct tensor x,
                                         struct tensor w, struct tensor bias)
{
    struct cuda_gemm p = {};
    if (bias.data != NULL) {
        p.bias = tensor_columns(bias, 0, logits.columns);
    }
    p.c = logits;
    p.a = x;
    p.b = tensor_rows(w, 0, logits.columns);
    p.transpose_b = true;
    return cuda_gemm_run(k, &p);
}

extern "C" status cuda_op_softcap(struct kernels *k, struct tensor x, float cap)
{
    const int64_t most = 1024;
    int64_t blocks = (x.rows * x.columns + ROW_THREADS - 1) / ROW_THREADS;
    if (blocks == 0) {
        return STATUS_OK;
    }
    LAUNCH(k, softcap_rows, static_cast<unsigned>(min_int64(blocks, most)), ROW_THREADS, 0,
           static_cast<float *>(x.data), x.rows, x.columns, x.stride, cap);
    return STATUS_OK;
}
