"""Lists made from pairs keep their order."""

from __future__ import annotations

from attncheck.core.lists import group_values, list_applying


def test_only_texts_whose_condition_holds_are_listed_in_order() -> None:
    assert list_applying({"b": 1, "a": True, "no": 0, "none": None, "empty": "", "c": "x"}) == ["b", "a", "c"]


def test_values_are_grouped_in_the_order_of_the_pairs() -> None:
    groups = group_values((number % 2, number) for number in (3, 2, 1, 4, 3))
    assert list(groups.items()) == [(1, [3, 1, 3]), (0, [2, 4])]
    assert group_values([]) == {}
