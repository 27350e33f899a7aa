"""dcgm-exporter pages of every version.

Line shapes that are read (label order and spacing do not matter):

========== ===================================================================== ==========
entity     labels                                                                stream
========== ===================================================================== ==========
GPU        ``gpu`` ``UUID`` ``pci_bus_id`` ``device`` ``modelName`` ``Hostname`` gpu
           ``DCGM_FI_DRIVER_VERSION`` ``hpc_job`` ``job_role`` ``namespace``
           ``pod`` ``container``
MIG        as GPU, with ``GPU_I_ID`` and ``GPU_I_PROFILE``                       gpu
GPU 1.x    ``gpu`` ``uuid``, lower-case names (``dcgm_gpu_temp``)                gpu
link       ``nvlink`` ``gpu`` ``gpu_uuid`` ``pci_bus_id`` ``device``             nvlink,
           ``model_name`` ``hostname`` (as exporters from 4.2 print them)        side gpu
link       ``nvlink`` ``nvswitch`` ``Hostname`` or ``hostname``                  nvlink,
                                                                                 side switch
switch     ``nvswitch`` ``Hostname``                                             component
CPU        ``cpu`` ``Hostname``                                                  component
CPU core   ``cpucore`` ``cpu`` ``Hostname``                                      not stored
========== ===================================================================== ==========

A device value copied to several pods (time-slicing) is one value of one device.
"""

from __future__ import annotations

from pipeline.collectors.page import Page, Reading
from pipeline.streams import Contracts

KIND = "dcgm"


def read(page: Page, contracts: Contracts) -> Reading:
    """Rows of one page: not built yet."""
    raise NotImplementedError
