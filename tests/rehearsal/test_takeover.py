"""A launch that is taken over: its configuration is handed on, its ranks run, and none outlives another that fails."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attncheck.rehearsal.execution import list_replaced
from attncheck.rehearsal.watcher import takeover

DRIVER = """\
import atexit, json, os, pathlib, sys, time
rank = int(os.environ["RANK"])
names = ("WORLD_SIZE", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "ATTNCHECK_DRIVER")
seen = {name: os.environ.get(name) for name in names}
seen["forked"] = hasattr(json, "started_by")
place = pathlib.Path(sys.argv[1]).with_name(f"{rank}.json")
place.write_text(json.dumps(seen))
atexit.register(lambda: place.write_text(json.dumps({**seen, "ended": True})))
if os.environ["FAILING"] == str(rank):
    time.sleep(0.5)
    sys.stderr.write("ValueError: here")
    sys.exit(7)
time.sleep(60 if os.environ["FAILING"] else 0)
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a driver's module, which Python finds."""
    (tmp_path / "a_driver.py").write_text(DRIVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ATTNCHECK_DRIVER", "verl")
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path))
    monkeypatch.setenv("FAILING", "")
    return tmp_path


def read_ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def run_ranks(folder: Path, isolates: bool = False) -> subprocess.CompletedProcess[str]:
    """Start two ranks from a process that has a value in a module, which forks have and new processes have not."""
    starter = (
        "import json, sys; json.started_by = 'us'\n"
        "from attncheck.rehearsal.watcher import takeover\n"
        f"sys.exit(takeover.run_ranks('a_driver', {str(folder / 'launch')!r}, 2, isolates={isolates}))"
    )
    return subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("without_cuda", [True, False])
def test_ranks_know_their_place(without_cuda: bool, driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each is to see its own GPU, it sees that alone; none is asked to take over again."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    if without_cuda:
        monkeypatch.setenv("ATTNCHECK_WITHOUT_CUDA", "1")
    assert run_ranks(driver, isolates=True).returncode == 0
    ranks = read_ranks(driver)
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in ranks] == (["3,5"] * 2 if without_cuda else ["3", "5"])
    assert [rank["LOCAL_RANK"] for rank in ranks] == (["0", "1"] if without_cuda else ["0", "0"])
    assert all(rank["WORLD_SIZE"] == "2" and rank["ATTNCHECK_DRIVER"] is None for rank in ranks)
    assert all(rank["ended"] and rank["forked"] == without_cuda for rank in ranks)


@pytest.mark.parametrize("without_cuda", [True, False])
def test_a_rank_that_fails_ends_the_others(without_cuda: bool, driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch ends with its status, while the other would go on for a minute."""
    monkeypatch.setenv("FAILING", "1")
    if without_cuda:
        monkeypatch.setenv("ATTNCHECK_WITHOUT_CUDA", "1")
    done = run_ranks(driver)
    assert (done.returncode, done.stderr) == (7, "ValueError: here")
    assert [rank["LOCAL_RANK"] for rank in read_ranks(driver)] == ["0", "1"]


def test_openrlhf_finds_a_vllm_where_none_is(tmp_path: Path) -> None:
    """What it imports of vLLM is there, and that is noted; an installed one stays."""
    code = (
        "from attncheck.rehearsal.watcher.takeover import stand_in_for; stand_in_for(('vllm',), None)\n"
        "import vllm\nfrom vllm.inputs import TokensPrompt\nfrom vllm.utils import random_uuid\n"
        "from vllm.worker.worker import Worker\nclass Own(Worker): pass\nassert vllm.__version__ and vllm.LLM\n"
        "import importlib.util\nassert importlib.util.find_spec('vllm') and not hasattr(vllm, '__own__')\n"
    )
    environ = {**os.environ, "ATTNCHECK_WATCH": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environ).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["absent-unused-vllm"]


def test_ray_seems_to_run() -> None:
    ray = ModuleType("ray")
    takeover.do_not_start_ray(ray)
    assert ray.is_initialized()


@pytest.mark.parametrize(("options", "is_kept"), [((), False), (("-P",), True)])
def test_a_program_takes_the_first_place_on_the_path(options: tuple[str, ...], is_kept: bool, tmp_path: Path) -> None:
    """Only its own folder's, which Python does not add with PYTHONSAFEPATH: the emulated packages may be there."""
    if is_kept and sys.version_info < (3, 11):
        pytest.skip("Python has no -P before 3.11")
    (tmp_path / "program.py").write_text("import sys\nprint(sys.path[0])")
    starter = f"""
import sys
from types import SimpleNamespace
sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
sys.path.insert(0, {str(Path(takeover.__file__).parent)!r})
import takeover
sys.path[0] = "first"
command = [sys.executable, {str(tmp_path / "program.py")!r}]
launch = SimpleNamespace(simple_launcher=None, prepare_simple_launcher_cmd_env=lambda args: (command, {{}}))
launch.simple_launcher = lambda args: None
takeover.run_in_process(launch)
launch.simple_launcher(None)
"""
    done = subprocess.run([sys.executable, *options, "-c", starter], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("first" if is_kept else str(tmp_path))


STARTER = """\
import os, subprocess, sys
from types import ModuleType, SimpleNamespace
sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: {has_gpu}))
sys.path.insert(0, {folder!r})
import takeover
main = ModuleType("main")
vars(main).update(os=os, subprocess=subprocess)
takeover.start_in_process(main)
print(os.getpid(), flush=True)
{start}
"""
RUN = "assert main.subprocess.run([sys.executable, {program!r}, 'a']).returncode == 0"
MODULE = "assert main.subprocess.run([sys.executable, '-m', 'program', 'a'], check=True).returncode == 0"
POPEN = "assert main.subprocess.Popen([sys.executable, '-u', {program!r}, 'a'], env=os.environ).wait() == 0"
EXEC = "main.os.execvpe('program', ['program', 'a'], {**os.environ, 'ADDED': 'b'})"


@pytest.mark.parametrize(
    ("start", "has_gpu", "is_same", "environ"),
    [
        (RUN, False, True, {}),
        (MODULE, False, True, {}),
        (POPEN, False, True, {}),
        (POPEN, True, False, {}),
        (POPEN.replace("os.environ", "{**os.environ, 'WORLD_SIZE': '2'}"), False, False, {}),  # one of two ranks
        (EXEC, False, True, {"ADDED": "b"}),
        (EXEC.replace("'program'", "'other'"), False, False, {"ADDED": "b"}),  # of another Python: started as ever
        (RUN, True, False, {}),
    ],
)
def test_a_command_runs_the_program_that_it_would_start(
    start: str, has_gpu: bool, is_same: bool, environ: dict[str, str], tmp_path: Path
) -> None:
    """An `exec` keeps the process id in any case, but the modules only if the program runs in the same process."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    body = "import os, sys\nprint('torch' in sys.modules, sys.argv[1:], os.environ.get('ADDED'))\n"
    (tmp_path / "program.py").write_text(body)
    for name, python in (("program", str(programs / "python")), ("other", sys.executable)):
        (programs / name).write_text(f"#!{python}\n{body}")
        (programs / name).chmod(0o755)
    text = STARTER.format(
        has_gpu=has_gpu,
        folder=str(Path(takeover.__file__).parent),
        start=start.replace("{program!r}", repr(str(tmp_path / "program.py"))),
    )
    ended = subprocess.run(
        [str(programs / "python"), "-c", text],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[1] == f"{is_same} ['a'] {environ.get('ADDED')}"


COMPOSE = """\
import sys
from hydra import compose, initialize_config_dir
from hydra._internal import config_repository
from attncheck.rehearsal.watcher import takeover
takeover.find_ignored_data(config_repository)
with initialize_config_dir(sys.argv[1], version_base=None):
    config = compose("ppo_trainer")
print(config.data.seed)
"""


@pytest.mark.parametrize(("group", "status"), [("data", 0), ("actor", 1)])
def test_a_trees_missing_description_of_data_is_the_installed_one(group: str, status: int, tmp_path: Path) -> None:
    """A missing group of another kind would decide what is computed: the launch ends, as it does without attncheck."""
    pytest.importorskip("hydra")
    installed, tree = tmp_path / "site-packages" / "verl" / "trainer" / "config", tmp_path / "config"
    for folder, names in ((installed, ("data", "actor")), (tree, ("actor" if group == "data" else "data",))):
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / f"own_{name}.yaml").write_text("seed: 7\n")
    (tree / "ppo_trainer.yaml").write_text("defaults:\n  - data@data: own_data\n  - actor@actor: own_actor\n")
    (tmp_path / "watch").mkdir()
    environ = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}/site-packages"}
    environ |= {"ATTNCHECK_WATCH": str(tmp_path / "watch")}
    command = [sys.executable, "-c", COMPOSE, str(tree)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert ended.returncode == status, ended.stderr
    assert [line.split(" ")[0] for line in list_replaced(str(tmp_path))] == ["data.own_data"] * (not status)


def test_a_main_function_that_starts_ray_first_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where Ray would start; a function that does not start it runs to its end."""
    taken: list[Any] = []
    ray, utils = ModuleType("ray"), ModuleType("utils")
    vars(ray)["init"] = lambda **options: pytest.fail("Ray was started")
    vars(utils)["run_job"] = lambda config, task_function: task_function(config)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(takeover, "_run_verl", taken.append)
    takeover.take_over_ray(utils)
    assert utils.run_job("composed", task_function=lambda config: vars(ray)["init"](num_cpus=1)) is None
    assert taken == ["composed"]
    assert utils.run_job("other", task_function=lambda config: f"{config} ran") == "other ran" and len(taken) == 1


@pytest.mark.parametrize("starts_first", [True, False])
def test_easyr1_is_taken_over_before_or_after_its_configuration_is_complete(
    starts_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 0.3 its task completes the configuration, which Ray would start."""
    ray, own = ModuleType("ray"), SimpleNamespace(PPOConfig=type("PPOConfig", (Configuration,), {}))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("ATTNCHECK_WATCH", str(tmp_path))
    monkeypatch.setattr(takeover, "run_ranks", lambda module, path, size: size)
    monkeypatch.setattr(pickle, "dump", lambda config, stream: stream.write(str(config.ready).encode()))
    takeover.take_over_easyr1(own)

    def main() -> None:
        first, config = "another value", own.PPOConfig()
        if starts_first:
            vars(ray)["init"](runtime_env={"first": first})
        config.deep_post_init()

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (tmp_path / "configuration.pickle").read_text() == "True"


class Configuration:
    """As EasyR1's."""

    def __init__(self) -> None:
        self.trainer, self.ready = SimpleNamespace(n_gpus_per_node=2), False

    def deep_post_init(self) -> None:
        """Complete it."""
        self.ready = True
