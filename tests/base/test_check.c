/* CHECK_TEXT prints both texts and ends the test if they differ. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

/* Runs CHECK_TEXT in a child process. Returns its exit code, and its standard error in `output`. */
static int run_check(const char *actual, const char *expected, char *output, size_t bytes)
{
    int ends[2], code;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        CHECK_TEXT(actual, expected);
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

int main(void)
{
    char output[512];
    CHECK_EQUAL(run_check("loss", "loss", output, sizeof output), 0);
    CHECK(output[0] == '\0');
    CHECK_EQUAL(run_check(NULL, NULL, output, sizeof output), 0);
    CHECK_EQUAL(run_check("loss", "gradient", output, sizeof output), 1);
    CHECK(strstr(output, "actual is\n  'loss', expected\n  'gradient'\n") != NULL);
    CHECK_EQUAL(run_check(NULL, "loss", output, sizeof output), 1);
    CHECK(strstr(output, "'(NULL)', expected\n  'loss'") != NULL);
    CHECK_EQUAL(run_check("loss", NULL, output, sizeof output), 1);
    return 0;
}
