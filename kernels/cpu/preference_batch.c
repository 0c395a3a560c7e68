/* The losses of a whole batch of preference pairs. This file is compiled once, so that its results
 * do not depend on the instruction set. */
#include "kernels/cpu/cpu.h"
#include "kernels/preference_terms.h"

status cpu_preference_batch_store(struct kernels *k, const struct preference_batch *batch,
                                  const double *logps, const struct preference_rows *rows,
                                  int64_t first)
{
    (void)k;
    for (int64_t i = 0; i < rows->pairs; i++) {
        for (int a = 0; a < RESPONSES; a++) {
            preference_set_response(&batch->pairs[(first + i) % batch->size], rows, i, a,
                                    logps[RESPONSES * i + a]);
        }
    }
    return STATUS_OK;
}

status cpu_preference_batch_run(struct kernels *k, const struct preference_batch *batch,
                                int64_t count, const struct preference_settings *settings)
{
    (void)k;
    preference_batch_compute(batch->gradients, batch->ranked, batch->pairs, count, settings);
    return STATUS_OK;
}
