"""What looks like a leak and is none: random numbers, routing, a document that is wrong alone, a wrong loss, cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import dropout  # noqa: E402

from attncheck.core.plan import NO_CUDNN_SDPA, Change, Plan  # noqa: E402
from attncheck.core.results.smoke import CheckResult, PlanRun, deciding_reason, judge_result  # noqa: E402
from attncheck.core.verdicts import MeasuredOn  # noqa: E402
from attncheck.lint import plan_settings  # noqa: E402
from attncheck.smoke import checks, fix_search, run  # noqa: E402
from attncheck.smoke.run import collect_evidence  # noqa: E402
from attncheck.smoke.worker import probe, shims, tasks  # noqa: E402
from attncheck.smoke.worker import testbed as testbeds  # noqa: E402
from attncheck.smoke.worker.data.packing import DocumentSpan, next_token_labels  # noqa: E402
from attncheck.smoke.worker.models import build, shrink  # noqa: E402
from attncheck.smoke.worker.models.architectures import SHAPES  # noqa: E402
from attncheck.smoke.worker.models.randomness import switch_off_randomness  # noqa: E402
from tests import snapshots  # noqa: E402
from tests.smoke import smoke_plants as plants  # noqa: E402

SDPA = Plan(attn_implementation="sdpa", steps=2, max_length=128, accumulation=1)
LEFT = replace(SDPA, packing="padding", padding_side="left")
RUNNING = replace(SDPA, positions="running")  # a real leak: positions that never begin again
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
CUT = {  # sizes that the configurations of these types do not share with others
    "opt": {"word_embed_proj_dim": 128, "ffn_dim": 256},
    "longcat_flash": {"num_layers": 28, "num_hidden_layers": 56, "num_attention_heads": 4, "q_lora_rank": 64,
                      "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
}  # fmt: skip
NIGHTLY = pytest.mark.nightly
TYPES = ("seed_oss", "phimoe", "biogpt", "doge", "gpt2", "opt", "falcon", "olmo", "bert")


@pytest.fixture(autouse=True)
def _offline() -> None:
    build.stay_offline()


def small_model(model_type: str) -> build.Architecture:
    """Return the type's default configuration, cut to a size that builds at once."""
    document = transformers.CONFIG_MAPPING[model_type]().to_dict()
    document |= {name: value for name, value in {**SMALL, **CUT.get(model_type, {})}.items() if name in document}
    return build.Architecture(model_type, {**document, "model_type": model_type})


def run_check(name: str, plan: Plan, source: build.Architecture | None = None) -> CheckResult:
    return checks.load()[0][name].run(testbeds.Testbed(source or build.load_architecture("llama"), plan, "cpu"))


# Random numbers in training mode.


@pytest.mark.parametrize("model_type", TYPES)
def test_no_rate_is_left_on(model_type: str) -> None:
    testbed = testbeds.Testbed(small_model(model_type), SDPA, "cpu")
    assert testbed.random_in_training == ""
    assert testbed.build_model().training


def test_rates_are_found_in_modules_and_configurations() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.kept = nn.AlphaDropout(0.3), nn.Linear(2, 2)
            self.activation_dropout, self.router_jitter_noise, self.eps = 0.1, 0.01, 0.1
            self.drop_last, self.dropout_layers = True, 3
            self.config = transformers.CONFIG_MAPPING["llama"](attention_dropout=0.2, rms_norm_eps=0.3)

    part = Part()
    switch_off_randomness(nn.Sequential(part))
    assert (part.inner.p, part.activation_dropout, part.router_jitter_noise, part.config.attention_dropout) == (0,) * 4
    assert (part.eps, part.drop_last, part.dropout_layers, part.config.rms_norm_eps) == (0.1, True, 3, 0.3)


@contextmanager
def hard_coded_dropout(training: bool | None = None) -> Iterator[None]:
    """A dropout that no attribute holds, in every MLP; without `training` as the module is."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    inner = LlamaMLP.forward

    def forward(self: Any, x: Tensor) -> Any:
        return dropout(inner(self, x), 0.1, self.training if training is None else training)

    with plants.replaced_attribute(LlamaMLP, "forward", forward):
        yield


@contextmanager
def rates_left_on() -> Iterator[None]:
    with plants.replaced_attribute(build, "switch_off_randomness", lambda model: None):
        yield


def attention_dropout() -> Any:
    """An implementation that drops a tenth of its output, regardless of the mode."""

    def change(inner: Any) -> Any:
        def attend(*arguments: Any, **kwargs: Any) -> Any:
            out, weights = inner(*arguments, **kwargs)
            return dropout(out, 0.1, True), weights

        return attend

    return plants.changed_sdpa(change)


@pytest.mark.parametrize(
    ("plant", "model_type"), [(hard_coded_dropout, ""), (rates_left_on, "seed_oss")], ids=["in-code", "seed_oss"]
)
@pytest.mark.parametrize(
    ("name", "plan"),
    [("isolation", SDPA), pytest.param("padding", LEFT, marks=NIGHTLY), pytest.param("training", SDPA, marks=NIGHTLY)],
)
def test_what_is_random_is_said_and_is_no_leak(
    plant: Callable[[], Any], model_type: str, name: str, plan: Plan
) -> None:
    with plant():
        result = run_check(name, plan, small_model(model_type) if model_type else None)
    assert judge_result(result) == "warn", collect_evidence(result)
    assert result.warnings[0].startswith("random in training mode: two runs of the same documents differ by")
    assert "compared in evaluation mode" in result.warnings[0]


@pytest.mark.parametrize("plant", [hard_coded_dropout, nullcontext])
def test_a_leak_beside_a_dropout_is_caught(plant: Callable[[], Any]) -> None:
    with plant():
        result = run_check("isolation", RUNNING)
    assert judge_result(result) == "fail" and "replacing document" in deciding_reason(result)


@pytest.mark.nightly
def test_padding_that_is_attended_beside_a_dropout_is_caught() -> None:
    with hard_coded_dropout(), plants.padding_attended():
        assert judge_result(run_check("padding", LEFT)) == "fail"


def test_what_is_random_in_every_mode_is_not_judged() -> None:
    with hard_coded_dropout(training=True):
        for name, plan in (("implementation", SDPA), ("isolation", RUNNING), ("padding", LEFT)):
            result = run_check(name, plan)
            assert (result.outcome, judge_result(result)) == ("skipped", "skipped")
            assert result.reason.startswith("random in evaluation mode")


def test_an_implementation_that_is_random_is_held_to_what_asking_twice_changes() -> None:
    with attention_dropout():
        result = run_check("isolation", SDPA)
        assert judge_result(result) != "fail", collect_evidence(result)
        assert any("two runs of the same batch differ by" in line for line in collect_evidence(result))


def test_switches_are_not_compared_where_the_model_is_random() -> None:
    plan = replace(SDPA, gradient_checkpointing=True)
    with hard_coded_dropout():
        result = run_check("checkpointing", plan)
    assert result.outcome == "skipped" and "random in training mode" in result.reason
    assert judge_result(run_check("checkpointing", plan)) == "pass"


# Routing.

MANY_EXPERTS = {**SHAPES["mixtral"], "num_local_experts": 32, "num_experts_per_tok": 4}


@contextmanager
def flips_in_packed_rows(flips: int) -> Iterator[None]:
    """The first tokens' second choice goes to the third best, in 16 bit, where more than one document is routed."""
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

    original = MixtralTopKRouter.forward

    def swap_last_choice(scores: Tensor, k: int) -> Tensor:
        size, tokens = scores.shape[-1], torch.arange(flips)
        chosen, next_best = (scores[:flips].kthvalue(size - rank + 1).indices for rank in (k, k + 1))
        swapped = scores.clone()
        swapped[tokens, chosen], swapped[tokens, next_best] = scores[tokens, next_best], scores[tokens, chosen]
        return swapped

    def forward(self: Any, hidden_states: Tensor) -> Any:
        if hidden_states.dtype == torch.float32:
            return original(self, hidden_states)
        hidden_states = hidden_states.reshape(-1, self.hidden_dim)
        logits = nn.functional.linear(hidden_states, self.weight)
        scores = logits.float().softmax(-1)
        scores = swap_last_choice(scores, self.top_k) if len(scores) > 64 else scores
        values, indices = torch.topk(scores, self.top_k, dim=-1)
        return logits, values / values.sum(-1, keepdim=True), indices

    with plants.replaced_attribute(MixtralTopKRouter, "forward", forward):
        yield


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> build.Architecture:
    monkeypatch.setattr(shrink, "_cut_experts", lambda config: None)  # it makes routers choose all experts
    return build.Architecture("routed", MANY_EXPERTS)


def test_experts_that_rounding_chose_are_no_leak(routed: build.Architecture) -> None:
    with flips_in_packed_rows(12):
        result = run_check("isolation", SDPA, routed)
    assert judge_result(result) == "pass", collect_evidence(result)
    assert any("bf16: rounding selected different experts at" in note for note in result.notes), result.notes


@pytest.mark.nightly
def test_more_experts_than_rounding_chooses_are_not_excused(routed: build.Architecture) -> None:
    with flips_in_packed_rows(40):
        result = run_check("isolation", SDPA, routed)
    assert judge_result(result) == "fail" and ", bf16: off by" in deciding_reason(result)


@pytest.mark.nightly
def test_a_leak_under_routers_is_caught(routed: build.Architecture) -> None:
    with flips_in_packed_rows(1):
        assert judge_result(run_check("isolation", RUNNING, routed)) == "fail"


@pytest.mark.nightly
def test_a_first_step_routed_otherwise_is_judged_in_float32(routed: build.Architecture) -> None:
    plan = replace(SDPA, accumulation=4)
    with flips_in_packed_rows(60):
        result = run_check("training", plan, routed)
    assert judge_result(result) == "pass", collect_evidence(result)
    assert result.measures[0].what == "gradients of the first step, fp32"
    assert any("rounding selects different experts at" in note for note in result.notes)
    with flips_in_packed_rows(60), plants.mask_dropped():  # a real fault shows in float32 as well
        assert judge_result(run_check("training", plan, routed)) == "fail"


def test_flips_are_counted_token_by_token() -> None:
    logits, spans = torch.zeros(1, 6, 4), (DocumentSpan(0, 0, 4), DocumentSpan(0, 4, 6))
    chosen = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3], [1, 3], [0, 2]])
    other = chosen.flip(-1).clone()  # the same experts in another order
    other[4] = torch.tensor([2, 3])
    unordered = torch.zeros(1, 8, 6, 2, dtype=torch.int64)  # a selection that is not made token by token
    packed = [probe.Forward([other, unordered], logits)]
    alone = [probe.Forward([chosen[s.start : s.stop]], logits[:, s.start : s.stop]) for s in spans]
    alone_spots = [(n, DocumentSpan(0, 0, s.stop - s.start)) for n, s in enumerate(spans)]
    packed_spots = [(0, span) for span in spans]
    assert probe.count_flips((packed, packed_spots), (alone, alone_spots)) == [0, 1]
    packed[0].choices.append(chosen)
    assert probe.count_flips((packed, packed_spots), (alone, alone_spots)) is None


# A document that is wrong alone.


def test_doge_is_not_causal_and_packing_and_padding_are_not_blamed() -> None:
    source = small_model("doge")
    result = run_check("implementation", SDPA, source)
    if judge_result(result) == "pass":
        pytest.skip("this transformers has doge's mask right")
    assert "it is not causal under sdpa: replacing the tokens from 32 " in deciding_reason(result)
    for name, plan in (("isolation", SDPA), ("padding", LEFT)):
        skipped = run_check(name, plan, source)
        assert skipped.outcome == "skipped" and "even a single document is wrong under sdpa" in skipped.reason
    eager = replace(SDPA, attn_implementation="eager")
    assert not run_check("implementation", eager, source).warnings


@pytest.mark.nightly
def test_a_leak_beside_an_implementation_that_is_wrong_is_caught() -> None:
    with plants.scaled_queries(1.2):
        assert judge_result(run_check("isolation", SDPA)) != "fail"
        result = run_check("isolation", RUNNING)
    assert judge_result(result) == "fail" and "replacing document" in deciding_reason(result)


def test_a_model_that_sees_ahead_in_eager_too_is_a_warning() -> None:
    result = run_check("implementation", replace(SDPA, attn_implementation="eager"), small_model("bert"))
    assert "the model itself attends to future tokens" in result.warnings[0] and judge_result(result) == "warn"


# The loss.


@pytest.mark.parametrize(("name", "plan"), [("isolation", SDPA), ("padding", LEFT)])
def test_a_wrong_loss_is_named_and_is_no_leak(name: str, plan: Plan) -> None:
    with plants.labels_across_documents() if name == "isolation" else loss_counts_padding():
        result = run_check(name, plan)
    assert judge_result(result) == "warn", collect_evidence(result)
    assert "the logits agree but the loss is wrong" in result.warnings[0]
    assert all(measure.what.startswith("logits") for measure in result.measures)


def loss_counts_padding() -> Any:
    """The sum over predicted tokens divided by all tokens, those of padding too."""
    inner = testbeds.collect_run

    def collect(model: nn.Module, logits: Tensor, batch: Any, backward: bool = True) -> Any:
        weight = batch.predicted_tokens / batch.labels.numel()
        shrunk = inner(model, logits, batch, False)
        gradients = {}
        if backward:
            model.zero_grad(set_to_none=True)
            (testbeds.summed_loss(logits, batch.labels) * weight / batch.predicted_tokens).backward()
            gradients = testbeds.collect_gradients(model)
        return replace(shrunk, gradients=gradients)

    return plants.replaced_attribute(testbeds, "collect_run", collect)


def test_a_backward_that_is_wrong_is_not_put_down_to_the_loss() -> None:
    with plants.key_gradient_lost():
        result = run_check("implementation", SDPA)
    assert judge_result(result) == "fail" and "gradients" in deciding_reason(result)


def test_the_fault_of_a_loss_is_measured_at_the_logits() -> None:
    documents, span = [torch.tensor([1, 2, 3])], DocumentSpan(0, 1, 4)
    logits = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    rows = logits[0, 1:3].log_softmax(-1).gather(1, next_token_labels(documents[0])[:2, None])
    (gradient,) = torch.autograd.grad(-rows.mean(), logits)
    for factor, error in ((1.0, 0.0), (3.0, 2.0), (0.5, 0.5)):
        forwards = [probe.Forward([], logits.detach(), gradient * factor)]
        assert probe.measure_loss_fault(forwards, [(0, span)], documents) == pytest.approx(error, abs=1e-5)


# cuDNN, on a CPU: SDPA that makes NaN for as long as cuDNN's kernels are allowed.


def cudnn_makes_nan() -> Any:
    def change(inner: Any) -> Any:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
            if mask is not None and torch.backends.cuda.cudnn_sdp_enabled() and bool((~mask).all(-1).any()):
                q = q * torch.ones_like(q).requires_grad_()  # only the gradient is spoilt, as by cuDNN's dq
                q.register_hook(lambda gradient: gradient * float("nan"))
            return inner(module, q, k, v, mask, **kwargs)

        return attend

    return plants.changed_sdpa(change)


def run_in_process(
    names: Sequence[str], latest: PlanRun, changes: Sequence[Change], only: Sequence[str]
) -> list[PlanRun]:
    """Run changes as `TrialRunner` does, in this process."""
    known, plan_runs = checks.load()[0], []
    for change in changes:
        if change.plan.attn_implementation == "flash_attention_2":
            results = tuple(CheckResult(name) for name in only or names)  # this represents a GPU that has it
        else:
            source = build.load_architecture("llama")
            make_testbed = partial(testbeds.Testbed, source, change.plan, "cpu")
            results = tuple(tasks.run_check(known[name], make_testbed) for name in only or names)
        plan_runs.append(PlanRun(latest.model, change.plan, results, change.title))
    return plan_runs


def test_cudnn_is_proven_and_named() -> None:
    names = ("padding", "training")
    with cudnn_makes_nan():
        run_changes = partial(run_in_process, names)
        [first] = run_changes(PlanRun("llama", LEFT, ()), [Change("", "edit", "", LEFT)], ())
        assert [judge_result(result) for result in first.results] == ["fail", "fail"]
        search = fix_search.search_changes(first, run_changes)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert search.titles == "SDPA without cuDNN" and search.final_run.plan.shims == (NO_CUDNN_SDPA,)
    report = run.make_report(snapshots.laptop(), [first], [search], MeasuredOn("cpu", "CPU", "2.13.0"))
    assert [finding.code for finding in report.findings] == ["ATN421", "ATN430"]
    for finding in report.findings:
        assert finding.message.endswith("; cuDNN's SDPA kernel causes it")
        assert finding.fixes[0].text == "torch.backends.cuda.enable_cudnn_sdp(False)" and finding.fixes[0].proven
    other = report.findings[0].fixes[1]
    assert other.text == 'attn_implementation="flash_attention_2"' and other.proven
    section: Any = report.sections["smoke"]
    assert "torch.backends.cuda.enable_cudnn_sdp(False)" in section.settings[0].text


@pytest.mark.nightly
def test_cudnn_is_not_named_where_it_is_not_at_fault() -> None:
    with plants.nan_in_masked_rows():
        run_changes = partial(run_in_process, ("padding",))
        [first] = run_changes(PlanRun("llama", LEFT, ()), [Change("", "edit", "", LEFT)], ())
        search = fix_search.search_changes(first, run_changes)
    assert ("padding", "SDPA without cuDNN") in search.rejected
    report = run.make_report(snapshots.laptop(), [first], [search], MeasuredOn("cpu", "CPU", "2.13.0"))
    assert "cuDNN" not in report.findings[0].message


def test_cudnn_is_tried_only_where_something_is_not_finite() -> None:
    finite = CheckResult("padding", violations=("padding is attended",))
    infinite = CheckResult("padding", violations=("a row of padding only (left, bf16) gives NaN in gradients",))
    changes = checks.load()[0]["padding"].changes
    assert not any(change.culprit for change in changes(LEFT, finite))
    assert next(iter(changes(LEFT, infinite))).culprit == "cuDNN's SDPA kernel"
    for plan in (replace(LEFT, attn_implementation="eager"), replace(LEFT, shims=(NO_CUDNN_SDPA,))):
        assert not any(change.culprit for change in changes(plan, infinite))


def test_the_shim_is_undone_and_written_for_every_framework() -> None:
    plan = replace(LEFT, shims=(NO_CUDNN_SDPA,))
    with shims.applied_shims(plan):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    for framework in ("transformers", "axolotl", "openrlhf", "trl"):
        text = plan_settings.format_plan_settings(plan, framework)
        assert text.count("torch.backends.cuda.enable_cudnn_sdp(False)") == 1, (framework, text)
