/* bireme export: a checkpoint becomes a model folder of Hugging Face's transformers. */
#include <string.h>

#include "base/log.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/huggingface/huggingface.h"

status command_export(int argc, char **argv)
{
    bool help = false;
    bool adapter = false;
    const char *checkpoint = NULL, *output = NULL, *dtype = NULL;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &checkpoint, "DIR", OPTION_REQUIRED,
         "a run folder, its checkpoints/, one of these, or final/", 0, 0, NULL},
        {"output", OPTION_TEXT, &output, "HF_DIR", OPTION_REQUIRED,
         "folder to write; must not exist", 0, 0, NULL},
        {"dtype", OPTION_CHOICE, &dtype, "TYPE", "fp32", "of the weights; fp32: the same bits", 0,
         0, "fp32|bf16"},
        {"adapter", OPTION_FLAG, &adapter, NULL, NULL,
         "of a run with adapters these alone, as peft saves them; else they are put into the "
         "model's matrices",
         0, 0, NULL},
    };
    struct options options = {
        .usage = "bireme export --checkpoint DIR --output HF_DIR [--dtype fp32|bf16] [--adapter]",
        .about =
            "Writes a model folder that from_pretrained of Hugging Face's transformers loads, and "
            "AutoTokenizer's:\nconfig.json, model.safetensors, tokenizer.json. GPT-2, BERT, "
            "RoBERTa and Llama.",
        .table = table,
        .count = sizeof table / sizeof table[0],
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    struct pretrained_summary summary;
    bool halves = strcmp(dtype, "bf16") == 0;
    TRY(pretrained_export(checkpoint, output, halves ? SAFETENSORS_BF16 : SAFETENSORS_F32, adapter,
                          &summary));
    log_info("%s: %lld parameters in %d tensors, %s%s", output, (long long)summary.parameters,
             summary.tensors, dtype, summary.tokenizer ? "" : "; no tokenizer");
    return STATUS_OK;
}
