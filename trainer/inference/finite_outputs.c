#include "trainer/inference/finite_outputs.h"

#include <math.h>

status finite_outputs_check(const float *outputs, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(isfinite(outputs[i]), STATUS_NOT_FINITE,
                "an output of the model is %g: the weights are damaged", (double)outputs[i]);
    }
    return STATUS_OK;
}
