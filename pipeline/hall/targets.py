"""The hall's ``targets.json``: what a collector has to read."""

from __future__ import annotations

from typing import Any

from pipeline.hall import names
from pipeline.hall.fleet import Fleet

KMSG_INTERVAL_S = 30


def targets_of(
    fleet: Fleet, base_url: str, interval_s: float = 10.0, *, fabric: str = "ib_exporter"
) -> dict[str, Any]:
    """All targets of a hall that is served at ``base_url``.

    Args:
        fabric: who reads the fabric, one of :data:`pipeline.hall.names.FABRICS`. One of them
            only: a port that two read has two rows for each sample.
    """

    def target(name: str, kind: str, path: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "kind": kind, "url": base_url + path, "interval_s": interval_s,
                "timeout_s": 5, "cluster": fleet.cluster, **more}  # fmt: skip

    found = [
        target(names.dcgm_target(host), "dcgm", f"/dcgm/{host}/metrics", host=host)
        for host in fleet.hosts
    ]
    found += [
        target(
            names.nmxt_target(host), "nmxt",
            f"/nmxt/{host.rsplit('-switch-', 1)[0]}/{host.rsplit('-switch-', 1)[1]}/metrics",
            host=host,
        )
        for host in fleet.switch_hosts
    ]  # fmt: skip
    if fabric == "ufm":
        found += [target(name, "ufm", f"/{name}/telemetry") for name in names.ufm_targets(fleet)]
    else:
        ports = names.ib_targets(fleet)
        found += [target(name, "ib_exporter", f"/{name}/metrics") for name in ports]
    found += [
        target(names.redfish_target(manager), "redfish", f"/redfish/{manager}", manager_id=manager)
        for manager in [*fleet.rack_ids, *fleet.cdu_ids]
    ]
    found += [
        target(
            names.kmsg_target(host),
            "kmsg",
            f"/kmsg/{host}",
            host=host,
            interval_s=KMSG_INTERVAL_S,
        )
        for host in fleet.hosts
    ]
    return {"targets": found}
