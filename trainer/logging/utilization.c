#include "trainer/logging/utilization.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "trainer/logging/nvml.h"

/* Peak rates by the name of the driver. A pattern also matches the end of the name, because some
 * GPUs with another rate have a suffix: parts of a GPU (MIG), GPUs of laptops, models for export.
 *
 * Sources   NVIDIA's data sheets and white papers, dense bf16. A row with "/ 2" has the number with
 *           sparsity, of which dense products reach half. The white papers name f32 as the type of
 *           the sums. The data sheets do not name it, so the rate of the L40S may be the rate with
 *           smaller sums: GeForce GPUs of the same generation need twice the time for f32 */
static const struct {
    const char *pattern;
    double tflops;
} peaks[] = {
    {"*A100-SXM4-*GB", 312},      /* A100 data sheet: 312 */
    {"*A100-PCIE-*GB", 312},      /* A100 data sheet: 312 */
    {"*A100 80GB PCIe", 312},     /* A100 data sheet: 312 */
    {"*H100*HBM3", 989},          /* H100 data sheet, SXM: 1,979 / 2 */
    {"*H100 PCIe", 756},          /* H100 data sheet of 2023, PCIe: 1,513 / 2 */
    {"*H100 NVL", 835},           /* H100 data sheet, NVL: 1,671 / 2 */
    {"*GH200 *GB", 989},          /* GH200 data sheet (2705455): 1,979 / 2; it prints 990 too */
    {"*GH200 *HBM3e", 989},       /* the same */
    {"*H200", 989},               /* H200 data sheet, SXM: 1,979 / 2 */
    {"*H200 NVL", 835},           /* H200 data sheet, NVL: 1,671 / 2 */
    {"*GB200", 2500},             /* GB200 NVL72 data sheet: 360,000 / 2 with 72 GPUs */
    {"*B200", 2250},              /* HGX B200 data sheet: 36,000 / 2 with 8 GPUs */
    {"*L40S", 362},               /* L40S data sheet: 362.05 */
    {"*GeForce RTX 4090", 165.2}, /* white paper "NVIDIA Ada GPU Architecture", appendix A */
    {"*GeForce RTX 5090", 209.5}, /* white paper "NVIDIA RTX Blackwell GPU Architecture" */
};

double utilization_peak_tflops(const char *device_name)
{
    const char *begin = strchr(device_name, '('), *end = strrchr(device_name, ')');
    char model[288];
    snprintf(model, sizeof model, "%.*s", begin != NULL && end > begin ? (int)(end - begin - 1) : 0,
             begin != NULL ? begin + 1 : "");
    for (int i = 0; i < COUNT(peaks); i++) {
        if (fnmatch(peaks[i].pattern, model, 0) == 0) {
            return peaks[i].tflops;
        }
    }
    return 0;
}

struct utilization utilization_measure(struct device *dev, const struct utilization_flops *flops,
                                       double tokens_per_second, double peak_tflops)
{
    double peak = peak_tflops > 0 ? peak_tflops : utilization_peak_tflops(device_name(dev));
    double rate = 1e-12 * tokens_per_second;
    struct utilization u = {
        .tflops = flops->token > 0 ? rate * flops->token : NAN,
        .mfu = NAN,
        .mfu_full_attention = NAN,
    };
    if (peak > 0) {
        u.mfu = u.tflops / peak;
        u.mfu_full_attention = u.mfu * (flops->token_full_attention / flops->token);
    }
    return u;
}

static struct metric make_field(const char *name, double value)
{
    return isfinite(value) ? metric_number(name, value) : metric_null(name);
}

static struct metric make_memory_field(struct device *dev)
{
    size_t free_bytes, all_bytes;
    if (device_memory(dev, &free_bytes, &all_bytes) != STATUS_OK) {
        status_clear();
        return metric_null("gpu_memory_bytes");
    }
    return metric_integer("gpu_memory_bytes", (int64_t)(all_bytes - free_bytes));
}

int utilization_fields(const struct utilization *u, struct device *dev, struct metric *fields)
{
    int count = 0;
    fields[count++] = make_field("mfu", u->mfu);
    fields[count++] = make_field("mfu_full_attention", u->mfu_full_attention);
    fields[count++] = make_field("tflops", u->tflops);
    if (!device_is_host(dev)) {
        unsigned char identity[DEVICE_IDENTITY_BYTES];
        device_identity(dev, identity);
        struct nvml_reading reading = nvml_read(identity);
        fields[count++] = make_memory_field(dev);
        fields[count++] = make_field("gpu_power_watts", reading.power_watts);
        fields[count++] = make_field("gpu_clock_mhz", reading.clock_mhz);
    }
    return count;
}
