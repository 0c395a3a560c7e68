/* Command-line options: one table defines the parser, the checks, the defaults and `--help`.
 *
 *     int64_t size = 0;
 *     const char *output = NULL;
 *     struct option_list inputs = {0};
 *     const struct option table[] = {
 *         {"vocab-size", OPTION_INTEGER, &size, "N", "4096", "maximum vocabulary size",
 *          .min = 1, .max = 1e6},
 *         {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED, "folder to write"},
 *         {"input", OPTION_LIST, &inputs, "FILE...", OPTION_REQUIRED, "text files"},
 *     };
 *     struct options options = {"bireme tokenizer train --input FILE... --output DIR",
 *                               "Trains a tokenizer.", table, 3,
 *                               "bireme tokenizer train --input text.txt --output tokenizer"};
 *     OPTIONS_PARSE(&options, argc, argv);
 *
 * `--name value` and `--name=value` are equivalent. A list option takes every value up to the next
 * option and may be repeated. Any other option may be given once. `--` ends the options. Numbers
 * must be complete and valid (base/text.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum option_kind {
    OPTION_FLAG,    /* bool: true if given; takes no value */
    OPTION_INTEGER, /* int64_t in [min, max] */
    OPTION_NUMBER,  /* double in [min, max] */
    OPTION_TEXT,    /* const char *, not empty */
    OPTION_CHOICE,  /* const char *, one of choices */
    OPTION_LIST     /* struct option_list */
};

struct option_list {
    char **items; /* the caller frees the array with free(); the strings belong to argv */
    int count;
};

/* With this argument a command prints its help as rows for scripts/generate_manual.sh, with tabs
 * between the fields: usage; description; option with name, value name, list|once, required,
 * default, choices and help; operand; subcommand with name and help; examples. \n stands for a
 * newline. */
#define OPTIONS_HELP_TABLE "--help=table"

/* If this is the last argument, a command only parses the arguments before it. The test of the
 * examples uses it. */
#define OPTIONS_HELP_CHECK "--help=check"

#define OPTION_REQUIRED ((const char *)-1)

struct option {
    const char *name; /* without dashes */
    enum option_kind kind;
    void *target;              /* points to the type of the kind */
    const char *value_name;    /* name of the value in the help; NULL for OPTION_FLAG */
    const char *default_value; /* as typed on the command line; NULL: the target is unchanged;
                                  OPTION_REQUIRED: the option must be given */
    const char *help;          /* one phrase, lower case, no full stop */
    double min, max;           /* range of a number; both 0: unlimited */
    const char *choices;       /* "bpe|char" */
    const char *former_name;   /* accepted too, but not in the help; NULL: none */
};

enum { OPTIONS_MAX = 64 }; /* of a command */

/* A table made of several parts. */
struct option_table {
    struct option rows[OPTIONS_MAX];
    int count;
};

struct options {
    const char *usage;       /* text after "usage: " */
    const char *description; /* shown by --help after the usage */
    const struct option *table;
    int count;
    const char *examples;     /* one to three shell commands, shown at the end of the help; a long
                                  one continues after a backslash at the end of its line */
    const char *operand_name; /* e.g. "RECIPE.yaml"; NULL: the command takes no operands */
    int operands_min, operands_max; /* operands_max -1: unlimited */
    char **operands;                /* output: stored in argv, which options_parse reorders */
    int operand_count;              /* output */
};

/* options_add - append rows to a table, which starts as {.count = 0}.
 *
 * Errors    STATUS_INTERNAL for more than OPTIONS_MAX rows */
status options_add(struct option_table *table, const struct option *rows, int count);

/* options_parse - set the defaults, then read argv[1 .. argc) into the targets of the table.
 *
 * Sets *help to true if --help was given. The help has then been printed to standard output, and
 * the command returns STATUS_OK. OPTIONS_HELP_CHECK also sets *help, but prints nothing.
 *
 * Memory    the caller frees the items of each list; on an error they are already freed
 * Errors    STATUS_USAGE; the message names the argument, the reason and the most similar option */
status options_parse(struct options *options, int argc, char **argv, bool *help);

/* OPTIONS_PARSE - call options_parse. Returns from the calling function after an error, and after
 * --help with STATUS_OK. */
#define OPTIONS_PARSE(options, argc, argv)                                                         \
    do {                                                                                           \
        bool options_help_ = false;                                                                \
        TRY(options_parse((options), (argc), (argv), &options_help_));                             \
        if (options_help_) {                                                                       \
            return STATUS_OK;                                                                      \
        }                                                                                          \
    } while (0)

/* options_select_subcommand - find the subcommand argv[1] in names ("train|encode|decode").
 *
 * Sets *out to the index in names, or to -1 if --help was given. The help has then been printed,
 * with these examples at its end (struct options).
 *
 * Errors    STATUS_USAGE if the subcommand is missing or unknown */
status options_select_subcommand(const char *usage, const char *names, const char *description,
                                 const char *examples, int argc, char **argv, int *out);
