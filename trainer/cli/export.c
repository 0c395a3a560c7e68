/* bireme export: converts a checkpoint into a model folder of Hugging Face transformers or into a
 * GGUF file. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/formats/gguf/export.h"
#include "trainer/formats/huggingface/huggingface.h"

/* Returns the element type of a name in the choices of --type. */
static enum gguf_type find_type(const char *name)
{
    static const enum gguf_type types[] = {GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0, GGUF_Q4_0};
    int i = 0;
    while (i + 1 < COUNT(types) && strcmp(gguf_type_name(types[i]), name) != 0) {
        i++;
    }
    return types[i];
}

/* Checks that only options of the format were given. */
static status check_format(bool is_gguf, const char *output, const char *dtype, const char *type,
                           bool adapter)
{
    REQUIRE(is_gguf || !text_has_suffix(output, ".gguf"), STATUS_USAGE,
            "%s has the suffix of a GGUF file, but a model folder would be written; add "
            "--format gguf or choose another name",
            output);
    REQUIRE(!is_gguf || dtype == NULL, STATUS_USAGE,
            "--dtype is for model folders; a GGUF file has --type f32, f16, bf16, q8_0 or q4_0");
    REQUIRE(!is_gguf || !adapter, STATUS_USAGE,
            "--adapter is for model folders; a GGUF file contains the merged model");
    REQUIRE(is_gguf || type == NULL, STATUS_USAGE,
            "--type is for GGUF files; a model folder has --dtype fp32 or bf16. For a GGUF file "
            "add --format gguf");
    return STATUS_OK;
}

status command_export(int argc, char **argv)
{
    bool adapter = false;
    const char *checkpoint = NULL, *output = NULL, *format = NULL, *dtype = NULL, *type = NULL;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &checkpoint, "DIR", OPTION_REQUIRED,
         "run folder, checkpoints/ folder, one checkpoint or final/"},
        {"output", OPTION_TEXT, &output, "PATH", OPTION_REQUIRED,
         "folder or GGUF file to write; must not exist"},
        {"format", OPTION_CHOICE, &format, "FORMAT", "huggingface",
         "a model folder of transformers or a GGUF file of llama.cpp",
         .choices = "huggingface|gguf"},
        {"dtype", OPTION_CHOICE, &dtype, "TYPE", NULL,
         "data type of the weights in a model folder (default: fp32, which keeps them bit for bit)",
         .choices = "fp32|bf16"},
        {"type", OPTION_CHOICE, &type, "TYPE", NULL,
         "data type of the matrices in a GGUF file (default: f16)",
         .choices = "f32|f16|bf16|q8_0|q4_0"},
        {"adapter", OPTION_FLAG, &adapter, NULL, NULL,
         "export only the adapters of the run in the format of peft; otherwise they are merged "
         "into the weights"},
    };
    struct options options = {
        .usage = "bireme export --checkpoint DIR --output HF_DIR [--dtype fp32|bf16] [--adapter]\n"
                 "       bireme export --format gguf --checkpoint DIR --output FILE [--type TYPE]",
        .description = "Writes a model folder that from_pretrained of Hugging Face transformers "
                       "loads: config.json, model.safetensors and tokenizer.json. All values of "
                       "model.architecture are supported. With --format gguf it writes one file "
                       "with tokenizer and chat template for llama.cpp.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme export --checkpoint runs/mine \\\n"
                    "    --output models/mine --dtype bf16\n"
                    "bireme export --format gguf --type q8_0 \\\n"
                    "    --checkpoint runs/mine --output mine.gguf",
    };
    OPTIONS_PARSE(&options, argc, argv);
    struct huggingface_summary summary;
    bool is_gguf = strcmp(format, "gguf") == 0;
    TRY(check_format(is_gguf, output, dtype, type, adapter));
    bool is_bf16 = dtype != NULL && strcmp(dtype, "bf16") == 0;
    TRY(is_gguf
            ? gguf_export(checkpoint, output, find_type(type != NULL ? type : "f16"), &summary)
            : huggingface_export(checkpoint, output, is_bf16 ? SAFETENSORS_BF16 : SAFETENSORS_F32,
                                 adapter, &summary));
    log_info("%s: %" PRId64 " parameters in %d tensors, %s%s", output, summary.parameters,
             summary.tensors,
             is_gguf         ? type != NULL ? type : "f16"
             : dtype != NULL ? dtype
                             : "fp32",
             summary.tokenizer ? "" : "; no tokenizer");
    return STATUS_OK;
}
