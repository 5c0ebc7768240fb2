"""Names that programs import; their homes are in `cantata.flows`."""
