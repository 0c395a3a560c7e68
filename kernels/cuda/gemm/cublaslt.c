/* Opens cuBLASLt with dlopen and looks up its functions. */
#include <dlfcn.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"

#define LIBRARY_TEXT_(major) "libcublasLt.so." #major
#define LIBRARY_TEXT(major) LIBRARY_TEXT_(major)
static const char library_name[] = LIBRARY_TEXT(CUBLAS_VER_MAJOR);

status cublaslt_open(struct cublaslt *library)
{
    const char *path = getenv("BIREME_CUBLASLT");
    library->workspace_bytes = CUDA_GEMM_WORKSPACE_BYTES;
    library->handle = dlopen(path != NULL ? path : library_name, RTLD_NOW | RTLD_LOCAL);
    const char *reason = library->handle == NULL ? dlerror() : "";
    REQUIRE(library->handle != NULL, STATUS_UNAVAILABLE,
            "device cuda: cannot open cuBLASLt: %s; install the libraries of CUDA %d, set "
            "BIREME_CUBLASLT to the library's path, or set train.device to cpu",
            reason, CUBLAS_VER_MAJOR);
#define LIBRARY_FIND(name)                                                                         \
    *(void **)(void *)&library->name = dlsym(library->handle, #name);                              \
    REQUIRE(library->name != NULL, STATUS_UNAVAILABLE,                                             \
            "device cuda: %s has no function " #name "; install the libraries of CUDA %d, or set " \
            "train.device to cpu",                                                                 \
            path != NULL ? path : library_name, CUBLAS_VER_MAJOR);
    CUBLASLT_FUNCTIONS(LIBRARY_FIND)
#undef LIBRARY_FIND
    return STATUS_OK;
}

void cublaslt_close(struct cublaslt *library)
{
    if (library->handle != NULL) {
        (void)dlclose(library->handle);
    }
    library->handle = NULL;
}
