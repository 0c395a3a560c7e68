/* Adapter folders of peft (reference_adapters.py) on imported models. Hidden states and the
 * outputs of a head are the same as in peft, in double precision. Exported adapters have the same
 * bits when they are imported again. Unsupported adapters and adapters of other models are
 * refused. */
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/setup/session.h"

static const double tolerance = 1e-5;

static void clear_output(char out[FILE_PATH_BYTES], const char *name)
{
    join_path(out, root, name);
    CHECK_OK(file_remove_tree(out));
}

static void import_base(const char *name, char out[FILE_PATH_BYTES])
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES];
    join_path(folder, reference, name);
    CHECK_OK(import_to(folder, "base", out, &recipe));
}

static status import_adapter(const char *folder, const char *base, const char *name,
                             char output[FILE_PATH_BYTES], struct recipe *recipe)
{
    struct huggingface_summary summary;
    clear_output(output, name);
    return huggingface_import_adapter(folder, base, output, recipe, &summary);
}

/* ---- comparison with peft ---- */

static void check_outputs(struct session *s, hid_t file, const char *name,
                          const struct reference_texts *t, struct model_input *input)
{
    float outputs[TEXT_ROWS_MAX];
    struct tensor hidden,
        to = tensor_view(outputs, DTYPE_F32, t->texts, s->recipe.model.num_labels);
    input->output_rows = t->cu_rows;
    input->outputs = t->texts;
    CHECK_OK(model_forward(s->model, input, &hidden));
    struct model_label_head labels = model_get_label_head(s->model, input, NULL);
    CHECK_OK(classifier_logits(s->kernels, to, hidden, labels.weight, labels.bias));
    compare_tensor(file, name, "outputs", to, tolerance);
}

static void check_numbers(const char *name, const char *checkpoint)
{
    char path[FILE_PATH_BYTES];
    struct comm *self = NULL;
    struct session s = {0};
    struct tensor hidden;
    join_path(path, reference, "adapters.h5");
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    struct reference_texts t;
    CHECK(file >= 0);
    read_texts(file, name, "ids", "lengths", &t);
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, NULL, 0, t.rows));
    struct model_input input = {.rows = t.rows,
                                .tokens = t.ids,
                                .positions = t.positions,
                                .segments = t.texts,
                                .cu_rows = t.cu_rows,
                                .longest = t.longest,
                                .token_type_ids = t.segments};
    CHECK_OK(model_forward(s.model, &input, &hidden));
    compare_tensor(file, name, "hidden", hidden, tolerance);
    if (s.recipe.objective == OBJECTIVE_CLASSIFY) {
        check_outputs(&s, file, name, &t, &input);
    }
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
    free(t.ids);
    H5Fclose(file);
}

static void test_numbers(const char *name, const char *model, const char *objective,
                         const char *targets)
{
    static struct recipe recipe, reimported;
    char folder[FILE_PATH_BYTES], base[FILE_PATH_BYTES], a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    char out[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    printf("%s\n", name);
    import_base(model, base);
    join_path(folder, reference, name);
    CHECK(huggingface_is_adapter_folder(folder));
    CHECK_OK(import_adapter(folder, base, "a", a, &recipe));
    CHECK_TEXT(recipe_objective_name(recipe.objective), objective);
    CHECK_TEXT(recipe.adapter.targets, targets);
    check_numbers(name, a);
    clear_output(out, "out");
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, true, &summary));
    CHECK_OK(import_adapter(out, NULL, "b", b, &reimported)); /* the export names its base model */
    CHECK(has_same_weights(a, b));
    CHECK_TEXT(reimported.adapter.targets, recipe.adapter.targets);
    CHECK(reimported.adapter.rslora == recipe.adapter.rslora);
    check_numbers(name, b);
    clear_output(out, "out");
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, false, &summary)); /* merged weights */
}

static const char config_name[] = "adapter_config.json";

/* peft's all-linear includes the dense layer of a masked language model's head. Adapters of all
 * matrices in the blocks are therefore exported as a list of names. */
static void test_exported_targets(void)
{
    static const char *const names[] = {"q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"};
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], base[FILE_PATH_BYTES], a[FILE_PATH_BYTES], out[FILE_PATH_BYTES];
    char path[FILE_PATH_BYTES];
    struct huggingface_summary summary;
    import_base("distilbert", base);
    join_path(folder, reference, "distilbert_lora");
    CHECK_OK(import_adapter(folder, base, "a", a, &recipe));
    clear_output(out, "out");
    CHECK_OK(huggingface_export(a, out, SAFETENSORS_F32, true, &summary));
    join_path(path, out, config_name);
    json_t *document = json_load_file(path, 0, NULL);
    const json_t *list = json_object_get(document, "target_modules");
    CHECK_EQUAL(json_array_size(list), COUNT(names));
    for (int i = 0; i < COUNT(names); i++) {
        CHECK_TEXT(json_string_value(json_array_get(list, (size_t)i)), names[i]);
    }
    json_decref(document);
}

/* ---- refused folders ---- */

/* Removes the tensors from the block with this name on. */
static void remove_blocks(const char *folder, const char *block)
{
    char path[FILE_PATH_BYTES], *data = NULL;
    size_t bytes;
    uint64_t length, end = UINT64_MAX;
    const char *name;
    json_t *tensor;
    void *next;
    join_path(path, folder, "adapter_model.safetensors");
    CHECK_OK(file_read(path, 1 << 20, &data, &bytes));
    memcpy(&length, data, sizeof length);
    json_t *header = json_loadb(data + sizeof length, length, 0, NULL);
    json_object_foreach_safe(header, next, name, tensor)
    {
        json_t *begin = json_array_get(json_object_get(tensor, "data_offsets"), 0);
        if (strstr(name, block) != NULL) {
            uint64_t first = (uint64_t)json_integer_value(begin);
            end = first < end ? first : end;
            json_object_del(header, name);
        }
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t text_bytes = strlen(text);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && end != UINT64_MAX);
    fwrite(&text_bytes, sizeof text_bytes, 1, file);
    fwrite(text, 1, text_bytes, file);
    fwrite(data + sizeof length + length, 1, end, file);
    CHECK(fclose(file) == 0);
    json_decref(header);
    free(text);
    free(data);
}

static void test_refusals(void)
{
    static const struct {
        const char *key, *value;
        status code;
        const char *text;
    } cases[] = {
        {"peft_type", "\"IA3\"", STATUS_UNAVAILABLE, "peft_type IA3"},
        {"use_dora", "true", STATUS_UNAVAILABLE, "use_dora"},
        {"bias", "\"all\"", STATUS_UNAVAILABLE, "bias all"},
        {"rank_pattern", "{\"c_attn\": 4}", STATUS_UNAVAILABLE, "rank_pattern"},
        {"layers_to_transform", "[0]", STATUS_UNAVAILABLE, "layers_to_transform"},
        {"init_lora_weights", "\"pissa\"", STATUS_UNAVAILABLE, "init_lora_weights pissa"},
        {"trainable_token_indices", "[1, 2]", STATUS_UNAVAILABLE, "trainable_token_indices"},
        {"of_tomorrow", "1", STATUS_UNAVAILABLE, "of_tomorrow"},
        {"task_type", "\"OF_TOMORROW\"", STATUS_UNAVAILABLE, "task_type OF_TOMORROW"},
        {"r", "0", STATUS_DATA, "r is 0"},
        {"r", "3", STATUS_DATA, "lora_A.weight has 2 dimensions, [2, 8]"},
        {"r", "\"2\"", STATUS_DATA, "r is not a number"},
        {"lora_alpha", "-1", STATUS_DATA, "adapter.alpha"},
        {"target_modules", "[\"c_attn\"]", STATUS_DATA,
         "holds an adapter of transformer.h.0.mlp.c_proj"},
        {"target_modules", "[\"c_attn\", \"c_proj\"]", STATUS_DATA, "lacks an adapter of"},
        {"target_modules", "\"(c_attn\"", STATUS_DATA,
         "the pattern (c_attn is not a valid regular"},
        {"target_modules", "7", STATUS_DATA, "target_modules is neither a string nor a list"},
    };
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], base[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    char path[FILE_PATH_BYTES];
    import_base("whole", base);
    for (int i = 0; i < COUNT(cases); i++) {
        copy_model("gpt2_lora", folder);
        set_json(folder, config_name, cases[i].key, cases[i].value);
        CHECK_FAILS(import_adapter(folder, base, "refused", output, &recipe), cases[i].code,
                    cases[i].text);
        CHECK(!file_exists(output));
    }
    copy_model("gpt2_lora", folder);
    remove_blocks(folder, ".h.1.");
    set_json(folder, config_name, "target_modules", "\".*h.0.*(c_attn|mlp.c_proj)\"");
    CHECK_FAILS(import_adapter(folder, base, "refused", output, &recipe), STATUS_DATA,
                "adapters in only some blocks are not supported");
    copy_model("gpt2_lora", folder);
    CHECK_FAILS(import_adapter(folder, NULL, "refused", output, &recipe), STATUS_USAGE,
                "base_model_name_or_path: models/whole");
    CHECK_OK(import_adapter(folder, base, "a", output, &recipe));
    char adapters[FILE_PATH_BYTES];
    memcpy(adapters, output, sizeof adapters);
    CHECK_FAILS(import_adapter(folder, adapters, "refused", output, &recipe), STATUS_DATA,
                "contains only adapters");
    join_path(path, folder, "adapter_model.safetensors");
    CHECK(truncate(path, 1000) == 0);
    CHECK_FAILS(import_adapter(folder, base, "refused", output, &recipe), STATUS_DATA,
                "adapter_model.safetensors");
    /* a head, although the task_type that requires one is missing */
    import_base("bert", base);
    copy_model("bert_lora", folder);
    set_json(folder, config_name, "task_type", NULL);
    CHECK_FAILS(import_adapter(folder, base, "refused", output, &recipe), STATUS_UNAVAILABLE,
                "base_model.model.classifier");
}

int main(void)
{
    huggingface_folder_start();
    h5file_init();
    test_numbers("gpt2_lora", "whole", "clm", "c_attn, mlp.c_proj");
    test_numbers("llama_lora", "llama", "clm", "all-linear");
    test_numbers("roberta_lora", "roberta", "mlm", "query, key, output.dense");
    test_numbers("bert_lora", "bert", "classify", "query, value");
    test_numbers("embed_lora", "bert", "embed", "query");
    test_numbers("phi3_lora", "phi3", "clm", "qkv_proj, gate_up_proj");
    test_numbers("openai_gpt_lora", "openai_gpt", "clm", "c_attn, mlp.c_proj");
    test_numbers("gemma2_lora", "gemma2", "clm", "q_proj, o_proj, down_proj");
    test_numbers("qwen3_lora", "qwen3", "clm", "all-linear");
    test_numbers("modernbert_lora", "modernbert", "mlm", "Wqkv, Wi");
    test_numbers("distilbert_lora", "distilbert", "mlm", "all-linear");
    test_exported_targets();
    test_refusals();
    CHECK_OK(file_remove_tree(root));
    return 0;
}
