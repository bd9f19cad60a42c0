"""Finds the trainers that a launch's program uses, from its source; they decide which framework a launch belongs to.

A class counts with all its bases, so `class MyTrainer(Trainer)` is transformers' trainer. The module that is run
decides. If it names none, the modules of the same tree that it imports decide, nearest first. Of several trainers that
the program chooses between by a word (`if kind == "dpo":`), those count that a word of the launch chooses.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from attncheck.core.io.files import read_text
from attncheck.core.launch import NOWHERE, FixedSetting, Launch, MadeTrainer, Setting, Source, SourceLocation
from attncheck.core.program import Program, ProgramOption
from attncheck.lint.arguments import parse_overrides
from attncheck.lint.files.python import names_devices
from attncheck.lint.programs.dataclass_fields import read_fields
from attncheck.lint.programs.fixed_arguments import MODEL_ARGUMENTS, Call, find_model_arguments, find_passed_arguments
from attncheck.lint.programs.hydra_configs import read_config_options, read_hydra_program, resolve_references
from attncheck.lint.programs.literals import UNKNOWN, evaluate
from attncheck.lint.programs.made_trainers import find_made, find_unfused
from attncheck.lint.programs.modules import Definition, External, Resolved, SourceModule, SourceTree
from attncheck.lint.programs.passed_options import PassedOptions, list_names, read_options
from attncheck.lint.programs.places import describe_moved, find_own_program, find_program, open_tree
from attncheck.lint.programs.program import Entry, find_entry
from attncheck.lint.programs.reached import Follower
from attncheck.lint.programs.syntax import MAX_KEPT, join_name, list_called, list_children, list_kind
from attncheck.lint.programs.used_parts import UsedParts, list_chosen, list_tables, read_defaults

MAX_MODULES, MAX_LEVELS, MAX_BASES = 60, 4, 8
TRAINERS = re.compile(
    r"(trl|unsloth)\..*(Trainer|Config|TrlParser)|transformers\..*Trainer"
    r"|(openrlhf|openllama2|verl)\..*([tT]rainer.*|get_strategy)"
    r"|swift\..*(_main|Trainer|Sft|SFT|RLHF|Arguments)|(llamafactory|llmtuner)\..*(run_exp|get_train_args|launch)"
    r"|megatron\.(?!bridge\.).*\.(pretrain|train)|mcore_adapter\..*Trainer"
    r"|(slime|miles|nemo_rl|areal|torchtitan|prime_rl|roll|skyrl_train|axolotl|veomni)\..*"
)
# Functions of frameworks that are copied under other names, each with what it makes: openrlhf 0.11.2 utils/utils.py.
COPIES = {"get_strategy": ("DeepspeedStrategy", "openrlhf.utils.get_strategy")}
ARGUMENTS = re.compile(r"transformers\..*TrainingArguments")
OTHER_TRAINERS = re.compile(r"mmengine\..*Runner|(?:pytorch_)?lightning\..*Trainer")  # they take no such arguments
CONFIGURATION = re.compile(r"transformers\..*TrainingArguments|trl\..*(?<!Model)(?<!Peft)Config")
MEGATRON_TRAINERS = "mcore_adapter."  # these are subclasses of transformers' Trainer, but Megatron computes attention
LIBRARIES = ("trl.", "transformers.", "unsloth.")
LIBRARY_TRAINER = re.compile(r"(trl|unsloth)\..*Trainer")
# Arguments of TRL's trainers that are settings too, until 0.13 (0.7.7 trainer/sft_trainer.py:135). One that is passed
# and true overrides the configuration (0.12.2 trainer/sft_trainer.py:211-215, dpo_trainer.py:468-478).
TRAINER_ARGUMENTS = frozenset({"packing", "max_seq_length", "max_length", "max_prompt_length", "max_target_length"})
TRL_CONFIGURATION = re.compile(r"(?:trl\.)?[A-Z]+Config")  # SFTConfig, GRPOConfig
OWN_LOOP = ("its own training loop",)
BACKWARD, GENERATE, OWN_OPTIONS, FIRE, SET_DEFAULTS = map(
    re.compile, ("backward", "generate", "add_argument", "Fire", "set_defaults")
)
# Fields of a node that construct nothing: the bases of a class, and annotations. Nobody asks for contexts.
CONSTRUCTS_NOTHING = ("ctx", "bases", "annotation", "returns")
FITTED, FIT = re.compile(r"verl\.trainer\.(?:fsdp_)?sft_trainer\..*"), re.compile("fit")  # its methods are used alone
EVALUATE = re.compile("evaluate|predict")
STARTS_TRAINING = re.compile(r"(?!_)(?:\w*_)?(?:train|training|pretrain|finetune|sft|fit)(?:_\w*)?|run_exp")
PARSED = re.compile(r"(?:\w*_)?(?:args|arguments|config|cfg)")
FILE_PARSES = ("parse_json_file", "parse_yaml_file", "parse_dict")  # of transformers' HfArgumentParser
OWN_LOSS = "its own compute_loss"  # among the trainers, if a class of the program replaces its Trainer's loss or train
# if it calls a function such as replace_llama_attn_with_flash_attn, or gives Megatron's loop a model of any kind
OWN_ATTENTION = "its own attention"
REPLACES_ATTENTION = re.compile(r"(?:replace|patch|monkey_?patch|apply)_\w*(?:attn|attention)\w*")
OF_TRAINERS = ("names", "settings", "created", "fixed", "source", "choices", "arguments", "made")  # with the trainers
OWN_ROWS = "its own rows"  # if the program tells TRL's SFTTrainer not to prepare the dataset, which also packs it


class TrainerReading(NamedTuple):
    """The trainers that a program uses, and the settings that its text gives their configuration."""

    names: tuple[str, ...] | None = None  # "trl.SFTTrainer"; `OWN_LOOP`; None: unknown
    settings: tuple[Setting, ...] = ()
    created: tuple[FixedSetting, ...] = ()  # literals of `settings`, even if several calls create configurations
    fixed: tuple[FixedSetting, ...] = ()  # literals that the program's text passes to a trainer or the model
    source: Source | None = None  # the source that contains them
    places_itself: bool = False  # the program's text names its devices
    choices: frozenset[str] = frozenset()  # the words by which the program chooses what it runs
    arguments: tuple[Setting, ...] = ()  # keywords of the constructors that it certainly calls
    is_doubtful: bool = False  # whether the modules that were read have several of them, or a loop
    tables: frozenset[str] = frozenset()  # the keys of their tables of classes
    made: MadeTrainer = MadeTrainer()  # the trainer that it certainly makes
    assigned: frozenset[str] = frozenset()  # attributes that the program sets, `args.bf16 = True`, if that matters
    changed: frozenset[str] = frozenset()  # attributes that it computes from their own values: `args.batch *= 2`
    parses_itself: bool = False  # it defines options for argparse
    is_fired: bool = False  # options are the parameters of a function: Fire(train)
    file_options: frozenset[str] = frozenset()  # they name the file of the arguments: parse_json_file(args.config)
    defaults: tuple[tuple[str, str], ...] = ()  # of the fields of the dataclasses that its parser fills


def attach_trainers(launch: Launch) -> Launch:
    """Return the launch with the trainers of its program, and the settings in the program's text."""
    name = launch.words[0].text if launch.words else launch.source.name
    is_module = any(word.text in ("-m", "--module") for word in launch.launcher_words)
    place = find_program(launch, Entry(name), ()) if name.endswith(".py") or is_module else None
    if place is None:
        return launch
    reading = _read_trainers(place[0], place[1].folders, place[1].base, frozenset(), launch.starts_written_script)
    if launch.words and launch.file is None and not any(map(TRAINERS.fullmatch, reading.names or ())):
        reading = _read_targets(compose_program(launch), launch) or reading
    launch = replace(launch, arguments=reading.arguments, made=reading.made)
    if not launch.words:
        return launch
    words = (*(word.text.rpartition("=")[2] for word in launch.words), *(entry.value for entry in launch.entries))
    chosen = reading.choices.intersection(map(str.casefold, (*words, *launch.environ.values())))
    if chosen and reading.names is not None and len(reading.names) > 1:
        reading = _read_trainers(place[0], place[1].folders, place[1].base, chosen, launch.starts_written_script)
    else:
        chosen = frozenset()
    options = list_names(launch.words)
    given = None if launch.open_ends else reading.assigned.union(options)
    texts = tuple((n, text) for n, text in read_options(launch.words).items() if n not in reading.assigned)
    if any(name.startswith(LIBRARIES) for name in reading.names or ()):
        reading = _narrow(place[0], place[1].folders, place[1].base, chosen, given, texts) or reading
    notes = (*launch.notes, *describe_moved(name, place[0].name)) if name.endswith(".py") else launch.notes
    launch = replace(launch, trainers=reading.names, places_itself=reading.places_itself, notes=notes)
    launch = leave_open(replace(launch, file_options=reading.file_options), reading.changed)
    passed = _make_passed(reading, given, texts)
    main = find_entry(place[0], tree := open_tree(place[1].folders, place[1].base))
    if launch.starts_written_script and main is not None:
        passed = read_defaults(tree, main, passed, given)
        return replace(launch, entries=tuple(map(passed.decide, launch.entries)))
    if reading.settings and launch.file is None:
        entries, fixed = tuple(map(passed.decide, reading.settings)), tuple(map(passed.decide, reading.fixed))
        return replace(launch, entries=entries, file=reading.source, fixed=fixed)

    def passes_on(setting: FixedSetting) -> bool:
        """Return whether the program passes on an option of the command: `packing=args.packing`."""
        return not setting.known and setting.name in options and setting.value.endswith(f".{setting.name}")

    kept = (item for item in (*reading.created, *reading.fixed) if not passes_on(item))
    return replace(launch, fixed=tuple(map(passed.decide, kept)))


def _make_passed(
    reading: TrainerReading, given: frozenset[str] | None, texts: tuple[tuple[str, str], ...]
) -> PassedOptions:
    """Return what the command and the defaults of its program's dataclasses set.

    `given` are the fields that the command or the program sets, None if the command may set more; `texts` are the
    known values of the command.
    """
    defaults = {name: text for name, text in reading.defaults if given is not None and name not in given}
    return PassedOptions(dict(texts), reading.parses_itself, reading.is_fired, defaults)


@lru_cache(maxsize=64)
def _narrow(
    entry: Entry,
    folders: tuple[Path, ...],
    base: Path,
    chosen: frozenset[str],
    given: frozenset[str] | None,
    texts: tuple[tuple[str, str], ...],
) -> TrainerReading | None:
    """Return the trainers of the parts of a program that its options reach; None if that shows nothing else."""
    reading, tree = _read_trainers(entry, folders, base, chosen), open_tree(folders, base)
    main = find_entry(entry, tree)
    written = (node.value for node in list_kind(main.body, ast.Constant)) if main is not None else ()
    keys = reading.tables.intersection(text.casefold() for text in written if isinstance(text, str))
    keys = frozenset() if reading.tables & chosen else keys
    if main is None or not (reading.is_doubtful or keys):
        return None
    passed = _make_passed(reading, given, texts)
    parts = UsedParts(tree, main, read_defaults(tree, main, passed, given), keys)
    narrowed = _find_trainers(entry, tree, chosen | keys, parts)
    if keys and not narrowed.names and not _calls(main, STARTS_TRAINING):
        return TrainerReading(())  # what the program chooses trains nothing
    is_other = narrowed.names == OWN_LOOP or any(map(TRAINERS.fullmatch, narrowed.names or ()))
    if narrowed.names == reading.names or not is_other:
        return None
    narrowed = _add_model_arguments(narrowed, entry, tree)
    return reading._replace(**{name: getattr(narrowed, name) for name in OF_TRAINERS})


@lru_cache(maxsize=512)
def _read_trainers(
    entry: Entry, folders: tuple[Path, ...], base: Path, chosen: frozenset[str], is_script: bool = False
) -> TrainerReading:
    """Return the trainers of a program; `is_script`: the launch's settings are in its text."""
    tree = open_tree(folders, base)
    reading = _add_model_arguments(_find_trainers(entry, tree, chosen), entry, tree)
    main = find_entry(entry, tree)
    read = (
        [main, *tree.list_imported(main, len(tree.modules), True)] if main is not None else []
    )  # not of other programs
    is_library = any(name.startswith(LIBRARIES) for name in reading.names or ())
    has_settings = is_script or is_library or reading.settings or reading.created or reading.fixed
    attributes = (node for module in read if has_settings for node in list_kind(module.body, ast.Attribute))
    return reading._replace(
        places_itself=any(map(_names_devices, read)),
        assigned=frozenset(node.attr for node in attributes if isinstance(node.ctx, ast.Store)),
        changed=frozenset(name for module in read if has_settings for name in _iter_changed(module)),
        parses_itself=any(_calls(module, OWN_OPTIONS) for module in read),
        is_fired=any(_calls(module, FIRE) for module in read),
        file_options=frozenset(name for module in read for name in _iter_file_options(module)),
        defaults=tuple(_list_defaults(tree, main)) if main is not None and not _calls(main, SET_DEFAULTS) else (),
    )


def _add_model_arguments(reading: TrainerReading, entry: Entry, tree: SourceTree) -> TrainerReading:
    main = find_entry(entry, tree)
    if main is None or not any(name.startswith((*LIBRARIES, "torchtitan.")) for name in reading.names or ()):
        return reading
    return reading._replace(fixed=(*reading.fixed, *find_model_arguments(tree, main, MODEL_ARGUMENTS)))


def _iter_changed(module: SourceModule) -> Iterator[str]:
    """Yield the attributes of parsed options that a module changes by their own values, so that the options do not."""
    computed = [(node.target, node.target) for node in list_kind(module.body, ast.AugAssign)]
    assigned = ((node.targets[0], node.value) for node in list_kind(module.body, ast.Assign))
    for target, value in (*computed, *assigned):
        if isinstance(target, ast.Attribute) and PARSED.fullmatch(getattr(target.value, "id", "")):
            yield from [target.attr] if join_name(target) in map(join_name, ast.walk(value)) else ()


def leave_open(launch: Launch, names: frozenset[str]) -> Launch:
    """Return the launch with the values of options that its program changes as unknown."""
    if not names:
        return launch
    words = list(launch.words)
    for index, word in enumerate(words):
        option, equals, _ = word.text.partition("=")
        place = index if equals else index + 1
        if option.lstrip("-").replace("-", "_") in names and word.text.startswith("--") and place < len(words):
            words[place] = replace(words[place], known=False)
    entries = (replace(item, known=item.known and item.name not in names) for item in launch.entries)
    return replace(launch, words=tuple(words), entries=tuple(entries))


def _iter_file_options(module: SourceModule) -> Iterator[str]:
    """Yield the options that name the file of transformers' arguments, such as `config` in `args.config`."""
    calls = list_kind(module.body, ast.Call) if any(name.encode() in module.content for name in FILE_PARSES) else []
    parses = [call for call in calls if getattr(call.func, "attr", "") in FILE_PARSES]
    names = {item.id for parse in parses for item in ast.walk(parse) if isinstance(item, ast.Name)}
    bound = list_kind(module.body, ast.Assign) if names else []
    assigned = [node for node in bound if getattr(node.targets[0], "id", "") in names]
    arguments = [item for parse in parses for item in (*parse.args, *(word.value for word in parse.keywords))]
    values = (*arguments, *(node.value for node in assigned))
    yield from (part.attr for value in values for part in ast.walk(value) if isinstance(part, ast.Attribute))


def _list_defaults(tree: SourceTree, module: SourceModule) -> Iterator[tuple[str, str]]:
    """Yield the literal defaults of the dataclasses that `HfArgumentParser` or `TrlParser` fills in a module.

    A field that several of its classes have is left out.
    """
    calls = filter(_makes_parser, list_kind(module.body, ast.Call))
    names = {node.id: node for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
    classes = (tree.resolve(module, node) for node in names.values())
    tables = [
        read_fields(tree, item, lambda _: None)[0]
        for item in classes
        if isinstance(item, Definition) and isinstance(item.node, ast.ClassDef)
    ]
    for table in tables:
        for name, row in table.items():
            if row.option.is_default_known and sum(name in other for other in tables) == 1:
                yield name, "null" if row.option.default is None else str(row.option.default)


def compose_program(launch: Launch) -> Program | None:
    """Return the configuration that the tree's program composes with Hydra; None for another program."""
    place = find_own_program(launch)
    config = read_config_options(launch.words)
    return _compose(place[0], place[1].folders, place[1].base, config) if place is not None else None


@lru_cache(maxsize=512)
def _compose(entry: Entry, folders: tuple[Path, ...], base: Path, config: tuple[str, ...]) -> Program | None:
    """Return the configuration that a program composes with Hydra; None for another program."""
    tree = SourceTree(folders, base)
    main = find_entry(entry, tree)
    reached = Follower(tree, main).follow_entry() if main is not None and "hydra" in main.bindings else None
    return read_hydra_program(main, reached.hydra[0], tree, config) if main and reached and reached.hydra else None


def _read_targets(program: Program | None, launch: Launch) -> TrainerReading | None:
    """Return the trainers that a composed configuration names, with their settings: `_target_: trl.GRPOConfig`."""
    values = {} if program is None else {name: option.default for name, option in program.options.items()}
    targets = {
        name.removesuffix("_target_"): str(value) for name, value in values.items() if name.endswith("._target_")
    }
    names = tuple(dict.fromkeys(filter(TRAINERS.fullmatch, targets.values())))
    if program is None or not names:
        return None
    given = parse_overrides(launch.words[1:])
    values |= {item.name.lstrip("+"): item.value if item.known else "${}" for item in given}
    prefixes = [prefix for prefix, target in targets.items() if CONFIGURATION.fullmatch(target)]
    settings = [
        _make_composed(name.removeprefix(prefixes[0]), resolve_references(value, values), program.options.get(name))
        for name, value in values.items()
        if len(prefixes) == 1 and name.startswith(prefixes[0]) and not name.endswith("._target_")
    ]
    return TrainerReading(names, tuple(settings), source=Source(program.path, "", "python", editable=False))


def _make_composed(name: str, value: str, option: ProgramOption | None) -> Setting:
    file, _, line = (option.place if option is not None else "").rpartition(":")
    return Setting(name, value, SourceLocation(file, int(line or 0)), NOWHERE, known="${" not in value)


def _names_devices(module: SourceModule) -> bool:
    """Return whether a module's text names its process's devices; nn.DataParallel may then not be used."""
    return names_devices(module.text or read_text(module.path))


def _find_trainers(
    entry: Entry, tree: SourceTree, chosen: frozenset[str], parts: UsedParts | None = None
) -> TrainerReading:
    main = find_entry(entry, tree)
    level = [main] if main is not None else []
    seen = {module.path for module in level}
    modules = list(level)
    # ms-swift itself also contains what trains: a program that only infers does not use that
    is_own_package = main is not None and main.name.startswith("swift.")
    arguments: tuple[str, ...] = ()  # the program reads transformers' arguments, but its trainer is not found yet
    trains = generates = replaces = False
    for _ in range(MAX_LEVELS):
        level = level if parts is None else list(map(parts.reduce, level))
        names = tuple(dict.fromkeys(name for module in level for name in _iter_names(tree, module, chosen)))
        trainers = tuple(name for name in names if TRAINERS.fullmatch(name))
        trains = trains or (not arguments and any(_calls(module, STARTS_TRAINING) for module in level))
        replaces = replaces or any(_calls(module, REPLACES_ATTENTION) for module in level)
        generates = generates or any(_calls(module, GENERATE) for module in level)
        arguments = arguments or tuple(name for name in names if ARGUMENTS.fullmatch(name))
        if arguments and not trainers and any(map(OTHER_TRAINERS.fullmatch, names)):
            return TrainerReading(OWN_LOOP)
        trainers = tuple(name for name in trainers if name.startswith(MEGATRON_TRAINERS)) or trainers
        modules_of_level = (module for parent in level for module in tree.iter_imports(parent))
        imported = {
            module.path: module for module in modules_of_level if is_own_package or not module.name.startswith("swift.")
        }
        is_fitted = not all(map(FITTED.fullmatch, trainers)) or any(_calls(module, FIT) for module in level)
        is_own = parts is not None and any(_calls(module, BACKWARD) for module in level)
        if is_own and not any(map(TRAINERS.fullmatch, _iter_called(tree, level))):
            return TrainerReading(OWN_LOOP)
        everything = [*modules, *imported.values()]
        only_evaluates = (
            trainers
            and any(_calls(module, EVALUATE) for module in everything)
            and not any(_calls(module, STARTS_TRAINING) for module in everything)
        )
        if trainers and (not is_fitted or only_evaluates):
            return TrainerReading(())
        if trainers:
            own_loss = (OWN_LOSS,) if OWN_LOSS in names else ()
            is_given_model = {name.rpartition(".")[2] for name in trainers if name[:9] == "megatron."} == {"train"}
            own_attention = (OWN_ATTENTION,) if replaces or is_given_model else ()
            own_rows = (OWN_ROWS,) if any(_prepares_rows(module) for module in level) else ()
            choices = frozenset(word for module in level for word in _list_choices(module))
            settings, source = _read_settings(tree, level)
            created, passed = _find_fixed(tree, level, chosen)
            names = (*trainers, *own_loss, *own_attention, *own_rows)
            reading = TrainerReading(names, settings, created, passed, source, choices=choices)
            tables = frozenset().union(*(list_tables(module.body) for module in modules[1:]))
            reading = reading._replace(is_doubtful=_may_train_otherwise(trainers, modules), tables=tables)
            keywords, made = find_made(tree, modules)
            return reading._replace(arguments=keywords, made=made._replace(unfused=find_unfused(modules)))
        if any(_calls(module, BACKWARD) for module in level):
            return TrainerReading(arguments if arguments and not generates else OWN_LOOP)
        level = [module for path, module in imported.items() if path not in seen][: MAX_MODULES - len(seen)]
        seen |= imported.keys()
        modules += level
    if arguments and not trains:
        return TrainerReading(())  # parsed arguments alone train nothing: an evaluation often copies them
    has_own_parser = main is not None and (_calls(main, OWN_OPTIONS) or _parses_own_classes(tree, main))
    return TrainerReading(arguments or (() if has_own_parser else None))  # its options show nothing about a trainer


def _read_settings(tree: SourceTree, modules: Sequence[SourceModule]) -> tuple[tuple[Setting, ...], Source | None]:
    """Return the keywords of the only call that creates the trainer's configuration; empty if there are several calls.

    A class of the program itself has its own fields, which are not judged here.
    """
    calls = [
        (module, node)
        for module in modules
        for node in list_kind(module.body, ast.Call)
        if isinstance(callee := tree.resolve(module, node.func), External)
        if CONFIGURATION.fullmatch(callee.name)
    ]
    if len(calls) != 1 or any(keyword.arg is None for keyword in calls[0][1].keywords):
        return (), None
    module, call = calls[0]
    source = Source(module.shown_path, module.text or read_text(module.path), "python", editable=False)
    return tuple(_make_setting(source, keyword) for keyword in call.keywords), source


def _find_fixed(
    tree: SourceTree, modules: Sequence[SourceModule], chosen: frozenset[str]
) -> tuple[tuple[FixedSetting, ...], tuple[FixedSetting, ...]]:
    """Return the literals that the modules give a configuration that no parser fills, and a trainer.

    With several classes of either, it is unknown which of them is used.
    """
    nodes = ((module, node) for module in modules for node in _walk(module.body, chosen))
    calls = [(module, node) for module, node in nodes if isinstance(node, ast.Call)]
    parsed = {ast.unparse(node) for _, call in calls if _makes_parser(call) for node in ast.walk(call)}
    created: dict[str, list[Call]] = {name: [] for name in parsed if TRL_CONFIGURATION.fullmatch(name)}
    passing: dict[str, list[Call]] = {}
    for module, call in calls:
        if not call.keywords or not isinstance(call.func, (ast.Name, ast.Attribute)):
            continue
        callee = tree.resolve(module, call.func)
        if isinstance(callee, External) and CONFIGURATION.fullmatch(callee.name):
            created.setdefault(callee.name.rpartition(".")[2], []).append((module, call))
        elif any(keyword.arg in TRAINER_ARGUMENTS for keyword in call.keywords):
            name = next(filter(LIBRARY_TRAINER.fullmatch, _iter_bases(tree, tree.resolve(module, call.func))), "")
            passing.setdefault(name.rpartition(".")[2], []).append((module, call))
    passing.pop("", None)  # calls of something else
    taken = next(iter(passing.values())) if len(passing) == 1 else []
    passed = find_passed_arguments(taken, TRAINER_ARGUMENTS.__contains__)
    true = (setting for setting in passed if setting.value not in ("False", "0"))  # others override nothing
    only = next(iter(created.values())) if len(created) == 1 and not created.keys() & parsed else []
    return tuple(find_passed_arguments(only, lambda _: True)), tuple(true)


def _parses_own_classes(tree: SourceTree, main: SourceModule) -> bool:
    """Return whether a program fills dataclasses from options, and all of these are classes of its tree."""
    calls = filter(_makes_parser, list_kind(main.body, ast.Call))
    parts = (part for call in calls for value in call.args for part in ast.walk(value))
    classes = [tree.resolve(main, part) for part in parts if isinstance(part, (ast.Name, ast.Attribute))]
    return bool(classes) and all(isinstance(item, (Definition, SourceModule)) for item in classes)


def _makes_parser(call: ast.Call) -> bool:
    """Return whether a call makes a parser that fills dataclasses."""
    return re.search(r"Parser(?:Plus)?$|HfArg$", join_name(call.func)) is not None


def _make_setting(source: Source, keyword: ast.keyword) -> Setting:
    value = evaluate(keyword.value, {})
    is_known = value is not UNKNOWN
    text = json.dumps(value) if isinstance(value, list) else str(value) if is_known else ast.unparse(keyword.value)
    location = SourceLocation(source.name, keyword.value.lineno, keyword.value.col_offset + 1)
    return Setting(keyword.arg or "", "null" if value is None else text, location, NOWHERE, known=is_known)


def _iter_names(tree: SourceTree, module: SourceModule, chosen: frozenset[str]) -> Iterator[str]:
    """Yield the dotted names of the classes and functions that a module uses, and of their bases."""
    nodes = _walk(module.body, chosen)
    names = {node.id: node for node in nodes if isinstance(node, ast.Name)}
    dotted = {join_name(node): node for node in nodes if isinstance(node, ast.Attribute)}
    dotted.pop("", None)  # of something else than a name
    for expression in (*names.values(), *dotted.values()):
        yield from _iter_bases(tree, tree.resolve(module, expression))


@lru_cache(maxsize=MAX_KEPT)
def _walk(tree: ast.Module, chosen: frozenset[str]) -> tuple[ast.AST, ...]:
    """Return the nodes of a module, without the alternatives of what a word in `chosen` chooses.

    Annotations, the bases of classes and a class's name in its own methods are left out: they construct nothing.
    """
    waiting: list[ast.AST] = [tree]
    nodes: list[ast.AST] = []
    classes: list[tuple[int, str]] = []  # around the node: how many nodes waited, and its name
    while waiting:
        node = waiting.pop()
        while classes and len(waiting) < classes[-1][0]:
            classes.pop()
        if classes and isinstance(node, ast.Name) and any(node.id == name for _, name in classes):
            continue
        nodes.append(node)
        if isinstance(node, ast.ClassDef):
            classes.append((len(waiting), node.name))
        if chosen and isinstance(node, ast.If):
            branches = _list_branches(node)
            waiting += next((body for words, body in branches if words & chosen), list_children(node))
        elif isinstance(node, (ast.Dict, ast.Assign)) and (picked := list_chosen(node, chosen)):
            waiting += picked
        else:
            waiting += list_children(node, CONSTRUCTS_NOTHING)
    return tuple(nodes)


def _list_branches(node: ast.If) -> list[tuple[set[str], Sequence[ast.stmt]]]:
    """Return the branches of `if`, `elif` and so on, each with the words to which its test compares a value."""
    branches: list[tuple[set[str], Sequence[ast.stmt]]] = [(_list_words(node.test), node.body)]
    if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        branches += _list_branches(node.orelse[0])
    return branches


def _list_words(expression: ast.expr) -> set[str]:
    """Return the texts in a test or a key, without case."""
    values = (getattr(item, "value", None) for item in ast.walk(expression) if isinstance(item, ast.Constant))
    return {value.casefold() for value in values if isinstance(value, str)}


def _list_choices(module: SourceModule) -> set[str]:
    """Return the words to which a module compares values, and the keys of its tables."""
    keys = (key for node in list_kind(module.body, ast.Dict) for key in node.keys)
    tests = [*(node.test for node in list_kind(module.body, ast.If)), *keys]
    return {word for expression in tests if expression is not None for word in _list_words(expression)}


def _iter_bases(tree: SourceTree, resolved: Resolved, depth: int = 0) -> Iterator[str]:
    if isinstance(resolved, External):
        yield resolved.name
    elif isinstance(resolved, Definition) and isinstance(resolved.node, (ast.ClassDef, ast.FunctionDef)):
        yield f"{resolved.module.name}.{resolved.node.name}"
        mark, original = COPIES.get(resolved.node.name, ("", ""))
        if mark and mark in ast.dump(resolved.node):
            yield original
        if any(isinstance(item, ast.FunctionDef) and _makes_loss(item) for item in resolved.node.body):
            yield OWN_LOSS
        if isinstance(resolved.node, ast.ClassDef) and depth < MAX_BASES:
            for base in resolved.node.bases:
                yield from _iter_bases(tree, tree.resolve_base(resolved.module, resolved.node, base), depth + 1)


def _makes_loss(method: ast.FunctionDef) -> bool:
    """Return whether a method replaces a Trainer's loss, or its training; `train(self, mode)` is a model's."""
    names = [argument.arg for argument in method.args.args]
    is_training = method.name == "train" and names[:1] == ["self"] and "mode" not in names
    return method.name == "compute_loss" or (
        is_training and re.search(r"super\(|Trainer\.train\(", ast.unparse(method)) is None
    )


def _iter_called(tree: SourceTree, modules: Sequence[SourceModule]) -> Iterator[str]:
    """Yield what the modules call, with the bases of classes."""
    for module in modules:
        for call in list_kind(module.body, ast.Call):
            yield from _iter_bases(tree, tree.resolve(module, call.func))


def _prepares_rows(module: SourceModule) -> bool:
    """Return whether a module sets `skip_prepare_dataset`, as a key or an argument."""
    texts = (node.value for node in list_kind(module.body, ast.Constant))
    arguments = (node.arg for node in list_kind(module.body, ast.keyword))
    parameters = (node.arg for node in list_kind(module.body, ast.arg))
    return any("skip_prepare_dataset" in words for words in (texts, arguments, parameters))


def _may_train_otherwise(trainers: Sequence[str], modules: Sequence[SourceModule]) -> bool:
    """Return whether modules use several libraries' trainers, or have a loop."""
    stems = {name.rpartition(".")[2] for name in trainers if name.endswith("Trainer")}
    return len(stems) > 1 or any(_calls(module, BACKWARD) for module in modules)


def _calls(module: SourceModule, method: re.Pattern[str]) -> bool:
    """Return whether a module calls a function or method of such a name: `loss.backward()`, `train(args)`."""
    is_named = re.search(method.pattern.encode(), module.content) is not None
    return is_named and any(map(method.fullmatch, list_called(module.body)))
