/* Table of the transformers architectures that import and export support: their configuration keys,
 * classes, and tensor names.
 *
 * trainer/model/architecture.c defines the standard tensor names; this table lists other names that
 * a file may use. To add an architecture, add a row to the table in architectures.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "trainer/model/model.h"
#include "trainer/recipe/recipe.h"

enum {
    HUGGINGFACE_CLASSES_MAX = 4,
    HUGGINGFACE_KEYS_MAX = 16,
    HUGGINGFACE_SWITCHES_MAX = 4,
    HUGGINGFACE_ALIASES_MAX = 2,
    HUGGINGFACE_BUFFERS_MAX = 3,
    HUGGINGFACE_UNUSED_MAX = 2,
    HUGGINGFACE_SIZES_MAX = 2
};

/* A number in config.json that corresponds to a setting of the recipe's section `model`. */
struct huggingface_key {
    const char *name;
    bool is_integer;      /* true: int64_t above 0; false: double */
    bool is_optional;     /* null selects the recipe's default */
    size_t recipe_offset; /* offset of the setting in struct recipe */
    double default_value; /* the default of transformers; 0: null */
};

/* A setting that changes the computation, and the only supported value. */
struct huggingface_switch {
    const char *name;
    bool required;
};

/* A class of transformers and the heads that its files must contain. */
struct huggingface_class {
    const char *name;
    bool has_lm_head;    /* language-modeling head, apart from a tied output matrix */
    bool has_label_head; /* next-sentence head; for a task class, the head of the task */
};

struct huggingface_architecture {
    const char *model_type; /* also the name of model.architecture in recipes */
    enum recipe_architecture architecture;
    const char *class_stem;          /* start of all class names */
    enum recipe_objective objective; /* of pretraining: clm or mlm; seq2seq */
    const char *prefix;    /* of all names except the heads'; the class without heads omits it */
    const char *qa_prefix; /* replaces prefix in ...ForQuestionAnswering; NULL: the same */
    struct huggingface_class classes[HUGGINGFACE_CLASSES_MAX]; /* terminated by an empty one */
    struct huggingface_key keys[HUGGINGFACE_KEYS_MAX];
    struct huggingface_switch switches[HUGGINGFACE_SWITCHES_MAX];
    struct {
        const char *name;
        int64_t value;
    } fixed_sizes[HUGGINGFACE_SIZES_MAX]; /* keys with one supported value, also the default */
    const char *null_key;                 /* a key for which only null is supported */
    bool has_qkv_bias, has_attention_bias, has_mlp_bias; /* the keys use_qkv_bias, ... exist */
    const char *dropout_key; /* a second dropout rate, for which Bireme uses model.dropout */
    double default_dropout;
    const char *activation_key, *default_activation;
    bool has_gate_prefix;  /* "gated-ACTIVATION" selects a network with a gate; "gated-gelu" is the
                            * tanh form */
    int64_t decoder_start; /* default of decoder_start_token_id, of an encoder-decoder */
    /* The token tables of the encoder and of the decoder if share_encoder_decoder_embeddings is
     * false; NULL: no such key. */
    const char *separate_tables[2];
    double fixed_epsilon; /* epsilon of the norms, if there is no key for it */
    /* Dropout of the heads of texts and of answers; NULL: classifier_dropout and none. */
    const char *head_dropout_keys[2];
    bool gelu_is_tanh;       /* the activation "gelu" is the tanh form, which is the only one */
    bool has_fixed_inner;    /* the inner width is 4 times the width; there is no key for it */
    bool has_no_answer_task; /* no ...ForQuestionAnswering */
    bool has_free_parts;     /* model.norm_placement and the other keys; a class of Bireme */
    bool has_only_text_task; /* no ...ForTokenClassification and ...ForQuestionAnswering */
    bool has_no_task;        /* no ...ForSequenceClassification either; only objective embed */
    bool has_norm_offset;    /* files store the weights of norms minus 1 */
    /* The interval n of layers without a window: its key in versions without layer_types, and its
     * default. global_first: of every n layers, the first one has no window; else the last one.
     * key NULL: no such layers. */
    struct {
        const char *key;
        int64_t default_value;
        bool global_first;
    } pattern;
    /* The bases of rotary positions without and with a window; NULL: rope_theta in all layers. */
    struct {
        const char *key;
        double default_value;
    } rope_bases[2];
    const char *pooling_key; /* how heads of texts read a sequence: "cls" only; NULL: no key */
    const char *head_activation_key; /* the same value as activation_key; NULL: none */
    bool has_softcaps;               /* attn_logit_softcapping and final_logit_softcapping exist */
    double softcaps[2];              /* their defaults; 0: none */
    bool has_no_rope_layers;         /* no_rope_layers and no_rope_layer_interval */
    bool has_default_rope;           /* rope_type must be default */
    bool has_longrope;               /* rope_type must be default or longrope */
    double rotary_factor; /* default of partial_rotary_factor; 0: the key does not exist */
    bool tied_by_default; /* default of tie_word_embeddings */
    /* First the second name of a tied embedding, then the second name of the output bias. */
    struct {
        const char *theirs, *ours;
    } aliases[HUGGINGFACE_ALIASES_MAX];
    bool has_stack_tables; /* files may contain the token table once for each stack */
    const char *buffer_suffixes[HUGGINGFACE_BUFFERS_MAX]; /* name endings of tensors to ignore */
    bool has_logits_bias; /* files contain HUGGINGFACE_LOGITS_BIAS; Bireme has it if it is not 0 */
    const char *unused_suffixes[HUGGINGFACE_UNUSED_MAX]; /* unused weights, skipped with warning */
};

/* huggingface_table_name - return the name of the token table. If there are two, this is the table
 * of the encoder or of the decoder, which is also the output matrix. */
const char *huggingface_table_name(const struct huggingface_architecture *architecture,
                                   const struct recipe *r, bool is_decoder);

/* huggingface_find_architecture - find the row of a model_type or of model.architecture; NULL if
 * there is none. */
const struct huggingface_architecture *huggingface_find_architecture(const char *type);

enum { HUGGINGFACE_NAMES_BYTES = 512 };

/* huggingface_architecture_names - write all model types to text for messages: "gpt2, bert and
 * llama". Returns text. */
const char *huggingface_architecture_names(char text[HUGGINGFACE_NAMES_BYTES]);

/* huggingface_find_class - find a class by name; NULL if the architecture does not have it. */
const struct huggingface_class *
huggingface_find_class(const struct huggingface_architecture *architecture, const char *name);

/* huggingface_task_class_suffix - return the class name of an objective without the class stem;
 * NULL if the objective has no task class. */
const char *huggingface_task_class_suffix(const struct huggingface_architecture *architecture,
                                          enum recipe_objective objective);

/* huggingface_class_objective - find the first objective of a task class.
 *
 * Returns   false, without a result, if no task class of the architecture has this name */
bool huggingface_class_objective(const struct huggingface_architecture *architecture,
                                 const char *name, enum recipe_objective *out);

/* huggingface_name_prefix - return the prefix of tensor names in the class of an objective. */
const char *huggingface_name_prefix(const struct huggingface_architecture *architecture,
                                    enum recipe_objective objective);

/* huggingface_strip_prefix - return the part of a tensor name after the prefix.
 *
 * The class without heads uses these names. Without a prefix the name itself is returned. */
const char *huggingface_strip_prefix(const struct huggingface_architecture *architecture,
                                     const char *name);

/* huggingface_legacy_name - write the name in early files (LayerNorm.gamma and .beta) to out.
 *
 * Returns   false, without a name, if early files use the same name */
bool huggingface_legacy_name(const char *name, char out[MODEL_NAME_BYTES]);

/* huggingface_may_be_missing - return whether files of these classes may lack a head parameter. */
bool huggingface_may_be_missing(const struct huggingface_class *heads,
                                const struct model_parameter *parameter);

/* huggingface_norm_offset - return the difference between a parameter and its tensor in a file: 1
 * for the norms of architectures with has_norm_offset, else 0. */
float huggingface_norm_offset(const struct huggingface_architecture *architecture,
                              const struct model_parameter *parameter);

#define HUGGINGFACE_LOGITS_BIAS "final_logits_bias"

/* huggingface_is_row - return whether files store a vector as a matrix of one row, [1, V]. */
bool huggingface_is_row(const struct model_parameter *parameter);

/* huggingface_tensor_shape - compute the shape of a parameter in Hugging Face's orientation.
 *
 * A vector is a column. */
void huggingface_tensor_shape(const struct model_parameter *parameter, int64_t shape[2]);
