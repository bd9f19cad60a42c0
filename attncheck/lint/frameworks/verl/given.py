"""Parses Hydra's input from a launch: module, configuration and its groups, overrides, and the keys of a file.

Hydra 1.3 (core/override_parser, _internal/config_loader_impl.py:393-470): `key=value` requires a key of the composed
configuration. `+key=value` requires one that is missing or null; a list or a table is merged with the existing one.
`++key=value` accepts any key, and `~key` removes one. A key that is a group of configuration files selects one of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from attncheck.core.launch import Launch, Setting, SourceLocation, Word
from attncheck.core.program import ProgramOption
from attncheck.core.records import replace
from attncheck.lint.frameworks.verl.tables import NEW_SFT, OLD_SFT, Release
from attncheck.lint.programs.places import find_main, find_own_program, open_tree
from attncheck.lint.programs.program import Entry, find_entry

OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[A-Za-z_][\w.@/:-]*)(?:=(?P<value>.*))?", re.DOTALL)
CONFIG_NAME_OPTIONS = ("--config-name", "-cn")
CONFIG_PATH_OPTIONS = ("--config-path", "-cp", "--config-dir", "-cd")
# Switches and options of Hydra's own command line (hydra/_internal/utils.py, get_args_parser).
HYDRA_SWITCHES = ("--multirun", "-m", "--help", "-h", "--hydra-help", "--resolve", "--version", "--run", "-r")
HYDRA_OPTIONS = ("--cfg", "-c", "--package", "-p", "--info", "-i", "--experimental-rerun")
SFT_KEYS = ("model.partial_pretrain", "data.micro_batch_size_per_gpu", "engine.ulysses_sequence_parallel_size")
LONG_OPTIONS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun", "--info"),
)
OWN_CONFIG = re.compile(r"(?:^|/)verl/(?:\w+/)*config/")  # the package's own, which commands override
OPTIMISES_POLICY = re.compile(r"po(?![a-z])|async")  # main_ppo, a fork's main_grpo; not main_generation
OTHER_TASK = re.compile(r"[._](?:plot|eval|inference|merge)(?=[._])")  # verl.inference.plot_sft
TRAINER_MODULE = "verl.trainer.ppo.ray_trainer."
OWN_PROGRAMS = ("verl.trainer.main_ppo", NEW_SFT, OLD_SFT)
# What a program names: verl itself ("-m verl.trainer.main_ppo" too), and what checks a configuration, `validate_config`
# since 0.6.0, before that RayPPOTrainer's constructor.
NAMED = {
    "verl": re.compile(rb"\b(?:from|import)[ \t]+verl\b|[\"'\s]verl[./]\w"),
    "main_ppo": re.compile(rb"\bverl\.trainer\.main_ppo\b"),
    "validate_config": re.compile(rb"(?<![\w.])validate_config\("),
    "RayPPOTrainer": re.compile(rb"\bRayPPOTrainer\b"),
    "use_critic=False": re.compile(rb"\buse_critic=False\b"),
}
DECORATED = re.compile(rb"\bhydra\.main\([^)]*\bconfig_name\s*=\s*[\"']([\w.-]+)")
MAX_MODULES = 60  # that a program imports: those that its trainers are found in
PPO_KEY_PREFIXES = ("actor_rollout_ref.", "critic.model.")
SHARED_KEYS = ("data.train_files", "trainer.total_training_steps", "trainer.total_epochs")  # with other programs


class Override(NamedTuple):
    """One override of a command; `prefix` is "", "+", "++" or "~"."""

    prefix: str
    key: str
    value: str
    word: Word

    @property
    def text(self) -> str:
        """Return the override as written."""
        return self.word.text

    def format(self, prefix: str = "", key: str = "") -> str:
        """Return the override as text, with another prefix and optionally another key."""
        return f"{prefix}{key or self.key}={self.value}"


@dataclass(frozen=True)
class HydraInputs:
    """The parts of a launch that determine verl's configuration."""

    module: str = ""  # "verl.trainer.main_ppo"; "" for a bare file
    config_name: str = ""  # the value of --config-name
    is_foreign: bool = False  # the module or the configuration is not verl's own
    overrides: tuple[Override, ...] = ()
    entries: tuple[Setting, ...] = ()
    unrecognized_words: tuple[Word, ...] = ()  # neither overrides nor Hydra's own
    unresolved_words: tuple[Word, ...] = ()  # known only at run time
    group_choices: Mapping[str, str] = field(default_factory=dict)  # groups for which overrides select an option
    is_unread: bool = False  # the configuration that it names is no release's, and was not found
    program: Word | None = None  # the module or script as written
    tree_options: Mapping[str, ProgramOption] = field(default_factory=dict)  # of the configuration next to the launch
    calls: frozenset[str] | None = None  # names in `NAMED` of the program; None if it is that of verl

    @property
    def module_location(self) -> SourceLocation | None:
        """Return the location of the module's name."""
        return self.program.location if self.program is not None else None

    @property
    def module_text(self) -> str:
        """Return the module as written: a dotted name or a path."""
        return self.program.text if self.program is not None else ""

    def format_module(self, module: str) -> str:
        """Return another module in the form of this launch's own module."""
        if not self.module_text.endswith(".py"):
            return module
        return self.module_text.removesuffix(f"{self.module.replace('.', '/')}.py") + f"{module.replace('.', '/')}.py"


def read_module(launch: Launch) -> str:
    """Return the module that a launch starts ("verl/trainer/main_ppo.py" is a module too); "" for a bare file."""
    if not launch.words:
        return ""
    first = launch.words[0].text
    if not first.endswith(".py"):
        return first
    parts = PurePosixPath(first).with_suffix("").parts
    for top in ("verl", "recipe"):
        if top in parts:  # the last one: a repository may have its package's name
            return ".".join(parts[len(parts) - 1 - parts[::-1].index(top) :])
    return first


def parse_hydra_inputs(launch: Launch) -> HydraInputs:
    """Return the parts of a launch, for any release."""
    program = launch.words[0] if launch.words else None
    options = launch.program.options if launch.program is not None and launch.program.style == "hydra" else {}
    parsed = _parse_words(launch.words[1:])
    return replace(
        parsed,
        config_name=parsed.config_name or ("" if options else _find_decorated(launch)),
        module=read_module(launch),
        entries=launch.entries,
        program=program,
        tree_options=options,
        calls=None if not launch.words or read_module(launch) in OWN_PROGRAMS else _list_named(launch) or frozenset(),
    )


def _find_decorated(launch: Launch) -> str:
    """Return the configuration that the tree's own copy of verl's program names; "" for that of its release."""
    main = find_main(launch) if read_module(launch) in OWN_PROGRAMS else None
    match = DECORATED.search(main[0].content) if main is not None else None
    return match[1].decode() if match else ""


@lru_cache(maxsize=64)
def _parse_words(arguments: tuple[Word, ...]) -> HydraInputs:
    overrides: list[Override] = []
    unrecognized: list[Word] = []
    unresolved: list[Word] = []
    config_name, has_config_path = "", False
    words = iter(arguments)
    for word in words:
        option, _, value = word.text.partition("=")
        if option in CONFIG_NAME_OPTIONS or option in CONFIG_PATH_OPTIONS:
            value = value or next(words, Word("", (-1, -1), word.location)).text
            config_name = value.removesuffix(".yaml") if option in CONFIG_NAME_OPTIONS else config_name
            has_config_path = has_config_path or option in CONFIG_PATH_OPTIONS
        elif option in HYDRA_OPTIONS:
            next(words, None)
        elif option not in HYDRA_SWITCHES:
            match = OVERRIDE.fullmatch(word.text)
            if match and (match["value"] is not None or match["prefix"] == "~"):
                overrides.append(Override(match["prefix"] or "", match["key"], match["value"] or "", word))
            elif word.text.strip():
                (unrecognized if word.known else unresolved).append(word)
    return HydraInputs(
        config_name=config_name,
        is_foreign=has_config_path,
        overrides=tuple(overrides),
        unrecognized_words=tuple(unrecognized),
        unresolved_words=tuple(unresolved),
    )


def find_trainer(launch: Launch) -> str:
    """Return the verl trainer that a launch starts ("sft", "ppo", "grpo"); "" if it starts none."""
    if not launch.words and OWN_CONFIG.search(launch.source.name):
        return ""  # its command sets what such a file leaves open
    if launch.words and "=" in launch.words[0].text:
        return ""  # the rest of a command that a broken continuation ended
    inputs = parse_hydra_inputs(launch)
    if inputs.module.startswith("verl.") and launch.words:
        script = inputs.module.rpartition(".")[2]
        if OTHER_TASK.search(inputs.module):
            return ""
        if "sft" in script:
            return "sft"
        return _find_algorithm(inputs) if OPTIMISES_POLICY.search(script) else ""
    if inputs.module.endswith(".py") and any(_is_foreign_option(word) for word in inputs.unrecognized_words):
        return ""
    names = [name for name in launch.trainers or () if name.startswith("verl.")]
    if names and all(name.startswith((OLD_SFT, NEW_SFT)) for name in names):
        return "sft"
    if names and all(name.startswith(TRAINER_MODULE) for name in names) and "RayPPOTrainer" not in " ".join(names):
        return ""  # it evaluates with the trainer's own helpers
    keys = [setting.name for setting in inputs.entries] + [override.key for override in inputs.overrides]
    if any(key.startswith(PPO_KEY_PREFIXES) for key in keys):
        named = _list_named(launch)
        return _find_algorithm(inputs) if names or named is None or "verl" in named else ""
    if not {*SHARED_KEYS}.isdisjoint(keys) and starts_main_ppo(launch):  # its file has the other keys
        return _find_algorithm(inputs)
    is_sft = sum(key in SFT_KEYS for key in keys) >= 2  # of a file, or of a copy of verl's trainer in one file
    return "sft" if is_sft and (not launch.words or "verl" in (_list_named(launch) or ())) else ""


def starts_main_ppo(launch: Launch) -> bool:
    """Return whether the user's own script passes its configuration to verl's `main_ppo`, which starts Ray."""
    return bool(launch.words) and launch.words[0].text.endswith(".py") and "main_ppo" in (_list_named(launch) or ())


def _list_named(launch: Launch) -> frozenset[str] | None:
    """Return the names in `NAMED` that the program of a launch has; None if it was not read."""
    place = find_own_program(launch)
    return _search_program(place[0], place[1].folders, place[1].base) if place is not None else None


@lru_cache(maxsize=256)
def _search_program(entry: Entry, folders: tuple[Path, ...], base: Path) -> frozenset[str] | None:
    """Return the names in `NAMED` of a program: verl of what it imports too, others of the modules of its folder."""
    tree = open_tree(folders, base)
    main = find_entry(entry, tree)
    if main is None:
        return None
    modules = [main, *tree.list_imported(main, MAX_MODULES)]
    return frozenset(
        name
        for name, pattern in NAMED.items()
        for module in modules
        if (name == "verl" or main.path.parent in module.path.parents) and pattern.search(module.content)
    )


def _is_foreign_option(word: Word) -> bool:
    """Return whether a word is an option that a Hydra program refuses, so that the script only passes on verl's keys.

    hydra-core 1.3.2 _internal/utils.py:505-599 parses the whole command line, including prefixes of names.
    """
    name = word.text.partition("=")[0]
    return name.startswith("--") and len(name) > 2 and not any(option.startswith(name) for option in LONG_OPTIONS)


def _find_algorithm(inputs: HydraInputs) -> str:
    pairs = [(setting.name, setting.value) for setting in inputs.entries]
    pairs += [(override.key, override.value) for override in inputs.overrides]
    estimators = [value for key, value in pairs if key == "algorithm.adv_estimator"]
    estimator = estimators[-1].strip("\"'") if estimators else "gae"
    return "ppo" if estimator == "gae" else estimator if re.fullmatch(r"\w+", estimator) else "ppo"


def resolve_config(inputs: HydraInputs, release: Release) -> HydraInputs:
    """Return the inputs with the configuration that one release composes for them, and the selected groups.

    A module that this release lacks is read with its successor's configuration. A module of another package is read
    with verl's own configuration, on which such recipes build;
    the result is then `is_foreign`: its other keys are not known.
    """
    successor = find_successor(inputs.module, release)
    module_config = release.config_of_module(inputs.module) or release.config_of_module(successor)
    is_known = inputs.config_name in release.config_names()
    is_own = bool(module_config) and inputs.module.startswith("verl.") and (is_known or not inputs.config_name)
    config_name = inputs.config_name if is_known else module_config or _guess_config(inputs, release)
    lacks_group = "model_engine" not in release.group_choices(config_name)
    # A configuration that cannot be read may be built on either engine's; its keys show which.
    is_other = bool(inputs.config_name) and not is_known
    is_on_megatron = is_other and any(".megatron." in override.key for override in inputs.overrides)
    wants_megatron = is_on_megatron or ("model_engine", "megatron") in (
        (override.key, override.value) for override in inputs.overrides
    )
    if lacks_group and wants_megatron and "ppo_megatron_trainer" in release.config_names():
        config_name = "ppo_megatron_trainer"  # the name in 0.7.0 and before; a group since 0.7.1
    groups = release.group_choices(config_name)
    choices = {override.key: override.value for override in inputs.overrides if _is_group_choice(override, groups)}
    if is_on_megatron and not lacks_group and not inputs.tree_options:
        choices.setdefault("model_engine", "megatron")
    is_unread = inputs.is_unread or (is_other and (not inputs.tree_options or "$" in inputs.config_name))
    return replace(inputs, config_name=config_name, is_foreign=not is_own, group_choices=choices, is_unread=is_unread)


def find_successor(module: str, release: Release) -> str:
    """Return this release's module for the task of `module` in another release; `module` if both have it."""
    if release.config_of_module(module):
        return module
    if module.startswith("verl.trainer.") and "sft" in module:
        return NEW_SFT if release.config_of_module(NEW_SFT) else OLD_SFT
    return "verl.trainer.main_ppo" if module.startswith("verl.") else ""


def _guess_config(inputs: HydraInputs, release: Release) -> str:
    keys = [setting.name for setting in inputs.entries] + [override.key for override in inputs.overrides]
    if "main_ppo" in (inputs.calls or ()) or any(key.startswith(PPO_KEY_PREFIXES) for key in keys):
        return "ppo_trainer"
    is_old = "model.partial_pretrain" in keys or not release.config_of_module(NEW_SFT)
    return "sft_trainer" if is_old and "sft_trainer" in release.config_names() else "sft_trainer_engine"


def _is_group_choice(override: Override, groups: Mapping[str, str]) -> bool:
    is_plain = override.word.known and override.value[:1] not in ("", "[", "{")  # a table does not select a file
    return is_plain and override.prefix in ("", "++") and override.key in groups
