"""Health of a node: what is checked, what was found, what may be mended. Shared by agent, operator and command."""
