"""A small fleet in the store: racks, models, scores, incidents and silences."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from clickhouse_connect.driver.client import Client

from tests.alerts.helpers import insert, row

RACKS = 8
GPUS = 72


def fill(client: Client, now: datetime, *, cluster: str = "main") -> None:
    """Eight racks; one GPU of rack-03 is slow, rack-05 runs hot, rack-07 has lost two GPUs."""
    gpu: list[list[Any]] = []
    coolant: list[list[Any]] = []
    for number in range(1, RACKS + 1):
        rack = f"rack-{number:02d}"
        for index in range(GPUS):
            hot = 9.0 if number == 5 else 0.0
            silent = number == 7 and index < 2
            at = now - timedelta(seconds=600 if silent else 4)
            uuid = f"GPU-{number:02d}-{index:02d}"
            temp = 47.0 + index / 20 + hot
            job = f"train-{number % 3}"
            gpu.append([cluster, "dcgm", at, at, rack, uuid, 1100.0 + number, temp, 0.91, job])
        # The CDU's connector to the rack, which tells no rise; the building's view of rack-02.
        supply, flow, rise = (32.0, 41.0, 13.5) if number == 5 else (32.0, 61.5, 9.1)
        connector = [f"/connector/{rack}", "rack_connector", supply, supply + rise, flow, None]
        coolant.append([cluster, "redfish", now, now, rack, *connector])
        if number == 2:
            loop = ["/loop/rack-02", "rack_loop", 31.0, None, 60.0, 8.8]
            coolant.append([cluster, "bms", now, now, rack, *loop])
    client.insert("telemetry.gpu", gpu, column_names=[
        "cluster", "source", "sampled_at", "ingested_at", "rack", "gpu_uuid", "power_w",
        "gpu_temp_c", "sm_active_ratio", "job_id"])  # fmt: skip
    client.insert("telemetry.coolant", coolant, column_names=[
        "cluster", "source", "sampled_at", "ingested_at", "rack", "component_id",
        "component_type", "supply_temp_c", "return_temp_c", "flow_lpm",
        "delta_temp_k"])  # fmt: skip
    _models(client, now, cluster)
    _incidents(client, now, cluster)
    client.insert(
        "telemetry.silence",
        [["sil-1", now, cluster, "rack", "rack-08", "", now - timedelta(minutes=10),
          now + timedelta(hours=2), "hose change, ticket 4711", "kim"]],
        column_names=["silence_id", "at", "cluster", "scope", "entity_id", "detector",
                      "starts_at", "ends_at", "reason", "by"],
    )  # fmt: skip


def _models(client: Client, now: datetime, cluster: str) -> None:
    trained = now - timedelta(hours=5)
    for detector, state in (("straggler_gpu", "live"), ("hot_rack", "live"),
                            ("congested_link", "candidate")):  # fmt: skip
        client.insert(
            "telemetry.model_version",
            [[detector, "20261130T0300-1a2b3c", trained, trained - timedelta(hours=3), trained]],
            column_names=["detector", "version", "created_at", "trained_from", "trained_until"],
        )
        client.insert(
            "telemetry.model_transition",
            [[detector, "20261130T0300-1a2b3c", state, trained,
              "recall 0.71 is below 0.90" if state == "candidate" else "passed the gates"]],
            column_names=["detector", "version", "state", "at", "reason"],
        )  # fmt: skip
        if state == "live":
            minute = now.replace(second=0, microsecond=0)
            client.insert(
                "telemetry.score_run",
                [[cluster, detector, minute, minute + timedelta(seconds=17),
                  576 if detector == "straggler_gpu" else 8,
                  570 if detector == "straggler_gpu" else 8, 1, 640]],
                column_names=["cluster", "detector", "window_end", "scored_at", "entities",
                              "verdicts", "findings", "took_ms"],
            )  # fmt: skip


def _incidents(client: Client, now: datetime, cluster: str) -> None:
    def at(minutes: float) -> dict[str, Any]:
        moment = now - timedelta(minutes=minutes)
        return {"at": moment, "window_end": moment, "opened_at": moment, "cluster": cluster}

    flow = {"feature": "flow_lpm", "label": "coolant flow", "value": 41.0, "peer_median": 61.5,
            "unit": "L/min", "direction": "below", "minutes": 6, "z": -11.0}  # fmt: skip
    heat = {"feature": "gpu_over_supply_k", "label": "GPU temperature above supply",
            "value": 25.8, "peer_median": 16.9, "unit": "K", "direction": "above", "minutes": 6,
            "z": 12.5}  # fmt: skip
    wait = {"feature": "lost_bandwidth_share", "label": "bandwidth lost to waiting",
            "value": 0.41, "peer_median": 0.03, "unit": "share", "direction": "above",
            "minutes": 3, "z": 20.0}  # fmt: skip
    insert(
        client,
        row(**at(4)),
        row(
            transition_id="tr-2", incident_id="inc-2", detector="hot_rack", entity_kind="rack",
            entity_id="rack-05", entity_name="rack-05", severity="critical",
            cause="blocked_quick_disconnect", cause_confidence=0.81,
            location=json.dumps({"rack": "rack-05", "cdu": "cdu-2"}),
            evidence=json.dumps([flow, heat]),
            peers=json.dumps({"group": "same loop", "size": 3}),
            members=json.dumps([f"rack-05 tray {n} GPU 1" for n in range(1, 12)]),
            suggested_action="Reseat the quick disconnects of rack-05 and watch the flow.",
            **at(9),
        ),
        row(
            transition_id="tr-3", incident_id="inc-3", detector="congested_link",
            entity_kind="ib_port", entity_id="0xfc6a1c0300a1b2c3/17", severity="warning",
            entity_name="leaf-r1-2 port 17 to spine-03", cause="bad_cable", cause_confidence=0.7,
            location=json.dumps({"leaf": "leaf-r1-2", "rail": 0}), evidence=json.dumps([wait]),
            peers=json.dumps({"group": "uplinks of this leaf", "size": 15}), drill=True,
            suggested_action="Clean or swap the cable on port 17.", **at(2),
        ),
        row(transition_id="tr-4", incident_id="inc-4", entity_name="rack-02 tray 4 GPU 0",
            cause="host_interference", **at(180)),
        row(transition_id="tr-5", incident_id="inc-4", entity_name="rack-02 tray 4 GPU 0",
            cause="host_interference", transition="resolved",
            resolved_at=now - timedelta(minutes=150),
            **(at(180) | {"at": now - timedelta(minutes=150),
                          "window_end": now - timedelta(minutes=150)})),
    )  # fmt: skip
