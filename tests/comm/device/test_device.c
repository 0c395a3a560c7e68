/* Tests the choice of the device communicator and the configuration that NCCL receives. Runs as one
 * process. */
#include "comm/device/device_impl.h"
#include "tests/check.h"
#include "tests/comm/device/nccl_mock.h"
#include "tests/comm/world.h"

enum { RANKS = 4, NEW_VERSION = 22809 };

/* Checks the choice for one rank per letter of `devices`; equal letters are the same GPU.
 * `versions` are the NCCL versions of the ranks (0: not installed, -1: unusable). `text` is part of
 * the reason. */
static void check_choice(const char *devices, const int *versions, enum comm_device_choice expected,
                         const char *text)
{
    struct comm_device_facts facts[RANKS] = {0};
    int size = (int)strlen(devices);
    for (int r = 0; r < size; r++) {
        facts[r].identity[DEVICE_IDENTITY_BYTES - 1] = (unsigned char)devices[r];
        facts[r].version = versions[r];
    }
    enum comm_device_choice choice;
    char reason[256];
    CHECK_OK(comm_device_choose(facts, size, &choice, reason, sizeof reason));
    CHECK_EQUAL(choice, expected);
    CHECK(strstr(reason, text) != NULL && (text[0] != '\0' || reason[0] == '\0'));
}

static void test_choice(void)
{
    const int all[] = {NEW_VERSION, NEW_VERSION, NEW_VERSION, NEW_VERSION}, none[] = {0, 0, 0, 0};
    const int one_missing[] = {NEW_VERSION, NEW_VERSION, 0, NEW_VERSION},
              broken[] = {NEW_VERSION, -1, NEW_VERSION, NEW_VERSION};
    check_choice("abcd", all, COMM_DEVICE_NCCL, "");
    check_choice("ab", all, COMM_DEVICE_NCCL, "");
    check_choice("a", all, COMM_DEVICE_STAGED, ""); /* nothing to reduce */
    check_choice("abcb", all, COMM_DEVICE_STAGED, "ranks 1, 3 share one GPU");
    check_choice("aaaa", none, COMM_DEVICE_STAGED, "ranks 0, 1, 2, 3 share one GPU");
    check_choice("aaaa", broken, COMM_DEVICE_STAGED, "share one GPU");
    check_choice("abcd", none, COMM_DEVICE_STAGED, "rank 0 has no NCCL");
    check_choice("abcd", one_missing, COMM_DEVICE_STAGED, "rank 2 has no NCCL");
    check_choice("abcd", broken, COMM_DEVICE_BROKEN, "");

    struct comm_device_facts facts[] = {{{1}, NEW_VERSION}, {{2}, 22901}};
    enum comm_device_choice choice;
    char reason[256];
    CHECK_FAILS(comm_device_choose(facts, 2, &choice, reason, sizeof reason), STATUS_UNAVAILABLE,
                "rank 0 has 2.28.9, rank 1 has 2.29.1");
}

static const struct nccl_config *get_last_config(void)
{
    const struct nccl_config *(*config)(void) = NULL;
    nccl_mock_find("nccl_mock_config", &config);
    return config();
}

static void test_nccl_config(bool deterministic)
{
    struct comm *comm = NULL;
    struct comm_device_options options = {.deterministic = deterministic};
    CHECK_OK(device_create(DEVICE_CPU, 0, &options.device));
    CHECK_OK(comm_self_create(&comm));
    CHECK_OK(comm_nccl_create(comm, &options, &comm));
    const struct nccl_config *config = get_last_config();
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    CHECK(deterministic ? nvls != NULL && strcmp(nvls, "0") == 0 : nvls == NULL);
    CHECK(deterministic ? config->collnet_enable == 0
                        : config->collnet_enable == NCCL_UNDEFINED_INT);
    CHECK(config->max_ctas > 0 && config->split_share == NCCL_UNDEFINED_INT);
    CHECK_OK(comm_destroy(&comm));
    CHECK_OK(device_destroy(&options.device));
}

/* A job of one rank uses the staged communicator and needs no NCCL library. */
static void test_single_rank(void)
{
    struct comm *comm = NULL;
    struct comm_device_options options = {0};
    float *data = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &options.device));
    CHECK_OK(comm_self_create(&comm));
    CHECK_OK(comm_device_create(comm, &options, &comm));
    CHECK_TEXT(comm_kind(comm), "staged");
    CHECK_OK(comm_allocate(comm, 100 * sizeof *data, (void **)&data));
    data[7] = 3;
    CHECK_OK(comm_all_reduce(comm, data, 100));
    CHECK(data[7] == 3);
    CHECK_FAILS(comm_free(comm, data + 1), STATUS_INTERNAL, "did not allocate");
    CHECK_OK(comm_free(comm, data));
    CHECK_OK(comm_destroy(&comm));
    CHECK_OK(device_destroy(&options.device));
}

int main(void)
{
    test_choice();
    test_single_rank();
    test_nccl_config(false);
    test_nccl_config(true);
    return 0;
}
