/* The order of the rows and columns of matrices in GGUF files. */
#include <string.h>

#include "trainer/formats/gguf/gguf_impl.h"

int64_t gguf_count_reordered_heads(const struct gguf_family *family,
                                   const struct model_config *config, const char *name)
{
    const char *local = strchr(name, '.');
    local = local != NULL ? strchr(local + 1, '.') : NULL; /* after "blk.LAYER" */
    if (!family->interleaved_rotary || local == NULL) {
        return 0;
    }
    return strncmp(local, ".attn_q.", 8) == 0   ? config->heads
           : strncmp(local, ".attn_k.", 8) == 0 ? model_kv_heads(config)
                                                : 0;
}

void gguf_reorder_heads(float *out, const float *in, int64_t heads, int64_t rows, int64_t columns,
                        bool interleave)
{
    int64_t width = rows / heads, half = width / 2;
    for (int64_t row = 0; row < rows; row++) {
        int64_t head = row / width, i = row % width;
        int64_t place = head * width + (i < half ? 2 * i : 2 * (i - half) + 1);
        memcpy(out + (interleave ? place : row) * columns,
               in + (interleave ? row : place) * columns, (size_t)columns * sizeof *out);
    }
}

void gguf_transpose(float *out, const float *in, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            out[c * rows + r] = in[r * columns + c];
        }
    }
}
