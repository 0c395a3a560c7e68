/* Settings of rotary positions. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/text.h"
#include "trainer/recipe/settings.h"

int64_t recipe_rotary_width(const struct recipe *recipe)
{
    double factor = recipe->model.partial_rotary_factor;
    return factor > 0 ? (int64_t)((double)recipe->model.head_dim * factor) : recipe->model.head_dim;
}

bool recipe_uses_long_factors(const struct recipe *recipe)
{
    return recipe->model.max_position_embeddings > recipe->model.rope_original_positions;
}

int64_t recipe_rope_factors(const char *list, double out[RECIPE_ROPE_FACTORS_MAX])
{
    char number[TEXT_NUMBER_BYTES];
    int64_t count = 0;
    for (const char *at = list; recipe_list_next(&at, number, sizeof number); count++) {
        if (count < RECIPE_ROPE_FACTORS_MAX) {
            out[count] = strtod(number, NULL);
        }
    }
    return count;
}

status recipe_check_longrope(const struct recipe *recipe)
{
    const struct {
        const char *key, *list;
    } lists[] = {{"model.rope_short_factor", recipe->model.rope_short_factor},
                 {"model.rope_long_factor", recipe->model.rope_long_factor}};
    double factors[RECIPE_ROPE_FACTORS_MAX];
    int64_t pairs = recipe_rotary_width(recipe) / 2;
    for (int i = 0; i < 2 && recipe->model.rope_type == ROTARY_LONGROPE; i++) {
        int64_t count = recipe_rope_factors(lists[i].list, factors);
        if (count != pairs) {
            return recipe_raise(recipe, STATUS_RECIPE, lists[i].key,
                                "%" PRId64 " numbers; rope_type longrope requires %" PRId64
                                ", one for each pair of rotated columns of a head",
                                count, pairs);
        }
    }
    return STATUS_OK;
}
