#!/usr/bin/env python3
"""Makes and checks the references of the tokenizers with the package `tokenizers` of Hugging Face.

    scripts/reference/make_tokenizer_reference.py write
        writes tests/reference/tokenizer/: a corpus, tokenizers that the package trained on it or
        can read, and the ids of difficult texts. The tests need only these files.

    scripts/reference/make_tokenizer_reference.py compare PROGRAM [TEXT...]
        trains a BPE tokenizer with `PROGRAM tokenizer train` and one with the package on the
        English man pages. Compares the merges, and the ids of mixed text, of difficult texts, of
        many code points and of 10,000 random strings. Compares the ids of 1 MB of the mixed text
        for each supported pattern and option, and those of a WordPiece tokenizer. Exit code 1 if
        there is a difference.

    scripts/reference/make_tokenizer_reference.py compare-families PROGRAM [TEXT...]
        compares the ids and the decoded text of the tokenizers of tokenizer_families.py, of
        RoBERTa, Llama 3 and ByT5, and of one for each pattern, on mixed text and on 10,000 random
        strings.

    TEXT...: the mixed text.
        --input FILE...       files, in this order
        --manual DIR          then man pages in all languages (/usr/share/man)
        --packages NAME...    only the man pages of these Debian packages
        --megabytes N         until the text has this size (10, or 1 for compare-families)

    scripts/reference/make_tokenizer_reference.py classes
        prints the table of datasets/text/bert_classes.c

Needs tokenizers (pip install tokenizers).
"""

import argparse
import glob
import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import tokenizer_families
from comparison_texts import add_text_arguments, code_points, cut_pages, mixed_pages, random_lines
from tokenizers import (
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
    trainers
)

FOLDER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "reference", "tokenizer"
)
END = "<|endoftext|>"

PATTERNS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
              r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
             r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
              r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
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
    "", " ", "  ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", "a", " a", "a ", "  a", "a  ",
    "  a  b   c    ", "Hello, world!", "it's they'll we've I'd you're don't I'm",
    "IT'S THEY'LL 'S 'LL O'RE 'ſ 'ſx", "'s's 't 're'", "''' 'll'll",
    "don't\n\ndo  it\r\n\r\n  again\t\tnow ",
    "x=1;  y = 22;\n    if (x) {\n\treturn 333333;\n    }\n",
    "1 12 123 1234 12345 1,234.56 ½ ² Ⅷ ٣٤٥ 一二三",
    "naïve façade Ünïcödé e\u0301 o\u0308 ﬁ ǅ ʰ ß İ ı",
    "Вёсла биремы, Τα κουπιά, 二段櫂船の櫂, 双排桨船, مجاديف, द्विपंक्ति, ไทย, 한국어, עברית",
    "🚣 🚣🏽‍♀️ 👨‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇩🇪🇫🇷 ☕️ 😀😀😀",
    "\u0001\u0002\u001b[0m \u007f \u0080 \u0085 \u00a0 \u00ad x",
    "a\u00a0b \u1680c \u180ed \u2003e \u2028f \u2029g \u202fh \u205fi \u3000j \ufeffk \u200bl",
    "\u2003\u2003 \u3000\u3000x", "   \u180e   x", "\u000b\u000c\u001c\u001d\u001e\u001f x",
    "\ufffd \ufffe \uffff \U0010ffff \ue000 \U000f0000",
    "\u1c89 \ua7cb \U00031350 \U000105c0x \U00010d40\U00011f50 9",
    "https://example.org/a?b=c&d=%20#e", "<|endoftext|>", "a<|endoftext|>b",
    "<|endoftext|><|endoftext|> <|pad|>x<|pad|><|padding|> keep", "<|endof<|endoftext|>text|>",
    "the two banks pull in one stroke", "    four\n        eight\n",
    "$100 #tag @name foo_bar-baz+qux/quux\\n", "a/b//c///\n//d",
    "camelCaseAndPascalCase HTTPServer XMLs iPhone's McDONALD'S",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abababababababababababababababababababababababababababababababababab", "." * 70,
    " " * 70 + "x", "\n" * 40 + "x", "=" * 33 + "-" * 34, "櫂" * 40, "é" * 50, "🌊" * 30
]

BLANKS = ("\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u2060"
          "\u3000\ufeff")
# Samples of each general category, and letters, marks and numbers of Unicode 15 and 16
SAMPLES = (
    "AaÀàǅʰªא字\u0301\u0903\u20dd1²Ⅷ٣_-([)]«»!+$^©\xad\u0600\ue000\u0378\U0010ffff"
    "\u1c89\u1c8a\ua7cb\ua7cd\ua7da\ua7db\U000105c0\U00010d4a\U00010d50\U00010d70\U0001df25"
    "\U0001e030\U0002ebf0"
    "\U00031350\U00013460\u0897\u0cf3\U00010efd\U0001e4ec\U00010d40\U00011f50\U000116d0\U0001e5f1"
)
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


def change_tokenizer(base, pre=None, **model):
    """A copy of a tokenizer with another pre-tokenizer or other options of its model."""
    data = json.loads(base.to_str())
    data["model"].update(model)
    t = Tokenizer.from_str(json.dumps(data))
    if pre is not None:
        t.pre_tokenizer = pre
    return t


def split_words(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(regex=False)]
    )


def char_tokenizer(text):
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(set(text)))}, merges=[]))
    t.decoder = decoders.Fuse()
    return t


def make_variants():
    base = train_bpe(CORPUS, 400, [END, "<|pad|>"])
    base.add_tokens(
        [
            AddedToken("<|padding|>", normalized=False, special=True),
            AddedToken("keep", normalized=True)
        ]
    )
    made = {
        "gpt2": base, "prefix": change_tokenizer(base, byte_level(prefix=True)),
        "whole": change_tokenizer(base, byte_level(regex=False)),
        "ignore_merges": change_tokenizer(
            base, merges=json.loads(base.to_str())["model"]["merges"][:60], ignore_merges=True
        )
    }
    for name, pattern in PATTERNS.items():
        made[name] = change_tokenizer(base, split_words(pattern))
    return made


# Difficult texts for the normalizer of BERT (other scripts, marks, controls) and for WordPiece
# (long and unknown words)
BERT_TEXTS = TEXTS + [
    "\u0130stanbul \u0131 \u01c5 \ufb01 \u1e9e \u212a \u2126",
    "e\u0301\u0323\u0302 \u0041\u030a \u1e09 \u0344 \u0390",
    "\uac00\ub098\ub2e4 \u1112\u1161\u11ab",
    "\u302e\u302f\u302e a\u302f\u0301\u302e \U0001d165\U0001d16d\U0001d165 "
    "x\U0001d16d\u302e\U0001d165",
    "a" * 100, "a" * 101, "\u00e9" * 100, "\u00e9" * 101, "e\u0301" * 60, "\u6f22" * 150,
    "un" + "affable" * 14, "x" * 5000,
    "\u4e00\u3400\U00020000\U0002b820\U0002b920\uf900\U0002f800\u3041\u30a1",
    "a\u0000b\ufffdc\u200dd\u00ade\ufefff\u2028g\u000bh\u0085i",
    "[CLS] a [SEP] b [MASK] [PAD] [UNK] [mask] [ MASK ]", "x[MASK]y[SEP][SEP]",
    "don't can't we've they're I'm . , ! ? ' \" do not",
    "\u3002\uff0c\uff01\u3010\u061f\u0964\u00bf\u00a1\u2014\u2026 $+<=>^`|~ \u00a3\u20ac\u00a7",
    "\u0915\u094d\u0937 \u0e01\u0e33 \u1780\u17d2\u1798"
]
BERT_PAIRS = [
    ("", ""), ("a", ""), ("", "b"), ("two banks", "one stroke"),
    ("The oars of a bireme lie in two banks", "both pull"),
    ("both pull", "The oars of a bireme lie in two banks, and both banks pull in one stroke."),
    ("one [SEP] two", "[MASK]\u6f22\u5b57")
]
BERT_OPTIONS = ["1111", "1100", "1101", "0011"]  # clean, Chinese, strip accents, lower case


def wordpiece(normalizer):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(
        [CORPUS],
        trainers.WordPieceTrainer(
            vocab_size=700, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            show_progress=False
        )
    )
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(s, t.token_to_id(s)) for s in ("[CLS]", "[SEP]")])
    return t


def bert_normalizer(options):
    clean, chinese, strip, lower = (o == "1" for o in options)
    return normalizers.BertNormalizer(
        clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower
    )


def bert_words(normalizer, text):
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))
    return [word for word, _ in words]


def all_code_points():
    return (code for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def bert_digest(options):
    """Digest of the words of texts with every code point, which are too many to store."""
    normalizer, digest = bert_normalizer(options), hashlib.sha256()
    for code in all_code_points():
        words = bert_words(normalizer, f"a{chr(code)}b {chr(code)}\u302f\u0301c")
        digest.update(("\x1f".join(words) + "\n").encode())
    return digest.hexdigest()


def truncated(tokenizer, a, b, most):
    tokenizer.enable_truncation(most)
    ids = tokenizer.encode(a, b).ids
    tokenizer.no_truncation()
    return ids


def write_wordpiece():
    expected = {
        "texts": BERT_TEXTS, "pairs": BERT_PAIRS,
        "digests": {o: bert_digest(o) for o in BERT_OPTIONS}, "tokenizers": {}
    }
    for name, normalizer in {
        "bert": normalizers.BertNormalizer(),
        "bert_cased": normalizers.BertNormalizer(lowercase=False)
    }.items():
        t = wordpiece(normalizer)
        save(t, name)
        ids = [t.encode(text, add_special_tokens=False).ids for text in BERT_TEXTS]
        expected["tokenizers"][name] = {
            "ids": ids,
            "decoded": [
                [t.decode(i, skip_special_tokens=skip) for i in ids] for skip in (False, True)
            ], "pairs": [t.encode(a, b).ids for a, b in BERT_PAIRS],
            "types": [t.encode(a, b).type_ids for a, b in BERT_PAIRS],
            "truncated": [
                [truncated(t, a, b, most) for a, b in BERT_PAIRS] for most in (3, 4, 9, 16)
            ]
        }
    with open(os.path.join(FOLDER, "expected_bert.json"), "w") as file:
        file.write(json.dumps(expected, separators=(",", ":")).replace("]],", "]],\n") + "\n")


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROBERTA_TEXTS = TEXTS[:30] + [
    before + token + after for token in ROBERTA
    for before in ("", "a", " ", "a ", "a  ", "\u2003 ", "\u200b", "<mask>  ")
    for after in ("", " ", "b", "  b", "\u3000b")
]


def make_roberta(template=False, prefix=False, strip=False):
    """A tokenizer as RobertaTokenizer saves it.

    The options are the same as in early files: special tokens are found after normalization, and
    each text begins with an additional space."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(prefix)
    t.decoder = decoders.ByteLevel()
    special = [
        AddedToken(
            s, normalized=strip, lstrip=s == "<mask>", rstrip=strip and s == "<pad>", special=True
        ) for s in ROBERTA
    ]
    t.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=340, min_frequency=2, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    around = [("<s>", 0), ("</s>", 2)]
    t.post_processor = (
        processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=around
        ) if template
        else processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    )
    return t


def make_begun():
    """A tokenizer like the one of Llama 3: a special token before each text, none after it."""
    t = train_bpe(CORPUS, 340, ["<|begin_of_text|>", "<|end_of_text|>"])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True, use_regex=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", 0)])])
    return change_tokenizer(t, split_words(PATTERNS["llama3"]), ignore_merges=True)


def write_around():
    expected = {
        "texts": ROBERTA_TEXTS, "pairs": BERT_PAIRS + [(" a", "<mask> b"), ("a <mask>", " b")],
        "tokenizers": {}
    }
    for name, t in {
        "roberta": make_roberta(), "roberta_early": make_roberta(True, True, True),
        "begun": make_begun()
    }.items():
        save(t, name)
        expected["tokenizers"][name] = {
            "ids": [t.encode(text).ids for text in ROBERTA_TEXTS],
            "pairs": [t.encode(a, b).ids for a, b in expected["pairs"]],
            "truncated": [
                [truncated(t, a, b, most) for a, b in expected["pairs"]] for most in (4, 5, 9, 16)
            ]
        }
    with open(os.path.join(FOLDER, "expected_around.json"), "w") as file:
        file.write(json.dumps(expected, separators=(",", ":")).replace("]],", "]],\n") + "\n")


def digest_lines(lines):
    digest = hashlib.sha256()
    for line in lines:
        digest.update((line + "\n").encode())
    return digest.hexdigest()


def write_families():
    texts = TEXTS[:40] + tokenizer_families.TEXTS + [CORPUS[:600]]
    made = tokenizer_families.make_families(CORPUS, PATTERNS)
    for name, tokenizer in made.items():
        save(tokenizer, name)
    expected = {
        "texts": texts, "forms": tokenizer_families.form_digests(digest_lines, all_code_points),
        "tokenizers": {
            name: tokenizer_families.expect(tokenizer, texts) for name, tokenizer in made.items()
        }
    }
    with open(os.path.join(FOLDER, "expected_families.json"), "w") as file:
        file.write(json.dumps(expected, separators=(",", ":")).replace("]],", "]],\n") + "\n")


def print_classes():
    none = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    clean, strip = (
        normalizers.BertNormalizer(**{**none, name: True})
        for name in ("clean_text", "strip_accents")
    )
    pre = pre_tokenizers.BertPreTokenizer()
    ranges = []
    for code in all_code_points():
        c = chr(code)
        words = [word for word, _ in pre.pre_tokenize_str("a" + c + "b")]
        kind = (
            "C" if clean.normalize_str(c) == "" and code != 0xFFFD
            else "B" if words == ["a", "b"]
            else "P" if words == ["a", c, "b"]
            else "M" if strip.normalize_str(c) == "" else None
        )
        if kind and ranges and ranges[-1][1:] == [code - 1, kind]:
            ranges[-1][1] = code
        elif kind:
            ranges.append([code, code, kind])
    print(", ".join(f"{{0x{first:X}, 0x{last:X}, {kind}}}" for first, last, kind in ranges))


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
    ids = {
        "char": [
            char.encode(text).ids if all_known else None for text, all_known in zip(texts, known)
        ]
    }
    for name, tokenizer in make_variants().items():
        save(tokenizer, name)
        # a part of the ids is sufficient, because the words test a pattern better
        step = 4 if name in PATTERNS else 1
        ids[name] = [
            tokenizer.encode(text).ids if i % step == 0 else None for i, text in enumerate(texts)
        ]
    # in the byte alphabet, one character is one byte
    pre_tokenizers_by_name = {
        "gpt2": byte_level(), **{name: split_words(p) for name, p in PATTERNS.items()}
    }
    words = {
        name: [[len(word) for word, _ in pre.pre_tokenize_str(text)] for text in texts]
        for name, pre in pre_tokenizers_by_name.items()
    }
    write_wordpiece()
    write_around()
    write_families()
    with open(os.path.join(FOLDER, "expected.json"), "w") as file:
        file.write(
            json.dumps({"texts": texts, "ids": ids, "words": words}, separators=(",", ":")).replace(
                "]],", "]],\n"
            ) + "\n"
        )


def run_encode(program, tokenizer, text, *flags):
    ids = subprocess.run(
        [program, "tokenizer", "encode", "--tokenizer", tokenizer, *flags], input=text.encode(),
        stdout=subprocess.PIPE, check=True
    ).stdout
    return [[int(i) for i in line.split()] for line in ids.split(b"\n")[:-1]]


def pairs_tokenizer():
    """All 65,536 pairs of bytes as merges in a random order: ids depend on word boundaries."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in letters for b in letters]
    random.Random(1).shuffle(merges)
    vocab = {c: i for i, c in enumerate(letters + [a + b for a, b in merges])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = byte_level()
    t.decoder = decoders.ByteLevel()
    return t


def compare_texts(name, program, folder, texts, whole):
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokens = differ = 0
    batch = ["\n\n".join(texts)] if whole else texts
    ours = run_encode(
        program, folder, "\n".join(batch) + ("" if whole else "\n"), "--special",
        *(["--whole"] if whole else [])
    )
    plain = {"add_special_tokens": False}
    encoded = (
        [tokenizer.encode(batch[0], **plain)] if whole else tokenizer.encode_batch(batch, **plain)
    )
    for text, ids, wanted in zip(batch, ours, (e.ids for e in encoded), strict=True):
        tokens += len(wanted)
        if ids != wanted:
            differ += 1
            at = next(
                (i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b),
                min(len(ids), len(wanted))
            )
            if differ <= 5:
                print(
                    f"  {name}: token {at}: {ids[at:at + 5]}, expected {wanted[at:at + 5]},"
                    f" near {tokenizer.decode(wanted[max(0, at - 5):at + 5])!r}"
                )
    size = sum(len(t.encode()) for t in batch) / 1e6
    print(f"{name}: {size:.2f} MB, {tokens} tokens, {len(batch)} texts, {differ} differ")
    return differ == 0


def merges_of(folder):
    merges = json.load(open(os.path.join(folder, "tokenizer.json")))["model"]["merges"]
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]


def compare(program, manual, pages):
    good = True
    with tempfile.TemporaryDirectory() as work:
        english = [
            gzip.open(p).read().decode("utf-8", "replace")
            for p in sorted(glob.glob(manual + "/man?/*.gz"))[:600]
        ]
        corpus = os.path.join(work, "corpus.txt")
        with open(corpus, "w", newline="") as file:
            file.write("\n".join(english))
        folders = {"ours": os.path.join(work, "ours"), "package": os.path.join(work, "package")}
        subprocess.run(
            [
                program, "tokenizer", "train", "--vocab-size", "4096", "--input", corpus,
                "--output", folders["ours"]
            ], check=True
        )
        os.makedirs(folders["package"])
        train_bpe("\n".join(english), 4096, [END]).save(
            os.path.join(folders["package"], "tokenizer.json")
        )
        a, b = merges_of(folders["ours"]), merges_of(folders["package"])
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print(
            f"trained on {os.path.getsize(corpus) / 1e6:.2f} MB: {len(a)} and {len(b)} merges,"
            f" the first {first} are equal"
        )
        good &= a == b
        points, strings = list(code_points(37)), random_lines()
        pairs = pairs_tokenizer()
        patterns = {
            "pairs, " + name: change_tokenizer(pairs, split_words(pattern))
            for name, pattern in PATTERNS.items()
        }
        for name, tokenizer in {**make_variants(), "pairs, gpt2": pairs, **patterns}.items():
            folders[name] = os.path.join(work, name)
            os.makedirs(folders[name])
            tokenizer.save(os.path.join(folders[name], "tokenizer.json"))
        for name, folder in folders.items():
            few = name not in ("ours", "package")
            chosen = cut_pages(pages, 1e6) if few else pages
            good &= compare_texts(name + ", mixed text", program, folder, chosen, True)
            good &= compare_texts(name + ", random strings", program, folder, strings, False)
            hard = [t for t in TEXTS if "\n" not in t]
            good &= compare_texts(name + ", difficult texts", program, folder, hard, False)
            good &= compare_texts(name + ", joined texts", program, folder, TEXTS, True)
            good &= compare_texts(name + ", code points", program, folder, points, False)
    return good


def compare_wordpiece(program, pages):
    good = True
    with tempfile.TemporaryDirectory() as folder:
        corpus = os.path.join(folder, "corpus.txt")
        with open(corpus, "w", newline="") as file:
            file.write("\n".join(pages))
        subprocess.run(
            [
                program, "tokenizer", "train", "--type", "wordpiece", "--vocab-size", "8192",
                "--input", corpus, "--output", folder
            ], check=True
        )
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        pairs = [
            f"{a}\t{b}" for a, b in zip(TEXTS, reversed(TEXTS))
            if not {"\n", "\t", "\r"} & set(a + b)
        ]
        lines = [line for page in pages for line in page.split("\n")]
        for name, texts in {
            "lines of mixed text": lines, "random strings": random_lines(),
            "difficult texts": [t for t in BERT_TEXTS if "\n" not in t],
            "code points": list(code_points(1))
        }.items():
            ours = run_encode(program, folder, "\n".join(texts) + "\n", "--special")
            wanted = tokenizer.encode_batch(texts, add_special_tokens=False)
            differ = sum(a != b.ids for a, b in zip(ours, wanted, strict=True))
            print(
                f"wordpiece, {name}: {len(texts)} texts, {sum(len(a) for a in ours)} tokens,"
                f" {differ} differ"
            )
            good &= differ == 0
        ours = run_encode(program, folder, "\n".join(pairs) + "\n", "--special", "--pair")
        wanted = tokenizer.encode_batch([tuple(p.split("\t")) for p in pairs])
        differ = sum(a != b.ids for a, b in zip(ours, wanted, strict=True))
        print(f"wordpiece, pairs: {len(pairs)} texts, {differ} differ")
    return good and differ == 0


def run_decode(program, tokenizer, lines):
    text = "\n".join(" ".join(map(str, ids)) for ids in lines) + "\n"
    return subprocess.run(
        [program, "tokenizer", "decode", "--tokenizer", tokenizer, "--special"], input=text.encode(),
        stdout=subprocess.PIPE, check=True
    ).stdout.decode("utf-8", "replace")


def compare_family(name, program, folder, tokenizer, whole, lines):
    """Ids on the whole text and on lines, decoded texts of the lines, and the speed."""
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    wanted = [tokenizer.encode(line) for line in lines]
    ours = run_encode(program, folder, "\n".join(lines) + "\n", "--special")
    differ = [i for i, (a, b) in enumerate(zip(ours, wanted, strict=True)) if a != b]
    for i in differ[:5]:
        print(f"  {name}: {lines[i]!r}\n    {ours[i]}\n    {wanted[i]}")
    print(f"{name}, random strings: {len(lines)} texts, {len(differ)} differ")
    decoded = [tokenizer.decode(ids) for ids in wanted]
    same = run_decode(program, folder, wanted) == "\n".join(decoded) + "\n"
    print(f"{name}, decoded random strings: {len(lines)} texts, {'0' if same else 'some'} differ")
    began = time.monotonic()
    wanted = tokenizer.encode(whole)
    python = time.monotonic() - began
    began = time.monotonic()
    ours = run_encode(program, folder, whole, "--whole", "--special")[0]
    c, size = time.monotonic() - began, len(whole.encode()) / 1e6
    if ours != wanted:
        at = next((i for i, (a, b) in enumerate(zip(ours, wanted)) if a != b), 0)
        print(f"  {name}: token {at}: {ours[at:at + 5]}, expected {wanted[at:at + 5]}")
    print(f"{name}, mixed text: {size:.2f} MB, {len(wanted)} tokens, 1 texts,"
          f" {int(ours != wanted)} differ; {size / python:.2f} MB/s with the package,"
          f" {size / c:.2f} MB/s with Bireme", flush=True)
    return not differ and same and ours == wanted


def compare_families(program, pages):
    good, whole, lines = True, "\n\n".join(pages), random_lines()
    families = tokenizer_families.make_families(CORPUS, PATTERNS)
    families.update(
        roberta=make_roberta(), roberta_early=make_roberta(True, True, True), llama3=make_begun()
    )
    for name in PATTERNS:
        families["pattern " + name] = Tokenizer.from_file(
            os.path.join(FOLDER, name, "tokenizer.json")
        )
    with tempfile.TemporaryDirectory() as work:
        for name, tokenizer in families.items():
            fast = tokenizer_families.Fast(tokenizer)
            good &= compare_family(name, program, work, fast, whole, lines)
    with tempfile.TemporaryDirectory() as work:
        try:
            byt5 = tokenizer_families.Byt5()
        except ImportError:
            print("byt5: skipped, because the package transformers is missing")
            return good
        return compare_family("byt5", program, work, byt5, whole, lines) and good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    commands.add_parser("classes")
    for name, megabytes in ("compare", 10), ("compare-families", 1):
        c = commands.add_parser(name)
        c.add_argument("program")
        add_text_arguments(c, megabytes)
    arguments = parser.parse_args()
    if arguments.command in ("write", "classes"):
        write() if arguments.command == "write" else print_classes()
        return 0
    program, pages = os.path.abspath(arguments.program), mixed_pages(arguments)
    if arguments.command == "compare-families":
        return 0 if compare_families(program, pages) else 1
    good = compare(program, arguments.manual, pages)
    good = compare_wordpiece(program, pages) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
