/* The stable sort of ids for the emulator; on a GPU, CUB sorts. */
#include <algorithm>
#include <numeric>

#include "kernels/cuda/operation.cuh"

extern "C" status cuda_sort_launch(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
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
