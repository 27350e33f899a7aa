-- Rates of the counters, for analysts.
--
-- A rate is the increase since the sample before, in time order, of the same entity by the
-- same source at the same place: never across a change of identity. A counter that fell below
-- half was reset and counts from 0; one that fell by less was misread, and its rate is NULL, as
-- is the rate of a reading that is missing, or of the first sample. Where a source gives a rate
-- and no counter, its rate stands.
-- lost_gbps: ticks of xmit-wait, each the line time of 8 bytes; lost_percent is that over the
-- line rate; congestion_percent over what was lost and sent together.
--
-- <stream>_rates_between(since = '…', until = '…') is for a span of time over the fleet: it reads
-- that span, and ten minutes before it for the first increase. <stream>_rates is for one rack,
-- host or entity: a condition on cluster, rack, host or the entity reaches the table, one on the
-- time does not.

CREATE OR REPLACE VIEW telemetry.gpu_rates_between AS
WITH
    (value, before) -> multiIf(
        value >= before, toFloat64(toUInt64(value - before)),
        value < before / 2, toFloat64(value),
        NULL
    ) AS increase
SELECT
    cluster, source, sampled_at, interval_s,
    gpu_uuid, gpu_instance_id, host, rack, tray, slot, rail, leaf, cdu, job_id, job_role,
    increase(energy_mj, before_energy_mj) / 1e3 / interval_s AS energy_power_w,
    increase(power_violation_ns, before_power_violation_ns) / 1e7 / interval_s AS power_violation_percent,
    increase(thermal_violation_ns, before_thermal_violation_ns) / 1e7 / interval_s AS thermal_violation_percent,
    increase(board_limit_violation_ns, before_board_limit_violation_ns) / 1e7 / interval_s AS board_limit_violation_percent,
    increase(reliability_violation_ns, before_reliability_violation_ns) / 1e7 / interval_s AS reliability_violation_percent,
    increase(sync_boost_violation_ns, before_sync_boost_violation_ns) / 1e7 / interval_s AS sync_boost_violation_percent,
    increase(sw_power_cap_ns, before_sw_power_cap_ns) / 1e7 / interval_s AS sw_power_cap_percent,
    increase(sw_thermal_slowdown_ns, before_sw_thermal_slowdown_ns) / 1e7 / interval_s AS sw_thermal_slowdown_percent,
    increase(hw_thermal_slowdown_ns, before_hw_thermal_slowdown_ns) / 1e7 / interval_s AS hw_thermal_slowdown_percent,
    increase(hw_power_brake_ns, before_hw_power_brake_ns) / 1e7 / interval_s AS hw_power_brake_percent,
    ifNull(increase(nvlink_tx_bytes, before_nvlink_tx_bytes) / interval_s, nvlink_tx_bytes_per_s) * 8 / 1e9 AS nvlink_tx_gbps,
    ifNull(increase(nvlink_rx_bytes, before_nvlink_rx_bytes) / interval_s, nvlink_rx_bytes_per_s) * 8 / 1e9 AS nvlink_rx_gbps,
    increase(nvlink_recovery_events, before_nvlink_recovery_events) * 3600 / interval_s AS nvlink_recoveries_per_h,
    increase(nvlink_symbol_errors, before_nvlink_symbol_errors) / interval_s AS nvlink_symbol_errors_per_s,
    increase(ecc_sbe_aggregate, before_ecc_sbe_aggregate) * 3600 / interval_s AS ecc_sbe_per_h,
    increase(ecc_dbe_aggregate, before_ecc_dbe_aggregate) * 3600 / interval_s AS ecc_dbe_per_h,
    increase(pcie_replays, before_pcie_replays) * 3600 / interval_s AS pcie_replays_per_h,
    increase(c2c_link_errors, before_c2c_link_errors) * 3600 / interval_s AS c2c_link_errors_per_h
FROM
(
    SELECT
        *,
        lagInFrame(toNullable(sampled_at)) OVER by_time AS before_sampled_at,
        nullIf(dateDiff('millisecond', before_sampled_at, sampled_at), 0) / 1000 AS interval_s,
        lagInFrame(toNullable(energy_mj)) OVER by_time AS before_energy_mj,
        lagInFrame(toNullable(power_violation_ns)) OVER by_time AS before_power_violation_ns,
        lagInFrame(toNullable(thermal_violation_ns)) OVER by_time AS before_thermal_violation_ns,
        lagInFrame(toNullable(board_limit_violation_ns)) OVER by_time AS before_board_limit_violation_ns,
        lagInFrame(toNullable(reliability_violation_ns)) OVER by_time AS before_reliability_violation_ns,
        lagInFrame(toNullable(sync_boost_violation_ns)) OVER by_time AS before_sync_boost_violation_ns,
        lagInFrame(toNullable(sw_power_cap_ns)) OVER by_time AS before_sw_power_cap_ns,
        lagInFrame(toNullable(sw_thermal_slowdown_ns)) OVER by_time AS before_sw_thermal_slowdown_ns,
        lagInFrame(toNullable(hw_thermal_slowdown_ns)) OVER by_time AS before_hw_thermal_slowdown_ns,
        lagInFrame(toNullable(hw_power_brake_ns)) OVER by_time AS before_hw_power_brake_ns,
        lagInFrame(toNullable(nvlink_tx_bytes)) OVER by_time AS before_nvlink_tx_bytes,
        lagInFrame(toNullable(nvlink_rx_bytes)) OVER by_time AS before_nvlink_rx_bytes,
        lagInFrame(toNullable(nvlink_recovery_events)) OVER by_time AS before_nvlink_recovery_events,
        lagInFrame(toNullable(nvlink_symbol_errors)) OVER by_time AS before_nvlink_symbol_errors,
        lagInFrame(toNullable(ecc_sbe_aggregate)) OVER by_time AS before_ecc_sbe_aggregate,
        lagInFrame(toNullable(ecc_dbe_aggregate)) OVER by_time AS before_ecc_dbe_aggregate,
        lagInFrame(toNullable(pcie_replays)) OVER by_time AS before_pcie_replays,
        lagInFrame(toNullable(c2c_link_errors)) OVER by_time AS before_c2c_link_errors
    FROM telemetry.gpu
    WHERE sampled_at >= {since:DateTime64(3, 'UTC')} - INTERVAL 10 MINUTE
        AND sampled_at < {until:DateTime64(3, 'UTC')}
    WINDOW by_time AS (
        PARTITION BY cluster, rack, host, gpu_uuid, gpu_instance_id, source
        ORDER BY sampled_at
        ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
    )
)
WHERE sampled_at >= {since:DateTime64(3, 'UTC')}
COMMENT 'Rates of GPUs: throttling as percent of the time, power from energy, NVLink traffic, errors; give since and until';

CREATE OR REPLACE VIEW telemetry.gpu_rates AS
SELECT *
FROM telemetry.gpu_rates_between(since = '1970-01-01 00:10:00', until = '2200-01-01 00:00:00')
COMMENT 'Rates of GPUs: throttling as percent of the time, power from energy, NVLink traffic, errors; give a rack, host or entity';

CREATE OR REPLACE VIEW telemetry.nvlink_rates_between AS
WITH
    (value, before) -> multiIf(
        value >= before, toFloat64(toUInt64(value - before)),
        value < before / 2, toFloat64(value),
        NULL
    ) AS increase
SELECT
    cluster, source, sampled_at, interval_s,
    device_id, side, link, host, rack, tray, slot, peer_id, peer_link, link_state, speed_gbps,
    ifNull(increase(tx_bytes, before_tx_bytes) / interval_s, tx_bytes_per_s) * 8 / 1e9 AS tx_gbps,
    ifNull(increase(rx_bytes, before_rx_bytes) / interval_s, rx_bytes_per_s) * 8 / 1e9 AS rx_gbps,
    100 * tx_gbps / nullIf(speed_gbps, 0) AS tx_utilisation_percent,
    100 * rx_gbps / nullIf(speed_gbps, 0) AS rx_utilisation_percent,
    increase(tx_wait_ticks, before_tx_wait_ticks) * 8 * 8 / 1e9 / interval_s AS lost_gbps,
    100 * lost_gbps / nullIf(speed_gbps, 0) AS lost_percent,
    increase(tx_discards, before_tx_discards) / interval_s AS tx_discards_per_s,
    increase(rx_errors, before_rx_errors) / interval_s AS rx_errors_per_s,
    increase(recovery_events, before_recovery_events) * 3600 / interval_s AS recoveries_per_h,
    increase(recovery_failed, before_recovery_failed) * 3600 / interval_s AS failed_recoveries_per_h,
    increase(link_downs_unintentional, before_link_downs_unintentional) * 3600 / interval_s AS unintentional_link_downs_per_h,
    increase(symbol_errors, before_symbol_errors) / interval_s AS symbol_errors_per_s,
    increase(effective_errors, before_effective_errors) / interval_s AS effective_errors_per_s,
    increase(plr_tx_retries, before_plr_tx_retries) / interval_s AS plr_tx_retries_per_s,
    increase(plr_rx_errors, before_plr_rx_errors) / nullIf(increase(plr_rx_codewords, before_plr_rx_codewords), 0) AS plr_rx_error_ratio
FROM
(
    SELECT
        *,
        lagInFrame(toNullable(sampled_at)) OVER by_time AS before_sampled_at,
        nullIf(dateDiff('millisecond', before_sampled_at, sampled_at), 0) / 1000 AS interval_s,
        lagInFrame(toNullable(tx_bytes)) OVER by_time AS before_tx_bytes,
        lagInFrame(toNullable(rx_bytes)) OVER by_time AS before_rx_bytes,
        lagInFrame(toNullable(tx_wait_ticks)) OVER by_time AS before_tx_wait_ticks,
        lagInFrame(toNullable(tx_discards)) OVER by_time AS before_tx_discards,
        lagInFrame(toNullable(rx_errors)) OVER by_time AS before_rx_errors,
        lagInFrame(toNullable(recovery_events)) OVER by_time AS before_recovery_events,
        lagInFrame(toNullable(recovery_failed)) OVER by_time AS before_recovery_failed,
        lagInFrame(toNullable(link_downs_unintentional)) OVER by_time AS before_link_downs_unintentional,
        lagInFrame(toNullable(symbol_errors)) OVER by_time AS before_symbol_errors,
        lagInFrame(toNullable(effective_errors)) OVER by_time AS before_effective_errors,
        lagInFrame(toNullable(plr_tx_retries)) OVER by_time AS before_plr_tx_retries,
        lagInFrame(toNullable(plr_rx_errors)) OVER by_time AS before_plr_rx_errors,
        lagInFrame(toNullable(plr_rx_codewords)) OVER by_time AS before_plr_rx_codewords
    FROM telemetry.nvlink
    WHERE sampled_at >= {since:DateTime64(3, 'UTC')} - INTERVAL 10 MINUTE
        AND sampled_at < {until:DateTime64(3, 'UTC')}
    WINDOW by_time AS (
        PARTITION BY cluster, rack, host, device_id, side, link, source
        ORDER BY sampled_at
        ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
    )
)
WHERE sampled_at >= {since:DateTime64(3, 'UTC')}
COMMENT 'Rates of NVLinks: traffic, utilisation, bandwidth lost to waiting, recoveries, errors; give since and until';

CREATE OR REPLACE VIEW telemetry.nvlink_rates AS
SELECT *
FROM telemetry.nvlink_rates_between(since = '1970-01-01 00:10:00', until = '2200-01-01 00:00:00')
COMMENT 'Rates of NVLinks: traffic, utilisation, bandwidth lost to waiting, recoveries, errors; give a rack, host or entity';

CREATE OR REPLACE VIEW telemetry.ib_port_rates_between AS
WITH
    (value, before) -> multiIf(
        value >= before, toFloat64(toUInt64(value - before)),
        value < before / 2, toFloat64(value),
        NULL
    ) AS increase
SELECT
    cluster, source, sampled_at, interval_s,
    guid, port, side, level, direction, node_name, host, rack, rail, leaf,
    peer_guid, peer_port, peer_name, port_state, rate_gbps,
    ifNull(increase(xmit_data_bytes, before_xmit_data_bytes) / interval_s, xmit_bytes_per_s) * 8 / 1e9 AS xmit_gbps,
    ifNull(increase(rcv_data_bytes, before_rcv_data_bytes) / interval_s, rcv_bytes_per_s) * 8 / 1e9 AS rcv_gbps,
    100 * xmit_gbps / nullIf(rate_gbps, 0) AS xmit_utilisation_percent,
    100 * rcv_gbps / nullIf(rate_gbps, 0) AS rcv_utilisation_percent,
    ifNull(increase(xmit_wait_ticks, before_xmit_wait_ticks) * 8 * 8 / 1e9 / interval_s, congested_gbps) AS lost_gbps,
    ifNull(100 * lost_gbps / nullIf(rate_gbps, 0), congested_percent) AS lost_percent,
    100 * lost_gbps / nullIf(lost_gbps + xmit_gbps, 0) AS congestion_percent,
    increase(xmit_wait_ticks, before_xmit_wait_ticks) / nullIf(increase(xmit_data_bytes, before_xmit_data_bytes), 0) AS wait_ticks_per_byte,
    increase(xmit_discards, before_xmit_discards) / interval_s AS xmit_discards_per_s,
    increase(rcv_errors, before_rcv_errors) / interval_s AS rcv_errors_per_s,
    increase(symbol_errors, before_symbol_errors) / interval_s AS symbol_errors_per_s,
    increase(link_error_recoveries, before_link_error_recoveries) * 3600 / interval_s AS link_error_recoveries_per_h,
    increase(link_downs, before_link_downs) * 3600 / interval_s AS link_downs_per_h,
    increase(fec_corrected_symbols, before_fec_corrected_symbols) / interval_s AS fec_corrected_symbols_per_s,
    increase(fec_uncorrectable_blocks, before_fec_uncorrectable_blocks) / interval_s AS fec_uncorrectable_blocks_per_s
FROM
(
    SELECT
        *,
        lagInFrame(toNullable(sampled_at)) OVER by_time AS before_sampled_at,
        nullIf(dateDiff('millisecond', before_sampled_at, sampled_at), 0) / 1000 AS interval_s,
        lagInFrame(toNullable(xmit_data_bytes)) OVER by_time AS before_xmit_data_bytes,
        lagInFrame(toNullable(rcv_data_bytes)) OVER by_time AS before_rcv_data_bytes,
        lagInFrame(toNullable(xmit_wait_ticks)) OVER by_time AS before_xmit_wait_ticks,
        lagInFrame(toNullable(xmit_discards)) OVER by_time AS before_xmit_discards,
        lagInFrame(toNullable(rcv_errors)) OVER by_time AS before_rcv_errors,
        lagInFrame(toNullable(symbol_errors)) OVER by_time AS before_symbol_errors,
        lagInFrame(toNullable(link_error_recoveries)) OVER by_time AS before_link_error_recoveries,
        lagInFrame(toNullable(link_downs)) OVER by_time AS before_link_downs,
        lagInFrame(toNullable(fec_corrected_symbols)) OVER by_time AS before_fec_corrected_symbols,
        lagInFrame(toNullable(fec_uncorrectable_blocks)) OVER by_time AS before_fec_uncorrectable_blocks
    FROM telemetry.ib_port
    WHERE sampled_at >= {since:DateTime64(3, 'UTC')} - INTERVAL 10 MINUTE
        AND sampled_at < {until:DateTime64(3, 'UTC')}
    WINDOW by_time AS (
        PARTITION BY cluster, rack, host, guid, port, source
        ORDER BY sampled_at
        ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
    )
)
WHERE sampled_at >= {since:DateTime64(3, 'UTC')}
COMMENT 'Rates of InfiniBand ports: traffic, utilisation, bandwidth lost to waiting (normalised xmit-wait), errors; give since and until';

CREATE OR REPLACE VIEW telemetry.ib_port_rates AS
SELECT *
FROM telemetry.ib_port_rates_between(since = '1970-01-01 00:10:00', until = '2200-01-01 00:00:00')
COMMENT 'Rates of InfiniBand ports: traffic, utilisation, bandwidth lost to waiting (normalised xmit-wait), errors; give a rack, host or entity';
