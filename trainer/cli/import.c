/* bireme import: converts a model folder of Hugging Face transformers into a checkpoint without
 * optimizer state, or an adapter folder of peft into a checkpoint of adapters. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "datasets/chat/chat.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/formats/gguf/import.h"
#include "trainer/formats/huggingface/architectures.h"
#include "trainer/formats/huggingface/huggingface.h"
#include "trainer/recipe/recipe.h"

/* Prints a line of the section `adapter` of the recipe. */
static void print_adapter_setting(void *user, const char *key, const char *json)
{
    (void)user;
    if (strncmp(key, "adapter.", 8) == 0 && strncmp(key, "adapter.base", 12) != 0) {
        printf("  %s: %s\n", key + 8, json);
    }
}

/* Installs the shipped template that is equal to the folder's Jinja template. Bireme cannot run
 * Jinja programs, so a warning names any other template. */
static status install_template(const char *folder, const char *output)
{
    char tokenizer_folder[FILE_PATH_BYTES], *jinja = NULL;
    struct tokenizer *tokenizer = NULL;
    TRY(chat_read_jinja(folder, &jinja));
    if (jinja == NULL) {
        return STATUS_OK;
    }
    status result = file_join(tokenizer_folder, output, "tokenizer");
    KEEP_FIRST(result, result == STATUS_OK && tokenizer_exists(tokenizer_folder)
                           ? tokenizer_open(tokenizer_folder, &tokenizer)
                           : result);
    const char *name = tokenizer != NULL ? chat_recognize_jinja(jinja, tokenizer) : NULL;
    if (result == STATUS_OK && name != NULL) {
        log_info("the chat template of %s is '%s'", folder, name);
        result = chat_install(name, tokenizer_folder, tokenizer);
    } else if (result == STATUS_OK) {
        log_warning("CHAT-TEMPLATE",
                    "the chat template of %s is not one of " CHAT_NAMES ", or the tokenizer "
                    "lacks its special tokens, so it is not used; it begins with '%.60s'; give a "
                    "file as in docs/guide/data.md to `bireme "
                    "prepare --chat-template`",
                    folder, jinja);
    }
    free(jinja);
    KEEP_FIRST(result, tokenizer_destroy(&tokenizer));
    return result;
}

static void log_summary(const char *folder, const char *output, const struct huggingface_summary *s)
{
    log_info("%s: %" PRId64 " parameters in %d tensors, from %d file%s", output, s->parameters,
             s->tensors, s->files, text_plural(s->files));
    if (!s->tokenizer) {
        log_text("%s has no tokenizer.json: evaluate, inspect, export and model.init_from accept "
                 "%s; commands that read text need a tokenizer; to use them, put tokenizer.json "
                 "into the folder and import again",
                 folder, output);
    }
}

/* Refuses a list in one argument, which would become one token. */
static status check_tokens(const struct option_list *tokens)
{
    for (int i = 0; i < tokens->count; i++) {
        const char *token = tokens->items[i], *comma = strchr(token, ',');
        bool is_list = comma != NULL && comma != token && comma[1] != '\0';
        REQUIRE(!is_list, STATUS_USAGE,
                "--add-tokens: '%s' is one token with a comma; write a space between tokens: "
                "--add-tokens '%.*s' '%s'",
                token, (int)(comma - token), token, comma + 1);
    }
    return STATUS_OK;
}

static status run_import(const char *folder, const char *base, const char *objective,
                         const char *output, const struct option_list *tokens)
{
    struct recipe recipe;
    struct huggingface_summary summary;
    TRY(check_tokens(tokens));
    bool is_gguf = gguf_is_file(folder);
    bool adapter = !is_gguf && huggingface_is_adapter_folder(folder);
    REQUIRE(adapter || base == NULL, STATUS_USAGE, "%s contains no peft adapters; remove --base",
            folder);
    REQUIRE(!adapter || objective == NULL, STATUS_USAGE,
            "%s contains adapters, which determine the objective; remove --objective", folder);
    REQUIRE(!adapter || tokens->count == 0, STATUS_USAGE,
            "%s contains adapters; add the tokens when its base model is imported", folder);
    TRY(is_gguf   ? gguf_import(folder, objective, output, tokens->items, tokens->count, &recipe,
                                &summary)
        : adapter ? huggingface_import_adapter(folder, base, output, &recipe, &summary)
                  : huggingface_import(folder, objective, output, tokens->items, tokens->count,
                                       &recipe, &summary));
    log_summary(folder, output, &summary);
    TRY(install_template(folder, output));
    const struct huggingface_architecture *architecture =
        huggingface_find_architecture(recipe_architecture_name(recipe.model.architecture));
    if (huggingface_task_class_suffix(architecture, recipe.objective) != NULL) {
        printf("objective: %s\n", recipe_objective_name(recipe.objective));
    }
    recipe_write_model(&recipe, stdout);
    printf("  init_from: %s\n", output);
    if (adapter) {
        printf("adapter:\n");
        recipe_visit(&recipe, print_adapter_setting, NULL);
    }
    return STATUS_OK;
}

/* The description of the command; %s are the supported values of model_type. */
static const char description_format[] =
    "Converts a model folder in the format of Hugging Face transformers into a checkpoint. The "
    "folder contains config.json, model.safetensors (or several files with an index; F32, F16, "
    "BF16) and tokenizer.json, tokenizer.model, vocab.txt, or source.spm with target.spm. "
    "Supported values of model_type: %s. "
    "Their classes with fine-tuning heads are supported too. generate, score, fill-mask, classify, "
    "answer, embed, evaluate, inspect, export and model.init_from accept the checkpoint.\n\n"
    "A GGUF file of llama.cpp can take the place of the folder (f32, f16, bf16, q8_0 and "
    "q4_0; no adapters).\n\n"
    "Prints the section `model` of a recipe that fine-tunes this model.\n\n"
    "A folder of peft (adapter_config.json, adapter_model.safetensors) becomes a checkpoint of "
    "adapters. Import its base model first.";

status command_import(int argc, char **argv)
{
    const char *output = NULL, *base = NULL, *objective = NULL;
    struct option_list tokens = {0};
    const struct option table[] = {
        {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED, "folder to write; must not exist"},
        {"base", OPTION_TEXT, &base, "DIR", NULL,
         "for adapters: checkpoint of the base model (default: the one that the adapters name)"},
        {"objective", OPTION_CHOICE, &objective, "NAME", NULL,
         "objective of the model, if its class does not determine it: regress, reward or (not for "
         "an encoder) choose for a head with one output, embed for a model without a head",
         .choices = "regress|reward|choose|embed|classify|classify_tokens|answer|clm|mlm"},
        {"add-tokens", OPTION_LIST, &tokens, "TOKEN...", NULL,
         "special tokens to add to the tokenizer, for example for a chat template; the "
         "embedding grows, and its new rows begin near the mean of the others"},
    };
    char names[HUGGINGFACE_NAMES_BYTES];
    char description[sizeof description_format + sizeof names];
    snprintf(description, sizeof description, description_format,
             huggingface_architecture_names(names));
    struct options options = {
        .usage = "bireme import HF_DIR|FILE.gguf --output DIR [options]",
        .description = description,
        .table = table,
        .count = COUNT(table),
        .examples = "bireme import HF_DIR --output models/theirs >model.yaml\n"
                    "bireme import mine.gguf --output models/mine\n"
                    "bireme import PEFT_DIR --base models/theirs \\\n"
                    "    --output models/adapter",
        .operand_name = "HF_DIR",
        .operands_min = 1,
        .operands_max = 1,
    };
    OPTIONS_PARSE(&options, argc, argv);
    status result = run_import(options.operands[0], base, objective, output, &tokens);
    free(tokens.items);
    return result;
}
