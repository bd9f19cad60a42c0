"""Damaged policies, targets, recordings, launches, models and baselines, through the commands that read them.

Each gives a report or one line: no traceback, no exit code that is not documented, and 1 only with a finding. The
commands run in this process, through the entry that the installed command has; 30 of each family here, 1,700 nightly.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.io.failures import TRACEBACK_VARIABLE
from tests.adversary.in_process import TooLong, run_entry
from tests.adversary.mutation import WRONG_VALUES, mutate, mutate_json
from tests.adversary.outcomes import find_fault
from tests.doctor import test_model_config as configs
from tests.lint import launches

SEED = 20261121
QUICK, NIGHTLY = range(45, 75), range(1700)  # of the quick ones, each family's end in more than one way
DATA = Path(__file__).parents[1] / "data"
VERSIONS = ("0.5.0", "0.9.9", "0.11.2", "0.12.2", "1.16.0", "4.6.0", "99.0")
POLICY = """profile = "ring"
fail-on = "warning"
select = ["ATN1", "ATN4"]
timeout = 60
checks = ["doctor", "lint"]
models = ["model", "meta-llama/Llama-3.1-8B"]
launch = ["launch.sh"]
target = "h100x8,torch=2.9.0"
framework-version = "0.10.2"
ring-size = 2
budget = 600.5
suite = "quick"
device = "auto"
ignore = [
  {code = "ATN211", reason = "the GPUs are shared on Fridays", until = "2027-01-31"},
]

[thresholds]
max-error = 0.8
min-efficiency = 0.5

[plan]
attn-implementation = "flash_attention_2"
packing = "position_ids"
max-length = 512
"""
# Each is well formed, and of the right kind more often than not.
POLICY_LINES = (
    *('budget = 1e-9', 'budget = 1e308', 'timeout = 0.001', 'ring-size = 1024', 'suite = "full"', 'device = "cpu"'),
    *('models = ["/dev/zero"]', 'models = ["\\u0000"]', 'models = ["x/y", ""]', f'models = ["{"m" * 5000}"]'),
    *('launch = ["/dev/zero"]', 'launch = ["."]', 'launch = ["gone.sh"]', f'launch = ["{"l" * 300}"]'),
    *('launch = ["launch.sh", "launch.sh"]', 'launch = ["\\u0000"]', 'launch = ["\\u001b[2J"]', 'launch = ["-"]'),
    *('target = "cpu"', 'target = "\\n"', 'target = ""', 'target = "h100x9999"', 'framework-version = "99.0"'),
    *('select = []', 'select = ["ATN"]', 'select = ["ATN9"]', 'checks = ["lint"]', 'checks = ["doctor"]'),
    *('baseline = "gone.json"', 'baseline = "launch.sh"', 'baseline = "."', 'baseline = "/dev/zero"', 'launch = []'),
    *('fail-on = "never"', 'ignore = []'),
    'ignore = [{code = "ATN1", reason = "\\u001b[2J", until = "2020-01-01"}]',
    'ignore = [{code = "ATN", reason = "x", until = "9999-12-31"}]',
    'plan = {attn-implementation = "x", max-length = 1}',
    'thresholds = {max-error = 1e-300}',
)  # fmt: skip
TARGETS = (
    "h100x8",
    "sm_90,gpus=8,torch=2.9",
    "cpu",
    "driver=580.95.05,flash-attn=none",
    "a100x4,transformers=4.57.1,flash-attn=2.8.3,driver=550",
)
BASELINE = {
    "schema_version": 1,
    "recipe": 1,
    "findings": [
        {"fingerprint": "0f" * 16, "code": "ATN140", "subject": "ring 0.1.8", "message": "é", "date": "2026-11-20"},
        {"fingerprint": "f0" * 16, "code": "ATN142", "subject": "x", "message": "y", "date": "2026-11-21"},
    ],
}  # fmt: skip
LAUNCH = "torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft --data.max_len 4096 --ds.packing_samples\n"
RECORDINGS = tuple(path.read_bytes() for path in sorted((DATA / "snapshots").glob("*.json")))
MODELS = tuple(
    json.dumps(config).encode()
    for config in (configs.LLAMA, configs.GEMMA3, configs.GPT_OSS, configs.DEEPSEEK_V3, configs.QWEN2_5_VL)
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")


def fuzz_policy(chance: random.Random) -> list[str]:
    Path("launch.sh").write_text(LAUNCH)
    lines = POLICY.splitlines()
    kind = chance.randrange(4)
    if kind == 0:
        data = mutate(chance, POLICY.encode(), (BASELINE_BYTES, *MODELS))
    elif kind == 1:  # well formed: one wrong value in one line
        number = chance.choice([index for index, line in enumerate(lines) if " = " in line])
        key, _, value = lines[number].partition(" = ")
        lines[number] = f"{key} = {chance.choice((json.dumps(chance.choice(WRONG_VALUES)), f'[{value}]', '{a = 1}'))}"
        data = "\n".join(lines).encode()
    else:
        chosen = {line.partition(" = ")[0]: line for line in chance.sample(POLICY_LINES, chance.randint(1, 4))}
        data = "\n".join(chosen.values()).encode()
    for path in ("attncheck.toml", "pyproject.toml"):
        Path(path).unlink(missing_ok=True)
    if chance.random() < 0.3:
        tables = re.sub(rb"^\[", b"[tool.attncheck.", data, flags=re.MULTILINE)
        Path("pyproject.toml").write_bytes(b"[tool.attncheck]\n" + tables)
    else:
        Path("attncheck.toml").write_bytes(data)
    gate = ["gate", "--checks", chance.choice(("doctor", "doctor,lint")), "--target", "h100x8"]
    return chance.choice((gate, ["doctor", "--facts", str(DATA / "snapshots" / "h200.json")]))


def fuzz_target(chance: random.Random) -> list[str]:
    text = chance.choice(TARGETS).encode()
    text = mutate(chance, text, [target.encode() for target in TARGETS]).replace(b"\0", b"")
    return ["doctor", "--facts", str(DATA / "snapshots" / "h200.json"), "--target", os.fsdecode(text)]


def fuzz_recording(chance: random.Random) -> list[str]:
    data = mutate_json(chance, chance.choice(RECORDINGS), RECORDINGS)
    Path("facts.json").write_bytes(data)
    return ["doctor", "--facts", "facts.json", "--format", chance.choice(("text", "json", "sarif", "markdown"))]


def fuzz_launch(chance: random.Random) -> list[str]:
    paths = list(launches.iter_corpus())
    path = chance.choice(paths)
    damage = mutate_json if path.suffix == ".json" else mutate
    data = damage(chance, path.read_bytes(), [chance.choice(paths).read_bytes()])
    options = ["--target", chance.choice(TARGETS)]
    if chance.random() < 0.5:
        options += ["--framework-version", chance.choice(VERSIONS)]
    if chance.random() < 0.2:
        text = os.fsdecode(data.replace(b"\0", b""))
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        return ["lint", *options, "--", *words]
    Path(f"launch{path.suffix}").write_bytes(data)
    return ["lint", f"launch{path.suffix}", *options]


def fuzz_model(chance: random.Random) -> list[str]:
    Path("model").mkdir(exist_ok=True)
    Path("model", "config.json").write_bytes(mutate_json(chance, chance.choice(MODELS), MODELS))
    Path("model", "tokenizer_config.json").write_bytes(mutate(chance, b'{"padding_side": "left"}', MODELS))
    return ["doctor", "model", "--lane", "static", "--target", chance.choice(TARGETS)]


BASELINE_BYTES = json.dumps(BASELINE).encode()


def fuzz_baseline(chance: random.Random) -> list[str]:
    Path("baseline.json").write_bytes(mutate_json(chance, BASELINE_BYTES, RECORDINGS))
    command = chance.choice(("gate", "gate", "baseline"))
    return [command, "--checks", "doctor", "--target", "h100x8", "--baseline", "baseline.json"]


FAMILIES: dict[str, Callable[[random.Random], list[str]]] = {
    "policies": fuzz_policy,
    "targets": fuzz_target,
    "recordings": fuzz_recording,
    "launches": fuzz_launch,
    "models": fuzz_model,
    "baselines": fuzz_baseline,
}


def fuzz(family: str, numbers: range) -> Counter[object]:
    """Run the damaged inputs of a family with these numbers; return how many ended with which code.

    Fails with one fault of a kind.
    """
    codes: Counter[object] = Counter()
    faults: dict[str, str] = {}
    for number in numbers:
        chance = random.Random(f"{SEED} {family} {number}")
        argv = FAMILIES[family](chance)
        try:
            ended = run_entry(*argv)
        except TooLong as error:
            faults.setdefault("it takes too long", f"{family} {number}: {error}"[:1000])
            continue
        fault = find_fault(ended.code, ended.stdout, ended.stderr)
        if fault:
            frames = re.findall(r'File "([^"]*attncheck[^"]*)", line (\d+)', ended.stderr)
            shown = f"{ended.stdout[-1000:]}\n{ended.stderr[-1500:]}"
            faults.setdefault(f"{fault} {frames[-1:]}", f"{family} {number}: {fault}: {argv!r:.500}\n{shown}")
        codes[ended.code] += 1
    print(f"{family}: {len(numbers)} damaged inputs, by exit code {dict(sorted(codes.items(), key=str))}")
    assert not faults, f"{len(faults)} kinds of faults\n\n" + "\n\n".join(faults.values())
    return codes


@pytest.mark.parametrize("family", FAMILIES)
def test_no_damage_is_a_traceback(family: str) -> None:
    codes = fuzz(family, QUICK)
    assert len(codes) > 1, "every input ended the same way: the damage is not where it is read"


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_no_damage_is_a_traceback_in_many(family: str) -> None:
    fuzz(family, NIGHTLY)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a\n  <<: *a\n",
        "a: &a {b: {<<: *a}}\n",
        "a: &a [*a]\n",
        "x: &x {y: 1}\na: &a\n  <<: [*x, *a]\n",
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)),
        "a: " + "[" * 5000 + "]" * 5000 + "\n",
        "".join(f"{' ' * depth}a:\n" for depth in range(500)),
    ],
)
def test_yaml_that_has_no_end_is_one_line(text: str) -> None:
    Path("x.yaml").write_text(text)
    ended = run_entry("lint", "x.yaml", "--target", "cpu")
    assert ended.code == 2 and ended.stderr.startswith("attncheck: x.yaml:") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("count", [0, -1, 2**31, 2**70, 10**4000], ids=["0", "-1", "2^31", "2^70", "10^4000"])
def test_a_model_of_any_size_is_judged(count: int) -> None:
    Path("model").mkdir()
    names = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim", "sliding_window")
    for name in names:
        Path("model", "config.json").write_text(json.dumps({**configs.LLAMA, name: count}))
        ended = run_entry("doctor", "model", "--lane", "static", "--target", "h100x8", "--profile", "all")
        assert not find_fault(ended.code, ended.stdout, ended.stderr), (name, ended.stderr[-2000:])


def test_what_the_fuzzer_must_find_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {"policies": "attncheck.gate.policy.parse_toml", "targets": "attncheck.cli.commands.doctor.read_facts"}

    def crash(*arguments: object) -> None:
        raise IndexError("planted")

    for family, name in planted.items():
        monkeypatch.setattr(name, crash)
        with pytest.raises(AssertionError, match="IndexError: planted"):
            fuzz(family, range(3))
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        ((1, "1 error\n", ""), "exit code 1 without a finding"),
        ((0, "", ""), "exit code 0 with an empty report"),
        ((2, "", "attncheck: a\nb\n"), "2 lines on standard error instead of one"),
        ((2, "", "attncheck: a\u2028b\n"), "2 lines on standard error instead of one"),
        ((3, "", "error\n"), "a line on standard error that is not attncheck's"),
        ((-11, "", ""), "exit code -11 is not documented"),
        ((3, "", "Traceback (most recent call last)\n"), "'Traceback' is shown"),
        ((1, "ATN140 error\n", ""), ""),
    ],
)
def test_faults_are_told_from_good_ends(ended: tuple[int, str, str], fault: str) -> None:
    assert find_fault(*ended) == fault
