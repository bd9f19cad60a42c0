"""Sixty secrets of thirty shapes, planted in all that attncheck reads: no output, cache or temporary file shows one."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.doctor.stub_packages import write_site
from tests.planted_secrets import NAMED, TOKENS, WEBHOOKS, make_secret

REPOSITORY = Path(__file__).parents[2]
FORMATS = ("text", "json", "markdown", "html", "sarif", "junit", "github")
# What switches a part of the masking off; each must be noticed.
FAULTS = {
    "everything": "secrets.mask_secrets = lambda text: text; values.is_secret_value = lambda name, value: False",
    "shapes": "shapes.mask_shapes = lambda text: text",
    "assignments": "assignments.mask_assignments = lambda text: text",
    "names of settings": "values.is_secret_value = lambda name, value: False",
    "remembering": "secrets.remember_setting = lambda *given: None; lint.remember_setting = lambda *given: None",
}
START = """
import sys
from attncheck.core.io import secrets
from attncheck.core.io.secrets import assignments, shapes, values
from attncheck.lint import run as lint
{fault}
from attncheck.__main__ import main
main()
"""


@dataclass
class Plants:
    """The secrets planted so far, by what they are and where; `plant` makes the next one of a shape."""

    places: dict[str, str] = field(default_factory=dict)  # secret: "shape in place"
    shapes: set[str] = field(default_factory=set)

    def plant(self, shape: str, place: str) -> str:
        secret = make_secret(shape, len(self.places))
        self.places[secret] = f"{shape} in {place}"
        self.shapes.add(shape)
        return WEBHOOKS[shape][0] + secret if shape in WEBHOOKS else secret

    def find_leaks(self, content: bytes) -> set[str]:
        """Return the places of the secrets that a file shows, as they are or as a format writes them."""
        squeezed = b"".join(content.split())
        return {
            place
            for secret, place in self.places.items()
            if any(spelling in content or spelling in squeezed for spelling in iter_spellings(secret))
        }


def iter_spellings(secret: str) -> Iterator[bytes]:
    for text in (secret, json.dumps(secret)[1:-1], html.escape(secret), quote(secret), quote(secret, safe="")):
        yield text.encode()
    for shift in range(3 * (len(secret) > 15)):  # where in a triple of bytes it begins decides how base64 writes it
        yield base64.b64encode(b"x" * shift + secret.encode())[4 : 4 * (len(secret) // 3)]


@dataclass
class Room:
    """A folder with a project, a home, caches and temporary its own files, all planted with secrets."""

    folder: Path
    plants: Plants
    variables: dict[str, str]

    def run(self, *argv: str, fault: str = "") -> tuple[int, bytes]:
        """Run the real command in the project; return its exit code and all it printed."""
        start = ["-c", START.format(fault=fault)] if fault else ["-m", "attncheck"]
        seen = TemporaryFiles(self.folder / "tmp", self.plants)
        result = subprocess.run(
            [sys.executable, *start, *argv],
            cwd=self.folder / "project",
            env={**os.environ, **self.variables},
            capture_output=True,
            timeout=120,
        )
        leaks = seen.stop()
        assert not leaks, f"temporary files of {argv[0]} showed {leaks}"
        assert b"Traceback" not in result.stderr, result.stderr.decode()
        return result.returncode, result.stdout + b"\n" + result.stderr

    def find_leaks(self, printed: bytes) -> set[str]:
        """Return the places of the secrets in what was printed, in caches, temporary files, outputs and new files."""
        written = [
            path for name in ("out", "cache", "tmp") for path in (self.folder / name).rglob("*") if path.is_file()
        ]
        written += [path for path in (self.folder / "project").glob("*baseline*") if path.is_file()]
        contents = [printed, *(path.read_bytes() for path in written)]
        return {leak for content in contents for leak in self.plants.find_leaks(content)}


class TemporaryFiles:
    """Reads every file that appears in a folder until it is stopped."""

    def __init__(self, folder: Path, plants: Plants) -> None:
        self._folder, self._plants, self._leaks, self._ended = folder, plants, set[str](), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> set[str]:
        self._ended.set()
        self._thread.join()
        return self._leaks

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            for folder, _, names in os.walk(self._folder):  # a folder that no longer exists is skipped
                for name in names:
                    with contextlib.suppress(OSError):
                        self._leaks |= self._plants.find_leaks(Path(folder, name).read_bytes())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    plants = Plants()
    for name in ("home/.config/pip", "project/.git", "project/model", "site", "cache", "tmp", "out"):
        (tmp_path / name).mkdir(parents=True)
    plant_launches(tmp_path / "project", plants)
    plant_settings(tmp_path / "project", tmp_path / "home", plants)
    plant_packages(tmp_path / "site", plants)
    variables = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path / 'site'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "out" / "summary.md"),
        "WANDB_API_KEY": plants.plant("wandb_hex", "environment"),
        "DB_PASSWORD": plants.plant("symbols", "environment"),
        "ALERT_WEBHOOK_URL": plants.plant("feishu_hook", "environment"),
        "X_KEY": plants.plant("google", "environment"),
        "AWS_SECRET_ACCESS_KEY": plants.plant("aws_secret", "environment"),
    }
    plant_exception(tmp_path / "site", plants, variables)
    return Room(tmp_path, plants, variables)


def plant_launches(project: Path, plants: Plants) -> None:
    """Write launches of three frameworks that need correction alongside every secret, so that a diff shows it."""

    def put(shape: str) -> str:
        return plants.plant(shape, "a launch")

    (project / "run.sh").write_text(f"""\
export WANDB_API_KEY={put("wandb_hex")}
export HF_TOKEN="{put("hugging_face")}" SLACK_HOOK='{put("slack_hook")}'
export OPENAI_API_KEY={put("openai")} ANTHROPIC_API_KEY={put("anthropic")}
git clone https://bot:{put("github")}@github.com/x/y
curl -H "Authorization: Bearer {put("jwt")}" -u bob:{put("word")} {put("telegram_bot")}/sendMessage
wandb login {put("wandb_hex")}
LOCAL={put("wandb_local")} MS={put("modelscope")} deepspeed --num_gpus 1 --module openrlhf.cli.train_sft \\
   --use_wandb {put("wandb_hex")} \\
   --packing_samples \\
   --hub_token {put("word")} \\
   --db_password='{put("symbols")}' \\
   --hf_access_token {put("short")} \\
   --attn_implementation flash_attention_2 \\
   --remote_rm_url {put("dingtalk_hook")} \\
   --note {put("stripe")} \\
   --dataset https://u:{put("gitlab")}@host/d
python - <<'EOF'
import os; os.environ["REPLICATE_API_TOKEN"] = "{put("replicate")}"
wandb.login(key='{put("wandb_v1")}')
requests.post("{put("discord_hook")}", json={{'password': '{put("word")}', "api_key": "{put("uuid")}"}})
EOF
""")
    (project / "verl.sh").write_text(f"""\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
  data.train_files=s3://{put("aws_id")}:{put("base64")}@bucket/x.parquet \\
  +ray_init.runtime_env.env_vars.WANDB_API_KEY={put("uuid")} \\
  '+ray_init.runtime_env.env_vars={{NPM_TOKEN: {put("npm")}, "SLACK": "{put("slack_bot")}"}}' \\
  actor_rollout_ref.model.path=x actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=3 \\
  actor_rollout_ref.model.use_remove_padding=True \\
  +custom.vault={put("vault")} +custom.access_token={put("base64")} +custom.hf_access_token={put("short")} \\
  trainer.n_gpus_per_node=8
""")
    (project / "sft.yaml").write_text(f"""\
model_name_or_path: x
stage: sft
finetuning_type: lora
hf_hub_token: {put("word")}
learning_rat: 1.0
swanlab_api_key: "{put("word")}"
swanlab_lark_secret: {put("base64")}
flash_attn: fa2
hooks: {put("wecom_hook")}
client_secret: >-
  {put("uuid")}
dataset: d
env:
  - name: GROQ_API_KEY
    value: {put("groq")}
template: qwen
""")
    settings = {
        "model_name_or_path": "x",
        "stage": "sft",
        "finetuning_type": "lora",
        "learning_rat": 1.0,
        "dataset": "d",
    }
    secrets = {"ms_hub_token": put("symbols"), "run_name": put("docker"), "nested": {"secret_key": put("base64")}}
    (project / "sft.json").write_text(json.dumps({**settings, **secrets}, indent=1))


def plant_settings(project: Path, home: Path, plants: Plants) -> None:
    """Write what lies around: pip's settings, git's remote, a netrc, a model with code, a policy with a reason."""
    password, user, token = (plants.plant(shape, "pip.conf") for shape in ("word", "pypi", "base64"))
    pip = f"index-url = https://u:{password}@host/simple\n"
    pip += f"extra-index-url = https://{user}@host/a https://host/b?token={token}\n"
    (home / ".config" / "pip" / "pip.conf").write_text(f"[global]\n{pip}")
    (home / ".netrc").write_text(f"machine api.wandb.ai login user password {plants.plant('wandb_hex', 'netrc')}\n")
    remote = f"https://{plants.plant('github_fine', 'a git remote')}@github.com/x/y.git"
    (project / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
    config = {
        "model_type": "llama",
        "num_attention_heads": 4,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "vocab_size": 9,
    }
    config |= {
        "architectures": [plants.plant("sendgrid", "config.json")],
        "hub_token": plants.plant("word", "config.json"),
    }
    config |= {"_name_or_path": f"https://u:{plants.plant('base64', 'config.json')}@host/m", "torch_dtype": "bfloat16"}
    config |= {"_attn_implementation": "password=" + plants.plant("symbols", "config.json")}
    (project / "model" / "config.json").write_text(json.dumps(config))
    token = plants.plant("hugging_face", "tokenizer_config.json")
    (project / "model" / "tokenizer_config.json").write_text(json.dumps({"padding_side": token, "pad_token": token}))
    (project / "model" / "modeling_x.py").write_text(f"TOKEN = '{plants.plant('openrouter', 'model code')}'\n")
    reason = f"agreed; the api_key is {plants.plant('nvidia', 'the policy')}"
    (project / "attncheck.toml").write_text(
        'launch = ["run.sh", "verl.sh", "sft.yaml"]\nchecks = ["doctor", "lint"]\n'
        f'ignore = [{{code = "ATN571", reason = "{reason}", until = "2199-01-01"}}]\n'
    )


def plant_packages(site: Path, plants: Plants) -> None:
    """Write packages whose metadata hold secrets."""
    write_site(site, {"transformers": "__version__ = '5.0.0'\n"})
    for name, version in (("torch", "2.0.0"), ("flash_attn", "2.8.3"), ("transformers", "5.0.0")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        url = f"https://u:{plants.plant('gitlab', 'METADATA')}@host/{name}"
        lines = [f"Name: {name}", f"Version: {version}", f"Home-page: {url}", f"Requires-Dist: missing-{name} @ {url}"]
        lines.append(f"Requires-Python: {plants.plant('databricks', 'METADATA')}")
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
        user, key = plants.plant("google_oauth", "direct_url.json"), plants.plant("uuid", "direct_url.json")
        vcs = {"vcs": "git", "commit_id": "0" * 40}
        origin = {"url": f"https://{user}@host/x.git?key={key}", "vcs_info": vcs}
        (info / "direct_url.json").write_text(json.dumps(origin))
        (info / "INSTALLER").write_text(plants.plant("alibaba_id", "INSTALLER") + "\n")
        (info / "RECORD").write_text("")


def plant_exception(site: Path, plants: Plants, variables: dict[str, str]) -> None:
    """Write a package that fails on import, with secrets in its log lines and in its error, those around it bare."""
    texts = [plants.plant(shape, "an exception") for shape in ("slack_app", "github_app", "aws_id", "dingtalk_secret")]
    password, key = plants.plant("word", "an exception"), plants.plant("wandb_hex", "an exception")
    named = f"{{'password': '{password}'}} WANDB_API_KEY: {key}"
    bare = f"tried {variables['WANDB_API_KEY']} and {variables['DB_PASSWORD']} and {variables['AWS_SECRET_ACCESS_KEY']}"
    token, user = plants.plant("base64", "a log line"), plants.plant("word", "a log line")
    log = f"INFO:x: login with token={token} to https://a:{user}@h/x"
    error = f"{bare} {named} " + " ".join(texts)
    for name in ("flash_attn", "flash_attn_2_cuda"):
        (site / f"{name}.py").write_text(
            f"print({log!r})\nimport sys\nprint({log!r}, file=sys.stderr)\nraise ImportError({error!r})\n"
        )


def output_options(room: Room, command: str) -> list[str]:
    return [f"--output={name}={room.folder / 'out' / f'{command}.{name}'}" for name in FORMATS]


def test_nothing_that_leaves_shows_a_secret(room: Room) -> None:
    plants = room.plants
    assert len(plants.places) >= 60 and len(plants.shapes) >= 30, (len(plants.places), len(plants.shapes))
    launches = ("run.sh", "verl.sh", "sft.yaml", "sft.json")
    argv_token = plants.plant("hugging_face", "a command")
    commands = [
        ("lint", *launches, "--target", "h100x8", "-v", *output_options(room, "lint")),
        (
            "lint",
            "--target",
            "h100x8",
            "--",
            "torchrun",
            "-m",
            "openrlhf.cli.train_sft",
            "--packing_samples",
            "--hub_token",
            argv_token,
        ),
        ("doctor", "model", "--lane", "static", "--lane", "import", "-v", *output_options(room, "doctor")),
        ("probe", "model", "--lane", "static"),
        ("gate", "--fail-on", "never", *output_options(room, "gate")),
        ("baseline", "--baseline", "attncheck-baseline.json"),
        (
            "run",
            "--fail-on",
            "error",
            "--",
            "deepspeed",
            "--module",
            "openrlhf.cli.train_sft",
            "--hub_token",
            argv_token,
        ),
        (
            "run",
            "--fail-on",
            "error",
            "--",
            "deepspeed",
            "--module",
            "openrlhf.cli.train_sft",
            "--hub_token",
            argv_token,
        ),
        ("lint", f"--hub_token={argv_token}"),
        ("lint", f"no-such-{argv_token}.sh"),
        ("lint", "run.sh", "--target", argv_token),
        ("lint", "run.sh", "--write", "--target", "h100x8"),
        ("lint", "renamed.sh", "--write", "--target", "h100x8,openrlhf=0.11.2"),
    ]
    (room.folder / "site" / "bin").mkdir()
    deepspeed = room.folder / "site" / "bin" / "deepspeed"
    deepspeed.write_text("#!/bin/sh\nexit 0\n")
    deepspeed.chmod(0o755)
    room.variables["PATH"] = f"{deepspeed.parent}{os.pathsep}{os.environ['PATH']}"
    renamed = room.folder / "project" / "renamed.sh"
    job = "deepspeed --module openrlhf.cli.train_sft --pretrain m --packing_samples"
    renamed.write_text(f"export HF_TOKEN={argv_token}\n{job} --use_wandb {argv_token}\n")
    shown = 0
    for command in commands:
        code, printed = room.run(*command)
        leaks = room.find_leaks(printed)
        assert not leaks, f"attncheck {' '.join(command)} (exit code {code}) showed {sorted(leaks)}"
        shown += printed.count("…".encode())
    written = renamed.read_text()
    assert "--ds.packing_samples" in written and "…" not in written  # the user's own file keeps the user's words
    assert argv_token in written
    assert len(list((room.folder / "out").iterdir())) == 3 * len(FORMATS) + 1
    assert list((room.folder / "cache").rglob("report-*.json"))
    print(f"{len(plants.places)} secrets of {len(plants.shapes)} shapes, {len(commands)} commands, {shown} masks shown")


def test_nodes_of_a_cluster_show_no_secret(room: Room) -> None:
    """Two nodes of a Slurm step, which know each other by a secret of the user's; a Ray cluster that is not there."""
    environ = {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "localhost",
        "ATTNCHECK_NODES_KEY": room.plants.plant("hugging_face", "the nodes' key"),
        "NCCL_TOPO_FILE": f"/topo?token={room.plants.plant('hugging_face', 'a variable of the allow-list')}",
    }  # fmt: skip
    command = ("doctor", "--nodes", "--nodes-timeout", "60", "--lane", "static", "--lane", "import", "-v")
    second = subprocess.Popen(
        [sys.executable, "-m", "attncheck", *command],
        cwd=room.folder / "project",
        env={**os.environ, **room.variables, **environ, "SLURM_NODEID": "1", "SLURM_PROCID": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    room.variables.update(environ, SLURM_NODEID="0", SLURM_PROCID="0")
    code, printed = room.run(*command, *output_options(room, "nodes"))
    printed += second.communicate(timeout=60)[0]
    assert b"all 2 answered" in printed, printed.decode()
    assert code in (0, 1) and second.returncode == 0
    token = room.plants.plant("hugging_face", "a runtime environment")
    runtime_env = json.dumps({"env_vars": {"HF_TOKEN": token}})
    printed += room.run("doctor", "--ray", "127.0.0.1:9", "--ray-runtime-env", runtime_env)[1]
    printed += room.run("doctor", "--ray", f"user:{token}@host:1")[1]
    assert not room.find_leaks(printed)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.nightly] * (fault != "everything")) for fault in FAULTS]
)
def test_masking_that_is_switched_off_is_noticed(room: Room, fault: str) -> None:
    options = ("--target", "h100x8", "-v", *output_options(room, "lint"))
    leaks = room.find_leaks(
        room.run("lint", "run.sh", "verl.sh", "sft.yaml", "sft.json", *options, fault=FAULTS[fault])[1]
    )
    if fault in ("shapes", "everything", "remembering"):
        command = ("doctor", "--lane", "static", "--lane", "import", "-v", "--format", "json")
        leaks |= room.find_leaks(room.run(*command, fault=FAULTS[fault])[1])
    assert leaks, f"without {fault}, nothing was noticed"
    print(f"without {fault}: {len(leaks)} of {len(room.plants.places)} secrets shown")


def test_a_plant_is_found_in_every_spelling() -> None:
    """The search itself must find what it is to find."""
    plants = Plants()
    for number, shape in enumerate((*TOKENS, *NAMED)):
        secret = plants.plant(shape, str(number))
        for text in (
            secret,
            json.dumps({"a": secret}),
            html.escape(secret),
            quote(secret, safe=""),
            "\n ".join(secret),
        ):
            assert plants.find_leaks(f"x {text} y".encode()) == {f"{shape} in {number}"}, (shape, text)
        if len(secret) > 15:
            assert plants.find_leaks(base64.b64encode(f"password: {secret} and more".encode())), shape
