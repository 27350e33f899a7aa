-- Versions of the topology, as `rackpulse topology import --store` writes them. A version is
-- written whole: its line in topology_version comes last, so that a half-written one is not seen.
CREATE TABLE IF NOT EXISTS telemetry.topology_version
(
    cluster     LowCardinality(String) COMMENT 'Cluster that the topology is of',
    version     UInt64 COMMENT 'Rises by one per import of the cluster',
    imported_at DateTime64(3, 'UTC') COMMENT 'When it was imported',
    sha256      String COMMENT 'Of the canonical topology file; the same content is not imported twice',
    sources     Array(String) COMMENT 'Names of the sources, the one that counts first',
    racks       UInt32,
    entities    UInt32,
    cables      UInt32,
    contradictions Array(String) COMMENT 'Where sources differed, and whose word was taken'
)
ENGINE = MergeTree
ORDER BY (cluster, version)
COMMENT 'Imports of the topology';

CREATE TABLE IF NOT EXISTS telemetry.topology_entity
(
    cluster LowCardinality(String),
    version UInt64,
    kind    LowCardinality(String) COMMENT 'gpu, grace_cpu, nvswitch, hca, ib_switch, host, manager, cdu, rack, power_shelf',
    id      String COMMENT 'GPU UUID, GUID, host name or manager id',
    name    Nullable(String),
    host    LowCardinality(Nullable(String)),
    rack    LowCardinality(Nullable(String)),
    tray    Nullable(UInt8) COMMENT 'From 1',
    slot    Nullable(UInt8) COMMENT 'From 0',
    rail    Nullable(UInt8) COMMENT 'From 0',
    leaf    LowCardinality(Nullable(String)),
    cdu     LowCardinality(Nullable(String)) COMMENT 'Its own, or the one of its rack',
    level   LowCardinality(Nullable(String)) COMMENT 'hca, leaf or spine',
    links   Nullable(UInt32)
)
ENGINE = MergeTree
ORDER BY (cluster, version, kind, id)
COMMENT 'Entities of each version of the topology';

CREATE TABLE IF NOT EXISTS telemetry.topology_cable
(
    cluster   LowCardinality(String),
    version   UInt64,
    kind      LowCardinality(String) COMMENT 'nvlink, host_leaf or leaf_spine',
    a         String,
    a_port    UInt32,
    b         String,
    b_port    UInt32,
    rate_gbps Nullable(Float32)
)
ENGINE = MergeTree
ORDER BY (cluster, version, a, a_port)
COMMENT 'Cables of each version of the topology';

CREATE OR REPLACE VIEW telemetry.topology AS
SELECT entity.*
FROM telemetry.topology_entity AS entity
INNER JOIN
(
    SELECT cluster, max(version) AS version FROM telemetry.topology_version GROUP BY cluster
) AS newest USING (cluster, version)
COMMENT 'Entities of the newest topology of each cluster';

CREATE OR REPLACE VIEW telemetry.topology_link AS
SELECT cable.*
FROM telemetry.topology_cable AS cable
INNER JOIN
(
    SELECT cluster, max(version) AS version FROM telemetry.topology_version GROUP BY cluster
) AS newest USING (cluster, version)
COMMENT 'Cables of the newest topology of each cluster';
