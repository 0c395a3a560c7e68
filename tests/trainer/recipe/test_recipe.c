/* Tests recipes with errors, complete messages against a golden file, the settings table, and
 * recipes that are written and read again. */
#include <glob.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/check.h"
#include "tests/trainer/recipe/recipe_text.h"
#include "trainer/recipe/settings.h"

static const char head[] = "data: {tokenizer: t}\ntrain: {max_steps: 10}\n"; /* two lines */

static status parse_recipe(const char *text, struct recipe *out)
{
    return recipe_parse("bad.yaml", text, strlen(text), NULL, 0, out);
}

static void parse_valid(const char *text, const char *const *overrides, int count,
                        struct recipe *out)
{
    CHECK_OK(recipe_parse("good.yaml", text, strlen(text), (char *const *)overrides, count, out));
}

/* ---- corpus of recipes with errors ---- */

struct bad_recipe {
    const char *text;
    int line;
    const char *expected;
};

static const struct bad_recipe bad_recipes[] = {
#include "tests/trainer/recipe/bad_recipes.inc"
};

static void test_corpus(void)
{
    int count = COUNT(bad_recipes);
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        const struct bad_recipe *bad = &bad_recipes[i];
        char text[8192];
        char position[64];
        struct recipe recipe;
        snprintf(text, sizeof text, "%s%s", bad->line > 2 ? head : "", bad->text);
        snprintf(position, sizeof position, "bad.yaml:%d:", bad->line);
        status result = parse_recipe(text, &recipe);
        const char *message = status_pending()->text;
        if (result != STATUS_RECIPE || strstr(message, bad->expected) == NULL ||
            (bad->line != 0 && strncmp(message, position, strlen(position)) != 0)) {
            fprintf(stderr, "recipe %d returned %d, expected line %d and '%s':\n%s\nmessage: %s\n",
                    i, result, bad->line, bad->expected, text, message);
            wrong++;
        }
        status_clear();
    }
    CHECK_EQUAL(wrong, 0);
    printf("%d recipes with errors refused\n", count);
}

static const struct {
    const char *override, *expected;
} bad_overrides[] = {
    {"max_steps=5", "command line: max_steps: unknown key; did you mean 'train.max_steps'?"},
    {"train.max_step=5",
     "command line: train.max_step: unknown key; did you mean 'train.max_steps'?"},
    {"trainer.max_steps=5", "trainer.max_steps: unknown key; did you mean 'train.max_steps'?"},
    {"optimiser.learning_rate=1", "unknown key; did you mean 'optimizer.learning_rate'?"},
    {"train.max_steps", "not of the form section.key=value"},
    {"train.max_steps=", "command line: train.max_steps: has no value; write null"},
    {"train.max_steps=1e3",
     "command line: train.max_steps: '1e3' is not a plain integer, write 1000"},
    {"train.max_steps=0", "must be at least 1"},
    {"train.max_steps=null", "command line: train.max_steps: missing; set"},
    {"train.max_steps=5 ", "is not an integer"},
    {"train=5", "command line: train: is a section; write train.KEY=value"},
    {"model.hidden_size=100",
     "command line: model.hidden_size: 100 is not a multiple of model.num_heads"},
    {"model.num_heads=7",
     "command line: model.hidden_size: 768 is not a multiple of model.num_heads (7)"},
    {"model.dropout=nan", "'nan' is not a number"},
    {"model.dropout=1e999", "too large"},
    {"model.dropout=\"0.1\"", "'0.1' is a string, but a number is required"},
    {"log.tensorboard=yes", "'yes' is not a boolean"},
    {"optimizer.lr=1", "did you mean 'optimizer.learning_rate'?"},
    {"data.train=[", "command line: data.train:2:1: not YAML"},
    {"data.train=[a, b]",
     "command line: data.train: each list entry must be {path: ..., weight: ...}"},
    {"data.train={a: b}", "command line: data.train: must be a path"},
    {"run_dir=a\nb", "command line: run_dir:"},
    {"run_dir=\xff", "command line: run_dir:"},
    {"run_dir=[a]", "must be a string, not a list"},
    {"=5", "command line: : unknown key"},
    {"", "not of the form"},
    {"schedule.name=cosin", "did you mean 'cosine'?"},
};

static void test_bad_overrides(void)
{
    for (int i = 0; i < COUNT(bad_overrides); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s", bad_overrides[i].override);
        char *list[] = {text};
        struct recipe recipe;
        CHECK_FAILS(recipe_parse("good.yaml", head, strlen(head), list, 1, &recipe), STATUS_RECIPE,
                    bad_overrides[i].expected);
    }
}

static void test_overrides(void)
{
    const char *list[] = {"train.max_steps=null", "train.epochs=1.5",     "data.train=*.h5",
                          "run_dir=12",           "model.vocab_size=300", "model.vocab_size=400",
                          "model.dropout=0.25"};
    struct recipe recipe;
    parse_valid(head, list, 7, &recipe);
    CHECK_EQUAL(recipe.train.max_steps, 0);
    CHECK(recipe.train.epochs == 1.5);
    CHECK(strcmp(recipe.data.train[0].path, "*.h5") == 0 && recipe.data.train_count == 1);
    CHECK_TEXT(recipe.run_dir, "12");
    CHECK_EQUAL(recipe.model.vocab_size, 400);
    CHECK(recipe.model.attention_dropout == 0.25);

    const char *mixture[] = {"data.train=[{path: a*.h5, weight: 2}, {path: \"b c\"}]"};
    parse_valid(head, mixture, 1, &recipe);
    CHECK_EQUAL(recipe.data.train_count, 2);
    CHECK(recipe.data.train[0].weight == 2.0 && recipe.data.train[1].weight == 1.0);
    CHECK_TEXT(recipe.data.train[1].path, "b c");
}

/* A setting of the command line replaces its alternative in the file. Two alternatives in one place
 * contradict each other. */
static void test_alternatives(void)
{
    static const char text[] = "data: {tokenizer: t}\nschedule: {warmup_ratio: 0.1}\n"
                               "train: {max_steps: 10}\n";
    char epochs[] = "train.epochs=2", steps[] = "schedule.warmup_steps=3";
    char max_steps[] = "train.max_steps=7", ratio[] = "schedule.warmup_ratio=null";
    char *both[] = {epochs, steps}, *twice[] = {epochs, max_steps}, *null[] = {ratio, steps};
    struct recipe recipe;
    CHECK_OK(recipe_parse("a.yaml", text, sizeof text - 1, both, 2, &recipe));
    CHECK(recipe.train.max_steps == 0 && recipe.train.epochs == 2);
    CHECK(recipe.schedule.warmup_steps == 3 && recipe.schedule.warmup_ratio < 0);
    CHECK_OK(recipe_parse("a.yaml", text, sizeof text - 1, null, 2, &recipe));
    CHECK_EQUAL(recipe.schedule.warmup_steps, 3);
    CHECK_FAILS(recipe_parse("a.yaml", text, sizeof text - 1, twice, 2, &recipe), STATUS_RECIPE,
                "command line: train.max_steps: 7 conflicts with train.epochs");
}

static const struct {
    const char *override, *expected;
} missing_features[] = {
    {"objective=PPO", "objective: 'PPO' needs online reinforcement learning"},
    {"model.architecture=pegasus", "model.architecture: 'pegasus' needs another encoder-dec"},
    {"model.architecture=mixtral", "needs a mixture of experts"},
    {"train.precision=fp16", "train.precision: 'fp16' is a number format"},
    {"parallel.pipeline=2", "parallel.pipeline: 'pipeline' needs pipeline parallelism"},
    {"model.clip_qkv=8.0", "model.clip_qkv: 'clip_qkv' needs clipped queries, keys and values"},
    {"parallel.zero_stage=3", "parallel.zero_stage: '3' needs sharded weights (ZeRO stage 3)"},
    {"log.wandb=true", "log.wandb: 'wandb' needs a client of a logging service"},
    {"wandb.project=x", "needs a client of a logging service"},
    {"optimizer.name=muon", "'muon' is an optimizer, which Bireme does not have; docs/limits.md"},
};

/* The message of a missing feature names it (69). The message of an unknown key without a similar
 * key lists the keys of its section. */
static void test_missing_features(void)
{
    struct recipe recipe;
    for (int i = 0; i < COUNT(missing_features); i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", missing_features[i].override);
        char *list[] = {text};
        CHECK_FAILS(recipe_parse("good.yaml", head, strlen(head), list, 1, &recipe),
                    STATUS_UNAVAILABLE, missing_features[i].expected);
    }
    static const char file[] = "data: {tokenizer: t}\nobjective: grpo\n";
    CHECK_FAILS(recipe_parse("a.yaml", file, sizeof file - 1, NULL, 0, &recipe), STATUS_UNAVAILABLE,
                "a.yaml:2:12: objective: 'grpo' needs");
    char unknown[] = "log.unheard_of=1";
    char *list[] = {unknown};
    CHECK_FAILS(recipe_parse("good.yaml", head, strlen(head), list, 1, &recipe), STATUS_RECIPE,
                "log.unheard_of: unknown key; the keys of log: every, tensorboard");
}

/* The first error lists all unknown keys of the file. */
static void test_unknown_keys(void)
{
    static const char text[] = "modle: {}\nmodel:\n  n_layer: 2\n  hidden_size: 8\ntrain:\n"
                               "  unheard_of: 1\n";
    static const char value[] = "seed: x\noptimizer: {lr: 1}\n";
    struct recipe recipe;
    CHECK_FAILS(recipe_parse("a.yaml", text, sizeof text - 1, NULL, 0, &recipe), STATUS_RECIPE,
                "a.yaml:1:1: modle: unknown key; did you mean 'model'?; also unknown: "
                "model.n_layer on line 3 (did you mean 'num_layers'?), train.unheard_of on line 6");
    CHECK_FAILS(recipe_parse("a.yaml", value, sizeof value - 1, NULL, 0, &recipe), STATUS_RECIPE,
                "; also unknown: optimizer.lr on line 2 (did you mean 'learning_rate'?)");
    char first[] = "train.max_stps=3", other[] = "model.n_layer=2", known[] = "seed=3";
    char *const overrides[] = {known, first, other};
    CHECK_FAILS(recipe_parse("a.yaml", value + 8, sizeof value - 9, overrides, 3, &recipe),
                STATUS_RECIPE,
                "; also unknown: train.max_stps on the command line (did you mean "
                "'train.max_steps'?), model.n_layer on the command line");
    CHECK_FAILS(recipe_parse("a.yaml", "seed: 1\n", 8, overrides, 3, &recipe), STATUS_RECIPE,
                "command line: train.max_stps: unknown key; did you mean 'train.max_steps'?; also "
                "unknown: model.n_layer on the command line (did you mean 'model.num_layers'?)");
}

/* Notions of other frameworks and of textbooks that are no keys here. */
static void test_hints(void)
{
    static const char *const expected[][2] = {
        {"model.bias=false", "model.bias: unknown key; model.architecture determines the biases"},
        {"model.positions=rotary", "model.architecture determines the positions"},
        {"model.norm=rmsnorm", "model.architecture determines the normalization"},
        {"data.split=9", "`bireme prepare --validation-fraction F` divides the data"},
        {"train.label_smoothing=0.1", "train.label_smoothing_factor"},
        {"optimizer.exp_avg_dtype=bf16", "optimizer.state_dtype: bf16 stores both moments"},
        {"optimizer.momentum=0.9", "optimizer.beta1 instead of a momentum"},
        {"model.attention_window=8", "did you mean 'model.sliding_window'?"},
        {"model.weight_tying=true", "did you mean 'model.tie_word_embeddings'?"},
        {"objective=translate", "did you mean 'seq2seq'?"},
    };
    for (int i = 0; i < COUNT(expected); i++) {
        struct recipe recipe;
        char text[64];
        snprintf(text, sizeof text, "%s", expected[i][0]);
        char *list[] = {text};
        CHECK_FAILS(recipe_parse("good.yaml", head, strlen(head), list, 1, &recipe), STATUS_RECIPE,
                    expected[i][1]);
    }
}

static void test_resolved_defaults(void)
{
    struct recipe recipe;
    CHECK_OK(recipe_parse("recipes/small.v2.yaml", head, strlen(head), NULL, 0, &recipe));
    CHECK_TEXT(recipe.run_dir, "runs/small.v2");
    CHECK_EQUAL(recipe.model.intermediate_size, 3072);
    CHECK_EQUAL(recipe.data.sequence_length, 1024);
    CHECK_EQUAL(recipe.batch.micro_size, 8);
    CHECK_EQUAL(recipe.schedule.warmup_steps, 0);
    CHECK(recipe.schedule.warmup_ratio == -1);
    CHECK_EQUAL(recipe.evaluate.every, 0);
    CHECK(recipe.schedule.name == SCHEDULE_COSINE && recipe.train.precision == PRECISION_FP32);
    parse_valid("data: {tokenizer: t, validation: v}\ntrain: {epochs: 3, precision: bf16}\n", NULL,
                0, &recipe);
    CHECK_EQUAL(recipe.evaluate.every, 250);
    CHECK(recipe.train.precision == PRECISION_BF16);
}

/* ---- the table ---- */

static void test_table(void)
{
    for (int i = 0; i < recipe_table_count; i++) {
        const struct setting *setting = &recipe_table[i];
        struct recipe recipe;
        char preset[64];
        snprintf(preset, sizeof preset, "%s", setting->default_value);
        memset(&recipe, 0x55, sizeof recipe);
        struct node node = {.kind = NODE_PLAIN, .text = preset};
        struct recipe_reader reading = {.name = "table", .recipe = &recipe};
        CHECK_OK(recipe_value_set(&reading, (struct source_location){0}, setting, &node));
        char text[RECIPE_VALUE_BYTES];
        if (setting->kind != SETTING_SOURCES) { /* defaults have the format of the output */
            recipe_value_format(setting, &recipe, false, text);
            CHECK_TEXT(text, setting->default_value);
        }
        CHECK_EQUAL(recipe_table_find(setting->key), i);
        CHECK(setting->description != NULL &&
              setting->description[strlen(setting->description) - 1] != '.');
        bool number = setting->kind == SETTING_INTEGER || setting->kind == SETTING_NUMBER;
        CHECK(!number || setting->range.max > setting->range.min);
        bool zero = strcmp(setting->key, "optimizer.max_grad_norm") == 0; /* 0 also means null */
        if (number && setting->null != NULL && !zero) { /* null is outside of the range */
            double null_value = setting->null_value;
            CHECK(setting->range.exclusive_min ? null_value <= setting->range.min
                                               : null_value < setting->range.min);
        }
    }
    for (int i = 0; i < recipe_synonym_count; i++) { /* each synonym leads to an existing name */
        bool exists = false;
        for (int k = 0; k < recipe_table_count; k++) {
            const char *key = recipe_table[k].key;
            const char *dot = strchr(key, '.');
            const char *choices = recipe_table[k].choices;
            exists = exists || strcmp(dot != NULL ? dot + 1 : key, recipe_synonyms[i].name) == 0 ||
                     (choices != NULL && strstr(choices, recipe_synonyms[i].name) != NULL);
        }
        for (int k = 1; k < recipe_section_count; k++) {
            exists = exists || strcmp(recipe_sections[k].name, recipe_synonyms[i].name) == 0;
        }
        CHECK(exists);
    }
}

static void check_name(const char *key, unsigned value, const char *name)
{
    char text[CHOICES_BYTES];
    const char *choices[CHOICES_MAX];
    const char *list = recipe_table[recipe_table_find(key)].choices;
    CHECK(value < (unsigned)recipe_value_choices(list, text, choices));
    CHECK_TEXT(choices[value], name);
}

/* The activation and the epsilon of a family, unless a recipe or a checkpoint gives them. */
static void test_family_defaults(void)
{
    static const struct {
        const char *model;
        enum recipe_activation activation;
        double epsilon;
    } cases[] = {
        {"architecture: marian", RECIPE_RELU, 1e-5},
        {"architecture: t5", RECIPE_RELU, 1e-6},
        {"architecture: t5, gated_linear_unit: true", RECIPE_GELU_TANH, 1e-6},
        {"architecture: bart", RECIPE_GELU_ERF, 1e-5},
        {"architecture: mbart", RECIPE_GELU_ERF, 1e-5},
        {"architecture: marian, activation: gelu_tanh", RECIPE_GELU_TANH, 1e-5},
        {"architecture: t5, layer_norm_epsilon: 1.0e-5, activation: silu", RECIPE_SILU, 1e-5},
        {"architecture: gpt2", RECIPE_GELU_TANH, 1e-5},
        {"architecture: gemma2", RECIPE_GELU_TANH, 1e-5},
    };
    struct recipe recipe, taken;
    char text[512];
    for (int i = 0; i < COUNT(cases); i++) {
        bool seq2seq =
            strstr(cases[i].model, "gpt2") == NULL && strstr(cases[i].model, "gemma2") == NULL;
        snprintf(text, sizeof text, "%sobjective: %s\nmodel: {%s}\n", head,
                 seq2seq ? "seq2seq" : "clm", cases[i].model);
        parse_valid(text, NULL, 0, &recipe);
        CHECK(recipe.model.activation == cases[i].activation);
        CHECK(recipe.model.layer_norm_epsilon == cases[i].epsilon);
    }
    /* A model from a checkpoint keeps the values of the checkpoint. */
    static const char old[] =
        "objective: seq2seq\nmodel: {architecture: t5, activation: gelu_tanh, "
        "layer_norm_epsilon: 1.0e-5}\n";
    snprintf(text, sizeof text, "%s%s", head, old);
    parse_valid(text, NULL, 0, &recipe);
    recipe_set_defaults(&taken);
    recipe_take_initial(&taken, &recipe);
    CHECK(taken.model.activation == RECIPE_GELU_TANH);
    CHECK(taken.model.layer_norm_epsilon == 1e-5);
}

/* The names in names.c equal the choices in the settings table. */
static void test_names(void)
{
    enum recipe_objective found;
    for (unsigned i = 0; i < RECIPE_OBJECTIVES; i++) {
        const char *name = recipe_objective_name((enum recipe_objective)i);
        check_name("objective", i, name);
        CHECK(recipe_objective_find(name, &found) && found == (enum recipe_objective)i);
    }
    CHECK(!recipe_objective_find("clmm", &found));
    for (unsigned i = 0; i < RECIPE_ARCHITECTURES; i++) {
        check_name("model.architecture", i, recipe_architecture_name((enum recipe_architecture)i));
    }
    for (unsigned i = ROTARY_PLAIN; i <= ROTARY_LONGROPE; i++) {
        check_name("model.rope_type", i, recipe_rope_type_name((enum rotary_kind)i));
    }
    check_name("model.activation", RECIPE_GELU_ERF - 1, "gelu_erf"); /* 0 is null */
    check_name("optimizer.name", RECIPE_LAMB, "lamb");
    check_name("train.activation_checkpointing", RECOMPUTE_SELECTIVE, "selective");
    check_name("train.activation_checkpointing", RECOMPUTE_FULL, "full");
    check_name("model.norm_placement", PLACEMENT_PRE - 1, "pre"); /* 0 is null */
    check_name("model.norm_placement", PLACEMENT_POST - 1, "post");
    check_name("model.norm_placement", PLACEMENT_BRANCH - 1, "branch");
    check_name("model.norm_placement", PLACEMENT_BOTH - 1, "both");
    check_name("model.position_embedding_type", POSITIONS_LEARNED - 1, "learned");
    check_name("model.position_embedding_type", POSITIONS_SINUSOIDAL - 1, "sinusoidal");
    check_name("model.position_embedding_type", POSITIONS_ROTARY - 1, "rotary");
    check_name("model.position_embedding_type", POSITIONS_NONE - 1, "none");
    check_name("model.qk_norm", QK_NORM_HEADS, "head");
    check_name("model.qk_norm", QK_NORM_ROWS, "full");
    const char *lora[] = {"adapter.type=lora", "model.init_from=x"};
    struct recipe recipe;
    parse_valid(head, lora, 2, &recipe);
    CHECK(recipe.adapter.type == ADAPTER_LORA);
    parse_valid(head, NULL, 0, &recipe);
    CHECK(recipe.adapter.type == ADAPTER_NONE);
}

/* ---- round trips ---- */

static void check_round_trip(const struct recipe *recipe)
{
    char *text = write_recipe_text(recipe);
    struct recipe reread;
    CHECK_OK(recipe_parse("resolved.yaml", text, strlen(text), NULL, 0, &reread));
    CHECK(memcmp(recipe, &reread, offsetof(struct recipe, origin)) == 0);
    free(text);
}

static void test_round_trip(void)
{
    static const char *const texts[] = {
        "data: {tokenizer: t}\ntrain: {max_steps: 10}\n",
        "data: {tokenizer: t, train: [{path: a, weight: 0.1}, {path: 'b \"c\\d', weight: "
        "1e-300}]}\n"
        "train: {epochs: 0.3333333333333333}\n",
        "data: {tokenizer: t, train: [{path: a, language: es_XX}]}\ntrain: {max_steps: 10}\n",
        "data: {tokenizer: 'null', train: '*.h5', validation: '12'}\n"
        "train: {max_steps: 999999999999}\nrun_dir: 'true'\nseed: 9000000000000000000\n",
        "data: {tokenizer: \"\\u00e9\\u4e2d \\U0001F600\", train: '- x: y # z'}\n"
        "train: {max_steps: 1, max_minutes: 0.1, wall_minutes: 0.05}\noptimizer: {max_grad_norm: "
        "null}\n",
        "model: {vocab_size: 300}\ntrain: {max_steps: 100}\nschedule: {warmup_ratio: 0.3, name: "
        "wsd}\n",
    };
    for (int i = 0; i < COUNT(texts); i++) {
        struct recipe recipe;
        parse_valid(texts[i], NULL, 0, &recipe);
        check_round_trip(&recipe);
    }
}

static const char *source_folder(void)
{
    const char *folder = getenv("BIREME_SOURCE_DIR");
    if (folder == NULL) {
        CHECK_SKIP("BIREME_SOURCE_DIR is not set");
    }
    return folder;
}

static void test_shipped_recipes(void)
{
    char pattern[FILE_PATH_BYTES];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/recipes/*.yaml", source_folder());
    CHECK(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 30);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct recipe recipe;
        CHECK_OK(recipe_read(found.gl_pathv[i], NULL, 0, &recipe));
        check_round_trip(&recipe);
    }
    globfree(&found);
}

static void test_documentation(void)
{
    char path[FILE_PATH_BYTES];
    char *committed = NULL;
    char *written = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/recipes/README.md", source_folder());
    CHECK_OK(file_read(path, 1 << 20, &committed, NULL));
    FILE *file = open_memstream(&written, &bytes);
    CHECK(file != NULL);
    recipe_document(file);
    CHECK(fclose(file) == 0);
    if (strcmp(written, committed) != 0) {
        fprintf(stderr, "recipes/README.md differs from the settings table; write it with "
                        "bireme plan --document-keys >recipes/README.md\n");
        exit(1);
    }
    free(written);
    free(committed);
}

/* ---- resume ---- */

static void test_differences(void)
{
    char text[1024];
    struct recipe saved;
    struct recipe current;
    const char *changeable[] = {"run_dir=x",          "data.train=y",       "parallel.threads=3",
                                "batch.micro_size=2", "train.max_steps=99", "train.device=cpu",
                                "evaluate.batches=1", "checkpoint.keep=9",  "log.every=5"};
    const char *fixed[] = {"model.num_layers=3", "seed=2", "optimizer.beta2=0.99"};
    parse_valid(head, NULL, 0, &saved);
    CHECK_EQUAL(recipe_differences(&saved, &saved, text, sizeof text), 0);
    CHECK(text[0] == '\0');
    const char *train[] = {"data.train=z"};
    parse_valid(head, train, 1, &saved);
    parse_valid(head, changeable, 9, &current);
    CHECK_EQUAL(recipe_differences(&saved, &current, text, sizeof text), 0);
    parse_valid(head, fixed, 3, &current);
    current.data.train_count = 1;
    current.data.train[0].weight = 1.0;
    CHECK_EQUAL(recipe_differences(&saved, &current, text, sizeof text), 3);
    CHECK_TEXT(text, "seed: checkpoint 1337, recipe 2; model.num_layers: checkpoint 12, recipe 3; "
                     "optimizer.beta2: checkpoint 0.95, recipe 0.99");
    const char *one_order[] = {"train.freeze=[embeddings, backbone]",
                               "dpo.loss_type=[sigmoid, ipo]"};
    const char *other_order[] = {"train.freeze=[backbone, embeddings]",
                                 "dpo.loss_type=[ipo, sigmoid]"};
    struct recipe unordered;
    parse_valid(head, one_order, 2, &unordered);
    parse_valid(head, other_order, 2, &current);
    CHECK_EQUAL(recipe_differences(&unordered, &current, text, sizeof text), 1);
    CHECK(strncmp(text, "dpo.loss_type: ", 15) == 0);
    CHECK(recipe_list_same_entries("c_fc, c_attn, c_fc", "c_attn, c_fc"));
    CHECK(recipe_list_same_entries("", "") && !recipe_list_same_entries("", "c_fc"));
    CHECK(!recipe_list_same_entries("c_fc", "c_attn, c_fc"));
    CHECK(!recipe_list_same_entries("c_attn, c_fc", "c_fc"));
    parse_valid(head, fixed, 3, &current);
    current.data.train_count = 1;
    current.data.train[0].weight = 1.0;
    CHECK_EQUAL(recipe_differences(&saved, &current, text, 10), 3);
    CHECK(strlen(text) == 9); /* the text is cut to the size of the buffer */
    current = saved;
    current.data.train[0].weight = 2.0;
    CHECK_EQUAL(recipe_differences(&saved, &current, text, sizeof text), 1);
    /* Defaults that follow from another setting are not listed. */
    const char *shorter[] = {"data.sequence_length=64"};
    const char *both[] = {"data.sequence_length=64", "sft.max_length=32"};
    parse_valid(head, NULL, 0, &saved);
    parse_valid(head, shorter, 1, &current);
    CHECK_EQUAL(recipe_differences(&saved, &current, text, sizeof text), 1);
    CHECK_TEXT(text, "data.sequence_length: checkpoint 1024, recipe 64");
    parse_valid(head, both, 2, &current);
    CHECK_EQUAL(recipe_differences(&saved, &current, text, sizeof text), 2);
    CHECK(strstr(text, "sft.max_length: checkpoint 1024, recipe 32") != NULL);
}

/* ---- bytes before the text ---- */

static void test_byte_order_mark(void)
{
    static const char marked[] = "\xef\xbb\xbfseed: 7\n",
                      twice[] = "\xef\xbb\xbf\xef\xbb\xbfseed: 7\n";
    static const char wrong[] = "\xef\xbb\xbfsed: 7\n", alone[] = "\xef\xbb\xbf";
    struct recipe recipe;
    static const char *const more[] = {"data.train=a", "data.tokenizer=t", "train.max_steps=1"};
    CHECK_OK(recipe_parse("m.yaml", marked, sizeof marked - 1, (char *const *)more, 3, &recipe));
    CHECK_EQUAL(recipe.seed, 7);
    CHECK_FAILS(recipe_parse("m.yaml", wrong, sizeof wrong - 1, NULL, 0, &recipe), STATUS_RECIPE,
                "m.yaml:1:1: sed: unknown key");
    CHECK_FAILS(recipe_parse("m.yaml", twice, sizeof twice - 1, NULL, 0, &recipe), STATUS_RECIPE,
                "m.yaml:");
    CHECK_FAILS(recipe_parse("m.yaml", alone, sizeof alone - 1, NULL, 0, &recipe), STATUS_RECIPE,
                "the file is empty");
}

/* ---- random changes: a recipe is refused, or written and read again ---- */

static void test_mutations(void)
{
    static const char good[] =
        "objective: clm\nmodel: {num_layers: 2, hidden_size: 64, num_heads: 4, dropout: 0.1}\n"
        "data:\n  tokenizer: t\n  train:\n    - {path: 'a', weight: 2.5}\n    - {path: b}\n"
        "  sequence_length: 64\nschedule: {name: linear, warmup_steps: 2}\ntrain:\n  max_steps: "
        "10\n";
    static const char letters[] = "[]{}:,-#&*!|>'\"%@`\n \t\x01\xff\xc2.e0123456789nulltrue~<=?";
    int accepted = 0;
    for (uint64_t round = 0; round < 4000; round++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        uint64_t key = random_key(7, RANDOM_TEST, round, 0);
        int changes = 1 + (int)random_below(key, 0, 2);
        for (int i = 0; i < changes; i++) {
            uint64_t at = random_below(key, 1 + 2 * (uint64_t)i, sizeof good - 1);
            text[at] = letters[random_below(key, 2 + 2 * (uint64_t)i, sizeof letters - 1)];
        }
        struct recipe recipe;
        status result = recipe_parse("m.yaml", text, sizeof good - 1, NULL, 0, &recipe);
        if (result == STATUS_OK) {
            check_round_trip(&recipe);
            accepted++;
        } else {
            CHECK_EQUAL(result, STATUS_RECIPE);
            CHECK(strncmp(status_pending()->text, "m.yaml", 6) == 0);
            status_clear();
        }
    }
    printf("4000 mutations, %d of them valid\n", accepted);
    CHECK(accepted > 50 && accepted < 3000);
}

/* ---- complete messages ---- */

static const char *const golden_recipes[] = {
    "model:\n  num_layers: 4\n  hidden_siz: 64\n",
    "model:\n  n_layer: 4\n",
    "learning_rate: 1.0e-3\n",
    "train: {max_steps: 1e3}\n",
    "data: {tokenizer: t}\ntrain: {max_steps: 10, epochs: 2}\n",
    "model: {hidden_size: 100}\ndata: {tokenizer: t}\ntrain: {max_steps: 1}\n",
    "model:\n\tnum_layers: 4\n",
    "a: &x 1\n",
    "model: {dropout: nan}\n",
    "model: {dropout: 1.5}\n",
    "optimizer: {name: adam}\n",
    "seed: '5'\n",
    "seed: 1\nmodel: {}\nseed: 2\n",
    "log: {tensorboard: yes}\n",
    "data: {train: [{path: a, wieght: 2}]}\n",
    "",
};

static void test_golden(bool write)
{
    char path[FILE_PATH_BYTES];
    char *written = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&written, &bytes);
    CHECK(file != NULL);
    for (int i = 0; i < COUNT(golden_recipes); i++) {
        struct recipe recipe;
        CHECK_EQUAL(parse_recipe(golden_recipes[i], &recipe), STATUS_RECIPE);
        fprintf(file, "%s\n", status_pending()->text);
        status_clear();
    }
    CHECK(fclose(file) == 0);
    snprintf(path, sizeof path, "%s/tests/golden/recipe_messages.txt", source_folder());
    if (write) {
        CHECK_OK(file_write(path, written, bytes));
    }
    char *expected = NULL;
    CHECK_OK(file_read(path, 1 << 20, &expected, NULL));
    if (strcmp(written, expected) != 0) {
        fprintf(stderr, "messages differ from %s (--write updates it):\n%s", path, written);
        exit(1);
    }
    free(expected);
    free(written);
}

int main(int argc, char **argv)
{
    test_table();
    test_names();
    test_family_defaults();
    test_corpus();
    test_bad_overrides();
    test_overrides();
    test_alternatives();
    test_missing_features();
    test_unknown_keys();
    test_hints();
    test_resolved_defaults();
    test_round_trip();
    test_differences();
    test_byte_order_mark();
    test_mutations();
    test_golden(argc > 1 && strcmp(argv[1], "--write") == 0);
    test_shipped_recipes();
    test_documentation();
    return 0;
}
