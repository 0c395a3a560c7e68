"""References of encoders: for each family a file of training steps on padded batches, and a model
folder as save_pretrained writes it, with logits and hidden states of a padded batch.
make_reference.py calls this module, and uses it for BERT and RoBERTa.
"""
import h5py
import numpy as np
import torch

from reference_steps import (
    ADAMW, BATCH, CLIP, DECAY, LAYERS, POSITIONS, STEPS, TOKENS, VOCABULARY, WIDTH
)

HEADS, INNER = 3, 96


def make_batch(generator, types, pad):
    """A padded batch: ids, attention mask, segments, labels and next-sentence labels.

    The label of a token that is not masked is -100."""
    lengths = torch.tensor([TOKENS - 1, 5, 9])
    ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS - 1), generator=generator)
    there = torch.arange(TOKENS - 1) < lengths[:, None]
    segments = (torch.arange(TOKENS - 1) >= (lengths // 2)[:, None]).long() * there
    labels = torch.randint(3, VOCABULARY, ids.shape, generator=generator)
    masked = (torch.rand(ids.shape, generator=generator) < 0.3) & there
    masked[:, 1] = True
    return dict(
        input_ids=ids.masked_fill(~there, pad), attention_mask=there.long(),
        token_type_ids=segments * (types > 1), labels=labels.masked_fill(~masked, -100),
        next_sentence_label=torch.randint(0, 2, (BATCH,), generator=generator)
    )


def write_encoder_steps(path, model, types, pad, optimizer, settings, inputs):
    """Writes the first logits and gradients of a model on a padded batch, and STEPS steps with
    clipping. `inputs` are the names of the arrays of a batch that the model reads."""
    model = model.double().train()
    with torch.no_grad():  # larger than usual, as in make_weights, and rounded to float32
        for p in model.parameters():
            p.copy_((p + torch.randn_like(p) * (0.2 if p.dim() == 2 else 0.1)).float().double())
    w = dict(model.named_parameters())
    optimizer = optimizer(w)
    generator = torch.Generator().manual_seed(31)
    with h5py.File(path, "w") as f:
        f.attrs.update(
            dict(
                layers=LAYERS, width=WIDTH, heads=HEADS, inner=INNER, positions=POSITIONS,
                batch=BATCH, vocabulary=VOCABULARY, tokens=TOKENS - 1, steps=STEPS,
                learning_rate=ADAMW["lr"], beta1=ADAMW["betas"][0], beta2=ADAMW["betas"][1],
                epsilon=ADAMW["eps"], weight_decay=DECAY, max_grad_norm=CLIP, segments=float(types)
            ), **settings
        )
        for name, t in w.items():
            f["weights/" + name] = t.detach().numpy().astype(np.float32)
        batches = [make_batch(generator, types, pad) for _ in range(STEPS)]
        for name in batches[0]:
            f["batch/" + name] = np.stack([b[name].numpy() for b in batches]).astype(np.int32)
        losses, norms = [], []
        for step, batch in enumerate(batches):
            out = model(**{name: batch[name] for name in inputs})
            optimizer.zero_grad()
            out.loss.backward()
            if step == 0:
                there = batch["attention_mask"].bool()
                logits = getattr(out, "prediction_logits", None)
                logits = out.logits if logits is None else logits
                f["logits"] = logits[there].detach().numpy().astype(np.float32)
                labels = getattr(out, "seq_relationship_logits", None)
                labels = getattr(out, "sop_logits", None) if labels is None else labels
                if labels is not None:
                    f["label_logits"] = labels.detach().numpy().astype(np.float32)
                for name, t in w.items():
                    f["gradients/" + name] = t.grad.numpy().astype(np.float32)
            norms.append(torch.nn.utils.clip_grad_norm_(w.values(), CLIP).item())
            losses.append(out.loss.item())
            optimizer.step()
        f["losses"], f["norms"] = np.array(losses), np.array(norms)
        for name, t in w.items():
            f["trained/" + name] = t.detach().numpy().astype(np.float32)
    print(path, "losses", " ".join(f"{x:.6f}" for x in losses))


def make_adamw(w):
    """AdamW with weight decay for matrices only."""
    return torch.optim.AdamW(
        [dict(params=[t for t in w.values() if t.dim() == 2], weight_decay=DECAY),
         dict(params=[t for t in w.values() if t.dim() == 1], weight_decay=0.0)], **ADAMW
    )


INPUTS = ["input_ids", "attention_mask", "labels"]

# file: class, token types, arrays of a batch, more keys of the configuration
FAMILIES = {
    "distilbert": ("DistilBertForMaskedLM", 0, INPUTS, dict(activation="relu")),
    "megatron_bert": (
        "MegatronBertForPreTraining", 2, [*INPUTS, "token_type_ids", "next_sentence_label"], {}
    ),
}


def make_model(family, layers, width, heads, inner, positions, vocabulary, **more):
    """The model of a family with these sizes, without dropout."""
    import transformers
    name, types, _, keys = FAMILIES[family]
    if family == "distilbert":
        sizes = dict(
            n_layers=layers, dim=width, n_heads=heads, hidden_dim=inner, dropout=0,
            attention_dropout=0
        )
    else:
        sizes = dict(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
            intermediate_size=inner, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
            type_vocab_size=types, layer_norm_eps=1e-12
        )
    config = getattr(transformers, name[:name.index("For")] + "Config")
    return getattr(transformers, name)(
        config(
            vocab_size=vocabulary, max_position_embeddings=positions, attn_implementation="eager",
            **{**sizes, **keys, **more}
        )
    )


def write_family_folder(folder, family, seed):
    torch.manual_seed(seed)
    _, types, names, keys = FAMILIES[family]
    model = make_model(family, 2, 8, 2, 12, 12, 19, initializer_range=0.5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder / family)
    (folder / family / "generation_config.json").unlink(missing_ok=True)
    lengths = [10, 7, 3]
    ids = torch.randint(5, 19, (len(lengths), max(lengths)))
    there = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    ids[~there] = 0
    more = {}
    if "token_type_ids" in names:
        more["token_type_ids"] = (torch.arange(max(lengths))[None, :] >= 2).long() * there
    with torch.no_grad():
        out = model.double().eval()(ids, attention_mask=there.long(), **more)
        hidden = model.base_model(ids, attention_mask=there.long(), **more).last_hidden_state
    logits = getattr(out, "prediction_logits", None)
    labels = getattr(out, "seq_relationship_logits", None)
    labels = getattr(out, "sop_logits", None) if labels is None else labels
    with h5py.File(folder / f"{family}.h5", "w") as f:
        f[family + "/lengths"] = np.array(lengths, np.int32)
        f[family + "/ids"] = ids[there].numpy().astype(np.int32)
        f[family + "/hidden"] = hidden[there].numpy()
        f[family + "/logits"] = (out.logits if logits is None else logits)[there].numpy()
        if labels is not None:
            f[family + "/labels"] = labels.numpy()


def write_families(folder):
    for seed, (family, (_, types, inputs, keys)) in enumerate(FAMILIES.items()):
        torch.manual_seed(100 + seed)
        model = make_model(family, LAYERS, WIDTH, HEADS, INNER, POSITIONS, VOCABULARY)
        settings = dict(
            gelu_tanh=0.0, relu=float(keys.get("activation") == "relu")
        )
        write_encoder_steps(
            folder / f"{family}.h5", model, types, 0, make_adamw, settings, inputs
        )
        write_family_folder(folder / "pretrained", family, 120 + seed)
