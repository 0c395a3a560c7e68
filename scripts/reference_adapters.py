"""What peft makes of tiny models with LoRA, for make_reference.py: logits, the gradients of the adapters, ten steps of
AdamW with clipping, in double precision. The second matrices are not zero, as they are at first, so that all count."""
import math

import h5py
import numpy as np
import torch

LAYERS, WIDTH, POSITIONS, VOCABULARY = 2, 24, 20, 61
BATCH, TOKENS, STEPS = 3, 17, 10
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
DECAY, CLIP = 0.1, 1.0


def gpt2():
    import transformers
    config = transformers.GPT2Config(n_layer=LAYERS, n_embd=WIDTH, n_head=3, n_positions=POSITIONS, vocab_size=VOCABULARY,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(config), dict(heads=3, inner=4 * WIDTH, gelu_tanh=1, tied=1)


def llama():
    import transformers
    config = transformers.LlamaConfig(
        num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
        max_position_embeddings=POSITIONS, vocab_size=VOCABULARY, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0}, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    inverse = 300.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)

    def angles(x, position_ids):
        angle = position_ids[:, :, None].double() * inverse[None, None, :]
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()
    model.model.rotary_emb.forward = angles  # exact instead of those of single precision
    return model, dict(heads=4, kv_heads=2, inner=40, gelu_tanh=0, tied=0, rope_theta=300.0)


def write(path, make, rank, alpha, targets):
    import peft
    torch.manual_seed(17)
    model, settings = make()
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets.split(", "), task_type="CAUSAL_LM",
                             fan_in_fan_out="heads" in settings and settings["tied"] == 1)
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double()
    with torch.no_grad():
        for name, t in model.named_parameters():
            scale = 0.1 if t.dim() == 1 else 0.3 if "wte" in name or "embed" in name else 1.2 / math.sqrt(WIDTH)
            one = 1.0 if t.dim() == 1 and "weight" in name else 0.0
            t.copy_((one + torch.randn_like(t) * scale).float().double())
    adapters = {n.replace(".default", ""): t for n, t in model.named_parameters() if t.requires_grad}
    base = {n.replace("base_model.model.", "").replace(".base_layer", ""): t
            for n, t in model.named_parameters() if not t.requires_grad}
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1))
    optimizer = torch.optim.AdamW(adapters.values(), weight_decay=DECAY, **ADAMW)
    with h5py.File(path, "w") as f:
        f.attrs.update(settings, layers=LAYERS, width=WIDTH, positions=POSITIONS, vocabulary=VOCABULARY, batch=BATCH,
                       tokens=TOKENS, steps=STEPS, learning_rate=ADAMW["lr"], beta1=ADAMW["betas"][0],
                       beta2=ADAMW["betas"][1], epsilon=ADAMW["eps"], weight_decay=DECAY, max_grad_norm=CLIP,
                       adapter_rank=rank, adapter_alpha=alpha)
        f["ids"] = tokens.numpy().astype(np.int32)
        f["positions"] = np.tile(np.arange(TOKENS, dtype=np.int32), (BATCH, 1))
        f["ignored"] = np.zeros((BATCH, TOKENS), np.int32)
        f["starts"] = np.arange(BATCH, dtype=np.int32) * TOKENS
        for name, t in {**base, **adapters}.items():
            f["weights/" + name] = t.detach().numpy().astype(np.float32)
        losses, norms = [], []
        for step in range(STEPS):
            logits = model(tokens[step, :, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[step, :, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                f["logits"] = logits.detach().numpy().astype(np.float32).reshape(-1, VOCABULARY)
                for name, t in adapters.items():
                    f["gradients/" + name] = t.grad.numpy().astype(np.float32)
            norms.append(torch.nn.utils.clip_grad_norm_(adapters.values(), CLIP).item())
            losses.append(loss.item())
            optimizer.step()
        f["losses"], f["norms"] = np.array(losses), np.array(norms)
        for name, t in adapters.items():
            f["trained/" + name] = t.detach().numpy().astype(np.float32)
    print(path, "losses", " ".join(f"{x:.6f}" for x in losses))


def write_adapter_folders(folder):
    """What peft saves beside the models of tests/reference/pretrained, and hidden states with the adapters in double precision."""
    import peft
    import transformers as t
    cases = {
        "gpt2_lora": ("whole", t.AutoModelForCausalLM, dict(task_type="CAUSAL_LM", target_modules=r".*\.(c_attn|mlp\.c_proj)")),
        "llama_lora": ("llama", t.AutoModelForCausalLM, dict(task_type="CAUSAL_LM", target_modules="all-linear", use_rslora=True)),
        "roberta_lora": ("roberta", t.AutoModelForMaskedLM, dict(target_modules=["query", "key", "output.dense"])),
        "bert_lora": ("bert", t.AutoModelForSequenceClassification, dict(task_type="SEQ_CLS", lora_dropout=0.1)),
        "embed_lora": ("bert", t.AutoModel, dict(task_type="FEATURE_EXTRACTION", target_modules=["query"], exclude_modules=["value"])),
    }
    with h5py.File(folder / "adapters.h5", "w") as f:
        for seed, (name, (base, kind, settings)) in enumerate(cases.items()):
            torch.manual_seed(seed + 60)
            more = dict(num_labels=3) if "Sequence" in kind.__name__ else {}
            model = kind.from_pretrained(folder / base, **more)
            config = peft.LoraConfig(r=2, lora_alpha=5, fan_in_fan_out=base == "whole", **settings)
            model = peft.get_peft_model(model, config)
            with torch.no_grad():
                for p in model.parameters():
                    if p.requires_grad:
                        p.add_(torch.randn_like(p) * 0.3)
            model.save_pretrained(folder / name)
            (folder / name / "README.md").unlink()
            text = (folder / name / "adapter_config.json").read_text()
            (folder / name / "adapter_config.json").write_text(text.replace(str(folder.resolve()), "models"))
            lengths, longest = [9, 5], 9
            ids = torch.randint(5, 19, (len(lengths), longest))
            there = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
            ids[~there] = 1
            kinds = dict(token_type_ids=(torch.arange(longest)[None, :] >= 2).long() * there) if base == "bert" else {}
            with torch.no_grad():
                model = model.double().eval()
                out = model(ids, attention_mask=there.long(), output_hidden_states=True, **kinds)
            f[name + "/lengths"], f[name + "/ids"] = np.array(lengths, np.int32), ids[there].numpy().astype(np.int32)
            f[name + "/hidden"] = out.hidden_states[-1][there].numpy()
            if more:
                f[name + "/outputs"] = out.logits.numpy()


def write_adapters(folder):
    write(folder / "gpt2_lora.h5", gpt2, 4, 6, "c_attn, c_proj, c_fc")
    write(folder / "llama_lora.h5", llama, 3, 3, "q_proj, v_proj")
