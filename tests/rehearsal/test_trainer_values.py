"""What a fork's actor reads of meta_info is made of its trainer's expressions; what cannot be made is left out."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attncheck.rehearsal.drivers.rollouts import name_absent_value
from attncheck.rehearsal.drivers.trainer_values import make_values

# As SkyworkAI/Skywork-OR1's verl/trainer/ppo/ray_trainer.py, which imports Ray.
TRAINER = """
import ray
from verl.trainer.ppo import core_algos
from verl.limits import SMALLEST as smallest

class RayPPOTrainer:
    def __init__(self, config):
        adaptive = self.config.actor.adaptive_entropy
        self.control = core_algos.EntController(value=self.config.actor.entropy_coeff, largest=adaptive.largest)
        self.control = None if adaptive is None else self.control

    def fit(self):
        batch.meta_info["phase"] = "log_prob"
        batch.meta_info['entropy_controller'] = self.control.__dict__
        batch.meta_info["smallest"] = smallest * 2
        batch.meta_info["reward"] = self.reward_fn(batch)
        batch.meta_info["temperature"] = 3.0
        batch.meta_info["phase"] = "update"
        self.actor_rollout_wg.update_actor(batch)
        batch.meta_info["phase"] = "validation"
"""
ACTOR = """
data.meta_info["temperature"], data.meta_info['entropy_controller']["value"], data.meta_info["smallest"]
data.meta_info["reward"], data.meta_info["phase"], data.meta_info["unassigned"]
"""
ALGORITHMS = """
class EntController:
    def __init__(self, value, largest):
        self.value, self.largest, self.enabled = value, largest, 1
"""


def test_a_forks_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "trainer/ppo/ray_trainer.py": TRAINER,
        "trainer/ppo/core_algos.py": ALGORITHMS,
        "limits.py": "SMALLEST = 4",
    }
    for name, text in texts.items():
        path = tmp_path / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    actor = SimpleNamespace(entropy_coeff=0.0, adaptive_entropy=SimpleNamespace(largest=0.5))
    assert make_values(ACTOR, SimpleNamespace(actor=actor), {"temperature": 1.0}) == {
        "entropy_controller": {"value": 0.0, "largest": 0.5, "enabled": 1},
        "smallest": 8,
        "phase": "update",
    }
    assert make_values("data.meta_info['temperature']", None, {"temperature": 1.0}) == {}
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("key", "text", "ended"),
    [
        ("latents", "key \"latents\" not found in TensorDict with keys ['responses']", SystemExit),
        ("own", "own", KeyError),
    ],
)
def test_a_value_that_only_the_launchs_rollouts_have_is_named(key: str, text: str, ended: type[BaseException]) -> None:
    """A key that the actor's own code lacks stays its error."""
    with pytest.raises(ended, match=key), name_absent_value():
        raise KeyError(text)
