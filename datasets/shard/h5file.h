/* HDF5 files: safe reading and complete writing, for shards and checkpoints.
 *
 * The reader accepts only hard links, and no filter except Fletcher32. It refuses external and
 * virtual storage, and plugins are off. It checks types, dimensions and sizes before it reads data,
 * and attributes before it allocates memory. A file that was not closed properly does not open.
 *
 * The writer uses the newest file format that HDF5 1.10 can read, in which all metadata has
 * checksums. It uses Fletcher32 and no time stamps, so that equal content gives equal bytes with
 * every HDF5 from 1.10 on.
 *
 * HDF5 has one lock for the whole library: a long call in one thread blocks all other threads. Read
 * and write in blocks of a few MiB. Only this header includes hdf5.h; the files of this folder and
 * the checkpoint use the handles.
 *
 * Calls     Reading: h5file_open or h5file_open_checked, h5file_open_dataset,
 *           h5file_check_chunks before each H5Dread, h5file_close. Writing: h5file_create,
 *           h5file_create_chunk_properties, h5file_close. Attributes: h5file_read_* and
 *           h5file_write_* while the file is open */
#pragma once

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"

/* h5file_init - prepare the calling thread for HDF5: no error output, no plugins, no at-exit
 * handler. Every thread must call it before any other HDF5 call. All functions of this module call
 * it. Further calls are cheap. */
void h5file_init(void);

/* h5file_reason - return the reason why the last HDF5 call of this thread failed: the innermost
 * message of the error stack.
 *
 * Memory    owned by the thread, valid until its next call; never NULL
 * Order     call it directly after the failed call; any other HDF5 call clears the error stack */
const char *h5file_reason(void);

/* h5file_require_thread_safety - check that this HDF5 library may be called from several threads.
 *
 * Errors    STATUS_UNAVAILABLE if it was built without thread safety; the library of Debian
 *           has it */
status h5file_require_thread_safety(void);

/* h5file_open - open a file for reading.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA with the reason */
status h5file_open(const char *path, hid_t *out);

/* h5file_open_checked - open a file like h5file_open, but refuse the oldest format of HDF5. Its
 * metadata has no checksums, and damage to it makes HDF5 crash or read wrong data.
 *
 * Errors    as h5file_open; STATUS_DATA for the oldest format */
status h5file_open_checked(const char *path, hid_t *out);

/* h5file_create - create a file. An existing file or symbolic link of this name is removed first,
 * so that nothing is written into the target of a link.
 *
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status h5file_create(const char *path, hid_t *out);

/* h5file_close - flush and close a file and all objects that are still open in it. *file is then
 * H5I_INVALID_HID, also after an error.
 *
 * Errors    STATUS_WRITE. After any write error the caller must remove the file, because it may
 *           open and read as zeros. */
status h5file_close(const char *path, hid_t *file);

/* h5file_create_chunk_properties - create the properties of a new dataset: chunks of this shape,
 * Fletcher32, no time stamps.
 *
 * Memory    the caller closes *out with H5Pclose
 * Errors    STATUS_INTERNAL */
status h5file_create_chunk_properties(int dimensions, const hsize_t *chunk, hid_t *out);

/* h5file_float_type - return the type of floats in files: IEEE f32, or bf16 as a float of 16 bits
 * with an exponent of 8 bits. Both are little-endian. h5py reads bf16 as float32.
 *
 * Memory    the caller closes it with H5Tclose
 * Errors    H5I_INVALID_HID out of memory */
hid_t h5file_float_type(enum dtype dtype);

/* h5file_open_dataset - open a dataset that is safe to read.
 *
 * type is the only accepted file type (H5T_STD_U16LE, H5T_IEEE_F32LE, ...); H5I_INVALID_HID accepts
 * u16le and u32le. The file must really store all elements of the dataset: elements x size <= bytes
 * of the file. The caller may therefore use the shape for an allocation.
 *
 * Shapes    out_shape[dimension_limit]; dimension_limit: largest accepted number of dimensions
 * Memory    the caller closes *out with H5Dclose
 * Errors    STATUS_DATA with file, dataset and reason */
status h5file_open_dataset(hid_t file, const char *path, const char *name, hid_t type,
                           int dimension_limit, hid_t *out, int64_t *out_shape,
                           int *out_dimensions);

/* h5file_open_deflated_dataset - open a dataset like h5file_open_dataset, but also accept the
 * deflate filter. The elements of chunks are then limited to 1032 times the stored bytes. The
 * caller must apply a stricter limit. */
status h5file_open_deflated_dataset(hid_t file, const char *path, const char *name, hid_t type,
                                    int dimension_limit, hid_t *out, int64_t *out_shape,
                                    int *out_dimensions);

/* h5file_check_chunks - check that the chunks of a block are stored completely, with a checksum
 * each. Call it before H5Dread: HDF5 1.10 reads beyond the end of a stored chunk that is too short.
 * Does nothing for a dataset that is not stored in chunks.
 *
 * Shapes    start, count [dimensions of the dataset]; at most two dimensions
 * Errors    STATUS_DATA with file and dataset */
status h5file_check_chunks(hid_t dataset, const char *path, const char *name, const hsize_t *start,
                           const hsize_t *count);

/* ---- attributes ----
 *
 * An attribute is a scalar, or an array [count] if count > 1, of exactly one type. The writers
 * create it. The readers check its type and shape before they read it. */

/* h5file_write_i64 - create an attribute of 64-bit integers.
 *
 * Errors    STATUS_WRITE with file, attribute and reason */
status h5file_write_i64(hid_t object, const char *path, const char *name, const int64_t *values,
                        int count);

/* h5file_read_i64 - read an attribute of 64-bit integers.
 *
 * Errors    STATUS_DATA with file, attribute and reason */
status h5file_read_i64(hid_t object, const char *path, const char *name, int64_t *values,
                       int count);

/* h5file_write_text - create a string attribute of fixed size.
 *
 * Errors    STATUS_WRITE with file, attribute and reason */
status h5file_write_text(hid_t object, const char *path, const char *name, const char *text);

/* h5file_read_text - read a string attribute to out[bytes]. Longer strings are refused.
 *
 * Errors    STATUS_DATA with file, attribute and reason */
status h5file_read_text(hid_t object, const char *path, const char *name, char *out, int bytes);

/* h5file_has_attribute - return whether the object has an attribute of this name. */
bool h5file_has_attribute(hid_t object, const char *name);
