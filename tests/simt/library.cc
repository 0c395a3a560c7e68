/* What libraries do for the CUDA back-end on a GPU (cuBLASLt's products, CUB's sort), in plain loops for the
 * emulator. */
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cuda/operation.cuh"

static float element(struct tensor t, int64_t row, int64_t column)
{
    int64_t at = row * t.stride + column;
    return t.dtype == DTYPE_F32 ? static_cast<const float *>(t.data)[at]
                                : gpu_float(static_cast<const bf16 *>(t.data)[at]);
}

/* op(t) as floats, row after row. */
static std::vector<float> unpacked(struct tensor t, bool transpose)
{
    int64_t rows = transpose ? t.columns : t.rows, columns = transpose ? t.rows : t.columns;
    std::vector<float> out(static_cast<size_t>(rows * columns));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            out[static_cast<size_t>(r * columns + c)] =
                transpose ? element(t, c, r) : element(t, r, c);
        }
    }
    return out;
}

static void multiply(const struct cuda_product *p)
{
    size_t m = static_cast<size_t>(p->c.rows), n = static_cast<size_t>(p->c.columns);
    size_t inner = static_cast<size_t>(p->transpose_a ? p->a.rows : p->a.columns);
    std::vector<float> a = unpacked(p->a, p->transpose_a), b = unpacked(p->b, p->transpose_b);
    std::vector<float> sums(n);
    for (size_t i = 0; i < m; i++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (size_t l = 0; l < inner; l++) {
            for (size_t j = 0; j < n; j++) {
                sums[j] += a[i * inner + l] * b[l * n + j];
            }
        }
        for (size_t j = 0; j < n; j++) {
            int64_t row = static_cast<int64_t>(i), column = static_cast<int64_t>(j);
            float sum = sums[j] + (p->bias.data != NULL ? element(p->bias, 0, column) : 0.0f);
            sum += p->add ? element(p->c, row, column) : 0.0f;
            int64_t at = row * p->c.stride + column;
            if (p->c.dtype == DTYPE_F32) {
                static_cast<float *>(p->c.data)[at] = sum;
            } else {
                static_cast<bf16 *>(p->c.data)[at] = gpu_bf16(sum);
            }
        }
    }
}

extern "C" status cuda_product_queue(struct kernels *k, const struct cuda_product *p)
{
    struct cuda_product now = *p;
    if (k->stream != nullptr) {
        simt::refuse_host_memory(now);
    }
    simt::queue(k->stream, [now] { multiply(&now); });
    return STATUS_OK;
}

extern "C" status cuda_products_create(struct kernels *k, struct cuda_products **out)
{
    (void)k;
    *out = NULL;
    return STATUS_OK;
}

extern "C" void cuda_products_destroy(struct cuda_products **products)
{
    (void)products;
}

extern "C" const char *cuda_products_library(const struct cuda_products *products)
{
    (void)products;
    return "plain loops";
}

extern "C" status cuda_sort_queue(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                                  const int32_t *ids, int64_t count, void *scratch)
{
    if (k->stream != nullptr) {
        const void *arrays[] = {sorted_ids, sorted_rows, ids, scratch};
        simt::refuse_host_address(arrays, sizeof arrays);
    }
    simt::queue(k->stream, [=] {
        std::iota(sorted_rows, sorted_rows + count, 0);
        std::stable_sort(sorted_rows, sorted_rows + count,
                         [ids](int32_t a, int32_t b) { return ids[a] < ids[b]; });
        for (int64_t i = 0; i < count; i++) {
            sorted_ids[i] = ids[sorted_rows[i]];
        }
    });
    return STATUS_OK;
}
