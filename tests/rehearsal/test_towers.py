"""Other models that a script names: a tower gets a small model of its own type, an adapter a new one."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.rehearsal import execution
from attncheck.rehearsal.watcher import describe, towers
from attncheck.rehearsal.watcher.absent import note
from attncheck.rehearsal.worker.checks import update

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a rehearsal's folder."""
    monkeypatch.setenv("ATTNCHECK_FOLDER", str(tmp_path))
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path))
    monkeypatch.setenv("ATTNCHECK_MODEL", str(tmp_path / "small"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai/clip-vit-large-patch14-336", "clip"),
        ("google/siglip-so400m-patch14-384", "siglip"),
        ("facebook/dinov2-large", "dinov2"),
        ("openai/whisper-small", "whisper"),
        ("Qwen/Qwen2.5-0.5B", ""),  # a language model: the small one itself
        ("Qwen/Qwen2-VL-2B-Instruct", ""),
        ("llava-hf/llava-1.5-7b-hf", ""),
        ("bert-base-uncased", ""),
        ("me/clipped-rewards", ""),
        ("me/llava-clip-7b", ""),
        ("me/vision-text-dual-encoder", ""),  # whose configuration has no defaults
    ],
)
def test_a_tower_is_known_by_its_name(name: str, kind: str, folder: Path) -> None:
    path = towers.find_tower(name)
    assert path == (str(folder / "models" / kind) if kind else "")
    assert [note.name for note in folder.glob("absent-tower-*")] == (
        [f"absent-tower-{name.partition('/')[2]} {kind}"] if kind else []
    )


def test_a_script_loads_a_small_tower(folder: Path) -> None:
    from transformers import CLIPVisionModel

    tower: Any = CLIPVisionModel.from_pretrained(towers.find_tower("openai/clip-vit-base-patch32"))
    assert (tower.config.hidden_size, tower.config.num_hidden_layers) == (64, 2)
    assert sum(weight.numel() for weight in tower.parameters()) < 1_000_000
    assert towers.find_tower("openai/clip-vit-large-patch14") == str(folder / "models" / "clip")  # made once


def test_a_tower_that_cannot_be_made_is_the_small_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ImportError("it needs another package")

    monkeypatch.setattr(towers, "_save_tower", refuse)
    assert towers.find_tower("openai/clip-vit-base-patch32") == "" and not list(folder.glob("absent-*"))


def test_an_adapter_that_is_not_here_is_a_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(
        LoraConfig=SimpleNamespace, get_peft_model=lambda model, config, adapter_name: (model, config, adapter_name)
    )
    monkeypatch.setitem(sys.modules, "peft", made)
    (folder / "rows").touch()
    os.utime(folder / "rows", (5, 5))
    monkeypatch.setenv("ATTNCHECK_ROWS", str(folder / "rows"))

    class Loaded:
        @classmethod
        def from_pretrained(
            cls, model: Any, model_id: Any = "", adapter_name: str = "default", is_trainable: bool = False, **_: Any
        ) -> str:
            return "loaded"

        def __init__(self) -> None:
            self.peft_config: dict[str, Any] = {}

        def load_adapter(self, model_id: Any, adapter_name: str, **_: Any) -> str:
            return "loaded"

        def add_adapter(self, adapter_name: str, config: Any) -> None:
            self.peft_config[adapter_name] = config

    module = SimpleNamespace(PeftModel=type("PeftModel", (Loaded,), {}), PeftConfig=type("PeftConfig", (Loaded,), {}))
    towers.make_adapters(module)
    model, config, name = module.PeftModel.from_pretrained("model", "me/adapter")
    assert (model, name) == ("model", "default") and config.inference_mode and config.r == 4
    _, config, name = module.PeftModel.from_pretrained("model", "me/adapter", "reference", True)
    assert name == "reference" and not config.inference_mode
    module.PeftModel.from_pretrained("model", "me/given", config=config)
    module.PeftModel.from_pretrained("model", None)  # of an option that the cut leaves out
    assert (folder / "absent-adapter-given").exists()  # another adapter's weights, all the same
    config = module.PeftConfig.from_pretrained("me/adapter")
    assert config.base_model_name_or_path == str(folder / "small")  # which the script loads next
    assert not module.PeftModel.from_pretrained("model", "me/adapter", is_trainable=True, config=config)[
        1
    ].inference_mode
    (folder / "adapter_config.json").touch()  # which the launch itself wrote
    assert module.PeftModel.from_pretrained("model", str(folder)) == "loaded"
    assert module.PeftConfig.from_pretrained(str(folder)) == "loaded"
    assert (folder / "absent-adapter-adapter").exists()
    loaded: Any = module.PeftModel()
    loaded.load_adapter("me/adapter", "reference")
    assert loaded.peft_config["reference"].inference_mode
    assert loaded.load_adapter(str(folder), "other") == "loaded" and "other" not in loaded.peft_config
    os.utime(folder / "adapter_config.json", (1, 1))  # the user's, of a model of another size
    made.PeftConfig = SimpleNamespace
    monkeypatch.setattr(Loaded, "from_pretrained", classmethod(lambda cls, *_: SimpleNamespace(r=8)))
    module = SimpleNamespace(PeftModel=type("PeftModel", (Loaded,), {}), PeftConfig=type("PeftConfig", (Loaded,), {}))
    towers.make_adapters(module)
    assert module.PeftModel.from_pretrained("model", str(folder))[1].r == 8


def test_a_framework_that_patches_a_model_only_on_a_gpu_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As axolotl 0.19.0 loaders/patch_manager.py: on a CPU its recurrent layers are not those of the job."""
    path = tmp_path / "patches.py"
    path.write_text('if torch.cuda.is_available():\n    if model_type == "qwen3_5":\n        patch()\n')
    monkeypatch.setitem(sys.modules, "framework.patches", SimpleNamespace(__file__=str(path)))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    kinds = ("qwen3_5", "qwen3_5_text", "llama")
    assert list(map(describe.find_gpu_patches.__wrapped__, kinds)) == [str(path), str(path), ""]
    path.write_text('if torch.cuda.is_available() and name != "":\n    patch()\n')
    linecache.checkcache(str(path))
    assert not describe.find_gpu_patches.__wrapped__("")
    for content in (b"\xff\xfe\x00", None):  # no text, or deleted after its import
        path.write_bytes(content) if content else path.unlink()
        linecache.checkcache(str(path))
        assert not describe.find_gpu_patches.__wrapped__("qwen3_5")


def test_a_small_model_of_an_own_class_is_as_from_pretrained_returns_it(folder: Path) -> None:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    class OwnConfig(PretrainedConfig):
        model_type = "own"

        def __init__(self, n_embd: int = 2048, **options: Any) -> None:
            self.n_embd = n_embd
            super().__init__(**options)

    class Own(PreTrainedModel):
        config_class = OwnConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.head = torch.nn.Linear(config.n_embd, 2)
            self.post_init()

        def forward(self, hidden: Any) -> Any:
            return self.head(hidden)

    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    for options in ({}, {"dtype": "auto"}, {"torch_dtype": None}):
        made = towers.build_own(Own, str(folder), options)
        assert made.config.n_embd == 64 and not made.training
    assert towers.build_own(Own, None, {"config": OwnConfig(), "state_dict": {}}) is None


def test_the_type_that_a_script_reads_is_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of the script counts as the type from which it derives; the small model's own type is no news."""
    from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, configuration_utils

    class OwnConfig(Qwen2Config):
        model_type = "own"

    class OtherConfig(PretrainedConfig):
        model_type = "other"

    class SameConfig(LlamaConfig):
        model_type = "same"

    monkeypatch.setattr(PretrainedConfig, "from_dict", PretrainedConfig.from_dict)
    towers._read_small_type.cache_clear()
    LlamaConfig().save_pretrained(folder / "small")
    towers.note_kind(configuration_utils)
    for kind in (LlamaConfig, OtherConfig, SameConfig):
        kind.from_pretrained(folder / "small")
    assert len(execution.list_noted(str(folder), "kind")) != 1
    (folder / "watch").symlink_to(folder)
    OwnConfig.from_pretrained(folder / "small")
    assert execution.list_noted(str(folder), "kind") == ["qwen2"]
    note(str(folder), "kind", "mistral")
    assert len(execution.list_noted(str(folder), "kind")) != 1


def test_a_script_builds_a_model_if_it_calls_its_class_itself(tmp_path: Path) -> None:
    """Not if the class is a part of another one, or if a package loads it."""
    package = {"is_built": towers.is_built, "__file__": os.__file__}
    exec(
        "class Model:\n    def __init__(self):\n        self.found = [is_built(self)]\n"
        "class Whole:\n    def __init__(self):\n        self.part = Model()\n"
        "def load(kind):\n    return kind()\n",
        package,
    )
    script: dict[str, Any] = {**package, "__file__": str(tmp_path / "train.py")}
    exec(
        "class Own(Model):\n    def __init__(self):\n        super().__init__()\n"
        "made = [Model(), Own(), Whole().part, load(Model), load(Own)]\n",
        script,
    )
    assert [model.found for model in script["made"]] == [[True], [True], [False], [False], [False]]


TEXT = ("model.layers.0.mlp.weight", "model.layers.1.mlp.weight", "lm_head.weight")
PICTURES = tuple(f"model.visual.blocks.{number}.mlp.weight" for number in range(6))


@pytest.mark.parametrize(
    ("trained", "frozen", "is_warned"),
    [
        (TEXT, PICTURES, False),  # as LLaMA-Factory's and ms-swift's defaults do
        (TEXT[:1], (*TEXT[1:], *PICTURES), True),
        ((*TEXT, PICTURES[0]), PICTURES[1:], True),
    ],
)
def test_a_frozen_tower_is_no_warning(trained: tuple[str, ...], frozen: tuple[str, ...], is_warned: bool) -> None:
    record = SimpleNamespace(trainable=trained, frozen=frozen, adapters={})
    step = SimpleNamespace(objective=SimpleNamespace(is_documented=True))
    evidence: Any = SimpleNamespace(taken=[record], freezes=False, step=step)
    violations, warnings, notes = update._judge_frozen(evidence)
    assert not violations and bool(warnings) == is_warned and len(notes) == 1
