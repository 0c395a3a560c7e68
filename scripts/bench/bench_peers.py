#!/usr/bin/env python3
"""Compares one training step of Bireme with the same step in PyTorch, on the CPU of this machine.

    scripts/bench/bench_peers.py --python VENV/bin/python [--bireme build/trainer/bireme]
                                 [--llm-c FOLDER] [--output FILE.json]

VENV is a virtual environment with torch from pip; this program needs only the standard library.
FOLDER is a checkout of llm.c. Its train_gpt2.c is compiled with the flags of its Makefile and runs
in the case gpt2-124m fp32.
PyTorch runs as its users tune it: eager mode, scaled_dot_product_attention, fused AdamW, tcmalloc
preloaded (Debian: libtcmalloc-minimal4 or libtcmalloc-minimal4t64), and in bf16 the faster of
autocast and bf16 weights. A step is forward, backward and AdamW on one fixed batch, with random
weights, without dropout and clipping.

Each measurement is a separate process, and the programs alternate. Compare only the ratios of
one run with those of another machine. Prints a table and writes JSON with --output.
"""

import argparse
import ctypes.util
import datetime
import glob
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

SHAPES = {
    "gpt2-124m": {
        "layers": 12, "heads": 12, "width": 768, "vocabulary": 50257, "padded": 50304,
        "tokens": 256, "batch": 4, "warmup": 2, "steps": 4,
    },
    "char": {
        "layers": 4, "heads": 4, "width": 128, "vocabulary": 65, "padded": 65,
        "tokens": 64, "batch": 12, "warmup": 20, "steps": 100,
    },
    # pairs of 64 source and 64 target tokens; recipes/transformer_base_wmt.yaml
    "transformer-base": {
        "layers": 6, "heads": 8, "width": 512, "inner": 2048, "vocabulary": 37000,
        "padded": 37000, "tokens": 64, "batch": 16, "warmup": 2, "steps": 4,
    },
}
CASES = {
    "gpt2-124m fp32": ("gpt2-124m", "fp32", ["fp32"]),
    "gpt2-124m bf16": ("gpt2-124m", "bf16", ["autocast", "bf16"]),
    "char fp32": ("char", "fp32", ["fp32"]),
    "transformer-base fp32": ("transformer-base", "fp32", ["fp32"]),
}
LLM_C_CASE = "gpt2-124m fp32"


# ---- PyTorch, inside the virtual environment ----


def make_gpt(torch, shape):
    """GPT-2 with tied embeddings, as in nanoGPT; the padded vocabulary is a multiple of 64."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads, tokens = shape["width"], shape["heads"], shape["tokens"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                part.view(b, t, heads, c // heads).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).split(c, dim=2)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(shape["padded"], width)
            self.positions = nn.Embedding(tokens, width)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, shape["padded"], bias=False)
            self.head.weight = self.words.weight
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids, targets):
            x = self.words(ids) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(
                logits.view(-1, logits.shape[-1]).float(), targets.view(-1)
            )

    return Gpt()


def make_transformer(torch, shape):
    """nn.Transformer with one table for sources, targets and the output, and fixed positions."""
    nn, functional = torch.nn, torch.nn.functional
    width, tokens = shape["width"], shape["tokens"]

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(shape["padded"], width)
            self.register_buffer("positions", torch.randn(tokens, width))
            self.layers = nn.Transformer(
                width, shape["heads"], shape["layers"], shape["layers"], shape["inner"],
                dropout=0.0, activation="relu", batch_first=True
            )
            self.layers.encoder.norm = self.layers.decoder.norm = None
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))
            nn.init.normal_(self.words.weight, std=0.02)

        def embed(self, ids):
            return self.words(ids) * width**0.5 + self.positions

        def forward(self, ids, targets):
            sources, ids = ids
            x = self.layers(self.embed(sources), self.embed(ids), tgt_mask=self.mask,
                            tgt_is_causal=True)
            logits = x @ self.words.weight.T
            return functional.cross_entropy(
                logits.view(-1, logits.shape[-1]).float(), targets.view(-1)
            )

    return Transformer()


def torch_worker(shape_name, mode, threads):
    """Time the steps of one case and print one JSON object."""
    import contextlib

    import torch

    shape = SHAPES[shape_name]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    pairs = shape_name == "transformer-base"
    model = make_transformer(torch, shape) if pairs else make_gpt(torch, shape)
    if mode == "bf16":
        model = model.to(torch.bfloat16)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-4, betas=(0.9, 0.95), fused=True,
    )
    ids = torch.randint(0, shape["vocabulary"], (shape["batch"], shape["tokens"] + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if pairs:
        inputs = torch.randint_like(inputs, shape["vocabulary"]), inputs

    def step():
        cast = contextlib.nullcontext()
        if mode == "autocast":
            cast = torch.autocast("cpu", dtype=torch.bfloat16)
        with cast:
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(shape["warmup"]):
        loss = step()
    seconds = []
    for _ in range(shape["steps"]):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    if not float(loss.detach()) < 20.0:  # fails for NaN too
        sys.exit(f"invalid measurement: the loss is {float(loss.detach())}")
    step_seconds = statistics.median(seconds)
    print(json.dumps({
        "tokens_per_second": (2 if pairs else 1) * shape["batch"] * shape["tokens"] / step_seconds,
        "step_seconds": step_seconds,
        "loss": float(loss.detach()),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }))


# ---- llm.c ----

# The main program that is compiled with train_gpt2.c: random weights and tokens, then timed steps.
# Arguments: checkpoint to write, layers, heads, width, vocabulary, padded, tokens, batch, warmup,
# steps.
LLM_C_MAIN = """
#define TESTING
#include "train_gpt2.c"
#include <stdint.h>

static int random_id(unsigned *state, int n)
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((uint64_t)*state * (unsigned)n >> 32);
}

int main(int argc, char **argv)
{
    int n[11], header[256] = {20240326, 3};
    for (int i = 2; i < argc && i < 11; i++) {
        n[i] = atoi(argv[i]);
    }
    int layers = n[2], heads = n[3], width = n[4], words = n[5], padded = n[6], T = n[7], B = n[8];
    int values[] = {T, words, layers, heads, width, padded};
    memcpy(header + 2, values, sizeof values);
    size_t count = (size_t)width * (padded + T + 2) +
                   (size_t)layers * (12 * (size_t)width * width + 13 * (size_t)width);
    FILE *file = fopen(argv[1], "wb");
    fwrite(header, sizeof header, 1, file);
    unsigned state = 1;
    for (size_t i = 0; i < count; i++) {
        float x = (random_id(&state, 2001) - 1000) * 3.5e-5f;
        fwrite(&x, sizeof x, 1, file);
    }
    fclose(file);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    int *ids = malloc(sizeof(int) * (B * T + 1));
    for (int i = 0; i <= B * T; i++) {
        ids[i] = random_id(&state, words);
    }
    for (int step = 0; step < n[9] + n[10]; step++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        gpt2_forward(&model, ids, ids + 1, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, step + 1);
        clock_gettime(CLOCK_MONOTONIC, &b);
        fprintf(stderr, "%g %g\\n", b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) * 1e-9,
                model.mean_loss);
    }
}
"""


def build_llm_c(folder, target):
    """Compile train_gpt2.c of llm.c with the flags of its Makefile for a CPU with OpenMP."""
    source = target / "bench.c"
    source.write_text(LLM_C_MAIN, encoding="utf-8")
    subprocess.run(
        ["cc", "-Ofast", "-march=native", "-w", "-fopenmp", "-DOMP",
         f"-I{folder}", str(source), "-lm", "-o", str(target / "bench")],
        check=True,
    )


def run_llm_c(options, shape_name, target):
    shape = SHAPES[shape_name]
    keys = ("layers", "heads", "width", "vocabulary", "padded", "tokens", "batch", "warmup")
    steps = 2  # a step takes half a minute
    command = [str(target / "bench"), str(target / "model.bin"), *(str(shape[k]) for k in keys)]
    command[-1] = "1"
    done = run_program(
        [*command, str(steps)], dict(os.environ, OMP_NUM_THREADS=str(options.threads)),
        options.threads
    )
    lines = [line.split() for line in done.stderr.splitlines()[1:]]
    seconds = statistics.median(float(line[0]) for line in lines)
    loss = float(lines[-1][1])
    if len(lines) != steps or not loss < 20.0:  # fails for NaN too
        sys.exit(f"invalid measurement of llm.c: {done.stderr}")
    return {"tokens_per_second": shape["batch"] * shape["tokens"] / seconds,
            "step_seconds": seconds, "loss": loss}


# ---- runs of the programs ----


def find_tcmalloc():
    """Path of tcmalloc, or None. It has a large effect on the speed of PyTorch."""
    name = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    for folder in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"):
        for path in sorted(glob.glob(f"{folder}/{name}")) if name else []:
            return path
    return None


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def run_program(command, environment, threads):
    """Run a program on the first `threads` cores of this process."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        timeout=900, check=False, preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def run_json(command, environment, threads):
    return json.loads(run_program(command, environment, threads).stdout)


def run_torch(options, shape_name, mode, tcmalloc):
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    if tcmalloc:
        environment["LD_PRELOAD"] = tcmalloc
    command = [
        options.python, os.path.abspath(__file__), "--worker", shape_name, mode,
        str(options.threads)
    ]
    return run_json(command, environment, options.threads)


def run_bireme(options, shape_name, precision):
    shape = SHAPES[shape_name]
    command = [options.bireme, "bench", "step", "--json"]
    if shape_name == "char":
        command += [
            f"model.num_layers={shape['layers']}", f"model.num_heads={shape['heads']}",
            f"model.hidden_size={shape['width']}", f"model.intermediate_size={4 * shape['width']}",
            f"model.vocab_size={shape['vocabulary']}",
            f"model.max_position_embeddings={shape['tokens']}"
        ]
    if shape_name == "transformer-base":
        command += [
            "recipes/transformer_base_wmt.yaml", "model.dropout=0", "train.label_smoothing_factor=0"
        ]
    command += [
        f"data.sequence_length={shape['tokens']}", f"batch.micro_size={shape['batch']}",
        f"batch.global_size={shape['batch']}", f"parallel.threads={options.threads}",
        f"train.precision={precision}",
    ]
    return run_json(command, dict(os.environ), options.threads)


def median_speed(runs):
    return statistics.median(run["tokens_per_second"] for run in runs) if runs else None


def compare_case(options, case, tcmalloc, llm_c):
    """Run all rounds of one case, alternating between the programs. llm_c: its folder, or None."""
    shape_name, precision, modes = CASES[case]
    torch_runs, bireme_runs, llm_c_runs = {mode: [] for mode in modes}, [], []
    for number in range(options.rounds):
        for mode in modes:
            torch_runs[mode].append(run_torch(options, shape_name, mode, tcmalloc))
        if options.bireme:
            bireme_runs.append(run_bireme(options, shape_name, precision))
        if llm_c and case == LLM_C_CASE:
            llm_c_runs.append(run_llm_c(options, shape_name, llm_c))
        print(f"{case}: round {number + 1} of {options.rounds}", file=sys.stderr)
    best = max(modes, key=lambda mode: median_speed(torch_runs[mode]))
    result = {
        "case": case, "precision": precision, "torch_mode": best,
        "torch_tokens_per_second": median_speed(torch_runs[best]),
        "torch_runs": torch_runs, "bireme_runs": bireme_runs, "llm_c_runs": llm_c_runs,
        "llm_c_tokens_per_second": median_speed(llm_c_runs),
    }
    if bireme_runs:
        result["bireme_tokens_per_second"] = median_speed(bireme_runs)
        result["ratio"] = statistics.median(
            ours["tokens_per_second"] / theirs["tokens_per_second"]
            for ours, theirs in zip(bireme_runs, torch_runs[best])
        )
        result["roofline_share"] = statistics.median(
            run["tokens_per_second"] / run["roofline_tokens_per_second"] for run in bireme_runs
        )
    return result


def environment_of(options, tcmalloc):
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=False
    ).stdout.strip()
    version = None
    if options.bireme:
        version = subprocess.run([options.bireme, "--version"], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout.strip()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(), "threads": options.threads, "kernel": platform.release(),
        "commit": commit, "bireme": version,
        "tcmalloc": os.path.basename(tcmalloc) if tcmalloc else None, "rounds": options.rounds
    }


def print_table(record):
    print(f"{record['cpu']}, {record['threads']} threads, PyTorch {record['torch']}, "
          f"{record['tcmalloc'] or 'no tcmalloc'}, {record['rounds']} rounds, medians")
    print(f"{'':21} {'PyTorch':>18} {'Bireme':>10} {'ratio':>6} {'of roofline':>11}")
    for case in record["cases"]:
        theirs = f"{case['torch_tokens_per_second']:,.0f} ({case['torch_mode']})"
        if "ratio" in case:
            ours = (
                f"{case['bireme_tokens_per_second']:>10,.0f} {case['ratio']:>6.2f} "
                f"{case['roofline_share']:>11.2f}"
            )
        else:
            ours = f"{'-':>10} {'-':>6} {'-':>11}"
        print(f"{case['case']:21} {theirs:>18} {ours}")
        if case["llm_c_runs"]:
            print(f"{'':21} llm.c {case['llm_c_tokens_per_second']:,.1f}")
    print("tokens/s; the ratio is Bireme to PyTorch; the roofline is the GEMMs of the step alone")


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--worker":
        torch_worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", required=True, help="the Python of a virtual environment with torch"
    )
    parser.add_argument("--bireme", help="the program; without it, only PyTorch is timed")
    parser.add_argument("--llm-c", metavar="FOLDER", help="a checkout of llm.c")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--case", action="append", choices=sorted(CASES), help="may be repeated; default: all cases"
    )
    parser.add_argument("--output", help="a JSON file with every run")
    options = parser.parse_args()
    tcmalloc = find_tcmalloc()
    if tcmalloc is None:
        print(
            "tcmalloc is not installed; without it PyTorch is slower, and the ratio is too high",
            file=sys.stderr
        )
    record = environment_of(options, tcmalloc)
    with tempfile.TemporaryDirectory() as folder:
        llm_c = pathlib.Path(folder) if options.llm_c else None
        if llm_c:
            build_llm_c(os.path.abspath(options.llm_c), llm_c)
        record["cases"] = [
            compare_case(options, case, tcmalloc, llm_c) for case in options.case or CASES
        ]
    first = record["cases"][0]
    record["torch"] = first["torch_runs"][first["torch_mode"]][0]["torch"]
    print_table(record)
    if options.output:
        pathlib.Path(options.output).write_text(
            json.dumps(record, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
