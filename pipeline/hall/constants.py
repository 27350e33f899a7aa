"""Numbers of the hall, each with where it comes from.

Marks: [V] a vendor's document or a captured page; [D] arithmetic from such numbers; [A] an
assumption of this model, chosen so that the hall behaves like the field and open to tuning.
"""

from __future__ import annotations

from typing import Final

# --- rack -----------------------------------------------------------------------------------
TRAYS: Final = 18  # compute trays per NVL72 rack [V, NVIDIA Enterprise RA]
GPUS_PER_TRAY: Final = 4  # [V]
CPUS_PER_TRAY: Final = 2  # Grace CPUs per compute tray [V]
GPUS_PER_RACK: Final = TRAYS * GPUS_PER_TRAY
SWITCH_TRAYS: Final = 9  # NVLink switch trays per rack [V]
ASICS_PER_RACK: Final = 2 * SWITCH_TRAYS  # [A: two per tray, 72 ports each]
NVLINKS: Final = 18  # per GPU [V, Redfish capture of a GB300 tray]
NVLINK_BYTES_PER_S: Final = 50e9  # per link and direction: 400 Gb/s [V]
# 584 faults of 400 servers in 349 days [V, the trace of InfiniteHBD, SIGCOMM'25].
FIELD_FAULTS_PER_TRAY_DAY: Final = 0.0042
POWER_SHELVES: Final = 8  # [V]
LEAK_DETECTORS_PER_TRAY: Final = 2  # cold plate and manifold; a real tray has two of each [V]
RACKS_PER_CDU: Final = 10  # [V, NVIDIA DSX exemplar: one CDU feeds ten racks]

# --- fabric ---------------------------------------------------------------------------------
RAILS: Final = 4  # one 800 Gb/s port per GPU, GPU number in the tray = rail [A]
LEAF_DOWN: Final = 72  # used ports down and up of a 144-port leaf [V, SuperPOD RA]
RACKS_PER_LEAF: Final = LEAF_DOWN // TRAYS  # [D]
SPINES_PER_LEAF: Final = 36 / 64  # 36 spines for 64 leaves [V]
LINE_GBPS: Final = 800.0  # [V]
LINE_BYTES_PER_S: Final = LINE_GBPS * 1e9 / 8  # [D]
TICK_BYTES: Final = 8  # one PortXmitWait tick on Quantum [V, ibdiagnet manual]
PACKET_BYTES: Final = 4096.0  # MTU; headers are not told apart [A]
# Counters move by whole bursts of 16 packets, and waits by whole gaps of 256 ticks (16 ns):
# messages are large and come one after another [A]. It also lets a recorded day shrink.
BURST_BYTES: Final = 16 * PACKET_BYTES
GAP_TICKS: Final = 256.0
RATE_STEP: Final = float(2**20)  # resolution of DCGM's byte rates [A]

SYMBOLS_PER_S: Final = 2e-4  # errors that get through FEC on a cable of median quality [A]

# --- what UFM shows of a port's physical layer ---------------------------------------------
FEC_BLOCK_BITS: Final = 5440  # one RS(544,514) code word of ten-bit symbols [V, IEEE 802.3]
FEC_BLOCKS_PER_S: Final = LINE_GBPS * 1e9 / FEC_BLOCK_BITS  # [D]
FEC_HISTORY_S: Final = 20 * 86_400.0  # blocks counted before the hall began [A]
# Share of blocks with one corrected symbol on a cable of median quality, how it grows with the
# errors that get through, and such blocks beside each of those errors [A].
FEC_CORRECTED_SHARE: Final = 2e-6
FEC_CORRECTED_PER_SYMBOL: Final = 20_000.0
FEC_MORE: Final = (1.0, 0.03, 0.002, 0.0002)  # blocks with 1, 2, 3, 4 symbols, of those with 1 [A]

# --- GPU ------------------------------------------------------------------------------------
POWER_LIMIT_W: Final = 1400.0  # GB300 default and highest limit [V, capture]
CLOCK_NOMINAL_MHZ: Final = 1920.0  # boost clock [A]
CLOCK_STEP_MHZ: Final = 15.0  # clocks move in steps of 15 MHz [A]
CLOCK_IDLE_MHZ: Final = 120.0  # [V, capture of an idle GB200 tray]
MEM_CLOCK_MHZ: Final = 3996.0  # [V, same capture]
FB_TOTAL_MIB: Final = 284_208.0  # 288 GB HBM3e less what the driver hides [A]
FB_RESERVED_MIB: Final = 627.0  # [A]
POWER_STATIC_W: Final = 160.0  # at 40 °C; captured idle trays draw 166 to 180 W [V]
LEAKAGE_W_PER_K: Final = 0.6  # [A]
POWER_SPIN: Final = 0.22  # dynamic power of a rank that spins in a collective, of full [A]
POWER_STALL: Final = 0.05  # dynamic power of a rank whose host launches nothing [A]
WORK_CLOCK_EXPONENT: Final = 0.85  # step time against clock: the rest is memory-bound [A]
SPIN_SM_ACTIVE: Final = 0.16  # share of SMs that communication kernels hold [A]

BIRTH_CLOCK_SIGMA: Final = 0.013  # with the power spread this gives the 8 % of SC'22 [V/A]
BIRTH_POWER_SIGMA: Final = 0.035  # [A]
BIRTH_THERMAL_SIGMA: Final = 0.055  # [A]
BORN_SLOW_SHARE: Final = 0.006  # GPUs that were born 6 to 10 % slow [A]

R_CORE_K_PER_W: Final = 0.0205  # core above local coolant at rated flow [A: 60 °C at 1,150 W]
R_HBM_K_PER_W: Final = 0.0250  # [A]
CONVECTIVE_SHARE: Final = 0.38  # of that resistance; scales with flow^-0.8 (Dittus-Boelter) [A]
TAU_CORE_S: Final = 18.0  # [A]
TAU_HBM_S: Final = 35.0  # [A]
PREHEAT: Final = (0.22, 0.22, 0.62, 0.62)  # share of the coolant's rise at each slot [A]

SLOWDOWN_C: Final = 87.0  # upper caution of HGX_GPU_n_TEMP_0 [V]
HW_SLOWDOWN_C: Final = 91.0  # critical: headroom -4 [D]
THROTTLE_RELEASE_C: Final = 84.0  # hysteresis [A]
HBM_CAUTION_C: Final = 105.0  # [V]
THROTTLE_RATE: Final = 0.0022  # share of clock per K and second [A]
THROTTLE_FLOOR: Final = 0.35  # [A]

PROFILING_LATE_S: Final = 30.0  # without profiling fields after an exporter has started [A]

# --- rest of the rack -----------------------------------------------------------------------
CPU_IDLE_W: Final = 62.0  # [A]
CPU_SPAN_W: Final = 190.0  # Grace reaches about 300 W with its memory [V/A]
SWITCH_TRAY_W: Final = 780.0  # NVLink switch tray at rest [A]
SWITCH_TRAY_SPAN_W: Final = 320.0  # and under full traffic on top [A]
NIC_W: Final = 38.0  # ConnectX-8 with optics [A]
TRAY_OTHER_W: Final = 130.0  # fans, drives, board management [A]
PSU_EFFICIENCY: Final = 0.965  # [A]
LIQUID_SHARE: Final = 0.85  # of a rack's power that leaves with the coolant [V: about 15 % in air]
LIQUID_SHARE_SIGMA: Final = 0.01  # differs by rack [A]

# --- coolant --------------------------------------------------------------------------------
SPECIFIC_HEAT: Final = 3.974  # kJ/(kg K), water with glycol [V, DMTF mockup]
DENSITY: Final = 1.03  # kg/L [V, DMTF mockup]
KW_PER_LPM_K: Final = DENSITY * SPECIFIC_HEAT / 60.0  # [D]
LPM_PER_KW: Final = 1.5  # design flow, OCP range 1.25 to 2.0 [V]
FLOW_MIN_LPM: Final = 40.0  # [A]
FLOW_MAX_LPM: Final = 215.0  # 142 kW at 1.5 L/min per kW [D]
FLOW_RATED_LPM: Final = 140.0  # at which R_CORE holds [A]
VALVE_LPM: Final = 176.0  # flow of an open valve at the set differential pressure [A]
DP_SET_KPA: Final = 90.0  # [V, DSX exemplar]
SUPPLY_SET_C: Final = 32.0  # [V, same]
PRIMARY_SUPPLY_C: Final = 14.1  # [V, same]
PUMP_HEAD_KPA: Final = 260.0  # at full speed and no flow [A]
LOOP_LOSS_KPA: Final = 60.0  # of pipes and heat exchanger at rated flow [A]
STATIC_KPA: Final = 235.0  # return side [V, DSX exemplar]
TAU_VALVE_S: Final = 35.0  # [A]
TAU_PUMP_S: Final = 15.0  # [A]
TAU_LIQUID_S: Final = 30.0  # heat into cold plates and coolant [A]
TAU_AIR_S: Final = 60.0  # heat out of fans and power supplies [A]
TAU_RETURN_S: Final = 25.0  # coolant held in a rack against its flow [A]

# --- queueing -------------------------------------------------------------------------------
QUEUE_WAIT: Final = 0.012  # lost share = QUEUE_WAIT * load^2 / (1 - load + QUEUE_SLACK) [A]
QUEUE_SLACK: Final = 0.05  # [A]
STANDING_QUEUE_WAIT: Final = 0.5  # of the load above the line rate [A]
MAX_LOAD: Final = 0.80  # share of line rate that bursty, contended traffic can reach [A]
BACKPRESSURE_NEAR: Final = 0.15  # wait that one blocked port hands to those that feed it [A]
BACKPRESSURE_FAR: Final = 0.05  # and to those that feed them [A]
