"""Every mistake of the table is told in the same words by Python and by a real API server."""

import copy
import http.client
import json
import urllib.parse
from typing import Any

import pytest
from bad_input import BAD_INPUT, FULL_SPEC, GOOD, SMALLEST, BadInput, patched
from installed import install_crd

from hisparse.errors import SpecErrors
from hisparse.spec import PLURAL, HiSparseInferenceSpec, parse_manifest
from hisparse_testenv.api import Api, ApiError
from hisparse_testenv.shared import Cluster

APPLY = "application/apply-patch+yaml"
# server-side apply answers 500 for a field of the wrong type, with the field and the type
REFUSALS = (http.client.BAD_REQUEST, http.client.UNPROCESSABLE_ENTITY, http.client.INTERNAL_SERVER_ERROR)

CASES = [pytest.param(case, id=case.id) for case in BAD_INPUT]
REFUSED_BY_PYTHON = [pytest.param(case, id=case.id) for case in BAD_INPUT if case.judged_by != "planner"]


def faults(manifest: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecErrors) as caught:
        parse_manifest(manifest)
    return {error.field: error.message for error in caught.value.errors}


def test_no_two_mistakes_share_a_sentence() -> None:
    assert len({case.id for case in BAD_INPUT}) == len(BAD_INPUT)


@pytest.mark.parametrize("case", REFUSED_BY_PYTHON)
def test_python_names_field_value_and_next_step(case: BadInput) -> None:
    told = faults(case.manifest)
    where = next((field for field in told if field == case.field or field.startswith(f"{case.field}.")), None)
    assert where is not None, told
    for word in case.must_mention:
        assert word in f"{where}: {told[where]}"
    assert len(told) == 1, "one mistake is one message"


@pytest.mark.parametrize("case", [case for case in CASES if case.values[0].judged_by == "planner"])  # type: ignore[union-attr]
def test_what_only_the_plan_knows_is_a_sound_spec(case: BadInput) -> None:
    parse_manifest(case.manifest)


@pytest.mark.parametrize("manifest", [pytest.param(one, id=name) for name, one in GOOD.items()])
def test_a_good_manifest_survives_the_round_trip(manifest: dict[str, Any]) -> None:
    spec = parse_manifest(manifest)
    again = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert HiSparseInferenceSpec.model_validate(spec.model_dump(by_alias=True)) == spec
    assert parse_manifest({**manifest, "spec": again}) == spec


class Server:
    """The API server's judgement of one manifest: what it said, or None where it accepts it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def judge(self, manifest: dict[str, Any]) -> str | None:
        """What `kubectl apply --server-side --dry-run=server` does, without starting a kubectl for each."""
        name = urllib.parse.quote(manifest["metadata"]["name"])
        path = f"/apis/inference.hisparse.dev/v1alpha1/namespaces/{self.namespace}/{PLURAL}/{name}"
        try:
            self.api.request(
                "PATCH", f"{path}?dryRun=All&fieldManager=test&fieldValidation=Strict", manifest, content=APPLY
            )
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            return str(error)
        return None


@pytest.fixture(scope="session")
def server(cluster: Cluster) -> Server:
    install_crd(cluster)
    return Server(cluster.control_plane.api, "default")


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_says_the_same(case: BadInput, server: Server) -> None:
    said = server.judge(case.manifest)
    if case.judged_by in ("operator", "planner"):
        assert said is None
        return
    assert said is not None, "the API server accepted it"
    # a label's key stands in brackets there
    assert case.field.removeprefix("spec.") in said
    if case.judged_by == "rule":
        (message,) = faults(case.manifest).values()
        assert message in said
        assert "evaluating rule" not in said, "a rule failed instead of judging"


@pytest.mark.cluster
@pytest.mark.parametrize("manifest", [pytest.param(one, id=name) for name, one in GOOD.items()])
def test_the_api_server_takes_a_good_manifest(manifest: dict[str, Any], server: Server) -> None:
    assert server.judge(manifest) is None


@pytest.mark.cluster
def test_kubectl_shows_every_mistake_at_once(cluster: Cluster, server: Server) -> None:
    """Several faults of one object come together, from a plain client-side `kubectl apply` too."""
    del server
    wrong = patched(SMALLEST, {"spec": {"resources": {"gpus": 0}, "engine": {"args": ["--port=1", "--swap-space=4"]}}})
    done = cluster.control_plane.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(wrong), check=False)
    assert done.returncode == 1
    assert all(message in done.stderr for message in faults(wrong).values())


@pytest.mark.cluster
def test_a_misspelt_field_is_refused_by_kubectl_and_not_dropped(cluster: Cluster, server: Server) -> None:
    del server
    wrong = patched(SMALLEST, {"spec": {"contxt": {}}})
    done = cluster.control_plane.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(wrong), check=False)
    assert 'unknown field "spec.contxt"' in done.stderr


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, inner in below for one in leaves(inner, (*path, key)))]


JUNK: tuple[Any, ...] = (
    None,
    0,
    -1,
    1,
    7,
    "",
    "x",
    "é b",
    "1Gi",
    "15m",
    True,
    1.5,
    2.0,
    10**12,
    [],
    {},
    ["a"],
    {"a": "b"},
    "a" * 70,
    "-",
)
# all 3,000 agreed when this was written and take 50 s; the step meets every field and every kind of junk
STEP = 11


@pytest.mark.cluster
def test_python_and_the_api_server_refuse_the_same_junk(server: Server) -> None:
    whole = patched(SMALLEST, {"spec": FULL_SPEC})
    pairs = [(path, junk) for path in leaves(whole["spec"])[1:] for junk in JUNK]
    for path, junk in pairs[::STEP]:
        manifest = copy.deepcopy(whole)
        at: Any = manifest["spec"]
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = junk
        try:
            parse_manifest(manifest)
        except SpecErrors:
            accepted = False
        else:
            accepted = True
        assert accepted is (server.judge(manifest) is None), (path, junk)
