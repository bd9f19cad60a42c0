"""Scales a launch down: its framework's settings of size, and its launcher's processes to those available here."""

import glob
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attncheck.core.facts import Known
from attncheck.core.io.errors import Unanswered
from attncheck.core.job import DROP, Job, UnknownSetting
from attncheck.core.launch import Edit, Launch, ReadFile, Setting, SourceLocation, Word
from attncheck.core.rehearsal import FREE, JOB_FOLDER, TEXT_COLUMNS, UNDOCUMENTED, DataForm, JobCut, Materials
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.queries.hub_fallback import explain_uncached_kernel
from attncheck.lint.deepspeed_config import OTHER_ENGINES, uses_deepspeed
from attncheck.lint.fields.effect_cuts import cut_effects
from attncheck.lint.fields.hugging_face import is_multimodal
from attncheck.lint.fields.rehearsing import (
    COMPOSED,
    describe_emulation,
    edit_options,
    edit_word,
    find_emulated,
    get_first_option,
    get_option,
    get_setting,
    leaves_sharding_out,
)
from attncheck.lint.fields.script_options import MODEL_OPTIONS, find_data_option
from attncheck.lint.files import editing
from attncheck.lint.frameworks.verl.yaml_tables import remove_emptied_tables
from attncheck.lint.launchers import accelerate, containers, deepspeed, ray, srun, uv
from attncheck.lint.rewriting import ReadLaunch, Rewritten, find_vendored, format_with_files, rewrite
from attncheck.lint.stated_versions import OWN_FILES
from attncheck.rehearsal.columns import (
    PROJECT,
    VARIABLE_FOLDER,
    chooses_targets,
    find_below,
    find_console_script,
    find_here,
    find_script,
    has_text_pairs,
    iter_first_rows,
    list_folders_above,
    names_data,
    names_flash_attn,
    read_columns,
    reads_pairs,
)
from attncheck.rehearsal.guards import GUARDED, drop_guarded
from attncheck.rehearsal.substitutions import leave_out

MAX_LENGTH = 256  # tokens of a row
MAX_REAL_LENGTH = 512  # for the user's own data, which have longer rows
MAX_BATCH = 3  # documents: losses after the second row of a batch become visible
MAX_FOLDERS = 1000  # of the launch, in which projects are searched
MAX_PAIRED_BATCH = 2  # pairs, and prompts with two generated answers each
MAX_ACCUMULATION = 2
STAND_IN_HEADS = 2  # kv heads of the stand-ins for an unavailable model, which Ulysses splits
SERVICES = ("srun", "ray")  # launchers that are removed: processes start in the sandbox
ARGUMENT = re.compile(r"\$\{?[1-9@]")  # an argument of the script
# LLaMA-Factory 0.9.5 extras/misc.py compares the installed releases with its own unless this variable is set.
ANY_VERSION = {"DISABLE_VERSION_CHECK": "1"}
PROCESS_OPTIONS = ("nproc_per_node", "num_processes", "num_gpus")  # options of torchrun, accelerate and deepspeed
FILE_OPTION = "--config"
LAUNCHER_FILES = ("--config_file", "--config-file")
SHARDING_FILE = re.compile(r"zero|deepspeed|fsdp", re.IGNORECASE)  # a name of such a file
PROGRAM = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|swift|trl|axolotl|llamafactory-cli")
MODULE = re.compile(r"(?!.*\.py$)[A-Za-z_]\w*(\.\w+)+")
OWN_KEY = re.compile(r"\+?\w+(\.\w+)+")  # not of a group, which Hydra adds by "+" alone
INSTALLED_PACKAGES = {file.partition("/")[0] for files in OWN_FILES.values() for file in files}
MODEL_NAME = re.compile(r"\w[\w.-]*")
DEVICE_OPTIONS = ("include", "i")  # of deepspeed: worker-0:0,1,2,3
NODE_OPTIONS = ("nnodes", "num_machines", "num_nodes")
RANK_OPTIONS = ("node_rank", "machine_rank")  # the first node's, because only that one starts
HOST_OPTIONS = (
    "-H",
    "--host",
    "-host",
    "--hostfile",
    "-hostfile",
    "--machinefile",
    "-machinefile",
)  # options of mpirun and deepspeed
# For a pretrained model: at the small model's rate it would lose what it learned.
RATES = ("learning_rate", "lr", "max_lr", "optim.lr", "adam.lr")

WITHOUT_SHARDING = {"ATTNCHECK_WITHOUT_SHARDING": "1"}
# What deepspeed 0.19.8 launcher/launch.py sets for one process; its two launchers import torch and DeepSpeed as well.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


class NothingToRehearse(Unanswered):
    """No launch starts a training that can be scaled down."""


@dataclass(frozen=True)
class CutLaunch:
    """A launch that can run here: a shell command, and the files that it reads."""

    command: str
    files: Mapping[str, str]  # path to text
    diff: str
    cut: JobCut
    folders: tuple[str, ...] = ()  # that it may read


def make_materials(
    read: ReadLaunch,
    folder: str,
    steps: int,
    uses_gpu: bool,
    processes: int,
    full_model: bool = False,
    real_data: bool = False,
    trusts_remote_code: bool = False,
) -> Materials:
    """Return the locations of a launch's model, data and output, and the sizes to which it is scaled down."""
    plan = read.job.plan
    ring_size = _choose_ring_size(read, processes)
    is_of_documents = read.recognised.framework.general or read.job.trainer in ("sft", "pt")
    length = min(max(plan.max_length, 128), MAX_REAL_LENGTH if real_data else MAX_LENGTH)
    return Materials(
        os.path.join(folder, "model"),
        os.path.join(folder, "data"),
        os.path.join(folder, JOB_FOLDER, "output"),
        steps,
        length - length % (2 * ring_size),  # zigzag cuts a row into two chunks per rank
        min(plan.batch, MAX_BATCH if is_of_documents else MAX_PAIRED_BATCH),
        min(plan.accumulation, MAX_ACCUMULATION),
        uses_gpu,
        processes - processes % ring_size,
        ring_size,
        full_model,
        real_data,
        trusts_remote_code,
        is_multimodal(read.snapshot),
    )


def limit_rows(read: ReadLaunch, materials: Materials) -> int:
    """Return the most tokens of the user's rows, 0 if the launch truncates them as the rehearsal does."""
    return 0 if read.job.plan.max_length <= materials.max_length else materials.max_length


def _choose_ring_size(read: ReadLaunch, processes: int) -> int:
    """Return the number of ranks that share a row: the launch's, or a divisor if fewer processes are available."""
    plan = read.job.plan
    is_stand_in = not isinstance(read.snapshot.model, Known)  # never with --full-model
    limit = min(processes, STAND_IN_HEADS) if plan.scheme == "ulysses" and is_stand_in else processes
    return max(size for size in range(1, plan.ring_size + 1) if plan.ring_size % size == 0 and size <= limit)


def cut_job(read: ReadLaunch, materials: Materials) -> JobCut:
    """Return the framework's settings that scale its launch down. Raises `NothingToRehearse` if it cannot."""
    framework = read.recognised.framework
    if framework.cut is None:
        raise NothingToRehearse(
            f"{read.job.location}: launches of {framework.name} are not rehearsed yet, only linted: "
            "their rows, loss, gradients and weights are not checked"
        )
    cut = framework.cut(read.recognised.launch, _with_new_names(read), materials)
    if not isinstance(cut, str) and materials.uses_gpu:  # on a CPU it is emulated
        cut = explain_uncached_kernel(read.snapshot, read.job.plan.attn_implementation) or cut
    if isinstance(cut, str):
        raise NothingToRehearse(f"{read.job.location}: {cut}")
    has_rows = "ATTNCHECK_ROWS" in cut.environ
    if materials.real_data:
        cut = _take_own_data(read, cut)
    elif cut.form in ("messages", "prompt_completion") and has_rows:
        makes_rows = bool(TEXT_COLUMNS & {*read_columns(read)})
        if makes_rows or (cut.form == "messages" and chooses_targets(read)):
            form: DataForm = "every" if makes_rows else cut.form
            cut = replace(cut, form=form, objective=replace(cut.objective, targets="labelled"))
    data = find_data_option(read.recognised.launch)
    if data in cut.options and names_data(read, get_option(read.recognised.launch, data)):
        cut = replace(cut, options={name: value for name, value in cut.options.items() if name != data})
    if cut.form == "every" and cut.environ.get("ATTNCHECK_ROWS") and reads_pairs(read):
        cut = replace(cut, form="preference_text", objective=UNDOCUMENTED)
    if cut.form in ("preference", "implicit_preference") and has_rows and not materials.real_data:
        makes_answers = {"completion", "label"} <= {*read_columns(read)}
        own_form: DataForm = "preference_text" if has_text_pairs(iter_first_rows(read, cut.data)) else cut.form
        cut = replace(cut, form="answers" if makes_answers else own_form)
    if materials.full_model:
        cut = _keep_own_model(read, cut)
    elif has_rows:
        cut = _keep_name(read, cut, materials)
    is_own_script = "ATTNCHECK_WITHOUT_GPU" in cut.environ
    if is_own_script and not cut.emulates_flash_attn and names_flash_attn(read):
        cut = replace(_add_remarks(cut, (describe_emulation("flash_attention_2"),)), emulates_flash_attn=True)
    if cut.emulates_flash_attn and (emulated := find_emulated(read.job.plan.attn_implementation)):
        cut = replace(cut, environ={**cut.environ, "ATTNCHECK_EMULATED": emulated})
    if not materials.uses_gpu and leaves_sharding_out(read.job):
        cut = replace(cut, environ={**cut.environ, **WITHOUT_SHARDING})
    if cut.driver:
        names = {"DRIVER": cut.driver, "DOCUMENTS": materials.documents, "STEPS": str(materials.steps)}
        cut = replace(cut, environ={**cut.environ, **{f"ATTNCHECK_{name}": text for name, text in names.items()}})
    return _cut_ring(cut, read.job.plan.ring_size, materials)


def name_model(read: ReadLaunch) -> str:
    """Return the name or folder of the launch's model: its own, or the default of its program's option; or ""."""
    framework, launch = read.recognised.framework, read.recognised.launch
    named = read.job.model or framework.model(launch) or get_first_option(launch, MODEL_OPTIONS)
    options = launch.program.options if launch.program is not None else {}
    defaults = {name.replace("-", "_"): option.default for name, option in options.items()}
    written = (value for name in MODEL_OPTIONS if isinstance(value := defaults.get(name), str))
    return named or next(written, "")


def _with_new_names(read: ReadLaunch) -> Job:
    """Return a launch's job with its settings under the names that the installed release has for them."""
    names = {(unknown.name, unknown.location): unknown.now[0] for unknown in read.corrections if unknown.now}

    def rename(setting: Setting) -> Setting:
        new = names.get((setting.name, setting.location))
        return replace(setting, name=re.split("[=: ]", new)[0]) if new else setting

    return replace(read.job, settings=tuple(map(rename, read.job.settings)))


def lay_files(cut: JobCut, materials: Materials) -> None:
    """Create the data's folder, the model's other path, and the files next to the data.

    The scaled-down launch reads all of these.
    """
    os.makedirs(materials.data, exist_ok=True)
    if cut.model_alias:
        os.makedirs(os.path.dirname(cut.model_alias), exist_ok=True)
        os.symlink(materials.model, cut.model_alias)
    for name, text in cut.files.items():
        with open(os.path.join(materials.data, name), "w") as stream:
            stream.write(text)


def find_data(read: ReadLaunch, cut: JobCut) -> str:
    """Return the data that a launch names, relative to its working folder, if they exist."""
    path = os.path.join(read.recognised.launch.folder, os.path.expanduser(os.path.expandvars(cut.data)))
    return path if os.path.exists(path) else cut.data


def _take_own_data(read: ReadLaunch, cut: JobCut) -> JobCut:
    """Return the cut of a launch with its own rows: their labels mark the learned tokens."""
    name = read.recognised.framework.name
    if not cut.data:
        raise NothingToRehearse(
            f"{read.job.location}: {name}'s {read.job.trainer} is rehearsed only with synthetic documents: --real-data "
            "is for the sft of a known framework whose data are one file or folder, and for scripts with such an option"
        )
    if read.job.plan.ring_size > 1:
        raise NothingToRehearse(
            f"{read.job.location}: rows that are split across ranks can only be reassembled with synthetic words: "
            f"remove --real-data"
        )
    return cut if cut.objective.targets in FREE else replace(cut, objective=replace(cut.objective, targets="labelled"))


def _keep_own_model(read: ReadLaunch, cut: JobCut) -> JobCut:
    """Return the cut of a launch with its own model, which is trained at the launch's own rate."""
    if cut.driver:
        raise NothingToRehearse(
            f"{read.job.location}: {read.recognised.framework.name}'s {read.job.trainer} is rehearsed "
            "only with a small model: remove --full-model"
        )
    sets, options = (
        {name: value for name, value in given.items() if name not in RATES} for given in (cut.sets, cut.options)
    )
    return replace(cut, sets=sets, options=options)


def _keep_name(read: ReadLaunch, cut: JobCut, materials: Materials) -> JobCut:
    """Return the cut of a script with a path to the small model that ends with the model's name.

    A script may choose its classes and templates by that: `if "Qwen2-VL" in model_name`.
    """
    name = os.path.basename(name_model(read))
    alias = materials.alias(name if MODEL_NAME.fullmatch(name) else "")
    sets, options = (
        {name: alias if value == materials.model else value for name, value in given.items()}
        for given in (cut.sets, cut.options)
    )
    return replace(cut, sets=sets, options=options, model_alias=alias)


def _cut_ring(cut: JobCut, ring_size: int, materials: Materials) -> JobCut:
    """Return a cut with rows split across as many ranks as the launch sets, if this machine allows that many."""
    kept = 1 if cut.whole_rows else materials.ring_size
    if kept == ring_size:
        return replace(cut, ring_size=kept)
    has_room = ring_size <= materials.processes
    limit = (
        f"the small model has {STAND_IN_HEADS} kv heads" if has_room else f"{materials.processes} processes start here"
    )
    reason = cut.whole_rows or limit
    where = f"a row spans {kept}" if kept > 1 else "each rank gets whole rows"
    remark = f"rows are not split across {ring_size} ranks: {reason}, so {where}"
    return replace(cut, ring_size=kept, sets={**cut.sets, "ring_size": str(kept)}, remarks=(*cut.remarks, remark))


def cut_launch(
    read: ReadLaunch,
    cut: JobCut,
    sets: Mapping[str, str],
    folder: str,
    materials: Materials,
    runs_substitutions: bool = False,
) -> CutLaunch:
    """Return a launch scaled down, with the settings `sets` added: the ones to try.

    For every framework, settings that write elsewhere, send, delete or load are removed. Raises `Unanswered` for a
    launch that cannot be changed, that needs variables which only its script sets, or that needs a command substitution
    while `runs_substitutions` is not set.
    """
    launch, processes = read.recognised.launch, materials.processes
    rewritten, cut, folders = _rewrite(read, cut, sets, materials)
    here = _enter_folder(_pass_file_first(rewritten.launch, read))
    here = _find_files_here(_run_here(here, read.job.location), folder)
    here, cut = _fit_launcher(replace(here, is_remote=False), cut, read.read_file)
    if not materials.uses_gpu:
        here, cut = _run_without_sharding(here, cut, read, processes)
    plain = leave_out(drop_guarded(here), (*os.environ, *GUARDED), runs_substitutions)
    if plain.needed:
        raise Unanswered(_describe_needed(read, plain.needed))
    guarded, cut = plain.launch, _add_remarks(cut, plain.remarks)
    scripts = _start_console_script(launch, _name_program(launch, cut), folder)
    if scripts and not materials.uses_gpu:  # these often start a process per GPU
        cut = replace(cut, environ={"NPROC_PER_NODE": str(processes), **cut.environ})
    if launch.words:
        guarded = _start_scripts(guarded, scripts)
    command, files = format_with_files(guarded, folder)
    if not launch.words:
        path = os.path.join(folder, f"rehearsed_{os.path.basename(launch.source.name)}")
        files = {path: rewritten.launch.source.text}
        command = command._replace(text=_format_file_command(read, cut, path, tuple(scripts)))
    environ = {name: guarded.environ[name] for name in command.variables if name in guarded.environ}
    if any(name in launch.launchers for name in SERVICES):  # settings that are removed together with them
        environ |= {setting.name: setting.value for setting in guarded.variables if setting.known}
    paths = [own["PYTHONPATH"] for own in (cut.environ, environ) if "PYTHONPATH" in own]  # the tree's own comes first
    environ = {**cut.environ, **environ, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}
    cut = replace(_add_remarks(cut, _describe_removed(launch)), environ=environ)
    cut = take_vendored(launch, cut, read.recognised.framework.name)
    cut = _import_project(launch, cut, bool(scripts))
    return CutLaunch(_limit_processes(command.text, processes), {**files, **scripts}, rewritten.diff, cut, folders)


def _rewrite(
    read: ReadLaunch, cut: JobCut, sets: Mapping[str, str], materials: Materials
) -> tuple[Rewritten, JobCut, tuple[str, ...]]:
    """Return the launch with the settings of its cut, the cut, and the folders that the launch may read."""
    launch = read.recognised.launch
    if launch.starts_written_script or _composes_settings(launch, cut):
        cut, sets = _cut_in_process(cut, sets), {}
    corrections = list_corrections(read, cut)
    try:
        edits = (*edit_options(launch, cut.options), *_edit_launcher(launch, materials.processes))
        edits += (*_edit_program(launch, cut, {name.name for name in corrections}), *_remove_foreign(launch, cut))
    except ValueError as error:
        raise Unanswered(f"{read.job.location}: {error}: write it as one word") from None
    given = _rename_sets({**cut.sets, **sets}, corrections)
    if "ATTNCHECK_ROWS" in cut.environ:
        added = {name: value for name, value in given.items() if value != DROP}
        cut = replace(cut, environ={**cut.environ, "ATTNCHECK_ADDED": json.dumps(added)})
    rewritten = rewrite(read, {**list_refused(read), **given}, edits, corrections)
    if launch.starts_written_script:  # literal settings in a script are changed in its process
        rewritten = replace(rewritten, launch=replace(rewritten.launch, file=None, entries=()))
    is_own = "ATTNCHECK_ROWS" in cut.environ
    effects = cut_effects(rewritten.launch, {**cut.sets, **cut.options, **sets}, materials, is_own)
    return replace(rewritten, launch=effects.launch), _add_remarks(cut, effects.remarks), effects.folders


def _describe_needed(read: ReadLaunch, needed: Sequence[str]) -> str:
    """Return what a launch needs that only its script sets, and how to give it."""
    advice = "set the variable in front of attncheck, or allow commands with --run-substitutions"
    if any(map(ARGUMENT.search, needed)):
        advice = f"pass the script's arguments: attncheck smoke -- bash {read.recognised.launch.source.name} ARGUMENTS"
    return f"{read.job.location}: the launch needs {', '.join(needed)}, which only its script sets: {advice}"


def _name_program(launch: Launch, cut: JobCut) -> str:
    """Return the program that a launch starts, or that reads its file."""
    words = tuple(word.text for word in launch.words[:1])
    return "".join(words if words or launch.starts_written_script else cut.command[:1])


def _start_scripts(launch: Launch, scripts: Collection[str]) -> Launch:
    """Return the launch with the scripts in the place of its program."""
    if not scripts:
        return launch
    count = len(launch.whole) - len(launch.words)
    started = (*scripts,) if launch.launchers else ("python", *scripts)
    first = (_make_word(launch.words[0], text) for text in started)
    return replace(launch, whole=(*launch.whole[:count], *first, *launch.words[1:]))


def _format_file_command(read: ReadLaunch, cut: JobCut, path: str, scripts: tuple[str, ...]) -> str:
    """Return the command that reads the configuration file at `path`. Raises `Unanswered` if it is not known."""
    launch = read.recognised.launch
    folder, name = os.path.split(path)
    words = ("python", launch.source.name) if launch.starts_written_script else cut.command
    words = ("python", *scripts, *words[1:]) if scripts else words
    stem = os.path.splitext(name)[0]
    text = shlex.join(word.format(file=path, folder=folder, stem=stem) for word in words)
    if not text:
        raise Unanswered(
            f"{read.job.location}: this is only a configuration file; give the command that reads it after --"
        )
    return text


def _describe_removed(launch: Launch) -> tuple[str, ...]:
    """Return a remark for each launcher that is removed, and for a file that is not where the launch names it."""
    remarks = []
    if launch.file is not None and launch.file.is_nearby:
        remarks.append(f"{launch.file.name} was not found: the file of its name next to the launch is read")
    if "uv" in launch.launchers:
        remarks.append("uv run is removed: the examined environment runs the launch")
    if launch.is_remote:
        remarks.append("started here, not in the shell of tmux or ssh that gets the command")
    services = [name for name in SERVICES if name in launch.launchers]
    return (*remarks, *(f"{name} is removed: processes start in the sandbox" for name in services))


def take_vendored(launch: Launch, cut: JobCut, framework: str) -> JobCut:
    """Return the cut of a launch with its framework's source next to it, which runs instead of the installed one."""
    vendored = find_vendored(launch, framework)
    if vendored is None:
        return cut
    folder, name = vendored
    path = os.pathsep.join(filter(None, (folder, cut.environ.get("PYTHONPATH", ""))))
    remark = f"{name} is taken from the launch's folder, {os.path.relpath(folder)}"
    cut = replace(cut, environ={**cut.environ, "PYTHONPATH": path, "ATTNCHECK_FORK": "1", **ANY_VERSION})
    return _add_remarks(cut, (remark,))


def _composes_settings(launch: Launch, cut: JobCut) -> bool:
    """Return whether the user's script composes its settings from files, and takes no options."""
    if "ATTNCHECK_ROWS" not in cut.environ or launch.program is not None:
        return "ATTNCHECK_ROWS" in cut.environ and launch.program is not None and launch.program.style in COMPOSED
    script = find_script(launch)
    return script is not None and "@hydra.main" in script.read_text(errors="replace")


def _cut_in_process(cut: JobCut, sets: Mapping[str, str]) -> JobCut:
    """Return the cut of a script with literal settings: the watcher changes them when the script sets them."""
    settings = {name: None if value == DROP else value for name, value in {**cut.sets, **sets}.items()}
    remarks = (*cut.remarks, "settings written in the script are changed in its process")
    return replace(cut, sets={}, environ={**cut.environ, "ATTNCHECK_SETTINGS": json.dumps(settings)}, remarks=remarks)


def _find_files_here(launch: Launch, folder: str) -> Launch:
    """Return a launch in which nearby files replace paths of another machine or folder, or paths below a variable."""

    def find(word: Word) -> Word:
        before, equals, path = word.text.rpartition("=")
        is_missing = os.sep in path and not os.path.exists(os.path.join(launch.folder, os.path.expanduser(path)))
        is_elsewhere = is_missing if word.known else VARIABLE_FOLDER.match(path)
        is_written = path.startswith(folder) or (launch.file is not None and path == launch.file.name)
        if not is_elsewhere or "." not in os.path.basename(path) or is_written:
            return word
        here = find_here(launch, path)
        return _make_word(word, f"{before}{equals}{here}") if here else word

    return replace(launch, whole=tuple(map(find, launch.whole)))


def list_corrections(read: ReadLaunch, cut: JobCut) -> tuple[UnknownSetting, ...]:
    """Return the option names to correct: those that the program refuses and its framework does not know.

    A script runs unchanged.
    """
    if read.recognised.launch.starts_written_script:
        return ()
    if not cut.program:
        has_file = read.recognised.launch.file is not None  # which `_pass_file_first` keeps
        return tuple(unknown for unknown in read.corrections if unknown.name != FILE_OPTION or not has_file)
    return tuple(replace(unknown, near="") for unknown in read.job.unknown_settings)


def list_refused(read: ReadLaunch) -> dict[str, str]:
    """Return values for the options that the launch gives without one and the installed release refuses: `--bf16`."""
    refused = (problem.sets for problem in read.job.problems if problem.consequence == "refuses")
    sets = {name: value for values in refused for name, value in values.items()}
    return {name: value for name, value in sets.items() if get_setting(read.job, name) == ""}


def _rename_sets(sets: Mapping[str, str], corrections: Iterable[UnknownSetting]) -> dict[str, str]:
    """Return settings under their corrected names."""
    renamed = dict(sets)
    for unknown in corrections:
        old, new = (name.lstrip("-+~").replace("-", "_") for name in (unknown.name, *unknown.now[:1], "")[:2])
        if old in renamed and new:
            renamed.setdefault(re.split("[= ]", new)[0], renamed.pop(old))
    return renamed


def describe_corrections(read: ReadLaunch, cut: JobCut) -> str:
    """Return the corrections in words, "" if there are none."""
    corrections = list_corrections(read, cut)
    names = [f"{name.name} is {name.now[0]}" if name.now else f"without {name.name}" for name in corrections]
    names += [f"{name} is {value}" for name, value in list_refused(read).items() if name not in cut.sets]
    names += [f"the file of {FILE_OPTION} is the first argument"] * _puts_file_first(read)
    if not names:
        return ""
    refuses = f"{read.job.framework} {read.job.version} refuses the launch as written"
    return f"{refuses}; rehearsed with these corrections: {'; '.join(dict.fromkeys(names))}"


def _edit_program(launch: Launch, cut: JobCut, corrected: Collection[str]) -> Iterator[Edit]:
    """Yield the edits that replace the launch's program by the framework's own, whose configuration has other keys.

    hydra-core 1.3.2 _internal/config_loader_impl.py:376: without "+" a key must exist, with "+" it must not; "++" takes
    both.
    """
    if not cut.program or not launch.words:
        return
    module = launch.words[0]
    yield edit_word(launch, module, f"-m {cut.program}" if module.text.endswith(".py") else cut.program)
    for word in launch.words[1:]:
        (key, equals, _), text = word.text.partition("="), launch.source.text[slice(*word.span)]
        start = word.span[0] + len(text) - len(text.lstrip("\"'"))
        is_here = launch.source.text.startswith(key, start)  # not in an array
        if equals and OWN_KEY.fullmatch(key) and is_here and not {key, key.lstrip("+")} & {*corrected, *cut.sets}:
            yield Edit(launch.source.name, (start, start), "+" if key.startswith("+") else "++")


def _remove_foreign(launch: Launch, cut: JobCut) -> Iterator[Edit]:
    """Yield the edits that remove keys which the framework's program does not accept."""
    if launch.file is None:
        return
    tables = dict(remove_emptied_tables(launch.file, launch.entries, cut.foreign))
    yield from tables.values()
    for entry in launch.entries:
        if entry.name in cut.foreign and not entry.name.startswith(tuple(f"{table}." for table in tables)):
            yield editing.remove_setting(launch.file, entry.span)


def _add_remarks(cut: JobCut, remarks: tuple[str, ...]) -> JobCut:
    return replace(cut, remarks=(*cut.remarks, *remarks))


def _run_here(launch: Launch, location: SourceLocation) -> Launch:
    """Return a launch that starts its processes here, not through a service as with srun and `ray job submit`.

    A service's processes would not be in the sandbox. Hosts are removed too. Raises `Unanswered` for a container,
    because its image has a different environment from the examined one.
    """
    whole = launch.whole
    place = 0
    while place < len(whole) - len(launch.words):
        if containers.parse(whole[place:]):
            raise Unanswered(
                f"{location}: the launch starts a container, which a rehearsal cannot do: rehearse the command inside "
                f"it, if its packages are installed"
            )
        parsed = srun.parse(whole[place:]) or ray.parse(whole[place:])
        runner = uv.parse(whole[place:])
        name, equals, _ = whole[place].text.partition("=")
        if parsed is not None:
            whole = (*whole[:place], *parsed.words)
        elif runner is not None:  # of an environment other than the examined one
            options = {word.text for word in whole[place : len(whole) - len(runner.words)]}
            texts = ["python", "-m"] if {"-m", "--module"} & options else ["python"]
            is_program = len(texts) == 1 and not runner.words[0].text.endswith(".py")
            python = () if is_program else tuple(_make_word(whole[place], text) for text in texts)
            whole = (*whole[:place], *python, *runner.words)
        elif name in HOST_OPTIONS:
            whole = (*whole[:place], *whole[place + (1 if equals else 2) :])
        else:
            place += 1
    return replace(launch, whole=whole)


def _enter_folder(launch: Launch) -> Launch:
    """Return a launch that starts where its program is: in its file's folder, or the only one that has it.

    A user's module may also be in a folder above its file; a framework's is installed.
    """
    program = launch.words[0].text if launch.words else ""
    is_module = MODULE.fullmatch(program) is not None and program.partition(".")[0] not in INSTALLED_PACKAGES
    path = f"{program.replace('.', '/')}.py" if is_module else program
    if not path.endswith(".py") or os.path.isabs(path) or os.path.isfile(os.path.join(launch.folder, path)):
        return launch
    above = list_folders_above(launch, launch.source.name) if is_module else [os.path.dirname(launch.source.name)]
    places = (os.path.join(folder, path) for folder in above)
    place = next(filter(os.path.isfile, places), "") or find_below(path)
    folder = os.path.abspath(place.removesuffix(path))
    if not place or folder == os.path.abspath(launch.folder):
        return launch
    return replace(launch, directories=(*launch.directories, shlex.quote(folder)))


def _start_console_script(launch: Launch, program: str, folder: str) -> dict[str, str]:
    """Return the file that starts a console script of the launch's project; {} for another program."""
    entry = find_console_script(launch, program)
    path = os.path.join(folder, f"start-{program}.py")  # no package has this name
    return {path: f"from {entry.module} import {entry.function}\n{entry.function}()\n"} if entry is not None else {}


def _fit_launcher(launch: Launch, cut: JobCut, read_file: ReadFile) -> tuple[Launch, JobCut]:
    """Return a launch and its cut without another machine's programs and accelerate's missing configuration file."""
    whole, count = list(launch.whole), len(launch.whole) - len(launch.words)
    folders = dict.fromkeys((launch.folder, os.path.dirname(launch.source.name), ""))
    for index, word in enumerate(whole[: count + 1]):
        option, equals, path = word.text.partition("=")
        name = os.path.basename(option)
        is_other = name != option or "." in name
        if PROGRAM.fullmatch(name) and is_other and not os.path.exists(option):  # the examined environment's
            whole[index] = _make_word(word, "python" if name.startswith("python") and "." in name else name)
        path = path if equals or index == count else whole[index + 1].text
        places = [os.path.join(folder, path) for folder in folders]
        if option in LAUNCHER_FILES and not any(os.path.isfile(place) or read_file(place) for place in places):
            del whole[index : index + (1 if equals else 2)]
            cut = _add_remarks(cut, (f"{path} was not found: accelerate starts without it",))
            shards = WITHOUT_SHARDING if SHARDING_FILE.search(path) else {}
            cut = replace(cut, environ={**cut.environ, **shards})
            break
    return replace(launch, whole=tuple(whole)), cut


def _import_project(launch: Launch, cut: JobCut, is_console_script: bool) -> JobCut:
    """Return the cut of a script with its project importable as after `pip install -e .`, through the watcher.

    Python itself searches only the script's folder. Projects that are folders of the launch's are importable too.
    """
    program = launch.words[0].text if launch.words else ""
    projects = [
        folder
        for folder in (
            *list_folders_above(launch, str(find_script(launch) or "")),
            *sorted(path[:-1] for path in glob.glob(f"{glob.escape(os.getcwd())}/*/"))[:MAX_FOLDERS],
        )
        if any(os.path.isfile(f"{folder}/{n}") for n in PROJECT)
    ]
    if program.endswith(".py") and os.path.dirname(program):
        projects.append(os.getcwd())
    places = [
        place for folder in dict.fromkeys(projects) for place in (f"{folder}/src", folder) if os.path.isdir(place)
    ]
    package = program.partition(".")[0]
    if not (program.endswith(".py") or is_console_script):  # a module of one of these packages
        places = places if any(os.path.isdir(f"{place}/{package}") for place in places) else []
    if not places:
        return cut
    remark = "packages in the project's folder are imported if they are not installed, as after pip install -e ."
    return _add_remarks(
        replace(cut, environ={**cut.environ, "ATTNCHECK_PROJECT": os.pathsep.join(places), **ANY_VERSION}), (remark,)
    )


def _pass_file_first(launch: Launch, read: ReadLaunch) -> Launch:
    """Return a launch with its configuration file as the first argument, which ms-swift requires since 4.1."""
    places = [place for place, word in enumerate(launch.whole) if word.text == FILE_OPTION]
    if not places or not _puts_file_first(read):
        return launch
    place, start = places[-1], len(launch.launcher_words)
    first = next(number for number, word in enumerate(launch.whole) if number >= start and word.text.startswith("-"))
    return replace(
        launch,
        whole=(*launch.whole[:first], launch.whole[place + 1], *launch.whole[first:place], *launch.whole[place + 2 :]),
    )


def _puts_file_first(read: ReadLaunch) -> bool:
    """Return whether the installed release refuses the option for a launch's configuration file."""
    refused = {problem.location for problem in read.job.problems if problem.consequence == "refuses"}
    refused |= {unknown.location for unknown in read.corrections}
    launch = read.recognised.launch
    return launch.file is not None and any(w.text == FILE_OPTION and w.location in refused for w in launch.whole)


def _run_without_sharding(launch: Launch, cut: JobCut, read: ReadLaunch, processes: int) -> tuple[Launch, JobCut]:
    """Return a launch and its cut, started by torchrun if the launcher needs DeepSpeed, or starts FSDP, without a GPU.

    DeepSpeed's launcher is left out if it would start one process. accelerate 1.15.0 utils/launch.py passes its file's
    precision to the processes by this variable.
    """
    job, own, whole = read.job, "deepspeed" in launch.launchers, launch.whole
    is_alone = own and processes < 2 and read.snapshot.has("deepspeed") and all(w.text != "--no_python" for w in whole)
    entries = {entry.name: entry.value for entry in launch.launcher_entries}
    is_accelerate = "accelerate" in launch.launchers
    is_zero = own or (is_accelerate and uses_deepspeed(job, launch) == Known(True))
    starts_fsdp = entries.get("distributed_type", "").upper() == "FSDP" or "--use_fsdp" in [word.text for word in whole]
    if not is_alone and not (
        job.framework in (*TRAINER_FRAMEWORKS, "script")  # the others import DeepSpeed
        and ((is_zero and not read.snapshot.has("deepspeed")) or (is_accelerate and starts_fsdp))
    ):
        return launch, cut
    parse = deepspeed.parse if own else accelerate.parse
    parses = ((place, parse(whole[place:])) for place in range(len(whole) - len(launch.words)))
    place, parsed = next(((place, parsed) for place, parsed in parses if parsed is not None), (0, None))
    if parsed is None:
        return launch, cut
    options = [word.text for word in whole[place : len(whole) - len(parsed.words)]]
    count = min(processes, job.world_size.value) if isinstance(job.world_size, Known) else processes
    texts = ["python"] if is_alone else ["torchrun", "--standalone", f"--nproc_per_node={count}"]
    texts += ["-m"] if {"-m", "--module"} & set(options) else []
    added = texts, ["--local_rank=0"] * (is_alone and "--no_local_rank" not in options)
    starter, rank = ([_make_word(whole[place], text) for text in group] for group in added)
    launch = replace(launch, whole=(*whole[:place], *starter, *parsed.words[:1], *rank, *parsed.words[1:]))
    precision = entries.get("mixed_precision", "")
    environ = WITHOUT_SHARDING | ({"ACCELERATE_MIXED_PRECISION": precision} if precision else {})
    cut = replace(cut, environ={**cut.environ, **(ALONE if is_alone else environ)})
    reason = "DeepSpeed is not installed" if is_zero else "FSDP needs a GPU"
    remark = f"{reason}: torchrun starts the processes, without sharding"
    return launch, _add_remarks(cut, () if is_alone else (remark,))


def _make_word(place: Word, text: str) -> Word:
    """Return a word with this text for a place in a command."""
    return replace(place, text=text, shell="", known=True)


def _limit_processes(command: str, processes: int) -> str:
    """Return a command whose variables start no more processes than possible, on one node."""
    for name, limit in (("NPROC_PER_NODE", processes), ("NNODES", 1)):
        command = re.sub(
            rf"\b{name}=['\"]?(\d{{1,6}})\b['\"]?",
            lambda match, name=name, limit=limit: f"{name}={min(int(match[1]), limit)}",  # type: ignore[misc]
            command,
        )
    return command


def _edit_launcher(launch: Launch, processes: int) -> Iterator[Edit]:
    """Yield the edits that limit a launch to one node and the possible number of processes."""
    words = launch.launcher_words
    for index, word in enumerate(words):
        name, equals, text = word.text.lstrip("-").partition("=")
        name = name.replace("-", "_")
        devices = DEVICE_OPTIONS if "deepspeed" in launch.launchers else ()
        if not word.text.startswith("-") or name not in (*PROCESS_OPTIONS, *NODE_OPTIONS, *RANK_OPTIONS, *devices):
            continue
        target: Word = word if equals else words[index + 1] if index + 1 < len(words) else word
        value = text if equals else target.text
        limit = 0 if name in RANK_OPTIONS else 1 if name in NODE_OPTIONS else processes
        wanted = str(limit) if not value.isdecimal() or int(value) > limit else value
        if name in devices:
            count = min(len(value.split(",")) if ":" in value else processes, processes)
            wanted = f"localhost:{','.join(map(str, range(count)))}"
        if wanted != value:
            dashes = word.text[: len(word.text) - len(word.text.lstrip("-"))]
            spelling = word.text.partition("=")[0].lstrip("-")
            yield edit_word(launch, target, f"{dashes}{spelling}={wanted}" if equals else wanted)
    yield from _edit_accelerate(launch, processes)


def _edit_accelerate(launch: Launch, processes: int) -> Iterator[Edit]:
    """Yield the edits that limit accelerate to the possible number of processes.

    Its own configuration file may set them, and options override it. --multi_gpu refuses to start a single process;
    without GPUs it alone starts several, and none by default: accelerate 1.15.0 commands/launch.py:1208, 1324, 1329.
    """
    words = launch.launcher_words
    if "accelerate" not in launch.launchers or not words:
        return
    names = {word.text.partition("=")[0].lstrip("-").replace("-", "_"): word for word in words}
    entries = {entry.name: entry.value for entry in launch.launcher_entries}
    in_file = entries.get("num_processes", "")
    starts_too_many = in_file.isdecimal() and int(in_file) > processes
    starts_none = "multi_gpu" in names and not in_file and processes > 1
    if "num_processes" not in names and (starts_too_many or starts_none):
        place = edit_word(launch, words[-1], "")
        yield replace(place, span=(place.span[1], place.span[1]), text=f" --num_processes={processes}")
    if processes < 2 and "multi_gpu" in names:
        yield edit_word(launch, names["multi_gpu"], "")
    begin = next((word for word in words if word.text.endswith("launch")), words[0])
    wanted = re.search(r"--num[_-]processes[ =](\d+)", " ".join(word.text for word in words))
    is_plain = not {f"--{name}" for name in names} & {*OTHER_ENGINES, "--use_deepspeed"}
    if is_plain and "distributed_type" not in entries and wanted is not None and min(int(wanted[1]), processes) > 1:
        place = edit_word(launch, begin, "")
        yield replace(place, span=(place.span[1], place.span[1]), text=" --multi_gpu")
