/* bireme train: trains on one rank, or on the ranks that mpirun or srun started. */
#include <string.h>

#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/cli/start_line.h"
#include "trainer/setup/stop_signal.h"
#include "trainer/train/loop.h"
#include "trainer/train/planner/memory_check.h"
#include "trainer/train/summary.h"

static status run_job(const struct job_options *options, struct comm *world, struct job *job)
{
    comm_set_termination_check(stop_signal_from_launcher);
    status result = job_start(options, world, job);
    if (result == STATUS_OK && !job->finished) {
        result = start_line_write(job);
    }
    if (result == STATUS_OK) {
        result = loop_run(job);
    }
    if (result == STATUS_OK || result == STATUS_STOPPED) {
        summary_log(job, options, result == STATUS_STOPPED);
        KEEP_FIRST(result, job_stop(job));
    }
    return result; /* After another error, comm_abort ends the job, so nothing is released. */
}

status command_train(int argc, char **argv)
{
    const char *resume = NULL;
    const struct option table[] = {
        {"resume", OPTION_TEXT, &resume, "auto|never|PATH", "auto",
         "auto: resume from the newest valid checkpoint, or start from scratch if there is none; "
         "never: start from scratch; PATH: resume from this checkpoint, or from the newest valid "
         "checkpoint of this run"},
    };
    struct options options = {
        .usage = "[mpirun -np N] bireme train RECIPE.yaml [section.key=value ...] [options]",
        .description =
            "Trains a model as configured by the recipe. recipes/README.md documents every key. A "
            "setting can be overridden on the command line: section.key=value.",
        .table = table,
        .count = 1,
        .examples = "bireme train recipes/mine.yaml\n"
                    "mpirun -np 2 bireme train recipes/mine.yaml \\\n"
                    "    optimizer.learning_rate=3e-4 run_dir=runs/slower",
        .operand_name = "RECIPE.yaml",
        .operands_min = 1,
        .operands_max = -1,
    };
    OPTIONS_PARSE(&options, argc, argv);
    bool is_word = strcmp(resume, "yes") == 0 || strcmp(resume, "true") == 0;
    REQUIRE(!is_word, STATUS_USAGE, "--resume %s: use auto, never or a PATH; auto is the default",
            resume);
    struct job job;
    struct job_options job_options = {
        .recipe_path = options.operands[0],
        .overrides = options.operands + 1,
        .override_count = options.operand_count - 1,
        .resume = strcmp(resume, "auto") == 0    ? JOB_RESUME_AUTO
                  : strcmp(resume, "never") == 0 ? JOB_RESUME_NEVER
                                                 : JOB_RESUME_PATH,
        .resume_path = resume,
        .check = memory_check_run,
    };
    struct comm *world = NULL;
    comm_identify_process();
    /* Signals are also handled while the ranks connect. */
    TRY(stop_signal_watch(comm_is_first_process()));
    TRY(job_read_recipe(&job_options, &job));
    TRY(comm_world_create(&argc, &argv, &world));
    status result = run_job(&job_options, world, &job);
    if (result != STATUS_OK && result != STATUS_STOPPED) {
        comm_abort(world, result); /* Every launcher returns the exit code of an abort. */
    }
    KEEP_FIRST(result, comm_destroy(&world));
    return result;
}
