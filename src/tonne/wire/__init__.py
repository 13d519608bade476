"""Bytes to values and back, pure: OCI documents, the index's root and pages, packs."""
