/* The frozen base model of LoRA adapters.
 *
 * A checkpoint of adapters stores the adapters alone. Its recipe stores the path of the base model
 * (adapter.base) and the fingerprint of its weights (adapter.base_weights). Opening the checkpoint
 * loads the base model from that path and fails if the fingerprint differs. */
#pragma once

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/setup/session.h"

/* adapter_base_find - set adapter.base from model.init_from, unless the recipe sets it. If
 * model.init_from is a checkpoint of adapters, their base model is used. Collective.
 *
 * Memory    init_adapters [FILE_PATH_BYTES]: the folder of the adapters that training continues
 *           with; "" for new adapters
 * Errors    those of checkpoint_resolve; STATUS_RECIPE if those adapters have other settings; the
 *           same on all ranks */
status adapter_base_find(struct recipe *recipe, struct comm *world, char *init_adapters);

/* adapter_base_load - load the frozen weights of a session with adapters, and check
 * adapter.base_weights or set it if it is empty. Collective.
 *
 * before_first_step  the base model is also compared with the session's model (names and shapes),
 *                    and a task head of the same shape is initialized from it
 * Errors    STATUS_NO_INPUT if adapter.base holds no model; STATUS_DATA if its weights have
 *           changed; agreed on all ranks */
status adapter_base_load(struct session *s, struct comm *world, bool before_first_step);

/* adapter_base_require_whole - check that a checkpoint is not one of adapters alone, for a recipe
 * without adapters.
 *
 * Errors    STATUS_RECIPE at model.init_from */
status adapter_base_require_whole(const struct recipe *recipe, const struct checkpoint_info *found);

/* adapter_base_check - compare a fingerprint with the recipe's adapter.base_weights.
 *
 * Errors    STATUS_DATA with both fingerprints */
status adapter_base_check(const struct recipe *recipe, const char *fingerprint);
