#!/usr/bin/env python3
"""Compares GGUF files of `bireme export` with transformers, through llama.cpp.

    scripts/check_gguf.py [--program build/trainer/bireme]

Makes small models with random weights in transformers, imports and exports them with Bireme, and
loads the GGUF files with llama.cpp. Prints a table and exits with 1 if a line is out of its limit:

    decoders    the same token ids, the same 24 greedy tokens, logits in f32
    BERT        mean embeddings
    trained     perplexity of a small trained model in q8_0 and q4_0 against f32

Requires torch, transformers, tokenizers, sentencepiece and llama-cpp-python. Without them it exits
with 77.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
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


def wordpiece_tokenizer():
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(corpus(), vocab_size=VOCABULARY)
    return t.BertTokenizerFast(tokenizer_object=tokenizer._tokenizer)


def write_pieces(folder):
    """Writes a SentencePiece BPE model like that of Llama 2; returns its processor."""
    text = folder / "text"
    text.write_text("\n".join(corpus()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), vocab_size=VOCABULARY,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2)
    text.unlink()
    (folder / "tokenizer.vocab").unlink()
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "<s>"}')
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
    "olmo2": (lambda: t.Olmo2ForCausalLM(t.Olmo2Config(**SMALL)), 1e-5),
    "smollm3": (lambda: t.SmolLM3ForCausalLM(t.SmolLM3Config(
        **{**SMALL, "num_hidden_layers": 4}, pad_token_id=0)), 1e-5),
}


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


def check_bert(check):
    tokenizer = wordpiece_tokenizer()
    model = draw_weights(t.BertModel(t.BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=160,
        vocab_size=VOCABULARY, max_position_embeddings=128)))
    model.save_pretrained(check.folder / "bert")
    tokenizer.save_pretrained(check.folder / "bert")
    check.export("bert", ["f32"])
    llama = check.open("bert", "f32", embedding=True)
    encoded = tokenizer(TEXT, return_tensors="pt")
    found = llama.tokenize(TEXT.encode(), add_bos=True, special=False)
    ids = encoded["input_ids"][0].tolist()
    check.report("bert", "token ids", str(len(ids)), found in (ids, ids[:-1]))
    with torch.no_grad():
        expected = model(**encoded).last_hidden_state[0].mean(0).numpy()
    expected /= np.linalg.norm(expected)
    actual = np.array(llama.embed(TEXT, normalize=True))
    error = np.abs(actual - expected).max()
    check.report("bert", "embedding", f"{error:.1e}", error <= 1e-3)


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
        check_bert(check)
        check_quantized(check)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
