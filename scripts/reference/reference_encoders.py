"""References of encoders: for each family a file of training steps on padded batches, and a model
folder as save_pretrained writes it, with logits and hidden states of a padded batch.
make_reference.py calls this module, and uses it for BERT and RoBERTa.
"""
import h5py
import numpy as np
import torch

from reference_steps import (
    ADAMW, BATCH, CLIP, DECAY, LAYERS, POSITIONS, STEPS, TOKENS, VOCABULARY, WIDTH, save_folder,
    split_parameters
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


def select_inputs(batch, inputs):
    """The arguments of a model. `ARGUMENT=NAME` passes the array NAME as ARGUMENT."""
    return {name.split("=")[0]: batch[name.split("=")[-1]] for name in inputs}


def write_encoder_steps(path, model, types, pad, optimizer, settings, inputs):
    """Writes the first logits and gradients of a model on a padded batch, and STEPS steps with
    clipping. `inputs` are the names of the arrays of a batch that the model reads. peft may have
    added adapters to the model."""
    model = model.double().train()
    with torch.no_grad():  # larger than usual, as in make_weights, and rounded to float32
        for p in model.parameters():
            p.copy_((p + torch.randn_like(p) * (0.2 if p.dim() == 2 else 0.1)).float().double())
    frozen, w = split_parameters(model)
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
        for name, t in {**frozen, **w}.items():
            f["weights/" + name] = t.detach().numpy().astype(np.float32)
        batches = [make_batch(generator, types, pad) for _ in range(STEPS)]
        for name in batches[0]:
            f["batch/" + name] = np.stack([b[name].numpy() for b in batches]).astype(np.int32)
        losses, norms = [], []
        for step, batch in enumerate(batches):
            out = model(**select_inputs(batch, inputs))
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
    "modernbert": (
        "ModernBertForMaskedLM", 0, INPUTS,
        dict(local_attention=6, layer_types=["full_attention", "sliding_attention"])
    ),
    "albert": (
        "AlbertForPreTraining", 2,
        [*INPUTS, "token_type_ids", "sentence_order_label=next_sentence_label"],
        dict(hidden_act="gelu_new", embedding_size=6, classifier_dropout_prob=0)
    ),
}
THETA, LOCAL_THETA = 300.0, 40.0


def use_exact_attention(model):
    """Computes the rotary positions of a ModernBERT in float64; transformers does so in float32. Rows
    of the padding also attend to themselves, because a row without keys is NaN."""
    from transformers.models.modernbert import modeling_modernbert
    from transformers import masking_utils
    width = model.config.hidden_size // model.config.num_attention_heads

    def angles(x, position_ids, layer_type):
        theta = model.config.rope_parameters[layer_type]["rope_theta"]
        inverse = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = position_ids[..., None].double() * inverse
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        half = modeling_modernbert.rotate_half
        return q * cos + half(q) * sin, k * cos + half(k) * sin
    model.model.rotary_emb.forward = angles
    modeling_modernbert.apply_rotary_pos_emb = apply
    for name in "create_bidirectional_mask", "create_bidirectional_sliding_window_mask":
        def make_mask(make=getattr(masking_utils, name), **arguments):
            mask = make(**arguments)
            if mask is None:
                return None
            own = torch.eye(mask.shape[-1], dtype=torch.bool)
            return torch.where(own, torch.zeros_like(mask), mask)
        setattr(modeling_modernbert, name, make_mask)


def make_model(family, layers, width, heads, inner, positions, vocabulary, **more):
    """The model of a family with these sizes, without dropout."""
    import transformers
    name, types, _, keys = FAMILIES[family]
    if family == "distilbert":
        sizes = dict(
            n_layers=layers, dim=width, n_heads=heads, hidden_dim=inner, dropout=0,
            attention_dropout=0
        )
    elif family == "modernbert":
        bases = dict(full_attention=THETA, sliding_attention=LOCAL_THETA)
        tokens = ("pad", "bos", "eos", "cls", "sep")
        sizes = dict(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
            intermediate_size=inner, norm_eps=1e-12, **{f"{t}_token_id": None for t in tokens},
            rope_parameters={
                k: dict(rope_type="default", rope_theta=base) for k, base in bases.items()
            }
        )
    else:
        sizes = dict(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
            intermediate_size=inner, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
            type_vocab_size=types, layer_norm_eps=1e-12
        )
    config = getattr(transformers, name[:name.index("For")] + "Config")
    model = getattr(transformers, name)(
        config(
            vocab_size=vocabulary, max_position_embeddings=positions, attn_implementation="eager",
            **{**sizes, **keys, **more}
        )
    )
    if family == "modernbert":
        use_exact_attention(model)
    return model


def write_family_folder(folder, family, seed):
    torch.manual_seed(seed)
    _, types, names, keys = FAMILIES[family]
    model = make_model(family, 2, 8, 2, 12, 12, 19, initializer_range=0.5)
    save_folder(model, folder / family, 0.1)
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


PLACEMENTS = ("pre", "post", "branch", "both")

# file: placement, norm, positions, gated, activation, biases, head width
FREE = {
    "transformer_post": ("post", "layernorm", "sinusoidal", False, "relu", True, 10),
    "transformer_pre": ("pre", "rmsnorm", "rotary", True, "silu", False, 8),
    "transformer_branch": ("branch", "layernorm", "learned", False, "relu2", True, 6),
    "transformer_both": ("both", "rmsnorm", "none", True, "gelu_erf", True, 8),
}
FREE_THETA = 300.0

# file: the parts above, and further ones under the names of struct model_config. A token attends to
# tokens at a distance below the window.
FREE_MORE = {
    "transformer_parts": (
        ("pre", "rmsnorm", "rotary", True, "silu", False, 8),
        dict(
            window=3, window_pattern=2, rope_local_theta=40.0, rotary_width=6, qk_norm="full",
            attention_softcap=2.0, attention_scale=0.3, residual_multiplier=0.4,
            embedding_multiplier=3.0
        )
    ),
    "transformer_bert": (("pre", "layernorm", "learned", False, "gelu_erf", True, 8), {}),
}
QK_NORMS = ("none", "head", "full")


class FreeNorm(torch.nn.Module):
    """LayerNorm or RMSNorm."""

    def __init__(self, kind, width=WIDTH):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.bias = torch.nn.Parameter(torch.zeros(width)) if kind == "layernorm" else None

    def forward(self, x):
        shape = self.weight.shape
        if self.bias is not None:
            return torch.nn.functional.layer_norm(x, shape, self.weight, self.bias, 1e-12)
        return torch.nn.functional.rms_norm(x, shape, self.weight, 1e-12)


def activate(x, name):
    f = torch.nn.functional
    return dict(
        relu=f.relu, relu2=lambda y: f.relu(y) ** 2, silu=f.silu, gelu_erf=f.gelu
    )[name](x)


def rotate(x, theta, width):
    """Rotary positions of the first columns of x [B, H, T, D], in halves as in Llama."""
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], theta, width), x[..., width:]), -1)
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[2])[:, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class FreeLayer(torch.nn.Module):
    """A block of an encoder with free parts, of torch.nn layers. The parameters have the order of
    Bireme."""

    def __init__(
        self, layer, more, placement, norm, positions, gated, activation, biases, head_width
    ):
        super().__init__()
        linear, inner = torch.nn.Linear, HEADS * head_width
        self.more, self.rotated = more, more.get("rotary_width", head_width)
        self.is_local = "window" in more and (layer + 1) % more["window_pattern"] != 0
        self.placement, self.positions, self.activation = placement, positions, activation
        before, after = placement in ("pre", "both"), placement in ("branch", "both")
        if before:
            self.attention_input_norm = FreeNorm(norm)
        self.attention = torch.nn.ModuleDict(
            {n: linear(WIDTH, inner, bias=biases) for n in ("query", "key", "value")}
        )
        if more.get("qk_norm") == "full":
            for name in "query_norm", "key_norm":
                self.attention[name] = FreeNorm("rmsnorm", inner)
        self.attention["output"] = linear(inner, WIDTH, bias=biases)
        if after:
            self.attention_output_norm = FreeNorm(norm)
        if before or placement == "post":
            self.feed_forward_input_norm = FreeNorm(norm)
        names = ("gate", "up") if gated else ("up",)
        self.feed_forward = torch.nn.ModuleDict(
            {n: linear(WIDTH, INNER, bias=biases) for n in names}
        )
        self.feed_forward["down"] = linear(INNER, WIDTH, bias=biases)
        if after:
            self.feed_forward_output_norm = FreeNorm(norm)
        if placement == "post":
            self.attention_input_norm = FreeNorm(norm)

    def attend(self, x, mask):
        batch, tokens, _ = x.shape
        q, k, v = (self.attention[n](x) for n in ("query", "key", "value"))
        if "query_norm" in self.attention:
            q, k = self.attention["query_norm"](q), self.attention["key_norm"](k)
        q, k, v = (t.view(batch, tokens, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        if self.positions == "rotary":
            theta = self.more["rope_local_theta"] if self.is_local else FREE_THETA
            q, k = rotate(q, theta, self.rotated), rotate(k, theta, self.rotated)
        scores = q @ k.transpose(2, 3) * self.more.get("attention_scale", q.shape[-1] ** -0.5)
        cap = self.more.get("attention_softcap", 0)
        scores = cap * torch.tanh(scores / cap) if cap > 0 else scores
        if self.is_local:
            row = torch.arange(tokens)
            near = (row[:, None] - row[None, :]).abs() < self.more["window"]
            # rows of the padding attend to themselves, because a row without keys is NaN
            mask = (mask & near) | torch.eye(tokens, dtype=torch.bool)
        y = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ v
        y = self.attention["output"](y.transpose(1, 2).reshape(batch, tokens, -1))
        return y * self.more.get("residual_multiplier", 1)

    def feed(self, x):
        up, factor = self.feed_forward["up"](x), self.more.get("residual_multiplier", 1)
        if "gate" in self.feed_forward:
            return factor * self.feed_forward["down"](
                activate(self.feed_forward["gate"](x), self.activation) * up
            )
        return factor * self.feed_forward["down"](activate(up, self.activation))

    def forward(self, x, mask):
        if self.placement == "post": # the norm's reader gives the name
            x = self.feed_forward_input_norm(x + self.attend(x, mask))
            return self.attention_input_norm(x + self.feed(x))
        if self.placement == "pre":
            x = x + self.attend(self.attention_input_norm(x), mask)
            return x + self.feed(self.feed_forward_input_norm(x))
        if self.placement == "branch":
            x = x + self.attention_output_norm(self.attend(x, mask))
            return x + self.feed_forward_output_norm(self.feed(x))
        x = x + self.attention_output_norm(self.attend(self.attention_input_norm(x), mask))
        return x + self.feed_forward_output_norm(self.feed(self.feed_forward_input_norm(x)))


class FreeEncoder(torch.nn.Module):
    """transformer_encoder with the head of masked tokens."""

    def __init__(
        self, more, placement, norm, positions, gated, activation, biases, head_width
    ):
        super().__init__()
        self.positions, self.activation, self.more = positions, activation, more
        self.embeddings = torch.nn.ModuleDict({"tokens": torch.nn.Embedding(VOCABULARY, WIDTH)})
        if positions == "learned":
            self.embeddings["positions"] = torch.nn.Embedding(POSITIONS, WIDTH)
        parts = placement, norm, positions, gated, activation, biases, head_width
        self.layers = torch.nn.ModuleList([FreeLayer(i, more, *parts) for i in range(LAYERS)])
        if placement != "post":
            self.final_norm = FreeNorm(norm)
        self.head = torch.nn.ModuleDict(
            dict(dense=torch.nn.Linear(WIDTH, WIDTH), norm=FreeNorm(norm))
        )
        self.head.register_parameter("bias", torch.nn.Parameter(torch.zeros(VOCABULARY)))

    def embed(self, ids):
        x = self.embeddings["tokens"](ids) * self.more.get("embedding_multiplier", 1)
        row = torch.arange(ids.shape[1], dtype=torch.float64)
        if self.positions == "learned":
            return x + self.embeddings["positions"](row.long())
        if self.positions == "sinusoidal":
            angle = row[:, None] * 1e4 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
            return x + torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
        return x

    def forward(self, input_ids, attention_mask, labels):
        import types
        x, mask = self.embed(input_ids), attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        x = self.final_norm(x) if hasattr(self, "final_norm") else x
        x = self.head["norm"](activate(self.head["dense"](x), self.activation))
        logits = x @ self.embeddings["tokens"].weight.T + self.head.bias
        loss = torch.nn.functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))
        return types.SimpleNamespace(logits=logits, loss=loss)


def check_with_torch(model):
    """Compares a pre-norm BERT with torch.nn.TransformerEncoder: LayerNorms before each sub-layer and
    after the last one, learned positions and GELU."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, 0.0, "gelu", 1e-12, batch_first=True, norm_first=True
    )
    theirs = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH, 1e-12), False).double()
    model = model.double()
    state = {"norm." + k: t for k, t in model.final_norm.state_dict().items()}
    names = {
        "out_proj": "attention.output", "linear1": "feed_forward.up",
        "linear2": "feed_forward.down", "norm1": "attention_input_norm",
        "norm2": "feed_forward_input_norm"
    }
    for i, block in enumerate(model.layers):
        w = block.state_dict()
        for kind in "weight", "bias":
            at = f"layers.{i}."
            state[at + f"self_attn.in_proj_{kind}"] = torch.cat(
                [w[f"attention.{n}.{kind}"] for n in ("query", "key", "value")]
            )
            for name, ours in names.items():
                inside = "self_attn." if name == "out_proj" else ""
                state[f"{at}{inside}{name}.{kind}"] = w[f"{ours}.{kind}"]
    theirs.load_state_dict(state)
    ids = torch.randint(0, VOCABULARY, (2, POSITIONS))
    mask = torch.arange(POSITIONS)[None, :] < torch.tensor([[POSITIONS], [POSITIONS - 3]])
    with torch.no_grad():
        x = theirs(model.embed(ids), src_key_padding_mask=~mask)
        x = model.head["norm"](activate(model.head["dense"](x), "gelu_erf"))
        logits = x @ model.embeddings["tokens"].weight.T + model.head.bias
        ours = model(ids, mask, torch.zeros_like(ids)).logits
    assert torch.allclose(logits[mask], ours[mask], rtol=1e-10, atol=1e-10)


def write_free(folder):
    """The encoders with free parts."""
    activations = ("gelu_tanh", "gelu_erf", "tanh", "relu", "relu2", "silu")
    cases = {**{name: (parts, {}) for name, parts in FREE.items()}, **FREE_MORE}
    for seed, (name, (parts, more)) in enumerate(cases.items()):
        placement, norm, positions, gated, activation, biases, head_width = parts
        torch.manual_seed(160 + seed)
        settings = dict(
            gelu_tanh=0.0, activation=1.0 + activations.index(activation),
            norm_placement=1.0 + PLACEMENTS.index(placement), rms_norm=float(norm == "rmsnorm"),
            positions_kind=1.0 + ["learned", "sinusoidal", "rotary", "none"].index(positions),
            gated=float(gated), biases=float(biases), head_dim=float(head_width),
            rope_theta=FREE_THETA, qk_norm=float(QK_NORMS.index(more.get("qk_norm", "none"))),
            **{key: float(value) for key, value in more.items() if key != "qk_norm"}
        )
        model = FreeEncoder(more, *parts)
        if name == "transformer_bert":
            check_with_torch(model)
            model = model.float()
        write_encoder_steps(folder / f"{name}.h5", model, 0, 0, make_adamw, settings, INPUTS)


def write_family_steps(path, family, add_adapters=lambda model: (model, {})):
    """add_adapters returns the model with adapters and their attributes in the file."""
    _, types, inputs, keys = FAMILIES[family]
    model, settings = add_adapters(
        make_model(family, LAYERS, WIDTH, HEADS, INNER, POSITIONS, VOCABULARY)
    )
    settings.update(
        gelu_tanh=float(keys.get("hidden_act") == "gelu_new"),
        relu=float(keys.get("activation") == "relu"),
        embedding_size=float(keys.get("embedding_size", 0))
    )
    if family == "modernbert":
        settings.update(
            rope_theta=THETA, rope_local_theta=LOCAL_THETA, window_pattern=2.0,
            window=keys["local_attention"] / 2 + 1
        )
    write_encoder_steps(path, model, types, 0, make_adamw, settings, inputs)


def write_families(folder):
    write_free(folder)
    for seed, family in enumerate(FAMILIES):
        torch.manual_seed(100 + seed)
        write_family_steps(folder / f"{family}.h5", family)
        write_family_folder(folder / "pretrained", family, 120 + seed)
