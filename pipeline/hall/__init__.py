"""The virtual GPU hall: racks that behave like GB300 NVL72 racks, with labelled faults."""
