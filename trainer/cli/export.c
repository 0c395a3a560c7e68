/* bireme export: converts a checkpoint into a model folder of Hugging Face transformers. */
#include <inttypes.h>
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
         "run folder, checkpoints/ folder, one checkpoint or final/"},
        {"output", OPTION_TEXT, &output, "HF_DIR", OPTION_REQUIRED,
         "folder to write; must not exist"},
        {"dtype", OPTION_CHOICE, &dtype, "TYPE", "fp32",
         "data type of the weights; fp32 keeps them bit for bit", .choices = "fp32|bf16"},
        {"adapter", OPTION_FLAG, &adapter, NULL, NULL,
         "export only the adapters of the run in the format of peft; otherwise they are merged "
         "into the weights"},
    };
    struct options options = {
        .usage = "bireme export --checkpoint DIR --output HF_DIR [--dtype fp32|bf16] [--adapter]",
        .description = "Writes a model folder that from_pretrained of Hugging Face transformers "
                       "loads: config.json, model.safetensors and tokenizer.json. All values of "
                       "model.architecture are supported.",
        .table = table,
        .count = sizeof table / sizeof table[0],
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    struct huggingface_summary summary;
    bool is_bf16 = strcmp(dtype, "bf16") == 0;
    TRY(huggingface_export(checkpoint, output, is_bf16 ? SAFETENSORS_BF16 : SAFETENSORS_F32,
                           adapter, &summary));
    log_info("%s: %" PRId64 " parameters in %d tensors, %s%s", output, summary.parameters,
             summary.tensors, dtype, summary.tokenizer ? "" : "; no tokenizer");
    return STATUS_OK;
}
