"""Pictures and pages from what runs wrote."""
