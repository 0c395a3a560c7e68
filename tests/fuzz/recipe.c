/* Fuzz target: recipes. A recipe that is accepted reads back equal from its text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/recipe/recipe.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 64};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static struct recipe recipe, again;
    char *text = NULL, differences[256];
    size_t text_bytes = 0;
    TRY(recipe_parse("recipe.yaml", (const char *)data, bytes, NULL, 0, &recipe));
    FILE *file = open_memstream(&text, &text_bytes);
    status result = recipe_write(&recipe, file);
    fclose(file);
    if (result == STATUS_OK) {
        result = recipe_parse("recipe.yaml", text, text_bytes, NULL, 0, &again);
    }
    free(text);
    fuzz_require(result == STATUS_OK, "a recipe that was written can be read");
    fuzz_require(recipe_differences(&recipe, &again, differences, sizeof differences) == 0,
                 "a recipe that was written reads back equal");
    return STATUS_OK;
}
