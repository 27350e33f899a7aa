-- One row per rack and minute: its coolant, its heat, and the loop that cools it. window_end is
-- the end of the minute. Parameters: cluster, start, end (whole minutes). Missing stays NULL.
-- Ratios to power are used, since flow and heat both follow it: a changed job is no fault.
WITH
    coolant_minute AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            ifNull(rack, '') AS rack_key,
            ifNull(cdu, '') AS cdu_key,
            ifNull(component_type, '') AS part,
            uniqExact(sampled_at) AS n,
            uniqExact((supply_temp_c, return_temp_c, flow_lpm, delta_pressure_kpa)) AS kinds,
            argMax(toUInt32(cityHash64(supply_temp_c, return_temp_c, flow_lpm, delta_pressure_kpa) % 4294967291), sampled_at) AS last_reading,
            avg(supply_temp_c) AS supply_c,
            avg(return_temp_c) AS return_c,
            avg(flow_lpm) AS flow,
            avg(delta_pressure_kpa) AS dp_kpa,
            avg(valve_position_percent) AS valve,
            avg(pump_speed_percent) AS speed,
            avg(supply_temp_setpoint_c) AS setpoint_c,
            avg(level_percent) AS level,
            avg(filter_pressure_kpa) AS filter_kpa
        FROM telemetry.coolant
        WHERE cluster = {cluster:String}
            AND sampled_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 3 MINUTE
            AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
        GROUP BY window_end, rack_key, cdu_key, part
    ),
    rack_coolant AS
    (
        SELECT
            window_end, rack_key, max(cdu_key) AS cdu_key,
            max(n) AS samples, max(kinds) AS moving, max(last_reading) AS fingerprint,
            avg(supply_c) AS rack_supply_c, avg(return_c) AS rack_return_c,
            avg(flow) AS rack_flow, avg(dp_kpa) AS rack_dp, avg(valve) AS rack_valve
        FROM coolant_minute
        WHERE rack_key != '' AND part IN ('rack_connector', 'rack_loop', 'secondary_connector', '')
        GROUP BY window_end, rack_key
    ),
    -- Parts of a CDU stand on no rack.
    loop_parts AS
    (
        SELECT
            window_end, cdu_key,
            avgIf(supply_c, part IN ('secondary_connector', 'cdu')) AS own_supply_c,
            avgIf(dp_kpa, part IN ('secondary_connector', 'cdu')) AS loop_dp,
            avgIf(flow, part IN ('secondary_connector', 'cdu')) AS loop_flow,
            avg(setpoint_c) AS loop_setpoint_c,
            avgIf(speed, part = 'pump' AND speed > 0) AS loop_speed,
            avg(level) AS loop_level,
            avg(filter_kpa) AS loop_filter
        FROM coolant_minute
        WHERE rack_key = '' AND cdu_key != '' AND part != 'primary_connector'
        GROUP BY window_end, cdu_key
    ),
    loop_racks AS
    (
        SELECT
            window_end, cdu_key,
            quantileExact(0.5)(rack_supply_c) AS racks_supply_c,
            quantileExact(0.5)(rack_dp) AS racks_dp
        FROM rack_coolant WHERE cdu_key != '' GROUP BY window_end, cdu_key
    ),
    loops AS
    (
        SELECT
            r.window_end AS window_end, r.cdu_key AS cdu_key,
            coalesce(p.own_supply_c, r.racks_supply_c) AS loop_supply_c,
            coalesce(p.loop_dp, r.racks_dp) AS loop_dp_kpa,
            p.loop_setpoint_c AS loop_setpoint_c, p.loop_speed AS loop_speed,
            p.loop_level AS loop_level, p.loop_filter AS loop_filter,
            count() OVER minute AS loop_count,
            -- Against the other loops: what all of them do is the facility's doing.
            if(count(loop_supply_c) OVER minute > 1,
                loop_supply_c - (sum(loop_supply_c) OVER minute - loop_supply_c) / (count(loop_supply_c) OVER minute - 1), NULL) AS loop_over_others_k,
            if(count(p.loop_setpoint_c) OVER minute > 1,
                p.loop_setpoint_c - (sum(p.loop_setpoint_c) OVER minute - p.loop_setpoint_c) / (count(p.loop_setpoint_c) OVER minute - 1), NULL) AS setpoint_over_others_k
        FROM loop_racks AS r
        LEFT JOIN loop_parts AS p ON p.window_end = r.window_end AND p.cdu_key = r.cdu_key
        WINDOW minute AS (PARTITION BY r.window_end)
    ),
    gpu_minute AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            ifNull(rack, '') AS rack_key,
            gpu_uuid,
            any(cdu) AS gpu_cdu,
            avg(gpu_temp_c) AS core_c,
            avg(memory_temp_c) AS hbm_c,
            avg(power_w) AS power
        FROM telemetry.gpu
        WHERE cluster = {cluster:String}
            AND sampled_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 3 MINUTE
            AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
            AND isNotNull(rack)
        GROUP BY window_end, rack_key, gpu_uuid
    ),
    heat AS
    (
        SELECT
            window_end, rack_key, any(gpu_cdu) AS heat_cdu,
            count() AS gpus,
            avg(power) AS mean_power_w,
            countIf(power > 350) AS loaded,
            quantileExactIf(0.5)(core_c, power > 350) AS core_mid_c,
            quantileExactIf(0.9)(core_c, power > 350) AS core_high_c,
            quantileExactIf(0.5)(hbm_c, power > 350) AS hbm_mid_c,
            avgIf(power, power > 350) AS loaded_power_w,
            avg(core_c) AS core_mean_c
        FROM gpu_minute
        GROUP BY window_end, rack_key
    ),
    power AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            ifNull(rack, '') AS rack_key,
            avgIf(power_w, entity_type = 'rack') AS metered_w,
            max(entity_type = 'leak_detector' AND ifNull(leak, false)) AS leaking
        FROM telemetry.component
        WHERE cluster = {cluster:String}
            AND sampled_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 3 MINUTE
            AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
            AND entity_type IN ('rack', 'leak_detector') AND isNotNull(rack)
        GROUP BY window_end, rack_key
    ),
    joined AS
    (
        SELECT
            c.window_end AS window_end, c.rack_key AS rack_key, c.cdu_key AS cdu_key,
            c.samples AS samples, c.moving AS moving, c.fingerprint AS fingerprint,
            c.rack_supply_c AS rack_supply_c, c.rack_return_c AS rack_return_c,
            c.rack_flow AS rack_flow, c.rack_dp AS rack_dp, c.rack_valve AS rack_valve,
            h.gpus AS gpus, h.loaded AS loaded, h.core_mid_c AS core_mid_c,
            h.core_high_c AS core_high_c, h.hbm_mid_c AS hbm_mid_c,
            h.loaded_power_w AS loaded_power_w, h.core_mean_c AS core_mean_c,
            h.mean_power_w AS mean_power_w,
            p.leaking AS leaking,
            -- The rack's meter, else its GPUs: the ratio to it is each rack's own.
            coalesce(p.metered_w, h.mean_power_w * h.gpus) / 1000 AS power_kw
        FROM rack_coolant AS c
        LEFT JOIN heat AS h ON h.window_end = c.window_end AND h.rack_key = c.rack_key
        LEFT JOIN power AS p ON p.window_end = c.window_end AND p.rack_key = c.rack_key
    ),
    steady AS
    (
        SELECT
            *,
            min(power_kw) OVER recent AS low_kw,
            max(power_kw) OVER recent AS high_kw,
            max(rack_supply_c) OVER recent - min(rack_supply_c) OVER recent AS supply_moved_k,
            min(rack_flow) OVER recent / nullIf(max(rack_flow) OVER recent, 0) AS flow_kept,
            count() OVER recent AS minutes_seen
        FROM joined
        WINDOW recent AS
        (
            PARTITION BY rack_key
            ORDER BY window_end
            ROWS BETWEEN 2 PRECEDING AND CURRENT ROW
        )
    )
SELECT
    s.window_end AS window_end,
    s.rack_key AS entity_id,
    s.rack_key AS entity_name,
    s.samples AS samples,
    s.moving AS moving,
    s.fingerprint AS fingerprint,
    s.rack_key AS rack,
    nullIf(s.cdu_key, '') AS cdu,
    -- Heat lags power: nothing that needs both is judged until power has been steady.
    if(s.minutes_seen = 3 AND s.low_kw > 0.85 * s.high_kw, 1, 0) AS is_steady,
    s.power_kw AS power_kw,
    s.loaded / s.gpus AS loaded_share,
    s.loaded_power_w AS loaded_power_w,
    s.core_mid_c AS core_mid_c,
    s.core_mean_c AS core_mean_c,
    s.mean_power_w AS mean_power_w,
    if(is_steady = 1 AND s.loaded * 2 > s.gpus AND s.loaded_power_w > 600, (s.core_mid_c - s.rack_supply_c) / s.loaded_power_w * 1000, NULL) AS core_k_per_kw,
    if(is_steady = 1 AND s.loaded * 2 > s.gpus AND s.loaded_power_w > 600, (s.hbm_mid_c - s.rack_supply_c) / s.loaded_power_w * 1000, NULL) AS hbm_k_per_kw,
    if(is_steady = 1 AND s.loaded * 2 > s.gpus AND s.loaded_power_w > 600, s.core_high_c - s.core_mid_c, NULL) AS core_spread_k,
    s.rack_supply_c AS supply_c,
    s.rack_return_c AS return_c,
    s.rack_flow AS flow_lpm,
    s.rack_dp AS delta_pressure_kpa,
    s.rack_valve AS valve_percent,
    if(is_steady = 1 AND s.loaded * 2 > s.gpus AND s.loaded_power_w > 600, s.rack_flow / s.power_kw, NULL) AS flow_lpm_per_kw,
    if(is_steady = 1 AND s.loaded * 2 > s.gpus AND s.loaded_power_w > 600, (s.rack_return_c - s.rack_supply_c) , NULL) AS coolant_rise_k,
    -- 1.03 kg/L x 3.974 kJ/(kg K) / 60 s: kW that 1 L/min carries per kelvin.
    -- The return is late against supply and flow as well.
    if(is_steady = 1 AND s.loaded * 2 > s.gpus AND s.loaded_power_w > 600 AND s.supply_moved_k < 1 AND s.flow_kept > 0.9, s.rack_flow * (s.rack_return_c - s.rack_supply_c) * 1.03 * 3.974 / 60 / s.power_kw, NULL) AS heat_balance_ratio,
    s.rack_supply_c - l.loop_supply_c AS supply_over_loop_k,
    l.loop_over_others_k AS loop_over_others_k,
    l.setpoint_over_others_k AS setpoint_over_others_k,
    l.loop_dp_kpa AS loop_dp_kpa,
    l.loop_speed AS pump_speed_percent,
    l.loop_level AS level_percent,
    l.loop_filter AS filter_kpa,
    toUInt8(s.leaking) AS leaking
FROM steady AS s
LEFT JOIN loops AS l ON l.window_end = s.window_end AND l.cdu_key = s.cdu_key
WHERE s.window_end > {start:DateTime64(3, 'UTC')}
SETTINGS join_use_nulls = 1
