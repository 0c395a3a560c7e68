/* HDF5 files that are opened safely and written completely: what shards and checkpoints share.
 *
 * The reader follows nothing out of the file: hard links only, no external or virtual storage, no
 * filter but Fletcher32, plugins off; types, ranks and sizes are checked before anything is read, and
 * attributes before anything is allocated. The writer uses H5F_LIBVER_LATEST, Fletcher32 and no time
 * stamps, so that equal content gives equal bytes; a file that was not closed well does not open.
 * hdf5.h is included here, in the shard files and in the checkpoint only. */
#pragma once

#include <hdf5.h>
#include <stdint.h>

#include "base/status.h"

/* h5file_start - once per process before any other HDF5 call: errors silent, plugins off, no at-exit
 * handler. Safe to call again. */
void h5file_start(void);

/* h5file_open - read only.  Errors: STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA with the reason */
status h5file_open(const char *path, hid_t *out);

/* h5file_create - a new file; an existing one is replaced.  Errors: STATUS_CREATE, STATUS_PERMISSION */
status h5file_create(const char *path, hid_t *out);

/* h5file_close - flush and close.  Errors: STATUS_WRITE; *file becomes H5I_INVALID_HID */
status h5file_close(const char *path, hid_t *file);

/* h5file_dataset - open a dataset that is safe to read.
 *
 * type is the only accepted file type (H5T_STD_U16LE, H5T_IEEE_F32LE, ...); H5I_INVALID_HID accepts
 * u16le or u32le. rank_limit is the number of dimensions accepted at most; out_shape[rank_limit].
 * Errors    STATUS_DATA naming file, dataset and reason */
status h5file_dataset(hid_t file, const char *path, const char *name, hid_t type, int rank_limit,
                      hid_t *out, int64_t *out_shape, int *out_rank);

/* Attributes: scalar (or [count]) of exactly this type. Writers create, readers check first. */
status h5file_write_i64(hid_t object, const char *path, const char *name, const int64_t *values,
                        int count);
status h5file_read_i64(hid_t object, const char *path, const char *name, int64_t *values,
                       int count);
status h5file_write_text(hid_t object, const char *path, const char *name, const char *text);
/* out[bytes]: longer text is refused. */
status h5file_read_text(hid_t object, const char *path, const char *name, char *out, int bytes);
