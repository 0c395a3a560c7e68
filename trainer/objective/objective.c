/* Helper functions that the objectives share. */
#include "trainer/objective/objective.h"

#include "base/device/mirror.h"
#include "base/memory.h"

/* Returns the byte offset of a row array in the mirror. */
static size_t find_offset(const struct objective_input *in, const void *array)
{
    return (size_t)((const char *)array - (const char *)in->scratch.row_mirror->device_data);
}

struct classifier objective_lm_classifier(const struct objective_input *in, bool gradient)
{
    struct classifier c = in->lm_head.classifier;
    c.gradient = gradient;
    c.overwrite = in->first_micro_batch;
    c.label_smoothing = gradient ? (float)in->label_smoothing : 0;
    c.dbias = in->lm_head.bias_gradient;
    return c;
}

void *objective_host_pointer(const struct objective_input *in, void *array)
{
    return in->scratch.row_mirror == NULL
               ? array
               : (char *)in->scratch.row_mirror->host + find_offset(in, array);
}

status objective_upload(const struct objective_input *in, const void *array, size_t bytes)
{
    return in->scratch.row_mirror == NULL
               ? STATUS_OK
               : mirror_upload(in->scratch.row_mirror, find_offset(in, array), bytes);
}

status objective_download(const struct objective_input *in, const void **arrays, int count,
                          size_t bytes)
{
    const struct mirror *mirror = in->scratch.row_mirror;
    for (int i = 0; i < count && mirror != NULL; i++) {
        size_t offset = find_offset(in, arrays[i]);
        TRY(i < count - 1 ? mirror_download(mirror, offset, bytes)
                          : mirror_download_and_wait(mirror, offset, bytes));
        arrays[i] = (const char *)mirror->host + offset;
    }
    return STATUS_OK;
}

status objective_loss_stats(struct kernels *k, const struct objective_input *in,
                            const struct loss_rows *t, int64_t rows, int first)
{
    return op_loss_stats(k, in->device_sums + first, t, rows);
}

status objective_set_row_scale(const struct objective_input *in, int64_t rows, double weight)
{
    float *scales = objective_host_pointer(in, in->scratch.row_scales);
    for (int64_t i = 0; i < rows; i++) {
        scales[i] = (float)weight;
    }
    return objective_upload(in, in->scratch.row_scales, (size_t)rows * sizeof *scales);
}

status objective_check_samples(const struct batch *batch, const char *objective)
{
    for (int64_t i = 0; i < batch->sequences; i++) {
        REQUIRE(batch->samples != NULL && batch->samples[i] == batch->samples[0] + i,
                STATUS_INTERNAL, "objective %s needs pairs with consecutive sample numbers",
                objective);
    }
    return STATUS_OK;
}

double objective_mean(const double sums[OBJECTIVE_SUMS], const struct objective_metric *m)
{
    return sums[m->count] > 0 ? sums[m->sum] / sums[m->count] : 0;
}

const struct objective_metric *objective_loss_terms(const struct objective *o)
{
    static const struct objective_metric loss_mean[] = {{"loss", OBJECTIVE_LOSS, OBJECTIVE_COUNT},
                                                        {NULL, 0, 0}};
    return o->loss_terms != NULL ? o->loss_terms : loss_mean;
}

double objective_loss(const struct objective *o, const double sums[OBJECTIVE_SUMS])
{
    double loss = 0;
    for (const struct objective_metric *m = objective_loss_terms(o); m->name != NULL; m++) {
        loss += objective_mean(sums, m);
    }
    return loss;
}

int objective_metric_count(const struct objective *o)
{
    int count = 0;
    while (o->metrics != NULL && o->metrics[count].name != NULL) {
        count++;
    }
    return count;
}
