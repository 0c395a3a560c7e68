/* Tests how a job ends when one of its ranks fails. The driver starts three ranks of this program
 * with mpirun, and rank 1 misbehaves (fault_acts.c). The driver checks the exit code and the output
 * of the job and that no process remains.
 *
 * Usage: test_fault MODE, where MODE is a row of the table in fault_acts.c. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/watchdog/watchdog.h"
#include "tests/check.h"
#include "tests/comm/watchdog/fault_acts.h"
#include "tests/comm/world.h"

#define END_SECONDS 8 /* time that mpirun may need to end the job after the limits */

/* ---- a rank ---- */

static int run_rank(const struct fault *fault, int argc, char **argv)
{
    struct comm *world = NULL;
    const char *rank = getenv("PMIX_RANK");
    if (strcmp(fault->mode, "init_hang") == 0 && rank != NULL && strcmp(rank, "0") != 0) {
        clock_sleep(60); /* only rank 0 initializes MPI */
    }
    if (strncmp(fault->mode, "startup", 7) == 0) {
        CHECK_OK(watchdog_set_startup_limit(LIMIT_SECONDS));
    }
    status result = test_world_create(&argc, &argv, LIMIT_SECONDS, &world);
    if (result != STATUS_OK) {
        comm_abort(world, result);
    }
    CHECK_OK(watchdog_start(world, 600));
    fault->act(world);
    CHECK_OK(comm_destroy(&world));
    return 0;
}

/* ---- the driver ---- */

static void exec_job(const struct fault *fault, char *token, int output)
{
    char self[4096] = "";
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output);
    setenv("BIREME_TEST_TOKEN", token, 1);
    if (fault->setting != NULL) {
        putenv(strdup(fault->setting));
    }
    execl(BIREME_MPIEXEC, BIREME_MPIEXEC, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1",
          "-np", "3", self, "child", fault->mode, token, (char *)NULL);
    _exit(127);
}

static size_t read_all(int input, char *text, size_t bytes)
{
    size_t used = 0;
    ssize_t count;
    while ((count = read(input, text + used, bytes - 1 - used)) > 0) {
        used += (size_t)count;
    }
    text[used] = '\0';
    return used;
}

static int count_lines(const char *text, const char *start)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, start)) != NULL; at++) {
        count += at == text || at[-1] == '\n';
    }
    return count;
}

/* Returns whether a process with this argument still runs after 5 s. */
static bool has_survivor(const char *token)
{
    bool found = true;
    for (int i = 0; i < 50 && found; i++) {
        found = false;
        DIR *processes = opendir("/proc");
        CHECK(processes != NULL);
        for (struct dirent *entry; (entry = readdir(processes)) != NULL;) {
            char path[300], line[8192] = "";
            snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
            int file =
                entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? open(path, O_RDONLY) : -1;
            if (file < 0) {
                continue;
            }
            ssize_t bytes = read(file, line, sizeof line - 1);
            close(file);
            for (ssize_t c = 0; c < bytes; c += (ssize_t)strlen(line + c) + 1) {
                found = found || strcmp(line + c, token) == 0;
            }
        }
        closedir(processes);
        clock_sleep(found ? 0.1 : 0);
    }
    return found;
}

static void check_output(const struct fault *fault, const char *text)
{
    CHECK_EQUAL(count_lines(text, "error: ") + count_lines(text, "warning: "),
                fault->line != NULL ? 1 : 0);
    if (fault->line == NULL) {
        return;
    }
    CHECK_EQUAL(count_lines(text, fault->line), 1);
    const char *line = strstr(text, fault->line);
    const char *found = strstr(line, fault->text), *word = strstr(line, fault->word);
    CHECK(found != NULL && found < word);
    CHECK(word != NULL && word[strlen(fault->word)] == '\n' && word < strchr(line, '\n'));
    CHECK(strstr(text, "MPI_ABORT was invoked") == NULL);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    if (argc >= 3 && strcmp(argv[1], "child") == 0) {
        return run_rank(fault_acts_find(argv[2]), argc, argv);
    }
    const struct fault *fault = fault_acts_find(argv[1]);
    char token[64];
    snprintf(token, sizeof token, "token-%ld-%s", (long)getpid(), fault->mode);
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0);
    double begin = clock_seconds();
    pid_t job = fork();
    CHECK(job >= 0);
    if (job == 0) {
        close(pipe_ends[0]);
        exec_job(fault, token, pipe_ends[1]);
    }
    close(pipe_ends[1]);
    static char text[1 << 16];
    read_all(pipe_ends[0], text, sizeof text);
    int wait_status = 0;
    CHECK(waitpid(job, &wait_status, 0) == job && WIFEXITED(wait_status));
    double seconds = clock_seconds() - begin;
    printf("exit code %d after %.1f s, output:\n%s", WEXITSTATUS(wait_status), seconds, text);
    CHECK(!has_survivor(token));
    CHECK_EQUAL(WEXITSTATUS(wait_status), fault->code);
    check_output(fault, text);
    CHECK(seconds < 4 * LIMIT_SECONDS + END_SECONDS);
    return 0;
}
