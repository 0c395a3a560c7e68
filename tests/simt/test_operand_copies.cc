/* Test of the copies of operands in device memory (tests/kernels/operand_copies.h), on the emulated
 * runtime: device memory that the host cannot access. */
#include <cstring>

#include "tests/kernels/operand_copies.h"

extern "C" {
#include "kernels/kernels.h"
#include "tests/check.h"
}

static struct device *gpu;
static struct stream *stream;

/* ---- operations ---- */

/* Writes bytes to device memory, which need not belong to an operand. */
static status write_bytes(void *to, int value, size_t bytes)
{
    std::vector<unsigned char> from(bytes, static_cast<unsigned char>(value));
    return device_write(gpu, stream, to, from.data(), bytes);
}

static char *add_bytes(const void *address, int64_t bytes)
{
    return static_cast<char *>(const_cast<void *>(address)) + bytes;
}

/* ---- tests ---- */

static void test_results_are_copied_back()
{
    static const float from[5] = {1, 2, 3, 4, 5}; /* in memory that cannot be written */
    float to[7] = {10, 11, 12, 13, 14, 15, 16}, *absent = nullptr;
    const float *source = from;
    float *target = to + 1;
    operand_copies copies(gpu, stream);
    copies.add(target, 5);
    copies.add(source, 5);
    copies.add(absent, 5);
    CHECK_OK(copies.run([&] {
        CHECK(target != to + 1 && source != from && absent == nullptr);
        return device_copy(gpu, stream, target, source, sizeof from);
    }));
    const float expected[7] = {10, 1, 2, 3, 4, 5, 16};
    CHECK(memcmp(to, expected, sizeof to) == 0);
}

/* Views of one matrix remain views of one matrix, and addresses are the same modulo 16. */
static void test_views()
{
    alignas(16) float matrix[4 * 12 + 3];
    for (int i = 0; i < 4 * 12 + 3; i++) {
        matrix[i] = static_cast<float>(i);
    }
    struct tensor whole = {matrix + 3, DTYPE_F32, 4, 12, 12};
    struct tensor left = {matrix + 3, DTYPE_F32, 4, 5, 12}, right = tensor_columns(whole, 5, 7);
    struct tensor empty = {matrix, DTYPE_F32, 0, 12, 12};
    operand_copies copies(gpu, stream);
    copies.add(right);
    copies.add(left);
    copies.add(empty);
    CHECK_OK(copies.run([&] {
        CHECK(add_bytes(left.data, 5 * sizeof(float)) == right.data);
        CHECK(reinterpret_cast<uintptr_t>(left.data) % 64 == 3 * sizeof(float));
        CHECK(empty.data != matrix);
        TRY(write_bytes(add_bytes(right.data, 3 * 12 * sizeof(float)), 0, sizeof(float)));
        return write_bytes(add_bytes(left.data, 12 * sizeof(float)), 0, sizeof(float));
    }));
    for (int i = 0; i < 4 * 12 + 3; i++) {
        bool is_zero = i == 3 + 12 || i == 3 + 3 * 12 + 5;
        CHECK(matrix[i] == (is_zero ? 0 : static_cast<float>(i)));
    }
}

/* An operation that writes one byte at `offset` of an operand of 100 bytes fails with this text.
 * The operand keeps its values. */
static void test_wrong_write(int64_t offset, bool is_const, const char *text)
{
    char operand[100], other[3] = {1, 2, 3}, *array = operand, *other_array = other;
    const char *const_array = operand;
    memset(operand, 7, sizeof operand);
    operand_copies copies(gpu, stream);
    if (is_const) {
        copies.add(const_array, 100);
    } else {
        copies.add(array, 100);
    }
    copies.add(other_array, 3);
    CHECK_FAILS(copies.run([&] {
        return write_bytes(add_bytes(is_const ? const_array : array, offset), 1, 1);
    }),
                STATUS_INTERNAL, text);
    for (char element : operand) {
        CHECK(element == 7);
    }
}

static void test_error_of_operation()
{
    char operand[3] = {1, 2, 3}, *array = operand;
    operand_copies copies(gpu, stream);
    copies.add(array, 3);
    CHECK_FAILS(copies.run([&] {
        TRY(write_bytes(array, 9, 3));
        RAISE(STATUS_DATA, "an error of the operation");
    }),
                STATUS_DATA, "an error of the operation");
    CHECK(operand[0] == 1 && operand[2] == 3);
}

int main()
{
    cuda_register();
    CHECK_OK(device_create(DEVICE_CUDA, 0, &gpu));
    CHECK_OK(device_stream_create(gpu, 0, &stream));
    test_results_are_copied_back();
    test_views();
    test_wrong_write(100, false, "wrote outside its operands: byte 0 after operand");
    test_wrong_write(300, false, "wrote outside its operands: byte 200 after operand");
    test_wrong_write(-1, false, "and 1 bytes before the next one");
    test_wrong_write(99, true, "wrote to a const operand of 100 bytes");
    test_error_of_operation();
    operand_copies_release();
    CHECK_OK(device_stream_destroy(gpu, &stream));
    CHECK_OK(device_destroy(&gpu));
    return 0;
}
