#!/usr/bin/env python3
"""Writes tests/reference/gguf_types.txt: 64 numbers and their encodings in the types of GGUF.

Each line is a name and hexadecimal bytes, little-endian. The encodings come from the package gguf
of llama.cpp. Requires numpy and gguf.
"""
import pathlib

import gguf
import numpy as np

TYPES = ["F16", "BF16", "Q8_0", "Q4_0"]


def main():
    generator = np.random.default_rng(1)
    values = generator.normal(size=64).astype(np.float32)
    values[32:] *= np.float32(1e-3)
    values[40:44] = [0, -0.0, 65504, 1e-7]
    lines = ["values " + values.tobytes().hex()]
    for name in TYPES:
        encoded = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
        lines.append(f"{name.lower()} {encoded.tobytes().hex()}")
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    (root / "tests/reference/gguf_types.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
