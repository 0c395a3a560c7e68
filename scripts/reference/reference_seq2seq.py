"""Writes the references of encoder-decoder models, for make_reference.py. Each family has two files:
training steps, which transformers computes on padded batches, and generated tokens.
"""
import contextlib
import json

import h5py
import numpy as np
import torch

from reference_dropout import Scheme, StackedScheme
from reference_steps import (
    ADAMW, CLIP, DECAY, LAYERS, POSITIONS, STEPS, VOCABULARY, WIDTH, save_adapter_folder
)

SOURCES, TARGETS = [13, 5, 9], [7, 11, 1]  # lengths of the pairs of a batch
START = VOCABULARY - 1                     # the token before each target, also used as padding
INNER = 40
DROPOUT, ACTIVATION_DROPOUT = 0.1, 0.2
BUCKETS, MAX_DISTANCE = 8, 9                # of T5's relative position bias
SOURCE_VOCABULARY = 97                     # of models with two vocabularies
SEPARATE = dict(
    share_encoder_decoder_embeddings=False, vocab_size=SOURCE_VOCABULARY,
    decoder_vocab_size=VOCABULARY
)
ONE_LAYER = dict(encoder_layers=1, decoder_layers=1)


def make_marian(**settings):
    """A MarianMTModel with sinusoidal positions in float64."""
    import transformers
    sizes = dict(encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER,
                 vocab_size=VOCABULARY)
    config = transformers.MarianConfig(
        d_model=WIDTH, max_position_embeddings=POSITIONS, dropout=0.0,
        activation_function="relu", scale_embedding=True, pad_token_id=START,
        decoder_start_token_id=START, eos_token_id=0, attn_implementation="eager",
        **dict(sizes, **settings)
    )
    model = transformers.MarianMTModel(config).double().eval()
    i = torch.arange(WIDTH // 2, dtype=torch.float64)
    angle = torch.arange(POSITIONS, dtype=torch.float64)[:, None] / 10000 ** (2 * i / WIDTH)
    table = torch.cat((angle.sin(), angle.cos()), dim=1)
    for part in model.model.encoder, model.model.decoder:
        part.embed_tokens.padding_idx = None # the start token, which Bireme trains like any other
        part.embed_positions.weight = torch.nn.Parameter(table, requires_grad=False)
    return model


def make_stacked(name, scale_embedding, **settings):
    """A NAMEForConditionalGeneration in float64. Its table of positions begins with row 2."""
    import transformers
    sizes = dict(encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER)
    config = getattr(transformers, name + "Config")(
        d_model=WIDTH, vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, dropout=0.0,
        activation_function="gelu", scale_embedding=scale_embedding, pad_token_id=START,
        decoder_start_token_id=START, bos_token_id=1, eos_token_id=0, forced_eos_token_id=None,
        attn_implementation="eager", **dict(sizes, **settings)
    )
    model = getattr(transformers, name + "ForConditionalGeneration")(config).double().eval()
    for part in model.model.encoder, model.model.decoder:
        part.embed_tokens.padding_idx = None # the start token, which Bireme trains like any other
    return model


def make_bart(**settings):
    return make_stacked("Bart", scale_embedding=False, **settings)


def make_mbart():
    """Unlike BART: norms before the sub-layers, a final norm, and scaled token embeddings."""
    return make_stacked("MBart", scale_embedding=True)


def make_t5(**settings):
    """A T5ForConditionalGeneration in float64. Its distances reach the last bucket."""
    import transformers
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=12, d_ff=INNER, num_layers=LAYERS, num_decoder_layers=LAYERS,
        num_heads=4, relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=MAX_DISTANCE, dropout_rate=0.0, vocab_size=VOCABULARY,
        pad_token_id=START, decoder_start_token_id=START, eos_token_id=0,
        attn_implementation="eager", **settings
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    if not config.scale_decoder_outputs: # T5 1.1
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def pad(rows, value):
    out = torch.full((len(rows), max(len(row) for row in rows)), value)
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out


def draw_rows(lengths, vocabulary=VOCABULARY):
    return [torch.randint(0, vocabulary - 1, (length,)) for length in lengths]


def run_model(model, sources, targets):
    """Returns the logits at all target tokens without padding, and these tokens."""
    source, labels = pad(sources, START), pad(targets, -100)
    start = torch.full((len(targets), 1), START)
    inputs = torch.cat((start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, START)), dim=1)
    mask = pad([torch.ones_like(row) for row in sources], 0)
    logits = model(
        input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False
    ).logits
    kept = labels != -100
    return logits[kept], labels[kept]


def add_adapters(model, targets):
    """The model with LoRA adapters of peft, the settings of the test, and a function that gives the
    names of the state dict. The other weights are frozen."""
    import peft
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=targets.split(", "), task_type="SEQ_2_SEQ_LM"
    )
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double()
    return model, dict(adapter_rank=3, adapter_alpha=5)


def name_of(name):
    """The name of a parameter without the parts that peft adds, except of an adapter."""
    if "lora_" in name:
        return name.replace(".default", "")
    return name.removeprefix("base_model.model.").replace(".base_layer", "")


def write_steps(path, model, settings, targets=None, scheme=None):
    frozen_tables = {n for n, t in model.named_parameters() if not t.requires_grad}
    if targets:
        model, more = add_adapters(model, targets)
        settings = dict(settings, **more)
    everything = {
        name_of(n): t for n, t in model.named_parameters() if name_of(n) not in frozen_tables
    }
    w = {n: t for n, t in everything.items() if t.requires_grad}
    with torch.no_grad():
        for name, t in everything.items():
            is_norm = "norm" in name and name.endswith(".weight")
            is_table = "shared" in name or "embed_" in name
            scale = 0.1 if t.dim() == 1 or is_table else 0.7 / t.shape[1] ** 0.5
            t.copy_((float(is_norm) + torch.randn_like(t) * scale).float().double())
    optimizer = torch.optim.AdamW(
        [dict(params=[t for t in w.values() if t.dim() == 2], weight_decay=DECAY),
         dict(params=[t for t in w.values() if t.dim() != 2], weight_decay=0.0)], **ADAMW
    )
    with h5py.File(path, "w") as f:
        f.attrs.update(
            settings, layers=2 * LAYERS, encoder_layers=LAYERS, width=WIDTH, heads=4, inner=INNER,
            gelu_tanh=0, positions=POSITIONS, vocabulary=VOCABULARY, batch=len(SOURCES),
            tokens=max(SOURCES + TARGETS), steps=STEPS, start=START, learning_rate=ADAMW["lr"],
            beta1=ADAMW["betas"][0], beta2=ADAMW["betas"][1], epsilon=ADAMW["eps"],
            weight_decay=DECAY, max_grad_norm=CLIP
        )
        f["source_lengths"] = np.array(SOURCES, np.int32)
        f["target_lengths"] = np.array(TARGETS, np.int32)
        for name, t in everything.items():
            f["weights/" + name] = t.detach().numpy().astype(np.float32)
        losses, norms, all_sources, all_targets = [], [], [], []
        for step in range(STEPS):
            if scheme is not None:
                scheme.step = step
            sources = draw_rows(SOURCES, settings.get("source_vocabulary", VOCABULARY))
            targets = draw_rows(TARGETS)
            all_sources.append(torch.cat(sources).numpy())
            all_targets.append(torch.cat(targets).numpy())
            with scheme.apply() if scheme is not None else contextlib.nullcontext():
                logits, labels = run_model(model, sources, targets)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                f["logits"] = logits.detach().numpy().astype(np.float32)
                f.attrs["smoothed_loss"] = torch.nn.functional.cross_entropy(
                    logits, labels, label_smoothing=0.1
                ).item()
                for name, t in w.items():
                    f["gradients/" + name] = t.grad.numpy().astype(np.float32)
            norms.append(torch.nn.utils.clip_grad_norm_(w.values(), CLIP).item())
            losses.append(loss.item())
            optimizer.step()
        f["sources"] = np.array(all_sources, np.int32)
        f["targets"] = np.array(all_targets, np.int32)
        f["losses"], f["norms"] = np.array(losses), np.array(norms)
        for name, t in w.items():
            f["trained/" + name] = t.detach().numpy().astype(np.float32)
    print(path, "losses", " ".join(f"{x:.6f}" for x in losses))


def write_folder(folder, file, name, model):
    """A folder of save_pretrained, and logits of its model."""
    with torch.no_grad():
        for t in model.parameters():
            if t.requires_grad:
                t.copy_(t.float() + torch.randn(t.shape) * 0.1)
        if name == "bart_untied":
            for part in model.model.encoder, model.model.decoder:
                part.embed_tokens.weight.copy_(model.model.shared.weight)
    model.float().save_pretrained(folder / name)
    (folder / name / "generation_config.json").unlink(missing_ok=True)
    write_logits(file, name, model)


def write_logits(file, name, model):
    sources, targets = draw_rows(SOURCES, model.config.vocab_size), draw_rows(TARGETS)
    with torch.no_grad():
        logits, _ = run_model(model.double(), sources, targets)
    start = torch.tensor([START])
    for key, rows in dict(
        source=sources, target=[torch.cat((start, row[:-1])) for row in targets]
    ).items():
        file[f"{name}/{key}_lengths"] = np.array([len(row) for row in rows], np.int32)
        file[f"{name}/{key}_ids"] = torch.cat(rows).numpy().astype(np.int32)
    file[f"{name}/logits"] = logits.numpy()


def write_tied_logits(folder, file):
    """Logits of T5 1.1 with the token table in place of its output matrix."""
    import transformers
    torch.manual_seed(137)
    model = transformers.T5ForConditionalGeneration.from_pretrained(
        folder / "t5_gated", attn_implementation="eager"
    ).eval()
    model.lm_head.weight = model.shared.weight
    write_logits(file, "t5_gated_tied", model)


def write_adapter_folders(folder):
    """Folders that peft saves for models of write_folders, and their logits."""
    import peft
    import transformers
    with h5py.File(folder / "seq2seq_lora.h5", "w") as f:
        for seed, (name, base, kind, settings) in enumerate((
            ("t5_lora", "t5_gated", "T5ForConditionalGeneration",
             dict(target_modules="all-linear", use_rslora=True)),
            ("bart_lora", "bart", "BartForConditionalGeneration", {}),
            ("marian_lora", "marian", "MarianMTModel",
             dict(target_modules=["encoder_attn.q_proj", "encoder_attn.v_proj", "fc1"])),
        )):
            torch.manual_seed(140 + seed)
            model = getattr(transformers, kind).from_pretrained(folder / base)
            config = peft.LoraConfig(r=2, lora_alpha=5, task_type="SEQ_2_SEQ_LM", **settings)
            model = save_adapter_folder(model, config, folder, name, 0.1)
            write_logits(f, name, model.eval())
    print(folder / "seq2seq_lora.h5")


def make_biased_marian(**settings):
    model = make_marian(**settings)
    model.final_logits_bias = torch.randn_like(model.final_logits_bias)
    return model


def write_folders(folder):
    with h5py.File(folder / "seq2seq.h5", "w") as f:
        for seed, (name, make, settings) in enumerate((
            ("t5", make_t5, dict(feed_forward_proj="relu")),
            ("t5_gated", make_t5, dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
            ("bart", make_bart, {}),
            ("marian", make_biased_marian, {}),
            ("mbart", make_mbart, {}),
            ("marian_separate", make_biased_marian, dict(SEPARATE, **ONE_LAYER)),
            ("bart_untied", make_bart, dict(tie_word_embeddings=False, **ONE_LAYER)),
        )):
            torch.manual_seed(130 + seed)
            write_folder(folder, f, name, make(**settings))
        write_tied_logits(folder, f)
    print(folder / "seq2seq.h5")


# Settings of generate(): num_beams, length_penalty, max_new_tokens and others.
GENERATE_SETTINGS = [
    "num_beams", "length_penalty", "max_new_tokens", "min_new_tokens", "no_repeat_ngram_size",
    "repetition_penalty", "forced_bos_token_id", "forced_eos_token_id", "bad_word", "early_stopping"
]
GENERATE_CASES = [
    (1, 1, 12, 0, 0, 1, -1, -1, -1, 0), (1, 1, 15, 4, 2, 1, -1, -1, START, 0),
    (1, 1, 6, 0, 0, 1.3, 7, 0, -1, 0), (3, 1, 2, 0, 0, 1, -1, -1, -1, 0),
    (2, 1, 12, 0, 0, 1, -1, -1, START, 0),
    (4, 0.6, 15, 5, 3, 1, -1, 0, START, 0), (4, 2, 9, 0, 2, 1.2, 9, -1, 11, 0),
    (5, -1, 8, 0, 0, 1, -1, -1, -1, 1), (6, 1, 15, 0, 1, 1, -1, -1, START, 1)
]


def generate_case(model, sources, case):
    """The ids of all hypotheses of a batch of sources, without the start token."""
    values = dict(zip(GENERATE_SETTINGS, case))
    word, beams = values.pop("bad_word"), values["num_beams"]
    values["early_stopping"] = bool(values["early_stopping"])
    values = {k: v for k, v in values.items() if v != -1 or k == "length_penalty"}
    if beams == 1:
        del values["length_penalty"], values["early_stopping"]
    out = model.generate(
        pad(sources, START), attention_mask=pad([torch.ones_like(row) for row in sources], 0),
        do_sample=False, num_return_sequences=beams, bad_words_ids=[[word]] if word >= 0 else None,
        **values
    )
    return out[:, 1:].reshape(len(sources), beams, -1)


def write_generation(path, model, end):
    with torch.no_grad():
        for name, t in model.named_parameters():
            scale = 0.1 if t.dim() == 1 else 1.5 if "shared" in name else 1.2 / t.shape[1] ** 0.5
            if t.requires_grad:
                t.copy_((float("norm.weight" in name) + torch.randn_like(t) * scale).float())
        model.generation_config.forced_eos_token_id = None # a default of MarianConfig
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias).float())
        model.final_logits_bias[0, end] += 6
    sources = draw_rows([13, 5, 9, 1, 16])
    width = max(case[0] for case in GENERATE_CASES)
    longest = max(case[2] for case in GENERATE_CASES)
    ids = np.full((len(GENERATE_CASES), len(sources), width, longest), -1, np.int32)
    for i, case in enumerate(GENERATE_CASES):
        out = generate_case(model, sources, case)
        for j in range(len(sources)):
            for k in range(case[0]):
                row = out[j, k].tolist()
                row = row[:row.index(end) + 1] if end in row else row
                ids[i, j, k, :len(row)] = row
    with h5py.File(path, "w") as f:
        f.attrs.update(
            layers=2 * LAYERS, encoder_layers=LAYERS, width=WIDTH, heads=4, inner=INNER,
            positions=POSITIONS, vocabulary=VOCABULARY, start=START, end=end
        )
        f["source_lengths"] = np.array([len(row) for row in sources], np.int32)
        f["sources"] = torch.cat(sources).numpy().astype(np.int32)
        f["cases"], f["ids"] = np.array(GENERATE_CASES, np.float64), ids
        for name, t in model.named_parameters():
            if t.requires_grad:
                f["weights/" + name] = t.detach().numpy().astype(np.float32)
        f["weights/final_logits_bias"] = model.final_logits_bias[0].numpy().astype(np.float32)
    lengths = (ids >= 0).sum(axis=3)
    print(path, "ended", int((ids == end).sum()), "of", int((lengths > 0).sum()), "lengths",
          np.bincount(lengths[lengths > 0]))


# generation_config.json of each model in generation.json. END: the end token of the model; COMMON: a
# token that greedy decoding often generates.
END, COMMON = "end", "common"
FIRST = 9 # a forced first token
FOLDER_CASES = [
    dict(max_length=13),
    dict(max_length=16, min_length=6, no_repeat_ngram_size=2, repetition_penalty=1.3),
    dict(max_length=12, num_beams=4),
    dict(max_length=3, num_beams=2),
    dict(max_length=16, num_beams=4, length_penalty=2.0, min_length=7, no_repeat_ngram_size=3,
         early_stopping=True),
    dict(max_length=14, num_beams=6, length_penalty=0.6, forced_eos_token_id=END),
    dict(max_length=10, num_beams=5, length_penalty=-1.0, forced_bos_token_id=FIRST),
    dict(max_new_tokens=9, min_new_tokens=4, num_beams=3, no_repeat_ngram_size=1,
         bad_words_ids=[[COMMON], [5, 6]], early_stopping=True),
    dict(max_length=12, num_beams=4, length_penalty=0.0, repetition_penalty=1.4,
         early_stopping=True),
]


def fill_case(case, end, common):
    names = {END: end, COMMON: common}
    if isinstance(case, dict):
        return {key: fill_case(value, end, common) for key, value in case.items()}
    if isinstance(case, list):
        return [fill_case(value, end, common) for value in case]
    return names.get(case, case) if isinstance(case, str) else case


def generate_ids(model, sources, settings):
    """The generation_config.json of these settings, and the ids of all hypotheses without the start
    token."""
    import transformers
    config = transformers.GenerationConfig(
        decoder_start_token_id=START, pad_token_id=START, do_sample=False, **settings
    )
    beams = config.num_beams or 1
    text = config.to_json_string(ignore_metadata=True)
    config.num_return_sequences = beams
    out = model.generate(
        pad(sources, START), attention_mask=pad([torch.ones_like(row) for row in sources], 0),
        generation_config=config
    )
    return json.loads(text), out[:, 1:].reshape(len(sources), beams, -1).tolist()


def cut_row(row, end):
    """The ids up to the end token. Padding follows only the end token."""
    return row[:row.index(end) + 1] if end in row else row


def choose_tokens(model, sources):
    """An end token that ends many sequences after some tokens, and another frequent token."""
    _, rows = generate_ids(model, sources, dict(max_new_tokens=14, eos_token_id=None))
    late = [i for (row,) in rows for i in sorted(set(row))
            if i not in (START, FIRST) and row.index(i) > 2]
    end = max(late, key=late.count)
    others = [i for (row,) in rows for i in row if i not in (end, START)]
    return end, max(others, key=others.count)


def write_generation_folder(folder, name, model):
    with torch.no_grad():
        for n, t in model.named_parameters():
            is_table = "shared" in n or "positions" in n
            scale = 0.1 if t.dim() == 1 else 1.5 if is_table else 1.2 / t.shape[1] ** 0.5
            if t.requires_grad:
                t.copy_((float("norm" in n and n.endswith("weight")) + torch.randn_like(t) * scale)
                        .float())
            if name == "mbart" and ("layernorm_embedding" in n or "shared" in n):
                t.copy_((t * 0.3).float()) # else it repeats its input
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias).float())
    model.generation_config.forced_eos_token_id = None # a default of MarianConfig
    sources = draw_rows([13, 5, 9, 1, 16])
    end, common = choose_tokens(model, sources)
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    cases = []
    for case in FOLDER_CASES:
        config, ids = generate_ids(
            model, sources, dict(fill_case(case, end, common), eos_token_id=end)
        )
        rows = [[cut_row(row, end) for row in rows] for rows in ids]
        cases.append(dict(config=config, ids=rows))
    model.float().save_pretrained(folder / f"generate_{name}")
    (folder / f"generate_{name}" / "generation_config.json").unlink()
    return dict(end=end, sources=[row.tolist() for row in sources], cases=cases)


def write_generation_folders(folder):
    """Folders of save_pretrained, and the ids of generate() with generation_config.json."""
    models = {}
    for seed, (name, make, settings) in enumerate((
        ("t5", make_t5, dict(feed_forward_proj="relu")),
        ("t5_gated", make_t5, dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
        ("bart", make_bart, {}),
        ("mbart", make_mbart, {}),
        ("marian", make_biased_marian, {}),
    )):
        torch.manual_seed(150 + seed)
        models[name] = write_generation_folder(folder, name, make(**settings))
        rows = [row for case in models[name]["cases"] for rows in case["ids"] for row in rows]
        print(name, "end", models[name]["end"], "ended",
              sum(row[-1:] == [models[name]["end"]] for row in rows), "of", len(rows), "different",
              len({tuple(row) for row in rows}), "lengths", np.bincount([len(row) for row in rows]))
    with open(folder / "generation.json", "w") as f:
        json.dump(models, f, separators=(",", ":"))
        f.write("\n")
    print(folder / "generation.json")


def make_language_tokenizer(kind, corpus):
    """A MBartTokenizer or MBart50Tokenizer of transformers with pieces of a corpus."""
    import importlib
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    name = kind.removesuffix("Tokenizer").lower()
    module = importlib.import_module(f"transformers.models.{name}.tokenization_{name}")
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    t.train_from_iterator(corpus.splitlines(), trainers.UnigramTrainer(
        vocab_size=200, special_tokens=specials, unk_token="<unk>", show_progress=False))
    pieces = [tuple(pair) for pair in json.loads(t.to_str())["model"]["vocab"]]
    codes = [(code, 0.0) for code in module.FAIRSEQ_LANGUAGE_CODES]
    return getattr(module, kind)(vocab=pieces + codes + [("<mask>", 0.0)])


def write_languages(folder):
    """Tokenizers with language tokens, and the ids of sources and targets."""
    corpus = (folder / "corpus.txt").read_text()
    texts = corpus.splitlines()[:12] + [
        "a", "two  spaces ", " leading", "1 caf\u00e9 \u4f60\u597d"
    ]
    expected = {}
    for kind in "MBartTokenizer", "MBart50Tokenizer":
        t = make_language_tokenizer(kind, corpus)
        name = kind.removesuffix("Tokenizer").lower()
        (folder / name).mkdir(exist_ok=True)
        t.backend_tokenizer.save(str(folder / name / "tokenizer.json"))
        rows = []
        for source, target in ("en_XX", "es_XX"), ("fr_XX", "en_XX"):
            t.src_lang, t.tgt_lang = source, target
            for text in filter(None, texts):
                rows.append(dict(
                    text=text, source_lang=source, target_lang=target,
                    source=t(text).input_ids, target=t(text_target=text).input_ids))
        expected[name] = rows
    with open(folder / "expected_languages.json", "w") as f:
        json.dump(expected, f, separators=(",", ":"))
        f.write("\n")
    print(folder / "expected_languages.json")


SPANISH = """la lista de los archivos del sistema
el usuario imprime el nombre de cada archivo
los barcos y los remos del r\u00edo
dos bancos en la orilla, \u00bfcu\u00e1l es el m\u00e1s largo?
el programa no puede abrir la lista
escribe el n\u00famero de la l\u00ednea y el nombre
una se\u00f1al que termina el programa
"""


def train_marian_models(folder, corpus):
    """source.spm (Unigram) and target.spm (BPE) of two small corpora, and vocab.json with the pieces
    of both."""
    import io
    import sentencepiece
    pieces = []
    for name, text, kind in ("source", corpus, "unigram"), ("target", SPANISH, "bpe"):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.splitlines()), model_writer=out, model_type=kind,
            vocab_size=280 if kind == "unigram" else 90, character_coverage=1.0, bos_id=-1,
            eos_id=1, unk_id=0, hard_vocab_limit=False, minloglevel=2, num_threads=1,
            normalization_rule_name="nmt_nfkc" if kind == "unigram" else "identity")
        (folder / f"{name}.spm").write_bytes(out.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        pieces += [model.id_to_piece(i) for i in range(2, model.get_piece_size())]
    # some pieces are missing, so that they are unknown
    kept = [piece for i, piece in enumerate(dict.fromkeys(pieces)) if i % 17 != 5]
    tokens = ["</s>", "<unk>"] + kept + [">>es<<", ">>fr<<", "<pad>"]
    with open(folder / "vocab.json", "w") as f:
        json.dump({token: i for i, token in enumerate(tokens)}, f, indent=2, ensure_ascii=False)
        f.write("\n")


def write_marian_tokenizer(folder):
    """The files of a MarianTokenizer, the ids of sources and targets, and decoded texts."""
    import transformers
    corpus = (folder / "corpus.txt").read_text()
    (folder / "marian").mkdir(exist_ok=True)
    train_marian_models(folder / "marian", corpus)
    t = transformers.MarianTokenizer(
        *(str(folder / "marian" / n) for n in ("source.spm", "target.spm", "vocab.json")))
    texts = list(filter(None, corpus.splitlines()[:12] + SPANISH.splitlines())) + [
        "a", " two  spaces ", "caf\u00e9 \u00f1and\u00fa", "\u4f60\u597d the \u4e16 list", "<<>>",
        ">>es<< the list", ">>es<<the list", ">>xx<< the list", ">>es the list", "the >>es<< list",
        ">><<", ">><", ">>", ">><< the list", ">>><< the list", ">>es<< the << list",
        ">>es<<>>fr<< the list", " >>es<< the list", ">>a list<< the list", ">>es<<",
        "\uff21\uff22 \ufb01 \u2460", "tab\tand\u00a0space", "\u2581 \u2581a", "\u00f1\u00f1\u00f1 \u00bf"
    ]
    write_marian_rows(folder / "expected_marian.json", t, texts)
    write_separate_vocabularies(folder, texts)


def write_marian_rows(path, t, texts):
    rows = []
    for text in texts:
        source, target = t(text).input_ids, t(text_target=text).input_ids
        decoded = [t.decode(target, skip_special_tokens=True)]
        if not t.separate_vocabs: # transformers decodes targets only
            decoded.insert(0, t.decode(source, skip_special_tokens=True))
        rows.append(dict(text=text, source=source, target=target, decoded=decoded))
    with open(path, "w") as f:
        json.dump(rows, f, separators=(",", ":"))
        f.write("\n")
    unknown = sum(t.unk_token_id in row[side] for row in rows for side in ("source", "target"))
    print(path, "unknown", unknown, "of", 2 * len(rows))


def write_separate_vocabularies(folder, texts):
    """The vocabularies of sources and targets, in files next to the models of the folder marian."""
    import sentencepiece
    import shutil
    import transformers
    out = folder / "marian_separate"
    out.mkdir(exist_ok=True)
    for side, name in ("source", "vocab.json"), ("target", "target_vocab.json"):
        model = sentencepiece.SentencePieceProcessor(str(folder / "marian" / f"{side}.spm"))
        pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        specials = ["</s>", "<unk>"]
        tokens = specials + [p for p in pieces if p not in specials + ["<s>"]] + ["<pad>"]
        if side == "source":
            tokens.insert(2, ">>es<<")
        with open(out / name, "w") as f:
            json.dump({token: i for i, token in enumerate(tokens)}, f, ensure_ascii=False, indent=0)
        shutil.copy(folder / "marian" / f"{side}.spm", out)
    with open(out / "tokenizer_config.json", "w") as f:
        json.dump(dict(separate_vocabs=True, tokenizer_class="MarianTokenizer"), f)
    t = transformers.MarianTokenizer.from_pretrained(out)
    write_marian_rows(folder / "expected_marian_separate.json", t, texts)


BYT5_TEXTS = [
    "a", " two  spaces ", "caf\u00e9 \u00f1and\u00fa", "\u4f60\u597d the \U0001f600 list",
    "tab\tand\u00a0space\n", "a <extra_id_0> b<extra_id_124>", "<extra_id_125> <extra_id_1", "a </s> b",
    "</s>  </s>", " <pad> x", "x<unk>y <unk>  z", "<s> a", "\x7f\x01", "\u2028</s>\u3000b",
    "<extra_id_10><extra_id_1>", "x <new> y", "x<b>y"
]


def write_byt5_tokenizer(folder):
    """Write forms of the tokenizer_config.json of ByT5, with ids and texts of transformers."""
    import pathlib
    import tempfile
    import transformers
    texts = list(filter(None, (folder / "corpus.txt").read_text().splitlines()[:12])) + BYT5_TEXTS
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=True, __type="AddedToken")
    published = {f"{name}_token": dict(flags, content=f"<{text}>") for name, text in (
        ("eos", "/s"), ("unk", "unk"), ("pad", "pad"))}
    published.update(extra_ids=125, additional_special_tokens=[f"<extra_id_{i}>" for i in range(125)])
    expected = {}
    for name, settings, added in (
        ("bare", {}, []), ("published", published, []), ("few", dict(extra_ids=3), []),
        ("saved", {}, ["<new>", transformers.AddedToken("<b>", special=True)])
    ):
        with tempfile.TemporaryDirectory() as made:
            path = pathlib.Path(made) / "tokenizer_config.json"
            path.write_text(json.dumps(dict(settings, tokenizer_class="ByT5Tokenizer")))
            t = transformers.AutoTokenizer.from_pretrained(made)
            if added:
                t.add_tokens(added)
                t.save_pretrained(made)
                t = transformers.AutoTokenizer.from_pretrained(made)
            config = json.dumps(json.loads(path.read_text()), separators=(",", ":"))
        rows = []
        for text in texts:
            ids = t.convert_tokens_to_ids(t.tokenize(text))
            row = dict(text=text, ids=ids, all=t.decode(ids),
                       decoded=t.decode(ids, skip_special_tokens=True))
            if "<new>" not in text: # else transformers splits a token that is not special
                plain = t.tokenize(text, split_special_tokens=True)
                row["source"] = t.convert_tokens_to_ids(plain) + [t.eos_token_id]
            rows.append(row)
        expected[name] = dict(config=config, vocabulary=len(t), rows=rows)
    with open(folder / "expected_byt5.json", "w") as f:
        json.dump(expected, f, separators=(",", ":"))
        f.write("\n")
    print(folder / "expected_byt5.json")


def write_dropout(folder, settings):
    """Write steps of BART, mBART and T5 with the dropout masks of Bireme."""
    for name, seed, make, scaled in ("bart", 134, make_bart, 0), ("mbart", 132, make_mbart, 1):
        torch.manual_seed(seed)
        model = make()
        scheme = StackedScheme(model, DROPOUT, ACTIVATION_DROPOUT, SOURCES, TARGETS)
        write_steps(folder / f"{name}_dropout.h5", model, dict(
            gelu=1, scale_embedding=scaled, dropout=DROPOUT, activation_dropout=ACTIVATION_DROPOUT
        ), scheme=scheme)
    for name, seed, more, model_settings in (
        ("t5_dropout", 129, dict(scale_outputs=1), dict(feed_forward_proj="relu")),
        ("t5_gated_dropout", 130, dict(gated=1, tied=0),
         dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    ):
        torch.manual_seed(seed)
        model = make_t5(**model_settings)
        scheme = Scheme(model, DROPOUT, SOURCES, TARGETS)
        write_steps(folder / f"{name}.h5", model, dict(settings, **more, dropout=DROPOUT),
                    scheme=scheme)


def write_seq2seq(folder):
    torch.manual_seed(120)
    write_steps(folder / "marian.h5", make_marian(), dict(scale_embedding=1))
    torch.manual_seed(129)
    write_steps(folder / "marian_separate.h5", make_marian(**SEPARATE),
                dict(scale_embedding=1, separate=1, source_vocabulary=SOURCE_VOCABULARY))
    torch.manual_seed(123)
    write_steps(folder / "bart.h5", make_bart(), dict(gelu=1))
    torch.manual_seed(127)
    write_steps(folder / "mbart.h5", make_mbart(), dict(gelu=1, scale_embedding=1))
    t5 = dict(head_width=12, buckets=BUCKETS, max_distance=MAX_DISTANCE, norm_epsilon=1e-6)
    torch.manual_seed(121)
    model = make_t5(feed_forward_proj="relu")
    write_steps(folder / "t5.h5", model, dict(t5, scale_outputs=1))
    torch.manual_seed(122)
    model = make_t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    write_steps(folder / "t5_gated.h5", model, dict(t5, gated=1, tied=0))
    write_dropout(folder, t5)
    torch.manual_seed(124)
    write_steps(
        folder / "marian_lora.h5", make_marian(), dict(scale_embedding=1),
        "q_proj, k_proj, v_proj, out_proj, fc1, fc2"
    )
    torch.manual_seed(125)
    model = make_t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    write_steps(folder / "t5_gated_lora.h5", model, dict(t5, gated=1, tied=0), "q, v, wi_0, wo")
    torch.manual_seed(126)
    write_steps(
        folder / "bart_lora.h5", make_bart(), dict(gelu=1), "encoder_attn.q_proj, encoder_attn.v_proj"
    )
    torch.manual_seed(128)
    write_steps(
        folder / "mbart_lora.h5", make_mbart(), dict(gelu=1, scale_embedding=1),
        "q_proj, encoder_attn.k_proj, fc2"
    )
    write_folders(folder / "pretrained")
    write_adapter_folders(folder / "pretrained")
    torch.manual_seed(121)
    write_generation(folder / "marian_generation.h5", make_marian(), end=0)
    write_generation_folders(folder / "pretrained")
    write_languages(folder / "tokenizer")
    write_marian_tokenizer(folder / "tokenizer")
    write_byt5_tokenizer(folder / "tokenizer")
