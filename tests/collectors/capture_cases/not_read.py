"""Captures that no reader fits, with the reason and what reads them instead."""

from __future__ import annotations

from dataclasses import dataclass

_TOPOLOGY = "says where things are, not how they are"
_FORMAT = "a case of the text format: its metrics belong to no source"
_COUNTERS = "says which fields an exporter prints; it has no readings"


@dataclass(frozen=True)
class Otherwise:
    """Why no reader fits, and the test of what reads the file instead."""

    reason: str
    test: str


_IMPORTED = "tests/topology/test_captures.py"
_COUNTER_FILES = "tests/collectors/test_captures_dcgm.py"
_CASES = "tests/collectors/test_captures_prom.py"

NOT_READ: dict[str, Otherwise] = {
    "dcgm/1.x-compatibility-metrics.csv": Otherwise(_COUNTERS, _COUNTER_FILES),
    "dcgm/dcp-metrics-included.csv": Otherwise(_COUNTERS, _COUNTER_FILES),
    "dcgm/default-counters.csv": Otherwise(_COUNTERS, _COUNTER_FILES),
    "ib/ibnetdiscover_stderr_no_mad.txt": Otherwise(
        "an error message: the topology before it stays", _IMPORTED
    ),
    "ib/infiniband_exporter/ibnetdiscover-test.out": Otherwise(_TOPOLOGY, _IMPORTED),
    "nmxt/module_temperature_values.txt": Otherwise(
        "values of one label, without the lines around them",
        "tests/collectors/test_captures_nmxt.py",
    ),
    "prom/alltypes_237.prom": Otherwise(_FORMAT, _CASES),
    "prom/alltypes_5.om.txt": Otherwise(_FORMAT, _CASES),
    "prom/expfmt_cases.jsonl": Otherwise(_FORMAT, _CASES),
    "prom/openmetrics_cases.jsonl": Otherwise(_FORMAT, _CASES),
    "topology/ibnet_gb200_nvl_ndr.out": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/ibnet_lonely_hca.out": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/ibnet_superpod_hdr_storage.txt.gz": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/model_dual_accelerator_irregular.yaml": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/model_large.yaml": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/model_nvl72.yaml": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/nmx_compute_nodes.json": Otherwise(_TOPOLOGY, _IMPORTED),
    "topology/slurm_block_8.conf": Otherwise(_TOPOLOGY, _IMPORTED),
}
