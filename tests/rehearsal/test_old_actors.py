"""The model of an old verl's or EasyR1's actor: its class, its attention and its positions are its worker's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers

from attncheck.rehearsal.drivers import models, rollouts, trainer_values

ROLLOUTS = (rollouts.Rollout(0, (5, 6, 7), (8, 9), 0.5), rollouts.Rollout(1, (4,), (3, 2, 1), -1.0))
WORKER = 'auto_class.from_pretrained(path, config=config, attn_implementation="eager", device_map="cpu")\n'
DATA = "position_ids = get_rope_index(processor, input_ids)\n"


class Batch:
    """As verl's DataProto."""

    @staticmethod
    def from_dict(tensors: dict[str, Any], meta_info: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors."""
        return tensors


class Actor:
    """As the actor of a tree, which reads the mask "response_mask"."""

    mask = "response_mask"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a verl, whose driver can be imported here."""
    folder = tmp_path / "verl"
    for name, text in {
        "workers/fsdp_workers.py": WORKER,
        "utils/dataset/rl_dataset.py": DATA,
        "protocol.py": "class DataProto:\n    pass\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: dict[str, dict[str, Any]] = {
        "attncheck_drivers": {},
        "attncheck_drivers.models": vars(models),
        "attncheck_drivers.rollouts": vars(rollouts),
        "attncheck_drivers.trainer_values": vars(trainer_values),
        "tensordict": {"TensorDict": Any},
        "verl.workers.actor.dp_actor": {"DataParallelPPOActor": Actor},
    }
    for name, values in modules.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(values)
    yield folder
    for name in [own for own in sys.modules if own.partition(".")[0] == "verl" or own.endswith("verl_actor")]:
        del sys.modules[name]


def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the driver."""
    driver = importlib.import_module("attncheck.rehearsal.drivers.verl_actor")
    monkeypatch.setattr(driver, "DataProto", Batch)
    return driver


def save(folder: Path, config: Any) -> str:
    """Save a configuration, and return its folder."""
    config.save_pretrained(folder)
    return str(folder)


def make_image_config() -> Any:
    """Return a configuration with several rotary axes."""
    text = {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}, "hidden_size": 32}
    return transformers.Qwen2_5_VLConfig(text_config={**text, "num_attention_heads": 2, "num_key_value_heads": 2})


def test_a_model_of_images_has_its_class() -> None:
    assert models.choose_class(make_image_config()) is transformers.AutoModelForImageTextToText
    assert models.choose_class(transformers.LlamaConfig()) is transformers.AutoModelForCausalLM


def test_the_workers_code_fixes_the_attention(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, worker = load(monkeypatch), tree / "workers" / "fsdp_workers.py"
    assert driver.read_attention() == "eager"
    worker.write_text('attn_implementation = override.get("attn_implementation", "flash_attention_2")\n')
    assert driver.read_attention() == "flash_attention_2"
    worker.unlink()  # of a fork that names it otherwise
    assert driver.read_attention() == "flash_attention_2"


@pytest.mark.parametrize(("added", "axes"), [("", 3), ("torch.cat((text_position_ids, vision_position_ids))", 4)])
def test_a_token_has_the_positions_of_the_data_set(
    added: str, axes: int, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counts the tokens that are no padding; a model of text has one."""
    driver = load(monkeypatch)
    (tree / "utils" / "dataset" / "rl_dataset.py").write_text(DATA + added)
    assert driver.count_axes(save(tmp_path / "text", transformers.LlamaConfig())) == 0
    assert driver.count_axes(save(tmp_path / "images", make_image_config())) == axes
    positions = driver.make_batch(ROLLOUTS, 4, 3, axes, {}, None)["position_ids"]
    assert positions.shape == (2, axes, 7)
    assert positions[:, -1].tolist() == [[0, 0, 1, 2, 3, 4, 4], [0, 0, 0, 0, 1, 2, 3]]
    assert driver.make_batch(ROLLOUTS, 4, 3, 0, {}, None)["position_ids"].shape == (2, 7)
