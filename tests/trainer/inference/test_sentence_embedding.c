/* Mean pooling and cosine similarity of sentence embeddings. */
#include "tests/check.h"
#include "trainer/inference/sentence_embedding.h"

static void check_pool(void)
{
    /* The means of the columns are 3, -4 and 0. The matrix has a larger stride. */
    const float rows[] = {1, -8, 5, 77, 5, 0, -5, 77};
    struct tensor hidden = {(void *)rows, DTYPE_F32, 2, 3, 4};
    float vector[4] = {0, 0, 0, 99};
    CHECK_OK(sentence_embedding_pool(hidden, vector));
    CHECK_NEAR(vector[0], 0.6, 1e-7);
    CHECK_NEAR(vector[1], -0.8, 1e-7);
    CHECK_NEAR(vector[2], 0, 0);
    CHECK(vector[3] == 99);
    CHECK_OK(sentence_embedding_pool(tensor_rows(hidden, 1, 1), vector));
    CHECK_NEAR(vector[0], sqrt(0.5), 1e-7);
    CHECK_NEAR(sentence_embedding_cosine(vector, (const float[]){0, 0.6F, 0.8F}, 3),
               -0.8 * sqrt(0.5), 1e-7);
}

static void check_bf16(void)
{
    const bf16 rows[] = {f32_to_bf16(2), f32_to_bf16(0), f32_to_bf16(4), f32_to_bf16(8)};
    float vector[2];
    CHECK_OK(sentence_embedding_pool(tensor_view((void *)rows, DTYPE_BF16, 2, 2), vector));
    CHECK_NEAR(vector[0], 0.6, 1e-7);
    CHECK_NEAR(vector[1], 0.8, 1e-7);
}

static void check_errors(void)
{
    float rows[] = {1, 2, -1, -2}, vector[2];
    struct tensor hidden = tensor_view(rows, DTYPE_F32, 2, 2);
    CHECK_FAILS(sentence_embedding_pool(hidden, vector), STATUS_NOT_FINITE, "length 0");
    rows[0] = NAN;
    CHECK_FAILS(sentence_embedding_pool(hidden, vector), STATUS_NOT_FINITE, "nan");
}

int main(void)
{
    check_pool();
    check_bf16();
    check_errors();
    return 0;
}
