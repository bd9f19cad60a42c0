"""What NeMo-RL refuses, read in the tags v0.3.0 to v0.7.0; lines are those of v0.7.0."""

from collections.abc import Iterator

from attncheck.lint.fields import Fact, Known, SettingProblem, is_at_least
from attncheck.lint.frameworks.nemo_rl.settings import NemoReading

PACKING, DYNAMIC = "policy.sequence_packing.enabled", "policy.dynamic_batching.enabled"
BOTH_BACKENDS_SINCE = "0.4.0"
SIZES_SINCE = "0.4.0"
TENSOR_PARALLEL_SINCE = "0.6.0"
LARGE_TENSOR_PARALLEL = 4
POLICY = "nemo_rl/models/policy/lm_policy.py"


def find_problems(settings: NemoReading, trainer: str, version: str, world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Yield what the release refuses, judged by what the launch sets."""
    if not settings.is_known(PACKING, DYNAMIC, "policy.megatron_cfg.enabled", "policy.dtensor_cfg.enabled"):
        return
    yield from _check_backends(settings, version)
    yield from _check_packing(settings, trainer)
    yield from _check_context_parallel(settings)
    if is_at_least(version, SIZES_SINCE):
        yield from _check_sizes(settings, world_size)
    if is_at_least(version, TENSOR_PARALLEL_SINCE):
        yield from _check_tensor_parallel(settings)


def _problem(settings: NemoReading, message: str, source: str, *names: str, advice: str = "") -> SettingProblem:
    return SettingProblem(
        "refuses", message, (f"nemo-rl 0.7.0 {source}",), settings.find_location(*names), advice=advice
    )


def _check_backends(settings: NemoReading, version: str) -> Iterator[SettingProblem]:
    names = ("policy.megatron_cfg.enabled", "policy.dtensor_cfg.enabled")
    on = [settings.is_on(name) for name in names]
    if all(on) and is_at_least(version, BOTH_BACKENDS_SINCE):
        yield _problem(
            settings,
            "policy.megatron_cfg and policy.dtensor_cfg are both enabled: ValueError",
            f"{POLICY}:95",
            *names,
            advice=f"set {names[1]}=false",
        )
    elif not any(on) and all(settings.has_any(name) for name in names):
        yield _problem(
            settings,
            "neither policy.megatron_cfg nor policy.dtensor_cfg is enabled: ValueError",
            f"{POLICY}:130",
            *names,
            advice=f"set {names[1]}=true",
        )


def _check_packing(settings: NemoReading, trainer: str) -> Iterator[SettingProblem]:
    packs, is_dynamic = settings.is_on(PACKING), settings.is_on(DYNAMIC)
    if packs and is_dynamic:
        yield _problem(
            settings,
            f"{PACKING} with {DYNAMIC}: AssertionError",
            f"{POLICY}:296",
            DYNAMIC,
            advice=f"set {DYNAMIC}=false",
        )
    if trainer == "dpo" and (packs or is_dynamic):
        name = PACKING if packs else DYNAMIC
        yield _problem(
            settings,
            f"{name} with DPO: AssertionError",
            "nemo_rl/algorithms/dpo.py:148-152",
            name,
            advice=f"set {name}=false",
        )
    if is_dynamic and settings.pipeline_parallel > 1:
        yield _problem(
            settings,
            f"{DYNAMIC} with {settings.pipeline_parallel} pipeline stages: AssertionError",
            f"{POLICY}:284",
            DYNAMIC,
            advice=f"set {DYNAMIC}=false",
        )


def _check_context_parallel(settings: NemoReading) -> Iterator[SettingProblem]:
    ranks, name = settings.context_parallel, f"{settings.backend}.context_parallel_size"
    if ranks < 2:
        return
    if settings.is_megatron and not settings.is_on(PACKING):
        yield _problem(
            settings,
            f"{name}={ranks} without sequence packing: AssertionError",
            "nemo_rl/models/megatron/setup.py:634",
            name,
            advice=f"set {PACKING}=true",
        )
    elif not settings.is_megatron and settings.is_on(PACKING):
        yield _problem(
            settings,
            f"{name}={ranks} with sequence packing: ValueError",
            "nemo_rl/models/automodel/setup.py:386: Context parallel is not supported for sequence packing",
            name,
            advice=f"set {PACKING}=false, or train on Megatron",
        )


def _check_sizes(settings: NemoReading, world_size: Fact[int]) -> Iterator[SettingProblem]:
    size = settings.tensor_parallel * settings.context_parallel * settings.pipeline_parallel
    if isinstance(world_size, Known) and world_size.value % size:
        yield _problem(
            settings,
            f"{world_size.value} GPUs are not a multiple of PP * CP * TP = {size}: ValueError",
            f"{POLICY}:208",
            "cluster.gpus_per_node",
            "cluster.num_nodes",
        )


def _check_tensor_parallel(settings: NemoReading) -> Iterator[SettingProblem]:
    names = ("policy.train_micro_batch_size", "policy.logprob_batch_size")
    train, scoring = (settings.get_int(name, 0) for name in names)
    # If there is only a configuration, the shell is unknown. grpo.py:437 sets the variable if the ratio is forced.
    is_exempt = "NRL_IGNORE_TP_ACCURACY_CHECK" in settings.launch.environ or not settings.launch.words
    is_exempt = is_exempt or settings.is_on("loss_fn.force_on_policy_ratio")
    if settings.tensor_parallel >= LARGE_TENSOR_PARALLEL and train and scoring and train != scoring and not is_exempt:
        message = f"tensor parallel {settings.tensor_parallel} with {names[0]} {train} and {names[1]} {scoring}"
        yield _problem(
            settings,
            f"{message}: AssertionError",
            f"{POLICY}:186: known batch-variant accuracy issue with TP>=4",
            *names[::-1],
            advice=f"set {names[1]}={train}",
        )
