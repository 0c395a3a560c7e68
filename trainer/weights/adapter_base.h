/* The frozen model that adapters are trained beside.
 *
 * A checkpoint of adapters holds these alone. Its recipe says where the model lies that they belong to
 * (adapter.base) and what its weights are known by (adapter.base_weights): whoever opens the checkpoint loads the
 * model from there, and refuses another. */
#pragma once

#include "trainer/setup/session.h"

/* base_model_find - adapter.base from model.init_from, where the recipe does not say it: that itself, or, where it
 * is a checkpoint of adapters, its base. Collective.
 *
 * carried   [FILE_PATH_BYTES] the folder of the adapters that training goes on with; "": fresh ones
 * Errors    of checkpoint_choose; STATUS_RECIPE where those adapters have other settings; the same on all ranks */
status base_model_find(struct recipe *recipe, struct comm *world, char *carried);

/* base_model_load - the frozen weights of a session with adapters; adapter.base_weights is checked, or filled in.
 * Collective.
 *
 * fresh     the head of a task begins with the one that the model has, where it has one of its shape; names and shapes
 *           of all else must be the same
 * Errors    STATUS_NO_INPUT where there is no model in adapter.base; STATUS_DATA where its weights are others;
 *           agreed */
status base_model_load(struct session *s, struct comm *world, bool fresh);

/* base_model_require_whole - for a recipe without adapters.
 *
 * Errors    STATUS_RECIPE at model.init_from where the checkpoint holds adapters alone */
status base_model_require_whole(const struct recipe *recipe, const struct checkpoint_found *found);

/* What weights are known by: sums over all elements, each mixed with its place, so that the order, and so the layout, do
 * not matter. number: of the parameter among the model's own. */
struct base_model_sums {
    uint64_t sums[2];
};

/* base_model_add_block - a box of a parameter, as its file has it. */
void base_model_add_block(struct base_model_sums *sums, int number,
                          const struct model_parameter *parameter, const int64_t offset[2],
                          const int64_t shape[2], const float *block);
void base_model_text(const struct base_model_sums *sums, char text[HASH_TEXT_BYTES]);

/* base_model_check - whether these weights are those of the recipe's adapter.base_weights.
 *
 * Errors    STATUS_DATA naming both */
status base_model_check(const struct recipe *recipe, const char *digest);

/* base_model_digest - what weights are known by: of the model, or of its adapters too. The layout does not matter. Of a
 * model beside adapters the recipe says it. Collective over the ranks that share the model. */
status base_model_digest(const struct session *s, bool adapters, char text[HASH_TEXT_BYTES]);
