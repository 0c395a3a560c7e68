#include "trainer/planner/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "comm/mesh.h"
#include "comm/partition.h"
#include "datasets/loader/loader.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/evaluation/report.h"
#include "trainer/train/batch_upload.h"
#include "trainer/setup/data.h"
#include "trainer/objective/workspace.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/setup/session.h"

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

/* What a rank occupies besides its tensors: the libraries' code and data, oneDNN's generated code, and
 * MPI's buffers where there are several ranks.
 *
 * Measured as the peak resident memory of 25 runs less the rest of their plans, on Debian 12 with 2 cores: 28 to 49
 * MB for 1 rank, 46 to 61 for 2 (0.8 to 45 million parameters; least where all is small and in bf16). */
static int64_t program_bytes(int ranks)
{
    return (ranks > 1 ? INT64_C(52) : INT64_C(38)) << 20;
}

/* A checkpoint is written in chunks of at most so much; the writer and HDF5 hold four copies of one. */
static const int64_t chunk_bytes = INT64_C(4) << 20;

/* ---- parameters ---- */

static enum plan_part part_of(enum model_role role)
{
    switch (role) {
    case MODEL_TOKEN_TABLE:
        return PLAN_TOKEN_EMBEDDING;
    case MODEL_POSITION_TABLE:
    case MODEL_SEGMENT_TABLE:
        return PLAN_POSITION_EMBEDDING;
    case MODEL_NORM1:
    case MODEL_NORM2:
    case MODEL_TRANSFORM_NORM:
        return PLAN_NORMS;
    case MODEL_QKV:
    case MODEL_PROJECTION:
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

/* Products of a matrix with a row, for each token: mlm's head takes the masked rows alone, its labels one row of
 * an example. */
static double rows_of(const struct recipe *r, enum model_role role)
{
    double tokens = (double)r->data.sequence_length;
    bool masks = strcmp(r->objective, "mlm") == 0;
    double share = fmin(r->mlm.mask_probability, (double)r->mlm.max_predictions / tokens);
    switch (role) {
    case MODEL_POSITION_TABLE:
    case MODEL_SEGMENT_TABLE:
        return 0;
    case MODEL_TOKEN_TABLE:
        return !r->model.tie_word_embeddings || job_data_task(r) != MODEL_WORDS ? 0
               : masks                                                          ? share
                                                                                : 1;
    case MODEL_TRANSFORM:
    case MODEL_DECODER:
        return masks ? share : 1;
    case MODEL_POOLER:
    case MODEL_LABELS:
        return 1 / tokens; /* of a text */
    default:
        return 1;
    }
}

/* count_parameters - sizes by part, and the FLOPs of a token's products: one forward, one for the input's gradient
 * where something before it is trained, one for the gradient of what is trained itself. */
static double count_parameters(const struct recipe *r, const struct model_parameter *parameters,
                               int count, struct plan *plan)
{
    double flops = 0;
    int64_t lowest = model_lowest_trained(parameters, count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        int64_t size = p->whole_rows * p->whole_columns;
        plan->part[part_of(p->role)] += size;
        plan->parameters += size;
        plan->trained_parameters += p->trained ? size : 0;
        plan->rank_parameters += model_parameter_elements(p);
        bool inner =
            p->layer >= lowest || p->role == MODEL_TOKEN_TABLE; /* tied: the output matrix */
        int passes = 1 + inner + p->trained;
        flops += p->dimensions == 2 ? 2 * passes * rows_of(r, p->role) * (double)size : 0;
    }
    return flops;
}

/* ---- memory ---- */

/* A checkpoint holds what is trained alone then. */
static bool has_adapters(const struct model_parameter *parameters, int count)
{
    bool found = false;
    for (int i = 0; i < count; i++) {
        found = found || model_is_adapter(&parameters[i]);
    }
    return found;
}

static int64_t writer_bytes(const struct model_parameter *parameters, int count)
{
    int64_t largest = 0;
    bool beside = has_adapters(parameters, count);
    for (int i = 0; i < count; i++) {
        bool written = !beside || parameters[i].trained;
        int64_t bytes = written ? 4 * model_parameter_elements(&parameters[i]) : 0;
        largest = bytes > largest ? bytes : largest;
    }
    return 4 * (largest < chunk_bytes ? largest : chunk_bytes);
}

/* Weights and both moments, as the checkpoint shares them out among the ranks that hold the same. */
static status snapshot_bytes(const struct model_parameter *parameters, int count, int64_t elements,
                             struct plan *plan)
{
    struct optimizer_range trained = {.count = model_trained_elements(parameters, count)};
    struct family_ranges moments = {.ranges = &trained, .count = 1};
    struct family_layout layout = {parameters, count, true,
                                   has_adapters(parameters, count) ? FAMILY_TRAINED : FAMILY_WHOLE};
    struct optimizer_range all = {.count = elements};
    struct family_ranges ranges = {.ranges = &all, .count = 1};
    struct family families[2] = {0};
    status result = family_weights(&layout, &ranges, NULL, &families[0]);
    if (result == STATUS_OK) {
        result = family_moments(&layout, &moments, NULL, NULL, &families[1]);
    }
    if (result == STATUS_OK) {
        struct checkpoint_family views[2] = {families[0].family, families[1].family};
        bool sharded = plan->zero_stage > 0;
        plan->buffers.snapshot = checkpoint_memory_bytes(views, sharded ? 1 : 2, plan->data, 0) +
                                 (sharded ? plan->bytes[PLAN_OPTIMIZER] : 0);
    }
    family_destroy(&families[0]);
    family_destroy(&families[1]);
    return result;
}

/* Rows of a sample at most: a preference pair has two sequences. */
static int64_t sample_rows(const struct recipe *r)
{
    return session_rows(r) / r->batch.micro_size;
}

/* Outputs of a task's head and their slopes; of embed the vectors of the global batch, too. */
static int64_t task_bytes(const struct recipe *r, const struct model_config *c, enum dtype dtype)
{
    int64_t bytes = c->output_rows * c->labels * (8 + (int64_t)dtype_bytes(dtype));
    int64_t vectors = c->task == MODEL_VECTORS ? r->batch.global_size : 0;
    return c->task == MODEL_WORDS ? 0 : bytes + vectors * (4 * c->width + 2) * 8;
}

/* What the step keeps for the objective: some values a row, and for pairs the answers' rows and their gradient. */
static int64_t objective_bytes(const struct recipe *r, int64_t width, enum dtype dtype,
                               int64_t rows)
{
    int64_t bytes = 4 * WORKSPACE_ROW_ARRAYS * rows;
    if (job_data_has_reference(r)) {
        bytes += (int64_t)objective_dpo.scratch_bytes(rows) +
                 2 * rows * width * (int64_t)dtype_bytes(dtype);
    }
    return bytes;
}

static int64_t loader_bytes(const struct recipe *r, const struct loader_source *sources, int count,
                            int ranks)
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
        .kind = job_data_kind(r),
        .texts = r->model.num_labels,
        .masking = {.most = r->mlm.max_predictions},
    };
    return loader_memory_bytes(&options);
}

/* While it evaluates, a rank has two loaders. */
static int64_t all_loader_bytes(const struct recipe *r, int ranks)
{
    struct loader_source sources[RECIPE_SOURCES_MAX];
    int count = r->data.train_count > 0 ? r->data.train_count : 1;
    for (int i = 0; i < count; i++) {
        sources[i] = (struct loader_source){r->data.train[i].path, 1};
    }
    int64_t bytes = loader_bytes(r, sources, count, ranks);
    if (r->data.validation[0] != '\0') {
        bytes += loader_bytes(r, &(struct loader_source){r->data.validation, 1}, 1, ranks);
    }
    return bytes;
}

static int threads_of(const struct recipe *r, int ranks)
{
    if (r->parallel.threads > 0) {
        return (int)r->parallel.threads;
    }
    int threads = cores_allowed() / ranks;
    return threads > 0 ? threads : 1;
}

static status plan_update(const struct recipe *r, const struct model_config *config,
                          const struct model_parameter *parameters, int count, int64_t elements,
                          const struct plan *plan, struct update_bytes *out)
{
    struct update_plan update = {
        .parameters = parameters,
        .parameter_count = count,
        .layers = config->layers,
        .elements = elements,
        .stage = plan->zero_stage,
        .bf16 = r->train.precision == PRECISION_BF16,
        .bucket_elems = session_bucket_elements(r),
        .micro_batches = plan->micro_steps,
        .reproducible = r->parallel.reproducible,
        .narrow = r->parallel.reduce_dtype == PRECISION_BF16,
        .ranks = plan->data,
    };
    return update_bytes_of(&update, out);
}

/* What a rank reads and writes of the other ranks' sums and gathered rows. */
static int64_t shared_window(const struct model_config *config, struct model_sharing sharing,
                             enum dtype dtype, int64_t rows)
{
    int64_t each = 4 + (sharing.sequence ? (int64_t)dtype_bytes(dtype) : 0);
    return rows * config->width * each / sharing.ranks * (sharing.ranks - 1);
}

static status plan_memory(const struct recipe *r, const struct model_config *config,
                          const struct model_parameter *parameters, int count, int64_t elements,
                          struct plan *plan)
{
    enum dtype dtype = r->train.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    int64_t rows = session_rows(r);
    struct kernels_limits limits =
        session_limits(config, plan->tensor, rows, session_sequence(r), true);
    struct model_sharing sharing = {plan->tensor, r->parallel.sequence && plan->tensor > 1};
    struct plan_buffers *buffers = &plan->buffers;
    struct update_bytes update;
    TRY(plan_update(r, config, parameters, count, elements, plan, &update));
    plan->bytes[PLAN_WEIGHTS] = update.weights;
    plan->bytes[PLAN_GRADIENTS] = update.shared_gradients + update.own_gradients;
    plan->bytes[PLAN_OPTIMIZER] = update.moments;
    plan->sent_bytes = update.sent;
    plan->bytes[PLAN_ACTIVATIONS] =
        (int64_t)model_activation_bytes(config, sharing, dtype, rows, true);
    int64_t batches = 2 * (int64_t)feed_bytes(plan->device, rows);
    bool host = plan->device == DEVICE_CPU;
    buffers->kernels =
        (int64_t)kernels_workspace_bytes(plan->device, dtype, plan->threads, &limits) +
        objective_bytes(r, config->width, dtype, rows) + task_bytes(r, config, dtype) + batches;
    buffers->pinned = host ? 0 : batches + 4 * WORKSPACE_ROW_ARRAYS * rows;
    buffers->loaders = all_loader_bytes(r, plan->data);
    if (r->checkpoint.async) {
        TRY(snapshot_bytes(parameters, count, elements, plan));
    }
    buffers->writer = writer_bytes(parameters, count);
    buffers->communication = !host ? 0
                                   : update.shared_gradients / plan->data * (plan->data - 1) +
                                         shared_window(config, sharing, dtype, rows);
    buffers->program = program_bytes(plan->ranks);
    plan->bytes[PLAN_BUFFERS] = buffers->kernels + buffers->loaders + buffers->pinned +
                                buffers->snapshot + buffers->writer + buffers->communication +
                                buffers->program;
    for (int i = 0; i < PLAN_KINDS; i++) {
        plan->total_bytes += plan->bytes[i];
    }
    plan->device_bytes =
        plan->total_bytes - plan->bytes[PLAN_BUFFERS] + buffers->kernels + buffers->communication;
    return STATUS_OK;
}

/* ---- the whole ---- */

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
    TRY(job_data_steps(r, plan->epoch_samples, &plan->total_steps));
    plan->warmup_steps = schedule_warmup(r, plan->total_steps);
    return STATUS_OK;
}

/* What the ranks that share a model send each other in a step. [N, C] is added up in f32 twice a layer forward
 * and as often backward, once behind the embedding and once for the hidden states' gradient: scattered and,
 * without sequence parallelism, gathered in the same type. With it rows are gathered in the products' type
 * for each of the two matrices that read the stream, for both projections' gradients and again for the
 * readers', for the head and for the embedding's; and the norms' gradients are added up for every
 * micro-batch. The loss takes 24 bytes a row. */
static double tensor_bytes(const struct recipe *r, const struct model_config *config,
                           const struct plan *plan)
{
    struct range share = partition_share(r->batch.global_size, 1, plan->data, 0);
    double rows = (double)(share.count * sample_rows(r));
    double layers = (double)config->layers, width = (double)config->width;
    double others = (plan->tensor - 1) / (double)plan->tensor;
    double gathered = r->train.precision == PRECISION_BF16 ? 2 : 4;
    double again = strcmp(r->train.activation_checkpointing, "full") == 0 ? layers - 1 : 0;
    double scattered = 4 * rows * width * (4 * layers + again + 2);
    double spread =
        r->parallel.sequence ? gathered * rows * width * (6 * layers + 2 * again + 2) : scattered;
    double norms = 8 * 2 * width * (2 * layers + 1) * (double)plan->micro_steps;
    double sum = scattered + spread + (r->parallel.sequence ? norms : 0);
    return plan->tensor > 1 ? sum * others + 24 * rows : 0;
}

static status plan_model(const struct recipe *r, struct plan *plan)
{
    struct model_config config = session_model_config(r, plan->vocabulary);
    struct model_parameter *parameters = NULL;
    int count = 0;
    int64_t elements = 0;
    TRY(model_layout(&config, plan->tensor, 0, &parameters, &count, &elements));
    plan->product_flops = count_parameters(r, parameters, count, plan);
    double attention =
        (double)config.layers * (double)r->data.sequence_length * (double)config.width;
    bool causal = job_data_last_rows(r);
    int64_t lowest = model_lowest_trained(parameters, count), layers = config.layers;
    double back =
        (double)(layers - (lowest < 0 ? 0 : lowest)) / (double)layers; /* share of blocks */
    plan->token_flops = plan->product_flops + (causal ? 2 : 4) * (1 + 2 * back) * attention;
    plan->step_flops = plan->token_flops * (double)plan->tokens;
    status result = plan_memory(r, &config, parameters, count, elements, plan);
    plan->tensor_bytes = tensor_bytes(r, &config, plan);
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
    const struct objective *objective;
    struct best_rule rule;
    TRY(session_preference(recipe, &preference));
    TRY(objective_find(recipe->objective, &objective));
    TRY(evaluation_rule(recipe, objective, &rule));
    TRY(mesh_check(ranks, out->tensor));
    out->data = ranks / out->tensor;
    out->zero_stage = update_stage((int)recipe->parallel.zero_stage, out->data);
    out->threads = threads_of(recipe, ranks);
    out->device = session_device_kind(recipe);
    TRY(find_vocabulary(recipe, &out->vocabulary));
    out->micro_steps = session_micro_batches(recipe, out->data);
    out->tokens = recipe->batch.global_size * sample_rows(recipe);
    TRY(plan_model(recipe, out));
    return plan_steps(recipe, out);
}

/* ---- would train begin? ---- */

static status check_device(const struct recipe *r, struct plan *plan)
{
    struct device *device = NULL;
    struct kernels *kernels = NULL;
    static const struct kernels_limits least = {.rows = 1,
                                                .width = 1,
                                                .inner = 1,
                                                .heads = 1,
                                                .head_width = 1,
                                                .sequence = 1,
                                                .vocabulary = 1};
    status result = session_device(r, 0, 1, &least, &device, &kernels);
    size_t free_bytes = 0, all_bytes = 0;
    if (result == STATUS_OK && !device_is_host(device)) {
        result = device_memory(device, &free_bytes, &all_bytes);
    }
    plan->device_memory = (int64_t)all_bytes;
    KEEP_FIRST(result, kernels_destroy(&kernels));
    KEEP_FIRST(result, device_destroy(&device));
    return result;
}

static status check_data(const struct recipe *r, const struct tokenizer *t, struct plan *plan)
{
    struct job_data data = {
        .recipe = r,
        .ranks = plan->data,
        .vocabulary = plan->vocabulary,
        .tokenizer_sha256 = t != NULL ? tokenizer_sha256(t) : NULL,
    };
    struct masking masking;
    struct job_data_survey survey;
    TRY(session_masking(r, t, plan->vocabulary, &masking));
    data.masking = &masking;
    status result = job_data_survey(&data, &survey);
    free((void *)masking.kinds);
    TRY(result);
    plan->train_tokens = survey.train_tokens;
    plan->epoch_samples = survey.train_samples;
    plan->epoch_steps = (double)survey.train_samples / (double)r->batch.global_size;
    return plan_steps(r, plan);
}

static status check_init(const struct recipe *r, const char *key, const char *from, bool final)
{
    struct comm *self = NULL;
    struct checkpoint_found found = {0};
    if (from[0] == '\0') {
        return STATUS_OK;
    }
    TRY(comm_self_create(&self));
    status result = checkpoint_choose(self, from, final, &found);
    result = recipe_blame(r, key, result, "");
    free(found.recipe_text);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* With a vocabulary of its own a recipe can be planned before there is any data, or where it is not:
 * what is missing then is noted, and is no error. */
static status excuse(const struct recipe *r, struct plan *plan, status result, bool missing)
{
    if (result == STATUS_OK || !missing || r->model.vocab_size == 0) {
        return result;
    }
    struct status_note note;
    status_take(&note);
    snprintf(plan->unchecked[plan->unchecked_count++], STATUS_TEXT_BYTES, "%s", note.text);
    return STATUS_OK;
}

status plan_check(const struct recipe *r, bool elsewhere, struct plan *plan)
{
    struct tokenizer *tokenizer = NULL;
    int64_t vocabulary = 0;
    TRY(elsewhere ? STATUS_OK : check_device(r, plan));
    status result = session_tokenizer(r, r->data.tokenizer, &tokenizer, &vocabulary);
    result = excuse(r, plan, result, result == STATUS_NO_INPUT);
    if (result == STATUS_OK) {
        result = check_data(r, tokenizer, plan);
        result = excuse(r, plan, result, result == STATUS_NO_INPUT || r->data.train_count == 0);
    }
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    TRY(result);
    result = check_init(r, "model.init_from", r->model.init_from, true);
    TRY(excuse(r, plan, result, result == STATUS_NO_INPUT));
    result = check_init(r, "optimizer.init_from", r->optimizer.init_from, false);
    return excuse(r, plan, result, result == STATUS_NO_INPUT);
}
