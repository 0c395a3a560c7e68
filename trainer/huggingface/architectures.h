/* The kinds of model folders that are read and written: under which names each keeps its settings and its tensors.
 *
 * A tensor has the name that trainer/model/architecture.c gives it; what else a file may call it stands here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "trainer/model/model.h"

enum {
    PRETRAINED_CLASSES = 4,
    PRETRAINED_KEYS = 16,
    PRETRAINED_SWITCHES = 4,
    PRETRAINED_ALIASES = 2,
    PRETRAINED_BUFFERS = 3,
    PRETRAINED_UNUSED = 2
};

/* A number of config.json that is a setting of the section `model`. */
struct pretrained_key {
    const char *name;
    bool integer;   /* then int64_t above 0, else double */
    bool optional;  /* null leaves the setting to the recipe's own default */
    size_t setting; /* its place in struct recipe */
    double preset;  /* what transformers takes where the file is silent */
};

/* Settings that change the mathematics, and the one value that is computed here. */
struct pretrained_switch {
    const char *name;
    bool wanted;
};

/* A class of transformers, and which heads its files must hold. */
struct pretrained_class {
    const char *name;
    bool predictions; /* of the vocabulary, beyond a matrix that is the embedding */
    bool labels;      /* whether one sentence follows the other; of a task: its own */
};

struct pretrained_family {
    const char *type; /* model_type; the recipe's model.architecture */
    const char *stem; /* of its classes' names */
    const char *objective;
    const char *prefix; /* of all names but the heads'; the class without heads leaves it out */
    const char *spans_prefix; /* instead of it in ...ForQuestionAnswering; NULL: the same */
    struct pretrained_class classes[PRETRAINED_CLASSES]; /* up to an empty one */
    struct pretrained_key keys[PRETRAINED_KEYS];
    struct pretrained_switch switches[PRETRAINED_SWITCHES];
    const char *activation_key, *activation; /* and its preset */
    bool tied;                               /* preset of tie_word_embeddings */
    /* Another name of the embedding where the output matrix is tied to it, then of the output's bias. */
    struct {
        const char *theirs, *ours;
    } aliases[PRETRAINED_ALIASES];
    const char *buffers[PRETRAINED_BUFFERS]; /* ends of names of what is no weight */
    const char
        *unused[PRETRAINED_UNUSED]; /* weights that no setting here can use: told, not taken */
};

/* pretrained_family - of a model_type, or of model.architecture; NULL: none. */
const struct pretrained_family *pretrained_family(const char *type);

/* pretrained_types - all of them, for messages: "gpt2, bert and ...". */
const char *pretrained_types(void);

/* pretrained_class - NULL: not one of the family's. */
const struct pretrained_class *pretrained_class(const struct pretrained_family *family,
                                                const char *name);

/* pretrained_task_class - the class of an objective with a head of its own is the family's stem and this; NULL: it has none.
 *
 * pretrained_task_objective - the first objective of a class; NULL: it is none of the family's tasks'. */
const char *pretrained_task_class(const struct pretrained_family *family, const char *objective);
const char *pretrained_task_objective(const struct pretrained_family *family, const char *name);

/* pretrained_prefix - what the names begin with in the class of an objective. */
const char *pretrained_prefix(const struct pretrained_family *family, const char *objective);

/* pretrained_bare - a name as the class without heads has it. */
const char *pretrained_bare(const struct pretrained_family *family, const char *name);

/* pretrained_renamed - what early files call a name (LayerNorm.gamma and .beta) into out; false: the same. */
bool pretrained_renamed(const char *name, char out[MODEL_NAME_BYTES]);

/* pretrained_may_lack - whether the heads that these classes must hold leave a parameter out. */
bool pretrained_may_lack(const struct pretrained_class *promised,
                         const struct model_parameter *parameter);

/* pretrained_shape - of a parameter in the file, in Hugging Face's orientation; a vector is a column. */
void pretrained_shape(const struct model_parameter *parameter, int64_t shape[2]);
