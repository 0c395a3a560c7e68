"""References of LoRA adapters, made with peft; make_reference.py calls this module.

*_lora.h5: logits, gradients of the adapters and ten steps of AdamW with clipping, in double
precision. The matrices B are not zero, so that every gradient is tested.
"""
import math

import h5py
import numpy as np
import torch

from reference_steps import (
    ADAMW, BATCH, DECAY, LAYERS, POSITIONS, STEPS, TOKENS, VOCABULARY, WIDTH, logits_of,
    save_adapter_folder, tiny_llama, write_steps
)


def make_gpt2():
    import transformers
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=3, n_positions=POSITIONS, vocab_size=VOCABULARY,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"
    )
    return transformers.GPT2LMHeadModel(config), dict(heads=3, inner=4 * WIDTH, gelu_tanh=1, tied=1)


def write_adapter(path, make, rank, alpha, targets):
    import peft
    torch.manual_seed(17)
    model, settings = make()
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets.split(", "), task_type="CAUSAL_LM",
        fan_in_fan_out="heads" in settings and settings["tied"] == 1
    )
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double()
    with torch.no_grad():
        for name, t in model.named_parameters():
            is_embedding = "wte" in name or "embed" in name
            scale = 0.1 if t.dim() == 1 else 0.3 if is_embedding else 1.2 / math.sqrt(WIDTH)
            one = 1.0 if t.dim() == 1 and "weight" in name else 0.0
            t.copy_((one + torch.randn_like(t) * scale).float().double())
    adapters = {
        n.replace(".default", ""): t for n, t in model.named_parameters() if t.requires_grad
    }
    base = {n.replace("base_model.model.", "").replace(".base_layer", ""): t
            for n, t in model.named_parameters() if not t.requires_grad}
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1))
    optimizer = torch.optim.AdamW(adapters.values(), weight_decay=DECAY, **ADAMW)
    settings.update(adapter_rank=rank, adapter_alpha=alpha)
    write_steps(path, logits_of(model), settings, base, adapters, tokens, optimizer)


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
    }
    with h5py.File(folder / "adapters.h5", "w") as f:
        for seed, (name, (base, kind, settings)) in enumerate(cases.items()):
            torch.manual_seed(seed + 60)
            more = dict(num_labels=3) if "Sequence" in kind.__name__ else {}
            model = kind.from_pretrained(folder / base, **more)
            config = peft.LoraConfig(r=2, lora_alpha=5, fan_in_fan_out=base == "whole", **settings)
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
                out = model(ids, attention_mask=there.long(), output_hidden_states=True, **kinds)
            f[name + "/lengths"] = np.array(lengths, np.int32)
            f[name + "/ids"] = ids[there].numpy().astype(np.int32)
            f[name + "/hidden"] = out.hidden_states[-1][there].numpy()
            if more:
                f[name + "/outputs"] = out.logits.numpy()


def write_adapters(folder):
    write_adapter(folder / "gpt2_lora.h5", make_gpt2, 4, 6, "c_attn, c_proj, c_fc")
    write_adapter(folder / "llama_lora.h5", tiny_llama, 3, 3, "q_proj, v_proj")
