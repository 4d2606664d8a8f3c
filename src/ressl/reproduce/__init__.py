"""The ledger of measured results."""
