"""The node agent. It arrives with its own issue; until then this package holds nothing but its place."""
