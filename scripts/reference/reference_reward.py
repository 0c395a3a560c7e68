"""References of reward models, made with TRL's RewardTrainer; make_reference.py calls this module.

reward.h5, for tests/trainer/objective/test_reward.c, has one group for each architecture (a tiny
GPT-2, Llama and Qwen3, in double precision): eight pairs (lengths and ids of prompt, chosen and
rejected response), the weights, and loss, metrics and gradients for each
center_rewards_coefficient.
"""
import pathlib
import tempfile

import datasets
import h5py
import numpy as np
import torch
import transformers
import trl

LENGTHS = [(3, 5, 2), (1, 1, 4), (7, 3, 3), (2, 9, 6), (4, 2, 8), (5, 6, 1), (6, 4, 4), (3, 7, 5)]
VOCABULARY, POSITIONS, WIDTH, HEADS, INNER = 37, 24, 8, 2, 32


def model_of(architecture):
    tokens = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    if architecture == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_embd=WIDTH, n_head=HEADS, n_inner=INNER, n_positions=POSITIONS,
            vocab_size=VOCABULARY, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, num_labels=1,
            initializer_range=0.3, **tokens
        )
        model = transformers.GPT2ForSequenceClassification(config)
    else:
        stem, more = dict(llama=("Llama", {}), qwen3=("Qwen3", dict(head_dim=6)))[architecture]
        config = getattr(transformers, stem + "Config")(
            num_hidden_layers=2, hidden_size=WIDTH, num_attention_heads=HEADS,
            num_key_value_heads=1, intermediate_size=INNER, vocab_size=VOCABULARY,
            max_position_embeddings=POSITIONS, rms_norm_eps=1e-5, num_labels=1,
            initializer_range=0.3, **tokens, **more
        )
        model = getattr(transformers, stem + "ForSequenceClassification")(config)
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p + torch.randn_like(p) * 0.1).float().double())
    return model


def write_architecture(group, architecture, tokenizer):
    model = model_of(architecture)
    rows = [[torch.randint(1, VOCABULARY, (n,)).tolist() for n in each] for each in LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.RewardConfig(
            output_dir=folder, report_to=[], use_cpu=True, bf16=False, max_length=None,
            gradient_checkpointing=False, per_device_train_batch_size=len(rows)
        )
        trainer = trl.RewardTrainer(
            model=model, args=config, processing_class=tokenizer,
            train_dataset=datasets.Dataset.from_list([dict(chosen="a b", rejected="a c")])
        )
    trainer.data_collator.pad_token_id = model.config.pad_token_id = 0
    batch = trainer.data_collator([dict(chosen_ids=p + c, rejected_ids=p + r) for p, c, r in rows])
    group["lengths"] = np.array(LENGTHS, np.int32)
    group["ids"] = np.array(sum((p + c + r for p, c, r in rows), []), np.int32)
    for name, tensor in model.state_dict().items():
        group["weights/" + name] = tensor.numpy().astype(np.float32)
    for i, center in enumerate((0.0, 0.01)):
        trainer.args.center_rewards_coefficient = center or None
        trainer._metrics["train"].clear()
        model.zero_grad()
        loss = trainer.compute_loss(model.train(), dict(batch))
        loss.backward()
        case = group.create_group(f"case_{i}")
        case.attrs.update(center=center, loss=loss.item())
        for name in ("accuracy", "margin", "mean_reward"):
            case.attrs[name] = trainer._metrics["train"][name][0]
        for name, p in model.named_parameters():
            case["gradients/" + name] = p.grad.numpy().astype(np.float32)
        print(architecture, center, loss.item(), dict(case.attrs))


def write_reward(path):
    torch.manual_seed(13)
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(root / "tests/reference/tokenizer/gpt2/tokenizer.json"),
        eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    with h5py.File(path, "w") as f:
        f.attrs.update(
            layers=2.0, width=float(WIDTH), heads=float(HEADS), inner=float(INNER),
            positions=float(POSITIONS), vocabulary=float(VOCABULARY), pairs=float(len(LENGTHS))
        )
        for architecture in ("gpt2", "llama", "qwen3"):
            write_architecture(f.create_group(architecture), architecture, tokenizer)
    print(path)
