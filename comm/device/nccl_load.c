/* NCCL is opened at run time. The library has 218 MB, and one program supports machines with and
 * without it. */
#include "comm/device/nccl_impl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PATH "libnccl.so.2"

static struct nccl_library library;

/* Loads a function of the library into a function pointer. ISO C has no conversion from void *;
 * POSIX guarantees the same representation. */
static void load_optional_function(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof symbol);
}

static status load_function(void *handle, const char *name, void *function)
{
    REQUIRE(dlsym(handle, name) != NULL, STATUS_UNAVAILABLE,
            "NCCL: %s has no %s: install version 2.28 or newer, or set BIREME_NCCL=off to run "
            "without NCCL",
            library.path, name);
    load_optional_function(handle, name, function);
    return STATUS_OK;
}

static status load_functions(void *handle)
{
    TRY(load_function(handle, "ncclGetLastError", &library.last_error));
    TRY(load_function(handle, "ncclGetErrorString", &library.result_text));
#define NCCL_FIND(member, name, arguments) TRY(load_function(handle, #name, &library.member));
    NCCL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
#define NCCL_FIND(member, name, arguments) load_optional_function(handle, #name, &library.member);
    NCCL_OPTIONAL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
    return STATUS_OK;
}

/* Checks the version first: an old library also lacks functions, and the version is the
 * clearer error. */
static status check_version(void *handle)
{
    TRY(load_function(handle, "ncclGetVersion", &library.get_version));
    enum nccl_result result = library.get_version(&library.version);
    REQUIRE(result == NCCL_SUCCESS, STATUS_UNAVAILABLE, "NCCL: ncclGetVersion of %s failed (%d)",
            library.path, (int)result);
    REQUIRE(
        library.version >= NCCL_OLDEST_VERSION, STATUS_UNAVAILABLE,
        "NCCL: %s has version %d.%d.%d, 2.28 or newer is required: put a newer library first in "
        "LD_LIBRARY_PATH, set BIREME_NCCL to its path, or set BIREME_NCCL=off to run without NCCL",
        library.path, library.version / 10000, library.version / 100 % 100, library.version % 100);
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
    const char *configured = getenv("BIREME_NCCL");
    library.path = configured != NULL ? configured : DEFAULT_PATH;
    if (strcmp(library.path, "off") == 0) {
        *missing = true;
        RAISE(STATUS_UNAVAILABLE, "NCCL is switched off (BIREME_NCCL=off)");
    }
    void *handle = dlopen(library.path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        *missing = configured == NULL;
        RAISE(
            STATUS_UNAVAILABLE,
            "NCCL cannot be opened (%s): install it (Debian and Ubuntu: libnccl2 from NVIDIA; pip: "
            "nvidia-nccl-cu13) or set BIREME_NCCL to the path of the library",
            dlerror());
    }
    TRY(check_version(handle));
    TRY(load_functions(handle));
    opened = true;
    return STATUS_OK;
}
