/* The inside of the recipe: the settings table, the tree that YAML is read into, and where a value
 * came from, so that each error can name its place. */
#pragma once

#include "trainer/recipe/recipe.h"

enum setting_kind {
    SETTING_TEXT,    /* char [bytes] */
    SETTING_PATH,    /* likewise; a resumed run may change it */
    SETTING_CHOICE,  /* char [bytes], one of choices */
    SETTING_ENUM,    /* an enum: the place in choices */
    SETTING_INTEGER, /* int64_t */
    SETTING_NUMBER,  /* double */
    SETTING_BOOLEAN, /* bool */
    SETTING_SOURCES, /* data.train and data.train_count */
    SETTING_LIST /* char [bytes]: words of `choices`, or numbers where there are none, with ", " in between */
};

/* What a number may be; kept apart so that one range serves many settings. */
struct range_of {
    double least, most;
    bool above, below; /* least, most themselves are outside */
};

struct setting {
    const char *key; /* "section.name", or a name alone at the top level */
    enum setting_kind kind;
    size_t offset, bytes; /* in struct recipe */
    const char *preset;   /* the default, as one would write it in a recipe */
    const char *null;     /* what null means; NULL: null is not accepted */
    double null_value;    /* how null is kept in a number */
    struct range_of range;
    const char *choices; /* "gpt2|bert|llama" */
    bool resume;         /* a resumed run may change it */
    const char *meaning; /* one sentence for recipes/README.md, without the full stop */
};

enum { SETTINGS_MAX = RECIPE_SETTINGS_MAX, SECTIONS_MAX = 32, CHOICES_MAX = 24 };

extern const struct setting recipe_table[];
extern const int recipe_table_count;

/* Words of other frameworks and of Python for settings and values of ours, for "did you mean". */
struct synonym {
    const char *word, *ours;
};
extern const struct synonym recipe_synonyms[];
extern const int recipe_synonym_count;

/* One introduction a section, for recipes/README.md; the key "" is the top level. */
struct section {
    const char *name, *meaning;
};
extern const struct section recipe_sections[];
extern const int recipe_section_count;

/* recipe_table_find - index of the setting with this key, -1: none. */
int recipe_table_find(const char *key);

/* recipe_table_choices - the words of "a|b|c" into out[CHOICES_MAX]; text[bytes] holds them. */
int recipe_table_choices(const char *choices, char *text, size_t bytes, const char **out);

/* recipe_table_synonym - our word for theirs; NULL: none is known. */
const char *recipe_table_synonym(const char *word);

/* ---- recipe_yaml.c: text to tree ---- */

enum node_kind { NODE_PLAIN, NODE_QUOTED, NODE_RAW, NODE_SEQUENCE, NODE_MAPPING };

struct node {
    enum node_kind kind; /* NODE_RAW: a scalar from the command line, where nothing can be quoted */
    int line, column;    /* of the value, from 1 */
    char *text;          /* of scalars */
    char *key;           /* in a mapping; else NULL */
    int key_line, key_column;
    struct node *first, *next; /* children; the next one of the same parent */
};

/* recipe_yaml_parse - the one document in text, whose top is a mapping (or anything, where any).
 *
 * Errors    STATUS_RECIPE "name:line:column: reason" */
status recipe_yaml_parse(const char *name, const char *text, size_t bytes, bool any,
                         struct node **out);

/* recipe_yaml_control - whether text begins with a character that does not read back from one line: a
 * control character, a line or paragraph separator, a byte order mark. */
bool recipe_yaml_control(const char *text);
void recipe_yaml_free(struct node **node);

/* ---- places and errors ---- */

enum place_kind { PLACE_DEFAULT = 0, PLACE_FILE, PLACE_COMMAND };

struct place {
    enum place_kind kind;
    int line, column;
};

/* A recipe while it is read. */
struct reading {
    const char *name; /* of the file */
    void *recipe;     /* struct recipe, or what another table's offsets are of (cluster.c) */
    struct place places[SETTINGS_MAX]; /* where each setting was given last */
};

/* recipe_fail - "place: key: reason" as STATUS_RECIPE; control characters are replaced. */
status recipe_fail(const struct reading *r, struct place place, const char *key, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));

/* ---- recipe_value.c: one value ---- */

/* recipe_value_set - node into the setting's field, checked. */
status recipe_value_set(const struct reading *r, struct place place, const struct setting *setting,
                        const struct node *node);

/* recipe_value_preset - the default into the setting's field. */
void recipe_value_preset(const struct setting *setting, struct recipe *recipe);

/* recipe_value_text - the field as YAML; json: as JSON (which is YAML too). Returns out.
 *
 * Memory    out[RECIPE_VALUE_BYTES]; not for SETTING_SOURCES */
enum { RECIPE_VALUE_BYTES = 6 * RECIPE_PATH_BYTES + 3 };
char *recipe_value_text(const struct setting *setting, const struct recipe *recipe, bool json,
                        char *out);
char *recipe_value_quote(const char *text, bool json, char *out);

/* ---- recipe_check.c: values against each other ---- */

/* recipe_check_resolve - replace what null leaves to the program, then check pairs of settings. */
status recipe_check_resolve(const struct reading *r);
