#include "trainer/recipe/foreign.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/recipe/settings.h"

enum { NAME_BYTES = 64 };

struct foreign_name {
    const char *names; /* joined by '|', with '_' */
    const char *here;  /* reason, option or setting */
};

static const struct foreign_name missing[] = {
    {"pegasus|whisper", "needs another encoder-decoder model than marian, bart, mbart and t5"},
    {"ppo|grpo|rloo|rlhf|gspo|online_dpo|nash_md|xpo|reinforce",
     "needs online reinforcement learning"},
    {"kto|orpo|cpo|prm|gkd", "is a training method"},
    {"pipeline|pipeline_parallel|pipeline_model_parallel_size|pp|num_layers_per_virtual_pipeline|"
     "num_layers_per_virtual_pipeline_stage",
     "needs pipeline parallelism"},
    {"context|context_parallel|context_parallel_size|cp|ring_attention",
     "needs context parallelism"},
    {"moe|mixtral|num_experts|num_local_experts|expert|experts|expert_parallel|"
     "expert_model_parallel_size|deepseek",
     "needs a mixture of experts"},
    {"electra|deberta|xlnet|gemma|phi|falcon|opt|gpt_neox|gptj|bloom|mamba|vit|clip",
     "is an architecture"},
    {"wandb|wandb_project|wandb_log|wandb_run_name|mlflow|comet|neptune|clearml|report_to",
     "needs a client of a logging service"},
    {"clip_qkv", "needs clipped queries, keys and values"},
    {"dora|use_dora|loha|lokr|ia3|prefix_tuning|prompt_tuning", "is a kind of adapter"},
    {"sync_ref_model|ref_model_sync_steps", "needs a reference model that follows the policy"},
    {"fsdp|zero3|deepspeed|parallel.zero_stage=3", "needs sharded weights (ZeRO stage 3)"},
    {"fp16|float16|half|fp8_format|fp8_hybrid|int8|int4|qlora|load_in_4bit|load_in_8bit|"
     "quantization",
     "is a number format"},
    {"adafactor|lion|muon|sgd|adam8bit|adamw_8bit|shampoo", "is an optimizer"},
};

static const struct foreign_name options[] = {
    {"temp|t", "temperature"},
    {"max_length", "max-new-tokens|sequence-length"},
    {"max_tokens|max_len|n_predict|num_tokens|max_gen_len", "max-new-tokens"},
    {"model|model_name_or_path|model_path|ckpt|ckpt_path|load|init_from", "checkpoint"},
    {"out_dir", "output|checkpoint"},
    {"output_dir|save_dir|output_prefix|save", "output"},
    {"dataset|dataset_name|data|data_path|train_file|corpus|files", "input|data"},
    {"start|text|query|input", "prompt|question"},
    {"n|num_return_sequences", "num-samples"},
    {"beams|beam_size|n_beams", "num-beams"},
    {"chat_template_path", "chat-template"},
    {"vocab_file|tokenizer_model|tokenizer_name", "tokenizer"},
    {"resume_from_checkpoint|resume_from|continue", "resume"},
    {"max_seq_length|seq_length|block_size|context_length", "sequence-length"},
    {"val_split|test_size|split", "validation-fraction"},
    {"n_gpus|world_size|nproc_per_node|num_processes", "ranks"},
};

/* Flags that synonyms.c does not contain, or that fit several settings. */
static const struct foreign_name settings[] = {
    {"bf16|mixed_precision|torch_dtype", "train.precision"},
    {"optim", "optimizer.name"},
    {"max_seq_length", "data.sequence_length"},
    {"max_length", "sft.max_length"},
    {"model|model_name_or_path|pretrained_checkpoint|load|ckpt|init_from", "model.init_from"},
    {"tokenizer|tokenizer_name|tokenizer_model|vocab_file", "data.tokenizer"},
    {"dataset|data_path|train_file|dataset_name", "data.train"},
    {"validation_file|val_data_path", "data.validation"},
    {"eval_steps|eval_interval|eval_every", "evaluate.every"},
    {"save_steps|save_interval|checkpoint_every", "checkpoint.every"},
    {"logging_steps|log_interval", "log.every"},
    {"hidden_dropout|dropout", "model.dropout"},
    {"lora_dropout", "adapter.dropout"},
    {"lora_target_modules", "adapter.targets"},
    {"init_method_std", "model.initializer_range"},
    {"untie_embeddings_and_output_weights", "model.tie_word_embeddings"},
    {"position_embedding_type|normalization|swiglu|group_query_attention|disable_bias_linear",
     "model.architecture"},
    {"wd", "optimizer.weight_decay"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_eps|adam_epsilon", "optimizer.epsilon"},
    {"lr_warmup_iters", "schedule.warmup_steps"},
    {"lr_warmup_fraction", "schedule.warmup_ratio"},
    {"lr_decay_iters", "train.max_steps"},
    {"exit_duration_in_mins", "train.wall_minutes"},
    {"gradient_checkpointing|recompute_activations|recompute_granularity",
     "train.activation_checkpointing"},
    {"sequence_parallel", "parallel.sequence"},
    {"use_distributed_optimizer", "parallel.zero_stage"},
    {"grad_reduce_in_bf16", "parallel.reduce_dtype"},
    {"distributed_timeout_minutes", "parallel.timeout_seconds"},
    {"tensorboard_dir", "log.tensorboard"},
    {"shuffle_dataset", "data.shuffle"},
    {"output_dir|out_dir|save", "run_dir"},
    {"beta", "dpo.beta"},
    {"use_peft", "adapter.type"},
    {"lr_scheduler_type|lr_decay_style|decay_lr", "schedule.name"},
    {"device", "train.device"},
};

/* Flags with another value than the setting, or with two settings here. */
static const struct foreign_name values[] = {
    {"min_lr", "(VALUE / learning rate)"},
    {"gradient_accumulation_steps|grad_accum",
     "(VALUE x batch.micro_size; in Hugging Face also x data-parallel ranks)"},
    {"packing", "bfd"},
    {"dataset|data_path|train_file|dataset_name", "'DIR/train-*.h5' (shards of `bireme prepare`)"},
    {"block_size|seq_length|context_length", "VALUE model.max_position_embeddings=VALUE"},
    {"init_from|load|ckpt", "VALUE (train resumes a run by itself)"},
    {"untie_embeddings_and_output_weights", "false"},
    {"position_embedding_type|normalization|swiglu|group_query_attention|disable_bias_linear",
     "llama"},
    {"use_distributed_optimizer", "1"},
    {"bf16|grad_reduce_in_bf16", "bf16"},
    {"tensorboard_dir", "true (the files are in run_dir)"},
    {"sequence_parallel", "true"},
    {"gradient_checkpointing|recompute_activations", "full"},
    {"distributed_timeout_minutes", "(60 x VALUE)"},
    {"use_peft", "lora"},
};

/* Names of keys and flags that no single setting replaces. */
static const struct foreign_name hints[] = {
    {"compile|no_compile|torch_compile", "nothing is compiled at run time; remove it"},
    {"bias|use_bias", "model.architecture determines the biases: gpt2 has them, llama does not"},
    {"always_save_checkpoint",
     "checkpoint.every=N saves checkpoints; checkpoint.keep_best=true also keeps the best one"},
    {"eval_only", "`bireme evaluate` evaluates a checkpoint"},
    {"backend", "mpirun or srun starts the ranks; train.device selects the device"},
    {"positions|position|position_embedding|position_embeddings|positional_embedding|"
     "positional_encoding|pos_emb|rope|rotary|alibi",
     "model.architecture determines the positions: learned for gpt2, openai-gpt and encoders, "
     "rotary for the others and modernbert; transformer_encoder and transformer_decoder have "
     "model.position_embedding_type"},
    {"norm|layer_norm|rms_norm|rmsnorm|layernorm|pre_norm|post_norm|norm_first",
     "model.architecture determines the normalization: LayerNorm before each block for gpt2, "
     "modernbert and megatron-bert, after it for openai-gpt, bert, roberta and distilbert, RMSNorm "
     "before and after it for gemma2 and gemma3_text, RMSNorm before it for the others; "
     "transformer_encoder and transformer_decoder have model.norm_placement and model.norm_type"},
    {"swiglu|gated_mlp|glu|mlp_type|ffn_type",
     "model.architecture determines the feed-forward layers: model.activation for gpt2, "
     "openai-gpt and encoders, GEGLU for gemma2 and gemma3_text, SwiGLU for the others"},
    {"overlap_grad_reduce|overlap_param_gather|ddp_bucket_size",
     "gradients are always reduced during the backward pass; parallel.bucket_mib sets the size"},
    {"use_flash_attn|attention_backend|attn_implementation",
     "attention is always computed in tiles, without the matrix of all scores; remove it"},
    {"split", "`bireme prepare --validation-fraction F` divides the data"},
    {"exp_avg_dtype|exp_avg_sq_dtype|mu_dtype|optimizer_state_dtype|bf16_optimizer_states",
     "optimizer.state_dtype: bf16 stores both moments in bf16"},
    {"label_smoothing", "train.label_smoothing_factor, or dpo.label_smoothing for dpo"},
    {"max_length", "sft has sft.max_length; every objective has data.sequence_length; `bireme "
                   "prepare --sequence-length N` limits the pairs of dpo and reward"},
    {"max_prompt_length|max_completion_length",
     "`bireme prepare --sequence-length N` limits the length of a prompt with its response"},
    {"precompute_ref_log_probs|precompute_ref_batch_size",
     "the log-probabilities of the reference model are always computed once, before the training"},
    {"ref_model|ref_model_init_kwargs", "model.init_from is also the reference model"},
    {"eval_strategy|evaluation_strategy", "evaluate.every=N evaluates after every N steps"},
    {"save_strategy", "checkpoint.every=N saves after every N steps"},
    {"logging_strategy", "log.every=N writes metrics after every N steps"},
    {"per_device_eval_batch_size|eval_batch_size", "evaluations use batch.micro_size"},
    {"push_to_hub|hub_model_id", "`bireme export` writes a folder, which other tools can upload"},
    {"momentum|nesterov", "adamw and lamb have optimizer.beta1 instead of a momentum"},
};

/* Copies a name in lower case, with '_' instead of '-'. */
static void normalize_name(const char *name, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%s", name);
    for (char *c = out; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : (char)tolower((unsigned char)*c);
    }
}

static bool is_listed(const char *names, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = names; length > 0 && (at = strstr(at, name)) != NULL; at++) {
        bool begins = at == names || at[-1] == '|';
        if (begins && (at[length] == '|' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static const char *find_name(const struct foreign_name *table, int count, const char *name)
{
    char normal[NAME_BYTES];
    normalize_name(name, normal);
    for (int i = 0; i < count; i++) {
        if (is_listed(table[i].names, normal)) {
            return table[i].here;
        }
    }
    return NULL;
}

const char *foreign_find_missing(const char *name)
{
    return find_name(missing, COUNT(missing), name);
}

const char *foreign_find_option(const char *flag)
{
    return find_name(options, COUNT(options), flag);
}

const char *foreign_find_hint(const char *name)
{
    return find_name(hints, COUNT(hints), name);
}

const char *foreign_get_value(const char *flag)
{
    const char *value = find_name(values, COUNT(values), flag);
    return value != NULL ? value : "VALUE";
}

/* Returns the only key with this name in any section; NULL if there are none or several. */
static const char *find_only_key(const char *name)
{
    const char *found = NULL;
    for (int i = 0; i < recipe_table_count; i++) {
        const char *key = recipe_table[i].key, *dot = strchr(key, '.');
        if (strcmp(dot != NULL ? dot + 1 : key, name) == 0) {
            if (found != NULL) {
                return NULL;
            }
            found = key;
        }
    }
    return found;
}

const char *foreign_find_setting(const char *flag)
{
    char name[NAME_BYTES];
    const char *found = find_name(settings, COUNT(settings), flag);
    if (found != NULL) {
        return found;
    }
    normalize_name(flag, name);
    const char *synonym = recipe_find_synonym(name);
    return find_only_key(synonym != NULL ? synonym : name);
}
