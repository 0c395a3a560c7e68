/* Classifier: logits, cross-entropy and their gradients, one chunk of rows at a time.
 *
 *   z = x w^T + bias,  loss = log(sum exp(z - max z)) - (z_target - max z),
 *   dz = (softmax(z) - onehot(target)) * row_scale,  dx = dz w,  dw += dz^T x
 *
 * With a soft-cap c, c tanh(z / c) replaces each logit that is read. dz is then multiplied by the
 * derivative 1 - (z / c)^2 of the replaced z. Label smoothing replaces onehot(target) by
 * q = (1 - eps) onehot(target) + eps / V. It replaces z_target by the mean of z with the weights q.
 *
 * In a pass with gradients, logits have the type of the GEMMs, and dz overwrites them. Otherwise
 * they are f32. A chunk has `classifier_rows` rows, or half as many if it has f32 logits and the
 * GEMMs have bf16 inputs. A block reads its row for the maximum and the sum of exponentials (online
 * softmax), and again to write dz. Asynchronous copies keep as much of the row in shared memory as
 * fits. Rows of up to 115,000 logits in bf16, or 57,000 in f32, are therefore read only once from
 * device memory. The second pass begins at the end of the row: the logits that are not in shared
 * memory may still be in the L2 cache. For entropies, mean logits and label smoothing, the block
 * reads the row once more between these passes. If the vocabulary is sharded over ranks, each pass
 * is a separate launch, and the statistics of the rows (struct row_stats) are gathered between
 * them.
 *
 * Launch    a block for each row of the chunk; 128 threads for rows of up to 4096 logits, 512 for
 *           up to 32768, otherwise 1024. Shared memory: 20 bytes for each of 32 warps, and the
 *           logits. A block of 1024 threads may use all shared memory of a multiprocessor, a
 *           smaller block half of it
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867 */
#include "kernels/cuda/operation.cuh"

enum {
    ROW_THREADS_MAX = 1024,
    ROW_WARPS_MAX = ROW_THREADS_MAX / 32,
    SOFTCAP_THREADS = 512,
    GROUPS_AHEAD = 4,
    STATIC_BYTES = 1024, /* of shared memory, with the alignment of the dynamic part */
    DRIVER_BYTES = 1024  /* that the driver takes for each block */
};

/* Statistics of a row over one shard of the vocabulary. */
struct row_stats {
    float largest, sum;    /* of exp(z - largest) */
    float weighted, total; /* sums of (z - largest) exp(z - largest) and of z, if requested */
    float at_target;       /* the logit of the target; only in the shard that contains the target */
    int32_t best;
};
static_assert(sizeof(struct row_stats) == CUDA_ROW_STATS_BYTES, "workspace.c plans with this size");

template <typename T> struct rows_task {
    T *logits; /* dz overwrites them if there is a gradient */
    bool gradient;
    int64_t stride;
    int padded, vocabulary; /* columns of dz, and columns with an id; dz is 0 in others */
    int64_t first;          /* first vocabulary id of this shard */
    int64_t ignored;
    struct row_stats
        *local_stats; /* [rows]: write only these statistics; nullptr: write the results */
    const struct row_stats *all_stats; /* [parts, rows]: gathered statistics; nullptr: no shards */
    int parts;
    int64_t rows, part_ids; /* rows of this launch, ids of each shard */
    int64_t all_ids;        /* V over all shards */
    int cached;             /* groups that begin before this column stay in shared memory */
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

/* Returns exp(x - largest). */
GPU_INLINE float exp_difference(float x, float largest)
{
    const float log2_e = 1.4426950408889634f;
    return gpu_exp2((x - largest) * log2_e);
}

/* ---- the logits of a thread ----
 *
 * A thread has groups of eight logits. Each 16-byte word of a group has WORD<T> consecutive logits:
 * the first word begins at column c, and each further one (f32) WORD<T> * blockDim.x columns later.
 * A warp therefore reads and writes 512 consecutive bytes at a time. */

template <typename T> constexpr int WORD = 16 / sizeof(T);

/* Returns the number of columns from a thread's group to its next group. */
GPU_INLINE int get_step()
{
    return static_cast<int>(blockDim.x) * LANE_ELEMS;
}

/* Returns the number of columns from a word of a group to its next word. */
template <typename T> GPU_INLINE int get_word_step()
{
    return static_cast<int>(blockDim.x) * WORD<T>;
}

/* Returns the column of element i of the group that begins at column c. */
template <typename T> GPU_INLINE int get_column(int c, int i)
{
    return c + i % WORD<T> + i / WORD<T> * get_word_step<T>();
}

template <typename T> GPU_INLINE bool is_whole(const rows_task<T> &task, int c)
{
    return get_column<T>(c, LANE_ELEMS - 1) < task.vocabulary;
}

GPU_INLINE void load_elements(float (&x)[LANE_ELEMS], const float *p)
{
    const eight_bits<float> bits = {{gpu_load16(p), gpu_load16(p + get_word_step<float>())}};
    convert_bits(x, bits);
}

GPU_INLINE void load_elements(float (&x)[LANE_ELEMS], const bf16 *p)
{
    const eight_bits<bf16> bits = {{gpu_load16(p)}};
    convert_bits(x, bits);
}

/* Stores the words of the group at column c that begin before `columns`. WHOLE: all of them do. */
template <bool WHOLE, typename T>
GPU_INLINE void store_group(T *z, const float (&x)[LANE_ELEMS], int c, int columns)
{
    eight_bits<T> bits;
    round_eight_bits(bits, x);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i += WORD<T>) {
        int column = get_column<T>(c, i);
        if (WHOLE || column < columns) {
            gpu_store16(z + column, bits.words[i / WORD<T>]);
        }
    }
}

/* Reads a group without missing logits. */
template <bool CAPPED, typename T>
GPU_INLINE void load_whole(float (&x)[LANE_ELEMS], const rows_task<T> &task, const T *from)
{
    load_elements(x, from);
    for (int i = 0; i < LANE_ELEMS && CAPPED; i++) {
        x[i] = cap_logit(x[i], task.softcap);
    }
}

/* Reads a group from the cache or from the row. Logits that do not exist are minus infinity. */
template <bool CAPPED, typename T>
GPU_INLINE void load_group(float (&x)[LANE_ELEMS], const rows_task<T> &task, const T *z,
                           const T *cache, int c)
{
    if (c < task.cached) {
        load_whole<CAPPED>(x, task, cache + c);
    } else if (is_whole(task, c)) {
        load_whole<CAPPED>(x, task, z + c);
    } else {
        for (int i = 0; i < LANE_ELEMS; i++) {
            int column = get_column<T>(c, i);
            bool exists = column < task.vocabulary;
            x[i] = exists ? gpu_float(z[column]) : -INFINITY;
            x[i] = CAPPED && exists ? cap_logit(x[i], task.softcap) : x[i];
        }
    }
}

/* Copies a group into the cache, as one group of asynchronous copies. */
template <typename T> GPU_INLINE void copy_group(T *to, const T *from, bool cached)
{
    for (int i = 0; i < LANE_ELEMS && cached; i += WORD<T>) {
        gpu_copy_async(to + get_column<T>(0, i), from + get_column<T>(0, i), true);
    }
    gpu_copy_commit();
}

/* ---- statistics of a row ---- */

/* Partial softmax: the maximum of some logits, the sum of exp(z - maximum), and the first column of
 * the first word that contains the maximum. */
struct softmax_part {
    float largest, sum;
    int32_t index;
};

GPU_INLINE float rescale_factor(float from, float to)
{
    return from == to ? 1.0f : exp_difference(from, to);
}

GPU_INLINE struct softmax_part merge_parts(struct softmax_part a, struct softmax_part b)
{
    bool second = b.largest > a.largest || (b.largest == a.largest && b.index < a.index);
    float largest = second ? b.largest : a.largest;
    float sum =
        a.sum * rescale_factor(a.largest, largest) + b.sum * rescale_factor(b.largest, largest);
    return {largest, sum, second ? b.index : a.index};
}

GPU_INLINE struct softmax_part merge_over_warp(struct softmax_part p)
{
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        struct softmax_part other = {__shfl_xor_sync(~0u, p.largest, lane_mask),
                                     __shfl_xor_sync(~0u, p.sum, lane_mask),
                                     __shfl_xor_sync(~0u, p.index, lane_mask)};
        p = threadIdx.x & lane_mask ? merge_parts(other, p) : merge_parts(p, other);
    }
    return p;
}

GPU_INLINE struct softmax_part merge_over_block(struct softmax_part p, struct softmax_part *scratch)
{
    unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
    p = merge_over_warp(p);
    if (lane == 0) {
        scratch[threadIdx.x / 32] = p;
    }
    __syncthreads();
    return merge_over_warp(lane < warps ? scratch[lane] : softmax_part{-INFINITY, 0.0f, INT32_MAX});
}

template <typename T>
GPU_INLINE void merge_group(struct softmax_part *p, const float (&x)[LANE_ELEMS], int c)
{
    float first = p->largest, largest;
    for (int i = 0; i < WORD<T>; i++) {
        first = fmaxf(first, x[i]);
    }
    largest = first;
    for (int i = WORD<T>; i < LANE_ELEMS; i++) {
        largest = fmaxf(largest, x[i]);
    }
    if (largest > p->largest) {
        *p = {largest, p->sum * exp_difference(p->largest, largest),
              get_column<T>(c, largest == first ? 0 : WORD<T>)};
    }
    for (int i = 0; i < LANE_ELEMS; i++) {
        p->sum += exp_difference(x[i], largest);
    }
}

/* Reads the logits of this thread, the first ones through the cache. */
template <bool CAPPED, typename T>
GPU_INLINE struct softmax_part scan_row(const rows_task<T> &task, const T *z, T *cache)
{
    struct softmax_part p = {-INFINITY, 0.0f, INT32_MAX};
    int c = static_cast<int>(threadIdx.x) * WORD<T>, step = get_step(), ahead = GROUPS_AHEAD * step;
    const T *from = z + c;
    T *to = cache + c;
    float x[LANE_ELEMS];
    for (int i = 0; i < ahead; i += step) {
        copy_group(to + i, from + i, c + i < task.cached);
    }
    for (; c < task.cached; c += step, from += step, to += step) {
        copy_group(to + ahead, from + ahead, c + ahead < task.cached);
        gpu_copy_wait<GROUPS_AHEAD>();
        load_whole<CAPPED>(x, task, to);
        merge_group<T>(&p, x, c);
    }
    for (; c < task.vocabulary; c += step) {
        load_group<CAPPED>(x, task, z, cache, c);
        merge_group<T>(&p, x, c);
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
GPU_INLINE struct row_sums sum_row(const rows_task<T> &task, const T *z, const T *cache,
                                   float largest, struct row_sums *scratch)
{
    struct row_sums m = {0, 0};
    for (int c = static_cast<int>(threadIdx.x) * WORD<T>; c < task.vocabulary; c += get_step()) {
        float x[LANE_ELEMS];
        load_group<CAPPED>(x, task, z, cache, c);
        for (int i = 0; i < LANE_ELEMS; i++) {
            if (get_column<T>(c, i) < task.vocabulary) {
                m.weighted += (x[i] - largest) * exp_difference(x[i], largest);
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
GPU_INLINE struct row_stats compute_row_stats(const rows_task<T> &task, const T *z, T *cache,
                                              int64_t target, struct softmax_part *scratch,
                                              struct row_sums *sums)
{
    struct softmax_part p = merge_over_block(scan_row<CAPPED>(task, z, cache), scratch);
    struct row_sums m = {0, 0};
    if (task.entropies != nullptr || task.smoothing > 0) {
        m = sum_row<CAPPED>(task, z, cache, p.largest, sums);
    }
    int32_t best = 0;
    for (int i = WORD<T> - 1; i >= 0 && p.index != INT32_MAX; i--) {
        int column = p.index + i;
        float x = column < task.vocabulary ? gpu_float(z[column]) : -INFINITY;
        x = CAPPED ? cap_logit(x, task.softcap) : x;
        best = column < task.vocabulary && x == p.largest ? column : best;
    }
    best += static_cast<int32_t>(task.first);
    float at_target = target >= 0 && target < task.vocabulary ? gpu_float(z[target]) : 0.0f;
    at_target = CAPPED ? cap_logit(at_target, task.softcap) : at_target;
    return {p.largest, p.sum, m.weighted, m.total, at_target, best};
}

/* ---- gradients ---- */

/* Terms that the gradients of all logits of a row share. */
struct gradient_terms {
    float largest, of_softmax, of_each, softcap;
};

template <bool CAPPED> GPU_INLINE float get_gradient(const struct gradient_terms &terms, float x)
{
    float gradient = exp_difference(x, terms.largest) * terms.of_softmax - terms.of_each;
    float share = CAPPED ? x / terms.softcap : 0.0f;
    return CAPPED ? gradient * (1.0f - share * share) : gradient;
}

/* Replaces this thread's logits with their gradients, without the share of the target. It begins
 * with the last logits, which are not in shared memory but may be in the L2 cache. */
template <bool CAPPED, typename T>
GPU_INLINE void write_gradients(T *z, const rows_task<T> &task, const struct gradient_terms &terms,
                                const T *cache)
{
    int step = get_step(), groups = (task.padded + step - 1) / step;
    int c = static_cast<int>(threadIdx.x) * WORD<T> + (groups - 1) * step;
    float x[LANE_ELEMS];
    for (; c >= 0 && c >= task.cached; c -= step) {
        load_group<CAPPED>(x, task, z, cache, c);
        for (int i = 0; i < LANE_ELEMS; i++) {
            bool exists = get_column<T>(c, i) < task.vocabulary;
            x[i] = exists ? get_gradient<CAPPED>(terms, x[i]) : 0.0f;
        }
        store_group<false>(z, x, c, task.padded);
    }
    for (; c >= 0; c -= step) {
        load_whole<CAPPED>(x, task, cache + c);
        for (int i = 0; i < LANE_ELEMS; i++) {
            x[i] = get_gradient<CAPPED>(terms, x[i]);
        }
        store_group<true>(z, x, c, task.padded);
    }
}

template <typename T, bool CAPPED>
__global__ void __launch_bounds__(ROW_THREADS_MAX) cross_entropy_rows(const rows_task<T> task)
{
    GPU_SHARED(struct softmax_part, scratch, ROW_WARPS_MAX);
    GPU_SHARED(struct row_sums, sums, ROW_WARPS_MAX);
    GPU_SHARED_DYNAMIC(T, cache);
    int64_t n = blockIdx.x;
    T *z = task.logits + n * task.stride;
    int32_t whole_target = task.targets[n];
    bool counted = whole_target != task.ignored;
    int64_t target = counted ? whole_target - task.first : -1;
    struct row_stats p = task.all_stats == nullptr
                             ? compute_row_stats<CAPPED>(task, z, cache, target, scratch, sums)
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
    if (!task.gradient) {
        return;
    }
    __syncthreads(); /* the target's logit has been read: dz may overwrite it */
    if (counted) {
        float scale = task.row_scale == nullptr ? 1.0f : task.row_scale[n];
        struct gradient_terms terms = {p.largest, scale / p.sum, scale * task.smoothing / ids,
                                       task.softcap};
        write_gradients<CAPPED>(z, task, terms, cache);
        bool exists = target >= 0 && target < task.vocabulary;
        if (exists && static_cast<unsigned>(target) / WORD<T> % blockDim.x == threadIdx.x) {
            terms.of_each += scale * (1.0f - task.smoothing);
            const float at_target[LANE_ELEMS] = {get_gradient<CAPPED>(terms, p.at_target)};
            store_eight<false>(z + target, at_target, 1); /* this thread has written its column */
        }
        return;
    }
    const float zeros[LANE_ELEMS] = {};
    for (int c = static_cast<int>(threadIdx.x) * LANE_ELEMS; c < task.padded; c += get_step()) {
        store_eight<true>(z + c, zeros, LANE_ELEMS);
    }
}

__global__ void __launch_bounds__(SOFTCAP_THREADS)
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
    struct tensor logits, x, dx; /* the kernel replaces the logits by dz */
    void *sums;                  /* scratch */
    struct row_stats *local_stats, *all_stats;
};

static status run_gradient_gemms(struct kernels *k, const struct chunk *c, struct tensor w,
                                 struct tensor dw, struct tensor dbias, bool overwrite)
{
    if (dbias.data != NULL) {
        TRY(cuda_column_sums(k, {dbias, overwrite}, c->logits, c->sums));
    }
    struct cuda_gemm p = {};
    p.c = c->dx;
    p.a = c->logits;
    p.b = w;
    TRY(cuda_gemm_run(k, &p));
    if (dw.data == NULL) {
        return STATUS_OK;
    }
    p = {};
    p.c = dw;
    p.a = c->logits;
    p.transpose_a = true;
    p.b = c->x;
    p.accumulate = !overwrite;
    return cuda_gemm_run(k, &p);
}

/* The number of threads, and with it the order of the sums, depends on the length of a row only. */
static unsigned get_threads(int64_t columns)
{
    return columns <= 4096 ? 128 : columns <= 32768 ? 512 : ROW_THREADS_MAX;
}

/* Returns the number of logits of a row that fit in shared memory, if a block reads them again. A
 * block of 1024 threads may use all shared memory of a multiprocessor, a smaller one half of it. */
template <typename T> static int64_t count_cached(const rows_task<T> &task, unsigned threads)
{
    bool again = task.all_stats == nullptr && ((task.gradient && task.local_stats == nullptr) ||
                                               task.entropies != nullptr || task.smoothing > 0);
    int64_t bytes = static_cast<int64_t>(gpu_shared_limit());
    bytes = threads == ROW_THREADS_MAX ? bytes : (bytes + DRIVER_BYTES) / 2 - DRIVER_BYTES;
    bytes -= STATIC_BYTES;
    return again && bytes > 0 ? number_min(bytes / static_cast<int64_t>(sizeof(T)), task.stride)
                              : 0;
}

template <typename T> static status launch_statistics(struct kernels *k, rows_task<T> task)
{
    unsigned rows = static_cast<unsigned>(task.rows), threads = get_threads(task.stride);
    int64_t cached = count_cached(task, threads);
    /* columns from the first to the last logit of a group */
    int64_t group = (LANE_ELEMS / WORD<T> - 1) * threads * WORD<T> + WORD<T>;
    task.cached = static_cast<int>(number_min(cached, task.vocabulary) - group + 1);
    size_t shared = task.cached > 0 ? static_cast<size_t>(cached) * sizeof(T) : 0;
    if (task.softcap > 0) {
        LAUNCH(k, (cross_entropy_rows<T, true>), rows, threads, shared, task);
    } else {
        LAUNCH(k, (cross_entropy_rows<T, false>), rows, threads, shared, task);
    }
    return STATUS_OK;
}

template <typename T>
static status launch_rows(struct kernels *k, const struct chunk *ch, const struct classifier *c,
                          const int32_t *targets, float *losses, int32_t *best, int64_t first)
{
    int64_t first_id = c->vocabulary_shard.index * ch->logits.columns,
            existing = c->vocabulary > first_id ? c->vocabulary - first_id : 0;
    rows_task<T> task = {static_cast<T *>(ch->logits.data),
                         c->gradient,
                         ch->logits.stride,
                         static_cast<int>(ch->logits.stride),
                         static_cast<int>(number_min(existing, ch->logits.columns)),
                         first_id,
                         c->ignored,
                         nullptr,
                         nullptr,
                         c->vocabulary_shard.count,
                         ch->x.rows,
                         ch->logits.columns,
                         c->vocabulary,
                         0,
                         c->softcap,
                         c->label_smoothing,
                         targets + first,
                         c->row_scale == NULL ? NULL : c->row_scale + first,
                         losses + first,
                         best == NULL ? NULL : best + first,
                         c->entropies == NULL ? NULL : c->entropies + first,
                         c->mean_logits == NULL ? NULL : c->mean_logits + first};
    if (c->vocabulary_shard.count > 1) {
        task.local_stats = ch->local_stats;
        TRY(launch_statistics(k, task));
        TRY(c->vocabulary_shard.all_gather(c->vocabulary_shard.context, ch->all_stats,
                                           ch->local_stats, cuda_row_stats_bytes(ch->x.rows, 1)));
        task.local_stats = nullptr;
        task.all_stats = ch->all_stats;
    }
    return launch_statistics(k, task);
}

/* Takes scratch memory for a chunk: logits, column sums if there is a gradient, and statistics if
 * there are shards. */
static status take_chunk(struct kernels *k, struct chunk *c, enum dtype type, int64_t vocabulary,
                         bool gradient, int parts)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *logits;
    TRY(arena_take(scratch, cuda_logits_bytes(type, c->x.rows, vocabulary), &logits));
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
    c->logits = tensor_view(logits, type, c->x.rows, vocabulary);
    c->logits.stride = cuda_logits_stride(vocabulary);
    return STATUS_OK;
}

extern "C" status cuda_classifier_run(struct kernels *k, float *losses, int32_t *best,
                                      struct tensor dx, struct tensor dw, struct tensor x,
                                      struct tensor w, const int32_t *targets,
                                      const struct classifier *c)
{
    const enum dtype type = c->gradient ? k->dtype : DTYPE_F32;
    int64_t chunk_rows = cuda_get_state(k)->classifier_rows;
    chunk_rows = type == k->dtype ? chunk_rows : cuda_f32_rows(chunk_rows);
    for (int64_t first = 0; first < x.rows; first += chunk_rows) {
        struct chunk ch = {};
        int64_t rows = number_min(x.rows - first, chunk_rows);
        ch.x = tensor_rows(x, first, rows);
        ch.dx = tensor_rows(dx, first, rows);
        TRY(take_chunk(k, &ch, type, w.rows, c->gradient, c->vocabulary_shard.count));
        struct cuda_gemm p = {};
        p.c = ch.logits;
        p.a = ch.x;
        p.b = w;
        p.transpose_b = true;
        p.bias = c->bias;
        TRY(cuda_gemm_run(k, &p));
        if (type == DTYPE_F32) {
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
    int64_t blocks = number_divide_up(x.rows * x.columns, SOFTCAP_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    LAUNCH(k, softcap_rows, static_cast<unsigned>(number_min(blocks, most)), SOFTCAP_THREADS, 0,
           static_cast<float *>(x.data), x.rows, x.columns, x.stride, cap);
    return STATUS_OK;
}
