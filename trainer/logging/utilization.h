/* Utilization of the devices: the rate of the model's FLOPs and its share of the peak rate (MFU),
 * and the sensors of the GPU of this rank. docs/reference/flops.md defines the FLOPs. */
#pragma once

#include "base/device/device.h"
#include "trainer/logging/metric.h"

/* FLOPs of a token, forward and backward. `token` counts half of causal attention,
 * `token_full_attention` all of it. */
struct utilization_flops {
    double token, token_full_attention;
};

/* NAN: unknown. */
struct utilization {
    double tflops; /* of each rank, with half of causal attention */
    double mfu, mfu_full_attention;
};

enum { UTILIZATION_FIELDS = 6 };

/* utilization_peak_tflops - return the peak rate of a device, or 0 if it is unknown. The name is
 * the result of device_name, with the model in parentheses: "GPU 0 (NVIDIA H200)".
 *
 * Units     1e12 FLOPs per second of dense bf16 products with f32 sums */
double utilization_peak_tflops(const char *device_name);

/* utilization_measure - compute the utilization at a speed.
 *
 * Units     tokens_per_second of one rank; peak_tflops 0: utilization_peak_tflops of the device's
 *           name */
struct utilization utilization_measure(struct device *dev, const struct utilization_flops *flops,
                                       double tokens_per_second, double peak_tflops);

/* utilization_fields - write the fields of a metrics line, null where unknown. On a GPU, read its
 * memory and its sensors too.
 *
 * Returns   the number of fields, at most UTILIZATION_FIELDS */
int utilization_fields(const struct utilization *u, struct device *dev, struct metric *fields);
