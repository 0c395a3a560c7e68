"""Texts for the comparisons of tokenizers with Python packages: mixed text from files and man pages,
random strings, code points. make_tokenizer_reference.py describes the arguments.
"""

import glob
import gzip
import hashlib
import os
import random
import subprocess

import tokenizer_families


def manual_paths(folder, packages):
    if not packages:
        return sorted(glob.glob(os.path.join(folder, "**", "*.gz"), recursive=True))
    listed = subprocess.run(
        ["dpkg", "-L", *packages], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.splitlines()
    return sorted(p for p in set(listed) if p.startswith(folder + "/") and p.endswith(".gz"))


def manual_pages(folder, wanted_bytes, packages=()):
    """Man pages, alternating between languages, until they have the wanted number of bytes."""
    by_language = {}
    for path in manual_paths(folder, packages):
        parts = os.path.relpath(path, folder).split(os.sep)
        by_language.setdefault("en" if len(parts) == 2 else parts[0], []).append(path)
    queues = list(by_language.values())
    for queue in queues:
        random.Random(len(queue)).shuffle(queue)
    total = 0
    while queues and total < wanted_bytes:
        for queue in list(queues):
            if not queue:
                queues.remove(queue)
                continue
            try:
                text = gzip.open(queue.pop()).read().decode("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            total += len(text.encode())
            yield text


def add_text_arguments(parser, megabytes):
    parser.add_argument("--input", nargs="*", default=[])
    parser.add_argument("--manual", default="/usr/share/man")
    parser.add_argument("--packages", nargs="*", default=[])
    parser.add_argument("--megabytes", type=float, default=megabytes)


def cut_pages(pages, wanted_bytes):
    """The first pages, until they have the wanted number of bytes."""
    total, chosen = 0, []
    for page in pages:
        if total >= wanted_bytes:
            break
        total += len(page.encode())
        chosen.append(page)
    return chosen


def mixed_pages(arguments):
    """The texts of the files and of man pages; prints a digest, which identifies them."""
    wanted = arguments.megabytes * 1000000
    pages = cut_pages(
        [open(path, encoding="utf-8", newline="").read() for path in arguments.input], wanted
    )
    files, missing = len(pages), wanted - sum(len(p.encode()) for p in pages)
    pages += manual_pages(arguments.manual, missing, arguments.packages)
    text = "\n\n".join(pages).encode()
    print(
        f"mixed text: {files} files and {len(pages) - files} man pages, {len(text)} bytes, sha256"
        f" {hashlib.sha256(text).hexdigest()}", flush=True
    )
    return pages


def random_lines():
    strings = tokenizer_families.random_texts(10000, 7)
    return [s.replace("\n", " ").replace("\r", " ") for s in strings]


def code_points(step):
    """Texts of code points: all below U+3000 and of newer scripts, every step-th of the others."""
    for code in range(0x110000):
        recent = 0x10500 <= code < 0x12000 or 0x1DF00 <= code < 0x1E900
        if not 0xD800 <= code < 0xE000 and code != 10 and (
            code < 0x3000 or recent or code % step == 0
        ):
            c = chr(code)
            yield f"a{c}1 {c}{c} 2{c}  {c}!{c}a {c}'s {c}A{c}"
