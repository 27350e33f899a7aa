-- One row per GPU and minute. window_end is the end of the minute; a row holds samples of
-- [window_end - 1 minute, window_end). Parameters: cluster, start, end (whole minutes).
-- Counters become differences in time order within one GPU and source: NULL over a reset or a
-- gap of more than five minutes, never negative. Missing stays NULL.
WITH
    sample AS
    (
        SELECT
            gpu_uuid, gpu_instance_id, sampled_at, host, rack, tray, slot, rail, cdu,
            job_id, job_role, pci_bus_id,
            sm_clock_mhz, mem_clock_mhz, clocks_event_reasons, tensor_active_ratio,
            sm_active_ratio, gr_engine_active_ratio, dram_active_ratio, power_w, gpu_temp_c, memory_temp_c,
            nvlink_tx_bytes_per_s, pcie_rx_bytes_per_s, pcie_link_gen, pcie_link_width,
            nvlink_tx_bytes, power_violation_ns, thermal_violation_ns, sw_power_cap_ns,
            sw_thermal_slowdown_ns, hw_thermal_slowdown_ns, hw_power_brake_ns,
            nvlink_recovery_events, nvlink_effective_errors, ecc_sbe_volatile, ecc_dbe_volatile,
            row_remap_failed, pcie_replays, energy_mj,
            dateDiff('millisecond', lagInFrame(toNullable(sampled_at)) OVER w, sampled_at) / 1000 AS dt,
            lagInFrame(nvlink_tx_bytes) OVER w AS p_nvlink_tx_bytes,
            lagInFrame(power_violation_ns) OVER w AS p_power_violation_ns,
            lagInFrame(thermal_violation_ns) OVER w AS p_thermal_violation_ns,
            lagInFrame(sw_power_cap_ns) OVER w AS p_sw_power_cap_ns,
            lagInFrame(sw_thermal_slowdown_ns) OVER w AS p_sw_thermal_slowdown_ns,
            lagInFrame(hw_thermal_slowdown_ns) OVER w AS p_hw_thermal_slowdown_ns,
            lagInFrame(hw_power_brake_ns) OVER w AS p_hw_power_brake_ns,
            lagInFrame(nvlink_recovery_events) OVER w AS p_nvlink_recovery_events,
            lagInFrame(nvlink_effective_errors) OVER w AS p_nvlink_effective_errors,
            lagInFrame(ecc_sbe_volatile) OVER w AS p_ecc_sbe_volatile,
            lagInFrame(ecc_dbe_volatile) OVER w AS p_ecc_dbe_volatile,
            lagInFrame(pcie_replays) OVER w AS p_pcie_replays
        FROM telemetry.gpu
        WHERE cluster = {cluster:String}
            AND sampled_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 4 MINUTE
            AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
        WINDOW w AS
        (
            PARTITION BY gpu_uuid, gpu_instance_id, source
            ORDER BY sampled_at
            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
        )
    ),
    delta AS
    (
        SELECT
            *,
            if(dt > 0 AND dt <= 300, dt, NULL) AS gap_s,
            if(nvlink_tx_bytes >= p_nvlink_tx_bytes, nvlink_tx_bytes - p_nvlink_tx_bytes, NULL) AS d_nvlink_tx,
            if(power_violation_ns >= p_power_violation_ns, power_violation_ns - p_power_violation_ns, NULL) AS d_power_violation,
            if(thermal_violation_ns >= p_thermal_violation_ns, thermal_violation_ns - p_thermal_violation_ns, NULL) AS d_thermal_violation,
            if(sw_power_cap_ns >= p_sw_power_cap_ns, sw_power_cap_ns - p_sw_power_cap_ns, NULL) AS d_sw_power_cap,
            if(sw_thermal_slowdown_ns >= p_sw_thermal_slowdown_ns, sw_thermal_slowdown_ns - p_sw_thermal_slowdown_ns, NULL) AS d_sw_thermal,
            if(hw_thermal_slowdown_ns >= p_hw_thermal_slowdown_ns, hw_thermal_slowdown_ns - p_hw_thermal_slowdown_ns, NULL) AS d_hw_thermal,
            if(hw_power_brake_ns >= p_hw_power_brake_ns, hw_power_brake_ns - p_hw_power_brake_ns, NULL) AS d_hw_brake,
            if(nvlink_recovery_events >= p_nvlink_recovery_events, nvlink_recovery_events - p_nvlink_recovery_events, NULL) AS d_recovery,
            if(nvlink_effective_errors >= p_nvlink_effective_errors, nvlink_effective_errors - p_nvlink_effective_errors, NULL) AS d_nvlink_errors,
            if(ecc_sbe_volatile >= p_ecc_sbe_volatile, ecc_sbe_volatile - p_ecc_sbe_volatile, NULL) AS d_sbe,
            if(ecc_dbe_volatile >= p_ecc_dbe_volatile, ecc_dbe_volatile - p_ecc_dbe_volatile, NULL) AS d_dbe,
            if(pcie_replays >= p_pcie_replays, pcie_replays - p_pcie_replays, NULL) AS d_replays
        FROM sample
    ),
    per_minute AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            gpu_uuid,
            gpu_instance_id,
            uniqExact(sampled_at) AS samples,
            uniqExact((power_w, gpu_temp_c, sm_clock_mhz, tensor_active_ratio, dram_active_ratio)) AS moving,
            argMax(toUInt32(cityHash64(power_w, gpu_temp_c, sm_clock_mhz, tensor_active_ratio, dram_active_ratio, energy_mj) % 4294967291), sampled_at) AS fingerprint,
            anyLast(host) AS host_, anyLast(rack) AS rack_, anyLast(tray) AS tray_,
            anyLast(slot) AS slot_, anyLast(rail) AS rail_, anyLast(cdu) AS cdu_,
            -- A minute in which the job changed belongs to none.
            if(uniqExact(ifNull(job_id, '')) = 1, any(ifNull(job_id, '')), '') AS job_id_,
            any(ifNull(job_role, '')) AS job_role_,
            -- The clock while it works: an idle GPU clocks down and is well.
            avgIf(sm_clock_mhz, power_w > 350 AND bitAnd(ifNull(clocks_event_reasons, 0), 1) = 0) AS sm_clock_mhz_,
            avg(mem_clock_mhz) AS mem_clock_mhz_,
            avg(tensor_active_ratio) AS tensor_active_ratio_,
            avg(sm_active_ratio) AS sm_active_ratio_, avg(gr_engine_active_ratio) AS gr_active_ratio_, avg(dram_active_ratio) AS dram_active_ratio_,
            avg(power_w) AS power_w_, min(power_w) AS power_min_w, max(power_w) AS power_max_w,
            avg(gpu_temp_c) AS gpu_temp_c_, avg(memory_temp_c) AS memory_temp_c_,
            avg(nvlink_tx_bytes_per_s) / 1e9 AS nvlink_gauge_gb_per_s,
            sumIf(d_nvlink_tx, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_nvlink_tx)), 0) / 1e9 AS nvlink_counter_gb_per_s,
            avg(pcie_rx_bytes_per_s) / 1e9 AS pcie_rx_gb_per_s,
            -- Lanes times 2^(generation - 1): proportional to what the slot can carry.
            min(pcie_link_width * exp2(pcie_link_gen - 1)) AS pcie_capacity,
            sumIf(d_power_violation, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_power_violation)), 0) / 1e9 AS power_violation_share,
            sumIf(d_sw_power_cap, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_sw_power_cap)), 0) / 1e9 AS sw_power_cap_share,
            sumIf(d_thermal_violation, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_thermal_violation)), 0) / 1e9 AS thermal_violation_share,
            sumIf(ifNull(d_sw_thermal, 0) + ifNull(d_hw_thermal, 0), isNotNull(gap_s) AND (isNotNull(d_sw_thermal) OR isNotNull(d_hw_thermal)))
                / nullIf(sumIf(gap_s, isNotNull(d_sw_thermal) OR isNotNull(d_hw_thermal)), 0) / 1e9 AS thermal_slowdown_share,
            sumIf(d_hw_brake, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_hw_brake)), 0) / 1e9 AS power_brake_share_,
            60 * sumIf(d_recovery, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_recovery)), 0) AS nvlink_recoveries_per_min_,
            60 * sumIf(d_nvlink_errors, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_nvlink_errors)), 0) AS nvlink_errors_per_min_,
            60 * sumIf(d_sbe, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_sbe)), 0) AS ecc_sbe_per_min_,
            sumIf(d_dbe, isNotNull(gap_s)) AS ecc_dbe_,
            60 * sumIf(d_replays, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_replays)), 0) AS pcie_replays_per_min_,
            max(toUInt8(row_remap_failed)) AS row_remap_failed_,
            countIf(isNotNull(clocks_event_reasons)) AS reasons_known,
            countIf(bitAnd(clocks_event_reasons, 2) != 0) AS app_clocks_count,
            countIf(bitAnd(clocks_event_reasons, 128) != 0) AS brake_count,
            countIf(bitAnd(clocks_event_reasons, 104) != 0) AS hot_count
        FROM delta
        WHERE sampled_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 2 MINUTE
        GROUP BY window_end, gpu_uuid, gpu_instance_id
    ),
    -- Coolant that the GPU's rack is given; its loop's or the cluster's mean where a rack has none.
    coolant_minute AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            ifNull(rack, '') AS rack_key,
            ifNull(cdu, '') AS cdu_key,
            avg(supply_temp_c) AS supply_c
        FROM telemetry.coolant
        WHERE cluster = {cluster:String}
            AND sampled_at >= {start:DateTime64(3, 'UTC')} AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
            AND isNotNull(coolant.supply_temp_c)
            AND ifNull(component_type, '') != 'primary_connector'
        GROUP BY window_end, rack_key, cdu_key
    ),
    rack_supply AS
    (
        SELECT window_end, rack_key, avg(supply_c) AS rack_supply_c
        FROM coolant_minute WHERE rack_key != '' GROUP BY window_end, rack_key
    ),
    loop_supply AS
    (
        SELECT window_end, cdu_key, avg(supply_c) AS loop_supply_c
        FROM coolant_minute WHERE cdu_key != '' GROUP BY window_end, cdu_key
    ),
    any_supply AS
    (
        SELECT window_end, avg(supply_c) AS any_supply_c FROM coolant_minute GROUP BY window_end
    ),
    cpu AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            host,
            max(util_percent) AS cpu_util,
            max(power_w) AS cpu_power
        FROM telemetry.component
        WHERE cluster = {cluster:String} AND entity_type = 'grace_cpu'
            AND sampled_at >= {start:DateTime64(3, 'UTC')} AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
            AND isNotNull(host)
        GROUP BY window_end, host
    ),
    xid AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            entity_id,
            countIf(code IN ('48', '62', '64', '74', '79', '94', '95', '119', '120', '144', '145', '146', '147', '148', '149', '150', '156', '158')) AS fatal_xids,
            countIf(code = '79') AS off_the_bus
        FROM telemetry.event
        WHERE cluster = {cluster:String} AND kind = 'xid'
            AND sampled_at >= {start:DateTime64(3, 'UTC')} AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
        GROUP BY window_end, entity_id
    ),
    steady AS
    (
        SELECT
            *,
            min(power_min_w) OVER m AS low_w,
            max(power_max_w) OVER m AS high_w
        FROM per_minute
        WINDOW m AS
        (
            PARTITION BY gpu_uuid, gpu_instance_id
            ORDER BY window_end
            ROWS BETWEEN 2 PRECEDING AND CURRENT ROW
        )
    )
SELECT
    s.window_end AS window_end,
    if(s.gpu_instance_id = '', s.gpu_uuid, concat(s.gpu_uuid, '/', s.gpu_instance_id)) AS entity_id,
    if(s.host_ = '' OR isNull(s.host_), s.gpu_uuid, concat(s.host_, if(isNull(s.slot_), '', concat(' GPU ', toString(s.slot_))))) AS entity_name,
    s.samples AS samples,
    s.moving AS moving,
    s.fingerprint AS fingerprint,
    s.host_ AS host,
    s.rack_ AS rack,
    s.tray_ AS tray,
    s.slot_ AS slot,
    s.rail_ AS rail,
    s.cdu_ AS cdu,
    nullIf(s.job_id_, '') AS job,
    -- A job without roles is one role.
    if(s.job_id_ = '', NULL, concat('role ', s.job_role_)) AS role,
    -- Bins of 250 W for GPUs that work for an unknown job; an idle one is nobody's peer.
    if(s.job_id_ = '' AND s.power_w_ > 350, toString(intDiv(toInt32(s.power_w_), 250)), NULL) AS load_bin,
    s.sm_clock_mhz_ AS sm_clock_mhz,
    s.mem_clock_mhz_ AS mem_clock_mhz,
    -- Not least(1, x), which is 1 where x is NULL.
    if(s.power_brake_share_ > 1, 1, s.power_brake_share_) AS power_brake_share,
    ifNull(s.sw_power_cap_share, s.power_violation_share) AS power_cap_raw,
    if(power_cap_raw > 1, 1, power_cap_raw) AS power_cap_share,
    ifNull(s.thermal_slowdown_share, s.thermal_violation_share) AS thermal_raw,
    if(thermal_raw > 1, 1, thermal_raw) AS thermal_share,
    s.app_clocks_count / nullIf(s.reasons_known, 0) AS app_clocks_share,
    -- Work is judged only where there is some: a service without requests is no straggler.
    s.power_w_ > 350 AS at_work,
    if(at_work, s.tensor_active_ratio_, NULL) AS tensor_active_ratio,
    if(at_work, s.sm_active_ratio_, NULL) AS sm_active_ratio,
    if(at_work, s.gr_active_ratio_, NULL) AS gr_engine_active_ratio,
    if(at_work, s.dram_active_ratio_, NULL) AS dram_active_ratio,
    if(at_work, s.power_w_, NULL) AS power_w,
    -- Only under load that has been steady for three minutes: heat lags power.
    if(at_work AND s.low_w > 0.85 * s.high_w, s.gpu_temp_c_ - coalesce(rack_supply_c, loop_supply_c, any_supply_c), NULL) AS core_over_coolant_k,
    if(at_work AND s.low_w > 0.85 * s.high_w, s.memory_temp_c_ - coalesce(rack_supply_c, loop_supply_c, any_supply_c), NULL) AS hbm_over_coolant_k,
    s.gpu_temp_c_ AS gpu_temp_c,
    s.memory_temp_c_ AS memory_temp_c,
    if(at_work, ifNull(s.nvlink_gauge_gb_per_s, s.nvlink_counter_gb_per_s), NULL) AS nvlink_gb_per_s,
    s.nvlink_recoveries_per_min_ AS nvlink_recoveries_per_min,
    s.nvlink_errors_per_min_ AS nvlink_errors_per_min,
    s.pcie_rx_gb_per_s AS pcie_rx_gb_per_s,
    s.pcie_capacity AS pcie_capacity,
    s.pcie_replays_per_min_ AS pcie_replays_per_min,
    s.ecc_sbe_per_min_ AS ecc_sbe_per_min,
    s.ecc_dbe_ AS ecc_dbe,
    s.row_remap_failed_ AS row_remap_failed,
    cpu.cpu_util AS cpu_util_percent,
    cpu.cpu_power AS cpu_power_w,
    xid.fatal_xids AS fatal_xids,
    xid.off_the_bus AS off_the_bus
FROM steady AS s
LEFT JOIN rack_supply ON rack_supply.window_end = s.window_end AND rack_supply.rack_key = s.rack_
LEFT JOIN loop_supply ON loop_supply.window_end = s.window_end AND loop_supply.cdu_key = s.cdu_
LEFT JOIN any_supply ON any_supply.window_end = s.window_end
LEFT JOIN cpu ON cpu.window_end = s.window_end AND cpu.host = s.host_
LEFT JOIN xid ON xid.window_end = s.window_end AND xid.entity_id = s.gpu_uuid
WHERE s.window_end > {start:DateTime64(3, 'UTC')}
SETTINGS join_use_nulls = 1
