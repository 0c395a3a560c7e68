#include "datasets/loader/sample_order.h"

#include <inttypes.h>
#include <math.h>

#include "base/random.h"

static const double weight_scale = 4294967296.0; /* 2^32 */

status sample_order_init(struct sample_order *order, const int64_t *samples, const double *weights,
                         int sources, uint64_t seed, bool shuffle)
{
    REQUIRE(sources > 0 && sources <= SAMPLE_ORDER_SOURCES_MAX, STATUS_RECIPE,
            "%d data sources; 1 to %d are accepted", sources, SAMPLE_ORDER_SOURCES_MAX);
    double sum = 0.0;
    for (int i = 0; i < sources; i++) {
        REQUIRE(weights[i] > 0.0 && isfinite(weights[i]), STATUS_RECIPE,
                "weight %g of data source %d: it must be above 0 and finite", weights[i], i);
        REQUIRE(samples[i] > 0, STATUS_INTERNAL,
                "data source %d has %" PRId64 " samples; must be above 0", i, samples[i]);
        sum += weights[i];
    }
    REQUIRE(isfinite(sum), STATUS_RECIPE,
            "the sum of the weights of the data sources is not finite; use smaller weights");
    *order = (struct sample_order){.sources = sources, .shuffle = shuffle, .seed = seed};
    for (int i = 0; i < sources; i++) {
        double scaled = floor(weights[i] / sum * weight_scale + 0.5);
        order->samples[i] = samples[i];
        order->weight_offsets[i + 1] =
            order->weight_offsets[i] + (scaled < 1.0 ? 1 : (uint64_t)scaled);
    }
    return STATUS_OK;
}

/* Returns how many of the first `count` samples of the sources [low, high) belong to
 * [low, middle). */
static int64_t count_left(const struct sample_order *order, int low, int middle, int high,
                          int64_t count)
{
    uint64_t left = order->weight_offsets[middle] - order->weight_offsets[low];
    uint64_t both = order->weight_offsets[high] - order->weight_offsets[low];
    return (int64_t)((unsigned __int128)(uint64_t)count * left / both);
}

static struct sample_position find_in_source(const struct sample_order *order, int source,
                                             int64_t number)
{
    int64_t samples = order->samples[source];
    struct sample_position position = {source, number / samples, number % samples, 0};
    if (order->shuffle) {
        uint64_t key =
            random_key(order->seed, RANDOM_DATA_ORDER, (uint64_t)position.epoch, (uint64_t)source);
        position.sample =
            (int64_t)random_permute(key, (uint64_t)position.sample, (uint64_t)samples);
        if (position.epoch > 0 &&
            order->window_tokens > 0) { /* the permutation uses indices below 2^63 */
            position.shift = (int64_t)random_below(key, UINT64_MAX, (uint64_t)order->window_tokens);
        }
    }
    return position;
}

struct sample_position sample_order_find(const struct sample_order *order, int64_t number)
{
    int low = 0, high = order->sources;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        int64_t left = count_left(order, low, middle, high, number);
        if (count_left(order, low, middle, high, number + 1) > left) {
            high = middle;
            number = left;
        } else {
            low = middle;
            number -= left;
        }
    }
    return find_in_source(order, low, number);
}

int64_t sample_order_count(const struct sample_order *order, int source, int64_t number)
{
    int low = 0, high = order->sources;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        int64_t left = count_left(order, low, middle, high, number);
        if (source < middle) {
            high = middle;
            number = left;
        } else {
            low = middle;
            number -= left;
        }
    }
    return number;
}

static bool has_finished_source(const struct sample_order *order, int64_t number)
{
    for (int i = 0; i < order->sources; i++) {
        if (sample_order_count(order, i, number) >= order->samples[i]) {
            return true;
        }
    }
    return false;
}

int64_t sample_order_epoch_samples(const struct sample_order *order)
{
    int64_t low = 0, high = 1; /* no source ends within `low` samples; one ends within `high` */
    while (!has_finished_source(order, high)) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (has_finished_source(order, middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return high;
}
