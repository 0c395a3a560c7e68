#include "trainer/train/planner/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "base/thread/cores.h"
#include "comm/mesh.h"
#include "comm/shared/space.h"
#include "datasets/loader/batch_upload.h"
#include "datasets/loader/loader.h"
#include "trainer/evaluation/report.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/weights/initial_model.h"
#include "trainer/formats/weights/saved_recipe.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/model/linear.h"
#include "trainer/objective/contrastive_batch.h"
#include "trainer/objective/pair_loss.h"
#include "trainer/objective/preference.h"
#include "trainer/objective/workspace.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/setup/data.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/hardware.h"
#include "trainer/setup/objective_spec.h"
#include "trainer/setup/session.h"
#include "trainer/train/generated_outputs.h"
#include "trainer/train/planner/communication.h"
#include "trainer/train/planner/flops.h"
#include "trainer/train/rollback.h"
#include "trainer/train/step/sharded_optimizer.h"

const char *plan_kind_name(enum plan_kind kind)
{
    static const char *const names[PLAN_KINDS] = {"weights", "gradients", "optimizer",
                                                  "activations", "buffers"};
    return names[kind];
}

const char *plan_part_name(enum plan_part part)
{
    static const char *const names[PLAN_PARTS] = {
        "token_embedding", "position_embedding", "attention", "feed_forward", "norms", "output",
        "adapters"};
    return names[part];
}

/* Returns the memory of a rank without its tensors: code and data of the libraries, generated code
 * of oneDNN, and the buffers of MPI with several ranks.
 *
 * The numbers come from 25 runs on Debian 12 with 2 cores: the peak resident memory minus the rest
 * of the plan. They are 28 to 49 MB for 1 rank and 46 to 61 MB for 2 ranks. The models had 0.8 to
 * 45 million parameters; small models in bf16 had the smallest values. */
static int64_t get_program_bytes(int ranks)
{
    return (ranks > 1 ? INT64_C(52) : INT64_C(38)) << 20;
}

/* Maximum chunk of a checkpoint. The writer and HDF5 hold four copies of one chunk. */
static const int64_t chunk_bytes = INT64_C(4) << 20;

/* ---- parameters ---- */

static enum plan_part get_part(const struct model_parameter *p)
{
    if (model_is_norm(p)) {
        return PLAN_NORMS;
    }
    switch (p->role) {
    case MODEL_TOKEN_TABLE:
    case MODEL_EMBEDDING_PROJECTION:
        return PLAN_TOKEN_EMBEDDING;
    case MODEL_POSITION_TABLE:
    case MODEL_TOKEN_TYPE_TABLE:
    case MODEL_POSITION_BIAS:
        return PLAN_POSITION_EMBEDDING;
    case MODEL_QKV:
    case MODEL_PROJECTION:
    case MODEL_CROSS_QUERY:
    case MODEL_CROSS_KEY_VALUE:
    case MODEL_CROSS_PROJECTION:
        return PLAN_ATTENTION;
    case MODEL_FC:
    case MODEL_FC_PROJECTION:
        return PLAN_FEED_FORWARD;
    case MODEL_ADAPTER_IN:
    case MODEL_ADAPTER_OUT:
        return PLAN_ADAPTERS;
    default:
        return PLAN_OUTPUT;
    }
}

static void count_parameters(const struct model_parameter *parameters, int count, struct plan *plan)
{
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        int64_t size = p->whole_rows * p->whole_columns;
        plan->part[get_part(p)] += size;
        plan->parameters += size;
        plan->trained_parameters += p->trained ? size : 0;
        plan->rank_parameters += model_parameter_elems(p);
    }
}

/* ---- memory ---- */

/* A checkpoint of a model with adapters contains only the trained parameters. */
static bool has_adapters(const struct model_parameter *parameters, int count)
{
    bool found = false;
    for (int i = 0; i < count; i++) {
        found = found || model_is_adapter(&parameters[i]);
    }
    return found;
}

static int64_t compute_writer_bytes(const struct model_parameter *parameters, int count)
{
    int64_t largest = 0;
    bool adapters = has_adapters(parameters, count);
    for (int i = 0; i < count; i++) {
        bool written = !adapters || parameters[i].trained;
        int64_t bytes = written ? 4 * model_parameter_elems(&parameters[i]) : 0;
        largest = number_max(largest, bytes);
    }
    return 4 * number_min(largest, chunk_bytes);
}

/* Computes the memory of a snapshot: weights and both moments, divided among the ranks with the
 * same values as in a checkpoint. */
static status compute_snapshot_bytes(const struct model_parameter *parameters, int count,
                                     int64_t elements, enum dtype moment_dtype, struct plan *plan)
{
    struct optimizer_range trained = {.count = model_trained_elems(parameters, count)};
    struct state_dict_ranges moments = {.ranges = &trained, .count = 1};
    struct state_dict_layout layout = {parameters, count, true,
                                       has_adapters(parameters, count) ? STATE_DICT_SUBSET_TRAINED
                                                                       : STATE_DICT_SUBSET_ALL};
    struct optimizer_range all = {.count = elements};
    struct state_dict_ranges ranges = {.ranges = &all, .count = 1};
    struct state_dict states[2] = {0};
    status result = state_dict_create_weights(&layout, &ranges, NULL, &states[0]);
    if (result == STATUS_OK) {
        result = state_dict_create_moments(&layout, &moments, moment_dtype, NULL, NULL, &states[1]);
    }
    if (result == STATUS_OK) {
        struct checkpoint_tensor_set views[2] = {states[0].tensor_set, states[1].tensor_set};
        bool sharded = plan->zero_stage > 0;
        int64_t bytes = 0;
        result = checkpoint_memory_bytes(views, sharded ? 1 : 2, plan->data, 0, &bytes);
        plan->buffers.snapshot = bytes + (sharded ? plan->bytes[PLAN_OPTIMIZER] : 0);
    }
    state_dict_destroy(&states[0]);
    state_dict_destroy(&states[1]);
    return result;
}

/* Computes the memory for outputs of a task head and their gradients; for embed also for the
 * embeddings of the global batch. */
static int64_t compute_task_bytes(const struct recipe *r, const struct model_config *c,
                                  enum device_kind kind, enum dtype dtype)
{
    int64_t bytes = c->output_rows * c->labels * (8 + (int64_t)dtype_bytes(dtype));
    if (c->head == MODEL_HEAD_NONE) {
        bytes += contrastive_batch_bytes(kind, r->batch.global_size, c->width);
    }
    return c->head == MODEL_HEAD_LM ? 0 : bytes;
}

/* Computes the memory of the objective: some values per row and, for preference pairs, the hidden
 * states of the responses and their gradient. Some losses also need all pairs of a global batch. */
static status compute_objective_bytes(const struct recipe *r, int64_t width, enum dtype dtype,
                                      int64_t rows, int64_t *out)
{
    *out = 4 * WORKSPACE_ROW_ARRAYS * rows;
    if (objective_spec_has_reference(r)) {
        struct preference_settings settings;
        TRY(derive_preference_loss(r, &settings));
        bool whole_batch = preference_needs_whole_batch(&settings);
        *out += 2 * rows * width * (int64_t)dtype_bytes(dtype);
        *out += whole_batch ? pair_loss_bytes(r->batch.global_size) : 0;
    }
    return STATUS_OK;
}

static int64_t compute_loader_bytes(const struct recipe *r, const struct loader_source *sources,
                                    int count, int ranks)
{
    struct loader_options options = {
        .sources = sources,
        .source_count = count,
        .sequence_tokens = r->data.sequence_length,
        .global_sequences = r->batch.global_size,
        .micro_sequences = r->batch.micro_size,
        .ranks = ranks,
        .shuffle = r->data.shuffle,
        .document_mask = r->data.document_mask,
        .kind = objective_spec_example(r),
        .max_texts = r->model.num_labels,
        .masking = {.max_predictions = r->mlm.max_predictions},
        .denoise = {.kind = r->objective == OBJECTIVE_DENOISE ? DENOISE_BART : DENOISE_NONE},
    };
    return loader_memory_bytes(&options);
}

/* Computes the memory of the training loader and, for evaluations, of the validation loader. */
static int64_t compute_all_loader_bytes(const struct recipe *r, int ranks)
{
    struct loader_source sources[RECIPE_SOURCES_MAX];
    int count = r->data.train_count > 0 ? r->data.train_count : 1;
    for (int i = 0; i < count; i++) {
        sources[i] = (struct loader_source){r->data.train[i].path, 1};
    }
    int64_t bytes = compute_loader_bytes(r, sources, count, ranks);
    if (r->data.validation[0] != '\0') {
        bytes += compute_loader_bytes(r, &(struct loader_source){r->data.validation, 1}, 1, ranks);
    }
    return bytes;
}

static int get_threads(const struct recipe *r, int ranks)
{
    if (r->parallel.threads > 0) {
        return (int)r->parallel.threads;
    }
    int threads = cores_allowed() / ranks;
    return threads > 0 ? threads : 1;
}

static status plan_optimizer(const struct recipe *r, const struct model_config *config,
                             const struct model_parameter *parameters, int count, int64_t elements,
                             const struct plan *plan, struct sharded_optimizer_bytes *out)
{
    struct sharded_optimizer_plan optimizer = {
        .parameters = parameters,
        .parameter_count = count,
        .layers = config->layers,
        .elements = elements,
        .stage = plan->zero_stage,
        .bf16 = r->train.precision != PRECISION_FP32,
        .bucket_elems = derive_bucket_elems(r),
        .micro_batches = plan->micro_steps,
        .reproducible = r->parallel.reproducible,
        .moment_dtype = derive_moment_dtype(r),
        .bf16_transport = r->parallel.reduce_dtype == PRECISION_BF16,
        .ranks = plan->data,
    };
    return sharded_optimizer_compute_bytes(&optimizer, out);
}

/* Computes the shared memory of tensor-parallel reductions and gathered rows of the other ranks.
 * Rows of the encoder's output are gathered in addition. */
static int64_t compute_shared_window(const struct model_config *config,
                                     struct model_parallelism sharing, enum dtype dtype,
                                     int64_t rows)
{
    int64_t gathered = !sharing.sequence_parallel ? 0 : config->encoder_layers > 0 ? 2 : 1;
    int64_t element_bytes = 4 + gathered * (int64_t)dtype_bytes(dtype);
    return rows * config->width * element_bytes / sharing.ranks * (sharing.ranks - 1);
}

/* Computes the bytes of /dev/shm that the ranks need, with the sizes of the windows that a run
 * creates. On GPUs, gradients are not in shared memory. */
static int64_t compute_shared_memory(const struct plan *plan,
                                     const int64_t bucket_windows[BUCKET_WINDOWS],
                                     int64_t model_window)
{
    bool host = device_kind_is_host(plan->device);
    int64_t bytes = shared_space_groups_bytes(plan->ranks, plan->tensor);
    for (int i = 0; i < BUCKET_WINDOWS && host && plan->data > 1; i++) {
        bytes +=
            bucket_windows[i] >= 0 ? shared_space_window_bytes(plan->ranks, bucket_windows[i]) : 0;
    }
    return bytes +
           (host && plan->tensor > 1 ? shared_space_window_bytes(plan->ranks, model_window) : 0);
}

/* The model of a plan. */
struct planned_model {
    const struct model_config *config;
    const struct model_parameter *parameters; /* [count] */
    int count;
    int64_t elements;
    enum dtype dtype;
    int64_t rows; /* of a micro-batch */
    struct model_parallelism sharing;
    struct sharded_optimizer_bytes optimizer;
};

/* Computes the size of the copies of the training state for an asynchronous save and a rollback. */
static status plan_copies(const struct recipe *r, const struct planned_model *m, struct plan *plan)
{
    struct plan_buffers *buffers = &plan->buffers;
    int64_t fp8_bytes = (int64_t)model_fp8_bytes(m->config);
    if (r->checkpoint.async || !device_kind_is_host(plan->device)) {
        /* files are written from host memory */
        TRY(compute_snapshot_bytes(m->parameters, m->count, m->elements, derive_moment_dtype(r),
                                   plan));
        buffers->snapshot += fp8_bytes;
    }
    if (r->train.on_spike == ON_SPIKE_ROLLBACK) {
        bool is_bf16 = m->dtype == DTYPE_BF16, released = plan->zero_stage > 0 && is_bf16;
        buffers->rollback = rollback_compute_bytes(m->parameters, m->count, is_bf16, released,
                                                   m->optimizer.owned_elems, m->optimizer.moments) +
                            fp8_bytes;
    }
    buffers->writer = compute_writer_bytes(m->parameters, m->count);
    return STATUS_OK;
}

/* Computes the memory that ranks share: the data of the other ranks, and all of /dev/shm. */
static void plan_shared_memory(const struct planned_model *m, struct plan *plan)
{
    int64_t gradients = m->optimizer.shared_gradients / plan->data * (plan->data - 1);
    bool host = device_kind_is_host(plan->device);
    plan->buffers.communication =
        host ? gradients + compute_shared_window(m->config, m->sharing, m->dtype, m->rows) : 0;
    plan->shared_memory_bytes = compute_shared_memory(
        plan, m->optimizer.windows,
        (int64_t)model_window_bytes(m->config, m->sharing, m->dtype, m->rows));
}

static status plan_buffers(const struct recipe *r, const struct planned_model *m, struct plan *plan)
{
    struct plan_buffers *buffers = &plan->buffers;
    struct kernels_limits limits =
        derive_kernel_limits(m->config, plan->tensor, m->rows, derive_longest_sequence(r), true);
    int64_t batches = 2 * (int64_t)batch_upload_bytes(plan->device, m->rows);
    bool host = device_kind_is_host(plan->device);
    int64_t objective = 0;
    TRY(compute_objective_bytes(r, m->config->width, m->dtype, m->rows, &objective));
    buffers->kernels =
        (int64_t)kernels_workspace_bytes(plan->device, m->dtype, plan->threads, &limits) +
        objective + compute_task_bytes(r, m->config, plan->device, m->dtype) + batches +
        (int64_t)model_fp8_bytes(m->config);
    buffers->pinned = host ? 0 : batches + 4 * WORKSPACE_ROW_ARRAYS * m->rows;
    buffers->loaders = compute_all_loader_bytes(r, plan->data);
    buffers->samples = generated_outputs_bytes(r, m->config, m->dtype);
    buffers->program = get_program_bytes(plan->ranks);
    TRY(plan_copies(r, m, plan));
    plan_shared_memory(m, plan);
    plan->bytes[PLAN_BUFFERS] = buffers->kernels + buffers->loaders + buffers->pinned +
                                buffers->snapshot + buffers->rollback + buffers->samples +
                                buffers->writer + buffers->communication + buffers->program;
    return STATUS_OK;
}

static status plan_memory(const struct recipe *r, const struct model_config *config,
                          const struct model_parameter *parameters, int count, int64_t elements,
                          struct plan *plan)
{
    struct planned_model m = {
        .config = config,
        .parameters = parameters,
        .count = count,
        .elements = elements,
        .dtype = r->train.precision != PRECISION_FP32 ? DTYPE_BF16 : DTYPE_F32,
        .rows = derive_rows(r),
        .sharing = {plan->tensor, r->parallel.sequence && plan->tensor > 1},
    };
    const struct plan_buffers *buffers = &plan->buffers;
    size_t activation_bytes = 0;
    TRY(plan_optimizer(r, config, parameters, count, elements, plan, &m.optimizer));
    TRY(model_activation_bytes(config, m.sharing, m.dtype, m.rows, true, &activation_bytes));
    plan->bytes[PLAN_WEIGHTS] = m.optimizer.weights;
    plan->bytes[PLAN_GRADIENTS] = m.optimizer.shared_gradients + m.optimizer.own_gradients;
    plan->bytes[PLAN_OPTIMIZER] = m.optimizer.moments;
    plan->bytes[PLAN_ACTIVATIONS] = (int64_t)activation_bytes;
    plan->sent_bytes = m.optimizer.sent;
    TRY(plan_buffers(r, &m, plan));
    for (int i = 0; i < PLAN_KINDS; i++) {
        plan->total_bytes += plan->bytes[i];
    }
    plan->device_bytes =
        device_kind_is_host(plan->device)
            ? plan->total_bytes - buffers->communication
            : plan->total_bytes - plan->bytes[PLAN_BUFFERS] + buffers->kernels + buffers->samples;
    return STATUS_OK;
}

/* ---- plan_make ---- */

static status find_vocabulary(const struct recipe *r, int64_t *out)
{
    struct tokenizer *tokenizer = NULL;
    *out = r->model.vocab_size;
    if (*out > 0) {
        return STATUS_OK;
    }
    status result = session_tokenizer(r, r->data.tokenizer, &tokenizer, out);
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    return result;
}

static status plan_steps(const struct recipe *r, struct plan *plan)
{
    TRY(data_count_steps(r, plan->epoch_samples, &plan->total_steps));
    plan->warmup_steps = schedule_warmup_steps(r, plan->total_steps);
    return STATUS_OK;
}

static void count_flops(const struct recipe *r, const struct model_config *config,
                        const struct sample_lengths *lengths,
                        const struct model_parameter *parameters, int count, struct plan *plan)
{
    int64_t first_trained = model_first_trained_layer(parameters, count);
    double full = flops_count_attention(config, lengths, first_trained, false);
    double visible = flops_count_attention(config, lengths, first_trained, true);
    struct flops_gemms gemms = flops_count_gemms(r, config, lengths, parameters, count);
    plan->gemm_flops = gemms.all;
    plan->fp8_flops = gemms.fp8;
    plan->token_flops = plan->gemm_flops + visible;
    plan->token_flops_full_attention = plan->gemm_flops + full;
    plan->step_flops = plan->token_flops * (double)plan->tokens;
}

static status plan_model(const struct recipe *r, const struct sample_lengths *lengths,
                         struct plan *plan)
{
    struct model_config config = derive_model_config(r, plan->vocabulary);
    struct model_parameter *parameters = NULL;
    int count = 0;
    int64_t elements = 0;
    TRY(derive_check_fp8(r, &config));
    TRY(model_layout(&config, plan->tensor, 0, &parameters, &count, &elements));
    count_parameters(parameters, count, plan);
    count_flops(r, &config, lengths, parameters, count, plan);
    status result = plan_memory(r, &config, parameters, count, elements, plan);
    plan->tensor_bytes = communication_tensor_bytes(r, &config, lengths, parameters, count, plan);
    plan->sent_bytes += plan->tensor_bytes;
    free(parameters);
    return result;
}

status plan_make(const struct recipe *recipe, int ranks, struct plan *out)
{
    *out = (struct plan){.ranks = ranks, .tensor = (int)recipe->parallel.tensor};
    out->train_tokens = out->epoch_samples = -1;
    out->epoch_steps = -1;
    struct preference_settings preference;
    struct early_stopping_rule rule;
    struct sample_lengths lengths;
    TRY(derive_preference(recipe, &preference));
    TRY(evaluation_report_stopping_rule(recipe, objective_spec_objective(recipe), NULL, &rule));
    TRY(mesh_check(ranks, out->tensor, recipe_tensor_divisor(recipe)));
    out->data = ranks / out->tensor;
    out->zero_stage = sharded_optimizer_stage((int)recipe->parallel.zero_stage, out->data);
    out->threads = get_threads(recipe, ranks);
    out->device = hardware_device_kind(recipe);
    TRY(find_vocabulary(recipe, &out->vocabulary));
    out->micro_steps = derive_micro_batches(recipe, out->data);
    TRY(derive_sample_lengths(recipe, &lengths));
    out->tokens = lengths.source > 0 ? (int64_t)llround((double)recipe->batch.global_size *
                                                        (lengths.source + lengths.target))
                                     : recipe->batch.global_size * derive_sample_rows(recipe);
    TRY(plan_model(recipe, &lengths, out));
    return plan_steps(recipe, out);
}

/* ---- plan_check ---- */

static status open_device(const struct recipe *r, struct plan *plan)
{
    struct device *device = NULL;
    struct kernels *kernels = NULL;
    static const struct kernels_limits min_limits = {.rows = 1,
                                                     .width = 1,
                                                     .inner = 1,
                                                     .heads = 1,
                                                     .head_width = 1,
                                                     .sequence = 1,
                                                     .vocabulary = 1};
    status result = hardware_open_device(r, 0, 1, &min_limits, &device, &kernels);
    size_t free_bytes = 0, all_bytes = 0;
    if (result == STATUS_OK && !device_is_host(device)) {
        result = device_memory(device, &free_bytes, &all_bytes);
    }
    plan->device_memory = (int64_t)all_bytes;
    KEEP_FIRST(result, kernels_destroy(&kernels));
    KEEP_FIRST(result, device_destroy(&device));
    return result;
}

/* Returns the first input of a decoder. Without the tokenizer it can be unknown; token 0, which
 * every vocabulary has, is then checked. */
static int32_t find_decoder_start(const struct recipe *r, const struct tokenizer *t)
{
    int32_t start = derive_first_input(r, t);
    return t == NULL && start == -1 ? 0 : start;
}

static status check_data(const struct recipe *r, const struct tokenizer *t, struct plan *plan)
{
    struct data_setup data = {
        .recipe = r,
        .ranks = plan->data,
        .vocabulary = plan->vocabulary,
        .tokenizer_sha256 = t != NULL ? tokenizer_sha256(t) : NULL,
        .decoder_start = find_decoder_start(r, t),
    };
    struct masking masking;
    struct denoise denoise;
    struct data_summary summary;
    TRY(derive_masking(r, t, plan->vocabulary, &masking));
    data.masking = &masking;
    data.denoise = t != NULL ? &denoise : NULL; /* it needs tokens of the tokenizer */
    status result = derive_denoise(r, t, plan->vocabulary, &denoise);
    result = result == STATUS_OK ? data_validate(&data, &summary) : result;
    free((void *)masking.token_kinds);
    free((void *)denoise.sentence_ends);
    TRY(result);
    plan->train_tokens = summary.train_tokens;
    plan->epoch_samples = summary.train_samples;
    plan->epoch_steps = (double)summary.train_samples / (double)r->batch.global_size;
    return plan_steps(r, plan);
}

static status check_initial_model(const struct recipe *r, const struct plan *plan,
                                  const struct tokenizer *tokenizer)
{
    struct comm *self = NULL;
    if (r->model.init_from[0] == '\0') {
        return STATUS_OK;
    }
    TRY(comm_self_create(&self));
    status result = initial_model_check(r, self, plan->vocabulary, tokenizer);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

static status check_initial_moments(const struct recipe *r, const struct plan *plan)
{
    struct comm *self = NULL;
    if (r->optimizer.init_from[0] == '\0') {
        return STATUS_OK;
    }
    TRY(comm_self_create(&self));
    status result = initial_model_check_moments(r, self, plan->vocabulary);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* Stores the pending error in plan->unchecked. */
static void note_unchecked(struct plan *plan, const char *consequence)
{
    struct status_note note;
    status_take(&note);
    snprintf(plan->unchecked[plan->unchecked_count++], STATUS_TEXT_BYTES, "%s%s", note.text,
             consequence);
}

/* Checks device and precision. If this machine lacks the GPU, only plan->unchecked contains the
 * error, because the plan may be for another machine. */
static status check_device(const struct recipe *r, struct plan *plan)
{
    TRY(hardware_check_settings(r, plan->device));
    status result = open_device(r, plan);
    if (result == STATUS_UNAVAILABLE && device_count(plan->device) == 0) {
        note_unchecked(plan, "; train would end with code 69 on this machine");
        return STATUS_OK;
    }
    return result;
}

/* Stores the error of a missing input in plan->unchecked, if the recipe sets model.vocab_size.
 *
 * Such a recipe can be planned before its data exist, or on a machine without them. */
static status note_missing(const struct recipe *r, struct plan *plan, status result, bool missing)
{
    bool inherited = r->model.init_from[0] != '\0' && !recipe_is_given(r, "model.vocab_size");
    if (result == STATUS_OK || !missing || r->model.vocab_size == 0 || inherited) {
        return result;
    }
    note_unchecked(plan, "");
    return STATUS_OK;
}

static status check_inputs(const struct recipe *r, const struct tokenizer *tokenizer,
                           struct plan *plan)
{
    struct token_list prompt = {0};
    status result = STATUS_OK;
    if (tokenizer != NULL && r->generate.prompt[0] != '\0') {
        result = generated_outputs_encode_prompt(r, tokenizer, &prompt);
        token_list_free(&prompt);
        TRY(result);
    }
    TRY(generated_outputs_check_targets(r, derive_decoder_vocabulary(r, plan->vocabulary),
                                        tokenizer));
    result = generated_outputs_check_tasks(r);
    TRY(note_missing(r, plan, result, result == STATUS_NO_INPUT));
    result = check_data(r, tokenizer, plan);
    TRY(note_missing(r, plan, result, result == STATUS_NO_INPUT || r->data.train_count == 0));
    result = check_initial_model(r, plan, tokenizer);
    TRY(note_missing(r, plan, result, result == STATUS_NO_INPUT));
    result = check_initial_moments(r, plan);
    return note_missing(r, plan, result, result == STATUS_NO_INPUT);
}

/* Warns if run_dir contains a checkpoint of another recipe, which train would not resume. With
 * adapters, only train has all settings. */
static status warn_run_folder(const struct recipe *r)
{
    struct comm *self = NULL;
    struct checkpoint_info found = {0};
    struct recipe saved;
    char text[STATUS_TEXT_BYTES / 2];
    TRY(comm_self_create(&self));
    if (r->adapter.type == ADAPTER_NONE &&
        checkpoint_find_recipe(self, r->run_dir, false, &found) == STATUS_OK &&
        saved_recipe_parse(&found, NULL, 0, &saved) == STATUS_OK &&
        recipe_differences(&saved, r, text, sizeof text) > 0) {
        log_warning("RUN-DIR",
                    "train would refuse to resume %s, which another recipe wrote: %s; set another "
                    "run_dir, or use train --resume never",
                    found.folder, text);
    }
    status_clear();
    free(found.recipe_text);
    return comm_destroy(&self);
}

status plan_check(const struct recipe *r, bool elsewhere, struct plan *plan)
{
    struct tokenizer *tokenizer = NULL;
    int64_t vocabulary = 0;
    TRY(elsewhere ? hardware_check_settings(r, plan->device) : check_device(r, plan));
    TRY(elsewhere ? STATUS_OK : warn_run_folder(r));
    status result = session_tokenizer(r, r->data.tokenizer, &tokenizer, &vocabulary);
    result = note_missing(r, plan, result, result == STATUS_NO_INPUT);
    if (result == STATUS_OK) {
        result = check_inputs(r, tokenizer, plan);
    }
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    return result;
}
