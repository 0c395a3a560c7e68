/* The settings of a recipe as JSON, for `plan --json` and `inspect --json`. */
#pragma once

#include <jansson.h>

#include "trainer/recipe/recipe.h"

/* recipe_json_build - create a JSON object with the sections and keys of the recipe's YAML file.
 *
 * Memory    the caller frees the object with json_decref() */
json_t *recipe_json_build(const struct recipe *recipe);
