/* Tests the return codes of NCCL on which nccl.c depends, with one rank: calls that return
 * before their operation is complete, calls that come too early, groups with an error, and the end
 * of a communicator. The mock, in which every operation takes 50 ms, returns the codes of NCCL
 * 2.28.9. */
#include "base/clock.h"
#include "comm/device/nccl_impl.h"
#include "tests/check.h"

enum { COUNT = 1024 };

static const struct nccl_library *nccl;
static float *data;

static enum nccl_result get_async_error(struct nccl_comm *comm)
{
    enum nccl_result error = NCCL_SUCCESS;
    CHECK(nccl->get_async_error(comm, &error) == NCCL_SUCCESS);
    return error;
}

static void wait_until_success(struct nccl_comm *comm)
{
    double start = clock_seconds();
    while (get_async_error(comm) != NCCL_SUCCESS) {
        CHECK(clock_seconds() - start < 20);
        clock_sleep(0.001);
    }
}

static enum nccl_result run_reduce(struct nccl_comm *comm, int root)
{
    return nccl->reduce(data, data, COUNT, NCCL_FLOAT32, NCCL_SUM, root, comm, NULL);
}

static struct nccl_config make_config(void)
{
    const int undefined = NCCL_UNDEFINED_INT;
    return (struct nccl_config){sizeof(struct nccl_config),
                                NCCL_CONFIG_MAGIC,
                                NCCL_OLDEST_VERSION,
                                0,
                                undefined,
                                undefined,
                                undefined,
                                NULL,
                                undefined,
                                undefined,
                                NULL,
                                undefined,
                                undefined,
                                undefined,
                                undefined,
                                undefined,
                                undefined};
}

static struct nccl_comm *start_init(void)
{
    struct nccl_config config = make_config();
    struct nccl_comm *comm = NULL;
    struct nccl_id id;
    CHECK(nccl->get_unique_id(&id) == NCCL_SUCCESS);
    CHECK(nccl->comm_init(&comm, 1, id, 0, &config) == NCCL_IN_PROGRESS);
    return comm;
}

static void test_arguments(void)
{
    struct nccl_config config = make_config();
    struct nccl_comm *comm = NULL;
    struct nccl_id id = {{0}};
    enum nccl_result error;
    CHECK(nccl->get_version(NULL) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->get_unique_id(NULL) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->get_async_error(NULL, &error) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->comm_init(&comm, 1, id, 1, &config) == NCCL_INVALID_ARGUMENT && comm == NULL);
    CHECK(nccl->comm_init_scalable(&comm, 1, 0, 0, &id, &config) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->comm_init_scalable(&comm, 1, 0, 2, &id, &config) == NCCL_INVALID_ARGUMENT);
    config.magic = 0;
    CHECK(nccl->comm_init(&comm, 1, id, 0, &config) == NCCL_INVALID_ARGUMENT && comm == NULL);
    CHECK(nccl->comm_split(NULL, 0, 0, &comm, &config) == NCCL_INVALID_ARGUMENT);
    CHECK(run_reduce(NULL, 0) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->comm_finalize(NULL) == NCCL_SUCCESS);
    CHECK(nccl->comm_destroy(NULL) == NCCL_SUCCESS);
    CHECK(nccl->comm_abort(NULL) == NCCL_SUCCESS);
    CHECK(nccl->group_end() == NCCL_INVALID_USAGE);
}

/* A collective that comes too early also sets the error of the communicator, until the operation in
 * progress is complete. A management call does not. */
static void test_early_calls(struct nccl_comm *comm)
{
    struct nccl_window *window = NULL;
    CHECK(nccl->window_register(comm, data, COUNT, &window, NCCL_WINDOW_SYMMETRIC) ==
          NCCL_INVALID_ARGUMENT);
    CHECK(get_async_error(comm) == NCCL_IN_PROGRESS);
    CHECK(run_reduce(comm, 0) == NCCL_INVALID_ARGUMENT);
    CHECK(get_async_error(comm) == NCCL_INVALID_ARGUMENT);
    wait_until_success(comm);
    CHECK(run_reduce(comm, 0) == NCCL_SUCCESS);
    /* a failed destruction leaves the group of the call open */
    CHECK(nccl->window_register(comm, data, COUNT, &window, NCCL_WINDOW_SYMMETRIC) == NCCL_SUCCESS);
    CHECK(nccl->comm_destroy(comm) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->group_end() == NCCL_SUCCESS);
    wait_until_success(comm);
    CHECK(nccl->window_deregister(comm, window) == NCCL_SUCCESS);
}

static void test_window(struct nccl_comm *comm)
{
    struct nccl_window *window = NULL;
    CHECK(nccl->window_register(comm, NULL, COUNT, &window, NCCL_WINDOW_SYMMETRIC) == NCCL_SUCCESS);
    CHECK(get_async_error(comm) == NCCL_SUCCESS && window == NULL);
    CHECK(nccl->window_register(comm, data, COUNT, &window, NCCL_WINDOW_SYMMETRIC) == NCCL_SUCCESS);
    /* The mock writes the handle in another thread. */
    CHECK(get_async_error(comm) == NCCL_IN_PROGRESS);
    CHECK(__atomic_load_n(&window, __ATOMIC_ACQUIRE) == NULL);
    wait_until_success(comm);
    CHECK(window != NULL);
    CHECK(nccl->window_deregister(comm, window) == NCCL_SUCCESS);
    CHECK(get_async_error(comm) == NCCL_SUCCESS);
    CHECK(nccl->window_deregister(comm, window) == NCCL_INTERNAL_ERROR);
    CHECK(nccl->window_deregister(comm, NULL) == NCCL_SUCCESS);
}

static struct nccl_comm *split_once(struct nccl_comm *comm)
{
    struct nccl_config config = make_config();
    struct nccl_comm *child = comm, *second = NULL;
    CHECK(nccl->comm_split(comm, 0, 0, &child, &config) == NCCL_SUCCESS);
    CHECK(get_async_error(comm) == NCCL_IN_PROGRESS);
    CHECK(__atomic_load_n(&child, __ATOMIC_ACQUIRE) == NULL);
    CHECK(nccl->comm_split(comm, 0, 0, &second, &config) == NCCL_INVALID_ARGUMENT);
    wait_until_success(comm);
    CHECK(child != NULL && get_async_error(child) == NCCL_SUCCESS);
    return child;
}

/* After an error in a group no call of the group runs, and the communicator keeps the error. */
static void test_group(struct nccl_comm *comm)
{
    CHECK(nccl->group_start() == NCCL_SUCCESS);
    CHECK(nccl->group_start() == NCCL_SUCCESS);
    CHECK(run_reduce(comm, 0) == NCCL_SUCCESS);
    CHECK(nccl->group_end() == NCCL_SUCCESS);
    CHECK(run_reduce(comm, 7) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->group_end() == NCCL_INVALID_ARGUMENT);
    CHECK(get_async_error(comm) == NCCL_INVALID_ARGUMENT);
    CHECK(run_reduce(comm, 0) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->comm_finalize(comm) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->comm_abort(comm) == NCCL_SUCCESS);
}

static void test_end(struct nccl_comm *comm)
{
    CHECK(nccl->comm_finalize(comm) == NCCL_IN_PROGRESS);
    wait_until_success(comm);
    CHECK(nccl->comm_destroy(comm) == NCCL_SUCCESS);
    comm = start_init();
    wait_until_success(comm);
    CHECK(nccl->comm_finalize(comm) == NCCL_IN_PROGRESS);
    wait_until_success(comm);
    CHECK(nccl->comm_finalize(comm) == NCCL_INVALID_ARGUMENT);
    CHECK(get_async_error(comm) == NCCL_INVALID_ARGUMENT);
    CHECK(nccl->comm_abort(comm) == NCCL_SUCCESS);
    CHECK(nccl->comm_abort(start_init()) == NCCL_SUCCESS);
}

int main(void)
{
    bool missing = false;
    CHECK_OK(nccl_open(&nccl, &missing));
    test_arguments();
    CHECK(nccl->mem_alloc((void **)&data, COUNT * sizeof *data) == NCCL_SUCCESS);
    struct nccl_comm *comm = start_init();
    test_early_calls(comm);
    test_window(comm);
    test_group(split_once(comm));
    test_end(comm);
    CHECK(nccl->mem_free(data) == NCCL_SUCCESS);
    CHECK(nccl->mem_free(data) == NCCL_CUDA_ERROR);
    return 0;
}
