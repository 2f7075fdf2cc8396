"""Files generated from the code: the reference, the runbook, dashboards, alert rules, Kafka ACLs and the SBOM."""
