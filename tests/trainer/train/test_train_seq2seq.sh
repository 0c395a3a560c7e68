#!/bin/bash
# Encoder-decoder models: training from two aligned files, equal losses at any layout with dropout,
# with recomputation and after a resume, evaluation, and combinations that are refused.
# ctest: timeout 240
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

make_pairs
run_bireme 0 "${common[@]}" run_dir=one
print_losses one evaluate | awk 'NR == 1 { first = $2 } END { exit !($2 < 0.9 * first) }' ||
    fail "nothing is learned: $(print_losses one evaluate)"
run_bireme 0 "${common[@]}" run_dir=no_dropout model.dropout=0
! (compare_losses one no_dropout 1e-5 2>/dev/null) || fail 'dropout changes nothing'

# The command reports the same evaluation as the training.
run_bireme 0 evaluate --checkpoint one --data 'pairs/validation-*.h5' --json
print_losses one evaluate | tail -1 |
    awk -v got="$(sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out)" \
        '{ d = $2 - got; exit !(d < 1e-5 && d > -1e-5) }' || fail "evaluate: $(cat out)"

while read -r ranks more; do
    # shellcheck disable=SC2086
    run_ranks "$ranks" 0 "${common[@]}" run_dir=more $more
    compare_losses one more 1e-5
    rm -rf more
done <<END
1 batch.micro_size=5
1 train.activation_checkpointing=full
1 train.activation_checkpointing=selective batch.micro_size=12
3 parallel.zero_stage=2
2 parallel.tensor=2
2 parallel.tensor=2 parallel.sequence=true batch.micro_size=1
4 parallel.tensor=2 parallel.sequence=true parallel.zero_stage=2 train.activation_checkpointing=full
4 parallel.tensor=2 parallel.zero_stage=1 train.activation_checkpointing=full
2 parallel.reproducible=true
END
check_reproducible recipe.yaml bits "${common[@]:2}" train.max_steps=6 checkpoint.every=6

# A resumed run continues bit for bit.
run_bireme 0 "${common[@]}" run_dir=half
rm -rf half/checkpoints/step-00000008 half/final
run_bireme 0 "${common[@]}" run_dir=half
compare_losses one half 0
compare_weights one half 00000008

# Other numbers of layers, and bf16 where the processor has it.
run_bireme 0 "${common[@]}" run_dir=uneven model.num_decoder_layers=1 model.scale_embedding=false \
    model.decoder_start_token_id=0 model.share_encoder_decoder_embeddings=false
run_bireme 0 translate --checkpoint uneven pairs.a
if has_bf16 recipe.yaml; then
    run_bireme 0 "${common[@]}" run_dir=bf16 train.precision=bf16
    compare_losses one bf16 0.05
fi

# T5 with and without a gate, BART and mBART have equal losses at other layouts, and resume bit for
# bit.
compare_layouts t5 model.architecture=t5 model.head_dim=6
# A checkpoint of a version without the dropout of inner features and of the outputs of the stacks.
cp -r t5 older && rm -r older/final older/checkpoints/step-00000008
edit_manifest older/checkpoints/step-00000004/manifest.json 's/^( "dropout_law": )3,$/\12,/'
run_bireme 0 "${common[@]}" run_dir=older model.architecture=t5 model.head_dim=6
grep -q '0004 was written with dropout scheme 2, .* 3, which drops at more .*W-DROPOUT' stderr ||
    fail 'no warning about another dropout scheme'
compare_layouts t5_gated model.architecture=t5 model.gated_linear_unit=true \
    model.activation=gelu_tanh model.tie_word_embeddings=false model.num_decoder_layers=1
compare_layouts bart model.architecture=bart model.activation=gelu_erf model.activation_dropout=0.2
compare_layouts mbart model.architecture=mbart model.activation=gelu_erf
if has_bf16 recipe.yaml; then
    run_bireme 0 "${common[@]}" run_dir=t5_bf16 model.architecture=t5 model.head_dim=6 \
        train.precision=bf16
    compare_losses t5 t5_bf16 0.05
fi

# A trained model is refused by the commands of other models.
for command in 'score recipe.yaml' 'embed recipe.yaml'; do
    # shellcheck disable=SC2086 # two words of the command
    run_bireme 69 ${command%% *} --checkpoint one ${command#* }
    expect_error 'one is an encoder-decoder'
done

run_bireme 66 "${common[@]}" run_dir=bad 'data.validation=none/validation-*.h5'
expect_error 'seq2seq .* --source FILE... --target FILE... --output none --validation-fraction 0.1'
run_bireme 78 "${common[@]}" run_dir=bad objective=clm
expect_error 'marian, bart, mbart and t5 require seq2seq, denoise or sft'
run_bireme 78 "${common[@]}" run_dir=bad model.decoder_start_token_id=300
expect_error 'set model.decoder_start_token_id'
