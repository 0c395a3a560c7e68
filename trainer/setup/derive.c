#include "trainer/setup/derive.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "comm/partition.h"
#include "kernels/fp8.h"
#include "trainer/model/linear.h"
#include "trainer/setup/objective_spec.h"

/* Returns the number of labels or choices; 2 by default. */
static int64_t get_label_count(const struct recipe *recipe)
{
    return recipe->model.num_labels > 0 ? recipe->model.num_labels : 2;
}

/* Returns the maximum number of rows of a micro-batch that the head reads. */
static int64_t count_output_rows(const struct recipe *recipe)
{
    switch (objective_spec_head(recipe)) {
    case MODEL_HEAD_LM:
        return objective_spec_is_masked(recipe)
                   ? recipe->batch.micro_size * recipe->mlm.max_predictions
                   : 0;
    case MODEL_HEAD_SEQUENCE: /* both responses of a preference pair */
        return recipe->batch.micro_size *
               (objective_spec_example(recipe) == EXAMPLE_PREFERENCE_PAIRS ? RESPONSES : 1);
    case MODEL_HEAD_MULTIPLE_CHOICE:
        return recipe->batch.micro_size * get_label_count(recipe);
    default:
        return derive_rows(recipe);
    }
}

/* Returns the number of outputs of a task head. */
static int64_t count_head_outputs(const struct recipe *recipe)
{
    switch (objective_spec_example(recipe)) {
    case EXAMPLE_REGRESS:
    case EXAMPLE_PREFERENCE_PAIRS:
    case EXAMPLE_CHOOSE:
        return 1;
    case EXAMPLE_ANSWER:
        return 2;
    case EXAMPLE_EMBED:
        return recipe->model.hidden_size; /* the hidden states themselves */
    default:
        return get_label_count(recipe);
    }
}

static void set_layer_types(const struct recipe *recipe, struct model_config *config)
{
    for (int64_t i = 0; i < recipe->model.num_layers && recipe_has_layer_types(recipe); i++) {
        model_set_layer_type(config, i, recipe_layer_is_local(recipe, i));
    }
}

static struct rotary_scaling get_rotary_scaling(const struct recipe *recipe)
{
    struct rotary_scaling scaling = {
        .kind = recipe->model.rope_type,
        .factor = recipe->model.rope_factor,
        .low_frequency_factor = recipe->model.rope_low_freq_factor,
        .high_frequency_factor = recipe->model.rope_high_freq_factor,
        .beta_fast = recipe->model.rope_beta_fast,
        .beta_slow = recipe->model.rope_beta_slow,
        .attention_factor = recipe->model.rope_attention_factor,
        .original_positions = (double)recipe->model.rope_original_positions,
        .positions = (double)recipe->model.max_position_embeddings,
    };
    (void)recipe_rope_factors(recipe_uses_long_factors(recipe) ? recipe->model.rope_long_factor
                                                               : recipe->model.rope_short_factor,
                              scaling.pair_factors);
    return scaling;
}

static enum activation get_activation(enum recipe_activation activation)
{
    switch (activation) {
    case RECIPE_GELU_ERF:
        return ACTIVATION_GELU_ERF;
    case RECIPE_RELU:
        return ACTIVATION_RELU;
    case RECIPE_RELU2:
        return ACTIVATION_RELU2;
    case RECIPE_SILU:
        return ACTIVATION_SILU;
    case RECIPE_ACTIVATION_NULL:
    case RECIPE_GELU_TANH:
        break;
    }
    return ACTIVATION_GELU_TANH;
}

static struct model_parts get_parts(const struct recipe *recipe)
{
    return (struct model_parts){
        .norm_placement = recipe->model.norm_placement,
        .positions = recipe->model.position_embedding_type,
        .qk_norm = recipe->model.qk_norm,
        .rms_norm = recipe->model.norm_type == NORM_TYPE_RMSNORM,
        .norm_without_weight = recipe->model.norm_type == NORM_TYPE_NONPARAMETRIC_LAYERNORM,
        .gated = recipe->model.gated_linear_unit,
        .norm_without_bias = !recipe->model.norm_bias,
        .embedding_norm = recipe->model.normalize_embedding,
        .shared_layers = recipe->model.num_hidden_groups == 1,
        .head_without_transform = !recipe->model.head_transform,
        .head_without_transform_bias = !recipe->model.classifier_bias,
        .head_without_bias = !recipe->model.decoder_bias,
    };
}

static double get_attention_scale(const struct recipe *recipe)
{
    int64_t scalar = recipe->model.query_pre_attn_scalar;
    return scalar > 0 ? 1 / sqrt((double)scalar) : recipe->model.attention_multiplier;
}

static double get_embedding_multiplier(const struct recipe *recipe)
{
    enum recipe_architecture architecture = recipe->model.architecture;
    bool scales = (architecture == ARCHITECTURE_MARIAN || architecture == ARCHITECTURE_MBART) &&
                  recipe->model.scale_embedding;
    return scales ? sqrt((double)recipe->model.hidden_size) : recipe->model.embedding_multiplier;
}

static double get_logits_divisor(const struct recipe *recipe)
{
    bool scaled = recipe->model.scale_decoder_outputs == RECIPE_TRUE;
    return scaled ? sqrt((double)recipe->model.hidden_size) : recipe->model.logits_scaling;
}

/* Returns the rows of the token type table: 0 unless the architecture has one. */
static int64_t get_token_types(const struct recipe *recipe)
{
    enum recipe_architecture architecture = recipe->model.architecture;
    bool has_types = recipe_architecture_token_types(architecture) > 0 ||
                     architecture == ARCHITECTURE_TRANSFORMER_ENCODER;
    return has_types ? recipe->model.type_vocab_size : 0;
}

static float get_initializer_range(const struct recipe *recipe)
{
    bool is_t5 = recipe->model.architecture == ARCHITECTURE_T5;
    return (float)(is_t5 ? recipe->model.initializer_factor : recipe->model.initializer_range);
}

static float get_activation_dropout(const struct recipe *recipe)
{
    bool is_t5 = recipe->model.architecture == ARCHITECTURE_T5;
    return (float)(is_t5 ? recipe->model.dropout : recipe->model.activation_dropout);
}

static bool is_fp8(const struct recipe *recipe)
{
    return recipe->train.precision == PRECISION_FP8;
}

bool derive_separate_embeddings(const struct recipe *recipe)
{
    return recipe->model.architecture == ARCHITECTURE_MARIAN &&
           !recipe->model.share_encoder_decoder_embeddings;
}

int64_t derive_decoder_vocabulary(const struct recipe *recipe, int64_t vocabulary)
{
    int64_t size = recipe->model.decoder_vocab_size;
    return derive_separate_embeddings(recipe) && size > 0 ? size : vocabulary;
}

static enum model_fp8_recipe get_fp8_recipe(const struct recipe *recipe)
{
    return !is_fp8(recipe)                     ? MODEL_FP8_NONE
           : derive_has_delayed_scales(recipe) ? MODEL_FP8_DELAYED
                                               : MODEL_FP8_ROWWISE;
}

struct model_config derive_model_config(const struct recipe *recipe, int64_t vocabulary)
{
    struct model_config config = {
        .architecture = recipe_architecture_name(recipe->model.architecture),
        .layers = recipe->model.num_layers + recipe->model.num_decoder_layers,
        .encoder_layers = recipe->model.num_decoder_layers > 0 ? recipe->model.num_layers : 0,
        .width = recipe->model.hidden_size,
        .embedding_width = recipe->model.embedding_size,
        .heads = recipe->model.num_heads,
        .inner = recipe->model.intermediate_size,
        .positions = recipe->model.max_position_embeddings,
        .vocabulary = derive_decoder_vocabulary(recipe, vocabulary),
        .source_vocabulary = derive_separate_embeddings(recipe) ? vocabulary : 0,
        .activation = get_activation(recipe->model.activation),
        .parts = get_parts(recipe),
        .dropout = (float)recipe->model.dropout,
        .attention_dropout = (float)recipe->model.attention_dropout,
        .activation_dropout = get_activation_dropout(recipe),
        .norm_epsilon = (float)recipe->model.layer_norm_epsilon,
        .initializer_range = get_initializer_range(recipe),
        .tied = recipe->model.tie_word_embeddings,
        .separate_embeddings = derive_separate_embeddings(recipe),
        .token_types = get_token_types(recipe),
        .next_sentence = recipe->model.next_sentence &&
                         objective_spec_head(recipe) == MODEL_HEAD_LM &&
                         recipe_architecture_has_next_sentence(recipe->model.architecture),
        .output_rows = count_output_rows(recipe),
        .examples = objective_spec_is_masked(recipe) ? recipe->batch.micro_size : 0,
        .head = objective_spec_head(recipe),
        .labels = count_head_outputs(recipe),
        .kv_heads = recipe->model.num_kv_heads,
        .head_width = recipe->model.head_dim,
        .window = derive_window(recipe),
        .no_rope_interval = recipe->model.no_rope_layer_interval,
        .position_buckets = recipe->model.relative_attention_num_buckets,
        .max_distance = recipe->model.relative_attention_max_distance,
        .attention_scale = get_attention_scale(recipe),
        .embedding_multiplier = get_embedding_multiplier(recipe),
        .residual_multiplier = recipe->model.residual_multiplier,
        .attention_softcap = recipe->model.attn_logit_softcapping,
        .logits_divisor = get_logits_divisor(recipe),
        .logits_softcap = recipe->model.final_logit_softcapping,
        .qkv_bias = recipe->model.use_qkv_bias,
        .logits_bias = recipe->model.final_logits_bias,
        .attention_bias = recipe->model.attention_bias,
        .mlp_bias = recipe->model.mlp_bias,
        .adapter =
            {
                .rank = recipe->adapter.type != ADAPTER_NONE ? recipe->adapter.rank : 0,
                .alpha = (float)recipe->adapter.alpha,
                .dropout = (float)recipe->adapter.dropout,
                .rank_stabilized = recipe->adapter.rslora,
                .targets = recipe->adapter.targets,
            },
        .rope_theta = recipe->model.rope_theta,
        .rotary_width = recipe_rotary_width(recipe),
        .rope_local_theta = recipe->model.rope_local_base_freq,
        .rope_scaling = get_rotary_scaling(recipe),
        .freezing = {.embeddings = recipe_list_contains(recipe->train.freeze, "embeddings"),
                     .backbone = recipe_list_contains(recipe->train.freeze, "backbone"),
                     .layers = recipe->train.freeze_layers},
        .recompute = recipe->train.activation_checkpointing,
        .fp8 = {get_fp8_recipe(recipe), recipe->fp8.amax_history,
                recipe->fp8.first_last_layers_bf16},
    };
    set_layer_types(recipe, &config);
    return config;
}

const char *derive_precision_name(const struct recipe *recipe)
{
    static const char *const names[] = {"fp32", "bf16", "fp8"};
    return names[recipe->train.precision];
}

bool derive_has_delayed_scales(const struct recipe *recipe)
{
    return is_fp8(recipe) && recipe->fp8.recipe == FP8_RECIPE_DELAYED;
}

status derive_check_fp8(const struct recipe *recipe, const struct model_config *config)
{
    struct model_fp8_sizes sizes = model_fp8_sizes(config, (int)recipe->parallel.tensor);
    if (!is_fp8(recipe)) {
        return STATUS_OK;
    }
    if (sizes.columns == 0) {
        return recipe_raise(recipe, STATUS_RECIPE, "train.precision",
                            "fp8: a model of one or two layers has no matrix in FP8; set "
                            "fp8.first_last_layers_bf16 to false, or train.precision to bf16");
    }
    if (sizes.not_multiple > 0) {
        return recipe_raise(recipe, STATUS_RECIPE, "train.precision",
                            "fp8: a matrix of a layer has %" PRId64 " rows or columns on a rank; "
                            "FP8 needs a multiple of %d. Change model.hidden_size, "
                            "model.intermediate_size or parallel.tensor, or set train.precision to "
                            "bf16",
                            sizes.not_multiple, (int)FP8_MULTIPLE);
    }
    return STATUS_OK;
}

bool derive_reads_last_row(const struct recipe *recipe)
{
    return !recipe_architecture_is_encoder(recipe->model.architecture);
}

int64_t derive_window(const struct recipe *recipe)
{
    bool is_encoder = recipe_architecture_is_encoder(recipe->model.architecture);
    int64_t window = recipe->model.sliding_window;
    window = is_encoder && window > 0 ? window / 2 + 1 : window;
    return window < recipe->model.max_position_embeddings ? window : 0;
}

int32_t derive_decoder_start(const struct recipe *recipe, const struct tokenizer *tokenizer)
{
    int64_t id = recipe->model.decoder_start_token_id;
    if (id >= 0 || tokenizer == NULL) {
        return (int32_t)id;
    }
    tokenizer = tokenizer_target(tokenizer);
    int32_t pad = tokenizer_get_specials(tokenizer).pad;
    if (recipe->model.architecture == ARCHITECTURE_MBART &&
        tokenizer_language_place(tokenizer) == TOKENIZER_LANGUAGE_LAST) {
        return -1; /* the language of the target */
    }
    bool pads = recipe->model.architecture == ARCHITECTURE_T5 && pad >= 0;
    return pads ? pad : tokenizer_eos(tokenizer);
}

int derive_dropout_scheme(const struct recipe *recipe)
{
    enum { SCHEME_T5 = 3 };
    return recipe->model.architecture == ARCHITECTURE_T5 ? SCHEME_T5 : DROPOUT_SCHEME;
}

int32_t derive_first_input(const struct recipe *recipe, const struct tokenizer *tokenizer)
{
    return recipe->model.architecture == ARCHITECTURE_MBART
               ? LOADER_START_LAST
               : derive_decoder_start(recipe, tokenizer);
}

status derive_masking(const struct recipe *recipe, const struct tokenizer *tokenizer,
                      int64_t vocabulary, struct masking *out)
{
    *out = (struct masking){
        .probability = recipe->mlm.mask_probability,
        .max_predictions = recipe->mlm.max_predictions,
        .whole_words = recipe->mlm.whole_words,
        .mask_id = tokenizer != NULL ? tokenizer_get_specials(tokenizer).mask : -1,
    };
    if (!objective_spec_is_masked(recipe) || out->mask_id < 0) {
        return STATUS_OK;
    }
    out->vocab_size = tokenizer_vocab_size(tokenizer);
    uint8_t *kinds = NULL;
    TRY(ALLOCATE(kinds, vocabulary, "the masking kinds of tokens"));
    memset(kinds, MASKING_NEVER, (size_t)vocabulary);
    masking_classify_tokens(tokenizer, kinds);
    out->token_kinds = kinds;
    return STATUS_OK;
}

static enum denoise_kind get_denoise_kind(enum recipe_noise noise)
{
    switch (noise) {
    case NOISE_BART:
        return DENOISE_BART;
    case NOISE_UL2:
        return DENOISE_UL2;
    case NOISE_PREFIX_LM:
        return DENOISE_PREFIX_LM;
    case NOISE_SPAN_CORRUPTION:
        break;
    }
    return DENOISE_SPAN_CORRUPTION;
}

/* Finds the language tokens of the training sources. Either all sources have a language or none has
 * one. tokenizer NULL: the tokens are not needed. */
static status find_languages(const struct recipe *r, const struct tokenizer *tokenizer,
                             struct denoise *out)
{
    static const char key[] = "data.train";
    bool is_known = tokenizer == NULL;
    out->has_language = r->data.train[0].language[0] != '\0';
    for (int i = 0; i < r->data.train_count; i++) {
        const char *language = r->data.train[i].language;
        if ((language[0] != '\0') != out->has_language) {
            return recipe_raise(r, STATUS_RECIPE, key,
                                "only some entries have a language; give all of them one");
        }
        if (out->has_language && out->kind == DENOISE_NONE) {
            return recipe_raise(
                r, STATUS_RECIPE, key,
                "language can only be used with objective: denoise; the examples of "
                "other objectives contain their language tokens");
        }
        if (out->has_language && tokenizer != NULL) {
            is_known =
                tokenizer_language_place(tokenizer) != TOKENIZER_LANGUAGE_NONE &&
                tokenizer_find_language(tokenizer, language, key, &out->languages[i]) == STATUS_OK;
        }
        if (out->has_language && !is_known) {
            status_clear();
            return recipe_raise(r, STATUS_RECIPE, key,
                                "the tokenizer has no language token %s; use a code of "
                                "mBART, for example es_XX",
                                language);
        }
    }
    out->language_first =
        tokenizer != NULL && tokenizer_language_place(tokenizer) == TOKENIZER_LANGUAGE_FIRST;
    return STATUS_OK;
}

status derive_denoise(const struct recipe *recipe, const struct tokenizer *tokenizer,
                      int64_t vocabulary, struct denoise *out)
{
    bool denoise = recipe->objective == OBJECTIVE_DENOISE;
    int64_t masks = recipe->denoise.replace_length;
    *out = (struct denoise){
        .kind = denoise ? get_denoise_kind(recipe->denoise.noise) : DENOISE_NONE,
        .density = recipe->denoise.noise_density,
        .mean_span = recipe->denoise.mean_noise_span_length,
        .single_tokens = recipe->denoise.mask_length == MASK_LENGTH_SUBWORD,
        .replacement = masks > 0   ? DENOISE_ONE_MASK
                       : masks < 0 ? DENOISE_MASKS
                                   : DENOISE_NOTHING,
        .permuted_sentences = recipe->denoise.permute_sentences,
        .rotation = recipe->denoise.rotate,
        .bos = -1,
        .eos = -1,
        .mask = -1,
    };
    uint8_t *ends = NULL;
    REQUIRE(out->kind == DENOISE_NONE || !tokenizer_has_target(tokenizer), STATUS_UNAVAILABLE,
            "objective denoise: sources and targets are parts of one text, but the tokenizer has "
            "two vocabularies; use a tokenizer with one");
    TRY(find_languages(recipe, tokenizer, out));
    if (out->kind == DENOISE_NONE || tokenizer == NULL) {
        return STATUS_OK;
    }
    TRY(out->kind == DENOISE_BART ? ALLOCATE(ends, vocabulary, "the ends of sentences")
                                  : STATUS_OK);
    return denoise_find_tokens(out, tokenizer, vocabulary, ends);
}

/* Computes the mean lengths of source and target of the objective denoise. */
static status find_noisy_lengths(const struct recipe *r, struct sample_lengths *out)
{
    enum { DRAWS = 64 };
    struct denoise denoise;
    int32_t *scratch = NULL;
    TRY(derive_denoise(r, NULL, 0, &denoise));
    int64_t window = denoise_window_tokens(&denoise, r->data.sequence_length);
    window = number_max(window, 2);
    TRY(ALLOCATE(scratch, 4 * window, "the lengths of corrupted texts"));
    *out = (struct sample_lengths){0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        int64_t source, target;
        denoise_lengths(&denoise, denoise_key((uint64_t)r->seed, 0, i), window, scratch, &source,
                        &target);
        out->source += (double)source / DRAWS;
        out->target += (double)target / DRAWS;
    }
    free(scratch);
    return STATUS_OK;
}

status derive_sample_lengths(const struct recipe *r, struct sample_lengths *out)
{
    double tokens = (double)r->data.sequence_length;
    bool has_source = recipe_architecture_has_decoder(r->model.architecture);
    *out = (struct sample_lengths){has_source ? tokens : 0, tokens};
    return r->objective == OBJECTIVE_DENOISE ? find_noisy_lengths(r, out) : STATUS_OK;
}

struct kernels_limits derive_kernel_limits(const struct model_config *config, int tensor,
                                           int64_t rows, int64_t sequence, bool training)
{
    struct model_fp8_sizes fp8 = model_fp8_sizes(config, tensor);
    return (struct kernels_limits){
        .rows = rows,
        .width = model_norm_width(config),
        .inner = model_inner_outputs(config) / tensor,
        .heads = (int)config->heads / tensor,
        .head_width = model_head_width(config),
        .sequence = sequence,
        .vocabulary = model_vocabulary_rows(config, tensor),
        .training = training,
        .vocabulary_shards = tensor,
        .bias_buckets = (int)model_position_buckets(config),
        .fp8_columns = training ? fp8.columns : 0,
        .fp8_weights = training ? fp8.weights : 0,
        .fp8_rowwise = training && config->fp8.recipe == MODEL_FP8_ROWWISE,
    };
}

int64_t derive_all_micro_batches(const struct recipe *r)
{
    return number_divide_up(r->batch.global_size, r->batch.micro_size);
}

int64_t derive_sample_rows(const struct recipe *r)
{
    enum example_kind kind = objective_spec_example(r);
    int64_t sequences = kind == EXAMPLE_PREFERENCE_PAIRS ? RESPONSES
                        : kind == EXAMPLE_EMBED          ? 2
                        : kind == EXAMPLE_CHOOSE         ? get_label_count(r)
                                                         : 1;
    return r->data.sequence_length * sequences;
}

int64_t derive_rows(const struct recipe *r)
{
    return r->batch.micro_size * derive_sample_rows(r);
}

int64_t derive_longest_sequence(const struct recipe *r)
{
    return r->data.sequence_length * (objective_spec_shares_prompt(r) ? RESPONSES : 1);
}

static status parse_loss_terms(const struct recipe *r, struct preference_settings *out)
{
    char word[RECIPE_NAME_BYTES];
    for (const char *at = r->dpo.loss_type; recipe_list_next(&at, word, sizeof word);) {
        enum preference_loss loss = preference_find(word);
        REQUIRE(loss != PREFERENCE_LOSSES, STATUS_INTERNAL, "unknown loss %s", word);
        if (out->terms == PREFERENCE_LOSSES) {
            return recipe_raise(r, STATUS_RECIPE, "dpo.loss_type",
                                "more than %d losses; list fewer losses", PREFERENCE_LOSSES);
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

status derive_preference_loss(const struct recipe *r, struct preference_settings *out)
{
    *out = (struct preference_settings){.beta = r->dpo.beta,
                                        .label_smoothing = r->dpo.label_smoothing,
                                        .discopop_tau = r->dpo.discopop_tau,
                                        .center_rewards = r->reward.center_rewards_coefficient};
    TRY(parse_loss_terms(r, out));
    for (int i = 0; i < out->terms; i++) {
        if (out->term[i].loss == PREFERENCE_EXO_PAIR && out->label_smoothing <= 0) {
            return recipe_raise(r, STATUS_RECIPE, "dpo.label_smoothing",
                                "0 makes the exo_pair loss infinite; set a value above 0");
        }
    }
    return STATUS_OK;
}

status derive_preference(const struct recipe *r, struct preference_settings *out)
{
    if (objective_spec_has_reference(r) && r->model.init_from[0] == '\0') {
        return recipe_raise(r, STATUS_RECIPE, "model.init_from",
                            "missing; objective dpo starts from this model and also uses it as the "
                            "reference model");
    }
    return derive_preference_loss(r, out);
}

int64_t derive_micro_batches(const struct recipe *r, int data_ranks)
{
    if (r->parallel.reproducible) {
        return number_divide_up(derive_all_micro_batches(r), data_ranks);
    }
    struct comm_range shard = partition_shard(r->batch.global_size, 1, data_ranks, 0);
    return number_divide_up(shard.count, r->batch.micro_size);
}

enum dtype derive_moment_dtype(const struct recipe *r)
{
    return r->optimizer.state_dtype == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

int64_t derive_bucket_elems(const struct recipe *r)
{
    return r->parallel.bucket_mib * ((1 << 20) / (int64_t)sizeof(float));
}
