/* Shape checks and dispatch of the contrastive loss. */
#include "base/number.h"
#include "kernels/checks.h"

int64_t contrastive_loss_score_rows(int64_t size)
{
    const int64_t most = 4 << 20, least = 16; /* 32 MiB of scores, if a chunk has enough rows */
    return number_min(size, number_max(least, most / number_max(size, 1)));
}

static status check_pairs(const struct contrastive_pairs *b)
{
    PRESENT(b->units);
    PRESENT(b->lengths);
    PRESENT(b->gradients);
    PRESENT(b->results);
    REQUIRE(b->size > 0 && b->width > 0, STATUS_INTERNAL,
            "contrastive_loss: %" PRId64 " pairs of width %" PRId64, b->size, b->width);
    return STATUS_OK;
}

static status check_range(const struct contrastive_pairs *b, int64_t first, int64_t count)
{
    TRY(check_pairs(b));
    REQUIRE(count >= 0 && count <= b->size && first >= 0 && first < b->size, STATUS_INTERNAL,
            "contrastive_loss: %" PRId64 " pairs from %" PRId64 " of a batch of %" PRId64, count,
            first, b->size);
    return STATUS_OK;
}

/* rows: the rows of the texts, or their gradients. */
static status check_texts(const struct contrastive_pairs *b, const struct contrastive_texts *texts,
                          struct tensor rows)
{
    TRY(check_range(b, texts->first, texts->pairs));
    PRESENT(texts->cu_rows);
    REQUIRE(rows.stride == rows.columns, STATUS_INTERNAL,
            "contrastive_loss: rows with stride %" PRId64 " and %" PRId64 " columns", rows.stride,
            rows.columns);
    return check_shape("contrastive_loss", "rows", rows, DTYPE_F32, rows.rows, b->width);
}

status contrastive_loss_pool(struct kernels *k, const struct contrastive_pairs *batch,
                             struct tensor rows, const struct contrastive_texts *texts)
{
    double elements = (double)(rows.rows * rows.columns);
    TRY(check_texts(batch, texts, rows));
    DISPATCH(k, contrastive_loss_pool, elements, 4 * elements, k, batch, rows, texts);
}

status contrastive_loss_run(struct kernels *k, const struct contrastive_pairs *batch, int64_t count)
{
    double vectors = (double)(TEXTS_PER_PAIR * count * batch->width);
    TRY(check_range(batch, 0, count));
    REQUIRE(device_is_host(k->device) || (batch->scores != NULL && batch->score_rows > 0),
            STATUS_INTERNAL, "contrastive_loss_run: the memory for scores is missing");
    DISPATCH(k, contrastive_loss_run, 3 * (double)count * vectors, 16 * vectors, k, batch, count);
}

status contrastive_loss_sum(struct kernels *k, double *sums, const struct contrastive_pairs *batch,
                            int64_t first, int64_t count)
{
    double results = (double)(CONTRASTIVE_RESULTS * count);
    PRESENT(sums);
    TRY(check_range(batch, first, count));
    DISPATCH(k, contrastive_loss_sum, results, 8 * results, k, sums, batch, first, count);
}

status contrastive_loss_backward(struct kernels *k, struct tensor gradients,
                                 const struct contrastive_pairs *batch,
                                 const struct contrastive_texts *texts)
{
    double elements = (double)(gradients.rows * gradients.columns);
    TRY(check_texts(batch, texts, gradients));
    DISPATCH(k, contrastive_loss_backward, 4 * elements, 4 * elements, k, gradients, batch, texts);
}
