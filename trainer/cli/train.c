/* bireme train: the main job, on one rank or on those that mpirun or srun started. */
#include <string.h>

#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/train/loop.h"
#include "trainer/train/stop_signal.h"

static status train(const struct job_options *options, struct comm *world)
{
    struct job job;
    comm_watch_end(stop_by_launcher);
    status result = job_start(options, world, &job);
    if (result == STATUS_OK) {
        result = loop_run(&job);
    }
    if (result == STATUS_OK || result == STATUS_STOPPED) {
        KEEP_FIRST(result, job_stop(&job));
    }
    return result; /* else the job ends at once in comm_abort: nothing is taken down in order */
}

status command_train(int argc, char **argv)
{
    const char *resume = NULL;
    bool help = false;
    const struct option table[] = {
        {"resume", OPTION_TEXT, &resume, "auto|never|PATH", "auto",
         "auto: go on from the newest whole checkpoint, begin where there is none; never: begin "
         "afresh; PATH: go on from that checkpoint, or from the newest whole one of that run"},
    };
    struct options options = {
        .usage = "[mpirun -np N] bireme train RECIPE.yaml [section.key=value ...] [--resume ...]",
        .about = "Trains what the recipe says; recipes/README.md explains every key.",
        .table = table,
        .count = 1,
        .operand = "RECIPE.yaml",
        .operands_least = 1,
        .operands_most = -1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    struct job_options job = {
        .recipe_path = options.operands[0],
        .overrides = options.operands + 1,
        .override_count = options.operand_count - 1,
        .resume = strcmp(resume, "auto") == 0    ? RESUME_AUTO
                  : strcmp(resume, "never") == 0 ? RESUME_NEVER
                                                 : RESUME_PATH,
        .resume_path = resume,
    };
    struct comm *world = NULL;
    TRY(stop_watch()); /* also while the ranks find each other */
    TRY(comm_world_create(&argc, &argv, &world));
    status result = train(&job, world);
    if (result != STATUS_OK && result != STATUS_STOPPED) {
        comm_abort(world, result); /* the only end whose code every launcher keeps */
    }
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}
