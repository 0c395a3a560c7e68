/* Presets are those of transformers' GPT2Config, BertConfig, RobertaConfig and LlamaConfig. */
#include "trainer/huggingface/architectures.h"

#include <stdio.h>
#include <string.h>

#include "trainer/recipe/recipe.h"

#define SETTING(f) offsetof(struct recipe, model.f)
#define INTEGER(name, f, preset)                                                                   \
    {                                                                                              \
        name, true, false, SETTING(f), preset                                                      \
    }
#define OPTIONAL(name, f)                                                                          \
    {                                                                                              \
        name, true, true, SETTING(f), 0                                                            \
    }
#define NUMBER(name, f, preset)                                                                    \
    {                                                                                              \
        name, false, false, SETTING(f), preset                                                     \
    }

#define ENCODER_KEYS(vocabulary)                                                                   \
    {                                                                                              \
        INTEGER("vocab_size", vocab_size, vocabulary), INTEGER("hidden_size", hidden_size, 768),   \
            INTEGER("num_hidden_layers", num_layers, 12),                                          \
            INTEGER("num_attention_heads", num_heads, 12),                                         \
            INTEGER("intermediate_size", intermediate_size, 3072),                                 \
            INTEGER("max_position_embeddings", max_position_embeddings, 512),                      \
            INTEGER("type_vocab_size", type_vocab_size, 2),                                        \
            NUMBER("hidden_dropout_prob", dropout, 0.1),                                           \
            NUMBER("attention_probs_dropout_prob", attention_dropout, 0.1),                        \
            NUMBER("layer_norm_eps", layer_norm_epsilon, 1e-12),                                   \
            NUMBER("initializer_range", initializer_range, 0.02),                                  \
    }

static const struct pretrained_family families[] = {
    {
        .type = "gpt2",
        .stem = "GPT2",
        .objective = "clm",
        .prefix = "transformer.",
        .classes = {{"GPT2LMHeadModel", true, false}, {"GPT2Model", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 50257),
                 INTEGER("n_positions", max_position_embeddings, 1024),
                 INTEGER("n_embd", hidden_size, 768), INTEGER("n_layer", num_layers, 12),
                 INTEGER("n_head", num_heads, 12), OPTIONAL("n_inner", intermediate_size),
                 NUMBER("resid_pdrop", dropout, 0.1), NUMBER("attn_pdrop", attention_dropout, 0.1),
                 NUMBER("layer_norm_epsilon", layer_norm_epsilon, 1e-5),
                 NUMBER("initializer_range", initializer_range, 0.02)},
        .switches = {{"scale_attn_weights", true},
                     {"scale_attn_by_inverse_layer_idx", false},
                     {"add_cross_attention", false}},
        .activation_key = "activation_function",
        .activation = "gelu_new",
        .tied = true,
        .aliases = {{"lm_head.weight", "transformer.wte.weight"}},
        .buffers = {".attn.bias", ".attn.masked_bias"},
    },
    {
        .type = "bert",
        .stem = "Bert",
        .objective = "mlm",
        .prefix = "bert.",
        .classes = {{"BertForPreTraining", true, true},
                    {"BertForMaskedLM", true, false},
                    {"BertModel", false, false}},
        .keys = ENCODER_KEYS(30522),
        .switches = {{"is_decoder", false}, {"add_cross_attention", false}},
        .activation_key = "hidden_act",
        .activation = "gelu",
        .tied = true,
        .aliases = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                    {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
        .buffers = {"embeddings.position_ids", "embeddings.token_type_ids"},
        .unused = {"pooler.dense.weight", "pooler.dense.bias"}, /* where a head reads tokens */
    },
    {
        .type = "roberta",
        .stem = "Roberta",
        .objective = "mlm",
        .prefix = "roberta.",
        .classes = {{"RobertaForMaskedLM", true, false}, {"RobertaModel", false, false}},
        .keys = ENCODER_KEYS(50265),
        .switches = {{"is_decoder", false}, {"add_cross_attention", false}},
        .activation_key = "hidden_act",
        .activation = "gelu",
        .tied = true,
        .aliases = {{"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"},
                    {"lm_head.decoder.bias", "lm_head.bias"}},
        .buffers = {"embeddings.position_ids", "embeddings.token_type_ids"},
        .unused = {"pooler.dense.weight", "pooler.dense.bias"},
    },
    {
        .type = "llama",
        .stem = "Llama",
        .objective = "clm",
        .prefix = "model.",
        .spans_prefix = "transformer.",
        .classes = {{"LlamaForCausalLM", true, false}, {"LlamaModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 32000),
                 INTEGER("hidden_size", hidden_size, 4096),
                 INTEGER("num_hidden_layers", num_layers, 32),
                 INTEGER("num_attention_heads", num_heads, 32),
                 OPTIONAL("num_key_value_heads", num_kv_heads),
                 INTEGER("intermediate_size", intermediate_size, 11008),
                 INTEGER("max_position_embeddings", max_position_embeddings, 2048),
                 NUMBER("attention_dropout", attention_dropout, 0),
                 NUMBER("rms_norm_eps", layer_norm_epsilon, 1e-6),
                 NUMBER("initializer_range", initializer_range, 0.02)},
        .switches = {{"attention_bias", false}, {"mlp_bias", false}},
        .activation_key = "hidden_act",
        .activation = "silu",
        .tied = false,
        .aliases = {{"lm_head.weight", "model.embed_tokens.weight"}},
        .buffers = {".rotary_emb.inv_freq"},
    },
};

const struct pretrained_family *pretrained_family(const char *type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].type, type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

const char *pretrained_types(void)
{
    return "gpt2, bert, roberta and llama";
}

const struct pretrained_class *pretrained_class(const struct pretrained_family *family,
                                                const char *name)
{
    for (int i = 0; i < PRETRAINED_CLASSES && family->classes[i].name != NULL; i++) {
        if (strcmp(family->classes[i].name, name) == 0) {
            return &family->classes[i];
        }
    }
    return NULL;
}

/* ---- tasks ---- */

/* Ends of the names of classes, of encoders and of decoders. Of those with the same end the first is what a class is
 * for where nothing else is known of it. */
static const struct {
    const char *objective, *encoder, *decoder;
} tasks[] = {
    {"classify", "ForSequenceClassification", "ForSequenceClassification"},
    {"regress", "ForSequenceClassification", "ForSequenceClassification"},
    {"reward", NULL, "ForSequenceClassification"},
    {"classify_tokens", "ForTokenClassification", "ForTokenClassification"},
    {"answer", "ForQuestionAnswering", "ForQuestionAnswering"},
    {"choose", "ForMultipleChoice", "ForSequenceClassification"},
    {"embed", "Model", "Model"},
};

enum { TASKS = sizeof tasks / sizeof tasks[0] };

static const char *task_end(const struct pretrained_family *family, int task)
{
    return strcmp(family->objective, "mlm") == 0 ? tasks[task].encoder : tasks[task].decoder;
}

const char *pretrained_task_class(const struct pretrained_family *family, const char *objective)
{
    for (int i = 0; i < TASKS; i++) {
        if (strcmp(tasks[i].objective, objective) == 0) {
            return task_end(family, i);
        }
    }
    return NULL;
}

const char *pretrained_task_objective(const struct pretrained_family *family, const char *name)
{
    size_t stem = strlen(family->stem);
    for (int i = 0; i < TASKS && strncmp(name, family->stem, stem) == 0; i++) {
        const char *end = task_end(family, i);
        if (end != NULL && strcmp(end, name + stem) == 0) {
            return tasks[i].objective;
        }
    }
    return NULL;
}

/* ---- names ---- */

const char *pretrained_prefix(const struct pretrained_family *family, const char *objective)
{
    bool spans = strcmp(objective, "answer") == 0 && family->spans_prefix != NULL;
    return spans ? family->spans_prefix : family->prefix;
}

static const char *behind(const char *name, const char *prefix)
{
    size_t length = prefix != NULL ? strlen(prefix) : 0;
    return length > 0 && strncmp(name, prefix, length) == 0 ? name + length : name;
}

const char *pretrained_bare(const struct pretrained_family *family, const char *name)
{
    const char *bare = behind(name, family->prefix);
    return bare != name ? bare : behind(name, family->spans_prefix);
}

bool pretrained_renamed(const char *name, char out[MODEL_NAME_BYTES])
{
    static const char *const norms[][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"}};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(name, norms[i][0]);
        if (at != NULL && at[strlen(norms[i][0])] == '\0') {
            snprintf(out, MODEL_NAME_BYTES, "%.*s%s", (int)(at - name), name, norms[i][1]);
            return true;
        }
    }
    return false;
}

bool pretrained_may_lack(const struct pretrained_class *promised, const struct model_parameter *p)
{
    switch (p->role) {
    case MODEL_TRANSFORM:
    case MODEL_TRANSFORM_NORM:
    case MODEL_DECODER:
        return !promised->predictions;
    case MODEL_LABELS:
        return !promised->labels;
    default:
        return false;
    }
}

void pretrained_shape(const struct model_parameter *p, int64_t shape[2])
{
    bool turned = p->transposed || p->dimensions == 1;
    shape[0] = turned ? p->whole_columns : p->whole_rows;
    shape[1] = turned ? p->whole_rows : p->whole_columns;
}
