/* Reads token files of Megatron-LM and llm.c. The ids are copied to the output. */
#pragma once

#include "base/status.h"
#include "datasets/prepare/input.h"

/* token_files_read_megatron - copy the documents of a Megatron-LM data set.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA: a wrong header or size, or an id
 *           outside of the vocabulary; as prepare_output */
status token_files_read_megatron(struct prepare_input *in, const char *bin_path,
                                 const char *idx_path);

/* token_files_read_llmc - copy the documents of an llm.c token file.
 *
 * Errors    as token_files_read_megatron */
status token_files_read_llmc(struct prepare_input *in, const char *path);
