#!/usr/bin/env python3
"""Trains the model of a Bireme translation run again in PyTorch and compares the translations.

    VENV/bin/python scripts/bench/bench_translation.py --run RUN --source FILE --references FILE
        --output FOLDER [--bireme build/trainer/bireme] [--seed N] [--threads N] [--steps N]

RUN is the folder of a run with `architecture: marian` and `objective: seq2seq`, for example that of
recipes/translate_manual.yaml. VENV has torch, transformers, h5py and pyyaml.

PyTorch trains a MarianMTModel from the configuration that `bireme export RUN` writes, from random
weights. Shards, batch size, number of steps, label smoothing, dropout, AdamW, clipping and schedule
are those of RUN. The order of the pairs and the random numbers differ. A batch is computed in
parts of similar lengths, so that it has little padding; this does not change its gradient.

`bireme import` reads the trained weights, and `bireme translate` translates SOURCE with them and
with RUN: beam search with 4 beams. The ids of the first 32 translations are compared with those of
generate() in transformers. `bireme evaluate` computes BLEU and chrF. The program prints one JSON
object.

With --steps N, PyTorch stops after N steps of the schedule. Compare it with the checkpoint of RUN at
this step. Every 250 steps the weights are saved. --trained FOLDER scores such weights without
training.
"""

import argparse
import glob
import json
import math
import os
import pathlib
import resource
import shutil
import subprocess
import sys

BEAMS, NEW_TOKENS, COMPARED, PARTS, SAVED_STEPS = 4, 128, 32, 4, 250


def run_bireme(options, *arguments):
    done = subprocess.run(
        [options.bireme, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        check=False
    )
    if done.returncode != 0:
        sys.exit(f"bireme {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


# ---- training ----


def read_pairs(pattern):
    """The ids of sources and targets of a shard set."""
    import h5py
    pairs = []
    for path in sorted(glob.glob(pattern)):
        with h5py.File(path) as f:
            tokens, starts, sources = f["tokens"][:], f["documents"][:], f["source"][:]
        for i, source in enumerate(sources):
            begin, end = int(starts[i]), int(starts[i + 1])
            middle = begin + int(source)
            pairs.append((tokens[begin:middle].tolist(), tokens[middle:end].tolist()))
    if not pairs:
        sys.exit(f"{pattern}: no pairs")
    return pairs


def learning_rate(recipe, step, steps):
    """The schedule `cosine` of trainer/optimizer/schedule.h."""
    settings, most = recipe["schedule"], recipe["optimizer"]["learning_rate"]
    warmup, least = settings["warmup_steps"] or 0, settings["min_ratio"]
    if step < warmup:
        return most * (step + 1) / warmup
    progress = (step - warmup) / (steps - warmup)
    return most * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress)))


def compute_loss(torch, model, pairs, start, smoothing):
    """The sum of the losses of all target tokens of the pairs."""
    longest_source = max(len(source) for source, _ in pairs)
    longest_target = max(len(target) for _, target in pairs)
    source = torch.full((len(pairs), longest_source), start)
    mask = torch.zeros(len(pairs), longest_source, dtype=torch.long)
    inputs = torch.full((len(pairs), longest_target), start)
    labels = torch.full((len(pairs), longest_target), -100)
    for i, (a, b) in enumerate(pairs):
        source[i, :len(a)], mask[i, :len(a)] = torch.tensor(a), 1
        inputs[i, 1:len(b)], labels[i, :len(b)] = torch.tensor(b[:-1]), torch.tensor(b)
    logits = model(
        input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False
    ).logits
    return torch.nn.functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), labels.view(-1), label_smoothing=smoothing,
        reduction="sum"
    )


def make_model(transformers, folder):
    model = transformers.MarianMTModel(transformers.MarianConfig.from_pretrained(folder))
    for part in model.model.encoder, model.model.decoder:
        part.embed_tokens.padding_idx = None  # the start token, which Bireme trains like any other
    return model


def make_optimizer(torch, model, recipe):
    settings = recipe["optimizer"]
    weights = [p for p in model.parameters() if p.requires_grad]
    groups = [
        dict(params=[p for p in weights if p.dim() == 2], weight_decay=settings["weight_decay"]),
        dict(params=[p for p in weights if p.dim() != 2], weight_decay=0.0),
    ]
    return torch.optim.AdamW(
        groups, lr=settings["learning_rate"], betas=(settings["beta1"], settings["beta2"]),
        eps=settings["epsilon"], fused=True
    ), weights


def train(torch, model, recipe, options, save):
    """Train the model for the steps of the run. Returns the loss of each step."""
    import random
    pairs, size = read_pairs(recipe["data"]["train"]), recipe["batch"]["global_size"]
    smoothing = recipe["train"]["label_smoothing_factor"]
    start = model.config.decoder_start_token_id
    optimizer, weights = make_optimizer(torch, model, recipe)
    steps, losses, order = recipe["train"]["max_steps"], [], []
    model.train()
    for step in range(min(options.steps or steps, steps)):
        while len(order) < size:
            order += random.sample(range(len(pairs)), len(pairs))
        batch = sorted((pairs[i] for i in order[:size]), key=lambda pair: len(pair[1]))
        del order[:size]
        tokens, loss = sum(len(target) for _, target in batch), 0.0
        for part in range(PARTS):
            rows = batch[part * size // PARTS:(part + 1) * size // PARTS]
            part_loss = compute_loss(torch, model, rows, start, smoothing) / tokens
            part_loss.backward()
            loss += part_loss.item()
        torch.nn.utils.clip_grad_norm_(weights, recipe["optimizer"]["max_grad_norm"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {sum(losses[-50:]) / 50:.4f} "
                  f"cpu {cpu_seconds():.0f} s", file=sys.stderr, flush=True)
        if (step + 1) % SAVED_STEPS == 0:
            save(step + 1)
    return losses


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def validation_loss(torch, model, pattern, start):
    """The loss per target token, without label smoothing."""
    pairs = sorted(read_pairs(pattern), key=lambda pair: len(pair[1]))
    model.eval()
    with torch.no_grad():
        total = sum(
            compute_loss(torch, model, pairs[i:i + 64], start, 0.0).item()
            for i in range(0, len(pairs), 64)
        )
    return total / sum(len(target) for _, target in pairs)


# ---- translations ----


def translate(options, checkpoint, output):
    lines = run_bireme(
        options, "translate", "--checkpoint", str(checkpoint), "--num-beams", str(BEAMS),
        "--truncate", "--json", options.source
    ).splitlines()
    rows = [json.loads(line) for line in lines]
    output.write_text("".join(row["text"] + "\n" for row in rows), encoding="utf-8")
    return rows


def score(options, predictions):
    text = run_bireme(
        options, "evaluate", "--predictions", str(predictions), "--references", options.references,
        "--metrics", "bleu,chrf", "--json"
    )
    return json.loads(text)


def count_equal(torch, model, rows, tokenizer_folder, options):
    """The number of translations with the ids that generate() gives."""
    sources = [
        [int(i) for i in line.split()]
        for line in run_bireme(
            options, "tokenizer", "encode", "--tokenizer", str(tokenizer_folder), options.source
        ).splitlines()[:len(rows)]
    ]
    config, equal = model.config, 0
    model.generation_config.forced_eos_token_id = None  # a default of MarianConfig
    for ids, row in zip(sources, rows):
        with torch.no_grad():
            out = model.generate(
                torch.tensor([ids + [config.eos_token_id]]), num_beams=BEAMS,
                max_new_tokens=NEW_TOKENS, do_sample=False, early_stopping=False
            )[0].tolist()[1:]
        end = out.index(config.eos_token_id) if config.eos_token_id in out else len(out)
        equal += out[:end] == [i for i in row["ids"] if i != config.eos_token_id]
    return equal


# ---- the program ----


def save_model(model, exported, folder):
    """Save a folder that `bireme import` reads, with the tokenizer of the exported model."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(exported / name, folder / name)


def train_model(options, torch, transformers, recipe, exported):
    """Train a model and save it. Returns its folder and facts about the training."""
    import random
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    prefix = f"torch-{options.seed}"
    model = make_model(transformers, exported)
    losses = train(
        torch, model, recipe, options,
        lambda step: save_model(model, exported, options.output / f"{prefix}-step-{step}")
    )
    folder = options.output / prefix
    save_model(model, exported, folder)
    return folder, {
        "seed": options.seed, "steps": len(losses), "train_cpu_seconds": cpu_seconds(),
        "train_loss": sum(losses[-50:]) / len(losses[-50:])
    }


def run_torch(options, recipe):
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    exported = options.output / "exported"
    if not exported.exists():
        run_bireme(options, "export", "--checkpoint", options.run, "--output", str(exported))
    folder, facts = options.trained, {}
    if folder is None:
        folder, facts = train_model(options, torch, transformers, recipe, exported)
    model = make_model(transformers, exported)
    model.load_state_dict(
        transformers.MarianMTModel.from_pretrained(folder).state_dict(), strict=True
    )
    start, checkpoint = model.config.decoder_start_token_id, folder.with_suffix(".bireme")
    shutil.rmtree(checkpoint, ignore_errors=True)
    run_bireme(options, "import", str(folder), "--output", str(checkpoint))
    predictions = folder.with_suffix(".txt")
    rows = translate(options, checkpoint, predictions)
    loss = validation_loss(torch, model, recipe["data"]["validation"], start)
    return {
        **facts, "torch": torch.__version__, "transformers": transformers.__version__,
        "validation_loss": loss, "scores": score(options, predictions),
        "compared": min(COMPARED, len(rows)),
        "equal_ids": count_equal(torch, model, rows[:COMPARED], exported, options)
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="the folder of a run")
    parser.add_argument("--source", required=True, help="sentences to translate, one per line")
    parser.add_argument("--references", required=True, help="their correct translations")
    parser.add_argument(
        "--output", required=True, type=pathlib.Path, help="folder of models and translations"
    )
    parser.add_argument("--bireme", default="build/trainer/bireme")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop PyTorch after this step")
    parser.add_argument("--trained", type=pathlib.Path, help="folder with weights to score")
    options = parser.parse_args()
    import yaml
    recipe = yaml.safe_load((pathlib.Path(options.run) / "recipe.yaml").read_text("utf-8"))
    if recipe["model"]["architecture"] != "marian" or recipe["schedule"]["name"] != "cosine":
        sys.exit(f"{options.run}: marian with the schedule cosine is required")
    os.makedirs(options.output, exist_ok=True)
    predictions = options.output / "bireme.txt"
    result = {"torch": run_torch(options, recipe)}
    translate(options, options.run, predictions)
    result["bireme"] = {"scores": score(options, predictions)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
