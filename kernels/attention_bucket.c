/* The buckets of T5's relative position bias, with the rounding of PyTorch in transformers.
 *
 * Source    Raffel et al. 2020, arXiv:1910.10683 */
#include <math.h>

#include "kernels/kernels.h"

int attention_bucket(const struct attention *a, int64_t distance)
{
    int buckets = (int)a->bias.table.rows;
    int side = a->causal ? buckets : buckets / 2, exact = side / 2;
    int first = !a->causal && distance > 0 ? side : 0;
    int64_t size = distance <= 0 ? -distance : a->causal ? 0 : distance;
    if (size < exact) {
        return first + (int)size;
    }
    float range = (float)log((double)a->bias.max_distance / exact);
    float step = logf((float)size / (float)exact) / range * (float)(side - exact);
    int last = side - exact - 1;
    return first + exact + (step < (float)last ? (int)step : last);
}
