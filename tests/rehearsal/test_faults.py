"""Faults planted in the user's own training script: each is caught, under its code, and named.

A fault is a line of `scripts/train.py` that PLANTED_FAULT makes wrong. What is expected is the code, and a pattern that
what is said about it must match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from attncheck.core.rehearsal import Objective
from attncheck.core.results.smoke import deciding_reason, judge_result
from attncheck.rehearsal.worker import records
from tests.rehearsal.staging import LABELLED, ForkServer, list_failures, make_materials, rehearse

ANSWERS = Objective("assistant", ("step_tokens",), "the test")


@dataclass(frozen=True)
class Fault:
    """A fault in the script: what it is started with, and what must be said of it."""

    code: str
    pattern: str
    options: str = ""
    ranks: int = 1
    objective: Objective = LABELLED


PACKED = "--packing"
FAULTS: dict[str, Fault] = {
    # The documents.
    "truncated": Fault("ATN431", r"96 of 96 documents are truncated: \d+ words"),
    "beginnings_lost": Fault("ATN431", r"\d+ of \d+ documents are used without their beginning"),
    "middles_lost": Fault(
        "ATN431", r"\d+ documents lack words in their middle: \d+ words .* the \w+'s in document \d+"
    ),
    "doubled": Fault("ATN431", r"48 documents were used more than once"),
    "same_rows_on_every_rank": Fault("ATN431", r"96 documents were used more than once", ranks=2),
    "every_third_lost": Fault("ATN431", r"47 of the 141 documents .* skipped, the first is document 3"),
    "last_of_row_lost": Fault("ATN431", r"\d+ of the \d+ documents .* skipped", PACKED),
    "halves_swapped": Fault(
        "ATN431", r"continue with another document's words in the middle of a row.* documents are mixed"
    ),
    "words_shuffled": Fault("ATN431", r"words of batch 1, row 1 belong to no document"),
    # The labels.
    "labels_shifted": Fault("ATN431", r"labels are shifted before they reach the model"),
    "labels_of_another_row": Fault("ATN431", r"labels differ from the token at their position"),
    "padding_labelled": Fault("ATN431", r"labels are on padding"),
    "prompt_labelled": Fault("ATN431", r"labels are on the user's words", "--answers_only", objective=ANSWERS),
    "end_hidden": Fault("ATN431", r"the last token of every document, \d+, is hidden by the attention mask"),
    "end_unlabelled": Fault("ATN431", r"does not learn to stop"),
    "end_missing": Fault(
        "ATN431", r"no token ends a document in any of 4: the model does not learn to stop", "--answers_only"
    ),
    "answers_labelled_late": Fault(
        "ATN431", r"no label is on the first 1 words of each of 4 answers", "--answers_only"
    ),
    "labels_padded_left": Fault("ATN431", r"labels are off by their row's padding: .* other side"),
    "answers_unlabelled": Fault("ATN431", r"none of the \d+ words of answers has a label"),
    "two_begins": Fault("ATN431", r"4 of 4 documents begin with the BOS token \d+ twice"),
    "noise_in_labels": Fault("ATN431", r"words of batch 1, row \d are no document's|belong to no document"),
    # What tokens see.
    "positions_doubled": Fault("ATN432", r"its positions are wrong; nothing else is", PACKED),
    "positions_restart": Fault(
        "ATN432", r"restart inside documents, .*computing it that way explains 100%", f"{PACKED} --isolation positions"
    ),
    "positions_run_on": Fault(
        "ATN432",
        r"attend to earlier documents in the row.*\n(.*\n)*.*positions of document \d+ are 2\d\d",
        f"{PACKED} --isolation positions",
    ),
    "mask_of_ones": Fault(
        "ATN432", r"attend to earlier documents in the row.*\n(.*\n)*.*a mask of shape \(2, \d+\)", PACKED
    ),
    "mask_without_documents": Fault(
        "ATN432", r"attend to earlier documents in the row.*\n(.*\n)*.*shape \(2, 1, ", PACKED
    ),
    "mask_of_ones_and_zeros": Fault("ATN432", r"the mask is added to the scores.*: its numbers, 0 to 1, hide", PACKED),
    "mask_not_causal": Fault("ATN432", r"attend to later tokens: attention is not causal", PACKED),
    "padding_seen": Fault("ATN432", r"tokens attend to padding"),
    "kernel_not_causal": Fault("ATN432", r"the whole row, later tokens included: attention is not causal"),
    "kernel_ignores_the_mask": Fault("ATN432", r"attend to earlier documents in the row", PACKED),
    "kernel_of_another_scale": Fault("ATN432", r"scores are 0.5 times .* softmax_scale"),
    "kernel_without_scale": Fault("ATN432", r"its scores are not scaled; computing it that way explains 100%"),
    "kernel_sees_a_window": Fault("ATN432", r"only to the last 5 tokens: a window"),
    # Modules of the model.
    "mask_of_an_earlier_batch": Fault(
        "ATN432", r"step \d: the mask (hides|shows) tokens of .*documents? \(it is an earlier batch's mask\)", PACKED
    ),
    "cache_kept": Fault("ATN432", r"attend to \d+ tokens of an earlier call: .* cache \(past_key_values\)"),
    "positions_interpolated": Fault(
        "ATN432", r"is model.rotary_emb \(Interpolated: Interpolated.forward, \S*train.py:\d+\)"
    ),
    "frequencies_rounded": Fault("ATN432", r"\nmodel.rotary_emb.inv_freq is rounded to torch.bfloat16, as by model.to"),
    "norm_of_another_epsilon": Fault("ATN432", r"module .* differs is model.layers.1.input_layernorm \(LlamaRMSNorm"),
    "output_scaled_by_a_hook": Fault("ATN432", r"is model.layers.1.mlp \(.* with the hook .*, \S*train.py:\d+"),
    "noise_in_embeddings": Fault("ATN432", r"is model.embed_tokens \(.* with the hook add_noise, \S*train.py:\d+"),
    "keys_turned_late": Fault(
        "ATN432", r"layers.0.self_attn (.*\n)*.*modeling_llama.apply_rotary_pos_emb is turn_keys"
    ),
    "heads_tiled": Fault("ATN432", r"layers.0.self_attn (.*\n)*.*sdpa_attention.repeat_kv is tile_heads, \S*train.py"),
    "one_layer_not_causal": Fault("ATN432", r"is model.layers.1.self_attn \(.* with the hook forget_mask"),
    "activation_replaced": Fault("ATN432", r"is model.layers.1.mlp.act_fn \(ReLU"),
    # The loss.
    "shifted_twice": Fault("ATN433", r"the one after the next: labels are shifted twice"),
    "not_shifted": Fault("ATN433", r"each token is trained to predict itself: labels are not shifted"),
    "not_shifted_summed": Fault("ATN433", r"labels are not shifted \([\d.]+ times the mean over each batch's"),
    "padding_learned": Fault(
        "ATN433",
        r"within padding are trained.*\n(.*\n)*the script's own code for this: train.py:\d+",
        "--loss hidden_labels",
    ),
    "shifted_backwards": Fault("ATN433", r"each token is trained to predict the one before it", "--loss hidden_labels"),
    "mean_of_batches": Fault("ATN433", r"loss is [\d.]+: the mean over each batch's target tokens"),
    "mean_of_rows": Fault("ATN433", r"loss is [\d.]+: the mean over each row's target tokens"),
    "mean_of_documents": Fault("ATN433", r"loss is [\d.]+: the mean over each document's target tokens", PACKED),
    "mean_of_ranks": Fault("ATN433", r"loss is [\d.]+: the mean over each rank's target tokens", ranks=2),
    "mean_of_groups": Fault("ATN433", r"the target tokens that all ranks have in a batch, averaged over", ranks=2),
    "mean_of_positions": Fault("ATN433", r"loss is [\d.]+: each batch's sum .* divided by all its positions"),
    "not_divided_by_accumulation": Fault("ATN433", r"too large by the number of accumulation steps"),
    "divided_by_accumulation_twice": Fault("ATN433", r"divided twice by the number of accumulation steps"),
    "sum": Fault("ATN433", r"the sum over target tokens, not their mean"),
    "another_loss": Fault("ATN433", r"loss of the first step: [\d.]+, against the mean over all target tokens"),
    "times_seven": Fault("ATN433", r": 7 times the mean over all target tokens"),
    "steps_after_every_batch": Fault("ATN433", r": 0.5 times the mean over all target tokens"),
    # The gradients.
    "ranks_apart": Fault("ATN434", r"rank 1 steps with different gradients from rank 0.* not averaged", ranks=2),
    "summed_over_ranks": Fault("ATN434", r"2 times those of the loss: .*the number of ranks", ranks=2),
    "reduced_after_clipping": Fault(
        "ATN434",
        r"rank 1 clips other gradients than rank 0, .* averaged across ranks before they are clipped",
        ranks=2,
    ),
    "gradients_zeroed_between_batches": Fault(
        "ATN434", r"only from batch 2 of 2: the gradients of the others are lost, because train.py:\d+ zeroes them"
    ),
    "layer_detached": Fault("ATN434", r"no gradient reaches 10 of 21 parameters: model.embed_tokens"),
    "layer_detached_in_forward": Fault(
        "ATN434", r"no gradient reaches .* code in the model: a LlamaDecoderLayer.forward is .*, \S*train.py:\d+"
    ),
    "mlp_detached": Fault("ATN434", r"no gradient reaches .* code in the model: .*Detached.forward, \S*train.py:\d+"),
    "hidden_states_detached": Fault("ATN434", r"no gradient reaches 20 of 21 parameters", "--loss own_head"),
    "gradient_scaled_in_a_layer": Fault(
        "ATN434",
        r"of 1 of 21 .* 0.5 times the right ones: model.layers.0.mlp.down_proj.* hooks on gradients: spoil_model",
    ),
    "new_tokens_masked": Fault(
        "ATN434",
        r"a hook zeroes the gradients of all 2 rows of lm_head.weight that the launch adds; .* hooks .*train.py",
    ),
    "old_tokens_decay": Fault(
        "ATN438",
        r"weight_decay=0.1 changes \d+ of \d+ rows of lm_head.weight, .* the hook spoil_model.*train.py:\d+ zeroes",
    ),
    "halved_after_each_batch": Fault(
        "ATN434", r"of 9 of 21 .* wrong: .* hooks on gradients: halve, \S*train.py:\d+ \(on model.layers.0"
    ),
    "gradient_of_attention_wrong": Fault("ATN434", r"5 of 21 .* wrong: .*model.layers.0.self_attn.q_proj.* hooks on"),
    "checkpointing_drops_gradients": Fault("ATN434", r"no gradient reaches 6 of 8 parameters: .*mlp.gate_proj"),
    # The optimiser's steps.
    "optimiser_of_another_model": Fault("ATN438", r"none of the 21 parameters that the optimiser holds has a gradient"),
    "attention_not_held": Fault("ATN438", r"does not hold 8 of 21 .*: model.layers.0.self_attn.q_proj.weight"),
    "unfrozen_and_not_held": Fault(
        "ATN438", r"does not hold 1 of 21 .* from step 2 onwards, .* no longer frozen: model.embed_tokens.weight"
    ),
    "rate_as_attribute": Fault("ATN438", r"sets optimizer.lr, to 0.0002 by step 3, .* no effect: .*, lr stays 0.005"),
    "gradients_zeroed_after_clipping": Fault("ATN438", r"step 1: .* 9 of 21 .* zeroed .*: model.layers.1.self_attn"),
    "gradient_turned_after_clipping": Fault("ATN438", r"multiplied by -1 before the step: model.layers.1.mlp.up_proj"),
    "gradients_noisy_after_clipping": Fault("ATN438", r"1 of 21 parameters are changed before the step: .*mlp.up_proj"),
    "gradient_lost_in_the_optimiser": Fault("ATN438", r"leaves 1 of 21 .*: model.layers.0.self_attn.v_proj.weight"),
    "maximised": Fault("ATN438", r"AdamW follows the gradient upwards \(maximize\)"),
    "never_zeroed": Fault("ATN438", r"step 2 differentiates its first loss: zero_grad is missing"),
    "zeroed_before_the_last": Fault("ATN438", r"zero_grad in train.py:\d+ runs between a step's batches, .*not zeroed"),
    "clipped_each_batch": Fault("ATN438", r"clipped after batch 1 of the 2 of a step"),
    "clipped_after_the_step": Fault("ATN438", r"clipped after the optimiser's step"),
    "head_alone_trained": Fault("ATN438", r"1 of 21 parameters are trained, without an adapter: lm_head.weight"),
    "weights_copied_back": Fault("ATN438", r"21 of 21 parameters that get gradients never change"),
    "evaluation_mode": Fault("ATN438", r"trained in evaluation mode: "),
    "evaluation_mode_later": Fault("ATN438", r"trained in evaluation mode, from step 2 onwards"),
    "half_of_an_adapter": Fault("ATN438", r"all 1 trained parameters are 0 .*lora_A; these parts .* frozen: .*lora_B"),
    "state_cleared": Fault("ATN438", r"state of 21 of 21 parameters is lost before step 2"),
    "first_step_too_early": Fault("ATN438", r"step 1 is taken after 1 of the 2 batches of each later step"),
    "scheduled_each_batch": Fault(
        "ATN438", r"scheduler steps 3 times for each optimiser step \(train.py:\d+, train.py:\d+\)"
    ),
    "clipped_while_scaled": Fault("ATN438", r"clipped before unscale_", "--reduction scaler"),
    # Later steps.
    "stale_batch": Fault("ATN431", r"4 documents were used more than once among the first 96"),
    "labels_wrong_in_step_three": Fault("ATN431", r"step 3: \d+ of \d+ labels differ from the token at their position"),
    "mask_lost_in_step_three": Fault("ATN432", r"step 3: tokens attend to earlier documents in the row", PACKED),
    "frequencies_rounded_in_step_three": Fault(
        "ATN432", r"\nstep 3: model.rotary_emb.inv_freq is rounded to torch.bfloat16, as by model.to"
    ),
    "sum_from_step_two": Fault("ATN433", r"step 2: .*the sum over target tokens, not their mean"),
    # Learning.
    "averages_copied_back": Fault(
        "ATN436", r"it does not learn\n(.*\n)*.* back by 0.99 of the step, as if averaged weights \(EMA\)"
    ),
    "learning_rate_zero": Fault("ATN436", r"it does not learn"),
    "never_steps": Fault("ATN436", r"48 losses were differentiated, but no optimiser took a step"),
    "nan": Fault("ATN436", r"the loss is NaN at step 3"),
}
# A fault of each kind, quick to run.
EVERY_TIME = (
    "halves_swapped", "every_third_lost", "labels_shifted", "padding_labelled", "mask_of_ones", "kernel_not_causal",
    "shifted_twice", "mean_of_batches", "ranks_apart",
    "layer_detached_in_forward", "rate_as_attribute", "unfrozen_and_not_held",
    "gradient_scaled_in_a_layer", "new_tokens_masked",
    "never_steps", "attention_not_held", "gradients_zeroed_after_clipping",
    "state_cleared",
    "never_zeroed", "labels_wrong_in_step_three", "scheduled_each_batch", "answers_labelled_late",
    "evaluation_mode_later", "keys_turned_late", "two_begins",
    "another_loss", "end_missing",
)  # fmt: skip
# These faults bring others about that are found on top.
ALSO = {
    "halves_swapped": {"ATN432"},
    "words_shuffled": {"ATN432"},
    "noise_in_labels": {"ATN432"},
    "not_shifted": {"ATN436"},
    "not_shifted_summed": {"ATN436"},
    "sum_from_step_two": {"ATN436"},
    "first_step_too_early": {"ATN433"},
    "clipped_while_scaled": {"ATN433"},
}
# The same faults where labels do not go into the model: the loss and the gradients alone show them.
HIDDEN = ("shifted_twice", "not_shifted", "not_shifted_summed", "mean_of_batches", "mean_of_rows",
          "not_divided_by_accumulation", "sum")  # fmt: skip

# What a user may mean, by the name that makes the script do it: none of it is an error.
LEGAL = ("optimiser_adafactor", "optimiser_own", "two_optimisers", "values_clipped", "zeroed_after_the_forward_pass",
         "embeddings_frozen", "unfrozen_and_held", "rate_as_attribute_kept", "embeddings_tied", "head_drops_out",
         "positions_scaled",
         "small_addition", "one_begin", "noise", "second_pass", "second_pass_of_data", "teacher",
         "teacher_and_half")  # fmt: skip

CLEAN: dict[str, tuple[str, int]] = {
    "padded": ("", 1),
    "packed": (PACKED, 1),
    "packed, by positions alone": (f"{PACKED} --isolation positions", 1),
    "packed, shuffled": (f"{PACKED} --shuffle", 1),
    "eager": (f"{PACKED} --attn_implementation eager", 1),
    "autocast": ("--bf16", 1),
    "autocast, packed, checkpointed": (f"--bf16 {PACKED} --gradient_checkpointing", 1),
    "answers": ("--answers_only", 1),
    "answers, labels not seen": ("--answers_only --loss hidden_labels", 1),
    "labels not seen": (f"{PACKED} --loss hidden_labels", 1),
    "first tokens, labels not seen": (f"{PACKED} --first_tokens --loss hidden_labels", 1),
    "a decoder and its head": (f"{PACKED} --loss own_head", 1),
    "a scaler": ("--reduction scaler", 1),
    "sums, gradients divided": ("--reduction gradients", 1),
    "two ranks": ("", 2),
    "two ranks, packed": (PACKED, 2),
    "two ranks, summed": ("--reduction sum", 2),
    "two ranks, gradients divided": (f"--reduction gradients {PACKED}", 2),
    "one rank, flat parameters": ("--fsdp flat", 1),
    "two ranks, flat parameters": (f"--fsdp flat --bf16 {PACKED}", 2),
    "two ranks, sharded parameters": (f"--fsdp original {PACKED}", 2),
    "two ranks, parts of parameters": ("--fsdp parts", 2),
}
SEEDS = range(5)
CLEAN_EVERY_TIME = (("two ranks, packed", 0), ("autocast", 1), ("a decoder and its head", 0))


def prepare(stages: dict[int, Path], factory: pytest.TempPathFactory, seed: int) -> Path:
    """Return the materials of a seed, made once."""
    if seed not in stages:
        stages[seed] = make_materials(factory.mktemp(f"materials-{seed}"), seed)
    return stages[seed]


Stages = dict[int, Path]
NAMES = [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_caught_and_named(
    name: str, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    folder = prepare(stages, tmp_path_factory, 0)
    results = rehearse(server, folder, tmp_path / "watch", fault.options, name, fault.ranks, fault.objective)
    failures = list_failures(results)
    assert fault.code in failures, {check: deciding_reason(result) for check, result in results.items()}
    assert re.search(fault.pattern, failures[fault.code]), failures[fault.code]
    assert set(failures) - {fault.code} <= ALSO.get(name, set())


@pytest.mark.nightly
@pytest.mark.parametrize("name", HIDDEN)
def test_a_fault_is_named_where_labels_do_not_go_into_the_model(
    name: str, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = prepare(stages, tmp_path_factory, 0)
    results = rehearse(server, folder, tmp_path / "watch", "--loss hidden_labels", name)
    assert re.search(FAULTS[name].pattern, list_failures(results)["ATN433"])


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["flat", "original"])
@pytest.mark.parametrize("name", ["layer_detached", "gradients_zeroed_between_batches", "mean_of_ranks"])
def test_a_fault_is_named_where_fsdp_holds_the_parameters(
    name: str, form: str, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    folder = prepare(stages, tmp_path_factory, 0)
    results = rehearse(server, folder, tmp_path / "watch", f"--fsdp {form}", name, ranks=2)
    assert re.search(fault.pattern, list_failures(results)[fault.code])


@pytest.mark.parametrize(
    ("name", "answer", "pattern"),
    [
        ("clipped_by_hand_in_parts", "fail", r"multiply their parts of the gradients by [\d.]+, [\d.]+: each clips"),
        pytest.param("clipped_by_hand", "skipped", r"other code then changes them", marks=pytest.mark.nightly),
    ],
)
def test_ranks_with_parts_of_parameters_clip_by_one_norm(
    name: str,
    answer: str,
    pattern: str,
    server: ForkServer,
    stages: Stages,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    folder = prepare(stages, tmp_path_factory, 0)
    results = rehearse(server, folder, tmp_path / "watch", "--fsdp parts", name, ranks=2)
    result = results["gradients"]
    assert judge_result(result) == answer, result
    assert re.search(pattern, deciding_reason(result)), result
    assert set(list_failures(results)) == ({"ATN434"} if answer == "fail" else set())


CLEAN_RUNS = [
    pytest.param(name, seed, marks=[pytest.mark.nightly] * ((name, seed) not in CLEAN_EVERY_TIME))
    for name in CLEAN
    for seed in SEEDS
]


@pytest.mark.parametrize(("name", "seed"), CLEAN_RUNS)
def test_a_script_that_is_right_gives_no_finding(
    name: str, seed: int, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    options, ranks = CLEAN[name]
    results = rehearse(server, prepare(stages, tmp_path_factory, seed), tmp_path / "watch", options, "", ranks)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    is_flat = "--fsdp" in options  # of whose parameters the optimiser holds parts
    assert {answer for check, (answer, _) in answers.items() if check != "update" or not is_flat} == {"pass"}, answers
    assert answers["update"][0] == ("skipped" if is_flat else "pass")
    for result in results.values():  # every pass says what it was asked of
        asked = [note for note in result.notes if note.startswith("asked of ")]
        assert len(asked) == (judge_result(result) == "pass")
        attention = "eager" if "eager" in options else "sdpa"
        words = (f"LlamaForCausalLM, {attention}, float32", f"ranks: {ranks}", "batches: 2")
        assert all(word in text for word in (*words, LABELLED.text) for text in asked), asked


@pytest.mark.nightly
@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_is_no_error(
    name: str, server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    results = rehearse(server, prepare(stages, tmp_path_factory, 0), tmp_path / "watch", "", name)
    answers = {check: (judge_result(result), deciding_reason(result)) for check, result in results.items()}
    expected = {"pass", "skipped"} if name.startswith(("second_pass", "noise", "teacher_and")) else {"pass"}
    assert {answer for answer, _ in answers.values()} == expected, answers


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "options", "check", "pattern"),
    [
        ("", f"{PACKED} --first_tokens", "batch", r"first token of \d+ documents has a label"),
        ("rope_changed_late", "", "documents", r"inv_freq was computed before .* was changed"),
        ("dropout", "", "documents", r"random in training: model.layers.0.self_attn.attention_dropout 0.1"),
        (
            "weights_averaged",
            "",
            "update",
            r"21 parameters are changed by other code between the optimiser's step 1 and the next batch",
        ),
        ("mask_of_two", "", "batch", r"begin within the user's words, after the first 1"),
        ("tie_broken", "", "update", r"ties the head to the embeddings .* two parameters"),
        ("second_pass_kept", "", "update", r"21 parameters are changed by other code during step 1: model"),
        ("weights_shrunk", "", "update", r"between the optimiser's step 1 and the next batch, multiplied by 0.9: "),
        ("scheduled_each_batch_only", "", "update", r"steps 2 times for each optimiser step \(train.py:\d+\)"),
        ("other_weights", "", "documents", r"differ from the checkpoint when training starts"),
        ("other_weights", "--fsdp flat", "documents", r"differ from the checkpoint when training starts"),
    ],
)
def test_what_may_be_meant_is_a_warning(
    fault: str,
    options: str,
    check: str,
    pattern: str,
    server: ForkServer,
    stages: Stages,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    results = rehearse(server, prepare(stages, tmp_path_factory, 1), tmp_path / "watch", options, fault)
    left = {"loss", "gradients"} if fault.startswith("second_pass") else {"update"} if "flat" in options else set()
    others = {name: deciding_reason(result) for name, result in results.items() if judge_result(result) != "pass"}
    assert others.keys() == {check, *left}, others
    assert judge_result(results[check]) == "warn" and re.search(pattern, deciding_reason(results[check]))


@pytest.mark.parametrize(("fault", "answer"), [("mean_of_rows", "warn"), ("mean_of_batches", "fail")])
def test_a_trainers_own_loss_may_mean_rows(
    fault: str,
    answer: str,
    server: ForkServer,
    stages: Stages,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mean of batches is a loss that forgets the number of tokens of the step."""
    read, code = records.read_ranks, {"trainer": [], "loss": ["MyTrainer.compute_loss, train.py:1"]}
    monkeypatch.setattr(records, "read_ranks", lambda *own: [replace(record, code=code) for record in read(*own)])
    results = rehearse(server, prepare(stages, tmp_path_factory, 0), tmp_path / "watch", "", fault)
    assert judge_result(results["loss"]) == answer, results["loss"]


@pytest.mark.nightly
def test_positions_that_begin_elsewhere_change_nothing(
    server: ForkServer, stages: Stages, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Rotary embeddings rest on differences of positions: what is measured is right, and nothing is reported."""
    folder = prepare(stages, tmp_path_factory, 0)
    results = rehearse(server, folder, tmp_path / "watch", PACKED, "positions_off_by_one")
    assert list_failures(results) == {}
