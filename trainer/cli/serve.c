/* bireme serve: an HTTP server with the interface of the OpenAI API. */
#include <stdlib.h>

#include "base/memory.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/inference/server/server.h"

status command_serve(int argc, char **argv)
{
    struct server_options o = {0};
    struct option_list overrides = {0};
    bool help = false;
    const struct option table[] = {
        {"checkpoint", OPTION_TEXT, &o.checkpoint, "DIR", OPTION_REQUIRED,
         "run folder, checkpoints/ folder, one checkpoint or final/"},
        {"source-lang", OPTION_TEXT, &o.source_language, "CODE", NULL,
         "language of the sources of an encoder-decoder, as in translate"},
        {"target-lang", OPTION_TEXT, &o.target_language, "CODE", NULL,
         "language of the targets of an encoder-decoder, as in translate"},
        {"host", OPTION_TEXT, &o.host, "ADDRESS", "127.0.0.1",
         "address to listen on; 0.0.0.0: all addresses of this machine"},
        {"port", OPTION_INTEGER, &o.port, "PORT", "8000", "port to listen on; 0: a free one",
         .min = 0, .max = 65535},
        {"api-key-file", OPTION_TEXT, &o.api_key_file, "FILE", NULL,
         "file with a key in its first line; requests to /v1 must then send it"},
        {"max-num-seqs", OPTION_INTEGER, &o.max_num_seqs, "N", "8",
         "maximum number of sequences that are generated at a time", .min = 1, .max = 4096},
        {"max-model-len", OPTION_INTEGER, &o.max_model_len, "N", "0",
         "maximum number of tokens of a sequence with its prompt; 0: the positions of the model",
         .min = 0, .max = 1e9},
        {"max-queue", OPTION_INTEGER, &o.max_queue, "N", "256",
         "maximum number of requests that run or wait; further ones get status 503", .min = 1,
         .max = 1e6},
        {"max-connections", OPTION_INTEGER, &o.max_connections, "N", "1024",
         "maximum number of open connections; further ones are closed", .min = 1, .max = 1e6},
        {"max-body-bytes", OPTION_INTEGER, &o.max_body_bytes, "BYTES", "4194304",
         "maximum size of a request", .min = 1, .max = 1e9},
        {"timeout", OPTION_INTEGER, &o.timeout_seconds, "SECONDS", "600",
         "maximum time of a request, after which its answer ends", .min = 1, .max = 1e6},
        {"set", OPTION_LIST, &overrides, "KEY=VALUE...", NULL,
         "override settings of the recipe, e.g. train.precision=fp32"},
    };
    struct options options = {
        .usage = "bireme serve --checkpoint DIR [--port PORT] [options]",
        .description =
            "Serves a model over HTTP with the interface of the OpenAI API, and a chat page at /. "
            "Prints the address to standard output. Ctrl-C or SIGTERM ends the server after the "
            "running answers.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme serve --checkpoint runs/mine --port 8000\n"
                    "bireme serve --checkpoint runs/mine_sft --host 0.0.0.0 \\\n"
                    "    --api-key-file key.txt",
    };
    TRY(options_parse(&options, argc, argv, &help));
    o.overrides = overrides.items;
    o.override_count = overrides.count;
    status result = help ? STATUS_OK : server_run(&o);
    free(overrides.items);
    return result;
}
