/* The frozen base model of LoRA adapters.
 *
 * A checkpoint of adapters stores the adapters alone. Its recipe stores the path of the base model
 * (adapter.base) and the fingerprint of its weights (adapter.base_weights). Opening the checkpoint
 * loads the base model from that path and fails if the fingerprint differs. */
#pragma once

#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/setup/session.h"

/* adapter_base_find - set adapter.base from model.init_from, unless the recipe sets it.
 *
 * If model.init_from is a checkpoint of adapters, their base model is used.
 *
 * Memory    init_adapters [FILE_PATH_BYTES] receives the folder of the adapters to continue
 *           training with; "" for new adapters
 * Order     collective
 * Errors    as checkpoint_resolve; STATUS_RECIPE if those adapters have other settings; the
 *           same on all ranks */
status adapter_base_find(struct recipe *recipe, struct comm *world, char *init_adapters);

/* adapter_base_load - load the frozen weights of a session with adapters, and check
 * adapter.base_weights, or set it if it is empty.
 *
 * If before_first_step is true, names and shapes of the base model are also compared with the
 * session's model. A task head of the same shape is then initialized from the base model.
 *
 * Order     collective
 * Errors    STATUS_NO_INPUT if adapter.base holds no model; STATUS_DATA if its weights have
 *           changed; the same on all ranks */
status adapter_base_load(struct session *s, struct comm *world, bool before_first_step);

/* adapter_base_require_full_model - check that a checkpoint contains a full model, not adapters
 * alone, if the recipe has no adapters.
 *
 * Errors    STATUS_RECIPE at model.init_from */
status adapter_base_require_full_model(const struct recipe *recipe,
                                       const struct checkpoint_info *found);

/* adapter_base_check - compare a fingerprint with the recipe's adapter.base_weights.
 *
 * Errors    STATUS_DATA with both fingerprints */
status adapter_base_check(const struct recipe *recipe, const char *fingerprint);
