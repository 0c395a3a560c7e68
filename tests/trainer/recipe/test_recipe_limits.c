/* Tests that large recipes are refused within a second of processor time and 100 MB. */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/check.h"
#include "trainer/recipe/recipe.h"

static char *repeat_text(const char *unit, size_t bytes)
{
    size_t length = strlen(unit);
    char *text = malloc(bytes + 1);
    CHECK(text != NULL);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = unit[i % length];
    }
    text[bytes] = '\0';
    return text;
}

static void limit_child(void)
{
    struct rlimit seconds = {1, 1};
    CHECK(setrlimit(RLIMIT_CPU, &seconds) == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct rlimit memory = {100 << 20, 100 << 20};
    CHECK(setrlimit(RLIMIT_AS, &memory) == 0);
#endif
}

static void check_large_input(const char *text, size_t bytes, const char *expected)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct recipe recipe;
        limit_child();
        CHECK_FAILS(recipe_parse("bomb.yaml", text, bytes, NULL, 0, &recipe), STATUS_RECIPE,
                    expected);
        _exit(0);
    }
    int ended = 0;
    CHECK(waitpid(child, &ended, 0) == child);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

static void test_large_inputs(void)
{
    static const struct {
        const char *unit, *expected;
    } units[] = {
        {"[", "nested deeper than 8"},
        {"{a: ", "nested deeper than 8"},
        {"- ", "nested deeper than 8"},
        {"? ", "a key must be a string"},
        {"a: 1\n", "more than 4096 values"},
        {"x", "the string has 400000 bytes"},
        {"\n", "empty"},
        {"#\n", "empty"},
        {"&a ", "bomb.yaml:1:"},
        {"---\n", "bomb.yaml:"},
        {"*a ", "aliases"},
        {"!!x ", "bomb.yaml:1:"},
        {"'", "bomb.yaml:"},
        {"\"\\x41", "bomb.yaml:"},
        {"a: [1, 2]\n", "more than 4096 values"},
        {"%YAML 1.1\n", "bomb.yaml:"},
        {"- []\n", "more than 4096 values"},
    };
    for (int i = 0; i < COUNT(units); i++) {
        char *text = repeat_text(units[i].unit, 400000);
        check_large_input(text, 400000, units[i].expected);
        free(text);
    }
    static const char billion_laughs[] =
        "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a]\n"
        "c: &c [*b, *b, *b, *b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c]\n";
    check_large_input(billion_laughs, strlen(billion_laughs),
                      "bomb.yaml:1:4: a: anchors (&a) are not accepted");
    static const char cycle[] = "a: &a [1, *a]\n";
    check_large_input(cycle, strlen(cycle), "anchors");
}

static void test_large_file(void)
{
    char path[] = "/tmp/bireme-recipe-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK(ftruncate(file, 64 << 20) == 0);
    close(file);
    struct recipe recipe;
    CHECK_FAILS(recipe_read(path, NULL, 0, &recipe), STATUS_RECIPE, "at most 1048576");
    CHECK(unlink(path) == 0);
    CHECK_FAILS(recipe_read(path, NULL, 0, &recipe), STATUS_NO_INPUT, path);
    CHECK_FAILS(recipe_read("/tmp", NULL, 0, &recipe), STATUS_RECIPE, "/tmp is a folder; give the");
}

int main(void)
{
    test_large_inputs();
    test_large_file();
    return 0;
}
