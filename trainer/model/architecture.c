/* The table of architectures: the parts of each family, and the names of its tensors.
 *
 * gpt2     GPT2LMHeadModel. Radford et al. 2019
 * openai-gpt  OpenAIGPTLMHeadModel (GPT-1): as gpt2, with norms after the residual sums, and none
 *          before the first block or after the last one. Radford et al. 2018
 * bert     BertForPreTraining, or BertForMaskedLM without next_sentence. Query, key and value are
 *          separate tensors in the file. They are contiguous in memory, so that a GEMM reads them
 *          as one matrix. Devlin et al. 2018, arXiv:1810.04805
 * distilbert  DistilBertForMaskedLM; as bert, without token types, pooler and next-sentence head;
 *          the dense layer of its task heads has ReLU. Sanh et al. 2019, arXiv:1910.01108
 * albert   AlbertForPreTraining, or AlbertForMaskedLM without next_sentence: as bert, with one
 *          block for all layers, tables of config.embedding_width columns, and the order of two
 *          segments instead of next-sentence prediction. transformers omits the dropout after the
 *          feed-forward network. Lan et al. 2019, arXiv:1909.11942
 * megatron-bert  MegatronBertForPreTraining; as bert, with norms before each sub-layer. A final
 *          norm replaces the norm of the embedding. Shoeybi et al. 2019, arXiv:1909.08053
 * transformer_encoder, transformer_decoder  families of Bireme: config.parts sets the placement and
 *          the kind of the norms, the norms of the queries and keys, the positions, the
 *          feed-forward network, the embedding and the head. The defaults follow
 *          Vaswani et al. 2017, arXiv:1706.03762
 * roberta  RobertaForMaskedLM; as bert, but positions begin with row 2 of the table.
 *          Liu et al. 2019, arXiv:1907.11692
 * modernbert  ModernBertForMaskedLM: an encoder with layer norms without biases before each
 *          sub-layer, rotary positions, GEGLU, no biases of the matrices, and a window in all
 *          layers but the first of every n (config.layer_types).
 *          Warner et al. 2024, arXiv:2412.13663
 * llama    LlamaForCausalLM: RMS norms, rotary positions, grouped-query attention, SwiGLU, no
 *          biases. Gate and up are contiguous in memory. Touvron et al. 2023, arXiv:2302.13971
 * qwen2    Qwen2ForCausalLM (Qwen2, Qwen2.5): as llama, with biases of queries, keys and values.
 *          Yang et al. 2024, arXiv:2407.10671
 * mistral  MistralForCausalLM: as llama, with a window of attention (config.window).
 *          Jiang et al. 2023, arXiv:2310.06825
 * qwen3    Qwen3ForCausalLM: as llama, with a norm of each head of the queries and keys.
 *          Yang et al. 2025, arXiv:2505.09388
 * granite  GraniteForCausalLM: as llama, with factors of the embeddings, the attention scores, the
 *          outputs of the sub-layers and the logits. IBM Granite Team 2024
 * smollm3  SmolLM3ForCausalLM: as llama, without positions in every config.no_rope_interval-th
 *          layer. Bakouch et al. 2025; Yang et al. 2025, arXiv:2501.18795
 * olmo2    Olmo2ForCausalLM: as llama, with norms of the sub-layers' outputs instead of their
 *          inputs, and norms of the queries and keys over all heads.
 *          OLMo Team 2025, arXiv:2501.00656
 * olmo     OlmoForCausalLM (OLMo 1): as llama, with layer norms without weights and biases.
 *          Groeneveld et al. 2024, arXiv:2402.00838
 * stablelm  StableLmForCausalLM: as llama, with layer norms, and biases of queries, keys and values
 *          with config.qkv_bias. The first config.rotary_width columns of a head rotate.
 *          Bellagente et al. 2024, arXiv:2402.17834
 * phi3     Phi3ForCausalLM: as mistral. Query, key and value are one tensor of the file, and so are
 *          gate and up. The first config.rotary_width columns of a head rotate.
 *          Microsoft 2024, arXiv:2404.14219
 * gemma2   Gemma2ForCausalLM: as gemma3_text, without norms of the queries and keys, with soft-caps
 *          of the attention scores and the logits. Gemma Team 2024, arXiv:2408.00118
 * gemma3_text  Gemma3ForCausalLM: as qwen3, with norms before and after each sub-layer, GEGLU,
 *          scaled embeddings, and a window in all layers but every n-th (config.layer_types).
 *          Gemma Team 2025, arXiv:2503.19786
 * marian   MarianMTModel: the original Transformer, an encoder and a decoder with norms after the
 *          residual sums and sinusoidal positions. Vaswani et al. 2017, arXiv:1706.03762
 * bart     BartForConditionalGeneration: as marian, with a table of positions and a norm of the
 *          embedding in each stack. Lewis et al. 2020, arXiv:1910.13461
 * mbart    MBartForConditionalGeneration: as bart, with norms before each sub-layer, and a final
 *          norm of each stack. The norm of the embedding precedes the norm of the first block.
 *          Liu et al. 2020, arXiv:2001.08210
 * t5       T5ForConditionalGeneration (T5, T5 1.1, mT5, ByT5): an encoder and a decoder with RMS
 *          norms before each sub-layer, a relative position bias, unscaled attention and no biases.
 *          The feed-forward network has a gate with config.parts.gated (T5 1.1).
 *          Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202 */
#include "trainer/model/architecture.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/model/model.h"

static const struct architecture_names gpt2_names = {
    .token_table = "transformer.wte",
    .position_table = "transformer.wpe",
    .block = "transformer.h",
    .norm1 = "ln_1",
    .qkv = "attn.c_attn",
    .projection = "attn.c_proj",
    .norm2 = "ln_2",
    .fc = "mlp.c_fc",
    .fc_projection = "mlp.c_proj",
    .final_norm = "transformer.ln_f",
    .decoder = "lm_head",
    .sequence_labels = "score",
    .choice_labels = "score",
    .token_labels = "classifier",
};

static const struct architecture_names openai_gpt_names = {
    .token_table = "transformer.tokens_embed",
    .position_table = "transformer.positions_embed",
    .block = "transformer.h",
    .qkv = "attn.c_attn",
    .projection = "attn.c_proj",
    .norm2 = "ln_1",
    .fc = "mlp.c_fc",
    .fc_projection = "mlp.c_proj",
    .norm1 = "ln_2",
    .decoder = "lm_head",
    .sequence_labels = "score",
    .choice_labels = "score",
    .token_labels = "classifier",
};

/* Names that BERT, RoBERTa and Megatron-LM's BERT share. */
#define ENCODER_NAMES(model)                                                                       \
    .token_table = model ".embeddings.word_embeddings",                                            \
    .position_table = model ".embeddings.position_embeddings",                                     \
    .token_type_table = model ".embeddings.token_type_embeddings",                                 \
    .block = model ".encoder.layer", .query = "attention.self.query", .key = "attention.self.key", \
    .value = "attention.self.value", .projection = "attention.output.dense",                       \
    .fc = "intermediate.dense", .fc_projection = "output.dense", .pooler = model ".pooler.dense",  \
    .choice_labels = "classifier", .token_labels = "classifier"

/* Norms of BERT and RoBERTa. */
#define ENCODER_NORM_NAMES(model)                                                                  \
    .embedding_norm = model ".embeddings.LayerNorm", .norm2 = "attention.output.LayerNorm",        \
    .norm1 = "output.LayerNorm"

/* The heads of BERT. */
#define BERT_HEAD_NAMES                                                                            \
    .transform = "cls.predictions.transform.dense",                                                \
    .transform_norm = "cls.predictions.transform.LayerNorm", .decoder = "cls.predictions.decoder", \
    .decoder_bias = "cls.predictions", .next_sentence = "cls.seq_relationship",                    \
    .sequence_labels = "classifier"

static const struct architecture_names bert_names = {
    ENCODER_NAMES("bert"),
    ENCODER_NORM_NAMES("bert"),
    BERT_HEAD_NAMES,
};

static const struct architecture_names megatron_bert_names = {
    ENCODER_NAMES("bert"),           BERT_HEAD_NAMES, .norm1 = "attention.ln", .norm2 = "ln",
    .final_norm = "bert.encoder.ln",
};

#define CLASSIFIER_LABELS                                                                          \
    .sequence_labels = "classifier", .choice_labels = "classifier", .token_labels = "classifier"

static const struct architecture_names albert_names = {
    .token_table = "albert.embeddings.word_embeddings",
    .position_table = "albert.embeddings.position_embeddings",
    .token_type_table = "albert.embeddings.token_type_embeddings",
    .embedding_norm = "albert.embeddings.LayerNorm",
    .embedding_projection = "albert.encoder.embedding_hidden_mapping_in",
    .block = "albert.encoder.albert_layer_groups.0.albert_layers",
    .query = "attention.query",
    .key = "attention.key",
    .value = "attention.value",
    .projection = "attention.dense",
    .norm2 = "attention.LayerNorm",
    .fc = "ffn",
    .fc_projection = "ffn_output",
    .norm1 = "full_layer_layer_norm",
    .pooler = "albert.pooler",
    .transform = "predictions.dense",
    .transform_norm = "predictions.LayerNorm",
    .decoder = "predictions.decoder",
    .decoder_bias = "predictions",
    .next_sentence = "sop_classifier.classifier",
    CLASSIFIER_LABELS,
};

static const struct architecture_names distilbert_names = {
    .token_table = "distilbert.embeddings.word_embeddings",
    .position_table = "distilbert.embeddings.position_embeddings",
    .embedding_norm = "distilbert.embeddings.LayerNorm",
    .block = "distilbert.transformer.layer",
    .query = "attention.q_lin",
    .key = "attention.k_lin",
    .value = "attention.v_lin",
    .projection = "attention.out_lin",
    .norm2 = "sa_layer_norm",
    .fc = "ffn.lin1",
    .fc_projection = "ffn.lin2",
    .norm1 = "output_layer_norm",
    .pooler = "pre_classifier",
    .transform = "vocab_transform",
    .transform_norm = "vocab_layer_norm",
    .decoder = "vocab_projector",
    .decoder_bias = "vocab_projector",
    CLASSIFIER_LABELS,
};

/* Names of the families with free parts. Each placement of the norms uses some of them. */
#define TRANSFORMER_NAMES                                                                          \
    .token_table = "embeddings.tokens", .position_table = "embeddings.positions",                  \
    .embedding_norm = "embeddings.norm", .block = "layers", .norm1 = "attention_input_norm",       \
    .query = "attention.query", .key = "attention.key", .value = "attention.value",                \
    .projection = "attention.output", .query_norm = "attention.query_norm",                        \
    .key_norm = "attention.key_norm", .attention_norm = "attention_output_norm",                   \
    .norm2 = "feed_forward_input_norm", .gate = "feed_forward.gate", .fc = "feed_forward.up",      \
    .fc_projection = "feed_forward.down", .feed_forward_norm = "feed_forward_output_norm",         \
    .final_norm = "final_norm", .pooler = "pooler", .decoder = "head.decoder",                     \
    .sequence_labels = "classifier", .choice_labels = "classifier", .token_labels = "classifier"

static const struct architecture_names transformer_encoder_names = {
    TRANSFORMER_NAMES,
    .token_type_table = "embeddings.token_types",
    .embedding_projection = "embeddings.projection",
    .transform = "head.dense",
    .transform_norm = "head.norm",
    .decoder_bias = "head",
};

static const struct architecture_names transformer_decoder_names = {TRANSFORMER_NAMES};

static const struct architecture_names roberta_names = {
    ENCODER_NAMES("roberta"),
    ENCODER_NORM_NAMES("roberta"),
    .transform = "lm_head.dense",
    .transform_norm = "lm_head.layer_norm",
    .decoder = "lm_head.decoder",
    .decoder_bias = "lm_head",
    .sequence_dense = "classifier.dense",
    .sequence_labels = "classifier.out_proj",
};

/* Names that Llama and the families like it share. */
#define COMMON_ROTARY_NAMES                                                                        \
    .token_table = "model.embed_tokens", .block = "model.layers",                                  \
    .projection = "self_attn.o_proj", .fc_projection = "mlp.down_proj",                            \
    .final_norm = "model.norm", .decoder = "lm_head", .sequence_labels = "score",                  \
    .choice_labels = "score", .token_labels = "score"
#define ROTARY_NAMES                                                                               \
    COMMON_ROTARY_NAMES, .query = "self_attn.q_proj", .key = "self_attn.k_proj",                   \
                         .value = "self_attn.v_proj", .gate = "mlp.gate_proj", .fc = "mlp.up_proj"

static const struct architecture_names modernbert_names = {
    .token_table = "model.embeddings.tok_embeddings",
    .embedding_norm = "model.embeddings.norm",
    .block = "model.layers",
    .norm1 = "attn_norm",
    .qkv = "attn.Wqkv",
    .projection = "attn.Wo",
    .norm2 = "mlp_norm",
    .gate_fc = "mlp.Wi",
    .fc_projection = "mlp.Wo",
    .final_norm = "model.final_norm",
    .transform = "head.dense",
    .transform_norm = "head.norm",
    .decoder = "decoder",
    .decoder_bias = "decoder",
    CLASSIFIER_LABELS,
    .answer_labels = "classifier",
};

static const struct architecture_names llama_names = {
    ROTARY_NAMES,
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
};

static const struct architecture_names olmo_names = {ROTARY_NAMES};

static const struct architecture_names phi3_names = {
    COMMON_ROTARY_NAMES,           .norm1 = "input_layernorm",
    .qkv = "self_attn.qkv_proj",   .norm2 = "post_attention_layernorm",
    .gate_fc = "mlp.gate_up_proj",
};

static const struct architecture_names qwen3_names = {
    ROTARY_NAMES,
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .query_norm = "self_attn.q_norm",
    .key_norm = "self_attn.k_norm",
};

static const struct architecture_names olmo2_names = {
    ROTARY_NAMES,
    .query_norm = "self_attn.q_norm",
    .key_norm = "self_attn.k_norm",
    .attention_norm = "post_attention_layernorm",
    .feed_forward_norm = "post_feedforward_layernorm",
};

#define GEMMA_NAMES                                                                                \
    ROTARY_NAMES, .norm1 = "input_layernorm", .attention_norm = "post_attention_layernorm",        \
                  .norm2 = "pre_feedforward_layernorm",                                            \
                  .feed_forward_norm = "post_feedforward_layernorm"

static const struct architecture_names gemma2_names = {GEMMA_NAMES};

static const struct architecture_names gemma3_names = {
    GEMMA_NAMES,
    .query_norm = "self_attn.q_norm",
    .key_norm = "self_attn.k_norm",
};

/* Names in the blocks of a stack of Marian. */
#define MARIAN_MATRIX_NAMES(stack)                                                                 \
    .block = "model." stack ".layers", .query = "self_attn.q_proj", .key = "self_attn.k_proj",     \
    .value = "self_attn.v_proj", .projection = "self_attn.out_proj", .fc = "fc1",                  \
    .fc_projection = "fc2"
#define MARIAN_BLOCK_NAMES(stack) MARIAN_MATRIX_NAMES(stack), .norm1 = "final_layer_norm"

static const struct architecture_names marian_names = {
    MARIAN_BLOCK_NAMES("encoder"),
    .token_table = "model.shared",
    .separate_token_table = "model.encoder.embed_tokens",
    .norm2 = "self_attn_layer_norm",
    .decoder = "lm_head",
    .logits_bias = "final_logits_bias",
};

/* Names of cross-attention in Marian, and of the norms before and after it. */
#define MARIAN_CROSS_MATRIX_NAMES                                                                  \
    .cross_query = "encoder_attn.q_proj", .cross_key = "encoder_attn.k_proj",                      \
    .cross_value = "encoder_attn.v_proj", .cross_projection = "encoder_attn.out_proj"
#define MARIAN_CROSS_NAMES                                                                         \
    MARIAN_CROSS_MATRIX_NAMES, .cross_norm = "self_attn_layer_norm",                               \
                               .norm2 = "encoder_attn_layer_norm"

static const struct architecture_names marian_decoder_names = {
    MARIAN_BLOCK_NAMES("decoder"),
    MARIAN_CROSS_NAMES,
    .separate_token_table = "model.decoder.embed_tokens",
};

/* Names in the embedding of a stack of BART. */
#define BART_EMBEDDING_NAMES(stack)                                                                \
    .position_table = "model." stack ".embed_positions",                                           \
    .embedding_norm = "model." stack ".layernorm_embedding"

static const struct architecture_names bart_names = {
    MARIAN_BLOCK_NAMES("encoder"), BART_EMBEDDING_NAMES("encoder"),
    .token_table = "model.shared", .norm2 = "self_attn_layer_norm",
    .decoder = "lm_head",          .logits_bias = "final_logits_bias",
};

static const struct architecture_names bart_decoder_names = {
    MARIAN_BLOCK_NAMES("decoder"),
    BART_EMBEDDING_NAMES("decoder"),
    MARIAN_CROSS_NAMES,
};

/* The names of the tensors in a stack of mBART. Each norm precedes its sub-layer. */
#define MBART_STACK_NAMES(stack)                                                                   \
    MARIAN_MATRIX_NAMES(stack), BART_EMBEDDING_NAMES(stack),                                       \
        .norm1 = "self_attn_layer_norm", .norm2 = "final_layer_norm",                              \
        .final_norm = "model." stack ".layer_norm"

static const struct architecture_names mbart_names = {
    MBART_STACK_NAMES("encoder"),
    .token_table = "model.shared",
    .decoder = "lm_head",
    .logits_bias = "final_logits_bias",
};

static const struct architecture_names mbart_decoder_names = {
    MBART_STACK_NAMES("decoder"),
    MARIAN_CROSS_MATRIX_NAMES,
    .cross_norm = "encoder_attn_layer_norm",
};

/* Names in a stack of T5. The feed-forward network is the last sub-layer of a block. */
#define T5_STACK_NAMES(stack, last)                                                                \
    .block = stack ".block", .norm1 = "layer.0.layer_norm", .query = "layer.0.SelfAttention.q",    \
    .key = "layer.0.SelfAttention.k", .value = "layer.0.SelfAttention.v",                          \
    .projection = "layer.0.SelfAttention.o",                                                       \
    .position_bias = stack ".block.0.layer.0.SelfAttention.relative_attention_bias",               \
    .norm2 = "layer." last ".layer_norm", .gate = "layer." last ".DenseReluDense.wi_0",            \
    .fc = "layer." last ".DenseReluDense.wi_1", .ungated_fc = "layer." last ".DenseReluDense.wi",  \
    .fc_projection = "layer." last ".DenseReluDense.wo", .final_norm = stack ".final_layer_norm"

static const struct architecture_names t5_names = {
    T5_STACK_NAMES("encoder", "1"),
    .token_table = "shared",
    .decoder = "lm_head",
};

static const struct architecture_names t5_decoder_names = {
    T5_STACK_NAMES("decoder", "2"),
    .cross_query = "layer.1.EncDecAttention.q",
    .cross_key = "layer.1.EncDecAttention.k",
    .cross_value = "layer.1.EncDecAttention.v",
    .cross_projection = "layer.1.EncDecAttention.o",
    .cross_norm = "layer.1.layer_norm",
};

static const struct architecture architectures[] = {
    {
        .name = "gpt2",
        .embedding = {.positions = POSITIONS_LEARNED},
        .norm = {.placement = PLACEMENT_PRE},
        .attention = {.causal = true, .qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .scaled_residuals = true,
        .transposed = true,
        .names = &gpt2_names,
    },
    {
        .name = "bert",
        .embedding = {.positions = POSITIONS_LEARNED},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .head = {.transform = true},
        .names = &bert_names,
    },
    {
        .name = "albert",
        .embedding = {.positions = POSITIONS_LEARNED},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .head = {.transform = true},
        .shared_layers = true,
        .names = &albert_names,
    },
    {
        .name = "distilbert",
        .embedding = {.positions = POSITIONS_LEARNED},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .head = {.transform = true, .relu_dense = true, .answer_dropout = true},
        .names = &distilbert_names,
    },
    {
        .name = "megatron-bert",
        .embedding = {.positions = POSITIONS_LEARNED},
        .norm = {.placement = PLACEMENT_PRE},
        .attention = {.qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .head = {.transform = true},
        .names = &megatron_bert_names,
    },
    {
        .name = "transformer_encoder",
        .embedding = {.positions = POSITIONS_SINUSOIDAL},
        .norm = {.placement = PLACEMENT_POST},
        .head = {.transform = true},
        .free_parts = true,
        .names = &transformer_encoder_names,
    },
    {
        .name = "transformer_decoder",
        .embedding = {.positions = POSITIONS_SINUSOIDAL},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.causal = true},
        .free_parts = true,
        .names = &transformer_decoder_names,
    },
    {
        .name = "roberta",
        .embedding = {.positions = POSITIONS_LEARNED, .first_position = 2},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .head = {.transform = true, .separate_dense = true},
        .names = &roberta_names,
    },
    {
        .name = "modernbert",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.no_bias = true, .placement = PLACEMENT_PRE},
        .feed_forward = {.gated = true, .gelu = true},
        .head = {.transform = true, .no_bias = true, .task_transform = true},
        .names = &modernbert_names,
    },
    {
        .name = "llama",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &llama_names,
    },
    {
        .name = "granite",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &llama_names,
    },
    {
        .name = "smollm3",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &llama_names,
    },
    {
        .name = "qwen2",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true, .qkv_bias = true},
        .feed_forward = {.gated = true},
        .names = &llama_names,
    },
    {
        .name = "mistral",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &llama_names,
    },
    {
        .name = "qwen3",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true, .qk_norm = QK_NORM_HEADS},
        .feed_forward = {.gated = true},
        .names = &qwen3_names,
    },
    {
        .name = "openai-gpt",
        .embedding = {.positions = POSITIONS_LEARNED},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.causal = true, .qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .transposed = true,
        .names = &openai_gpt_names,
    },
    {
        .name = "olmo",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.no_weight = true, .placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &olmo_names,
    },
    {
        .name = "olmo2",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_BRANCH},
        .attention = {.causal = true, .qk_norm = QK_NORM_ROWS},
        .feed_forward = {.gated = true},
        .names = &olmo2_names,
    },
    {
        .name = "phi3",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &phi3_names,
    },
    {
        .name = "stablelm",
        .embedding = {.positions = POSITIONS_ROTARY},
        .norm = {.placement = PLACEMENT_PRE},
        .attention = {.causal = true},
        .feed_forward = {.gated = true},
        .names = &llama_names,
    },
    {
        .name = "gemma2",
        .embedding = {.positions = POSITIONS_ROTARY, .scaled = true},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_BOTH},
        .attention = {.causal = true},
        .feed_forward = {.gated = true, .gelu = true},
        .names = &gemma2_names,
    },
    {
        .name = "gemma3_text",
        .embedding = {.positions = POSITIONS_ROTARY, .scaled = true},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_BOTH},
        .attention = {.causal = true, .qk_norm = QK_NORM_HEADS},
        .feed_forward = {.gated = true, .gelu = true},
        .names = &gemma3_names,
    },
    {
        .name = "marian",
        .embedding = {.positions = POSITIONS_SINUSOIDAL, .sines_first = true},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.causal = true, .qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .names = &marian_names,
        .decoder_names = &marian_decoder_names,
    },
    {
        .name = "bart",
        .embedding = {.positions = POSITIONS_LEARNED, .first_position = 2, .adds_positions = true},
        .norm = {.placement = PLACEMENT_POST},
        .attention = {.causal = true, .qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .names = &bart_names,
        .decoder_names = &bart_decoder_names,
    },
    {
        .name = "mbart",
        .embedding = {.positions = POSITIONS_LEARNED,
                      .first_position = 2,
                      .adds_positions = true,
                      .extra_norm = true},
        .norm = {.placement = PLACEMENT_PRE},
        .attention = {.causal = true, .qkv_bias = true, .projection_bias = true},
        .feed_forward = {.bias = true},
        .names = &mbart_names,
        .decoder_names = &mbart_decoder_names,
    },
    {
        .name = "t5",
        .embedding = {.positions = POSITIONS_RELATIVE},
        .norm = {.kind = NORM_RMS, .placement = PLACEMENT_PRE},
        .attention = {.causal = true, .unscaled = true},
        .output_dropout = true,
        .free_gate = true,
        .fan_in_init = true,
        .names = &t5_names,
        .decoder_names = &t5_decoder_names,
    },
};

const struct architecture *model_architecture(const char *name)
{
    for (int i = 0; i < COUNT(architectures); i++) {
        if (strcmp(architectures[i].name, name) == 0) {
            return &architectures[i];
        }
    }
    return NULL;
}

/* Sets the parts of a model with free_parts. */
static void compose_parts(const struct model_config *config, struct architecture *a)
{
    const struct model_parts *parts = &config->parts;
    if (parts->norm_placement != PLACEMENT_DEFAULT) {
        a->norm.placement = parts->norm_placement;
    }
    if (parts->positions != POSITIONS_DEFAULT) {
        a->embedding.positions = parts->positions;
    }
    a->norm.kind = parts->rms_norm ? NORM_RMS : NORM_LAYER;
    a->norm.no_weight = parts->norm_without_weight;
    a->attention.qk_norm = parts->qk_norm;
    a->norm.no_bias = parts->norm_without_bias;
    a->embedding.no_norm = !parts->embedding_norm;
    a->embedding.no_token_types = config->token_types == 0;
    a->shared_layers = parts->shared_layers;
    a->head.transform = a->head.transform && !parts->head_without_transform;
    a->head.no_bias = parts->head_without_transform_bias;
    a->head.no_logits_bias = parts->head_without_bias;
}

/* Blocks of a stack without an encoder, and of a decoder that reads the output of an encoder. */
static const struct block plain_block = {2, {SUBLAYER_SELF_ATTENTION, SUBLAYER_FEED_FORWARD}};
static const struct block decoder_block = {
    3, {SUBLAYER_SELF_ATTENTION, SUBLAYER_CROSS_ATTENTION, SUBLAYER_FEED_FORWARD}};

struct architecture architecture_compose(const struct model_config *config)
{
    const struct architecture *row = model_architecture(config->architecture);
    struct architecture a = row != NULL ? *row : (struct architecture){0};
    const struct model_parts *parts = &config->parts;
    for (int i = 0; i < COUNT(a.blocks); i++) {
        const struct block *usual = i > 0 ? &decoder_block : &plain_block;
        a.blocks[i] = a.blocks[i].count > 0 ? a.blocks[i] : *usual;
    }
    if (a.free_parts || a.free_gate) {
        a.feed_forward.gated = parts->gated;
        a.feed_forward.gelu = config->activation != ACTIVATION_SILU;
    }
    if (a.free_parts) {
        compose_parts(config, &a);
    }
    return a;
}

const char *model_architecture_names(char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < COUNT(architectures); i++) {
        text_append_item(text, bytes, architectures[i].name, i, COUNT(architectures), "or");
    }
    return text;
}

int model_layer_stack(const struct model_config *config, int64_t layer)
{
    const struct architecture *a = model_architecture(config->architecture);
    return a != NULL && architecture_has_decoder(a) && layer >= config->encoder_layers ? 1 : 0;
}

bool model_layer_has_cross(const struct model_config *config, int64_t layer)
{
    struct block block = architecture_compose(config).blocks[model_layer_stack(config, layer)];
    bool found = false;
    for (int i = 0; i < block.count; i++) {
        found = found || block.sublayers[i] == SUBLAYER_CROSS_ATTENTION;
    }
    return found;
}

int64_t model_parameter_uses(const struct model_config *config, const struct model_parameter *p)
{
    const struct architecture a = architecture_compose(config);
    bool in_block = p->layer >= 0 && p->layer < config->layers;
    return a.shared_layers && in_block ? config->layers : 1;
}
