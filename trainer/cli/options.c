#include "trainer/cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "trainer/recipe/foreign.h"

enum { CHOICES_MAX = 32, CHOICE_BYTES = 64, NAME_COLUMNS = 26, USAGE_BYTES = 512 };

struct choices {
    char names[CHOICES_MAX][CHOICE_BYTES];
    const char *list[CHOICES_MAX];
    int count;
};

static void split_choices(struct choices *out, const char *text)
{
    out->count = 0;
    while (*text != '\0' && out->count < CHOICES_MAX) {
        size_t length = strcspn(text, "|");
        snprintf(out->names[out->count], CHOICE_BYTES, "%.*s", (int)length, text);
        out->list[out->count] = out->names[out->count];
        out->count++;
        text += length + (text[length] == '|' ? 1 : 0);
    }
}

static int find_choice(const struct choices *choices, const char *name)
{
    for (int i = 0; i < choices->count; i++) {
        if (strcmp(choices->list[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool has_default(const struct option *option)
{
    return option->default_value != NULL && option->default_value != OPTION_REQUIRED;
}

/* Prints "usage: " and the lines of the usage. */
static void print_usage(const char *usage, int columns)
{
    char line[512];
    const char *prefix = "usage: ";
    for (size_t length; *usage != '\0'; usage += length + (usage[length] == '\n' ? 1 : 0)) {
        length = strcspn(usage, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, usage);
        printf("%-7s", prefix);
        terminal_print_wrapped(stdout, line, 7, 11, columns);
        prefix = "";
    }
}

static void print_option(const struct option *option, int columns)
{
    char name[96], text[2048];
    const char *value = option->default_value;
    bool required = value == OPTION_REQUIRED;
    snprintf(name, sizeof name, "--%s%s%s", option->name, option->value_name != NULL ? " " : "",
             option->value_name != NULL ? option->value_name : "");
    const char *note = required ? "required" : value != NULL ? "default: " : "";
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", option->help,
             option->choices != NULL || note[0] != '\0' ? " (" : "",
             option->choices != NULL ? option->choices : "",
             option->choices != NULL && note[0] != '\0' ? "; " : "", note,
             !required && value != NULL ? value : "",
             option->choices != NULL || note[0] != '\0' ? ")" : "");
    int width = (int)strlen(name) > NAME_COLUMNS ? (int)strlen(name) : NAME_COLUMNS;
    if (columns < TERMINAL_COLUMNS_DEFAULT) { /* too narrow for two columns */
        printf("  %s\n      ", name);
        terminal_print_wrapped(stdout, text, 6, 6, columns);
    } else {
        printf("  %-*s ", NAME_COLUMNS, name);
        terminal_print_wrapped(stdout, text, 3 + width, 3 + NAME_COLUMNS, columns);
    }
}

/* Prints the examples. Their lines stay as they are, so that they can be copied. */
static void print_examples(const char *examples)
{
    if (examples == NULL) {
        return;
    }
    printf("\nexamples:\n");
    for (size_t length; *examples != '\0'; examples += length + (examples[length] == '\n')) {
        length = strcspn(examples, "\n");
        printf("  %.*s\n", (int)length, examples);
    }
}

static void print_help(const struct options *options)
{
    static const struct option help = {"help", .help = "show this help and exit"};
    int columns = terminal_columns(STDOUT_FILENO);
    print_usage(options->usage, columns);
    printf("\n");
    terminal_print_paragraphs(stdout, options->description, columns);
    printf("\noptions:\n");
    for (int i = 0; i < options->count; i++) {
        print_option(&options->table[i], columns);
    }
    print_option(&help, columns);
    print_examples(options->examples);
}

/* ---- the help as a table, for scripts/generate_manual.sh ---- */

enum help_form { HELP_NONE, HELP_TEXT, HELP_TABLE };

static enum help_form get_help_form(const char *argument)
{
    bool is_text = strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
    return is_text ? HELP_TEXT : strcmp(argument, OPTIONS_HELP_TABLE) == 0 ? HELP_TABLE : HELP_NONE;
}

/* Prints a tab and a text without tabs; a newline becomes \n. */
static void print_field(const char *text)
{
    putchar('\t');
    for (const char *c = text != NULL ? text : ""; *c != '\0'; c++) {
        if (*c == '\n') {
            fputs("\\n", stdout);
        } else {
            putchar(*c == '\t' ? ' ' : *c);
        }
    }
}

static void print_row(const char *kind, const char *const *fields, int count)
{
    fputs(kind, stdout);
    for (int i = 0; i < count; i++) {
        print_field(fields[i]);
    }
    putchar('\n');
}

static void print_table(const struct options *options)
{
    print_row("usage", &options->usage, 1);
    print_row("description", &options->description, 1);
    for (int i = 0; i < options->count; i++) {
        const struct option *o = &options->table[i];
        bool required = o->default_value == OPTION_REQUIRED;
        const char *fields[] = {o->name,
                                o->value_name,
                                o->kind == OPTION_LIST ? "list" : "once",
                                required ? "required" : "",
                                required ? "" : o->default_value,
                                o->choices,
                                o->help};
        print_row("option", fields, COUNT(fields));
    }
    if (options->operand_name != NULL) {
        print_row("operand", &options->operand_name, 1);
    }
    print_row("examples", &options->examples, 1);
}

/* Prints the names and descriptions of subcommands ("  NAME  HELP" in each line). */
static void print_subcommand_table(const char *usage, const char *description, const char *examples)
{
    char name[CHOICE_BYTES], help[512];
    print_row("usage", &usage, 1);
    while (sscanf(description, " %63s %511[^\n]", name, help) == 2) {
        const char *fields[] = {name, help};
        print_row("subcommand", fields, 2);
        description += strcspn(description, "\n");
        description += description[0] == '\n';
    }
    print_row("examples", &examples, 1);
}

static bool has_range(const struct option *option)
{
    return option->min != 0 || option->max != 0;
}

static status check_range(const struct option *option, double value, const char *text)
{
    REQUIRE(!has_range(option) || (value >= option->min && value <= option->max), STATUS_USAGE,
            "--%s %s: must be between %.15g and %.15g", option->name, text, option->min,
            option->max);
    return STATUS_OK;
}

static status check_choice(const struct option *option, const char *text)
{
    struct choices choices;
    split_choices(&choices, option->choices);
    if (find_choice(&choices, text) >= 0) {
        return STATUS_OK;
    }
    int nearest = text_nearest(text, choices.list, choices.count);
    RAISE(STATUS_USAGE, "--%s %s: must be one of %s%s%s%s", option->name, text, option->choices,
          nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? choices.list[nearest] : "",
          nearest >= 0 ? "'?" : "");
}

static status append_to_list(const struct option *option, char *text, int argc)
{
    struct option_list *list = option->target;
    if (list->items == NULL) {
        TRY(ALLOCATE(list->items, argc + 1, "arguments"));
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
        return append_to_list(option, text, argc);
    }
    return STATUS_OK;
}

static status set_defaults(const struct options *options)
{
    for (int i = 0; i < options->count; i++) {
        const struct option *option = &options->table[i];
        if (option->kind == OPTION_LIST) {
            *(struct option_list *)option->target = (struct option_list){0};
        } else if (has_default(option)) {
            /* The cast is safe: targets are const char *, so the default is never written. */
            TRY(set_value(option, (char *)(uintptr_t)option->default_value, 0));
        }
    }
    return STATUS_OK;
}

/* Returns the lines of a usage in one line, for an error. */
static const char *join_usage(const char *usage, char out[USAGE_BYTES])
{
    char *end = out;
    for (const char *c = usage; *c != '\0' && end < out + USAGE_BYTES - 4; c++) {
        if (*c == '\n') {
            end += snprintf(end, 4, " or");
            for (; c[1] == ' ' && c[2] == ' '; c++) {
            }
        } else {
            *end++ = *c;
        }
    }
    *end = '\0';
    return out;
}

/* Raises an error that explains a flag of another framework; STATUS_OK for any other text. */
static status explain_foreign_flag(const struct options *options, const char *name)
{
    const char *need = foreign_find_missing(name);
    REQUIRE(need == NULL, STATUS_UNAVAILABLE, "unknown option: " FOREIGN_MISSING, name, need);
    const char *list = foreign_find_option(name);
    struct choices candidates = {0};
    split_choices(&candidates, list != NULL ? list : "");
    for (int i = 0; i < options->count; i++) {
        REQUIRE(find_choice(&candidates, options->table[i].name) < 0, STATUS_USAGE,
                "unknown option '--%s'; use --%s (docs/limits.md lists such names)", name,
                options->table[i].name);
    }
    bool takes_recipe = strstr(options->usage, "RECIPE") != NULL;
    bool names_recipe = strcmp(name, "config") == 0 || strcmp(name, "recipe") == 0;
    REQUIRE(!takes_recipe || !names_recipe, STATUS_USAGE,
            "unknown option '--%s'; give the recipe without an option, as the first argument",
            name);
    const char *setting = takes_recipe ? foreign_find_setting(name) : NULL;
    REQUIRE(setting == NULL, STATUS_USAGE,
            "unknown option '--%s'; write %s=%s after the recipe (docs/limits.md lists such names)",
            name, setting, foreign_get_value(name));
    const char *hint = foreign_find_hint(name);
    REQUIRE(hint == NULL, STATUS_USAGE, "unknown option '--%s'; %s", name, hint);
    return STATUS_OK;
}

/* Finds the option that text ("--name" or "--name=value") names. */
static status find_option(const struct options *options, const char *text, int *out)
{
    char name[CHOICE_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text + 2, "="), text + 2);
    const char *names[OPTIONS_MAX + 1];
    for (int i = 0; i < options->count; i++) {
        const struct option *option = &options->table[i];
        if (strcmp(option->name, name) == 0 ||
            (option->former_name != NULL && strcmp(option->former_name, name) == 0)) {
            *out = i;
            return STATUS_OK;
        }
        names[i] = options->table[i].name;
    }
    names[options->count] = "help";
    int nearest = text_nearest(name, names, options->count + 1);
    if (nearest < 0 || text_distance(name, names[nearest]) > 1) { /* not a mistyped option */
        TRY(explain_foreign_flag(options, name));
    }
    RAISE(STATUS_USAGE, "unknown option '--%s'%s%s%s; run with --help to list the options", name,
          nearest >= 0 ? " (did you mean '--" : "", nearest >= 0 ? names[nearest] : "",
          nearest >= 0 ? "'?)" : "");
}

static bool is_option(const char *text)
{
    return strncmp(text, "--", 2) == 0 && text[2] != '\0';
}

/* Reads the option argv[*index] and its values. Sets *index to the last argument read. */
static status parse_option(const struct options *options, int argc, char **argv, int *index,
                           bool *seen)
{
    int found = 0;
    char *text = argv[*index];
    TRY(find_option(options, text, &found));
    const struct option *option = &options->table[found];
    REQUIRE(!seen[found] || option->kind == OPTION_LIST, STATUS_USAGE,
            "--%s is given twice; give it once", option->name);
    seen[found] = true;
    char *value = strchr(text, '=');
    if (option->kind == OPTION_FLAG) {
        REQUIRE(value == NULL, STATUS_USAGE, "--%s takes no value", option->name);
        *(bool *)option->target = true;
        return STATUS_OK;
    }
    if (value != NULL) {
        return set_value(option, value + 1, argc);
    }
    REQUIRE(*index + 1 < argc && !is_option(argv[*index + 1]) &&
                strcmp(argv[*index + 1], "--") != 0,
            STATUS_USAGE, "--%s needs a value: %s", option->name, option->value_name);
    TRY(set_value(option, argv[++*index], argc));
    while (option->kind == OPTION_LIST && *index + 1 < argc &&
           strncmp(argv[*index + 1], "--", 2) != 0) {
        TRY(set_value(option, argv[++*index], argc));
    }
    return STATUS_OK;
}

/* Refuses an argument without an option where the command has the option --prompt. */
static status check_prompt(const struct options *options, const bool *seen)
{
    for (int i = 0; i < options->count; i++) {
        bool is_prompt = strcmp(options->table[i].name, "prompt") == 0;
        REQUIRE(!is_prompt || seen[i], STATUS_USAGE,
                "unexpected argument '%s'; write --prompt '%s'", options->operands[0],
                options->operands[0]);
        REQUIRE(!is_prompt, STATUS_USAGE,
                "unexpected argument '%s'; put a prompt with spaces in quotes: --prompt 'TEXT'",
                options->operands[0]);
    }
    return STATUS_OK;
}

static status check_operands(const struct options *options, const bool *seen)
{
    char usage[USAGE_BYTES];
    int count = options->operand_count;
    TRY(options->operand_name == NULL && count > 0 ? check_prompt(options, seen) : STATUS_OK);
    REQUIRE(options->operand_name != NULL || count == 0, STATUS_USAGE,
            "unexpected argument '%s'; run with --help for the usage", options->operands[0]);
    REQUIRE(count >= options->operands_min, STATUS_USAGE, "%s is missing; usage: %s",
            options->operand_name, join_usage(options->usage, usage));
    REQUIRE(options->operand_name == NULL || options->operands_max < 0 ||
                count <= options->operands_max,
            STATUS_USAGE, "unexpected argument '%s'; usage: %s",
            options->operands[options->operands_max], join_usage(options->usage, usage));
    return STATUS_OK;
}

static status parse_arguments(struct options *options, int argc, char **argv)
{
    bool seen[OPTIONS_MAX] = {false};
    char usage[USAGE_BYTES];
    bool in_options = true;
    for (int i = 1; i < argc; i++) {
        if (in_options && strcmp(argv[i], "--") == 0) {
            in_options = false;
        } else if (in_options && is_option(argv[i])) {
            TRY(parse_option(options, argc, argv, &i, seen));
        } else {
            REQUIRE(
                !in_options || argv[i][0] != '-' || argv[i][1] == '\0', STATUS_USAGE,
                "unknown option '%s'; options begin with two dashes, run with --help to list them",
                argv[i]);
            options->operands[options->operand_count++] = argv[i];
        }
    }
    for (int i = 0; i < options->count; i++) {
        const struct option *option = &options->table[i];
        REQUIRE(option->default_value != OPTION_REQUIRED || seen[i], STATUS_USAGE,
                "--%s %s is missing; usage: %s", option->name, option->value_name,
                join_usage(options->usage, usage));
    }
    return check_operands(options, seen);
}

status options_add(struct option_table *table, const struct option *rows, int count)
{
    REQUIRE(table->count + count <= OPTIONS_MAX, STATUS_INTERNAL,
            "a command has %d options; at most %d are supported", table->count + count,
            OPTIONS_MAX);
    for (int i = 0; i < count; i++) {
        table->rows[table->count++] = rows[i];
    }
    return STATUS_OK;
}

static void free_lists(const struct options *options)
{
    for (int i = 0; i < options->count; i++) {
        if (options->table[i].kind == OPTION_LIST) {
            struct option_list *list = options->table[i].target;
            free(list->items);
            *list = (struct option_list){0};
        }
    }
}

status options_parse(struct options *options, int argc, char **argv, bool *help)
{
    bool is_check = argc > 1 && strcmp(argv[argc - 1], OPTIONS_HELP_CHECK) == 0;
    *help = false;
    options->operands = argv + 1;
    options->operand_count = 0;
    REQUIRE(options->count <= OPTIONS_MAX, STATUS_INTERNAL,
            "a command has %d options; at most %d are supported", options->count, OPTIONS_MAX);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        enum help_form form = get_help_form(argv[i]);
        if (form != HELP_NONE) {
            form == HELP_TABLE ? print_table(options) : print_help(options);
            *help = true;
        }
    }
    TRY(set_defaults(options));
    if (*help) {
        return STATUS_OK;
    }
    status result = parse_arguments(options, argc - (is_check ? 1 : 0), argv);
    if (result != STATUS_OK || is_check) {
        free_lists(options);
    }
    *help = is_check;
    return result;
}

status options_select_subcommand(const char *usage, const char *names, const char *description,
                                 const char *examples, int argc, char **argv, int *out)
{
    char last[128], line[USAGE_BYTES];
    *out = -1;
    enum help_form form = argc >= 2 ? get_help_form(argv[1]) : HELP_NONE;
    if (form == HELP_TABLE) {
        print_subcommand_table(usage, description, examples);
        return STATUS_OK;
    }
    if (form == HELP_TEXT) {
        int columns = terminal_columns(STDOUT_FILENO);
        print_usage(usage, columns);
        printf("\nsubcommands:\n");
        terminal_print_paragraphs(stdout, description, columns);
        snprintf(last, sizeof last,
                 "\nRun 'bireme %s SUBCOMMAND --help' for the options of a subcommand.", argv[0]);
        terminal_print_paragraphs(stdout, last, columns);
        print_examples(examples);
        return STATUS_OK;
    }
    REQUIRE(argc >= 2, STATUS_USAGE, "%s needs a subcommand (%s); usage: %s", argv[0], names,
            join_usage(usage, line));
    struct choices choices;
    split_choices(&choices, names);
    *out = find_choice(&choices, argv[1]);
    if (*out >= 0) {
        return STATUS_OK;
    }
    int nearest = text_nearest(argv[1], choices.list, choices.count);
    RAISE(STATUS_USAGE, "%s: unknown subcommand '%s'; must be one of %s%s%s%s", argv[0], argv[1],
          names, nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? choices.list[nearest] : "",
          nearest >= 0 ? "'?" : "");
}
