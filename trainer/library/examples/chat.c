/* A conversation: reads a message from each line of standard input and prints the response.
 *
 *     cc -o chat chat.c $(pkg-config --cflags --libs bireme)
 *     ./chat runs/mine */
#include <bireme.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096, MESSAGES_MAX = 64 };

struct conversation {
    bm_message messages[MESSAGES_MAX];
    int64_t count;
};

/* Appends a message. The conversation takes over `text`, a block of malloc(). */
static void add_message(struct conversation *c, const char *role, char *text, size_t bytes)
{
    bm_message message = {role, text, bytes};
    c->messages[c->count++] = message;
}

static int print_text(void *user, const char *text, size_t bytes)
{
    (void)user;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
    return 0;
}

/* Generates the response to the last message and appends it. */
static bm_status generate_response(bm_model *model, struct conversation *c, int64_t max_new_tokens)
{
    bm_generate_options options = bm_generate_defaults();
    char *text = NULL;
    size_t bytes = 0;
    options.temperature = 0;
    options.max_new_tokens = max_new_tokens;
    bm_status result =
        bm_chat(model, c->messages, c->count, &options, print_text, NULL, &text, &bytes);
    if (result == BM_OK) {
        putchar('\n');
        add_message(c, "assistant", text, bytes);
    }
    return result;
}

int main(int argc, char **argv)
{
    static struct conversation c;
    bm_model *model = NULL;
    char line[LINE_BYTES];
    if (argc < 2) {
        fprintf(stderr, "usage: chat CHECKPOINT [MAX_NEW_TOKENS]\n");
        return BM_USAGE;
    }
    bm_status result = bm_model_open(argv[1], NULL, &model);
    while (result == BM_OK && c.count + 2 <= MESSAGES_MAX && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        add_message(&c, "user", strdup(line), strlen(line));
        result = generate_response(model, &c, argc > 2 ? atoll(argv[2]) : 256);
    }
    if (result != BM_OK) {
        fprintf(stderr, "chat: %s\n", bm_error());
    }
    while (c.count > 0) {
        bm_free((void *)c.messages[--c.count].text); /* bm_free is free() */
    }
    bm_model_close(&model);
    return (int)result;
}
