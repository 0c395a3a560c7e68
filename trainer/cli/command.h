/* The commands of the program: one function, one file each. main.c dispatches by name.
 *
 * argv[0] is the command's name, the rest are its arguments. What a command returns is the program's
 * exit code; the reason is the pending note (base/status.h), which main prints. A command that runs on
 * several ranks ends through comm_abort itself when it fails. Results go to standard output, everything
 * for people to standard error (base/log.h). */
#pragma once

#include "base/status.h"

status command_train(int argc, char **argv);
status command_plan(int argc, char **argv);
status command_evaluate(int argc, char **argv);
status command_generate(int argc, char **argv);
status command_chat(int argc, char **argv);
status command_score(int argc, char **argv);
status command_fill_mask(int argc, char **argv);
status command_embed(int argc, char **argv);
status command_classify(int argc, char **argv);
status command_answer(int argc, char **argv);
status command_inspect(int argc, char **argv);
status command_tokenizer(int argc, char **argv);
status command_prepare(int argc, char **argv);
status command_checkpoint(int argc, char **argv);
status command_import(int argc, char **argv);
status command_export(int argc, char **argv);
status command_bench(int argc, char **argv);
