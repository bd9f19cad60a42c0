"""What a fix writes in the place of a removed name does what the name did, in the installed transformers."""

from __future__ import annotations

import pytest

from attncheck.doctor.knowledge.removed_names import CACHE_ATTRIBUTES, find_removal

torch = pytest.importorskip("torch")
cache_utils = pytest.importorskip("transformers.cache_utils")


def test_the_successors_of_the_cache_classes_attributes() -> None:
    cache = cache_utils.DynamicCache()
    cache.update(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), 0)
    for attribute in ("seen_tokens", "get_usable_length", "to_legacy_cache"):
        assert attribute in CACHE_ATTRIBUTES and not hasattr(cache, attribute)
    assert cache.get_seq_length() == cache.get_seq_length(0) == 3  # seen_tokens, get_usable_length(new, layer_idx)
    assert cache.get_max_cache_shape() in (None, -1)  # get_max_length(): without a limit


def test_a_removal_is_known_of_a_name_or_of_a_cache_classes_attribute() -> None:
    assert find_removal("transformers.utils", "is_torch_fx_available") == "5.0.0"
    assert find_removal("transformers.cache_utils", "DynamicCache.seen_tokens") == "4.54.0"
    assert find_removal("transformers.trainer", "Trainer.seen_tokens") == ""
