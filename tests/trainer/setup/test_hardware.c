/* The comparison of the ranks' devices (hardware_compare_models).
 * ctest: ranks 2 3 */
#include "tests/check.h"
#include "trainer/setup/hardware.h"

/* Rank `other` has the second name, all other ranks have the first one. */
static void check_models(struct comm *world, int other, const char *first, const char *second,
                         bool expected)
{
    bool equal = !expected;
    const char *name = comm_rank(world) == other ? second : first;
    CHECK_OK(hardware_compare_models(world, name, &equal));
    CHECK_EQUAL(equal, expected);
}

int main(int argc, char **argv)
{
    struct comm *world = NULL;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    bool alone = comm_size(world) == 1;
    for (int other = 0; other < comm_size(world); other++) {
        check_models(world, other, "cpu", "cpu", true);
        check_models(world, other, "GPU 0 (NVIDIA H100)", "GPU 1 (NVIDIA H100)", true);
        check_models(world, other, "GPU 0 (NVIDIA H100)", "GPU 0 (NVIDIA A100)", alone);
        check_models(world, other, "GPU 0 (NVIDIA H100)", "GPU 0 (NVIDIA H100 NVL)", alone);
    }
    CHECK_OK(comm_destroy(&world));
    return 0;
}
