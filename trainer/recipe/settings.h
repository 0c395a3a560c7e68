/* Internals of the recipe: the settings table, the YAML tree and the locations of values, so that
 * every error names its location. The cluster description (train/planner/cluster.c) uses them. */
#pragma once

#include "trainer/recipe/recipe.h"

enum setting_kind {
    SETTING_TEXT,    /* char [bytes] */
    SETTING_PATH,    /* char [bytes]; a resumed run may change it */
    SETTING_ENUM,    /* enum: index in choices; with null: 0 for null, then the choices from 1 */
    SETTING_INTEGER, /* int64_t */
    SETTING_NUMBER,  /* double */
    SETTING_BOOLEAN, /* bool */
    SETTING_SOURCES, /* data.train and data.train_count */
    SETTING_LIST,    /* char [bytes]: entries of choices, or numbers, joined by ", " */
    SETTING_PATHS    /* char [bytes]: paths joined by ", "; a resumed run may change them */
};

/* Meaning of a setting of the model for weights that come from model.init_from. */
enum initial_rule {
    INITIAL_UNRELATED = 0, /* the checkpoint has no influence */
    INITIAL_DEFAULT,       /* a value that the recipe leaves open comes from the checkpoint */
    INITIAL_NUMERICS,      /* as INITIAL_DEFAULT; a different value in the recipe gives a warning,
                              because the same weights then compute something else */
    INITIAL_SHAPE          /* as INITIAL_DEFAULT; a different value is an error: the weights do not
                              fit */
};

/* Interval of valid numbers. */
struct number_range {
    double min, max;
    bool exclusive_min, exclusive_max; /* the bound itself is invalid */
};

struct setting {
    const char *key; /* "section.name", or "name" at the top level */
    enum setting_kind kind;
    size_t offset, bytes;      /* in struct recipe */
    const char *default_value; /* as written in a recipe */
    const char *null;          /* effect of null; NULL: null is an error */
    double null_value;         /* value of a number that is null */
    struct number_range range;
    const char *choices; /* "gpt2|bert|llama" */
    bool resume;         /* a resumed run may change it */
    bool unordered;      /* SETTING_LIST: the order of the entries has no effect */
    enum initial_rule initial;
    /* "KEY=VALUE|VALUE" or "KEY": the program reads the setting only if KEY has one of the values,
     * or any value but null, and is itself read. NULL: always */
    const char *used;
    /* How the program handles a setting that it does not read and that differs from its default.
     * true: it raises an error, because the setting would change the model; .used is then a list of
     * architectures. false: it prints a warning */
    bool refused_if_unused;
    const char *description; /* for recipes/README.md, without the last full stop */
};

enum {
    SETTINGS_MAX = RECIPE_SETTINGS_MAX,
    SECTIONS_MAX = 32,
    CHOICES_MAX = 64,
    CHOICES_BYTES = 1024
};

extern const struct setting recipe_table[];
extern const int recipe_table_count;

enum { HEAD_DIM_MAX = 256 }; /* limit of attention_forward */

/* A name of another framework or of Python, and the name of the setting or value here. */
struct synonym {
    const char *alias, *name;
};
extern const struct synonym recipe_synonyms[];
extern const int recipe_synonym_count;

/* A section with its introduction in recipes/README.md; name "" is the top level. */
struct section {
    const char *name, *description;
};
extern const struct section recipe_sections[];
extern const int recipe_section_count;

/* recipe_table_find - return the index of the setting with this key, or -1. */
int recipe_table_find(const char *key);

/* recipe_value_choices - split "a|b|c" and return the number of choices.
 *
 * Memory    text[CHOICES_BYTES] holds the strings that out[CHOICES_MAX] points to */
int recipe_value_choices(const char *choices, char *text, const char **out);

/* recipe_find_synonym - return the name for an alias of another framework, or NULL. */
const char *recipe_find_synonym(const char *alias);

/* ---- yaml.c: text to tree ---- */

enum node_kind { NODE_PLAIN, NODE_QUOTED, NODE_RAW, NODE_SEQUENCE, NODE_MAPPING };

struct node {
    enum node_kind kind; /* NODE_RAW: a scalar from the command line, without YAML quoting */
    int line, column;    /* of the value, from 1 */
    char *text;          /* value of a scalar */
    char *key;           /* in a mapping; else NULL */
    int key_line, key_column;
    struct node *first, *next; /* first child; next sibling */
};

enum recipe_yaml_form {
    RECIPE_YAML_MAPPING,  /* a mapping of sections; a string has one line */
    RECIPE_YAML_ANY_KIND, /* a value of any kind, or none; a string has one line */
    RECIPE_YAML_LINES     /* a value of any kind; a string can have several lines and tabs */
};

/* recipe_yaml_parse - parse the only document in text into a tree. `name` stands for the file in
 * messages.
 *
 * Memory    the caller frees *out with recipe_yaml_free
 * Errors    STATUS_RECIPE "name:line:column: reason" */
status recipe_yaml_parse(const char *name, const char *text, size_t bytes,
                         enum recipe_yaml_form form, struct node **out);

/* recipe_yaml_is_control - return whether text begins with a character that one line cannot hold.
 *
 * These are control characters, line and paragraph separators, and the byte order mark. */
bool recipe_yaml_is_control(const char *text);

/* recipe_yaml_free - free a tree and set *node to NULL. */
void recipe_yaml_free(struct node **node);

/* ---- locations and errors ---- */

/* State of the parser. */
struct recipe_reader {
    const char *name; /* of the file, for messages */
    void *recipe;     /* struct recipe, or the struct of another table (train/planner/cluster.c) */
    struct source_location locations[SETTINGS_MAX]; /* last location of each setting */
};

/* recipe_fail - raise STATUS_RECIPE with the message "location: key: reason".
 *
 * Control characters in the reason are replaced by "?".
 *
 * Returns   STATUS_RECIPE */
status recipe_fail(const struct recipe_reader *r, struct source_location location, const char *key,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

/* recipe_fail_missing - raise the error that a key or value names a missing feature.
 *
 * `need` is the text of foreign_find_missing.
 *
 * Returns   STATUS_UNAVAILABLE */
status recipe_fail_missing(const struct recipe_reader *r, struct source_location location,
                           const char *key, const char *name, const char *need);

/* ---- value.c: one value ---- */

/* recipe_node_is_scalar - return whether a value is neither a sequence nor a mapping. */
bool recipe_node_is_scalar(const struct node *node);

/* recipe_node_is_null - return whether a value is null or ~, without quotes. */
bool recipe_node_is_null(const struct node *node);

/* recipe_value_set - check a value and store it in the field of its setting. */
status recipe_value_set(const struct recipe_reader *r, struct source_location location,
                        const struct setting *setting, const struct node *node);

/* recipe_value_set_default - store the default in the field of a setting. */
void recipe_value_set_default(const struct setting *setting, struct recipe *recipe);

enum { RECIPE_VALUE_BYTES = 6 * RECIPE_PATH_BYTES + 3 };

/* recipe_value_format - write a field as YAML, or as JSON. Not for SETTING_SOURCES.
 *
 * Memory    out[RECIPE_VALUE_BYTES]
 * Returns   out */
char *recipe_value_format(const struct setting *setting, const struct recipe *recipe, bool json,
                          char *out);

/* recipe_value_quote - write a string as YAML, or as JSON, quoted where necessary.
 *
 * The empty string gives null.
 *
 * Memory    out[RECIPE_VALUE_BYTES]
 * Returns   out */
char *recipe_value_quote(const char *text, bool json, char *out);

/* ---- warn.c: conditions of settings ---- */

/* recipe_find_failed_condition - return the condition in setting.used, "KEY=VALUE|VALUE", that
 * prevents the use of a setting, or NULL.
 *
 * Units     index: in recipe_table */
const char *recipe_find_failed_condition(const struct recipe *recipe, int index);

/* ---- initial.c: settings of the initial model ---- */

/* recipe_take_initial - copy the settings that the recipe leaves open from the initial model. */
void recipe_take_initial(struct recipe *recipe, const struct recipe *initial);

/* ---- check.c: relations between values ---- */

/* recipe_has_default - return whether a setting has the value that it has if it is not given.
 *
 * Units     index: in recipe_table */
bool recipe_has_default(const struct recipe *recipe, int index);

/* recipe_check_longrope - check the numbers of entries of the factors of LongRoPE.
 *
 * Errors    STATUS_RECIPE */
status recipe_check_longrope(const struct recipe *recipe);

/* recipe_check_free_parts - check the parts of an architecture with free parts (check_parts.c).
 *
 * Errors    STATUS_RECIPE */
status recipe_check_free_parts(const struct recipe_reader *reader);

/* recipe_shorten_groups - set model.num_hidden_groups to 0 (null) if it equals model.num_layers, so
 * that equal models have equal settings. */
void recipe_shorten_groups(struct recipe *recipe);

/* recipe_check_layer_types - check model.layer_types, which needs one entry for each layer.
 *
 * Errors    STATUS_RECIPE */
status recipe_check_layer_types(const struct recipe_reader *reader);

/* recipe_expand_layer_types - set model.layer_types also if the model has a pattern. A list that is
 * too long is not set. */
void recipe_expand_layer_types(struct recipe *recipe);

/* recipe_shorten_layer_types - replace model.layer_types by model.sliding_window_pattern if every
 * n-th layer has full_attention and no other, so that equal models have equal settings. */
void recipe_shorten_layer_types(struct recipe *recipe);

/* recipe_check_resolve - replace nulls that have a fallback, then check pairs of settings. */
status recipe_check_resolve(const struct recipe_reader *reader);
