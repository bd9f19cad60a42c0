"""One report of many nodes: what differs, who has which finding, who is silent, who lacks GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.cluster.packing import Failure, Unpacker, level_snapshot, pack_failure, pack_snapshot
from attncheck.cluster.placement import PlacementRequest
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Finding
from attncheck.core.io.errors import Unanswered
from attncheck.core.node_ranges import format_nodes, name_nodes, parse_nodes, shorten_nodes
from attncheck.core.report import Report
from attncheck.core.results.cluster import ClusterSection, NodeFact
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import needs_of_profile
from attncheck.lint.sources import read_source
from attncheck.report import document
from tests import snapshots as s
from tests.cluster.snapshots import gather, merge, vary


def section_of(report: Report) -> ClusterSection:
    section = report.section(ClusterSection)
    assert section is not None
    return section


def find(report: Report, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


def fact_of(report: Report, subject: str) -> NodeFact:
    return next(fact for fact in section_of(report).facts if fact.subject == subject)


def downgrade(snapshot: Snapshot) -> Snapshot:
    return s.with_package(snapshot, "transformers", "4.57.1", installer="pip")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((7,), "7"), ((3, 1, 2, 7), "1-3, 7"), ((0, 2, 4), "0, 2, 4"), (range(4096), "0-4095")],
)
def test_nodes_are_written_in_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert format_nodes(numbers) == text
    assert parse_nodes(text) == sorted(numbers)


def test_many_ranges_are_cut_in_a_line() -> None:
    nodes = format_nodes(range(0, 60, 2))
    assert shorten_nodes(nodes).endswith("22 and 18 more ranges")
    assert (name_nodes("3"), name_nodes("0-3")) == ("node 3", "nodes 0-3")


def test_sixty_four_alike_are_one_answer_and_nothing_differs() -> None:
    report = merge(gather(64))
    section = section_of(report)
    assert (section.size, section.answered, section.facts, section.silent) == (64, 64, (), ())
    alone = engine.run_rules(s.h200(), needs_of_profile("all", s.h200()))
    assert [(f.code, f.message) for f in report.findings] == [(f.code, f.message) for f in alone.findings]
    assert all(finding.evidence[0] == "on every node, 64 of 64" for finding in report.findings)
    assert [row.count for row in section.findings] == [64] * len(report.findings)
    assert set(report.passed) == set(alone.passed) and section.is_uniform


def test_the_majority_and_the_outliers_are_named() -> None:
    report = merge(gather(64, {2: downgrade, 3: downgrade, 9: downgrade}))
    fact = fact_of(report, "transformers")
    assert [(group.value, group.count, group.nodes) for group in fact.groups] == [
        ("5.17.0", 61, "0-1, 4-8, 10-63"),
        ("4.57.1", 3, "2-3, 9"),
    ]
    (finding,) = find(report, "ATN580")
    assert finding.severity == "warning" and finding.subject == "transformers"
    assert finding.message == "nodes 2-3, 9 differ from the other 61 in transformers"
    assert "transformers: 5.17.0 on 61 nodes; 4.57.1 on nodes 2-3, 9" in finding.evidence
    assert finding.fixes[-1].kind == "manual"
    assert section_of(report).shown == 0 and not section_of(report).is_uniform


def test_a_finding_of_some_nodes_is_one_that_names_them() -> None:
    def block(snapshot: Snapshot) -> Snapshot:
        return s.with_env(snapshot, CUDA_LAUNCH_BLOCKING="1")

    changes = dict.fromkeys((*range(2), *range(4, 9), *range(10, 64)), block)
    report = merge(gather(64, changes))
    code = next(rule.code for rule in engine.all_rules()[0] if rule.name == "launch-blocking-left-on")
    (finding,) = find(report, code)
    assert finding.evidence[0] == "on 61 of 64 nodes: nodes 0-1, 4-8, 10-63"
    (row,) = [row for row in section_of(report).findings if row.code == code]
    assert (row.count, row.nodes) == (61, "0-1, 4-8, 10-63")
    assert code not in report.passed


def test_numbers_that_differ_from_node_to_node_do_not_split_a_finding() -> None:
    def fill(gib: int) -> object:
        def change(snapshot: Snapshot) -> Snapshot:
            assert isinstance(snapshot.devices, Known)
            (device,) = snapshot.devices.value
            assert isinstance(device.memory_total_bytes, Known)
            free = Known(device.memory_total_bytes.value - (gib << 30))
            return replace(snapshot, devices=Known((replace(device, memory_free_bytes=free),)))

        return change

    report = merge(gather(5, {1: fill(60), 2: fill(40), 4: fill(80)}))  # type: ignore[dict-item]
    (finding,) = find(report, "ATN211")
    assert finding.evidence[0] == "on 3 of 5 nodes: nodes 1-2, 4"
    assert any(line.startswith("node 2: 4") for line in finding.evidence)
    assert "GPU" not in " ".join(fact.subject for fact in section_of(report).facts), "what is free is no difference"


def test_torch_and_flash_attn_that_differ_are_errors() -> None:
    report = merge(gather(4, {3: lambda snapshot: s.with_package(snapshot, "flash-attn", "2.7.4")}))
    (finding,) = find(report, "ATN580")
    assert finding.severity == "error" and finding.message.startswith("node 3 differs from the other 3 in flash-attn")


def test_nodes_that_differ_in_the_same_way_are_one_finding_and_others_another() -> None:
    def age(snapshot: Snapshot) -> Snapshot:
        return s.with_driver(s.with_package(snapshot, "accelerate", "1.0"), version="550.54.14")

    report = merge(gather(8, {1: age, 2: age, 5: lambda snapshot: s.with_env(snapshot, NCCL_PROTO="LL")}))
    messages = sorted(finding.message for finding in find(report, "ATN580"))
    assert messages == [
        "node 5 differs from the other 7 in NCCL_PROTO",
        "nodes 1-2 differ from the other 6 in accelerate, driver",
    ]


def test_two_nodes_have_no_majority() -> None:
    report = merge(gather(2, {1: downgrade}))
    (finding,) = find(report, "ATN580")
    assert finding.message == "nodes differ in transformers"
    assert [fix.kind for fix in finding.fixes] == ["manual"]


def test_the_fix_installs_what_most_nodes_have() -> None:
    base = s.with_package(s.h200(), "transformers", "5.1.0", installer="pip")
    report = merge(gather(4, {2: downgrade}, base=base))
    (finding,) = find(report, "ATN580")
    assert finding.fixes[0].title == "on node 2: install what the other 3 nodes have"
    assert finding.fixes[0].installs == ("transformers==5.1.0",)


def test_no_node_is_told_to_install_a_faulty_release_that_the_others_have() -> None:
    base = s.with_package(s.h200(), "transformers", "5.3.0", installer="pip")
    (finding,) = find(merge(gather(4, {2: downgrade}, base=base)), "ATN580")
    assert [fix.kind for fix in finding.fixes] == ["manual"]


def test_a_package_that_one_node_lacks() -> None:
    report = merge(gather(4, {2: lambda snapshot: s.without_packages(snapshot, "flash-attn")}))
    fact = fact_of(report, "flash-attn")
    assert [(group.value, group.nodes) for group in fact.groups] == [("2.8.3", "0-1, 3"), ("not installed", "2")]
    assert find(report, "ATN580")[0].severity == "error"


def test_what_is_of_the_node_alone_does_not_differ() -> None:
    snapshot = s.with_env(s.h200(), MASTER_PORT="29500", NODE_RANK="3", SLURM_LOCALID="0", NCCL_ALGO="Ring")
    assert level_snapshot(snapshot).environ == {**s.h200().environ, "NCCL_ALGO": "Ring"}
    assert find(merge(gather(3, {1: lambda x: s.with_env(x, NCCL_SOCKET_IFNAME="eth7")})), "ATN580") == []


def test_levelling_changes_no_answer_of_any_rule() -> None:
    for name in ("h200", "h200x2", "laptop"):
        snapshot = s.load_snapshot(name)
        needs = needs_of_profile("all", snapshot)
        before, after = engine.run_rules(snapshot, needs), engine.run_rules(level_snapshot(snapshot), needs)
        assert (before.findings, before.passed, before.skips) == (after.findings, after.passed, after.skips)


def test_silent_nodes_are_named_and_leave_the_question_open() -> None:
    report = merge(gather(6, silent={2: "it began", 3: "it began", 5: "its port is closed"}))
    section = section_of(report)
    assert [node.node for node in section.silent] == [2, 3, 5]
    assert [q.reason for q in report.unanswered] == ["nodes 2-3: it began", "node 5: its port is closed"]
    assert not section.is_uniform


def test_a_node_that_failed_says_why_and_one_that_is_damaged_too() -> None:
    gathered = gather(3)
    documents = {**gathered.documents, 1: pack_failure("the interpreter x did not answer"), 2: b"no document"}
    report = merge(replace(gathered, documents=documents))
    reasons = {node.node: node.reason for node in section_of(report).silent}
    assert reasons[1] == "the interpreter x did not answer"
    assert reasons[2].startswith("its snapshot cannot be read")
    with pytest.raises(Unanswered, match="no node answered: the interpreter"):
        merge(replace(gathered, documents={1: documents[1]}, silent={}))


def test_a_rule_that_could_not_judge_one_node_has_not_passed() -> None:
    def blind(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, devices=s.Unreadable("the driver did not answer"))

    report = merge(gather(3, {1: blind}))
    skip = next(skip for skip in report.skips if skip.code == "ATN210")
    assert skip.reason.startswith("on node 1: ") and "ATN210" not in report.passed


def test_nodes_with_too_few_gpus() -> None:
    base = s.h200x2()
    changes = {1: lambda x: s.hide_gpus(x, 1), 3: lambda x: replace(x, devices=Absent("no driver"))}
    report = merge(gather(4, changes, base=base), PlacementRequest(gpus_per_node=2))
    (finding,) = find(report, "ATN581")
    assert finding.message == "nodes 1, 3 have fewer than the 2 GPUs that --gpus-per-node names"
    assert finding.evidence == ("no GPU on node 3", "1 GPU on node 1", "5 GPUs on 4 nodes; 8 are needed")
    assert section_of(report).gpu_count == 5 and section_of(report).gpus_per_node == 2
    assert not find(merge(gather(2, base=base), PlacementRequest(gpus_per_node=2)), "ATN581")


def test_ranks_of_torchrun_need_a_gpu_each_where_there_are_gpus() -> None:
    request = PlacementRequest(local_size=8)
    (finding,) = find(merge(gather(2), request), "ATN581")
    assert finding.message == "nodes 0-1 have fewer than the 8 GPUs that 8 ranks per node need"
    assert not find(merge(gather(2, base=s.laptop()), request), "ATN581")


def test_a_launch_file_of_the_policy_says_what_it_takes(tmp_path: object) -> None:
    from pathlib import Path

    script = Path(str(tmp_path)) / "run.sh"
    script.write_text("torchrun --nnodes 2 --nproc-per-node 4 -m openrlhf.cli.train_sft --pretrain x\n")
    source = read_source(str(script))
    report = merge(
        gather(2, base=s.with_package(s.h200x2(), "openrlhf", "0.11.2")), PlacementRequest(sources=(source,))
    )
    (finding,) = find(report, "ATN581")
    assert "fewer than the 4 GPUs that" in finding.message and "run.sh takes" in finding.message


def test_select_and_ignore_hold_for_findings_about_nodes() -> None:
    from attncheck.cluster.merge import merge_nodes

    gathered = gather(3, {1: downgrade})
    assert not find(merge_nodes(gathered, profile="all", ignore=("ATN580",)), "ATN580")
    assert {f.code for f in merge_nodes(gathered, profile="all", select=("ATN580",)).findings} == {"ATN580"}


def test_the_report_is_read_back_as_it_was_written() -> None:
    report = merge(gather(4, {1: downgrade}, {3: "it began"}))
    assert document.loads(document.dumps(report)) == report


def test_fields_of_the_same_text_become_one_object() -> None:
    unpacker = Unpacker()
    first, second = (unpacker.unpack(pack_snapshot(vary(s.h200(), node))) for node in (1, 2))
    assert isinstance(first, Snapshot) and isinstance(second, Snapshot)
    assert first.distributions is second.distributions and first.host is second.host


@pytest.mark.parametrize("data", [b"", b"x", b"\x78\x9c", pack_failure("x")[:-3]])
def test_a_damaged_document_is_a_failure(data: bytes) -> None:
    assert isinstance(Unpacker().unpack(data), Failure)


def test_secrets_do_not_leave_a_node() -> None:
    import json
    import zlib

    token = "hf_" + "aB3dE5gH7jK9mN1pQ3rS5tU7vW9xY1zA2b"
    text = zlib.decompress(pack_snapshot(s.with_env(s.h200(), NCCL_TOPO_FILE=f"x?token={token}"))).decode()
    assert token not in json.dumps(json.loads(text))
    assert token not in zlib.decompress(pack_failure(f"cannot open {token}")).decode()
