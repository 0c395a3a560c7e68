#include "base/thread/openmp.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static const char variable[] = "GOMP_SPINCOUNT";
/* Set by the first execution and removed by the second one. It prevents a loop if something, such
 * as a preloaded library, removes GOMP_SPINCOUNT. */
static const char guard[] = "BIREME_SPINCOUNT_SET";

/* Returns whether the kernel executed this program itself. A dynamic loader that was started with
 * the program as its argument, and valgrind, are other files; valgrind would not follow the
 * second execution. */
static bool is_executed_directly(void)
{
    const char *name = (const char *)getauxval(AT_EXECFN), *preload = getenv("LD_PRELOAD");
    struct stat executed, named;
    return (preload == NULL || strstr(preload, "vgpreload") == NULL) && name != NULL &&
           stat("/proc/self/exe", &executed) == 0 && stat(name, &named) == 0 &&
           executed.st_dev == named.st_dev && executed.st_ino == named.st_ino;
}

void openmp_limit_spinning(char **argv)
{
    char path[FILE_PATH_BYTES]; /* not /proc/self/exe: the process would get the name "exe" */
    if (getenv(guard) != NULL) {
        unsetenv(guard);
        return;
    }
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    if (getenv(variable) != NULL || getenv("OMP_WAIT_POLICY") != NULL || length <= 0 ||
        length == (ssize_t)sizeof path || !is_executed_directly()) {
        return;
    }
    path[length] = '\0';
    if (setenv(guard, "1", 1) == 0 && setenv(variable, "2000", 1) == 0) {
        execv(path, argv);
    }
    unsetenv(variable);
    unsetenv(guard);
}
