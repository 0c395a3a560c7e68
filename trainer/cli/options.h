/* A command's flags: one table makes the parser, the checks, the defaults and `--help`.
 *
 *     int64_t size = 0;
 *     const char *output = NULL;
 *     struct option_list inputs = {0};
 *     const struct option table[] = {
 *         {"vocab-size", OPTION_INTEGER, &size, "N", "4096", "ids at most", .least = 1, .most = 1e6},
 *         {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED, "folder to write"},
 *         {"input", OPTION_LIST, &inputs, "FILE...", OPTION_REQUIRED, "texts"},
 *     };
 *     struct options options = {"bireme tokenizer train --input FILE... --output DIR",
 *                               "Learns a tokenizer.", table, 3};
 *     bool help;
 *     TRY(options_parse(&options, argc, argv, &help));
 *     if (help) {
 *         return STATUS_OK;
 *     }
 *
 * `--name value` and `--name=value` are the same; a list takes values up to the next flag and may come
 * again; any other flag may come once; `--` ends the flags. Numbers are strict (base/text.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum option_kind {
    OPTION_FLAG,    /* bool: true where given; has no value */
    OPTION_INTEGER, /* int64_t in [least, most] */
    OPTION_NUMBER,  /* double in [least, most] */
    OPTION_TEXT,    /* const char *, not empty */
    OPTION_CHOICE,  /* const char *, one of choices */
    OPTION_LIST     /* struct option_list */
};

struct option_list {
    char **items; /* the caller's, for free(); the texts are argv's own */
    int count;
};

#define OPTION_REQUIRED ((const char *)-1)

struct option {
    const char *name; /* without dashes */
    enum option_kind kind;
    void *target;        /* as the kind says */
    const char *value;   /* how the value is named in the help; NULL for flags */
    const char *preset;  /* the default as one would type it; NULL: the target stays as it is;
                           OPTION_REQUIRED: must be given */
    const char *help;    /* one line, lower case, no full stop */
    double least, most;  /* of numbers; both 0: any */
    const char *choices; /* "bpe|char" */
};

struct options {
    const char *usage; /* lines after "usage: " */
    const char *about; /* what the command does, for --help */
    const struct option *table;
    int count;
    const char
        *operand; /* name of the arguments that are not flags, e.g. "RECIPE.yaml"; NULL: none */
    int operands_least, operands_most; /* most -1: any number */
    char **operands;                   /* filled in: they lie in argv, which is reordered */
    int operand_count;                 /* filled in */
};

/* options_parse - read argv[1 .. argc) into the table's targets, after setting the defaults.
 *
 * *help is true where --help was asked for: it has been printed to standard output, and the command
 * returns STATUS_OK.
 * Errors    STATUS_USAGE: one line that names the argument, the reason and, for a near miss, the flag
 *           that was meant; lists are freed then */
status options_parse(struct options *options, int argc, char **argv, bool *help);

/* options_choose - which of a command's subcommands argv[1] names ("train|encode|decode").
 *
 * *out is -1 where --help was asked for (and printed).
 * Errors    STATUS_USAGE */
status options_choose(const char *usage, const char *names, const char *about, int argc,
                      char **argv, int *out);
