"""Problems with settings that EasyR1, since v0.3.0, cannot honour; lines are those of b44b311 (0.3.3.dev0)."""

from collections.abc import Iterator

from attncheck.lint.fields import Fact, Known, SettingProblem
from attncheck.lint.frameworks.easyr1.settings import ACTOR, EasyR1Reading, find_ulysses_key

WORKERS = "EasyR1 b44b311 verl/workers"


def find_problems(settings: EasyR1Reading, world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Yield what EasyR1 refuses or ignores, judged only by what the launch sets."""
    yield from _micro_batch_does_not_divide(settings, world_size)
    yield from _rollout_does_not_divide(settings, world_size)
    yield from _rollout_is_too_short(settings)
    yield from _ulysses_without_padding_free(settings)


def _micro_batch_does_not_divide(settings: EasyR1Reading, world_size: Fact[int]) -> Iterator[SettingProblem]:
    key = f"{ACTOR}.micro_batch_size_per_device_for_update"
    rows, batch = settings.rows_per_device(world_size), settings.get_int(key)
    if rows is None or not batch or (rows and rows % batch == 0):
        return
    text = "global batch size per device must be divisible by the micro batch size."
    yield SettingProblem(
        "refuses",
        f"{rows} rows of a step on each device are not divisible by {key}={batch}",
        (f"{WORKERS}/fsdp_workers.py:147-151: {text}",),
        settings.find_location(key),
    )


def _rollout_does_not_divide(settings: EasyR1Reading, world_size: Fact[int]) -> Iterator[SettingProblem]:
    key = "worker.rollout.tensor_parallel_size"
    size = settings.get_int(key)
    if not size or not isinstance(world_size, Known) or world_size.value % size == 0:
        return
    message = f"{key}={size} does not divide {world_size.value} GPUs"
    text = "rollout world size is not divisible by tp size"
    yield SettingProblem("refuses", message, (f"{WORKERS}/fsdp_workers.py:385: {text}",), settings.find_location(key))


def _rollout_is_too_short(settings: EasyR1Reading) -> Iterator[SettingProblem]:
    key = "worker.rollout.max_num_batched_tokens"
    tokens = settings.get_int(key)
    prompt, response = (settings.get_int(f"data.max_{part}_length") for part in ("prompt", "response"))
    if not tokens or not prompt or not response or tokens >= prompt + response:
        return
    message = f"{key}={tokens} is less than a prompt and its response, {prompt} + {response} tokens"
    text = "max_num_batched_tokens should be greater than prompt_length + response_length."
    yield SettingProblem(
        "refuses",
        message,
        (f"{WORKERS}/rollout/vllm_rollout_spmd.py:113: {text}",),
        settings.find_location(key),
        {key: str(prompt + response)},
    )


def _ulysses_without_padding_free(settings: EasyR1Reading) -> Iterator[SettingProblem]:
    key, switch = find_ulysses_key(settings), f"{ACTOR}.padding_free"
    size = settings.get_int(key, 1)
    if size < 2 or not settings.has_any(switch) or settings.is_on(switch) or not settings.by_field[switch].known:
        return
    yield SettingProblem(
        "ignores",
        f"{key}={size} without padding_free: each rank of a group computes all its rows in full",
        (f"{WORKERS}/actor/dp_actor.py:88-117: rows are spread across ranks only with padding_free",),
        settings.find_location(key),
        {"packing": "on"},
    )
