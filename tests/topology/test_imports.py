"""Importers: forms, mistakes in them, and what several sources make together."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.topology import topology as command
from pipeline.errors import ConfigError
from pipeline.topology import load_topology
from pipeline.topology.imports import Draft, merge, read_source
from pipeline.topology.imports.check import check
from pipeline.topology.imports.draft import guid, host_list, rate_gbps


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("srv[1101-1103]", ["srv1101", "srv1102", "srv1103"]),
        ("n[01-02,05],login", ["n01", "n02", "n05", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a b,c", ["a", "b", "c"]),
        ("", []),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    assert sorted(host_list(text)) == sorted(hosts)


@pytest.mark.parametrize("text", ["a[1", "a]1[", "a[x]", "a[1-999999999]", "a[[1]]"])
def test_bad_host_lists(text: str) -> None:
    with pytest.raises(ConfigError):
        host_list(text)


@given(st.text(alphabet="ab[],-0123456789 ", max_size=20))
def test_host_list_of_anything_ends(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert len(host_list(text)) <= 100_000


def test_guids_and_rates() -> None:
    assert guid("2c5eabeed2d37b40") == guid("0x2C5EABEED2D37B40") == "0x2c5eabeed2d37b40"
    assert guid("c42a1fb50f06eb6") == "0x0c42a1fb50f06eb6"
    assert guid("MF0") is None
    assert (rate_gbps(4, "NDR"), rate_gbps(4, "XDR"), rate_gbps(4, "???")) == (400, 800, None)


def test_slurm_tree(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "topology.conf",
        "# the tree\nSwitchName=root Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-2]\n"
        "SwitchName=s2 \\\n  Nodes=n3 LinkSpeed=50\nSwitchName=bad Nodes=n[1\nRubbish\n",
    )
    draft = read_source(path)
    assert (draft.facts["switches"], draft.facts["nodes"]) == (3, 3)
    assert draft.entities["host", "n3"]["leaf"] == "s2"
    assert draft.entities["ib_switch", "root"]["level"] == "spine"
    assert draft.skipped == {"bad_host_list": 1, "unknown_line": 1}


def test_slurm_yaml(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "topology.yaml",
        "- topology: tree\n  cluster_default: true\n  tree:\n    switches:\n"
        "      - switch: root\n        children: s[1-2]\n      - switch: s1\n"
        "        nodes: n[1-2]\n      - switch: s2\n        nodes: n3\n"
        "- topology: racks\n  block:\n    block_sizes: [2]\n    blocks:\n"
        "      - block: r1\n        nodes: n[1-2]\n",
    )
    draft = read_source(path)
    assert (draft.facts["switches"], draft.facts["blocks"], draft.facts["nodes"]) == (3, 1, 3)
    assert draft.entities["host", "n2"] == {"host": "n2", "leaf": "s1", "rack": "r1"}


def test_ibnetdiscover_line_without_quotes_costs_itself(tmp_path: Path) -> None:
    """treydock/infiniband_exporter issue 17: one such line stopped the whole discovery."""
    path = write(
        tmp_path,
        "net.out",
        "SW   478 22 0x7cfe903f4aca7321 4x QDR   Infiniscale-IV Mellanox Technologies\n"
        "CA   134  1 0x7cfe90846ecd4bde 4x EDR - SW  1719 10 0x7cfe905fa067e5b0 "
        "( 'o0001 HCA-1' - 'ib-i1l1s01' )\n",
    )
    draft = read_source(path)
    assert draft.skipped == {"unknown_line": 1}
    assert draft.facts["cables"] == 1


def test_dcgm_platform_fields(tmp_path: Path) -> None:
    def lines(gpu: int) -> str:
        labels = (
            f'gpu="{gpu}",UUID="GPU-{gpu}",Hostname="h1",'
            'DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER="1820"'
        )
        return (
            f"DCGM_FI_DEV_PLATFORM_TRAY_INDEX{{{labels}}} 4\n"
            f"DCGM_FI_DEV_PLATFORM_MODULE_ID{{{labels}}} {gpu + 1}\n"
            f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 50\n"
        )

    draft = read_source(write(tmp_path, "page.prom", "# HELP x\n" + lines(0) + lines(3)))
    assert draft.entities["gpu", "GPU-3"] == {"host": "h1", "rack": "1820", "tray": 5, "slot": 3}
    assert draft.entities["host", "h1"] == {"host": "h1", "rack": "1820", "tray": 5}
    with pytest.raises(ConfigError, match="572 to 577"):
        read_source(write(tmp_path, "plain.prom", 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0"} 50\n'))


CSV = """kind,id,host,rack,tray,slot,cdu,row
rack,1820,,,,,cdu-1,A
gpu,GPU-0,h1,1820,7,0,,
gpu,GPU-bad,h1,1820,x,0,,
nonsense,1,,,,,,
"""


def test_a_wrong_line_of_a_table_costs_itself_and_says_why(tmp_path: Path) -> None:
    lines = "kind,id,tray,rack\ngpu,GPU-0,-1,r1\ngpu,GPU-1,x,r1\ngpuu,GPU-2,1,r1\ngpu,,1,r1\n"
    draft = read_source(write(tmp_path, "t.csv", lines + "gpu,GPU-3,4,r1\n"))
    assert draft.entities == {("gpu", "GPU-3"): {"tray": 4, "rack": "r1"}}
    assert draft.skipped == {"bad_line": 4}
    negative, no_number, kind, no_id = draft.notes
    assert negative.startswith("line 2 is left out: tray '-1': ")
    assert no_number.startswith("line 3 is left out: tray 'x': ")
    assert kind.startswith("line 4 is left out: kind 'gpuu' is none of gpu, grace_cpu, ")
    assert no_id == "line 5 is left out: it has no id"
    # Nothing of it stands in the way of a whole topology.
    assert merge([draft], "c").topology.place("gpu", "GPU-3").tray == 4


def test_a_wrong_cable_of_a_table_costs_itself(tmp_path: Path) -> None:
    lines = "kind,a,a_port,b,b_port\nhost_leaf,h,-1,l,2\nhost_leaf,h,1,l\nhost_leaf,h,1,l,2\n"
    draft = read_source(write(tmp_path, "cables.csv", lines))
    assert list(draft.cables) == [("h", 1, "l", 2)]
    assert [note.split(":")[0] for note in draft.notes] == [
        "line 2 is left out", "line 3 is left out",
    ]  # fmt: skip


def test_two_lines_of_a_table_that_differ_are_told(tmp_path: Path) -> None:
    lines = "kind,id,rack,tray,cdu\nrack,r1,,,cdu-1\nrack,r1,,,cdu-2\ngpu,g,r1,3,\ngpu,g,r1,4,\n"
    draft = read_source(write(tmp_path, "t.csv", lines))
    assert draft.notes == [
        "line 3: cdu is cdu-2 here and cdu-1 in an earlier line, which is taken",
        "line 5: tray is 4 here and 3 in an earlier line, which is taken",
    ]
    assert draft.skipped == {"contradiction": 2}
    topology = merge([draft], "c").topology
    assert topology.place("gpu", "g")[1:3] == ("r1", 3)
    assert topology.place("gpu", "g").cdu == "cdu-1"


def test_a_table_without_a_kind_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its first line must name a column kind"):
        read_source(write(tmp_path, "t.csv", "id,rack\ng,r1\n"))
    with pytest.raises(ConfigError, match="no line that can be read: line 2 is left out: kind"):
        read_source(write(tmp_path, "t.csv", "kind,id\nvan,r1\n"))


def test_csv_says_what_nobody_else_knows_and_sources_contradict(tmp_path: Path) -> None:
    table = read_source(write(tmp_path, "racks.csv", CSV))
    assert table.skipped == {"bad_line": 2}
    page = Draft("page.prom")
    page.say("gpu", "GPU-0", host="h1", rack="1820", tray=5, slot=0)
    page.say("gpu", "GPU-1", host="h1", slot=1)
    page.say("host", "h1", host="h1", rack="1820", tray=5)
    merged = merge([table, page], "test")
    assert merged.topology.place("gpu", "GPU-0").tray == 7
    assert merged.topology.place("gpu", "GPU-0").cdu == "cdu-1"
    # What stands in a host stands in its rack.
    assert merged.topology.place("gpu", "GPU-1")[:3] == ("h1", "1820", 5)
    (odd,) = merged.contradictions
    assert (odd.kind, odd.id, odd.field) == ("gpu", "GPU-0", "tray")
    assert odd.said == (("racks.csv", 7), ("page.prom", 5))
    assert "racks.csv says 7; page.prom says 5" in str(odd)
    # The other way round the page counts.
    assert merge([page, table], "test").topology.place("gpu", "GPU-0").tray == 5


def test_switch_known_by_name_and_by_guid_is_one() -> None:
    net, slurm = Draft("net"), Draft("slurm")
    net.say("ib_switch", "0x" + "a" * 16, name="leaf-1", level="leaf")
    slurm.say("ib_switch", "leaf-1", name="leaf-1", level="leaf")
    slurm.say("host", "h1", leaf="leaf-1")
    merged = merge([slurm, net], "test").topology
    assert [entity.id for entity in merged.entities if entity.kind == "ib_switch"] == [
        "0x" + "a" * 16
    ]


def test_cable_that_two_sources_see_differently() -> None:
    one, two = Draft("one"), Draft("two")
    one.cable("leaf_spine", "0xa", 1, "0xb", 1, 400)
    two.cable("leaf_spine", "0xb", 1, "0xa", 1, 400)
    two.cable("leaf_spine", "0xc", 1, "0xa", 1)
    merged = merge([one, two], "test")
    assert len(merged.topology.cables) == 1
    (odd,) = merged.contradictions
    assert (odd.id, odd.said) == ("0xa/1", (("one", "0xb port 1"), ("two", "0xc port 1")))


def test_check_names_what_is_odd() -> None:
    draft = Draft("x")
    draft.say("gpu", "GPU-1", rack="r", tray=1, slot=0)
    draft.say("gpu", "GPU-2", rack="r", tray=1, slot=0)
    draft.say("gpu", "GPU-3")
    draft.cable("nvlink", "GPU-1", 1, "0xnobody", 1)
    findings = check(merge([draft], "test").topology)
    assert findings[0] == "2 gpus in r tray 1 slot 0: GPU-1, GPU-2"
    assert "1 ends of cables are no entity: 0xnobody" in findings
    assert "1 of 3 gpus have no rack: GPU-3" in findings
    assert "1 of 1 racks have no CDU: r" in findings


def test_command_writes_in_one_step_and_keeps_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "topology.json"
    good = write(tmp_path, "racks.csv", CSV)
    done = CliRunner().invoke(command, ["import", str(good), "--out", str(out), "--cluster", "c"])
    assert done.exit_code == 0, done.output
    first = load_topology(out)
    assert (first.cluster, first.racks[0].cdu) == ("c", "cdu-1")
    bad = write(tmp_path, "net.out", "ibnetdiscover: iberror: failed: discover failed\n")
    failed = CliRunner().invoke(command, ["import", str(bad), "--out", str(out)])
    assert failed.exit_code != 0
    assert load_topology(out) == first
    # The file itself is a source too: corrections go in front of it.
    fix = write(tmp_path, "fix.csv", "kind,id,tray\ngpu,GPU-0,9\n")
    again = CliRunner().invoke(
        command, ["import", f"csv:{fix}", str(out), "--out", str(out), "--cluster", "c"]
    )
    assert again.exit_code == 0, again.output
    assert load_topology(out).place("gpu", "GPU-0").tray == 9
    assert "contradiction: gpu GPU-0: tray" in again.output
    shown = CliRunner().invoke(command, ["show", str(out)])
    assert "1820  cdu cdu-1  1 gpu" in shown.output
    checked = CliRunner().invoke(command, ["check", str(out)])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    "text", ["", "hello", "{", "[1]", '[{"LocationInfo": 5}]', "switches: 1\nblocks: [3]\n", "a: [",
             json.dumps({"cluster": 5}), "- topology: x\n  tree: {switches: [1]}\n"],
)  # fmt: skip
def test_what_is_no_topology_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_source(write(tmp_path, "x", text))
