/* Fingerprint of the weights of a model: sums over all elements, each hashed with its position. It
 * does not depend on the order of the elements or on the parallel layout. */
#pragma once

#include "trainer/setup/session.h"

struct fingerprint {
    uint64_t sums[2];
};

/* Parameters that a fingerprint covers. Adapters are numbered after the model's own parameters, so
 * that the fingerprint of a model is the same with and without adapters. */
enum fingerprint_subset { FINGERPRINT_MODEL, FINGERPRINT_FROZEN, FINGERPRINT_ADAPTERS };

/* Weights are read in blocks of at most this many elements. */
enum { FINGERPRINT_BLOCK_ELEMENTS = 1 << 22 };

/* fingerprint_next_block - return the next block of elements [first, end); count 0 at the end. */
struct comm_range fingerprint_next_block(int64_t first, int64_t end);

/* fingerprint_add_block - add a block of a parameter in the orientation of its file.
 *
 * Shapes    block f32 [shape[0], shape[1]]; its first element is at `offset` in the parameter
 * Units     number: index of the parameter; adapters follow the parameters of the model */
void fingerprint_add_block(struct fingerprint *f, int number,
                           const struct model_parameter *parameter, const int64_t offset[2],
                           const int64_t shape[2], const float *block);

/* fingerprint_add_range - add this rank's elements of a range of the flat parameter buffer.
 *
 * Shapes    weights [range.count] f32, on the host */
void fingerprint_add_range(struct fingerprint *f, const struct session *s,
                           enum fingerprint_subset subset, struct comm_range range,
                           const float *weights);

/* fingerprint_all_reduce - sum a fingerprint over the tensor-parallel group.
 *
 * Order     collective
 * Errors    STATUS_INTERNAL out of memory; errors of the collective */
status fingerprint_all_reduce(const struct session *s, struct fingerprint *f);

/* fingerprint_text - write the fingerprint as 32 hexadecimal digits. */
void fingerprint_text(const struct fingerprint *f, char text[HASH_TEXT_BYTES]);

/* fingerprint_of_session - compute the fingerprint of a session's model, including its adapters if
 * `adapters` is true.
 *
 * The part of a frozen base model comes from the recipe (adapter.base_weights).
 *
 * Order     collective over the tensor-parallel group
 * Errors    STATUS_INTERNAL out of memory; errors of the device and of the collective */
status fingerprint_of_session(const struct session *s, bool adapters, char text[HASH_TEXT_BYTES]);
