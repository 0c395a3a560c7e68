/* The syntax tree of a template. Private to trainer/evaluation/tasks. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

/* Maximum bytes of a computed text. */
enum { TASK_TEMPLATE_TEXT_BYTES = 16 << 20 };

enum task_template_kind {
    TASK_TEMPLATE_TEXT,   /* text between tags: value */
    TASK_TEMPLATE_VALUE,  /* literal: value */
    TASK_TEMPLATE_FIELD,  /* field of the document: name */
    TASK_TEMPLATE_LIST,   /* [operands] */
    TASK_TEMPLATE_INDEX,  /* first[second] */
    TASK_TEMPLATE_SLICE,  /* first[second:third]; a missing bound is the value null */
    TASK_TEMPLATE_CALL,   /* method or filter: name; first is its object, then arguments */
    TASK_TEMPLATE_TEST,   /* first is name */
    TASK_TEMPLATE_BINARY, /* first name second */
    TASK_TEMPLATE_NOT,
    TASK_TEMPLATE_NEGATE,
    TASK_TEMPLATE_CHOOSE, /* second if first else third; third may be missing */
    TASK_TEMPLATE_BLOCK   /* operands, one after the other */
};

struct task_template_node {
    enum task_template_kind kind;
    char *name;
    json_t *value;
    struct task_template_node *first, *next; /* first operand; next operand of the parent */
    struct task_template_node *allocated;    /* list of all nodes */
};

struct task_template {
    struct task_template_node *root; /* a block */
    struct task_template_node *nodes;
};

/* task_template_has_function - return whether a method or a filter of this name exists, with this
 * number of arguments. */
bool task_template_has_function(const char *name, bool is_filter, int arguments);
