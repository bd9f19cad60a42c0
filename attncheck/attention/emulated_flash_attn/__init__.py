"""flash-attn's kernels emulated in plain torch, so that the ring schedules that use them run without a GPU.

`install` registers it as the package `flash_attn`, only in this process, which is a measuring child. The installed
ring-flash-attn then runs its own sharding, communication and merging with it. Faults of flash-attn's own kernels are
not detected, and the report states that they were emulated.

- `block`: the arithmetic, one document at a time, with the kernels' roundings.
- `signatures`: the parameters of the functions of each generation.
- `refusals`: the arguments that the kernels refuse.
- `interface`: the four block functions; `public`: the functions that a model calls.

Not emulated: dropout, paged keys, flash_attn_with_kvcache, flash_attn.bert_padding (transformers 5.17 uses the last two
only if the distribution flash-attn is installed), rotary and layers.
"""

import importlib.machinery
import sys
from types import ModuleType


def install(generation: str = "2.8") -> None:
    """Install the emulated flash-attn of a generation, "2.5" to "2.8", as package `flash_attn`. Raises ValueError."""
    from .interface import make_block_functions
    from .public import make_public_functions
    from .signatures import GENERATIONS

    if generation not in GENERATIONS:
        raise ValueError(f"flash-attn {generation} is not one of {', '.join(GENERATIONS)}")
    for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
        del sys.modules[name]
    package, module = _add_module("flash_attn"), _add_module("flash_attn.flash_attn_interface")
    package.__path__ = []
    blocks = make_block_functions(generation)
    public_functions = make_public_functions(generation, blocks)
    vars(module).update(**blocks, **public_functions)
    vars(package).update(**public_functions, __version__=f"{generation}.0+emulated", flash_attn_interface=module)


def _add_module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == "flash_attn")
    sys.modules[name] = module
    return module
