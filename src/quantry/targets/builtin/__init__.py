"""The built-in targets, one file per vendor's stack."""
