"""Fixtures of the lanes that need a cluster: all workers of a session share one."""

import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hisparse_testenv import real_node, shared
from hisparse_testenv.api import ApiError
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.shared import Cluster, RealCluster

# The suite tries the same examples every time, so that main stays green; HYPOTHESIS_PROFILE=explore looks for new ones.
# No deadline of one example: machines are shared.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=400, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# set by the first process of a session and inherited by the workers of pytest-xdist
OWNER = "HISPARSE_TEST_OWNER"
SIMULATED_NODES = 2
ACCOUNT_LIMIT_S = 20


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):
        os.environ[OWNER] = str(os.getpid())
        shared.sweep()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The first process outlives the workers: it alone stops what they share."""
    if not _is_worker(config):
        shared.end_session(_folder())


def _folder() -> Path:
    return shared.session_folder(int(os.environ[OWNER]))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """A control plane and two simulated servers with eight H200 each."""
    return shared.shared_cluster(_folder(), SIMULATED_NODES, print)


@pytest.fixture(scope="session")
def real_cluster() -> RealCluster:
    """A control plane and this machine as a node that runs real pods."""
    if reason := real_node.why_not():
        pytest.skip(reason)
    return shared.shared_real_cluster(_folder(), print)


@pytest.fixture
def ending_real_cluster(real_cluster: RealCluster) -> RealCluster:
    """The real cluster for a test that stops its node: such tests run after all others."""
    return real_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "ending_real_cluster" in getattr(item, "fixturenames", ()))
    for item in items:
        # one worker starts it, and not each: a control plane costs as much as many tests
        if "private_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("private-cluster"))


def _new_namespace(plane: ControlPlane, test: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:40].strip("-")
    name = f"t-{slug}-{secrets.token_hex(3)}"
    plane.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    # without its default account a namespace takes no pods
    deadline = time.monotonic() + ACCOUNT_LIMIT_S
    while plane.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default") is None:
        assert time.monotonic() < deadline, f"namespace {name}: no default service account came"
        time.sleep(0.02)
    return name


def _temporary_namespace(plane: ControlPlane, test: str) -> Iterator[str]:
    name = _new_namespace(plane, test)
    yield name
    try:
        plane.api.request("DELETE", f"/api/v1/namespaces/{name}")
    except ApiError as error:
        # a test may have deleted its own namespace
        if error.status not in (404, 409):
            raise


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own on the simulated cluster; deleted afterwards, without waiting for it."""
    yield from _temporary_namespace(cluster.control_plane, request.node.name)


@pytest.fixture
def real_namespace(real_cluster: RealCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own on the real node."""
    yield from _temporary_namespace(real_cluster.control_plane, request.node.name)
