#!/usr/bin/env python3
"""Compares GGUF files of `bireme export` with transformers, through llama.cpp.

    scripts/peers/check_gguf.py [--program build/trainer/bireme]

Makes small models with random weights in transformers, imports and exports them with Bireme, and
loads the GGUF files with llama.cpp. Prints a table and exits with 1 if a line is out of its limit:

    decoders    the same token ids, the same 24 greedy tokens, logits in f32
    encoders    the same token ids, mean embeddings
    T5          the same token ids, the same 24 greedy tokens, logits in f32
    Unigram     the same token ids as from tokenizers and sentencepiece
    trained     perplexity of a small trained model in q8_0 and q4_0 against f32

Requires torch, transformers, tokenizers, sentencepiece and llama-cpp-python. Without them it exits
with 77.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = "The system calls return -1 on error; errno 42 is set, and naïve callers fail."
VOCABULARY = 512

try:
    import llama_cpp
    import numpy as np
    import sentencepiece
    import tokenizers
    import torch
    import transformers as t
except ImportError as error:
    print(f"check_gguf: skipped: {error}")
    sys.exit(77)


def corpus():
    return [p.read_text() for p in sorted((ROOT / "docs").rglob("*.md"))]


def byte_tokenizer():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    return t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>",
                                     bos_token="<|endoftext|>")


def encoder_tokenizer(normalizer, cls, sep, processor):
    """Makes a BPE tokenizer over bytes with special tokens around each text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = [cls, "[PAD]" if cls == "[CLS]" else "<pad>", sep,
               "[UNK]" if cls == "[CLS]" else "<unk>", "[MASK]" if cls == "[CLS]" else "<mask>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processor(tokenizer.token_to_id(cls), tokenizer.token_to_id(sep))
    return t.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token=cls, pad_token=special[1], sep_token=sep,
        unk_token=special[3], mask_token=special[4])


def roberta_tokenizer():
    return encoder_tokenizer(None, "<s>", "</s>", lambda cls, sep:
                             tokenizers.processors.RobertaProcessing(
                                 ("</s>", sep), ("<s>", cls), add_prefix_space=False))


def modernbert_tokenizer():
    return encoder_tokenizer(tokenizers.normalizers.NFC(), "[CLS]", "[SEP]", lambda cls, sep:
                             tokenizers.processors.TemplateProcessing(
                                 single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                 special_tokens=[("[CLS]", cls), ("[SEP]", sep)]))


def wordpiece_tokenizer():
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(corpus(), vocab_size=VOCABULARY)
    return t.BertTokenizerFast(tokenizer_object=tokenizer._tokenizer)


def write_pieces(folder, **options):
    """Writes a SentencePiece model, by default like the one of Llama 2; returns its processor."""
    options = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
               "remove_extra_whitespaces": False, **options}
    text = folder / "text"
    text.write_text("\n".join(corpus()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), vocab_size=VOCABULARY,
        minloglevel=2, **options)
    text.unlink()
    (folder / "tokenizer.vocab").unlink()
    if options.get("bos_id") != -1:
        config = '{"add_bos_token": true, "bos_token": "<s>"}'
        (folder / "tokenizer_config.json").write_text(config)
    return sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))


SMALL = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=160, vocab_size=VOCABULARY, max_position_embeddings=128)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
# llama.cpp reads GELU from a table in f16, so its logits differ by about 4e-4.
DECODERS = {
    "gpt2": (lambda: t.GPT2LMHeadModel(t.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_positions=128, vocab_size=VOCABULARY)), 2e-3),
    "llama": (lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL, rope_scaling=LLAMA3)), 1e-5),
    "llama-pieces": (lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL)), 1e-5),
    "mistral": (lambda: t.MistralForCausalLM(t.MistralConfig(
        **SMALL, sliding_window=None, head_dim=16)), 1e-5),
    "qwen2": (lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SMALL)), 1e-5),
    "qwen3": (lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SMALL, head_dim=32)), 1e-5),
    "gemma3": (lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 3}, head_dim=32, sliding_window=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=32)), 2e-3),
    "granite": (lambda: t.GraniteForCausalLM(t.GraniteConfig(
        **SMALL, embedding_multiplier=3.0, attention_multiplier=0.1, residual_multiplier=0.5,
        logits_scaling=2.0)), 1e-5),
    "olmo": (lambda: t.OlmoForCausalLM(t.OlmoConfig(**SMALL)), 1e-5),
    "olmo2": (lambda: t.Olmo2ForCausalLM(t.Olmo2Config(**SMALL)), 1e-5),
    "phi3": (lambda: t.Phi3ForCausalLM(t.Phi3Config(
        **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                  "partial_rotary_factor": 0.75}, pad_token_id=0)), 1e-5),
    "stablelm": (lambda: t.StableLmForCausalLM(t.StableLmConfig(
        **SMALL, use_qkv_bias=True)), 1e-5),
    "stablelm-tied": (lambda: t.StableLmForCausalLM(t.StableLmConfig(
        **SMALL, tie_word_embeddings=True)), 1e-5),
    "gemma2": (lambda: t.Gemma2ForCausalLM(t.Gemma2Config(
        **SMALL, head_dim=32, sliding_window=16, query_pre_attn_scalar=32,
        attn_logit_softcapping=5.0, final_logit_softcapping=3.0)), 2e-3),
    "smollm3": (lambda: t.SmolLM3ForCausalLM(t.SmolLM3Config(
        **{**SMALL, "num_hidden_layers": 4}, pad_token_id=0)), 1e-5),
}


ENCODER = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=160,
               vocab_size=VOCABULARY, max_position_embeddings=128)
ENCODERS = {
    "bert": (lambda: t.BertModel(t.BertConfig(**ENCODER)), wordpiece_tokenizer),
    "distilbert": (lambda: t.DistilBertModel(t.DistilBertConfig(
        n_layers=2, dim=64, n_heads=4, hidden_dim=160, vocab_size=VOCABULARY,
        max_position_embeddings=128)), wordpiece_tokenizer),
    "roberta": (lambda: t.RobertaModel(t.RobertaConfig(
        **{**ENCODER, "max_position_embeddings": 130}, type_vocab_size=1, bos_token_id=0,
        pad_token_id=1, eos_token_id=2)), roberta_tokenizer),
    "modernbert": (lambda: t.ModernBertModel(t.ModernBertConfig(
        **{**ENCODER, "num_hidden_layers": 4}, local_attention=16, global_attn_every_n_layers=3,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)),
        modernbert_tokenizer),
}
# Unigram tokenizers of tests/reference/tokenizer/sentencepiece. The last one has byte fallback,
# which llama.cpp does not have, so its text has no unknown characters.
UNIGRAM = ROOT / "tests/reference/tokenizer/sentencepiece"
UNIGRAM_TEXTS = {"t5": TEXT, "xlm": TEXT, "byte": "The system calls return on error."}


# T5 1.0 and 1.1. The source is longer than the maximum distance of the position bias, 128 tokens.
T5_PIECES = dict(model_type="unigram", byte_fallback=False, normalization_rule_name="nmt_nfkc",
                 remove_extra_whitespaces=True, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
SEQ2SEQ = {"t5": (dict(feed_forward_proj="relu"), 1e-5),
           "t5-gated": (dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), 5e-3)}
SOURCE = " ".join([TEXT] * 4)


class Check:
    def __init__(self, program, folder):
        self.program, self.folder, self.failed = program, folder, False

    def run(self, *arguments):
        subprocess.run([self.program, *map(str, arguments)], check=True, cwd=self.folder,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def export(self, name, types):
        self.run("import", name, "--output", name + "-checkpoint")
        for kind in types:
            self.run("export", "--format", "gguf", "--checkpoint", name + "-checkpoint", "--type",
                     kind, "--output", f"{name}-{kind}.gguf")

    def open(self, name, kind, **options):
        return llama_cpp.Llama(str(self.folder / f"{name}-{kind}.gguf"), n_ctx=256, n_threads=1,
                               type_k=0, type_v=0, verbose=False, **options)

    def report(self, name, what, value, good):
        self.failed |= not good
        print(f"{name:14} {what:28} {value:12} {'ok' if good else 'FAILED'}")


def draw_weights(model):
    torch.manual_seed(0)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.15)
    return model.eval()


def decode_greedily(llama, ids, count):
    llama.reset()
    llama.eval(ids)
    tokens = []
    for _ in range(count):
        tokens.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
        llama.eval(tokens[-1:])
    return tokens


def perplexity(llama, ids):
    llama.reset()
    llama.eval(ids)
    rows = torch.from_numpy(np.array(llama.scores[:len(ids) - 1]))
    return torch.nn.functional.cross_entropy(rows, torch.tensor(ids[1:])).exp().item()


def check_decoder(check, name, make, limit, tokenizer):
    model = draw_weights(make())
    folder = check.folder / name
    model.save_pretrained(folder)
    if name == "llama-pieces":
        ids = [1] + write_pieces(folder).encode(TEXT)
    else:
        tokenizer.save_pretrained(folder)
        ids = tokenizer(TEXT)["input_ids"]
    check.export(name, ["f32"])
    llama = check.open(name, "f32", logits_all=True)
    found = llama.tokenize(TEXT.encode(), add_bos=True, special=False)
    check.report(name, "token ids", str(len(ids)), found == ids)
    llama.eval(ids)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
        tokens = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False,
                                eos_token_id=None, pad_token_id=0)[0].tolist()[len(ids):]
    error = np.abs(llama.scores[:len(ids)] - expected).max() / np.abs(expected).max()
    check.report(name, "logits, relative", f"{error:.1e}", error <= limit)
    check.report(name, "greedy tokens", "24", decode_greedily(llama, ids, 24) == tokens)


def check_encoder(check, name, make, make_tokenizer):
    tokenizer = make_tokenizer()
    model = draw_weights(make())
    model.save_pretrained(check.folder / name)
    tokenizer.save_pretrained(check.folder / name)
    check.export(name, ["f32"])
    llama = check.open(name, "f32", embedding=True)
    encoded = tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    found = llama.tokenize(TEXT.encode(), add_bos=True, special=False)
    ids = encoded["input_ids"][0].tolist()
    check.report(name, "token ids", str(len(ids)), found in (ids, ids[:-1]))
    with torch.no_grad():
        expected = model(**encoded).last_hidden_state[0].mean(0).numpy()
    expected /= np.linalg.norm(expected)
    actual = np.array(llama.embed(TEXT, normalize=True))
    error = np.abs(actual - expected).max()
    # llama.cpp reads the tanh form of GELU from a table in f16. With the form of the model in f32,
    # the error is 2e-7.
    limit = 3e-4 if name == "modernbert" else 1e-4
    check.report(name, "embedding", f"{error:.1e}", error <= limit)


def make_t5(**settings):
    config = t.T5Config(d_model=64, d_kv=16, d_ff=160, num_layers=3, num_decoder_layers=2,
                        num_heads=4, vocab_size=VOCABULARY, decoder_start_token_id=0, **settings)
    model = t.T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs:  # T5 1.1
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    return draw_weights(model)


class Seq2Seq:
    """An encoder-decoder in llama.cpp."""

    def __init__(self, path):
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = 0
        options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # its keys are f16
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)

    def tokenize(self, text):
        ids = (llama_cpp.llama_token * 512)()
        data = text.encode()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), ids, 512, True, False)
        return list(ids[:count])

    def run(self, function, ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        assert function(self.context, llama_cpp.llama_batch_get_one(tokens, len(ids))) == 0

    def generate(self, ids, count):
        """Returns greedy tokens after the start token, and the logits of each."""
        self.run(llama_cpp.llama_encode, ids)
        tokens, logits = [llama_cpp.llama_model_decoder_start_token(self.model)], []
        for _ in range(count):
            self.run(llama_cpp.llama_decode, tokens[-1:])
            row = llama_cpp.llama_get_logits_ith(self.context, -1)
            size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
            logits.append(np.ctypeslib.as_array(row, shape=(size,)).copy())
            tokens.append(int(np.argmax(logits[-1])))
        return tokens, np.array(logits)


def check_seq2seq(check, name, settings, limit):
    model = make_t5(**settings)
    model.save_pretrained(check.folder / name)
    ids = write_pieces(check.folder / name, **T5_PIECES).encode(SOURCE) + [T5_PIECES["eos_id"]]
    check.export(name, ["f32"])
    llama = Seq2Seq(check.folder / f"{name}-f32.gguf")
    check.report(name, "token ids", str(len(ids)), llama.tokenize(SOURCE) == ids)
    found, logits = llama.generate(ids, 24)
    with torch.no_grad():
        tokens = model.generate(torch.tensor([ids]), max_new_tokens=24, min_new_tokens=24,
                                do_sample=False, eos_token_id=None)[0].tolist()
        expected = model(input_ids=torch.tensor([ids]),
                         decoder_input_ids=torch.tensor([found[:-1]])).logits[0].numpy()
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    check.report(name, "logits, relative", f"{error:.1e}", error <= limit)
    check.report(name, "greedy tokens", "24", found == tokens)


def check_unigram(check, name, write, texts):
    """Compares the ids of a small Llama with this tokenizer, also after an import."""
    folder = check.folder / name
    folder.mkdir()
    encode, count = write(folder)
    t.LlamaForCausalLM(t.LlamaConfig(**{**SMALL, "vocab_size": count})).save_pretrained(folder)
    check.export(name, ["f32"])
    llama = check.open(name, "f32")
    equal = [llama.tokenize(x.encode(), add_bos=False, special=False) == encode(x) for x in texts]
    check.report(name, "token ids", f"{sum(equal)} of {len(equal)}", all(equal))


def copy_unigram(name):
    def write(folder):
        shutil.copy(UNIGRAM / name / "tokenizer.json", folder)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        return (lambda x: tokenizer.encode(x, add_special_tokens=False).ids,
                tokenizer.get_vocab_size())
    return write


def write_unigram(**options):
    def write(folder):
        processor = write_pieces(folder, model_type="unigram", **options)
        (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
        return processor.encode, VOCABULARY
    return write


def check_unigrams(check):
    spaces = [TEXT, "  two  spaces  ", "Ｆｕｌｌ ｗｉｄｔｈ ﬁ", "a", " x"]
    for name, text in UNIGRAM_TEXTS.items():
        check_unigram(check, "unigram-" + name, copy_unigram(name), [text, "a", "the  work"])
    check_unigram(check, "unigram-nfkc", write_unigram(
        byte_fallback=False, normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True),
        spaces)
    check_unigram(check, "unigram-plain", write_unigram(byte_fallback=False), spaces)


RECIPE = """
objective: clm
model: {architecture: llama, num_layers: 2, hidden_size: 128, num_heads: 4,
  max_position_embeddings: 256}
data: {tokenizer: pages-tokenizer, train: pages/train-*.h5}
batch: {global_size: 8}
optimizer: {learning_rate: 3.0e-3}
train: {max_steps: 300}
run_dir: trained-checkpoint
"""


def check_quantized(check):
    """Trains a model on the documentation and measures both types on the last page."""
    (check.folder / "pages.txt").write_text("\n".join(corpus()[:-1]))
    (check.folder / "recipe.yaml").write_text(RECIPE)
    check.run("tokenizer", "train", "--vocab-size", "1024", "--input", "pages.txt", "--output",
              "pages-tokenizer")
    check.run("prepare", "--tokenizer", "pages-tokenizer", "--input", "pages.txt", "--output",
              "pages")
    check.run("train", "recipe.yaml")
    results = {}
    for kind in ["f32", "q8_0", "q4_0"]:
        check.run("export", "--format", "gguf", "--checkpoint", "trained-checkpoint", "--type",
                  kind, "--output", f"trained-{kind}.gguf")
        llama = check.open("trained", kind, logits_all=True)
        ids = llama.tokenize(corpus()[-1].encode(), add_bos=False, special=False)[:256]
        results[kind] = perplexity(llama, ids)
    check.report("trained", "perplexity in f32", f"{results['f32']:.2f}", results["f32"] < 200)
    for kind, limit in [("q8_0", 0.005), ("q4_0", 0.1)]:
        ratio = results[kind] / results["f32"]
        check.report("trained", f"perplexity of {kind} / f32", f"{ratio:.4f}",
                     abs(ratio - 1) <= limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/trainer/bireme"))
    program = os.path.abspath(parser.parse_args().program)
    t.logging.set_verbosity_error()
    t.logging.disable_progress_bar()
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(program, pathlib.Path(folder))
        for name, (make, limit) in DECODERS.items():
            check_decoder(check, name, make, limit, tokenizer)
        for name, (make, make_tokenizer) in ENCODERS.items():
            check_encoder(check, name, make, make_tokenizer)
        for name, (settings, limit) in SEQ2SEQ.items():
            check_seq2seq(check, name, settings, limit)
        check_unigrams(check)
        check_quantized(check)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
