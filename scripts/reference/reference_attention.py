"""References of attention weights; make_reference.py calls this module.

attention.h5, for tests/trainer/inference/test_attention_weights.c, has the attention weights
[layers, heads, queries, keys] of folders of tests/reference/pretrained in double precision, as
transformers returns them with output_attentions. Those of an encoder-decoder are in a group.
"""
import h5py
import torch
import transformers

IDS = [3, 7, 1, 18, 11, 7, 5, 14]  # more tokens than each window
TARGET_IDS = [60, 5, 33, 2, 9]  # begins with the start token
CLASSES = {
    "whole": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "mistral": transformers.MistralForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM,
    "gemma2": transformers.Gemma2ForCausalLM,
    "gemma3_text": transformers.Gemma3ForCausalLM,
    "bert_untied": transformers.BertForMaskedLM,
    "distilbert": transformers.DistilBertForMaskedLM,
    "albert": transformers.AlbertForPreTraining,
    "modernbert": transformers.ModernBertForMaskedLM,
}
SEQ2SEQ_CLASSES = {
    "t5": transformers.T5ForConditionalGeneration,
    "marian": transformers.MarianMTModel,
    "bart": transformers.BartForConditionalGeneration,
    "mbart": transformers.MBartForConditionalGeneration,
}
KINDS = ("encoder_attentions", "decoder_attentions", "cross_attentions")


def load(folder, name, model_class):
    return model_class.from_pretrained(
        folder / "pretrained" / name, attn_implementation="eager", dtype=torch.float64
    ).eval()


def write_attention(folder):
    with h5py.File(folder / "attention.h5", "w") as file, torch.no_grad():
        file["ids"] = IDS
        file["target_ids"] = TARGET_IDS
        for name, model_class in CLASSES.items():
            model = load(folder, name, model_class)
            output = model(torch.tensor([IDS]), output_attentions=True)
            file[name] = torch.cat(output.attentions).numpy()
        for name, model_class in SEQ2SEQ_CLASSES.items():
            model = load(folder, name, model_class)
            output = model(torch.tensor([IDS]), decoder_input_ids=torch.tensor([TARGET_IDS]),
                           output_attentions=True)
            for kind in KINDS:
                file[f"{name}/{kind}"] = torch.cat(output[kind]).numpy()
