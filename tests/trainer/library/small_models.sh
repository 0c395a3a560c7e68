# Trains a small model of each kind that the library supports; sourced after tiny_training.sh.

# train_task TASK INPUT: train TASK-run on the rows of this file.
train_task() {
    run_bireme 0 prepare --objective "$1" --tokenizer words --input "$2" --sequence-length 32 \
        --output "$1"
    run_bireme 0 train bert.yaml objective="$1" run_dir="$1-run" "data.train=$1/train-*.h5"
}

# make_models: train run (causal), messages-run (chat), with T5 pairs-run (pairs.a to pairs.b), and
# with BERT mlm-run, classify-run, regress-run (pairs of texts), classify_tokens-run and answer-run.
make_models() {
    local task
    run_bireme 0 train recipe.yaml
    local reference=$source/tests/reference/sft
    mkdir tokenizer_messages
    cp "$reference/tokenizer.json" tokenizer_messages/
    run_bireme 0 prepare --objective sft --tokenizer tokenizer_messages --chat-template chatml \
        --input "$reference/messages.jsonl" --output messages
    cat >messages.yaml <<'YAML'
objective: sft
run_dir: messages-run
model: {architecture: gpt2, num_layers: 2, hidden_size: 32, num_heads: 2,
  max_position_embeddings: 128}
data: {tokenizer: tokenizer_messages, train: messages/train-*.h5, sequence_length: 128}
batch: {global_size: 4, micro_size: 4}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 40}
checkpoint: {every: 0}
YAML
    run_bireme 0 train messages.yaml
    write_pairs 60 8 capitals
    run_bireme 0 tokenizer train --type bpe --vocab-size 280 --input pairs.a pairs.b --output pieces
    echo 'templates: [{name: capitals, input: "{source}", target: "{target}"}]' >templates.yaml
    run_bireme 0 prepare --objective sft --encoder-decoder --tokenizer pieces --source pairs.a \
        --target pairs.b --templates templates.yaml --output pairs \
        --chat-template "$source/recipes/manual_template.json"
    run_bireme 0 train recipe.yaml objective=sft data.tokenizer=pieces data.validation=null \
        'data.train=pairs/train-*.h5' data.sequence_length=64 model.max_position_embeddings=64 \
        model.architecture=t5 model.num_layers=1 model.activation=relu model.dropout=0 \
        evaluate.every=0 run_dir=pairs-run
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output words
    cat >bert.yaml <<'YAML'
objective: mlm
model: {architecture: bert, num_layers: 1, hidden_size: 16, num_heads: 2,
  max_position_embeddings: 32}
data: {tokenizer: words}
batch: {global_size: 4, micro_size: 2}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 3}
checkpoint: {every: 0}
evaluate: {every: 0}
YAML
    cat >classify.jsonl <<'END'
{"text": "a free license", "label": "yes"}
{"text": "the files of work", "label": "no"}
END
    cat >regress.jsonl <<'END'
{"text": "a free license", "text_pair": "of files", "label": 0.5}
{"text": "the files", "text_pair": "a work", "label": -1}
END
    cat >classify_tokens.jsonl <<'END'
{"tokens": ["a", "free", "license"], "tags": ["O", "O", "B"]}
{"tokens": ["the", "files"], "tags": ["O", "B"]}
END
    cat >answer.jsonl <<'END'
{"question": "which files", "context": "the files of work", "answer": "of work", "answer_start": 10}
{"question": "a license", "context": "a free license", "answer": "free", "answer_start": 2}
END
    train_task mlm "$source/LICENSE"
    for task in classify regress classify_tokens answer; do
        train_task $task $task.jsonl
    done
}
