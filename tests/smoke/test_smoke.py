"""`attncheck smoke`: judging and fixing as arithmetic, and the command as a user meets it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.plan import Change, Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import (
    CheckResult,
    Measure,
    PlanRun,
    SmokeSection,
    Step,
    deciding_reason,
    judge_result,
)
from attncheck.core.verdicts import MeasuredOn
from attncheck.gate.policy import parse_policy
from attncheck.report.formats import load_format
from attncheck.ring.group import Ring
from attncheck.smoke import fix_search, run
from attncheck.smoke.fix_search import SearchResult
from attncheck.smoke.trials import failed_checks
from attncheck.workers.launcher_env import RankEnv
from tests import snapshots
from tests.conftest import Run, all_processes_gone

GOOD = Measure("logits, bf16", 0.01, 0.02)
BAD = Measure("logits, bf16", 0.5, 0.02, "worst in document 1")


# Judging: arithmetic over what was measured.


@pytest.mark.parametrize(
    ("result", "verdict", "message"),
    [
        (CheckResult("isolation", measures=(GOOD,)), "pass", "off by 0.01"),
        (CheckResult("isolation", measures=(GOOD, BAD)), "fail", "off by 0.5 (limit 0.02), worst in document 1"),
        (CheckResult("isolation", measures=(GOOD,), violations=("it leaks",)), "fail", "it leaks"),
        (CheckResult("padding", measures=(GOOD,), warnings=("not used",)), "warn", "not used"),
        (CheckResult("training", "raised", "RuntimeError: no"), "fail", "RuntimeError: no"),
        (CheckResult("training", "died", "killed by SIGSEGV"), "lost", "killed by SIGSEGV"),
        (CheckResult("training", "out_of_memory", "no memory"), "skipped", "no memory"),
        (CheckResult("training", "refused", "no backward"), "refused", "no backward"),
        (CheckResult("isolation", measures=(replace(GOOD, value=float("nan")),)), "fail", "nan"),
    ],
)
def test_the_answer_of_a_proof(result: CheckResult, verdict: str, message: str) -> None:
    assert judge_result(result) == verdict
    assert message in deciding_reason(result)


# Fixing: a plan whose faults are known, changes that fix some of them, and what the search makes of it.


def run_fake_checks(plan: Plan) -> tuple[CheckResult, ...]:
    """Return the results that a worker would give: a cache or a mask leaks, and sdpa computes another model."""
    leaks = plan.use_cache or plan.packing == "mask_2d"
    is_another_model = plan.attn_implementation == "sdpa"
    results = [
        CheckResult("implementation", measures=(BAD if is_another_model else GOOD,)),
        CheckResult("isolation", violations=("it leaks",) if leaks else (), measures=(GOOD,)),
        CheckResult(
            "training",
            measures=(BAD if leaks or is_another_model else GOOD,),
            steps=(Step(3.5, 1, 1, 0), Step(1.3, 1, 1, 0)),
        ),
    ]
    return tuple(result for result in results if plan.packed or result.check != "isolation")


def run_fake_changes(latest_run: PlanRun, changes: Sequence[Change], check_names: tuple[str, ...]) -> list[PlanRun]:
    tried_titles.append(tuple(change.title for change in changes))
    return [
        PlanRun(
            latest_run.model,
            change.plan,
            tuple(result for result in run_fake_checks(change.plan) if not check_names or result.check in check_names),
            ", ".join(filter(None, (latest_run.reason, change.title))),
        )
        for change in changes
    ]


tried_titles: list[tuple[str, ...]] = []


def search_plan(plan: Plan) -> SearchResult:
    tried_titles.clear()
    return fix_search.search_changes(PlanRun("llama", plan, run_fake_checks(plan)), run_fake_changes)


def test_a_plan_that_is_right_is_left_alone() -> None:
    assert search_plan(Plan("eager")) == SearchResult(
        (), (), PlanRun("llama", Plan("eager"), run_fake_checks(Plan("eager")))
    )
    assert tried_titles == []


def test_one_change_fixes_and_the_whole_plan_is_run_again() -> None:
    search = search_plan(Plan("eager", use_cache=True))
    assert search.titles == "train without the cache"
    assert failed_checks(search.final_run) == () and len(search.final_run.results) == 3
    assert tried_titles[-1] == ("train without the cache",)


def test_faults_that_hide_each_other_are_fixed_together() -> None:
    search = search_plan(Plan("eager", use_cache=True, packing="mask_2d"))
    assert search.titles == "train without the cache, no 2-D mask of ones"
    assert [title for _, title in search.rejected] == ["train without the cache", "no 2-D mask of ones"]


def test_faults_of_two_kinds_are_fixed_one_after_the_other() -> None:
    search = search_plan(Plan("sdpa", use_cache=True))
    assert [accepted.check_name for accepted in search.accepted] == ["implementation", "isolation"]
    assert search.final_run.plan == Plan("flash_attention_2")
    assert search.final_run.reason == "attention by flash_attention_2, train without the cache"


def test_what_nothing_fixes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[__name__], "run_fake_checks", lambda plan: (CheckResult("padding", violations=("always wrong",)),)
    )
    search = search_plan(Plan("eager"))
    assert not search.accepted and search.final_run.plan == Plan("eager")
    assert len(search.rejected) == len(set(search.rejected)) >= 3


def make_report(*plans: Plan, models: tuple[str, ...] = ("llama", "qwen2")) -> Report:
    first_runs = [PlanRun(model, plan, run_fake_checks(plan)) for model, plan in zip(models, plans, strict=False)]
    searches = [fix_search.search_changes(plan_run, run_fake_changes) for plan_run in first_runs]
    return run.make_report(snapshots.laptop(), first_runs, searches, MeasuredOn("cpu", "CPU", "2.13.0", seconds=7))


def test_one_finding_for_a_question_and_the_fix_is_proven() -> None:
    report = make_report(Plan("eager", use_cache=True), Plan("eager", use_cache=True))
    assert [finding.code for finding in report.findings] == ["ATN420", "ATN430"]
    leak = report.findings[0]
    assert leak.subject == "llama, qwen2" and "qwen2: it leaks" in leak.evidence
    assert leak.fixes[0].text == "model.config.use_cache = False"
    assert leak.fixes[0].proven == "logits, bf16: off by 0.01 (limit 0.02); 2 steps, loss 3.50 → 1.30"
    assert report.worst_severity() == "error"
    section = report.section(SmokeSection)
    assert section is not None and len(section.plan_runs) == 4
    assert [plan_run.reason for plan_run in section.plan_runs[2:]] == ["train without the cache"] * 2
    assert "use_cache=False" in section.settings[0].text


def test_no_fix_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run.make_report(
        snapshots.laptop(),
        [PlanRun("llama", Plan("sdpa"), run_fake_checks(Plan("sdpa")))],
        [SearchResult((), (), PlanRun("llama", Plan("sdpa"), run_fake_checks(Plan("sdpa"))))],
        MeasuredOn(),
    )
    assert [finding.code for finding in report.findings] == ["ATN345", "ATN430"]
    assert all(not finding.fixes for finding in report.findings)


def test_the_text_and_the_markdown_of_a_report() -> None:
    report = make_report(Plan("eager", use_cache=True), models=("llama",))
    text = load_format("text").render(report, True)
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("llama trains wrongly; the corrected plan trains right (both run)")
    assert ["question", "as", "written", "corrected"] in lines and ["isolation", "fail", "pass"] in lines
    assert ["fail", "isolation", "it", "leaks"] in lines
    assert "loss 3.50 → 1.30 in 2 steps" in text
    assert "Corrected settings for transformers" in text
    markdown = load_format("markdown").render(report, False)
    assert "| isolation | fail | pass |" in markdown
    assert "## Corrected settings for transformers" in markdown
    document = json.loads(load_format("json").render(report, False))
    assert document["smoke"]["plan_runs"][0]["results"][1]["violations"] == ["it leaks"]


def test_a_rank_under_a_launcher_asks_once() -> None:
    request = run.Request(ring=Ring(2))
    assert run.restrict_to_rank(request, None) == request
    first, second = (run.restrict_to_rank(request, RankEnv(rank, 2, {})) for rank in range(2))
    assert first.models == second.models == ("llama",) and not first.fix
    assert first.check_names == () and second.check_names == ("parallel",)
    with pytest.raises(BadUsage, match="--ring-size 2"):
        run.restrict_to_rank(replace(request, ring=None), RankEnv(0, 2, {}))


# Configuration and wrong options.


def test_a_plan_in_the_configuration() -> None:
    config = parse_policy({"plan": {"attn-implementation": "eager", "use-cache": True, "steps": 7}}, "attncheck.toml")
    assert dict(config.plan) == {"attn_implementation": "eager", "use_cache": True, "steps": 7}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"packin": "mask_2d"}, "did you mean 'packing'?"),
        ({"steps": "many"}, "steps: 'many' is not a int"),
        ({"steps": True}, "is not a int"),
        ("bf16", "expected a table"),
    ],
)
def test_a_wrong_plan_in_the_configuration(table: Any, message: str) -> None:
    with pytest.raises(BadUsage, match="plan") as error:
        parse_policy({"plan": table}, "attncheck.toml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--packing", "tight"), 2, "--packing 'tight' is not one of position_ids"),
        (("--only", "speed"), 2, "--only 'speed' is not one of what_ran"),
        (("--full",), 2, "name one"),
        (("--trust-script",), 2, "name a launch"),
        (("--emulate",), 2, "--emulate is for --ring-size"),
        (("/nowhere/at/all",), 3, "folder /nowhere/at/all does not exist"),
        (("no/such",), 3, "hf download no/such config.json"),
        (("llama", "--device", "cuda", "--only", "what_ran"), 3, "no CUDA device"),
    ],
)
def test_wrong_words_are_one_clear_line(attncheck: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    if "cuda" in arguments and os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU here")
    process = attncheck("smoke", *arguments)
    assert process.returncode == code, process.stdout
    assert message in process.stderr and process.stderr.count("\n") == 1


def test_the_configuration_is_the_plan_and_options_win(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text('[plan]\nattn-implementation = "eager"\nprecision = "fp32"\n')
    process = attncheck("smoke", "llama", "--precision", "bf16", "--only", "what_ran", "--format", "json")
    plan = json.loads(process.stdout)["smoke"]["plan_runs"][0]["plan"]
    assert (plan["attn_implementation"], plan["precision"]) == ("eager", "bf16")


# The command, for real.


def write_model_config(folder: Path, **changed: Any) -> str:
    folder.mkdir(exist_ok=True)
    document = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
        "max_position_embeddings": 64,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**document, **changed}))
    return str(folder)


def test_a_leak_is_found_fixed_and_proven(attncheck: Run, tmp_path: Path, marker: str) -> None:
    process = attncheck(
        "smoke", write_model_config(tmp_path / "m"), "--use-cache", "--only", "isolation", "--device", "cpu"
    )
    assert process.returncode == 1, process.stderr
    assert "ATN420 error" in process.stdout
    assert "fix     train without the cache (proven: " in process.stdout
    assert "model.config.use_cache = False" in process.stdout and "\x1b" not in process.stdout


@pytest.mark.nightly
def test_a_model_nobody_knows(attncheck: Run, tmp_path: Path) -> None:
    process = attncheck("smoke", write_model_config(tmp_path / "m", model_type="unheard_of"), "--only", "what_ran")
    assert process.returncode == 3
    assert "does not know model_type 'unheard_of'" in process.stderr and process.stderr.count("\n") == 1


@pytest.mark.parametrize("what", ["model", "train.sh"])
def test_without_torch_no_model_and_no_launch_is_judged(attncheck: Run, tmp_path: Path, what: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    write_model_config(tmp_path / "model")
    (tmp_path / "train.sh").write_text("trl sft --model_name_or_path model --packing true --output_dir out\n")
    process = attncheck("smoke", what, "--python", str(tmp_path / "bare" / "bin" / "python"))
    assert (process.returncode, process.stdout) == (3, "")
    assert "torch is not installed in the environment of" in process.stderr and process.stderr.count("\n") == 1


@pytest.mark.nightly
def test_an_implementation_that_cannot_be_had_is_said_once(attncheck: Run) -> None:
    arguments = ("--attn-implementation", "flash_attention_3", "--device", "cpu", "--no-fix", "--format", "json")
    process = attncheck("smoke", "llama", *arguments, "--only", "what_ran", "--only", "isolation")
    results = {result["check"]: result for result in json.loads(process.stdout)["smoke"]["plan_runs"][0]["results"]}
    assert process.returncode == 1
    assert results["what_ran"]["outcome"] == "raised" and "ImportError" in results["what_ran"]["reason"]
    assert results["isolation"]["outcome"] == "skipped"


def test_real_weights_are_trained_gently(attncheck: Run, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_model_config(tmp_path / "m")
    config = transformers.LlamaConfig.from_pretrained(tmp_path / "m")
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "m")
    arguments = ("--full", "--only", "training", "--only", "isolation", "--steps", "12", "--format", "json")
    process = attncheck("smoke", str(tmp_path / "m"), *arguments, "--device", "cpu")
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr
    results = {result["check"]: result for result in json.loads(process.stdout)["smoke"]["plan_runs"][0]["results"]}
    assert len(results["training"]["steps"]) == 12 and results["training"]["floor"] == 0
    assert results["isolation"]["outcome"] == "ok"


PLUGIN = """
import os
from attncheck.smoke.checks import SmokeCheck
from attncheck.core.results.smoke import CheckResult

def run(testbed):
    {body}

CHECK = SmokeCheck("{name}", "a planted question", "ATN430", 12, lambda plan: "", run, lambda result: result.reason)
"""
LOST = {  # name: body of the check, its outcome, a part of the reason
    "dies": ("os._exit(7)", "died", "exit"),
    "hangs": ("import time; time.sleep(600)", "timed_out", "no answer within"),
    "too_large": ("import torch; raise torch.OutOfMemoryError('CUDA out of memory')", "out_of_memory", "--max-length"),
    "raises": ("raise SystemError('broken')", "raised", "SystemError: broken"),
}


@pytest.mark.nightly
def test_a_question_that_is_lost_costs_no_other(attncheck: Run, tmp_path: Path, marker: str) -> None:
    folder = tmp_path / "plugin"
    info = folder / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    for name, (body, _, _) in LOST.items():
        (folder / f"{name}_plugin.py").write_text(PLUGIN.format(body=body, name=name))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    points = "".join(f"{name} = {name}_plugin\n" for name in LOST)
    (info / "entry_points.txt").write_text(f"[attncheck.proving]\n{points}")
    only_arguments = [word for name in ("what_ran", *LOST, "implementation") for word in ("--only", name)]
    arguments = (*only_arguments, "--no-fix", "--timeout", "5", "--format", "json", "--device", "cpu")
    process = attncheck("smoke", "llama", *arguments, env={**os.environ, "PYTHONPATH": str(folder)})
    assert process.returncode == 1, process.stderr
    report = json.loads(process.stdout)
    results = {result["check"]: result for result in report["smoke"]["plan_runs"][0]["results"]}
    [finding] = report["findings"]  # of what was lost; that it is said once, in its own words, and of no check's
    assert finding["code"] == "ATN347" and "it ended with exit status 7" in finding["message"]
    assert any("SystemError: broken" in line for line in finding["evidence"])
    for name, (_, outcome, message) in LOST.items():
        assert results[name]["outcome"] == outcome and message in results[name]["reason"]
    assert results["what_ran"]["outcome"] == results["implementation"]["outcome"] == "ok"


@pytest.mark.nightly
def test_an_implementation_that_is_not_there_is_one_finding_in_its_own_words(attncheck: Run) -> None:
    pytest.importorskip("transformers")
    arguments = ("llama", "--attn-implementation", "flash_attention_3", "--steps", "4", "--format", "json")
    process = attncheck("smoke", *arguments, "--device", "cpu")
    assert process.returncode == 1, process.stderr
    report = json.loads(process.stdout)
    [finding] = report["findings"]
    assert finding["code"] == "ATN347" and "FlashAttention3" in finding["message"], finding
    assert [fix["text"] for fix in finding["fixes"]] == ['attn_implementation="sdpa"'], finding["fixes"]
    assert "steps, loss" in finding["fixes"][0]["proven"]


KERNEL = "kernels-community/flash-attn2"


def write_kernels(site: Path) -> None:
    """Write a `kernels` that loads nothing: until then transformers requires its name and version alone."""
    info = site / "kernels-0.16.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.16.2\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")
    (site / "kernels").mkdir()
    # transformers takes classes of it as it is imported, and calls them.
    body = "__init__ = __call__ = lambda self, *a, **k: None"
    (site / "kernels" / "__init__.py").write_text(
        f"def __getattr__(name):\n    class Anything:\n        {body}\n    return Anything\n"
    )


@pytest.mark.parametrize(
    "implementation",
    [KERNEL, *(pytest.param(name, marks=pytest.mark.nightly) for name in (f"{KERNEL}@v3", "flash_attention_2"))],
)
def test_a_kernel_that_a_job_would_download_is_asked_for_and_no_fault(
    attncheck: Run, tmp_path: Path, implementation: str
) -> None:
    transformers = pytest.importorskip("transformers")
    if not transformers.__version__.startswith("5.17."):
        pytest.skip("of another release of transformers another kernel is requested")
    write_kernels(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HF_HOME": str(tmp_path / "hub")}
    environment = {name: text for name, text in environment.items() if name not in ("HF_HUB_OFFLINE", "HF_HUB_CACHE")}
    arguments = ("smoke", "llama", "--attn-implementation", implementation, "--device", "cpu")
    process = attncheck(*arguments, env=environment)
    assert process.returncode == 3 and not process.stdout
    [line] = process.stderr.splitlines()
    assert f"{KERNEL}@v3 is not in" in line and "get_kernel" in line
    process = attncheck(*arguments, "--no-fix", "--steps", "2", env={**environment, "HF_HUB_OFFLINE": "1"})
    assert process.returncode == 1 and process.stdout.count("ATN347 error") == 1  # the job is as far from it


def test_a_ring_whose_flash_attn_is_emulated_asks_for_no_kernel(attncheck: Run, tmp_path: Path) -> None:
    if importlib.util.find_spec("ring_flash_attn") is None:
        pytest.skip("ring-flash-attn is not installed")
    write_kernels(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HF_HOME": str(tmp_path / "hub")}
    arguments = ("llama", "--ring-size", "2", "--device", "cpu", "--only", "parallel", "--no-fix", "--steps", "2")
    process = attncheck("smoke", *arguments, env=environment)
    assert "local cache" not in process.stderr and process.returncode in (0, 1), process.stderr


def test_a_model_that_is_not_cached_is_trained_as_a_small_one_of_its_architecture(attncheck: Run) -> None:
    done = attncheck("smoke", "nobody/Qwen2.5-7B", "--only", "training", "--steps", "2", "--no-fix", "--format", "json")
    assert "nobody/Qwen2.5-7B is not cached: training a small qwen2 instead" in done.stderr
    assert done.returncode == 0 and '"qwen2"' in done.stdout
    refused = attncheck("smoke", "nobody/unknown")
    assert refused.returncode == 3 and "hf download nobody/unknown config.json" in refused.stderr


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, marker: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "attncheck", "smoke", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    # A fast machine has measured something by then, and says so behind a semicolon.
    assert stderr.startswith(b"attncheck: interrupted; nothing is left running")
    assert len(stderr.splitlines()) == 1
    assert all_processes_gone(marker)
    assert not list(scratch.glob("attncheck-*"))


@pytest.mark.slow
def test_other_packages_are_tried_beside_the_environment(attncheck: Run, marker: str) -> None:
    pytest.importorskip("ring_flash_attn")
    import importlib.metadata

    version = importlib.metadata.version("transformers")
    if tuple(map(int, version.split(".")[:2])) < (5, 4):
        pytest.skip(f"ring-flash-attn imports under transformers {version}")
    arguments = ("--ring-size", "2", "--device", "cpu", "--only", "parallel", "--try-packages", "--format", "json")
    process = attncheck("smoke", "llama", *arguments, timeout=500)
    [finding] = json.loads(process.stdout)["findings"]
    shim, install = finding["fixes"]
    assert shim["kind"] == "edit" and "off by" in shim["proven"]
    assert "transformers" in install["text"] and install["proven"].startswith("in a temporary folder: ")
    assert importlib.metadata.version("transformers") == version
