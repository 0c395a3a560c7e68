/* The relative position bias of attention: its values by distance, and its gradient.
 *
 *   bias[head][d] = table[bucket(d)][head],  d_table[b][head] += sum of ds_ij, bucket(j - i) = b
 *
 * Expand    One thread for each head and distance: grid (ceil(span / 256), heads), block 256. The
 *           host passes the first distance of each bucket, so that all back-ends have
 *           equal buckets.
 * Gradient  grid (CUDA_BIAS_PARTS, heads), block 128. A block processes tiles of 64 queries:
 *           number blockIdx.x, blockIdx.x + CUDA_BIAS_PARTS, and so on, of all sequences. It
 *           computes the scores and their gradients a third time, with two GEMMs for 64 keys. It
 *           adds the diagonals of a tile, then the diagonals of each bucket, in order. Shared
 *           memory: four tiles of 64 rows, and the f32 gradients of a tile
 * Finish    One thread for each element of the table adds the parts in order. */
#include "kernels/cuda/attention/attention_tile.cuh"

enum { BIAS_ROWS = 64, BIAS_THREADS = 128, PITCH = BIAS_ROWS + 1, DIAGONALS = 2 * BIAS_ROWS - 1 };

/* The first distance, as a size, of each bucket of a side. */
struct bucket_starts {
    int count; /* buckets of a side */
    bool causal;
    int first[ATTENTION_BUCKETS_MAX];
};

__global__ void __launch_bounds__(256)
    expand_bias(float *values, int32_t *buckets, const matrix<const float> table,
                const struct bucket_starts starts, int64_t span, int64_t zero)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= span) {
        return;
    }
    int64_t distance = i - zero, size = distance < 0 ? -distance : distance;
    bool is_after = distance > 0;
    size = is_after && starts.causal ? 0 : size;
    int bucket = 0;
    for (int b = 1; b < starts.count; b++) {
        bucket += size >= starts.first[b] ? 1 : 0;
    }
    bucket += is_after && !starts.causal ? starts.count : 0;
    values[blockIdx.y * span + i] = table.data[bucket * table.stride + blockIdx.y];
    if (blockIdx.y == 0) {
        buckets[i] = bucket;
    }
}

/* Stores the gradients of the scores of 16 queries and 64 keys to rows of tile_ds. `query` and
 * `key` belong to the lane's first element. */
GPU_INLINE void store_score_gradients(float *tile_ds, const float (&p)[1][BIAS_ROWS / 8][4],
                                      const float (&dp)[1][BIAS_ROWS / 8][4],
                                      const attention_task<bf16> &a,
                                      const struct attention_sequence &s, int head, int query,
                                      int key)
{
    uint32_t kept[1];
    get_kept_words<BIAS_ROWS, false>(kept, a, s.first_q + query, key, head);
    int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool inside = query + 8 * r < s.queries;
        int64_t at = s.first_q + query + 8 * r;
        float lse = inside ? get_lse_base_two(a.lse[head * a.lse_stride + at]) : 0.0f;
        float delta = inside ? a.delta[head * a.rows_q + at] : 0.0f;
        int end = inside ? visible_end(a, s, query + 8 * r) : 0;
        int left = end - key, from = visible_begin(a, s, query + 8 * r) - key;
        float *to = tile_ds + (row + 8 * r) * PITCH + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < BIAS_ROWS / 8; n++) {
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                int j = 8 * n + e % 2;
                bool is_kept = (kept[0] >> (n * 4 + e) & 1) != 0;
                float power = gpu_exp2(fmaf(p[0][n][e], log2_e, -lse));
                float d = (is_kept ? dp[0][n][e] * attention_dropout_scale(a) : 0.0f) - delta;
                to[j] = j < left && j >= from ? power * d : 0.0f;
            }
        }
    }
}

/* Adds the gradients of a tile to the sum of the thread's bucket. `distance` is the element of the
 * distances for the first key and the first query. */
GPU_INLINE void add_diagonals(float *sum, const float *tile_ds, float *diagonals, int *buckets,
                              const attention_task<bf16> &a, int64_t distance)
{
    int t = threadIdx.x;
    if (t < DIAGONALS) {
        int offset = t - (BIAS_ROWS - 1); /* column - row */
        float diagonal = 0;
        for (int row = offset < 0 ? -offset : 0; row < BIAS_ROWS && row + offset < BIAS_ROWS;
             row++) {
            diagonal += tile_ds[row * PITCH + row + offset];
        }
        diagonals[t] = diagonal;
        buckets[t] = a.buckets[distance + offset];
    }
    __syncthreads();
    for (int i = 0; t < a.bucket_count && i < DIAGONALS; i++) {
        *sum += buckets[i] == t ? diagonals[i] : 0.0f;
    }
}

template <int D>
__global__ void __launch_bounds__(BIAS_THREADS) tiles_bias_gradient(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_q);
    GPU_SHARED(float, diagonals, BIAS_THREADS);
    GPU_SHARED(int, buckets, BIAS_THREADS);
    bf16 *tile_o = tile_q + BIAS_ROWS * D, *tile_k = tile_o + BIAS_ROWS * D,
         *tile_v = tile_k + BIAS_ROWS * D;
    float *tile_ds = reinterpret_cast<float *>(tile_v + BIAS_ROWS * D), sum = 0;
    int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t column = head / a.group * D, number = 0;
    for (int64_t i = 0; i < a.sequences; i++) {
        struct attention_sequence s = get_sequence(a, i);
        for (int first = 0; first < s.queries; first += BIAS_ROWS, number++) {
            int last = first + BIAS_ROWS < s.queries ? first + BIAS_ROWS - 1 : s.queries - 1;
            int end = visible_end(a, s, last);
            int begin = visible_begin(a, s, first) / BIAS_ROWS * BIAS_ROWS;
            if (number % CUDA_BIAS_PARTS != blockIdx.x || begin >= end) {
                continue;
            }
            load_tile<D, BIAS_ROWS, BIAS_THREADS>(tile_q, a.q, s.first_q + first, s.queries - first,
                                                  head * D);
            load_tile<D, BIAS_ROWS, BIAS_THREADS>(tile_o, a.d_o, s.first_q + first,
                                                  s.queries - first, head * D);
            for (int key = begin; key < end; key += BIAS_ROWS) {
                load_tile<D, BIAS_ROWS, BIAS_THREADS>(tile_k, a.keys, s.first_k + key, s.keys - key,
                                                      column);
                load_tile<D, BIAS_ROWS, BIAS_THREADS>(tile_v, a.values, s.first_k + key,
                                                      s.keys - key, column);
                gpu_copy_commit();
                gpu_copy_wait<0>();
                __syncthreads();
                float p[1][BIAS_ROWS / 8][4], dp[1][BIAS_ROWS / 8][4];
                clear_sums(p[0]);
                clear_sums(dp[0]);
                mma_abt<D>(p, tile_q, warp * 16, tile_k);
                mma_abt<D>(dp, tile_o, warp * 16, tile_v);
                int query = first + warp * 16 + lane / 4;
                modify_scores<false>(p, a, s, head, query, key + lane % 4 * 2);
                store_score_gradients(tile_ds, p, dp, a, s, head, query, key + lane % 4 * 2);
                __syncthreads();
                add_diagonals(&sum, tile_ds, diagonals, buckets, a,
                              attention_distance_zero(a, s) + key - first);
            }
        }
    }
    if (static_cast<int>(threadIdx.x) < a.bucket_count) {
        a.bias_parts[(static_cast<int64_t>(blockIdx.x) * a.heads + head) * a.bucket_count +
                     threadIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(256)
    add_bias_parts(const matrix<float> gradient, const float *parts, int buckets, int heads)
{
    int i = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
    if (i >= buckets * heads) {
        return;
    }
    int bucket = i / heads, head = i % heads;
    float sum = 0;
    for (int part = 0; part < CUDA_BIAS_PARTS; part++) {
        sum += parts[(part * heads + head) * buckets + bucket];
    }
    gradient.data[bucket * gradient.stride + head] += sum;
}

/* ---- host ---- */

/* Returns the smallest size of a distance before the query with a bucket of at least b. */
static int find_bucket_start(const struct attention *a, int b)
{
    int64_t low = 0, high = a->bias.max_distance;
    if (attention_bucket(a, -high) < b) {
        return INT32_MAX;
    }
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (attention_bucket(a, -middle) >= b) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return static_cast<int>(low);
}

status attention_bias_expand(struct kernels *k, struct attention_distances *d,
                             const struct attention *a, bool gradient)
{
    *d = {};
    if (a->bias.table.data == NULL) {
        return STATUS_OK;
    }
    int64_t heads = a->heads, buckets = a->bias.table.rows;
    struct arena *scratch = &cuda_get_state(k)->scratch;
    void *values, *bucket_memory, *parts = NULL;
    d->span = cuda_bias_span(a->longest_q, a->longest_k);
    size_t row = static_cast<size_t>(d->span) * sizeof(float);
    TRY(arena_take(scratch, cuda_align_bytes(static_cast<size_t>(heads) * row), &values));
    TRY(arena_take(scratch, cuda_align_bytes(row), &bucket_memory));
    if (gradient && a->bias.gradient.data != NULL) {
        TRY(arena_take(scratch, cuda_align_bytes(cuda_bias_part_bytes(heads, buckets)), &parts));
    }
    d->values = static_cast<float *>(values);
    d->buckets = static_cast<int32_t *>(bucket_memory);
    d->parts = static_cast<float *>(parts);
    struct bucket_starts starts = {};
    starts.causal = a->causal;
    starts.count = static_cast<int>(a->causal ? buckets : buckets / 2);
    for (int b = 0; b < starts.count; b++) {
        starts.first[b] = find_bucket_start(a, b);
    }
    dim3 grid(count_blocks(d->span, 256), static_cast<unsigned>(heads));
    LAUNCH(k, expand_bias, grid, 256, 0, d->values, d->buckets,
           make_matrix<const float>(a->bias.table), starts, d->span,
           a->longest_k - 1 + CUDA_BIAS_PADDING);
    return STATUS_OK;
}

template <int D> static status launch_gradient(struct kernels *k, const attention_task<bf16> &t)
{
    const size_t bytes = 4 * BIAS_ROWS * D * sizeof(bf16) + BIAS_ROWS * PITCH * sizeof(float);
    LAUNCH(k, tiles_bias_gradient<D>, dim3(CUDA_BIAS_PARTS, static_cast<unsigned>(t.heads)),
           BIAS_THREADS, bytes, t);
    return STATUS_OK;
}

status attention_tiles_bias_gradient(struct kernels *k, const attention_task<bf16> &t)
{
    switch (t.width) {
    case 32:
        return launch_gradient<32>(k, t);
    case 64:
        return launch_gradient<64>(k, t);
    case 96:
        return launch_gradient<96>(k, t);
    default:
        return launch_gradient<128>(k, t);
    }
}

status attention_bias_finish(struct kernels *k, const struct attention_distances *d,
                             const struct attention *a)
{
    if (d->parts == NULL) {
        return STATUS_OK;
    }
    int buckets = static_cast<int>(a->bias.table.rows);
    LAUNCH(k, add_bias_parts, dim3(count_blocks(buckets * a->heads, 256)), 256, 0,
           make_matrix<float>(a->bias.gradient), d->parts, buckets, a->heads);
    return STATUS_OK;
}
