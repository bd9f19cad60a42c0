"""Joins the answers of the lanes into the document of one snapshot.

An answer is the return value of `main.call`, or a short text that says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .links.suspects import confirm_links

NOT_ASKED = "this lane was not requested"
LANE_CALLS = {"import": "imports", "device": "device"}  # the call of each lane; the static call is always made
_LOST_CHILD = "the probing process"  # the import lane's wording for a child that died or hung


def join_lanes(static: dict[str, Any], answers: Mapping[str, object]) -> dict[str, Any]:
    """Return the document made of the static lane's answer and those of the other calls, by name."""
    document = dict(static)
    document["problems"], document["lost"] = list(static["problems"]), list(static["lost"])
    imports = _merge_lane(document, answers, "imports", "import lane", ("imports", "interfaces"))
    device = _merge_lane(document, answers, "device", "device lane", ("driver", "devices", "topology"))
    document["problems"] += [*imports.get("problems", ()), *device.get("problems", ())]
    if "known" in document["torch"] and isinstance(imports.get("torch"), dict):
        document["torch"] = {"known": {**document["torch"]["known"], **imports["torch"]}}
    queries = imports.get("answers", {})
    _join_kernels(document, {name: answer for name, answer in queries.items() if name != "model"})
    _join_model(document, queries.get("model"))
    confirm_links(document, answers.get("confirm"))
    return document


def _merge_lane(
    document: dict[str, Any], answers: Mapping[str, object], call: str, name: str, facts: tuple[str, ...]
) -> dict[str, Any]:
    """Write the facts of one lane into `document` and return its whole answer."""
    answer = answers.get(call)
    if isinstance(answer, dict):
        document.update({fact: answer[fact] for fact in facts})
        document["lost"] += answer.get("lost", ())
        return answer
    if answer is None:
        document.update({fact: {"absent": NOT_ASKED} for fact in facts})
    else:
        document["lost"].append("%s: %s" % (name, answer))
        document.update({fact: {"unreadable": "the %s did not answer" % name} for fact in facts})
    return {}


def _join_kernels(document: dict[str, Any], answers: dict[str, Any]) -> None:
    """Write the results of torch's tiny kernels and peer queries into the devices and links."""
    if not answers:
        return
    from .gpus import kernels

    merged = kernels.merge_answers(
        answer["known"] if "known" in answer else kernels.failed_child_answer(int(name[4:]), answer["unreadable"])
        for name, answer in answers.items()
        if "known" in answer or (name.startswith("gpu ") and answer["unreadable"].startswith(_LOST_CHILD))
    )
    for device in document["devices"].get("known", ()):
        index = str(device["index"])
        device["kernel"] = merged["devices"].get(index, {"unreadable": "no kernel was run on it"})
    for link in document["topology"].get("known", {}).get("links", ()):
        pair = "{}-{}".format(*sorted((link["first"], link["second"])))
        link["peer_access"] = merged["peers"].get(pair, {"unreadable": "torch was not queried"})


def _join_model(document: dict[str, Any], answer: object) -> None:
    """Correct values that config.json leaves to class defaults with those from the installed transformers."""
    if not isinstance(answer, dict) or "known" not in document["model"]:
        return
    from .model.accepts import merge_resolved

    resolved = answer.get("known", {"accepts": answer})
    document["model"] = {"known": merge_resolved(resolved, document["model"]["known"])}
