#!/usr/bin/env python3
"""Makes and checks the references of SentencePiece and Unigram models with the Python packages.

    scripts/reference/make_sentencepiece_reference.py write
        writes tests/reference/tokenizer/sentencepiece/: small models that the package
        sentencepiece trained, the same models as tokenizer.json, and the ids and decoded texts of
        difficult texts, and the length of a text in bits. The tests need only these files.

    scripts/reference/make_sentencepiece_reference.py compare PROGRAM [TEXT...]
        trains models with the package on mixed text (make_tokenizer_reference.py, --megabytes 1).
        Compares the ids and decoded texts of `PROGRAM tokenizer` with those of the packages, also
        of Marian tokenizers: on the mixed text, difficult texts, random strings and code points.
        Exit code 1 if there is a difference.

Needs sentencepiece, protobuf and tokenizers (pip install sentencepiece protobuf tokenizers);
transformers for Marian.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
)

from comparison_texts import add_text_arguments, code_points, mixed_pages
from make_tokenizer_reference import CORPUS, TEXTS

FOLDER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "reference", "tokenizer",
    "sentencepiece"
)
RULES = [ # a few rules of nmt_nfkc and other forms of rules
    ("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\r", " "), ("\u200b", " "),
    ("\u00ad", ""), ("\u0001", ""), ("\ufb01", "fi"), ("\u00bd", "1\u20442"), ("\u2167", "VIII"),
    ("e\u0301", "\u00e9"), ("o\u0308", "\u00f6"), ("\u2026", "..."), ("\uff01", "!"),
    ("ab", "x y"), ("abc", " z "), ("\u1e9b\u0323", "\u1e69"), ("\u00b2", "2")
]
GEMMA_PIECES = [ # user-defined pieces as in Gemma: markers, line ends, tabs and runs of spaces
    "<mask>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "\n\n\n", "\t", "\t\t",
    "\u2581\u2581", "\u2581\u2581\u2581", "\u2581\u2581\u2581\u2581", "<b>", "</b>", "<x>", "<x><y"
]
MORE_TEXTS = [
    "<s>", "</s> a <unk> b <pad>", "<x> a<x>b <x><x>", "<x><y", "<0x41> <0x0A>", "\u2581a \u2581 b",
    "a\u2581b", "abc ab abcabc  ab", "\u1e9b\u0323 \u1e9b e\u0301e", "!!!!!!!!!!", "a" * 100,
    "1234567890 12  34", "   x   ", " <x>  <x> ", "\ufffd", "\u0000a", "\u4f60\u597d\u4e16\u754c",
    "\u00ad", "\u00ad \u00ad", "two  spaces   three", "\U0001f6a3 \U0001f9ff\U0001f9ff",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n\n\n\n", "\t\t\ta\n \n  \n\n x     y\u2581\u2581z",
    "<b>1</b><mask>2 <b <x> </b>  12",
]


def train(corpus, prefix, **options):
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=prefix, minloglevel=2, hard_vocab_limit=False, num_threads=2,
        **options
    )
    os.remove(prefix + ".vocab")
    return prefix + ".model"


def variants(rules):
    """The options of the models, for each kind and each option that changes ids."""
    llama = {
        "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "split_digits": True,
        "allow_whitespace_only_pieces": True
    }
    return {
        "unigram": {"model_type": "unigram", "normalization_rule_tsv": rules, "pad_id": 3},
        "unigram_bytes": {
            "model_type": "unigram", **llama, "user_defined_symbols": ["<x>", "<x><y", "  "],
            "control_symbols": ["<c>"], "add_dummy_prefix": False, "vocab_size": 620
        },
        "bpe": {
            "model_type": "bpe", "normalization_rule_tsv": rules, "unk_surface": "??",
            "treat_whitespace_as_suffix": True, "user_defined_symbols": ["<x>"],
            "bos_piece": "<bos>", "eos_piece": "<eos>"
        },
        "bpe_bytes": {"model_type": "bpe", **llama, "vocab_size": 620},
        "bpe_gemma": {
            "model_type": "bpe", **llama, "vocab_size": 640, "add_dummy_prefix": False,
            "user_defined_symbols": GEMMA_PIECES, "pad_id": 0, "eos_id": 1, "bos_id": 2,
            "unk_id": 3, "pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"
        },
    }


def make_models(folder, corpus, rules, vocab_size, names=None):
    models = {}
    for name, options in variants(rules).items():
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        options = {"vocab_size": vocab_size, "character_coverage": 0.98, **options}
        models[name] = train(corpus, os.path.join(folder, name, "tokenizer"), **options)
    return models


def mark_unused(path):
    """Makes every fifth long piece unused, as sentencepiece does for a smaller vocabulary."""
    with open(path, "rb") as file:
        model = read_model(file.read())
    for i, piece in enumerate(model.pieces):
        if piece.type == 1 and len(piece.piece) > 2 and i % 5 == 0:
            piece.type = 5
    return model.SerializeToString()


def read_model(data):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    return model


def template(single, pair, tokenizer, names):
    return processors.TemplateProcessing(
        single=single, pair=pair,
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )


def unigram_tokenizers(data):
    """The forms of tokenizer.json in which transformers publishes Unigram models."""
    model = read_model(data)
    vocab = [(piece.piece, piece.score) for piece in model.pieces]
    charsmap = model.normalizer_spec.precompiled_charsmap
    precompiled = [normalizers.Precompiled(charsmap)] if charsmap else []
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    metaspace = dict(replacement="\u2581", prepend_scheme="always")

    def make(**options):
        tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, **options))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**metaspace)
        tokenizer.decoder = decoders.Metaspace(**metaspace)
        tokenizer.normalizer = normalizers.Sequence(precompiled + [blanks])
        return tokenizer

    t5 = make()
    t5.normalizer = normalizers.Sequence(precompiled)
    t5.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)]
    )
    t5.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_0>"])
    t5.post_processor = template("$A </s>", "$A </s> $B </s>", t5, ["</s>"])
    xlm = make()
    xlm.add_special_tokens(
        ["<s>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, normalized=False)]
    )
    xlm.post_processor = template("<s> $A </s>", "<s> $A </s> </s> $B </s>", xlm, ["<s>", "</s>"])
    albert = make()
    albert.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(),
            normalizers.Lowercase(), *precompiled, blanks
        ]
    )
    albert.add_special_tokens(["[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True)])
    albert.post_processor = template(
        "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", albert, ["[CLS]", "[SEP]"]
    )
    byte = make(byte_fallback=True)
    byte.normalizer = normalizers.Replace(" ", "\u2581")
    byte.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme="first", split=False
    )
    byte.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    byte.add_tokens(["<x>"])
    return {"t5": t5, "xlm": xlm, "albert": albert, "byte": byte}


def random_ids(rng, count, size):
    return [[rng.randrange(size) for _ in range(rng.randrange(1, 12))] for _ in range(count)]


def write():
    os.makedirs(FOLDER, exist_ok=True)
    rng = random.Random(3)
    texts = TEXTS + MORE_TEXTS
    expected = {"texts": texts, "models": {}, "json": {}}
    with tempfile.TemporaryDirectory() as work:
        corpus, rules = os.path.join(work, "corpus.txt"), os.path.join(work, "rules.tsv")
        write_text(corpus, CORPUS)
        write_rules(rules)
        for name, path in make_models(work, corpus, rules, 320).items():
            data = open(path, "rb").read()
            made = {name: data}
            if name == "bpe_bytes":
                made["bpe_unused"] = mark_unused(path)
            for variant, data in made.items():
                target = os.path.join(FOLDER, variant)
                os.makedirs(target, exist_ok=True)
                with open(os.path.join(target, "tokenizer.model"), "wb") as file:
                    file.write(strip_trainer(data))
                processor = sentencepiece.SentencePieceProcessor(model_proto=data)
                ids = [processor.encode(text) for text in texts]
                sequences = random_ids(rng, 60, processor.get_piece_size())
                expected["models"][variant] = {
                    "ids": ids, "decoded": [processor.decode(i) for i in ids],
                    "bos": processor.bos_id(), "eos": processor.eos_id(),
                    "sequences": [[i, processor.decode(i)] for i in sequences]
                }
        for name, source in (("unigram", ("t5", "xlm", "albert")), ("unigram_bytes", ("byte",))):
            with open(os.path.join(FOLDER, name, "tokenizer.model"), "rb") as file:
                tokenizers = unigram_tokenizers(file.read())
            for form in source:
                expected["json"][form] = expect_json(form, tokenizers[form], texts, rng)
    with open(os.path.join(FOLDER, "expected.json"), "w") as file:
        file.write(json.dumps(expected, separators=(",", ":")).replace("]],", "]],\n") + "\n")


def encode_json(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def expect_json(name, tokenizer, texts, rng):
    os.makedirs(os.path.join(FOLDER, name), exist_ok=True)
    tokenizer.save(os.path.join(FOLDER, name, "tokenizer.json"), pretty=False)
    ids = encode_json(tokenizer, texts)
    sequences = random_ids(rng, 60, tokenizer.get_vocab_size())
    return {
        "ids": ids, "decoded": [tokenizer.decode(i) for i in ids],
        "pair": tokenizer.encode("oars", "banks").ids if name in ("xlm", "albert") else None,
        "sequences": [[i, tokenizer.decode(i)] for i in sequences]
    }


def strip_trainer(data):
    """Removes the names of files of this machine."""
    model = read_model(data)
    del model.trainer_spec.input[:]
    model.trainer_spec.ClearField("model_prefix")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString()


def write_text(path, text):
    with open(path, "w", newline="") as file:
        file.write(text)


def write_rules(path):
    def hexadecimal(text):
        return " ".join(f"{ord(c):04X}" for c in text)

    write_text(path, "".join(f"{hexadecimal(a)}\t{hexadecimal(b)}\n" for a, b in RULES))


def run_program(program, command, folder, text, *flags):
    return subprocess.run(
        [program, "tokenizer", command, "--tokenizer", folder, *flags], input=text.encode(),
        stdout=subprocess.PIPE, check=True
    ).stdout


def random_strings(count):
    rng = random.Random(7)
    alphabets = [
        [chr(c) for c in range(32, 127)], [chr(c) for c in range(0x20, 0x600)],
        list("ab <x>yz\u2581\u3000 "), [chr(c) for c in range(0x4e00, 0x4f00)],
        [chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000 and c not in (10, 13)],
        list("\u0301\u0308\u0323aeo\u0f71\u0f72\u1100\u1161\u11a8\uff76\uff9e "),
    ]
    for _ in range(count):
        alphabet = rng.choice(alphabets)
        yield "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 60)))


def compare_lists(name, what, ours, wanted, texts):
    differ = [i for i, (a, b) in enumerate(zip(ours, wanted, strict=True)) if a != b]
    for i in differ[:5]:
        shown = (repr(texts[i]), str(ours[i]), str(wanted[i]))
        print(f"  {name}: " + "\n    ".join(text[:500] for text in shown))
    print(f"{name}, {what}: {len(wanted)} texts, {len(differ)} differ", flush=True)
    return not differ


def compare_model(name, program, path, texts, pages):
    folder, good = os.path.dirname(path), True
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    for what, batch in texts.items():
        out = run_program(program, "encode", folder, "\n".join(batch) + "\n")
        ours = [[int(i) for i in line.split()] for line in out.split(b"\n")[:-1]]
        wanted = processor.encode(batch)
        good &= compare_lists(name, what, ours, wanted, batch)
    out = run_program(program, "encode", folder, pages, "--whole")
    ids = processor.encode(pages)
    good &= compare_lists(name, f"{len(pages.encode()) / 1e6:.2f} MB of pages as one text",
                          [[int(i) for i in out.split()]], [ids], [""])
    decoded = run_program(program, "decode", folder, out.decode()).decode()
    good &= compare_lists(name, "decoded pages", [decoded.rstrip("\n")],
                          [processor.decode(ids).rstrip("\n")], [""])
    return good


def compare_json(name, program, folder, tokenizer, texts, pages):
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    good = True
    for what, batch in texts.items():
        out = run_program(program, "encode", folder, "\n".join(batch) + "\n", "--special")
        ours = [[int(i) for i in line.split()] for line in out.split(b"\n")[:-1]]
        good &= compare_lists(name, what, ours, encode_json(tokenizer, batch), batch)
    out = run_program(program, "encode", folder, pages, "--whole", "--special")
    ids = encode_json(tokenizer, [pages])[0]
    good &= compare_lists(name, f"{len(pages.encode()) / 1e6:.2f} MB of pages as one text",
                          [[int(i) for i in out.split()]], [ids], [""])
    decoded = run_program(program, "decode", folder, out.decode()).decode()
    good &= compare_lists(name, "decoded pages", [decoded.rstrip("\n")],
                          [tokenizer.decode(ids).rstrip("\n")], [""])
    return good


def write_marian(folder, models):
    """A folder of MarianTokenizer in which some pieces of the models are unknown."""
    os.makedirs(folder)
    pieces = {}
    for side, path in zip(("source", "target"), models):
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        pieces.update(dict.fromkeys(model.id_to_piece(i) for i in range(len(model))))
        shutil.copy(path, os.path.join(folder, side + ".spm"))
    kept = [piece for i, piece in enumerate(pieces) if i % 17 != 5]
    tokens = dict.fromkeys(["</s>", "<unk>", *kept, ">>es<<", ">>fr<<", "<pad>"])
    with open(os.path.join(folder, "vocab.json"), "w") as file:
        json.dump({token: i for i, token in enumerate(tokens)}, file)


def compare_marian(program, work, models, texts, pages):
    """`tokenizer encode` uses the model of the sources; another folder exchanges the models.

    MarianTokenizer recognizes special tokens in every text, as --special does."""
    try:
        from transformers import MarianTokenizer
    except ImportError:
        print("marian: skipped, because the package transformers is missing")
        return True
    good = True
    for name, order in ("marian unigram", models), ("marian bpe", models[::-1]):
        folder = os.path.join(work, name)
        write_marian(folder, order)
        files = ("source.spm", "target.spm", "vocab.json")
        tokenizer = MarianTokenizer(*(os.path.join(folder, file) for file in files))
        for what, batch in {**texts, "pages as one text": [pages]}.items():
            whole = what == "pages as one text"
            out = run_program(
                program, "encode", folder, pages if whole else "\n".join(batch) + "\n", "--special",
                *(["--whole"] if whole else [])
            )
            ours = [[int(i) for i in line.split()] for line in out.split(b"\n")[:-1]]
            wanted = [tokenizer(text, add_special_tokens=False).input_ids for text in batch]
            good &= compare_lists(name, what, ours, wanted, batch)
    return good


def compare(program, pages):
    program, good = os.path.abspath(program), True
    with tempfile.TemporaryDirectory() as work:
        corpus, rules = os.path.join(work, "corpus.txt"), os.path.join(work, "rules.tsv")
        write_text(corpus, pages[:3000000])
        write_rules(rules)
        models = make_models(work, corpus, rules, 4000)
        for kind in ("unigram", "bpe"):
            for rule in ("nmt_nfkc", "nmt_nfkc_cf"):
                folder = os.path.join(work, kind + "_" + rule)
                os.makedirs(folder)
                models[kind + "_" + rule] = train(
                    corpus, os.path.join(folder, "tokenizer"), model_type=kind, vocab_size=4000,
                    normalization_rule_name=rule
                )
        texts = {
            "difficult texts": [t for t in TEXTS + MORE_TEXTS if "\n" not in t and t],
            "random strings": list(random_strings(10000)),
            "code points": list(code_points(37)),
            "lines of pages": [line for line in pages.split("\n") if line]
        }
        for name, path in models.items():
            good &= compare_model(name, program, path, texts, pages)
            if name.startswith("unigram"):
                with open(path, "rb") as file:
                    tokenizers = unigram_tokenizers(file.read())
                for form, tokenizer in tokenizers.items():
                    if form != "byte" or name == "unigram_bytes":
                        folder = os.path.join(work, f"{name}_{form}")
                        good &= compare_json(
                            f"{name}, tokenizer.json as {form}", program, folder, tokenizer, texts,
                            pages
                        )
        marian = [models["unigram_nmt_nfkc"], models["bpe_nmt_nfkc"]]
        return compare_marian(program, work, marian, texts, pages) and good


def write_training():
    """The bits that a model trained by the package needs for the last quarter of the license."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with open(os.path.join(root, "LICENSE"), encoding="utf-8") as file:
        text = " ".join(file.read().split())
    split = text.index(" ", len(text) * 3 // 4)
    with tempfile.TemporaryDirectory() as work:
        corpus = os.path.join(work, "corpus")
        with open(corpus, "w", encoding="utf-8") as file:
            file.write(text[:split])
        model = sentencepiece.SentencePieceProcessor(
            model_file=train(
                corpus, os.path.join(work, "model"), vocab_size=600, model_type="unigram",
                byte_fallback=True, max_sentence_length=1000000, normalization_rule_name="identity",
                remove_extra_whitespaces=False, split_by_unicode_script=False,
                split_by_number=False, required_chars="".join(sorted(set(text) - {" "}))
            )
        )
    ids = model.encode(text[split + 1:])
    assert not any(map(model.is_byte, ids)) and model.unk_id() not in ids
    bits = -sum(map(model.get_score, ids)) / math.log(2)
    with open(os.path.join(FOLDER, "training.json"), "w", encoding="utf-8") as file:
        json.dump({"split": split, "vocabulary": len(model), "bits": bits}, file)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    c = commands.add_parser("compare")
    c.add_argument("program")
    add_text_arguments(c, 1)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write()
        write_training()
        return 0
    return 0 if compare(arguments.program, "\n".join(mixed_pages(arguments))) else 1


if __name__ == "__main__":
    sys.exit(main())
