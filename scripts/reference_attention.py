"""References of attention weights; make_reference.py calls this module.

attention.h5, for tests/trainer/inference/test_attention_weights.c, has the attention weights
[layers, heads, tokens, tokens] of five folders of tests/reference/pretrained in double precision,
as transformers returns them with output_attentions.
"""
import h5py
import torch
import transformers

IDS = [3, 7, 1, 18, 11, 7, 5, 14]
CLASSES = {
    "whole": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "mistral": transformers.MistralForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM,
    "bert_untied": transformers.BertForMaskedLM,
}


def write_attention(folder):
    with h5py.File(folder / "attention.h5", "w") as file:
        file["ids"] = IDS
        for name, model_class in CLASSES.items():
            model = model_class.from_pretrained(
                folder / "pretrained" / name, attn_implementation="eager", dtype=torch.float64
            ).eval()
            with torch.no_grad():
                weights = model(torch.tensor([IDS]), output_attentions=True).attentions
            file[name] = torch.cat(weights).numpy()
