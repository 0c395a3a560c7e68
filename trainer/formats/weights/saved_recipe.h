/* The recipe in the manifest of a checkpoint. */
#pragma once

#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/recipe/recipe.h"

/* saved_recipe_parse - parse the recipe of a checkpoint, with overrides as on the command line. If
 * another version of Bireme wrote the checkpoint, an error in its recipe names both versions.
 *
 * Errors    as recipe_parse */
status saved_recipe_parse(const struct checkpoint_info *found, char *const *overrides, int count,
                          struct recipe *out);
