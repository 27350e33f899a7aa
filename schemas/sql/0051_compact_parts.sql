-- Tables that an earlier version made: young parts become compact ones, as in new tables.

ALTER TABLE telemetry.gpu MODIFY SETTING min_bytes_for_wide_part = 268435456;

ALTER TABLE telemetry.nvlink MODIFY SETTING min_bytes_for_wide_part = 268435456;

ALTER TABLE telemetry.ib_port MODIFY SETTING min_bytes_for_wide_part = 268435456;

ALTER TABLE telemetry.coolant MODIFY SETTING min_bytes_for_wide_part = 268435456;

ALTER TABLE telemetry.component MODIFY SETTING min_bytes_for_wide_part = 268435456;

ALTER TABLE telemetry.event MODIFY SETTING min_bytes_for_wide_part = 268435456;
