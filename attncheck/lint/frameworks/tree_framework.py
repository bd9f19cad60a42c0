"""Frameworks that exist only as source trees: which trainer a launch starts, its settings, and its sizes.

No release's names are judged, and nothing is corrected. The launch is recognised as this framework's, and the rules for
every job (GPUs, variables, lost words) judge it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from attncheck.core.facts import Absent, Fact, Known, value_or
from attncheck.core.job import Job
from attncheck.core.launch import Edit, Launch, Setting, SourceLocation
from attncheck.core.plan import Plan, Precision
from attncheck.core.snapshot import Snapshot
from attncheck.lint.arguments import parse_options, parse_overrides
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.plan_writing import VersionCheck, format_exports
from attncheck.lint.fields.written import FALSE_WORDS, parse_value, to_int
from attncheck.lint.frameworks import Framework

NO_TRAINING = re.compile("generat|inference|server|eval|convert|preprocess|export|orchestrat|test")
DEFAULTS = Plan()
DTYPES: Mapping[str, Precision] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class TreeFramework:
    """How to recognise such a framework, and its settings for each `Key` and others: dotted names, with "-" as "_"."""

    name: str
    package: str  # the package that its programs import: "torchtitan"
    detect: Callable[[str, Launch], str]  # returns the trainer from the program's dotted name
    model: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    plan: Plan  # its defaults
    cluster: tuple[str, str] = ("", "")  # numbers of nodes and of GPUs per node, if no launcher starts the ranks
    reinforcement: tuple[str, ...] = ()  # trainers with rollouts

    def make_framework(self, newest: str) -> Framework:
        """Return the framework's record."""
        return Framework(
            self.name, self.name, newest, self.find_trainer, self.read_model_name, self.read, _write, self.format_plan
        )

    def find_trainer(self, launch: Launch) -> str:
        """Return what a launch trains; "" if it uses another framework or does not train."""
        program = launch.words[0].text.removesuffix(".py").replace("/", ".") if launch.words else ""
        if not program or NO_TRAINING.search(program.rpartition(".")[2]):
            return ""
        return self.detect(program, launch)

    def uses(self, launch: Launch) -> bool:
        """Return whether the launched program uses the framework's package."""
        return any(name.startswith(f"{self.package}.") for name in launch.trainers or ())

    def read_model_name(self, launch: Launch) -> str:
        """Return the model that the launch names; "" if it names none."""
        return _get_text(_read_settings(launch), self.model)

    def read(self, launch: Launch, version: str, snapshot: Snapshot) -> Job:
        """Return the job with the launch's settings, and the framework's defaults for the rest."""
        settings, trainer = _read_settings(launch), self.find_trainer(launch)
        world_size = self._count_ranks(launch, settings)
        sizes = {key: to_int(parse_value(_get_text(settings, names)), 0) for key, names in self.names.items()}
        dtype = _get_text(settings, self.names.get("precision", ()))
        fixed = {setting.name: setting.value for setting in launch.fixed if setting.known}  # in a fork's own program
        plan = replace(
            self.plan,
            attn_implementation=_get_text(settings, self.names.get("attn_implementation", ()))
            or fixed.get("attn_implementation", self.plan.attn_implementation),
            precision="autocast" if self.plan.precision == "autocast" else DTYPES.get(dtype, self.plan.precision),
            batch=max(sizes.get("batch", 0), 1),
            accumulation=_count_batches(sizes, world_size),
            max_length=sizes.get("max_length", 0) or self.plan.max_length,
            ring_size=max(sizes.get("ring_size", 0), 1),
            gradient_checkpointing=self._is_on("gradient_checkpointing", settings, self.plan.gradient_checkpointing),
            compile=self._is_on("compile", settings, self.plan.compile),
            environ=tuple(sorted(launch.environ.items())),
        )
        location = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
        return Job(
            framework=self.name,
            version=version,
            trainer=trainer,
            plan=plan,
            model=self.read_model_name(launch),
            location=location,
            settings=tuple(settings.values()),
            world_size=world_size,
            gpus=world_size if trainer not in self.reinforcement else Absent("rollouts use more GPUs"),
            nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
            tensor_parallel=max(sizes.get("tensor_parallel", 0), 1),
            scheme="torch" if plan.ring_size > 1 else "",
            reinforcement=trainer in self.reinforcement,
            unknown=() if "global_batch" in self.names else ("accumulation",),
            locations={
                key: settings[name].location for key, names in self.names.items() for name in names if name in settings
            },
        )

    def _is_on(self, key: str, settings: Mapping[str, Setting], default: bool) -> bool:
        values = (settings[name].value for name in self.names.get(key, ()) if name in settings and settings[name].known)
        return next((value.lower() not in (*FALSE_WORDS, "none") for value in values), default)

    def format_plan(self, plan: Plan, is_at_least: VersionCheck) -> list[str]:
        """Return the environment of a plan, and a remark on each setting that differs from a plan's default."""
        rows = [(item.name, getattr(plan, item.name)) for item in fields(plan) if item.name != "environ"]
        changed = [f"{name} {value}" for name, value in rows if value != getattr(DEFAULTS, name)]
        return [*format_exports(plan), *(f"# {text}: attncheck writes no settings for {self.name}" for text in changed)]

    def _count_ranks(self, launch: Launch, settings: Mapping[str, Setting]) -> Fact[int]:
        counts = [to_int(parse_value(_get_text(settings, (name,))), 0) for name in self.cluster if name]
        if not counts:
            return shared.read_world_size(launch)
        return (
            Known(counts[0] * counts[1]) if all(counts) else Absent("the launch does not set the size of the cluster")
        )


def _count_batches(sizes: Mapping[str, int], ranks: Fact[int]) -> int:
    """Return how many batches a step accumulates: one, unless the rows of a step over all ranks are set."""
    splits = math.prod(max(sizes.get(key, 0), 1) for key in ("tensor_parallel", "ring_size", "pipeline_parallel"))
    rows = value_or(ranks, splits) * max(sizes.get("batch", 0), 1) // splits
    return max(sizes.get("global_batch", 0) // max(rows, 1), 1)


def _read_settings(launch: Launch) -> dict[str, Setting]:
    """Return the settings of a launch by name; later sources override earlier ones: file, options, overrides."""
    options = parse_options(launch.words[1:], lambda name: "one", launch.source)
    rows = (*launch.entries, *options, *parse_overrides(launch.words[1:], launch.source))
    return {setting.name.lstrip("-+~").replace("-", "_"): setting for setting in rows}


def _get_text(settings: Mapping[str, Setting], names: tuple[str, ...]) -> str:
    values = (settings[name].value for name in names if name in settings and settings[name].known)
    return next((value for value in values if value and not re.search(r"[${]", value)), "")


def _write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    return ()
