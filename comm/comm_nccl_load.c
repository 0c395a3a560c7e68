/* NCCL is opened at run time: it has 218 MB, and one program is to serve machines with and without it. */
#include "comm/comm_nccl_impl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PATH "libnccl.so.2"

static struct nccl_library library;

/* A function of the library, as a pointer to a function: C has no conversion, POSIX makes them alike. */
static status find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    REQUIRE(symbol != NULL, STATUS_UNAVAILABLE,
            "NCCL: %s has no %s: 2.28 or newer is needed; BIREME_NCCL=off does without",
            library.path, name);
    memcpy(function, &symbol, sizeof symbol);
    return STATUS_OK;
}

static status find_all(void *handle)
{
    TRY(find(handle, "ncclGetLastError", &library.last_error));
    TRY(find(handle, "ncclGetErrorString", &library.result_text));
#define NCCL_FIND(member, name, arguments) TRY(find(handle, #name, &library.member));
    NCCL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
    return STATUS_OK;
}

/* The version first: an old library also lacks functions, and its number tells more. */
static status check_version(void *handle)
{
    TRY(find(handle, "ncclGetVersion", &library.get_version));
    enum nccl_result result = library.get_version(&library.version);
    REQUIRE(result == NCCL_SUCCESS, STATUS_UNAVAILABLE, "NCCL: %s does not tell its version (%d)",
            library.path, (int)result);
    REQUIRE(library.version >= NCCL_OLDEST_VERSION, STATUS_UNAVAILABLE,
            "NCCL: %s has version %d.%d.%d: 2.28 or newer is needed; put one first in "
            "LD_LIBRARY_PATH or name it in BIREME_NCCL; BIREME_NCCL=off does without",
            library.path, library.version / 10000, library.version / 100 % 100,
            library.version % 100);
    return STATUS_OK;
}

status nccl_open(const struct nccl_library **out, bool *missing)
{
    static bool opened;
    *out = &library;
    *missing = false;
    if (opened) {
        return STATUS_OK;
    }
    const char *asked = getenv("BIREME_NCCL");
    library.path = asked != NULL ? asked : DEFAULT_PATH;
    if (strcmp(library.path, "off") == 0) {
        *missing = true;
        RAISE(STATUS_UNAVAILABLE, "NCCL is switched off (BIREME_NCCL=off)");
    }
    void *handle = dlopen(library.path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        *missing = asked == NULL;
        RAISE(STATUS_UNAVAILABLE,
              "NCCL cannot be opened (%s): install it (Debian and Ubuntu: libnccl2 of NVIDIA; pip: "
              "nvidia-nccl-cu13) or name the file in BIREME_NCCL",
              dlerror());
    }
    TRY(check_version(handle));
    TRY(find_all(handle));
    opened = true;
    return STATUS_OK;
}
