/* Tests of instruction templates: fields, braces and objects as in str.format of Python, bad
 * templates and bad rows. The selection of a template depends on seed, file and line only. */
#include "base/memory.h"
#include "datasets/rows/instruction_templates.h"
#include "tests/check.h"

static struct instruction_templates *make_list(uint64_t seed, bool as_messages)
{
    struct instruction_templates *t = NULL;
    CHECK_OK(instruction_templates_create(seed, as_messages, &t));
    return t;
}

static status add_template(struct instruction_templates *t, const char *name, const char *input,
                           const char *target)
{
    return instruction_templates_add(
        t, &(struct instruction_template_text){name, input, target, "file.yaml:3"});
}

static status render_row(struct instruction_templates *t, const char *json, int64_t file,
                         int64_t line, json_t **out)
{
    struct jsonl_row row = {.path = "rows.jsonl", .line = line, .value = json_loads(json, 0, NULL)};
    CHECK(row.value != NULL);
    status result = instruction_templates_render(t, file, &row);
    *out = row.value;
    return result;
}

static void check_texts(const char *input, const char *target, const char *json,
                        const char *expected_input, const char *expected_target)
{
    struct instruction_templates *t = make_list(1, false);
    json_t *row = NULL;
    CHECK_OK(add_template(t, "one", input, target));
    CHECK_OK(render_row(t, json, 0, 1, &row));
    CHECK_EQUAL(json_object_size(row), 2);
    CHECK_TEXT(json_string_value(json_object_get(row, "prompt")), expected_input);
    CHECK_TEXT(json_string_value(json_object_get(row, "completion")), expected_target);
    json_decref(row);
    instruction_templates_destroy(&t);
    CHECK(t == NULL);
}

static void test_fields(void)
{
    check_texts("Translate: {source}", "{target}", "{\"source\": \"a\", \"target\": \"b c\"}",
                "Translate: a", "b c");
    /* the result of "{{{a}}} {{}} {a}{b}\n".format(a="x{y}", b=-7) */
    check_texts("{{{a}}} {{}} {a}{b}\n", "{b}", "{\"a\": \"x{y}\", \"b\": -7}",
                "{x{y}} {} x{y}-7\n", "-7");
    check_texts("to {t[es]}?", "{t[en]} ({a b})",
                "{\"t\": {\"en\": \"e\", \"es\": \"s\"}, "
                "\"a b\": 1}",
                "to s?", "e (1)");
    check_texts("{answers[text][1]}", "{answers[at][0]}",
                "{\"answers\": {\"text\": [\"x\", \"y\"], \"at\": [12]}}", "y", "12");
    /* Messages, to which a chat template is applied. */
    struct instruction_templates *t = make_list(1, true);
    json_t *row = NULL;
    CHECK_OK(add_template(t, "one", "to {a}", "{a}"));
    CHECK_OK(render_row(t, "{\"a\": \"b\"}", 0, 1, &row));
    char *text = json_dumps(row, JSON_COMPACT);
    CHECK_TEXT(text, "{\"prompt\":[{\"role\":\"user\",\"content\":\"to b\"}],"
                     "\"completion\":[{\"role\":\"assistant\",\"content\":\"b\"}]}");
    free(text);
    json_decref(row);
    instruction_templates_destroy(&t);
}

static void test_bad_templates(void)
{
    static const char *const bad[][3] = {
        {"{a", "{a}", "input of template 'x': a single brace '{'"},
        {"a}", "{a}", "a single brace '}'"},
        {"{a}", "{a{b}}", "target of template 'x': a single brace '{'"},
        {"{}", "{a}", "a field has no name"},
        {"{[a]}", "{a}", "a field has no name"},
        {"{a[b}", "{a}", "the field {a[b} is neither"},
        {"{a[]}", "{a}", "the field {a[]} is neither"},
        {"{a[b]c}", "{a}", "the field {a[b]c} is neither"},
        {"{a[b][c][d][e]}", "{a}", "the field {a[b][c][d][e]} has too many keys"},
        {"{a}", "yes", "target of template 'x': the text has no field of the row"},
        {"{{a}}", "{a}", "input of template 'x': the text has no field of the row"},
        {"", "{a}", "the text has no field of the row"},
    };
    struct instruction_templates *t = make_list(1, false);
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK_FAILS(add_template(t, "x", bad[i][0], bad[i][1]), STATUS_RECIPE, bad[i][2]);
        instruction_templates_destroy(&t);
        t = make_list(1, false);
        CHECK_FAILS(add_template(t, "x", bad[i][0], bad[i][1]), STATUS_RECIPE, "file.yaml:3: ");
        instruction_templates_destroy(&t);
        t = make_list(1, false);
    }
    CHECK_OK(add_template(t, "x", "{a}", "{a}"));
    CHECK_FAILS(add_template(t, "x", "{b}", "{b}"), STATUS_RECIPE, "has the name 'x' too");
    instruction_templates_destroy(&t);
}

static void test_bad_rows(void)
{
    static const char *const bad[][2] = {
        {"{\"b\": \"x\"}", "template 'one' (file.yaml:3): no field 'a' (the row has 'b')"},
        {"{\"a\": \" \\n\", \"b\": \"x\"}", "'a' is empty"},
        {"{\"a\": null, \"b\": \"x\"}", "'a' is neither a string nor an integer"},
        {"{\"a\": 0.5, \"b\": \"x\"}", "'a' is neither a string nor an integer"},
        {"{\"a\": \"x\", \"b\": [1]}", "'b' is neither a string nor an integer"},
        {"{\"a\": \"x\", \"b\": \"y\", \"c\": \"z\"}", "the field 'c' is not an object"},
        {"{\"a\": \"x\", \"b\": \"y\", \"c\": {\"e\": 1}}", "no field 'd' (the row has 'e')"},
        {"{\"a\": \"x\", \"b\": \"y\", \"c\": [1]}", "no element [d] in a list of 1"},
    };
    struct instruction_templates *t = make_list(1, false);
    json_t *row = NULL;
    int64_t rows = 0;
    CHECK_OK(add_template(t, "one", "{a} {b}", "{c[d]}"));
    for (int i = 0; i < COUNT(bad); i++) {
        CHECK_FAILS(render_row(t, bad[i][0], 0, 1, &row), STATUS_DATA, bad[i][1]);
        json_decref(row);
    }
    CHECK_TEXT(instruction_templates_name(t, 0, &rows), "one");
    CHECK_EQUAL(rows, 0);
    instruction_templates_destroy(&t);
}

enum { LINES = 3000, TEMPLATES = 3 };

/* Selects the templates of LINES lines of a file. */
static void draw_templates(uint64_t seed, int64_t file, bool backwards, int *out)
{
    static const char *const names[TEMPLATES] = {"0", "1", "2"};
    struct instruction_templates *t = make_list(seed, false);
    json_t *row = NULL;
    int64_t total = 0, rows = 0;
    for (int i = 0; i < TEMPLATES; i++) {
        char input[16];
        snprintf(input, sizeof input, "%d{a}", i);
        CHECK_OK(add_template(t, names[i], input, "{a}"));
    }
    for (int i = 0; i < LINES; i++) {
        int line = backwards ? LINES - 1 - i : i;
        CHECK_OK(render_row(t, "{\"a\": \"x\"}", file, line + 1, &row));
        out[line] = json_string_value(json_object_get(row, "prompt"))[0] - '0';
        json_decref(row);
    }
    CHECK_EQUAL(instruction_templates_count(t), TEMPLATES);
    for (int i = 0; i < TEMPLATES; i++) {
        CHECK_TEXT(instruction_templates_name(t, i, &rows), names[i]);
        CHECK(rows > LINES / TEMPLATES - 150 && rows < LINES / TEMPLATES + 150); /* 5.8 sigma */
        total += rows;
    }
    CHECK_EQUAL(total, LINES);
    instruction_templates_destroy(&t);
}

static int count_equal(const int *a, const int *b)
{
    int count = 0;
    for (int i = 0; i < LINES; i++) {
        count += a[i] == b[i];
    }
    return count;
}

static void test_draws(void)
{
    static int first[LINES], other[LINES];
    draw_templates(7, 0, false, first);
    draw_templates(7, 0, true, other);
    CHECK_EQUAL(count_equal(first, other), LINES);
    draw_templates(8, 0, false, other);
    CHECK(count_equal(first, other) < LINES / 2);
    draw_templates(7, 1, false, other);
    CHECK(count_equal(first, other) < LINES / 2);
}

int main(void)
{
    test_fields();
    test_bad_templates();
    test_bad_rows();
    test_draws();
    return 0;
}
