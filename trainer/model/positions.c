/* Positions: the constant tables of rotary angles and sinusoidal positions, and the relative
 * position bias. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "trainer/model/model_impl.h"

static status fill_rope_table(struct model *m, struct tensor table_view, double theta,
                              const struct rotary_scaling *scaling)
{
    size_t count = (size_t)(table_view.rows * table_view.columns);
    struct device *dev = kernels_device(m->kernels);
    struct stream *stream = kernels_stream(m->kernels);
    float *table = NULL;
    TRY(ALLOCATE(table, count, "the rotary table of positions"));
    rotary_fill_table(table, table_view.rows, table_view.columns, theta, scaling);
    status result = device_copy(dev, stream, table_view.data, table, count * sizeof *table);
    KEEP_FIRST(result, device_wait(dev, stream, DEADLINE_DEVICE_STEP_SECONDS));
    free(table);
    return result;
}

/* Fills the table of sinusoidal positions: all sines before all cosines, or sines in even columns
 * and cosines in odd ones. It is divided by the factor of the token embeddings, because embedding
 * and position are multiplied together.
 *
 * Source    Vaswani et al. 2017, arXiv:1706.03762, section 3.5 */
static status fill_sinusoids(struct model *m)
{
    bool sines_first = m->architecture->embedding.sines_first;
    struct tensor table = m->activations.position_table;
    struct device *dev = kernels_device(m->kernels);
    struct stream *stream = kernels_stream(m->kernels);
    double factor = m->config.embedding_multiplier > 0 ? m->config.embedding_multiplier : 1;
    int64_t half = table.columns / 2, count = table.rows * table.columns;
    float *values = NULL;
    bf16 *rounded = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(values, count, "the positions"));
    TRY_GOTO(result, done, ALLOCATE(rounded, count, "the positions"));
    for (int64_t i = 0; i < count; i++) {
        int64_t position = i / table.columns, column = i % table.columns;
        int64_t pair = sines_first ? column % half : column / 2;
        bool is_sine = sines_first ? column < half : column % 2 == 0;
        double angle = (double)position * pow(1e4, -(double)(2 * pair) / (double)table.columns);
        values[i] = (float)((is_sine ? sin(angle) : cos(angle)) / factor);
        rounded[i] = f32_to_bf16(values[i]);
    }
    bool is_f32 = table.dtype == DTYPE_F32;
    TRY_GOTO(result, done,
             device_copy(dev, stream, table.data, is_f32 ? (void *)values : (void *)rounded,
                         (size_t)count * dtype_bytes(table.dtype)));
    result = device_wait(dev, stream, DEADLINE_DEVICE_STEP_SECONDS);
done:
    free(values);
    free(rounded);
    return result;
}

status model_fill_positions(struct model *m)
{
    const struct activations *a = &m->activations;
    const struct model_config *c = &m->config;
    TRY(a->position_table.data != NULL ? fill_sinusoids(m) : STATUS_OK);
    if (a->rope_table.data != NULL) {
        TRY(fill_rope_table(m, a->rope_table, c->rope_theta, &c->rope_scaling));
    }
    return a->rope_local_table.data != NULL
               ? fill_rope_table(m, a->rope_local_table, c->rope_local_theta,
                                 &(struct rotary_scaling){0})
               : STATUS_OK;
}

struct param_index model_position_bias_index(const struct model *m, const struct model_input *input)
{
    return model_get_stack(m, input)->param_index[MODEL_POSITION_BIAS];
}

static struct tensor get_bias_copy(const struct model *m, const struct model_input *input)
{
    return m->activations.position_bias[model_get_stack(m, input) - m->stacks];
}

status model_update_position_bias(struct model *m, const struct model_input *input)
{
    struct tensor copy = get_bias_copy(m, input);
    return copy.data != NULL ? op_cast(m->kernels, copy,
                                       model_matrix(m, model_position_bias_index(m, input).weight))
                             : STATUS_OK;
}

struct attention_bias model_position_bias(const struct model *m, const struct model_input *input)
{
    struct tensor copy = get_bias_copy(m, input);
    return (struct attention_bias){
        .table =
            copy.data != NULL ? copy : model_matrix(m, model_position_bias_index(m, input).weight),
        .max_distance = m->config.max_distance,
    };
}

int64_t model_position_buckets(const struct model_config *config)
{
    const struct architecture *a = model_architecture(config->architecture);
    return a != NULL && a->embedding.positions == POSITIONS_RELATIVE ? config->position_buckets : 0;
}

bool model_layer_has_rope(const struct model_config *config, int64_t layer)
{
    const struct architecture a = architecture_compose(config);
    return a.names != NULL && architecture_is_rotary(&a) &&
           (config->no_rope_interval == 0 || (layer + 1) % config->no_rope_interval != 0);
}

int64_t model_rotary_width(const struct model_config *config)
{
    return config->rotary_width > 0 ? config->rotary_width : model_head_width(config);
}

int64_t model_positions(const struct model_config *config)
{
    const struct architecture a = architecture_compose(config);
    return config->positions - (a.embedding.adds_positions ? 0 : a.embedding.first_position);
}

status model_require_positions(const struct model_config *config, const char *name, int64_t tokens,
                               int64_t new_tokens, status code)
{
    int64_t positions = model_positions(config);
    REQUIRE(tokens + new_tokens <= positions, code,
            "%s has %" PRId64 " tokens, but the model has %" PRId64 " positions%s; shorten it",
            name, tokens, positions, new_tokens > 0 ? ", and a new token needs one" : "");
    return STATUS_OK;
}
