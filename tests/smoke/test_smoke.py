"""`attncheck smoke`: judging and mending as arithmetic, and the command as a user meets it."""

from __future__ import annotations

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

from attncheck.core.errors import BadUsage
from attncheck.core.plan import Change, Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import CheckResult, Measure, PlanRun, SmokeSection, Step, answer, deciding_reason
from attncheck.core.results.verdicts import MeasuredOn
from attncheck.gate.policy import parse
from attncheck.report.formats import load_format
from attncheck.ring.group import Ring
from attncheck.smoke import fix_search, run
from attncheck.smoke.fix_search import Search
from attncheck.smoke.trials import failing
from attncheck.workers.launcher_env import RankEnv
from tests import snapshots
from tests.conftest import Run, all_gone
from tests.smoke.test_data import make_tokenizer

GOOD = Measure("logits, bf16", 0.01, 0.02)
BAD = Measure("logits, bf16", 0.5, 0.02, "worst in document 1")


# Judging: arithmetic over what was measured.


@pytest.mark.parametrize(
    ("proof", "verdict", "told"),
    [
        (CheckResult("isolation", measures=(GOOD,)), "pass", "off by 0.01"),
        (CheckResult("isolation", measures=(GOOD, BAD)), "fail", "off by 0.5 (limit 0.02), worst in document 1"),
        (CheckResult("isolation", measures=(GOOD,), violations=("it leaks",)), "fail", "it leaks"),
        (CheckResult("padding", measures=(GOOD,), reservations=("not used",)), "warn", "not used"),
        (CheckResult("training", "raised", "RuntimeError: no"), "fail", "RuntimeError: no"),
        (CheckResult("training", "died", "killed by SIGSEGV"), "lost", "killed by SIGSEGV"),
        (CheckResult("training", "out_of_memory", "no memory"), "skipped", "no memory"),
        (CheckResult("training", "refused", "no backward"), "refused", "no backward"),
        (CheckResult("isolation", measures=(replace(GOOD, value=float("nan")),)), "fail", "nan"),
    ],
)
def test_the_answer_of_a_proof(proof: CheckResult, verdict: str, told: str) -> None:
    assert answer(proof) == verdict
    assert told in deciding_reason(proof)


# Mending: a plan whose faults are known, changes that mend some of them, and what the search makes of it.


def proofs_of(plan: Plan) -> tuple[CheckResult, ...]:
    """What a worker would find: a cache or a mask leaks, and sdpa computes another model."""
    leaks = plan.use_cache or plan.packing == "mask_2d"
    other = plan.attn_implementation == "sdpa"
    found = [
        CheckResult("implementation", measures=(BAD if other else GOOD,)),
        CheckResult("isolation", violations=("it leaks",) if leaks else (), measures=(GOOD,)),
        CheckResult(
            "training", measures=(BAD if leaks or other else GOOD,), steps=(Step(3.5, 1, 1, 0), Step(1.3, 1, 1, 0))
        ),
    ]
    return tuple(proof for proof in found if plan.packed or proof.check != "isolation")


def attempt(last: PlanRun, changes: Sequence[Change], asked: tuple[str, ...]) -> list[PlanRun]:
    ran.append(tuple(change.title for change in changes))
    return [
        PlanRun(
            last.model,
            change.plan,
            tuple(proof for proof in proofs_of(change.plan) if not asked or proof.check in asked),
            ", ".join(filter(None, (last.reason, change.title))),
        )
        for change in changes
    ]


ran: list[tuple[str, ...]] = []


def searched(plan: Plan) -> Search:
    ran.clear()
    return fix_search.search(PlanRun("llama", plan, proofs_of(plan)), attempt)


def test_a_plan_that_is_right_is_left_alone() -> None:
    assert searched(Plan("eager")) == Search((), (), PlanRun("llama", Plan("eager"), proofs_of(Plan("eager"))))
    assert ran == []


def test_one_change_mends_and_the_whole_plan_is_run_again() -> None:
    found = searched(Plan("eager", use_cache=True))
    assert found.titles == "no cache while training"
    assert failing(found.last) == () and len(found.last.results) == 3
    assert ran[-1] == ("no cache while training",)


def test_faults_that_hide_each_other_are_mended_together() -> None:
    found = searched(Plan("eager", use_cache=True, packing="mask_2d"))
    assert found.titles == "no cache while training, no 2-D mask of ones"
    assert [title for _, title in found.tried] == ["no cache while training", "no 2-D mask of ones"]


def test_faults_of_two_kinds_are_mended_one_after_the_other() -> None:
    found = searched(Plan("sdpa", use_cache=True))
    assert [one.question for one in found.mended] == ["implementation", "isolation"]
    assert found.last.plan == Plan("flash_attention_2")
    assert found.last.reason == "attention by flash_attention_2, no cache while training"


def test_what_nothing_mends_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[__name__], "proofs_of", lambda plan: (CheckResult("padding", violations=("always wrong",)),)
    )
    found = searched(Plan("eager"))
    assert not found.mended and found.last.plan == Plan("eager")
    assert len(found.tried) == len(set(found.tried)) >= 3


def report(*plans: Plan, models: tuple[str, ...] = ("llama", "qwen2")) -> Report:
    before = [PlanRun(model, plan, proofs_of(plan)) for model, plan in zip(models, plans, strict=False)]
    searches = [fix_search.search(one, attempt) for one in before]
    return run.report(snapshots.laptop(), before, searches, MeasuredOn("cpu", "CPU", "2.13.0", seconds=7))


def test_one_finding_for_a_question_and_the_fix_is_proven() -> None:
    found = report(Plan("eager", use_cache=True), Plan("eager", use_cache=True))
    assert [finding.code for finding in found.findings] == ["ATN420", "ATN430"]
    leak = found.findings[0]
    assert leak.subject == "llama, qwen2" and "qwen2: it leaks" in leak.evidence
    assert leak.fixes[0].text == "model.config.use_cache = False"
    assert leak.fixes[0].proven == "logits, bf16: off by 0.01 (limit 0.02); 2 steps, loss 3.50 → 1.30"
    assert found.worst() == "error"
    section = found.section(SmokeSection)
    assert section is not None and len(section.plan_runs) == 4
    assert [plan_run.reason for plan_run in section.plan_runs[2:]] == ["no cache while training"] * 2
    assert "use_cache=False" in section.settings[0].text


def test_no_fix_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run.report(
        snapshots.laptop(),
        [PlanRun("llama", Plan("sdpa"), proofs_of(Plan("sdpa")))],
        [Search((), (), PlanRun("llama", Plan("sdpa"), proofs_of(Plan("sdpa"))))],
        MeasuredOn(),
    )
    assert [finding.code for finding in found.findings] == ["ATN345", "ATN430"]
    assert all(not finding.fixes for finding in found.findings)


def test_the_text_and_the_markdown_of_a_report() -> None:
    found = report(Plan("eager", use_cache=True), models=("llama",))
    text = load_format("text").render(found, True)
    assert "llama, mended: no cache while training" in text
    assert "  fail    isolation               it leaks" in text
    assert "loss 3.50 → 1.30 in 2 steps" in text
    assert "the mended plan for transformers" in text
    markdown = load_format("markdown").render(found, False)
    assert "| isolation | fail | it leaks |" in markdown
    assert "## Settings for transformers" in markdown
    document = json.loads(load_format("json").render(found, False))
    assert document["smoke"]["plan_runs"][0]["results"][1]["violations"] == ["it leaks"]


def test_a_rank_under_a_launcher_asks_once() -> None:
    asked = run.Request(ring=Ring(2))
    assert run.placed(asked, None) == asked
    first, second = (run.placed(asked, RankEnv(rank, 2, {})) for rank in range(2))
    assert first.models == second.models == ("llama",) and not first.fix
    assert first.questions == () and second.questions == ("parallel",)
    with pytest.raises(BadUsage, match="say --ring-size 2"):
        run.placed(replace(asked, ring=None), RankEnv(0, 2, {}))


# Configuration and wrong words.


def test_a_plan_in_the_configuration() -> None:
    config = parse({"plan": {"attn-implementation": "eager", "use-cache": True, "steps": 7}}, "attncheck.toml")
    assert dict(config.plan) == {"attn_implementation": "eager", "use_cache": True, "steps": 7}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"packin": "mask_2d"}, "did you mean 'packing'?"),
        ({"steps": "many"}, "steps: 'many' is not a int"),
        ({"steps": True}, "is not a int"),
        ("bf16", "expected a table"),
    ],
)
def test_a_wrong_plan_in_the_configuration(table: Any, told: str) -> None:
    with pytest.raises(BadUsage, match="plan") as error:
        parse({"plan": table}, "attncheck.toml")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--packing", "tight"), 2, "--packing 'tight' is not one of position_ids"),
        (("--only", "speed"), 2, "--only 'speed' is not one of what_ran"),
        (("--full",), 2, "name one"),
        (("--data", "x.txt"), 2, "whose tokenizer reads it"),
        (("--emulate",), 2, "--emulate is for --ring-size"),
        (("/nowhere/at/all",), 3, "cannot be read"),
        (("llama", "--device", "cuda", "--only", "what_ran"), 3, "no CUDA device"),
    ],
)
def test_wrong_words_are_one_clear_line(attncheck: Run, words: tuple[str, ...], code: int, told: str) -> None:
    if "cuda" in words and os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU here")
    done = attncheck("smoke", *words)
    assert done.returncode == code, done.stdout
    assert told in done.stderr and done.stderr.count("\n") == 1


def test_the_configuration_is_the_plan_and_options_win(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text('[plan]\nattn-implementation = "eager"\nprecision = "fp32"\n')
    done = attncheck("smoke", "llama", "--precision", "bf16", "--only", "what_ran", "--format", "json")
    plan = json.loads(done.stdout)["smoke"]["plan_runs"][0]["plan"]
    assert (plan["attn_implementation"], plan["precision"]) == ("eager", "bf16")


# The command, for real.


def model_folder(folder: Path, **changed: Any) -> str:
    folder.mkdir(exist_ok=True)
    document = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
        "max_position_embeddings": 64,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**document, **changed}))
    return str(folder)


def test_a_leak_is_found_mended_and_proven(attncheck: Run, tmp_path: Path, marker: str) -> None:
    done = attncheck("smoke", model_folder(tmp_path / "m"), "--use-cache", "--only", "isolation", "--device", "cpu")
    assert done.returncode == 1, done.stderr
    assert "ATN420 error   packed documents see each other" in done.stdout
    assert "fix     no cache while training (proven: " in done.stdout
    assert "model.config.use_cache = False" in done.stdout and "\x1b" not in done.stdout


def test_a_model_nobody_knows(attncheck: Run, tmp_path: Path) -> None:
    done = attncheck("smoke", model_folder(tmp_path / "m", model_type="unheard_of"), "--only", "what_ran")
    assert done.returncode == 3
    assert "does not know model_type 'unheard_of'" in done.stderr and done.stderr.count("\n") == 1


def test_an_implementation_that_cannot_be_had_is_said_once(attncheck: Run) -> None:
    words = ("--attn-implementation", "flash_attention_3", "--device", "cpu", "--no-fix", "--format", "json")
    done = attncheck("smoke", "llama", *words, "--only", "what_ran", "--only", "isolation")
    proofs = {proof["check"]: proof for proof in json.loads(done.stdout)["smoke"]["plan_runs"][0]["results"]}
    assert done.returncode == 1
    assert proofs["what_ran"]["outcome"] == "raised" and "ImportError" in proofs["what_ran"]["reason"]
    assert proofs["isolation"]["outcome"] == "skipped"


def test_training_on_documents_of_ones_own(attncheck: Run, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "m")
    make_tokenizer(tmp_path / "m")
    lines = [json.dumps({"text": "the cat sat on the mat and the dog sat on the log " * 4}) for _ in range(60)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    words = ("--data", "texts.jsonl", "--only", "training", "--steps", "40", "--max-length", "64", "--format", "json")
    done = attncheck("smoke", model, *words, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    [proof] = json.loads(done.stdout)["smoke"]["plan_runs"][0]["results"]
    assert proof["steps"][-1]["loss"] < proof["bound"] and proof["floor"] == 0


@pytest.mark.parametrize(("data", "told"), [(b"", "x.jsonl is empty"), (None, "there is no file")])
def test_data_that_cannot_be_read(attncheck: Run, tmp_path: Path, data: bytes | None, told: str) -> None:
    model = model_folder(tmp_path / "m")
    make_tokenizer(tmp_path / "m")
    if data is not None:
        (tmp_path / "x.jsonl").write_bytes(data)
    done = attncheck("smoke", model, "--data", "x.jsonl", "--only", "training", "--device", "cpu")
    assert done.returncode == 3, done.stdout
    assert told.lower() in done.stderr.lower() and done.stderr.count("\n") == 1


def test_a_tokenizer_that_is_missing(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("some text\n")
    done = attncheck("smoke", model_folder(tmp_path / "m"), "--data", "x.txt", "--only", "training", "--device", "cpu")
    assert done.returncode == 3
    assert "tokenizer" in done.stderr and done.stderr.count("\n") == 1


def test_real_weights_are_trained_gently(attncheck: Run, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model_folder(tmp_path / "m")
    config = transformers.LlamaConfig.from_pretrained(tmp_path / "m")
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "m")
    words = ("--full", "--only", "training", "--only", "isolation", "--steps", "12", "--format", "json")
    done = attncheck("smoke", str(tmp_path / "m"), *words, "--device", "cpu")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    proofs = {proof["check"]: proof for proof in json.loads(done.stdout)["smoke"]["plan_runs"][0]["results"]}
    assert len(proofs["training"]["steps"]) == 12 and proofs["training"]["floor"] == 0
    assert proofs["isolation"]["outcome"] == "ok"


PLUGIN = """
import os
from attncheck.smoke.checks import SmokeCheck
from attncheck.core.results.smoke import CheckResult

def run(testbed):
    {body}

CHECK = SmokeCheck("{name}", "a planted question", "ATN430", 12, lambda plan: "", run, lambda result: result.reason)
"""
LOST = {  # what a question does, what becomes of it
    "dies": ("os._exit(7)", "died", "exit"),
    "hangs": ("import time; time.sleep(600)", "timed_out", "no answer within"),
    "too_large": ("import torch; raise torch.OutOfMemoryError('CUDA out of memory')", "out_of_memory", "--max-length"),
    "raises": ("raise SystemError('broken')", "raised", "SystemError: broken"),
}


def test_a_question_that_is_lost_costs_no_other(attncheck: Run, tmp_path: Path, marker: str) -> None:
    folder = tmp_path / "plugin"
    info = folder / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    for name, (body, _, _) in LOST.items():
        (folder / f"{name}_plugin.py").write_text(PLUGIN.format(body=body, name=name))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    points = "".join(f"{name} = {name}_plugin\n" for name in LOST)
    (info / "entry_points.txt").write_text(f"[attncheck.proving]\n{points}")
    asked = [word for name in ("what_ran", *LOST, "implementation") for word in ("--only", name)]
    words = (*asked, "--no-fix", "--timeout", "8", "--format", "json", "--device", "cpu")
    done = attncheck("smoke", "llama", *words, env={**os.environ, "PYTHONPATH": str(folder)})
    assert done.returncode == 1, done.stderr
    proofs = {proof["check"]: proof for proof in json.loads(done.stdout)["smoke"]["plan_runs"][0]["results"]}
    for name, (_, outcome, told) in LOST.items():
        assert proofs[name]["outcome"] == outcome and told in proofs[name]["reason"]
    assert proofs["what_ran"]["outcome"] == proofs["implementation"]["outcome"] == "ok"


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
    assert stderr == b"attncheck: interrupted; nothing is left running\n"
    assert all_gone(marker)
    assert not list(scratch.glob("attncheck-*"))


@pytest.mark.slow
def test_other_packages_are_tried_beside_the_environment(attncheck: Run, marker: str) -> None:
    pytest.importorskip("ring_flash_attn")
    import importlib.metadata

    version = importlib.metadata.version("transformers")
    if tuple(map(int, version.split(".")[:2])) < (5, 4):
        pytest.skip(f"ring-flash-attn imports under transformers {version}")
    words = ("--ring-size", "2", "--device", "cpu", "--only", "parallel", "--try-packages", "--format", "json")
    done = attncheck("smoke", "llama", *words, timeout=500)
    [finding] = json.loads(done.stdout)["findings"]
    shim, install = finding["fixes"]
    assert shim["kind"] == "edit" and "off by" in shim["proven"]
    assert "transformers" in install["text"] and install["proven"].startswith("in a temporary folder: ")
    assert importlib.metadata.version("transformers") == version
