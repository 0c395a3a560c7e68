/* Folders of encoder-decoder models of transformers (make_reference.py seq2seq). Logits of
 * padded batches are compared with double precision. Models that are exported and imported again
 * have the same bits. Adapters of peft have its logits. */
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/setup/session.h"

enum { VALUES_MAX = 4096, VOCABULARY = 61, WIDTH = 24, TABLE_ELEMENTS = VOCABULARY * WIDTH };

static const double tolerance = 1e-5; /* of the largest logit */

static void check_logits_of(const char *file_name, const char *name, const char *checkpoint)
{
    static float logits[VALUES_MAX];
    char path[FILE_PATH_BYTES];
    struct comm *self = NULL;
    struct session s = {0};
    struct reference_texts source, target;
    int64_t count;
    join_path(path, reference, file_name);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0);
    read_texts(file, name, "source_ids", "source_lengths", &source);
    read_texts(file, name, "target_ids", "target_lengths", &target);
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, NULL, 0, TEXT_ROWS_MAX));
    struct model_input input = {.rows = target.rows,
                                .tokens = target.ids,
                                .positions = target.positions,
                                .segments = target.texts,
                                .cu_rows = target.cu_rows,
                                .longest = target.longest,
                                .source = {.rows = source.rows,
                                           .tokens = source.ids,
                                           .positions = source.positions,
                                           .cu_rows = source.cu_rows,
                                           .longest = source.longest}};
    struct tensor hidden;
    int64_t vocabulary = model_get_config(s.model)->vocabulary;
    CHECK(target.rows * vocabulary <= VALUES_MAX);
    CHECK_OK(model_forward(s.model, &input, &hidden));
    CHECK_OK(classifier_logits(s.kernels, tensor_view(logits, DTYPE_F32, target.rows, vocabulary),
                               hidden, model_lm_head(s.model), model_lm_head_bias(s.model)));
    double *expected = read_values(file, name, "logits", H5T_NATIVE_DOUBLE, 8, &count);
    CHECK_EQUAL(count, target.rows * vocabulary);
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(expected[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(logits[i], expected[i], tolerance * largest);
    }
    free(expected);
    free(source.ids);
    free(target.ids);
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
    H5Fclose(file);
}

static void check_logits(const char *name, const char *checkpoint)
{
    check_logits_of("seq2seq.h5", name, checkpoint);
}

static void test_folder(const char *name)
{
    static struct recipe recipe, reimported;
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    join_path(folder, reference, name);
    CHECK_OK(import_to(folder, "a", a, &recipe));
    CHECK_EQUAL(recipe.objective, OBJECTIVE_SEQ2SEQ);
    CHECK_EQUAL(recipe.model.decoder_start_token_id, 60);
    check_logits(name, a);
    export_and_import(a, b, &reimported);
    CHECK_EQUAL(reimported.model.tie_word_embeddings, recipe.model.tie_word_embeddings);
    CHECK_EQUAL(reimported.model.vocab_size, recipe.model.vocab_size);
    CHECK_EQUAL(reimported.model.decoder_vocab_size, recipe.model.decoder_vocab_size);
    CHECK_EQUAL(reimported.model.share_encoder_decoder_embeddings,
                recipe.model.share_encoder_decoder_embeddings);
    check_logits(name, b); /* the settings are equal too */
}

static void test_config(void)
{
    static const struct config_case cases[] = {
        {"t5", "architectures", "[\"T5EncoderModel\"]", STATUS_UNAVAILABLE,
         "T5EncoderModel is not supported; T5ForConditionalGeneration and T5Model are"},
        {"t5", "feed_forward_proj", "\"gated-gelu\"", STATUS_DATA,
         "layer.1.DenseReluDense.wi_0.weight is missing"},
        {"t5", "feed_forward_proj", "\"mish\"", STATUS_UNAVAILABLE, "feed_forward_proj mish"},
        {"t5_gated", "feed_forward_proj", "\"gated-relu\"", STATUS_DATA,
         "model.activation: relu conflicts with model.gated_linear_unit"},
        {"t5_gated", "scale_decoder_outputs", "true", STATUS_DATA, "set tie_word_embeddings"},
        {"t5", "d_kv", NULL, STATUS_DATA, "layer.0.SelfAttention.q.weight has 2 dim"},
        {"t5", "relative_attention_num_buckets", "7", STATUS_DATA, "7 is odd for"},
        {"t5", "decoder_start_token_id", "-2", STATUS_DATA, "decoder_start_token_id is -2"},
        {"t5", "decoder_start_token_id", "61", STATUS_DATA,
         "decoder_start_token_id is 61; the token ids of the model are 0 to 60"},
        {"marian", "decoder_start_token_id", NULL, STATUS_DATA, "decoder_start_token_id is 58100"},
        {"t5", "num_decoder_layers", "null", STATUS_OK, NULL},
        {"t5", "model_type", "\"umt5\"", STATUS_UNAVAILABLE, "model_type umt5 is not supported"},
        {"bart", "scale_embedding", "true", STATUS_UNAVAILABLE, "scale_embedding: true"},
        {"bart", "decoder_ffn_dim", "41", STATUS_UNAVAILABLE,
         "encoder_ffn_dim is 40 and decoder_ffn_dim is 41"},
        {"marian", "share_encoder_decoder_embeddings", "false", STATUS_DATA,
         "model.encoder.embed_tokens.weight is missing"},
        {"marian_separate", "decoder_vocab_size", "62", STATUS_DATA,
         "model.decoder.embed_tokens.weight"},
        {"marian_separate", "vocab_size", "61", STATUS_DATA, "model.encoder.embed_tokens.weight"},
        {"marian_separate", "decoder_vocab_size", "60", STATUS_DATA,
         "decoder_start_token_id is 60; the token ids of the model are 0 to 59"},
        {"marian_separate", "decoder_vocab_size", "1", STATUS_DATA,
         "decoder_vocab_size is 1; it must be from 2 to 16777216"},
        {"marian_separate", "share_encoder_decoder_embeddings", NULL, STATUS_DATA,
         "model.shared.weight is missing"},
        {"bart", "activation_dropout", "0.2", STATUS_OK, NULL},
        {"bart", "activation_dropout", "1", STATUS_DATA, "activation_dropout: 1.0 must be in"},
        {"marian", "tie_word_embeddings", "false", STATUS_UNAVAILABLE,
         "tie_word_embeddings: false is not supported"},
        {"marian", "decoder_attention_heads", "2", STATUS_UNAVAILABLE,
         "encoder_attention_heads is 4 and decoder_attention_heads is 2"},
        {"mbart", "decoder_start_token_id", "null", STATUS_OK, NULL},
        {"mbart", "decoder_start_token_id", "61", STATUS_DATA,
         "decoder_start_token_id is 61; the token ids of the model are 0 to 60"},
        {"bart", "decoder_layers", "1", STATUS_DATA, "model.decoder.layers.1."},
    };
    check_config_cases(cases, COUNT(cases));
}

static void read_table(const char *folder, const char *name, float values[TABLE_ELEMENTS])
{
    int64_t rows, columns;
    float *table = read_tensor(folder, name, &rows, &columns);
    CHECK_EQUAL(rows * columns, TABLE_ELEMENTS);
    memcpy(values, table, TABLE_ELEMENTS * sizeof *values);
    free(table);
}

/* Files may contain a token table of a stack. This table must equal the shared one. */
static void test_stack_tables(void)
{
    static const char *const cases[][3] = {
        {"t5", "shared.weight", "encoder.embed_tokens.weight"},
        {"bart", "model.shared.weight", "model.decoder.embed_tokens.weight"},
        {"mbart", "model.shared.weight", "model.encoder.embed_tokens.weight"},
        {"marian", "model.shared.weight", "model.decoder.embed_tokens.weight"},
    };
    static struct recipe recipe;
    static float table[TABLE_ELEMENTS];
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    for (int i = 0; i < COUNT(cases); i++) {
        const struct new_tensor added = {cases[i][2], 2, {VOCABULARY, WIDTH}};
        copy_model(cases[i][0], folder);
        read_table(folder, cases[i][1], table);
        rewrite_tensors(folder, NULL, 0, &added, table);
        CHECK_OK(import_to(folder, "tables", output, &recipe));
        check_logits(cases[i][0], output);
        copy_model(cases[i][0], folder);
        table[TABLE_ELEMENTS - 1] += 1;
        rewrite_tensors(folder, NULL, 0, &added, table);
        check_refused(folder, STATUS_UNAVAILABLE, "shared.weight; separate token tables of a ");
    }
}

/* For a BART with an output matrix apart from the token table, transformers reads a table for each
 * stack. The exported file contains these tables. */
static void test_untied(void)
{
    static float shared[TABLE_ELEMENTS], table[TABLE_ELEMENTS];
    char folder[FILE_PATH_BYTES];
    test_folder("bart_untied");
    join_path(folder, root, "out");
    read_table(folder, "model.shared.weight", shared);
    read_table(folder, "model.encoder.embed_tokens.weight", table);
    CHECK(memcmp(shared, table, sizeof table) == 0);
    read_table(folder, "model.decoder.embed_tokens.weight", table);
    CHECK(memcmp(shared, table, sizeof table) == 0);
    read_table(folder, "lm_head.weight", table);
    CHECK(memcmp(shared, table, sizeof table) != 0);
}

/* Keys and names of older versions of transformers, and of mT5. */
static void test_older_folders(void)
{
    static struct recipe recipe;
    static float table[TABLE_ELEMENTS];
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    copy_model("t5_gated", folder); /* T5 1.1 */
    set_config(folder, "scale_decoder_outputs", NULL);
    set_config(folder, "tie_word_embeddings", "false");
    read_table(folder, "shared.weight", table);
    rewrite_tensors(folder, NULL, 0,
                    &(struct new_tensor){"encoder.embed_tokens.weight", 2, {VOCABULARY, WIDTH}},
                    table);
    CHECK_OK(import_to(folder, "older", output, &recipe));
    check_logits("t5_gated", output);
    set_config(folder, "model_type", "\"mt5\"");
    set_config(folder, "architectures", "[\"MT5ForConditionalGeneration\"]");
    set_config(folder, "tie_word_embeddings", NULL);
    CHECK_OK(import_to(folder, "mt5", output, &recipe));
    check_logits("t5_gated", output);

    copy_model("t5", folder); /* T5 1.0 */
    set_config(folder, "scale_decoder_outputs", NULL);
    set_config(folder, "tie_word_embeddings", NULL);
    CHECK_OK(import_to(folder, "older", output, &recipe));
    check_logits("t5", output);

    copy_model("bart", folder);
    float bias[61] = {[7] = 0.5f};
    static const struct renaming removed[] = {{"final_logits_bias", NULL}};
    rewrite_tensors(folder, removed, 1, &(struct new_tensor){"final_logits_bias", 2, {1, 61}},
                    bias);
    CHECK(!recipe.model.final_logits_bias);
    CHECK_OK(import_to(folder, "biased", output, &recipe));
    CHECK(recipe.model.final_logits_bias);
}

/* T5 1.1 without lm_head.weight: the token table predicts the tokens, and the
 * hidden states are not scaled. The key of older versions is no contradiction. */
static void test_missing_output_matrix(void)
{
    static const struct renaming removed[] = {{"lm_head.weight", NULL}};
    static struct recipe recipe, reimported;
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    copy_model("t5_gated", folder);
    rewrite_tensors(folder, removed, 1, NULL, NULL);
    CHECK_OK(import_to(folder, "a", a, &recipe));
    CHECK(recipe.model.tie_word_embeddings);
    CHECK_EQUAL(recipe.model.scale_decoder_outputs, RECIPE_FALSE);
    check_logits("t5_gated_tied", a);
    export_and_import(a, b, &reimported);
    CHECK(reimported.model.tie_word_embeddings);
    CHECK_EQUAL(reimported.model.scale_decoder_outputs, RECIPE_FALSE);
    check_logits("t5_gated_tied", b);
    set_config(folder, "scale_decoder_outputs", NULL);
    set_config(folder, "tie_word_embeddings", "false");
    CHECK_OK(import_to(folder, "older", a, &recipe));
    CHECK(recipe.model.tie_word_embeddings);
    check_logits("t5_gated_tied", a);
}

/* Imports a folder of peft for a model, and exports and imports it again. */
static void test_adapter(const char *name, const char *model, const char *targets)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], base[FILE_PATH_BYTES], out[FILE_PATH_BYTES];
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    join_path(folder, reference, model);
    CHECK_OK(import_to(folder, "base", base, &recipe));
    join_path(folder, reference, name);
    join_path(a, root, "adapter");
    join_path(b, root, "adapter_again");
    join_path(out, root, "out");
    CHECK_OK(file_remove_tree(a));
    CHECK_OK(file_remove_tree(b));
    CHECK_OK(file_remove_tree(out));
    CHECK_OK(huggingface_import_adapter(folder, base, a, &recipe, &summary));
    CHECK_EQUAL(recipe.objective, OBJECTIVE_SEQ2SEQ);
    CHECK_TEXT(recipe.adapter.targets, targets);
    check_logits_of("seq2seq_lora.h5", name, a);
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, true, &summary));
    CHECK_OK(huggingface_import_adapter(out, base, b, &recipe, &summary));
    CHECK_TEXT(recipe.adapter.targets, targets);
    CHECK(has_same_weights(a, b));
    CHECK_OK(file_remove_tree(out));
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, false, &summary)); /* merged */
    CHECK_OK(import_to(out, "merged", b, &recipe));
    check_logits_of("seq2seq_lora.h5", name, b);
}

int main(void)
{
    huggingface_folder_start();
    h5file_init();
    test_folder("t5");
    test_folder("t5_gated");
    test_folder("bart");
    test_folder("mbart");
    test_folder("marian");
    test_folder("marian_separate");
    test_adapter("t5_lora", "t5_gated", "all-linear");
    test_adapter("bart_lora", "bart", "q_proj, v_proj");
    test_adapter("marian_lora", "marian", "fc1, encoder_attn.q_proj, encoder_attn.v_proj");
    test_config();
    test_older_folders();
    test_missing_output_matrix();
    test_stack_tables();
    test_untied();
    CHECK_OK(file_remove_tree(root));
    printf("folders of encoder-decoders: logits and bits are equal\n");
    return 0;
}
