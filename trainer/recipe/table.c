/* The settings table: the only list of all recipe keys. Parsing, checks, `bireme plan`, the
 * resolved recipe and recipes/README.md use it. The resolved recipe has the same order. */
#include "base/memory.h"
#include "trainer/recipe/table_macros.h"

const struct setting recipe_table[] = {
    {"objective", SETTING_ENUM, FIELD(objective), "clm", .choices = OBJECTIVES,
     .description = OBJECTIVE_DESCRIPTION},
    {"run_dir", SETTING_PATH, FIELD(run_dir), "null",
     .null = "runs/NAME, where NAME is the file name of the recipe without its suffix",
     .resume = true,
     .description = "Folder of the checkpoints, the metrics and the resolved recipe"},
    {"seed", SETTING_INTEGER, FIELD(seed), "1337", WITHIN(0, 9.2e18),
     .description = "Random seed of the initial weights, the data order and dropout"},

    {"model.architecture", SETTING_ENUM, FIELD(model.architecture), "gpt2",
     .choices = ARCHITECTURES, .initial = INITIAL_SHAPE,
     .description =
         "Model architecture: model_type in Hugging Face configurations, or a family of Bireme "
         "(transformer_*). docs/reference/architectures.md lists their parts and objectives"},
    {"model.num_layers", SETTING_INTEGER, FIELD(model.num_layers), "12", WITHIN(1, 1000),
     .initial = INITIAL_SHAPE,
     .description = "Number of transformer layers; in an encoder-decoder, of encoder layers"},
    {"model.num_decoder_layers", SETTING_INTEGER, FIELD(model.num_decoder_layers), "null",
     .null = "model.num_layers", WITHIN(1, 1000), .initial = INITIAL_SHAPE, .used = ENCODER_DECODER,
     .description = "Number of layers of the decoder of an encoder-decoder"},
    {"model.decoder_start_token_id", SETTING_INTEGER, FIELD(model.decoder_start_token_id), "null",
     .null = "the padding token of the tokenizer for t5, else its end token", .null_value = -1,
     WITHIN(0, 1e9), .initial = INITIAL_NUMERICS, .used = ENCODER_DECODER,
     .description =
         "Token before each target: the first input of the decoder. mbart is trained with the "
         "last token of the target in this place"},
    {"model.scale_embedding", SETTING_BOOLEAN, FIELD(model.scale_embedding), "true",
     .initial = INITIAL_NUMERICS, .used = "model.architecture=marian|mbart",
     .description = "Whether the token embeddings are multiplied by sqrt(hidden_size)"},
    {"model.share_encoder_decoder_embeddings", SETTING_BOOLEAN,
     FIELD(model.share_encoder_decoder_embeddings), "true", .initial = INITIAL_SHAPE,
     ONLY_FOR("model.architecture=marian"),
     .description = "Whether the encoder and the decoder have one token table; false: one each"},
    {"model.decoder_vocab_size", SETTING_INTEGER, FIELD(model.decoder_vocab_size), "null",
     .null = "model.vocab_size", WITHIN(2, 16777216), .initial = INITIAL_SHAPE,
     .used = "model.share_encoder_decoder_embeddings=false",
     .description = "Number of token ids of the decoder, if targets have their own vocabulary"},
    {"model.final_logits_bias", SETTING_BOOLEAN, FIELD(model.final_logits_bias), "false",
     .initial = INITIAL_SHAPE, .used = "model.architecture=marian|bart|mbart",
     .description = "Whether a constant, which is not trained, is added to the logits"},
    {"model.relative_attention_num_buckets", SETTING_INTEGER,
     FIELD(model.relative_attention_num_buckets), "32", WITHIN(4, 128), .initial = INITIAL_SHAPE,
     .used = "model.architecture=t5", .description = "t5: buckets of the relative position bias"},
    {"model.relative_attention_max_distance", SETTING_INTEGER,
     FIELD(model.relative_attention_max_distance), "128", WITHIN(2, 1048576),
     .initial = INITIAL_NUMERICS, .used = "model.architecture=t5",
     .description = "t5: distance from which on all distances are in the last bucket"},
    {"model.scale_decoder_outputs", SETTING_ENUM, FIELD(model.scale_decoder_outputs), "null",
     .null = "the value of tie_word_embeddings", .choices = "true|false",
     .initial = INITIAL_NUMERICS, .used = "model.architecture=t5",
     .description = "T5 1.0: whether outputs of the decoder are divided by sqrt(hidden_size)"},
    {"model.initializer_factor", SETTING_NUMBER, FIELD(model.initializer_factor), "1.0",
     ABOVE(0, 1e6), .used = "model.architecture=t5",
     .description = "t5: factor of initial standard deviations, instead of initializer_range"},
    {"model.hidden_size", SETTING_INTEGER, FIELD(model.hidden_size), "768", WITHIN(1, 131072),
     .initial = INITIAL_SHAPE,
     .description = "Width of the hidden states; without head_dim, a multiple of num_heads"},
    {"model.embedding_size", SETTING_INTEGER, FIELD(model.embedding_size), "null",
     .null = "128 for albert, else hidden_size", WITHIN(1, 131072), .initial = INITIAL_SHAPE,
     ONLY_FOR("model.architecture=albert|transformer_encoder"),
     .description = "albert, transformer_encoder: width of the embeddings. A matrix maps them to "
                    "hidden_size"},
    {"model.num_hidden_groups", SETTING_INTEGER, FIELD(model.num_hidden_groups), "null",
     .null = "1 for albert, else num_layers", WITHIN(1, 1000), .initial = INITIAL_SHAPE,
     ONLY_FOR(FREE "|albert"),
     .description =
         "albert, transformer_*: number of groups of layers with the same parameters. 1: all "
         "layers have the parameters of one block; num_layers: each layer has its own"},
    {"model.num_heads", SETTING_INTEGER, FIELD(model.num_heads), "12", WITHIN(1, 1024),
     .initial = INITIAL_SHAPE, .description = "Number of attention heads of each layer"},
    {"model.num_kv_heads", SETTING_INTEGER, FIELD(model.num_kv_heads), "null",
     .null = "the value of num_heads", WITHIN(1, 1024), .initial = INITIAL_SHAPE, .used = ROTARY,
     .description =
         "Architectures with rotary positions, such as llama, and transformer_*: number of "
         "key-value heads of each layer (grouped-query attention). Each is shared by num_heads / "
         "num_kv_heads query heads. modernbert requires num_heads"},
    {"model.head_dim", SETTING_INTEGER, FIELD(model.head_dim), "null",
     .null = "hidden_size / num_heads", WITHIN(1, HEAD_DIM_MAX), .initial = INITIAL_SHAPE,
     .used = ROTARY "|t5",
     .description = "t5 and rotary architectures: width of an attention head (d_kv for t5)"},
    {"model.sliding_window", SETTING_INTEGER, FIELD(model.sliding_window), "null",
     .null = "all earlier tokens", WITHIN(1, 1048576), .initial = INITIAL_NUMERICS,
     ONLY_FOR(FREE "|mistral|gemma2|gemma3_text|modernbert|phi3"),
     .description =
         "mistral, gemma2, gemma3_text, phi3, transformer_decoder: number of last tokens, "
         "including itself, that a token attends to. modernbert, transformer_encoder: a token "
         "attends to tokens at a distance of at most half of this number (local_attention)"},
    {"model.sliding_window_pattern", SETTING_INTEGER, FIELD(model.sliding_window_pattern), "null",
     .null = "6 for gemma3_text, 2 for gemma2, 3 for modernbert; else all layers have the window",
     WITHIN(1, 1001), .initial = INITIAL_NUMERICS, ONLY_FOR(FREE "|gemma2|gemma3_text|modernbert"),
     .description =
         "gemma2, gemma3_text, transformer_*: every n-th layer attends to all (earlier) tokens, "
         "the other layers have sliding_window (layer_types in Hugging Face configurations). "
         "modernbert: the first layer and every n-th one after it attend to all tokens"},
    {"model.layer_types", SETTING_LIST, FIELD(model.layer_types), "null",
     .null = "from sliding_window_pattern", .choices = "full_attention|sliding_attention",
     .initial = INITIAL_NUMERICS, ONLY_FOR(FREE "|gemma2|gemma3_text|modernbert"),
     .description =
         "gemma2, gemma3_text, modernbert, transformer_*: attention of each layer: full_attention, "
         "or sliding_attention with sliding_window. If every n-th layer and no other has "
         "full_attention, sliding_window_pattern replaces the list"},
    {"model.query_pre_attn_scalar", SETTING_INTEGER, FIELD(model.query_pre_attn_scalar), "null",
     .null = "head_dim", WITHIN(1, 1000000), .initial = INITIAL_NUMERICS,
     ONLY_FOR("model.architecture=gemma2|gemma3_text"),
     .description = "gemma2, gemma3_text: scores are divided by the square root of this number"},
    {"model.attn_logit_softcapping", SETTING_NUMBER, FIELD(model.attn_logit_softcapping), "null",
     .null = "none", ABOVE(0, 1e6), .initial = INITIAL_NUMERICS,
     ONLY_FOR(FREE "|gemma2|gemma3_text"),
     .description = "gemma2, gemma3_text, transformer_*: soft-cap c of scores: c tanh(s / c)"},
    {"model.final_logit_softcapping", SETTING_NUMBER, FIELD(model.final_logit_softcapping), "null",
     .null = "none", ABOVE(0, 1e6), .initial = INITIAL_NUMERICS,
     ONLY_FOR("model.architecture=gemma2|gemma3_text|transformer_decoder"),
     .description = "gemma2, gemma3_text, transformer_decoder: soft-cap of the logits"},
    {"model.no_rope_layer_interval", SETTING_INTEGER, FIELD(model.no_rope_layer_interval), "null",
     .null = "4 for smollm3, else none", WITHIN(1, 1001), .initial = INITIAL_NUMERICS,
     ONLY_FOR(FREE "|smollm3"),
     .description = "smollm3, transformer_*: every n-th layer has no rotary position embeddings"},
    {"model.embedding_multiplier", SETTING_NUMBER, FIELD(model.embedding_multiplier), "null",
     .null = "1", ABOVE(0, 1e6), .initial = INITIAL_NUMERICS, ONLY_FOR(FREE "|granite"),
     .description = "granite, transformer_*: factor of the token embeddings"},
    {"model.attention_multiplier", SETTING_NUMBER, FIELD(model.attention_multiplier), "null",
     .null = "1 / sqrt(head_dim)", ABOVE(0, 1e6), .initial = INITIAL_NUMERICS,
     ONLY_FOR(FREE "|granite"),
     .description = "granite, transformer_*: factor of attention scores"},
    {"model.residual_multiplier", SETTING_NUMBER, FIELD(model.residual_multiplier), "null",
     .null = "1", ABOVE(0, 1e6), .initial = INITIAL_NUMERICS, ONLY_FOR(FREE "|granite"),
     .description = "granite, transformer_*: factor of the outputs of the sub-layers"},
    {"model.logits_scaling", SETTING_NUMBER, FIELD(model.logits_scaling), "null", .null = "1",
     ABOVE(0, 1e6), .initial = INITIAL_NUMERICS,
     ONLY_FOR("model.architecture=granite|transformer_decoder"),
     .description = "granite, transformer_decoder: the logits are divided by this number"},
    {"model.use_qkv_bias", SETTING_BOOLEAN, FIELD(model.use_qkv_bias), "false",
     .initial = INITIAL_SHAPE, ONLY_FOR(FREE "|stablelm"),
     .description = "stablelm, transformer_*: whether queries, keys and values have biases"},
    {"model.attention_bias", SETTING_BOOLEAN, FIELD(model.attention_bias), "false",
     .initial = INITIAL_SHAPE, ONLY_FOR(ATTENTION_BIASED),
     .description = "llama, qwen3, gemma2, gemma3_text, smollm3, granite, olmo, olmo2, modernbert, "
                    "transformer_*: whether queries, keys, values and the attention's output "
                    "projection have biases"},
    {"model.mlp_bias", SETTING_BOOLEAN, FIELD(model.mlp_bias), "false", .initial = INITIAL_SHAPE,
     ONLY_FOR(MLP_BIASED),
     .description = "llama, smollm3, granite, modernbert, transformer_*: whether the feed-forward "
                    "layers have biases"},
    {"model.rope_theta", SETTING_NUMBER, FIELD(model.rope_theta), "10000.0", ABOVE(1, 1e12),
     .initial = INITIAL_NUMERICS, .used = ROTARY,
     .description = "Rotary architectures: base of the rotary position embeddings"},
    {"model.partial_rotary_factor", SETTING_NUMBER, FIELD(model.partial_rotary_factor), "null",
     .null = "0.25 for stablelm, else 1", .range = {.min = 0, .max = 1, .exclusive_min = true},
     .initial = INITIAL_NUMERICS, ONLY_FOR(FREE "|phi3|stablelm"),
     .description = "phi3, stablelm, transformer_*: share of a head's columns that rotate"},
    {"model.rope_local_base_freq", SETTING_NUMBER, FIELD(model.rope_local_base_freq), "null",
     .null = "10000 for gemma3_text and modernbert, else rope_theta", ABOVE(1, 1e12),
     .initial = INITIAL_NUMERICS, ONLY_FOR(FREE "|gemma3_text|modernbert"),
     .description =
         "gemma3_text, modernbert, transformer_*: base of the rotary position embeddings in the "
         "layers with sliding_window, where rope_type does not apply"},
    {"model.rope_type", SETTING_ENUM, FIELD(model.rope_type), "default", .used = ROTARY,
     .choices = "default|linear|llama3|yarn|dynamic|longrope", .initial = INITIAL_NUMERICS,
     .description =
         "Rotary architectures: scaling of the rotary position embeddings for longer sequences. "
         "linear: every frequency is divided by rope_factor; llama3: only low frequencies are "
         "divided, as in Llama 3.1 and later; yarn: the same, and attention is sharpened (YaRN); "
         "dynamic: the base increases with max_position_embeddings (dynamic NTK); longrope: each "
         "frequency is divided by a number of rope_short_factor or rope_long_factor (Phi-3)"},
    {"model.rope_factor", SETTING_NUMBER, FIELD(model.rope_factor), "1.0", WITHIN(1, 1e6),
     .initial = INITIAL_NUMERICS, .used = "model.rope_type=linear|llama3|yarn|dynamic|longrope",
     .description = "rope_type other than default: new context length divided by the original one"},
    {"model.rope_low_freq_factor", SETTING_NUMBER, FIELD(model.rope_low_freq_factor), "1.0",
     WITHIN(0, 1e6), .initial = INITIAL_NUMERICS, .used = "model.rope_type=llama3",
     .description = "rope_type llama3: frequencies with at most this number of periods within "
                    "rope_original_positions are divided by rope_factor"},
    {"model.rope_high_freq_factor", SETTING_NUMBER, FIELD(model.rope_high_freq_factor), "4.0",
     ABOVE(0, 1e6), .initial = INITIAL_NUMERICS, .used = "model.rope_type=llama3",
     .description = "rope_type llama3: frequencies with at least this number of periods within "
                    "rope_original_positions are not scaled"},
    {"model.rope_beta_fast", SETTING_NUMBER, FIELD(model.rope_beta_fast), "32.0", ABOVE(0, 1e6),
     .initial = INITIAL_NUMERICS, .used = "model.rope_type=yarn",
     .description = "rope_type yarn: frequencies with at least this number of periods within "
                    "rope_original_positions are not scaled"},
    {"model.rope_beta_slow", SETTING_NUMBER, FIELD(model.rope_beta_slow), "1.0", ABOVE(0, 1e6),
     .initial = INITIAL_NUMERICS, .used = "model.rope_type=yarn",
     .description = "rope_type yarn: frequencies with at most this number of periods within "
                    "rope_original_positions are divided by rope_factor"},
    {"model.rope_attention_factor", SETTING_NUMBER, FIELD(model.rope_attention_factor), "null",
     .null = "yarn: 0.1 ln(f) + 1; longrope: square root of 1 + ln(f) / ln(o); f is rope_factor",
     ABOVE(0, 1e6), .initial = INITIAL_NUMERICS, .used = "model.rope_type=yarn|longrope",
     .description = "rope_type yarn and longrope: factor of rotated queries and keys"},
    ROPE_FACTORS(rope_short_factor, "at most"),
    ROPE_FACTORS(rope_long_factor, "above"),
    {"model.rope_original_positions", SETTING_INTEGER, FIELD(model.rope_original_positions), "null",
     .null = "the value of max_position_embeddings", WITHIN(1, 1048576),
     .initial = INITIAL_NUMERICS, .used = "model.rope_type=llama3|yarn|dynamic|longrope",
     .description = "Context length before the extension, o (original_max_position_embeddings)"},
    {"model.intermediate_size", SETTING_INTEGER, FIELD(model.intermediate_size), "null",
     .null = "4 times hidden_size", WITHIN(1, 1048576), .initial = INITIAL_SHAPE,
     .description = "Inner width of the feed-forward layers"},
    {"model.max_position_embeddings", SETTING_INTEGER, FIELD(model.max_position_embeddings), "1024",
     WITHIN(1, 1048576), .initial = INITIAL_SHAPE,
     .description = "Maximum sequence length of the model"},
    {"model.vocab_size", SETTING_INTEGER, FIELD(model.vocab_size), "null",
     .null = "the vocabulary size of the tokenizer", WITHIN(2, 16777216), .initial = INITIAL_SHAPE,
     .description = "Number of token ids. Internal padding of the embedding is not counted"},
    {"model.dropout", SETTING_NUMBER, FIELD(model.dropout), "0.0", BELOW(0, 1),
     .description = "Dropout probability of the embeddings and of the outputs of each attention "
                    "and feed-forward block; t5: also of the inner features and the stacks"},
    {"model.attention_dropout", SETTING_NUMBER, FIELD(model.attention_dropout), "null",
     .null = "the value of dropout", .null_value = -1, BELOW(0, 1),
     .description = "Dropout probability of the attention weights"},
    {"model.activation_dropout", SETTING_NUMBER, FIELD(model.activation_dropout), "0.0",
     BELOW(0, 1), ONLY_FOR("model.architecture=marian|bart|mbart"),
     .description = "marian, bart, mbart: dropout probability of the inner feed-forward features"},
    {"model.layer_norm_epsilon", SETTING_NUMBER, FIELD(model.layer_norm_epsilon), "null",
     .null = "1.0e-06 for t5, else 1.0e-05", .null_value = -1, ABOVE(0, 1),
     .initial = INITIAL_NUMERICS,
     .description = "Epsilon that the normalization layers add to the variance"},
    {"model.activation", SETTING_ENUM, FIELD(model.activation), "null",
     .null = "relu for marian and t5, gelu_erf for bart and mbart; gelu_tanh for t5 with "
             "gated_linear_unit and for the others",
     .choices = "gelu_tanh|gelu_erf|relu|relu2|silu", .initial = INITIAL_NUMERICS,
     .used = ACTIVATED,
     .description =
         "Activation function of the feed-forward layers. gelu_tanh is gelu_new in Hugging Face "
         "configurations (GPT-2) and gelu_pytorch_tanh (Gemma), gelu_erf is gelu, relu2 is the "
         "square of relu. gemma2, gemma3_text and modernbert accept the two GELUs. The other "
         "rotary architectures always use SwiGLU"},
#include "trainer/recipe/table_parts.inc"
    {"model.initializer_range", SETTING_NUMBER, FIELD(model.initializer_range), "0.02",
     WITHIN(0, 10),
     .description = "Standard deviation of the initial weights. gpt2 divides it by sqrt(2 "
                    "num_layers) for projections into the residual stream"},
    {"model.tie_word_embeddings", SETTING_BOOLEAN, FIELD(model.tie_word_embeddings), "true",
     .initial = INITIAL_DEFAULT,
     .description = "Whether the output projection shares the weights of the token embedding"},
    {"model.type_vocab_size", SETTING_INTEGER, FIELD(model.type_vocab_size), "null",
     .null = "2 for bert, megatron-bert and albert, 1 for roberta, 0 for the others",
     .null_value = -1, WITHIN(0, 2), .initial = INITIAL_SHAPE,
     .used = "model.architecture=bert|roberta|megatron-bert|albert|transformer_encoder",
     .description = "Number of token type (segment) ids"},
    {"model.next_sentence", SETTING_BOOLEAN, FIELD(model.next_sentence), "true",
     .initial = INITIAL_DEFAULT, .used = "model.architecture=bert|megatron-bert|albert",
     .description =
         "bert, megatron-bert, albert: whether the model has a pooler and, with objective mlm, a "
         "loss of two labels: next-sentence prediction, or segment order (--sentence-order)"},
    {"model.num_labels", SETTING_INTEGER, FIELD(model.num_labels), "null",
     .null = "the number in data.train", WITHIN(1, 10000),
     .used = "objective=classify|classify_tokens|choose",
     .description = "classify, classify_tokens: number of labels; choose: maximum of choices"},
    {"model.init_from", SETTING_PATH, FIELD(model.init_from), "null", .null = "random weights",
     .resume = true,
     .description =
         "Checkpoint or run folder of the initial weights. Settings of the model that the recipe "
         "does not give come from it, except dropout rates, initializer_range and num_labels. A "
         "missing head is initialized at random; an unused head is ignored"},
    {"model.ignore_mismatched_tokenizer", SETTING_BOOLEAN, FIELD(model.ignore_mismatched_tokenizer),
     "false", .resume = true,
     .description =
         "Whether data.tokenizer may give other ids to the tokens than the tokenizer of init_from. "
         "Without it, this is an error. A tokenizer with further tokens is never an error"},

    {"adapter.type", SETTING_ENUM, FIELD(adapter.type), "null",
     .null = "no adapter; the weights of the model are trained", .choices = "lora",
     .description =
         "Adapter type. lora: train low-rank adapters next to the frozen weights of "
         "model.init_from. Only the adapters and the full task head are trained and saved"},
    {"adapter.rank", SETTING_INTEGER, FIELD(adapter.rank), "8", WITHIN(1, 65536),
     .used = "adapter.type=lora", .description = "Rank of the adapter matrices (r in peft)"},
    {"adapter.alpha", SETTING_NUMBER, FIELD(adapter.alpha), "8.0", ABOVE(0, 1e6),
     .used = "adapter.type=lora",
     .description =
         "The output of the adapters is multiplied by alpha / rank (lora_alpha in peft)"},
    {"adapter.rslora", SETTING_BOOLEAN, FIELD(adapter.rslora), "false", .used = "adapter.type=lora",
     .description =
         "Whether the scaling is alpha / sqrt(rank) instead of alpha / rank (use_rslora in peft)"},
    {"adapter.dropout", SETTING_NUMBER, FIELD(adapter.dropout), "0.0", BELOW(0, 1),
     .used = "adapter.type=lora",
     .description = "Dropout probability of the adapter inputs (lora_dropout in peft)"},
    {"adapter.targets", SETTING_LIST, FIELD(adapter.targets), "null", .unordered = true,
     .null = "as in peft: c_attn for gpt2 and openai-gpt, qkv_proj for phi3, Wqkv for modernbert, "
             "q_lin and v_lin for distilbert, q and v for t5, q_proj and v_proj for marian, bart, "
             "mbart and the other rotary architectures, query and value for the others",
     .choices = "all-linear|c_attn|c_proj|attn.c_proj|c_fc|mlp.c_proj|q_proj|k_proj|v_proj|o_proj|"
                "gate_proj|up_proj|down_proj|query|key|value|attention.output.dense|intermediate."
                "dense|output.dense|q_lin|k_lin|v_lin|out_lin|lin1|lin2|Wqkv|Wo|attn.Wo|Wi|mlp.Wo|"
                "qkv_proj|gate_up_proj|q|k|v|o|wi|wi_0|wi_1|wo|EncDecAttention.q|EncDecAttention."
                "k|EncDecAttention.v|EncDecAttention.o|out_proj|fc1|fc2|encoder_attn.q_proj|"
                "encoder_attn.k_proj|encoder_attn.v_proj|encoder_attn.out_proj|attention.dense|ffn|"
                "ffn_output",
     .used = "adapter.type=lora",
     .description = "Weight matrices that get an adapter, given by the ends of their names "
                    "(target_modules in peft). all-linear: every matrix of every layer"},
    {"adapter.base", SETTING_PATH, FIELD(adapter.base), "null",
     .null = "model.init_from, or the base model of the adapters in model.init_from",
     .resume = true,
     .description = "Checkpoint of the frozen base model. A LoRA checkpoint stores this path"},
    {"adapter.base_weights", SETTING_TEXT, FIELD(adapter.base_weights), "null",
     .null = "no comparison",
     .description = "The base model must have this fingerprint. LoRA checkpoints store it"},

    {"data.tokenizer", SETTING_PATH, FIELD(data.tokenizer), "null",
     .null = "no tokenizer; model.vocab_size must be set", .resume = true,
     .description = "Folder of the tokenizer"},
    {"data.train", SETTING_SOURCES, FIELD(data.train), "null",
     .null = "none; only plan and bench accept this", .resume = true,
     .description = "Training shards: a path or glob, or a list of {path, weight, language}"},
    {"data.validation", SETTING_PATH, FIELD(data.validation), "null", .null = "no evaluation",
     .resume = true, .description = "Validation shards: a path or glob"},
    {"data.sequence_length", SETTING_INTEGER, FIELD(data.sequence_length), "null",
     .null = "the value of model.max_position_embeddings", WITHIN(1, 1048576),
     .description = "Number of tokens of a training sequence"},
    {"data.document_mask", SETTING_BOOLEAN, FIELD(data.document_mask), "false",
     .description = "Whether attention and position ids are restricted to single documents"},
    {"data.text_pairs", SETTING_BOOLEAN, FIELD(data.text_pairs), "false", .resume = true,
     .description = "classify and regress: every example has two texts. train sets it from the "
                    "shards; classify and evaluate then refuse single texts"},
    {"data.shuffle", SETTING_BOOLEAN, FIELD(data.shuffle), "true",
     .description = "Whether training sequences are drawn in random order. If false, they "
                    "follow the order of the shards"},
    {"data.mixing", SETTING_ENUM, FIELD(data.mixing), "weight", .choices = "weight|examples",
     .description = MIXING_DESCRIPTION},
    {"data.mixing_maximum", SETTING_INTEGER, FIELD(data.mixing_maximum), "null", .null = "no limit",
     WITHIN(1, 1e15), .used = "data.mixing=examples",
     .description = "Maximum of weight * examples in the rate of a source"},
    {"data.mixing_temperature", SETTING_NUMBER, FIELD(data.mixing_temperature), "1.0",
     ABOVE(0, 1e6), .used = "data.mixing=examples",
     .description = "Rates have the exponent 1 / this number; a larger one makes them more equal"},

    {"sft.packing", SETTING_ENUM, FIELD(sft.packing), "none",
     .choices = "none|bfd|bfd_split|wrapped", .used = "objective=sft",
     .description = "How examples are packed into sequences; packed examples do not attend to each "
                    "other. none: one example per sequence; bfd: best-fit decreasing, longer "
                    "examples are truncated; bfd_split: best-fit decreasing, longer examples are "
                    "split; wrapped: a continuous token stream without example boundaries"},
    {"sft.max_length", SETTING_INTEGER, FIELD(sft.max_length), "null",
     .null = "the value of data.sequence_length", WITHIN(1, 1048576), .used = "objective=sft",
     .description =
         "Maximum number of tokens of an example. The number of truncated examples is logged"},
    {"sft.completion_only_loss", SETTING_ENUM, FIELD(sft.completion_only_loss), "auto",
     .choices = "auto|true|false", .used = "objective=sft",
     .description = "Whether the loss covers completions only. auto: completions only for rows "
                    "that have a completion, all tokens for other rows"},
    {"sft.assistant_only_loss", SETTING_BOOLEAN, FIELD(sft.assistant_only_loss), "false",
     .used = "objective=sft",
     .description =
         "Whether the loss covers assistant messages only, each with its end-of-turn token"},
    {"sft.join_encoding", SETTING_ENUM, FIELD(sft.join_encoding), "auto",
     .choices = "auto|true|false", .resume = true, .used = "objective=sft",
     .description = "Whether prompt and completion of a row must have been encoded as one text, as "
                    "in TRL (`bireme prepare --join-encoding`). auto: as in the shards; other "
                    "shards are refused"},
    {"sft.skip_empty", SETTING_BOOLEAN, FIELD(sft.skip_empty), "true", .used = "objective=sft",
     .description = "Whether examples without any loss token within max_length are skipped and "
                    "counted. If false, they are an error"},

    {"batch.global_size", SETTING_INTEGER, FIELD(batch.global_size), "32", WITHIN(1, 16777216),
     .description = "Number of sequences of an optimizer step, over all ranks"},
    {"batch.micro_size", SETTING_INTEGER, FIELD(batch.micro_size), "null",
     .null = "the smaller of 8 and global_size", WITHIN(1, 1048576), .resume = true,
     .description = "Number of sequences of one forward pass of a rank. Gradient accumulation "
                    "supplies the rest of the global batch"},

    {"mlm.mask_probability", SETTING_NUMBER, FIELD(mlm.mask_probability), "0.15",
     .range = {.min = 0, .max = 1, .exclusive_min = true}, .used = "objective=mlm",
     .description = "Fraction of the tokens of an example to predict. 80 % of them are replaced by "
                    "[MASK] and 10 % by a random token; 10 % are kept"},
    {"mlm.max_predictions", SETTING_INTEGER, FIELD(mlm.max_predictions), "null",
     .null = "mask_probability times data.sequence_length, rounded up", WITHIN(1, 1048576),
     .used = "objective=mlm", .description = "Maximum number of predictions per example"},
    {"mlm.whole_words", SETTING_BOOLEAN, FIELD(mlm.whole_words), "false", .used = "objective=mlm",
     .description = "Whether whole words are masked instead of single tokens"},
    {"denoise.noise", SETTING_ENUM, FIELD(denoise.noise), "span_corruption",
     .choices = "span_corruption|bart|ul2|prefix_lm", .used = "objective=denoise",
     .description =
         "Corruption of the texts. span_corruption: as in T5; bart: as in BART; ul2: the seven "
         "denoisers of UL2; prefix_lm: the source is a prefix of random length. Sentinels are "
         "<extra_id_0>, ... of the tokenizer, else the last ids of a larger vocabulary"},
    {"denoise.noise_density", SETTING_NUMBER, FIELD(denoise.noise_density), "null",
     .null = "0.3 for bart, else 0.15", .used = "denoise.noise=span_corruption|bart",
     .range = {.min = 0, .max = 1, .exclusive_min = true, .exclusive_max = true},
     .description = "Share of the tokens that are noise"},
    {"denoise.mean_noise_span_length", SETTING_NUMBER, FIELD(denoise.mean_noise_span_length), "3.0",
     WITHIN(1, 1e6), .used = "denoise.noise=span_corruption|bart",
     .description = "Mean length of a span; with bart, of the Poisson distribution"},
    {"denoise.mask_length", SETTING_ENUM, FIELD(denoise.mask_length), "span-poisson",
     .choices = "span-poisson|subword", .used = "denoise.noise=bart",
     .description = "bart: lengths of the spans. subword: one token"},
    {"denoise.replace_length", SETTING_INTEGER, FIELD(denoise.replace_length), "1", WITHIN(-1, 1),
     .used = "denoise.noise=bart",
     .description =
         "bart: masks for a span. 1: one (text infilling); -1: one for each token (token "
         "masking); 0: none (token deletion)"},
    {"denoise.permute_sentences", SETTING_NUMBER, FIELD(denoise.permute_sentences), "1.0",
     WITHIN(0, 1), .used = "denoise.noise=bart",
     .description = "bart: share of the sentences (up to '.', '!' or '?') that change places"},
    {"denoise.rotate", SETTING_NUMBER, FIELD(denoise.rotate), "0.0", WITHIN(0, 1),
     .used = "denoise.noise=bart",
     .description = "bart: probability that the source begins at a random token"},

    {"parallel.tensor", SETTING_INTEGER, FIELD(parallel.tensor), "1", WITHIN(1, 1024),
     .resume = true,
     .description = "Tensor parallel size: number of ranks that share one copy of the model. It "
                    "must divide the number of ranks, the attention heads and intermediate_size"},
    {"parallel.sequence", SETTING_BOOLEAN, FIELD(parallel.sequence), "false", .resume = true,
     .description = "Whether the ranks of a tensor-parallel group also split normalization and "
                    "dropout by tokens (sequence parallelism)"},
    {"parallel.zero_stage", SETTING_INTEGER, FIELD(parallel.zero_stage), "0", WITHIN(0, 2),
     .resume = true,
     .description = "ZeRO stage. 0: replicated; 1: the optimizer state is sharded over the "
                    "data-parallel ranks; 2: the gradients of the layers are sharded, too"},
    {"parallel.reproducible", SETTING_BOOLEAN, FIELD(parallel.reproducible), "false",
     .resume = true,
     .description = "Whether results are bitwise identical for every number of data-parallel ranks "
                    "and every ZeRO stage. Gradients are then summed in the order of the "
                    "micro-batches of the global batch, which costs time and memory"},
    {"parallel.deterministic", SETTING_BOOLEAN, FIELD(parallel.deterministic), "false",
     .resume = true,
     .description =
         "GPUs: whether results are bitwise identical between runs of the same layout. "
         "NCCL then does not use NVLS and CollNet, because their summation order varies. Runs "
         "on CPUs, and of ranks that share a GPU, are always deterministic"},
    {"parallel.reduce_dtype", SETTING_ENUM, FIELD(parallel.reduce_dtype), "fp32",
     .choices = "fp32|bf16", .resume = true,
     .description = "Data type of the gradients in the all-reduce or reduce-scatter of the "
                    "data-parallel ranks. bf16 halves the traffic, rounds the gradients of each "
                    "rank and their sum, and needs half of the gradient memory in addition"},
    {"parallel.threads", SETTING_INTEGER, FIELD(parallel.threads), "null",
     .null = "the number of cores of the host divided by its ranks", WITHIN(1, 4096),
     .resume = true, .description = "Number of CPU threads of a rank"},
    {"parallel.bucket_mib", SETTING_INTEGER, FIELD(parallel.bucket_mib), "25", WITHIN(1, 65536),
     .resume = true,
     .description = "Size of a gradient bucket in MiB; it is reduced during the backward pass"},
    {"parallel.timeout_seconds", SETTING_NUMBER, FIELD(parallel.timeout_seconds), "300.0",
     ABOVE(0, 1e6), .resume = true,
     .description = "Time limit of a wait for other ranks and of a phase; the job then ends with "
                    "exit code 76"},
    {"parallel.start_seconds", SETTING_NUMBER, FIELD(parallel.start_seconds), "300.0",
     ABOVE(0, 1e6), .resume = true,
     .description = "Time limit of the start, from the start of MPI to the first evaluation or "
                    "step. After it the job ends with exit code 76. The reference "
                    "log-probabilities of dpo do not count"},
    {"parallel.check_every", SETTING_INTEGER, FIELD(parallel.check_every), "0",
     WITHIN(0, STEPS_MAX), .resume = true,
     .description =
         "Number of steps between comparisons of the weights of the data-parallel replicas; they "
         "are also compared before each save. If they differ, for example because of faulty "
         "memory, the job ends with exit code 81 (0: never)"},

    {"optimizer.name", SETTING_ENUM, FIELD(optimizer.name), "adamw", .choices = "adamw|lamb",
     .description = "Optimizer. adamw: Adam with decoupled weight decay; lamb: the same update "
                    "multiplied by the trust ratio (norm of the weights divided by norm of the "
                    "update) of each tensor that has weight decay. Weight decay applies to "
                    "matrices and embeddings, not to biases and normalization weights"},
    {"optimizer.learning_rate", SETTING_NUMBER, FIELD(optimizer.learning_rate), "0.0006",
     ABOVE(0, 100), .description = "Peak learning rate of the schedule"},
    {"optimizer.beta1", SETTING_NUMBER, FIELD(optimizer.beta1), "0.9", BELOW(0, 1),
     .description = "Decay rate of the first moment estimate"},
    {"optimizer.beta2", SETTING_NUMBER, FIELD(optimizer.beta2), "0.95", BELOW(0, 1),
     .description = "Decay rate of the second moment estimate"},
    {"optimizer.epsilon", SETTING_NUMBER, FIELD(optimizer.epsilon), "1.0e-08", ABOVE(0, 1),
     .description = "Epsilon that is added to the square root of the second moment"},
    {"optimizer.weight_decay", SETTING_NUMBER, FIELD(optimizer.weight_decay), "0.1", WITHIN(0, 100),
     .description = "Decoupled weight decay coefficient; it is multiplied by the learning rate"},
    {"optimizer.max_grad_norm", SETTING_NUMBER, FIELD(optimizer.max_grad_norm), "1.0",
     .null = "no clipping, the same as 0", WITHIN(0, 1e12),
     .description = "Maximum global gradient norm for gradient clipping"},
    {"optimizer.nvlamb", SETTING_BOOLEAN, FIELD(optimizer.nvlamb), "false",
     .used = "optimizer.name=lamb",
     .description = "lamb: whether the trust ratio also applies to tensors without weight decay"},
    {"optimizer.stochastic_rounding", SETTING_BOOLEAN, FIELD(optimizer.stochastic_rounding),
     "false", .used = "train.precision=bf16|fp8",
     .description =
         "train.precision bf16 or fp8: whether the fp32 master weights are rounded to bf16 "
         "stochastically, which keeps their mean, instead of to nearest. Each step "
         "draws new random numbers from the seed"},
    {"optimizer.state_dtype", SETTING_ENUM, FIELD(optimizer.state_dtype), "fp32",
     .choices = "fp32|bf16", .resume = true,
     .description =
         "Data type of the two moments, in memory and in checkpoints. bf16: half the memory; each "
         "step computes in fp32 and rounds the moments stochastically, which keeps their mean. A "
         "resume with another type converts them"},
    {"optimizer.init_from", SETTING_PATH, FIELD(optimizer.init_from), "null",
     .null = "the moments start at zero", .resume = true,
     .description =
         "Checkpoint or run folder of the initial optimizer moments. The step counter is not "
         "restored: bias correction and schedule start at step 0. Requires model.init_from"},

    {"schedule.name", SETTING_ENUM, FIELD(schedule.name), "cosine",
     .choices = "constant|linear|cosine|polynomial|wsd|polynomial_nvidia|inverse_sqrt",
     .description = "Learning rate schedule after the warm-up. wsd: warmup-stable-decay; "
                    "polynomial_nvidia: a polynomial decay that also counts the warm-up steps; "
                    "inverse_sqrt: proportional to 1 / sqrt(step), as in transformers"},
    {"schedule.warmup_steps", SETTING_INTEGER, FIELD(schedule.warmup_steps), "null",
     .null = "given by warmup_ratio, or 0 if that is null too", .null_value = -1,
     WITHIN(0, STEPS_MAX), .description = "Number of steps of the linear warm-up"},
    {"schedule.warmup_ratio", SETTING_NUMBER, FIELD(schedule.warmup_ratio), "null",
     .null = "given by warmup_steps", .null_value = -1, WITHIN(0, 1),
     .description =
         "Length of the linear warm-up as a fraction of all steps. Alternative to warmup_steps"},
    {"schedule.min_ratio", SETTING_NUMBER, FIELD(schedule.min_ratio), "0.1", WITHIN(0, 1),
     .used = "schedule.name=linear|cosine|polynomial|wsd|polynomial_nvidia",
     .description = "Final learning rate as a fraction of optimizer.learning_rate"},
    {"schedule.power", SETTING_NUMBER, FIELD(schedule.power), "1.0", ABOVE(0, 100),
     .used = "schedule.name=polynomial|polynomial_nvidia",
     .description = "Exponent of the schedules polynomial and polynomial_nvidia"},
    {"schedule.decay_ratio", SETTING_NUMBER, FIELD(schedule.decay_ratio), "0.1", WITHIN(0, 1),
     .used = "schedule.name=wsd",
     .description =
         "wsd: fraction of all steps, at the end of training, in which the learning rate decays"},

    {"train.max_steps", SETTING_INTEGER, FIELD(train.max_steps), "null", .null = "given by epochs",
     WITHIN(1, STEPS_MAX), .resume = true,
     .description = "Number of optimizer steps. Either max_steps or epochs must be set"},
    {"train.epochs", SETTING_NUMBER, FIELD(train.epochs), "null", .null = "given by max_steps",
     ABOVE(0, 1e6), .resume = true,
     .description = "Number of passes over the training set. For a mixture, an epoch ends when the "
                    "first of its data sets is exhausted. Alternative to max_steps"},
    {"train.max_minutes", SETTING_NUMBER, FIELD(train.max_minutes), "null", .null = "no limit",
     ABOVE(0, MINUTES_MAX), .resume = true,
     .description = "Training time over all sessions of the run, in minutes, after which the run "
                    "ends normally, as after its last step. It does not change the schedule, which "
                    "depends on the steps only"},
    {"train.wall_minutes", SETTING_NUMBER, FIELD(train.wall_minutes), "null", .null = "no limit",
     ABOVE(0, MINUTES_MAX), .resume = true,
     .description = "Time limit of one session in minutes, for example of a batch queue. The run "
                    "saves a checkpoint and exits with code 75 before the limit"},
    {"train.label_smoothing_factor", SETTING_NUMBER, FIELD(train.label_smoothing_factor), "0.0",
     WITHIN(0, 0.999), .used = "objective=clm|mlm|sft|seq2seq|denoise",
     .description = "Share of a label that all tokens get in equal parts, in the training loss"},
    {"train.on_spike", SETTING_ENUM, FIELD(train.on_spike), "warn", .choices = "warn|skip|rollback",
     .resume = true,
     .description =
         "Response to a spike of the loss or of the gradient norm. warn: a warning, and exit code "
         "79 if a value is not finite; skip: this update of the weights is left out; rollback: the "
         "weights and the optimizer state return to their copy in memory, and the samples since "
         "then are skipped. The copy is taken at the start and at each save"},
    {"train.max_spikes", SETTING_INTEGER, FIELD(train.max_spikes), "10", WITHIN(1, 64),
     .resume = true, .used = "train.on_spike=skip|rollback",
     .description = "Number of spikes in a run that are skipped or rolled back; the next one ends "
                    "the run with exit code 79"},
    {"train.precision", SETTING_ENUM, FIELD(train.precision), "fp32", .choices = "fp32|bf16|fp8",
     .resume = true,
     .description = "Data type of matrix multiplications and activations. fp8: bf16 with 8-bit "
                    "operands in the layers. Master weights and reductions are always fp32"},
    {"train.device", SETTING_ENUM, FIELD(train.device), "auto", .choices = "auto|cpu|cuda",
     .resume = true,
     .description =
         "Device to train on. auto: a GPU if the build and the machine support one, else the CPU"},
    {"train.activation_checkpointing", SETTING_ENUM, FIELD(train.activation_checkpointing), "none",
     .choices = "none|selective|full", .resume = true,
     .description =
         "Which activations the backward pass recomputes instead of storing them; the results are "
         "bitwise identical. selective: activation functions and normalization; full: everything "
         "in a layer except its input, which adds about a third to the computation"},
    {"train.cuda_graphs", SETTING_BOOLEAN, FIELD(train.cuda_graphs), "false", .resume = true,
     .description = "GPU: whether kernels of repeated micro-batches are launched as CUDA graphs; "
                    "the results are bitwise identical. Intended for small models and batches that "
                    "are limited by launch latency"},
    {"train.peak_tflops", SETTING_NUMBER, FIELD(train.peak_tflops), "null",
     .null = "by the name of the GPU, or unknown", ABOVE(0, 1e6), .resume = true,
     .description =
         "Peak rate of the device of one rank in 1e12 FLOPs per second, the reference of the model "
         "FLOPs utilization (mfu) in the metrics. It does not affect the training"},
    {"train.freeze", SETTING_LIST, FIELD(train.freeze), "null", .null = "nothing is frozen",
     .unordered = true, .choices = "embeddings|backbone",
     .description = "Parts of the model to freeze, one name or a list. embeddings: everything "
                    "before the first layer; backbone: everything except the head"},
    {"train.freeze_layers", SETTING_INTEGER, FIELD(train.freeze_layers), "0", WITHIN(0, 1000),
     .description = "Number of layers to freeze, counted from the first"},

    {"fp8.recipe", SETTING_ENUM, FIELD(fp8.recipe), "delayed", .choices = "delayed|rowwise",
     .resume = true, .used = FP8,
     .description = "delayed: a scale for each operand, from past steps; rowwise: a scale for each "
                    "row or column, from its elements (of the GPUs, only Hopper supports it)"},
    {"fp8.amax_history", SETTING_INTEGER, FIELD(fp8.amax_history), "1024", WITHIN(1, 65536),
     .used = "fp8.recipe=delayed",
     .description = "Number of past steps that set the scale of an operand"},
    {"fp8.first_last_layers_bf16", SETTING_BOOLEAN, FIELD(fp8.first_last_layers_bf16), "true",
     .used = FP8, .description = "Whether the first and the last layer stay in bf16"},

    {"dpo.loss_type", SETTING_LIST, FIELD(dpo.loss_type), "sigmoid", .choices = LOSS_TYPES,
     .used = "objective=dpo",
     .description = "Type of the preference loss, one name or a list for a weighted sum. The "
                    "losses are defined as in TRL (kernels/preference_loss.h)"},
    {"dpo.loss_weights", SETTING_LIST, FIELD(dpo.loss_weights), "null", .null = "every weight is 1",
     WITHIN(0, 1e6), .used = "objective=dpo", .description = "Weight of each entry of loss_type"},
    {"dpo.beta", SETTING_NUMBER, FIELD(dpo.beta), "0.1", ABOVE(0, 1e6), .used = "objective=dpo",
     .description = "Strength of the penalty for deviating from the reference model. Higher values "
                    "keep the policy closer to the reference"},
    {"dpo.label_smoothing", SETTING_NUMBER, FIELD(dpo.label_smoothing), "0.0", BELOW(0, 0.5),
     .used = "dpo.loss_type=robust|aot|aot_unpaired|exo_pair",
     .description = "Assumed probability that a preference label is wrong. Used by robust, aot, "
                    "aot_unpaired and exo_pair, which requires a value above 0"},
    {"dpo.discopop_tau", SETTING_NUMBER, FIELD(dpo.discopop_tau), "0.05", ABOVE(0, 1e6),
     .used = "dpo.loss_type=discopop",
     .description = "discopop: temperature of the blend of its two losses"},
    {"dpo.shared_prefix", SETTING_ENUM, FIELD(dpo.shared_prefix), "auto",
     .choices = "auto|true|false", .resume = true, .used = "objective=dpo|reward",
     .description =
         "Whether the prompt of a pair is computed once for both responses. auto: on CPUs only"},
    {"reward.center_rewards_coefficient", SETTING_NUMBER, FIELD(reward.center_rewards_coefficient),
     "0.0", WITHIN(0, 1e6), .used = "objective=reward",
     .description = "Coefficient of the squared sum of the two rewards of a pair, which is added "
                    "to the loss and centers the rewards around 0. TRL recommends 0.01"},
    {"answer.no_answer_threshold", SETTING_NUMBER, FIELD(answer.no_answer_threshold), "0.0",
     WITHIN(-1e9, 1e9), .resume = true, .used = "objective=answer",
     .description = "A question is predicted to have no answer if the score of no answer exceeds "
                    "the best span's score by more than this value (null_score_diff_threshold in "
                    "transformers). 1e9: every question has an answer, as in SQuAD 1.1"},

    {"evaluate.every", SETTING_INTEGER, FIELD(evaluate.every), "null",
     .null = "250 if data.validation is set, else 0", .null_value = -1, WITHIN(0, STEPS_MAX),
     .resume = true, .used = "data.validation",
     .description = "Number of steps between evaluations. 0: evaluate only before the first and "
                    "after the last step, which every run does"},
    {"evaluate.batches", SETTING_INTEGER, FIELD(evaluate.batches), "20",
     .null = "the whole validation set", WITHIN(1, STEPS_MAX), .resume = true,
     .used = "data.validation", .description = "Number of global batches of an evaluation"},
    {"evaluate.metric", SETTING_TEXT, FIELD(evaluate.metric), "loss", .resume = true,
     .description = "Metric to compare evaluations with: loss, or another name from the evaluate "
                    "lines of metrics.jsonl, such as f1.LABEL"},
    {"evaluate.greater_is_better", SETTING_ENUM, FIELD(evaluate.greater_is_better), "auto",
     .choices = "auto|true|false", .resume = true,
     .description = "Whether a greater value of evaluate.metric is better. auto: true, except for "
                    "perplexity and for metrics with names that end in loss"},
    {"evaluate.patience", SETTING_INTEGER, FIELD(evaluate.patience), "null",
     .null = "no early stopping", WITHIN(1, 1000000), .resume = true,
     .description = "Number of evaluations without improvement after which the run ends, as after "
                    "its last step"},
    {"evaluate.min_improvement", SETTING_NUMBER, FIELD(evaluate.min_improvement), "0.0",
     WITHIN(0, 1e12), .resume = true, .used = "evaluate.patience",
     .description = "Minimum change of the metric that counts as an improvement for patience"},
    {"evaluate.tasks", SETTING_PATHS, FIELD(evaluate.tasks), "null", .null = "no tasks",
     .resume = true, .used = "data.validation", .description = "Task files of every evaluation"},
    {"evaluate.task_limit", SETTING_INTEGER, FIELD(evaluate.task_limit), "0", WITHIN(0, STEPS_MAX),
     .resume = true, .used = "evaluate.tasks", .description = "Documents of each task. 0: all"},
    {"evaluate.generate", SETTING_BOOLEAN, FIELD(evaluate.generate), "false", .resume = true,
     .used = "objective=seq2seq",
     .description = "Whether evaluations generate the targets of the validation set from its "
                    "sources, and compute bleu, chrf, rouge1, rouge2, rougeL, rougeLsum and "
                    "exact_match (predict_with_generate in transformers)"},
    {"evaluate.generation_max_length", SETTING_INTEGER, FIELD(evaluate.generation_max_length),
     "null", .null = "the value in the tokenizer's generation_config.json, else 129",
     WITHIN(2, 1000000), .resume = true, .used = "evaluate.generate=true",
     .description = "Maximum number of tokens of a generated target with its start token, as in "
                    "transformers. A target also ends at data.sequence_length tokens"},
    {"evaluate.generation_num_beams", SETTING_INTEGER, FIELD(evaluate.generation_num_beams), "null",
     .null = "the value in the tokenizer's generation_config.json, else 1", WITHIN(1, 256),
     .resume = true, .used = "evaluate.generate=true",
     .description = "Number of beams. 1: always the most probable token"},

    {"generate.prompt", SETTING_TEXT, FIELD(generate.prompt), "null", .null = "no samples",
     .resume = true,
     .description =
         "Text to continue at every evaluation, or before the first and after the last step "
         "without validation data. The samples are written to metrics.jsonl and report.html. They "
         "do not change the training. Models that predict next tokens only"},
    {"generate.max_new_tokens", SETTING_INTEGER, FIELD(generate.max_new_tokens), "64",
     WITHIN(1, 1000000), .resume = true, .used = "generate.prompt",
     .description = "Maximum number of new tokens of a sample; it also ends at "
                    "data.sequence_length tokens with its prompt"},
    {"generate.temperature", SETTING_NUMBER, FIELD(generate.temperature), "0.0", WITHIN(0, 100),
     .resume = true, .used = "generate.prompt",
     .description = "Temperature of the samples. 0: greedy. Random numbers depend on seed"},

    {"checkpoint.every", SETTING_INTEGER, FIELD(checkpoint.every), "1000", WITHIN(0, STEPS_MAX),
     .resume = true,
     .description = "Number of steps between checkpoints. 0: only at the end and on request"},
    {"checkpoint.keep", SETTING_INTEGER, FIELD(checkpoint.keep), "3", WITHIN(1, 1000000),
     .resume = true, .description = "Number of most recent checkpoints to keep"},
    {"checkpoint.keep_best", SETTING_BOOLEAN, FIELD(checkpoint.keep_best), "false", .resume = true,
     .description =
         "Whether to save a checkpoint after every best evaluation so far, keep the best one in "
         "addition to the most recent ones, and write its weights to final/"},
    {"checkpoint.async", SETTING_BOOLEAN, FIELD(checkpoint.async), "true", .resume = true,
     .description = "Whether checkpoints are written in the background while training continues. "
                    "Needs memory for a snapshot, which GPUs need in any case"},

    {"log.every", SETTING_INTEGER, FIELD(log.every), "10", WITHIN(1, STEPS_MAX), .resume = true,
     .description = "Number of steps between lines of metrics.jsonl"},
    {"log.tensorboard", SETTING_BOOLEAN, FIELD(log.tensorboard), "false", .resume = true,
     .description = "Whether event files for TensorBoard are written to run_dir/tensorboard, in "
                    "addition to metrics.jsonl"},
    {"log.report", SETTING_BOOLEAN, FIELD(log.report), "true", .resume = true,
     .description = "Whether to write run_dir/report.html, a page with the curves of the run, at "
                    "checkpoints and at the end"},
};

const int recipe_table_count = COUNT(recipe_table);

_Static_assert(COUNT(recipe_table) <= SETTINGS_MAX, "raise SETTINGS_MAX");
