"""Parameter counts of published models: the configurations below, written by hand from the
config.json files of the models, and the number of parameters of the class on the device `meta`.
make_reference.py calls this module.
"""
import json

LLAMA3 = dict(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192,
    rope_type="llama3"
)


def gpt2(layers, width, heads):
    return dict(
        architectures=["GPT2LMHeadModel"], model_type="gpt2", activation_function="gelu_new",
        attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1, initializer_range=0.02,
        layer_norm_epsilon=1e-5, n_ctx=1024, n_positions=1024, n_embd=width, n_head=heads,
        n_layer=layers, vocab_size=50257, bos_token_id=50256, eos_token_id=50256
    )


def openai_gpt():
    return dict(
        architectures=["OpenAIGPTLMHeadModel"], model_type="openai-gpt", afn="gelu", attn_pdrop=0.1,
        embd_pdrop=0.1, resid_pdrop=0.1, initializer_range=0.02, layer_norm_epsilon=1e-5,
        n_ctx=512, n_positions=512, n_special=0, n_embd=768, n_head=12, n_layer=12,
        predict_special_tokens=True, vocab_size=40478
    )


def encoder(kind, name, layers, width, heads, inner, vocabulary, positions, types, epsilon):
    return dict(
        architectures=[name], model_type=kind, attention_probs_dropout_prob=0.1,
        hidden_dropout_prob=0.1, hidden_act="gelu", hidden_size=width, initializer_range=0.02,
        intermediate_size=inner, layer_norm_eps=epsilon, max_position_embeddings=positions,
        num_attention_heads=heads, num_hidden_layers=layers, type_vocab_size=types,
        vocab_size=vocabulary, pad_token_id=1 if kind == "roberta" else 0
    )


def modernbert(sizes):
    width, inner, layers, heads = sizes
    return dict(
        architectures=["ModernBertForMaskedLM"], model_type="modernbert", attention_bias=False,
        attention_dropout=0.0, bos_token_id=50281, classifier_activation="gelu",
        classifier_bias=False, classifier_dropout=0.0, classifier_pooling="mean",
        cls_token_id=50281, decoder_bias=True, deterministic_flash_attn=False,
        embedding_dropout=0.0, eos_token_id=50282, global_attn_every_n_layers=3,
        global_rope_theta=160000.0, hidden_activation="gelu", hidden_size=width,
        initializer_cutoff_factor=2.0, initializer_range=0.02, intermediate_size=inner,
        layer_norm_eps=1e-5, local_attention=128, local_rope_theta=10000.0,
        max_position_embeddings=8192, mlp_bias=False, mlp_dropout=0.0, norm_bias=False,
        norm_eps=1e-5, num_attention_heads=heads, num_hidden_layers=layers, pad_token_id=50283,
        position_embedding_type="absolute", sep_token_id=50282, tie_word_embeddings=True,
        vocab_size=50368
    )


def albert(sizes):
    width, inner, layers, heads = sizes
    return dict(
        architectures=["AlbertForMaskedLM"], model_type="albert", attention_probs_dropout_prob=0,
        bos_token_id=2, classifier_dropout_prob=0.1, down_scale_factor=1, embedding_size=128,
        eos_token_id=3, gap_size=0, hidden_act="gelu_new", hidden_dropout_prob=0,
        hidden_size=width, initializer_range=0.02, inner_group_num=1, intermediate_size=inner,
        layer_norm_eps=1e-12, max_position_embeddings=512, net_structure_type=0,
        num_attention_heads=heads, num_hidden_groups=1, num_hidden_layers=layers,
        num_memory_blocks=0, pad_token_id=0, type_vocab_size=2, vocab_size=30000
    )


def distilbert():
    return dict(
        architectures=["DistilBertForMaskedLM"], model_type="distilbert", activation="gelu",
        attention_dropout=0.1, dim=768, dropout=0.1, hidden_dim=3072, initializer_range=0.02,
        max_position_embeddings=512, n_heads=12, n_layers=6, pad_token_id=0, qa_dropout=0.1,
        seq_classif_dropout=0.2, sinusoidal_pos_embds=False, tie_weights_=True, vocab_size=30522
    )


def decoder(kind, name, sizes, vocabulary, positions, theta, epsilon, tied, **more):
    width, inner, layers, heads, kv_heads = sizes
    return dict(
        architectures=[name], model_type=kind, hidden_act="silu", initializer_range=0.02,
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocabulary,
        max_position_embeddings=positions, rope_theta=theta, rms_norm_eps=epsilon,
        tie_word_embeddings=tied, attention_dropout=0.0, use_cache=True, **more
    )


def llama(sizes, vocabulary, positions, theta, tied, **more):
    return decoder(
        "llama", "LlamaForCausalLM", sizes, vocabulary, positions, theta, 1e-5, tied,
        attention_bias=False, mlp_bias=False, pretraining_tp=1, **more
    )


def qwen2(sizes, vocabulary, positions, tied, epsilon=1e-6):
    return decoder(
        "qwen2", "Qwen2ForCausalLM", sizes, vocabulary, positions, 1e6, epsilon, tied,
        max_window_layers=sizes[2], sliding_window=positions, use_sliding_window=False
    )


def qwen3(sizes, tied):
    return decoder(
        "qwen3", "Qwen3ForCausalLM", sizes, 151936, 40960, 1e6, 1e-6, tied, head_dim=128,
        attention_bias=False, max_window_layers=sizes[2], rope_scaling=None, sliding_window=None,
        use_sliding_window=False
    )


def mistral(vocabulary, theta, window):
    return decoder(
        "mistral", "MistralForCausalLM", (4096, 14336, 32, 32, 8), vocabulary, 32768, theta, 1e-5,
        False, sliding_window=window
    )


def gemma3(sizes, vocabulary, positions, window, layers_of_pattern=6, **more):
    width, inner, layers, heads, kv_heads, head_dim = sizes
    return dict(
        architectures=["Gemma3ForCausalLM"], model_type="gemma3_text",
        hidden_activation="gelu_pytorch_tanh", initializer_range=0.02, hidden_size=width,
        intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=vocabulary,
        max_position_embeddings=positions, rope_theta=1e6, rope_local_base_freq=1e4,
        rms_norm_eps=1e-6, sliding_window=window, sliding_window_pattern=layers_of_pattern,
        attention_bias=False, attention_dropout=0.0, attn_logit_softcapping=None,
        final_logit_softcapping=None, use_cache=True,
        **{"query_pre_attn_scalar": 256, "rope_scaling": None, **more}
    )


def gemma2(sizes, query_scalar):
    width, inner, layers, heads, kv_heads, head_dim = sizes
    return dict(
        architectures=["Gemma2ForCausalLM"], model_type="gemma2", attention_bias=False,
        attention_dropout=0.0, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
        hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
        initializer_range=0.02, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head_dim, vocab_size=256000, max_position_embeddings=8192, rope_theta=10000.0,
        rms_norm_eps=1e-6, sliding_window=4096, query_pre_attn_scalar=query_scalar, use_cache=True
    )


def smollm3():
    return decoder(
        "smollm3", "SmolLM3ForCausalLM", (2048, 11008, 36, 16, 4), 128256, 65536, 5e6, 1e-6, True,
        attention_bias=False, mlp_bias=False, no_rope_layer_interval=4,
        no_rope_layers=[1, 1, 1, 0] * 9, layer_types=["full_attention"] * 36,
        use_sliding_window=False, sliding_window=None, rope_scaling=None, pad_token_id=128004
    )


def granite(sizes, positions, attention, logits):
    return decoder(
        "granite", "GraniteForCausalLM", sizes, 49155, positions, 1e7, 1e-5, True,
        attention_bias=False, mlp_bias=False, attention_multiplier=attention,
        embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=logits
    )


def olmo2(sizes):
    return decoder(
        "olmo2", "Olmo2ForCausalLM", sizes, 100352, 4096, 5e5, 1e-6, False, attention_bias=False,
        rope_scaling=None, pad_token_id=100277
    )


def olmo(sizes, tied):
    config = decoder(
        "olmo", "OlmoForCausalLM", sizes, 50304, 2048, 10000, 1e-5, tied, attention_bias=False,
        clip_qkv=None, rope_scaling=None, pad_token_id=1
    )
    config.pop("rms_norm_eps")
    return config


def phi3(sizes, vocabulary, positions, theta, window, **more):
    return decoder(
        "phi3", "Phi3ForCausalLM", sizes, vocabulary, positions, theta, 1e-5, False,
        attention_bias=False, embd_pdrop=0.0, resid_pdrop=0.0, sliding_window=window,
        original_max_position_embeddings=positions, rope_scaling=None, **more
    )


def stablelm(sizes, vocabulary, bias):
    config = decoder(
        "stablelm", "StableLmForCausalLM", sizes, vocabulary, 4096, 10000, 1e-5, False,
        partial_rotary_factor=0.25, use_qkv_bias=bias
    )
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    return config


def t5(sizes, vocabulary=32128, kind="t5", gated=False):
    """Sizes: d_model, d_kv, d_ff, encoder layers, decoder layers, heads."""
    width, head, inner, layers, decoder_layers, heads = sizes
    name = "MT5" if kind == "mt5" else "T5"
    return dict(
        architectures=[name + "ForConditionalGeneration"], model_type=kind, d_model=width,
        d_kv=head, d_ff=inner, num_layers=layers, num_decoder_layers=decoder_layers,
        num_heads=heads, vocab_size=vocabulary, n_positions=512, dropout_rate=0.1,
        decoder_start_token_id=0, eos_token_id=1, pad_token_id=0, initializer_factor=1.0,
        is_encoder_decoder=True, layer_norm_epsilon=1e-6, relative_attention_num_buckets=32,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
        use_cache=True
    )


def t5_11(sizes, vocabulary=32128, kind="t5"):
    """T5 1.1, mT5 and ByT5: gated, with a head of their own."""
    return t5(sizes, vocabulary, kind, True)


def stacks(kind, name, sizes, vocabulary, positions, activation, **more):
    width, inner, layers, heads = sizes
    return dict(
        architectures=[name], model_type=kind, d_model=width, encoder_layers=layers,
        decoder_layers=layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=inner, decoder_ffn_dim=inner, vocab_size=vocabulary,
        max_position_embeddings=positions, activation_function=activation, activation_dropout=0.0,
        attention_dropout=0.0, dropout=0.1, init_std=0.02, encoder_layerdrop=0.0,
        decoder_layerdrop=0.0, is_encoder_decoder=True, num_hidden_layers=layers, use_cache=True,
        **more
    )


def bart(sizes, vocabulary):
    return stacks(
        "bart", "BartForConditionalGeneration", sizes, vocabulary, 1024, "gelu",
        scale_embedding=False, bos_token_id=0, pad_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=2, normalize_before=False,
        normalize_embedding=True, add_final_layer_norm=False
    )


def mbart(vocabulary):
    return stacks(
        "mbart", "MBartForConditionalGeneration", (1024, 4096, 12, 16), vocabulary, 1024, "gelu",
        scale_embedding=True, bos_token_id=0, pad_token_id=1, eos_token_id=2,
        normalize_before=True, normalize_embedding=True, add_final_layer_norm=True
    )


def opus(vocabulary):
    return stacks(
        "marian", "MarianMTModel", (512, 2048, 6, 8), vocabulary, 512, "swish",
        scale_embedding=True, static_position_embeddings=True, bos_token_id=0, eos_token_id=0,
        pad_token_id=vocabulary - 1, decoder_start_token_id=vocabulary - 1, forced_eos_token_id=0,
        normalize_before=False, normalize_embedding=False, add_final_layer_norm=False,
        share_encoder_decoder_embeddings=True
    )


def transformer(sizes, dropout):
    """The original Transformer, with the joint vocabulary of English and German."""
    return dict(
        opus(37000), **dict(zip(("d_model", "encoder_ffn_dim", "encoder_attention_heads"), sizes)),
        **dict(zip(("decoder_ffn_dim", "decoder_attention_heads"), sizes[1:])), dropout=dropout,
        activation_function="relu", max_position_embeddings=256
    )


LINEAR8 = dict(factor=8.0, rope_type="linear")

MODELS = {
    "DistilGPT2": gpt2(6, 768, 12),
    "GPT-2": gpt2(12, 768, 12),
    "GPT-2 medium": gpt2(24, 1024, 16),
    "GPT-2 large": gpt2(36, 1280, 20),
    "GPT-2 XL": gpt2(48, 1600, 25),
    "BERT base": encoder(
        "bert", "BertForMaskedLM", 12, 768, 12, 3072, 30522, 512, 2, 1e-12
    ),
    "BERT large": encoder(
        "bert", "BertForPreTraining", 24, 1024, 16, 4096, 30522, 512, 2, 1e-12
    ),
    "RoBERTa base": encoder(
        "roberta", "RobertaForMaskedLM", 12, 768, 12, 3072, 50265, 514, 1, 1e-5
    ),
    "RoBERTa large": encoder(
        "roberta", "RobertaForMaskedLM", 24, 1024, 16, 4096, 50265, 514, 1, 1e-5
    ),
    "DistilBERT": distilbert(),
    "ALBERT base v2": albert((768, 3072, 12, 12)),
    "ALBERT large v2": albert((1024, 4096, 24, 16)),
    "ALBERT xlarge v2": albert((2048, 8192, 24, 16)),
    "ALBERT xxlarge v2": albert((4096, 16384, 12, 64)),
    "ModernBERT base": modernbert((768, 1152, 22, 12)),
    "ModernBERT large": modernbert((1024, 2624, 28, 16)),
    "Megatron-BERT 345M": encoder(
        "megatron-bert", "MegatronBertForPreTraining", 24, 1024, 16, 4096, 29056, 512, 2, 1e-12
    ),
    "Llama 3.2 1B": llama(
        (2048, 8192, 16, 32, 8), 128256, 131072, 5e5, True, head_dim=64, rope_scaling=LLAMA3
    ),
    "Llama 3.2 3B": llama(
        (3072, 8192, 28, 24, 8), 128256, 131072, 5e5, True, head_dim=128, rope_scaling=LLAMA3
    ),
    "Llama 3.1 8B": llama(
        (4096, 14336, 32, 32, 8), 128256, 131072, 5e5, False, rope_scaling=dict(LLAMA3, factor=8.0)
    ),
    "Llama 3.1 70B": llama(
        (8192, 28672, 80, 64, 8), 128256, 131072, 5e5, False, rope_scaling=dict(LLAMA3, factor=8.0)
    ),
    "SmolLM2 135M": llama(
        (576, 1536, 30, 9, 3), 49152, 8192, 1e5, True, rope_interleaved=False, rope_scaling=None
    ),
    "SmolLM2 360M": llama(
        (960, 2560, 32, 15, 5), 49152, 8192, 1e5, True, rope_interleaved=False, rope_scaling=None
    ),
    "SmolLM2 1.7B": llama((2048, 8192, 24, 32, 32), 49152, 8192, 1.3e5, True, rope_scaling=None),
    "Qwen2.5 0.5B": qwen2((896, 4864, 24, 14, 2), 151936, 32768, True),
    "Qwen2.5 1.5B": qwen2((1536, 8960, 28, 12, 2), 151936, 131072, True),
    "Qwen2.5 3B": qwen2((2048, 11008, 36, 16, 2), 151936, 32768, True),
    "Qwen2.5 7B": qwen2((3584, 18944, 28, 28, 4), 152064, 131072, False),
    "Qwen2.5 14B": qwen2((5120, 13824, 48, 40, 8), 152064, 131072, False, 1e-5),
    "Qwen2.5 32B": qwen2((5120, 27648, 64, 40, 8), 152064, 131072, False, 1e-5),
    "Qwen2.5 72B": qwen2((8192, 29568, 80, 64, 8), 152064, 131072, False, 1e-5),
    "Qwen3 0.6B": qwen3((1024, 3072, 28, 16, 8), True),
    "Qwen3 1.7B": qwen3((2048, 6144, 28, 16, 8), True),
    "Qwen3 4B": qwen3((2560, 9728, 36, 32, 8), True),
    "Qwen3 8B": qwen3((4096, 12288, 36, 32, 8), False),
    "Qwen3 14B": qwen3((5120, 17408, 40, 40, 8), False),
    "Qwen3 32B": qwen3((5120, 25600, 64, 64, 8), False),
    "GPT-1": openai_gpt(),
    "Mistral 7B v0.1": mistral(32000, 1e4, 4096),
    "Mistral 7B v0.3": mistral(32768, 1e6, None),
    "Gemma 2 2B": gemma2((2304, 9216, 26, 8, 4, 256), 256),
    "Gemma 2 9B": gemma2((3584, 14336, 42, 16, 8, 256), 256),
    "Gemma 2 27B": gemma2((4608, 36864, 46, 32, 16, 128), 144),
    "Gemma 3 270M": gemma3((640, 2048, 18, 4, 1, 256), 262144, 32768, 512),
    "Gemma 3 1B": gemma3((1152, 6912, 26, 4, 1, 256), 262144, 32768, 512),
    "Gemma 3 4B (text)": gemma3(
        (2560, 10240, 34, 8, 4, 256), 262208, 131072, 1024, rope_scaling=LINEAR8
    ),
    "Gemma 3 12B (text)": gemma3(
        (3840, 15360, 48, 16, 8, 256), 262208, 131072, 1024, rope_scaling=LINEAR8
    ),
    "Gemma 3 27B (text)": gemma3(
        (5376, 21504, 62, 32, 16, 128), 262208, 131072, 1024, rope_scaling=LINEAR8,
        query_pre_attn_scalar=168
    ),
    "SmolLM3 3B": smollm3(),
    "OLMo 1B": olmo((2048, 8192, 16, 16, 16), True),
    "OLMo 7B": olmo((4096, 11008, 32, 32, 32), False),
    "OLMo 2 1B": olmo2((2048, 8192, 16, 16, 16)),
    "OLMo 2 7B": olmo2((4096, 11008, 32, 32, 32)),
    "OLMo 2 13B": olmo2((5120, 13824, 40, 40, 40)),
    "OLMo 2 32B": olmo2((5120, 27648, 64, 40, 8)),
    "Phi-3 mini 4k": phi3((3072, 8192, 32, 32, 32), 32064, 4096, 1e4, 2047, pad_token_id=32000),
    "Phi-3 medium 4k": phi3(
        (5120, 17920, 40, 40, 10), 32064, 4096, 1e4, 2047, pad_token_id=None
    ),
    "Phi-4": phi3((5120, 17920, 40, 40, 10), 100352, 16384, 250000, None, pad_token_id=None),
    "StableLM 3B 4E1T": stablelm((2560, 6912, 32, 32, 32), 50304, False),
    "StableLM 2 1.6B": stablelm((2048, 5632, 24, 32, 32), 100352, True),
    "Granite 3.1 2B": granite((2048, 8192, 40, 32, 8), 131072, 0.015625, 8.0),
    "Granite 3.1 8B": granite((4096, 12800, 40, 32, 8), 131072, 0.0078125, 16.0),
    "T5 small": t5((512, 64, 2048, 6, 6, 8)),
    "T5 base": t5((768, 64, 3072, 12, 12, 12)),
    "T5 large": t5((1024, 64, 4096, 24, 24, 16)),
    "T5 3B": t5((1024, 128, 16384, 24, 24, 32)),
    "T5 11B": t5((1024, 128, 65536, 24, 24, 128)),
    "T5 1.1 small": t5_11((512, 64, 1024, 8, 8, 6)),
    "T5 1.1 base": t5_11((768, 64, 2048, 12, 12, 12)),
    "T5 1.1 large": t5_11((1024, 64, 2816, 24, 24, 16)),
    "T5 1.1 XL": t5_11((2048, 64, 5120, 24, 24, 32)),
    "T5 1.1 XXL": t5_11((4096, 64, 10240, 24, 24, 64)),
    "mT5 small": t5_11((512, 64, 1024, 8, 8, 6), 250112, "mt5"),
    "mT5 base": t5_11((768, 64, 2048, 12, 12, 12), 250112, "mt5"),
    "mT5 large": t5_11((1024, 64, 2816, 24, 24, 16), 250112, "mt5"),
    "mT5 XL": t5_11((2048, 64, 5120, 24, 24, 32), 250112, "mt5"),
    "mT5 XXL": t5_11((4096, 64, 10240, 24, 24, 64), 250112, "mt5"),
    "ByT5 small": t5_11((1472, 64, 3584, 12, 4, 6), 384),
    "ByT5 base": t5_11((1536, 64, 3968, 18, 6, 12), 384),
    "ByT5 large": t5_11((1536, 64, 3840, 36, 12, 16), 384),
    "ByT5 XL": t5_11((2560, 64, 6720, 36, 12, 32), 384),
    "ByT5 XXL": t5_11((4672, 64, 12352, 36, 12, 64), 384),
    "BART base": bart((768, 3072, 6, 12), 50265),
    "BART large": bart((1024, 4096, 12, 16), 50265),
    "BART large CNN": bart((1024, 4096, 12, 16), 50264),
    "mBART large CC25": mbart(250027),
    "mBART-50 large": mbart(250054),
    "OPUS-MT en-de": opus(58101),
    "OPUS-MT en-es": opus(65001),
    "Transformer base": transformer((512, 2048, 8), 0.1),
    "Transformer big": transformer((1024, 4096, 16), 0.3),
}


def count_parameters(config):
    import torch
    import transformers
    with torch.device("meta"):
        loaded = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
        model = getattr(transformers, config["architectures"][0])(loaded)
    model.tie_weights()
    count = sum(p.numel() for p in model.parameters())
    if config["model_type"] == "marian":  # its sinusoidal positions are constant
        count -= sum(p.numel() for n, p in model.named_parameters() if "embed_positions" in n)
    if config["model_type"] in ("t5", "mt5") and not config["tie_word_embeddings"]:
        # transformers 5 ties the head of a new model; the published folders have lm_head.weight
        assert model.lm_head.weight is model.shared.weight
        count += model.shared.weight.numel()
    return count


def write_published(folder):
    lines = []
    for name, config in MODELS.items():
        entry = dict(name=name, parameters=count_parameters(config), config=config)
        lines.append(json.dumps(entry))
        print(name, entry["parameters"])
    (folder / "published.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
