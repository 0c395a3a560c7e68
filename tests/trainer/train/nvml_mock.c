/* A mock of libnvidia-ml with two GPUs, for BIREME_NVML. The power of the second is unknown, as on
 * boards without this sensor. */
#include <string.h>

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts);
int nvmlDeviceGetClockInfo(void *gpu, int clock, unsigned *mhz);

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static int initialized;

/* The UUIDs of the emulated GPU ("emulated 0") and of the bytes 0 to 15. */
static const char *const uuids[] = {"GPU-656d756c-6174-6564-2030-000000000000",
                                    "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"};

int nvmlInit_v2(void)
{
    initialized = 1;
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    for (int i = 0; i < 2; i++) {
        if (strcmp(uuid, uuids[i]) == 0) {
            *out = (void *)uuids[i];
            return initialized ? OK : UNINITIALIZED;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts)
{
    *milliwatts = 321500;
    return gpu == uuids[0] ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetClockInfo(void *gpu, int clock, unsigned *mhz)
{
    (void)gpu;
    *mhz = 1980;
    return clock == 1 ? OK : INVALID_ARGUMENT; /* NVML_CLOCK_SM */
}
