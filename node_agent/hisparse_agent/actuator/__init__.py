"""The privileged half of the node agent: a closed list of verbs with bounds in code, and no way to the cluster.

`nvml_power` runs in a child process of its own, so nothing is imported here.
"""
