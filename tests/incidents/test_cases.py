from __future__ import annotations

from pipeline.detection.spec import load_specs
from pipeline.incidents.cases import make_cases
from tests.incidents.findings import HOT, finding, gpu, port, rack

SPECS = load_specs()


def test_a_hot_rack_owns_its_throttling_gpus() -> None:
    gpus = [gpu(f"GPU-{i}", "rack-03", cause="unknown", evidence=HOT) for i in range(20)]
    cases = make_cases([rack("rack-03"), *gpus], SPECS)
    assert [(c.detector, c.entity_id) for c in cases] == [("hot_rack", "rack-03")]
    assert len(cases[0].members) == 21


def test_a_gpu_far_above_its_hot_rack_is_its_own_incident() -> None:
    own = gpu("GPU-1", "rack-03", evidence=HOT, features={"effect:core_over_coolant_k": 6.0},
              cause="degrading_cold_plate")  # fmt: skip
    shared = gpu("GPU-2", "rack-03", evidence=HOT, features={"effect:core_over_coolant_k": 0.8})
    cases = {c.entity_id: c.ids for c in make_cases([rack("rack-03"), own, shared], SPECS)}
    assert set(cases) == {"rack-03", "GPU-1"}
    assert "GPU-2" in cases["rack-03"]


def test_a_gpu_with_an_open_incident_does_not_move_to_its_rack() -> None:
    cases = make_cases([rack("rack-03"), gpu("GPU-1", "rack-03", evidence=HOT)], SPECS, {"GPU-1"})
    assert {c.entity_id for c in cases} == {"rack-03", "GPU-1"}


def test_a_gpu_does_not_open_an_incident_of_a_rack_that_is_hardly_warm() -> None:
    warm = rack("rack-03", cause="unknown", raises=False, level=1)
    cases = make_cases([warm, gpu("GPU-1", "rack-03", evidence=HOT)], SPECS)
    assert {c.entity_id: c.raises for c in cases} == {"rack-03": False, "GPU-1": True}


def test_gpus_join_a_rack_whose_incident_is_open() -> None:
    fading = rack("rack-03", raises=False, level=1)
    cases = make_cases([fading, gpu("GPU-1", "rack-03", evidence=HOT)], SPECS, {"rack-03"})
    assert [c.entity_id for c in cases] == ["rack-03"]
    assert not cases[0].raises


def test_racks_that_only_hold_are_no_loop_incident() -> None:
    racks = [rack(f"rack-0{i}", "unknown", raises=i == 1, level=1) for i in (1, 2, 3, 4)]
    assert {c.entity_kind for c in make_cases(racks, SPECS)} == {"rack"}


def test_a_capped_gpu_in_a_hot_rack_is_its_own_incident() -> None:
    cases = make_cases([rack("rack-03"), gpu("GPU-1", "rack-03")], SPECS)
    assert {(c.detector, c.entity_id) for c in cases} == {
        ("hot_rack", "rack-03"), ("straggler_gpu", "GPU-1"),
    }  # fmt: skip


def test_a_hot_gpu_elsewhere_is_not_the_hot_racks() -> None:
    cases = make_cases([rack("rack-03", loop="cdu-1"),
                        gpu("GPU-1", "rack-04", evidence=HOT)], SPECS)  # fmt: skip
    assert len(cases) == 2


def test_a_loop_owns_its_racks_from_the_first_one_on() -> None:
    one = make_cases([rack("rack-01", "tired_pump")], SPECS)
    assert [(c.entity_kind, c.entity_id) for c in one] == [("cdu", "cdu-1")]
    # A second rack of the loop, of which only the lower flow is seen yet, joins it.
    two = make_cases([rack("rack-01", "tired_pump"), rack("rack-02")], SPECS)
    assert [(c.entity_kind, c.entity_id) for c in two] == [("cdu", "cdu-1")]
    assert {m.entity_id for m in two[0].members} == {"rack-01", "rack-02"}


def test_racks_of_another_loop_stay_alone() -> None:
    cases = make_cases([rack("rack-01", "tired_pump"), rack("rack-05", loop="cdu-2")], SPECS)
    assert {(c.entity_kind, c.entity_id) for c in cases} == {("cdu", "cdu-1"), ("rack", "rack-05")}


def test_three_racks_of_a_loop_with_one_cause_are_the_loops_incident() -> None:
    cases = make_cases([rack(f"rack-0{i}") for i in (1, 2, 3)], SPECS)
    assert [(c.entity_kind, c.entity_id) for c in cases] == [("cdu", "cdu-1")]


def test_both_ends_of_a_cable_are_one_incident() -> None:
    near = port("0xa/80", "0xb/2", "leaf up", ["wait_share"], "slow_receiver")
    far = port("0xb/2", "0xa/80", "spine down", ["symbol_errors_per_min"], "bad_cable")
    cases = make_cases([near, far], SPECS)
    assert len(cases) == 1
    assert cases[0].lead.cause == "bad_cable"
    assert cases[0].ids == {"0xa/80", "0xb/2"}


def test_a_broken_link_owns_the_links_of_its_leaf_that_wait() -> None:
    down = port("0xa/80", "0xb/2", "leaf up", ["link_up"], "downed_uplink")
    neighbour = port("0xa/81", "0xc/2", "leaf up", ["wait_share"], "routing_imbalance")
    cases = make_cases([down, neighbour], SPECS)
    assert [c.entity_id for c in cases] == ["0xa/80"]
    assert "0xa/81" in cases[0].ids


def test_two_ports_of_one_module_that_die_together_are_one_incident() -> None:
    downs = [
        port(f"0xa/{n}", f"0xb/{n}", "leaf up", ["link_up"], "downed_uplink") for n in (79, 80)
    ]
    cases = make_cases(downs, SPECS)
    assert len(cases) == 1
    assert {"0xa/79", "0xa/80"} <= cases[0].ids


def test_the_link_that_waits_most_owns_its_victims() -> None:
    root = port("0xa/21", "0xh/1", "leaf down", ["wait_share"], "slow_receiver", effect=5.0)
    victims = [
        port(f"0xs{i}/1", f"0xa/{80 + i}", "spine down", ["wait_share"], "slow_receiver",
             effect=1.2)
        for i in range(3)
    ]  # fmt: skip
    cases = make_cases([*victims, root], SPECS)
    assert [c.entity_id for c in cases] == ["0xa/21"]
    assert len(cases[0].members) == 4


def test_links_of_two_leaves_are_two_incidents() -> None:
    ports = [
        port(f"{leaf}/80", f"0xb/{i}", "leaf up", ["symbol_errors_per_min"], "bad_cable")
        for i, leaf in enumerate(("0xa", "0xd"))
    ]
    assert len(make_cases(ports, SPECS)) == 2


def test_many_gpus_of_one_host_with_one_cause_are_the_hosts_incident() -> None:
    gpus = [gpu(f"GPU-{i}", cause="host_interference") for i in range(4)]
    cases = make_cases(gpus, SPECS)
    assert [(c.entity_kind, c.entity_id) for c in cases] == [("host", "rack-01-tray-01")]


def test_a_job_that_is_slow_as_a_whole_is_one_incident() -> None:
    gpus = [
        gpu(f"GPU-{i}", f"rack-{i:02d}", location={"host": f"h{i}"}, cause="host_interference")
        for i in range(15)
    ]
    cases = make_cases(gpus, SPECS)
    assert [(c.entity_kind, c.entity_id) for c in cases] == [("job", "job-1")]


def test_two_gpus_with_two_causes_stay_two() -> None:
    cases = make_cases([gpu("GPU-1"), gpu("GPU-2", cause="pcie_downtrain")], SPECS)
    assert len(cases) == 2


def test_a_kind_that_nobody_groups_stands_alone() -> None:
    cases = make_cases([finding("x", entity_kind="power_shelf")], SPECS)
    assert [(c.entity_kind, c.entity_id) for c in cases] == [("power_shelf", "x")]
