"""flash_attn_func and flash_attn_varlen_func of a module or of a Hub repository, as backends."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attncheck.attention.backend import Backend, Device, Installed, Outputs, SinksArgument
from attncheck.core.cases import UNBOUNDED, Case

if TYPE_CHECKING:
    from attncheck.attention.inputs import Inputs


def flash_backend(
    name: str,
    title: str,
    source: str,
    installed: Callable[[], Installed],
    refuse: Callable[[Case, Device, bool], str],
    call_kwargs: "Callable[[Inputs, bool], dict[str, object]]",
    sinks: SinksArgument | None = None,
    open_side: int | None = UNBOUNDED,
    **fields: Any,
) -> Backend:
    """Return the backend of `source`, a module's name or a Hub repository.

    A name that ends in "_varlen" is the packed function, which first unpads padded and dense cases and then pads the
    result, as transformers does. Any other name of a module is the dense function. A repository's backend uses the
    function that suits the case. `refuse` gets whether cu_seqlens are given; `open_side` is the value for an unbounded
    side of a window.
    """
    packed, of_hub = name.endswith("_varlen"), "/" in source

    def uses_cu_seqlens(case: Case) -> bool:
        return packed or (of_hub and case.layout != "dense")

    def refuse_case(case: Case, device: Device) -> str:
        if case.layout != "dense" and not uses_cu_seqlens(case):
            return f"padding and packed documents need {name}_varlen"
        return refuse(case, device, uses_cu_seqlens(case))

    def run(inputs: "Inputs", deterministic: bool) -> Outputs:
        from attncheck.attention.calls import flash_attn

        kwargs = call_kwargs(inputs, deterministic)
        outputs = flash_attn.run(source, uses_cu_seqlens(inputs.case), inputs, refusing_title, sinks, **kwargs)
        # With ALiBi and a causal mask flash-attn adds slope × key instead of the relative bias
        # (csrc/flash_attn/src/alibi.h): the softmax is the same, its LSE is shifted by a multiple of the row. A window
        # without a right side is causal too if its left side covers all keys (csrc/flash_attn/flash_api.cpp).
        is_causal = inputs.case.causal or inputs.case.window_size[1] == 0
        return replace(outputs, lse=None) if inputs.case.alibi and is_causal else outputs

    def script_lines(case: Case) -> tuple[str, ...]:
        from attncheck.attention.calls import flash_attn

        return flash_attn.script_lines(source, uses_cu_seqlens(case), flash_attn.format_kwargs(case, open_side, sinks))

    refusing_title = source if of_hub else title.partition(",")[0]
    return Backend(
        name=name,
        title=title,
        installed=installed,
        refuse=refuse_case,
        run=run,
        script_lines=script_lines,
        indexes_by_cu_seqlens=packed or of_hub,
        deterministic_switch="argument",
        **fields,
    )
