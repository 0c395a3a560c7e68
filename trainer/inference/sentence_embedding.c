#include "trainer/inference/sentence_embedding.h"

#include <math.h>

status sentence_embedding_pool(struct tensor hidden, float *vector)
{
    double squares = 0;
    for (int64_t c = 0; c < hidden.columns; c++) {
        double sum = 0;
        for (int64_t row = 0; row < hidden.rows; row++) {
            sum += (double)tensor_get(hidden, row, c);
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
