-- Incidents are a log of transitions; the newest one is the incident's state.

CREATE TABLE IF NOT EXISTS telemetry.incident_transition
(
    transition_id String COMMENT 'Hash of incident, transition and window: a repeat is recognised',
    incident_id String COMMENT 'Hash of detector, entity and first window',
    transition LowCardinality(String) COMMENT 'opened, updated or resolved',
    at DateTime64(3, 'UTC') COMMENT 'When the transition was written',
    window_end DateTime('UTC') COMMENT 'Window that caused it',
    cluster LowCardinality(String),
    detector LowCardinality(String),
    entity_kind LowCardinality(String) COMMENT 'gpu, rack, ib_port, cdu, ib_switch, job, target',
    entity_id String,
    entity_name String,
    location String COMMENT 'JSON object: rack, tray, slot, rail, leaf, cdu, host, job',
    severity LowCardinality(String) COMMENT 'info, warning or critical',
    cause LowCardinality(String),
    cause_confidence Float32 COMMENT '0 to 1',
    summary String COMMENT 'One sentence for a person',
    evidence String COMMENT 'JSON array of feature, value, peer_median, unit, direction, minutes, z',
    peers String COMMENT 'JSON object: group, size',
    suggested_action String,
    members String COMMENT 'JSON array: entities that this incident owns',
    model_version String,
    score Float64 COMMENT '-log10 of the p-value',
    opened_at DateTime64(3, 'UTC') COMMENT 'End of the window that opened it',
    resolved_at Nullable(DateTime64(3, 'UTC')),
    drill Bool COMMENT 'A fire drill: of a cluster of its own'
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(window_end)
ORDER BY (cluster, incident_id, window_end, at)
TTL window_end + INTERVAL 400 DAY DELETE
COMMENT 'What happened to every incident';

CREATE TABLE IF NOT EXISTS telemetry.silence
(
    silence_id String,
    at DateTime64(3, 'UTC') COMMENT 'When this row was written; the newest per silence counts',
    cluster LowCardinality(String),
    scope LowCardinality(String) COMMENT 'gpu, rack, ib_port, cdu, ib_switch, host, job or all',
    entity_id String COMMENT 'Id or name in that scope; empty with scope all',
    detector LowCardinality(String) COMMENT 'Empty for all detectors',
    starts_at DateTime64(3, 'UTC'),
    ends_at DateTime64(3, 'UTC') COMMENT 'Moved to now when the silence is lifted',
    reason String,
    by String
)
ENGINE = MergeTree
ORDER BY (cluster, silence_id, at)
COMMENT 'Maintenance: nothing opens and nothing is learnt inside it';

CREATE VIEW IF NOT EXISTS telemetry.incident AS
SELECT
    t.cluster AS cluster,
    t.incident_id AS id,
    if(t.transition = 'resolved', 'resolved', 'open') AS state,
    t.detector AS detector,
    t.entity_kind AS entity_kind,
    t.entity_id AS entity_id,
    t.entity_name AS entity_name,
    t.location AS location,
    t.severity AS severity,
    t.cause AS cause,
    t.cause_confidence AS cause_confidence,
    t.summary AS summary,
    t.evidence AS evidence,
    t.peers AS peers,
    t.suggested_action AS suggested_action,
    t.members AS members,
    t.model_version AS model_version,
    t.score AS score,
    t.opened_at AS opened_at,
    t.resolved_at AS resolved_at,
    t.at AS updated_at,
    t.window_end AS window_end,
    t.drill AS drill
FROM telemetry.incident_transition AS t
INNER JOIN
(
    SELECT incident_id, max((window_end, at)) AS newest
    FROM telemetry.incident_transition
    GROUP BY incident_id
) AS n ON t.incident_id = n.incident_id AND (t.window_end, t.at) = n.newest;

CREATE VIEW IF NOT EXISTS telemetry.silence_now AS
SELECT
    silence_id,
    argMax(cluster, at) AS cluster,
    argMax(scope, at) AS scope,
    argMax(entity_id, at) AS entity_id,
    argMax(detector, at) AS detector,
    argMax(starts_at, at) AS starts_at,
    argMax(ends_at, at) AS ends_at,
    argMax(reason, at) AS reason,
    argMax(by, at) AS by
FROM telemetry.silence AS s
GROUP BY silence_id;
