#!/usr/bin/env python3
"""References for the tokenizers, from the Hugging Face `tokenizers` package (pip install tokenizers).

    make_tokenizer_reference.py write
        writes tests/reference/tokenizer/: a corpus, tokenizers that the package learned from it or that it
        reads, and the ids that it gives for difficult texts. The tests need only these files.

    make_tokenizer_reference.py compare PROGRAM [--manual DIR] [--megabytes N]
        learns one tokenizer with `PROGRAM tokenizer train` and one with the package from the English manual
        pages, and compares the merges, and the ids of pages in all languages, of difficult texts and of many
        code points, one by one; so too, with fewer texts, for every pattern and option that is read. Exit code 1 where anything differs.
"""

import argparse
import glob
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "reference", "tokenizer")
END = "<|endoftext|>"

PATTERNS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
              r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
             r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
              r"\s*[\r\n]|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
             r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
             r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}

CORPUS = """The oars of a bireme lie in two banks, and both banks pull in one stroke.
A stroke that is late costs more than a stroke that is weak; the drummer's beat keeps them together.
It isn't the strongest rower who sets the pace, and they'll say it's the one who doesn't tire.
We've rowed 120 miles in 3 days, 1 hour and 45 minutes; I'd row them again, you're welcome to join.

    int main(void)
    {
        for (int i = 0; i < 1024; i++) {
            row(i, "starboard");   /* two banks */
        }
        return 0;
    }

Die Ruder einer Bireme liegen in zwei Reihen übereinander, und beide ziehen in einem Schlag.
Les rames d'une birème sont placées sur deux rangs ; tous tirent d'un même élan, même l'été.
Вёсла биремы расположены в два ряда, и оба ряда гребут одновременно, удар за ударом.
Τα κουπιά της διήρους είναι σε δύο σειρές και τραβούν με έναν ρυθμό.
二段櫂船の櫂は上下二列に並び、一つの拍子で水をかく。船は速く進む。
双排桨船的桨分为上下两排，一齐划动。两排桨手听同一个鼓点。
مجاديف السفينة في صفين، وكلاهما يسحب بضربة واحدة.
द्विपंक्ति नौका के चप्पू दो पंक्तियों में होते हैं।
🚣 🚣🏽‍♀️ 🌊🌊 rowing, rowing… “quoted” — and a dash\tand a tab
"""

TEXTS = [
    "", " ", "  ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", "a", " a", "a ", "  a", "a  ", "  a  b   c    ",
    "Hello, world!", "it's they'll we've I'd you're don't I'm", "IT'S THEY'LL 'S 'LL O'RE 'ſ 'ſx", "'s's 't 're'", "''' 'll'll",
    "don't\n\ndo  it\r\n\r\n  again\t\tnow ", "x=1;  y = 22;\n    if (x) {\n\treturn 333333;\n    }\n",
    "1 12 123 1234 12345 1,234.56 ½ ² Ⅷ ٣٤٥ 一二三", "naïve façade Ünïcödé e\u0301 o\u0308 ﬁ ǅ ʰ ß İ ı",
    "Вёсла биремы, Τα κουπιά, 二段櫂船の櫂, 双排桨船, مجاديف, द्विपंक्ति, ไทย, 한국어, עברית",
    "🚣 🚣🏽‍♀️ 👨‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇩🇪🇫🇷 ☕️ 😀😀😀", "\u0001\u0002\u001b[0m \u007f \u0080 \u0085 \u00a0 \u00ad x",
    "a\u00a0b \u1680c \u180ed \u2003e \u2028f \u2029g \u202fh \u205fi \u3000j \ufeffk \u200bl", "\u2003\u2003 \u3000\u3000x",
    "   \u180e   x", "\u000b\u000c\u001c\u001d\u001e\u001f x", "\ufffd \ufffe \uffff \U0010ffff \ue000 \U000f0000",
    "\u1c89 \ua7cb \U00031350 \U000105c0x \U00010d40\U00011f50 9", "https://example.org/a?b=c&d=%20#e", "<|endoftext|>",
    "a<|endoftext|>b", "<|endoftext|><|endoftext|> <|pad|>x<|pad|><|padding|> keep", "<|endof<|endoftext|>text|>",
    "the two banks pull in one stroke", "    four\n        eight\n", "$100 #tag @name foo_bar-baz+qux/quux\\n", "a/b//c///\n//d",
    "camelCaseAndPascalCase HTTPServer XMLs iPhone's McDONALD'S", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abababababababababababababababababababababababababababababababababab", "." * 70, " " * 70 + "x", "\n" * 40 + "x",
    "=" * 33 + "-" * 34, "櫂" * 40, "é" * 50, "🌊" * 30,
]

BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
# one or two of each general category, and of the letters, marks and numbers of Unicode 15 and 16
SAMPLES = ("AaÀàǅʰªא字\u0301\u0903\u20dd1²Ⅷ٣_-([)]«»!+$^©\xad\u0600\ue000\u0378\U0010ffff"
           "\u1c89\u1c8a\ua7cb\ua7cd\ua7da\ua7db\U000105c0\U00010d4a\U00010d50\U00010d70\U0001df25\U0001e030\U0002ebf0"
           "\U00031350\U00013460\u0897\u0cf3\U00010efd\U0001e4ec\U00010d40\U00011f50\U000116d0\U0001e5f1")
TEXTS += ["".join(f"a{c}1{c}{c}!{c}A{c} {c}z{c}Z {c}{c}'s" for c in part)
          for part in (BLANKS, SAMPLES[:20], SAMPLES[20:40], SAMPLES[40:])]


def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def train_bpe(text, vocab_size, special):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level()
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def changed(base, pre=None, **model):
    """The same tokenizer with another pre-tokenizer or other options of its model."""
    data = json.loads(base.to_str())
    data["model"].update(model)
    t = Tokenizer.from_str(json.dumps(data))
    if pre is not None:
        t.pre_tokenizer = pre
    return t


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(regex=False)])


def char_tokenizer(text):
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(set(text)))}, merges=[]))
    t.decoder = decoders.Fuse()
    return t


def variants():
    base = train_bpe(CORPUS, 400, [END, "<|pad|>"])
    base.add_tokens([AddedToken("<|padding|>", normalized=False, special=True), AddedToken("keep", normalized=True)])
    made = {"gpt2": base, "prefix": changed(base, byte_level(prefix=True)), "whole": changed(base, byte_level(regex=False)),
            "ignore_merges": changed(base, merges=json.loads(base.to_str())["model"]["merges"][:60], ignore_merges=True)}
    for name, pattern in PATTERNS.items():
        made[name] = changed(base, split(pattern))
    return made


def save(tokenizer, name, pretty=False):
    os.makedirs(os.path.join(FOLDER, name), exist_ok=True)
    tokenizer.save(os.path.join(FOLDER, name, "tokenizer.json"), pretty=pretty)


def write():
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "corpus.txt"), "w", newline="") as file:
        file.write(CORPUS)
    texts = TEXTS + [CORPUS]
    char = char_tokenizer(CORPUS)
    save(char, "char", pretty=True)
    known = [set(text) <= set(CORPUS) for text in texts]
    ids = {"char": [char.encode(text).ids if all_known else None for text, all_known in zip(texts, known)]}
    for name, tokenizer in variants().items():
        save(tokenizer, name)
        # the words tell more of a pattern than its ids: a part of these is enough
        step = 4 if name in PATTERNS else 1
        ids[name] = [tokenizer.encode(text).ids if i % step == 0 else None for i, text in enumerate(texts)]
    # in the byte alphabet a letter is a byte
    words = {name: [[len(word) for word, _ in pre.pre_tokenize_str(text)] for text in texts]
             for name, pre in {"gpt2": byte_level(), **{name: split(p) for name, p in PATTERNS.items()}}.items()}
    with open(os.path.join(FOLDER, "expected.json"), "w") as file:
        file.write(json.dumps({"texts": texts, "ids": ids, "words": words}, separators=(",", ":")).replace("]],", "]],\n") + "\n")


def manual_pages(folder, wanted_bytes):
    """Pages of every language in turn, until there are enough bytes of them."""
    by_language = {}
    for path in sorted(glob.glob(os.path.join(folder, "**", "*.gz"), recursive=True)):
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
    print("languages:", len(by_language))


def run_encode(program, tokenizer, text, *flags):
    ids = subprocess.run([program, "tokenizer", "encode", "--tokenizer", tokenizer, *flags], input=text.encode(),
                         stdout=subprocess.PIPE, check=True).stdout
    return [[int(i) for i in line.split()] for line in ids.split(b"\n")[:-1]]


def pairs_tokenizer():
    """All 65,536 pairs of bytes as merges in a random order: its ids show where the words end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in letters for b in letters]
    random.Random(1).shuffle(merges)
    vocab = {c: i for i, c in enumerate(letters + [a + b for a, b in merges])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = byte_level()
    t.decoder = decoders.ByteLevel()
    return t


def code_points(step):
    """Those below U+3000, those among the newer scripts, and every step-th of the others."""
    for code in range(0x110000):
        recent = 0x10500 <= code < 0x12000 or 0x1DF00 <= code < 0x1E900
        if not 0xD800 <= code < 0xE000 and code != 10 and (code < 0x3000 or recent or code % step == 0):
            c = chr(code)
            yield f"a{c}1 {c}{c} 2{c}  {c}!{c}a {c}'s {c}A{c}"


def compare_texts(name, program, folder, texts, whole):
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokens = differ = 0
    batch = ["\n\n".join(texts)] if whole else texts
    ours = run_encode(program, folder, "\n".join(batch) + ("" if whole else "\n"), "--special", *(["--whole"] if whole else []))
    encoded = [tokenizer.encode(batch[0])] if whole else tokenizer.encode_batch(batch)
    for text, ids, wanted in zip(batch, ours, (e.ids for e in encoded), strict=True):
        tokens += len(wanted)
        if ids != wanted:
            differ += 1
            at = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), min(len(ids), len(wanted)))
            if differ <= 5:
                print(f"  {name}: token {at}: {ids[at:at + 5]} wanted {wanted[at:at + 5]} near {tokenizer.decode(wanted[max(0, at - 5):at + 5])!r}")
    size = sum(len(t.encode()) for t in batch) / 1e6
    print(f"{name}: {size:.2f} MB, {tokens} tokens, {len(batch)} texts, {differ} differ")
    return differ == 0


def merges_of(folder):
    merges = json.load(open(os.path.join(folder, "tokenizer.json")))["model"]["merges"]
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]


def compare(program, manual, megabytes):
    program = os.path.abspath(program)
    good = True
    with tempfile.TemporaryDirectory() as work:
        english = [gzip.open(p).read().decode("utf-8", "replace") for p in sorted(glob.glob(manual + "/man?/*.gz"))[:600]]
        corpus = os.path.join(work, "corpus.txt")
        with open(corpus, "w", newline="") as file:
            file.write("\n".join(english))
        folders = {"ours": os.path.join(work, "ours"), "package": os.path.join(work, "package")}
        subprocess.run([program, "tokenizer", "train", "--vocab-size", "4096", "--input", corpus, "--output", folders["ours"]], check=True)
        os.makedirs(folders["package"])
        train_bpe("\n".join(english), 4096, [END]).save(os.path.join(folders["package"], "tokenizer.json"))
        a, b = merges_of(folders["ours"]), merges_of(folders["package"])
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print(f"learned from {os.path.getsize(corpus) / 1e6:.2f} MB: {len(a)} and {len(b)} merges, equal up to {first}")
        good &= a == b
        pages = list(manual_pages(manual, megabytes * 1000000))
        points = list(code_points(37))
        pairs = pairs_tokenizer()
        patterns = {"pairs, " + name: changed(pairs, split(pattern)) for name, pattern in PATTERNS.items()}
        for name, tokenizer in {**variants(), "pairs, gpt2": pairs, **patterns}.items():
            folders[name] = os.path.join(work, name)
            os.makedirs(folders[name])
            tokenizer.save(os.path.join(folders[name], "tokenizer.json"))
        for name, folder in folders.items():
            few = name not in ("ours", "package")
            chosen = [p for p in pages if len(p) < 20000][:100] if few else pages
            good &= compare_texts(name + ", pages", program, folder, chosen, True)
            hard = [t for t in TEXTS if "\n" not in t]
            good &= compare_texts(name + ", difficult texts", program, folder, hard, False)
            good &= compare_texts(name + ", joined texts", program, folder, TEXTS, True)
            good &= compare_texts(name + ", code points", program, folder, points, False)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    c = commands.add_parser("compare")
    c.add_argument("program")
    c.add_argument("--manual", default="/usr/share/man")
    c.add_argument("--megabytes", type=float, default=10)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write()
        return 0
    return 0 if compare(arguments.program, arguments.manual, arguments.megabytes) else 1


if __name__ == "__main__":
    sys.exit(main())
