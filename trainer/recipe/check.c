/* Fills in the settings that are null, then checks settings against each other. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/recipe/relation_impl.h"

/* ---- defaults that depend on other settings ---- */

/* Returns the number of unused position ids: the ids of RoBERTa begin at 2. */
static int64_t count_reserved_positions(const struct recipe *c)
{
    return c->model.architecture == ARCHITECTURE_ROBERTA ? 2 : 0;
}

static bool is_gemma(const struct recipe *c)
{
    return c->model.architecture == ARCHITECTURE_GEMMA2 ||
           c->model.architecture == ARCHITECTURE_GEMMA3_TEXT;
}

/* Returns true for families in which some layers have a window. */
static bool has_local_layers(const struct recipe *c)
{
    return is_gemma(c) || c->model.architecture == ARCHITECTURE_MODERNBERT;
}

static void resolve_local_layers(struct recipe *c)
{
    bool gemma2 = c->model.architecture == ARCHITECTURE_GEMMA2;
    bool gemma3 = c->model.architecture == ARCHITECTURE_GEMMA3_TEXT;
    if (!recipe_has_layer_types(c)) {
        c->model.sliding_window_pattern = gemma2 ? 2 : gemma3 ? 6 : 3;
    }
    if (is_gemma(c) && c->model.query_pre_attn_scalar == 0) {
        c->model.query_pre_attn_scalar = c->model.head_dim;
    }
    if (!gemma2 && !(c->model.rope_local_base_freq > 0)) {
        c->model.rope_local_base_freq = 10000;
    }
}

/* Fills in the parts of the original transformer. */
static void resolve_parts(struct recipe *c)
{
    if (c->model.norm_placement == PLACEMENT_DEFAULT) {
        c->model.norm_placement = PLACEMENT_POST;
    }
    if (c->model.norm_type == NORM_TYPE_NULL) {
        c->model.norm_type = NORM_TYPE_LAYERNORM;
    }
    if (c->model.position_embedding_type == POSITIONS_DEFAULT) {
        c->model.position_embedding_type = POSITIONS_SINUSOIDAL;
    }
}

static void resolve_model(struct recipe *c)
{
    if (c->model.intermediate_size == 0) {
        c->model.intermediate_size = 4 * c->model.hidden_size;
    }
    if (c->model.num_kv_heads == 0) {
        c->model.num_kv_heads = c->model.num_heads;
    }
    if (c->model.head_dim == 0 && c->model.hidden_size % c->model.num_heads == 0) {
        c->model.head_dim = c->model.hidden_size / c->model.num_heads;
    }
    if (c->model.attention_dropout < 0) {
        c->model.attention_dropout = c->model.dropout;
    }
    if (c->model.type_vocab_size < 0) {
        c->model.type_vocab_size = recipe_architecture_token_types(c->model.architecture);
    }
    if (c->model.rope_original_positions == 0) {
        c->model.rope_original_positions = c->model.max_position_embeddings;
    }
    if (c->adapter.type != ADAPTER_NONE && c->adapter.targets[0] == '\0') {
        snprintf(c->adapter.targets, sizeof c->adapter.targets, "%s",
                 recipe_architecture_targets(c->model.architecture));
    }
}

/* Returns the activation of a family of encoder-decoders, and gelu_tanh for the other families. */
static enum recipe_activation get_family_activation(const struct recipe *c)
{
    switch (c->model.architecture) {
    case ARCHITECTURE_MARIAN:
        return RECIPE_RELU;
    case ARCHITECTURE_T5:
        return c->model.gated_linear_unit ? RECIPE_GELU_TANH : RECIPE_RELU;
    case ARCHITECTURE_BART:
    case ARCHITECTURE_MBART:
        return RECIPE_GELU_ERF;
    default:
        return RECIPE_GELU_TANH;
    }
}

static void resolve_numerics(struct recipe *c)
{
    if (c->model.activation == RECIPE_ACTIVATION_NULL) {
        c->model.activation = get_family_activation(c);
    }
    if (c->model.layer_norm_epsilon < 0) {
        c->model.layer_norm_epsilon = c->model.architecture == ARCHITECTURE_T5 ? 1e-6 : 1e-5;
    }
}

/* Fills in the settings of some architectures. */
static void resolve_family(struct recipe *c)
{
    if (c->model.architecture == ARCHITECTURE_ALBERT) {
        c->model.embedding_size = c->model.embedding_size > 0 ? c->model.embedding_size : 128;
        c->model.num_hidden_groups =
            c->model.num_hidden_groups > 0 ? c->model.num_hidden_groups : 1;
    }
    if (has_local_layers(c)) {
        resolve_local_layers(c);
    }
    if (c->model.architecture == ARCHITECTURE_SMOLLM3 && c->model.no_rope_layer_interval == 0) {
        c->model.no_rope_layer_interval = 4;
    }
    if (c->model.architecture == ARCHITECTURE_STABLELM && !(c->model.partial_rotary_factor > 0)) {
        c->model.partial_rotary_factor = 0.25;
    }
    if (recipe_architecture_is_free(c->model.architecture)) {
        resolve_parts(c);
    }
    if (recipe_architecture_has_decoder(c->model.architecture) &&
        c->model.num_decoder_layers == 0) {
        c->model.num_decoder_layers = c->model.num_layers;
    }
    if (c->model.scale_decoder_outputs == RECIPE_AUTO) {
        bool scaled = c->model.architecture == ARCHITECTURE_T5 && c->model.tie_word_embeddings;
        c->model.scale_decoder_outputs = scaled ? RECIPE_TRUE : RECIPE_FALSE;
    }
}

/* Fills in the lengths and the noise of the examples. */
static void resolve_examples(struct recipe *c)
{
    if (c->data.sequence_length == 0) {
        c->data.sequence_length = c->model.max_position_embeddings - count_reserved_positions(c);
    }
    if (c->mlm.max_predictions == 0) {
        double count = ceil(c->mlm.mask_probability * (double)c->data.sequence_length - 1e-9);
        c->mlm.max_predictions = count < 1 ? 1 : (int64_t)count;
    }
    if (!(c->denoise.noise_density > 0)) {
        c->denoise.noise_density = c->denoise.noise == NOISE_BART ? 0.3 : 0.15;
    }
    if (c->sft.max_length == 0) {
        c->sft.max_length = c->data.sequence_length;
    }
}

static void resolve_training(struct recipe *c)
{
    if (c->batch.micro_size == 0) {
        c->batch.micro_size = c->batch.global_size < 8 ? c->batch.global_size : 8;
    }
    if (c->schedule.warmup_steps < 0 && c->schedule.warmup_ratio < 0) {
        c->schedule.warmup_steps = 0;
    }
    if (c->evaluate.every < 0) {
        c->evaluate.every = c->data.validation[0] != '\0' ? 250 : 0;
    }
}

static void resolve_nulls(struct recipe *c)
{
    resolve_model(c);
    resolve_numerics(c);
    resolve_family(c); /* needs the size of a head */
    resolve_examples(c);
    resolve_training(c);
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
static status check_dropout(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    const struct {
        const char *key;
        double value;
    } rates[] = {{"model.dropout", c->model.dropout},
                 {"model.attention_dropout", c->model.attention_dropout},
                 {"model.activation_dropout", c->model.activation_dropout},
                 {"adapter.dropout", c->adapter.dropout}};
    const float unit = 0x1p-16f;
    for (int i = 0; i < COUNT(rates); i++) {
        float rate = (float)rates[i].value;
        if (rate > 0 && (rate < unit / 2 || rate >= 1 - unit / 2)) {
            return recipe_fail(r, r->locations[recipe_table_find(rates[i].key)], rates[i].key,
                               "%g rounds to %d in units of 1/65536; use 0 or a value between "
                               "1e-5 and 0.9999",
                               rates[i].value, rate > unit);
        }
    }
    return STATUS_OK;
}

/* Keys of some architectures only (`.used` in the table). Other architectures refuse them, because
 * they change the model. */
static const char *const family_settings[] = {
    "model.embedding_size",
    "model.num_hidden_groups",
    "model.norm_bias",
    "model.normalize_embedding",
    "model.head_transform",
    "model.classifier_bias",
    "model.decoder_bias",
    "model.sliding_window",
    "model.partial_rotary_factor",
    "model.use_qkv_bias",
    "model.sliding_window_pattern",
    "model.layer_types",
    "model.query_pre_attn_scalar",
    "model.attn_logit_softcapping",
    "model.final_logit_softcapping",
    "model.rope_local_base_freq",
    "model.no_rope_layer_interval",
    "model.embedding_multiplier",
    "model.attention_multiplier",
    "model.residual_multiplier",
    "model.logits_scaling",
    "model.attention_bias",
    "model.mlp_bias",
    "model.norm_placement",
    "model.norm_type",
    "model.position_embedding_type",
    "model.gated_linear_unit",
    "model.qk_norm",
    "model.share_encoder_decoder_embeddings",
    "model.activation_dropout",
};

static status fail_family(const struct recipe_reader *r, const char *key, const char *used)
{
    char text[CHOICES_BYTES], list[CHOICES_BYTES] = "", remedy[CHOICES_BYTES + 16];
    const char *families[CHOICES_MAX];
    int count = recipe_value_choices(strchr(used, '=') + 1, text, families);
    for (int i = 0; i < count; i++) {
        text_append_item(list, sizeof list, families[i], i, count, "or");
    }
    snprintf(remedy, sizeof remedy, "it requires %s", list);
    const struct relation relation = {true, key, "conflicts with", "model.architecture", remedy};
    return relation_fail(r, &relation);
}

static status check_families(const struct recipe_reader *r)
{
    for (int i = 0; i < COUNT(family_settings); i++) {
        int index = recipe_table_find(family_settings[i]);
        const char *failed = recipe_find_failed_condition(r->recipe, index);
        if (failed != NULL && !recipe_has_default(r->recipe, index)) {
            return fail_family(r, family_settings[i], failed);
        }
    }
    return STATUS_OK;
}

static status check_head_sizes(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool rotary = recipe_is_rotary(c);
    bool is_free = recipe_architecture_is_free(c->model.architecture);
    int64_t heads = c->model.num_heads;
    bool derived = c->model.head_dim * c->model.num_heads == c->model.hidden_size;
    bool modernbert = c->model.architecture == ARCHITECTURE_MODERNBERT;
    bool stablelm = c->model.architecture == ARCHITECTURE_STABLELM;
    bool t5 = c->model.architecture == ARCHITECTURE_T5;
    int64_t rotated = recipe_rotary_width(c);
    const struct relation relations[] = {
        {c->model.head_dim == 0, "model.hidden_size", "is not a multiple of", "model.num_heads",
         NULL},
        {c->model.embedding_size > c->model.hidden_size, "model.embedding_size", "is greater than",
         "model.hidden_size", NULL},
        {c->model.architecture == ARCHITECTURE_ALBERT && c->train.freeze_layers > 0,
         "train.freeze_layers", "conflicts with", "model.architecture",
         "all layers of albert have the same parameters; use train.freeze: backbone"},
        {is_free && c->model.num_hidden_groups == 1 && c->train.freeze_layers > 0,
         "train.freeze_layers", "conflicts with", "model.num_hidden_groups",
         "all layers have the same parameters; use train.freeze: backbone"},
        {c->model.head_dim > HEAD_DIM_MAX, "model.num_heads", "gives heads that are too wide with",
         "model.hidden_size", "a head has at most 256 columns; use more heads"},
        {!rotary && !is_free && !t5 && !derived, "model.head_dim", "conflicts with",
         "model.architecture", "it requires t5 or rotary positions, for example llama"},
        {rotary && !derived && c->model.head_dim % 2 != 0, "model.head_dim", "is odd for",
         "model.architecture", "rotary position embeddings require an even head size"},
        {(stablelm || modernbert) && !derived, "model.head_dim", "conflicts with",
         "model.architecture", "stablelm and modernbert require hidden_size / num_heads"},
        {modernbert && c->model.num_kv_heads != heads, "model.num_kv_heads", "differs from",
         "model.num_heads", "modernbert requires equal numbers"},
        {c->model.partial_rotary_factor > 0 && (rotated < 2 || rotated % 2 != 0),
         "model.partial_rotary_factor", "does not give an even number of columns with",
         "model.head_dim", NULL},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_parts(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool t5 = c->model.architecture == ARCHITECTURE_T5;
    const struct relation relations[] = {
        {!t5 && c->model.scale_decoder_outputs == RECIPE_TRUE, "model.scale_decoder_outputs",
         "conflicts with", "model.architecture", "it requires t5"},
        {t5 && c->model.relative_attention_num_buckets % 2 != 0,
         "model.relative_attention_num_buckets", "is odd for", "model.architecture",
         "an encoder has one half of the buckets for earlier tokens and one for later ones"},
        {t5 && c->model.relative_attention_max_distance <=
                   c->model.relative_attention_num_buckets / 2,
         "model.relative_attention_max_distance", "is at most half of",
         "model.relative_attention_num_buckets", "set a greater distance"},
        {c->model.gated_linear_unit && !recipe_activation_is_gate(c->model.activation),
         "model.activation", "conflicts with", "model.gated_linear_unit",
         "a gate has silu, gelu_tanh or gelu_erf"},
        {has_local_layers(c) && !recipe_activation_is_gelu(c->model.activation), "model.activation",
         "conflicts with", "model.architecture", "use gelu_tanh or gelu_erf"},
        {c->model.sliding_window > 0 && c->dpo.shared_prefix == RECIPE_TRUE, "dpo.shared_prefix",
         "conflicts with", "model.sliding_window",
         "a window of attention cannot skip the other response; use auto or false"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_head_counts(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool rotary = recipe_is_rotary(c);
    bool is_free = recipe_architecture_is_free(c->model.architecture);
    int64_t heads = c->model.num_heads;
    const struct relation relations[] = {
        {!rotary && !is_free && c->model.num_kv_heads != heads, "model.num_kv_heads",
         "differs from", "model.num_heads",
         "this architecture does not support fewer key-value heads than heads"},
        {heads % c->model.num_kv_heads != 0, "model.num_kv_heads", "does not divide",
         "model.num_heads", NULL},
        {rotary && c->model.head_dim % 2 != 0, "model.num_heads", "gives heads of odd size with",
         "model.hidden_size", "rotary position embeddings require an even head size"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_positions(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool rotary = recipe_is_rotary(c);
    bool modernbert = c->model.architecture == ARCHITECTURE_MODERNBERT;
    bool phi3 = c->model.architecture == ARCHITECTURE_PHI3;
    int64_t positions = c->model.max_position_embeddings;
    const struct relation relations[] = {
        {!rotary && c->model.rope_type != ROTARY_PLAIN, "model.rope_type", "conflicts with",
         "model.architecture", "it requires rotary positions, for example llama"},
        {modernbert && c->model.rope_type != ROTARY_PLAIN, "model.rope_type", "conflicts with",
         "model.architecture", "modernbert requires default"},
        {phi3 && c->model.rope_type != ROTARY_PLAIN && c->model.rope_type != ROTARY_LONGROPE,
         "model.rope_type", "conflicts with", "model.architecture",
         "phi3 requires default or longrope"},
        {c->model.rope_type == ROTARY_LLAMA3 &&
             !(c->model.rope_low_freq_factor < c->model.rope_high_freq_factor),
         "model.rope_low_freq_factor", "is not less than", "model.rope_high_freq_factor", NULL},
        {c->model.rope_type == ROTARY_DYNAMIC && recipe_rotary_width(c) <= 2, "model.rope_type",
         "conflicts with", "model.head_dim", "dynamic requires more than 2 rotated columns"},
        {c->model.rope_type == ROTARY_YARN && !(c->model.rope_beta_slow < c->model.rope_beta_fast),
         "model.rope_beta_slow", "is not less than", "model.rope_beta_fast", NULL},
        {c->data.sequence_length > positions, "data.sequence_length", "is greater than",
         "model.max_position_embeddings", NULL},
        {c->data.sequence_length > positions - count_reserved_positions(c), "data.sequence_length",
         "does not fit into", "model.max_position_embeddings",
         "roberta reserves 2 of the positions"},
        {c->model.vocab_size == 0 && c->data.tokenizer[0] == '\0', "data.tokenizer", NULL,
         "model.vocab_size", "set data.tokenizer or model.vocab_size"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_model(const struct recipe_reader *r)
{
    TRY(check_head_sizes(r));
    TRY(check_parts(r));
    TRY(recipe_check_free_parts(r));
    TRY(recipe_check_layer_types(r));
    TRY(check_head_counts(r));
    TRY(check_positions(r));
    return recipe_check_longrope(r->recipe);
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

static status check_objective(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool mlm = c->objective == OBJECTIVE_MLM;
    bool encoder = recipe_architecture_is_encoder(c->model.architecture);
    bool denoise = c->objective == OBJECTIVE_DENOISE;
    bool seq2seq = c->objective == OBJECTIVE_SEQ2SEQ || denoise;
    bool sft = c->objective == OBJECTIVE_SFT;
    bool has_decoder = recipe_architecture_has_decoder(c->model.architecture);
    const struct relation relations[] = {
        {has_decoder ? !seq2seq && !sft : seq2seq, "objective", "conflicts with",
         "model.architecture",
         "marian, bart, mbart and t5 require seq2seq, denoise or sft; seq2seq and denoise require "
         "one of them"},
        {denoise && c->data.document_mask, "data.document_mask", "conflicts with", "objective",
         "denoise corrupts windows of texts"},
        {!has_decoder && c->model.num_decoder_layers > 0, "model.num_decoder_layers",
         "conflicts with", "model.architecture", "it requires marian, bart, mbart or t5"},
        {c->model.architecture == ARCHITECTURE_MARIAN && c->model.hidden_size % 2 != 0,
         "model.hidden_size", "is odd for", "model.architecture",
         "sinusoidal positions require an even width"},
        {mlm != encoder && !is_task_objective(c->objective), "objective", "conflicts with",
         "model.architecture",
         "mlm requires an encoder: bert, roberta, distilbert, albert, megatron-bert, modernbert or "
         "transformer_encoder; clm, sft, dpo and reward require another architecture"},
        {mlm && c->mlm.max_predictions > c->data.sequence_length, "mlm.max_predictions",
         "is greater than", "data.sequence_length", NULL},
    };
    return CHECK_RELATIONS(r, relations);
}

/* Refuses settings of sft that have no effect on pairs of a source and a target. */
static status check_sft_pairs(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool pairs =
        c->objective == OBJECTIVE_SFT && recipe_architecture_has_decoder(c->model.architecture);
    const struct relation relations[] = {
        {pairs && c->sft.packing != RECIPE_PACKING_NONE, "sft.packing", "conflicts with",
         "model.architecture", "an encoder-decoder reads one example per sequence; use none"},
        {pairs && c->sft.completion_only_loss == RECIPE_FALSE, "sft.completion_only_loss",
         "conflicts with", "model.architecture",
         "the decoder predicts the answer only; use auto or true"},
        {pairs && c->sft.join_encoding == RECIPE_TRUE, "sft.join_encoding", "conflicts with",
         "model.architecture", "source and target are encoded separately; use auto"},
        {pairs && c->sft.max_length != c->data.sequence_length, "sft.max_length", "conflicts with",
         "data.sequence_length", "it limits the source and the target; omit sft.max_length"},
    };
    return CHECK_RELATIONS(r, relations);
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
static status check_tensor(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    int64_t heads = c->model.num_kv_heads, inner = c->model.intermediate_size;
    int64_t ranks = c->parallel.tensor;
    if (recipe_tensor_divisor(c) % ranks == 0) {
        return STATUS_OK;
    }
    char divisors[128] = "1";
    size_t used = 1;
    int64_t divisor = recipe_tensor_divisor(c);
    for (int64_t d = 2; d <= divisor && used + 24 < sizeof divisors; d++) {
        if (divisor % d == 0) {
            used += (size_t)snprintf(divisors + used, sizeof divisors - used, ", %" PRId64, d);
        }
    }
    const char *key = heads % ranks == 0            ? "model.intermediate_size"
                      : heads == c->model.num_heads ? "model.num_heads"
                                                    : "model.num_kv_heads";
    return recipe_fail(r, relation_find_location(r, "parallel.tensor", key), "parallel.tensor",
                       "%" PRId64 " does not divide %s (%" PRId64
                       "); values that fit the model: %s; it must also divide the number of ranks",
                       ranks, key, heads % ranks != 0 ? heads : inner, divisors);
}

/* Rejects settings that make the order of summation depend on the ranks. */
static status check_parallel(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool reproducible = c->parallel.reproducible;
    const struct relation relations[] = {
        {reproducible && c->optimizer.name == RECIPE_LAMB, "parallel.reproducible",
         "conflicts with", "optimizer.name",
         "trust ratios are sums over the shards of the ranks; use adamw, or set "
         "parallel.reproducible to false"},
        {reproducible && c->parallel.reduce_dtype == PRECISION_BF16, "parallel.reproducible",
         "conflicts with", "parallel.reduce_dtype",
         "sums of gradients in bf16 depend on the number of ranks; use fp32, or set "
         "parallel.reproducible to false"},
        {reproducible && c->train.device == RECIPE_DEVICE_CUDA, "parallel.reproducible",
         "conflicts with", "train.device",
         "only CPUs support sums in a fixed order; use cpu, or set parallel.reproducible to "
         "false"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_sizes(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    const struct relation relations[] = {
        {c->batch.micro_size > c->batch.global_size, "batch.micro_size", "is greater than",
         "batch.global_size", NULL},
        {(double)c->batch.micro_size * (double)c->data.sequence_length > 1e9, "batch.micro_size",
         "gives more than 1e9 tokens with", "data.sequence_length", NULL},
        {c->sft.max_length > c->data.sequence_length, "sft.max_length", "is greater than",
         "data.sequence_length", NULL},
        {c->objective == OBJECTIVE_SFT && c->sft.max_length < 2, "sft.max_length",
         "is too short for", "objective", "an example needs 2 tokens"},
        {c->train.freeze_layers > c->model.num_layers, "train.freeze_layers", "is greater than",
         "model.num_layers", NULL},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_adapter(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool adapter = c->adapter.type != ADAPTER_NONE;
    const struct relation relations[] = {
        {adapter && c->model.init_from[0] == '\0', "adapter.type", "requires", "model.init_from",
         "set it to the base model"},
        {adapter && c->train.freeze[0] != '\0', "adapter.type", "conflicts with", "train.freeze",
         "adapters freeze the whole base model; remove train.freeze"},
        {adapter && c->train.freeze_layers > 0, "adapter.type", "conflicts with",
         "train.freeze_layers", "adapters freeze the whole base model; remove train.freeze_layers"},
    };
    return CHECK_RELATIONS(r, relations);
}

/* Returns the warm-up as a fraction of all steps; 0 if it is unknown. */
static double compute_warmup_share(const struct recipe *c)
{
    return c->schedule.warmup_ratio >= 0 ? c->schedule.warmup_ratio
           : c->train.max_steps > 0 ? (double)c->schedule.warmup_steps / (double)c->train.max_steps
                                    : 0;
}

static status check_training(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool steps = c->train.max_steps > 0, epochs = c->train.epochs > 0;
    bool ratio = c->schedule.warmup_ratio >= 0;
    double share = compute_warmup_share(c);
    const struct relation relations[] = {
        {steps && epochs, "train.max_steps", "conflicts with", "train.epochs",
         "set one of them to null"},
        {!steps && !epochs, "train.max_steps", NULL, "train.epochs",
         c->train.max_minutes > 0
             ? "set train.max_steps or train.epochs; train.max_minutes only ends a run earlier"
             : "set train.max_steps or train.epochs"},
        {c->train.on_spike == ON_SPIKE_ROLLBACK && c->checkpoint.every == 0, "train.on_spike",
         "conflicts with", "checkpoint.every",
         "rollback returns to the last checkpoint; set checkpoint.every above 0"},
        {c->schedule.warmup_steps >= 0 && ratio, "schedule.warmup_steps", "conflicts with",
         "schedule.warmup_ratio", "set one of them to null"},
        {steps && c->schedule.warmup_steps > c->train.max_steps, "schedule.warmup_steps",
         "is greater than", "train.max_steps", NULL},
        {c->schedule.name == SCHEDULE_WSD && share + c->schedule.decay_ratio > 1 + 1e-12,
         "schedule.decay_ratio", "overlaps the warm-up of",
         ratio ? "schedule.warmup_ratio" : "schedule.warmup_steps",
         "together they must not exceed all steps"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_optimizer(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    const struct relation relations[] = {
        {c->optimizer.nvlamb && c->optimizer.name != RECIPE_LAMB, "optimizer.nvlamb",
         "conflicts with", "optimizer.name", "it requires lamb"},
        {c->optimizer.stochastic_rounding && c->train.precision == PRECISION_FP32,
         "optimizer.stochastic_rounding", "conflicts with", "train.precision",
         "it requires bf16 or fp8; weights in fp32 are not rounded"},
        {c->optimizer.init_from[0] != '\0' && c->model.init_from[0] == '\0', "optimizer.init_from",
         "requires", "model.init_from",
         "moments belong to the weights of their checkpoint; set both"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_evaluation(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool never = c->evaluate.every == 0;
    const struct relation relations[] = {
        {!never && c->data.validation[0] == '\0', "evaluate.every", "requires", "data.validation",
         "set it, or set evaluate.every to 0"},
        {c->evaluate.tasks[0] != '\0' && c->data.validation[0] == '\0', "evaluate.tasks",
         "requires", "data.validation", "set it; the tasks run at every evaluation"},
        {c->evaluate.generate && c->data.validation[0] == '\0', "evaluate.generate", "requires",
         "data.validation", "set it; its sources are used"},
        {never && c->evaluate.patience > 0, "evaluate.patience", "conflicts with", "evaluate.every",
         "set data.validation and evaluate.every above 0"},
        {never && c->checkpoint.keep_best, "checkpoint.keep_best", "conflicts with",
         "evaluate.every", "set data.validation and evaluate.every above 0"},
    };
    return CHECK_RELATIONS(r, relations);
}

static status check_samples(const struct recipe_reader *r)
{
    const struct recipe *c = r->recipe;
    bool samples = c->generate.prompt[0] != '\0';
    bool tasks = c->evaluate.tasks[0] != '\0', targets = c->evaluate.generate;
    bool has_decoder = recipe_architecture_has_decoder(c->model.architecture);
    bool causal = !has_decoder && (c->objective == OBJECTIVE_CLM || c->objective == OBJECTIVE_SFT ||
                                   c->objective == OBJECTIVE_DPO);
    bool pairs = has_decoder && c->objective != OBJECTIVE_DENOISE;
    const char *other = has_decoder ? "model.architecture" : "objective";
    const struct relation relations[] = {
        {tasks && !causal, "evaluate.tasks", "conflicts with", other,
         "tasks require a decoder that predicts next tokens: clm, sft or dpo"},
        {tasks && c->data.tokenizer[0] == '\0', "evaluate.tasks", "requires", "data.tokenizer",
         "set it"},
        {targets && !pairs, "evaluate.generate", "conflicts with", "objective",
         "targets are generated with objective seq2seq, or sft of an encoder-decoder"},
        {targets && c->data.tokenizer[0] == '\0', "evaluate.generate", "requires", "data.tokenizer",
         "set it"},
        {samples && !causal, "generate.prompt", "conflicts with", other,
         "samples require a decoder that predicts next tokens: clm, sft or dpo"},
        {samples && c->data.tokenizer[0] == '\0', "generate.prompt", "requires", "data.tokenizer",
         "set it"},
    };
    return CHECK_RELATIONS(r, relations);
}

status recipe_check_resolve(const struct recipe_reader *r)
{
    resolve_nulls(r->recipe);
    TRY(check_families(r));
    TRY(check_model(r));
    TRY(check_dropout(r));
    TRY(check_objective(r));
    TRY(check_sft_pairs(r));
    TRY(check_tensor(r));
    TRY(check_parallel(r));
    TRY(check_sizes(r));
    TRY(check_adapter(r));
    TRY(check_training(r));
    TRY(check_optimizer(r));
    TRY(check_evaluation(r));
    TRY(check_samples(r));
    recipe_shorten_layer_types(r->recipe);
    struct recipe *recipe = r->recipe;
    if (recipe->model.num_hidden_groups > 1 &&
        recipe->model.num_hidden_groups == recipe->model.num_layers) {
        recipe->model.num_hidden_groups = 0; /* the same model: no shared layers */
    }
    return STATUS_OK;
}
