"""ATN447 states what the release of the framework does without enough GPUs."""

import pytest

from attncheck.doctor.rules.launch import launch_needs_more_gpus
from tests import snapshots as s


@pytest.mark.parametrize(
    ("framework", "version", "known", "words"),
    [
        ("verl", "0.4.1", True, "ValueError"),
        ("verl", "0.3.0.post1", True, "ValueError"),
        ("verl", "0.2.0.post2", True, "forever"),
        ("verl", "0.9.1", False, "does not start"),
        ("easyr1", "0.3.3", True, "ValueError"),
        ("nemo-rl", "0.7.0", True, "ResourceInsufficientError"),
        ("slime", "0.3.1", True, "forever"),
        ("ms-swift", "4.6.0", True, "fail"),
    ],
)
def test_the_consequence_is_that_of_the_release(framework: str, version: str, known: bool, words: str) -> None:
    snapshot = s.with_job(s.h200(), framework=framework, version=version, gpus=s.Known(16), reinforcement=True)
    snapshot = s.with_package(snapshot, framework, version) if known else s.without_packages(snapshot, framework)
    [problem] = launch_needs_more_gpus.check(snapshot)
    assert words in problem.message
    assert ("forever" in problem.message) is (words == "forever")
