"""A plan as the user pastes it: golden texts, and the Python of plain transformers really run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
import types
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.plan import CROSS_ENTROPIES, PACKINGS, PRECISIONS, SCHEMES, SIDES, Plan
from attncheck.lint import frameworks
from attncheck.lint.frameworks.transformers import plan as plain
from attncheck.lint.plan_settings import format_plan_settings

NAMES = [framework.name for framework in frameworks.load()]
GOLDEN = Path(__file__).parents[1] / "data" / "plan_settings"
PLANS = {
    "flash": Plan("flash_attention_2", gradient_checkpointing=True, deterministic=True, liger=True),
    "sdpa": Plan("sdpa", packing="mask_4d", batch=2, precision="autocast", environ=(("A", "b c"),), compile=True),
    "ring": Plan("flash_attention_2", ring_size=2, heads_k_stride=2, shims=("ring-flash-attn-names",)),
    "padded": Plan("eager", packing="padding", padding_side="left", precision="fp16", use_cache=True, batch=4),
    "ulysses": Plan("sdpa", ring_size=4, scheme="ulysses", cross_entropy="flash_attn", precision="fp32"),
}
YAML = r"[a-z0-9_]+: ?[\w./-]*|  - [\w.]+"


@dataclass(frozen=True)
class Golden:
    """A framework's file: the form of its lines ("python": a program), and each plan's text in each release named."""

    framework: str

    @property
    def path(self) -> Path:
        return GOLDEN / f"{self.framework}.txt"

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8") if self.path.exists() else f"form: {YAML}\n"

    @property
    def form(self) -> str:
        return self.text.partition("\n")[0].removeprefix("form: ")

    @property
    def versions(self) -> list[str]:
        """Return the releases in the headings, the newest ("") first."""
        return ["", *dict.fromkeys(re.findall(r"^=== \w+ (\S+)$", self.text, re.MULTILINE))]

    def write(self) -> str:
        """Return the file as it should be."""
        texts = [
            f"=== {name} {version}".rstrip() + f"\n{format_plan_settings(plan, self.framework, version)}\n"
            for version in self.versions
            for name, plan in PLANS.items()
        ]
        return f"form: {self.form}\n" + "".join(texts)


@pytest.mark.parametrize("framework", NAMES)
def test_the_texts_are_as_they_were_read(framework: str) -> None:
    golden = Golden(framework)
    if os.environ.get("ATTNCHECK_UPDATE_GOLDEN"):
        golden.path.write_text(golden.write(), encoding="utf-8")
    assert golden.path.exists(), "ATTNCHECK_UPDATE_GOLDEN=1 writes it; its first line says which form the settings have"
    assert golden.write() == golden.path.read_text(encoding="utf-8")


def test_every_golden_file_is_of_a_framework() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} <= set(NAMES)


def test_a_framework_that_is_not_known_is_said_so() -> None:
    with pytest.raises(BadUsage, match=rf"settings are known for {', '.join(NAMES)}; not for nemo"):
        format_plan_settings(Plan(), "nemo")


def test_an_unknown_version_is_the_newest() -> None:
    for framework in NAMES:
        assert format_plan_settings(PLANS["ring"], framework, "main") == format_plan_settings(PLANS["ring"], framework)


def make_plans() -> list[Plan]:
    """Return plans with every value of every field that a writer looks at, in many combinations."""
    plans = []
    choices = product(PACKINGS, PRECISIONS, ("", "eager", "flash_attention_2", "flash_attention_3"), (1, 2), SCHEMES)
    for index, (packing, precision, implementation, ring_size, scheme) in enumerate(choices):
        plans.append(
            Plan(
                attn_implementation=implementation,
                packing=packing,
                precision=precision,
                ring_size=ring_size,
                scheme=scheme,
                padding_side=SIDES[index % 2],
                positions="running" if index % 5 == 0 else "reset",
                cross_entropy=CROSS_ENTROPIES[index % 3],
                batch=1 + index % 3,
                use_cache=index % 7 == 0,
                liger=index % 2 == 0,
                compile=index % 3 == 0,
                deterministic=index % 4 == 0,
                gradient_checkpointing=index % 2 == 1,
                environ=(("X", 'a "b" c'),) if index % 6 == 0 else (),
                shims=("ring-flash-attn-names", "another") if index % 8 == 0 else (),
            )
        )
    return plans


@pytest.mark.parametrize("framework", NAMES)
def test_every_plan_has_lines_of_the_right_form(framework: str) -> None:
    golden = Golden(framework)
    form = re.compile(golden.form + r"|#.*|export .*")
    for plan in make_plans():
        for version in golden.versions:
            text = format_plan_settings(plan, framework, version)
            assert all(len(line) <= 120 for line in text.splitlines()), text
            if golden.form == "python":
                ast.parse(text)
                continue
            for line in text.splitlines():
                assert form.fullmatch(line), line
                if line.startswith("export "):
                    assert len(shlex.split(line)) == 2


REQUESTED: dict[str, Any] = {
    "attn_implementation": "flash_attention_2",
    "packing": "mask_4d",
    "positions": "running",
    "precision": "fp16",
    "use_cache": True,
    "gradient_checkpointing": True,
    "liger": True,
    "cross_entropy": "chunked",
    "deterministic": True,
    "compile": True,
    "ring_size": 2,
    "max_length": 777,
    "environ": (("SOME", "thing"),),
}


@pytest.mark.parametrize("framework", NAMES)
def test_what_is_requested_is_written_as_a_flag_or_a_remark(framework: str) -> None:
    """No field of a plan that is not its default may vanish silently."""
    bare = format_plan_settings(Plan(), framework)
    plans = {name: replace(Plan(), **{name: value}) for name, value in REQUESTED.items()}
    assert [name for name, plan in plans.items() if format_plan_settings(plan, framework) == bare] == []
    left, right = (format_plan_settings(Plan(packing="padding", padding_side=side), framework) for side in SIDES)
    assert left != right or "the padding side is not a setting" in left


def test_every_field_of_a_plan_is_requested_or_left_out_knowingly() -> None:
    left_out = {"batch", "accumulation", "scheme", "heads_k_stride", "shims", "steps", "learning_rate", "seed"}
    assert {*REQUESTED, "padding_side", *left_out} == {field.name for field in fields(Plan)}


def test_old_openrlhf_has_flat_names() -> None:
    plan = PLANS["ring"]
    assert "--ds.ring_attn_head_stride 2" in format_plan_settings(plan, "openrlhf", "0.10.2").splitlines()
    assert "--ring_head_stride 2" in format_plan_settings(plan, "openrlhf", "0.10.1.post2").splitlines()
    assert "--flash_attn" in format_plan_settings(plan, "openrlhf", "0.8.9.post1").splitlines()
    assert "--bf16" in format_plan_settings(plan, "openrlhf", "0.9.1").splitlines()
    assert "is_flash_attn_greater_or_equal_2_10" in format_plan_settings(plan, "openrlhf", "0.10.1.post2")
    assert "is_flash_attn_greater_or_equal_2_10" not in format_plan_settings(plan, "openrlhf", "0.10.2"), (
        "it has the repair itself"
    )


class StubArguments:
    """A stub of TrainingArguments, which needs accelerate: it takes its own fields only."""

    def __init__(self, **kwargs: Any) -> None:
        from transformers.training_args import TrainingArguments

        unknown = set(kwargs) - {field.name for field in fields(TrainingArguments)}
        assert not unknown, unknown
        self.kwargs = kwargs


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with a tiny model and its tokenizer."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("small")
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(16)}, unk_token="0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="0", unk_token="0").save_pretrained(
        folder
    )
    return str(folder)


def run_settings(plan: Plan, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Execute the Python of a plan on a tiny model; return its names."""
    import torch
    import transformers

    monkeypatch.setattr(transformers, "TrainingArguments", StubArguments)
    for name, _ in (*plan.environ, ("FLASH_ATTENTION_DETERMINISTIC", ""), ("CUBLAS_WORKSPACE_CONFIG", "")):
        monkeypatch.setenv(name, "")
    text = format_plan_settings(plan, "transformers").replace(json.dumps(plain.MODEL), json.dumps(tiny_model))
    assert tiny_model in text
    namespace: dict[str, Any] = {}
    try:
        exec(compile(text, "settings", "exec"), namespace)
    finally:
        torch.use_deterministic_algorithms(False)
    return namespace


FEATURES = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5], "labels": [4, 5]}]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("implementation", ["", "sdpa", "eager"])
def test_the_python_runs(packing: Any, implementation: str, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    plan = Plan(implementation, packing, precision="fp32", deterministic=True, liger=True, environ=(("A", '"x"\\'),))
    names = run_settings(plan, tiny_model, monkeypatch)
    assert os.environ["A"] == '"x"\\' and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    model = names["model"]
    assert model.config._attn_implementation == (implementation or "sdpa") and model.dtype == torch.float32
    assert names["arguments"].kwargs["use_liger_kernel"] is True and names["arguments"].kwargs["use_cache"] is False
    batch = names["collate"](FEATURES)
    keys = {"position_ids", "cu_seq_lens_q", "attention_mask"} & set(batch)
    assert (
        keys
        == {
            "position_ids": {"position_ids"},
            "cu_seqlens": {"position_ids", "cu_seq_lens_q"},
            "mask_2d": {"position_ids", "attention_mask"},
            "mask_4d": {"position_ids", "attention_mask"},
            "padding": {"attention_mask"},
        }[packing]
    )
    loss = model(**batch, use_cache=False).loss
    assert torch.isfinite(loss)
    if packing in ("position_ids", "mask_4d"):
        alone = model(input_ids=torch.tensor([[4, 5]]), use_cache=False).logits
        packed = model(**batch, use_cache=False).logits[:, 3:]
        assert torch.allclose(alone, packed, atol=1e-6), "documents are kept apart"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_python_takes_each_precision(precision: Any, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_settings(Plan("eager", "mask_4d", precision=precision), tiny_model, monkeypatch)
    assert str(names["model"].dtype) == f"torch.{ {'bf16': 'bfloat16', 'fp16': 'float16'}.get(precision, 'float32') }"
    assert names["arguments"].kwargs["bf16"] is (precision == "autocast")
    mask = names["collate"](FEATURES)["attention_mask"]
    assert mask.shape == (1, 1, 5, 5) and mask[0, 0, 3, 2] == mask.min() and mask[0, 0, 3, 3] == 0


def test_running_positions_and_the_padding_side(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for packing in ("position_ids", "cu_seqlens", "mask_4d"):
        names = run_settings(Plan("eager", packing, "running", precision="fp32"), tiny_model, monkeypatch)
        assert "position_ids" not in names["collate"](FEATURES), packing
    for side in SIDES:
        names = run_settings(Plan("eager", "padding", padding_side=side, use_cache=True), tiny_model, monkeypatch)
        assert names["tokenizer"].padding_side == side and names["arguments"].kwargs["use_cache"] is True
        row = names["collate"](FEATURES)["attention_mask"][1].tolist()
        assert row == ([1, 1, 0] if side == "right" else [0, 1, 1])


def test_the_ring_names_resolve(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the ring's lines, with the process group and flash attention's model left out."""
    import torch.distributed as dist

    calls: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda: calls.append("init"))
    monkeypatch.setattr(dist, "new_subgroups", lambda group_size: (f"group of {group_size}", []))
    stub: Any = types.ModuleType("ring_flash_attn")
    stub.substitute_hf_flash_attn = lambda process_group, heads_k_stride: calls.append((process_group, heads_k_stride))
    stub.update_ring_flash_attn_params = lambda cu_seqlens, process_group: None
    monkeypatch.setitem(sys.modules, "ring_flash_attn", stub)
    run_settings(replace(PLANS["ring"], attn_implementation="sdpa"), tiny_model, monkeypatch)
    assert calls == ["init", ("group of 2", 2)]


def test_the_ring_takes_these_words() -> None:
    spec = importlib.util.find_spec("ring_flash_attn")
    if spec is None or spec.origin is None:
        pytest.skip("ring-flash-attn is not installed")
    tree = ast.parse((Path(spec.origin).parent / "adapters/hf_adapter.py").read_text())
    parameters = {n.name: [a.arg for a in n.args.args] for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert parameters["substitute_hf_flash_attn"] == ["process_group", "heads_k_stride"]
    assert parameters["update_ring_flash_attn_params"] == ["cu_seqlens", "process_group"]


def test_names_are_those_of_installed_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for plan in make_plans()[::7]:
        for node in ast.walk(ast.parse(format_plan_settings(plan, "transformers"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers"):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
    assert transformers.__version__
