"""A real Kubernetes control plane on a bare machine, for tests and for the demo.

`tools` builds and caches the binaries, `control_plane` runs them, `simulated` adds GPU nodes that
exist only in the API, `real_node` turns this machine into a node that runs real pods.
"""
