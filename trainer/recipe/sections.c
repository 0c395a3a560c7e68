/* The sections of a recipe, in the order of the settings table (table.c), and the search in this
 * table. */
#include <string.h>

#include "base/memory.h"
#include "trainer/recipe/settings.h"

const struct section recipe_sections[] = {
    {"", "Top level"},
    {"model", "Model architecture and size. Names follow Hugging Face's config.json where one "
              "exists."},
    {"adapter",
     "LoRA adapters, for every objective. Names and defaults follow "
     "peft. A checkpoint stores only the adapters and the task head (modules_to_save in peft), "
     "with the path and the fingerprint of the base model. `bireme export` merges the adapters "
     "into the weights."},
    {"data", "Tokenizer and shards. Paths are relative to the working directory."},
    {"sft", "Supervised fine-tuning. Names and defaults follow TRL."},
    {"batch", "Batch sizes."},
    {"mlm", "Masking for objective mlm. Every epoch draws a new mask. NVIDIA's shards are an "
            "exception: their masks are stored in the files."},
    {"denoise",
     "Corruption for objective denoise. Every epoch draws a new one. Names follow T5 and, "
     "for bart, fairseq."},
    {"parallel", "Parallelism. mpirun or srun sets the numbers of ranks and nodes."},
    {"optimizer", "Optimizer."},
    {"schedule", "Learning rate schedule."},
    {"train", "Length of the training, numerics and device."},
    {"fp8",
     "8-bit matrix multiplications (`train.precision: fp8`). Embeddings, norms, attention and "
     "heads stay in bf16. GPUs need compute capability 8.9 or newer. Names follow "
     "Transformer Engine and torchtitan."},
    {"dpo", "Preference optimization (`objective: dpo`). Names and defaults follow TRL. The "
            "reference model is `model.init_from`."},
    {"reward", "Reward modeling (`objective: reward`) on the same pairs. Names follow TRL. "
               "`dpo.shared_prefix` applies, too."},
    {"answer",
     "Extractive question answering (`objective: answer`), for evaluations and `bireme answer`."},
    {"evaluate",
     "Evaluation on the validation set, early stopping and selection of the best checkpoint."},
    {"generate", "Samples of the model during training. Names follow transformers."},
    {"checkpoint", "Checkpoints."},
    {"log", "Logging."},
};

const int recipe_section_count = COUNT(recipe_sections);

_Static_assert(COUNT(recipe_sections) <= SECTIONS_MAX, "raise SECTIONS_MAX");

int recipe_table_find(const char *key)
{
    for (int i = 0; i < recipe_table_count; i++) {
        if (strcmp(recipe_table[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}
