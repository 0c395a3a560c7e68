/* Initial weights: a pure function of the seed, the parameter and the element's place in the whole. */
#include <stdlib.h>

#include "trainer/model/model_impl.h"

static float draw(const struct model_parameter *p, uint64_t key, int64_t element)
{
    if (p->bound > 0) {
        return p->bound * (2.0f * random_uniform(key, (uint64_t)element) - 1.0f);
    }
    return p->deviation > 0 ? p->deviation * random_normal(key, (uint64_t)element) : p->initial;
}

static uint64_t draw_key(int index, uint64_t seed)
{
    return random_key(seed, RANDOM_INITIAL_WEIGHTS, (uint64_t)index, 0);
}

float model_initial(const struct model_parameter *p, int index, uint64_t seed, int64_t element)
{
    return draw(p, draw_key(index, seed), element);
}

/* Element (row, column) of the whole draws the same number wherever it lies. */
/* parameter: where its part begins. */
static void initialise_piece(const struct model_parameter *p, const struct model_piece *piece,
                             uint64_t key, float *parameter)
{
    float *w = parameter + piece->first;
    for (int64_t row = 0; row < piece->rows; row++) {
        int64_t whole = (piece->row + row) * p->whole_columns + piece->column;
        for (int64_t column = 0; column < piece->columns; column++) {
            *w++ = draw(p, key, whole + column);
        }
    }
}

static void initialise_parameter(const struct model *m, int index, uint64_t seed, float *parameter)
{
    const struct model_parameter *p = &m->parameters[index];
    uint64_t key = draw_key(index, seed);
    for (int j = 0; j < p->piece_count; j++) {
        initialise_piece(p, &p->pieces[j], key, parameter);
    }
}

/* Made on the host, with the padding's zeros, and written from there. */
static status initialise_at(struct model *m, struct device *dev, int index, uint64_t seed,
                            float *weights)
{
    const struct model_parameter *p = &m->parameters[index];
    size_t elements = (size_t)(p->rows * p->columns);
    if (device_is_host(dev)) {
        initialise_parameter(m, index, seed, weights);
        return STATUS_OK;
    }
    float *parameter = calloc(elements + 1, sizeof *parameter);
    REQUIRE(parameter != NULL, STATUS_INTERNAL, "out of memory for %s", p->name);
    initialise_parameter(m, index, seed, parameter);
    status result = device_write(dev, kernels_stream(m->kernels), weights, parameter,
                                 elements * sizeof *parameter);
    free(parameter);
    return result;
}

/* What has no f32 weights passes through them. */
static status initialise_frozen(struct model *m, struct device *dev, int index, uint64_t seed)
{
    const struct model_parameter *p = &m->parameters[index];
    struct range elements = {p->first, p->rows * p->columns};
    size_t bytes = (size_t)elements.count * sizeof(float);
    float *weights = NULL;
    TRY(device_allocate(dev, bytes, p->name, (void **)&weights));
    status result = initialise_at(m, dev, index, seed, weights);
    if (result == STATUS_OK) {
        result = model_set_frozen(m, elements, weights);
    }
    device_release(dev, weights, bytes);
    return result;
}

status model_initialise(struct model *m, uint64_t seed)
{
    struct device *dev = kernels_device(m->kernels);
    for (int i = 0; i < m->parameter_count; i++) {
        int64_t first = m->parameters[i].first;
        TRY(first < m->kept ? initialise_at(m, dev, i, seed, m->weights + first)
                            : initialise_frozen(m, dev, i, seed));
    }
    return model_weights_changed(m);
}
