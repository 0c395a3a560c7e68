"""Functions for the reference files of training steps: their attributes, inputs and steps, and a
tiny Llama with rotary angles in double precision. make_reference.py calls this module.
"""
import h5py
import numpy as np
import torch

LAYERS, WIDTH, POSITIONS, VOCABULARY = 2, 24, 20, 61
BATCH, TOKENS, STEPS = 3, 17, 10
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
DECAY, CLIP = 0.1, 1.0


def tiny_llama():
    """LlamaForCausalLM with grouped heads, an untied output matrix and rotary angles in float64."""
    import transformers
    settings = dict(heads=4, kv_heads=2, inner=40, gelu_tanh=0, tied=0, rope_theta=300.0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=40, max_position_embeddings=POSITIONS,
            vocab_size=VOCABULARY, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": settings["rope_theta"]},
            attn_implementation="eager"
        )
    )
    inverse = settings["rope_theta"] ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)

    def angles(x, position_ids):
        angle = position_ids[:, :, None].double() * inverse[None, None, :]
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()
    model.model.rotary_emb.forward = angles
    return model, settings


def add_noise(model, scale):
    """Add random values to the trained parameters."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * scale)


def save_folder(model, path, scale):
    """Add random values to the trained parameters of a transformers or peft model and save it."""
    add_noise(model, scale)
    model.save_pretrained(path)
    for name in ("generation_config.json", "README.md"):
        (path / name).unlink(missing_ok=True)


def save_adapter_folder(model, config, folder, name, scale):
    """Add adapters with random values to a model, save them without the folder of the base model,
    and return the model with its adapters."""
    import peft
    model = peft.get_peft_model(model, config)
    save_folder(model, folder / name, scale)
    path = folder / name / "adapter_config.json"
    path.write_text(path.read_text().replace(str(folder.resolve()), "models"))
    return model


def split_parameters(model):
    """The frozen and the trained parameters by their names in a file: of the base model without
    peft, of its adapters in peft's file."""
    frozen, trained = {}, {}
    for name, p in model.named_parameters():
        if "lora_" in name:
            name = name.replace(".default", "")
        else:
            name = name.replace("base_model.model.", "").replace(".base_layer", "")
        (trained if p.requires_grad else frozen)[name] = p
    return frozen, trained


def logits_of(model):
    """A function from ids to logits for write_steps, of a transformers model."""
    return lambda ids: model(ids, use_cache=False).logits


def plain_rows():
    """Batch without documents: position of each token, ignored predictions, starts of segments."""
    return dict(
        positions=torch.arange(TOKENS).repeat(BATCH, 1),
        ignored=torch.zeros(BATCH, TOKENS, dtype=torch.bool),
        starts=[b * TOKENS for b in range(BATCH)]
    )


def write_steps(
    path, forward, settings, frozen, trained, tokens, optimizer, rows=None, offsets=()
):
    """Write the first logits and gradients of a model, forward(ids) -> logits, and STEPS steps with
    clipping by the global norm. Bireme adds 1 to the tensors that `offsets` names."""
    rows = rows or plain_rows()

    def stored(name, t):
        return (t.detach().numpy() + (name in offsets)).astype(np.float32)
    with h5py.File(path, "w") as f:
        f.attrs.update(
            settings, layers=LAYERS, width=WIDTH, positions=POSITIONS, vocabulary=VOCABULARY,
            batch=BATCH, tokens=TOKENS, steps=STEPS, learning_rate=ADAMW["lr"],
            beta1=ADAMW["betas"][0], beta2=ADAMW["betas"][1], epsilon=ADAMW["eps"],
            weight_decay=DECAY, max_grad_norm=CLIP
        )
        f["ids"] = tokens.numpy().astype(np.int32)
        for name, values in rows.items():
            f[name] = np.array(values, np.int32)
        for name, t in {**frozen, **trained}.items():
            f["weights/" + name] = stored(name, t)
        losses, norms = [], []
        for step in range(STEPS):
            logits = forward(tokens[step, :, :-1])
            targets = tokens[step, :, 1:].masked_fill(rows["ignored"], -100)
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, VOCABULARY), targets.reshape(-1)
            )
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                f["logits"] = logits.detach().numpy().astype(np.float32).reshape(-1, VOCABULARY)
                for name, t in trained.items():
                    f["gradients/" + name] = t.grad.numpy().astype(np.float32)
            norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), CLIP).item())
            losses.append(loss.item())
            optimizer.step()
        f["losses"], f["norms"] = np.array(losses), np.array(norms)
        for name, t in trained.items():
            f["trained/" + name] = stored(name, t)
    print(path, "losses", " ".join(f"{x:.6f}" for x in losses))
