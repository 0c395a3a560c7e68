#!/usr/bin/env python3
"""Measures PyTorch on the GPU of this machine, for comparison with Bireme in scripts/gpu_check.sh.

    scripts/bench/bench_gpu.py versions|ceilings|attention|step [MODEL] [--mode compiled|eager|both]
                         [--device cuda|cpu] [--small] [--repeats N]
    scripts/bench/bench_gpu.py flops [MODEL]
    scripts/bench/bench_gpu.py library FILE
    scripts/bench/bench_gpu.py timeline LAUNCHES.csv
    scripts/bench/bench_gpu.py judge OPERATIONS.json
    scripts/bench/bench_gpu.py judge ATTENTION.json {mma,wgmma}_WIDTH_TOKENS.json...

Needs Python with torch, except for flops, library, timeline and judge. Every command prints one
JSON object; `step --mode both` prints one for each mode. flops prints the FLOPs per token of a
model, library the path of a shared library in the packages nvidia of this Python (exit code 1:
none), timeline the time of each kernel in a training step, and judge compares measurements with
goals (exit code 3 if one is missed).

Times are medians of device events after three warm-up runs. Data are random, never zeros. A step is
forward, backward and fused AdamW on one fixed batch: weights and GEMMs in bf16 with fp32 master
weights (autocast), without dropout. Attention is scaled_dot_product_attention. --small shrinks all
shapes for a test on a CPU.
"""

import argparse
import csv
import gc
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bench_peers  # noqa: E402

PEAK_FLOPS = 989e12  # H100 and H200, bf16 without sparsity: the denominator of MFU

MODELS = {
    "gpt2_124m": {
        "kind": "gpt", "layers": 12, "heads": 12, "width": 768, "vocabulary": 50257,
        "padded": 50304, "tokens": 1024, "batch": 64
    },
    "gpt2_1558m": {
        "kind": "gpt", "layers": 48, "heads": 25, "width": 1600, "vocabulary": 50257,
        "padded": 50304, "tokens": 1024, "batch": 16
    },
    "bert_large_phase1": {
        "kind": "bert", "layers": 24, "heads": 16, "width": 1024, "vocabulary": 30522,
        "padded": 30528, "tokens": 128, "batch": 256, "predictions": 20
    },
    "bert_large_phase2": {
        "kind": "bert", "layers": 24, "heads": 16, "width": 1024, "vocabulary": 30522,
        "padded": 30528, "tokens": 512, "batch": 64, "predictions": 80
    },
    "llama_1b": {
        "kind": "llama", "layers": 16, "heads": 32, "kv_heads": 8, "width": 2048, "inner": 8192,
        "vocabulary": 128256, "padded": 128256, "tokens": 4096, "batch": 8
    }
}


def flops_per_token(m, causal_half=True):
    """FLOPs of forward and backward per token: 6 for each weight of a GEMM, and attention.

    causal_half: count only half of the scores of causal attention."""
    width, layers, kind = m["width"], m["layers"], m["kind"]
    if kind == "llama":
        head = width // m["heads"]
        block = width * (width + 2 * m["kv_heads"] * head) + width * width + 3 * width * m["inner"]
    else:
        block = 12 * width * width
    share = m.get("predictions", m["tokens"]) / m["tokens"]
    head_flops = 6 * width * m["padded"] * share
    if kind == "bert":
        head_flops += 6 * width * width * share
    attention = 12 * layers * width * m["tokens"]
    if kind != "bert" and causal_half:
        attention /= 2
    return 6 * layers * block + head_flops + attention


def shrink_shapes(m):
    return {
        **m, "layers": 2, "heads": 2, "kv_heads": 1, "width": 64, "inner": 128, "vocabulary": 500,
        "padded": 512, "tokens": 32, "batch": 2,
        **({"predictions": 5} if "predictions" in m else {})
    }


# ---- timing ----


class Clock:
    def __init__(self, torch, device, repeats):
        self.torch, self.cuda, self.repeats = torch, device == "cuda", repeats

    def time_once(self, work):
        if not self.cuda:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def median(self, work):
        for _ in range(3):
            work()
        return statistics.median(self.time_once(work) for _ in range(self.repeats))


# ---- models (bench_peers.py has the GPT) ----


def make_bert(torch, m):
    nn, functional = torch.nn, torch.nn.functional
    width, heads = m["width"], m["heads"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                p.view(b, t, heads, c // heads).transpose(1, 2) for p in self.qkv(x).split(c, dim=2)
            )
            y = functional.scaled_dot_product_attention(q, k, v)
            x = self.norm1(x + self.project(y.transpose(1, 2).reshape(b, t, c)))
            return self.norm2(x + self.down(functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(m["padded"], width)
            self.positions = nn.Embedding(m["tokens"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(m["layers"]))
            self.norm, self.head_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.transform = nn.Linear(width, width)
            self.head = nn.Linear(width, m["padded"])
            self.head.weight = self.words.weight
            # the same positions of each sequence are predicted
            self.register_buffer(
                "predicted", torch.arange(m["predictions"]) * (m["tokens"] // m["predictions"])
            )

        def forward(self, ids, targets):
            x = self.norm(self.words(ids) + self.positions.weight)
            for block in self.blocks:
                x = block(x)
            x = self.head_norm(functional.gelu(self.transform(x[:, self.predicted])))
            logits = self.head(x).view(-1, m["padded"])
            return functional.cross_entropy(logits.float(), targets[:, self.predicted].reshape(-1))

    return Bert()


def make_llama(torch, m):
    nn, functional = torch.nn, torch.nn.functional
    width, heads, kv, inner = m["width"], m["heads"], m["kv_heads"], m["inner"]
    head = width // heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(width, width + 2 * kv * head, bias=False)
            self.project = nn.Linear(width, width, bias=False)
            self.gate_up = nn.Linear(width, 2 * inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)

        def rotate(self, x, cos, sin):
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

        def forward(self, x, cos, sin):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).split((c, kv * head, kv * head), dim=2)
            q = self.rotate(q.view(b, t, heads, head).transpose(1, 2), cos, sin)
            k = self.rotate(k.view(b, t, kv, head).transpose(1, 2), cos, sin)
            v = v.view(b, t, kv, head).transpose(1, 2)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.project(y.transpose(1, 2).reshape(b, t, c))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(m["padded"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(m["layers"]))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, m["padded"], bias=False)
            self.head.weight = self.words.weight
            angles = torch.outer(torch.arange(m["tokens"]).float(),
                                 500000.0 ** (-torch.arange(0, head, 2).float() / head))
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, ids, targets):
            x = self.words(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, m["padded"]).float(), targets.view(-1))

    return Llama()


# ---- commands ----


def list_versions(torch, arguments):
    cuda = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "nccl": list(torch.cuda.nccl.version()) if cuda else None,
        "cudnn": torch.backends.cudnn.version(),
    }


def measure_ceilings(torch, arguments):
    """Rates of a large copy and of GEMMs: a square one and the shapes of the models."""
    clock = Clock(torch, arguments.device, arguments.repeats)
    device, dtype = arguments.device, torch.bfloat16
    elements = (1 << 16) if arguments.small else (1 << 30)
    source = torch.randn(elements // 64, device=device).to(dtype).repeat(64)
    target = torch.empty_like(source)
    seconds = clock.median(lambda: target.copy_(source))
    report = {"copy_bytes_per_second": 4 * elements / seconds, "products": []}
    del source, target
    shapes = {(8192, 8192, 8192)}
    for m in MODELS.values():
        c, n = m["width"], m["batch"] * m["tokens"]
        shapes |= {(n, c, 3 * c), (n, c, c), (n, c, 4 * c), (n, 4 * c, c)}
    for n, k, outputs in sorted(shapes):
        if arguments.small:
            n, k, outputs = n // 1024, k // 64, outputs // 64
        x = torch.randn(n, k, device=device, dtype=dtype)
        w = torch.randn(outputs, k, device=device, dtype=dtype)
        seconds = clock.median(lambda: torch.nn.functional.linear(x, w))
        report["products"].append({"rows": n, "inner": k, "outputs": outputs,
                                   "flops_per_second": 2 * n * k * outputs / seconds})
    return report


def measure_attention(torch, arguments):
    """Rates of the back-ends of scaled_dot_product_attention, for 16,384 tokens of width 2048."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    clock = Clock(torch, arguments.device, arguments.repeats)
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
    names = ["math"] if arguments.device == "cpu" else ["flash", "cudnn"]
    lengths = [32] if arguments.small else [128, 512, 1024, 4096]
    total, width = (64, 128) if arguments.small else (16384, 2048)
    rows = []
    for head in (64, 128):
        for causal in (True, False):
            for t in lengths:
                shape = (total // t, width // head, t, head)
                q, k, v = (
                    torch.randn(
                        shape, device=arguments.device, dtype=torch.bfloat16, requires_grad=True
                    ) for _ in range(3)
                )
                gradient = torch.randn(shape, device=arguments.device, dtype=torch.bfloat16)
                flops = 4 * total * t * width / (2 if causal else 1)
                for name in names:
                    row = {"backend": name, "head_width": head, "causal": causal, "tokens": t}
                    try:
                        with sdpa_kernel(backends[name]):
                            def forward():
                                return torch.nn.functional.scaled_dot_product_attention(
                                    q, k, v, is_causal=causal
                                )
                            row["forward_flops_per_second"] = flops / clock.median(forward)
                            out = forward()
                            row["backward_flops_per_second"] = 2.5 * flops / clock.median(
                                lambda: out.backward(gradient, retain_graph=True))
                    except RuntimeError as error:
                        row["reason"] = str(error).splitlines()[0]
                    rows.append(row)
    capability = 0 if arguments.device == "cpu" else torch.cuda.get_device_capability()[0]
    return {"attention": rows, "capability": capability}


def measure_step(torch, arguments, mode):
    """Time and memory of a training step, with the losses of the first steps."""
    m = MODELS[arguments.model]
    m = shrink_shapes(m) if arguments.small else m
    device = arguments.device
    torch.manual_seed(1)
    make = {"gpt": bench_peers.make_gpt, "bert": make_bert, "llama": make_llama}[m["kind"]]
    with torch.device(device):
        model = make(torch, m)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    run = torch.compile(model) if mode == "compiled" else model
    batch = m["batch"]
    ids = torch.randint(0, m["vocabulary"], (batch, m["tokens"] + 1), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    losses = []

    def train_step():
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = run(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    seconds = Clock(torch, device, arguments.repeats).median(train_step)
    first = [float(loss) for loss in losses[:20]]
    if not all(loss < 20.0 for loss in first):  # fails for NaN too
        sys.exit(f"invalid measurement: the losses are {first}")
    tokens_per_second = batch * m["tokens"] / seconds
    return {
        "model": arguments.model, "mode": mode, "torch": torch.__version__, "batch": batch,
        "tokens": m["tokens"], "step_seconds": seconds, "tokens_per_second": tokens_per_second,
        "mfu": tokens_per_second * flops_per_token(m) / PEAK_FLOPS,
        "mfu_full_attention": tokens_per_second * flops_per_token(m, False) / PEAK_FLOPS,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "first_losses": first,
    }


def measure_steps(torch, arguments):
    """measure_step for each mode, each with a new model after the memory of the last is freed."""
    for mode in ("eager", "compiled") if arguments.mode == "both" else (arguments.mode,):
        yield measure_step(torch, arguments, mode)
        if arguments.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


# Goals. MOVERS are operations that are limited by memory: their goal is a fraction of the rate of a
# copy. The goals of attention, forward and backward, are fractions of the rates of PyTorch: of its
# flash back-end for kernels with mma.sync, of its cuDNN back-end for kernels with wgmma.
MOVERS = {
    "activation_backward", "swiglu_forward", "swiglu_backward", "rotary_apply", "dropout_apply",
    "residual_norm_forward", "residual_norm_backward", "adamw_update", "convert"
}
MOVER_GOAL = 0.85
ATTENTION_GOALS = {"flash": 0.85, "cudnn": 0.95}


def check_goals(files):
    """Compare measurements with the goals; print one line, and return 3 if a goal is missed."""
    report = json.loads(pathlib.Path(files[0]).read_text())
    if len(files) == 1:
        operations = {o["name"]: o for o in report["operations"]}
        copy = report["copy_bytes_per_second"]
        share, name = min(
            (o["bytes_per_second"] / copy, n) for n, o in operations.items() if n in MOVERS
        )
        print(f"the slowest of {len(operations)}: {name}, {100 * share:.0f} % of the copy rate")
        return 0 if share >= MOVER_GOAL else 3
    results, reached = [], True
    for file in files[1:]:
        kernel, width, tokens = pathlib.Path(file).stem.split("_")
        if kernel == "wgmma" and report["capability"] != 9:
            continue
        backend = {"mma": "flash", "wgmma": "cudnn"}[kernel]
        ours = {
            o["name"]: o["flops_per_second"]
            for o in json.loads(pathlib.Path(file).read_text())["operations"]
        }
        shape = (backend, int(width), True, int(tokens))
        torch_rows = [
            r for r in report["attention"]
            if (r["backend"], r["head_width"], r["causal"], r["tokens"]) == shape
        ]
        if not torch_rows or "reason" in torch_rows[0]:
            results.append(f"{kernel} {width} x {tokens}: PyTorch has no {backend} back-end")
            continue
        forward = ours["attention_forward"] / torch_rows[0]["forward_flops_per_second"]
        backward = ours["attention_backward"] / torch_rows[0]["backward_flops_per_second"]
        results.append(
            f"{kernel} {width} x {tokens} {ours['attention_forward'] / 1e12:.0f} TFLOP/s, "
            f"{forward:.2f} and back {backward:.2f} of {backend}"
        )
        reached = reached and min(forward, backward) >= ATTENTION_GOALS[backend]
    print("; ".join(results))
    return 0 if reached else 3


def print_timeline(file):
    """Print the seconds, the launches and the name of each kernel in the last step that ends with
    AdamW, from the CSV output of ncu with gpu__time_duration.sum in ns; return the exit code."""
    lines = pathlib.Path(file).read_text().splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        print("ncu measured no kernel", file=sys.stderr)
        return 1
    launches = [(row["Kernel Name"].split("(")[0], float(row["Metric Value"].replace(",", "")))
                for row in csv.DictReader(lines[header:]) if row["Metric Value"]]
    ends = [i for i, (name, _) in enumerate(launches) if "adamw" in name]
    if len(ends) < 2:
        print(f"{len(ends)} steps among {len(launches)} kernels", file=sys.stderr)
        return 1
    kernels = {}
    for name, nanoseconds in launches[ends[-2] + 1:ends[-1] + 1]:
        kernels.setdefault(name, []).append(nanoseconds * 1e-9)
    for name, seconds in sorted(kernels.items(), key=lambda kernel: -sum(kernel[1])):
        print(f"{sum(seconds):.9f}\t{len(seconds)}\t{name}")
    return 0


def find_library(name):
    """Print the path of a shared library of the packages nvidia; return the exit code."""
    try:
        import nvidia
    except ImportError:
        return 1
    paths = [path for folder in nvidia.__path__ for path in pathlib.Path(folder).rglob(name)]
    if paths:
        print(sorted(paths)[0])
    return 0 if paths else 1


COMMANDS = {
    "versions": list_versions, "ceilings": measure_ceilings, "attention": measure_attention,
    "step": measure_steps,
}


def main():
    if sys.argv[1:2] == ["judge"]:
        sys.exit(check_goals(sys.argv[2:]))
    if sys.argv[1:2] == ["timeline"]:
        sys.exit(print_timeline(sys.argv[2]))
    if sys.argv[1:2] == ["library"]:
        sys.exit(find_library(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*COMMANDS, "flops"])
    parser.add_argument("model", nargs="?", choices=list(MODELS), default="gpt2_124m")
    parser.add_argument("--mode", choices=["compiled", "eager", "both"], default="eager")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.command == "flops":  # for gpu_check.sh, without torch
        m = MODELS[arguments.model]
        print(f"{flops_per_token(m):.0f} {flops_per_token(m, False):.0f}")
        return
    try:
        import torch
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(77)
    needs_gpu = arguments.device == "cuda" and arguments.command != "versions"
    if needs_gpu and not torch.cuda.is_available():
        sys.stderr.write(f"torch {torch.__version__} finds no GPU\n")
        sys.exit(77)
    report = COMMANDS[arguments.command](torch, arguments)
    for result in [report] if isinstance(report, dict) else report:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
