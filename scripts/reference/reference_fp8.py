#!/usr/bin/env python3
"""Writes tests/reference/fp8.inc: how PyTorch rounds f32 to float8_e4m3fn and float8_e5m2.

The rounding is monotonic, so it is described by one threshold for each positive code: the bits of
the smallest f32 that rounds to this code. PyTorch does not saturate, so the script limits the
numbers to the largest FP8 number first. It checks the thresholds on all bf16 numbers and on ten
million f32 numbers.

    python3 scripts/reference/reference_fp8.py
"""
import pathlib

import numpy as np
import torch

TYPES = [("e4m3", torch.float8_e4m3fn, 448.0, 0x7E), ("e5m2", torch.float8_e5m2, 57344.0, 0x7B)]
OUTPUT = pathlib.Path(__file__).parents[2] / "tests" / "reference" / "fp8.inc"


def cast(bits, dtype, largest):
    """Return the codes of the f32 numbers with these bits."""
    x = torch.from_numpy(bits.astype(np.uint32).view(np.float32))
    return x.clamp(-largest, largest).to(dtype).view(torch.uint8).numpy()


def find_thresholds(dtype, largest, last):
    """Find by bisection the bits of the smallest number that rounds to each code."""
    codes = np.arange(1, last + 1)
    low, high = np.zeros(last, np.int64), np.full(last, 0x7F800000, np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = cast(middle, dtype, largest) >= codes
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    return high


def check(thresholds, bits, dtype, largest):
    """Compare PyTorch's codes with those that follow from the thresholds."""
    bits = bits[(bits & 0x7FFFFFFF) <= 0x7F800000]  # no NaN
    expected = np.searchsorted(thresholds, bits & 0x7FFFFFFF, side="right")
    expected |= (bits >> 24) & 0x80
    assert (cast(bits, dtype, largest) == expected).all()


def main():
    """Write the file."""
    lines = ["/* Written by reference_fp8.py with PyTorch. Element i: the bits of the smallest",
             " * f32 that rounds to code i + 1. */"]
    for name, dtype, largest, last in TYPES:
        thresholds = find_thresholds(dtype, largest, last)
        check(thresholds, np.arange(65536) << 16, dtype, largest)
        check(thresholds, np.random.default_rng(1).integers(0, 1 << 32, 10_000_000), dtype, largest)
        words = [f"0x{t:08x}u," for t in thresholds]
        lines.append(f"static const uint32_t {name}_thresholds[] = {{")
        lines += ["    " + " ".join(words[i : i + 7]) for i in range(0, last, 7)]
        lines.append("};")
    OUTPUT.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
