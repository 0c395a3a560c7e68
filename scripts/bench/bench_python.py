#!/usr/bin/env python3
"""Compares the speed of the Python package with the speed of the program that it contains.

    scripts/bench/bench_python.py CHECKPOINT [ROUNDS]

Generates greedy texts with `bireme.Model.generate`, streamed and whole, and with `bireme generate`,
in turn, with one thread. The time of a token is the difference between a text of 320 and one of 64
tokens, so that it does not contain the start. Prints the processor time per token: on a machine
that others use, it varies less than the elapsed time. Requires the installed package.
"""
import resource
import statistics
import subprocess
import sys
import time

import bireme
from bireme._program import find_program

PROMPT, SHORT, LONG = "The", 64, 320


def time_program(checkpoint, tokens):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([find_program(), "generate", "--checkpoint", checkpoint, "--prompt", PROMPT,
                    "--temperature", "0", "--max-new-tokens", str(tokens), "--set",
                    "parallel.threads=1"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_package(model, tokens, stream):
    begin = time.process_time()
    text = model.generate(PROMPT, max_new_tokens=tokens, temperature=0, stream=stream)
    if stream:
        for _ in text:
            pass
    return time.process_time() - begin


def main():
    checkpoint, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    times = {"program": [], "generate": [], "stream": []}
    with bireme.Model(checkpoint, parallel__threads=1) as model:
        ways = {"program": lambda n: time_program(checkpoint, n),
                "generate": lambda n: time_package(model, n, False),
                "stream": lambda n: time_package(model, n, True)}
        for _ in range(rounds):
            for name, measure in ways.items():
                times[name].append((measure(LONG) - measure(SHORT)) / (LONG - SHORT))
    for name, values in times.items():
        ratio = statistics.median(b / a for a, b in zip(times["program"], values))
        print(f"{name:10} {1e3 * min(values):.3f} to {1e3 * max(values):.3f} ms/token, median "
              f"{1e3 * statistics.median(values):.3f}; of the program: {ratio:.3f}")


if __name__ == "__main__":
    main()
