"""The fleet as arrays: which GPU stands where, which port is wired to which.

Everything is numbered; arrays hold the numbers of neighbours, so that one step of the whole
fleet is a handful of numpy operations. GPUs count rack by rack, tray by tray, slot by slot;
HCA ``i`` belongs to GPU ``i``. The fabric is a rail-optimised two-level fat-tree:

* rail = GPU number in its tray; a leaf serves one rail of four racks (72 ports down);
* as many ports up as down; spine count = the smallest divisor of the uplinks that is at least
  36/64 of the leaf count, so that 64 racks give the reference 64 leaves + 36 spines with two
  links per pair, and 8 racks give 8 leaves + 6 spines with twelve;
* uplink ``k`` of every leaf goes to spine ``k % spines``, so neighbouring ports (the two of one
  twin-port module) go to different spines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.hall import constants as c
from pipeline.hall import ids

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_RACKS = 144  # what a two-level tree of 144-port switches holds


@dataclass(frozen=True)
class Fleet:
    """Numbers of everything in the hall. Build it with :func:`build_fleet`."""

    cluster: str
    seed: int
    racks: int
    racks_per_cdu: int
    spines: int
    uplinks: int  # per leaf

    # --- sizes ---
    @property
    def gpus(self) -> int:
        return self.racks * c.GPUS_PER_RACK

    @property
    def trays(self) -> int:
        return self.racks * c.TRAYS

    @property
    def cpus(self) -> int:
        return self.trays * c.CPUS_PER_TRAY

    @property
    def asics(self) -> int:
        return self.racks * c.ASICS_PER_RACK

    @property
    def cdus(self) -> int:
        return -(-self.racks // self.racks_per_cdu)

    @property
    def leaves_per_rail(self) -> int:
        return -(-self.racks // c.RACKS_PER_LEAF)

    @property
    def leaves(self) -> int:
        return c.RAILS * self.leaves_per_rail

    @property
    def fabric_links(self) -> int:
        return self.leaves * self.uplinks

    @property
    def links_per_pair(self) -> int:
        return self.uplinks // self.spines

    # --- who stands where ---
    @cached_property
    def gpu_rack(self) -> Ints:
        return np.repeat(np.arange(self.racks), c.GPUS_PER_RACK)

    @cached_property
    def gpu_tray(self) -> Ints:
        """Tray over the whole fleet."""
        return np.repeat(np.arange(self.trays), c.GPUS_PER_TRAY)

    @cached_property
    def gpu_slot(self) -> Ints:
        return np.tile(np.arange(c.GPUS_PER_TRAY), self.trays)

    @cached_property
    def gpu_cpu(self) -> Ints:
        """Grace CPU that hosts the GPU: two GPUs each."""
        return self.gpu_tray * c.CPUS_PER_TRAY + self.gpu_slot // 2

    @cached_property
    def rack_cdu(self) -> Ints:
        return np.arange(self.racks) // self.racks_per_cdu

    @cached_property
    def gpu_leaf(self) -> Ints:
        """Leaf switch of the GPU's HCA: leaves count rail by rail."""
        return self.gpu_slot * self.leaves_per_rail + self.gpu_rack // c.RACKS_PER_LEAF

    @cached_property
    def gpu_leaf_port(self) -> Ints:
        """Port of that leaf, from 1."""
        tray_in_rack = self.gpu_tray % c.TRAYS
        return (self.gpu_rack % c.RACKS_PER_LEAF) * c.TRAYS + tray_in_rack + 1

    @cached_property
    def up_leaf(self) -> Ints:
        """Leaf of each fabric link: links count leaf by leaf."""
        return np.repeat(np.arange(self.leaves), self.uplinks)

    @cached_property
    def up_port(self) -> Ints:
        """Port on the leaf side."""
        return c.LEAF_DOWN + 1 + np.tile(np.arange(self.uplinks), self.leaves)

    @cached_property
    def up_spine(self) -> Ints:
        return np.tile(np.arange(self.uplinks) % self.spines, self.leaves)

    @cached_property
    def spine_port(self) -> Ints:
        """Port on the spine side."""
        link = np.tile(np.arange(self.uplinks) // self.spines, self.leaves)
        return self.up_leaf * self.links_per_pair + link + 1

    # --- names ---
    @cached_property
    def rack_ids(self) -> list[str]:
        width = max(2, len(str(self.racks)))
        return [f"rack-{number + 1:0{width}d}" for number in range(self.racks)]

    @cached_property
    def cdu_ids(self) -> list[str]:
        return [f"cdu-{number + 1}" for number in range(self.cdus)]

    @cached_property
    def hosts(self) -> list[str]:
        """Host of each compute tray."""
        return [f"{rack}-tray-{tray + 1:02d}" for rack in self.rack_ids for tray in range(c.TRAYS)]

    @cached_property
    def switch_hosts(self) -> list[str]:
        """Host of each NVLink switch tray."""
        return [
            f"{rack}-switch-{tray + 1:02d}"
            for rack in self.rack_ids
            for tray in range(c.SWITCH_TRAYS)
        ]

    @cached_property
    def gpu_uuids(self) -> list[str]:
        return [ids.gpu_uuid(self.cluster, self.seed, number) for number in range(self.gpus)]

    @cached_property
    def hca_guids(self) -> list[str]:
        return [ids.guid(self.cluster, self.seed, "hca", number) for number in range(self.gpus)]

    @cached_property
    def asic_guids(self) -> list[str]:
        return [ids.guid(self.cluster, self.seed, "nvsw", number) for number in range(self.asics)]

    @cached_property
    def leaf_guids(self) -> list[str]:
        return [ids.guid(self.cluster, self.seed, "leaf", number) for number in range(self.leaves)]

    @cached_property
    def spine_guids(self) -> list[str]:
        return [ids.guid(self.cluster, self.seed, "spine", number) for number in range(self.spines)]

    @cached_property
    def leaf_names(self) -> list[str]:
        return [
            f"leaf-r{rail + 1}-{number + 1}"
            for rail in range(c.RAILS)
            for number in range(self.leaves_per_rail)
        ]

    @cached_property
    def spine_names(self) -> list[str]:
        return [f"spine-{number + 1:02d}" for number in range(self.spines)]

    @cached_property
    def pci_bus_ids(self) -> list[str]:
        """PCI address of each slot; the domains are those of a captured GB200 tray."""
        return [f"{domain:08X}:06:00.0" for domain in (0x8, 0x9, 0x18, 0x19)]


def build_fleet(
    racks: int, seed: int, *, cluster: str = "main", racks_per_cdu: int | None = None
) -> Fleet:
    """Lay out a hall.

    Args:
        racks: number of NVL72 racks, 1 to 144.
        seed: identities and births follow from it.
        racks_per_cdu: racks on one coolant loop; by default ten, or fewer in a small hall so
            that there are two loops.

    Raises:
        ConfigError: a number makes no hall.
    """
    if not 1 <= racks <= MAX_RACKS:
        raise ConfigError(f"A hall has 1 to {MAX_RACKS} racks, not {racks}")
    if racks_per_cdu is None:
        racks_per_cdu = c.RACKS_PER_CDU if racks > c.RACKS_PER_CDU else max(1, -(-racks // 2))
    uplinks = c.TRAYS * min(c.RACKS_PER_LEAF, racks)
    leaves = c.RAILS * -(-racks // c.RACKS_PER_LEAF)
    wanted = min(c.SPINES_PER_LEAF * leaves, uplinks)
    spines = next(
        number for number in range(2, uplinks + 1) if uplinks % number == 0 and number >= wanted
    )
    return Fleet(cluster, seed, racks, racks_per_cdu, spines, uplinks)
