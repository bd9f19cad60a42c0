"""Takes over a launch when its framework would start Ray; its configuration is composed and validated by then.

The launch's own command has run so far, with its own files and overrides. The rest of it runs as Ray's workers would:
the ranks of the actor, one process each, with the variables that torch.distributed reads. Without CUDA they are forks
of the launch's process, which has imported torch and the framework. Its main thread forks them, because the modes that
keep tensors on the CPU are a thread's own.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

POLL_SECONDS = 0.2
STARTER = "deepspeed.launcher.launch"  # imported, so that its own start of a program is answered too
MAX_LINE = 4096
ERROR_TAIL = 8192  # characters of a failing rank's output
# Frameworks, and the packages of their generation that they import and use only for it.
GENERATION = {
    "openrlhf": ("vllm",),  # 0.11.2 trainer/ray/vllm_engine.py:7; releases and forks import other modules of it
    "verl": ("uvicorn", "fastapi"),  # 0.9.1 workers/rollout/utils.py:20, which vllm requires
    "swift.rlhf_trainers": ("msgspec",),  # ms-swift 4.6.0 rlhf_trainers/utils.py:18, which vllm requires
    "swift.trainers.rlhf_trainer": ("msgspec",),  # 3.12.0
}


def take_over_verl(config_module: Any) -> None:
    """Continue with the driver once verl has validated a configuration.

    verl 0.9.1 trainer/main_ppo.py: `main` composes it with Hydra, then calls `validate_config`, then `run_ppo`, which
    starts Ray; `TaskRunnerV1.run` resolves it.
    """
    validate = config_module.validate_config

    @functools.wraps(validate)
    def validate_and_run(config: Any, *arguments: Any, **options: Any) -> None:
        validate(config, *arguments, **options)
        _run_verl(config)

    config_module.validate_config = validate_and_run


def take_over_ray(utils: Any) -> None:
    """Continue with the driver if Ray starts before the configuration is validated, as in verl before 0.8 and forks."""
    original = utils.run_job

    @functools.wraps(original)
    def run_job(*arguments: Any, **options: Any) -> Any:
        task = options["task_function"]

        def run_task(config: Any) -> Any:
            vars(importlib.import_module("ray"))["init"] = lambda *arguments, **options: _run_verl(config)
            return task(config)

        return original(*arguments, **{**options, "task_function": run_task})

    utils.run_job = run_job


def _run_verl(config: Any) -> None:
    from omegaconf import OmegaConf

    path = os.path.join(os.environ["ATTNCHECK_WATCH"], "configuration.yaml")
    OmegaConf.save(config, path, resolve=True)
    sys.exit(run_ranks("attncheck_drivers.verl", path, config.trainer.n_gpus_per_node))


def take_over_hydra(utils: Any) -> None:
    """Continue with the driver once Hydra has composed a configuration, in place of the launch's own main function.

    hydra 1.3 core/utils.py `run_job` calls it. The main functions of verl before 0.8, and of its forks, start Ray.
    """
    original = utils.run_job

    @functools.wraps(original)
    def run_job(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{**options, "task_function": save_and_run})

    def save_and_run(config: Any) -> None:
        from omegaconf import OmegaConf

        path = os.path.join(os.environ["ATTNCHECK_WATCH"], "configuration.yaml")
        OmegaConf.save(config, path)  # unresolved, because the driver changes values that others refer to
        world_size = int(json.loads(os.environ["ATTNCHECK_OVERRIDES"])["trainer.n_gpus_per_node"])
        sys.exit(run_ranks("attncheck_drivers.verl_actor", path, world_size))

    utils.run_job = run_job


def find_ignored_data(repository: Any) -> None:
    """Let Hydra read a description of data from the installed verl if that next to the launch lacks it.

    verl 0.9.1 trainer/config/ppo_trainer.yaml reads data/legacy_data.yaml, and a fork's .gitignore may have "data".
    Other groups decide what is computed. hydra 1.3 _internal/config_repository.py.
    """
    from .absent import note
    from .modules import INSTALLED

    homes = (path for path in sys.path if os.path.basename(path) in INSTALLED)
    folders = (os.path.join(home, "verl", "trainer", "config") for home in homes)
    folder = next(filter(os.path.isdir, folders), "")
    sources = importlib.import_module("hydra._internal.core_plugins.file_config_source")
    source, original = sources.FileConfigSource("installed", f"file://{folder}"), repository.ConfigRepository
    find = original._find_object_source

    @functools.wraps(find)
    def find_object_source(self: Any, config_path: str, object_type: Any) -> Any:
        own = find(self, config_path, object_type)
        if own is not None or not folder or not config_path.startswith("data/") or not source.is_config(config_path):
            return own
        note(os.environ["ATTNCHECK_WATCH"], "data", config_path.replace("/", "."))
        return source

    original._find_object_source = find_object_source


def take_over_openrlhf(utils: Any) -> None:
    """Continue with the driver once OpenRLHF requests its strategy.

    openrlhf 0.11.2 cli/train_ppo_ray.py: options are parsed and validated, then `train` starts Ray unless it runs, and
    calls `get_strategy` of utils/utils.py. Options are dotted since 0.10.2.
    """

    original = utils.get_strategy

    def save_and_run(args: Any) -> None:
        utils.get_strategy = vars(sys.modules["openrlhf.utils"])["get_strategy"] = original  # for the ranks
        path = os.path.join(os.environ["ATTNCHECK_WATCH"], "options.pickle")
        with open(path, "wb") as stream:
            pickle.dump(args, stream)
        own = vars(args.actor) if hasattr(args, "actor") else vars(args)
        prefix = "" if hasattr(args, "actor") else "actor_"
        world_size = own[f"{prefix}num_nodes"] * own[f"{prefix}num_gpus_per_node"]
        sys.exit(run_ranks("attncheck_drivers.openrlhf", path, world_size, isolates=True))

    utils.get_strategy = save_and_run


def take_over_easyr1(config_module: Any) -> None:
    """Continue with the driver once EasyR1 has composed a configuration.

    EasyR1 b44b311 trainer/main.py:103: `deep_post_init` completes it; then Ray starts. Before 0.3, as in
    dvlab-research/Seg-Zero 42a3345, `main` starts Ray, whose task completes it.
    """
    complete = config_module.PPOConfig.deep_post_init

    def complete_and_run(config: Any) -> None:
        complete(config)
        path = os.path.join(os.environ["ATTNCHECK_WATCH"], "configuration.pickle")
        with open(path, "wb") as stream:
            pickle.dump(config, stream)
        sys.exit(run_ranks("attncheck_drivers.easyr1", path, config.trainer.n_gpus_per_node))

    def start_ray(*arguments: Any, **options: Any) -> None:
        values = sys._getframe(1).f_locals.values()
        next(value for value in values if isinstance(value, config_module.PPOConfig)).deep_post_init()

    config_module.PPOConfig.deep_post_init = complete_and_run
    vars(importlib.import_module("ray"))["init"] = start_ray


def do_not_start_ray(ray: Any) -> None:
    """Make Ray report that it is running."""
    ray.is_initialized = lambda: True


def stand_in_for(packages: tuple[str, ...], framework: Any) -> None:
    """Make a framework importable without packages of its generation, because nothing is generated."""
    sys.meta_path += [_AnyOf(package) for package in packages if importlib.util.find_spec(package) is None]


class _AnyOf(MetaPathFinder, Loader):
    """Finds every module of a package that is not installed; each of their names is an empty class."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of the package."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == self._package else None

    def exec_module(self, module: Any) -> None:
        """Define the module's names when they are read."""
        from .absent import note

        note(os.environ["ATTNCHECK_WATCH"], "unused", self._package)
        module.__version__ = "0.16.0"
        module.__getattr__ = functools.partial(_make_class, module.__name__)


def _make_class(module: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__module__": module})


def run_in_process(launch: Any) -> None:
    """Let accelerate's launcher of one process run the program itself; 1.15.0 commands/launch.py `simple_launcher`."""
    start = launch.simple_launcher

    @functools.wraps(start)
    def simple_launcher(args: Any) -> None:
        if not _run_program(*launch.prepare_simple_launcher_cmd_env(args)):
            start(args)

    launch.simple_launcher = simple_launcher


def start_in_process(command_line: Any) -> None:
    """Let a command that ends by starting another program run it itself.

    ms-swift 4.6.0 cli/main.py:100 (`subprocess.run`), axolotl 0.19.0 cli/utils/train.py (`os.execvpe`), deepspeed
    0.18.8 launcher/runner.py:631 (`subprocess.Popen`, of the program that starts the ranks) and launch.py:270 (of a
    rank, which runs here if it is the only one).
    """

    def start(command: list[str], *arguments: Any, original: Any, **options: Any) -> Any:
        environ = options.get("env") or os.environ
        if environ.get("WORLD_SIZE", "1") == "1" and _run_program(command, environ):
            return _Ended()
        return original(command, *arguments, **options)

    def execvpe(program: str, command: list[str], environ: Any) -> None:
        if _run_program(command, environ):
            sys.exit()
        os.execvpe(program, command, environ)

    starters = {name: functools.partial(start, original=getattr(subprocess, name)) for name in ("run", "Popen")}
    command_line.subprocess = SimpleNamespace(**{**vars(subprocess), **starters})
    command_line.os = SimpleNamespace(**{**vars(os), "execvpe": execvpe})


class _Ended:
    """A process that has ended, as the one that started it sees it."""

    returncode, pid = 0, os.getpid()

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status."""
        return self.returncode

    poll = wait


def _run_program(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Run a program of this environment's Python here, where torch is imported; return whether it is one.

    With a GPU the variables that choose it would come too late.
    """
    import torch

    words = [*command[1:]] if command[0] == sys.executable else [_find_script(command[0]), *command[1:]]
    words = words[words[0] == "-u" :]
    if not words[0] or torch.cuda.is_available():
        return False
    os.environ.update(environ)
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    if not getattr(sys.flags, "safe_path", False):  # with PYTHONSAFEPATH the first folder is not the program's
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(sys.argv[0]))
    if is_module and sys.argv[0] == STARTER:
        importlib.import_module(STARTER).main()
    elif is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return True


def _find_script(name: str) -> str:
    """Return the path of a program of this environment that is Python, "" if there is none."""
    path = os.path.join(os.path.dirname(sys.executable), name)
    if shutil.which(name) != path:
        return ""
    with open(path, "rb") as stream:
        return path if stream.readline(MAX_LINE).strip() == b"#!" + os.fsencode(sys.executable) else ""


def run_ranks(module: str, configuration: str, world_size: int, isolates: bool = False) -> int:
    """Run a driver in this many processes; return the exit status of the first one that fails.

    A failure ends the others. Only its errors are printed, because waiting ranks only report that it has ended. With
    `isolates`, each sees only its own GPU, as with Ray.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "ATTNCHECK_DRIVER"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    environment["LOCAL_WORLD_SIZE"] = str(world_size)
    devices = _list_devices(world_size) if isolates else []
    errors = [f"{configuration}-errors-{rank}" for rank in range(world_size)]
    context = multiprocessing.get_context("fork")
    gc.freeze()  # a collection would otherwise copy every object into each rank
    processes = [
        context.Process(
            target=_run_rank, args=(module, configuration, {**environment, **_place_rank(rank, devices)}, path)
        )
        for rank, path in enumerate(errors)
    ]
    for process in processes:
        process.start()
    while True:
        statuses = [process.exitcode for process in processes]
        failed = [rank for rank, status in enumerate(statuses) if status]
        if failed or None not in statuses:
            break
        time.sleep(POLL_SECONDS)
    for process in processes:
        if process.is_alive():
            process.kill()
    if not failed:
        return 0
    first = min(failed, key=lambda rank: os.stat(errors[rank]).st_mtime)
    with open(errors[first], errors="replace") as stream:
        sys.stderr.write(stream.read()[-ERROR_TAIL:])
    return statuses[first] or 1


def _run_rank(module: str, configuration: str, environment: dict[str, str], errors: str) -> None:
    """Run a driver as a rank, its errors in a file: in this process, or in a new one, to which its own GPU is bound."""
    with open(errors, "wb") as stream:
        os.dup2(stream.fileno(), 2)
    if not os.environ.get("ATTNCHECK_WITHOUT_CUDA"):
        os.execve(sys.executable, [sys.executable, "-m", module, configuration], environment)
    from . import waiting

    os.environ.pop("ATTNCHECK_DRIVER", None)
    os.environ.update(environment)
    waiting.install(os.environ["ATTNCHECK_WATCH"])
    sys.argv = [module, configuration]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    atexit._run_exitfuncs()  # a forked process ends without them


def _list_devices(world_size: int) -> list[str]:
    """Return the GPUs of the ranks in the form of CUDA_VISIBLE_DEVICES; empty if the launch has none."""
    if os.environ.get("ATTNCHECK_WITHOUT_CUDA"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",") if visible else [str(number) for number in range(world_size)]


def _place_rank(rank: int, devices: list[str]) -> dict[str, str]:
    if not devices:
        return {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    return {"RANK": str(rank), "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[rank]}
