"""Training across ranks equals training on one: genuine ring-flash-attn and Ulysses over gloo ranks, and spoilt.

flash-attn's kernels are emulated; the adapter, its llama3 scheme and transformers' models are the genuine ones.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace

import pytest

from attncheck.core import codec
from attncheck.core.plan import RING_NAMES, Change, Plan
from attncheck.core.results.hf_adapter import HOOKED_IMPLEMENTATION
from attncheck.core.results.smoke import CheckResult, Layer, Measure, deciding_reason, judge_result
from attncheck.ring.group import Ring
from attncheck.smoke import over_ranks, run
from attncheck.smoke.checks.parallel import CHECK
from attncheck.smoke.trials import Trial, TrialRunner, read_result
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Event
from tests.ring.on_ranks import run_items

pytest.importorskip("torch")
pytest.importorskip("transformers")
if importlib.util.find_spec("ring_flash_attn") is None:
    pytest.skip("ring-flash-attn is not installed", allow_module_level=True)
RING = Plan(attn_implementation=HOOKED_IMPLEMENTATION, ring_size=2, shims=(RING_NAMES,))
ULYSSES = Plan(ring_size=2, scheme="ulysses", precision="fp32")
Results = dict[str, CheckResult]


def run_plans(ranks: int, items: Iterable[tuple[str, str, str, Plan]]) -> Results:
    """Return the results of items, (driver, name, model, plan), run on one group of ranks."""
    item_list = list(items)
    cases = {name: {"model": model, "plan": codec.to_plain(plan)} for _, name, model, plan in item_list}
    events = run_items(
        ranks,
        [(driver, name) for driver, name, _, _ in item_list],
        task="attncheck.smoke.worker.ranks.parallel:smoke",
        shim=False,
        cases=cases,
    )
    return {event.item: read_result(event, "parallel") for event in events}


def sound_items(
    ranks: int, ring_seeds: Iterable[int], ulysses_seeds: Iterable[int]
) -> Iterable[tuple[str, str, str, Plan]]:
    for model in ("llama", "qwen2"):
        for seed in ring_seeds:
            yield "llama3", f"{model} {seed}", model, replace(RING, ring_size=ranks, seed=seed)
        for seed in ulysses_seeds:
            yield "ulysses", f"ulysses {model} {seed}", model, replace(ULYSSES, ring_size=ranks, seed=seed)


def measures_by_name(result: CheckResult) -> dict[str, Measure]:
    return {measure.what: measure for measure in result.measures}


@pytest.fixture(scope="module")
def sound_results() -> Results:
    """Return the results on two ranks of sound plans, and of wrong ones that need no injected fault."""
    return run_plans(
        2,
        [
            ("llama3", "unshimmed", "llama", replace(RING, shims=())),
            *sound_items(2, range(2), range(1)),
            ("llama3", "stride", "llama", replace(RING, heads_k_stride=2)),
            ("llama3", "checkpointing", "qwen2", replace(RING, gradient_checkpointing=True)),
            ("llama3", "autocast", "llama", replace(RING, precision="autocast")),
            ("ulysses", "ulysses bf16", "llama", replace(ULYSSES, precision="bf16")),
            ("ulysses", "ulysses windows", "mistral", ULYSSES),
            ("ulysses", "ulysses softcap", "gemma2", ULYSSES),
            ("llama3", "sdpa", "llama", replace(RING, attn_implementation="sdpa")),
            ("llama3", "windows", "mistral", RING),
            ("llama3", "sinks", "gpt_oss", RING),
            ("llama3", "linear", "qwen3_next", RING),
            ("llama3", "wrong stride", "llama", replace(RING, heads_k_stride=3)),
        ],
    )


SOUND = ("stride", "checkpointing", "autocast", "ulysses bf16", "ulysses windows")


def test_sound_plans_pass_whatever_model_and_seed(sound_results: Results) -> None:
    names = [name for _, name, _, _ in sound_items(2, range(2), range(1))] + list(SOUND)
    assert len(names) == 11
    for name in names:
        assert judge_result(sound_results[name]) == "pass", (name, deciding_reason(sound_results[name]))
        assert len(sound_results[name].layers) == 2 and all(layer.ran for layer in sound_results[name].layers)
    loss = measures_by_name(sound_results["llama 0"])["the loss itself"]
    assert loss.value < 1e-6 and loss.limit == 1e-5
    assert measures_by_name(sound_results["ulysses llama 0"])["gradients"].limit == 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_pass_too(ranks: int) -> None:
    results = run_plans(ranks, sound_items(ranks, range(3), range(2)))
    for name, result in results.items():
        if ranks == 3 and name.startswith("ulysses"):
            assert judge_result(result) == "refused" and "4 heads do not divide by 3 ranks" in result.reason
        else:
            assert judge_result(result) == "pass", (name, deciding_reason(result))


def test_the_plain_import_fails_and_the_shim_fixes_it(sound_results: Results) -> None:
    result = sound_results["unshimmed"]
    plan = replace(RING, shims=())
    if result.outcome == "ok":  # an older transformers, which has the names
        assert judge_result(result) == "pass"
        return
    assert result.outcome == "raised" and "cannot import name 'is_flash_attn_greater_or_equal_2_10'" in result.reason
    assert "/" not in result.reason, "no path of this machine"
    change, *_, last = CHECK.changes(plan, result)
    assert change.kind == "edit" and change.plan == RING and "before `import ring_flash_attn`" in change.text
    assert last.plan.ring_size == 1
    assert any("restored in transformers" in note for note in sound_results["llama 0"].notes)


def test_another_implementation_is_silent_and_named(sound_results: Results) -> None:
    result = sound_results["sdpa"]
    assert judge_result(result) == "fail"
    assert deciding_reason(result) == "ring-flash-attn llama3 is never called under sdpa: the ring is silently inactive"
    assert "the logits match each shard in isolation" in result.violations
    change = first_change(replace(RING, attn_implementation="sdpa"), result)
    assert change.plan == RING and change.text == 'attn_implementation="flash_attention_2"'


def test_a_stride_that_does_not_divide_is_named(sound_results: Results) -> None:
    result = sound_results["wrong stride"]
    assert result.outcome == "raised" and "heads_k_stride 3 does not divide 2 kv heads" in result.reason
    assert first_change(replace(RING, heads_k_stride=3), result).plan == RING


def test_what_the_adapter_drops_is_named(sound_results: Results) -> None:
    assert "the logits match the model with windows one token wider" in sound_results["windows"].violations
    assert any("without its sinks" in violation for violation in sound_results["sinks"].violations)
    assert "linear_attn: the state along the row" in sound_results["linear"].violations[0]
    assert (
        sound_results["ulysses softcap"].outcome == "refused" and "softcap" in sound_results["ulysses softcap"].reason
    )


def first_change(plan: Plan, result: CheckResult) -> Change:
    return next(iter(CHECK.changes(plan, result)))


# The fault, and a part of the message that must name it.
PLANTED = {
    "mean_of_means": "tokens have different weights in the loss",
    "divided_twice": "gradients are 1/2 of what they should be",
    "reduced_twice": "gradients are 1/2 of what they should be",
    "summed": "gradients are 2 times what they should be",
    "missing": "rank 1 has no gradient",
    "missing_one": "rank 1 has no gradient of lm_head.weight",
    "not_finite": "rank 0 has NaN or infinity in the gradient of lm_head.weight",
    "not_added": "rank 1's gradient is reduced with weight 0",
    "not_shared": "the ranks hold different gradients",
    "labels_of_the_shard": "first token 39, the last of rank 0's shard",
    "labels_unshifted": "trained on a wrong label",
    "first_positions": "the first shard's positions on every rank",
    "positions_anew": "positions that restart on each shard",
    "edges_late": "documents that end a token late (cu_seqlens off by one)",
    "edges_gone": "all documents as one",
    "local": "each shard in isolation",
    "turned": "the shards gathered in the order 1, 0",
    "padding_counts": "first padding on rank 1",
    "last_tokens_count": "trained on without a target",
    "no_value_gradient": "gradient",
}


@pytest.fixture(scope="module")
def fault_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of every fault, and of one sound plan after them."""
    from tests.smoke.parallel_faults import FAULTS, install_faults

    assert set(FAULTS) == set(PLANTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", install_faults(tmp_path_factory.mktemp("faults")))
        return run_plans(2, [*((fault, fault, "llama", RING) for fault in FAULTS), ("llama3", "sound", "llama", RING)])


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_is_named(fault: str, fault_results: Results) -> None:
    result = fault_results[fault]
    assert judge_result(result) == "fail", result
    lines = [*result.violations, *(measure.what for measure in result.measures if measure.value > measure.limit)]
    assert any(PLANTED[fault] in line for line in lines), lines


def test_faults_are_told_apart(fault_results: Results) -> None:
    assert judge_result(fault_results["sound"]) == "pass", "what was planted before no longer exists"
    only_backward = measures_by_name(fault_results["no_value_gradient"])
    assert only_backward["logits"].value < only_backward["logits"].limit
    assert not fault_results["no_value_gradient"].violations
    right_logits = ("mean_of_means", "missing", "labels_of_the_shard", "padding_counts", "summed", "not_added")
    assert not any("logits match" in line for fault in right_logits for line in fault_results[fault].violations)


def test_the_verb_starts_the_ranks_and_tells_how_they_are_lost() -> None:
    target = ExecutionTarget(sys.executable, "cpu", 60.0)
    lines: list[str] = []
    result = over_ranks.run_parallel_check("no-such-model", RING, Ring(2), target, lines.append)
    assert result.outcome == "skipped" and "no-such-model" in result.reason and result.seconds > 0
    assert lines == ["no-such-model: 2 ranks compared with one"]
    job = over_ranks.make_rank_job("llama", RING, Ring(2), target)
    assert job.world_size == 2 and job.items == (("llama3", "llama"),) and job.message["emulate"]


def test_ranks_are_started_once_for_a_plan() -> None:
    """All checks of a fixed plan take the result across ranks that proved the change."""
    lines: list[str] = []
    request = run.Request(plan=RING, models=("no-such-model",), check_names=("parallel",), ring=Ring(2))
    runner = TrialRunner(ExecutionTarget(sys.executable, "cpu", 60.0), lines.append)
    trial = Trial("no-such-model", RING, "", ("parallel",))
    [first], [again] = (run._run_trials(request, runner, [trial]) for _ in range(2))
    run._run_trials(request, runner, [replace(trial, plan=replace(RING, heads_k_stride=2))])
    assert first.results == again.results and first.results[0].outcome == "skipped"
    assert lines.count("no-such-model: 2 ranks compared with one") == 2


@pytest.mark.parametrize(
    ("kind", "reason", "verdict"),
    [
        ("raised", "every rank: ImportError: no", "fail"),
        ("raised", "rank 0: CUDA out of memory", "skipped"),
        ("died", "rank 1 ended with SIGKILL", "lost"),
        ("timed_out", "no answer within 60 s", "lost"),
        ("given_up", "given up after 3 lost groups", "skipped"),
    ],
)
def test_lost_ranks_are_told(kind: str, reason: str, verdict: str) -> None:
    result = read_result(Event("llama3", "llama", kind, reason=reason), "parallel")  # type: ignore[arg-type]
    assert judge_result(result) == verdict and result.reason == reason


def test_a_ring_that_has_not_run_yet_may_need_more_than_the_shim() -> None:
    plan = Plan(attn_implementation="sdpa", ring_size=2, heads_k_stride=2)
    gone = "cannot import name '_flash_supports_window' from 'transformers.modeling_flash_attention_utils'"
    changes = list(CHECK.changes(plan, CheckResult("parallel", "raised", f"every rank: ImportError: {gone}")))
    assert changes[0].title == "restore the names that ring-flash-attn imports from transformers"
    assert "flash._flash_supports_window = True" in changes[0].text
    assert changes[-2].plan == replace(RING, heads_k_stride=1) and changes[-1].plan == replace(plan, ring_size=1)
    assert [change.plan.ring_size for change in CHECK.changes(RING, CheckResult("parallel"))] == [1]
    assert CHECK.applies(Plan()) and not CHECK.applies(RING)


def test_a_row_is_cut_as_openrlhf_cuts_it() -> None:
    """The example of `unpad_and_slice_tensor` (OpenRLHF 0.11.2, models/ring_attn_utils.py) and what it computes."""
    import torch

    from attncheck.smoke.worker.ranks.sharded import Driver, pack_row

    packed = pack_row([torch.tensor([1, 2, 3]), torch.tensor([4, 5])], "cpu")
    first, second = (Driver(None, rank, 2, lambda edges: None) for rank in (0, 1))
    assert [driver.shard(packed, packed.tokens).tolist() for driver in (first, second)] == [[[1, 2, 3]], [[4, 5, 0]]]
    assert [driver.local_positions(packed).tolist() for driver in (first, second)] == [[[0, 1, 2]], [[0, 1, 0]]]
    assert [driver.local_labels(packed).tolist() for driver in (first, second)] == [[[2, 3, 1]], [[5, 0, 0]]]
    assert first.cu_seqlens(packed).tolist() == [0, 3, 6] and packed.cu_seqlens == (0, 3, 5)
    assert packed.targets.tolist() == [2, 3, -1, 5, -1]


def test_a_layer_that_the_ring_leaves_out_is_named() -> None:
    from attncheck.smoke.worker.ranks.parallel import _find_missed_layers

    layers = [
        Layer(f"layers.{index}.self_attn", "", HOOKED_IMPLEMENTATION, "sdpa", ("llama3",) * index) for index in (0, 1)
    ]
    assert list(_find_missed_layers(layers, "llama3")) == ["llama3 is not called in layers.0.self_attn, under sdpa"]
    assert list(_find_missed_layers(layers[:1], "llama3")) == [
        "llama3 is never called under sdpa: the ring is silently inactive"
    ]
    assert not list(_find_missed_layers(layers[1:], "llama3"))
