/* The text of a recipe. */
#pragma once

#include <stdio.h>

#include "tests/check.h"
#include "trainer/recipe/recipe.h"

/* write_recipe_text - return the text that recipe_write writes. The caller frees it. */
static inline char *write_recipe_text(const struct recipe *recipe)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    CHECK(file != NULL);
    CHECK_OK(recipe_write(recipe, file));
    CHECK(fclose(file) == 0);
    return text;
}
