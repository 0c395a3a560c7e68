"""References of the families like Llama and of GPT-1: for each family a file of training steps as
reference_steps.py writes them, and a model folder as save_pretrained writes it, with logits and
hidden states of three texts. make_reference.py calls this module.
"""
import h5py
import numpy as np
import torch

from reference_steps import (
    ADAMW, BATCH, DECAY, LAYERS, POSITIONS, STEPS, TOKENS, VOCABULARY, WIDTH, logits_of,
    save_folder, write_steps
)

THETA, LOCAL_THETA = 300.0, 40.0

# file: class stem in transformers, more keys of the configuration
FAMILIES = {
    "qwen2": ("Qwen2", {}),
    "mistral": ("Mistral", dict(head_dim=8, sliding_window=5)),
    "qwen3": ("Qwen3", dict(head_dim=10)),
    "llama_biases": ("Llama", dict(attention_bias=True, mlp_bias=True)),
    "openai_gpt": ("OpenAIGPT", {}),
    "gemma3_text": ("Gemma3", dict(
        head_dim=10, sliding_window=5, query_pre_attn_scalar=6,
        layer_types=["sliding_attention", "full_attention"], pad_token_id=None
    )),
    "smollm3": ("SmolLM3", dict(no_rope_layer_interval=2, pad_token_id=None)),
    "granite": ("Granite", dict(
        embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4,
        logits_scaling=2.0
    )),
    "olmo2": ("Olmo2", dict(pad_token_id=None)),
    "phi3": ("Phi3", dict(
        head_dim=10, partial_rotary_factor=0.6, sliding_window=5, pad_token_id=None
    )),
    "stablelm": ("StableLm", dict(partial_rotary_factor=0.7, use_qkv_bias=True)),
    "gemma2": ("Gemma2", dict(
        head_dim=10, sliding_window=5, query_pre_attn_scalar=6, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, layer_types=["sliding_attention", "full_attention"],
        pad_token_id=None
    )),
    "olmo": ("Olmo", dict(pad_token_id=None, eos_token_id=None)),
    "gemma3_layers": ("Gemma3", dict( # no pattern of sliding_window_pattern has this list
        head_dim=10, sliding_window=5, query_pre_attn_scalar=6,
        layer_types=["full_attention", "sliding_attention"], pad_token_id=None
    )),
}

LONGROPE = dict(
    rope_type="longrope", rope_theta=THETA, short_factor=[1.0, 1.25, 1.5],
    long_factor=[1.5, 2.75, 4.0]
)

# Training steps only: transformers has the short factors within the original length, and the long
# factors beyond it. The head_dim is width / heads, as in the published models.
LONGROPE_STEPS = {
    "phi3_within": dict(
        LONGROPE, original_max_position_embeddings=POSITIONS, attention_factor=1.3
    ),
    "phi3_beyond": dict(LONGROPE, original_max_position_embeddings=8),
}

# Folders only: other rotary positions.
ROTARY = {
    "llama_yarn": dict(
        rope_type="yarn", rope_theta=THETA, factor=4.0, original_max_position_embeddings=40,
        beta_fast=8.0, beta_slow=0.5
    ),
    "llama_dynamic": dict(rope_type="dynamic", rope_theta=THETA, factor=4.0),
    "phi3_long": dict(LONGROPE, original_max_position_embeddings=6),
    "phi3_short": dict(LONGROPE, original_max_position_embeddings=12, attention_factor=1.3),
}
LIKE = {"phi3_long": "phi3", "phi3_short": "phi3"} # the other folders contain a Llama
DYNAMIC_POSITIONS, LENGTHS = 5, [10, 7, 3]


def find_family(family):
    """Class stem in transformers, more keys of the configuration."""
    if family in LONGROPE_STEPS:
        return "Phi3", dict(pad_token_id=None)
    return FAMILIES.get(LIKE.get(family, family), ("Llama", dict(head_dim=16)))


def compute_frequencies(rope, config, width, longest):
    """Return the frequencies of rotary positions in float64, and the factor of their cosines.
    `longest` is the length of the longest text of a padded batch. This length selects the base or
    the factors for all texts."""
    kind, theta = rope["rope_type"], rope["rope_theta"]
    if kind == "default":
        return theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    names = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64  # transformers computes in float32
    try:
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=longest)
    finally:
        torch.float, torch.float32 = names
    if kind == "longrope": # transformers calls float()
        is_long = longest > rope["original_max_position_embeddings"]
        divisors = torch.tensor(rope["long_factor" if is_long else "short_factor"]).double()
        exact = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width) / divisors
        assert torch.allclose(exact, inverse.double(), rtol=1e-6)
        inverse = exact
    return inverse, factor


def make_gpt_config(sizes, more):
    """The configuration of a GPT-1 with these sizes under the names of Llama."""
    from transformers import OpenAIGPTConfig
    return OpenAIGPTConfig(
        n_layer=sizes["num_hidden_layers"], n_embd=sizes["hidden_size"],
        n_head=sizes["num_attention_heads"], n_positions=sizes["max_position_embeddings"],
        vocab_size=sizes["vocab_size"], attn_implementation="eager", **more
    )


def make_model(family, more, **sizes):
    """The language model of a family with rotary angles in float64, in double precision."""
    import transformers
    stem, keys = find_family(family)
    if family == "openai_gpt":
        return transformers.OpenAIGPTLMHeadModel(make_gpt_config(sizes, more))
    plain = {"rope_type": "default", "rope_theta": THETA}
    rope = dict({**ROTARY, **LONGROPE_STEPS}.get(family, plain))
    share = keys.get("partial_rotary_factor", 1.0)
    if share < 1:
        rope["partial_rotary_factor"] = share
    if rope["rope_type"] == "longrope": # Phi3Config has the key outside of rope_parameters too
        more = dict(
            more, original_max_position_embeddings=rope["original_max_position_embeddings"]
        )
    local = dict(rope_type="default", rope_theta=LOCAL_THETA)
    is_gemma3 = family.startswith("gemma3")
    config = getattr(transformers, stem + ("TextConfig" if is_gemma3 else "Config"))(
        **{**sizes, **keys, **more}, rms_norm_eps=1e-5, attn_implementation="eager",
        rope_parameters=dict(full_attention=rope, sliding_attention=local) if is_gemma3 else rope
    )
    model = getattr(transformers, stem + "ForCausalLM")(config)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    longest = TOKENS if family in LONGROPE_STEPS else max(LENGTHS)
    inverse, factor = compute_frequencies(rope, config, int(width * share), longest)

    def angles(x, position_ids, layer_type=None):
        is_local = layer_type == "sliding_attention"
        frequencies = compute_frequencies(local, config, width, 0)[0] if is_local else inverse
        angle = position_ids[:, :, None].double() * frequencies[None, None, :]
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos() * factor, angle.sin() * factor
    model.model.rotary_emb.forward = angles
    return model


def make_steps_model(family):
    """The model of the files of training steps, and its attributes in these files."""
    model = make_model(
        family, {}, num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=40, max_position_embeddings=POSITIONS,
        vocab_size=VOCABULARY, tie_word_embeddings=False
    ).double().eval()
    return model, find_settings(family)


def find_settings(family):
    keys = find_family(family)[1]
    settings = dict(
        heads=4, kv_heads=2, inner=40, gelu_tanh=0, tied=0, rope_theta=THETA,
        head_dim=keys.get("head_dim", 0), sliding_window=keys.get("sliding_window", 0),
        rotary_width=int(keys.get("head_dim", WIDTH // 4) * keys.get("partial_rotary_factor", 1.0))
    )
    settings["qkv_bias"] = keys.get("use_qkv_bias", 0)
    if "mlp_bias" in keys:
        settings["biases"] = 1
    if family == "openai_gpt":
        settings = dict(heads=4, inner=4 * WIDTH, gelu_tanh=1, tied=1)
    for name in "embedding_multiplier", "residual_multiplier", "logits_scaling":
        settings[name] = keys.get(name, 0)
    settings["attention_scale"] = keys.get("attention_multiplier", 0)
    settings["no_rope_interval"] = keys.get("no_rope_layer_interval", 0)
    settings["attention_softcap"] = keys.get("attn_logit_softcapping", 0)
    settings["logits_softcap"] = keys.get("final_logit_softcapping", 0)
    if "gemma" in family:
        settings.update(
            gelu_tanh=1, sliding_window_pattern=2,
            rope_local_theta=LOCAL_THETA if family.startswith("gemma3") else 0,
            attention_scale=keys["query_pre_attn_scalar"] ** -0.5,
            global_first=float(family == "gemma3_layers")
        )
    return settings


def find_offsets(family, names):
    """The norms of Gemma multiply by 1 + weight."""
    return [name for name in names if "gemma" in family and "norm" in name]


def write_family_steps(path, family, seed):
    torch.manual_seed(seed)
    model, settings = make_steps_model(family)
    with torch.no_grad():
        for name, t in model.named_parameters():
            is_bias = name.endswith("bias")
            scale = 0.1 if t.dim() == 1 else 0.3 if "embed" in name else 1.5 / t.shape[1] ** 0.5
            mean = 1.0 if t.dim() == 1 and not is_bias and "gemma" not in family else 0.0
            t.copy_((mean + torch.randn_like(t) * scale).float().double())
    w = dict(model.named_parameters())
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1))
    optimizer = torch.optim.AdamW(
        [dict(params=[t for t in w.values() if t.dim() == 2], weight_decay=DECAY),
         dict(params=[t for t in w.values() if t.dim() != 2], weight_decay=0.0)], **ADAMW
    )
    rope = LONGROPE_STEPS.get(family)
    if rope:
        original = rope["original_max_position_embeddings"]
        settings.update(
            rope_factor=POSITIONS / original, rope_original_positions=original,
            rope_attention_factor=rope.get("attention_factor", 0)
        )
    write_steps(
        path, logits_of(model), settings, {}, w, tokens, optimizer,
        offsets=find_offsets(family, w)
    )
    if rope:
        with h5py.File(path, "a") as f:
            f["short_factor"], f["long_factor"] = rope["short_factor"], rope["long_factor"]


def write_family_folder(folder, family, seed):
    torch.manual_seed(seed)
    width = 16 if family == "stablelm" else 8 # its heads have the width 4, of which 2 rotate
    # LongRoPE requires the head_dim width / heads
    width, deviation = (40, 0.2) if family in LIKE else (width, 0.5)
    model = make_model(
        family, dict(initializer_range=deviation), num_hidden_layers=2, hidden_size=width,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=12, vocab_size=19,
        max_position_embeddings=DYNAMIC_POSITIONS if family == "llama_dynamic" else 12,
        tie_word_embeddings=True
    )
    save_folder(model, folder / family, 0.1)
    ids = [torch.randint(5, 19, (1, length)) for length in LENGTHS]
    model = model.double().eval()
    with torch.no_grad():
        logits = [model(row).logits[0] for row in ids]
        # Bireme's hidden states are those that the output matrix multiplies
        divisor = getattr(model.config, "logits_scaling", 1.0)
        hidden = [model.base_model(row).last_hidden_state[0] / divisor for row in ids]
    with h5py.File(folder / f"{family}.h5", "w") as f:
        f[family + "/lengths"] = np.array(LENGTHS, np.int32)
        f[family + "/ids"] = torch.cat(ids, dim=1)[0].numpy().astype(np.int32)
        f[family + "/hidden"] = torch.cat(hidden).numpy()
        f[family + "/logits"] = torch.cat(logits).numpy()


def write_families(folder):
    for seed, family in enumerate(FAMILIES):
        write_family_steps(folder / f"{family}.h5", family, 60 + seed)
        write_family_folder(folder / "pretrained", family, 80 + seed)
    for seed, family in enumerate(ROTARY):
        write_family_folder(folder / "pretrained", family, 90 + seed)
    for seed, family in enumerate(LONGROPE_STEPS):
        write_family_steps(folder / f"{family}.h5", family, 120 + seed)
