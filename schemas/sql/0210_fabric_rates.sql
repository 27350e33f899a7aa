-- Rates of InfiniBand ports: a RoCE port has the same counters and is no part of the fabric.
-- ib_port_rates reads this view.

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
        AND ifNull(link_layer, 'InfiniBand') != 'Ethernet'
    WINDOW by_time AS (
        PARTITION BY cluster, rack, host, guid, port, source
        ORDER BY sampled_at
        ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
    )
)
WHERE sampled_at >= {since:DateTime64(3, 'UTC')}
COMMENT 'Rates of InfiniBand ports: traffic, utilisation, bandwidth lost to waiting (normalised xmit-wait), errors; give since and until';
