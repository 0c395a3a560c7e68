/* Tests the utilization: peak rates by the driver's name of a GPU, the MFU, and the sensors of NVML
 * (a mock in BIREME_NVML). */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/check.h"
#include "trainer/logging/nvml.h"
#include "trainer/logging/utilization.h"

static void test_peaks(void)
{
    static const struct {
        const char *name;
        double tflops;
    } cases[] = {
        {"GPU 0 (NVIDIA A100-SXM4-80GB)", 312},
        {"GPU 0 (NVIDIA A100-PCIE-40GB)", 312},
        {"GPU 3 (NVIDIA A100 80GB PCIe)", 312},
        {"GPU 0 (NVIDIA H100 80GB HBM3)", 989},
        {"GPU 0 (NVIDIA H100 PCIe)", 756},
        {"GPU 0 (NVIDIA H100 NVL)", 835},
        {"GPU 12 (NVIDIA H200)", 989},
        {"GPU 0 (NVIDIA H200 NVL)", 835},
        {"GPU 0 (NVIDIA GH200 480GB)", 989},
        {"GPU 0 (NVIDIA GH200 144G HBM3e)", 989},
        {"GPU 0 (NVIDIA B200)", 2250},
        {"GPU 0 (NVIDIA GB200)", 2500},
        {"GPU 0 (NVIDIA L40S)", 362},
        {"GPU 0 (NVIDIA GeForce RTX 4090)", 165.2},
        {"GPU 0 (NVIDIA GeForce RTX 5090)", 209.5},
        /* Parts of a GPU, laptops and models for export have other rates. */
        {"GPU 0 (NVIDIA A100-SXM4-40GB MIG 1g.5gb)", 0},
        {"GPU 0 (NVIDIA H100 80GB HBM3 MIG 1g.10gb)", 0},
        {"GPU 0 (NVIDIA GH200 480GB MIG 1g.12gb)", 0},
        {"GPU 0 (NVIDIA H200 MIG 1g.18gb)", 0},
        {"GPU 0 (NVIDIA GeForce RTX 4090 Laptop GPU)", 0},
        {"GPU 0 (NVIDIA GeForce RTX 4090 D)", 0},
        {"GPU 0 (NVIDIA H20)", 0},
        {"GPU 0 (emulated)", 0},
        {"cpu", 0},
        {"", 0},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        if (utilization_peak_tflops(cases[i].name) != cases[i].tflops) {
            fprintf(stderr, "%s: %g\n", cases[i].name, utilization_peak_tflops(cases[i].name));
        }
        CHECK(utilization_peak_tflops(cases[i].name) == cases[i].tflops);
    }
}

static void test_rates(void)
{
    struct device *cpu = NULL;
    struct utilization_flops flops = {2e9, 3e9}, unknown = {0, 0};
    struct metric fields[UTILIZATION_FIELDS];
    CHECK_OK(device_create(DEVICE_CPU, 0, &cpu));
    struct utilization u = utilization_measure(cpu, &flops, 1000, 4);
    CHECK_NEAR(u.tflops, 2, 1e-12);
    CHECK_NEAR(u.mfu, 0.5, 1e-12);
    CHECK_NEAR(u.mfu_full_attention, 0.75, 1e-12);
    CHECK_EQUAL(utilization_fields(&u, cpu, fields), 3);
    CHECK(strcmp(fields[0].name, "mfu") == 0 && fields[0].kind == METRIC_NUMBER);
    u = utilization_measure(cpu, &flops, 1000, 0); /* the peak of a CPU is unknown */
    CHECK(isnan(u.mfu) && isnan(u.mfu_full_attention));
    CHECK_NEAR(u.tflops, 2, 1e-12);
    CHECK_EQUAL(utilization_fields(&u, cpu, fields), 3);
    CHECK(fields[0].kind == METRIC_NULL && fields[1].kind == METRIC_NULL);
    u = utilization_measure(cpu, &unknown, 1000, 4);
    CHECK(isnan(u.tflops) && isnan(u.mfu) && isnan(u.mfu_full_attention));
    CHECK_OK(device_destroy(&cpu));
}

static void test_sensors(void)
{
    unsigned char identity[DEVICE_IDENTITY_BYTES] = "emulated 0";
    struct nvml_reading reading = nvml_read(identity);
    CHECK(reading.power_watts == 321.5);
    CHECK(reading.clock_mhz == 1980);
    for (int i = 0; i < DEVICE_IDENTITY_BYTES; i++) {
        identity[i] = (unsigned char)i;
    }
    reading = nvml_read(identity);
    CHECK(isnan(reading.power_watts) && reading.clock_mhz == 1980);
    identity[15] = 0; /* no such GPU */
    reading = nvml_read(identity);
    CHECK(isnan(reading.power_watts) && isnan(reading.clock_mhz));
}

int main(void)
{
    test_peaks();
    test_rates();
    test_sensors();
    return 0;
}
