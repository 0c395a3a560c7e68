"""Small tokenizers with the sections of published models, for make_tokenizer_reference.py."""

import json
import os
import random

from tokenizers import (
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
    trainers
)

MARK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# Texts for normal forms, byte fallback, marks of word beginnings and added tokens
TEXTS = [
    "e\u0301 \u00e9 \u1e09 c\u0327\u0301 \u0344 \u0390 \u03b9\u0308\u0301 \u212b \u2126 \u1100\u1161\u11a8 "
    "\uac00\u11a8 \uac00\u11a7 \uf900 \u0958 \u2adc",
    "a\u0323\u0301 a\u0301\u0323 q\u0307\u0323 q\u0323\u0307 \u0301x \u302e\u302f \u05b0\u05bc",
    "\ufb01 \u00bd \u00b2 \u2460 \uff21\uff22 \u3300 \ufdfa \u0132 \u01c5 \u1e9b\u0323 \u2026",
    "1 12 123 1234 a1b22c333 \u00b2\u00bd\u2167 \u0663\u0664 \u0967\u0968 3.14 -7 0x1F\n42\n",
    f"{MARK} {MARK}{MARK} a{MARK}b {MARK}a  {MARK} ", " leading", "  two leading", "trailing  ",
    "\n", "\na", "a\n", "\n\n\n a\n\nb", "\t\ta\t", "a  b   c    d", " ", "  ", "   ",
    "\u4f60\u597d\u4e16\u754c \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U00012345 \u0e44\u0e17\u0e22",
    "<s> x </s>", "<0x41> <0xZZ> <unk> x<unk>y", "a<tool>b <tool>", "<TOOL> A<Tool>",
    "<bos>x<eos> <start_of_turn>user\n\nhi<end_of_turn>\n", "[INST] hi [/INST]",
    "it isn't THE oars' 120 miles; \u0130stanbul \u1e9e \u017f \u212a", "\u00a0a\u2003b\u3000c\u200bd",
    "\u2713\u00e9 under_score-dash/slash.dot,comma;colon:(paren)[bracket]{brace}", "x" * 60, "\u00e9" * 40,
    "\U0001f600" * 20, f"{MARK}" * 40, "a" + "\u0301\u0323" * 30, "banks  two banks\n two  banks"
]


def edit(tokenizer, change):
    """A tokenizer from the changed JSON of another one."""
    data = json.loads(tokenizer.to_str())
    change(data)
    return Tokenizer.from_str(json.dumps(data))


def train_characters(corpus, size, special, words, normalizer=None, **options):
    t = Tokenizer(models.BPE(unk_token="<unk>", **options))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = words
    t.train_from_iterator([corpus], trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=special, show_progress=False, **options))
    return t


def bos_template(token, id_):
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, id_)]
    )


def sentencepiece(corpus, special, size=700):
    """BPE over characters with U+2581, in which the bytes are ordinary tokens."""
    t = train_characters(
        corpus, size, special + BYTES, pre_tokenizers.Metaspace(prepend_scheme="always")
    )

    def change(data):
        data["model"].update(byte_fallback=True, fuse_unk=True)
        data["added_tokens"] = [a for a in data["added_tokens"] if a["content"] in special]
        data["pre_tokenizer"] = None

    return edit(t, change)


def llama2(corpus):
    t = sentencepiece(corpus, ["<unk>", "<s>", "</s>"])
    t.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    )
    t.decoder = decoders.Sequence([
        decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)
    ])
    t.post_processor = bos_template("<s>", 1)
    return t


def llama2_early(corpus):
    """The special tokens are found after normalization, as in the first files."""

    def change(data):
        for token in data["added_tokens"]:
            token["normalized"] = True

    t = edit(llama2(corpus), change)
    t.add_tokens([AddedToken("<tool>", normalized=True, lstrip=True)])
    return t


def mistral(corpus):
    t = sentencepiece(corpus, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([
        decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)
    ])
    t.post_processor = bos_template("<s>", 1)
    return t


def metaspace(corpus):
    t = sentencepiece(corpus, ["<unk>", "<s>", "</s>"])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    return edit(t, lambda data: data["model"].update(byte_fallback=False, fuse_unk=False))


def gemma(corpus):
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    t = sentencepiece(corpus, special)
    t.normalizer = normalizers.Replace(" ", MARK)
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    t.post_processor = bos_template("<bos>", 2)
    t.add_tokens([AddedToken(text, normalized=False)
                  for text in ("\n", "\n\n", MARK * 2, MARK * 3, "<tool>")])
    return t


def crossing(corpus):
    """Merges that cross the beginning of a word, and some bytes without a token."""
    t = sentencepiece(corpus, ["<unk>", "<s>", "</s>"])

    def change(data):
        vocab, merges = data["model"]["vocab"], data["model"]["merges"]
        for a, b in (("e", MARK), ("s", MARK), ("e" + MARK, "b"), (MARK, MARK), ("two", MARK)):
            if a in vocab and b in vocab and a + b not in vocab:
                vocab[a + b] = len(vocab)
                merges.insert(len(merges) // 2 if len(a) == 1 else len(merges), [a, b])
        for byte in ("<0xF0>", "<0xC3>"):
            vocab["removed" + byte] = vocab.pop(byte)

    t = edit(t, change)
    t.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    )
    t.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()]
    )
    return t


def gpt1(corpus):
    t = train_characters(
        corpus, 500, ["<unk>"], pre_tokenizers.BertPreTokenizer(),
        normalizers.BertNormalizer(), end_of_word_suffix="</w>"
    )
    t.decoder = decoders.BPEDecoder("</w>")
    return t


def subword_prefix(corpus):
    t = train_characters(
        corpus, 500, ["<unk>"], pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=False)]
        ), normalizers.Sequence(
            [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
             normalizers.Strip(), normalizers.Replace("'", "")]
        ), continuing_subword_prefix="##"
    )
    t.decoder = decoders.Sequence([decoders.Replace("##", ""), decoders.Fuse()])
    t.add_tokens([AddedToken("<Tool>", normalized=True)])
    return edit(t, lambda data: data["model"].update(fuse_unk=True))


def byte_level(corpus, pre, normalizer, special):
    t = Tokenizer(models.BPE())
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([corpus], trainers.BpeTrainer(
        vocab_size=500, min_frequency=2, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def qwen2(corpus, pattern):
    t = byte_level(corpus, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ]), normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("\u2713e\u0301")])
    return t


def smollm2(corpus, individual=True):
    return byte_level(corpus, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=individual),
        pre_tokenizers.ByteLevel(add_prefix_space=not individual)
    ]), None, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def gpt_neox(corpus):
    """The tokenizer of GPT-NeoX, which OLMo and StableLM 3B use: runs of spaces are added tokens."""
    t = byte_level(
        corpus, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(),
        ["<|endoftext|>", "<|padding|>"]
    )
    t.post_processor = processors.TemplateProcessing(
        single="$A:0", pair="$A:0 $B:1", special_tokens=[]
    )
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    t.add_tokens([AddedToken("|||EMAIL_ADDRESS|||", normalized=False)])
    return t


def granite(corpus):
    """The tokenizer of Granite 3, of StarCoder's kind: single digits and other special tokens."""
    t = smollm2(corpus)
    t.add_special_tokens(["<fim_prefix>", "<|start_of_role|>", "<|end_of_role|>"])
    t.add_tokens([AddedToken("<|tool_call|>", normalized=False, rstrip=True)])
    return t


def modernbert(corpus):
    t = byte_level(
        corpus, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(),
        ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    )
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return t


def make_families(corpus, patterns):
    return {
        "family_qwen2": qwen2(corpus, patterns["qwen2"]), "family_smollm2": smollm2(corpus),
        "family_digit_runs": smollm2(corpus, False), "family_llama2": llama2(corpus),
        "family_llama2_early": llama2_early(corpus), "family_mistral": mistral(corpus),
        "family_metaspace": metaspace(corpus), "family_gemma": gemma(corpus),
        "family_crossing": crossing(corpus), "family_gpt1": gpt1(corpus),
        "family_prefix": subword_prefix(corpus), "family_modernbert": modernbert(corpus),
        "family_gpt_neox": gpt_neox(corpus), "family_granite": granite(corpus)
    }


def expect(tokenizer, texts):
    """The token before each text, the ids of texts, and their decoded texts.

    `around`: the ids of some texts with the tokens of the post-processor, if these enclose a text.

    A decoded text is None if it equals the text, and without special tokens, if it has none."""
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    around = [tokenizer.encode(text).ids for text in texts]
    added = [len(a) - len(i) for a, i in zip(around, ids)]
    first = {a[0] if n == 1 else -1 for a, n in zip(around, added)}
    assert len(first) == 1
    decoded = [tokenizer.decode(i, skip_special_tokens=False) for i in ids]
    # decode() of the package keeps special tokens that its normalizer changes
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    without = [
        tokenizer.decode([i for i in list_ if i not in special], skip_special_tokens=False)
        for list_ in ids
    ]
    return {
        "bos": first.pop(), "around": around[:20] if added[0] == 2 else None, "ids": ids,
        "decoded": [None if d == text else d for d, text in zip(decoded, texts)],
        "without_special": [None if w == d else w for w, d in zip(without, decoded)]
    }


FORMS = {
    "NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(), "Lowercase": normalizers.Lowercase(),
    "StripAccents": normalizers.StripAccents()
}


def form_digests(digest, code_points):
    """Digests of the normal forms of texts with every code point, and of the numbers of words."""
    digests = {}
    for name, normalizer in FORMS.items():
        lines = (
            normalizer.normalize_str(f"a{chr(c)}\u0323\u0301{chr(c)}b \u0301{chr(c)}\u1161\u11a8")
            for c in code_points()
        )
        digests[name] = digest(lines)
    digits = pre_tokenizers.Digits(individual_digits=True)
    digests["Digits"] = digest(
        str(len(digits.pre_tokenize_str(f"a{chr(c)}b"))) for c in code_points()
    )
    return digests


def random_texts(count, seed):
    """Random strings of many scripts, marks, blanks, digits and parts of special tokens."""
    r = random.Random(seed)
    pieces = (
        [chr(c) for c in range(32, 127)] * 3 + [" ", "  ", "\n", "\t", MARK, "e\u0301", "'s", "12"]
        * 10 + ["<s>", "</s>", "<unk>", "<tool>", "<bos>", "[INST]", "<0x41>", "<|im_end|>"]
        + ["the", " two", " banks", "oars", "stroke", " and"] * 6
    )
    blocks = [
        (0xA0, 0x500), (0x300, 0x370), (0x590, 0x700), (0x900, 0xE80), (0x1100, 0x1200),
        (0x1E00, 0x2100), (0x2100, 0x2C00), (0x3000, 0x3200), (0x4E00, 0x5000), (0xAC00, 0xD7A4),
        (0xF900, 0xFB50), (0xFE00, 0xFFF0), (0x10000, 0x12000), (0x1D100, 0x1D800),
        (0x1F300, 0x1FB00), (0x20000, 0x20100)
    ]

    def piece():
        if r.random() < 0.6:
            return r.choice(pieces)
        return chr(r.randrange(*r.choice(blocks)))

    return ["".join(piece() for _ in range(r.randrange(1, 40))) for _ in range(count)]


class Byt5:
    """ByT5Tokenizer of transformers with the methods of a Tokenizer that compare_families calls."""

    def __init__(self):
        import transformers
        self.tokenizer = transformers.ByT5Tokenizer()

    def save(self, path):
        with open(os.path.join(os.path.dirname(path), "tokenizer_config.json"), "w") as file:
            json.dump({"tokenizer_class": "ByT5Tokenizer"}, file)

    def encode(self, text):
        return self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(text))

    def decode(self, ids):
        return self.tokenizer.decode(ids)


class Fast:
    """The same methods of a Tokenizer of the package tokenizers."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def save(self, path):
        self.tokenizer.save(path)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)
