-- One row per InfiniBand port and minute: what it sent, and how long data waited to be sent.
-- window_end is the end of the minute. Parameters: cluster, start, end (whole minutes).
-- Counters become differences in time order within one port and source: NULL over a reset, a
-- saturated register or a gap of more than five minutes. Missing stays NULL.
WITH
    sample AS
    (
        SELECT
            guid, port, sampled_at, side, level, direction, node_name, device, host, rack, rail,
            leaf, peer_guid, peer_port, peer_name, port_state, phys_state, rate_gbps,
            xmit_data_bytes, xmit_wait_ticks, xmit_discards, rcv_errors, symbol_errors,
            link_error_recoveries, link_downs, fec_corrected_symbols, fec_uncorrectable_blocks,
            dateDiff('millisecond', lagInFrame(toNullable(sampled_at)) OVER w, sampled_at) / 1000 AS dt,
            lagInFrame(xmit_data_bytes) OVER w AS p_xmit_data_bytes,
            lagInFrame(xmit_wait_ticks) OVER w AS p_xmit_wait_ticks,
            lagInFrame(xmit_discards) OVER w AS p_xmit_discards,
            lagInFrame(rcv_errors) OVER w AS p_rcv_errors,
            lagInFrame(symbol_errors) OVER w AS p_symbol_errors,
            lagInFrame(link_error_recoveries) OVER w AS p_link_error_recoveries,
            lagInFrame(link_downs) OVER w AS p_link_downs,
            lagInFrame(fec_uncorrectable_blocks) OVER w AS p_fec_uncorrectable_blocks
        FROM telemetry.ib_port
        WHERE cluster = {cluster:String}
            AND sampled_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 2 MINUTE
            AND sampled_at < {end:DateTime64(3, 'UTC')}
            AND ingested_at >= {start:DateTime64(3, 'UTC')} - INTERVAL 1 HOUR
            AND ifNull(link_layer, 'InfiniBand') = 'InfiniBand'
        WINDOW w AS
        (
            PARTITION BY guid, port, source
            ORDER BY sampled_at
            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
        )
    ),
    delta AS
    (
        SELECT
            *,
            if(dt > 0 AND dt <= 300, dt, NULL) AS gap_s,
            if(xmit_data_bytes >= p_xmit_data_bytes, xmit_data_bytes - p_xmit_data_bytes, NULL) AS d_data,
            if(xmit_wait_ticks >= p_xmit_wait_ticks, xmit_wait_ticks - p_xmit_wait_ticks, NULL) AS d_wait,
            if(xmit_discards >= p_xmit_discards, xmit_discards - p_xmit_discards, NULL) AS d_discards,
            if(rcv_errors >= p_rcv_errors, rcv_errors - p_rcv_errors, NULL) AS d_rcv_errors,
            if(symbol_errors >= p_symbol_errors, symbol_errors - p_symbol_errors, NULL) AS d_symbols,
            if(link_error_recoveries >= p_link_error_recoveries, link_error_recoveries - p_link_error_recoveries, NULL) AS d_recoveries,
            if(link_downs >= p_link_downs, link_downs - p_link_downs, NULL) AS d_downs,
            if(fec_uncorrectable_blocks >= p_fec_uncorrectable_blocks, fec_uncorrectable_blocks - p_fec_uncorrectable_blocks, NULL) AS d_fec
        FROM sample
    ),
    per_minute AS
    (
        SELECT
            toStartOfMinute(toDateTime(sampled_at, 'UTC')) + INTERVAL 1 MINUTE AS window_end,
            guid,
            port,
            uniqExact(sampled_at) AS samples,
            uniqExact((xmit_data_bytes, xmit_wait_ticks)) AS moving,
            argMax(toUInt32(cityHash64(xmit_data_bytes, xmit_wait_ticks) % 4294967291), sampled_at) AS fingerprint,
            anyLast(side) AS side_, anyLast(level) AS level_, anyLast(direction) AS direction_,
            anyLast(node_name) AS node_name_, anyLast(device) AS device_, anyLast(host) AS host_,
            anyLast(rack) AS rack_, anyLast(rail) AS rail_, anyLast(leaf) AS leaf_,
            anyLast(peer_guid) AS peer_guid_, anyLast(peer_port) AS peer_port_,
            anyLast(peer_name) AS peer_name_,
            max(rate_gbps) AS line_gbps,
            -- A down port says so in either column, where the source has them.
            avg(multiIf(lower(port_state) = 'active', 1, lower(port_state) IN ('down', 'init', 'armed'), 0,
                lower(phys_state) = 'linkup', 1, isNotNull(phys_state), 0, NULL)) AS state_up,
            avg(isNotNull(rate_gbps) OR ifNull(d_data, 0) > 0) AS alive,
            sumIf(d_data, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_data)), 0) AS bytes_per_s,
            sumIf(d_wait, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_wait)), 0) AS wait_ticks_per_s,
            60 * sumIf(d_discards, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_discards)), 0) AS discards,
            60 * sumIf(d_rcv_errors, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_rcv_errors)), 0) AS rcv_errors_,
            60 * sumIf(d_symbols, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_symbols)), 0) AS symbols,
            60 * sumIf(d_recoveries, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_recoveries)), 0) AS recoveries,
            60 * sumIf(d_fec, isNotNull(gap_s)) / nullIf(sumIf(gap_s, isNotNull(d_fec)), 0) AS fec,
            sumIf(d_downs, isNotNull(gap_s)) AS downs
        FROM delta
        WHERE sampled_at >= {start:DateTime64(3, 'UTC')}
        GROUP BY window_end, guid, port
    ),
    -- Rack of the host behind a leaf's port down.
    hca AS
    (
        SELECT guid AS hca_guid, any(rack) AS hca_rack
        FROM sample WHERE side = 'hca' AND isNotNull(rack) GROUP BY hca_guid
    )
SELECT
    m.window_end AS window_end,
    concat(m.guid, '/', toString(m.port)) AS entity_id,
    concat(if(ifNull(m.node_name_, '') = '', m.guid, m.node_name_), ' port ', toString(m.port),
        if(ifNull(m.peer_name_, '') = '', '', concat(' to ', m.peer_name_, if(isNull(m.peer_port_), '', concat(' port ', toString(m.peer_port_)))))) AS entity_name,
    m.samples AS samples,
    m.moving AS moving,
    m.fingerprint AS fingerprint,
    m.host_ AS host,
    coalesce(m.rack_, hca.hca_rack) AS rack,
    m.rail_ AS rail,
    m.leaf_ AS leaf,
    m.guid AS node,
    m.node_name_ AS switch_name,
    concat(ifNull(m.level_, ''), ' ', ifNull(m.direction_, '')) AS tier,
    if(isNull(m.peer_guid_), NULL, concat(m.peer_guid_, '/', toString(ifNull(m.peer_port_, 1)))) AS peer,
    -- Links that share their load: uplinks of one leaf; links from the spines to one leaf; hosts
    -- of one rack on one leaf.
    multiIf(
        m.level_ = 'leaf' AND m.direction_ = 'up', m.guid,
        m.level_ = 'spine', ifNull(m.peer_guid_, m.guid),
        m.level_ = 'leaf', concat(m.guid, ' ', ifNull(hca.hca_rack, '')),
        concat(ifNull(m.leaf_, toString(ifNull(m.rail_, 0))), ' ', ifNull(m.rack_, ''))) AS fan,
    -- Else it has lost its rate and sends nothing, while other ports have theirs.
    multiIf(isNotNull(m.state_up), m.state_up, count(m.line_gbps) OVER () > 0, m.alive, NULL) AS link_up,
    m.wait_ticks_per_s * 64 / (m.line_gbps * 1e9) AS wait_share,
    m.bytes_per_s * 8 / (m.line_gbps * 1e9) AS util_share,
    -- Lost over lost and sent: shows a blocked link that carries little.
    if(m.wait_ticks_per_s * 64 + m.bytes_per_s * 8 > 0.02 * m.line_gbps * 1e9,
        m.wait_ticks_per_s * 64 / (m.wait_ticks_per_s * 64 + m.bytes_per_s * 8), NULL) AS wait_ratio,
    m.symbols AS symbol_errors_per_min,
    m.rcv_errors_ AS rcv_errors_per_min,
    m.discards AS discards_per_min,
    m.recoveries AS recoveries_per_min,
    m.fec AS fec_uncorrectable_per_min,
    m.downs AS downs,
    m.line_gbps AS line_gbps
FROM per_minute AS m
LEFT JOIN hca ON hca.hca_guid = m.peer_guid_
WHERE m.window_end > {start:DateTime64(3, 'UTC')}
SETTINGS join_use_nulls = 1
