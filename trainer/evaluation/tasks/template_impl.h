/* The syntax tree of a template. Private to trainer/evaluation/tasks. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"

/* Maximum bytes of a computed text. */
enum { TEMPLATE_TEXT_BYTES = 16 << 20 };

enum template_kind {
    TEMPLATE_TEXT,   /* text between tags: value */
    TEMPLATE_VALUE,  /* literal: value */
    TEMPLATE_FIELD,  /* field of the document: name */
    TEMPLATE_LIST,   /* [operands] */
    TEMPLATE_INDEX,  /* first[second] */
    TEMPLATE_SLICE,  /* first[second:third]; a missing bound is the value null */
    TEMPLATE_CALL,   /* method or filter: name; first is its object, then arguments */
    TEMPLATE_TEST,   /* first is name */
    TEMPLATE_BINARY, /* first name second */
    TEMPLATE_NOT,
    TEMPLATE_NEGATE,
    TEMPLATE_CHOOSE, /* second if first else third; third may be missing */
    TEMPLATE_BLOCK   /* operands, one after the other */
};

struct template_node {
    enum template_kind kind;
    char *name;
    json_t *value;
    struct template_node *first, *next; /* first operand; next operand of the parent */
    struct template_node *allocated;    /* list of all nodes */
};

struct task_template {
    struct template_node *root; /* a block */
    struct template_node *nodes;
};

/* template_has_function - return whether a method or a filter of this name exists, with this number
 * of arguments. */
bool template_has_function(const char *name, bool is_filter, int arguments);
