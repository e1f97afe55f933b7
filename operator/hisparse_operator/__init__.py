"""The operator: observe (reads) -> reconcile (pure) -> apply (the only writer)."""
