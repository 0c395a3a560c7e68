/* Sensors of NVIDIA GPUs, read through NVML. The library is opened at its first use: the file in
 * BIREME_NVML, or libnvidia-ml.so.1. */
#pragma once

#include "base/device/device.h"

/* Values of a GPU; NAN: unknown. */
struct nvml_reading {
    double power_watts; /* of the whole board */
    double clock_mhz;   /* of the SMs */
};

/* nvml_read - read the sensors of the GPU with this identity (device_identity), its UUID.
 *
 * All values are unknown without the library, and for a part of a GPU (MIG).
 *
 * Order     not thread-safe; takes up to some milliseconds */
struct nvml_reading nvml_read(const unsigned char identity[DEVICE_IDENTITY_BYTES]);
