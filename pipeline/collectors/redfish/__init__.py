"""What is known about Redfish: resource trees, their walk over HTTP, and their rows."""
