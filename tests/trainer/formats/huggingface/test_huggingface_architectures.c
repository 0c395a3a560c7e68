/* Folders of BERT, RoBERTa and Llama of transformers (make_reference.py pretrained). Hidden
 * states, logits and labels of padded batches are compared with double precision. Models that are
 * exported and imported again have the same bits. Missing, renamed and additional tensors are
 * tested for each class. */
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/setup/session.h"

/* Twice the error of a naive f32 version, which is the largest error over forty orders of its sums:
 * 5.1e-6 for the encoders' hidden states and BERT's logits, 2.5e-5 for RoBERTa's logits (the norm
 * of its head divides by small deviations). */
static const double tolerance = 1e-5, tolerance_roberta_logits = 5e-5;

enum { VALUES_MAX = 4096 };

/* ---- comparison with transformers ---- */

struct reference_batch {
    struct reference_texts texts;
    hid_t file;
    const char *name;
};

static void compare_logits(const struct reference_batch *b, struct tensor actual)
{
    compare_tensor(b->file, b->name, "logits", actual,
                   strcmp(b->name, "roberta") == 0 ? tolerance_roberta_logits : tolerance);
}

static void check_logits(struct session *s, const struct reference_batch *b,
                         struct model_input *input)
{
    static float logits[VALUES_MAX];
    int32_t rows[TEXT_ROWS_MAX];
    int64_t vocabulary = model_get_config(s->model)->vocabulary;
    struct tensor hidden, to = tensor_view(logits, DTYPE_F32, b->texts.rows, vocabulary);
    if (s->recipe.objective == OBJECTIVE_MLM) {
        for (int32_t row = 0; row < b->texts.rows; row++) {
            rows[row] = row;
        }
        input->output_rows = rows;
        input->outputs = b->texts.rows;
    }
    CHECK(b->texts.rows * vocabulary <= VALUES_MAX);
    CHECK_OK(model_forward(s->model, input, &hidden));
    CHECK_OK(model_logits(s->model, to, hidden));
    compare_logits(b, to);
    if (model_get_config(s->model)->next_sentence) {
        struct model_label_head labels = model_get_label_head(s->model, input, NULL);
        to = tensor_view(logits, DTYPE_F32, b->texts.texts, 2);
        CHECK_OK(classifier_logits(s->kernels, to, labels.hidden, labels.weight, labels.bias));
        compare_tensor(b->file, b->name, "labels", to, tolerance);
    }
}

/* Finds the file with the numbers of a folder: NAME.h5, or folders.h5 for several folders. */
static void find_numbers(const char *name, char path[FILE_PATH_BYTES])
{
    char file[64];
    snprintf(file, sizeof file, "%s.h5", name);
    join_path(path, reference, file);
    if (!file_exists(path)) {
        join_path(path, reference, "folders.h5");
    }
}

/* The context of the texts of llama_dynamic, which is longer than the context of pre-training. */
static char context_setting[] = "model.max_position_embeddings=10";
static char *const dynamic_context[] = {context_setting};

static void check_numbers(const char *name, const char *checkpoint, bool heads)
{
    bool is_dynamic = strcmp(name, "llama_dynamic") == 0;
    char path[FILE_PATH_BYTES];
    struct comm *self = NULL;
    struct session s = {0};
    struct tensor hidden;
    find_numbers(name, path);
    struct reference_batch b = {.name = name, .file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT)};
    CHECK(b.file >= 0);
    read_texts(b.file, name, "ids", "lengths", &b.texts);
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, is_dynamic ? dynamic_context : NULL,
                                     is_dynamic, b.texts.rows));
    struct model_input input = {.rows = b.texts.rows,
                                .tokens = b.texts.ids,
                                .positions = b.texts.positions,
                                .segments = b.texts.texts,
                                .cu_rows = b.texts.cu_rows,
                                .longest = b.texts.longest,
                                .token_type_ids = b.texts.segments};
    CHECK_OK(model_forward(s.model, &input, &hidden));
    compare_tensor(b.file, b.name, "hidden", hidden, tolerance);
    if (heads) {
        check_logits(&s, &b, &input);
    }
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
    free(b.texts.ids);
    H5Fclose(b.file);
}

static void test_numbers(const char *name, bool heads)
{
    static struct recipe recipe, reimported;
    char folder[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    join_path(folder, reference, name);
    CHECK_OK(import_to(folder, "a", a, &recipe));
    check_numbers(name, a, heads);
    export_and_import(a, b, &reimported);
    CHECK_EQUAL(reimported.model.next_sentence, recipe.model.next_sentence);
    check_numbers(name, b, heads); /* the settings are equal too */
}

/* ---- config.json ---- */

static const struct config_case config_cases[] = {
    {"bert", "architectures", "[\"BertForNextSentencePrediction\"]", STATUS_UNAVAILABLE,
     "BertForNextSentencePrediction is not supported; BertForPreTraining"},
    {"bert", "architectures", "[\"BertForTokenClassification\"]", STATUS_DATA,
     "classifier.weight is missing"},
    {"bert", "architectures", "[\"RobertaModel\"]", STATUS_UNAVAILABLE, "RobertaModel"},
    {"bert", "architectures", "[\"BertForMaskedLM\"]", STATUS_OK, NULL},
    {"bert", "architectures", NULL, STATUS_OK, NULL},
    {"bert", "is_decoder", "true", STATUS_UNAVAILABLE, "is_decoder: true"},
    {"bert", "hidden_act", "\"mish\"", STATUS_UNAVAILABLE, "hidden_act mish"},
    {"bert", "hidden_act", "\"relu\"", STATUS_OK, NULL},
    {"distilbert", "sinusoidal_pos_embds", "true", STATUS_UNAVAILABLE,
     "sinusoidal_pos_embds: true"},
    {"distilbert", "activation", "\"gelu\"", STATUS_OK, NULL},
    {"distilbert", "dim", "6", STATUS_DATA, "2 dim"},
    {"megatron_bert", "architectures", "[\"MegatronBertForCausalLM\"]", STATUS_UNAVAILABLE,
     "MegatronBertForCausalLM is not supported"},
    {"bert", "position_embedding_type", "\"relative_key\"", STATUS_UNAVAILABLE, "relative_key"},
    {"bert", "type_vocab_size", "4", STATUS_DATA, "type_vocab_size"},
    {"bert", "type_vocab_size", "1", STATUS_DATA, "token_type_embeddings.weight has 2 dim"},
    {"bert", "num_attention_heads", "3", STATUS_DATA, "not a multiple"},
    {"bert_bare", "architectures", "[\"BertForMaskedLM\"]", STATUS_DATA,
     "cls.predictions.transform.dense.weight is missing"},
    {"bert_untied", "tie_word_embeddings", "true", STATUS_DATA, "set tie_word_embeddings"},
    {"roberta", "pad_token_id", "0", STATUS_UNAVAILABLE, "positions that begin with row 1"},
    {"roberta", "architectures", "[\"RobertaModel\"]", STATUS_OK, NULL},
    {"llama", "rope_parameters", "{\"rope_type\": \"longrope\"}", STATUS_DATA,
     "longrope: short_factor is not a list"},
    {"llama", "rope_parameters", "{\"rope_type\": \"yarn\"}", STATUS_DATA, "yarn has no factor"},
    {"llama", "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 2, \"mscale\": 0.7}",
     STATUS_UNAVAILABLE, "yarn with mscale"},
    {"llama", "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 2, \"truncate\": false}",
     STATUS_UNAVAILABLE, "truncate: false"},
    {"llama", "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1}",
     STATUS_DATA, "model.rope_beta_slow: 1.0 is not less than"},
    {"llama", "rope_parameters", "{\"rope_type\": \"dynamic\"}", STATUS_DATA,
     "dynamic has no factor"},
    {"llama", "rope_parameters", "[]", STATUS_DATA, "rope_parameters is not an object"},
    {"llama", "rope_parameters", "{\"rope_type\": \"linear\"}", STATUS_DATA,
     "linear has no factor"},
    {"llama3", "rope_parameters",
     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4}",
     STATUS_DATA, "model.rope_low_freq_factor: 4.0 is not less than"},
    {"llama", "head_dim", "4", STATUS_DATA, "self_attn.q_proj.weight has 2 dim"},
    {"llama", "head_dim", "3", STATUS_DATA, "model.head_dim: 3 is odd for"},
    {"llama", "hidden_act", "\"gelu\"", STATUS_UNAVAILABLE, "silu is"},
    {"llama", "mlp_bias", "true", STATUS_DATA, "mlp.gate_proj.bias is missing"},
    {"llama_biases", "attention_bias", "false", STATUS_DATA, "self_attn.k_proj.bias, which"},
    {"llama", "num_key_value_heads", "3", STATUS_DATA, "does not divide"},
    {"llama", "num_key_value_heads", "4", STATUS_DATA, "self_attn.k_proj.weight has 2 dim"},
    {"llama", "tie_word_embeddings", "true", STATUS_DATA, "set tie_word_embeddings"},
    {"llama_tied", "tie_word_embeddings", "false", STATUS_DATA, "lm_head.weight is missing"},
    {"qwen2", "use_sliding_window", "true", STATUS_UNAVAILABLE, "use_sliding_window: true"},
    {"qwen2", "layer_types", "[\"full_attention\", \"sliding_attention\"]", STATUS_UNAVAILABLE,
     "layer_types: sliding_attention"},
    {"qwen2", "num_key_value_heads", NULL, STATUS_DATA, "32 does not divide"},
    {"mistral", "num_key_value_heads", NULL, STATUS_DATA, "8 does not divide"},
    {"mistral", "sliding_window", "0", STATUS_DATA, "sliding_window is 0"},
    {"mistral", "sliding_window", "null", STATUS_OK, NULL},
    {"mistral", "head_dim", NULL, STATUS_DATA, "self_attn.q_proj.weight has 2 dim"},
    {"openai_gpt", "afn", "\"relu\"", STATUS_UNAVAILABLE, "afn relu is not supported; gelu is"},
    {"openai_gpt", "architectures", "[\"OpenAIGPTDoubleHeadsModel\"]", STATUS_UNAVAILABLE,
     "OpenAIGPTDoubleHeadsModel is not supported"},
    {"qwen3", "attention_bias", "true", STATUS_DATA, "self_attn.q_proj.bias is missing"},
    {"qwen3", "head_dim", NULL, STATUS_DATA, "self_attn.q_proj.weight has 2 dim"},
    {"gemma3_text", "final_logit_softcapping", "30.0", STATUS_OK, NULL},
    {"gemma3_text", "attn_logit_softcapping", "50.0", STATUS_OK, NULL},
    {"gemma2", "attn_logit_softcapping", "-1.0", STATUS_DATA, "attn_logit_softcapping is -1"},
    {"gemma2", "final_logit_softcapping", "null", STATUS_OK, NULL},
    {"gemma2", "final_logit_softcapping", "true", STATUS_DATA, "softcapping is not a number"},
    {"gemma2", "use_bidirectional_attention", "true", STATUS_UNAVAILABLE,
     "use_bidirectional_attention: true"},
    {"gemma2", "layer_types", "[\"full_attention\", \"sliding_attention\"]", STATUS_OK, NULL},
    {"modernbert", "layer_types", "[\"sliding_attention\", \"full_attention\"]", STATUS_OK, NULL},
    {"modernbert", "layer_types", "[\"full_attention\", \"full_attention\"]", STATUS_OK, NULL},
    {"modernbert", "norm_bias", "true", STATUS_UNAVAILABLE, "norm_bias: true is not"},
    {"modernbert", "decoder_bias", "false", STATUS_UNAVAILABLE, "decoder_bias: false is not"},
    {"modernbert", "classifier_activation", "\"relu\"", STATUS_UNAVAILABLE,
     "classifier_activation relu is not supported"},
    {"modernbert", "local_attention", "0", STATUS_DATA, "local_attention is 0"},
    {"modernbert", "rope_parameters",
     "{\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 2.0}}", STATUS_UNAVAILABLE,
     "rope_type linear of modernbert"},
    {"albert", "num_hidden_groups", "2", STATUS_UNAVAILABLE, "num_hidden_groups 2 is not"},
    {"albert", "inner_group_num", "2", STATUS_UNAVAILABLE, "inner_group_num 2 is not"},
    {"albert", "num_hidden_groups", NULL, STATUS_OK, NULL},
    {"albert", "embedding_size", "9", STATUS_DATA, "9 is greater than model.hidden_size (8)"},
    {"albert", "embedding_size", "5", STATUS_DATA, "word_embeddings.weight has 2 dim"},
    {"albert", "tie_word_embeddings", "false", STATUS_DATA, "decoder.weight is missing"},
    {"albert", "architectures", "[\"AlbertForMaskedLM\"]", STATUS_OK, NULL},
    {"llama", "final_logit_softcapping", "30.0", STATUS_UNAVAILABLE,
     "final_logit_softcapping is not supported"},
    {"gemma3_text", "use_bidirectional_attention", "true", STATUS_UNAVAILABLE,
     "use_bidirectional_attention: true"},
    {"gemma3_text", "hidden_activation", "\"silu\"", STATUS_UNAVAILABLE, "silu is not supp"},
    {"gemma3_text", "layer_types", "[\"full_attention\", \"sliding_attention\"]", STATUS_OK, NULL},
    {"gemma3_text", "layer_types", "[\"full_attention\", 3]", STATUS_DATA, "not a list of strings"},
    {"gemma3_text", "layer_types", "[\"full_attention\", \"linear_attention\"]", STATUS_UNAVAILABLE,
     "layer_types: linear_attention is not"},
    {"gemma3_text", "layer_types", "[\"full_attention\"]", STATUS_DATA, "1 entries for 2 layers"},
    {"gemma3_text", "layer_types", "[\"full_attention\", \"full_attention\"]", STATUS_OK, NULL},
    {"gemma3_text", "layer_types", "[\"sliding_attention\", \"sliding_attention\"]", STATUS_OK,
     NULL},
    {"gemma3_text", "layer_types", "null", STATUS_OK, NULL},
    {"gemma3_text", "rope_parameters",
     "{\"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 2.0}}", STATUS_UNAVAILABLE,
     "rope_type linear of sliding_attention"},
    {"gemma3_text", "rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 5e5}",
     STATUS_DATA, "neither full_attention nor sliding_attention"},
    {"gemma3_text", "rope_parameters", "{\"full_attention\": 3}", STATUS_DATA,
     "full_attention is not an object"},
    {"gemma3_text", "query_pre_attn_scalar", "0", STATUS_DATA, "must be above 0"},
    {"gemma3_text", "rope_parameters", "{\"sliding_attention\": {\"rope_theta\": 0}}", STATUS_DATA,
     "sliding_attention is 0"},
    {"smollm3", "no_rope_layers", "[0, 1]", STATUS_UNAVAILABLE,
     "no_rope_layers of layer 1 is not supported"},
    {"smollm3", "no_rope_layers", "[true, false]", STATUS_DATA, "is not a list of integers"},
    {"smollm3", "no_rope_layers", "[0]", STATUS_DATA, "1 entries for 2 layers"},
    {"smollm3", "no_rope_layers", "[1, 1]", STATUS_OK, NULL},
    {"smollm3", "no_rope_layers", "null", STATUS_OK, NULL},
    {"smollm3", "use_sliding_window", "true", STATUS_UNAVAILABLE, "use_sliding_window: true"},
    {"granite", "architectures", "[\"GraniteForSequenceClassification\"]", STATUS_UNAVAILABLE,
     "GraniteForSequenceClassification is not supported"},
    {"granite", "logits_scaling", "-1.0", STATUS_DATA, "logits_scaling"},
    {"olmo", "clip_qkv", "8.0", STATUS_UNAVAILABLE, "clip_qkv is not supported; only null is"},
    {"olmo", "clip_qkv", "null", STATUS_OK, NULL},
    {"olmo2", "attention_bias", "true", STATUS_DATA, "self_attn.q_proj.bias is missing"},
    {"olmo2", "num_key_value_heads", "1", STATUS_DATA, "self_attn.k_proj.weight has 2 dim"},
    {"phi3", "rope_parameters", "{\"type\": \"su\"}", STATUS_UNAVAILABLE,
     "rope_type su is not supported"},
    {"phi3", "rope_parameters",
     "{\"rope_type\": \"longrope\", \"short_factor\": [1, 2, 3], \"long_factor\": [1, \"x\"]}",
     STATUS_DATA, "entry 1 of long_factor is not a number above 0"},
    {"phi3_long", "rope_parameters",
     "{\"rope_type\": \"longrope\", \"short_factor\": [1, 2], \"long_factor\": [1, 2]}",
     STATUS_DATA, "model.rope_short_factor: 2 numbers; rope_type longrope requires 3"},
    {"phi3", "rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 2.0}", STATUS_UNAVAILABLE,
     "rope_type linear of phi3 is not supported; default and longrope are"},
    {"phi3", "rope_parameters", "{\"partial_rotary_factor\": 0.3}", STATUS_DATA,
     "partial_rotary_factor: 0.3 does not give an even number of columns"},
    {"stablelm", "qk_layernorm", "true", STATUS_UNAVAILABLE, "qk_layernorm: true is not"},
    {"stablelm", "use_parallel_residual", "true", STATUS_UNAVAILABLE,
     "use_parallel_residual: true is not"},
    {"stablelm", "use_qkv_bias", "false", STATUS_DATA, "_proj.bias, which the stablelm"},
    {"llama", "partial_rotary_factor", "0.5", STATUS_UNAVAILABLE,
     "partial_rotary_factor 0.5 of llama is not supported"},
    {"qwen2", "model_type", "\"llama\"", STATUS_UNAVAILABLE, "Qwen2ForCausalLM is not supported"},
};

static void test_config(void)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    check_config_cases(config_cases, COUNT(config_cases));
    /* The setting of transformers before version 5. */
    copy_model("gemma3_text", folder);
    set_config(folder, "rope_parameters", NULL);
    set_config(folder, "layer_types", NULL);
    set_config(folder, "sliding_window_pattern", "2");
    set_config(folder, "rope_theta", "500.0");
    set_config(folder, "rope_local_base_freq", "50.0");
    CHECK_OK(import_to(folder, "older_gemma", output, &recipe));
    CHECK(recipe.model.rope_theta == 500 && recipe.model.rope_local_base_freq == 50);
    CHECK(recipe.model.sliding_window_pattern == 2);
    copy_model("llama", folder);
    set_config(folder, "rope_parameters", NULL);
    set_config(folder, "rope_theta", "500.0");
    CHECK_OK(import_to(folder, "older", output, &recipe));
    check_numbers("llama", output, true);
}

/* ---- renamed, missing and additional tensors ---- */

static void test_names(void)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES], second[FILE_PATH_BYTES];

    /* bert-base-uncased has these names of norms, and has the pooler although its class is
     * BertForMaskedLM. */
    static const struct renaming old_names[] = {
        {"bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"},
        {"bert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.beta"},
        {"cls.predictions.bias", "cls.predictions.decoder.bias"},
        {"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
    };
    copy_model("bert", folder);
    set_config(folder, "architectures", "[\"BertForMaskedLM\"]");
    rewrite_tensors(folder, old_names, 4,
                    &(struct new_tensor){"bert.embeddings.position_ids", 1, {8, 1}}, NULL);
    CHECK_OK(import_to(folder, "early", output, &recipe));
    CHECK(recipe.model.next_sentence);
    check_numbers("bert", output, true);

    copy_model("bert", folder); /* BertForMaskedLM without the pooler */
    static const struct renaming removed[] = {{"bert.pooler.dense.weight", NULL},
                                              {"bert.pooler.dense.bias", NULL},
                                              {"cls.seq_relationship.weight", NULL},
                                              {"cls.seq_relationship.bias", NULL}};
    rewrite_tensors(folder, removed, 4, NULL, NULL);
    check_refused(folder, STATUS_DATA, "bert.pooler.dense.weight is missing");
    set_config(folder, "architectures", "[\"BertForMaskedLM\"]");
    CHECK_OK(import_to(folder, "plain", output, &recipe));
    CHECK(!recipe.model.next_sentence);

    copy_model("roberta", folder);
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"roberta.pooler.dense.bias", 1, {8, 1}},
                    NULL);
    CHECK_OK(import_to(folder, "a", output, &recipe));
    check_numbers("roberta", output, true);
    copy_model("roberta", folder);
    rewrite_tensors(folder, NULL, 0, &(struct new_tensor){"classifier.dense.bias", 1, {8, 1}},
                    NULL);
    check_refused(folder, STATUS_DATA,
                  "holds classifier.dense.bias, which the roberta model of config.json");

    /* A missing head gets the same random values in each import. The file has the other weights. */
    join_path(folder, reference, "bert_bare");
    CHECK_OK(import_to(folder, "a", output, &recipe));
    CHECK_OK(import_to(folder, "b", second, &recipe));
    CHECK(has_same_weights(output, second));
    check_numbers("bert_bare", output, false);
}

/* Import and export copy a vocab.txt. The export has the settings that AutoTokenizer reads. */
static void test_tokenizer(void)
{
    static struct recipe recipe;
    static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n";
    char folder[FILE_PATH_BYTES], checkpoint[FILE_PATH_BYTES], out[FILE_PATH_BYTES];
    char path[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    copy_model("bert", folder);
    join_path(path, folder, "vocab.txt");
    CHECK_OK(file_write(path, vocab, sizeof vocab - 1));
    CHECK_OK(import_to(folder, "a", checkpoint, &recipe));
    join_path(out, root, "out");
    CHECK_OK(file_remove_tree(out));
    CHECK_OK(huggingface_export(checkpoint, out, SAFETENSORS_F32, false, &summary));
    CHECK(summary.tokenizer);
    join_path(path, out, "tokenizer.json");
    CHECK(file_exists(path));
    join_path(path, out, "tokenizer_config.json");
    json_t *config = json_load_file(path, 0, NULL);
    CHECK(config != NULL);
    CHECK_TEXT(json_string_value(json_object_get(config, "mask_token")), "[MASK]");
    const json_t *names = json_object_get(config, "model_input_names");
    CHECK_TEXT(json_string_value(json_array_get(names, 1)), "token_type_ids");
    json_decref(config);
    join_path(path, out, "config.json");
    config = json_load_file(path, 0, NULL);
    CHECK(config != NULL && json_integer_value(json_object_get(config, "pad_token_id")) == 0);
    json_decref(config);
}

int main(void)
{
    huggingface_folder_start();
    h5file_init();
    test_numbers("bert", true);
    test_numbers("bert_untied", true);
    test_numbers("bert_bare", false);
    test_numbers("roberta", true);
    test_numbers("distilbert", true);
    test_numbers("megatron_bert", true);
    test_numbers("modernbert", true);
    test_numbers("albert", true);
    test_numbers("llama", true);
    test_numbers("llama_tied", true);
    test_numbers("llama3", true);
    test_numbers("llama_linear", true);
    test_numbers("llama_yarn", true);
    test_numbers("llama_dynamic", true);
    test_numbers("qwen2", true);
    test_numbers("mistral", true);
    test_numbers("qwen3", true);
    test_numbers("llama_biases", true);
    test_numbers("openai_gpt", true);
    test_numbers("gemma2", true);
    test_numbers("gemma3_text", true);
    test_numbers("gemma3_layers", true);
    test_numbers("smollm3", true);
    test_numbers("granite", true);
    test_numbers("olmo", true);
    test_numbers("olmo2", true);
    test_numbers("phi3", true);
    test_numbers("phi3_long", true);
    test_numbers("phi3_short", true);
    test_numbers("stablelm", true);
    test_config();
    test_names();
    test_tokenizer();
    CHECK_OK(file_remove_tree(root));
    printf("folders of encoders and Llamas: numbers and bits are equal\n");
    return 0;
}
