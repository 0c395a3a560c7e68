#include "tests/kernels/operand_copies.h"

#include <algorithm>
#include <cstring>

/* Bytes between copies, the unit of their addresses, and the value of all guard bytes: floats of
 * such bytes are NaN. */
static const size_t guard_bytes = 256, address_unit = 64;
static const unsigned char untouched = 0xff;

/* Device memory for the copies, the last block for the next call. Earlier and smaller ones remain,
 * because kernels_tune repeats GEMMs with the addresses of earlier calls. */
struct memory_block {
    struct device *dev;
    void *memory;
    size_t bytes;
};
static std::vector<memory_block> blocks;

void operand_copies_release()
{
    for (const memory_block &b : blocks) {
        device_release(b.dev, b.memory, b.bytes);
    }
    blocks.clear();
}

static status reserve_block(struct device *dev, size_t bytes, void **out)
{
    if (blocks.empty() || blocks.back().dev != dev || blocks.back().bytes < bytes) {
        memory_block b = {dev, nullptr, 2 * bytes};
        TRY(device_allocate(dev, b.bytes, "the operands of a test", &b.memory));
        blocks.push_back(b);
    }
    *out = blocks.back().memory;
    return STATUS_OK;
}

void operand_copies::add_range(const void *host, size_t bytes, bool is_const,
                               std::function<void(void *copy)> set)
{
    operands.push_back(
        {static_cast<char *>(const_cast<void *>(host)), bytes, is_const, std::move(set)});
}

void operand_copies::add(struct tensor &t)
{
    if (t.data != nullptr) {
        int64_t elements = t.rows > 0 ? (t.rows - 1) * t.stride + t.columns : 0;
        add_range(t.data, static_cast<size_t>(elements) * dtype_bytes(t.dtype), false,
                  [&t](void *copy) { t.data = copy; });
    }
}

/* Merges overlapping operands to regions and gives each region a place in the block. */
void operand_copies::place_regions()
{
    std::vector<operand> sorted = operands;
    std::sort(sorted.begin(), sorted.end(),
              [](const operand &a, const operand &b) { return a.host < b.host; });
    regions.clear();
    for (const operand &o : sorted) {
        region *last = regions.empty() ? nullptr : &regions.back();
        if (last != nullptr && (o.host < last->host + last->bytes || o.host == last->host)) {
            size_t end = static_cast<size_t>(o.host - last->host) + o.bytes;
            last->bytes = std::max(last->bytes, end);
            last->is_const = last->is_const && o.is_const;
        } else {
            regions.push_back({o.host, o.bytes, 0, o.is_const});
        }
    }
    block_bytes = 0;
    for (region &r : regions) {
        size_t first = block_bytes + guard_bytes;
        r.offset = (first + address_unit - 1) / address_unit * address_unit +
                   reinterpret_cast<uintptr_t>(r.host) % 16;
        block_bytes = r.offset + r.bytes;
    }
    block_bytes += guard_bytes;
}

void operand_copies::set_operands(char *block) const
{
    for (const operand &o : operands) {
        for (const region &r : regions) {
            if (o.host >= r.host && o.host + o.bytes <= r.host + r.bytes) {
                o.set(block + r.offset + (o.host - r.host));
                break;
            }
        }
    }
}

status operand_copies::check_guards(const std::vector<unsigned char> &image) const
{
    size_t at = 0;
    for (size_t i = 0; i <= regions.size(); i++) {
        size_t end = i < regions.size() ? regions[i].offset : block_bytes;
        for (; at < end; at++) {
            REQUIRE(image[at] == untouched, STATUS_INTERNAL,
                    "the operation wrote outside its operands: byte %zu after operand %zu of %zu "
                    "and %zu bytes before the next one, in the order of their addresses",
                    i > 0 ? at - regions[i - 1].offset - regions[i - 1].bytes : at, i,
                    regions.size(), end - at);
        }
        at = i < regions.size() ? end + regions[i].bytes : end;
    }
    return STATUS_OK;
}

status operand_copies::store_results(const std::vector<unsigned char> &image) const
{
    for (const region &r : regions) {
        const unsigned char *copy = image.data() + r.offset;
        REQUIRE(!r.is_const || memcmp(r.host, copy, r.bytes) == 0, STATUS_INTERNAL,
                "the operation wrote to a const operand of %zu bytes", r.bytes);
        if (!r.is_const) { /* a const operand may be in memory that cannot be written */
            memcpy(r.host, copy, r.bytes);
        }
    }
    return STATUS_OK;
}

status operand_copies::run(const std::function<status()> &operation)
{
    place_regions();
    std::vector<unsigned char> image(block_bytes, untouched);
    for (const region &r : regions) {
        memcpy(image.data() + r.offset, r.host, r.bytes);
    }
    void *block = nullptr;
    TRY(reserve_block(gpu, block_bytes, &block));
    TRY(device_write(gpu, queue, block, image.data(), block_bytes));
    set_operands(static_cast<char *>(block));
    TRY(operation());
    TRY(device_read(gpu, queue, image.data(), block, block_bytes));
    TRY(check_guards(image));
    return store_results(image);
}
