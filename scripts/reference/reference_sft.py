"""References of supervised fine-tuning, made with TRL's SFTTrainer; make_reference.py calls this
module. tests/reference/sft has rows, a tokenizer, a tiny GPT-2 and the log of three steps, and
sft_qwen3 a tiny Qwen3 and its log, for tests/trainer/train/test_sft.sh.
"""
import json
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
)
from trl import SFTConfig, SFTTrainer

SFT_PAIRS = [
    ("What does ls do?", " It lists files."),
    ("What does option -a of ls do?", " It shows all of the entries, hidden ones too."),
    ("What does cat do?", " It prints files."),
    ("What does cp do?", " It copies files and directories."),
    ("What does option -r of cp do?", " It copies directories recursively."),
    ("What does mv do?", " It moves."),
    ("What does rm do?", " It removes files or directories, and there is no way back from it."),
    ("Who?", " I."),
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def sft_messages():
    """Conversations with two answers each; every other one has a system message."""
    rows = []
    for i in range(0, len(SFT_PAIRS), 2):
        messages = [{"role": "system", "content": "Be brief."}] if i % 4 == 0 else []
        for prompt, completion in SFT_PAIRS[i : i + 2]:
            messages += [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": completion.strip()},
            ]
        rows.append({"messages": messages})
    return rows


def run_sft(name, model, rows, tokenizer, assistant_only):
    """The log of three steps of SFTTrainer on all rows."""
    with tempfile.TemporaryDirectory() as out:
        args = SFTConfig(
            output_dir=out, per_device_train_batch_size=len(rows), max_steps=3,
            learning_rate=1e-2, lr_scheduler_type="constant", logging_steps=1, report_to="none",
            bf16=False, use_cpu=True, max_length=128, assistant_only_loss=assistant_only,
            gradient_checkpointing=False, save_strategy="no"
        )
        trainer = SFTTrainer(
            model=model, args=args, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer
        )
        trainer.train()
    return [
        f"{name} {log['loss']:.9g} {log['mean_token_accuracy']:.9g} {log['entropy']:.9g} "
        f"{log['num_tokens']:.0f} {log['grad_norm']:.9g}\n"
        for log in trainer.state.log_history[:3]
    ]


def write_sft_qwen3(folder, tokenizer):
    """The same rows of pairs with a tiny Qwen3."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(6)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), max_position_embeddings=128, hidden_size=16,
            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=12,
            intermediate_size=24, tie_word_embeddings=True, initializer_range=0.3, eos_token_id=0,
            bos_token_id=0, pad_token_id=0
        )
    )
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    pairs = [{"prompt": a, "completion": b} for a, b in SFT_PAIRS]
    (folder / "expected.txt").write_text(
        "".join(run_sft("pairs", model, pairs, tokenizer, False))
    )
    print(folder)


def write_sft(references):
    """Rows, a tokenizer, a tiny model, and the log of three steps of SFTTrainer on all rows."""
    folder = references / "sft"
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [a + b for a, b in SFT_PAIRS],
        trainers.BpeTrainer(
            vocab_size=300,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHATML
    tokenizer.save(str(folder / "tokenizer.json"))
    pairs = [{"prompt": a, "completion": b} for a, b in SFT_PAIRS]
    lines = []
    for name, rows, only in (("pairs", pairs, False), ("messages", sft_messages(), True)):
        with open(folder / f"{name}.jsonl", "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        torch.manual_seed(5)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(fast), n_positions=128, n_embd=16, n_layer=1, n_head=2,
                initializer_range=0.3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                eos_token_id=0, bos_token_id=0,
            )
        )
        if name == "pairs":
            model.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
        lines += run_sft(name, model, rows, fast, only)
    (folder / "expected.txt").write_text("".join(lines))
    write_sft_qwen3(references / "sft_qwen3", fast)
    print(folder)
