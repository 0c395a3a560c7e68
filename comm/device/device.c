/* Choice of the communicator for device memory. Every rank reports its device and NCCL version; all
 * ranks then make the same choice. */
#include "comm/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/device/device_impl.h"
#include "comm/device/nccl_impl.h"

/* Lists the ranks with the device of rank `first`, as "0, 3, 7", and returns their number. */
static int list_sharing_ranks(const struct comm_device_facts *facts, int size, int first,
                              char *text, size_t bytes)
{
    size_t used = 0;
    int count = 0;
    text[0] = '\0';
    for (int r = first; r < size; r++) {
        if (memcmp(facts[r].identity, facts[first].identity, DEVICE_IDENTITY_BYTES) == 0) {
            count++;
            if (used + 16 < bytes) {
                used +=
                    (size_t)snprintf(text + used, bytes - used, "%s%d", used > 0 ? ", " : "", r);
            }
        }
    }
    return count;
}

/* Returns the choice if every rank has a separate device. */
static status choose_by_version(const struct comm_device_facts *facts, int size,
                                enum comm_device_choice *out, char *reason, size_t bytes)
{
    for (int r = 0; r < size; r++) {
        if (facts[r].version == 0) {
            *out = COMM_DEVICE_STAGED;
            snprintf(reason, bytes, "rank %d has no NCCL", r);
            return STATUS_OK;
        }
    }
    for (int r = 0; r < size; r++) {
        *out = facts[r].version < 0 ? COMM_DEVICE_BROKEN : *out;
    }
    for (int r = 0; r < size && *out == COMM_DEVICE_NCCL; r++) {
        int own = facts[r].version, first = facts[0].version;
        REQUIRE(own == first, STATUS_UNAVAILABLE,
                "the NCCL version differs between ranks: rank 0 has %d.%d.%d, rank %d has "
                "%d.%d.%d: install the "
                "same version on all hosts",
                first / 10000, first / 100 % 100, first % 100, r, own / 10000, own / 100 % 100,
                own % 100);
    }
    return STATUS_OK;
}

status comm_device_choose(const struct comm_device_facts *facts, int size,
                          enum comm_device_choice *out, char *reason, size_t bytes)
{
    char ranks[128];
    reason[0] = '\0';
    for (int r = 0; r < size; r++) {
        if (list_sharing_ranks(facts, size, r, ranks, sizeof ranks) > 1) {
            *out = COMM_DEVICE_STAGED;
            snprintf(reason, bytes, "ranks %s share one GPU, which NCCL does not support", ranks);
            return STATUS_OK;
        }
    }
    *out = size == 1 ? COMM_DEVICE_STAGED : COMM_DEVICE_NCCL;
    return size == 1 ? STATUS_OK : choose_by_version(facts, size, out, reason, bytes);
}

/* Reads the facts of this rank. If its NCCL library is unusable, the error stays pending: it is
 * reported only if NCCL is needed. */
static void read_facts(const struct comm_device_options *options, struct comm_device_facts *out)
{
    const struct nccl_library *library = NULL;
    bool missing = false;
    memset(out, 0, sizeof *out);
    device_identity(options->device, out->identity);
    status result = nccl_open(&library, &missing);
    out->version = result == STATUS_OK ? library->version : missing ? 0 : -1;
}

static status choose_for_all_ranks(struct comm *control, const struct comm_device_options *options,
                                   enum comm_device_choice *out, char *reason, size_t bytes)
{
    struct comm_device_facts own, *all = NULL;
    struct status_note note;
    TRY(comm_abort_on_error(control, ALLOCATE(all, control->size, "the devices of the ranks")));
    read_facts(options, &own);
    status_take(&note);
    status result = comm_all_gather_bytes(control, all, &own, sizeof own);
    KEEP_FIRST(result, comm_device_choose(all, control->size, out, reason, bytes));
    free(all);
    TRY(result);
    if (*out == COMM_DEVICE_BROKEN) {
        return comm_agree(control, own.version < 0 ? status_restore(&note) : STATUS_OK);
    }
    return STATUS_OK;
}

status comm_device_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out)
{
    *out = NULL;
    char reason[256] = "";
    enum comm_device_choice choice = COMM_DEVICE_STAGED;
    TRY(choose_for_all_ranks(control, options, &choice, reason, sizeof reason));
    if (reason[0] != '\0') {
        log_warning("COMM-STAGED", "%s: collectives use host memory, which is slower", reason);
    }
    return choice == COMM_DEVICE_NCCL
               ? comm_nccl_create(control, options, out)
               : comm_abort_on_error(control, comm_staged_create(control, options, out));
}
