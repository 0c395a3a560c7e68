/* Initial weights: a pure function of the seed, the parameter and the element's position in the
 * whole parameter. */
#include <stdlib.h>

#include "trainer/model/model_impl.h"

static float draw_value(const struct model_parameter *p, uint64_t key, int64_t element)
{
    if (p->init_bound > 0) {
        return p->init_bound * (2.0f * random_uniform(key, (uint64_t)element) - 1.0f);
    }
    return p->init_std > 0 ? p->init_std * random_normal(key, (uint64_t)element) : p->init_value;
}

static uint64_t compute_key(int index, uint64_t seed)
{
    return random_key(seed, RANDOM_INITIAL_WEIGHTS, (uint64_t)index, 0);
}

float model_initial_value(const struct model_parameter *p, int index, uint64_t seed,
                          int64_t element)
{
    return draw_value(p, compute_key(index, seed), element);
}

/* Fills one shard; `parameter` points to the local parameter. An element draws the same number on
 * any rank: the random index is its position in the whole parameter. */
static void fill_shard(const struct model_parameter *p, const struct model_shard *shard,
                       uint64_t key, float *parameter)
{
    float *w = parameter + shard->first;
    for (int64_t row = 0; row < shard->rows; row++) {
        int64_t whole = (shard->row + row) * p->whole_columns + shard->column;
        for (int64_t column = 0; column < shard->columns; column++) {
            *w++ = draw_value(p, key, whole + column);
        }
    }
}

static void fill_parameter(const struct model *m, int index, uint64_t seed, float *parameter)
{
    const struct model_parameter *p = &m->parameters[index];
    uint64_t key = compute_key(index, seed);
    for (int j = 0; j < p->shard_count; j++) {
        fill_shard(p, &p->shards[j], key, parameter);
    }
}

/* Computes a parameter on the host, with zeros as padding, and write it to the device. */
static status init_parameter(struct model *m, struct device *dev, int index, uint64_t seed,
                             float *weights)
{
    const struct model_parameter *p = &m->parameters[index];
    size_t elements = (size_t)(p->rows * p->columns);
    if (device_is_host(dev)) {
        fill_parameter(m, index, seed, weights);
        return STATUS_OK;
    }
    float *parameter = calloc(elements + 1, sizeof *parameter);
    REQUIRE(parameter != NULL, STATUS_INTERNAL, "out of memory for %s", p->name);
    fill_parameter(m, index, seed, parameter);
    status result = device_write(dev, kernels_stream(m->kernels), weights, parameter,
                                 elements * sizeof *parameter);
    free(parameter);
    return result;
}

/* Initializes a parameter without f32 weights through a temporary f32 buffer. */
static status init_frozen(struct model *m, struct device *dev, int index, uint64_t seed)
{
    const struct model_parameter *p = &m->parameters[index];
    struct comm_range elements = {p->first, p->rows * p->columns};
    size_t bytes = (size_t)elements.count * sizeof(float);
    float *weights = NULL;
    TRY(device_allocate(dev, bytes, p->name, (void **)&weights));
    status result = init_parameter(m, dev, index, seed, weights);
    if (result == STATUS_OK) {
        result = model_set_frozen(m, elements, weights);
    }
    device_release(dev, weights, bytes);
    return result;
}

status model_init_weights(struct model *m, uint64_t seed)
{
    struct device *dev = kernels_device(m->kernels);
    for (int i = 0; i < m->parameter_count; i++) {
        int64_t first = m->parameters[i].first;
        TRY(first < m->f32_elements ? init_parameter(m, dev, i, seed, m->weights + first)
                                    : init_frozen(m, dev, i, seed));
    }
    return model_sync_bf16(m);
}
