/* The table of options: values of each kind, defaults, lists, operands and errors. */
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/cli/options.h"

struct values {
    bool json;
    int64_t size;
    double share;
    const char *output, *type;
    struct option_list inputs;
    struct options options;
};

static status parse_arguments(struct values *v, int argc, char **argv, bool *help)
{
    const struct option table[] = {
        {"json", OPTION_FLAG, &v->json, NULL, NULL, "one document", .former_name = "document"},
        {"size", OPTION_INTEGER, &v->size, "N", "10", "how many", 1, 100, NULL},
        {"share", OPTION_NUMBER, &v->share, "F", "0.5", "how much", 0, 1, NULL},
        {"output", OPTION_TEXT, &v->output, "DIR", OPTION_REQUIRED, "folder", 0, 0, NULL},
        {"type", OPTION_CHOICE, &v->type, "TYPE", "bpe", "kind", 0, 0, "bpe|char"},
        {"input", OPTION_LIST, &v->inputs, "FILE...", NULL, "texts", 0, 0, NULL},
    };
    v->options = (struct options){.usage = "x",
                                  .description = "y",
                                  .table = table,
                                  .count = 6,
                                  .operand_name = "NAME",
                                  .operands_max = 2};
    return options_parse(&v->options, argc, argv, help);
}

static struct values parse_valid(char *line)
{
    static char *argv[32];
    struct values v = {0};
    bool help = true;
    int argc = 0;
    char *rest = NULL;
    for (char *w = strtok_r(line, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = w;
    }
    CHECK_OK(parse_arguments(&v, argc, argv, &help));
    CHECK(!help);
    return v;
}

static void check_refused(const char *text, const char *expected)
{
    char line[256];
    char *argv[32];
    struct values v = {0};
    bool help;
    int argc = 0;
    snprintf(line, sizeof line, "%s", text);
    char *rest = NULL;
    for (char *w = strtok_r(line, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = w;
    }
    CHECK_FAILS(parse_arguments(&v, argc, argv, &help), STATUS_USAGE, expected);
    CHECK(v.inputs.items == NULL && v.inputs.count == 0);
}

/* Flags of other frameworks name the option or the setting; a missing feature ends with 69. */
static void test_foreign_flags(void)
{
    bool help;
    const char *temperature = NULL, *length = NULL;
    const struct option table[] = {
        {"temperature", OPTION_TEXT, &temperature, "T", NULL, "t", 0, 0, NULL}};
    const struct option lengths[] = {
        {"sequence-length", OPTION_TEXT, &length, "N", NULL, "n", 0, 0, NULL}};
    struct options train = {.usage = "bireme train RECIPE.yaml",
                            .description = "",
                            .operand_name = "RECIPE.yaml",
                            .operands_max = -1};
    struct options generate = {
        .usage = "bireme generate", .description = "", .table = table, .count = 1};
    struct options prepare = {
        .usage = "bireme prepare", .description = "", .table = lengths, .count = 1};
    static const char *const expected[][2] = {
        {"--epochs=3", "'--epochs'; write train.epochs=VALUE after the recipe"},
        {"--lr=1", "optimizer.learning_rate=VALUE"},
        {"--min_lr=1", "schedule.min_ratio=(VALUE / learning rate)"},
        {"--block_size=1", "data.sequence_length=VALUE model.max_position_embeddings=VALUE"},
        {"--gradient_accumulation_steps=1", "batch.global_size=(VALUE x batch.micro_size"},
        {"--init_from=resume", "train resumes a run by itself"},
        {"--compile=False", "'--compile'; nothing is compiled at run time; remove it"},
        {"--bias=False", "model.architecture determines the biases"},
        {"--always_save_checkpoint=True", "checkpoint.every=N saves checkpoints"},
        {"--batch-size=1", "batch.global_size=VALUE"},
        {"--per_device_train_batch_size=1", "batch.micro_size=VALUE"},
        {"--tensor-model-parallel-size=2", "parallel.tensor=VALUE"},
        {"--max_length=9", "sft.max_length=VALUE"},
        {"--max_seq_length=9", "write data.sequence_length=VALUE after the recipe"},
        {"--packing", "sft.packing=bfd after"},
        {"--dataset_name=x", "data.train='DIR/train-*.h5' (shards of `bireme prepare`)"},
        {"--eval_strategy=steps", "evaluate.every=N evaluates after every N steps"},
        {"--optim=adamw_torch", "optimizer.name=VALUE"},
        {"--bf16", "train.precision=bf16 after"},
        {"--untie-embeddings-and-output-weights", "model.tie_word_embeddings=false"},
        {"--swiglu", "model.architecture=llama"},
        {"--use-distributed-optimizer", "parallel.zero_stage=1 "},
        {"--tensorboard-dir=x", "log.tensorboard=true"},
        {"--load=x", "model.init_from=VALUE (train resumes a run by itself)"},
        {"--overlap-grad-reduce", "gradients are always reduced during the backward pass"},
        {"--use-flash-attn", "attention is always computed in tiles"},
        {"--attention-dropout=0", "model.attention_dropout=VALUE"},
        {"--adam-beta2=0.95", "optimizer.beta2=VALUE"},
        {"--lora_dropout=0", "adapter.dropout=VALUE"},
        {"--lr-warmup-fraction=0", "schedule.warmup_ratio=VALUE"},
        {"--init_from=x", "model.init_from=VALUE"},
    };
    for (int i = 0; i < COUNT(expected); i++) {
        char flag[64], command[] = "train";
        snprintf(flag, sizeof flag, "%s", expected[i][0]);
        char *argv[] = {command, flag};
        CHECK_FAILS(options_parse(&train, 2, argv, &help), STATUS_USAGE, expected[i][1]);
    }
    char command[] = "x", temp[] = "--temp", pipeline[] = "--pipeline-model-parallel-size";
    char max_length[] = "--max-length";
    char *first[] = {command, temp}, *second[] = {command, pipeline};
    char *third[] = {command, max_length};
    CHECK_FAILS(options_parse(&generate, 2, first, &help), STATUS_USAGE,
                "'--temp'; use --temperature");
    CHECK_FAILS(options_parse(&prepare, 2, third, &help), STATUS_USAGE,
                "'--max-length'; use --sequence-length");
    CHECK_FAILS(options_parse(&train, 2, second, &help), STATUS_UNAVAILABLE,
                "needs pipeline parallelism");
}

static void test_valid(void)
{
    char first[] = "c --output o";
    struct values v = parse_valid(first);
    char former[] = "c --output o --document";
    CHECK(parse_valid(former).json);
    CHECK(!v.json && v.size == 10 && v.share == 0.5 && strcmp(v.type, "bpe") == 0);
    CHECK(strcmp(v.output, "o") == 0 && v.inputs.count == 0 && v.options.operand_count == 0);

    char second[] =
        "c a --input p q --size=7 --json b --output=-x --share 1e-1 --type char --input r";
    v = parse_valid(second);
    CHECK(v.json && v.size == 7 && v.share == 0.1 && strcmp(v.type, "char") == 0);
    CHECK_TEXT(v.output, "-x");
    CHECK_EQUAL(v.inputs.count, 3);
    CHECK(strcmp(v.inputs.items[0], "p") == 0 && strcmp(v.inputs.items[2], "r") == 0);
    CHECK_EQUAL(v.options.operand_count, 2);
    CHECK(strcmp(v.options.operands[0], "a") == 0 && strcmp(v.options.operands[1], "b") == 0);
    free(v.inputs.items);

    char third[] = "c --output o -- --json -a";
    v = parse_valid(third);
    CHECK(!v.json && v.options.operand_count == 2);
    CHECK_TEXT(v.options.operands[0], "--json");
}

static void test_refused(void)
{
    check_refused("c", "--output DIR is missing");
    check_refused("c --output", "--output needs a value: DIR");
    check_refused("c --output --json", "--output needs a value");
    check_refused("c --output=", "--output: the value is empty");
    check_refused("c --output o --output p", "--output is given twice");
    check_refused("c --output o --input p --input", "--input needs a value: FILE...");
    check_refused("c --output o --size 0", "--size 0: must be between 1 and 100");
    check_refused("c --output o --size 5x", "--size: '5x' is not an integer");
    check_refused("c --output o --share nan", "--share: 'nan' is not a number");
    check_refused("c --output o --share 2", "must be between 0 and 1");
    check_refused("c --output o --type bp", "must be one of bpe|char; did you mean 'bpe'?");
    check_refused("c --output o --jsn", "unknown option '--jsn' (did you mean '--json'?)");
    check_refused("c --output o --json=yes", "--json takes no value");
    check_refused("c --output o -j", "unknown option '-j'; options begin with two dashes");
    check_refused("c --output o a b d", "unexpected argument 'd'");
    check_refused("c --output o --input p --zzzzzz", "unknown option '--zzzzzz'");
}

/* With the last argument --help=check, options are parsed as always, and nothing else happens. */
static void test_check(void)
{
    struct values v = {0};
    bool help = false;
    const char *valid[] = {"c", "--output", "o", "--input", "p", "q", OPTIONS_HELP_CHECK};
    CHECK_OK(parse_arguments(&v, COUNT(valid), (char **)valid, &help));
    CHECK(help && v.inputs.items == NULL && v.inputs.count == 0);
    check_refused("c --output o --jsn " OPTIONS_HELP_CHECK, "unknown option '--jsn'");
    check_refused("c " OPTIONS_HELP_CHECK, "--output DIR is missing");
    check_refused("c --output " OPTIONS_HELP_CHECK, "--output needs a value");
}

static void test_subcommand(void)
{
    const char *argv[] = {"tokenizer", "encode", NULL};
    const char *misspelled[] = {"tokenizer", "trian", NULL};
    int which = -1;
    CHECK_OK(
        options_select_subcommand("u", "train|encode|decode", "", "", 2, (char **)argv, &which));
    CHECK_EQUAL(which, 1);
    CHECK_FAILS(options_select_subcommand("u", "train|encode|decode", "", "", 2,
                                          (char **)misspelled, &which),
                STATUS_USAGE, "did you mean 'train'?");
    CHECK_FAILS(options_select_subcommand("u", "train|encode", "", "", 1, (char **)argv, &which),
                STATUS_USAGE, "tokenizer needs a subcommand (train|encode)");
}

int main(void)
{
    test_foreign_flags();
    test_valid();
    test_refused();
    test_check();
    test_subcommand();
    return 0;
}
