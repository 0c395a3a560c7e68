/* Which communicator the ranks' devices get. Every rank tells what it has; all decide alike. */
#include "comm/comm_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm_device_impl.h"
#include "comm/comm_nccl_impl.h"

/* "0, 3, 7" of the ranks whose device is that of rank `first`; how many. */
static int sharing(const struct comm_device_facts *facts, int size, int first, char *text,
                   size_t bytes)
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

/* Where every rank has a device of its own. */
static status choose_library(const struct comm_device_facts *facts, int size,
                             enum comm_device_choice *out, char *why, size_t bytes)
{
    for (int r = 0; r < size; r++) {
        if (facts[r].version == 0) {
            *out = COMM_DEVICE_STAGED;
            snprintf(why, bytes, "rank %d has no NCCL", r);
            return STATUS_OK;
        }
    }
    for (int r = 0; r < size; r++) {
        *out = facts[r].version < 0 ? COMM_DEVICE_BROKEN : *out;
    }
    for (int r = 0; r < size && *out == COMM_DEVICE_NCCL; r++) {
        int mine = facts[r].version, first = facts[0].version;
        REQUIRE(
            mine == first, STATUS_UNAVAILABLE,
            "NCCL differs between ranks: rank 0 has %d.%d.%d, rank %d has %d.%d.%d: install the "
            "same one on all hosts",
            first / 10000, first / 100 % 100, first % 100, r, mine / 10000, mine / 100 % 100,
            mine % 100);
    }
    return STATUS_OK;
}

status comm_device_choose(const struct comm_device_facts *facts, int size,
                          enum comm_device_choice *out, char *why, size_t bytes)
{
    char ranks[128];
    why[0] = '\0';
    for (int r = 0; r < size; r++) {
        if (sharing(facts, size, r, ranks, sizeof ranks) > 1) {
            *out = COMM_DEVICE_STAGED;
            snprintf(why, bytes, "ranks %s share one GPU, which NCCL refuses", ranks);
            return STATUS_OK;
        }
    }
    *out = size == 1 ? COMM_DEVICE_STAGED : COMM_DEVICE_NCCL;
    return size == 1 ? STATUS_OK : choose_library(facts, size, out, why, bytes);
}

/* What this rank has; the error of a library that cannot be used waits, since it may not be needed. */
static void learn(const struct comm_device_options *options, struct comm_device_facts *out)
{
    const struct nccl_library *library = NULL;
    bool missing = false;
    memset(out, 0, sizeof *out);
    device_identity(options->device, out->identity);
    status result = nccl_open(&library, &missing);
    out->version = result == STATUS_OK ? library->version : missing ? 0 : -1;
}

static status choose(struct comm *control, const struct comm_device_options *options,
                     enum comm_device_choice *out, char *why, size_t bytes)
{
    struct comm_device_facts mine, *all = calloc((size_t)control->size, sizeof *all);
    REQUIRE(all != NULL, STATUS_INTERNAL, "out of memory: %d ranks' devices", control->size);
    struct status_note note;
    learn(options, &mine);
    status_take(&note);
    status result = comm_all_gather_bytes(control, all, &mine, sizeof mine);
    KEEP_FIRST(result, comm_device_choose(all, control->size, out, why, bytes));
    free(all);
    TRY(result);
    if (*out == COMM_DEVICE_BROKEN) {
        return comm_agree(control, mine.version < 0 ? status_restore(&note) : STATUS_OK);
    }
    return STATUS_OK;
}

status comm_device_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out)
{
    *out = NULL;
    char why[256] = "";
    enum comm_device_choice choice = COMM_DEVICE_STAGED;
    TRY(choose(control, options, &choice, why, sizeof why));
    if (why[0] != '\0') {
        log_warning("COMM-STAGED", "%s: sums go through host memory, which is slower", why);
    }
    return choice == COMM_DEVICE_NCCL ? comm_nccl_create(control, options, out)
                                      : comm_staged_create(control, options, out);
}
