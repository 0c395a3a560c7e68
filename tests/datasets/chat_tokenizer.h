/* A small tokenizer with a chat template, for tests. */
#pragma once

#include "datasets/chat/chat.h"
#include "datasets/tokenizer/tokenizer.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

/* chat_tokenizer_make - train a tokenizer of 300 tokens and give it the template alpaca. */
static inline void chat_tokenizer_make(struct tokenizer **tokenizer, struct chat_template **chat)
{
    char *text = folder_file("text"), *folder = folder_file("tokenizer");
    const char words[] = "the list of files and the user of the system said the answer";
    folder_write(text, words, sizeof words - 1);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, &text, 1, 1, tokenizer));
    CHECK_OK(tokenizer_save(*tokenizer, folder));
    CHECK_OK(chat_install("alpaca", folder, *tokenizer));
    CHECK_OK(chat_open(folder, *tokenizer, chat));
}
