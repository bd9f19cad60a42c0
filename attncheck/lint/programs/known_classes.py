"""The fields of transformers' and TRL's argument classes in a release, for programs that derive from them.

Used if the package itself cannot be read; the tables in attncheck/lint/names were read from released wheels.
"""

from collections.abc import Callable, Mapping

from attncheck.core.program import ProgramOption
from attncheck.lint.fields.names import build_parser_options, read_lifetimes
from attncheck.lint.fields.releases import is_at_least, list_allowed, list_releases, parse_version

NARGS: Mapping[str, int | str] = {"bool": "?", "list": "+"}
OLDER_NAMES = ("sharded_ddp", "xpu_backend")  # of transformers 4.30.2 training_args.py, older than the tables
ANY_RELEASE = "a release of "  # the place of a field of a package whose version is not known


def make_class_finder(versions: Mapping[str, str]) -> Callable[[str], Mapping[str, ProgramOption] | None]:
    """Return a function that finds the fields of a class by its dotted name, for the `versions` of available packages.

    It returns None for a class of another package. If the package has no version there, or a range, the class has the
    fields of all releases, or of those in the range: a name that is not among them is refused by each.
    """

    def find(name: str) -> Mapping[str, ProgramOption] | None:
        package, _, _ = name.partition(".")
        class_name = name.rpartition(".")[2]
        if package == "transformers":
            classes = ("TrainingArguments", class_name) if class_name == "Seq2SeqTrainingArguments" else (class_name,)
            return _read_options(package, versions.get(package, ""), classes)
        if package == "trl":
            own = _read_options(package, versions.get(package, ""), (class_name,))
            if own is None or class_name == "ModelConfig" or not class_name.endswith("Config"):
                return own
            base = _read_options("transformers", versions.get("transformers", ""), ("TrainingArguments",))
            return None if base is None else {**base, **own}
        return None

    return find


def _read_options(package: str, version: str, classes: tuple[str, ...]) -> dict[str, ProgramOption] | None:
    """Return the options; None for a release older than all in the table: a prefix may fit only one option there."""
    if not version[:1].isdigit():
        releases = list_releases(package)
        kept = set(map(releases.index, list_allowed(version, releases) or releases))
        rows = [row for class_name in classes for row in read_lifetimes(package, class_name).items()]
        names = [
            name
            for name, spans in rows
            if any(
                not kept.isdisjoint(range(releases.index(first), releases.index(last) + 1)) for first, last, _ in spans
            )
        ]
        any_option = ProgramOption(nargs="?", place=f"{ANY_RELEASE}{package}")
        return dict.fromkeys((*names, *(OLDER_NAMES if 0 in kept else ())), any_option) if names else None
    oldest = parse_version(list_releases(package)[0])
    if not is_at_least(version, f"{oldest.major}.{oldest.minor}.dev0"):
        return None
    options = build_parser_options((package, version, classes)).current
    place = f"{package} {version} {classes[-1]}"
    return {
        name: ProgramOption(option.kind, option.default, option.choices, NARGS.get(option.kind, 1), place)
        for name, option in options.items()
    } or None
