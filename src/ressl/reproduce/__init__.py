"""The paper's tables and figures, and the ledger of measured results."""
