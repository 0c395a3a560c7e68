/* A recipe's settings as JSON, for `plan --json` and `inspect --json`. */
#pragma once

#include <jansson.h>

#include "trainer/recipe/recipe.h"

/* settings_json - an object of sections like the YAML; the caller's. */
json_t *settings_json(const struct recipe *recipe);
