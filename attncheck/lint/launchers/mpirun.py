"""mpirun and mpiexec; options with values: the usual ones of Open MPI and MPICH, not of a particular version."""

from collections.abc import Sequence

from attncheck.lint.launchers import Absent, Fact, Known, Launcher, ParsedLauncher, Unreadable, Word
from attncheck.lint.launchers.options import LeadingOptions, parse_count, program_name, split_names

VALUE_OPTIONS = split_names(
    "-np -n --n -c --np -npernode --npernode -N -ppn --ppn -H -host --host -hosts -hostfile --hostfile -machinefile "
    "--machinefile -f -x -wdir --wdir -wd -path --path --prefix -prefix -map-by --map-by -bind-to --bind-to -rank-by "
    "--rank-by -launcher --launcher -output-filename --output-filename -l"
)
TWO_VALUE_OPTIONS = split_names("-mca --mca -env -genv --genv -gmca --gmca")


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the parsed `mpirun` or `mpiexec`; None for any other command."""
    if not words or program_name(words[0]) not in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun"):
        return None
    values: dict[str, Word] = {}
    environ: dict[str, str] = {}
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        name = words[index].text
        value_count = 2 if name in TWO_VALUE_OPTIONS else 1 if name in VALUE_OPTIONS else 0
        option_values = words[index + 1 : index + 1 + value_count]
        if option_values:
            values["-" + name.lstrip("-")] = option_values[0]
        if name == "-x" and option_values and "=" in option_values[0].text:
            key, _, environ[key] = option_values[0].text.partition("=")
        elif name in ("-env", "-genv", "--genv") and len(option_values) == 2:
            environ[option_values[0].text] = option_values[1].text
        index += 1 + value_count
    nodes, processes = _parse_counts(LeadingOptions(values))
    return ParsedLauncher(tuple(words[index:]), environ, nodes, processes)


def _parse_counts(options: LeadingOptions) -> tuple[Fact[int], Fact[int]]:
    def find_option(*names: str) -> Word | None:
        return next((options.values[name] for name in names if name in options.values), None)

    total = parse_count(find_option("-np", "-n", "-c"), "-np", Absent())
    per_node = parse_count(find_option("-npernode", "-N", "-ppn"), "-npernode", Absent())
    if isinstance(per_node, Known):
        nodes: Fact[int] = Absent("mpirun's hosts set the number of nodes")
        return Known(max(total.value // per_node.value, 1)) if isinstance(total, Known) else nodes, per_node
    if find_option("-H", "-host", "-hosts", "-hostfile", "-machinefile", "-f") is None:
        return Known(1), total
    return Absent("mpirun's hosts set the number of nodes"), Unreadable(
        "-np counts all hosts, and their slots are unknown"
    )


LAUNCHER = Launcher("mpirun", parse)
