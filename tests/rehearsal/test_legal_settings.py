"""Settings that an author may want: none is an error, whether what they make is computed or not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.results.smoke import judge_result
from tests.rehearsal.staging import LABELLED, SCRIPTS, ForkServer, judge, list_failures, make_argv, make_materials

# Each with the checks that are not answered, or only by a warning.
LEGAL = {
    "": set(),
    "sgd": {"learning"},
    "sgd_slow": {"learning"},
    "adamw_slow": {"learning"},
    "adagrad_slow": {"learning"},
    "long_warmup": {"learning"},
    "rmsprop": set(),
    "lion": set(),
    "groups": set(),
    "smoothing": set(),
    "strong_z_loss": set(),
    "z_loss_everywhere": {"loss", "gradients"},
    "smoothing_everywhere": {"loss", "gradients"},
    "strong_entropy_bonus": set(),
    "smoothing_loses_a_batch": {"loss", "gradients"},  # a fault that a regulariser must not hide
    "dft": {"loss", "gradients"},
    "focal": {"loss", "gradients"},
    "z_loss": set(),
    "entropy_bonus": set(),
    "sample_weights": {"loss", "gradients"},
    "kl_to_reference": set(),
    "kl_to_reference_reversed": set(),
    "weights_penalised": {"loss", "gradients"},
    "router_balanced": {"loss", "gradients"},
    "noise_before_clipping": {"update", "gradients"},
    "noise_after_clipping": {"update"},
    "clips_a_subset": set(),
    "clips_each_parameter": set(),
    "clips_by_hand": {"gradients"},
    "clips_adaptively": {"update", "gradients"},
    "centralised": {"update", "gradients"},
    "rates_by_layers": {"update", "gradients"},
    "new_tokens_alone": set(),
}
EVERY_TIME = ("noise_before_clipping",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_materials(tmp_path_factory.mktemp("materials") / "made")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in EVERY_TIME)) for name in LEGAL]
)
def test_what_is_legal_is_no_error(name: str, server: ForkServer, folder: Path, tmp_path: Path) -> None:
    watch = tmp_path / "watch"
    watch.mkdir()
    ended = server.run(make_argv(folder, "", script=SCRIPTS / "legal.py"), {"LEGAL": name}, watch, 1)
    assert ended["statuses"] == [0], ended
    results = judge(folder, watch, LABELLED)
    assert list_failures(results) == {}
    assert {check for check, result in results.items() if judge_result(result) != "pass"} == LEGAL[name]
