/* Copies of the operands of one operation in device memory, so that a test of the operation has its
 * operands in ordinary host memory. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

extern "C" {
#include "base/device/device.h"
#include "base/tensor.h"
}

/* The operands of one call of an operation. `add` registers them, and `run` copies them to the
 * device and back.
 *
 * Memory    All copies are in one block of plain device memory, with guard bytes before and after
 *           each. The block remains for the next call (operand_copies_release). Operands that
 *           overlap, such as views of one matrix, have one common copy. The address of a copy is
 *           the address of its operand modulo 16, plus a multiple of 64. The gaps between the rows
 *           of a tensor are copied too
 * Errors    `run` fails with STATUS_INTERNAL if the operation writes a guard byte or an operand
 *           that its prototype declares const. After any error the operands in host memory have
 *           their previous values */
class operand_copies
{
  public:
    operand_copies(struct device *dev, struct stream *stream) : gpu(dev), queue(stream)
    {
    }

    /* Registers a tensor, which may be absent, as operand that the operation may write. */
    void add(struct tensor &t);

    /* Registers an array of `count` elements. NULL is allowed. */
    template <typename T> void add(T *&array, int64_t count)
    {
        if (array != nullptr) {
            add_range(array, static_cast<size_t>(count) * sizeof(T), std::is_const_v<T>,
                      [&array](void *copy) { array = static_cast<T *>(copy); });
        }
    }

    /* Registers an array of `count` elements of a dtype. */
    template <typename T> void add(T *&array, enum dtype dtype, int64_t count)
    {
        add_range(array, static_cast<size_t>(count) * dtype_bytes(dtype), std::is_const_v<T>,
                  [&array](void *copy) { array = static_cast<T *>(copy); });
    }

    /* Sets the registered tensors and pointers to the copies, calls the operation, waits for the
     * device and copies the results back. */
    status run(const std::function<status()> &operation);

  private:
    /* The bytes of an operand or of several that overlap. */
    struct region {
        char *host;
        size_t bytes, offset; /* offset: position in the block */
        bool is_const;
    };
    struct operand {
        char *host;
        size_t bytes;
        bool is_const;
        std::function<void(void *copy)> set;
    };

    void add_range(const void *host, size_t bytes, bool is_const,
                   std::function<void(void *copy)> set);
    void place_regions();
    void set_operands(char *block) const;
    status check_guards(const std::vector<unsigned char> &image) const;
    status store_results(const std::vector<unsigned char> &image) const;

    struct device *gpu;
    struct stream *queue;
    std::vector<operand> operands;
    std::vector<region> regions;
    size_t block_bytes = 0;
};

/* operand_copies_release - release all device memory of copies, before the device is destroyed. */
void operand_copies_release(void);
