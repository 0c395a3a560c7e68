#include "trainer/cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { OPTIONS_MAX = 64, CHOICES_MAX = 32, CHOICE_BYTES = 64, HELP_COLUMNS = 100 };

struct choices {
    char words[CHOICES_MAX][CHOICE_BYTES];
    const char *list[CHOICES_MAX];
    int count;
};

static void choices_split(struct choices *out, const char *text)
{
    out->count = 0;
    while (*text != '\0' && out->count < CHOICES_MAX) {
        size_t length = strcspn(text, "|");
        snprintf(out->words[out->count], CHOICE_BYTES, "%.*s", (int)length, text);
        out->list[out->count] = out->words[out->count];
        out->count++;
        text += length + (text[length] == '|' ? 1 : 0);
    }
}

static int choices_find(const struct choices *choices, const char *word)
{
    for (int i = 0; i < choices->count; i++) {
        if (strcmp(choices->list[i], word) == 0) {
            return i;
        }
    }
    return -1;
}

static bool has_preset(const struct option *option)
{
    return option->preset != NULL && option->preset != OPTION_REQUIRED;
}

/* Lines of at most HELP_COLUMNS; the text goes on in column `at`, further lines begin in column `indent`. */
static void print_wrapped(const char *text, size_t at, int indent)
{
    while (*text != '\0') {
        size_t gap = strspn(text, " "), word = strcspn(text + gap, " \n");
        if (at + gap + word > HELP_COLUMNS && at > (size_t)indent) {
            printf("\n%*s", indent, "");
            at = (size_t)indent;
            text += gap;
            gap = 0;
        }
        printf("%.*s", (int)(gap + word), text);
        at += gap + word;
        text += gap + word;
        if (*text == '\n') {
            printf("\n%*s", indent, "");
            at = (size_t)indent;
            text++;
        }
    }
    printf("\n");
}

static void print_flag(const struct option *option)
{
    char name[96], text[2048];
    size_t room = sizeof text;
    const char *preset = option->preset;
    bool required = preset == OPTION_REQUIRED;
    snprintf(name, sizeof name, "--%s%s%s", option->name, option->value != NULL ? " " : "",
             option->value != NULL ? option->value : "");
    snprintf(text, room, "%s%s%s%s%s%s", option->help, option->choices != NULL ? ": " : "",
             option->choices != NULL ? option->choices : "",
             required         ? " (required)"
             : preset != NULL ? " (default "
                              : "",
             !required && preset != NULL ? preset : "", !required && preset != NULL ? ")" : "");
    size_t width = strlen(name) > 26 ? strlen(name) : 26;
    printf("  %-26s ", name);
    print_wrapped(text, 3 + width, 29);
}

static void print_help(const struct options *options)
{
    printf("usage: %s\n\n", options->usage);
    print_wrapped(options->about, 0, 0);
    printf("\nflags:\n");
    for (int i = 0; i < options->count; i++) {
        print_flag(&options->table[i]);
    }
    printf("  %-26s %s\n", "--help", "print this and end");
}

static bool range_given(const struct option *option)
{
    return option->least != 0 || option->most != 0;
}

static status check_range(const struct option *option, double value, const char *text)
{
    REQUIRE(!range_given(option) || (value >= option->least && value <= option->most), STATUS_USAGE,
            "--%s %s: must lie between %.15g and %.15g", option->name, text, option->least,
            option->most);
    return STATUS_OK;
}

static status check_choice(const struct option *option, const char *text)
{
    struct choices choices;
    choices_split(&choices, option->choices);
    if (choices_find(&choices, text) >= 0) {
        return STATUS_OK;
    }
    int nearest = text_nearest(text, choices.list, choices.count);
    RAISE(STATUS_USAGE, "--%s %s: must be one of %s%s%s%s", option->name, text, option->choices,
          nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? choices.list[nearest] : "",
          nearest >= 0 ? "'?" : "");
}

static status list_append(const struct option *option, char *text, int argc)
{
    struct option_list *list = option->target;
    if (list->items == NULL) {
        list->items = calloc((size_t)argc + 1, sizeof *list->items);
        REQUIRE(list->items != NULL, STATUS_INTERNAL, "out of memory: %d arguments", argc);
    }
    list->items[list->count++] = text;
    return STATUS_OK;
}

static status set_value(const struct option *option, char *text, int argc)
{
    char reason[TEXT_REASON_BYTES];
    REQUIRE(text[0] != '\0', STATUS_USAGE, "--%s: the value is empty", option->name);
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)option->target = true;
        return STATUS_OK;
    case OPTION_INTEGER: {
        int64_t *target = option->target;
        REQUIRE(text_to_integer(text, target, reason), STATUS_USAGE, "--%s: %s", option->name,
                reason);
        return check_range(option, (double)*target, text);
    }
    case OPTION_NUMBER: {
        double *target = option->target;
        REQUIRE(text_to_number(text, target, reason), STATUS_USAGE, "--%s: %s", option->name,
                reason);
        return check_range(option, *target, text);
    }
    case OPTION_CHOICE:
        TRY(check_choice(option, text));
        *(const char **)option->target = text;
        return STATUS_OK;
    case OPTION_TEXT:
        *(const char **)option->target = text;
        return STATUS_OK;
    case OPTION_LIST:
        return list_append(option, text, argc);
    }
    return STATUS_OK;
}

static status set_presets(const struct options *options)
{
    for (int i = 0; i < options->count; i++) {
        const struct option *option = &options->table[i];
        if (option->kind == OPTION_LIST) {
            *(struct option_list *)option->target = (struct option_list){0};
        } else if (has_preset(option)) { /* never written through: targets are const char * */
            TRY(set_value(option, (char *)(uintptr_t)option->preset, 0));
        }
    }
    return STATUS_OK;
}

/* find_option - the flag that text[2 .. length) names. */
static status find_option(const struct options *options, const char *text, int *out)
{
    char name[CHOICE_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text + 2, "="), text + 2);
    const char *names[OPTIONS_MAX + 1];
    for (int i = 0; i < options->count; i++) {
        if (strcmp(options->table[i].name, name) == 0) {
            *out = i;
            return STATUS_OK;
        }
        names[i] = options->table[i].name;
    }
    names[options->count] = "help";
    int nearest = text_nearest(name, names, options->count + 1);
    RAISE(STATUS_USAGE, "unknown flag '--%s'%s%s%s; --help lists the flags", name,
          nearest >= 0 ? "; did you mean '--" : "", nearest >= 0 ? names[nearest] : "",
          nearest >= 0 ? "'?" : "");
}

static bool is_flag(const char *text)
{
    return strncmp(text, "--", 2) == 0 && text[2] != '\0';
}

/* take_flag - argv[*at] is a flag: read it and its values; *at is moved to the last one. */
static status take_flag(const struct options *options, int argc, char **argv, int *at, bool *seen)
{
    int index = 0;
    char *text = argv[*at];
    TRY(find_option(options, text, &index));
    const struct option *option = &options->table[index];
    REQUIRE(!seen[index] || option->kind == OPTION_LIST, STATUS_USAGE, "--%s is given twice",
            option->name);
    seen[index] = true;
    char *value = strchr(text, '=');
    if (option->kind == OPTION_FLAG) {
        REQUIRE(value == NULL, STATUS_USAGE, "--%s takes no value", option->name);
        *(bool *)option->target = true;
        return STATUS_OK;
    }
    if (value != NULL) {
        return set_value(option, value + 1, argc);
    }
    REQUIRE(*at + 1 < argc && !is_flag(argv[*at + 1]) && strcmp(argv[*at + 1], "--") != 0,
            STATUS_USAGE, "--%s needs a value: %s", option->name, option->value);
    TRY(set_value(option, argv[++*at], argc));
    while (option->kind == OPTION_LIST && *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0) {
        TRY(set_value(option, argv[++*at], argc));
    }
    return STATUS_OK;
}

static status check_operands(const struct options *options)
{
    int count = options->operand_count;
    REQUIRE(options->operand != NULL || count == 0, STATUS_USAGE,
            "unexpected argument '%s'; --help", options->operands[0]);
    REQUIRE(count >= options->operands_least, STATUS_USAGE, "%s is missing; usage: %s",
            options->operand, options->usage);
    REQUIRE(options->operand == NULL || options->operands_most < 0 ||
                count <= options->operands_most,
            STATUS_USAGE, "unexpected argument '%s'; usage: %s",
            options->operands[options->operands_most], options->usage);
    return STATUS_OK;
}

static status parse(struct options *options, int argc, char **argv)
{
    bool seen[OPTIONS_MAX] = {false};
    bool flags = true;
    for (int i = 1; i < argc; i++) {
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
        } else if (flags && is_flag(argv[i])) {
            TRY(take_flag(options, argc, argv, &i, seen));
        } else {
            REQUIRE(!flags || argv[i][0] != '-' || argv[i][1] == '\0', STATUS_USAGE,
                    "unknown flag '%s'; flags begin with two dashes, --help lists them", argv[i]);
            options->operands[options->operand_count++] = argv[i];
        }
    }
    for (int i = 0; i < options->count; i++) {
        const struct option *option = &options->table[i];
        REQUIRE(option->preset != OPTION_REQUIRED || seen[i], STATUS_USAGE,
                "--%s %s is missing; usage: %s", option->name, option->value, options->usage);
    }
    return check_operands(options);
}

status options_parse(struct options *options, int argc, char **argv, bool *help)
{
    *help = false;
    options->operands = argv + 1;
    options->operand_count = 0;
    REQUIRE(options->count <= OPTIONS_MAX, STATUS_INTERNAL, "%d flags, at most %d", options->count,
            OPTIONS_MAX);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(options);
            *help = true;
        }
    }
    TRY(set_presets(options));
    if (*help) {
        return STATUS_OK;
    }
    status result = parse(options, argc, argv);
    for (int i = 0; result != STATUS_OK && i < options->count; i++) {
        if (options->table[i].kind == OPTION_LIST) {
            struct option_list *list = options->table[i].target;
            free(list->items);
            *list = (struct option_list){0};
        }
    }
    return result;
}

status options_choose(const char *usage, const char *names, const char *about, int argc,
                      char **argv, int *out)
{
    *out = -1;
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf("usage: %s\n\n%s\n\nbireme %s %.*s --help, and so on, list their flags\n", usage,
               about, argv[0], (int)strcspn(names, "|"), names);
        return STATUS_OK;
    }
    REQUIRE(argc >= 2, STATUS_USAGE, "%s needs one of %s; usage: %s", argv[0], names, usage);
    struct choices choices;
    choices_split(&choices, names);
    *out = choices_find(&choices, argv[1]);
    if (*out >= 0) {
        return STATUS_OK;
    }
    int nearest = text_nearest(argv[1], choices.list, choices.count);
    RAISE(STATUS_USAGE, "%s %s: must be one of %s%s%s%s", argv[0], argv[1], names,
          nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? choices.list[nearest] : "",
          nearest >= 0 ? "'?" : "");
}
