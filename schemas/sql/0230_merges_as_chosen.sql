-- Tables that an earlier version made: merges take as many parts as the setting says, as in new
-- tables. ClickHouse left small parts out of a merge that it had chosen with them, so a table's
-- large part was written anew with every single insert.

ALTER TABLE telemetry.gpu MODIFY SETTING min_parts_to_merge_at_once = 100,
    max_parts_to_merge_at_once = 200,
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

ALTER TABLE telemetry.nvlink MODIFY SETTING min_parts_to_merge_at_once = 100,
    max_parts_to_merge_at_once = 200,
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

ALTER TABLE telemetry.ib_port MODIFY SETTING min_parts_to_merge_at_once = 100,
    max_parts_to_merge_at_once = 200,
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

ALTER TABLE telemetry.coolant MODIFY SETTING min_parts_to_merge_at_once = 100,
    max_parts_to_merge_at_once = 200,
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

ALTER TABLE telemetry.component MODIFY SETTING min_parts_to_merge_at_once = 100,
    max_parts_to_merge_at_once = 200,
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

ALTER TABLE telemetry.event MODIFY SETTING min_parts_to_merge_at_once = 100,
    max_parts_to_merge_at_once = 200,
    merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
