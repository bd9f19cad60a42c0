"""Containers: `docker run`, `docker exec`, `docker compose run`, podman, nerdctl, apptainer and singularity.

Options that take a value: docker/cli 006ec01 cli/command/container/opts.go:128-308 (`addFlags`) and exec.go; docker's
compose 010776f cmd/compose/run.go:138-152; apptainer 00e9b03 cmd/internal/cli/action_flags.go. docker, podman and
nerdctl start a command with the image's environment and the variables of `--env`. apptainer and singularity pass on the
caller's environment, unless `--cleanenv` or `--containall` removes it.
"""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from attncheck.lint.launchers import Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import program_name, split_names

RUN_OPTIONS = split_names(
    "--add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent "
    "--cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c "
    "--cpu-shares --cpus --cpuset-cpus --cpuset-mems --detach-keys --device --device-cgroup-rule --device-read-bps "
    "--device-read-iops --device-write-bps --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname "
    "--entrypoint -e --env --env-file --expose --gpus --group-add --health-cmd --health-interval --health-retries "
    "--health-start-interval --health-start-period --health-timeout -h --hostname --io-maxbandwidth --io-maxiops --ip "
    "--ip6 --ipc --isolation --kernel-memory -l --label --label-file --link --link-local-ip --log-driver --log-opt "
    "--mac-address -m --memory --memory-reservation --memory-swap --memory-swappiness --mount --name --net --net-alias "
    "--network --network-alias --oom-score-adj --pid --pids-limit --platform -p --publish --pull --restart --runtime "
    "--security-opt --shm-size --stop-signal --stop-timeout --storage-opt --sysctl --tmpfs --ulimit -u --user --userns "
    "--uts -v --volume --volume-driver --volumes-from -w --workdir --labels --index"
)
GLOBAL_OPTIONS = split_names("-c --context --config -H --host -l --log-level --tlscacert --tlscert --tlskey")
COMPOSE_OPTIONS = split_names("-f --file -p --project-name --profile --env-file --project-directory --ansi --parallel")
APPTAINER_OPTIONS = split_names(
    "--app -B --bind --mount -H --home -o --overlay -S --scratch -W --workdir -s --shell --cwd --pwd --hostname "
    "--network --network-args --dns --security --apply-cgroups --vm-ram --vm-cpu --vm-ip --fusemount --env --env-file "
    "--no-mount --add-caps --drop-caps --blkio-weight --blkio-weight-device --cpu-shares --cpus --cpuset-cpus "
    "--cpuset-mems --memory --memory-reservation --memory-swap --pids-limit --docker-host --pem-path"
)
DOCKER_NAMES = {"docker", "podman", "nerdctl", "nvidia-docker", "docker-compose", "podman-compose"}
APPTAINER_NAMES = {"apptainer", "singularity"}


@dataclass
class _Options:
    """The options before the image, each with its values in order, and the words from the image onwards."""

    values: dict[str, list[Word]] = field(default_factory=dict)
    rest: tuple[Word, ...] = ()

    def texts(self, *names: str) -> list[str]:
        return [word.text for name in names for word in self.values.get(name, ())]


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the command that a container runs; None for any other command and for the image's default."""
    name = program_name(words[0]) if words else ""
    if name in APPTAINER_NAMES:
        return _parse_apptainer(words)
    return _parse_docker(words, name) if name in DOCKER_NAMES else None


def _parse_docker(words: Sequence[Word], name: str) -> ParsedLauncher | None:
    is_compose = name.endswith("-compose")
    rest = _split_options(words[1:], COMPOSE_OPTIONS if is_compose else GLOBAL_OPTIONS).rest
    if not is_compose and rest and rest[0].text == "compose":
        rest = _split_options(rest[1:], COMPOSE_OPTIONS).rest
    if not is_compose and rest and rest[0].text == "container":
        rest = rest[1:]
    if not rest or rest[0].text not in ("run", "exec"):
        return None
    options = _split_options(rest[1:], RUN_OPTIONS)
    entrypoint = [word for word in options.values.get("--entrypoint", []) if word.text]
    command = (*entrypoint[-1:], *options.rest[1:])
    return _make_launcher(options, command, options.texts("-e", "--env"), isolates=True, folders=("-w", "--workdir"))


def _parse_apptainer(words: Sequence[Word]) -> ParsedLauncher | None:
    rest = _split_options(words[1:], split_names("-c --config")).rest
    if not rest or rest[0].text not in ("exec", "run"):
        return None
    options = _split_options(rest[1:], APPTAINER_OPTIONS)
    pairs = [pair for text in options.texts("--env") for pair in text.split(",")]
    isolates = any(name in options.values for name in ("-e", "--cleanenv", "-C", "--containall", "--compat"))
    return _make_launcher(options, options.rest[1:], pairs, isolates, ("--cwd", "--pwd"))


def _make_launcher(
    options: _Options, command: Sequence[Word], pairs: Sequence[str], isolates: bool, folders: Sequence[str]
) -> ParsedLauncher | None:
    if not command:
        return None
    assignments = [pair.partition("=") for pair in pairs]
    files = options.texts("--env-file")
    return ParsedLauncher(
        tuple(command),
        {name: value for name, equals, value in assignments if equals},
        notes=tuple(f"the variables of --env-file {file} are not read" for file in files),
        isolates=isolates,
        passes=tuple(name for name, equals, _ in assignments if not equals),
        folder=(options.texts(*folders) or [""])[-1],
    )


def _split_options(words: Sequence[Word], value_options: AbstractSet[str]) -> _Options:
    """Return the options at the start of `words`; an unknown option takes no value."""
    options = _Options()
    index = 0
    while index < len(words) and words[index].text.startswith("-") and words[index].text not in ("-", "--"):
        name, equals, text = words[index].text.partition("=")
        word = words[index]
        if equals:
            value: Word | None = Word(text, (-1, -1), word.location, word.known)
        elif name in value_options or (  # short options, the last of which takes a value: "-itw"
            re.fullmatch("-[itdqP]+.", name) and f"-{name[-1]}" in value_options
        ):
            index += 1
            value = words[index] if index < len(words) else None
            name = name if name in value_options else f"-{name[-1]}"
        else:
            value = Word("", (-1, -1), word.location)
        if value is not None:
            options.values.setdefault(name, []).append(value)
        index += 1
    index += index < len(words) and words[index].text == "--"
    options.rest = tuple(words[index:])
    return options


LAUNCHER = Launcher("container", parse)
