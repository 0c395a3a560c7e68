/* The lines of metrics.jsonl with the events "train" and "warning". */
#pragma once

#include "trainer/logging/utilization.h"
#include "trainer/train/job.h"

/* Totals since the last train line of metrics.jsonl. */
struct train_line_interval {
    double started_seconds; /* the end of the last step of the interval before */
    int64_t steps, tokens;
    int64_t rows; /* on this rank */
    double data_seconds, step_seconds;
};

/* Communication times of an interval, for the data-parallel and the tensor-parallel group. */
struct train_line_traffic {
    struct comm_times data, tensor;
};

/* train_line_take_traffic - return the times since the last call. */
struct train_line_traffic train_line_take_traffic(const struct mesh *mesh);

/* train_line_peak_memory_bytes - return the peak resident memory of this process. */
int64_t train_line_peak_memory_bytes(void);

/* train_line_peak_tflops - return the peak rate of the device, the reference of MFU, in 1e12 FLOPs
 * per second; 0: unknown. With FP8 it is the dense FP8 rate, twice the rate of bf16. */
double train_line_peak_tflops(const struct job *job);

/* train_line_write - write a line about the newest step and the interval.
 *
 * Order     on rank 0
 * Errors    STATUS_WRITE, STATUS_INTERNAL */
status train_line_write(const struct job *job, const struct train_line_interval *interval,
                        const struct step_result *result, double rate, double tokens_per_second,
                        const struct utilization *utilization,
                        const struct train_line_traffic *traffic);

/* train_line_write_warnings - write a line for each warning since the last call.
 *
 * Order     on all ranks; only rank 0 writes
 * Errors    STATUS_WRITE, STATUS_INTERNAL */
status train_line_write_warnings(const struct job *job);
