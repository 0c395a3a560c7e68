/* Fills in the settings that are null, then checks settings against each other. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "trainer/recipe/relation_impl.h"

/* ---- defaults that depend on other settings ---- */

/* Returns the number of unused position ids: the ids of RoBERTa begin at 2. */
static int64_t count_reserved_positions(const struct recipe *recipe)
{
    return recipe->model.architecture == ARCHITECTURE_ROBERTA ? 2 : 0;
}

static bool is_gemma(const struct recipe *recipe)
{
    return recipe->model.architecture == ARCHITECTURE_GEMMA2 ||
           recipe->model.architecture == ARCHITECTURE_GEMMA3_TEXT;
}

/* Returns true for families in which some layers have a window. */
static bool has_local_layers(const struct recipe *recipe)
{
    return is_gemma(recipe) || recipe->model.architecture == ARCHITECTURE_MODERNBERT;
}

static void resolve_local_layers(struct recipe *recipe)
{
    bool gemma2 = recipe->model.architecture == ARCHITECTURE_GEMMA2;
    bool gemma3 = recipe->model.architecture == ARCHITECTURE_GEMMA3_TEXT;
    if (!recipe_has_layer_types(recipe)) {
        recipe->model.sliding_window_pattern = gemma2 ? 2 : gemma3 ? 6 : 3;
    }
    if (is_gemma(recipe) && recipe->model.query_pre_attn_scalar == 0) {
        recipe->model.query_pre_attn_scalar = recipe->model.head_dim;
    }
    if (!gemma2 && !(recipe->model.rope_local_base_freq > 0)) {
        recipe->model.rope_local_base_freq = 10000;
    }
}

/* Fills in the parts of the original transformer. */
static void resolve_parts(struct recipe *recipe)
{
    if (recipe->model.norm_placement == PLACEMENT_DEFAULT) {
        recipe->model.norm_placement = PLACEMENT_POST;
    }
    if (recipe->model.norm_type == NORM_TYPE_NULL) {
        recipe->model.norm_type = NORM_TYPE_LAYERNORM;
    }
    if (recipe->model.position_embedding_type == POSITIONS_DEFAULT) {
        recipe->model.position_embedding_type = POSITIONS_SINUSOIDAL;
    }
}

static void resolve_model(struct recipe *recipe)
{
    if (recipe->model.intermediate_size == 0) {
        recipe->model.intermediate_size = 4 * recipe->model.hidden_size;
    }
    if (recipe->model.num_kv_heads == 0) {
        recipe->model.num_kv_heads = recipe->model.num_heads;
    }
    if (recipe->model.head_dim == 0 && recipe->model.hidden_size % recipe->model.num_heads == 0) {
        recipe->model.head_dim = recipe->model.hidden_size / recipe->model.num_heads;
    }
    if (recipe->model.attention_dropout < 0) {
        recipe->model.attention_dropout = recipe->model.dropout;
    }
    if (recipe->model.type_vocab_size < 0) {
        recipe->model.type_vocab_size = recipe_architecture_token_types(recipe->model.architecture);
    }
    if (recipe->model.rope_original_positions == 0) {
        recipe->model.rope_original_positions = recipe->model.max_position_embeddings;
    }
    if (recipe->adapter.type != ADAPTER_NONE && recipe->adapter.targets[0] == '\0') {
        snprintf(recipe->adapter.targets, sizeof recipe->adapter.targets, "%s",
                 recipe_architecture_targets(recipe->model.architecture));
    }
}

/* Returns the activation of a family of encoder-decoders, and gelu_tanh for the other families. */
static enum recipe_activation get_family_activation(const struct recipe *recipe)
{
    switch (recipe->model.architecture) {
    case ARCHITECTURE_MARIAN:
        return RECIPE_RELU;
    case ARCHITECTURE_T5:
        return recipe->model.gated_linear_unit ? RECIPE_GELU_TANH : RECIPE_RELU;
    case ARCHITECTURE_BART:
    case ARCHITECTURE_MBART:
        return RECIPE_GELU_ERF;
    default:
        return RECIPE_GELU_TANH;
    }
}

static void resolve_numerics(struct recipe *recipe)
{
    if (recipe->model.activation == RECIPE_ACTIVATION_NULL) {
        recipe->model.activation = get_family_activation(recipe);
    }
    if (recipe->model.layer_norm_epsilon < 0) {
        recipe->model.layer_norm_epsilon =
            recipe->model.architecture == ARCHITECTURE_T5 ? 1e-6 : 1e-5;
    }
}

/* Fills in the settings of some architectures. */
static void resolve_family(struct recipe *recipe)
{
    if (recipe->model.architecture == ARCHITECTURE_ALBERT) {
        recipe->model.embedding_size =
            recipe->model.embedding_size > 0 ? recipe->model.embedding_size : 128;
        recipe->model.num_hidden_groups =
            recipe->model.num_hidden_groups > 0 ? recipe->model.num_hidden_groups : 1;
    }
    if (has_local_layers(recipe)) {
        resolve_local_layers(recipe);
    }
    if (recipe->model.architecture == ARCHITECTURE_SMOLLM3 &&
        recipe->model.no_rope_layer_interval == 0) {
        recipe->model.no_rope_layer_interval = 4;
    }
    if (recipe->model.architecture == ARCHITECTURE_STABLELM &&
        !(recipe->model.partial_rotary_factor > 0)) {
        recipe->model.partial_rotary_factor = 0.25;
    }
    if (recipe_architecture_is_free(recipe->model.architecture)) {
        resolve_parts(recipe);
    }
    if (recipe_architecture_has_decoder(recipe->model.architecture) &&
        recipe->model.num_decoder_layers == 0) {
        recipe->model.num_decoder_layers = recipe->model.num_layers;
    }
    if (recipe->model.scale_decoder_outputs == RECIPE_AUTO) {
        bool scaled =
            recipe->model.architecture == ARCHITECTURE_T5 && recipe->model.tie_word_embeddings;
        recipe->model.scale_decoder_outputs = scaled ? RECIPE_TRUE : RECIPE_FALSE;
    }
}

/* Fills in the lengths and the noise of the examples. */
static void resolve_examples(struct recipe *recipe)
{
    if (recipe->data.sequence_length == 0) {
        recipe->data.sequence_length =
            recipe->model.max_position_embeddings - count_reserved_positions(recipe);
    }
    if (recipe->mlm.max_predictions == 0) {
        double count =
            ceil(recipe->mlm.mask_probability * (double)recipe->data.sequence_length - 1e-9);
        recipe->mlm.max_predictions = count < 1 ? 1 : (int64_t)count;
    }
    if (!(recipe->denoise.noise_density > 0)) {
        recipe->denoise.noise_density = recipe->denoise.noise == NOISE_BART ? 0.3 : 0.15;
    }
    if (recipe->sft.max_length == 0) {
        recipe->sft.max_length = recipe->data.sequence_length;
    }
}

static void resolve_training(struct recipe *recipe)
{
    if (recipe->batch.micro_size == 0) {
        recipe->batch.micro_size = number_min(recipe->batch.global_size, 8);
    }
    if (recipe->schedule.warmup_steps < 0 && recipe->schedule.warmup_ratio < 0) {
        recipe->schedule.warmup_steps = 0;
    }
    if (recipe->evaluate.every < 0) {
        recipe->evaluate.every = recipe->data.validation[0] != '\0' ? 250 : 0;
    }
}

static void resolve_nulls(struct recipe *recipe)
{
    resolve_model(recipe);
    resolve_numerics(recipe);
    resolve_family(recipe); /* needs the size of a head */
    resolve_examples(recipe);
    resolve_training(recipe);
}

bool recipe_has_default(const struct recipe *recipe, int index)
{
    struct recipe other = *recipe;
    char value[RECIPE_VALUE_BYTES], implied[RECIPE_VALUE_BYTES];
    recipe_value_set_default(&recipe_table[index], &other);
    resolve_nulls(&other);
    recipe_value_format(&recipe_table[index], recipe, false, value);
    recipe_value_format(&recipe_table[index], &other, false, implied);
    return strcmp(value, implied) == 0;
}

/* Refuses a dropout above 0 that rounds to 0 or 1 in units of 1 / 65536 (struct dropout). */
static status check_dropout(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    const struct {
        const char *key;
        double value;
    } rates[] = {{"model.dropout", recipe->model.dropout},
                 {"model.attention_dropout", recipe->model.attention_dropout},
                 {"model.activation_dropout", recipe->model.activation_dropout},
                 {"adapter.dropout", recipe->adapter.dropout}};
    const float unit = 0x1p-16f;
    for (int i = 0; i < COUNT(rates); i++) {
        float rate = (float)rates[i].value;
        if (rate > 0 && (rate < unit / 2 || rate >= 1 - unit / 2)) {
            return recipe_fail(reader, reader->locations[recipe_table_find(rates[i].key)],
                               rates[i].key,
                               "%g rounds to %d in units of 1/65536; use 0 or a value between "
                               "1e-5 and 0.9999",
                               rates[i].value, rate > unit);
        }
    }
    return STATUS_OK;
}

static status fail_family(const struct recipe_reader *reader, const char *key, const char *used)
{
    char text[CHOICES_BYTES], list[CHOICES_BYTES] = "", remedy[CHOICES_BYTES + 16];
    const char *families[CHOICES_MAX];
    int count = recipe_value_choices(strchr(used, '=') + 1, text, families);
    for (int i = 0; i < count; i++) {
        text_append_item(list, sizeof list, families[i], i, count, "or");
    }
    snprintf(remedy, sizeof remedy, "it requires %s", list);
    const struct relation relation = {true, key, "conflicts with", "model.architecture", remedy};
    return relation_fail(reader, &relation);
}

/* Refuses settings that the architecture does not read and that would change the model. */
static status check_families(const struct recipe_reader *reader)
{
    for (int i = 0; i < recipe_table_count; i++) {
        const char *failed = recipe_table[i].refused_if_unused
                                 ? recipe_find_failed_condition(reader->recipe, i)
                                 : NULL;
        if (failed != NULL && !recipe_has_default(reader->recipe, i)) {
            return fail_family(reader, recipe_table[i].key, failed);
        }
    }
    return STATUS_OK;
}

static status check_head_sizes(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool rotary = recipe_is_rotary(recipe);
    bool is_free = recipe_architecture_is_free(recipe->model.architecture);
    int64_t heads = recipe->model.num_heads;
    bool derived = recipe->model.head_dim * recipe->model.num_heads == recipe->model.hidden_size;
    bool modernbert = recipe->model.architecture == ARCHITECTURE_MODERNBERT;
    bool stablelm = recipe->model.architecture == ARCHITECTURE_STABLELM;
    bool t5 = recipe->model.architecture == ARCHITECTURE_T5;
    int64_t rotated = recipe_rotary_width(recipe);
    const struct relation relations[] = {
        {recipe->model.head_dim == 0, "model.hidden_size", "is not a multiple of",
         "model.num_heads", NULL},
        {recipe->model.embedding_size > recipe->model.hidden_size, "model.embedding_size",
         "is greater than", "model.hidden_size", NULL},
        {recipe->model.architecture == ARCHITECTURE_ALBERT && recipe->train.freeze_layers > 0,
         "train.freeze_layers", "conflicts with", "model.architecture",
         "all layers of albert have the same parameters; use train.freeze: backbone"},
        {is_free && recipe->model.num_hidden_groups == 1 && recipe->train.freeze_layers > 0,
         "train.freeze_layers", "conflicts with", "model.num_hidden_groups",
         "all layers have the same parameters; use train.freeze: backbone"},
        {recipe->model.head_dim > HEAD_DIM_MAX, "model.num_heads",
         "gives heads that are too wide with", "model.hidden_size",
         "a head has at most 256 columns; use more heads"},
        {!rotary && !is_free && !t5 && !derived, "model.head_dim", "conflicts with",
         "model.architecture", "it requires t5 or rotary positions, for example llama"},
        {rotary && !derived && recipe->model.head_dim % 2 != 0, "model.head_dim", "is odd for",
         "model.architecture", "rotary position embeddings require an even head size"},
        {(stablelm || modernbert) && !derived, "model.head_dim", "conflicts with",
         "model.architecture", "stablelm and modernbert require hidden_size / num_heads"},
        {modernbert && recipe->model.num_kv_heads != heads, "model.num_kv_heads", "differs from",
         "model.num_heads", "modernbert requires equal numbers"},
        {recipe->model.partial_rotary_factor > 0 && (rotated < 2 || rotated % 2 != 0),
         "model.partial_rotary_factor", "does not give an even number of columns with",
         "model.head_dim", NULL},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_parts(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool t5 = recipe->model.architecture == ARCHITECTURE_T5;
    const struct relation relations[] = {
        {!t5 && recipe->model.scale_decoder_outputs == RECIPE_TRUE, "model.scale_decoder_outputs",
         "conflicts with", "model.architecture", "it requires t5"},
        {t5 && recipe->model.relative_attention_num_buckets % 2 != 0,
         "model.relative_attention_num_buckets", "is odd for", "model.architecture",
         "an encoder has one half of the buckets for earlier tokens and one for later ones"},
        {t5 && recipe->model.relative_attention_max_distance <=
                   recipe->model.relative_attention_num_buckets / 2,
         "model.relative_attention_max_distance", "is at most half of",
         "model.relative_attention_num_buckets", "set a greater distance"},
        {recipe->model.gated_linear_unit && !recipe_activation_is_gate(recipe->model.activation),
         "model.activation", "conflicts with", "model.gated_linear_unit",
         "a gate has silu, gelu_tanh or gelu_erf"},
        {has_local_layers(recipe) && !recipe_activation_is_gelu(recipe->model.activation),
         "model.activation", "conflicts with", "model.architecture", "use gelu_tanh or gelu_erf"},
        {recipe->model.sliding_window > 0 && recipe->dpo.shared_prefix == RECIPE_TRUE,
         "dpo.shared_prefix", "conflicts with", "model.sliding_window",
         "a window of attention cannot skip the other response; use auto or false"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_head_counts(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool rotary = recipe_is_rotary(recipe);
    bool is_free = recipe_architecture_is_free(recipe->model.architecture);
    int64_t heads = recipe->model.num_heads;
    const struct relation relations[] = {
        {!rotary && !is_free && recipe->model.num_kv_heads != heads, "model.num_kv_heads",
         "differs from", "model.num_heads",
         "this architecture does not support fewer key-value heads than heads"},
        {heads % recipe->model.num_kv_heads != 0, "model.num_kv_heads", "does not divide",
         "model.num_heads", NULL},
        {rotary && recipe->model.head_dim % 2 != 0, "model.num_heads",
         "gives heads of odd size with", "model.hidden_size",
         "rotary position embeddings require an even head size"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_positions(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool rotary = recipe_is_rotary(recipe);
    bool modernbert = recipe->model.architecture == ARCHITECTURE_MODERNBERT;
    bool phi3 = recipe->model.architecture == ARCHITECTURE_PHI3;
    int64_t positions = recipe->model.max_position_embeddings;
    const struct relation relations[] = {
        {!rotary && recipe->model.rope_type != ROTARY_PLAIN, "model.rope_type", "conflicts with",
         "model.architecture", "it requires rotary positions, for example llama"},
        {modernbert && recipe->model.rope_type != ROTARY_PLAIN, "model.rope_type", "conflicts with",
         "model.architecture", "modernbert requires default"},
        {phi3 && recipe->model.rope_type != ROTARY_PLAIN &&
             recipe->model.rope_type != ROTARY_LONGROPE,
         "model.rope_type", "conflicts with", "model.architecture",
         "phi3 requires default or longrope"},
        {recipe->model.rope_type == ROTARY_LLAMA3 &&
             !(recipe->model.rope_low_freq_factor < recipe->model.rope_high_freq_factor),
         "model.rope_low_freq_factor", "is not less than", "model.rope_high_freq_factor", NULL},
        {recipe->model.rope_type == ROTARY_DYNAMIC && recipe_rotary_width(recipe) <= 2,
         "model.rope_type", "conflicts with", "model.head_dim",
         "dynamic requires more than 2 rotated columns"},
        {recipe->model.rope_type == ROTARY_YARN &&
             !(recipe->model.rope_beta_slow < recipe->model.rope_beta_fast),
         "model.rope_beta_slow", "is not less than", "model.rope_beta_fast", NULL},
        {recipe->data.sequence_length > positions, "data.sequence_length", "is greater than",
         "model.max_position_embeddings", NULL},
        {recipe->data.sequence_length > positions - count_reserved_positions(recipe),
         "data.sequence_length", "does not fit into", "model.max_position_embeddings",
         "roberta reserves 2 of the positions"},
        {recipe->model.vocab_size == 0 && recipe->data.tokenizer[0] == '\0', "data.tokenizer", NULL,
         "model.vocab_size", "set data.tokenizer or model.vocab_size"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_model(const struct recipe_reader *reader)
{
    TRY(check_head_sizes(reader));
    TRY(check_parts(reader));
    TRY(recipe_check_free_parts(reader));
    TRY(recipe_check_layer_types(reader));
    TRY(check_head_counts(reader));
    TRY(check_positions(reader));
    return recipe_check_longrope(reader->recipe);
}

/* Returns whether the objective trains a fine-tuning head or embeddings. */
static bool is_task_objective(enum recipe_objective objective)
{
    switch (objective) {
    case OBJECTIVE_CLASSIFY:
    case OBJECTIVE_REGRESS:
    case OBJECTIVE_CLASSIFY_TOKENS:
    case OBJECTIVE_ANSWER:
    case OBJECTIVE_CHOOSE:
    case OBJECTIVE_EMBED:
        return true;
    default:
        return false;
    }
}

static status check_objective(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool mlm = recipe->objective == OBJECTIVE_MLM;
    bool encoder = recipe_architecture_is_encoder(recipe->model.architecture);
    bool denoise = recipe->objective == OBJECTIVE_DENOISE;
    bool seq2seq = recipe->objective == OBJECTIVE_SEQ2SEQ || denoise;
    bool sft = recipe->objective == OBJECTIVE_SFT;
    bool has_decoder = recipe_architecture_has_decoder(recipe->model.architecture);
    const struct relation relations[] = {
        {has_decoder ? !seq2seq && !sft : seq2seq, "objective", "conflicts with",
         "model.architecture",
         "marian, bart, mbart and t5 require seq2seq, denoise or sft; seq2seq and denoise require "
         "one of them"},
        {denoise && recipe->data.document_mask, "data.document_mask", "conflicts with", "objective",
         "denoise corrupts windows of texts"},
        {!has_decoder && recipe->model.num_decoder_layers > 0, "model.num_decoder_layers",
         "conflicts with", "model.architecture", "it requires marian, bart, mbart or t5"},
        {recipe->model.architecture == ARCHITECTURE_MARIAN && recipe->model.hidden_size % 2 != 0,
         "model.hidden_size", "is odd for", "model.architecture",
         "sinusoidal positions require an even width"},
        {mlm != encoder && !is_task_objective(recipe->objective), "objective", "conflicts with",
         "model.architecture",
         "mlm requires an encoder: bert, roberta, distilbert, albert, megatron-bert, modernbert or "
         "transformer_encoder; clm, sft, dpo and reward require another architecture"},
        {mlm && recipe->mlm.max_predictions > recipe->data.sequence_length, "mlm.max_predictions",
         "is greater than", "data.sequence_length", NULL},
    };
    return CHECK_RELATIONS(reader, relations);
}

/* Refuses settings of sft that have no effect on pairs of a source and a target. */
static status check_sft_pairs(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool pairs = recipe->objective == OBJECTIVE_SFT &&
                 recipe_architecture_has_decoder(recipe->model.architecture);
    const struct relation relations[] = {
        {pairs && recipe->sft.packing != RECIPE_PACKING_NONE, "sft.packing", "conflicts with",
         "model.architecture", "an encoder-decoder reads one example per sequence; use none"},
        {pairs && recipe->sft.completion_only_loss == RECIPE_FALSE, "sft.completion_only_loss",
         "conflicts with", "model.architecture",
         "the decoder predicts the answer only; use auto or true"},
        {pairs && recipe->sft.join_encoding == RECIPE_TRUE, "sft.join_encoding", "conflicts with",
         "model.architecture", "source and target are encoded separately; use auto"},
        {pairs && recipe->sft.max_length != recipe->data.sequence_length, "sft.max_length",
         "conflicts with", "data.sequence_length",
         "it limits the source and the target; omit sft.max_length"},
    };
    return CHECK_RELATIONS(reader, relations);
}

int64_t recipe_tensor_divisor(const struct recipe *recipe)
{
    int64_t a = recipe->model.num_kv_heads, b = recipe->model.intermediate_size;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Requires that the ranks of a tensor-parallel group get equal numbers of key-value heads (and so
 * of heads) and of inner features. */
static status check_tensor(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    int64_t heads = recipe->model.num_kv_heads, inner = recipe->model.intermediate_size;
    int64_t ranks = recipe->parallel.tensor;
    if (recipe_tensor_divisor(recipe) % ranks == 0) {
        return STATUS_OK;
    }
    char divisors[128] = "1";
    size_t used = 1;
    int64_t divisor = recipe_tensor_divisor(recipe);
    for (int64_t d = 2; d <= divisor && used + 24 < sizeof divisors; d++) {
        if (divisor % d == 0) {
            used += (size_t)snprintf(divisors + used, sizeof divisors - used, ", %" PRId64, d);
        }
    }
    const char *key = heads % ranks == 0                 ? "model.intermediate_size"
                      : heads == recipe->model.num_heads ? "model.num_heads"
                                                         : "model.num_kv_heads";
    return recipe_fail(reader, relation_find_location(reader, "parallel.tensor", key),
                       "parallel.tensor",
                       "%" PRId64 " does not divide %s (%" PRId64
                       "); values that fit the model: %s; it must also divide the number of ranks",
                       ranks, key, heads % ranks != 0 ? heads : inner, divisors);
}

/* Rejects settings that make the order of summation depend on the ranks. */
static status check_parallel(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool reproducible = recipe->parallel.reproducible;
    const struct relation relations[] = {
        {reproducible && recipe->optimizer.name == RECIPE_LAMB, "parallel.reproducible",
         "conflicts with", "optimizer.name",
         "trust ratios are sums over the shards of the ranks; use adamw, or set "
         "parallel.reproducible to false"},
        {reproducible && recipe->parallel.reduce_dtype == PRECISION_BF16, "parallel.reproducible",
         "conflicts with", "parallel.reduce_dtype",
         "sums of gradients in bf16 depend on the number of ranks; use fp32, or set "
         "parallel.reproducible to false"},
        {reproducible && recipe->train.device == RECIPE_DEVICE_CUDA, "parallel.reproducible",
         "conflicts with", "train.device",
         "only CPUs support sums in a fixed order; use cpu, or set parallel.reproducible to "
         "false"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_sizes(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    const struct relation relations[] = {
        {recipe->batch.micro_size > recipe->batch.global_size, "batch.micro_size",
         "is greater than", "batch.global_size", NULL},
        {(double)recipe->batch.micro_size * (double)recipe->data.sequence_length > 1e9,
         "batch.micro_size", "gives more than 1e9 tokens with", "data.sequence_length", NULL},
        {recipe->sft.max_length > recipe->data.sequence_length, "sft.max_length", "is greater than",
         "data.sequence_length", NULL},
        {recipe->objective == OBJECTIVE_SFT && recipe->sft.max_length < 2, "sft.max_length",
         "is too short for", "objective", "an example needs 2 tokens"},
        {recipe->train.freeze_layers > recipe->model.num_layers, "train.freeze_layers",
         "is greater than", "model.num_layers", NULL},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_adapter(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool adapter = recipe->adapter.type != ADAPTER_NONE;
    const struct relation relations[] = {
        {adapter && recipe->model.init_from[0] == '\0', "adapter.type", "requires",
         "model.init_from", "set it to the base model"},
        {adapter && recipe->train.freeze[0] != '\0', "adapter.type", "conflicts with",
         "train.freeze", "adapters freeze the whole base model; remove train.freeze"},
        {adapter && recipe->train.freeze_layers > 0, "adapter.type", "conflicts with",
         "train.freeze_layers", "adapters freeze the whole base model; remove train.freeze_layers"},
    };
    return CHECK_RELATIONS(reader, relations);
}

/* Returns the warm-up as a fraction of all steps; 0 if it is unknown. */
static double compute_warmup_share(const struct recipe *recipe)
{
    return recipe->schedule.warmup_ratio >= 0 ? recipe->schedule.warmup_ratio
           : recipe->train.max_steps > 0
               ? (double)recipe->schedule.warmup_steps / (double)recipe->train.max_steps
               : 0;
}

static status check_training(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool steps = recipe->train.max_steps > 0, epochs = recipe->train.epochs > 0;
    bool ratio = recipe->schedule.warmup_ratio >= 0;
    double share = compute_warmup_share(recipe);
    const struct relation relations[] = {
        {steps && epochs, "train.max_steps", "conflicts with", "train.epochs",
         "set one of them to null"},
        {!steps && !epochs, "train.max_steps", NULL, "train.epochs",
         recipe->train.max_minutes > 0
             ? "set train.max_steps or train.epochs; train.max_minutes only ends a run earlier"
             : "set train.max_steps or train.epochs"},
        {recipe->train.on_spike == ON_SPIKE_ROLLBACK && recipe->checkpoint.every == 0,
         "train.on_spike", "conflicts with", "checkpoint.every",
         "rollback returns to the last checkpoint; set checkpoint.every above 0"},
        {recipe->schedule.warmup_steps >= 0 && ratio, "schedule.warmup_steps", "conflicts with",
         "schedule.warmup_ratio", "set one of them to null"},
        {steps && recipe->schedule.warmup_steps > recipe->train.max_steps, "schedule.warmup_steps",
         "is greater than", "train.max_steps", NULL},
        {recipe->schedule.name == SCHEDULE_WSD && share + recipe->schedule.decay_ratio > 1 + 1e-12,
         "schedule.decay_ratio", "overlaps the warm-up of",
         ratio ? "schedule.warmup_ratio" : "schedule.warmup_steps",
         "together they must not exceed all steps"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_optimizer(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    const struct relation relations[] = {
        {recipe->optimizer.nvlamb && recipe->optimizer.name != RECIPE_LAMB, "optimizer.nvlamb",
         "conflicts with", "optimizer.name", "it requires lamb"},
        {recipe->optimizer.stochastic_rounding && recipe->train.precision == PRECISION_FP32,
         "optimizer.stochastic_rounding", "conflicts with", "train.precision",
         "it requires bf16 or fp8; weights in fp32 are not rounded"},
        {recipe->optimizer.init_from[0] != '\0' && recipe->model.init_from[0] == '\0',
         "optimizer.init_from", "requires", "model.init_from",
         "moments belong to the weights of their checkpoint; set both"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_evaluation(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool never = recipe->evaluate.every == 0;
    const struct relation relations[] = {
        {!never && recipe->data.validation[0] == '\0', "evaluate.every", "requires",
         "data.validation", "set it, or set evaluate.every to 0"},
        {recipe->evaluate.tasks[0] != '\0' && recipe->data.validation[0] == '\0', "evaluate.tasks",
         "requires", "data.validation", "set it; the tasks run at every evaluation"},
        {recipe->evaluate.generate && recipe->data.validation[0] == '\0', "evaluate.generate",
         "requires", "data.validation", "set it; its sources are used"},
        {never && recipe->evaluate.patience > 0, "evaluate.patience", "conflicts with",
         "evaluate.every", "set data.validation and evaluate.every above 0"},
        {never && recipe->checkpoint.keep_best, "checkpoint.keep_best", "conflicts with",
         "evaluate.every", "set data.validation and evaluate.every above 0"},
    };
    return CHECK_RELATIONS(reader, relations);
}

static status check_samples(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    bool samples = recipe->generate.prompt[0] != '\0';
    bool tasks = recipe->evaluate.tasks[0] != '\0', targets = recipe->evaluate.generate;
    bool has_decoder = recipe_architecture_has_decoder(recipe->model.architecture);
    bool causal =
        !has_decoder && (recipe->objective == OBJECTIVE_CLM || recipe->objective == OBJECTIVE_SFT ||
                         recipe->objective == OBJECTIVE_DPO);
    bool pairs = has_decoder && recipe->objective != OBJECTIVE_DENOISE;
    const char *other = has_decoder ? "model.architecture" : "objective";
    const struct relation relations[] = {
        {tasks && !causal, "evaluate.tasks", "conflicts with", other,
         "tasks require a decoder that predicts next tokens: clm, sft or dpo"},
        {tasks && recipe->data.tokenizer[0] == '\0', "evaluate.tasks", "requires", "data.tokenizer",
         "set it"},
        {targets && !pairs, "evaluate.generate", "conflicts with", "objective",
         "targets are generated with objective seq2seq, or sft of an encoder-decoder"},
        {targets && recipe->data.tokenizer[0] == '\0', "evaluate.generate", "requires",
         "data.tokenizer", "set it"},
        {samples && !causal, "generate.prompt", "conflicts with", other,
         "samples require a decoder that predicts next tokens: clm, sft or dpo"},
        {samples && recipe->data.tokenizer[0] == '\0', "generate.prompt", "requires",
         "data.tokenizer", "set it"},
    };
    return CHECK_RELATIONS(reader, relations);
}

status recipe_check_resolve(const struct recipe_reader *reader)
{
    resolve_nulls(reader->recipe);
    TRY(check_families(reader));
    TRY(check_model(reader));
    TRY(check_dropout(reader));
    TRY(check_objective(reader));
    TRY(check_sft_pairs(reader));
    TRY(check_tensor(reader));
    TRY(check_parallel(reader));
    TRY(check_sizes(reader));
    TRY(check_adapter(reader));
    TRY(check_training(reader));
    TRY(check_optimizer(reader));
    TRY(check_evaluation(reader));
    TRY(check_samples(reader));
    recipe_shorten_layer_types(reader->recipe);
    recipe_shorten_groups(reader->recipe);
    return STATUS_OK;
}
