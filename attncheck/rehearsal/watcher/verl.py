"""Lets verl train without a GPU: a platform "cpu" in addition to its own, and a process group of gloo.

Sources: verl 0.9.1 `plugin/platform/platform_manager.py` (platforms are registered; VERL_PLATFORM names one),
`workers/engine/base.py` (VERL_ENGINE_DEVICE chooses the engine), `utils/distributed.py`; 0.4.1 `utils/device.py`.
"""

from __future__ import annotations

import os
from typing import Any


def _make_device() -> Any:
    """Return torch.cuda's functions for a machine without a GPU: they measure nothing and do nothing."""
    import torch

    class Device:
        def mem_get_info(self) -> tuple[int, int]:
            return 0, 0

        def get_device_name(self) -> str:
            return "cpu"

        def current_device(self) -> Any:
            return torch.device("cpu")

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(torch.cpu, name, lambda *arguments, **options: 0)

    return Device()


def register_cpu(platform_cuda: Any) -> None:
    """Register the platform "cpu": verl's platform for CUDA, with the CPU as its device."""
    import torch

    class PlatformCPU(platform_cuda.PlatformCUDA):  # type: ignore[misc]
        device_name, vendor_name, device_module = "cpu", "cpu", _make_device()

        def is_available(self) -> bool:
            return True

        is_platform_available = is_available

        def current_device(self) -> Any:
            return torch.device("cpu")

        def device_count(self) -> int:
            return int(os.environ.get("LOCAL_WORLD_SIZE", 1))

        def do_nothing(self, *arguments: Any) -> None:
            return None

        set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = do_nothing

        def communication_backend_name(self) -> str:
            return "gloo"

    platform_cuda.PlatformRegistry.register(platform="cpu")(PlatformCPU)


def stand_on_cpu(device: Any) -> None:
    """Let releases without platforms train on the CPU as on CUDA: flash-attn's unpadding, means across ranks."""
    if os.environ.get("ATTNCHECK_VERL_DEVICE") != "cpu":
        return
    stand_in = _make_device()
    device.is_cuda_available, device.is_npu_available = True, False
    device.get_device_name = lambda: "cpu"
    device.get_torch_device = lambda: stand_in
    device.get_device_id = stand_in.current_device
    device.get_nccl_backend = lambda: "gloo"


def find_engine(base: Any) -> None:
    """Let releases without VERL_ENGINE_DEVICE find the engine for CUDA, which also runs on the CPU."""
    original = base.EngineRegistry.get_engine_cls.__func__

    def get_engine_cls(cls: Any, model_type: str, backend: str) -> Any:
        for devices in cls._engines.get(model_type, {}).values():
            devices.update({"cpu": devices["cuda"], **devices} if "cuda" in devices else {})
        return original(cls, model_type, backend)

    base.EngineRegistry.get_engine_cls = classmethod(get_engine_cls)


def use_gloo(distributed: Any) -> None:
    """Create the process group with gloo only, because verl would name the CPU twice."""
    import torch

    def initialize_global_process_group(timeout_second: int = 36000) -> tuple[int, int, int]:
        torch.distributed.init_process_group("gloo")
        rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return local_rank, rank, world_size

    distributed.initialize_global_process_group = initialize_global_process_group
