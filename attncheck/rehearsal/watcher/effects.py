"""Tries the settings that a launch states one by one, in forks: without each, and with another value of it.

A setting of a trainer is changed before the trainer is made, and of an adapter (`adapters.py`) before it is. What is
observed is compared in its order, and a fork ends at the first difference: the model, the rows, the optimiser, and two
steps. `effects-N.json` holds the settings whose other values change nothing of it. A default that a launch states is
none of them, because its other values change something.

Sources: transformers 5.17.0 and 4.57.3 training_args.py (`__post_init__` derives settings from others), trainer.py
(`training_step`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import inspect
import linecache
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from .absent import is_script, read_scripts
from .continuing import can_fork, digest, run_in_fork, write_answer
from .optimizer import count_planned

STEPS = 2
MAX_SECONDS = 6.0  # of CPU, for all forks of a launch
MAX_ROWS, MAX_PLANNED = 8, 200
# What a fork does not observe: files, logs, evaluations, processes, and the place of tensors.
OUTSIDE = re.compile(
    r"(^|_)(dir|folder|path|name|log|logging|logs|save|saves|eval|evaluation|hub|push|report|tqdm|run|workers|num_proc|"
    r"pin|prefetch|persistent|deepspeed|fsdp|ddp|dist|distributed|seed|resume|steps|epochs|devices?|ranks|cpu|tf32|vllm|"
    r"generate|kwargs|overwrite|do|debug|liger|compile|columns|batch_size|metrics|metric|cache|peft|task|inference)(_|$)"
)
LOSS = re.compile(r"(\w+_)?loss(_\w+)?")  # arguments of trainers
TRANSFORM = ".with_transform"  # follows the name of an argument that is a data set
QUOTED = re.compile(r"[`'\"]+([\w.-]+)[`'\"]+")  # the choices that a help text names
FLAGS = ("gradient_checkpointing", "scaling", "p")  # attributes of modules
GIVEN: dict[int, tuple[Any, ...]] = {}  # the arguments of settings, by the object's id
ENVIRON = "ACCELERATE_"  # begins the variables that settings set


class _Ended(BaseException):
    """All is observed, or something differs."""


def keep_given(cls: Any) -> None:
    """Keep the arguments of settings, from which they can be made again."""
    make = cls.__new__

    def new(kind: Any, *arguments: Any, **options: Any) -> Any:
        instance = make(kind) if make is object.__new__ else make(kind, *arguments, **options)
        if arguments or options:
            GIVEN[id(instance)] = instance, arguments, options, _read_environ()
        return instance

    cls.__new__ = new


def watch_trainer(recorder: Any, cls: Any) -> None:
    """Compare what the first trainer does with what it does with other settings, before it is made."""
    make, tried = cls.__new__, list[Trials]()

    def new(kind: Any, *arguments: Any, **options: Any) -> Any:
        stated = os.environ.get("ATTNCHECK_STATED", "").split()
        if stated and not tried and can_fork():
            own = inspect.signature(kind.__init__).bind_partial(None, *arguments, **options).arguments
            values = [value for value in {**own, **own.get("kwargs", {})}.values() if not isinstance(value, type)]
            holders = [value for value in values if dataclasses.is_dataclass(value) and not hasattr(value, "peft_type")]
            given = {name: value for name, value in options.items() if LOSS.fullmatch(name) and callable(value)}
            transforms = {name: made for name, value in options.items() if (made := _find_transform(value))}
            given |= {f"{name}{TRANSFORM}": made for name, made in transforms.items()}

            def observe(changes: dict[str, Any], observe_part: Callable[..., None]) -> None:
                for holder in holders:
                    change_settings(holder, changes)
                kept = {name: value for name, value in options.items() if name not in changes}
                plain = filter(changes.__contains__, given.keys() - options.keys())
                kept |= {own: kept[own].with_format(None) for own in (name.removesuffix(TRANSFORM) for name in plain)}
                _observe_trainer(kind, arguments, kept, observe_part)

            importlib.import_module("torch._dynamo")  # by the first step, in each fork otherwise
            known = _list_read(kind)
            names = [name for name in (*stated, *given) if name.removeprefix("-") in {*known, *given}]
            tried.append(Trials(recorder, observe, names or ["-"]))
            tried[0].try_all(holders, given)
            tried[0].write()
        return make(kind) if make is object.__new__ else make(kind, *arguments, **options)

    cls.__new__ = new


def _find_transform(rows: Any) -> Any:
    """Return the function that a data set calls for the rows that are read, None if it has none.

    datasets 5.2.0 arrow_dataset.py (`with_transform`, `set_transform`).
    """
    form: Any = getattr(rows, "format", None)
    is_custom = isinstance(form, dict) and form.get("type") == "custom"
    return form["format_kwargs"]["transform"] if is_custom else None


def _list_read(kind: Any) -> set[str]:
    """Return the names that a trainer's installed modules contain, and that the script does not read before it."""
    modules = [sys.modules[base.__module__] for base in kind.__mro__]
    texts = [
        linecache.getlines(str(own.__file__))
        for own in modules
        if not is_script(vars(own)) and hasattr(own, "__file__")
    ]
    words = set(re.findall(r"\w+", "".join(line for lines in texts for line in lines)))
    settings = getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)
    words |= {field.name for field in dataclasses.fields(settings)} if settings else set()
    return words - set(re.findall(r"\.(\w+)", read_scripts()))


class Trials:
    """Settings that are tried in forks, which observe what `observe` passes on.

    `stated` names those of the launch, after a "-" if the rehearsal replaced its value; without it all are tried.
    """

    def __init__(self, recorder: Any, observe: Callable[..., None], stated: Collection[str] = ()) -> None:
        self._recorder, self._observe, self._stated = recorder, observe, stated
        self._expected: list[str] = []
        self._seconds, self._idle, self._left, self._error = 0.0, list[dict[str, str]](), list[str](), ""

    def try_all(self, holders: Sequence[Any], functions: Mapping[str, Any] = {}) -> None:
        """Try each setting of the holders that differs from its default, and without each function.

        The launch continues without the answers if anything is not as expected.
        """
        with contextlib.suppress(Exception):
            self._try_all(holders, functions)

    def _try_all(self, holders: Sequence[Any], functions: Mapping[str, Any]) -> None:
        names = {name.removeprefix("-") for name in self._stated}
        own = {name: _Setting(name, value, None) for name, value in functions.items()}
        own |= {setting.name: setting for holder in holders for setting in iter_settings(holder)}
        own = {name: setting for name, setting in own.items() if not names or name in names}
        chosen = [setting for name, setting in own.items() if f"-{name}" not in self._stated and setting.list_others()]
        if chosen and can_fork():
            answer = self._run({}, ())
            self._expected, self._error = answer.get("observed", []), answer.get("error", "")
            for name in answer.get("modules", ()):  # each fork would import them again, and the launch its own
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        for setting in chosen if self._expected else ():
            if self._seconds > MAX_SECONDS:
                self._left.append(setting.name)
            elif self._is_idle(setting):
                company = self._find_company(setting, own)
                if f"-{company}" not in self._stated:
                    value = str(getattr(setting.value, "__qualname__", setting.value))
                    plain = {"name": setting.name, "kind": setting.kind, "help": setting.help}
                    self._idle.append({**plain, "value": value, "company": company})

    def _is_idle(self, setting: Any) -> bool:
        """Return whether a setting's default and another value, which both may be tried, change nothing."""
        observed = [self._run({setting.name: value}, self._expected).get("observed") for value in setting.list_others()]
        return bool(observed) and observed == [self._expected] * len(observed)

    def _find_company(self, setting: Any, own: Mapping[str, Any]) -> str:
        """Return the setting without which another one has an effect, "" if there is none."""
        others = {name: other.default for name, other in own.items() if name != setting.name}
        if not self._has_effect(setting, others):
            return ""
        return next((name for name, value in others.items() if self._has_effect(setting, {name: value})), "")

    def _has_effect(self, setting: Any, changes: dict[str, Any]) -> bool:
        """Return whether a setting has an effect if others are changed."""
        observed = self._seconds <= MAX_SECONDS and self._run(changes, ()).get("observed")
        changed = observed and self._run({**changes, setting.name: setting.default}, observed).get("observed")
        return bool(observed) and changed != observed

    def _run(self, changes: dict[str, Any], expected: Sequence[str]) -> dict[str, Any]:
        """Return what a fork with changed settings observes, up to the first difference."""

        def answer(place: str, answers: dict[str, Any]) -> None:
            observed, imported = list[str](), {*sys.modules}
            self._recorder.is_paused, self._recorder.folder = True, place
            os.environ["ATTNCHECK_WATCH"] = place
            sys.modules["torch"].set_num_threads(1)  # a fork has not the others

            def observe_part(*values: Any) -> None:
                observed.append(digest(values))
                if expected and observed[-1] != [*expected, ""][len(observed) - 1]:
                    raise _Ended

            with contextlib.suppress(_Ended):
                self._observe(changes, observe_part)
            answers |= {"observed": observed, "modules": [name for name in sys.modules if name not in imported]}

        with tempfile.TemporaryDirectory() as folder:
            result = run_in_fork(answer, folder)
        self._seconds += result.get("seconds", MAX_SECONDS)
        return result

    def write(self, **others: Any) -> None:
        """Write `effects-N.json`."""
        record = {"idle": self._idle, "left": self._left, "error": self._error, "seconds": self._seconds, **others}
        write_answer(self._recorder.folder, "effects", record)


@dataclasses.dataclass
class _Setting:
    """A setting that differs from its default."""

    name: str
    value: Any
    default: Any
    kind: str = ""
    help: str = ""

    def list_others(self) -> list[Any]:
        """Return the values to try; [] if there is only the default, which means that the value is chosen."""
        others = [value for value in (*_iter_others(self.value), *self._iter_choices()) if value != self.default][:1]
        return [] if self.default is None and not others and self.kind else [self.default, *others]

    def _iter_choices(self) -> Iterator[Any]:
        """Yield the choices of a text that its type or help names."""
        if isinstance(self.value, enum.Enum):
            yield from (value for value in type(self.value) if value != self.value)
        elif isinstance(self.value, str):
            yield from (text for text in QUOTED.findall(self.help) if text not in (self.value, "None", self.name))


def iter_settings(holder: Any) -> Iterator[_Setting]:
    """Yield the settings of a dataclass that differ from their defaults, those of the most specific class first."""
    for field in reversed(dataclasses.fields(holder)):
        value, make = getattr(holder, field.name, None), field.default_factory
        default = field.default if make is dataclasses.MISSING else make()
        is_chosen = value is not None and default is not dataclasses.MISSING and not _are_equal(value, default)
        if field.init and is_chosen and not OUTSIDE.search(field.name):
            text = str(field.metadata.get("help", ""))
            yield _Setting(field.name, value, default, type(holder).__name__, text)


def _are_equal(value: Any, other: Any) -> bool:
    with contextlib.suppress(Exception):
        return bool(getattr(value, "value", value) == getattr(other, "value", other))
    return False


def _iter_others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield value / 2
    elif isinstance(value, dict):
        yield {name: own + 1 for name, own in value.items() if isinstance(own, int)}
    elif isinstance(value, (list, tuple, set)) and value:
        kept = sorted(value, key=str)[:-1]
        is_number = isinstance(next(iter(value)), int)
        others = [number for number in (0, 1) if number not in value][:1] if is_number else kept
        yield from [type(value)(others)] if others else []


def change_settings(holder: Any, changes: dict[str, Any]) -> None:
    """Make settings again with other values, as their class derives some from others; keep what was assigned since."""
    names = [field.name for field in dataclasses.fields(holder)]
    own = {name: value for name, value in changes.items() if name in names}
    if id(holder) in GIVEN:
        _, arguments, options, environ = GIVEN[id(holder)]
        given, assigned = {**dict(zip(names, arguments)), **options}, dict(vars(holder))
        _make_again(holder, given, environ)
        kept = {
            name: assigned[name] for name in names if not _are_equal(assigned.get(name), getattr(holder, name, None))
        }
        _make_again(holder, {**given, **own}, environ)
        own = {**kept, **own}
    for name, value in own.items():
        if not _are_equal(getattr(holder, name, None), value):
            setattr(holder, name, value)


def _make_again(holder: Any, given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    for name in _read_environ():
        del os.environ[name]
    os.environ.update(environ)
    vars(holder).clear()
    holder.__init__(**given)


def _read_environ() -> dict[str, str]:
    """Return the environment variables that settings may set."""
    return {name: value for name, value in os.environ.items() if name.startswith(ENVIRON)}


def _observe_trainer(
    kind: Any, arguments: Sequence[Any], options: Mapping[str, Any], observe: Callable[..., None]
) -> None:
    """Make a trainer and let it take steps; pass on what decides them."""
    import torch
    from torch.optim import optimizer

    trainer, steps = object.__new__(kind), list[None]()
    trainer.__init__(*arguments, **options)
    args, step, clip = trainer.args, trainer.training_step, torch.nn.utils.clip_grad_norm_
    observe(describe_model(trainer.model), _list_rows(trainer.train_dataset))
    args.save_strategy, args.eval_strategy = (type(own)("no") for own in (args.save_strategy, args.eval_strategy))
    args.load_best_model_at_end, args.dataloader_num_workers = False, 0

    def take(model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
        observe(inputs)
        loss = step(model, inputs, *others, **named)
        observe(loss)
        return loss

    def limit(parameters: Any, max_norm: float, *others: Any, **named: Any) -> Any:
        observe(max_norm)
        return clip(parameters, max_norm, *others, **named)

    def begin(own: Any, *others: Any) -> None:
        scheduler = getattr(trainer, "lr_scheduler", None)  # its later rates, too
        scheduler = getattr(scheduler, "scheduler", scheduler)  # accelerate's has torch's
        planned = count_planned(scheduler)
        numbers = range(0, planned, planned // MAX_PLANNED + 1)
        rates = [rate(number) for rate in getattr(scheduler, "lr_lambdas", ()) for number in numbers]
        observe(type(scheduler).__name__, rates)
        for group in own.param_groups:
            options = {name: value for name, value in group.items() if name != "params"}
            observe(type(own).__name__, options, [(value.shape, value.grad) for value in group["params"]])

    def end(own: Any, *others: Any) -> None:
        observe([group["params"] for group in own.param_groups])
        steps.append(None)
        if len(steps) == STEPS:
            raise _Ended

    trainer.training_step, torch.nn.utils.clip_grad_norm_ = take, limit
    optimizer.register_optimizer_step_pre_hook(begin)
    optimizer.register_optimizer_step_post_hook(end)
    inspect.unwrap(kind.train)(trainer)  # without the watchers


def _list_rows(rows: Any) -> list[Any]:
    """Return the number of rows, and the first ones; of a stream nothing."""
    has_rows = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
    return [len(rows), *(rows[number] for number in range(min(len(rows), MAX_ROWS)))] if has_rows else []


def describe_model(model: Any) -> str:
    """Return a digest of a model's parameters, and of what its modules do."""
    parameters = [(name, value.shape, value.requires_grad, value) for name, value in model.named_parameters()]
    flags = [(name, [str(vars(module).get(flag)) for flag in FLAGS]) for name, module in model.named_modules()]
    return digest((parameters, flags, str(getattr(getattr(model, "config", None), "_attn_implementation", ""))))
