#define _GNU_SOURCE /* sched_getaffinity */
#include "trainer/session.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

struct model_config session_model_config(const struct recipe *recipe, int64_t vocabulary)
{
    return (struct model_config){
        .architecture = recipe->model.architecture,
        .layers = recipe->model.num_layers,
        .width = recipe->model.hidden_size,
        .heads = recipe->model.num_heads,
        .inner = recipe->model.intermediate_size,
        .positions = recipe->model.max_position_embeddings,
        .vocabulary = vocabulary,
        .activation = strcmp(recipe->model.activation, "gelu_erf") == 0 ? ACTIVATION_GELU_ERF
                                                                        : ACTIVATION_GELU_TANH,
        .dropout = (float)recipe->model.dropout,
        .attention_dropout = (float)recipe->model.attention_dropout,
        .norm_epsilon = (float)recipe->model.layer_norm_epsilon,
        .initializer_range = (float)recipe->model.initializer_range,
        .tied = recipe->model.tie_word_embeddings,
    };
}

struct kernels_limits session_limits(const struct model_config *config, int64_t rows,
                                     int64_t sequence, bool training)
{
    return (struct kernels_limits){
        .rows = rows,
        .width = config->width,
        .inner = config->inner,
        .heads = (int)config->heads,
        .head_width = config->width / config->heads,
        .sequence = sequence,
        .vocabulary = model_padded_vocabulary(config),
        .training = training,
    };
}

int session_threads(const struct recipe *recipe, const struct comm *world)
{
    if (recipe->parallel.threads > 0) {
        return (int)recipe->parallel.threads;
    }
    cpu_set_t mine;
    int online = (int)sysconf(_SC_NPROCESSORS_ONLN), usable = online;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0) {
        usable = CPU_COUNT(&mine);
    }
    int threads = usable < online ? usable : online / comm_local_ranks(world);
    return threads > 0 ? threads : 1;
}

status session_vocabulary(const struct recipe *recipe, const struct tokenizer *tokenizer,
                          int64_t *out)
{
    int64_t known = tokenizer != NULL ? tokenizer_vocab_size(tokenizer) : 0;
    int64_t asked = recipe->model.vocab_size;
    *out = asked > 0 ? asked : known;
    REQUIRE(*out > 0, STATUS_RECIPE,
            "model.vocab_size: neither it nor data.tokenizer is given; give one of them");
    REQUIRE(*out >= known, STATUS_RECIPE,
            "model.vocab_size: %lld is smaller than the tokenizer's %lld ids; use null to take the "
            "tokenizer's",
            (long long)asked, (long long)known);
    return STATUS_OK;
}

static status open_device(const struct recipe *recipe, struct device **out)
{
    enum device_kind kind = recipe->train.device == RECIPE_DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU;
    return device_create(kind, 0, out);
}

status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training)
{
    const struct recipe *r = &s->recipe;
    int64_t vocabulary = 0;
    TRY(mesh_create(world, (int)r->parallel.tensor, &s->mesh));
    if (tokenizer_dir[0] != '\0') {
        TRY(tokenizer_open(tokenizer_dir, &s->tokenizer));
    }
    TRY(session_vocabulary(r, s->tokenizer, &vocabulary));
    TRY(open_device(r, &s->device));
    struct model_config config = session_model_config(r, vocabulary);
    struct kernels_limits limits = session_limits(&config, rows, sequence, training);
    enum dtype dtype = r->train.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    TRY(kernels_create(s->device, dtype, session_threads(r, world), &limits, &s->kernels));
    return model_create(s->kernels, &config, rows, training, &s->model);
}

status session_stop(struct session *s)
{
    status result = model_destroy(&s->model);
    KEEP_FIRST(result, kernels_destroy(&s->kernels));
    KEEP_FIRST(result, device_destroy(&s->device));
    KEEP_FIRST(result, tokenizer_destroy(&s->tokenizer));
    if (s->mesh.world != NULL) {
        KEEP_FIRST(result, mesh_destroy(&s->mesh));
    }
    return result;
}

status session_tensors(const struct model *m, float *data, struct checkpoint_tensor **out,
                       int *count)
{
    const struct model_parameter *parameters = model_parameters(m, count);
    struct checkpoint_tensor *tensors = calloc((size_t)*count, sizeof *tensors);
    REQUIRE(tensors != NULL, STATUS_INTERNAL, "out of memory for %d tensors", *count);
    for (int i = 0; i < *count; i++) {
        const struct model_parameter *p = &parameters[i];
        struct checkpoint_tensor *t = &tensors[i];
        *t = (struct checkpoint_tensor){
            .name = p->name,
            .dimensions = p->dimensions,
            .rows = p->file_rows,
            .columns = p->columns,
            .transposed = p->transposed,
            .data = data + p->first,
        };
        if (p->dimensions == 1) {
            t->global_shape[0] = p->columns;
        } else {
            t->global_shape[0] = p->transposed ? p->columns : p->file_rows;
            t->global_shape[1] = p->transposed ? p->file_rows : p->columns;
        }
    }
    *out = tensors;
    return STATUS_OK;
}
