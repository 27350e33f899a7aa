-- The outbox of alerts is incident_transition minus what was delivered. Every attempt is a row;
-- the newest row of a transition and destination is its state.

CREATE TABLE IF NOT EXISTS telemetry.alert_delivery
(
    transition_id String COMMENT 'Transition that was sent; also the webhook-id',
    incident_id String,
    destination LowCardinality(String) COMMENT 'Name of the destination',
    attempt UInt16 COMMENT 'Counts from 1',
    at DateTime64(3, 'UTC') COMMENT 'When the attempt ended',
    outcome LowCardinality(String) COMMENT 'delivered, failed, gave_up, superseded, filtered or requeued',
    http_status UInt16 COMMENT 'Status of the answer; 0 without an answer',
    error String COMMENT 'What went wrong, without secrets',
    next_at Nullable(DateTime64(3, 'UTC')) COMMENT 'When it is tried again',
    took_ms UInt32
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(at)
ORDER BY (destination, transition_id, at)
TTL toDateTime(at) + INTERVAL 400 DAY DELETE
COMMENT 'Every attempt to deliver an alert';

CREATE TABLE IF NOT EXISTS telemetry.alert_destination
(
    destination LowCardinality(String),
    at DateTime64(3, 'UTC'),
    state LowCardinality(String) COMMENT 'enabled or disabled; the newest counts',
    reason String COMMENT 'Such as: the receiver answered 410'
)
ENGINE = MergeTree
ORDER BY (destination, at)
COMMENT 'Destinations of alerts: since when they are served, and which were switched off';

CREATE VIEW IF NOT EXISTS telemetry.alert AS
SELECT
    destination,
    transition_id,
    argMax(incident_id, (at, attempt)) AS incident_id,
    argMax(outcome, (at, attempt)) AS outcome,
    argMax(attempt, (at, attempt)) AS attempts,
    argMax(http_status, (at, attempt)) AS http_status,
    argMax(error, (at, attempt)) AS error,
    argMax(tuple(next_at), (at, attempt)).1 AS next_at,
    min(d.at) AS first_at,
    max(d.at) AS last_at
FROM telemetry.alert_delivery AS d
GROUP BY destination, transition_id;
