/* A recipe: every setting of a job, from YAML and the command line, checked before any work.
 *
 * One settings table (recipe_table.c) serves parsing, checks, `--help`, the resolved recipe and
 * recipes/README.md. Strict: an unknown or repeated key, a wrong type, a value out of range, two
 * settings that contradict each other, an alias, a tag, a second document are errors with file, line,
 * column, key, reason and, for a near miss, the key that was meant. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#define RECIPE_PATH_BYTES 1024
#define RECIPE_NAME_BYTES 64
#define RECIPE_LIST_BYTES 256
enum { RECIPE_SOURCES_MAX = 64, RECIPE_SETTINGS_MAX = 128 };

enum recipe_schedule {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_WSD,
    SCHEDULE_POLYNOMIAL_NVIDIA
};
enum recipe_packing { SFT_PACK_NONE, SFT_PACK_BFD, SFT_PACK_BFD_SPLIT, SFT_PACK_WRAPPED };
enum recipe_completion_only { COMPLETION_AUTO, COMPLETION_TRUE, COMPLETION_FALSE };
enum recipe_greater { GREATER_AUTO, GREATER_TRUE, GREATER_FALSE };
enum recipe_precision { PRECISION_FP32, PRECISION_BF16 };
enum recipe_prefix { PREFIX_AUTO, PREFIX_TRUE, PREFIX_FALSE };
enum recipe_device { RECIPE_DEVICE_AUTO, RECIPE_DEVICE_CPU, RECIPE_DEVICE_CUDA };

struct recipe_source {
    char path[RECIPE_PATH_BYTES]; /* a shard or a glob */
    double weight;
};

/* Where a recipe and its settings came from, for messages; in the settings table's order. */
struct recipe_origin {
    char name[RECIPE_PATH_BYTES]; /* of the file */
    struct recipe_place {
        int line, column; /* 0: the default; -1: the command line */
    } places[RECIPE_SETTINGS_MAX];
};

/* "null" in a recipe is 0 for numbers that must be above 0, -1 for others, "" for texts. */
struct recipe {
    char objective[RECIPE_NAME_BYTES];
    char run_dir[RECIPE_PATH_BYTES];
    int64_t seed;
    struct {
        char architecture[RECIPE_NAME_BYTES];
        int64_t num_layers, hidden_size, num_heads, intermediate_size, max_position_embeddings;
        int64_t num_kv_heads; /* null: as num_heads; resolved after parsing */
        double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
        char rope_type[RECIPE_NAME_BYTES]; /* default | linear | llama3 */
        int64_t rope_original_positions;   /* null: as max_position_embeddings; resolved */
        int64_t vocab_size;                /* 0: the tokenizer's */
        double dropout;                    /* hidden states and embeddings */
        double attention_dropout;          /* null: as dropout; resolved after parsing */
        double layer_norm_epsilon;
        char activation
            [RECIPE_NAME_BYTES];  /* gelu_tanh | gelu_erf (Hugging Face: gelu_new | gelu) */
        double initializer_range; /* 0.02 */
        bool tie_word_embeddings;
        int64_t
            type_vocab_size; /* rows of the segment table; null: 2 in bert, 1 in roberta, 0 in gpt2 */
        bool next_sentence; /* bert: pooler and next-sentence head */
        int64_t
            num_labels; /* of classify, classify_tokens; of choose: choices; null: the training shards' */
        char init_from[RECIPE_PATH_BYTES];
    } model;
    struct {
        char tokenizer[RECIPE_PATH_BYTES];
        struct recipe_source train[RECIPE_SOURCES_MAX];
        int train_count;
        char validation[RECIPE_PATH_BYTES];
        int64_t sequence_length;
        bool document_mask; /* attention and positions stay inside documents; default false */
        bool shuffle;
    } data;
    struct {
        char type[RECIPE_NAME_BYTES]; /* "lora"; "": none */
        int64_t rank;
        double alpha, dropout;
        bool rslora;
        char targets[RECIPE_LIST_BYTES];
        char base[RECIPE_PATH_BYTES];
        char base_weights[RECIPE_NAME_BYTES + 1];
    } adapter;
    struct {
        enum recipe_packing packing;
        int64_t max_length; /* null: data.sequence_length; resolved */
        enum recipe_completion_only completion_only_loss;
        bool assistant_only_loss, skip_empty;
    } sft;
    struct {
        int64_t global_size, micro_size;
    } batch;
    struct {
        double mask_probability;
        int64_t max_predictions; /* of an example; null: resolved after parsing */
        bool whole_words;
    } mlm;
    struct {
        int64_t tensor, zero_stage;
        bool
            sequence; /* norms and dropout on a share of the rows of each rank that shares a model */
        bool deterministic; /* NCCL's sums are the same bits in each run of a layout */
        enum recipe_precision reduce_dtype; /* gradients on their way to other ranks */
        bool reproducible;                  /* the same bits at any number of data-parallel ranks */
        int64_t threads;        /* CPU threads per rank; 0: cores / ranks of this host */
        int64_t bucket_mib;     /* gradient bucket, MiB */
        double timeout_seconds; /* how long a rank may stay silent */
    } parallel;
    struct {
        char name[RECIPE_NAME_BYTES];
        double learning_rate, beta1, beta2, epsilon, weight_decay,
            max_grad_norm; /* 0: no clipping */
        bool nvlamb;
        bool stochastic_rounding;
        char init_from[RECIPE_PATH_BYTES];
    } optimizer;
    struct {
        enum recipe_schedule name;
        int64_t warmup_steps;
        double warmup_ratio; /* of max_steps; alternative to warmup_steps; -1: not given */
        double min_ratio;    /* of learning_rate, at the end */
        double power;        /* polynomial */
        double decay_ratio;  /* wsd: share of the steps at the end that decays */
    } schedule;
    struct {
        int64_t max_steps;
        double epochs;       /* alternative to max_steps; 0: not given */
        double max_minutes;  /* 0: none. A normal end, code 0 */
        double wall_minutes; /* 0: none. Save and stop before it, code 75 */
        enum recipe_precision precision;
        enum recipe_device device;
        char activation_checkpointing[RECIPE_NAME_BYTES];
        bool cuda_graphs;               /* a GPU's launches of a micro-batch are started together */
        char freeze[RECIPE_LIST_BYTES]; /* words of embeddings, backbone */
        int64_t freeze_layers;
    } train;
    struct {
        char loss_type[RECIPE_LIST_BYTES];    /* names of preference.h */
        char loss_weights[RECIPE_LIST_BYTES]; /* "": all 1 */
        double beta, label_smoothing, discopop_tau;
        enum recipe_prefix shared_prefix;
    } dpo;
    struct {
        double center_rewards_coefficient;
    } reward;
    struct {
        double no_answer_threshold;
    } answer;
    struct {
        int64_t every;   /* steps; 0: only before the first and after the last step */
        int64_t batches; /* of the global size; 0: the whole held-out part */
        char metric[RECIPE_NAME_BYTES]; /* by which evaluations are compared */
        enum recipe_greater greater_is_better;
        int64_t patience; /* evaluations without improvement; 0: without end */
        double min_improvement;
    } evaluate;
    struct {
        int64_t every, keep;
        bool keep_best, async;
    } checkpoint;
    struct {
        int64_t every;
        bool tensorboard;
    } log;
    struct recipe_origin origin; /* last: not a setting */
};

/* recipe_read - parse the file and the overrides "section.key=value", fill in defaults, check.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_RECIPE "file:line:column: key: reason";
 *           nothing else has been touched yet */
status recipe_read(const char *path, char *const *overrides, int count, struct recipe *out);

/* recipe_parse - the same from memory; name stands for the file in messages. */
status recipe_parse(const char *name, const char *text, size_t bytes, char *const *overrides,
                    int count, struct recipe *out);

/* recipe_preset - every default, nothing resolved and nothing checked. */
void recipe_preset(struct recipe *out);

/* recipe_raise - an error at a setting, after the recipe was read: "file:line:column: key: reason".
 *
 * Errors    returns code, always */
status recipe_raise(const struct recipe *recipe, status code, const char *key, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));

/* recipe_blame - what went wrong with a setting's value (a file that is not there): the pending note
 * gets the setting's place in front and, where it is no empty text, the remedy behind.
 *
 * Errors    returns result, also STATUS_OK, and then does nothing */
status recipe_blame(const struct recipe *recipe, const char *key, status result,
                    const char *remedy);

/* recipe_list_next - the next entry of a list into word[bytes]; false: there is none.  *at begins as the list. */
bool recipe_list_next(const char **at, char *word, size_t bytes);

/* recipe_visit - every setting in order: its key and its value as JSON. A mixture comes as several
 * calls with the key "data.train[]". */
typedef void (*recipe_visitor)(void *user, const char *key, const char *json);
void recipe_visit(const struct recipe *recipe, recipe_visitor visit, void *user);

/* recipe_write - the resolved recipe as YAML: every key, again a valid recipe that reads back equal. */
status recipe_write(const struct recipe *recipe, FILE *file);

/* recipe_document - recipes/README.md's table of keys: name, type, default, range, meaning. */
void recipe_document(FILE *file);

/* recipe_differences - settings in which two recipes differ and that a resumed run may not change.
 *
 * May change: run_dir, paths, parallel.*, batch.micro_size, train.max_steps, epochs, max_minutes,
 * wall_minutes, device, evaluate.*, checkpoint.*, log.*.
 * Memory    text[bytes] gets "key: checkpoint VALUE, recipe VALUE" joined by "; "
 * Errors    returns the number of differences */
int recipe_differences(const struct recipe *saved, const struct recipe *now, char *text,
                       size_t bytes);
