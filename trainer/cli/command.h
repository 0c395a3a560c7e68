/* The commands of the program: one function and one file for each. main.c finds a command by name.
 *
 * argv[0] is the name of the command; the other elements are its arguments. The returned status
 * becomes the exit code of the program. The reason for a failure is the pending note
 * (base/status.h), which main.c prints. A command that runs on several ranks calls comm_abort when
 * it fails. Commands write results to standard output and messages to standard error (base/log.h).
 */
#pragma once

#include "base/status.h"

/* command_train - train a model from a recipe, or resume a run. Runs on all ranks. */
status command_train(int argc, char **argv);

/* command_plan - estimate parameters, memory, FLOPs and communication of a recipe. */
status command_plan(int argc, char **argv);

/* command_evaluate - compute the loss on shards, scores of tasks, or metrics of texts. Runs on
 * all ranks. */
status command_evaluate(int argc, char **argv);

/* command_generate - generate text with a causal language model or an encoder-decoder. */
status command_generate(int argc, char **argv);

/* command_translate - translate the lines of a file with an encoder-decoder. */
status command_translate(int argc, char **argv);

/* command_summarize - summarize the lines of a file with an encoder-decoder. */
status command_summarize(int argc, char **argv);

/* command_chat - hold a conversation on standard input and output. */
status command_chat(int argc, char **argv);

/* command_serve - serve a model over HTTP. */
status command_serve(int argc, char **argv);

/* command_score - print the log-probability or the reward of each line. */
status command_score(int argc, char **argv);

/* command_fill_mask - predict masked tokens with a masked language model. */
status command_fill_mask(int argc, char **argv);

/* command_attention - write the attention weights of a text. */
status command_attention(int argc, char **argv);

/* command_embed - compute embeddings of texts and their cosine similarity. */
status command_embed(int argc, char **argv);

/* command_classify - predict labels, numbers or choices with a fine-tuned model. */
status command_classify(int argc, char **argv);

/* command_answer - extract the answer to a question from a text. */
status command_answer(int argc, char **argv);

/* command_inspect - show and verify a shard, checkpoint, tokenizer or run folder. */
status command_inspect(int argc, char **argv);

/* command_report - write an HTML page or an SVG picture about runs. */
status command_report(int argc, char **argv);

/* command_tokenizer - train a tokenizer, encode text or decode token ids. */
status command_tokenizer(int argc, char **argv);

/* command_prepare - convert text or JSON Lines to token shards. */
status command_prepare(int argc, char **argv);

/* command_checkpoint - list, verify, compare or reshard checkpoints. */
status command_checkpoint(int argc, char **argv);

/* command_import - convert a folder of transformers or peft, or a GGUF file, to a checkpoint. */
status command_import(int argc, char **argv);

/* command_export - convert a checkpoint to a folder of transformers or peft, or a GGUF file. */
status command_export(int argc, char **argv);

/* command_bench - measure steps, kernels, communication or data loading. Runs on all ranks. */
status command_bench(int argc, char **argv);
