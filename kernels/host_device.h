/* Functions that the host and the kernels of a GPU share. The headers *_terms.h use them for
 * formulas in double precision.
 *
 * A C file and a CUDA file may include these headers in any order, outside of extern "C".
 *
 * Numerics  a C file that includes these headers is compiled for one instruction set only, with
 *           -ffp-contract=off. The compiler therefore fuses no product with a sum. nvcc fuses
 *           products with sums, except the products of host_device_multiply */
#pragma once

#include <math.h>
#include <stdbool.h>

/* HOST_DEVICE_INLINE - nvcc compiles the function for a GPU, other compilers for the host. */
#ifdef __CUDACC__
#define HOST_DEVICE_INLINE static __device__ __forceinline__
#else
#define HOST_DEVICE_INLINE static inline
#endif

/* host_device_is_finite - return whether x is neither infinite nor NaN. */
HOST_DEVICE_INLINE bool host_device_is_finite(double x)
{
    return fabs(x) <= 1.7976931348623157e308;
}

/* host_device_multiply - return the rounded product. No compiler fuses it with a later sum. */
HOST_DEVICE_INLINE double host_device_multiply(double x, double y)
{
#ifdef __CUDACC__
    return __dmul_rn(x, y);
#else
    return x * y;
#endif
}
