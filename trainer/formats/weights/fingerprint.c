#include "trainer/formats/weights/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"

/* Returns the finalizer of splitmix64 (Steele, Lea, Flood 2014). Each input bit affects about half
 * of the output bits. */
static uint64_t mix_bits(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void add_weight(struct fingerprint *f, int number, int64_t element, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t position = mix_bits(((uint64_t)number << 44) + (uint64_t)element + 1);
    f->sums[0] += mix_bits(position ^ bits);
    f->sums[1] += mix_bits(position + ((uint64_t)bits << 32 | bits));
}

void fingerprint_add_block(struct fingerprint *f, int number, const struct model_parameter *p,
                           const int64_t offset[2], const int64_t shape[2], const float *block)
{
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        int64_t row = offset[0] + i / shape[1], column = offset[1] + i % shape[1];
        int64_t element = p->dimensions == 1 ? row
                          : p->transposed    ? column * p->whole_columns + row
                                             : row * p->whole_columns + column;
        add_weight(f, number, element, block[i]);
    }
}

void fingerprint_text(const struct fingerprint *f, char text[HASH_TEXT_BYTES])
{
    snprintf(text, HASH_TEXT_BYTES, "%016" PRIx64 "%016" PRIx64, f->sums[0], f->sums[1]);
}

static void add_sums(struct fingerprint *to, const struct fingerprint *from)
{
    to->sums[0] += from->sums[0];
    to->sums[1] += from->sums[1];
}

/* Adds elements [low, high) of the flat buffer, all of which lie in this shard. `weights` points to
 * element `low`. */
static void add_shard(struct fingerprint *f, int number, const struct model_parameter *p,
                      const struct model_shard *shard, int64_t low, int64_t high,
                      const float *weights)
{
    int64_t offset = low - p->first - shard->first;
    int64_t row = offset / shard->columns, column = offset % shard->columns;
    for (int64_t e = low; e < high; e++) {
        int64_t element = (shard->row + row) * p->whole_columns + shard->column + column;
        add_weight(f, number, element, *weights++);
        column = column + 1 < shard->columns ? column + 1 : 0;
        row += column == 0;
    }
}

/* Adds the elements of a range that belong to one parameter. `weights` is in host memory and
 * points to the first element of the range. */
static void add_parameter(struct fingerprint *f, int number, const struct model_parameter *p,
                          struct comm_range range, const float *weights)
{
    for (int j = 0; j < p->shard_count; j++) {
        const struct model_shard *shard = &p->shards[j];
        struct comm_range elements = {p->first + shard->first, shard->rows * shard->columns};
        struct comm_range part = comm_range_intersect(range, elements);
        if (part.count > 0) {
            add_shard(f, number, p, shard, part.first, part.first + part.count,
                      weights + (part.first - range.first));
        }
    }
}

/* Replicated parameters are added by the first rank of the tensor-parallel group only. */
static bool is_covered(const struct session *s, const struct model_parameter *p,
                       enum fingerprint_subset subset)
{
    bool duplicate = p->replicated && comm_rank(s->mesh.tensor) != 0;
    bool selected = subset == FINGERPRINT_FROZEN     ? !p->trained
                    : subset == FINGERPRINT_ADAPTERS ? model_is_adapter(p)
                                                     : !model_is_adapter(p);
    return selected && !duplicate;
}

void fingerprint_add_range(struct fingerprint *f, const struct session *s,
                           enum fingerprint_subset subset, struct comm_range range,
                           const float *weights)
{
    int count = 0, model_count = 0;
    const struct model_parameter *p = model_parameters(s->model, &count);
    for (int i = 0; i < count; i++) {
        int number = model_is_adapter(&p[i]) ? count + i : model_count++;
        if (is_covered(s, &p[i], subset)) {
            add_parameter(f, number, &p[i], range, weights);
        }
    }
}

struct comm_range fingerprint_next_block(int64_t first, int64_t end)
{
    int64_t left = end - first;
    return (struct comm_range){first, number_min(left, FINGERPRINT_BLOCK_ELEMENTS)};
}

/* Adds the f32 weights that the model stores, block by block. */
static status add_stored_weights(struct fingerprint *f, const struct session *s,
                                 enum fingerprint_subset subset)
{
    int64_t end = model_f32_elements(s->model);
    float *weights = NULL;
    status result = STATUS_OK;
    TRY(ALLOCATE(weights, FINGERPRINT_BLOCK_ELEMENTS, "the fingerprint of the weights"));
    for (struct comm_range block = fingerprint_next_block(0, end);
         block.count > 0 && result == STATUS_OK;
         block = fingerprint_next_block(block.first + block.count, end)) {
        result = device_read(s->device, kernels_stream(s->kernels), weights,
                             model_weights(s->model) + block.first,
                             (size_t)block.count * sizeof *weights);
        if (result == STATUS_OK) {
            fingerprint_add_range(f, s, subset, block, weights);
        }
    }
    free(weights);
    return result;
}

status fingerprint_all_reduce(const struct session *s, struct fingerprint *f)
{
    struct comm *tensor = s->mesh.tensor;
    struct fingerprint *all = NULL;
    status result = ALLOCATE(all, comm_size(tensor), "the fingerprint of the weights");
    TRY_GOTO(result, done, comm_agree(tensor, result)); /* before the ranks wait for each other */
    TRY_GOTO(result, done, comm_all_gather_bytes(tensor, all, f, sizeof *f));
    *f = (struct fingerprint){{0}};
    for (int i = 0; i < comm_size(tensor); i++) {
        add_sums(f, &all[i]);
    }
done:
    free(all);
    return result;
}

static struct fingerprint parse_text(const char *text)
{
    unsigned long long a = 0, b = 0;
    (void)sscanf(text, "%16llx%16llx", &a, &b);
    return (struct fingerprint){{a, b}};
}

status fingerprint_of_session(const struct session *s, bool adapters, char text[HASH_TEXT_BYTES])
{
    bool has_base = s->recipe.adapter.type != ADAPTER_NONE;
    struct fingerprint sums = {{0}};
    status result = STATUS_OK;
    if (!has_base || adapters) {
        result = add_stored_weights(&sums, s, has_base ? FINGERPRINT_ADAPTERS : FINGERPRINT_MODEL);
    }
    KEEP_FIRST(result, fingerprint_all_reduce(s, &sums));
    if (has_base) {
        struct fingerprint frozen = parse_text(s->recipe.adapter.base_weights);
        add_sums(&sums, &frozen);
    }
    fingerprint_text(&sums, text);
    return result;
}
