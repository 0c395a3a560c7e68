/* Templates of task files: the values equal the values of jinja2 3.1 with StrictUndefined. */
#include "tests/check.h"
#include "trainer/evaluation/tasks/task_template_impl.h"

static const char document[] =
    "{\"q\": \" Why? \", \"n\": 7, \"x\": 0.5, \"big\": 1e22, \"flag\": true, \"none\": null,"
    " \"list\": [\"a\", \"b\", \"\\u00fc\"], \"empty\": \"\", \"text\": \"one two  three\","
    " \"nested\": {\"label\": [\"A\", \"B\"], \"key\": \"B\"}}";

static void render_template(const char *text, json_t **out)
{
    struct task_template *t = NULL;
    json_t *d = json_loads(document, 0, NULL);
    CHECK_OK(task_template_parse(text, &t));
    CHECK_OK(task_template_render(t, d, out));
    task_template_free(&t);
    json_decref(d);
}

static void check_text(const char *text, const char *expected)
{
    json_t *value = NULL;
    render_template(text, &value);
    CHECK_TEXT(json_string_value(value), expected);
    json_decref(value);
}

/* The value is not a string; its JSON text is compared. */
static void check_value(const char *text, const char *expected)
{
    json_t *value = NULL;
    render_template(text, &value);
    char *json = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    CHECK_TEXT(json, expected);
    free(json);
    json_decref(value);
}

static void check_parse_fails(const char *text, const char *message)
{
    struct task_template *t = NULL;
    CHECK_FAILS(task_template_parse(text, &t), STATUS_RECIPE, message);
    CHECK(t == NULL);
}

static void check_render_fails(const char *text, const char *message)
{
    struct task_template *t = NULL;
    json_t *d = json_loads(document, 0, NULL), *value = NULL;
    CHECK_OK(task_template_parse(text, &t));
    CHECK_FAILS(task_template_render(t, d, &value), STATUS_DATA, message);
    CHECK(value == NULL);
    task_template_free(&t);
    json_decref(d);
}

static void check_texts(void)
{
    check_text("", "");
    check_text("no tags } {", "no tags } {");
    check_text("{{q}}|{{ q.strip() }}|{{q|trim}}", " Why? |Why?|Why?");
    check_text("n={{n}} x={{x}} big={{big}} {{flag}} {{none}}", "n=7 x=0.5 big=1e+22 True None");
    check_text("a {{- q -}} b", "a Why? b");
    check_text("a\n{#- note -#}\nb{# note #}c", "abc");
    check_text("{{ 'it\\'s' ~ \"\\n\" ~ n }}", "it's\n7");
    check_text("{{text.split(' ')[:-1]|join(' ')}}", "one two ");
    check_text("{{' '+text.split(' ')[-1]}}", " three");
    check_text("{{text.split()|join('-')}}", "one-two-three");
    check_text("{{', '.join(list)}} {{list|join}}", "a, b, ü abü");
    check_text("{{list[2].upper()}}{{list[-3]}}{{text[4:7]}}{{list[2][0]}}", "Üatwoü");
    check_text("{{nested.label[nested['label'].index(nested.key)]}}{{nested.key|lower}}", "Bb");
    check_text("{{text|replace('two', '2')|capitalize}}", "One 2  three");
    check_text("{% if n == 7 and not empty %}yes{% else %}no{% endif %}!", "yes!");
    check_text("{% if n > 9 %}a{% elif 'two' in text %}b{% else %}c{% endif %}", "b");
    check_text("{% if n > 9 %}a{% endif %}", "");
    check_text("{{ 'a' if missing is defined else 'b' }}{{ 'c' if none is none }}", "bc");
    check_text("{{ missing.x if false else 'd' }}", "d");
    check_text("{{ 'xxabcx'.strip('x') }}{{ 'x' if 'z' not in 'abc' else 'y' }}", "abcx");
    check_text("{{ (n - 2 + 1) ~ '' }}{{ '5' ~ -n }}{{ list|length|string }}", "65-73");
    check_text("{{ '{{' }}{{ \"}}\" }}", "{{}}");
}

static void check_values(void)
{
    check_value("{{nested.label}}", "[\"A\",\"B\"]");
    check_value("{{ ['x', n, 1.5] + list }}", "[\"x\",7,1.5,\"a\",\"b\",\"\u00fc\"]");
    check_value("{{n}}", "7");
    check_value("{{ n >= 7 }}", "true");
    check_value("{{ empty or flag }}", "true");
    check_value("{{ nested.label.index('B') }}", "1");
    check_value("{{ text.index('two') + 1 }}", "5");
    check_value("{{ 'ab' < 'b' }}", "true");
    check_value("{{ list[5:] }}", "[]");
}

static void check_errors(void)
{
    check_parse_fails("{{ a", "expected }}");
    check_parse_fails("{{ 'a }}", "does not end");
    check_parse_fails("{{ a.format(1) }}", "the method format is not supported");
    check_parse_fails("{{ a|tojson }}", "the filter tojson is not supported");
    check_parse_fails("{{ a.replace('b') }}", "does not accept 1 argument");
    check_parse_fails("{{ range(3) }}", "the function range() is not supported");
    check_parse_fails("{% for x in y %}{% endfor %}", "only {% if %} is");
    check_parse_fails("{% if a %}", "expected {% endif %}");
    check_parse_fails("{{ a is string }}", "is string");
    check_parse_fails("{# note", "does not end");
    check_render_fails("{{ missing }}", "'missing'");
    check_render_fails("{{ nested.other }}", "'other'");
    check_render_fails("{{ list }}!", "use |join");
    check_render_fails("{{ n.strip() }}", "a string is required");
    check_render_fails("{{ n + text }}", "two numbers, two strings or two lists");
    check_render_fails("{{ nested.label.index('C') }}", "not in the list");
    check_render_fails("{{ n < text }}", "can be compared");
    char deep[400];
    memset(deep, '(', sizeof deep - 1);
    memcpy(deep, "{{", 2);
    deep[sizeof deep - 1] = '\0';
    check_parse_fails(deep, "expressions are nested");
}

int main(void)
{
    check_texts();
    check_values();
    check_errors();
    return 0;
}
