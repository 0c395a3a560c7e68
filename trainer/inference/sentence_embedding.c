#include "trainer/inference/sentence_embedding.h"

#include <math.h>

static double get_value(struct tensor t, int64_t row, int64_t column)
{
    int64_t index = row * t.stride + column;
    return t.dtype == DTYPE_F32 ? (double)((const float *)t.data)[index]
                                : (double)bf16_to_f32(((const bf16 *)t.data)[index]);
}

status sentence_embedding_pool(struct tensor hidden, float *vector)
{
    double squares = 0;
    for (int64_t c = 0; c < hidden.columns; c++) {
        double sum = 0;
        for (int64_t row = 0; row < hidden.rows; row++) {
            sum += get_value(hidden, row, c);
        }
        vector[c] = (float)(sum / (double)hidden.rows);
        squares += (double)vector[c] * vector[c];
    }
    REQUIRE(isfinite(squares) && squares > 0, STATUS_NOT_FINITE,
            "the mean of the hidden states has length %g: the weights are damaged", sqrt(squares));
    for (int64_t c = 0; c < hidden.columns; c++) {
        vector[c] = (float)(vector[c] / sqrt(squares));
    }
    return STATUS_OK;
}

double sentence_embedding_cosine(const float *a, const float *b, int64_t width)
{
    double sum = 0;
    for (int64_t c = 0; c < width; c++) {
        sum += (double)a[c] * b[c];
    }
    return sum;
}
