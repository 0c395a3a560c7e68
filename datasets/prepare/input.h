/* The state that all readers of documents share (text_files.h, token_files.h). */
#pragma once

#include "datasets/prepare/encoder.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/splitter.h"

struct prepare_input {
    const struct prepare_options *options;
    struct splitter *splitter;     /* for text */
    struct encoder *encoder;       /* encodes the chunks of the splitter */
    struct prepare_output *output; /* for tokens of token files */
    struct prepare_report *report;
};
