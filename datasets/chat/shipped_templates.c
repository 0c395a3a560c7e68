/* The chat templates that ship with the program, in the format of docs/guide/data.md.
 *
 * Source    ChatML: OpenAI, in the form of Qwen 2 but without its default system message.
 *           Alpaca: Taori et al. 2023, the two prompts of train.py.
 *           Llama 2: Touvron et al. 2023, from its tokenizer_config.json.
 *           Llama 3: from its tokenizer_config.json. */
#include <string.h>

#include "base/memory.h"
#include "datasets/chat/chat_impl.h"

#define HEAD "{\n  \"format\": \"bireme-chat-template\",\n  \"version\": 1,\n"

static const struct {
    const char *name, *text;
} shipped[] = {
    {"chatml", HEAD "  \"name\": \"chatml\",\n"
                    "  \"tokens\": [\"<|im_start|>\", \"<|im_end|>\"],\n"
                    "  \"system\": [\"<|im_start|>system\\n\", \"<|im_end|>\\n\"],\n"
                    "  \"user\": [\"<|im_start|>user\\n\", \"<|im_end|>\\n\"],\n"
                    "  \"assistant\": [\"<|im_start|>assistant\\n\", \"<|im_end|>\\n\"],\n"
                    "  \"end_of_turn\": \"<|im_end|>\"\n}\n"},
    {"alpaca", HEAD
     "  \"name\": \"alpaca\",\n"
     "  \"tokens\": [\"{eos}\"],\n"
     "  \"system\": [\"\", \"\\n\\n\"],\n"
     "  \"user\": [\"### Instruction:\\n\", \"\\n\\n\"],\n"
     "  \"input\": [\"\\n\\n### Input:\\n\", \"\"],\n"
     "  \"assistant\": [\"### Response:\", \"{eos}\"],\n"
     "  \"separator\": \"\\n\\n\",\n"
     "  \"default_system\": \"Below is an instruction that describes a task. Write a response "
     "that appropriately completes the request.\",\n"
     "  \"default_system_input\": \"Below is an instruction that describes a task, paired with "
     "an input that provides further context. Write a response that appropriately completes "
     "the request.\",\n"
     "  \"end_of_turn\": \"{eos}\"\n}\n"},
    {"llama-2", HEAD "  \"name\": \"llama-2\",\n"
                     "  \"tokens\": [\"<s>\", \"</s>\"],\n"
                     "  \"system\": [\"<<SYS>>\\n\", \"\\n<</SYS>>\\n\\n\"],\n"
                     "  \"system_in_user\": true,\n"
                     "  \"user\": [\"<s>[INST] \", \" [/INST]\"],\n"
                     "  \"lead\": \" \",\n"
                     "  \"assistant\": [\"\", \" </s>\"],\n"
                     "  \"strip\": true,\n"
                     "  \"end_of_turn\": \"</s>\"\n}\n"},
    {"llama-3",
     HEAD "  \"name\": \"llama-3\",\n"
          "  \"tokens\": [\"<|begin_of_text|>\", \"<|start_header_id|>\", \"<|end_header_id|>\", "
          "\"<|eot_id|>\"],\n"
          "  \"begin\": \"<|begin_of_text|>\",\n"
          "  \"system\": [\"<|start_header_id|>system<|end_header_id|>\\n\\n\", \"<|eot_id|>\"],\n"
          "  \"user\": [\"<|start_header_id|>user<|end_header_id|>\\n\\n\", \"<|eot_id|>\"],\n"
          "  \"assistant\": [\"<|start_header_id|>assistant<|end_header_id|>\\n\\n\", "
          "\"<|eot_id|>\"],\n"
          "  \"strip\": true,\n"
          "  \"end_of_turn\": \"<|eot_id|>\"\n}\n"},
};

const char *chat_shipped(const char *name)
{
    for (int i = 0; i < COUNT(shipped); i++) {
        if (strcmp(shipped[i].name, name) == 0) {
            return shipped[i].text;
        }
    }
    return NULL;
}
