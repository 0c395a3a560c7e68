/* Builds a tree from libyaml's events and rejects every YAML feature that a recipe does not need.
 * These are tags, directives, further documents, deep nesting, large values, and anchors with
 * aliases, which allow cycles and texts that expand without limit.
 *
 * libyaml takes quadratic time for nested brackets. Its scanner reads at most 1,024 characters
 * ahead of an event, so the depth limit of 8 also limits this time. */
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/memory.h"
#include "trainer/recipe/settings.h"

enum { DEPTH_MAX = 8, NODES_MAX = 4096, SCALAR_BYTES = 4096, KEY_BYTES = 256 };
enum { LINES_SCALAR_BYTES = 64 << 10 }; /* with RECIPE_YAML_LINES */

struct parsing {
    const char *name;
    const char *text;
    size_t bytes;
    enum recipe_yaml_form form;
    int nodes;
    yaml_parser_t parser;
};

static status parse_value(struct parsing *p, yaml_event_t *event, const char *path, int depth,
                          struct node **out);

#define FAIL_AT(p, mark, ...)                                                                      \
    return recipe_fail(                                                                            \
        &(struct recipe_reader){.name = (p)->name},                                                \
        (struct source_location){LOCATION_FILE, (int)(mark).line + 1, (int)(mark).column + 1},     \
        __VA_ARGS__)

/* Computes line and column of a byte. libyaml reports only an offset for reader errors. */
static yaml_mark_t compute_mark(const struct parsing *p, size_t offset)
{
    yaml_mark_t mark = {0};
    for (size_t i = 0; i < offset && i < p->bytes; i++) {
        mark.column++;
        if (p->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

static status syntax_error(const struct parsing *p)
{
    const yaml_parser_t *parser = &p->parser;
    const char *problem = parser->problem != NULL ? parser->problem : "syntax error";
    if (parser->error == YAML_MEMORY_ERROR) {
        RAISE(STATUS_INTERNAL, "out of memory while reading %s", p->name);
    }
    if (parser->error == YAML_READER_ERROR) {
        FAIL_AT(p, compute_mark(p, parser->problem_offset), NULL, "not YAML: %s (byte value %d)%s",
                problem, parser->problem_value,
                strstr(problem, "UTF-8") != NULL ? "; save the file as UTF-8" : "");
    }
    const char *context = parser->context != NULL ? parser->context : "";
    bool alias = strstr(context, "alias") != NULL;
    bool tab = parser->problem_mark.index < p->bytes && p->text[parser->problem_mark.index] == '\t';
    FAIL_AT(p, parser->problem_mark, NULL, "not YAML: %s%s%s%s", problem,
            context[0] != '\0' ? ", " : "", context,
            alias ? "; quote a string that begins with *"
            : tab ? "; indent with spaces, not with tabs"
                  : "");
}

static status next_event(struct parsing *p, yaml_event_t *event)
{
    if (!yaml_parser_parse(&p->parser, event)) {
        return syntax_error(p);
    }
    return STATUS_OK;
}

static status new_node(struct parsing *p, const yaml_event_t *event, enum node_kind kind,
                       const char *path, struct node **out)
{
    if (++p->nodes > NODES_MAX) {
        FAIL_AT(p, event->start_mark, path, "the file has more than %d values", NODES_MAX);
    }
    struct node *node = NULL;
    TRY(ALLOCATE(node, 1, p->name));
    node->kind = kind;
    node->line = (int)event->start_mark.line + 1;
    node->column = (int)event->start_mark.column + 1;
    *out = node;
    return STATUS_OK;
}

/* Requires that a value of any kind has neither an anchor nor a tag. */
static status check_no_anchor_or_tag(const struct parsing *p, const yaml_event_t *event,
                                     const char *path)
{
    const yaml_char_t *anchor = NULL;
    const yaml_char_t *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor != NULL) {
        FAIL_AT(p, event->start_mark, path,
                "anchors (&%.40s) are not accepted; write out the value", (const char *)anchor);
    }
    if (tag != NULL) {
        FAIL_AT(p, event->start_mark, path, "tags (%.40s) are not accepted", (const char *)tag);
    }
    return STATUS_OK;
}

bool recipe_yaml_is_control(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    return c[0] < 0x20 || c[0] == 0x7f || (c[0] == 0xc2 && c[1] < 0xa0) ||
           (c[0] == 0xe2 && c[1] == 0x80 && (c[2] == 0xa8 || c[2] == 0xa9)) ||
           (c[0] == 0xef && c[1] == 0xbb && c[2] == 0xbf);
}

static status copy_scalar(const struct parsing *p, const yaml_event_t *event, const char *path,
                          char **out)
{
    size_t length = event->data.scalar.length;
    const char *value = (const char *)event->data.scalar.value;
    bool has_lines = p->form == RECIPE_YAML_LINES;
    size_t limit = has_lines ? LINES_SCALAR_BYTES : SCALAR_BYTES;
    if (length > limit) {
        FAIL_AT(p, event->start_mark, path, "the string has %zu bytes; at most %zu are accepted",
                length, limit);
    }
    for (size_t i = 0; i < length; i++) {
        bool is_line_end = has_lines && (value[i] == '\n' || value[i] == '\t');
        if (recipe_yaml_is_control(value + i) && !is_line_end) {
            FAIL_AT(p, event->start_mark, path, "contains a control character (byte value %d)",
                    (unsigned char)value[i]);
        }
    }
    return memory_copy_text(out, value, p->name);
}

/* Reads a key and sets path to parent.key. */
static status parse_key(struct parsing *p, const yaml_event_t *event, const char *parent,
                        char **key, char path[KEY_BYTES])
{
    TRY(check_no_anchor_or_tag(p, event, parent));
    if (event->type == YAML_ALIAS_EVENT) {
        FAIL_AT(p, event->start_mark, parent, "aliases (*%.40s) are not accepted as keys",
                (const char *)event->data.alias.anchor);
    }
    if (event->type != YAML_SCALAR_EVENT) {
        FAIL_AT(p, event->start_mark, parent, "a key must be a string");
    }
    TRY(copy_scalar(p, event, parent, key));
    snprintf(path, KEY_BYTES, "%.100s%s%.100s", parent != NULL ? parent : "",
             parent != NULL ? "." : "", *key);
    if (strcmp(*key, "<<") == 0) {
        FAIL_AT(p, event->start_mark, path, "merge keys are not accepted; write out the settings");
    }
    return STATUS_OK;
}

/* Appends one key with its value at *link. */
static status parse_pair(struct parsing *p, const yaml_event_t *event, const char *parent,
                         int depth, struct node **link)
{
    char path[KEY_BYTES];
    char *key = NULL;
    yaml_event_t value;
    status result = STATUS_OK;
    TRY_GOTO(result, failed, parse_key(p, event, parent, &key, path));
    TRY_GOTO(result, failed, next_event(p, &value));
    result = parse_value(p, &value, path, depth, link);
    yaml_event_delete(&value);
    if (*link != NULL) { /* the tree's own from here on, on failure too */
        (*link)->key = key;
        (*link)->key_line = (int)event->start_mark.line + 1;
        (*link)->key_column = (int)event->start_mark.column + 1;
        key = NULL;
    }
failed:
    free(key);
    return result;
}

/* Reads the entries of a sequence or a mapping, up to the event `end`. */
static status parse_entries(struct parsing *p, yaml_event_type_t end, const char *path, int depth,
                            struct node *parent)
{
    struct node **link = &parent->first;
    for (;;) {
        yaml_event_t event;
        TRY(next_event(p, &event));
        if (event.type == end) {
            yaml_event_delete(&event);
            return STATUS_OK;
        }
        status result = end == YAML_MAPPING_END_EVENT ? parse_pair(p, &event, path, depth, link)
                                                      : parse_value(p, &event, path, depth, link);
        yaml_event_delete(&event);
        TRY(result);
        link = &(*link)->next;
    }
}

static status parse_value(struct parsing *p, yaml_event_t *event, const char *path, int depth,
                          struct node **out)
{
    TRY(check_no_anchor_or_tag(p, event, path));
    if (depth > DEPTH_MAX) {
        FAIL_AT(p, event->start_mark, path, "nested deeper than %d levels", DEPTH_MAX);
    }
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        FAIL_AT(p, event->start_mark, path,
                "aliases (*%.40s) are not accepted; write out the value, or quote a glob",
                (const char *)event->data.alias.anchor);
    case YAML_SCALAR_EVENT: {
        bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        TRY(new_node(p, event, plain ? NODE_PLAIN : NODE_QUOTED, path, out));
        return copy_scalar(p, event, path, &(*out)->text);
    }
    case YAML_SEQUENCE_START_EVENT:
        TRY(new_node(p, event, NODE_SEQUENCE, path, out));
        return parse_entries(p, YAML_SEQUENCE_END_EVENT, path, depth + 1, *out);
    case YAML_MAPPING_START_EVENT:
        TRY(new_node(p, event, NODE_MAPPING, path, out));
        return parse_entries(p, YAML_MAPPING_END_EVENT, path, depth + 1, *out);
    default:
        FAIL_AT(p, event->start_mark, path, "not YAML: a value is missing");
    }
}

static status expect_event(struct parsing *p, yaml_event_type_t type, const char *message)
{
    yaml_event_t event;
    TRY(next_event(p, &event));
    yaml_event_type_t got = event.type;
    yaml_mark_t mark = event.start_mark;
    yaml_event_delete(&event);
    if (got != type) {
        FAIL_AT(p, mark, NULL, "%s", message);
    }
    return STATUS_OK;
}

static status parse_start(struct parsing *p)
{
    yaml_event_t event;
    TRY(expect_event(p, YAML_STREAM_START_EVENT, "not YAML"));
    TRY(next_event(p, &event));
    bool document = event.type == YAML_DOCUMENT_START_EVENT;
    bool directives = document && (event.data.document_start.version_directive != NULL ||
                                   event.data.document_start.tag_directives.start !=
                                       event.data.document_start.tag_directives.end);
    yaml_mark_t mark = event.start_mark;
    yaml_event_delete(&event);
    if (!document) {
        FAIL_AT(p, mark, NULL, "the file is empty");
    }
    if (directives) {
        FAIL_AT(p, mark, NULL, "directives (%%) are not accepted");
    }
    return STATUS_OK;
}

static status parse_document(struct parsing *p, struct node **out)
{
    TRY(parse_start(p));
    yaml_event_t event;
    TRY(next_event(p, &event));
    status result = parse_value(p, &event, NULL, 0, out);
    yaml_event_delete(&event);
    TRY(result);
    bool is_empty = (*out)->kind == NODE_PLAIN && (*out)->text[0] == '\0';
    yaml_mark_t mark = {0, (size_t)(*out)->line - 1, (size_t)(*out)->column - 1};
    if (p->form != RECIPE_YAML_ANY_KIND && is_empty) {
        FAIL_AT(p, mark, NULL, "the file is empty");
    }
    if (p->form == RECIPE_YAML_MAPPING && (*out)->kind != NODE_MAPPING) {
        FAIL_AT(p, mark, NULL, "must be a mapping of sections with their settings");
    }
    TRY(expect_event(p, YAML_DOCUMENT_END_EVENT, "not YAML: expected the end of the document"));
    return expect_event(p, YAML_STREAM_END_EVENT,
                        "a second document begins here; only one is accepted");
}

status recipe_yaml_parse(const char *name, const char *text, size_t bytes,
                         enum recipe_yaml_form form, struct node **out)
{
    static const char mark[] =
        "\xef\xbb\xbf"; /* UTF-8 byte order mark, written by editors on Windows */
    size_t skipped =
        bytes >= strlen(mark) && memcmp(text, mark, strlen(mark)) == 0 ? strlen(mark) : 0;
    *out = NULL;
    text += skipped;
    bytes -= skipped;
    struct parsing p = {.name = name, .text = text, .bytes = bytes, .form = form};
    REQUIRE(yaml_parser_initialize(&p.parser), STATUS_INTERNAL, "out of memory for a YAML parser");
    yaml_parser_set_encoding(&p.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&p.parser, (const unsigned char *)text, bytes);
    status result = parse_document(&p, out);
    yaml_parser_delete(&p.parser);
    if (result != STATUS_OK) {
        recipe_yaml_free(out);
    }
    return result;
}

void recipe_yaml_free(struct node **node)
{
    struct node *at = *node;
    while (at != NULL) {
        struct node *next = at->next;
        recipe_yaml_free(&at->first);
        free(at->text);
        free(at->key);
        free(at);
        at = next;
    }
    *node = NULL;
}
