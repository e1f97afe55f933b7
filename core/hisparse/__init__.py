"""The domain of hisparse: model facts, memory arithmetic, plans, the API. Pure: no I/O, no clock, no logging."""
