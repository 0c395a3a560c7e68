/* bireme COMMAND ...: finds the command, tells its error once, returns its status as exit code. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "build_info.h"
#include "comm/comm.h"
#ifdef BIREME_CUDA
#include "kernels/kernels.h"
#endif
#include "trainer/cli/command.h"

struct command {
    const char *name;
    status (*run)(int argc, char **argv);
    const char *help;
    bool on_ranks; /* works on all ranks that a launcher started; else one of them does all of it */
};

static const struct command commands[] = {
    {"prepare", command_prepare, "text or JSON Lines to token shards"},
    {"tokenizer", command_tokenizer, "learn a tokenizer; text to ids and back"},
    {"plan", command_plan, "what a recipe costs: parameters, memory, work and traffic of a step"},
    {"train", command_train, "train a model from a recipe, or go on where a run stopped", true},
    {"evaluate", command_evaluate, "loss and perplexity on held-out data, accuracy on a task",
     true},
    {"score", command_score, "log-probability of each line"},
    {"fill-mask", command_fill_mask, "the tokens that a masked language model expects"},
    {"embed", command_embed, "a vector for each text, and how alike texts are"},
    {"classify", command_classify, "labels, numbers or choices for texts, by a fine-tuned model"},
    {"answer", command_answer, "the part of a text that answers a question"},
    {"generate", command_generate, "text from a trained model"},
    {"chat", command_chat, "a conversation with a model that was fine-tuned for it"},
    {"inspect", command_inspect,
     "what a shard, checkpoint, tokenizer or run folder holds; is it whole"},
    {"checkpoint", command_checkpoint, "list, verify and compare checkpoints; cut one anew"},
    {"import", command_import, "a Hugging Face model folder becomes a checkpoint"},
    {"export", command_export, "a checkpoint becomes a Hugging Face model folder"},
    {"bench", command_bench, "repeatable measurements, each beside its floor", true},
    {NULL, NULL, NULL},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] - 1 };

static void print_help(void)
{
    printf("usage: bireme COMMAND [arguments]\n\ncommands:\n");
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-12s %s\n", commands[i].name, commands[i].help);
    }
    printf(
        "\nbireme COMMAND --help lists a command's flags; bireme --version tells what this build "
        "holds\n");
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

static status run_command(int argc, char **argv)
{
    const char *names[COMMANDS + 2];
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) {
            bool idle = !commands[i].on_ranks && !comm_launched_first();
            return idle ? STATUS_OK : commands[i].run(argc - 1, argv + 1);
        }
        names[i] = commands[i].name;
    }
    names[COMMANDS] = "--help";
    names[COMMANDS + 1] = "--version";
    int nearest = text_nearest(argv[1], names, COMMANDS + 2);
    RAISE(STATUS_USAGE, "unknown command '%s'%s%s%s; bireme --help lists the commands", argv[1],
          nearest >= 0 ? "; did you mean '" : "", nearest >= 0 ? names[nearest] : "",
          nearest >= 0 ? "'?" : "");
}

/* help [COMMAND] */
static status help_with(int argc, char **argv)
{
    static char flag[] = "--help";
    if (argc > 2) {
        char *asked[] = {argv[0], argv[2], flag, NULL};
        return run_command(3, asked);
    }
    print_help();
    return STATUS_OK;
}

static status run(int argc, char **argv)
{
    REQUIRE(argc >= 2, STATUS_USAGE, "a command is missing; bireme --help lists the commands");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
    } else if (strcmp(argv[1], "help") == 0) {
        TRY(help_with(argc, argv));
    } else if (strcmp(argv[1], "--version") == 0) {
        print_version();
    } else {
        TRY(run_command(argc, argv));
    }
    REQUIRE(fflush(stdout) == 0 && !ferror(stdout), STATUS_WRITE,
            "cannot write standard output: %s", strerror(errno));
    return STATUS_OK;
}

int main(int argc, char **argv)
{
#ifdef BIREME_CUDA
    cuda_register();
#endif
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a write error here, not the end of a job */
    status result = run(argc, argv);
    status_print();
    return (int)result;
}
