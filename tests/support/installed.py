"""The CRD on a cluster of a test."""

import json
import time
from pathlib import Path

from hisparse.spec import GROUP, PLURAL
from hisparse_testenv.shared import Cluster

CRD_FILE = Path(__file__).parents[2] / "crds" / f"{GROUP}_{PLURAL}.yaml"
LIMIT_S = 30


def install_crd(cluster: Cluster) -> None:
    """Apply the CRD and wait until its objects are served; safe for several workers at once."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    deadline = time.monotonic() + LIMIT_S
    # `kubectl wait` fails at once where there is no condition yet, and "Established" is said before paths are served
    while not _served(cluster):
        assert time.monotonic() < deadline, f"{PLURAL} are not served after {LIMIT_S} s"
        time.sleep(0.1)


def _served(cluster: Cluster) -> bool:
    answer = cluster.control_plane.kubectl("get", "--raw", f"/apis/{GROUP}/v1alpha1/{PLURAL}?limit=1", check=False)
    return answer.returncode == 0 and json.loads(answer.stdout)["kind"].endswith("List")
