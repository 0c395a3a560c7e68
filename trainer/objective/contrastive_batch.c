#include "trainer/objective/contrastive_batch.h"

enum { SUMS_BYTES = CONTRASTIVE_SUMS * sizeof(double) };

/* Sets the arrays of a batch, one after the other from `memory`. Returns their elements. */
static int64_t place_arrays(struct contrastive_pairs *p, double *memory)
{
    int64_t texts = TEXTS_PER_PAIR * p->size;
    p->units = memory;
    p->gradients = p->units + texts * p->width;
    p->lengths = p->gradients + texts * p->width;
    p->results = p->lengths + texts;
    p->scores = p->results + CONTRASTIVE_RESULTS * p->size;
    return p->scores - memory + p->score_rows * p->size;
}

static int64_t count_score_rows(enum device_kind kind, int64_t size)
{
    return device_kind_is_host(kind) ? 0 : contrastive_loss_score_rows(size);
}

/* The sums of contrastive_batch_read_sums follow the arrays. */
int64_t contrastive_batch_bytes(enum device_kind kind, int64_t size, int64_t width)
{
    int64_t values = TEXTS_PER_PAIR * (2 * width + 1) + CONTRASTIVE_RESULTS;
    return (values + count_score_rows(kind, size)) * size * (int64_t)sizeof(double) + SUMS_BYTES;
}

static size_t count_bytes(const struct contrastive_batch *b)
{
    return (size_t)contrastive_batch_bytes(device_kind_of(kernels_device(b->kernels)),
                                           b->pairs.size, b->pairs.width);
}

status contrastive_batch_create(struct kernels *k, int64_t size, int64_t width, int ranks,
                                struct contrastive_batch *out)
{
    struct device *dev = kernels_device(k);
    *out = (struct contrastive_batch){.kernels = k, .pairs = {.size = size, .width = width}};
    out->pairs.score_rows = count_score_rows(device_kind_of(dev), size);
    status result = device_allocate(dev, count_bytes(out), "the vectors of pairs", &out->memory);
    KEEP_FIRST(result, pair_exchange_create(size, ranks, &out->exchange));
    if (result != STATUS_OK) {
        contrastive_batch_destroy(out);
        return result;
    }
    (void)place_arrays(&out->pairs, out->memory);
    return STATUS_OK;
}

void contrastive_batch_destroy(struct contrastive_batch *batch)
{
    if (batch->memory != NULL) {
        device_release(kernels_device(batch->kernels), batch->memory, count_bytes(batch));
    }
    pair_exchange_destroy(&batch->exchange);
    *batch = (struct contrastive_batch){0};
}

static size_t count_unit_bytes(const struct contrastive_batch *b)
{
    return (size_t)(TEXTS_PER_PAIR * b->pairs.size * b->pairs.width) * sizeof *b->pairs.units;
}

status contrastive_batch_clear(struct contrastive_batch *batch)
{
    struct kernels *k = batch->kernels;
    struct device *dev = kernels_device(k);
    pair_exchange_clear(&batch->exchange);
    return device_is_host(dev) /* sum_units needs zeros */
               ? device_zero(dev, kernels_stream(k), batch->pairs.units, count_unit_bytes(batch))
               : STATUS_OK;
}

status contrastive_batch_add(struct contrastive_batch *batch, struct tensor rows,
                             const struct contrastive_texts *texts)
{
    bool is_host = device_is_host(kernels_device(batch->kernels));
    TRY(pair_exchange_add(&batch->exchange, texts->first, texts->pairs, !is_host));
    return contrastive_loss_pool(batch->kernels, &batch->pairs, rows, texts);
}

/* Adds the vectors of all ranks. For each pair, only one rank has a vector other than zeros, so the
 * sum is exact. The pairs of a rank may have gaps. */
static status sum_units(struct comm *data, struct contrastive_batch *b)
{
    return comm_sum_doubles(data, b->pairs.units, TEXTS_PER_PAIR * b->pairs.size * b->pairs.width);
}

static status gather_units(struct comm *data, struct contrastive_batch *b)
{
    return pair_exchange_gather(&b->exchange, data, b->pairs.units,
                                TEXTS_PER_PAIR * (size_t)b->pairs.width * sizeof *b->pairs.units);
}

status contrastive_batch_gather(struct comm *data, struct contrastive_batch *batch, bool complete,
                                bool *failed)
{
    TRY(pair_exchange_count(&batch->exchange, data, complete, failed));
    if (*failed) {
        return STATUS_OK;
    }
    TRY(device_is_host(kernels_device(batch->kernels)) ? sum_units(data, batch)
                                                       : gather_units(data, batch));
    return comm_abort_on_error(
        data, contrastive_loss_run(batch->kernels, &batch->pairs, batch->exchange.count));
}

status contrastive_batch_read_sums(const struct contrastive_batch *batch,
                                   double sums[CONTRASTIVE_SUMS])
{
    struct kernels *k = batch->kernels;
    double *on_device = batch->pairs.scores + batch->pairs.score_rows * batch->pairs.size;
    TRY(contrastive_loss_sum(k, on_device, &batch->pairs, 0, batch->exchange.count));
    return device_read(kernels_device(k), kernels_stream(k), sums, on_device, SUMS_BYTES);
}
