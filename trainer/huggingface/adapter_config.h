/* peft's adapter_config.json: what of it an adapter here can be, and what is refused by name. */
#pragma once

#include <jansson.h>

#include "base/file.h"
#include "trainer/huggingface/architectures.h"

struct pretrained_adapter_settings {
    char path[FILE_PATH_BYTES];
    json_t *document;
    int64_t rank;
    double alpha, dropout;
    bool rslora;
    const char *base; /* base_model_name_or_path; NULL: none */
};

/* pretrained_adapter_settings_read - of folder/adapter_config.json. Settings that are unknown, or of another kind of
 * adapter, must be null, false or empty.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, key and reason; STATUS_UNAVAILABLE naming what this version lacks */
status pretrained_adapter_settings_read(const char *folder,
                                        struct pretrained_adapter_settings *out);
void pretrained_adapter_settings_free(struct pretrained_adapter_settings *settings);

/* pretrained_adapter_settings_objective - by task_type, or, where peft has none for it, by the class; else the family's own
 * objective. One output of a whole text is a reward of a decoder, and a number of an encoder.
 *
 * outputs   of the head for whole texts
 * Errors    STATUS_UNAVAILABLE naming the type of task */
status pretrained_adapter_settings_objective(const struct pretrained_adapter_settings *settings,
                                             const struct pretrained_family *family,
                                             int64_t outputs, const char **out);

/* pretrained_adapter_settings_targets - whether target_modules, without exclude_modules, has a module of a block: its
 * name or the end of one, a pattern for all of it, or all-linear.
 *
 * Errors    STATUS_DATA for a pattern that cannot be read */
status pretrained_adapter_settings_targets(const struct pretrained_adapter_settings *settings,
                                           const char *module, bool *out);
