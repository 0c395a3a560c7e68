/* A recipe holds every setting of a job. It is read from a YAML file and the command line, and it
 * is checked before any work begins.
 *
 * One settings table (table.c) defines the keys. Parsing, checks, `bireme plan`, the resolved
 * recipe and recipes/README.md use it. Parsing is strict. These are errors: an unknown or repeated
 * key, a wrong type, a value out of range, two conflicting settings, a YAML alias, tag or second
 * document. The message names file, line, column, key and reason, and suggests a key for a
 * misspelled one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "kernels/rotary.h"
#include "trainer/model/config.h"

#define RECIPE_PATH_BYTES 1024
#define RECIPE_LANGUAGE_BYTES 16
#define RECIPE_NAME_BYTES 64
#define RECIPE_LIST_BYTES 256
#define RECIPE_LAYER_TYPES_BYTES 4096
#define RECIPE_ROPE_LIST_BYTES 4096
#define RECIPE_ROPE_FACTORS_MAX 128
enum { RECIPE_SOURCES_MAX = 64, RECIPE_SETTINGS_MAX = 192 };

/* All objectives: constant, and name in recipes. The enum, the choices of the settings table and
 * the names of names.c are made of this list. trainer/setup/objective_spec.c describes each. */
#define OBJECTIVE_LIST(FIRST, NEXT)                                                                \
    FIRST(CLM, "clm")                                                                              \
    NEXT(MLM, "mlm")                                                                               \
    NEXT(SFT, "sft")                                                                               \
    NEXT(DPO, "dpo")                                                                               \
    NEXT(REWARD, "reward")                                                                         \
    NEXT(CLASSIFY, "classify")                                                                     \
    NEXT(REGRESS, "regress")                                                                       \
    NEXT(CLASSIFY_TOKENS, "classify_tokens")                                                       \
    NEXT(ANSWER, "answer")                                                                         \
    NEXT(CHOOSE, "choose")                                                                         \
    NEXT(EMBED, "embed")                                                                           \
    NEXT(SEQ2SEQ, "seq2seq")                                                                       \
    NEXT(DENOISE, "denoise")

/* OBJECTIVE_CLM, OBJECTIVE_MLM, ... */
#define OBJECTIVE_CONSTANT(constant, name) OBJECTIVE_##constant,
enum recipe_objective { OBJECTIVE_LIST(OBJECTIVE_CONSTANT, OBJECTIVE_CONSTANT) };

#define OBJECTIVE_ONE_MORE(constant, name) +1
enum { RECIPE_OBJECTIVES = 0 OBJECTIVE_LIST(OBJECTIVE_ONE_MORE, OBJECTIVE_ONE_MORE) };

/* The constants of each enum have the order of the choices in the settings table. */
enum recipe_activation {
    RECIPE_ACTIVATION_NULL,
    RECIPE_GELU_TANH,
    RECIPE_GELU_ERF,
    RECIPE_RELU,
    RECIPE_RELU2,
    RECIPE_SILU
};
enum recipe_norm_type {
    NORM_TYPE_NULL,
    NORM_TYPE_LAYERNORM,
    NORM_TYPE_RMSNORM,
    NORM_TYPE_NONPARAMETRIC_LAYERNORM
};
enum recipe_tristate { RECIPE_AUTO, RECIPE_TRUE, RECIPE_FALSE }; /* RECIPE_AUTO: auto or null */
enum recipe_noise { NOISE_SPAN_CORRUPTION, NOISE_BART, NOISE_UL2, NOISE_PREFIX_LM };
enum recipe_mask_length { MASK_LENGTH_SPAN_POISSON, MASK_LENGTH_SUBWORD };
enum recipe_adapter { ADAPTER_NONE, ADAPTER_LORA };
enum recipe_optimizer { RECIPE_ADAMW, RECIPE_LAMB };
enum recipe_schedule {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_WSD,
    SCHEDULE_POLYNOMIAL_NVIDIA,
    SCHEDULE_INVERSE_SQRT
};
enum recipe_mixing { MIXING_WEIGHT, MIXING_EXAMPLES };
enum recipe_packing {
    RECIPE_PACKING_NONE,
    RECIPE_PACKING_BFD,
    RECIPE_PACKING_BFD_SPLIT,
    RECIPE_PACKING_WRAPPED
};
enum recipe_precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP8 };
enum recipe_fp8_recipe { FP8_RECIPE_DELAYED, FP8_RECIPE_ROWWISE };
enum recipe_on_spike { ON_SPIKE_WARN, ON_SPIKE_SKIP, ON_SPIKE_ROLLBACK };
enum recipe_device { RECIPE_DEVICE_AUTO, RECIPE_DEVICE_CPU, RECIPE_DEVICE_CUDA };

struct recipe_source {
    char path[RECIPE_PATH_BYTES];         /* shard or glob */
    char language[RECIPE_LANGUAGE_BYTES]; /* of objective denoise; "": none */
    double weight;
};

enum location_kind { LOCATION_DEFAULT = 0, LOCATION_FILE, LOCATION_COMMAND_LINE };

struct source_location {
    enum location_kind kind;
    int line, column; /* of LOCATION_FILE; else 0 */
};

/* Source file of a recipe and locations of its settings, for messages. */
struct recipe_origin {
    char name[RECIPE_PATH_BYTES]; /* name of the file */
    struct source_location locations[RECIPE_SETTINGS_MAX];
};

/* The settings; recipes/README.md describes them. recipe_parse replaces each null that has a
 * fallback ("null: ...; resolved" below). Any other null is stored as 0 in an enum and in a number
 * that must be above 0. It is stored as -1 in other numbers, and as "" in strings. */
struct recipe {
    enum recipe_objective objective;
    char run_dir[RECIPE_PATH_BYTES];
    int64_t seed;
    struct {
        enum recipe_architecture architecture;
        int64_t num_layers, hidden_size, num_heads, intermediate_size, max_position_embeddings;
        int64_t embedding_size;     /* null: 128 for albert, else 0 (hidden_size); resolved */
        int64_t num_hidden_groups;  /* null: 1 for albert, else 0 (num_layers); resolved */
        int64_t num_decoder_layers; /* null: num_layers for encoder-decoders, else 0; resolved */
        int64_t decoder_start_token_id; /* null: a token of the tokenizer, see derive.h */
        bool scale_embedding;
        bool share_encoder_decoder_embeddings;
        int64_t decoder_vocab_size; /* null: 0, as the encoder; derive_decoder_vocabulary */
        bool final_logits_bias;
        int64_t relative_attention_num_buckets, relative_attention_max_distance;
        enum recipe_tristate scale_decoder_outputs; /* null: tie_word_embeddings; resolved */
        double initializer_factor;
        int64_t num_kv_heads;           /* null: num_heads; resolved */
        int64_t head_dim;               /* null: hidden_size / num_heads; resolved */
        int64_t sliding_window;         /* null: 0, attention to all (earlier) tokens */
        int64_t sliding_window_pattern; /* null: default of the family; 0: no pattern; resolved */
        char layer_types[RECIPE_LAYER_TYPES_BYTES]; /* null: "", or from sliding_window_pattern */
        int64_t query_pre_attn_scalar; /* null: head_dim for gemma2 and gemma3_text; resolved */
        double rope_local_base_freq;   /* null: 10000 for gemma3_text, else 0; resolved */
        double partial_rotary_factor;  /* null: 0.25 for stablelm, else 0 (all columns); resolved */
        int64_t no_rope_layer_interval; /* null: 4 for smollm3, else 0; resolved */
        double embedding_multiplier, attention_multiplier, residual_multiplier; /* null: 0 */
        double logits_scaling;                                                  /* null: 0 */
        double attn_logit_softcapping, final_logit_softcapping; /* null: 0, no soft-cap */
        bool use_qkv_bias, attention_bias, mlp_bias;
        double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
        double rope_beta_fast, rope_beta_slow;
        double rope_attention_factor; /* null: 0, computed from rope_factor */
        char rope_short_factor[RECIPE_ROPE_LIST_BYTES], rope_long_factor[RECIPE_ROPE_LIST_BYTES];
        enum rotary_kind rope_type;
        int64_t rope_original_positions;    /* null: max_position_embeddings; resolved */
        int64_t vocab_size;                 /* 0: the vocabulary size of the tokenizer */
        double dropout;                     /* of hidden states and embeddings */
        double attention_dropout;           /* null: dropout; resolved */
        double activation_dropout;          /* of the inner features, of some encoder-decoders */
        double layer_norm_epsilon;          /* null: 1e-6 for t5, else 1e-5; resolved */
        enum recipe_activation activation;  /* null: by architecture; resolved */
        enum norm_placement norm_placement; /* null: post for free parts; resolved */
        enum recipe_norm_type norm_type;    /* null: layernorm for free parts; resolved */
        enum position_kind position_embedding_type; /* null: sinusoidal for free parts */
        enum qk_norm qk_norm;
        bool gated_linear_unit;
        bool norm_bias, normalize_embedding, head_transform, classifier_bias, decoder_bias;
        double initializer_range; /* standard deviation */
        bool tie_word_embeddings;
        int64_t type_vocab_size; /* null: as the architecture; resolved */
        bool next_sentence;      /* bert, albert: pooler and head of two labels */
        int64_t num_labels;      /* labels, or choices of objective choose; null: from the shards */
        char init_from[RECIPE_PATH_BYTES];
        bool ignore_mismatched_tokenizer; /* the tokens of init_from may have other ids */
    } model;
    struct {
        char tokenizer[RECIPE_PATH_BYTES];
        struct recipe_source train[RECIPE_SOURCES_MAX];
        int train_count;
        char validation[RECIPE_PATH_BYTES];
        int64_t sequence_length; /* null: max_position_embeddings; resolved */
        bool document_mask;      /* restrict attention and position ids to documents */
        bool text_pairs;         /* every example has two texts; set from the shards */
        bool shuffle;
        enum recipe_mixing mixing;
        int64_t mixing_maximum;    /* null: 0 */
        double mixing_temperature; /* of MIXING_EXAMPLES */
    } data;
    struct {
        enum recipe_adapter type;
        int64_t rank;
        double alpha, dropout;
        bool rslora;
        char targets[RECIPE_LIST_BYTES]; /* null: by architecture; resolved */
        char base[RECIPE_PATH_BYTES];
        char base_weights[RECIPE_NAME_BYTES + 1]; /* fingerprint of the base model */
    } adapter;
    struct {
        enum recipe_packing packing;
        int64_t max_length; /* null: data.sequence_length; resolved */
        enum recipe_tristate completion_only_loss;
        enum recipe_tristate join_encoding;
        bool assistant_only_loss, skip_empty;
    } sft;
    struct {
        int64_t global_size, micro_size; /* sequences; null micro_size: at most 8; resolved */
    } batch;
    struct {
        double mask_probability;
        int64_t max_predictions; /* per example; null: from mask_probability; resolved */
        bool whole_words;
    } mlm;
    struct {
        enum recipe_noise noise;
        double noise_density; /* null: 0.3 for bart, else 0.15; resolved */
        double mean_noise_span_length;
        enum recipe_mask_length mask_length;
        int64_t replace_length; /* as in fairseq: -1, 0 or 1 */
        double permute_sentences, rotate;
    } denoise;
    struct {
        int64_t tensor, zero_stage;
        bool sequence;      /* split norms and dropout by rows over a tensor-parallel group */
        bool deterministic; /* same bits in every run of a layout */
        enum recipe_precision reduce_dtype; /* of gradients sent to other ranks */
        bool reproducible;                  /* same bits for any number of data-parallel ranks */
        int64_t threads;        /* CPU threads per rank; 0: cores / ranks of this host */
        int64_t bucket_mib;     /* size of a gradient bucket, MiB */
        double timeout_seconds; /* limit of a wait for other ranks and of a phase */
        double start_seconds;   /* from the start of MPI to the first evaluation or step */
        int64_t check_every;    /* steps between comparisons of the replicas; 0: never */
    } parallel;
    struct {
        enum recipe_optimizer name;
        double learning_rate, beta1, beta2, epsilon, weight_decay;
        double max_grad_norm; /* 0: no clipping */
        bool nvlamb;
        bool stochastic_rounding;
        enum recipe_precision state_dtype; /* of both moments */
        char init_from[RECIPE_PATH_BYTES];
    } optimizer;
    struct {
        enum recipe_schedule name;
        int64_t warmup_steps;
        double warmup_ratio; /* fraction of max_steps; alternative to warmup_steps; -1: not given */
        double min_ratio;    /* final rate / learning_rate */
        double power;        /* polynomial */
        double decay_ratio;  /* wsd: fraction of the steps, at the end, in which the rate decays */
    } schedule;
    struct {
        int64_t max_steps;
        double epochs;                 /* alternative to max_steps; 0: not given */
        double max_minutes;            /* 0: no limit. Ends normally, exit code 0 */
        double wall_minutes;           /* 0: no limit. Saves and stops before it, exit code 75 */
        double label_smoothing_factor; /* 0: none */
        enum recipe_on_spike on_spike; /* trainer/train/step/spike.h */
        int64_t max_spikes;            /* that are skipped or rolled back */
        enum recipe_precision precision;
        enum recipe_device device;
        enum recompute_mode activation_checkpointing;
        bool cuda_graphs;
        double peak_tflops;             /* of each device; 0: by the name of the GPU */
        char freeze[RECIPE_LIST_BYTES]; /* list of embeddings, backbone */
        int64_t freeze_layers;
    } train;
    struct {
        enum recipe_fp8_recipe recipe;
        int64_t amax_history;        /* steps */
        bool first_last_layers_bf16; /* these layers are not FP8 */
    } fp8;
    struct {
        char loss_type[RECIPE_LIST_BYTES];    /* names of preference.h */
        char loss_weights[RECIPE_LIST_BYTES]; /* "": every weight is 1 */
        double beta, label_smoothing, discopop_tau;
        enum recipe_tristate shared_prefix;
    } dpo;
    struct {
        double center_rewards_coefficient;
    } reward;
    struct {
        double no_answer_threshold;
    } answer;
    struct {
        int64_t every;   /* steps; 0: only before the first and after the last step */
        int64_t batches; /* of the global size; 0: the whole validation set */
        char metric[RECIPE_NAME_BYTES]; /* to compare evaluations with */
        enum recipe_tristate greater_is_better;
        int64_t patience; /* evaluations without improvement; 0: no early stopping */
        double min_improvement;
        char tasks[RECIPE_PATH_BYTES]; /* "": none */
        int64_t task_limit;            /* documents of each task; 0: all */
        bool generate;                 /* generate the targets of the validation set */
        int64_t generation_max_length; /* tokens with the start token; 0: not set */
        int64_t generation_num_beams;  /* 0: not set */
    } evaluate;
    struct {
        char prompt[RECIPE_LIST_BYTES]; /* "": no samples */
        int64_t max_new_tokens;
        double temperature; /* 0: greedy */
    } generate;
    struct {
        int64_t every, keep;
        bool keep_best, async;
    } checkpoint;
    struct {
        int64_t every;
        bool tensorboard;
        bool report;
    } log;
    struct recipe_origin origin; /* must be last; not a setting */
};

/* recipe_read - read a recipe from a file, apply "section.key=value" overrides and check it.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_RECIPE "file:line:column: key: reason" */
status recipe_read(const char *path, char *const *overrides, int count, struct recipe *out);

/* recipe_read_draft - read a recipe without the checks of pairs of settings.
 *
 * Nulls are not replaced, except run_dir. recipe_complete does the rest.
 *
 * Errors    as recipe_read */
status recipe_read_draft(const char *path, char *const *overrides, int count, struct recipe *out);

/* recipe_complete - replace the nulls of a draft and check pairs of settings.
 *
 * Settings of the model that the draft leaves open come from `initial`, the recipe of the initial
 * model; NULL: they have their defaults.
 *
 * Errors    STATUS_RECIPE */
status recipe_complete(struct recipe *recipe, const struct recipe *initial);

/* recipe_compare_initial - compare the settings of a draft with the settings of its initial model.
 *
 * A warning lists the settings that change what the weights compute.
 *
 * Errors    STATUS_RECIPE with all sizes that differ, their lines and the values to write */
status recipe_compare_initial(const struct recipe *recipe, const struct recipe *initial);

/* recipe_parse - read a recipe from memory, like recipe_read. Messages contain `name`. */
status recipe_parse(const char *name, const char *text, size_t bytes, char *const *overrides,
                    int count, struct recipe *out);

/* recipe_set_defaults - set every default, without resolving nulls and without checks. */
void recipe_set_defaults(struct recipe *out);

/* recipe_warn - warn about settings that the recipe gives and the program does not read, and about
 * learned positions that are not trained.
 *
 * An example of the first is schedule.power with a cosine schedule. A setting with the value that
 * it has if it is not given is not listed, so that a resolved recipe gives no warning. */
void recipe_warn(const struct recipe *recipe);

/* recipe_is_given - return whether the file or the command line gives a setting. */
bool recipe_is_given(const struct recipe *recipe, const char *key);

/* recipe_is_on_command_line - return whether the command line gives a setting. */
bool recipe_is_on_command_line(const struct recipe *recipe, const char *key);

/* recipe_raise - raise an error about a setting of a parsed recipe.
 *
 * The message is "file:line:column: key: reason".
 *
 * Returns   code */
status recipe_raise(const struct recipe *recipe, status code, const char *key, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));

/* recipe_annotate_error - add the location and key of a setting, and a remedy, to the pending
 * error.
 *
 * For errors that a value of the recipe causes, such as a missing file. `remedy` may be "". Does
 * nothing if `result` is STATUS_OK.
 *
 * Returns   result */
status recipe_annotate_error(const struct recipe *recipe, const char *key, status result,
                             const char *remedy);

/* recipe_objective_name - return the name of an objective in recipes: "clm", ... */
const char *recipe_objective_name(enum recipe_objective objective);

/* recipe_objective_find - find an objective by its name.
 *
 * Returns   false, without a result, if no objective has this name */
bool recipe_objective_find(const char *name, enum recipe_objective *out);

/* recipe_activation_is_gelu - return whether an activation is one of the two GELUs. */
bool recipe_activation_is_gelu(enum recipe_activation activation);

/* recipe_activation_is_gate - return whether a gated linear unit can have an activation. */
bool recipe_activation_is_gate(enum recipe_activation activation);

/* recipe_architecture_name - return the name of an architecture in recipes: "gpt2", ... */
const char *recipe_architecture_name(enum recipe_architecture architecture);

/* recipe_architecture_is_encoder - return whether a model is an encoder alone, like bert. */
bool recipe_architecture_is_encoder(enum recipe_architecture architecture);

/* recipe_architecture_is_free - return true for transformer_encoder and transformer_decoder, which
 * accept model.norm_placement and the other keys of parts. */
bool recipe_architecture_is_free(enum recipe_architecture architecture);

/* recipe_is_rotary - return whether the model of a recipe has rotary positions. */
bool recipe_is_rotary(const struct recipe *recipe);

/* recipe_has_position_table - return whether the model of a recipe has a weight for each position.
 * Marian has sinusoidal positions; the relative position bias of T5 has weights for its buckets. */
bool recipe_has_position_table(const struct recipe *recipe);

/* recipe_architecture_token_types - return the default of model.type_vocab_size. */
int64_t recipe_architecture_token_types(enum recipe_architecture architecture);

/* recipe_architecture_has_next_sentence - return whether model.next_sentence has an effect. */
bool recipe_architecture_has_next_sentence(enum recipe_architecture architecture);

/* recipe_architecture_has_decoder - return true for encoder-decoders: marian, t5, bart, mbart. */
bool recipe_architecture_has_decoder(enum recipe_architecture architecture);

/* recipe_architecture_is_rotary - return whether an architecture always has rotary positions, like
 * llama and modernbert. Such architectures have the keys model.rope_* and model.num_kv_heads. */
bool recipe_architecture_is_rotary(enum recipe_architecture architecture);

/* recipe_architecture_targets - return the default of adapter.targets, as in peft. */
const char *recipe_architecture_targets(enum recipe_architecture architecture);

/* recipe_has_layer_types - return whether a model has layers with a window and layers without it,
 * from model.layer_types or model.sliding_window_pattern. */
bool recipe_has_layer_types(const struct recipe *recipe);

/* recipe_layer_is_local - return whether a layer has sliding_attention. */
bool recipe_layer_is_local(const struct recipe *recipe, int64_t layer);

/* recipe_rotary_width - return the number of columns of a head that rotate. */
int64_t recipe_rotary_width(const struct recipe *recipe);

/* recipe_uses_long_factors - return whether rope_type longrope uses rope_long_factor. */
bool recipe_uses_long_factors(const struct recipe *recipe);

/* recipe_rope_factors - read the numbers of a list of factors, at most RECIPE_ROPE_FACTORS_MAX.
 *
 * Returns   the number of entries of the list */
int64_t recipe_rope_factors(const char *list, double out[RECIPE_ROPE_FACTORS_MAX]);

/* recipe_tensor_divisor - return the number that parallel.tensor must divide: the greatest common
 * divisor of the key-value heads (which divide the heads) and the inner width. */
int64_t recipe_tensor_divisor(const struct recipe *recipe);

/* recipe_rope_type_name - return the name of a rope type in recipes: "default", ... */
const char *recipe_rope_type_name(enum rotary_kind type);

/* recipe_list_next - copy the next entry of a list setting and advance the cursor.
 *
 * *cursor starts as the setting's string.
 *
 * Memory    entry[bytes]
 * Returns   false at the end of the list */
bool recipe_list_next(const char **cursor, char *entry, size_t bytes);

/* recipe_list_contains - return whether a list setting has this entry. */
bool recipe_list_contains(const char *list, const char *wanted);

/* recipe_list_same_entries - return whether two lists have the same entries, in any order. */
bool recipe_list_same_entries(const char *a, const char *b);

/* Receives the key of a setting and its value as JSON. */
typedef void (*recipe_visitor)(void *user, const char *key, const char *json);

/* recipe_visit - call `visit` for every setting in order.
 *
 * A mixture of data sets gives one call per entry, with the key "data.train[]". */
void recipe_visit(const struct recipe *recipe, recipe_visitor visit, void *user);

/* recipe_write - write all settings as YAML.
 *
 * The output is a valid recipe that reads back equal.
 *
 * Errors    STATUS_WRITE */
status recipe_write(const struct recipe *recipe, FILE *file);

/* recipe_write_model - write the section `model` as YAML, with the settings that the model has and
 * that are not null, apart from init_from. */
void recipe_write_model(const struct recipe *recipe, FILE *file);

/* recipe_document - write recipes/README.md: name, type, default and description of every key. */
void recipe_document(FILE *file);

/* recipe_differences - list the settings that differ and that must not change when a run is
 * resumed.
 *
 * Settings that may change are marked * in recipes/README.md. A default that follows from another
 * setting, such as sft.max_length, is not listed in addition to that setting.
 *
 * Memory    text[bytes] receives "key: checkpoint VALUE, recipe VALUE" entries joined by "; "
 * Returns   the number of differences */
int recipe_differences(const struct recipe *saved, const struct recipe *now, char *text,
                       size_t bytes);
