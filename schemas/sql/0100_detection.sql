-- Detection: registry, runs, scores and findings. Everything is keyed by window_end, a whole
-- minute: the window is [window_end - 1 minute, window_end). Rows are written once per key; a
-- repeat after a crash gives the same key, which ReplacingMergeTree folds (read with FINAL).

CREATE TABLE IF NOT EXISTS telemetry.model_version
(
    detector LowCardinality(String) COMMENT 'Detector id, the folder in models/',
    version String COMMENT 'Time of training and the first digits of the hash of the bytes',
    created_at DateTime64(3, 'UTC') COMMENT 'When it was trained',
    trained_from DateTime('UTC') COMMENT 'Start of the training window',
    trained_until DateTime('UTC') COMMENT 'End of the training window',
    artefact String COMMENT 'Forests as skops files and numbers as JSON, one zip file, in base64',
    sha256 FixedString(64) COMMENT 'SHA-256 of the zip file',
    spec_sha256 FixedString(64) COMMENT 'SHA-256 of detector.toml and features.sql',
    contract_sha256 FixedString(64) COMMENT 'Hash of the contracts of the streams that it reads',
    libraries String COMMENT 'Versions of the libraries that made it, JSON',
    metrics String COMMENT 'What training measured, JSON',
    thresholds String COMMENT 'Decision settings, JSON',
    data_sha256 String COMMENT 'Hash of the training feature rows: evaluation refuses overlap'
)
ENGINE = ReplacingMergeTree
ORDER BY (detector, version)
COMMENT 'Registry of trained detectors';

CREATE TABLE IF NOT EXISTS telemetry.model_transition
(
    detector LowCardinality(String),
    version String,
    state LowCardinality(String) COMMENT 'candidate, shadow, live or retired',
    at DateTime64(6, 'UTC'),
    by LowCardinality(String) COMMENT 'train, gates, operator or rollback',
    reason String COMMENT 'Why, such as the gates that failed'
)
ENGINE = MergeTree
ORDER BY (detector, at, version)
COMMENT 'State changes of trained detectors; the newest per version counts';

CREATE TABLE IF NOT EXISTS telemetry.score_run
(
    cluster LowCardinality(String),
    detector LowCardinality(String),
    window_end DateTime('UTC'),
    model_version String,
    scored_at DateTime64(3, 'UTC'),
    entities UInt32 COMMENT 'Entities that were seen',
    verdicts UInt32 COMMENT 'Entities with a verdict',
    no_peers UInt32 COMMENT 'Entities without a verdict for want of peers',
    not_fit UInt32 COMMENT 'Entities without a verdict: stale, frozen, incomplete or unsettled',
    candidates UInt32 COMMENT 'Entities whose window passed the test over the fleet',
    findings UInt32 COMMENT 'Findings written',
    took_ms UInt32
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(window_end)
ORDER BY (cluster, detector, window_end)
TTL window_end + INTERVAL 180 DAY DELETE
COMMENT 'One scoring run of one detector over one window; written last, so its row means done';

CREATE TABLE IF NOT EXISTS telemetry.detector_score
(
    cluster LowCardinality(String),
    detector LowCardinality(String),
    window_end DateTime('UTC'),
    entity_id String,
    model_version LowCardinality(String),
    verdict Bool COMMENT 'False: not fit or no peers',
    p_value Float64 COMMENT 'Smallest conformal p-value of the window over families, corrected',
    p_long Float64 COMMENT 'The same for the long window',
    effect Float32 COMMENT 'Largest effect in the bad direction, in units of the smallest that matters',
    family LowCardinality(String) COMMENT 'Feature family with the smallest p-value',
    level UInt8 COMMENT '0 none, 1 enough to hold an incident open, 2 weak, 3 strong evidence'
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(window_end)
ORDER BY (cluster, detector, window_end, entity_id)
TTL window_end + INTERVAL 7 DAY DELETE
COMMENT 'Score of every entity in every window';

CREATE TABLE IF NOT EXISTS telemetry.finding
(
    cluster LowCardinality(String),
    detector LowCardinality(String),
    window_end DateTime('UTC'),
    entity_kind LowCardinality(String),
    entity_id String,
    entity_name String,
    kind LowCardinality(String) COMMENT 'anomaly, rule or telemetry_lost',
    raises Bool COMMENT 'Persistent enough to open an incident',
    level UInt8 COMMENT 'Evidence of this window, as in detector_score',
    severity LowCardinality(String),
    cause LowCardinality(String),
    cause_confidence Float32,
    summary String,
    location String COMMENT 'JSON object: rack, tray, slot, rail, leaf, cdu, host, job, peer',
    evidence String COMMENT 'JSON array of feature, value, peer_median, unit, direction, minutes, z',
    peers String COMMENT 'JSON object: group, size',
    features String COMMENT 'JSON object: the whole feature row, so that the verdict can be replayed',
    suggested_action String,
    p_value Float64,
    score Float64 COMMENT '-log10 of the p-value',
    effect Float32,
    first_window DateTime('UTC') COMMENT 'First window of this run of evidence',
    model_version String
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(window_end)
ORDER BY (cluster, detector, window_end, entity_kind, entity_id)
TTL window_end + INTERVAL 180 DAY DELETE
COMMENT 'Entities with persistent evidence in a window: what incidents are made of';

CREATE VIEW IF NOT EXISTS telemetry.detector_model AS
SELECT
    m.detector AS detector,
    m.version AS version,
    t.state AS state,
    t.since AS since,
    t.reason AS reason,
    m.created_at AS created_at,
    m.trained_from AS trained_from,
    m.trained_until AS trained_until,
    m.sha256 AS sha256,
    m.metrics AS metrics
FROM
(
    SELECT * EXCEPT (artefact) FROM telemetry.model_version FINAL
) AS m
INNER JOIN
(
    SELECT detector, version, argMax(state, at) AS state, max(at) AS since, argMax(reason, at) AS reason
    FROM telemetry.model_transition
    GROUP BY detector, version
) AS t ON m.detector = t.detector AND m.version = t.version;
