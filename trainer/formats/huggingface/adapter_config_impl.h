/* Reads peft's adapter_config.json. Unsupported settings are refused by name. Private to
 * trainer/formats/huggingface. */
#pragma once

#include "trainer/formats/huggingface/architectures.h"
#include "trainer/formats/huggingface/config_impl.h"

struct adapter_config {
    struct config_document file;
    int64_t rank;
    double alpha, dropout;
    bool rslora;
    const char *base_path; /* base_model_name_or_path; NULL: none */
};

/* adapter_config_read - read folder/adapter_config.json.
 *
 * Unknown settings, and settings of other adapter types, must be null, false or empty.
 *
 * Memory    the caller frees *out with adapter_config_free(), after an error too
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, key and reason; STATUS_UNAVAILABLE naming an
 *           unsupported setting */
status adapter_config_read(const char *folder, struct adapter_config *out);

/* adapter_config_free - free the document. */
void adapter_config_free(struct adapter_config *config);

/* adapter_config_find_objective - find the objective of the adapters.
 *
 * It follows from task_type or, without a task type, from the class of the base model. Otherwise it
 * is the pretraining objective of the architecture. A sequence head with one output is a reward
 * head for a decoder and a regression head for an encoder.
 *
 * Units     outputs: number of outputs of the sequence head
 * Errors    STATUS_UNAVAILABLE naming the task type */
status adapter_config_find_objective(const struct adapter_config *config,
                                     const struct huggingface_architecture *architecture,
                                     int64_t outputs, enum recipe_objective *out);

/* adapter_config_is_target - set *out to whether target_modules selects a module and
 * exclude_modules does not.
 *
 * Both settings are a list of names or name endings, or a pattern for the whole name.
 * target_modules may also be all-linear.
 *
 * Errors    STATUS_DATA for an invalid pattern */
status adapter_config_is_target(const struct adapter_config *config, const char *module, bool *out);
