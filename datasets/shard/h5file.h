/* HDF5 files that are opened safely and written completely: what shards and checkpoints share.
 *
 * The reader follows nothing out of the file: hard links only, no external or virtual storage, no
 * filter but Fletcher32, plugins off; types, ranks and sizes are checked before anything is read, and
 * attributes before anything is allocated. The writer uses the newest file format that HDF5 1.10 can
 * read (all metadata has checksums there), Fletcher32 and no time stamps, so that equal content gives
 * equal bytes with every HDF5 from 1.10 on; a file that was not closed well does not open.
 * hdf5.h is included here, in the shard files and in the checkpoint only.
 *
 * HDF5 has one lock for the whole library: a long call in one thread makes all others wait. Read and
 * write in pieces of some MiB. */
#pragma once

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* h5file_start - before any other HDF5 call of a thread: errors silent, plugins off, no at-exit
 * handler. All functions here call it; cheap and safe to call again. */
void h5file_start(void);

/* h5file_reason - why the last HDF5 call of this thread failed, in HDF5's innermost words.
 *
 * Memory    this thread's, until its next call; never NULL
 * Order     right after the failed call: any other HDF5 call forgets the reason */
const char *h5file_reason(void);

/* h5file_require_threads - this HDF5 may be called from several threads (Debian's may).
 *
 * Errors    STATUS_UNAVAILABLE */
status h5file_require_threads(void);

/* h5file_open - read only.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA with the reason */
status h5file_open(const char *path, hid_t *out);

/* h5file_open_checked - the same, of a file whose structure has checksums: one of HDF5's oldest format is
 * refused, because damage to it makes HDF5 itself crash or read other data. */
status h5file_open_checked(const char *path, hid_t *out);

/* h5file_create - a new file; an existing one is replaced.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status h5file_create(const char *path, hid_t *out);

/* h5file_close - flush and close, also whatever is still open in it.
 *
 * Errors    STATUS_WRITE; *file becomes H5I_INVALID_HID in any case. After any error of writing the
 *           file must be removed: what is left of it may open and read as zeros. */
status h5file_close(const char *path, hid_t *file);

/* h5file_chunked - properties of a new dataset: chunks of this shape, Fletcher32, no time stamps.
 *
 * Memory    *out is the caller's, for H5Pclose
 * Errors    STATUS_INTERNAL */
status h5file_chunked(int rank, const hsize_t *chunk, hid_t *out);

/* h5file_dataset - open a dataset that is safe to read.
 *
 * type is the only accepted file type (H5T_STD_U16LE, H5T_IEEE_F32LE, ...); H5I_INVALID_HID accepts
 * u16le or u32le. rank_limit is the number of dimensions accepted at most; out_shape[rank_limit].
 * What it claims to hold is really stored: elements x size <= bytes of the file, so that the shape
 * may be trusted for an allocation.
 * Memory    *out is the caller's, for H5Dclose
 * Errors    STATUS_DATA naming file, dataset and reason */
status h5file_dataset(hid_t file, const char *path, const char *name, hid_t type, int rank_limit,
                      hid_t *out, int64_t *out_shape, int *out_rank);

/* h5file_deflated - the same, where deflate is accepted too: the shape is then bounded by 1032 times what is
 * stored, and the caller bounds it further. */
status h5file_deflated(hid_t file, const char *path, const char *name, hid_t type, int rank_limit,
                       hid_t *out, int64_t *out_shape, int *out_rank);

/* Attributes: scalar (or [count], where count > 1) of exactly this type. Writers create, readers
 * check type and shape before they read.
 *
 * Errors    writers STATUS_WRITE; readers STATUS_DATA naming file, attribute and reason */
status h5file_write_i64(hid_t object, const char *path, const char *name, const int64_t *values,
                        int count);
status h5file_read_i64(hid_t object, const char *path, const char *name, int64_t *values,
                       int count);
status h5file_write_text(hid_t object, const char *path, const char *name, const char *text);
/* out[bytes]: longer text is refused. */
status h5file_read_text(hid_t object, const char *path, const char *name, char *out, int bytes);

/* h5file_has - whether the object has such an attribute. */
bool h5file_has(hid_t object, const char *name);
