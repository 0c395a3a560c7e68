#!/usr/bin/env python3
"""Makes the reference values of PyTorch in tests/reference. The tests need only the files.

    python3 scripts/reference/make_reference.py [NAME]     (default: gpt2)

All references need torch and h5py and are computed in double precision. `also` lists the other
packages that a reference needs.

name        files             also                contents
gpt2        gpt2_*.h5                             a tiny GPT-2 in plain torch (Radford et al. 2019):
                                                  logits, loss, gradients, ten steps of AdamW with
                                                  clipping; two activations and attention masks
lamb        gpt2_lamb.h5                          the same with LAMB
bert        bert*.h5,         transformers        the same of BertForPreTraining and
            roberta.h5                            RobertaForMaskedLM on padded batches
encoders    *.h5, pretrained/ transformers        families like BERT (reference_encoders.py)
llama       llama.h5          transformers        the same of LlamaForCausalLM
families    *.h5, pretrained/ transformers        families like Llama (reference_families.py)
seq2seq     marian*.h5,       transformers        encoder-decoders (reference_seq2seq.py)
            pretrained/
published   published.json    transformers        parameter counts of published models
heads       heads*.h5         transformers, peft  fine-tuning heads (reference_heads.py)
lora        *_lora.h5         transformers, peft  LoRA adapters (reference_adapters.py)
attention   attention.h5      transformers        attention weights (reference_attention.py)
beams       beams.h5          transformers        hypotheses of generate() and their scores
pretrained  pretrained/       transformers, peft  model folders as save_pretrained writes them, with
                                                  log-probabilities or logits of a text
dpo         dpo*.h5           trl, datasets       DPOTrainer on one batch of pairs: value, gradients
                                                  and metrics of every loss
reward      reward.h5         trl, datasets       RewardTrainer on pairs (reference_reward.py)
sft         sft/, sft_qwen3/  trl, datasets       rows, a tokenizer, tiny models, and the logs of
                                                  three steps of SFTTrainer (test_sft.sh)
"""
import importlib
import math
import pathlib
import sys

import h5py
import numpy as np
import torch

from reference_steps import (
    ADAMW, BATCH, CLIP, DECAY, LAYERS, POSITIONS, STEPS, TOKENS, VOCABULARY, WIDTH, add_noise,
    logits_of, tiny_llama, write_steps
)

HEADS, INNER = 3, 96


def make_weights(generator):
    """Random weights, larger than usual, so that every operation affects the result."""
    def normal(*shape, scale):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    w = {"transformer.wte.weight": normal(VOCABULARY, WIDTH, scale=0.3),
         "transformer.wpe.weight": normal(POSITIONS, WIDTH, scale=0.3)}
    for l in range(LAYERS):
        p = f"transformer.h.{l}."
        for norm in ("ln_1", "ln_2"):
            w[p + norm + ".weight"] = 1 + normal(WIDTH, scale=0.1)
            w[p + norm + ".bias"] = normal(WIDTH, scale=0.1)
        for name, rows, columns in (
            ("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, INNER), ("mlp.c_proj", INNER, WIDTH)
        ):
            w[p + name + ".weight"] = normal(rows, columns, scale=1.5 / math.sqrt(rows))
            w[p + name + ".bias"] = normal(columns, scale=0.1)
    w["transformer.ln_f.weight"] = 1 + normal(WIDTH, scale=0.1)
    w["transformer.ln_f.bias"] = normal(WIDTH, scale=0.1)
    # rounded to float32, so that both programs start with the same weights
    return {name: t.float().double().requires_grad_(True) for name, t in w.items()}


def apply_norm(x, w, name):
    return torch.nn.functional.layer_norm(x, (WIDTH,), w[name + ".weight"], w[name + ".bias"], 1e-5)


def apply_attention(x, w, prefix, mask):
    batch, tokens, _ = x.shape
    qkv = x @ w[prefix + "c_attn.weight"] + w[prefix + "c_attn.bias"]
    q, k, v = (t.view(batch, tokens, HEADS, -1).transpose(1, 2) for t in qkv.split(WIDTH, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
    o = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
    o = o.transpose(1, 2).reshape(batch, tokens, WIDTH)
    return o @ w[prefix + "c_proj.weight"] + w[prefix + "c_proj.bias"]


def run_gpt2(w, inputs, positions, mask, approximate):
    x = w["transformer.wte.weight"][inputs] + w["transformer.wpe.weight"][positions]
    for l in range(LAYERS):
        p = f"transformer.h.{l}."
        x = x + apply_attention(apply_norm(x, w, p + "ln_1"), w, p + "attn.", mask)
        h = apply_norm(x, w, p + "ln_2") @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"]
        h = torch.nn.functional.gelu(h, approximate=approximate)
        x = x + h @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    return apply_norm(x, w, "transformer.ln_f") @ w["transformer.wte.weight"].T


def write_llama(path):
    """LlamaForCausalLM in double precision."""
    torch.manual_seed(31)
    model, settings = tiny_llama()
    model = model.double()
    with torch.no_grad():
        for name, t in model.named_parameters():
            scale = 0.1 if t.dim() == 1 else 0.3 if "embed" in name else 1.5 / math.sqrt(t.shape[1])
            t.copy_(((1.0 if t.dim() == 1 else 0.0) + torch.randn_like(t) * scale).float().double())
    w = dict(model.named_parameters())
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1))
    write_steps(path, logits_of(model), settings, {}, w, tokens, optimizer_of(w))


class Lamb:
    """LAMB as in FusedLAMB of NVIDIA's apex: the bias-corrected update of Adam plus the decay.

    The update of a tensor with decay is multiplied by |weights| / |update|, or by 1 if either norm
    is 0."""

    def __init__(self, decayed, plain, lr, betas, eps):
        self.groups = [(t, DECAY) for t in decayed] + [(t, 0.0) for t in plain]
        self.lr, self.betas, self.eps, self.steps = lr, betas, eps, 0
        self.moments = [(np.zeros(t.shape), np.zeros(t.shape)) for t, _ in self.groups]

    def zero_grad(self):
        for t, _ in self.groups:
            t.grad = None

    def step(self):
        self.steps += 1
        b1, b2 = self.betas
        for (t, decay), (m, v) in zip(self.groups, self.moments):
            w, g = t.detach().numpy(), t.grad.numpy()
            m[...] = b1 * m + (1 - b1) * g
            v[...] = b2 * v + (1 - b2) * g * g
            u = m / (1 - b1 ** self.steps) / (
                np.sqrt(v / (1 - b2 ** self.steps)) + self.eps
            ) + decay * w
            weights, update = np.linalg.norm(w), np.linalg.norm(u)
            ratio = weights / update if decay > 0 and weights > 0 and update > 0 else 1.0
            w -= self.lr * ratio * u


def optimizer_of(weights, lamb=False):
    """AdamW or LAMB, with weight decay for matrices only."""
    decayed = [t for t in weights.values() if t.dim() == 2]
    plain = [t for t in weights.values() if t.dim() == 1]
    if lamb:
        return Lamb(decayed, plain, **ADAMW)
    return torch.optim.AdamW(
        [dict(params=decayed, weight_decay=DECAY), dict(params=plain, weight_decay=0.0)], **ADAMW
    )


def write_gpt2(path, approximate, documents, lamb=False):
    generator = torch.Generator().manual_seed(20 + documents)
    w = make_weights(generator)
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1), generator=generator)
    starts = [[0], [0, 5, 6], [0, 11]] if documents else [[0]] * BATCH
    document = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    positions = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    ignored = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    for b, row in enumerate(starts):
        for i, start in enumerate(row):
            document[b, start:] = i
            positions[b, start:] = torch.arange(TOKENS - start)
            if start > 0:
                ignored[b, start - 1] = True
    causal = torch.ones(TOKENS, TOKENS).tril().bool()
    mask = causal & (document[:, :, None] == document[:, None, :])
    settings = dict(
        heads=HEADS, inner=INNER, gelu_tanh=int(approximate == "tanh"),
        **({"lamb": 1.0} if lamb else {})
    )
    write_steps(
        path, lambda ids: run_gpt2(w, ids, positions, mask[:, None], approximate), settings, {}, w,
        tokens, optimizer_of(w, lamb),
        dict(
            positions=positions, ignored=ignored,
            starts=[b * TOKENS + s for b, row in enumerate(starts) for s in row]
        )
    )


def write_bert(path, roberta, activation, lamb):
    import transformers
    from reference_encoders import write_encoder_steps
    sizes = dict(
        num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS,
        intermediate_size=INNER, max_position_embeddings=POSITIONS, vocab_size=VOCABULARY,
        hidden_act=activation, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        layer_norm_eps=1e-12
    )
    torch.manual_seed(7 + roberta)
    if roberta:
        config = transformers.RobertaConfig(**sizes, type_vocab_size=1, pad_token_id=1)
        model = transformers.RobertaForMaskedLM(config)
    else:
        config = transformers.BertConfig(**sizes, type_vocab_size=2, pad_token_id=0)
        model = transformers.BertForPreTraining(config)
    inputs = ["input_ids", "attention_mask", "token_type_ids", "labels"]
    settings = dict(
        roberta=float(roberta), gelu_tanh=float(activation == "gelu_new"), lamb=float(lamb)
    )
    write_encoder_steps(
        path, model, config.type_vocab_size, config.pad_token_id,
        lambda w: optimizer_of(w, lamb), settings,
        inputs if roberta else inputs + ["next_sentence_label"]
    )


def write_beams(path):
    """All hypotheses of beam search for a few prompts, widths, length penalties and lengths."""
    import transformers
    torch.manual_seed(5)
    end, positions, longest = 256, 32, 12
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, n_inner=64, n_positions=positions, vocab_size=end + 1,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, initializer_range=0.4, bos_token_id=end,
        eos_token_id=end, pad_token_id=end
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        model.transformer.wte.weight[end] *= 9
        for p in model.parameters():
            p.copy_(p.float().double())
    prompts = torch.randint(0, end, (6, 5))
    cases = [
        (2, 1.0, longest), (3, 1.0, longest), (4, 0.0, 9), (4, 2.0, longest), (5, -1.0, 7),
        (4, 1.0, 1)
    ]
    width = max(c[0] for c in cases)
    ids = np.full((len(cases), len(prompts), width, longest), -1, np.int32)
    scores = np.zeros((len(cases), len(prompts), width))
    for i, (beams, penalty, new) in enumerate(cases):
        for j, prompt in enumerate(prompts):
            out = model.generate(
                prompt[None], attention_mask=torch.ones(1, len(prompt)), do_sample=False,
                num_beams=beams, num_return_sequences=beams, length_penalty=penalty,
                early_stopping=False, max_new_tokens=new, output_scores=True,
                return_dict_in_generate=True
            )
            for k, sequence in enumerate(out.sequences[:, len(prompt):].tolist()):
                if end in sequence:
                    sequence = sequence[:sequence.index(end) + 1]
                ids[i, j, k, :len(sequence)] = sequence
                scores[i, j, k] = out.sequences_scores[k]
    with h5py.File(path, "w") as f:
        f.attrs.update(
            layers=2.0, width=16.0, heads=2.0, inner=64.0, positions=float(positions),
            end=float(end)
        )
        for name, tensor in model.state_dict().items():
            if name != "lm_head.weight" and not name.endswith((".attn.bias", ".attn.masked_bias")):
                f["weights/" + name] = tensor.numpy().astype(np.float32)
        f["prompts"] = prompts.numpy().astype(np.int32)
        f["cases"] = np.array(cases)
        f["ids"] = ids
        f["scores"] = scores
    print(path, "ended", int((ids == end).sum()), "of", int((ids[..., 0] >= 0).sum()))


def write_pretrained(folder):
    """Folders of GPT-2: one F32 file, several F16 files of a model with an untied output matrix,
    and one BF16 file of GPT2Model."""
    import transformers
    sizes = dict(
        n_layer=2, n_embd=8, n_head=2, n_positions=12, vocab_size=19, initializer_range=0.5,
        bos_token_id=None, eos_token_id=None
    )
    cases = {"whole": (dict(resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.3), torch.float32, {}),
             "sharded": (dict(activation_function="gelu", n_inner=20, tie_word_embeddings=False,
                              layer_norm_epsilon=1e-3), torch.float16, dict(max_shard_size="2KB")),
             "bare": (dict(), torch.bfloat16, {})}
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "expected.h5", "w") as f:
        for seed, (name, (more, dtype, options)) in enumerate(cases.items()):
            torch.manual_seed(seed)
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **more))
            add_noise(model, 0.1)
            model = model.to(dtype)
            (model.transformer if name == "bare" else model).save_pretrained(
                folder / name, **options
            )
            ids = torch.randint(0, sizes["vocab_size"], (1, sizes["n_positions"]))
            with torch.no_grad():
                logits = model.double().eval()(ids).logits[0]
            f[name + "/ids"] = ids[0].numpy().astype(np.int32)
            f[name + "/log_probabilities"] = logits.log_softmax(-1).numpy()
    print(folder)


def write_model_folders(folder):
    """Folders of encoders and Llamas that save_pretrained writes, with logits of padded batches."""
    import transformers as t
    sizes = dict(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=12,
        initializer_range=0.5
    )
    bert = dict(sizes, vocab_size=19, max_position_embeddings=12)
    llama = dict(
        sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=19,
        max_position_embeddings=12
    )
    # one head of width 8, for scaled rotary position embeddings
    scaled = dict(llama, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    small = dict(max_shard_size="3KB")
    cases = {
        "bert": (
            t.BertForPreTraining, t.BertConfig(**bert, hidden_dropout_prob=0.2), None,
            torch.float32, {}
        ),
        "bert_untied": (
            t.BertForMaskedLM,
            t.BertConfig(
                **bert, hidden_act="gelu_new", layer_norm_eps=1e-3, tie_word_embeddings=False
            ), None, torch.float16, small
        ),
        "bert_bare": (t.BertForPreTraining, t.BertConfig(**bert), "bert", torch.float32, {}),
        "roberta": (
            t.RobertaForMaskedLM,
            t.RobertaConfig(**dict(bert, max_position_embeddings=14), type_vocab_size=1), None,
            torch.float32, {}
        ),
        "llama": (
            t.LlamaForCausalLM,
            t.LlamaConfig(
                **llama, rms_norm_eps=1e-5,
                rope_parameters=dict(rope_type="default", rope_theta=500.0)
            ), None, torch.float32, small
        ),
        "llama_tied": (
            t.LlamaForCausalLM, t.LlamaConfig(**llama, tie_word_embeddings=True), None,
            torch.bfloat16, {}
        ),
        "llama3": (
            t.LlamaForCausalLM,
            t.LlamaConfig(
                **scaled,
                rope_parameters=dict(
                    rope_type="llama3", rope_theta=5000.0, factor=8.0, low_freq_factor=1.0,
                    high_freq_factor=4.0, original_max_position_embeddings=100
                )
            ), None, torch.float32, {}
        ),
        "llama_linear": (
            t.LlamaForCausalLM,
            t.LlamaConfig(
                **scaled, rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=3.0)
            ), None, torch.float32, {}
        ),
    }
    with h5py.File(folder / "folders.h5", "w") as f:
        for seed, (name, (kind, config, inside, dtype, options)) in enumerate(cases.items()):
            torch.manual_seed(seed + 40)
            model = kind(config)
            add_noise(model, 0.1)
            model = model.to(dtype)
            (getattr(model, inside) if inside else model).save_pretrained(folder / name, **options)
            (folder / name / "generation_config.json").unlink(missing_ok=True)
            lengths = [10, 7, 3]
            ids = torch.randint(5, 19, (len(lengths), max(lengths)))
            there = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
            ids[~there] = config.pad_token_id or 0
            more = {}
            if name.startswith("bert"):
                more["token_type_ids"] = (torch.arange(max(lengths))[None, :] >= 2).long() * there
            with torch.no_grad():
                out = model.double().eval()(ids, attention_mask=there.long(), **more)
                hidden = model.base_model(
                    ids, attention_mask=there.long(), **more
                ).last_hidden_state
            logits = getattr(out, "prediction_logits", None)
            f[name + "/lengths"] = np.array(lengths, np.int32)
            f[name + "/ids"] = ids[there].numpy().astype(np.int32)
            f[name + "/hidden"] = hidden[there].numpy()
            f[name + "/logits"] = (out.logits if logits is None else logits)[there].numpy()
            if hasattr(out, "seq_relationship_logits"):
                f[name + "/labels"] = out.seq_relationship_logits.numpy()
    print(folder)


def dpo_cases():
    """Cases: loss types, loss weights, beta, label_smoothing, discopop_tau."""
    single = {
        "sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down",
        "sft", "sigmoid_norm"
    }
    cases = [([name], [1.0], 0.1, 0.0, 0.05) for name in sorted(single)]
    cases += [
        ([name], [1.0], 0.3, 0.1, 0.05) for name in ("exo_pair", "robust", "aot", "aot_unpaired")
    ]
    cases += [
        (["discopop"], [1.0], 0.2, 0.0, 0.5), (["hinge"], [1.0], 2.0, 0.0, 0.05),
        (["aot"], [2.0], 0.1, 0.0, 0.05),
        (["sigmoid", "bco_pair", "sft"], [0.8, 0.2, 1.0], 0.1, 0.0, 0.05)
    ]
    return cases


def make_dpo_model(architecture):
    import transformers
    tokens = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    if architecture == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_layer=2, n_embd=8, n_head=2, n_inner=32, n_positions=24, vocab_size=37,
                resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, initializer_range=0.3, **tokens
            )
        )
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            num_hidden_layers=2, hidden_size=8, num_attention_heads=2, num_key_value_heads=1,
            head_dim=6, intermediate_size=32, max_position_embeddings=24, vocab_size=37,
            rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.3, **tokens
        )
    )


def write_dpo(path, architecture, seed):
    """Losses, gradients and metrics of TRL's DPOTrainer for one batch of eight pairs."""
    import datasets
    import tempfile
    import transformers
    import trl
    torch.manual_seed(seed)
    models = [make_dpo_model(architecture).double() for _ in range(2)]
    with torch.no_grad():
        for p in models[0].parameters():
            p.add_(torch.randn_like(p) * 0.1)
            p.copy_(p.float().double())
        for p, q in zip(models[0].parameters(), models[1].parameters()):
            q.copy_(p + torch.randn_like(p) * 0.1)
    lengths = [
        (3, 5, 2), (1, 1, 4), (7, 3, 3), (2, 9, 6), (4, 2, 8), (5, 6, 1), (6, 4, 4), (3, 7, 5)
    ]
    rows = [
        dict(
            zip(
                ("prompt_ids", "chosen_ids", "rejected_ids"),
                (torch.randint(1, 37, (n,)).tolist() for n in each)
            )
        ) for each in lengths
    ]
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(root / "tests/reference/tokenizer/gpt2/tokenizer.json"),
        eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    with tempfile.TemporaryDirectory() as folder:
        config = trl.DPOConfig(
            output_dir=folder, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=len(rows), max_length=None
        )
        trainer = trl.DPOTrainer(
            model=models[0], ref_model=models[1], args=config, processing_class=tokenizer,
            train_dataset=datasets.Dataset.from_list([dict(prompt="a", chosen="b", rejected="c")])
        )
    batch = trainer.data_collator(rows)
    with h5py.File(path, "w") as f:
        f.attrs.update(
            layers=2.0, width=8.0, heads=2.0, inner=32.0, positions=24.0, vocabulary=37.0,
            pairs=len(rows)
        )
        f["lengths"] = np.array(lengths, np.int32)
        f["ids"] = np.array(
            sum((r["prompt_ids"] + r["chosen_ids"] + r["rejected_ids"] for r in rows), []), np.int32
        )
        for name, tensor in models[0].state_dict().items():
            if name != "lm_head.weight" and not name.endswith((".attn.bias", ".attn.masked_bias")):
                f["weights/" + name] = tensor.numpy().astype(np.float32)
        f["reference"] = torch.stack(
            trainer.compute_ref_log_probs(trainer.ref_model, batch), 1
        ).numpy()
        for i, (names, weights, beta, smoothing, tau) in enumerate(dpo_cases()):
            trainer.loss_types, trainer.loss_weights = names, weights
            trainer.beta, trainer.label_smoothing, trainer.args.discopop_tau = beta, smoothing, tau
            trainer._metrics["train"].clear()
            models[0].zero_grad()
            loss = trainer._compute_loss(models[0].train(), batch, False)
            loss.backward()
            group = f.create_group(f"case_{i}")
            group.attrs.update(
                beta=beta, label_smoothing=smoothing, discopop_tau=tau, loss=loss.item(),
                terms=float(len(names))
            )
            group["losses"] = np.array([" ".join(names)], dtype="S64")
            group["loss_weights"] = np.array(weights)
            for name, p in models[0].named_parameters():
                group["gradients/" + name] = p.grad.numpy().astype(np.float32)
            for name, values in trainer._metrics["train"].items():
                if name != "num_tokens":
                    group.attrs[name.replace("/", ".")] = values[0]
            print(names, loss.item())
        f.attrs["cases"] = float(len(dpo_cases()))
        f.attrs["num_tokens"] = float(batch["attention_mask"].sum())
    print(path)


def write_gpt2_files(folder):
    write_gpt2(folder / "gpt2_tanh.h5", "tanh", False)
    write_gpt2(folder / "gpt2_erf_documents.h5", "none", True)


def write_encoders(folder):
    write_bert(folder / "bert.h5", False, "gelu", False)
    write_bert(folder / "bert_lamb.h5", False, "gelu_new", True)
    write_bert(folder / "roberta.h5", True, "gelu", False)


def write_task_heads(folder):
    from reference_heads import (
        write_decoder_heads, write_heads, write_lora_heads, write_modernbert_heads,
        write_shared_heads
    )
    write_heads(folder / "heads.h5")
    write_lora_heads(folder / "heads_lora.h5")
    write_decoder_heads(folder / "heads_decoders.h5")
    write_modernbert_heads(folder / "heads_modernbert.h5")
    write_shared_heads(folder / "heads_albert.h5", False)
    write_shared_heads(folder / "heads_albert_lora.h5", True)


def write_folders(folder):
    from reference_adapters import write_adapter_folders
    write_pretrained(folder / "pretrained")
    write_model_folders(folder / "pretrained")
    write_adapter_folders(folder / "pretrained")


def write_preferences(folder):
    write_dpo(folder / "dpo.h5", "gpt2", 11)
    write_dpo(folder / "dpo_qwen3.h5", "qwen3", 12)


def write_rewards(folder):
    from reference_reward import write_reward
    write_reward(folder / "reward.h5")


def import_maker(module, name):
    """Imports the module only if its reference is made, because it can need other packages."""
    return lambda folder: getattr(importlib.import_module(module), name)(folder)


MAKERS = {
    "gpt2": write_gpt2_files,
    "lamb": lambda folder: write_gpt2(folder / "gpt2_lamb.h5", "tanh", False, lamb=True),
    "bert": write_encoders,
    "encoders": import_maker("reference_encoders", "write_families"),
    "llama": lambda folder: write_llama(folder / "llama.h5"),
    "families": import_maker("reference_families", "write_families"),
    "seq2seq": import_maker("reference_seq2seq", "write_seq2seq"),
    "published": import_maker("reference_published", "write_published"),
    "heads": write_task_heads,
    "lora": import_maker("reference_adapters", "write_adapters"),
    "attention": import_maker("reference_attention", "write_attention"),
    "beams": lambda folder: write_beams(folder / "beams.h5"),
    "pretrained": write_folders,
    "dpo": write_preferences,
    "reward": write_rewards,
    "sft": import_maker("reference_sft", "write_sft"),
}


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "gpt2"
    if name not in MAKERS or len(sys.argv) > 2:
        sys.exit(f"usage: make_reference.py {'|'.join(MAKERS)}")
    MAKERS[name](pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "reference")


if __name__ == "__main__":
    main()
