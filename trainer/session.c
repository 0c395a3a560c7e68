#define _GNU_SOURCE /* sched_getaffinity */
#include "trainer/session.h"

#include <sched.h>
#include <stdio.h>
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

struct kernels_limits session_limits(const struct model_config *config, int tensor, int64_t rows,
                                     int64_t sequence, bool training)
{
    return (struct kernels_limits){
        .rows = rows,
        .width = config->width,
        .inner = config->inner / tensor,
        .heads = (int)config->heads / tensor,
        .head_width = config->width / config->heads,
        .sequence = sequence,
        .vocabulary = model_vocabulary_rows(config, tensor),
        .training = training,
    };
}

/* Where a rank may run. */
struct cores {
    char host[64];
    cpu_set_t set;
};

status session_threads(const struct recipe *recipe, struct comm *world, int *out)
{
    int ranks = comm_size(world), sharing = 0;
    struct cores mine = {.host = ""}, *all = calloc((size_t)ranks, sizeof *all);
    REQUIRE(all != NULL, STATUS_INTERNAL, "out of memory for %d ranks", ranks);
    CPU_ZERO(&mine.set);
    (void)gethostname(mine.host, sizeof mine.host - 1);
    if (sched_getaffinity(0, sizeof mine.set, &mine.set) != 0) { /* more cores than the set holds */
        CPU_SET(0, &mine.set);
    }
    status result = comm_all_gather_bytes(world, all, &mine, sizeof mine);
    for (int i = 0; i < ranks; i++) {
        sharing += memcmp(&all[i], &mine, sizeof mine) == 0;
    }
    free(all);
    int share = CPU_COUNT(&mine.set) / (sharing > 0 ? sharing : 1);
    *out = recipe->parallel.threads > 0 ? (int)recipe->parallel.threads : share > 0 ? share : 1;
    return result;
}

static status choose_vocabulary(const struct recipe *recipe, const struct tokenizer *tokenizer,
                                int64_t *out)
{
    int64_t known = tokenizer != NULL ? tokenizer_vocab_size(tokenizer) : 0;
    int64_t asked = recipe->model.vocab_size;
    *out = asked > 0 ? asked : known;
    if (*out == 0) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.vocab_size",
                            "neither it nor data.tokenizer is given; give one of them");
    }
    if (*out < known) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.vocab_size",
                            "%lld is smaller than the tokenizer's %lld ids; use null to take the "
                            "tokenizer's",
                            (long long)asked, (long long)known);
    }
    return STATUS_OK;
}

status session_tokenizer(const struct recipe *recipe, const char *folder, struct tokenizer **out,
                         int64_t *vocabulary)
{
    *out = NULL;
    status result = folder[0] != '\0' ? tokenizer_open(folder, out) : STATUS_OK;
    if (result == STATUS_NO_INPUT) {
        char remedy[RECIPE_PATH_BYTES + 128];
        snprintf(remedy, sizeof remedy,
                 "make it with `bireme tokenizer train --vocab-size N --input FILE... --output %s`",
                 folder);
        return recipe_blame(recipe, "data.tokenizer", result, remedy);
    }
    TRY(recipe_blame(recipe, "data.tokenizer", result, ""));
    return choose_vocabulary(recipe, *out, vocabulary);
}

status session_device(const struct recipe *recipe, int threads, const struct kernels_limits *limits,
                      struct device **device, struct kernels **kernels)
{
    enum device_kind kind = recipe->train.device == RECIPE_DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU;
    enum dtype dtype = recipe->train.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    TRY(recipe_blame(recipe, "train.device", device_create(kind, 0, device), ""));
    status result = kernels_create(*device, dtype, threads, limits, kernels);
    return result == STATUS_UNAVAILABLE ? recipe_blame(recipe, "train.precision", result, "")
                                        : result;
}

status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training)
{
    const struct recipe *r = &s->recipe;
    int64_t vocabulary = 0;
    int threads = 1;
    TRY(mesh_create(world, (int)r->parallel.tensor, &s->mesh));
    TRY(session_threads(r, world, &threads));
    TRY(session_tokenizer(r, tokenizer_dir, &s->tokenizer, &vocabulary));
    struct model_config config = session_model_config(r, vocabulary);
    struct kernels_limits limits =
        session_limits(&config, (int)r->parallel.tensor, rows, sequence, training);
    TRY(session_device(r, threads, &limits, &s->device, &s->kernels));
    return model_create(s->kernels, &config, s->mesh.tensor, rows, training, &s->model);
}

status session_optimizer(struct session *s, struct optimizer **out)
{
    const struct recipe *r = &s->recipe;
    int count = 0;
    const struct model_parameter *parameters = model_parameters(s->model, &count);
    struct optimizer_range *ranges = calloc((size_t)count, sizeof *ranges);
    REQUIRE(ranges != NULL, STATUS_INTERNAL, "out of memory for %d ranges", count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        ranges[i] = (struct optimizer_range){p->first, p->rows * p->columns, p->decay};
    }
    struct optimizer_settings settings = {
        .beta1 = r->optimizer.beta1,
        .beta2 = r->optimizer.beta2,
        .epsilon = r->optimizer.epsilon,
        .weight_decay = r->optimizer.weight_decay,
        .max_grad_norm = r->optimizer.max_grad_norm,
    };
    status result =
        optimizer_create(s->kernels, &settings, ranges, count, model_elements(s->model), out);
    free(ranges);
    return result;
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

/* ---- from a checkpoint ---- */

static status start_found(struct session *s, struct comm *world,
                          const struct checkpoint_found *found, char *const *overrides,
                          int override_count, int64_t rows)
{
    char tokenizer[FILE_PATH_BYTES];
    struct recipe *r = &s->recipe;
    TRY(recipe_parse(found->folder, found->recipe_text, strlen(found->recipe_text), overrides,
                     override_count, r));
    r->parallel.tensor = 1; /* the layout that wrote it is not the one that reads it */
    int64_t micro = r->batch.micro_size * r->data.sequence_length;
    int64_t positions = r->model.max_position_embeddings;
    rows = rows > micro ? rows : micro;
    rows = rows > positions ? rows : positions;
    TRY(file_join(tokenizer, found->folder, "tokenizer"));
    if (!file_is_folder(tokenizer)) {
        tokenizer[0] = '\0';
    }
    return session_start(s, world, tokenizer, rows, positions, false);
}

status session_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows)
{
    struct checkpoint_found found;
    struct session_family weights = {0};
    TRY(comm_agree(world, checkpoint_choose(world, path, true, &found)));
    status result =
        comm_agree(world, start_found(s, world, &found, overrides, override_count, rows));
    if (result == STATUS_OK) {
        result = comm_agree(world, session_weights(s->model, &weights));
    }
    if (result == STATUS_OK) {
        result = checkpoint_load(world, found.folder, &weights.family, 1);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, model_weights_changed(s->model));
    }
    session_family_destroy(&weights);
    free(found.recipe_text);
    return result;
}

/* ---- named tensors ---- */

static status family_create(const char *stem, int count, struct session_family *out)
{
    *out = (struct session_family){.family = {.stem = stem}};
    out->tensors = calloc((size_t)count, sizeof *out->tensors);
    out->names = calloc((size_t)count, sizeof *out->names);
    if (out->tensors == NULL || out->names == NULL) {
        session_family_destroy(out);
        RAISE(STATUS_INTERNAL, "out of memory for %d tensors", count);
    }
    out->family.tensors = out->tensors;
    return STATUS_OK;
}

static void family_append(struct session_family *f, const char *prefix,
                          const struct model_parameter *p, const struct model_piece *piece,
                          float *data)
{
    struct checkpoint_tensor *t = &f->tensors[f->family.count];
    char *name = f->names[f->family.count++];
    snprintf(name, sizeof *f->names, "%s%s", prefix, p->name);
    *t = (struct checkpoint_tensor){
        .name = name,
        .dimensions = p->dimensions,
        .rows = piece->rows,
        .columns = piece->columns,
        .transposed = p->transposed,
        .data = data + p->first + piece->first,
    };
    if (p->dimensions == 1) {
        t->global_shape[0] = p->whole_columns;
        t->offset[0] = piece->column;
    } else {
        int rows_at = p->transposed ? 1 : 0; /* the file's dimension that memory's rows run along */
        t->global_shape[rows_at] = p->whole_rows;
        t->global_shape[1 - rows_at] = p->whole_columns;
        t->offset[rows_at] = piece->row;
        t->offset[1 - rows_at] = piece->column;
    }
}

static void family_append_all(struct session_family *f, const char *prefix, const struct model *m,
                              float *data)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < parameters[i].piece_count; j++) {
            family_append(f, prefix, &parameters[i], &parameters[i].pieces[j], data);
        }
    }
}

status session_weights(const struct model *m, struct session_family *out)
{
    int count = 0;
    (void)model_parameters(m, &count);
    TRY(family_create("model", MODEL_PIECES_MAX * count, out));
    family_append_all(out, "", m, model_weights(m));
    return STATUS_OK;
}

status session_moments(const struct model *m, const struct optimizer *o, struct session_family *out)
{
    int count = 0;
    (void)model_parameters(m, &count);
    TRY(family_create("optimizer", 2 * MODEL_PIECES_MAX * count, out));
    family_append_all(out, "exp_avg/", m, optimizer_moment1(o));
    family_append_all(out, "exp_avg_sq/", m, optimizer_moment2(o));
    return STATUS_OK;
}

void session_family_destroy(struct session_family *family)
{
    free(family->tensors);
    free(family->names);
    *family = (struct session_family){0};
}
