/* Beam search against generate() of transformers (make_reference.py beams): all returned
 * hypotheses, their order and their scores. Repetition penalty, stop strings and clean texts. */
#include "base/memory.h"
#include "tests/trainer/inference/small_model.h"
#include "tests/trainer/reference_file.h"
#include "trainer/inference/generate.h"
#include "trainer/model/cache.h"

struct fixture {
    hid_t file;
    struct small_model small;
    int32_t end;
};

static void open_fixture(struct fixture *f)
{
    f->file = reference_open("beams.h5");
    f->end = (int32_t)reference_attribute(f->file, "end");
    struct model_config config = {
        .architecture = "gpt2",
        .layers = (int64_t)reference_attribute(f->file, "layers"),
        .width = (int64_t)reference_attribute(f->file, "width"),
        .heads = (int64_t)reference_attribute(f->file, "heads"),
        .inner = (int64_t)reference_attribute(f->file, "inner"),
        .positions = (int64_t)reference_attribute(f->file, "positions"),
        .vocabulary = f->end + 1,
        .activation = ACTIVATION_GELU_TANH,
        .norm_epsilon = 1e-5f,
        .tied = true,
    };
    small_model_create(&config, 256, &f->small);
    CHECK_EQUAL(tokenizer_eos(f->small.tokenizer), f->end);
    int count = 0;
    const struct model_parameter *parameters = model_parameters(f->small.model, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        float *tensor = reference_tensor(f->file, "weights", p);
        memcpy(model_weights(f->small.model) + p->first, tensor,
               (size_t)(p->whole_rows * p->columns) * sizeof *tensor);
        free(tensor);
    }
    CHECK_OK(model_sync_bf16(f->small.model));
}

static void close_fixture(struct fixture *f)
{
    small_model_destroy(&f->small);
    H5Fclose(f->file);
}

/* Compares a hypothesis. expected: ids with the end token, padded with -1 to `room` ids. */
static void check_hypothesis(const struct fixture *f, const struct generate_output *text,
                             const int32_t *expected, int64_t room, double score, double penalty)
{
    int64_t count = 0;
    while (count < room && expected[count] >= 0) {
        count++;
    }
    bool ended = count > 0 && expected[count - 1] == f->end;
    CHECK_EQUAL(text->ended, ended);
    CHECK_EQUAL(text->tokens.count, count - ended);
    CHECK(memcmp(text->tokens.ids, expected, (size_t)text->tokens.count * sizeof *expected) == 0);
    CHECK_NEAR(text->log_probability / pow((double)count, penalty), score, 1e-4);
}

/* Computes the scores of the next token as in beam search of transformers: log-probabilities first,
 * then the repetition penalty. */
static void compute_next_scores(struct fixture *f, const struct token_list *list, double penalty,
                                float *scores)
{
    int64_t vocabulary = f->end + 1;
    struct model_cache *cache = NULL;
    struct tensor hidden = {0};
    double sum = 0;
    CHECK_OK(model_cache_create(f->small.model, 1, list->count, 0, &cache));
    CHECK_OK(model_forward_cached(f->small.model, cache, list->ids, &list->count, &hidden));
    CHECK_OK(classifier_logits(f->small.kernels, tensor_view(scores, DTYPE_F32, 1, vocabulary),
                               tensor_rows(hidden, list->count - 1, 1),
                               tensor_rows(model_lm_head(f->small.model), 0, vocabulary),
                               tensor_absent()));
    CHECK_OK(model_cache_destroy(&cache));
    for (int64_t i = 0; i < vocabulary; i++) {
        sum += exp(scores[i]);
    }
    for (int64_t i = 0; i < vocabulary; i++) {
        bool seen = false;
        for (int64_t k = 0; k < list->count; k++) {
            seen = seen || list->ids[k] == i;
        }
        scores[i] = (float)((scores[i] - log(sum)) * (seen ? penalty : 1));
    }
}

static int compare_descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Checks the log-probability of every hypothesis against the sum over its tokens. With one new
 * token the hypotheses must be the best tokens. */
static void test_repetition_penalty(struct fixture *f, const struct token_list *prompt,
                                    double penalty, int64_t new_tokens)
{
    enum { BEAMS = 4 };
    struct generate_output texts[BEAMS] = {0};
    const struct generate_options options = {
        .sampler = {.temperature = 1, .top_p = 1, .repetition_penalty = penalty},
        .num_beams = BEAMS,
        .num_samples = BEAMS,
        .length_penalty = 1,
        .max_new_tokens = new_tokens,
        .use_cache = true,
    };
    float scores[512];
    int32_t ids[64];
    CHECK_OK(generate_run(f->small.kernels, f->small.model, f->small.tokenizer, prompt, 1, &options,
                          NULL, NULL, texts));
    for (int k = 0; k < BEAMS; k++) {
        struct token_list list = {ids, prompt->count, 64};
        double sum = 0;
        memcpy(ids, prompt->ids, (size_t)prompt->count * sizeof *ids);
        for (int64_t i = 0; i < texts[k].tokens.count + texts[k].ended; i++) {
            bool is_end = i == texts[k].tokens.count;
            compute_next_scores(f, &list, penalty, scores);
            ids[list.count] = is_end ? f->end : texts[k].tokens.ids[i];
            sum += scores[ids[list.count++]];
        }
        CHECK_NEAR(texts[k].log_probability, sum, 1e-4);
        if (new_tokens == 1) {
            qsort(scores, (size_t)f->end + 1, sizeof *scores, compare_descending);
            CHECK_NEAR(sum, scores[k], 1e-4);
        }
        token_list_free(&texts[k].tokens);
    }
}

/* The stop string that begins first cuts the text, in any order of the options. */
static void test_stop_strings(const struct fixture *f)
{
    static const struct {
        const char *text, *stops[2], *expected;
    } cases[] = {
        {" they they", {"y", "they"}, " "},  {" they they", {"they", "y"}, " "},
        {" they they", {"y ", "hey"}, " t"}, {" they they", {"x", "z"}, " they they"},
        {"aab", {"ab", "aab"}, ""},          {"b", {"b", "ab"}, ""},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct generate_options options = {.stops = {cases[i].stops[0], cases[i].stops[1]},
                                           .stop_count = 2};
        struct generate_output output = {0};
        char *text = NULL;
        size_t bytes = 0;
        CHECK_OK(tokenizer_encode(f->small.tokenizer, cases[i].text, strlen(cases[i].text), false,
                                  &output.tokens));
        CHECK_OK(generate_decode(f->small.tokenizer, &options, &output, &text, &bytes));
        CHECK(strcmp(text, cases[i].expected) == 0);
        free(text);
        token_list_free(&output.tokens);
    }
}

/* Makes a tokenizer with capital letters, U+2581 and byte tokens, as many as the model has ids. */
static void make_byte_tokenizer(struct tokenizer **out)
{
    char folder[] = "/tmp/bireme-generate-XXXXXX", path[FILE_PATH_BYTES], text[16384];
    size_t used = 0;
    CHECK(mkdtemp(folder) != NULL);
    used += (size_t)snprintf(text, sizeof text,
                             "{\"added_tokens\":[],\"decoder\":{\"type\":"
                             "\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                             "\"pattern\":{\"String\":\"\u2581\"},\"content\":"
                             "\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
                             "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
                             "\"start\":1,\"stop\":0}]},\"model\":{\"type\":"
                             "\"BPE\",\"byte_fallback\":true,\"merges\":[],"
                             "\"vocab\":{\"\u2581\":256");
    for (int id = 0; id < 256; id++) {
        bool letter = id >= 'A' && id <= 'Z';
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 letter ? ",\"%c\":%d" : ",\"<0x%02X>\":%d", id, id);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "}}}");
    CHECK_OK(file_join(path, folder, "tokenizer.json"));
    CHECK_OK(file_write(path, text, used));
    CHECK_OK(tokenizer_open(folder, out));
    CHECK_OK(file_remove_tree(folder));
}

struct streamed {
    char text[4096];
    size_t bytes;
};

static void collect_text(void *user, const char *text, size_t bytes)
{
    struct streamed *s = user;
    CHECK(s->bytes + bytes <= sizeof s->text);
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
}

/* The streamed text is the text of all tokens. Byte tokens are streamed only when their run ends: a
 * later byte can make the bytes before it invalid. */
static void test_streamed_bytes(const struct fixture *f, const struct token_list *prompt)
{
    struct tokenizer *t = NULL;
    bool has_replacement = false;
    make_byte_tokenizer(&t);
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct generate_options options = {
            .sampler = {.temperature = 3, .top_p = 1, .repetition_penalty = 1, .seed = seed},
            .num_beams = 1,
            .num_samples = 1,
            .max_new_tokens = 12,
            .use_cache = true,
        };
        struct generate_output output = {0};
        struct streamed s = {0};
        char *text = NULL;
        size_t bytes = 0;
        CHECK_OK(generate_run(f->small.kernels, f->small.model, t, prompt, 1, &options,
                              collect_text, &s, &output));
        CHECK_OK(generate_decode(t, &options, &output, &text, &bytes));
        CHECK(s.bytes == bytes && memcmp(s.text, text, bytes) == 0);
        has_replacement = has_replacement || strstr(text, "\xef\xbf\xbd") != NULL;
        free(text);
        token_list_free(&output.tokens);
    }
    CHECK(has_replacement);
    struct generate_options options = {0};
    struct generate_output output = {.tokens = {(int32_t[]){256, 'A'}, 2, 2}};
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(generate_decode(t, &options, &output, &text, &bytes));
    CHECK_TEXT(text, " A"); /* the space at the beginning of a continuation is kept */
    free(text);
    CHECK_OK(tokenizer_destroy(&t));
}

/* Bytes that are not UTF-8, a part of a character at the end, and NULs. */
static void test_clean_text(void)
{
    static const char text[] = "a\0\xC3\xA9\xFF\xF0\x9F\x98\x80\0\xE2\x82";
    char *clean = NULL;
    CHECK_OK(generate_clean_text(text, sizeof text - 1, &clean));
    CHECK_TEXT(clean, "a \xC3\xA9\xEF\xBF\xBD\xF0\x9F\x98\x80 \xEF\xBF\xBD\xEF\xBF\xBD");
    free(clean);
}

int main(void)
{
    struct fixture f = {0};
    int64_t prompt_ids = 0, case_numbers = 0, all_ids = 0, all_scores = 0;
    open_fixture(&f);
    int32_t *prompts = reference_dataset(f.file, "prompts", H5T_NATIVE_INT32, 4, &prompt_ids);
    double *cases = reference_dataset(f.file, "cases", H5T_NATIVE_DOUBLE, 8, &case_numbers);
    int32_t *ids = reference_dataset(f.file, "ids", H5T_NATIVE_INT32, 4, &all_ids);
    double *scores = reference_dataset(f.file, "scores", H5T_NATIVE_DOUBLE, 8, &all_scores);
    const int64_t length = 5, count = case_numbers / 3, prompt_count = prompt_ids / length;
    const int64_t width = all_scores / count / prompt_count, room = all_ids / all_scores;
    for (int64_t c = 0; c < count; c++) {
        struct generate_options options = {
            .sampler = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
            .num_beams = (int64_t)cases[3 * c],
            .length_penalty = cases[3 * c + 1],
            .max_new_tokens = (int64_t)cases[3 * c + 2],
            .use_cache = true,
        };
        for (int64_t p = 0; p < prompt_count; p++) {
            struct token_list prompt = {prompts + p * length, length, length};
            int64_t at = (c * prompt_count + p) * width;
            for (int64_t samples = 1; samples <= options.num_beams; samples++) {
                struct generate_output texts[16] = {0};
                options.num_samples = samples;
                CHECK_OK(generate_run(f.small.kernels, f.small.model, f.small.tokenizer, &prompt, 1,
                                      &options, NULL, NULL, texts));
                for (int64_t k = 0; k < samples; k++) {
                    check_hypothesis(&f, &texts[k], ids + (at + k) * room, room, scores[at + k],
                                     options.length_penalty);
                    token_list_free(&texts[k].tokens);
                }
            }
        }
    }
    for (int64_t p = 0; p < prompt_count; p++) {
        const struct token_list prompt = {prompts + p * length, length, length};
        test_repetition_penalty(&f, &prompt, 1.7, 1);
        test_repetition_penalty(&f, &prompt, 1.7, 12);
        test_repetition_penalty(&f, &prompt, 0.8, 12);
    }
    test_clean_text();
    test_stop_strings(&f);
    const struct token_list first_prompt = {prompts, length, length};
    test_streamed_bytes(&f, &first_prompt);
    free(prompts);
    free(cases);
    free(ids);
    free(scores);
    close_fixture(&f);
    return 0;
}
