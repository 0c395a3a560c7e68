/* Verification of a checkpoint folder.
 *
 * A folder is valid if the digest of the manifest matches and the shards tile every tensor. Every
 * file must have the size and the SHA-256 of the manifest. HDF5 opens no file before these checks
 * have passed. */
#pragma once

#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/manifest.h"

/* checkpoint_verify_local - verify a folder in a single process: the manifest, the sizes and, if
 * `digests` is true, the SHA-256 of every file.
 *
 * Memory    the caller always releases *out with manifest_destroy
 * Returns   false with the fault in reason[MANIFEST_REASON_BYTES]; no status is pending */
bool checkpoint_verify_local(const char *folder, bool digests, struct manifest *out, char *reason);

/* checkpoint_verify - verify manifest, sizes and digests; the ranks share the work.
 *
 * For a damaged folder *good is false, and reason[MANIFEST_REASON_BYTES] is the same on all ranks.
 *
 * Memory    the caller always releases *out with manifest_destroy
 * Order     collective
 * Errors    STATUS_INTERNAL out of memory, and the errors of the communicator */
status checkpoint_verify(struct comm *world, const char *folder, struct manifest *out, bool *good,
                         char *reason);

/* checkpoint_read_manifest - read the manifest on rank 0 and parse it on all ranks.
 *
 * Sizes and digests are not verified. Otherwise as checkpoint_verify. */
status checkpoint_read_manifest(struct comm *world, const char *folder, struct manifest *out,
                                bool *good, char *reason);

/* checkpoint_has_all_files - return whether the manifest is valid and every file has its size. Also
 * true if memory runs out, because the caller may remove folders that are not valid. */
bool checkpoint_has_all_files(const char *folder);

/* checkpoint_fill_info - describe a verified folder; moves m->recipe to *out. */
void checkpoint_fill_info(struct checkpoint_info *out, const char *folder, struct manifest *m);
