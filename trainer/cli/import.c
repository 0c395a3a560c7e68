/* bireme import: a model folder of Hugging Face's transformers becomes a checkpoint of weights alone, and one of peft's a
 * checkpoint of adapters. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "datasets/chat/chat.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/huggingface/huggingface.h"
#include "trainer/huggingface/architectures.h"

/* The section of a recipe that trains on from these weights. */
static void print_setting(void *user, const char *key, const char *json)
{
    (void)user;
    if (strncmp(key, "model.", 6) == 0 && strcmp(key, "model.init_from") != 0) {
        printf("  %s: %s\n", key + 6, json);
    }
}

static void print_adapter(void *user, const char *key, const char *json)
{
    (void)user;
    if (strncmp(key, "adapter.", 8) == 0 && strncmp(key, "adapter.base", 12) != 0) {
        printf("  %s: %s\n", key + 8, json);
    }
}

/* A template in Jinja is a program, which is kept, and not run. */
static void tell_chat_template(const char *folder)
{
    char path[FILE_PATH_BYTES];
    if (file_join(path, folder, "chat_template.jinja") == STATUS_OK && file_exists(path)) {
        log_warning("IMPORT",
                    "%s is kept, but not read here: `bireme prepare --chat-template` names the "
                    "template that "
                    "it is (" CHAT_NAMES "), or a file (docs/chat_templates.md)",
                    path);
    }
}

static void tell(const char *folder, const char *output, const struct pretrained_summary *s)
{
    log_info("%s: %lld parameters in %d tensors, from %d file%s", output, (long long)s->parameters,
             s->tensors, s->files, text_plural(s->files));
    if (!s->tokenizer) {
        log_info("%s has no tokenizer.json: evaluate, inspect, export and model.init_from take %s; "
                 "commands that read text need a tokenizer, so import again with one in the folder",
                 folder, output);
    }
}

status command_import(int argc, char **argv)
{
    bool help = false;
    const char *output = NULL, *base = NULL, *objective = NULL;
    const struct option table[] = {
        {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED, "folder to write; must not exist"},
        {"base", OPTION_TEXT, &base, "DIR", NULL,
         "of adapters: a checkpoint of the model that they are beside; else the one that they "
         "name"},
        {"objective", OPTION_CHOICE, &objective, "NAME", NULL,
         "what it is for, where its class leaves that open: of one output regress, reward or (not "
         "of an encoder) choose, of a model without head embed",
         .choices = "regress|reward|choose|embed|classify|classify_tokens|answer|clm|mlm"},
    };
    struct options options = {
        .usage = "bireme import HF_DIR --output DIR [--base CHECKPOINT]",
        .about =
            "Makes a checkpoint of a model folder as Hugging Face's transformers saves it: "
            "config.json, model.safetensors (or several with an index; F32, F16, BF16) and "
            "tokenizer.json (or vocab.txt). Models of the model_type gpt2, bert, roberta and "
            "llama, their classes for tasks among them. generate, score, fill-mask, classify, "
            "answer, embed, evaluate, inspect, export and model.init_from take it. The section "
            "`model` of a recipe that trains on from it goes to standard output.\nOf a folder of "
            "peft's (adapter_config.json, adapter_model.safetensors) it makes a checkpoint of "
            "adapters beside a model that was imported before.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand = "HF_DIR",
        .operands_least = 1,
        .operands_most = 1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    struct recipe recipe;
    struct pretrained_summary summary;
    bool adapter = pretrained_import_is_adapter(options.operands[0]);
    REQUIRE(adapter || base == NULL, STATUS_USAGE,
            "%s holds no adapters of peft's: leave out --base", options.operands[0]);
    REQUIRE(!adapter || objective == NULL, STATUS_USAGE,
            "%s holds adapters, which say what they are for: leave out --objective",
            options.operands[0]);
    TRY(adapter ? pretrained_adapter_import(options.operands[0], base, output, &recipe, &summary)
                : pretrained_import(options.operands[0], objective, output, &recipe, &summary));
    tell(options.operands[0], output, &summary);
    tell_chat_template(options.operands[0]);
    if (pretrained_task_class(pretrained_family(recipe.model.architecture), recipe.objective) !=
        NULL) {
        printf("objective: %s\n", recipe.objective);
    }
    printf("model:\n");
    recipe_visit(&recipe, print_setting, NULL);
    printf("  init_from: %s\n", output);
    if (adapter) {
        printf("adapter:\n");
        recipe_visit(&recipe, print_adapter, NULL);
    }
    return STATUS_OK;
}
