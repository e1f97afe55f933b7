"""What reads the node, one module for each source. Nothing here judges."""
