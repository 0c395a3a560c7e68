/* Fuzz target: a file of instruction templates, and a row that is rendered with one of them. */
#include "tests/fuzz/fuzz.h"
#include "trainer/cli/instruction_file.h"

const struct fuzz_limits fuzz_limits = {.bytes = 4 << 20, .factor = 1000};

static status render_row(struct instruction_templates *t, struct fuzz_part part)
{
    struct jsonl_row row = {.path = "rows.jsonl", .line = 1};
    status result = jsonl_parse((const char *)part.data, part.bytes, &row.value);
    if (result == STATUS_OK) {
        result = instruction_templates_render(t, 0, &row);
    }
    if (result == STATUS_OK) {
        fuzz_require(json_is_string(json_object_get(row.value, "prompt")) &&
                         json_is_string(json_object_get(row.value, "completion")),
                     "a rendered row has two texts");
    }
    json_decref(row.value);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct instruction_templates *t = NULL;
    struct fuzz_part file = fuzz_next_part(&data, &bytes);
    TRY(instruction_templates_create(1, false, &t));
    status result =
        instruction_file_read(fuzz_write_file("templates.yaml", file.data, file.bytes), t);
    if (result == STATUS_OK) {
        result = render_row(t, (struct fuzz_part){data, bytes});
    }
    instruction_templates_destroy(&t);
    return result;
}
