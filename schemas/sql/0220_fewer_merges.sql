-- Tables that an earlier version made: fewer and larger merges, as in new tables.

ALTER TABLE telemetry.gpu MODIFY SETTING min_parts_to_merge_at_once = 50;

ALTER TABLE telemetry.nvlink MODIFY SETTING min_parts_to_merge_at_once = 50;

ALTER TABLE telemetry.ib_port MODIFY SETTING min_parts_to_merge_at_once = 50;

ALTER TABLE telemetry.coolant MODIFY SETTING min_parts_to_merge_at_once = 50;

ALTER TABLE telemetry.component MODIFY SETTING min_parts_to_merge_at_once = 50;

ALTER TABLE telemetry.event MODIFY SETTING min_parts_to_merge_at_once = 50;
