/* Every file call of a training run is a place to be killed or to fail: after each, a second run must go
 * on to the bit-identical end, and no checkpoint that was told as saved may be lost.
 *
 *   test_checkpoint_faults TRAINER SHIM RANKS VICTIM FAULT STRIDE
 *
 * FAULT is kill, enospc, eio, short; "again" is kill while a damaged checkpoint is replaced; "order"
 * kills nothing and checks that everything was synced before it got its name; "space" lets the disk say
 * that it is nearly full.
 * STRIDE tries each STRIDE-th call; BIREME_FULL_SWEEP in the environment tries all of them. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"

enum { STEPS = 8, ARGUMENTS = 40 };

static const char *trainer, *shim, *fault, *steps = "8";
static bool again; /* start from a whole step 4 and a damaged step 8 */
static int ranks, victim;
static char folder[64], said[65536];

struct outcome {
    int code;      /* exit code; -signal where one ended it */
    long saved;    /* newest "saved step N"; 0: none */
    long resumed;  /* of the final line; -1: no such line */
    char hash[65]; /* of the final line */
};

static void add(const char **arguments, const char *text)
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
        add(arguments, "-x");
        add(arguments, name);
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
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (ranks > 1 || i < 4) {
            add(arguments, words[i]);
        }
    }
}

/* In the child: the environment, the output, the program. at: which call; 0: none, -1: only count. */
static void become_trainer(long at)
{
    static char number[16], who[16], output[96];
    const char *arguments[ARGUMENTS] = {NULL};
    snprintf(number, sizeof number, "%ld", at);
    snprintf(who, sizeof who, "%d", victim);
    snprintf(output, sizeof output, "%s/said", folder);
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
        if (ranks > 1) { /* not into mpirun itself */
            static char preload[FILE_PATH_BYTES];
            snprintf(preload, sizeof preload, "LD_PRELOAD=%s", shim);
            add(arguments, "env");
            add(arguments, preload);
        } else {
            setenv("LD_PRELOAD", shim, 1);
        }
    }
    const char *rest[] = {trainer, "run", steps, "4", "1", "async"};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        add(arguments, rest[i]);
    }
    int file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, 1) < 0 || dup2(file, 2) < 0 || chdir(folder) != 0) {
        _exit(99);
    }
    execvp(arguments[0], (char *const *)arguments);
    _exit(98);
}

static void read_said(struct outcome *out)
{
    char path[96], *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/said", folder);
    CHECK_OK(file_read(path, sizeof said - 1, &text, &bytes));
    memcpy(said, text, bytes + 1);
    free(text);
    for (char *at = said; (at = strstr(at, "saved step ")) != NULL; at++) {
        long step = strtol(at + strlen("saved step "), NULL, 10);
        out->saved = step > out->saved ? step : out->saved;
    }
    char *final = strstr(said, "final step ");
    if (final == NULL ||
        sscanf(final, "final step %*d hash %64s resumed %ld", out->hash, &out->resumed) != 2) {
        out->resumed = -1;
    }
}

static struct outcome run(long at)
{
    struct outcome out = {0};
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        become_trainer(at);
    }
    int ended;
    CHECK(waitpid(child, &ended, 0) == child);
    out.code = WIFEXITED(ended) ? WEXITSTATUS(ended) : -WTERMSIG(ended);
    read_said(&out);
    return out;
}

static void clean(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/run", folder);
    CHECK_OK(file_remove_tree(path));
}

static void shell(const char *line)
{
    char command[512];
    snprintf(command, sizeof command, "cd %s && %s", folder, line);
    if (system(command) != 0) {
        fprintf(stderr, "failed: %s\n", command);
        exit(1);
    }
}

/* What each run starts from. */
static void prepare(void)
{
    clean();
    if (again) {
        steps = "4";
        CHECK_EQUAL(run(0).code, 0);
        steps = "8";
        shell("cp -r run/checkpoints/step-00000004 run/checkpoints/step-00000008");
    }
}

/* How many calls a whole run makes on the victim. */
static long count_calls(char hash[65])
{
    char path[96], *text = NULL;
    long lines = 0;
    prepare();
    struct outcome whole = run(-1);
    if (whole.code != 0) {
        fprintf(stderr, "the run without a fault ended with %d: %s\n", whole.code, said);
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

static bool leaves_temporary(void)
{
    char line[160];
    snprintf(line, sizeof line, "ls %s/run/checkpoints 2>/dev/null | grep -q '^tmp-'", folder);
    return system(line) == 0;
}

/* An error ends in 74 with its reason, nothing half-written, and the name of what is still good; one in
 * cleaning up is only told. */
static bool code_is_right(const struct outcome *o)
{
    if (strcmp(fault, "kill") == 0) {
        return o->code == 0 || o->code == 137 || o->code == -SIGKILL;
    }
    char good[64];
    snprintf(good, sizeof good, "unchanged: run/checkpoints/step-%08ld", o->saved);
    bool told = strstr(said, "No space left") != NULL || strstr(said, "Input/output error") != NULL;
    bool named = o->saved == 0 || strstr(said, good) != NULL;
    return o->code == 0 || (o->code == STATUS_WRITE && told && named && !leaves_temporary() &&
                            strstr(said, "E-WRITE") != NULL);
}

static void try_point(long at, const char *hash)
{
    prepare();
    struct outcome first = run(at);
    char first_said[sizeof said];
    memcpy(first_said, said, sizeof said);
    bool good = code_is_right(&first);
    struct outcome second = run(0);
    good = good && second.code == 0 && strcmp(second.hash, hash) == 0 &&
           second.resumed >= (again && first.saved < 4 ? 4 : first.saved) &&
           (again || strstr(said, "W-CKPT-SKIP") == NULL) && !leaves_temporary();
    if (!good) {
        fprintf(
            stderr,
            "%s at call %ld of rank %d: code %d, saved %ld; then code %d, resumed %ld, hash %s\n"
            "first: %s\nsecond: %s\n",
            fault, at, victim, first.code, first.saved, second.code, second.resumed, second.hash,
            first_said, said);
        exit(1);
    }
}

/* ---- the order of syncs ---- */

enum { CALLS = 1024 };

struct call {
    char what[16], path[256];
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
        CHECK(sscanf(line, "%*d %15s %255s", calls[count].what, calls[count].path) == 2);
        count++;
    }
    free(text);
    return count;
}

static bool changes(const struct call *c)
{
    return strcmp(c->what, "write") == 0 || strcmp(c->what, "pwrite") == 0 ||
           strcmp(c->what, "ftruncate") == 0 || strcmp(c->what, "open") == 0;
}

/* Is there a sync of this path in calls (from, to)? */
static bool synced(const char *path, int from, int to)
{
    for (int i = from + 1; i < to; i++) {
        if (strcmp(calls[i].what, "fsync") == 0 && strcmp(calls[i].path, path) == 0) {
            return true;
        }
    }
    return false;
}

/* Call `at` gives a folder its name: all that was written before is synced, and the folder, and after it
 * the parent, before the next folder is begun. */
static void check_publication(int at, int count)
{
    char temporary[256] = "";
    int last = at, written = 0;
    for (int i = 0; i < at; i++) {
        if (strcmp(calls[i].what, "mkdir") == 0 && strstr(calls[i].path, "/tmp-step") != NULL) {
            snprintf(temporary, sizeof temporary, "%s", calls[i].path);
            last = i;
        }
    }
    CHECK(temporary[0] != '\0');
    for (int i = last; i < at; i++) {
        const char *path = calls[i].path;
        if (!changes(&calls[i]) || strncmp(path, temporary, strlen(temporary)) != 0) {
            continue;
        }
        if (!synced(path, i, at)) {
            fprintf(stderr, "%s: call %d (%s) is not synced before call %d names the folder\n",
                    path, i + 1, calls[i].what, at + 1);
            exit(1);
        }
        written = i;
    }
    CHECK(written > last);
    CHECK(synced(temporary, written, at));
    CHECK(synced("run/checkpoints", at, count));
    for (int i = at + 1; !synced("run/checkpoints", at, i); i++) {
        CHECK(strcmp(calls[i].what, "mkdir") != 0 && strcmp(calls[i].what, "remove") != 0);
    }
}

static void check_order(void)
{
    int count = read_calls(), published = 0;
    for (int i = 0; i < count; i++) {
        bool named = strncmp(calls[i].what, "rename", 6) == 0 &&
                     strncmp(calls[i].path, "run/checkpoints/step-", 21) == 0;
        if (named) {
            check_publication(i, count);
            published++;
        }
    }
    CHECK_EQUAL(published, 2);
}

/* The bytes are counted before a file is made. */
static void check_space(void)
{
    clean();
    setenv("FAULT_FREE", "100000", 1);
    struct outcome full = run(-1);
    CHECK_EQUAL(full.code, STATUS_WRITE);
    CHECK(strstr(said, "the output needs ") != NULL && strstr(said, " are free") != NULL);
    CHECK(strstr(said, "saved step") == NULL && !leaves_temporary());
    unsetenv("FAULT_FREE");
    CHECK_EQUAL(run(0).code, 0);
}

int main(int argc, char **argv)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    CHECK_SKIP("a sanitizer's library has to be the first to be loaded, and so has the shim");
#endif
    CHECK_EQUAL(argc, 7);
    trainer = argv[1];
    shim = argv[2];
    ranks = (int)strtol(argv[3], NULL, 10);
    victim = (int)strtol(argv[4], NULL, 10);
    fault = argv[5];
    bool order = strcmp(fault, "order") == 0;
    again = strcmp(fault, "again") == 0;
    fault = again ? "kill" : fault;
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
        try_point(at, hash);
        tried++;
    }
    printf("%s: %ld of %ld calls of rank %d of %d\n", argv[5], tried, whole, victim, ranks);
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
