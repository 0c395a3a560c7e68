/* Initial weights: a pure function of the seed, the parameter and the element's position in the
 * whole parameter. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/thread/thread.h"
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

/* Rows [row, end) of a shard. */
struct piece {
    const struct model_parameter *parameter;
    const struct model_shard *shard;
    uint64_t key;
    float *weights; /* of the shard */
    int64_t row, end;
};

/* Fills a piece with random numbers. The random index of an element is its position in the whole
 * parameter, so the number is the same on any rank and in any thread. */
static void fill_piece(void *item)
{
    const struct piece *f = item;
    const struct model_shard *shard = f->shard;
    float *w = f->weights + f->row * shard->columns;
    for (int64_t row = f->row; row < f->end; row++) {
        int64_t whole = (shard->row + row) * f->parameter->whole_columns + shard->column;
        for (int64_t column = 0; column < shard->columns; column++) {
            *w++ = draw_value(f->parameter, f->key, whole + column);
        }
    }
}

enum { PIECES_MAX = 256, PIECE_ELEMS_MIN = 1 << 14 };

/* Fills one shard with at most `threads` threads. */
static void fill_shard(struct piece whole, int threads)
{
    struct piece pieces[PIECES_MAX];
    int64_t rows = whole.shard->rows, count = rows * whole.shard->columns / PIECE_ELEMS_MIN;
    count = number_min(number_min(count, threads), rows);
    count = number_clamp(count, 1, PIECES_MAX);
    for (int64_t i = 0; i < count; i++) {
        pieces[i] = whole;
        pieces[i].row = rows * i / count;
        pieces[i].end = rows * (i + 1) / count;
    }
    thread_run_each(fill_piece, pieces, sizeof *pieces, (int)count);
}

/* `weights` points to the local parameter. */
static void fill_parameter(const struct model *m, int index, uint64_t seed, int threads,
                           float *weights)
{
    const struct model_parameter *p = &m->parameters[index];
    for (int j = 0; j < p->shard_count; j++) {
        const struct model_shard *shard = &p->shards[j];
        fill_shard((struct piece){.parameter = p,
                                  .shard = shard,
                                  .key = compute_key(index, seed),
                                  .weights = weights + shard->first},
                   threads);
    }
}

/* Computes a parameter on the host, with zeros as padding, and writes it to the device. */
static status init_parameter(struct model *m, struct device *dev, int index, uint64_t seed,
                             int threads, float *weights)
{
    const struct model_parameter *p = &m->parameters[index];
    size_t elements = (size_t)(p->rows * p->columns);
    if (device_is_host(dev)) {
        fill_parameter(m, index, seed, threads, weights);
        return STATUS_OK;
    }
    float *parameter = NULL;
    TRY(ALLOCATE(parameter, elements + 1, p->name));
    fill_parameter(m, index, seed, threads, parameter);
    status result = device_write(dev, kernels_stream(m->kernels), weights, parameter,
                                 elements * sizeof *parameter);
    free(parameter);
    return result;
}

/* Initializes a parameter without f32 weights through a temporary f32 buffer. */
static status init_frozen(struct model *m, struct device *dev, int index, uint64_t seed,
                          int threads)
{
    const struct model_parameter *p = &m->parameters[index];
    struct comm_range elements = {p->first, p->rows * p->columns};
    size_t bytes = (size_t)elements.count * sizeof(float);
    float *weights = NULL;
    TRY(device_allocate(dev, bytes, p->name, (void **)&weights));
    status result = init_parameter(m, dev, index, seed, threads, weights);
    if (result == STATUS_OK) {
        result = model_set_frozen(m, elements, weights);
    }
    device_release(dev, weights, bytes);
    return result;
}

status model_init_weights(struct model *m, uint64_t seed, int threads)
{
    struct device *dev = kernels_device(m->kernels);
    for (int i = 0; i < m->parameter_count; i++) {
        int64_t first = m->parameters[i].first;
        TRY(first < m->f32_elements ? init_parameter(m, dev, i, seed, threads, m->weights + first)
                                    : init_frozen(m, dev, i, seed, threads));
    }
    return model_sync_bf16(m);
}
