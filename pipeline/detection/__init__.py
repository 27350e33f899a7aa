"""Detection: what is abnormal, how sure, and why."""
