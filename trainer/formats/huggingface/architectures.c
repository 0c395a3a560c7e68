/* The default values are the defaults of transformers' GPT2Config, BertConfig, LlamaConfig, ... */
#include "trainer/formats/huggingface/architectures.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/recipe/recipe.h"

#define SETTING(f) offsetof(struct recipe, model.f)
#define INTEGER(name, f, default_value)                                                            \
    {                                                                                              \
        name, true, false, SETTING(f), default_value                                               \
    }
#define OPTIONAL_INTEGER(name, f, default_value)                                                   \
    {                                                                                              \
        name, true, true, SETTING(f), default_value                                                \
    }
#define NUMBER(name, f, default_value)                                                             \
    {                                                                                              \
        name, false, false, SETTING(f), default_value                                              \
    }

#define ENCODER_SIZES(vocabulary, width, layers, heads, inner, rate)                               \
    INTEGER("vocab_size", vocab_size, vocabulary), INTEGER("hidden_size", hidden_size, width),     \
        INTEGER("num_hidden_layers", num_layers, layers),                                          \
        INTEGER("num_attention_heads", num_heads, heads),                                          \
        INTEGER("intermediate_size", intermediate_size, inner),                                    \
        INTEGER("max_position_embeddings", max_position_embeddings, 512),                          \
        INTEGER("type_vocab_size", type_vocab_size, 2),                                            \
        NUMBER("hidden_dropout_prob", dropout, rate),                                              \
        NUMBER("attention_probs_dropout_prob", attention_dropout, rate),                           \
        NUMBER("layer_norm_eps", layer_norm_epsilon, 1e-12),                                       \
        NUMBER("initializer_range", initializer_range, 0.02)
#define ENCODER_KEYS(vocabulary, width, layers, heads, inner)                                      \
    {                                                                                              \
        ENCODER_SIZES(vocabulary, width, layers, heads, inner, 0.1)                                \
    }

/* Properties of BERT and the families like it. Heads that read tokens do not use the pooler. */
#define BERT_ENCODER                                                                               \
    .objective = OBJECTIVE_MLM,                                                                    \
    .switches = {{"is_decoder", false}, {"add_cross_attention", false}},                           \
    .activation_key = "hidden_act", .default_activation = "gelu", .tied_by_default = true,         \
    .buffer_suffixes = {"embeddings.position_ids", "embeddings.token_type_ids"},                   \
    .unused_suffixes = {"pooler.dense.weight", "pooler.dense.bias"}
#define BERT_ALIASES                                                                               \
    .aliases = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},      \
                {"cls.predictions.decoder.bias", "cls.predictions.bias"}}

/* Keys and properties of the families with free parts. */
#define FREE_KEYS                                                                                  \
    INTEGER("vocab_size", vocab_size, 0), INTEGER("hidden_size", hidden_size, 0),                  \
        INTEGER("num_hidden_layers", num_layers, 0), INTEGER("num_attention_heads", num_heads, 0), \
        OPTIONAL_INTEGER("num_key_value_heads", num_kv_heads, 0),                                  \
        OPTIONAL_INTEGER("head_dim", head_dim, 0),                                                 \
        INTEGER("intermediate_size", intermediate_size, 0),                                        \
        INTEGER("max_position_embeddings", max_position_embeddings, 0),                            \
        NUMBER("hidden_dropout_prob", dropout, 0),                                                 \
        NUMBER("attention_probs_dropout_prob", attention_dropout, 0),                              \
        NUMBER("layer_norm_eps", layer_norm_epsilon, 1e-5),                                        \
        NUMBER("initializer_range", initializer_range, 0.02)
#define FREE_PARTS                                                                                 \
    .has_qkv_bias = true, .has_attention_bias = true, .has_mlp_bias = true,                        \
    .has_free_parts = true, .activation_key = "hidden_act", .default_activation = "gelu",          \
    .tied_by_default = true, .aliases = {{"head.decoder.weight", "embeddings.tokens.weight"}}

/* Keys and properties of Llama and the families like it. */
#define ROTARY_KEYS(vocabulary, kv_heads, head_width, inner, positions)                            \
    SIZE_KEYS(vocabulary, 4096, 32, 32, kv_heads, inner, positions, 1e-6),                         \
        OPTIONAL_INTEGER("head_dim", head_dim, head_width)
#define SIZE_KEYS(vocabulary, width, layers, heads, kv_heads, inner, positions, epsilon)           \
    NORM_KEYS(vocabulary, width, layers, heads, kv_heads, inner, positions, "rms_norm_eps", epsilon)
#define NORM_KEYS(vocabulary, width, layers, heads, kv_heads, inner, positions, norm, epsilon)     \
    WIDTH_KEYS(vocabulary, width, layers, heads, kv_heads, inner, positions),                      \
        NUMBER(norm, layer_norm_epsilon, epsilon)
#define WIDTH_KEYS(vocabulary, width, layers, heads, kv_heads, inner, positions)                   \
    INTEGER("vocab_size", vocab_size, vocabulary), INTEGER("hidden_size", hidden_size, width),     \
        INTEGER("num_hidden_layers", num_layers, layers),                                          \
        INTEGER("num_attention_heads", num_heads, heads),                                          \
        OPTIONAL_INTEGER("num_key_value_heads", num_kv_heads, kv_heads),                           \
        INTEGER("intermediate_size", intermediate_size, inner),                                    \
        INTEGER("max_position_embeddings", max_position_embeddings, positions),                    \
        NUMBER("attention_dropout", attention_dropout, 0),                                         \
        NUMBER("initializer_range", initializer_range, 0.02)

#define ROTARY_DECODER(tied)                                                                       \
    .objective = OBJECTIVE_CLM, .prefix = "model.", .activation_key = "hidden_act",                \
    .default_activation = "silu", .tied_by_default = tied,                                         \
    .aliases = {{"lm_head.weight", "model.embed_tokens.weight"}},                                  \
    .buffer_suffixes = {".rotary_emb.inv_freq"}

#define GEMMA_KEYS                                                                                 \
    OPTIONAL_INTEGER("head_dim", head_dim, 256),                                                   \
        OPTIONAL_INTEGER("sliding_window", sliding_window, 4096),                                  \
        INTEGER("query_pre_attn_scalar", query_pre_attn_scalar, 256)
#define GEMMA_DECODER                                                                              \
    .objective = OBJECTIVE_CLM, .prefix = "model.", .has_attention_bias = true,                    \
    .activation_key = "hidden_activation", .default_activation = "gelu_pytorch_tanh",              \
    .has_norm_offset = true, .has_softcaps = true, .tied_by_default = true,                        \
    .aliases = {{"lm_head.weight", "model.embed_tokens.weight"}},                                  \
    .buffer_suffixes = {".rotary_emb.inv_freq"}

/* Keys and properties of T5 and mT5. Files of T5 1.0 may contain a bias of cross-attention that no
 * version of transformers reads. */
#define T5_KEYS(vocabulary, heads, layers, inner)                                                  \
    INTEGER("vocab_size", vocab_size, vocabulary), INTEGER("d_model", hidden_size, 512),           \
        INTEGER("d_kv", head_dim, 64), INTEGER("d_ff", intermediate_size, inner),                  \
        INTEGER("num_layers", num_layers, layers),                                                 \
        OPTIONAL_INTEGER("num_decoder_layers", num_decoder_layers, 0),                             \
        INTEGER("num_heads", num_heads, heads),                                                    \
        INTEGER("n_positions", max_position_embeddings, 512),                                      \
        INTEGER("relative_attention_num_buckets", relative_attention_num_buckets, 32),             \
        INTEGER("relative_attention_max_distance", relative_attention_max_distance, 128),          \
        NUMBER("dropout_rate", dropout, 0.1),                                                      \
        NUMBER("layer_norm_epsilon", layer_norm_epsilon, 1e-6),                                    \
        NUMBER("initializer_factor", initializer_factor, 1)
#define T5_PROPERTIES                                                                              \
    .architecture = ARCHITECTURE_T5, .objective = OBJECTIVE_SEQ2SEQ, .prefix = "",                 \
    .has_no_task = true, .activation_key = "feed_forward_proj", .has_gate_prefix = true,           \
    .tied_by_default = true, .aliases = {{"lm_head.weight", "shared.weight"}},                     \
    .has_stack_tables = true,                                                                      \
    .buffer_suffixes = {"EncDecAttention.relative_attention_bias.weight"}

/* Keys and properties of BART, mBART and Marian. */
#define STACK_KEYS                                                                                 \
    INTEGER("d_model", hidden_size, 1024), INTEGER("encoder_layers", num_layers, 12),              \
        INTEGER("decoder_layers", num_decoder_layers, 12),                                         \
        INTEGER("encoder_attention_heads", num_heads, 16),                                         \
        INTEGER("encoder_ffn_dim", intermediate_size, 4096),                                       \
        INTEGER("max_position_embeddings", max_position_embeddings, 1024),                         \
        NUMBER("dropout", dropout, 0.1), NUMBER("attention_dropout", attention_dropout, 0),        \
        NUMBER("activation_dropout", activation_dropout, 0),                                       \
        NUMBER("init_std", initializer_range, 0.02)
#define STACK_PROPERTIES                                                                           \
    .activation_key = "activation_function", .default_activation = "gelu", .fixed_epsilon = 1e-5,  \
    .has_no_task = true, .tied_by_default = true,                                                  \
    .aliases = {{"lm_head.weight", "model.shared.weight"}}, .has_stack_tables = true,              \
    .has_logits_bias = true

static const struct huggingface_architecture architectures[] = {
    {
        .model_type = "gpt2",
        .architecture = ARCHITECTURE_GPT2,
        .class_stem = "GPT2",
        .objective = OBJECTIVE_CLM,
        .prefix = "transformer.",
        .classes = {{"GPT2LMHeadModel", true, false}, {"GPT2Model", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 50257),
                 INTEGER("n_positions", max_position_embeddings, 1024),
                 INTEGER("n_embd", hidden_size, 768), INTEGER("n_layer", num_layers, 12),
                 INTEGER("n_head", num_heads, 12),
                 OPTIONAL_INTEGER("n_inner", intermediate_size, 0),
                 NUMBER("resid_pdrop", dropout, 0.1), NUMBER("attn_pdrop", attention_dropout, 0.1),
                 NUMBER("layer_norm_epsilon", layer_norm_epsilon, 1e-5),
                 NUMBER("initializer_range", initializer_range, 0.02)},
        .switches = {{"scale_attn_weights", true},
                     {"scale_attn_by_inverse_layer_idx", false},
                     {"add_cross_attention", false}},
        .dropout_key = "embd_pdrop",
        .default_dropout = 0.1,
        .activation_key = "activation_function",
        .default_activation = "gelu_new",
        .tied_by_default = true,
        .aliases = {{"lm_head.weight", "transformer.wte.weight"}},
        .buffer_suffixes = {".attn.bias", ".attn.masked_bias"},
    },
    {
        .model_type = "bert",
        .architecture = ARCHITECTURE_BERT,
        .class_stem = "Bert",
        .prefix = "bert.",
        .classes = {{"BertForPreTraining", true, true},
                    {"BertForMaskedLM", true, false},
                    {"BertModel", false, false}},
        .keys = ENCODER_KEYS(30522, 768, 12, 12, 3072),
        BERT_ENCODER,
        BERT_ALIASES,
    },
    {
        .model_type = "albert",
        .architecture = ARCHITECTURE_ALBERT,
        .class_stem = "Albert",
        .objective = OBJECTIVE_MLM,
        .prefix = "albert.",
        .classes = {{"AlbertForPreTraining", true, true},
                    {"AlbertForMaskedLM", true, false},
                    {"AlbertModel", false, false}},
        .keys = {ENCODER_SIZES(30000, 4096, 12, 64, 16384, 0),
                 INTEGER("embedding_size", embedding_size, 128)},
        .fixed_sizes = {{"num_hidden_groups", 1}, {"inner_group_num", 1}},
        .activation_key = "hidden_act",
        .default_activation = "gelu_new",
        .head_dropout_keys = {"classifier_dropout_prob"},
        .tied_by_default = true,
        .aliases = {{"predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"},
                    {"predictions.decoder.bias", "predictions.bias"}},
        .buffer_suffixes = {"embeddings.position_ids", "embeddings.token_type_ids"},
        .unused_suffixes = {"pooler.weight", "pooler.bias"},
    },
    {
        .model_type = "megatron-bert",
        .architecture = ARCHITECTURE_MEGATRON_BERT,
        .class_stem = "MegatronBert",
        .prefix = "bert.",
        .classes = {{"MegatronBertForPreTraining", true, true},
                    {"MegatronBertForMaskedLM", true, false},
                    {"MegatronBertModel", false, false}},
        .keys = ENCODER_KEYS(29056, 1024, 24, 16, 4096),
        BERT_ENCODER,
        BERT_ALIASES,
    },
    {
        .model_type = "distilbert",
        .architecture = ARCHITECTURE_DISTILBERT,
        .class_stem = "DistilBert",
        .objective = OBJECTIVE_MLM,
        .prefix = "distilbert.",
        .classes = {{"DistilBertForMaskedLM", true, false}, {"DistilBertModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 30522), INTEGER("dim", hidden_size, 768),
                 INTEGER("n_layers", num_layers, 6), INTEGER("n_heads", num_heads, 12),
                 INTEGER("hidden_dim", intermediate_size, 3072),
                 INTEGER("max_position_embeddings", max_position_embeddings, 512),
                 NUMBER("dropout", dropout, 0.1),
                 NUMBER("attention_dropout", attention_dropout, 0.1),
                 NUMBER("initializer_range", initializer_range, 0.02)},
        .switches = {{"sinusoidal_pos_embds", false}},
        .activation_key = "activation",
        .default_activation = "gelu",
        .fixed_epsilon = 1e-12,
        .head_dropout_keys = {"seq_classif_dropout", "qa_dropout"},
        .tied_by_default = true,
        .aliases = {{"vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"}},
        .buffer_suffixes = {"embeddings.position_ids"},
    },
    {
        .model_type = "transformer_encoder",
        .architecture = ARCHITECTURE_TRANSFORMER_ENCODER,
        .class_stem = "TransformerEncoder",
        .objective = OBJECTIVE_MLM,
        .prefix = "",
        .classes = {{"TransformerEncoderForMaskedLM", true, false},
                    {"TransformerEncoderModel", false, false}},
        .keys = {FREE_KEYS},
        FREE_PARTS,
    },
    {
        .model_type = "transformer_decoder",
        .architecture = ARCHITECTURE_TRANSFORMER_DECODER,
        .class_stem = "TransformerDecoder",
        .objective = OBJECTIVE_CLM,
        .prefix = "",
        .classes = {{"TransformerDecoderForCausalLM", true, false},
                    {"TransformerDecoderModel", false, false}},
        .keys = {FREE_KEYS},
        FREE_PARTS,
    },
    {
        .model_type = "roberta",
        .architecture = ARCHITECTURE_ROBERTA,
        .class_stem = "Roberta",
        .prefix = "roberta.",
        .classes = {{"RobertaForMaskedLM", true, false}, {"RobertaModel", false, false}},
        .keys = ENCODER_KEYS(50265, 768, 12, 12, 3072),
        BERT_ENCODER,
        .aliases = {{"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"},
                    {"lm_head.decoder.bias", "lm_head.bias"}},
    },
    {
        .model_type = "modernbert",
        .architecture = ARCHITECTURE_MODERNBERT,
        .class_stem = "ModernBert",
        .objective = OBJECTIVE_MLM,
        .prefix = "model.",
        .classes = {{"ModernBertForMaskedLM", true, false}, {"ModernBertModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 50368), INTEGER("hidden_size", hidden_size, 768),
                 INTEGER("num_hidden_layers", num_layers, 22),
                 INTEGER("num_attention_heads", num_heads, 12),
                 INTEGER("intermediate_size", intermediate_size, 1152),
                 INTEGER("max_position_embeddings", max_position_embeddings, 8192),
                 INTEGER("local_attention", sliding_window, 128),
                 NUMBER("embedding_dropout", dropout, 0),
                 NUMBER("attention_dropout", attention_dropout, 0),
                 NUMBER("norm_eps", layer_norm_epsilon, 1e-5),
                 NUMBER("initializer_range", initializer_range, 0.02)},
        .switches = {{"norm_bias", false}, {"classifier_bias", false}, {"decoder_bias", true}},
        .has_attention_bias = true,
        .has_mlp_bias = true,
        .dropout_key = "mlp_dropout",
        .activation_key = "hidden_activation",
        .head_activation_key = "classifier_activation",
        .default_activation = "gelu",
        .pooling_key = "classifier_pooling",
        .has_default_rope = true,
        .pattern = {"global_attn_every_n_layers", 3, true},
        .rope_bases = {{"global_rope_theta", 160000}, {"local_rope_theta", 1e4}},
        .tied_by_default = true,
        .aliases = {{"decoder.weight", "model.embeddings.tok_embeddings.weight"}},
    },
    {
        .model_type = "llama",
        .architecture = ARCHITECTURE_LLAMA,
        .class_stem = "Llama",
        .qa_prefix = "transformer.",
        .classes = {{"LlamaForCausalLM", true, false}, {"LlamaModel", false, false}},
        .keys = {ROTARY_KEYS(32000, 0, 0, 11008, 2048)},
        .has_attention_bias = true,
        .has_mlp_bias = true,
        ROTARY_DECODER(false),
    },
    {
        .model_type = "qwen2",
        .architecture = ARCHITECTURE_QWEN2,
        .class_stem = "Qwen2",
        .qa_prefix = "transformer.",
        .classes = {{"Qwen2ForCausalLM", true, false}, {"Qwen2Model", false, false}},
        .keys = {ROTARY_KEYS(151936, 32, 0, 22016, 32768)},
        .switches = {{"use_sliding_window", false}},
        ROTARY_DECODER(false),
    },
    {
        .model_type = "mistral",
        .architecture = ARCHITECTURE_MISTRAL,
        .class_stem = "Mistral",
        .classes = {{"MistralForCausalLM", true, false}, {"MistralModel", false, false}},
        .keys = {ROTARY_KEYS(32000, 8, 0, 14336, 131072),
                 OPTIONAL_INTEGER("sliding_window", sliding_window, 4096)},
        ROTARY_DECODER(false),
    },
    {
        .model_type = "qwen3",
        .architecture = ARCHITECTURE_QWEN3,
        .class_stem = "Qwen3",
        .qa_prefix = "transformer.",
        .classes = {{"Qwen3ForCausalLM", true, false}, {"Qwen3Model", false, false}},
        .keys = {ROTARY_KEYS(151936, 32, 128, 22016, 32768)},
        .switches = {{"use_sliding_window", false}},
        .has_attention_bias = true,
        ROTARY_DECODER(false),
    },
    {
        .model_type = "openai-gpt",
        .architecture = ARCHITECTURE_OPENAI_GPT,
        .class_stem = "OpenAIGPT",
        .objective = OBJECTIVE_CLM,
        .prefix = "transformer.",
        .classes = {{"OpenAIGPTLMHeadModel", true, false}, {"OpenAIGPTModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 40478),
                 INTEGER("n_positions", max_position_embeddings, 512),
                 INTEGER("n_embd", hidden_size, 768), INTEGER("n_layer", num_layers, 12),
                 INTEGER("n_head", num_heads, 12), NUMBER("resid_pdrop", dropout, 0.1),
                 NUMBER("attn_pdrop", attention_dropout, 0.1),
                 NUMBER("layer_norm_epsilon", layer_norm_epsilon, 1e-5),
                 NUMBER("initializer_range", initializer_range, 0.02)},
        .dropout_key = "embd_pdrop",
        .default_dropout = 0.1,
        .activation_key = "afn",
        .default_activation = "gelu",
        .gelu_is_tanh = true,
        .has_fixed_inner = true,
        .has_only_text_task = true,
        .tied_by_default = true,
        .aliases = {{"lm_head.weight", "transformer.tokens_embed.weight"}},
        .buffer_suffixes = {".attn.bias", "position_ids"},
    },
    {
        .model_type = "smollm3",
        .architecture = ARCHITECTURE_SMOLLM3,
        .class_stem = "SmolLM3",
        .qa_prefix = "transformer.",
        .classes = {{"SmolLM3ForCausalLM", true, false}, {"SmolLM3Model", false, false}},
        .keys = {SIZE_KEYS(128256, 2048, 36, 16, 4, 11008, 32768, 1e-6),
                 OPTIONAL_INTEGER("head_dim", head_dim, 0)},
        .switches = {{"use_sliding_window", false}},
        .has_attention_bias = true,
        .has_mlp_bias = true,
        .has_no_rope_layers = true,
        ROTARY_DECODER(true),
    },
    {
        .model_type = "granite",
        .architecture = ARCHITECTURE_GRANITE,
        .class_stem = "Granite",
        .classes = {{"GraniteForCausalLM", true, false}, {"GraniteModel", false, false}},
        .keys = {SIZE_KEYS(32000, 4096, 32, 32, 0, 11008, 2048, 1e-6),
                 OPTIONAL_INTEGER("head_dim", head_dim, 0),
                 NUMBER("embedding_multiplier", embedding_multiplier, 1),
                 NUMBER("attention_multiplier", attention_multiplier, 1),
                 NUMBER("residual_multiplier", residual_multiplier, 1),
                 NUMBER("logits_scaling", logits_scaling, 1)},
        .has_attention_bias = true,
        .has_mlp_bias = true,
        .has_no_task = true,
        ROTARY_DECODER(false),
    },
    {
        .model_type = "olmo",
        .architecture = ARCHITECTURE_OLMO,
        .class_stem = "Olmo",
        .classes = {{"OlmoForCausalLM", true, false}, {"OlmoModel", false, false}},
        .keys = {WIDTH_KEYS(50304, 4096, 32, 32, 0, 11008, 2048),
                 OPTIONAL_INTEGER("head_dim", head_dim, 0)},
        .null_key = "clip_qkv",
        .has_attention_bias = true,
        .fixed_epsilon = 1e-5,
        .has_only_text_task = true,
        ROTARY_DECODER(false),
    },
    {
        .model_type = "olmo2",
        .architecture = ARCHITECTURE_OLMO2,
        .class_stem = "Olmo2",
        .classes = {{"Olmo2ForCausalLM", true, false}, {"Olmo2Model", false, false}},
        .keys = {SIZE_KEYS(50304, 4096, 32, 32, 0, 11008, 2048, 1e-5),
                 OPTIONAL_INTEGER("head_dim", head_dim, 0)},
        .has_attention_bias = true,
        .has_only_text_task = true,
        ROTARY_DECODER(false),
    },
    {
        .model_type = "phi3",
        .architecture = ARCHITECTURE_PHI3,
        .class_stem = "Phi3",
        .classes = {{"Phi3ForCausalLM", true, false}, {"Phi3Model", false, false}},
        .keys = {SIZE_KEYS(32064, 3072, 32, 32, 0, 8192, 4096, 1e-5),
                 OPTIONAL_INTEGER("head_dim", head_dim, 0),
                 OPTIONAL_INTEGER("sliding_window", sliding_window, 0),
                 NUMBER("resid_pdrop", dropout, 0)},
        .has_no_answer_task = true,
        .has_default_rope = true,
        .has_longrope = true,
        .rotary_factor = 1,
        .dropout_key = "embd_pdrop",
        ROTARY_DECODER(false),
    },
    {
        .model_type = "stablelm",
        .architecture = ARCHITECTURE_STABLELM,
        .class_stem = "StableLm",
        .classes = {{"StableLmForCausalLM", true, false}, {"StableLmModel", false, false}},
        .keys = {NORM_KEYS(50304, 2560, 32, 32, 32, 6912, 4096, "layer_norm_eps", 1e-5)},
        .switches = {{"qk_layernorm", false}, {"use_parallel_residual", false}},
        .has_qkv_bias = true,
        .has_no_answer_task = true,
        .rotary_factor = 0.25,
        .dropout_key = "hidden_dropout",
        ROTARY_DECODER(false),
    },
    {
        .model_type = "gemma2",
        .architecture = ARCHITECTURE_GEMMA2,
        .class_stem = "Gemma2",
        .classes = {{"Gemma2ForCausalLM", true, false}, {"Gemma2Model", false, false}},
        .keys = {SIZE_KEYS(256000, 2304, 26, 8, 4, 9216, 8192, 1e-6), GEMMA_KEYS},
        .switches = {{"use_bidirectional_attention", false}},
        .has_no_answer_task = true,
        .pattern = {"sliding_window_pattern", 2, false},
        .softcaps = {50, 30},
        GEMMA_DECODER,
    },
    {
        .model_type = "gemma3_text",
        .architecture = ARCHITECTURE_GEMMA3_TEXT,
        .class_stem = "Gemma3Text",
        .classes = {{"Gemma3ForCausalLM", true, false}, {"Gemma3TextModel", false, false}},
        .keys = {SIZE_KEYS(262208, 2304, 26, 8, 4, 9216, 131072, 1e-6), GEMMA_KEYS},
        .switches = {{"use_bidirectional_attention", false}},
        .has_only_text_task = true,
        .pattern = {"sliding_window_pattern", 6, false},
        .rope_bases = {{"rope_theta", 1e6}, {"rope_local_base_freq", 1e4}},
        GEMMA_DECODER,
    },
    {
        .model_type = "bart",
        .architecture = ARCHITECTURE_BART,
        .class_stem = "Bart",
        .objective = OBJECTIVE_SEQ2SEQ,
        .prefix = "model.",
        .classes = {{"BartForConditionalGeneration", true, false}, {"BartModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 50265), STACK_KEYS},
        .switches = {{"scale_embedding", false}},
        .decoder_start = 2,
        STACK_PROPERTIES,
    },
    {
        .model_type = "mbart",
        .architecture = ARCHITECTURE_MBART,
        .class_stem = "MBart",
        .objective = OBJECTIVE_SEQ2SEQ,
        .prefix = "model.",
        .classes = {{"MBartForConditionalGeneration", true, false}, {"MBartModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 50265), STACK_KEYS},
        .decoder_start = -1,
        STACK_PROPERTIES,
    },
    {
        .model_type = "marian",
        .architecture = ARCHITECTURE_MARIAN,
        .class_stem = "Marian",
        .objective = OBJECTIVE_SEQ2SEQ,
        .prefix = "model.",
        .classes = {{"MarianMTModel", true, false}, {"MarianModel", false, false}},
        .keys = {INTEGER("vocab_size", vocab_size, 58101), STACK_KEYS},
        .separate_tables = {"model.encoder.embed_tokens.weight",
                            "model.decoder.embed_tokens.weight"},
        .decoder_start = 58100,
        .buffer_suffixes = {"coder.embed_positions.weight"},
        STACK_PROPERTIES,
    },
    {
        .model_type = "t5",
        .class_stem = "T5",
        .classes = {{"T5ForConditionalGeneration", true, false}, {"T5Model", false, false}},
        .keys = {T5_KEYS(32128, 8, 6, 2048)},
        .default_activation = "relu",
        T5_PROPERTIES,
    },
    {
        .model_type = "mt5",
        .class_stem = "MT5",
        .classes = {{"MT5ForConditionalGeneration", true, false}, {"MT5Model", false, false}},
        .keys = {T5_KEYS(250112, 6, 8, 1024)},
        .default_activation = "gated-gelu",
        T5_PROPERTIES,
    },
};

const char *huggingface_table_name(const struct huggingface_architecture *architecture,
                                   const struct recipe *r, bool is_decoder)
{
    const char *separate = architecture->separate_tables[is_decoder];
    return separate != NULL && !r->model.share_encoder_decoder_embeddings
               ? separate
               : architecture->aliases[0].ours;
}

const struct huggingface_architecture *huggingface_find_architecture(const char *type)
{
    for (int i = 0; i < COUNT(architectures); i++) {
        if (strcmp(architectures[i].model_type, type) == 0) {
            return &architectures[i];
        }
    }
    return NULL;
}

const char *huggingface_architecture_names(char text[HUGGINGFACE_NAMES_BYTES])
{
    text[0] = '\0';
    for (int i = 0; i < COUNT(architectures); i++) {
        text_append_item(text, HUGGINGFACE_NAMES_BYTES, architectures[i].model_type, i,
                         COUNT(architectures), "and");
    }
    return text;
}

const struct huggingface_class *
huggingface_find_class(const struct huggingface_architecture *architecture, const char *name)
{
    for (int i = 0; i < HUGGINGFACE_CLASSES_MAX && architecture->classes[i].name != NULL; i++) {
        if (strcmp(architecture->classes[i].name, name) == 0) {
            return &architecture->classes[i];
        }
    }
    return NULL;
}

/* ---- tasks ---- */

/* Class name suffixes per objective, for encoders and decoders. If several objectives share a
 * suffix, the first one is the default objective of the class. */
static const struct {
    enum recipe_objective objective;
    const char *encoder, *decoder;
} task_classes[] = {
    {OBJECTIVE_CLASSIFY, "ForSequenceClassification", "ForSequenceClassification"},
    {OBJECTIVE_REGRESS, "ForSequenceClassification", "ForSequenceClassification"},
    {OBJECTIVE_REWARD, NULL, "ForSequenceClassification"},
    {OBJECTIVE_CLASSIFY_TOKENS, "ForTokenClassification", "ForTokenClassification"},
    {OBJECTIVE_ANSWER, "ForQuestionAnswering", "ForQuestionAnswering"},
    {OBJECTIVE_CHOOSE, "ForMultipleChoice", "ForSequenceClassification"},
    {OBJECTIVE_EMBED, "Model", "Model"},
};

enum { TASK_CLASSES = COUNT(task_classes) };

/* Returns NULL if the architecture does not have the class. */
static const char *get_class_suffix(const struct huggingface_architecture *architecture, int task)
{
    enum recipe_objective objective = task_classes[task].objective;
    bool only_text = architecture->has_only_text_task;
    if ((architecture->has_no_task && objective != OBJECTIVE_EMBED) ||
        (objective == OBJECTIVE_ANSWER && (only_text || architecture->has_no_answer_task)) ||
        (objective == OBJECTIVE_CLASSIFY_TOKENS && only_text)) {
        return NULL;
    }
    return recipe_architecture_is_encoder(architecture->architecture) ? task_classes[task].encoder
                                                                      : task_classes[task].decoder;
}

const char *huggingface_task_class_suffix(const struct huggingface_architecture *architecture,
                                          enum recipe_objective objective)
{
    for (int i = 0; i < TASK_CLASSES; i++) {
        if (task_classes[i].objective == objective) {
            return get_class_suffix(architecture, i);
        }
    }
    return NULL;
}

bool huggingface_class_objective(const struct huggingface_architecture *architecture,
                                 const char *name, enum recipe_objective *out)
{
    size_t stem_bytes = strlen(architecture->class_stem);
    for (int i = 0; i < TASK_CLASSES && strncmp(name, architecture->class_stem, stem_bytes) == 0;
         i++) {
        const char *suffix = get_class_suffix(architecture, i);
        if (suffix != NULL && strcmp(suffix, name + stem_bytes) == 0) {
            *out = task_classes[i].objective;
            return true;
        }
    }
    return false;
}

/* ---- names ---- */

const char *huggingface_name_prefix(const struct huggingface_architecture *architecture,
                                    enum recipe_objective objective)
{
    bool is_qa = objective == OBJECTIVE_ANSWER && architecture->qa_prefix != NULL;
    return is_qa ? architecture->qa_prefix : architecture->prefix;
}

static const char *skip_prefix(const char *name, const char *prefix)
{
    size_t length = prefix != NULL ? strlen(prefix) : 0;
    return length > 0 && strncmp(name, prefix, length) == 0 ? name + length : name;
}

const char *huggingface_strip_prefix(const struct huggingface_architecture *architecture,
                                     const char *name)
{
    const char *bare = skip_prefix(name, architecture->prefix);
    return bare != name ? bare : skip_prefix(name, architecture->qa_prefix);
}

bool huggingface_legacy_name(const char *name, char out[MODEL_NAME_BYTES])
{
    static const char *const norms[][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"}};
    for (int i = 0; i < 2; i++) {
        const char *match = strstr(name, norms[i][0]);
        if (match != NULL && match[strlen(norms[i][0])] == '\0') {
            snprintf(out, MODEL_NAME_BYTES, "%.*s%s", (int)(match - name), name, norms[i][1]);
            return true;
        }
    }
    return false;
}

bool huggingface_may_be_missing(const struct huggingface_class *heads,
                                const struct model_parameter *p)
{
    switch (p->role) {
    case MODEL_TRANSFORM: /* also in task classes of ModernBERT */
    case MODEL_TRANSFORM_NORM:
        return !heads->has_lm_head && !heads->has_label_head;
    case MODEL_DECODER:
        return !heads->has_lm_head;
    case MODEL_LABELS:
        return !heads->has_label_head;
    default:
        return false;
    }
}

float huggingface_norm_offset(const struct huggingface_architecture *architecture,
                              const struct model_parameter *parameter)
{
    bool is_norm = parameter->dimensions == 1 && parameter->init_value > 0;
    return architecture->has_norm_offset && is_norm ? 1.0f : 0.0f;
}

bool huggingface_is_row(const struct model_parameter *p)
{
    return p->dimensions == 1 && strcmp(p->name, HUGGINGFACE_LOGITS_BIAS) == 0;
}

void huggingface_tensor_shape(const struct model_parameter *p, int64_t shape[2])
{
    bool swapped = p->transposed || p->dimensions == 1;
    shape[0] = swapped ? p->whole_columns : p->whole_rows;
    shape[1] = swapped ? p->whole_rows : p->whole_columns;
}
