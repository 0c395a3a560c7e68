/* Entry point of `bireme COMMAND ...`: runs the command, prints its error once and returns its
 * status as the exit code. */
#define _GNU_SOURCE /* fopencookie */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/thread/openmp.h"
#include "build_info.h"
#include "comm/comm.h"
#ifdef BIREME_CUDA
#include "kernels/kernels.h"
#endif
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"

struct command {
    const char *name;
    status (*run)(int argc, char **argv);
    const char *help;
    bool runs_on_all_ranks; /* false: only the first rank that a launcher started runs it */
    bool only_prints;       /* its output is standard output, so a closed pipe ends it */
};

static const struct command commands[] = {
    {"prepare", command_prepare, "convert text or JSON Lines to token shards"},
    {"tokenizer", command_tokenizer, "train a tokenizer, encode text or decode token ids"},
    {"plan", command_plan, "estimate memory, FLOPs and communication of a recipe", false, true},
    {"train", command_train, "train a model from a recipe, or resume a run", true},
    {"evaluate", command_evaluate, "compute losses, scores of tasks, or metrics of texts", true,
     true},
    {"score", command_score, "print the log-probability of each line of a file", false, true},
    {"fill-mask", command_fill_mask, "predict masked tokens with a masked language model", false,
     true},
    {"embed", command_embed, "compute embeddings of texts and their cosine similarity", false,
     true},
    {"classify", command_classify, "predict labels, numbers or choices with a fine-tuned model",
     false, true},
    {"answer", command_answer, "extract the answer to a question from a text", false, true},
    {"attention", command_attention, "write a page with the attention weights of a text", false,
     true},
    {"generate", command_generate, "generate text with a language model", false, true},
    {"translate", command_translate, "translate lines with an encoder-decoder", false, true},
    {"summarize", command_summarize, "summarize lines with an encoder-decoder", false, true},
    {"chat", command_chat, "chat with a fine-tuned model in the terminal", false, true},
    {"serve", command_serve, "serve a model over HTTP: OpenAI API and chat page"},
    {"inspect", command_inspect, "show and verify a shard, checkpoint, tokenizer or run folder",
     false, true},
    {"report", command_report, "write a page or a picture of the curves of runs"},
    {"checkpoint", command_checkpoint, "list, verify, compare or reshard checkpoints"},
    {"import", command_import, "convert a Hugging Face folder or a GGUF file to a checkpoint"},
    {"export", command_export, "convert a checkpoint to a Hugging Face folder or a GGUF file"},
    {"bench", command_bench, "measure training steps, kernels, communication or data loading", true,
     true},
    {NULL, NULL, NULL},
};

enum { COMMANDS = COUNT(commands) - 1 };

static void print_help(void)
{
    int columns = terminal_columns(STDOUT_FILENO);
    terminal_print_paragraphs(
        stdout,
        "usage: bireme COMMAND [arguments]\n\n"
        "Train transformer language models on one or more ranks, and use them.\n\n"
        "commands:",
        columns);
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-12s ", commands[i].name);
        terminal_print_wrapped(stdout, commands[i].help, 15, 15, columns);
    }
    terminal_print_paragraphs(stdout,
                              "\nRun 'bireme COMMAND --help' for the options of a command. Run "
                              "'bireme --version' for the version and the libraries of this build.",
                              columns);
}

/* Prints a row for each command, for scripts/generate_manual.sh. */
static void print_command_table(void)
{
    for (int i = 0; i < COMMANDS; i++) {
        printf("command\t%s\t%s\n", commands[i].name, commands[i].help);
    }
}

static void print_version(void)
{
    printf("bireme %s\n", BUILD_VERSION);
    printf("commit    %s\n", BUILD_COMMIT);
    printf("compiler  %s, %s\n", BUILD_COMPILER, BUILD_TYPE);
    printf("MPI       %s\n", BUILD_MPI);
    printf("HDF5      %s\n", BUILD_HDF5);
    printf("oneDNN    %s\n", BUILD_ONEDNN);
#ifdef BIREME_CUDA
    printf("CUDA      %s\n", BIREME_CUDA);
    printf("NCCL      2.28 or newer, at run time\n");
#else
    printf("CUDA      none\n");
    printf("NCCL      none\n");
#endif
}

/* Returns the command that does what a command of another program does, or NULL. */
static const char *find_alias(const char *name)
{
    static const char *const aliases[][2] = {
        {"sample", "generate"},    {"complete", "generate"}, {"infer", "generate"},
        {"eval", "evaluate"},      {"test", "evaluate"},     {"perplexity", "evaluate"},
        {"finetune", "train"},     {"pretrain", "train"},    {"tokenize", "tokenizer"},
        {"preprocess", "prepare"}, {"convert", "import"},
    };
    for (int i = 0; i < COUNT(aliases); i++) {
        if (strcmp(aliases[i][0], name) == 0) {
            return aliases[i][1];
        }
    }
    return NULL;
}

static status run_command(int argc, char **argv)
{
    const char *names[COMMANDS + 2];
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) {
            bool is_idle = !commands[i].runs_on_all_ranks && !comm_is_first_process();
            if (commands[i].only_prints && !comm_is_launched()) {
                signal(SIGPIPE, SIG_DFL); /* as `| head` expects: end without a message */
            }
            return is_idle ? STATUS_OK : commands[i].run(argc - 1, argv + 1);
        }
        names[i] = commands[i].name;
    }
    names[COMMANDS] = "--help";
    names[COMMANDS + 1] = "--version";
    int nearest = text_nearest(argv[1], names, COMMANDS + 2);
    const char *command = nearest < 0 ? find_alias(argv[1]) : NULL;
    REQUIRE(command == NULL, STATUS_USAGE, "unknown command '%s'; use `bireme %s`", argv[1],
            command);
    RAISE(STATUS_USAGE, "unknown command '%s'%s%s%s; run 'bireme --help' to list the commands",
          argv[1], nearest >= 0 ? " (did you mean '" : "", nearest >= 0 ? names[nearest] : "",
          nearest >= 0 ? "'?)" : "");
}

/* Runs `bireme help [COMMAND]`. */
static status run_help(int argc, char **argv)
{
    static char flag[] = "--help";
    if (argc > 2) {
        char *arguments[] = {argv[0], argv[2], flag, NULL};
        return run_command(3, arguments);
    }
    print_help();
    return STATUS_OK;
}

static status run_program(int argc, char **argv)
{
    REQUIRE(argc >= 2, STATUS_USAGE,
            "a command is missing; run 'bireme --help' to list the commands");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
    } else if (strcmp(argv[1], OPTIONS_HELP_TABLE) == 0) {
        print_command_table();
    } else if (strcmp(argv[1], "help") == 0) {
        TRY(run_help(argc, argv));
    } else if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0) {
        print_version();
    } else {
        TRY(run_command(argc, argv));
    }
    return terminal_flush(true);
}

/* Occupies the standard descriptors that are closed. Otherwise the next opened file gets one of
 * them, and messages are written into that file. The descriptors are opened so that their use still
 * fails. */
static void occupy_standard_descriptors(void)
{
    for (int descriptor = 0; descriptor <= STDERR_FILENO; descriptor++) {
        if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
            (void)open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

/* Returns whether standard output is a pipe without a reader, such as in `bireme ... | head`. */
static bool is_output_closed(void)
{
    struct pollfd output = {.fd = STDOUT_FILENO};
    return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

static bool write_bytes(const char *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t written = write(STDOUT_FILENO, data + done, bytes - done);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        done += written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* Writes text to the terminal without control characters other than newline and tab: text of a
 * foreign file or model could otherwise change the terminal. Returns 0 after an error. */
static ssize_t write_to_terminal(void *unused, const char *data, size_t bytes)
{
    char text[1024];
    (void)unused;
    log_clear_progress();
    for (size_t done = 0; done < bytes;) {
        size_t left = bytes - done, count = left < sizeof text ? left : sizeof text - 1;
        for (size_t i = 0; i < count; i++) {
            text[i] = data[done + i] == '\0' ? '?' : data[done + i];
        }
        text[count] = '\0';
        text_replace_controls(text, "\n\t");
        if (!write_bytes(text, count)) {
            return 0;
        }
        done += count;
    }
    return (ssize_t)bytes;
}

static void filter_terminal_output(void)
{
    FILE *filtered = NULL;
    if (isatty(STDOUT_FILENO)) {
        filtered = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_to_terminal});
    }
    if (filtered != NULL) {
        setvbuf(filtered, NULL, _IOLBF, BUFSIZ);
        stdout = filtered;
    }
}

/* Allocates memory for jansson, which would report a failed allocation like an invalid document. */
static void *allocate_for_json(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        RAISE_STATUS(STATUS_INTERNAL, "out of memory for %zu bytes of a JSON document", bytes);
        comm_abort(NULL, STATUS_INTERNAL);
    }
    return memory;
}

int main(int argc, char **argv)
{
    openmp_limit_spinning(argv);
    occupy_standard_descriptors();
    json_set_alloc_funcs(allocate_for_json, free);
    filter_terminal_output();
#ifdef BIREME_CUDA
    cuda_register();
#endif
    /* A closed pipe becomes a write error instead of ending the job. */
    signal(SIGPIPE, SIG_IGN);
    status result = run_program(argc, argv);
    if (result == STATUS_WRITE && ferror(stdout) && is_output_closed()) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    status_print();
    return (int)result;
}
