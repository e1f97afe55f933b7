"""The judge of the node agent: a reading, those before it and a ledger give findings. Pure: no I/O and no clock."""
