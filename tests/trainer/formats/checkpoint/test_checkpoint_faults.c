/* Kills a training run at a file call, or lets the call fail. A second run must then end with the
 * same bits as an undisturbed run, and no checkpoint that was reported as saved may be lost.
 *
 *   test_checkpoint_faults TRAINER SHIM RANKS VICTIM FAULT STRIDE
 *
 * FAULT is one of
 *   kill, enospc, eio, short  the fault that the call causes
 *   replace                   kill while a damaged checkpoint is replaced
 *   order                     no fault; all files are synced before the folder is renamed
 *   space                     no fault; the disk reports too little free space
 * Each STRIDE-th call is tried; with BIREME_FULL_SWEEP in the environment, all of them. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/check.h"

enum { STEPS = 8, ARGUMENTS = 40 };

static const char *trainer, *shim, *fault, *steps = "8";
static bool replace; /* start from a valid step 4 and a damaged step 8 */
static int ranks, victim;
static char folder[64], messages[65536];

struct outcome {
    int code;      /* exit code; -signal if a signal ended the run */
    long saved;    /* largest N of the lines "saved step N"; 0: none */
    long resumed;  /* from the final line; -1: no such line */
    char hash[65]; /* from the final line */
};

static void add_argument(const char **arguments, const char *text)
{
    int n = 0;
    while (arguments[n] != NULL) {
        n++;
    }
    CHECK(n < ARGUMENTS - 1);
    arguments[n] = text;
}

static void add_variable(const char **arguments, const char *name, const char *value)
{
    setenv(name, value, 1);
    if (ranks > 1) {
        add_argument(arguments, "-x");
        add_argument(arguments, name);
    }
}

static void add_launcher(const char **arguments)
{
    static char number[16];
    snprintf(number, sizeof number, "%d", ranks);
    const char *words[] = {"timeout",
                           "-k",
                           "2",
                           "60",
                           "mpirun",
                           "--oversubscribe",
                           "--mca",
                           "mpi_yield_when_idle",
                           "1",
                           "--mca",
                           "odls_base_sigkill_timeout",
                           "0",
                           "-np",
                           number};
    for (int i = 0; i < COUNT(words); i++) {
        if (ranks > 1 || i < 4) {
            add_argument(arguments, words[i]);
        }
    }
}

/* Runs in the child: sets the environment and the output, then starts the program. `at` is the
 * number of the call that fails; 0: no shim, -1: the shim only logs the calls. */
static void start_trainer(long at)
{
    static char number[16], who[16], output[96];
    const char *arguments[ARGUMENTS] = {NULL};
    snprintf(number, sizeof number, "%ld", at);
    snprintf(who, sizeof who, "%d", victim);
    snprintf(output, sizeof output, "%s/messages", folder);
    add_launcher(arguments);
    if (at != 0) {
        add_variable(arguments, "FAULT_DIR", "checkpoints");
        add_variable(arguments, "FAULT_DO", at > 0 ? fault : "");
        add_variable(arguments, "FAULT_AT", number);
        if (at < 0) {
            add_variable(arguments, "FAULT_LOG", "calls");
        }
        if (ranks > 1) {
            add_variable(arguments, "FAULT_RANK", who);
        }
        if (ranks > 1) { /* mpirun itself runs without the shim */
            static char preload[FILE_PATH_BYTES];
            snprintf(preload, sizeof preload, "LD_PRELOAD=%s", shim);
            add_argument(arguments, "env");
            add_argument(arguments, preload);
        } else {
            setenv("LD_PRELOAD", shim, 1);
        }
    }
    const char *rest[] = {trainer, "run", steps, "4", "1", "async"};
    for (int i = 0; i < COUNT(rest); i++) {
        add_argument(arguments, rest[i]);
    }
    int file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, 1) < 0 || dup2(file, 2) < 0 || chdir(folder) != 0) {
        _exit(99);
    }
    execvp(arguments[0], (char *const *)arguments);
    _exit(98);
}

static void read_messages(struct outcome *out)
{
    char path[96], *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/messages", folder);
    CHECK_OK(file_read(path, sizeof messages - 1, &text, &bytes));
    memcpy(messages, text, bytes + 1);
    free(text);
    for (char *at = messages; (at = strstr(at, "saved step ")) != NULL; at++) {
        long step = strtol(at + strlen("saved step "), NULL, 10);
        out->saved = step > out->saved ? step : out->saved;
    }
    char *final = strstr(messages, "final step ");
    if (final == NULL ||
        sscanf(final, "final step %*d hash %64s resumed %ld", out->hash, &out->resumed) != 2) {
        out->resumed = -1;
    }
}

static struct outcome run_trainer(long at)
{
    struct outcome out = {0};
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        start_trainer(at);
    }
    int ended;
    CHECK(waitpid(child, &ended, 0) == child);
    out.code = WIFEXITED(ended) ? WEXITSTATUS(ended) : -WTERMSIG(ended);
    read_messages(&out);
    return out;
}

static void remove_run(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/run", folder);
    CHECK_OK(file_remove_tree(path));
}

static void run_shell(const char *line)
{
    char command[512];
    snprintf(command, sizeof command, "cd %s && %s", folder, line);
    if (system(command) != 0) {
        fprintf(stderr, "failed: %s\n", command);
        exit(1);
    }
}

/* Makes the state from which each run starts. */
static void prepare_run(void)
{
    remove_run();
    if (replace) {
        steps = "4";
        CHECK_EQUAL(run_trainer(0).code, 0);
        steps = "8";
        run_shell("cp -r run/checkpoints/step-00000004 run/checkpoints/step-00000008");
    }
}

/* Returns the number of calls of an undisturbed run on the victim, and the hash of its result. */
static long count_calls(char hash[65])
{
    char path[96], *text = NULL;
    long lines = 0;
    prepare_run();
    struct outcome whole = run_trainer(-1);
    if (whole.code != 0) {
        fprintf(stderr, "the run without a fault ended with %d: %s\n", whole.code, messages);
        exit(1);
    }
    memcpy(hash, whole.hash, 65);
    snprintf(path, sizeof path, "%s/calls", folder);
    CHECK_OK(file_read(path, 1 << 20, &text, NULL));
    for (char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    free(text);
    CHECK(lines > 20);
    return lines;
}

static bool has_temporary_folder(void)
{
    char line[160];
    snprintf(line, sizeof line, "ls %s/run/checkpoints 2>/dev/null | grep -q '^tmp-'", folder);
    return system(line) == 0;
}

/* A failed write ends the run with code 74. The run prints the reason and the newest valid
 * checkpoint and leaves no temporary folder. A failure while old folders are removed is only a
 * warning (code 0). */
static bool is_expected_code(const struct outcome *o)
{
    if (strcmp(fault, "kill") == 0) {
        return o->code == 0 || o->code == 137 || o->code == -SIGKILL;
    }
    char unchanged[64];
    snprintf(unchanged, sizeof unchanged, "unchanged: run/checkpoints/step-%08ld", o->saved);
    bool has_reason =
        strstr(messages, "No space left") != NULL || strstr(messages, "Input/output error") != NULL;
    bool has_name = o->saved == 0 || strstr(messages, unchanged) != NULL;
    return o->code == 0 || (o->code == STATUS_WRITE && has_reason && has_name &&
                            !has_temporary_folder() && strstr(messages, "E-WRITE") != NULL);
}

static void test_call(long at, const char *hash)
{
    prepare_run();
    struct outcome first = run_trainer(at);
    char first_messages[sizeof messages];
    memcpy(first_messages, messages, sizeof messages);
    bool correct = is_expected_code(&first);
    struct outcome second = run_trainer(0);
    correct = correct && second.code == 0 && strcmp(second.hash, hash) == 0 &&
              second.resumed >= (replace && first.saved < 4 ? 4 : first.saved) &&
              (replace || strstr(messages, "W-CKPT-SKIP") == NULL) && !has_temporary_folder();
    if (!correct) {
        fprintf(
            stderr,
            "%s at call %ld of rank %d: code %d, saved %ld; then code %d, resumed %ld, hash %s\n"
            "first: %s\nsecond: %s\n",
            fault, at, victim, first.code, first.saved, second.code, second.resumed, second.hash,
            first_messages, messages);
        exit(1);
    }
}

/* ---- order of syncs ---- */

enum { CALLS = 1024 };

struct call {
    char name[16], path[256];
};

static struct call calls[CALLS];

static int read_calls(void)
{
    char path[96], *text = NULL;
    int count = 0;
    snprintf(path, sizeof path, "%s/calls", folder);
    CHECK_OK(file_read(path, 1 << 20, &text, NULL));
    for (char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n') + 1) {
        CHECK(count < CALLS);
        CHECK(sscanf(line, "%*d %15s %255s", calls[count].name, calls[count].path) == 2);
        count++;
    }
    free(text);
    return count;
}

static bool is_change(const struct call *c)
{
    return strcmp(c->name, "write") == 0 || strcmp(c->name, "pwrite") == 0 ||
           strcmp(c->name, "ftruncate") == 0 || strcmp(c->name, "open") == 0;
}

/* Returns whether one of the calls (from, to) syncs this path. */
static bool is_synced(const char *path, int from, int to)
{
    for (int i = from + 1; i < to; i++) {
        if (strcmp(calls[i].name, "fsync") == 0 && strcmp(calls[i].path, path) == 0) {
            return true;
        }
    }
    return false;
}

/* Call `at` renames a folder to its final name. Before it, all files of the folder and the folder
 * itself are synced. The parent is synced before the next folder is created or removed. */
static void check_publication(int at, int count)
{
    char temporary[256] = "";
    int last = at, written = 0;
    for (int i = 0; i < at; i++) {
        if (strcmp(calls[i].name, "mkdir") == 0 && strstr(calls[i].path, "/tmp-step") != NULL) {
            snprintf(temporary, sizeof temporary, "%s", calls[i].path);
            last = i;
        }
    }
    CHECK(temporary[0] != '\0');
    for (int i = last; i < at; i++) {
        const char *path = calls[i].path;
        if (!is_change(&calls[i]) || strncmp(path, temporary, strlen(temporary)) != 0) {
            continue;
        }
        if (!is_synced(path, i, at)) {
            fprintf(stderr, "%s: call %d (%s) is not synced before call %d renames the folder\n",
                    path, i + 1, calls[i].name, at + 1);
            exit(1);
        }
        written = i;
    }
    CHECK(written > last);
    CHECK(is_synced(temporary, written, at));
    CHECK(is_synced("run/checkpoints", at, count));
    for (int i = at + 1; !is_synced("run/checkpoints", at, i); i++) {
        CHECK(strcmp(calls[i].name, "mkdir") != 0 && strcmp(calls[i].name, "remove") != 0);
    }
}

static void check_order(void)
{
    int count = read_calls(), published = 0;
    for (int i = 0; i < count; i++) {
        bool publishes = strncmp(calls[i].name, "rename", 6) == 0 &&
                         strncmp(calls[i].path, "run/checkpoints/step-", 21) == 0;
        if (publishes) {
            check_publication(i, count);
            published++;
        }
    }
    CHECK_EQUAL(published, 2);
}

/* The run compares the free space with the size of the output before it creates a file. */
static void check_space(void)
{
    remove_run();
    setenv("FAULT_FREE", "100000", 1);
    struct outcome full = run_trainer(-1);
    CHECK_EQUAL(full.code, STATUS_WRITE);
    CHECK(strstr(messages, "the output needs ") != NULL && strstr(messages, " are free") != NULL);
    CHECK(strstr(messages, "saved step") == NULL && !has_temporary_folder());
    unsetenv("FAULT_FREE");
    CHECK_EQUAL(run_trainer(0).code, 0);
}

int main(int argc, char **argv)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    CHECK_SKIP("both a sanitizer's library and the shim must be loaded first");
#endif
    CHECK_EQUAL(argc, 7);
    trainer = argv[1];
    shim = argv[2];
    ranks = (int)strtol(argv[3], NULL, 10);
    victim = (int)strtol(argv[4], NULL, 10);
    fault = argv[5];
    bool order = strcmp(fault, "order") == 0;
    replace = strcmp(fault, "replace") == 0;
    fault = replace ? "kill" : fault;
    long stride = getenv("BIREME_FULL_SWEEP") != NULL ? 1 : strtol(argv[6], NULL, 10);
    snprintf(folder, sizeof folder, "test-faults-%ld", (long)getpid());
    CHECK_OK(file_make_folders(folder));
    char hash[65];
    long whole = count_calls(hash), tried = 0;
    bool space = strcmp(fault, "space") == 0;
    if (order) {
        check_order();
    }
    if (space) {
        check_space();
    }
    for (long at = 1 + (long)getpid() % stride; at <= whole && !order && !space; at += stride) {
        test_call(at, hash);
        tried++;
    }
    printf("%s: %ld of %ld calls of rank %d of %d\n", argv[5], tried, whole, victim, ranks);
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
