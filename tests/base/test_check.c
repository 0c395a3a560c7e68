/* CHECK_TEXT prints both texts, and CHECK_OK and CHECK_FAILS print the words of statuses. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

struct texts {
    const char *actual, *expected;
};

static void check_text(const void *argument)
{
    const char *actual = ((const struct texts *)argument)->actual;
    CHECK_TEXT(actual, ((const struct texts *)argument)->expected);
}

static status raise_data(const char *path)
{
    RAISE(STATUS_DATA, "%s is damaged", path);
}

static void check_ok(const void *argument)
{
    CHECK_OK(raise_data(argument));
}

static void check_fails(const void *argument)
{
    CHECK_FAILS(raise_data(argument), STATUS_RECIPE, "damaged");
}

static void check_message(const void *argument)
{
    CHECK_FAILS(raise_data(argument), STATUS_DATA, "missing");
}

/* Runs a check in a child process. Returns its exit code, and its standard error in `output`. */
static int run_check(void (*check)(const void *), const void *argument, char *output, size_t bytes)
{
    int ends[2], code;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        check(argument);
        exit(0);
    }
    close(ends[1]);
    FILE *file = fdopen(ends[0], "r");
    CHECK(file != NULL);
    output[fread(output, 1, bytes - 1, file)] = '\0';
    fclose(file);
    CHECK(waitpid(child, &code, 0) == child && WIFEXITED(code));
    return WEXITSTATUS(code);
}

/* CHECK_TEXT passes if expected_output is NULL. Otherwise it fails and prints this text. */
static void test_text(const char *actual, const char *expected, const char *expected_output)
{
    char output[512];
    struct texts texts = {actual, expected};
    CHECK_EQUAL(run_check(check_text, &texts, output, sizeof output), expected_output != NULL);
    CHECK(expected_output != NULL ? strstr(output, expected_output) != NULL : output[0] == '\0');
}

/* The check fails for an error of STATUS_DATA and prints this text. */
static void test_status(void (*check)(const void *), const char *expected_output)
{
    char output[512];
    CHECK_EQUAL(run_check(check, "a.h5", output, sizeof output), 1);
    CHECK(strstr(output, expected_output) != NULL);
}

int main(void)
{
    test_text("loss", "loss", NULL);
    test_text(NULL, NULL, NULL);
    test_text("loss", "gradient", "actual is\n  'loss', expected\n  'gradient'\n");
    test_text(NULL, "loss", "'(NULL)', expected\n  'loss'");
    test_text("loss", NULL, "'(NULL)'");
    test_status(check_ok,
                "raise_data(argument) returned DATA (65)\nerror: a.h5 is damaged [E-DATA]");
    test_status(check_fails, "returned DATA (65) instead of RECIPE (78) with text 'damaged'");
    test_status(check_message, "the message does not contain 'missing':\nerror: a.h5 is damaged");
    return 0;
}
