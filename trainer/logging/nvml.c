#include "trainer/logging/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Types and numbers of nvml.h (CUDA 13.0), which is not needed to build. */
typedef struct nvml_device *nvml_handle;
enum { NVML_OK = 0, NVML_CLOCK_OF_SM = 1 };

#define NVML_FUNCTIONS(X)                                                                          \
    X(nvmlInit_v2, (void))                                                                         \
    X(nvmlDeviceGetHandleByUUID, (const char *uuid, nvml_handle *out))                             \
    X(nvmlDeviceGetPowerUsage, (nvml_handle gpu, unsigned *milliwatts))                            \
    X(nvmlDeviceGetClockInfo, (nvml_handle gpu, int clock, unsigned *mhz))

static struct {
    bool tried, usable;
#define NVML_POINTER(name, arguments) int(*name) arguments;
    NVML_FUNCTIONS(NVML_POINTER)
#undef NVML_POINTER
} library;

/* Opens the library once; it stays open. */
static bool open_library(void)
{
    if (library.tried) {
        return library.usable;
    }
    library.tried = true;
    const char *path = getenv("BIREME_NVML");
    void *handle = dlopen(path != NULL ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    bool complete = handle != NULL;
    /* POSIX: a pointer to a function is stored through a pointer to an object. */
#define NVML_FIND(name, arguments)                                                                 \
    complete = complete && (*(void **)&library.name = dlsym(handle, #name)) != NULL;
    NVML_FUNCTIONS(NVML_FIND)
#undef NVML_FIND
    library.usable = complete && library.nvmlInit_v2() == NVML_OK;
    return library.usable;
}

struct nvml_reading nvml_read(const unsigned char identity[DEVICE_IDENTITY_BYTES])
{
    struct nvml_reading reading = {NAN, NAN};
    char uuid[64] = "GPU";
    nvml_handle gpu = NULL;
    unsigned value = 0;
    int length = 3;
    for (int i = 0; i < DEVICE_IDENTITY_BYTES; i++) {
        const char *dash = i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "";
        length +=
            snprintf(uuid + length, sizeof uuid - (size_t)length, "%s%02x", dash, identity[i]);
    }
    if (!open_library() || library.nvmlDeviceGetHandleByUUID(uuid, &gpu) != NVML_OK) {
        return reading;
    }
    if (library.nvmlDeviceGetPowerUsage(gpu, &value) == NVML_OK) {
        reading.power_watts = value / 1e3;
    }
    if (library.nvmlDeviceGetClockInfo(gpu, NVML_CLOCK_OF_SM, &value) == NVML_OK) {
        reading.clock_mhz = value;
    }
    return reading;
}
