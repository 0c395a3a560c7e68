/* The one settings table: parsing, checks, `bireme plan`, the resolved recipe and recipes/README.md
 * are all made from it. Order: as in the resolved recipe. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "trainer/recipe/settings.h"

#define FIELD(f) offsetof(struct recipe, f), sizeof(((struct recipe *)0)->f)
#define WITHIN(a, b) .range = {.least = (a), .most = (b)}
#define ABOVE(a, b) .range = {.least = (a), .most = (b), .above = true}
#define BELOW(a, b) .range = {.least = (a), .most = (b), .below = true}

#define STEPS_MAX 1e12
#define MINUTES_MAX 1e6

/* clang-format off */
const struct setting recipe_table[] = {
    {"objective", SETTING_CHOICE, FIELD(objective), "clm", .choices = "clm|mlm|sft|dpo|reward|classify|regress|classify_tokens|answer|choose|embed",
     .meaning = "what is learnt; clm: predict the next token; mlm: masked tokens, and whether a sentence follows; sft: rows of prompts and answers; dpo: which of two answers is better; reward: a number for an answer, the higher the better; classify: the label of a text or a pair of texts; regress: a number for it; classify_tokens: a label for each word; answer: where in a text the answer to a question stands; choose: the right one of several texts; embed: vectors, alike for texts that belong together"},
    {"run_dir", SETTING_PATH, FIELD(run_dir), "null", .null = "runs/ and the recipe's file name", .resume = true,
     .meaning = "folder of checkpoints, metrics and the resolved recipe"},
    {"seed", SETTING_INTEGER, FIELD(seed), "1337", WITHIN(0, 9.2e18),
     .meaning = "of initial weights, data order and dropout"},

    {"model.architecture", SETTING_CHOICE, FIELD(model.architecture), "gpt2", .choices = "gpt2|bert|roberta|llama",
     .meaning = "gpt2 for clm; bert or roberta (no next_sentence, positions from row 2 on) for mlm; llama for clm: RMS norms, rotary positions, SwiGLU, no biases. Each has the heads of classify and what comes behind it"},
    {"model.num_layers", SETTING_INTEGER, FIELD(model.num_layers), "12", WITHIN(1, 1000),
     .meaning = "transformer blocks"},
    {"model.hidden_size", SETTING_INTEGER, FIELD(model.hidden_size), "768", WITHIN(1, 131072),
     .meaning = "width of the residual stream; a multiple of num_heads"},
    {"model.num_heads", SETTING_INTEGER, FIELD(model.num_heads), "12", WITHIN(1, 1024),
     .meaning = "attention heads"},
    {"model.num_kv_heads", SETTING_INTEGER, FIELD(model.num_kv_heads), "null", .null = "num_heads", WITHIN(1, 1024),
     .meaning = "llama: key-value heads, each shared by num_heads / num_kv_heads heads"},
    {"model.rope_theta", SETTING_NUMBER, FIELD(model.rope_theta), "10000.0", ABOVE(1, 1e12),
     .meaning = "llama: base of its rotary positions"},
    {"model.rope_type", SETTING_CHOICE, FIELD(model.rope_type), "default", .choices = "default|linear|llama3",
     .meaning = "llama: how rotary positions are slowed for longer texts; linear: all by rope_factor; llama3: the slow ones, as in Llama 3.1 and later"},
    {"model.rope_factor", SETTING_NUMBER, FIELD(model.rope_factor), "1.0", WITHIN(1, 1e6),
     .meaning = "linear, llama3: how much slower"},
    {"model.rope_low_freq_factor", SETTING_NUMBER, FIELD(model.rope_low_freq_factor), "1.0", WITHIN(0, 1e6),
     .meaning = "llama3: what turns so often within rope_original_positions, or less, is slowed wholly"},
    {"model.rope_high_freq_factor", SETTING_NUMBER, FIELD(model.rope_high_freq_factor), "4.0", ABOVE(0, 1e6),
     .meaning = "llama3: what turns so often, or more, is not slowed"},
    {"model.rope_original_positions", SETTING_INTEGER, FIELD(model.rope_original_positions), "null", .null = "max_position_embeddings", WITHIN(1, 1048576),
     .meaning = "llama3: positions before the texts became longer (original_max_position_embeddings)"},
    {"model.intermediate_size", SETTING_INTEGER, FIELD(model.intermediate_size), "null", .null = "4 times hidden_size", WITHIN(1, 1048576),
     .meaning = "inner width of the feed-forward layers"},
    {"model.max_position_embeddings", SETTING_INTEGER, FIELD(model.max_position_embeddings), "1024", WITHIN(1, 1048576),
     .meaning = "longest sequence that the model can take"},
    {"model.vocab_size", SETTING_INTEGER, FIELD(model.vocab_size), "null", .null = "the tokenizer's", WITHIN(2, 16777216),
     .meaning = "token ids; padding inside is the program's own business"},
    {"model.dropout", SETTING_NUMBER, FIELD(model.dropout), "0.0", BELOW(0, 1),
     .meaning = "probability for embeddings and the outputs of each block's two halves"},
    {"model.attention_dropout", SETTING_NUMBER, FIELD(model.attention_dropout), "null", .null = "as dropout", .null_value = -1, BELOW(0, 1),
     .meaning = "probability for attention weights"},
    {"model.layer_norm_epsilon", SETTING_NUMBER, FIELD(model.layer_norm_epsilon), "1.0e-05", ABOVE(0, 1),
     .meaning = "added to the variance"},
    {"model.activation", SETTING_CHOICE, FIELD(model.activation), "gelu_tanh", .choices = "gelu_tanh|gelu_erf",
     .meaning = "of the feed-forward layers: gelu_tanh is Hugging Face's gelu_new (GPT-2), gelu_erf its gelu; llama has SwiGLU"},
    {"model.initializer_range", SETTING_NUMBER, FIELD(model.initializer_range), "0.02", WITHIN(0, 10),
     .meaning = "standard deviation of initial weights; in gpt2 projections into the residual stream get this over sqrt(2 num_layers)"},
    {"model.tie_word_embeddings", SETTING_BOOLEAN, FIELD(model.tie_word_embeddings), "true",
     .meaning = "the output matrix is the token embedding"},
    {"model.type_vocab_size", SETTING_INTEGER, FIELD(model.type_vocab_size), "null", .null = "2 in bert, 1 in roberta, 0 in gpt2", .null_value = -1, WITHIN(0, 2),
     .meaning = "segments that have an embedding"},
    {"model.next_sentence", SETTING_BOOLEAN, FIELD(model.next_sentence), "true",
     .meaning = "bert: a pooler, and with mlm a second loss, whether the second segment follows the first; false: neither"},
    {"model.num_labels", SETTING_INTEGER, FIELD(model.num_labels), "null", .null = "as many as data.train has", WITHIN(1, 10000),
     .meaning = "classify, classify_tokens: labels; choose: choices at most"},
    {"model.init_from", SETTING_PATH, FIELD(model.init_from), "null", .null = "random weights", .resume = true,
     .meaning = "checkpoint or run folder whose weights training begins with; a head that it has not got begins at random, one that is not needed is left out"},

    {"adapter.type", SETTING_CHOICE, FIELD(adapter.type), "null", .null = "none: the weights themselves are trained", .choices = "lora",
     .meaning = "lora: small matrices beside those of the model in model.init_from, which stays as it is; they alone, and the head of a task in full, are trained and saved"},
    {"adapter.rank", SETTING_INTEGER, FIELD(adapter.rank), "8", WITHIN(1, 65536),
     .meaning = "inner size of an adapter's two matrices (peft's r)"},
    {"adapter.alpha", SETTING_NUMBER, FIELD(adapter.alpha), "8.0", ABOVE(0, 1e6),
     .meaning = "what an adapter adds is scaled by alpha / rank (peft's lora_alpha)"},
    {"adapter.rslora", SETTING_BOOLEAN, FIELD(adapter.rslora), "false",
     .meaning = "by alpha / sqrt(rank) instead (peft's use_rslora)"},
    {"adapter.dropout", SETTING_NUMBER, FIELD(adapter.dropout), "0.0", BELOW(0, 1),
     .meaning = "probability for what an adapter reads (peft's lora_dropout)"},
    {"adapter.targets", SETTING_LIST, FIELD(adapter.targets), "null", .null = "as peft: c_attn in gpt2, q_proj and v_proj in llama, query and value in bert and roberta", .choices = "all-linear|c_attn|c_proj|attn.c_proj|c_fc|mlp.c_proj|q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|query|key|value|attention.output.dense|intermediate.dense|output.dense",
     .meaning = "matrices that get an adapter, by the ends of their names (peft's target_modules); all-linear: all of every block"},
    {"adapter.base", SETTING_PATH, FIELD(adapter.base), "null", .null = "model.init_from, or the base of the adapters there", .resume = true,
     .meaning = "where the frozen model lies; a checkpoint of adapters has it"},
    {"adapter.base_weights", SETTING_TEXT, FIELD(adapter.base_weights), "null", .null = "whatever is there",
     .meaning = "what the frozen weights are known by, so that others are refused; a checkpoint of adapters has it"},

    {"data.tokenizer", SETTING_PATH, FIELD(data.tokenizer), "null", .null = "none: model.vocab_size must be given", .resume = true,
     .meaning = "folder with tokenizer.json"},
    {"data.train", SETTING_SOURCES, FIELD(data.train), "null", .null = "none: plan and bench need none", .resume = true,
     .meaning = "training shards: a path or glob, or a list of {path, weight} for a mixture"},
    {"data.validation", SETTING_PATH, FIELD(data.validation), "null", .null = "no evaluation", .resume = true,
     .meaning = "held-out shards: a path or glob"},
    {"data.sequence_length", SETTING_INTEGER, FIELD(data.sequence_length), "null", .null = "max_position_embeddings", WITHIN(1, 1048576),
     .meaning = "tokens of a training sequence"},
    {"data.document_mask", SETTING_BOOLEAN, FIELD(data.document_mask), "false",
     .meaning = "attention and positions stay inside documents"},
    {"data.shuffle", SETTING_BOOLEAN, FIELD(data.shuffle), "true",
     .meaning = "draw training sequences in random order; false: as they lie in the shards"},

    {"sft.packing", SETTING_ENUM, FIELD(sft.packing), "none", .choices = "none|bfd|bfd_split|wrapped",
     .meaning = "several examples in a sequence, none of which sees another; bfd: best-fit decreasing, longer ones are cut off; bfd_split: they become several; wrapped: a stream without boundaries"},
    {"sft.max_length", SETTING_INTEGER, FIELD(sft.max_length), "null", .null = "data.sequence_length", WITHIN(2, 1048576),
     .meaning = "tokens of an example at most; what is cut off is counted"},
    {"sft.completion_only_loss", SETTING_ENUM, FIELD(sft.completion_only_loss), "auto", .choices = "auto|true|false",
     .meaning = "learn the completion alone; auto: of rows that have one, and of others everything"},
    {"sft.assistant_only_loss", SETTING_BOOLEAN, FIELD(sft.assistant_only_loss), "false",
     .meaning = "learn the assistant's messages alone, each with its end of turn"},
    {"sft.skip_empty", SETTING_BOOLEAN, FIELD(sft.skip_empty), "true",
     .meaning = "leave out, and count, examples with nothing to learn within max_length; false: they are an error"},

    {"batch.global_size", SETTING_INTEGER, FIELD(batch.global_size), "32", WITHIN(1, 16777216),
     .meaning = "sequences of an optimizer step, over all ranks"},
    {"batch.micro_size", SETTING_INTEGER, FIELD(batch.micro_size), "null", .null = "8, or global_size where that is less", WITHIN(1, 1048576), .resume = true,
     .meaning = "sequences of a rank's forward pass; gradient accumulation makes up the rest"},

    {"mlm.mask_probability", SETTING_NUMBER, FIELD(mlm.mask_probability), "0.15", .range = {.least = 0, .most = 1, .above = true},
     .meaning = "share of an example's tokens that are to be predicted: 80 % become [MASK], 10 % another token, 10 % stay"},
    {"mlm.max_predictions", SETTING_INTEGER, FIELD(mlm.max_predictions), "null", .null = "mask_probability times data.sequence_length, rounded up", WITHIN(1, 1048576),
     .meaning = "predictions of an example at most"},
    {"mlm.whole_words", SETTING_BOOLEAN, FIELD(mlm.whole_words), "false",
     .meaning = "draw words instead of tokens"},

    {"parallel.tensor", SETTING_INTEGER, FIELD(parallel.tensor), "1", WITHIN(1, 1024), .resume = true,
     .meaning = "ranks that share one copy of the model, heads and inner features evenly; the number of ranks is a multiple of it"},
    {"parallel.sequence", SETTING_BOOLEAN, FIELD(parallel.sequence), "false", .resume = true,
     .meaning = "ranks that share a model divide norms and dropout among them too, by rows (sequence parallelism)"},
    {"parallel.zero_stage", SETTING_INTEGER, FIELD(parallel.zero_stage), "0", WITHIN(0, 2), .resume = true,
     .meaning = "0: replicated, 1: optimizer state sharded over the data-parallel ranks, 2: layers' gradients too"},
    {"parallel.reproducible", SETTING_BOOLEAN, FIELD(parallel.reproducible), "false", .resume = true,
     .meaning = "the same bits at any number of data-parallel ranks and ZeRO stage: sums in the order of the global batch's micro-batches; costs time and memory"},
    {"parallel.deterministic", SETTING_BOOLEAN, FIELD(parallel.deterministic), "false", .resume = true,
     .meaning = "GPUs: the same bits in each run of the same layout; NCCL then adds without the switches' help (NVLS, CollNet), whose order differs from run to run. CPUs, and ranks that share a GPU, always have them"},
    {"parallel.reduce_dtype", SETTING_ENUM, FIELD(parallel.reduce_dtype), "fp32", .choices = "fp32|bf16", .resume = true,
     .meaning = "of gradients on their way to other data-parallel ranks; bf16 sends half the bytes, rounds each rank's gradients and their sum, and takes half as much memory for gradients again"},
    {"parallel.threads", SETTING_INTEGER, FIELD(parallel.threads), "null", .null = "this host's cores divided by its ranks", WITHIN(1, 4096), .resume = true,
     .meaning = "CPU threads of a rank"},
    {"parallel.bucket_mib", SETTING_INTEGER, FIELD(parallel.bucket_mib), "25", WITHIN(1, 65536), .resume = true,
     .meaning = "MiB of gradients that are reduced together, behind the backward pass"},
    {"parallel.timeout_seconds", SETTING_NUMBER, FIELD(parallel.timeout_seconds), "300.0", ABOVE(0, 1e6), .resume = true,
     .meaning = "how long a rank may stay silent before the job ends with code 76"},

    {"optimizer.name", SETTING_CHOICE, FIELD(optimizer.name), "adamw", .choices = "adamw|lamb",
     .meaning = "adamw, or lamb: Adam's update and the decay, times its trust ratio (norm of the weights over norm of the update) for each tensor that has decay; decay on matrices and embeddings, not on biases and norms"},
    {"optimizer.learning_rate", SETTING_NUMBER, FIELD(optimizer.learning_rate), "0.0006", ABOVE(0, 100),
     .meaning = "the schedule's highest"},
    {"optimizer.beta1", SETTING_NUMBER, FIELD(optimizer.beta1), "0.9", BELOW(0, 1),
     .meaning = "decay of the mean of gradients"},
    {"optimizer.beta2", SETTING_NUMBER, FIELD(optimizer.beta2), "0.95", BELOW(0, 1),
     .meaning = "decay of the mean of squared gradients"},
    {"optimizer.epsilon", SETTING_NUMBER, FIELD(optimizer.epsilon), "1.0e-08", ABOVE(0, 1),
     .meaning = "added to the root of the second moment"},
    {"optimizer.weight_decay", SETTING_NUMBER, FIELD(optimizer.weight_decay), "0.1", WITHIN(0, 100),
     .meaning = "decoupled: times the learning rate"},
    {"optimizer.max_grad_norm", SETTING_NUMBER, FIELD(optimizer.max_grad_norm), "1.0", .null = "or 0: no clipping", WITHIN(0, 1e12),
     .meaning = "gradients are scaled down to this global norm"},
    {"optimizer.nvlamb", SETTING_BOOLEAN, FIELD(optimizer.nvlamb), "false",
     .meaning = "lamb: the ratio on tensors without decay too"},
    {"optimizer.stochastic_rounding", SETTING_BOOLEAN, FIELD(optimizer.stochastic_rounding), "false",
     .meaning = "train.precision bf16: the weights that products read are the fp32 masters rounded up or down at random so that the mean is kept, not to nearest; anew in each step, from the seed"},
    {"optimizer.init_from", SETTING_PATH, FIELD(optimizer.init_from), "null", .null = "moments begin at zero", .resume = true,
     .meaning = "checkpoint or run folder whose moments training begins with; its step is not taken: bias correction and schedule begin anew. Needs model.init_from"},

    {"schedule.name", SETTING_ENUM, FIELD(schedule.name), "cosine", .choices = "constant|linear|cosine|polynomial|wsd|polynomial_nvidia",
     .meaning = "course of the learning rate after the warm-up (trainer/optimizer/schedule.h); wsd: stable, then a decay; polynomial_nvidia: counted from step 0, warm-up included"},
    {"schedule.warmup_steps", SETTING_INTEGER, FIELD(schedule.warmup_steps), "null", .null = "as warmup_ratio says, else 0", .null_value = -1, WITHIN(0, STEPS_MAX),
     .meaning = "steps of linear warm-up"},
    {"schedule.warmup_ratio", SETTING_NUMBER, FIELD(schedule.warmup_ratio), "null", .null = "as warmup_steps says", .null_value = -1, WITHIN(0, 1),
     .meaning = "warm-up as a share of all steps; alternative to warmup_steps"},
    {"schedule.min_ratio", SETTING_NUMBER, FIELD(schedule.min_ratio), "0.1", WITHIN(0, 1),
     .meaning = "last learning rate as a share of the highest"},
    {"schedule.power", SETTING_NUMBER, FIELD(schedule.power), "1.0", ABOVE(0, 100),
     .meaning = "exponent of the polynomial schedules"},
    {"schedule.decay_ratio", SETTING_NUMBER, FIELD(schedule.decay_ratio), "0.1", WITHIN(0, 1),
     .meaning = "wsd: share of all steps, at the end, in which the learning rate falls"},

    {"train.max_steps", SETTING_INTEGER, FIELD(train.max_steps), "null", .null = "as epochs says", WITHIN(1, STEPS_MAX), .resume = true,
     .meaning = "optimizer steps; this or epochs must be given"},
    {"train.epochs", SETTING_NUMBER, FIELD(train.epochs), "null", .null = "as max_steps says", ABOVE(0, 1e6), .resume = true,
     .meaning = "passes over the training set (of a mixture, until its first part is through); alternative to max_steps"},
    {"train.max_minutes", SETTING_NUMBER, FIELD(train.max_minutes), "null", .null = "no limit", ABOVE(0, MINUTES_MAX), .resume = true,
     .meaning = "a normal end after this time of training, over all sessions of the run, like the last step; the schedule still runs on the steps"},
    {"train.wall_minutes", SETTING_NUMBER, FIELD(train.wall_minutes), "null", .null = "no limit", ABOVE(0, MINUTES_MAX), .resume = true,
     .meaning = "save and stop with code 75 before this time of a session is over, for a queue's limit"},
    {"train.precision", SETTING_ENUM, FIELD(train.precision), "fp32", .choices = "fp32|bf16",
     .meaning = "of products and activations; master weights, sums and optimizer state are fp32 always"},
    {"train.device", SETTING_ENUM, FIELD(train.device), "auto", .choices = "auto|cpu|cuda", .resume = true,
     .meaning = "auto: the best that this build and machine have"},
    {"train.activation_checkpointing", SETTING_CHOICE, FIELD(train.activation_checkpointing), "none", .choices = "none|selective|full", .resume = true,
     .meaning = "what backward computes again instead of keeping it, to the same bits: selective, the activation function and the norms; full, all of a layer but its input, a third more work"},
    {"train.cuda_graphs", SETTING_BOOLEAN, FIELD(train.cuda_graphs), "false", .resume = true,
     .meaning = "on a GPU, start a micro-batch's kernels together where they come again, to the same bits: for small models and batches, whose kernels end sooner than the next is launched; not timed on a GPU yet"},
    {"train.freeze", SETTING_LIST, FIELD(train.freeze), "null", .null = "everything is trained", .choices = "embeddings|backbone",
     .meaning = "one or a list of what keeps its weights; embeddings: all before the first block; backbone: everything but the head"},
    {"train.freeze_layers", SETTING_INTEGER, FIELD(train.freeze_layers), "0", WITHIN(0, 1000),
     .meaning = "blocks, from the first on, that keep their weights"},

    {"dpo.loss_type", SETTING_LIST, FIELD(dpo.loss_type), "sigmoid", .choices = "sigmoid|hinge|ipo|exo_pair|nca_pair|robust|bco_pair|sppo_hard|aot|aot_unpaired|apo_zero|apo_down|discopop|sft|sigmoid_norm",
     .meaning = "one or a list, whose weighted sum is the loss, each as TRL defines it (trainer/objective/preference.h)"},
    {"dpo.loss_weights", SETTING_LIST, FIELD(dpo.loss_weights), "null", .null = "all 1", WITHIN(0, 1e6),
     .meaning = "one for each of loss_type"},
    {"dpo.beta", SETTING_NUMBER, FIELD(dpo.beta), "0.1", ABOVE(0, 1e6),
     .meaning = "how firmly the policy is held to the reference"},
    {"dpo.label_smoothing", SETTING_NUMBER, FIELD(dpo.label_smoothing), "0.0", BELOW(0, 0.5),
     .meaning = "share of wrong preferences, for robust, exo_pair (which needs it), aot and aot_unpaired"},
    {"dpo.discopop_tau", SETTING_NUMBER, FIELD(dpo.discopop_tau), "0.05", ABOVE(0, 1e6),
     .meaning = "temperature of discopop's blend"},
    {"dpo.shared_prefix", SETTING_ENUM, FIELD(dpo.shared_prefix), "auto", .choices = "auto|true|false", .resume = true,
     .meaning = "compute a pair's prompt once for both of its answers; auto: on CPUs"},
    {"reward.center_rewards_coefficient", SETTING_NUMBER, FIELD(reward.center_rewards_coefficient), "0.0", WITHIN(0, 1e6),
     .meaning = "holds the rewards of a pair's two answers around 0: times the square of their sum; TRL's documentation recommends 0.01"},
    {"answer.no_answer_threshold", SETTING_NUMBER, FIELD(answer.no_answer_threshold), "0.0", WITHIN(-1e9, 1e9), .resume = true,
     .meaning = "a question has no answer where this scores so much more than the best span (transformers' null_score_diff_threshold); 1e9: each has one, as in SQuAD 1.1"},

    {"evaluate.every", SETTING_INTEGER, FIELD(evaluate.every), "null", .null = "250 where data.validation is given, else 0", .null_value = -1, WITHIN(0, STEPS_MAX), .resume = true,
     .meaning = "steps between evaluations; 0: only before the first step and after the last, which is done always"},
    {"evaluate.batches", SETTING_INTEGER, FIELD(evaluate.batches), "20", .null = "the whole held-out part", WITHIN(1, STEPS_MAX), .resume = true,
     .meaning = "batches of the global size that an evaluation takes"},
    {"evaluate.metric", SETTING_TEXT, FIELD(evaluate.metric), "loss", .resume = true,
     .meaning = "the number of an evaluation by which it is better or worse than others: loss, or another name in its lines of metrics.jsonl"},
    {"evaluate.greater_is_better", SETTING_ENUM, FIELD(evaluate.greater_is_better), "auto", .choices = "auto|true|false", .resume = true,
     .meaning = "of evaluate.metric; auto: true, but false where its name ends in loss or is perplexity"},
    {"evaluate.patience", SETTING_INTEGER, FIELD(evaluate.patience), "null", .null = "the run goes to its end", WITHIN(1, 1000000), .resume = true,
     .meaning = "evaluations without improvement after which the run ends, as after its last step"},
    {"evaluate.min_improvement", SETTING_NUMBER, FIELD(evaluate.min_improvement), "0.0", WITHIN(0, 1e12), .resume = true,
     .meaning = "what is not better by more than this does not renew the patience"},

    {"checkpoint.every", SETTING_INTEGER, FIELD(checkpoint.every), "1000", WITHIN(0, STEPS_MAX), .resume = true,
     .meaning = "steps between checkpoints; 0: only at the end and on request"},
    {"checkpoint.keep", SETTING_INTEGER, FIELD(checkpoint.keep), "3", WITHIN(1, 1000000), .resume = true,
     .meaning = "newest checkpoints that are kept"},
    {"checkpoint.keep_best", SETTING_BOOLEAN, FIELD(checkpoint.keep_best), "false", .resume = true,
     .meaning = "save at each evaluation that is the best so far, keep that one besides, and put its weights into final/"},
    {"checkpoint.async", SETTING_BOOLEAN, FIELD(checkpoint.async), "true", .resume = true,
     .meaning = "write behind training; costs the memory of a snapshot"},

    {"log.every", SETTING_INTEGER, FIELD(log.every), "10", WITHIN(1, STEPS_MAX), .resume = true,
     .meaning = "steps between lines of metrics.jsonl"},
    {"log.tensorboard", SETTING_BOOLEAN, FIELD(log.tensorboard), "false", .resume = true,
     .meaning = "event files for TensorBoard in run_dir/tensorboard, beside metrics.jsonl"},
};

const struct section recipe_sections[] = {
    {"", "Top level"},
    {"model", "The network. Names are those of Hugging Face's config.json where one exists."},
    {"adapter", "LoRA, for every objective. Names and defaults are peft's. A checkpoint holds the adapters alone, and the head of a task (peft's modules_to_save), with the place of the model and what its weights are known by; `bireme export` puts them into its matrices."},
    {"data", "What is read. Paths are relative to the folder in which the program is started."},
    {"sft", "Supervised fine-tuning. Names and defaults are TRL's."},
    {"batch", "How many sequences make a step."},
    {"mlm", "What is masked, where objective is mlm. Each epoch is masked anew, but for NVIDIA's shards, which are masked in their files."},
    {"parallel", "How the ranks share the work. The numbers of ranks and nodes come from mpirun or srun."},
    {"optimizer", "How weights are changed."},
    {"schedule", "How the learning rate changes."},
    {"train", "How long, and with what."},
    {"dpo", "Preference pairs (`objective: dpo`). Names and defaults are TRL's. The reference is what `model.init_from` names."},
    {"reward", "Reward models (`objective: reward`), on the same pairs. Names are TRL's; `dpo.shared_prefix` holds for them too."},
    {"answer", "Answers in texts (`objective: answer`), in evaluations and for `bireme answer`."},
    {"evaluate", "The held-out loss and other metrics, and what is decided by them."},
    {"checkpoint", "What is saved."},
    {"log", "What is told."},
};

const struct synonym recipe_synonyms[] = {
    {"lr", "learning_rate"}, {"max_lr", "learning_rate"}, {"min_lr", "min_ratio"}, {"min_lr_ratio", "min_ratio"},
    {"n_layer", "num_layers"}, {"n_layers", "num_layers"}, {"num_hidden_layers", "num_layers"}, {"layers", "num_layers"}, {"depth", "num_layers"},
    {"n_embd", "hidden_size"}, {"d_model", "hidden_size"}, {"width", "hidden_size"}, {"dim", "hidden_size"},
    {"n_head", "num_heads"}, {"n_heads", "num_heads"}, {"num_attention_heads", "num_heads"}, {"heads", "num_heads"}, {"num_key_value_heads", "num_kv_heads"}, {"n_kv_heads", "num_kv_heads"}, {"num_query_groups", "num_kv_heads"},
    {"n_inner", "intermediate_size"}, {"d_ff", "intermediate_size"}, {"ffn_hidden_size", "intermediate_size"},
    {"n_positions", "max_position_embeddings"}, {"n_ctx", "max_position_embeddings"}, {"block_size", "sequence_length"},
    {"seq_length", "sequence_length"}, {"seq_len", "sequence_length"}, {"max_seq_len", "sequence_length"}, {"context_length", "sequence_length"},
    {"resid_pdrop", "dropout"}, {"embd_pdrop", "dropout"}, {"hidden_dropout", "dropout"}, {"attn_pdrop", "attention_dropout"},
    {"layer_norm_eps", "layer_norm_epsilon"}, {"norm_eps", "layer_norm_epsilon"}, {"rms_norm_eps", "layer_norm_epsilon"}, {"rotary_base", "rope_theta"}, {"rope_scaling", "rope_type"}, {"original_max_position_embeddings", "rope_original_positions"}, {"init_std", "initializer_range"},
    {"activation_function", "activation"}, {"hidden_act", "activation"}, {"tied", "tie_word_embeddings"}, {"vocabulary", "vocab_size"},
    {"r", "rank"}, {"lora_r", "rank"}, {"lora_alpha", "alpha"}, {"lora_dropout", "dropout"}, {"use_rslora", "rslora"}, {"target_modules", "targets"}, {"lora", "adapter"}, {"peft", "adapter"},
    {"packing_strategy", "packing"}, {"max_seq_length", "max_length"}, {"train_on_inputs", "completion_only_loss"},
    {"batch_size", "global_size"}, {"global_batch_size", "global_size"}, {"micro_batch_size", "micro_size"},
    {"per_device_train_batch_size", "micro_size"}, {"gradient_accumulation_steps", "global_size"}, {"grad_accum", "global_size"},
    {"tensor_parallel", "tensor"}, {"tp", "tensor"}, {"tensor_model_parallel_size", "tensor"}, {"zero", "zero_stage"},
    {"num_threads", "threads"}, {"eps", "epsilon"}, {"betas", "beta1"}, {"grad_clip", "max_grad_norm"}, {"clip_grad", "max_grad_norm"},
    {"warmup_iters", "warmup_steps"}, {"warmup", "warmup_steps"}, {"lr_scheduler_type", "name"}, {"type", "name"},
    {"max_iters", "max_steps"}, {"train_iters", "max_steps"}, {"steps", "max_steps"}, {"num_train_epochs", "epochs"},
    {"dtype", "precision"}, {"eval_interval", "every"}, {"interval", "every"}, {"eval_iters", "batches"},
    {"output_dir", "run_dir"}, {"out_dir", "run_dir"}, {"random_seed", "seed"}, {"eval", "evaluate"}, {"val", "validation"},
    {"save", "checkpoint"}, {"frozen", "freeze"}, {"freeze_first_layers", "freeze_layers"}, {"metric_for_best_model", "metric"}, {"early_stopping_patience", "patience"}, {"early_stopping_threshold", "min_improvement"}, {"load_best_model_at_end", "keep_best"}, {"save_total_limit", "keep"}, {"training", "train"}, {"lr_scheduler", "schedule"}, {"logging", "log"}, {"dataset", "data"},
    {"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu", "gelu_erf"}, {"bfloat16", "bf16"}, {"float32", "fp32"},
    {"gpu", "cuda"}, {"adam", "adamw"}, {"gpt", "gpt2"}, {"classification", "classify"}, {"regression", "regress"}, {"n_labels", "num_labels"}, {"num_classes", "num_labels"}, {"mlm_probability", "mask_probability"}, {"masked_lm_prob", "mask_probability"},
    {"max_predictions_per_seq", "max_predictions"}, {"whole_word_mask", "whole_words"}, {"whole_word", "whole_words"}, {"nsp", "next_sentence"}, {"gpt-2", "gpt2"}, {"causal", "clm"}, {"warmup_stable_decay", "wsd"}, {"poly", "polynomial"},
};
/* clang-format on */

const int recipe_table_count = sizeof recipe_table / sizeof recipe_table[0];
const int recipe_section_count = sizeof recipe_sections / sizeof recipe_sections[0];
const int recipe_synonym_count = sizeof recipe_synonyms / sizeof recipe_synonyms[0];

_Static_assert(sizeof recipe_sections / sizeof recipe_sections[0] <= SECTIONS_MAX,
               "raise SECTIONS_MAX");
_Static_assert(sizeof recipe_table / sizeof recipe_table[0] <= SETTINGS_MAX, "raise SETTINGS_MAX");

int recipe_table_find(const char *key)
{
    for (int i = 0; i < recipe_table_count; i++) {
        if (strcmp(recipe_table[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

int recipe_table_choices(const char *choices, char *text, size_t bytes, const char **out)
{
    snprintf(text, bytes, "%s", choices);
    int count = 0;
    for (char *rest = text; rest != NULL && count < CHOICES_MAX; count++) {
        out[count] = rest;
        rest = strchr(rest, '|');
        if (rest != NULL) {
            *rest++ = '\0';
        }
    }
    return count;
}

const char *recipe_table_synonym(const char *word)
{
    for (int i = 0; i < recipe_synonym_count; i++) {
        if (strcmp(recipe_synonyms[i].word, word) == 0) {
            return recipe_synonyms[i].ours;
        }
    }
    return NULL;
}
