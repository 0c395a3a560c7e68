/* The communicator of all ranks, and the environment variables of the launcher. */
#include <stdlib.h>

#include "base/memory.h"
#include "comm/comm_impl.h"

bool comm_is_launched(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("PMI_RANK") != NULL;
}

static int read_env_int(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : (int)strtol(text, NULL, 10);
}

static int read_launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (int i = 0; i < COUNT(names); i++) {
        if (getenv(names[i]) != NULL) {
            return read_env_int(names[i]);
        }
    }
    return 0;
}

bool comm_is_first_process(void)
{
    return read_launched_rank() == 0;
}

void comm_identify_process(void)
{
    if (comm_is_launched()) {
        status_identify(read_launched_rank(), 0, NULL); /* 0: MPI has not reported the size yet */
    }
}

/* Creates the world of a process that runs alone. Its end is the end of the job. */
static status create_self_world(struct comm **out)
{
    TRY(comm_self_create(out));
    (*out)->is_world = true;
    status_identify(0, 1, NULL); /* a rank count of 0 was set before */
    return STATUS_OK;
}

status comm_world_create(int *argc, char ***argv, struct comm **out)
{
    *out = NULL;
    if (!comm_is_launched()) {
        int tasks = read_env_int("SLURM_STEP_NUM_TASKS");
        REQUIRE(
            tasks <= 1, STATUS_USAGE,
            "srun started %d tasks that cannot find each other: add --mpi=pmix to srun, or start "
            "with mpirun",
            tasks);
        return create_self_world(out);
    }
#ifdef BIREME_MPI
    return comm_mpi_world_create(argc, argv, out);
#else
    (void)argc;
    (void)argv;
    REQUIRE(
        read_env_int("OMPI_COMM_WORLD_SIZE") == 1, STATUS_UNAVAILABLE,
        "started by mpirun or srun, but this bireme was built without MPI: install libopenmpi-dev "
        "and build again, or start it without a launcher");
    return create_self_world(out);
#endif
}
