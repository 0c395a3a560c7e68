#include "datasets/loader/order.h"

#include <math.h>

#include "base/random.h"

static const double weight_scale = 4294967296.0; /* 2^32 */

status order_set(struct order *order, const int64_t *samples, const double *weights, int sources,
                 uint64_t seed, bool shuffle)
{
    REQUIRE(sources > 0 && sources <= ORDER_SOURCES_MAX, STATUS_RECIPE,
            "%d data sources; 1 to %d are possible", sources, ORDER_SOURCES_MAX);
    double sum = 0.0;
    for (int i = 0; i < sources; i++) {
        REQUIRE(weights[i] > 0.0 && isfinite(weights[i]), STATUS_RECIPE,
                "weight %g of data source %d: must be above 0 and finite", weights[i], i);
        REQUIRE(samples[i] > 0, STATUS_INTERNAL, "data source %d has %lld samples", i,
                (long long)samples[i]);
        sum += weights[i];
    }
    REQUIRE(isfinite(sum), STATUS_RECIPE, "the weights of the data sources are too large");
    *order = (struct order){.sources = sources, .shuffle = shuffle, .seed = seed};
    for (int i = 0; i < sources; i++) {
        double scaled = floor(weights[i] / sum * weight_scale + 0.5);
        order->samples[i] = samples[i];
        order->before[i + 1] = order->before[i] + (scaled < 1.0 ? 1 : (uint64_t)scaled);
    }
    return STATUS_OK;
}

/* Of `count` samples of the sources [low, high), how many belong to those before `middle`. */
static int64_t left_share(const struct order *order, int low, int middle, int high, int64_t count)
{
    uint64_t left = order->before[middle] - order->before[low];
    uint64_t both = order->before[high] - order->before[low];
    return (int64_t)((unsigned __int128)(uint64_t)count * left / both);
}

static struct order_place place_in(const struct order *order, int source, int64_t number)
{
    int64_t samples = order->samples[source];
    struct order_place place = {source, number / samples, number % samples, 0};
    if (order->shuffle) {
        uint64_t key =
            random_key(order->seed, RANDOM_DATA_ORDER, (uint64_t)place.epoch, (uint64_t)source);
        place.sample = (int64_t)random_permute(key, (uint64_t)place.sample, (uint64_t)samples);
        if (place.epoch > 0 && order->window > 0) { /* the permutation draws below 2^63 */
            place.shift = (int64_t)random_below(key, UINT64_MAX, (uint64_t)order->window);
        }
    }
    return place;
}

struct order_place order_at(const struct order *order, int64_t number)
{
    int low = 0, high = order->sources;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        int64_t left = left_share(order, low, middle, high, number);
        if (left_share(order, low, middle, high, number + 1) > left) {
            high = middle;
            number = left;
        } else {
            low = middle;
            number -= left;
        }
    }
    return place_in(order, low, number);
}

int64_t order_count(const struct order *order, int source, int64_t number)
{
    int low = 0, high = order->sources;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        int64_t left = left_share(order, low, middle, high, number);
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

static bool some_source_through(const struct order *order, int64_t number)
{
    for (int i = 0; i < order->sources; i++) {
        if (order_count(order, i, number) >= order->samples[i]) {
            return true;
        }
    }
    return false;
}

int64_t order_epoch(const struct order *order)
{
    int64_t low = 0, high = 1; /* not through after low, through after high */
    while (!some_source_through(order, high)) {
        low = high;
        high *= 2;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (some_source_through(order, middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return high;
}
