/* Stable sort of row numbers by their ids, with CUB's radix sort in the caller's scratch memory.
 *
 * Launch    a kernel writes the row numbers 0 .. count - 1 (grid ceil(count / 256), block 256); CUB
 *           sorts them */
#include <cinttypes>

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/operation.cuh"

enum { SORT_THREADS = 256 };

__global__ void __launch_bounds__(SORT_THREADS) fill_row_numbers(int32_t *rows, int64_t count)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * SORT_THREADS + threadIdx.x;
    if (i < count) {
        rows[i] = static_cast<int32_t>(i);
    }
}

extern "C" status cuda_sort_launch(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                                   const int32_t *ids, int64_t count, void *scratch)
{
    if (count == 0) {
        return STATUS_OK;
    }
    auto *rows = static_cast<int32_t *>(scratch);
    size_t rows_bytes = cuda_align_bytes(static_cast<size_t>(count) * sizeof *rows), needed = 0;
    char *memory = static_cast<char *>(scratch) + rows_bytes;
    auto stream = static_cast<cudaStream_t>(device_stream_handle(k->device, k->stream));
    int items = static_cast<int>(count);
    cudaError_t error = cub::DeviceRadixSort::SortPairs(nullptr, needed, ids, sorted_ids, rows,
                                                        sorted_rows, items, 0, 32, stream);
    REQUIRE(error == cudaSuccess && needed <= cuda_sort_scratch(count) - rows_bytes,
            STATUS_INTERNAL, "CUB: sorting %" PRId64 " ids needs %zu bytes of scratch: %s", count,
            needed, cudaGetErrorString(error));
    LAUNCH(k, fill_row_numbers, count_blocks(count, SORT_THREADS), SORT_THREADS, 0, rows, count);
    error = cub::DeviceRadixSort::SortPairs(memory, needed, ids, sorted_ids, rows, sorted_rows,
                                            items, 0, 32, stream);
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL, "CUB: sorting %" PRId64 " ids failed: %s", count,
            cudaGetErrorString(error));
    return STATUS_OK;
}
