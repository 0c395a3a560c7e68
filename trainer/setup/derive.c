#define _GNU_SOURCE /* sched_getaffinity */
#include "trainer/setup/session.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/comm_device.h"
#include "comm/partition.h"
#include "trainer/weights/adapter_base.h"
#include "trainer/setup/data.h"

static bool masks(const struct recipe *recipe)
{
    return strcmp(recipe->objective, "mlm") == 0;
}

static bool freezes(const struct recipe *recipe, const char *what)
{
    char word[RECIPE_NAME_BYTES];
    for (const char *at = recipe->train.freeze; recipe_list_next(&at, word, sizeof word);) {
        if (strcmp(word, what) == 0) {
            return true;
        }
    }
    return false;
}

/* Labels, or choices; two where nothing is known. */
static int64_t choices_of(const struct recipe *recipe)
{
    return recipe->model.num_labels > 0 ? recipe->model.num_labels : 2;
}

/* Rows of a micro-batch at most that a head reads. */
static int64_t output_rows(const struct recipe *recipe)
{
    switch (job_data_task(recipe)) {
    case MODEL_WORDS:
        return masks(recipe) ? recipe->batch.micro_size * recipe->mlm.max_predictions : 0;
    case MODEL_TEXTS: /* of preference pairs both answers */
        return recipe->batch.micro_size *
               (job_data_kind(recipe) == EXAMPLE_PREFERENCE_PAIRS ? ANSWERS : 1);
    case MODEL_CHOICES:
        return recipe->batch.micro_size * choices_of(recipe);
    default:
        return session_rows(recipe);
    }
}

/* Outputs of a task's head. */
static int64_t labels_of(const struct recipe *recipe)
{
    switch (job_data_kind(recipe)) {
    case EXAMPLE_REGRESS:
    case EXAMPLE_PREFERENCE_PAIRS:
    case EXAMPLE_CHOOSE:
        return 1;
    case EXAMPLE_ANSWER:
        return 2;
    case EXAMPLE_EMBED:
        return recipe->model.hidden_size; /* the rows themselves */
    default:
        return choices_of(recipe);
    }
}

static enum model_recompute recompute_of(const struct recipe *recipe)
{
    const char *name = recipe->train.activation_checkpointing;
    return strcmp(name, "full") == 0        ? MODEL_RECOMPUTE_FULL
           : strcmp(name, "selective") == 0 ? MODEL_RECOMPUTE_SELECTIVE
                                            : MODEL_KEEP_ALL;
}

static struct rotary_scaling rotary_of(const struct recipe *recipe)
{
    const char *name = recipe->model.rope_type;
    return (struct rotary_scaling){
        .kind = strcmp(name, "llama3") == 0   ? ROTARY_LLAMA3
                : strcmp(name, "linear") == 0 ? ROTARY_LINEAR
                                              : ROTARY_PLAIN,
        .factor = recipe->model.rope_factor,
        .low = recipe->model.rope_low_freq_factor,
        .high = recipe->model.rope_high_freq_factor,
        .positions = (double)recipe->model.rope_original_positions,
    };
}

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
        .segments = recipe->model.type_vocab_size,
        .next_sentence = recipe->model.next_sentence && job_data_task(recipe) == MODEL_WORDS &&
                         strcmp(recipe->model.architecture, "bert") == 0,
        .output_rows = output_rows(recipe),
        .examples = masks(recipe) ? recipe->batch.micro_size : 0,
        .task = job_data_task(recipe),
        .labels = labels_of(recipe),
        .kv_heads = recipe->model.num_kv_heads,
        .adapter =
            {
                .rank = recipe->adapter.type[0] != '\0' ? recipe->adapter.rank : 0,
                .alpha = (float)recipe->adapter.alpha,
                .dropout = (float)recipe->adapter.dropout,
                .by_root = recipe->adapter.rslora,
                .targets = recipe->adapter.targets,
            },
        .rope_theta = recipe->model.rope_theta,
        .rope_scaling = rotary_of(recipe),
        .freezing = {freezes(recipe, "embeddings"), freezes(recipe, "backbone"),
                     recipe->train.freeze_layers},
        .recompute = recompute_of(recipe),
    };
}

status session_masking(const struct recipe *recipe, const struct tokenizer *tokenizer,
                       int64_t vocabulary, struct masking *out)
{
    *out = (struct masking){
        .probability = recipe->mlm.mask_probability,
        .most = recipe->mlm.max_predictions,
        .whole_words = recipe->mlm.whole_words,
        .mask_id = tokenizer != NULL ? tokenizer_specials_of(tokenizer).mask : -1,
    };
    if (!masks(recipe) || out->mask_id < 0) {
        return STATUS_OK;
    }
    out->vocab_size = tokenizer_vocab_size(tokenizer);
    uint8_t *kinds = malloc((size_t)vocabulary);
    REQUIRE(kinds != NULL, STATUS_INTERNAL, "out of memory for the kinds of %lld tokens",
            (long long)vocabulary);
    memset(kinds, MASKING_NEVER, (size_t)vocabulary);
    masking_kinds(tokenizer, kinds);
    out->kinds = kinds;
    return STATUS_OK;
}

struct kernels_limits session_limits(const struct model_config *config, int tensor, int64_t rows,
                                     int64_t sequence, bool training)
{
    return (struct kernels_limits){
        .rows = rows,
        .width = config->width,
        .inner = model_inner_outputs(config) / tensor,
        .heads = (int)config->heads / tensor,
        .head_width = config->width / config->heads,
        .sequence = sequence,
        .vocabulary = model_vocabulary_rows(config, tensor),
        .training = training,
        .parts = tensor,
    };
}

/* Where a rank may run, and how many cores the quota of its control group pays for (0: no quota). */
struct cores {
    char host[64];
    cpu_set_t set;
    int64_t quota;
};

/* CPU threads of this rank: the recipe's, else its share of the cores that it may use. Ranks of one host whose sets of
 * cores are the same (nothing bound them) divide the set. */
static status count_threads(const struct recipe *recipe, struct comm *world, int *out)
{
    int ranks = comm_size(world), sharing = 0, neighbours = 0;
    struct cores mine = {.quota = cores_quota("")}, *all = calloc((size_t)ranks, sizeof *all);
    REQUIRE(all != NULL, STATUS_INTERNAL, "out of memory for %d ranks", ranks);
    CPU_ZERO(&mine.set);
    (void)gethostname(mine.host, sizeof mine.host - 1);
    if (sched_getaffinity(0, sizeof mine.set, &mine.set) != 0) { /* more cores than the set holds */
        CPU_SET(0, &mine.set);
    }
    status result = comm_all_gather_bytes(world, all, &mine, sizeof mine);
    for (int i = 0; i < ranks; i++) {
        sharing += memcmp(&all[i], &mine, sizeof mine) == 0;
        neighbours += strcmp(all[i].host, mine.host) == 0;
    }
    free(all);
    int share = CPU_COUNT(&mine.set) / (sharing > 0 ? sharing : 1);
    int paid = (int)mine.quota / (neighbours > 0 ? neighbours : 1);
    share = mine.quota > 0 && paid < share ? paid : share;
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

/* A GPU where this process sees one, unless the recipe says otherwise; the ranks of a host take them in turn. */
static void choose_device(const struct recipe *recipe, int local_rank, enum device_kind *kind,
                          int *index)
{
    int gpus = recipe->train.device == RECIPE_DEVICE_CPU ? 0 : device_count(DEVICE_CUDA);
    bool cuda = recipe->train.device == RECIPE_DEVICE_CUDA || gpus > 0;
    *kind = cuda ? DEVICE_CUDA : DEVICE_CPU;
    *index = gpus > 0 ? local_rank % gpus : 0;
}

enum device_kind session_device_kind(const struct recipe *recipe)
{
    enum device_kind kind;
    int index;
    choose_device(recipe, 0, &kind, &index);
    return kind;
}

status session_device(const struct recipe *recipe, int local_rank, int threads,
                      const struct kernels_limits *limits, struct device **device,
                      struct kernels **kernels)
{
    enum device_kind kind;
    int index;
    enum dtype dtype = recipe->train.precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    choose_device(recipe, local_rank, &kind, &index);
    if (kind == DEVICE_CUDA && recipe->parallel.reproducible) { /* chosen by itself */
        return recipe_raise(
            recipe, STATUS_UNAVAILABLE, "parallel.reproducible",
            "sums in a fixed order are made on CPUs alone; set train.device to cpu");
    }
    TRY(recipe_blame(recipe, "train.device", device_create(kind, index, device), ""));
    status result = kernels_create(*device, dtype, threads, limits, kernels);
    if (result == STATUS_OK) {
        kernels_graphs(*kernels, recipe->train.cuda_graphs);
    }
    const char *key = kind == DEVICE_CPU ? "train.precision" : "train.device";
    return result == STATUS_UNAVAILABLE ? recipe_blame(recipe, key, result, "") : result;
}

/* Where both groups have several ranks, they are split from one communicator of all devices. */
static status connect_groups(struct mesh *mesh, const struct comm_device_options *options)
{
    struct comm *control = NULL, *all = NULL;
    TRY(comm_split(mesh->world, 0, comm_rank(mesh->world), &control));
    TRY(comm_device_create(control, options, &all));
    status result = mesh_regroup(mesh, all);
    KEEP_FIRST(result, comm_destroy(&all));
    return result;
}

/* The ranks that share the model or its data reach each other's GPUs. Collective. */
static status connect_devices(struct session *s, struct comm *world)
{
    struct comm **groups[] = {&s->mesh.tensor, &s->mesh.data};
    struct comm_device_options options = {.device = s->device,
                                          .stream = kernels_stream(s->kernels),
                                          .reproducible = s->recipe.parallel.deterministic};
    TRY(comm_check_equal(world, "the device's kind",
                         device_is_host(s->device) ? "a CPU" : "a GPU"));
    if (device_is_host(s->device)) {
        return STATUS_OK;
    }
    if (comm_size(s->mesh.tensor) > 1 && comm_size(s->mesh.data) > 1) {
        return connect_groups(&s->mesh, &options);
    }
    for (int i = 0; i < 2; i++) {
        struct comm *group = NULL;
        TRY(comm_device_create(*groups[i], &options, &group));
        *groups[i] = group;
    }
    return STATUS_OK;
}

/* Everything of a rank's own that comes before the ranks' devices meet. */
static status start_alone(struct session *s, struct comm *world, const char *tokenizer_dir,
                          int64_t rows, int64_t sequence, bool training,
                          struct model_config *config)
{
    const struct recipe *r = &s->recipe;
    int64_t vocabulary = 0;
    int threads = 1;
    TRY(mesh_create(world, (int)r->parallel.tensor, &s->mesh));
    TRY(count_threads(r, world, &threads));
    TRY(session_tokenizer(r, tokenizer_dir, &s->tokenizer, &vocabulary));
    TRY(session_masking(r, s->tokenizer, vocabulary, &s->masking));
    *config = session_model_config(r, vocabulary);
    if (!training &&
        (masks(r) || job_data_task(r) != MODEL_WORDS)) { /* who asks does as he likes */
        config->output_rows = config->examples = rows;
    }
    struct kernels_limits limits =
        session_limits(config, (int)r->parallel.tensor, rows, sequence, training);
    return session_device(r, comm_local_rank(world), threads, &limits, &s->device, &s->kernels);
}

/* Rank 0's text, for free(). */
static status share_text(struct comm *world, char **text)
{
    int64_t bytes = *text != NULL ? (int64_t)strlen(*text) + 1 : 0;
    TRY(comm_broadcast(world, &bytes, sizeof bytes, 0));
    if (comm_rank(world) > 0 && bytes > 0) {
        *text = malloc((size_t)bytes);
        REQUIRE(*text != NULL, STATUS_INTERNAL, "out of memory for plans");
    }
    return bytes > 0 ? comm_broadcast(world, *text, (size_t)bytes, 0) : STATUS_OK;
}

status session_tune(struct session *s, struct comm *world, bool measure)
{
    char *text = NULL;
    bool first = comm_rank(world) == 0;
    if (device_is_host(s->device)) {
        return STATUS_OK;
    }
    status mine = kernels_tune(s->kernels, measure && first, first ? &text : NULL);
    KEEP_FIRST(mine, share_text(world, &text));
    if (mine == STATUS_OK && !first && text != NULL) {
        mine = kernels_tuned(s->kernels, text);
    }
    free(text);
    kernels_graphs(s->kernels,
                   s->recipe.train.cuda_graphs); /* those of the old ways are forgotten */
    return comm_agree(world, mine);
}

status session_start(struct session *s, struct comm *world, const char *tokenizer_dir, int64_t rows,
                     int64_t sequence, bool training)
{
    struct model_config config = {0};
    TRY(comm_agree(world, start_alone(s, world, tokenizer_dir, rows, sequence, training, &config)));
    TRY(comm_agree(world, connect_devices(s, world)));
    TRY(session_tune(s, world, false));
    return comm_agree(world, model_create(s->kernels, &config, s->mesh.tensor,
                                          s->recipe.parallel.sequence, rows, training, &s->model));
}

/* Of a step, over all ranks, where the global batch is cut before it is shared. */
static int64_t all_micro_batches(const struct recipe *r)
{
    return (r->batch.global_size + r->batch.micro_size - 1) / r->batch.micro_size;
}

int64_t session_rows(const struct recipe *r)
{
    enum example_kind kind = job_data_kind(r);
    int64_t sequences = kind == EXAMPLE_PREFERENCE_PAIRS ? ANSWERS
                        : kind == EXAMPLE_EMBED          ? 2
                        : kind == EXAMPLE_CHOOSE         ? choices_of(r)
                                                         : 1;
    return r->batch.micro_size * r->data.sequence_length * sequences;
}

int64_t session_sequence(const struct recipe *r)
{
    return r->data.sequence_length * (job_data_shares_prompt(r) ? ANSWERS : 1);
}

static status read_terms(const struct recipe *r, struct preference_settings *out)
{
    char word[RECIPE_NAME_BYTES];
    for (const char *at = r->dpo.loss_type; recipe_list_next(&at, word, sizeof word);) {
        enum preference_loss loss = preference_named(word);
        REQUIRE(loss != PREFERENCE_LOSSES, STATUS_INTERNAL, "a loss of an unknown name: %s", word);
        if (out->terms == PREFERENCE_LOSSES) {
            return recipe_raise(r, STATUS_RECIPE, "dpo.loss_type", "more than %d losses",
                                PREFERENCE_LOSSES);
        }
        out->term[out->terms++] = (struct preference_term){loss, 1};
    }
    int weights = 0;
    for (const char *at = r->dpo.loss_weights; recipe_list_next(&at, word, sizeof word);
         weights++) {
        if (weights < out->terms) {
            out->term[weights].weight = strtod(word, NULL);
        }
    }
    if (weights != 0 && weights != out->terms) {
        return recipe_raise(r, STATUS_RECIPE, "dpo.loss_weights",
                            "%d weight%s for %d loss%s of dpo.loss_type", weights,
                            text_plural(weights), out->terms, out->terms == 1 ? "" : "es");
    }
    return STATUS_OK;
}

status session_preference(const struct recipe *r, struct preference_settings *out)
{
    *out = (struct preference_settings){.beta = r->dpo.beta,
                                        .label_smoothing = r->dpo.label_smoothing,
                                        .discopop_tau = r->dpo.discopop_tau,
                                        .center_rewards = r->reward.center_rewards_coefficient};
    if (job_data_has_reference(r) && r->model.init_from[0] == '\0') {
        return recipe_raise(r, STATUS_RECIPE, "model.init_from",
                            "missing: objective dpo needs the model that is to be improved, which "
                            "is the reference too");
    }
    TRY(read_terms(r, out));
    for (int i = 0; i < out->terms; i++) {
        if (out->term[i].loss == PREFERENCE_EXO_PAIR && out->label_smoothing <= 0) {
            return recipe_raise(r, STATUS_RECIPE, "dpo.label_smoothing",
                                "0 makes exo_pair's loss infinite; give a share above 0");
        }
    }
    return STATUS_OK;
}

int64_t session_micro_batches(const struct recipe *r, int data_ranks)
{
    if (r->parallel.reproducible) {
        return (all_micro_batches(r) + data_ranks - 1) / data_ranks;
    }
    struct range share = partition_share(r->batch.global_size, 1, data_ranks, 0);
    return (share.count + r->batch.micro_size - 1) / r->batch.micro_size;
}

int64_t session_bucket_elements(const struct recipe *r)
{
    return r->parallel.bucket_mib * ((1 << 20) / (int64_t)sizeof(float));
}

status session_update(struct session *s, int64_t micro_batches, struct update **out)
{
    const struct recipe *r = &s->recipe;
    int64_t all = all_micro_batches(r), most = micro_batches * comm_size(s->mesh.data);
    struct update_options options = {
        .mesh = &s->mesh,
        .kernels = s->kernels,
        .model = s->model,
        .optimizer =
            {
                .beta1 = r->optimizer.beta1,
                .beta2 = r->optimizer.beta2,
                .epsilon = r->optimizer.epsilon,
                .weight_decay = r->optimizer.weight_decay,
                .max_grad_norm = r->optimizer.max_grad_norm,
                .kind = strcmp(r->optimizer.name, "lamb") == 0 ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW,
                .trust_all = r->optimizer.nvlamb,
                .stochastic_rounding = r->optimizer.stochastic_rounding,
                .seed = (uint64_t)r->seed,
            },
        .zero_stage = (int)r->parallel.zero_stage,
        .bucket_elems = session_bucket_elements(r),
        .micro_batches = micro_batches,
        .narrow = r->parallel.reduce_dtype == PRECISION_BF16,
        .ordered = !r->parallel.reproducible ? 0
                   : all < most              ? all
                                             : most,
    };
    return update_create(&options, out);
}

/* Where the family's data is. */
static void place_family(const struct session *s, struct family *f)
{
    if (!device_is_host(s->device)) {
        f->family.device = s->device;
        f->family.stream = kernels_stream(s->kernels);
    }
}

static struct family_layout layout_of(const struct session *s)
{
    struct family_layout layout = {.writes_replicated = comm_rank(s->mesh.tensor) == 0};
    layout.parameters = model_parameters(s->model, &layout.count);
    return layout;
}

static struct family_ranges ranges_of(const struct update *u)
{
    struct family_ranges ranges = {.sharded = update_is_sharded(u)};
    ranges.ranges = optimizer_ranges(update_optimizer(u), &ranges.count);
    return ranges;
}

/* Of a model with adapters what is trained alone is in its checkpoints. */
status session_weights(const struct session *s, const struct update *u, struct family *out)
{
    struct family_layout layout = layout_of(s);
    layout.part = s->recipe.adapter.type[0] != '\0' ? FAMILY_TRAINED : FAMILY_WHOLE;
    struct optimizer_range all = {.count = model_elements(s->model)};
    bool released = u != NULL && update_weights(u) != NULL;
    struct family_ranges ranges = {.ranges = &all, .count = 1};
    if (released) {
        ranges.sharded = true;
        ranges.ranges = update_weight_ranges(u, &ranges.count);
    }
    TRY(family_weights(&layout, &ranges, released ? update_weights(u) : model_weights(s->model),
                       out));
    place_family(s, out);
    return STATUS_OK;
}

status session_part(const struct session *s, enum family_part part, struct range elements,
                    float *weights, struct family *out)
{
    struct family_layout layout = layout_of(s);
    struct optimizer_range range = {.first = elements.first, .count = elements.count};
    struct family_ranges ranges = {.ranges = &range, .count = 1};
    layout.part = part;
    TRY(family_weights(&layout, &ranges, weights, out));
    place_family(s, out);
    return STATUS_OK;
}

status session_moments(const struct session *s, const struct update *u, struct family *out)
{
    struct family_layout layout = layout_of(s);
    struct family_ranges ranges = ranges_of(u);
    const struct optimizer *o = update_optimizer(u);
    TRY(family_moments(&layout, &ranges, optimizer_moment1(o), optimizer_moment2(o), out));
    place_family(s, out);
    return STATUS_OK;
}

status session_stop(struct session *s)
{
    status result = model_destroy(&s->model);
    if (s->mesh.world != NULL) { /* its groups may hold the device's memory */
        KEEP_FIRST(result, mesh_destroy(&s->mesh));
    }
    KEEP_FIRST(result, kernels_destroy(&s->kernels));
    KEEP_FIRST(result, device_destroy(&s->device));
    KEEP_FIRST(result, tokenizer_destroy(&s->tokenizer));
    labels_free(&s->labels);
    free((void *)s->masking.kinds);
    s->masking.kinds = NULL;
    return result;
}

/* ---- from a checkpoint ---- */

/* The recipe that wrote it, but not its layout: one rank reads what many wrote, unless asked otherwise. */
static status read_found(const struct checkpoint_found *found, char *const *overrides,
                         int override_count, struct recipe *out)
{
    enum { OWN = 2 };
    char alone[] = "parallel.tensor=1", nearest[] = "optimizer.stochastic_rounding=false";
    char **list = calloc((size_t)override_count + OWN, sizeof *list);
    REQUIRE(list != NULL, STATUS_INTERNAL, "out of memory for %d settings", override_count);
    list[0] = alone;
    list[1] = nearest; /* whatever training did, and in fp32 too */
    for (int i = 0; i < override_count; i++) {
        list[i + OWN] = overrides[i];
    }
    status result = recipe_parse(found->folder, found->recipe_text, strlen(found->recipe_text),
                                 list, override_count + OWN, out);
    free(list);
    return result;
}

/* Names of what the head tells, beside the tokenizer. */
static status read_labels(struct session *s)
{
    char *text = NULL;
    if (job_data_task(&s->recipe) == MODEL_WORDS) {
        return STATUS_OK;
    }
    TRY(labels_read(s->tokenizer_dir, &s->labels));
    if (s->labels.count == 0) {
        return STATUS_OK;
    }
    status result = labels_write(&s->labels, &text);
    if (result == STATUS_OK) {
        result = labels_hash(text, s->labels_sha256);
    }
    free(text);
    return result;
}

static status start_found(struct session *s, struct comm *world,
                          const struct checkpoint_found *found, char *const *overrides,
                          int override_count, int64_t rows)
{
    struct recipe *r = &s->recipe;
    status result = read_found(found, overrides, override_count, r);
    KEEP_FIRST(result, file_join(s->tokenizer_dir, found->folder, "tokenizer"));
    TRY(comm_agree(world, result));
    int64_t micro = session_rows(r);
    int64_t positions = r->model.max_position_embeddings;
    rows = rows > micro ? rows : micro;
    rows = rows > positions ? rows : positions;
    TRY(comm_agree(world, read_labels(s)));
    if (!tokenizer_exists(s->tokenizer_dir)) {
        s->tokenizer_dir[0] = '\0';
    }
    return session_start(s, world, s->tokenizer_dir, rows, positions, false);
}

status session_open_checkpoint(struct session *s, struct comm *world, const char *path,
                               char *const *overrides, int override_count, int64_t rows)
{
    struct checkpoint_found found;
    struct family weights = {0};
    TRY(comm_agree(world, checkpoint_choose(world, path, true, &found)));
    status result = start_found(s, world, &found, overrides, override_count, rows);
    if (result == STATUS_OK) {
        result = model_connect(s->model);
    }
    if (result == STATUS_OK && s->recipe.adapter.type[0] != '\0') {
        result = base_model_load(s, world, false);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, session_weights(s, NULL, &weights));
    }
    if (result == STATUS_OK) {
        result = checkpoint_load(world, found.folder, &weights.family, 1);
    }
    if (result == STATUS_OK) {
        result = comm_agree(world, model_weights_changed(s->model));
    }
    family_destroy(&weights);
    free(found.recipe_text);
    return result;
}

status session_require_causal(const struct session *s, const char *checkpoint)
{
    REQUIRE(!masks(&s->recipe), STATUS_DATA,
            "%s predicts masked tokens, not next ones: ask it with `bireme fill-mask`", checkpoint);
    REQUIRE(job_data_task(&s->recipe) == MODEL_WORDS, STATUS_DATA,
            "%s was trained for %s: it predicts no next tokens", checkpoint, s->recipe.objective);
    return STATUS_OK;
}
