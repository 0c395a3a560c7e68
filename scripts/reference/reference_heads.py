"""References of fine-tuning heads, made with the task classes of transformers; make_reference.py
calls this module. tests/trainer/objective/test_reference_heads.c reads heads.h5, heads_lora.h5,
heads_albert.h5, heads_albert_lora.h5 and heads_decoders.h5.

Each case is a group: the batch as Bireme packs it (without padding), the outputs of the head, the
loss, and in `values` all weights and all gradients, in the order of the attribute `names`. Each
text runs alone, so that there is no padding. The choices of one question are an exception:
transformers needs them in one batch, padded with a mask. transformers has no multiple-choice class
for GPT-2, so each choice runs in GPT2ForSequenceClassification.

heads_lora.h5 has the same for peft models: adapters on a frozen model, and a fully trained head
(modules_to_save).
"""
import json
import pathlib
import tempfile

import h5py
import numpy as np
import torch
import transformers

WIDTH, HEADS, INNER, POSITIONS, VOCABULARY, LABELS = 8, 2, 8, 10, 12, 3
LENGTHS = (7, 5, 10)
WORDS = 3  # labeled words of a text

# Families like Llama, and GPT-1: class stem in transformers, more keys of the configuration. The
# test has the same settings.
ALL_KINDS = ("texts", "numbers", "tokens", "spans", "choices", "vectors")
NO_SPANS = ("texts", "numbers", "tokens", "choices", "vectors")
ONLY_TEXTS = ("texts", "numbers", "choices", "vectors")
ROPE = dict(rope_type="default", rope_theta=10000.0)
DECODERS = {
    "llama": ("Llama", {}, ALL_KINDS),
    "qwen2": ("Qwen2", {}, ALL_KINDS),
    "mistral": ("Mistral", dict(sliding_window=4), ALL_KINDS),
    "qwen3": ("Qwen3", dict(head_dim=6), ALL_KINDS),
    "smollm3": ("SmolLM3", dict(no_rope_layer_interval=2, rope_parameters=ROPE), ALL_KINDS),
    "phi3": (
        "Phi3", dict(head_dim=6, partial_rotary_factor=0.7, sliding_window=4), NO_SPANS
    ),
    "stablelm": (
        "StableLm", dict(partial_rotary_factor=0.5),
        NO_SPANS
    ),
    "olmo2": ("Olmo2", {}, ONLY_TEXTS),
    "gemma3_text": (
        "Gemma3Text", dict(
            head_dim=6, sliding_window=4, query_pre_attn_scalar=5,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters=dict(
                full_attention=ROPE,
                sliding_attention=dict(rope_type="default", rope_theta=50.0)
            )
        ), ONLY_TEXTS
    ),
    "openai-gpt": ("OpenAIGPT", {}, ONLY_TEXTS),
    "olmo": ("Olmo", {}, ONLY_TEXTS),
}
DECODER_LAYERS = 2
ENCODER_LAYERS = dict(albert=3, modernbert=2)  # of the encoders with several layers
MODERNBERT_KINDS = ("texts", "tokens", "spans", "choices")


def config_of(architecture, labels, layers=1):
    sizes = dict(
        hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=INNER,
        max_position_embeddings=POSITIONS + 2 * (architecture == "roberta"), vocab_size=VOCABULARY,
        num_labels=labels
    )
    if architecture in ("bert", "roberta", "megatron-bert"):
        sizes.update(
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, classifier_dropout=0,
            layer_norm_eps=1e-12, pad_token_id=1 if architecture == "roberta" else 0,
            type_vocab_size=1 if architecture == "roberta" else 2
        )
        return dict(
            bert=transformers.BertConfig, roberta=transformers.RobertaConfig
        ).get(architecture, transformers.MegatronBertConfig)(**sizes)
    if architecture == "modernbert":
        return transformers.ModernBertConfig(
            **{**sizes, "num_hidden_layers": layers}, local_attention=6, norm_eps=1e-12,
            classifier_pooling="cls", attn_implementation="eager", pad_token_id=0,
            layer_types=["full_attention", "sliding_attention"],
            rope_parameters=dict(
                full_attention=ROPE, sliding_attention=dict(rope_type="default", rope_theta=50.0)
            ), bos_token_id=None, eos_token_id=None, cls_token_id=None, sep_token_id=None
        )
    if architecture == "albert":
        sizes["num_hidden_layers"] = layers
        return transformers.AlbertConfig(
            **sizes, embedding_size=6, hidden_act="gelu", hidden_dropout_prob=0,
            attention_probs_dropout_prob=0, classifier_dropout_prob=0, pad_token_id=0
        )
    if architecture == "distilbert":
        return transformers.DistilBertConfig(
            dim=WIDTH, n_layers=1, n_heads=HEADS, hidden_dim=INNER, dropout=0, attention_dropout=0,
            max_position_embeddings=POSITIONS, vocab_size=VOCABULARY, num_labels=labels,
            seq_classif_dropout=0, qa_dropout=0
        )
    if architecture == "openai-gpt":
        return transformers.OpenAIGPTConfig(
            n_embd=WIDTH, n_layer=DECODER_LAYERS, n_head=HEADS, n_positions=POSITIONS,
            vocab_size=VOCABULARY, num_labels=labels, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            summary_first_dropout=0, pad_token_id=0
        )
    if architecture in DECODERS:
        stem, keys, _ = DECODERS[architecture]
        sizes["num_hidden_layers"] = layers
        return getattr(transformers, stem + "Config")(
            **{**sizes, **keys}, num_key_value_heads=1, rms_norm_eps=1e-5, pad_token_id=0,
            classifier_dropout=0
        )
    return transformers.GPT2Config(
        n_embd=WIDTH, n_layer=1, n_head=HEADS, n_inner=INNER, n_positions=POSITIONS,
        vocab_size=VOCABULARY, num_labels=labels, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        classifier_dropout=0, pad_token_id=0
    )


def is_decoder(architecture):
    return architecture == "gpt2" or architecture in DECODERS


def model_of(architecture, kind, labels, seed, layers=1):
    prefix = dict(
        bert="Bert", roberta="Roberta", gpt2="GPT2", distilbert="DistilBert", albert="Albert",
        modernbert="ModernBert",
        **{"megatron-bert": "MegatronBert"},
        **{name: row[0] for name, row in DECODERS.items()}
    )[architecture]
    name = dict(
        texts="ForSequenceClassification", numbers="ForSequenceClassification",
        tokens="ForTokenClassification", spans="ForQuestionAnswering", vectors="Model",
        choices="ForSequenceClassification" if is_decoder(architecture) else "ForMultipleChoice"
    )[kind]
    config = config_of(architecture, labels, layers)
    if kind == "numbers":
        config.problem_type = "regression"
    torch.manual_seed(seed)
    bare = dict(add_pooling_layer=False) if kind == "vectors" and architecture in (
        "bert", "roberta", "megatron-bert", "albert"
    ) else {}
    model = getattr(transformers, prefix + name)(config, **bare).double().train()
    if architecture == "modernbert":
        from reference_encoders import use_exact_attention
        use_exact_attention(model)
    with torch.no_grad():  # larger than usual, and rounded to float32
        for p in model.parameters():
            p.copy_((p + torch.randn_like(p) * (0.3 if p.dim() == 2 else 0.1)).float().double())
    return model


LORA = dict(
    bert="query, value, attention.output.dense, intermediate.dense, output.dense",
    roberta="query, value", gpt2="c_attn, c_fc, c_proj", albert="query, value, dense, ffn",
    llama="q_proj, v_proj, gate_proj, down_proj"
)


def with_adapters(model, architecture, seed):
    import peft
    heads = [
        m
        for m in ("pooler", "classifier", "score", "qa_outputs") if any(
            n.split(".")[-1] == m for n, _ in model.named_modules()
        )
    ]
    config = peft.LoraConfig(
        r=3, lora_alpha=5, use_rslora=architecture == "roberta", modules_to_save=heads or None,
        target_modules=LORA[architecture].split(", "), fan_in_fan_out=architecture == "gpt2"
    )
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double().train()
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_((p + torch.randn_like(p) * 0.3).float().double())
    return model


def get_bireme_name(name, prefix):
    """Bireme's name of a parameter of a peft model; None: the original head."""
    inner = name.removeprefix("base_model.model.")
    if "original_module" in name:
        return None
    if ".lora_" in inner:
        return "base_model.model." + prefix + inner.replace(".default", "")
    return prefix + inner.replace(".base_layer", "").replace(".modules_to_save.default", "")


def texts_of(kind, generator):
    """Ids of each text and the start of its second segment."""
    count = 2 * len(LENGTHS) if kind == "vectors" else 2 + 3 if kind == "choices" else len(LENGTHS)
    texts = []
    for i in range(count):
        length = LENGTHS[i % len(LENGTHS)] - (i >= len(LENGTHS))
        texts.append((torch.randint(2, VOCABULARY, (length,), generator=generator), length // 2))
    return texts


def segments_of(text):
    return (torch.arange(len(text[0])) >= text[1]).long()


def run_model(model, architecture, text, **more):
    has_types = architecture in ("bert", "megatron-bert", "albert")
    extra = dict(token_type_ids=segments_of(text)[None]) if has_types else {}
    return model(input_ids=text[0][None], **extra, **more)


def run_choices(model, architecture, texts, label):
    """Logits [choices] and loss of one question."""
    if is_decoder(architecture):
        logits = torch.cat([run_model(model, architecture, t).logits[0] for t in texts])
        return logits, torch.nn.functional.cross_entropy(logits[None], torch.tensor([label]))
    longest, pad = max(len(t[0]) for t in texts), model.config.pad_token_id
    ids = torch.full((1, len(texts), longest), pad)
    there, kinds = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, t in enumerate(texts):
        ids[0, i, :len(t[0])], there[0, i, :len(t[0])] = t[0], 1
        kinds[0, i, :len(t[0])] = segments_of(t) * (architecture in ("bert", "megatron-bert", "albert"))
    extra = dict(token_type_ids=kinds) if architecture not in ("distilbert", "modernbert") else {}
    out = model(input_ids=ids, attention_mask=there, labels=torch.tensor([label]), **extra)
    return out.logits[0], out.loss


def run_vectors(model, architecture, texts):
    """Normalized mean vectors of all texts, and the loss of pairs with in-batch negatives: the
    MultipleNegativesRankingLoss of sentence-transformers with scale 20."""
    rows = [run_model(model, architecture, t).last_hidden_state[0].mean(0) for t in texts]
    unit = torch.nn.functional.normalize(torch.stack(rows), dim=1)
    scores = 20 * unit[0::2] @ unit[1::2].T
    return list(unit), torch.nn.functional.cross_entropy(scores, torch.arange(len(texts) // 2))


def write_case(group, architecture, kind, seed, adapters=False, layers=1):
    labels = dict(texts=LABELS, tokens=LABELS, spans=2).get(kind, 1)
    model = model_of(architecture, kind, labels, seed, layers)
    if adapters:
        model = with_adapters(model, architecture, seed)
    generator = torch.Generator().manual_seed(seed)
    texts = texts_of(kind, generator)
    last = is_decoder(architecture)
    starts = np.cumsum([0] + [len(t[0]) for t in texts])
    rows, answers, outputs, losses, counts, per = [], [], [], [], [], [0]
    if kind == "vectors":
        outputs, loss = run_vectors(model, architecture, texts)
        losses, counts = [loss * (len(texts) // 2)], [len(texts) // 2]
        rows, per = range(starts[-1]), starts[0::2].tolist()
    elif kind == "choices":
        for first, end, label in ((0, 2, 1), (2, 5, 0)):
            logits, loss = run_choices(model, architecture, texts[first:end], label)
            outputs.append(logits[:, None])
            losses.append(loss), counts.append(1), answers.append(label), per.append(end)
            rows += [starts[i + 1] - 1 if last else starts[i] for i in range(first, end)]
    else:
        for i, t in enumerate(texts):
            here = dict(texts=[i % LABELS], numbers=[0.75 * i - 0.5], tokens=[i % LABELS, 2, 1],
                        spans=[i, len(t[0]) - 2])[kind]
            if kind == "tokens":
                picked = list(range(1, 1 + WORDS))
                given = torch.full((1, len(t[0])), -100)
                given[0, picked] = torch.tensor(here)
                out = run_model(model, architecture, t, labels=given)
                outputs.append(out.logits[0][picked])
            elif kind == "spans":
                picked = list(range(len(t[0])))
                out = run_model(
                    model, architecture, t, start_positions=torch.tensor(here[:1]),
                    end_positions=torch.tensor(here[1:])
                )
                outputs.append(torch.stack((out.start_logits[0], out.end_logits[0]), 1))
            else:
                picked = [len(t[0]) - 1 if last else 0]
                out = run_model(model, architecture, t, labels=torch.tensor(here))
                outputs.append(out.logits)
            count = WORDS if kind == "tokens" else 1
            losses.append(out.loss * count), counts.append(count)
            rows += [starts[i] + p for p in picked]
            answers += here
            per.append(len(rows))
    loss = sum(losses) / sum(counts)
    model.zero_grad()
    loss.backward()
    prefixes = dict(
        {name: "model." for name in DECODERS}, bert="bert.", roberta="roberta.",
        gpt2="transformer.", distilbert="distilbert.", albert="albert.", modernbert="model.",
        **{"openai-gpt": "transformer.", "megatron-bert": "bert."}
    )
    prefix = prefixes[architecture] if kind == "vectors" else ""
    named = {get_bireme_name(n, prefix): p for n, p in model.named_parameters()}
    named.pop(None, None)
    if architecture in DECODERS and kind == "spans":  # some of these classes have another prefix
        named = {n.replace("transformer.", "model.", 1): p for n, p in named.items()}
    # few attributes, because many would make the file large
    group.attrs.update(loss=loss.item(), count=float(sum(counts)))
    group.attrs["sizes"] = np.array(
        [
            layers, WIDTH, HEADS, 1 if architecture in DECODERS and "model." == prefixes[architecture] else HEADS,
            4 * WIDTH if architecture == "openai-gpt" else INNER, POSITIONS + 2 * (architecture == "roberta"), VOCABULARY, labels, max(LENGTHS)
        ], float
    )
    group.attrs["names"] = np.bytes_("\n".join(named) + "\n")
    group["values"] = np.stack(
        [
            np.concatenate([f(n, p).detach().numpy().ravel() for n, p in named.items()])
            for f in (
                # Gemma's norms multiply by 1 + weight
                lambda n, p: p + (architecture == "gemma3_text" and "norm" in n),
                lambda n, p: p.grad if p.requires_grad else torch.zeros_like(p)
            )
        ]
    ).astype(np.float32)
    group["outputs"] = torch.cat(
        [o.reshape(-1) for o in outputs]
    ).detach().numpy().astype(np.float32)
    group["ids"] = torch.cat([t[0] for t in texts]).numpy().astype(np.int32)
    group["segments"] = torch.cat([segments_of(t) for t in texts]).numpy().astype(np.int32)
    group["cu_rows"], group["rows"] = starts.astype(np.int32), np.array(list(rows), np.int32)
    group["example_rows"] = np.array(per, np.int32)
    if answers:
        group["answers"] = np.array(answers, np.float32)
    print(group.name, loss.item())


def write_lora_heads(path):
    cases = [
        ("bert", "texts"), ("roberta", "texts"), ("gpt2", "texts"), ("llama", "texts"),
        ("bert", "spans"), ("gpt2", "tokens"), ("bert", "choices"), ("bert", "vectors")
    ]
    with h5py.File(path, "w", libver="latest", meta_block_size=256) as f:
        for i, (architecture, kind) in enumerate(cases):
            write_case(f.create_group(f"{architecture}_{kind}"), architecture, kind, 70 + i, True)


def write_configs(path, cases):
    """config.json of each case as save_pretrained writes it, for test_huggingface_tasks.c."""
    configs = {}
    for architecture, kind in cases:
        labels = dict(texts=LABELS, tokens=LABELS, spans=2).get(kind, 1)
        model = model_of(architecture, kind, labels, 0, ENCODER_LAYERS.get(architecture, 1))
        if labels == LABELS:
            model.config.id2label = {0: "no", 1: 'it "is"', 2: "j\u00e4"}
            model.config.label2id = {name: i for i, name in model.config.id2label.items()}
        with tempfile.TemporaryDirectory() as folder:
            model.float().save_pretrained(folder)
            configs[f"{architecture}_{kind}"] = json.loads(
                (pathlib.Path(folder) / "config.json").read_text()
            )
    path.write_text(json.dumps(configs, separators=(",", ":")).replace('},"', '},\n"') + "\n")


def write_heads(path):
    cases = [
        (a, k) for k in ("texts", "numbers", "tokens", "spans", "choices", "vectors")
        for a in ("bert", "gpt2")
    ]
    cases += [("roberta", "texts"), ("roberta", "choices"), ("llama", "texts")]
    kinds = ("texts", "tokens", "spans", "choices", "vectors")
    cases += [(a, kind) for a in ("distilbert", "megatron-bert") for kind in kinds]
    more = [("albert", kind) for kind in kinds] + [("modernbert", k) for k in MODERNBERT_KINDS]
    write_configs(path.with_name("heads_config.json"), cases + more)
    with h5py.File(path, "w", libver="latest", meta_block_size=256) as f:
        for i, (architecture, kind) in enumerate(cases):
            write_case(f.create_group(f"{architecture}_{kind}"), architecture, kind, 40 + i)


def write_decoder_heads(path):
    with h5py.File(path, "w", libver="latest", meta_block_size=256) as f:
        for i, (architecture, (_, _, kinds)) in enumerate(DECODERS.items()):
            for j, kind in enumerate(kinds):
                write_case(
                    f.create_group(f"{architecture}_{kind}"), architecture, kind, 100 + 10 * i + j,
                    layers=DECODER_LAYERS
                )


def write_modernbert_heads(path):
    """A dense layer and a norm precede the matrix of every head, of texts at the first row."""
    with h5py.File(path, "w", libver="latest", meta_block_size=256) as f:
        for i, kind in enumerate(MODERNBERT_KINDS):
            write_case(
                f.create_group(f"modernbert_{kind}"), "modernbert", kind, 320 + i,
                layers=ENCODER_LAYERS["modernbert"]
            )


def write_shared_heads(path, adapters):
    """ALBERT: the layers share their parameters, also with adapters."""
    kinds = ("texts",) if adapters else ("texts", "tokens", "spans", "choices", "vectors")
    with h5py.File(path, "w", libver="latest", meta_block_size=256) as f:
        for i, kind in enumerate(kinds):
            write_case(
                f.create_group(f"albert_{kind}"), "albert", kind, 300 + i, adapters,
                layers=ENCODER_LAYERS["albert"]
            )
