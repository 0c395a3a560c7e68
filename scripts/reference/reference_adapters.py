"""References of LoRA adapters, made with peft; make_reference.py calls this module.

*_lora.h5: logits, gradients of the adapters and ten steps of AdamW with clipping, in double
precision. The matrices B are not zero, so that every gradient is tested.
"""
import functools
import math

import h5py
import numpy as np
import torch

import reference_encoders
import reference_families
from reference_steps import (
    ADAMW, BATCH, DECAY, LAYERS, POSITIONS, STEPS, TOKENS, VOCABULARY, WIDTH, logits_of,
    save_adapter_folder, split_parameters, tiny_llama, write_steps
)


def make_gpt2():
    import transformers
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=3, n_positions=POSITIONS, vocab_size=VOCABULARY,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"
    )
    return transformers.GPT2LMHeadModel(config), dict(heads=3, inner=4 * WIDTH, gelu_tanh=1, tied=1)


def add_adapters(model, rank, alpha, targets, **more):
    """The model with adapters, and their attributes in a file. targets is all-linear or a list."""
    import peft
    names = targets if targets == "all-linear" else targets.split(", ")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, **more)
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    return model, dict(adapter_rank=rank, adapter_alpha=alpha)


def write_adapter(path, make, rank, alpha, targets, family=""):
    torch.manual_seed(17)
    model, settings = make()
    model, adapter_settings = add_adapters(
        model, rank, alpha, targets, task_type="CAUSAL_LM", fan_in_fan_out=settings["tied"] == 1
    )
    model = model.double().eval()
    with torch.no_grad():
        for name, t in model.named_parameters():
            is_embedding = "wte" in name or "embed" in name
            scale = 0.1 if t.dim() == 1 else 0.3 if is_embedding else 1.2 / math.sqrt(WIDTH)
            one = 1.0 if t.dim() == 1 and "weight" in name else 0.0
            t.copy_((one + torch.randn_like(t) * scale).float().double())
    base, adapters = split_parameters(model)
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1))
    optimizer = torch.optim.AdamW(adapters.values(), weight_decay=DECAY, **ADAMW)
    settings.update(adapter_settings)
    write_steps(
        path, logits_of(model), settings, base, adapters, tokens, optimizer,
        offsets=reference_families.find_offsets(family, base)
    )


# file: family, adapters
DECODERS = {
    "phi3_lora": ("phi3", dict(rank=3, alpha=4, targets="qkv_proj, gate_up_proj")),
    "openai_gpt_lora": ("openai_gpt", dict(rank=3, alpha=5, targets="c_attn, mlp.c_proj")),
    "gemma2_lora": ("gemma2", dict(rank=2, alpha=3, targets="q_proj, o_proj, down_proj")),
    "qwen3_lora": ("qwen3", dict(rank=3, alpha=4, targets="all-linear")),
}
ENCODERS = {
    "modernbert_lora": ("modernbert", dict(rank=3, alpha=4, targets="Wqkv, Wi")),
    "distilbert_lora": ("distilbert", dict(rank=2, alpha=3, targets="q_lin, k_lin, out_lin, lin2")),
}


def write_adapter_folders(folder):
    """Folders that peft saves for models of tests/reference/pretrained, and their hidden states."""
    import peft
    import transformers as t
    cases = {
        "gpt2_lora": (
            "whole", t.AutoModelForCausalLM,
            dict(task_type="CAUSAL_LM", target_modules=r".*\.(c_attn|mlp\.c_proj)")
        ),
        "llama_lora": (
            "llama", t.AutoModelForCausalLM,
            dict(task_type="CAUSAL_LM", target_modules="all-linear", use_rslora=True)
        ),
        "roberta_lora": (
            "roberta", t.AutoModelForMaskedLM, dict(target_modules=["query", "key", "output.dense"])
        ),
        "bert_lora": (
            "bert", t.AutoModelForSequenceClassification,
            dict(task_type="SEQ_CLS", lora_dropout=0.1)
        ),
        "embed_lora": (
            "bert", t.AutoModel,
            dict(
                task_type="FEATURE_EXTRACTION", target_modules=["query"], exclude_modules=["value"]
            )
        ),
        "phi3_lora": (
            "phi3", t.AutoModelForCausalLM,
            dict(task_type="CAUSAL_LM", target_modules=["qkv_proj", "gate_up_proj"])
        ),
        "openai_gpt_lora": (
            "openai_gpt", t.AutoModelForCausalLM,
            dict(task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"])
        ),
        "gemma2_lora": (
            "gemma2", t.AutoModelForCausalLM,
            dict(task_type="CAUSAL_LM", target_modules=["q_proj", "o_proj", "down_proj"])
        ),
        "qwen3_lora": (
            "qwen3", t.AutoModelForCausalLM,
            dict(task_type="CAUSAL_LM", target_modules="all-linear")
        ),
        "modernbert_lora": (
            "modernbert", t.AutoModelForMaskedLM, dict(target_modules=["Wqkv", "Wi"])
        ),
        "distilbert_lora": (
            "distilbert", t.AutoModelForMaskedLM,
            dict(target_modules=["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"])
        ),
    }
    with h5py.File(folder / "adapters.h5", "w") as f:
        for seed, (name, (base, kind, settings)) in enumerate(cases.items()):
            torch.manual_seed(seed + 60)
            more = dict(num_labels=3) if "Sequence" in kind.__name__ else {}
            model = kind.from_pretrained(folder / base, attn_implementation="eager", **more)
            if base == "modernbert":
                reference_encoders.use_exact_attention(model)
            transposed = base in ("whole", "openai_gpt")
            config = peft.LoraConfig(r=2, lora_alpha=5, fan_in_fan_out=transposed, **settings)
            model = save_adapter_folder(model, config, folder, name, 0.3)
            lengths, longest = [9, 5], 9
            ids = torch.randint(5, 19, (len(lengths), longest))
            there = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
            ids[~there] = 1
            kinds = {}
            if base == "bert":
                kinds["token_type_ids"] = (torch.arange(longest)[None, :] >= 2).long() * there
            with torch.no_grad():
                model = model.double().eval()
                inputs = dict(input_ids=ids, attention_mask=there.long(), **kinds)
                hidden = model.get_base_model().base_model(**inputs).last_hidden_state
                outputs = model(**inputs).logits if more else None
            f[name + "/lengths"] = np.array(lengths, np.int32)
            f[name + "/ids"] = ids[there].numpy().astype(np.int32)
            f[name + "/hidden"] = hidden[there].numpy()
            if more:
                f[name + "/outputs"] = outputs.numpy()


def write_adapters(folder):
    write_adapter(folder / "gpt2_lora.h5", make_gpt2, 4, 6, "c_attn, c_proj, c_fc")
    write_adapter(folder / "llama_lora.h5", tiny_llama, 3, 3, "q_proj, v_proj")
    for name, (family, settings) in DECODERS.items():
        make = functools.partial(reference_families.make_steps_model, family)
        write_adapter(folder / f"{name}.h5", make, family=family, **settings)
    for seed, (name, (family, settings)) in enumerate(ENCODERS.items()):
        torch.manual_seed(140 + seed)
        reference_encoders.write_family_steps(
            folder / f"{name}.h5", family, functools.partial(add_adapters, **settings)
        )
