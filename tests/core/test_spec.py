import datetime as dt
from typing import Any

import pytest
from bad_input import FULL_SPEC, GOOD, SMALLEST, patched
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from hisparse.errors import HiSparseError, SpecError, SpecErrors, Transient
from hisparse.nodes.policy import HiSparseNodePolicySpec
from hisparse.reserved import RESERVED, RESERVED_ENV, check_argument, full_flag
from hisparse.rules import Strict
from hisparse.spec import (
    ContextSpec,
    HiSparseInferenceSpec,
    HostPool,
    KvCacheDtype,
    KvTierSpec,
    ModelSpec,
    PvcSource,
    ResourcesSpec,
    TierMode,
    parse_manifest,
    parse_spec,
)
from hisparse.status import HiSparseInferenceStatus, ModeStatus

SPEC: dict[str, Any] = SMALLEST["spec"]


def told(patch: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(SpecErrors) as caught:
        parse_spec(patched(SPEC, patch))
    return [(error.field, error.message) for error in caught.value.errors]


def test_what_is_not_written_stays_absent() -> None:
    spec = parse_spec(SPEC)
    assert spec.kv_tier is None
    assert spec.parallelism is None
    assert spec.model_dump(mode="json", by_alias=True, exclude_none=True) == SPEC | {"replicas": 1}


def test_only_what_shapes_no_pod_has_a_default_in_the_schema() -> None:
    """It is written into every object: the scale subresource needs one, and a policy must not act by omission."""

    def defaults(block: type[BaseModel]) -> list[str]:
        return [
            name for name, field in block.model_fields.items() if not field.is_required() and field.default is not None
        ]

    blocks: list[type[BaseModel]] = [HiSparseInferenceSpec, HiSparseNodePolicySpec, *Strict.__subclasses__()]
    assert {name for block in blocks for name in defaults(block)} == {"replicas", "dry_run"}


def test_words_become_enums_and_numbers_quantities() -> None:
    spec = parse_spec(
        patched(SPEC, {"kvTier": {"mode": "None"}, "context": {"kvCacheDtype": "Fp8"}, "resources": {"cpu": 16}})
    )
    assert spec.kv_tier is not None
    assert spec.kv_tier.mode is TierMode.NONE
    assert spec.context.kv_cache_dtype is KvCacheDtype.FP8
    assert spec.resources.cpu == "16"


def test_python_builds_the_same_object_by_its_own_names() -> None:
    built = HiSparseInferenceSpec(
        model=ModelSpec(pvc=PvcSource(claim_name="weights")),
        context=ContextSpec(max_tokens=4096),
        resources=ResourcesSpec(gpus=1),
        kv_tier=KvTierSpec(mode=TierMode.HISPARSE, host_pool=HostPool(size="200Gi")),
    )
    assert parse_spec(built.model_dump(mode="json", by_alias=True, exclude_none=True)) == built


def test_python_is_judged_by_the_same_rules() -> None:
    with pytest.raises(ValidationError, match="keep one form"):
        HostPool(size="200Gi", for_requests=2, at_tokens=4096)


def test_a_spec_does_not_change() -> None:
    spec = parse_spec(SPEC)
    with pytest.raises(ValidationError, match="frozen"):
        spec.replicas = 2  # type: ignore[misc]


def test_every_fault_is_told_at_once() -> None:
    """Faults of fields and of whole blocks come together, those of a block only where its own fields are sound."""
    faults = told(
        {
            "context": {"typicalTokens": 2**22, "maxConcurrentRequests": 0},
            "engine": {"args": ["--seed 1", "--max-model-len=1", "--swap-space=1"]},
            "kvTier": {"mode": "Offload", "hiSparse": {"deviceBufferTokens": 1}},
            "parallelism": {"tensor": 2},
        }
    )
    assert [field for field, _ in faults] == [
        "spec.context.maxConcurrentRequests",
        "spec.kvTier.hiSparse.deviceBufferTokens",
        "spec.engine.args[0]",
        "spec.engine.args[1]",
        "spec.engine.args[2]",
        "spec.context.typicalTokens",
        "spec.kvTier.hiSparse",
        "spec.parallelism",
    ]


def test_no_fault_speaks_of_a_field_that_is_itself_at_fault() -> None:
    assert [field for field, _ in told({"parallelism": {"tensor": 0}})] == ["spec.parallelism.tensor"]
    assert [field for field, _ in told({"kvTier": {"hostPool": {"forRequests": 0, "atTokens": 4}}})] == [
        "spec.kvTier.hostPool.forRequests"
    ]
    assert [field for field, _ in told({"engine": {"args": ["--port=1", "x"]}})] == ["spec.engine.args[0]"]


@pytest.mark.parametrize(
    ("patch", "field", "message"),
    [
        pytest.param(
            {"kvTear": {}},
            "spec.kvTear",
            'unknown field; did you mean "kvTier"?',
            id="an unknown block names the near one",
        ),
        pytest.param(
            {"context": {"maxtokens": 1}},
            "spec.context.maxtokens",
            'unknown field; did you mean "maxTokens"?',
            id="capitals count",
        ),
        pytest.param(
            {"context": {"max_tokens": 1}},
            "spec.context.max_tokens",
            'unknown field; did you mean "maxTokens"?',
            id="Python's own names are no field names",
        ),
        pytest.param({"zzz": 1}, "spec.zzz", "unknown field", id="nothing near is suggested where nothing is near"),
        pytest.param(
            {"kvTier": {"mode": "hisparse"}},
            "spec.kvTier.mode",
            '"hisparse" is not known; set one of Auto, HiSparse, Offload, None; did you mean "HiSparse"?',
            id="a word names the near one",
        ),
        pytest.param(
            {"resources": {"gpus": "8"}},
            "spec.resources.gpus",
            '"8" is not a whole number; write digits without quotes, as in 8',
            id="quotes",
        ),
        pytest.param(
            {"resources": {"gpus": True}},
            "spec.resources.gpus",
            "true is not a whole number; write digits without quotes, as in 8",
            id="true is no number",
        ),
        pytest.param(
            {"engine": {"version": 0.33}},
            "spec.engine.version",
            '0.33 is not text; put it in quotes, as in "0.33"',
            id="a version that YAML reads as a number",
        ),
        pytest.param(
            {"resources": {"memory": True}},
            "spec.resources.memory",
            'true is not text; put it in quotes, as in "0.33"',
            id="a quantity is told once, not once for each of its two types",
        ),
        pytest.param(
            {"engine": {"args": "--seed=1"}},
            "spec.engine.args",
            '"--seed=1" is not a list; start each item with a dash',
            id="text in place of a list",
        ),
        pytest.param(
            {"kvTier": "HiSparse"},
            "spec.kvTier",
            '"HiSparse" is not a block of fields; indent its fields below it',
            id="text in place of a block",
        ),
        pytest.param(
            {"restartToken": dt.date(2026, 11, 29)},
            "",
            "",
            id="a bare YAML date is the text that it looks like",
        ),
    ],
)
def test_what_the_types_refuse_is_told_in_our_words(patch: dict[str, Any], field: str, message: str) -> None:
    if field:
        assert told(patch) == [(field, message)]
    else:
        assert parse_spec(patched(SPEC, patch)).restart_token == "2026-11-29"  # noqa: S105  no secret


def test_a_missing_field_says_what_it_is_for() -> None:
    assert told({"context": {"maxTokens": None}}) == [
        (
            "spec.context.maxTokens",
            "is needed and not set; set it (longest request in tokens, prompt and answer together)",
        )
    ]


def test_a_missing_block_says_what_it_needs() -> None:
    assert told({"context": None, "model": None, "resources": None}) == [
        ("spec.model", "is needed and not set; set it (what is served)"),
        (
            "spec.context",
            "is needed and not set; set its maxTokens (longest request in tokens, prompt and answer together)",
        ),
        (
            "spec.resources",
            "is needed and not set; set its gpus (GPUs of one replica; a replica is one pod on one node)",
        ),
    ]


def test_a_whole_float_is_a_whole_number() -> None:
    """kubectl makes 1000000 of 1e6 and 8 of 8.0; a file that is read here has not gone through it."""
    floats = {
        "context": {"maxTokens": 1e6, "typicalTokens": 131072.0},
        "resources": {"gpus": 8.0, "cpu": 16.0, "memory": 1e12},
        "kvTier": {"mode": "HiSparse", "hostPool": {"size": 4e11}, "hiSparse": {"deviceBufferTokens": 4096.0}},
        "replicas": 2.0,
        "model": {"facts": {"weights": 7e11, "parameterCount": 753e9}},
    }
    spec = parse_spec(patched(SPEC, floats))
    assert (spec.context.max_tokens, spec.context.typical_tokens, spec.replicas) == (1_000_000, 131_072, 2)
    assert (spec.resources.gpus, spec.resources.cpu, spec.resources.memory) == (8, "16", "1000000000000")
    assert spec.kv_tier is not None
    assert spec.kv_tier.host_pool is not None
    assert spec.kv_tier.host_pool.size == "400000000000"
    assert spec.model.facts is not None
    assert (spec.model.facts.weights, spec.model.facts.parameter_count) == ("700000000000", 753_000_000_000)


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"resources": {"gpus": 8.5}}, "spec.resources.gpus"),
        ({"context": {"maxTokens": 1e300}}, "spec.context.maxTokens"),
        ({"resources": {"gpus": float("inf")}}, "spec.resources.gpus"),
        ({"engine": {"version": 1.0}}, "spec.engine.version"),
        ({"planOnly": 1.0}, "spec.planOnly"),
        ({"resources": {"cpu": 0.5}}, "spec.resources.cpu"),
    ],
)
def test_other_floats_are_refused(patch: dict[str, Any], field: str) -> None:
    assert [one for one, _ in told(patch)] == [field]


def test_floats_of_what_is_passed_on_stay_floats() -> None:
    free = {
        "model": {"config": {"architectures": ["A"], "rope_theta": 10000.0, "dropout": 0.0}},
        "podTemplate": {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": 1.0}}]},
    }
    spec = parse_spec(patched(SPEC, free))
    assert spec.model.config is not None
    assert isinstance(spec.model.config["rope_theta"], float)
    assert spec.pod_template is not None
    assert isinstance((spec.pod_template.volumes or [])[0]["emptyDir"]["sizeLimit"], float)


def test_a_written_null_is_no_value_and_a_default_fills_it() -> None:
    raw = {**SPEC, "kvTier": None, "replicas": None, "context": {"maxTokens": None}}
    with pytest.raises(SpecErrors) as caught:
        parse_spec(raw)
    assert [(error.field, error.message) for error in caught.value.errors] == [
        ("spec.context.maxTokens", "null is no value; remove the line, or write one"),
        ("spec.kvTier", "null is no value; remove the line, or write one"),
    ]
    assert parse_spec({**SPEC, "replicas": None}).replicas == 1


def test_a_manifest_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match='kind: "Deployment" is not what this release reads; set HiSparseInference'):
        parse_manifest({**SMALLEST, "kind": "Deployment"})
    with pytest.raises(SpecError, match="apiVersion: "):
        parse_manifest({**SMALLEST, "apiVersion": "inference.hisparse.dev/v1"})
    with pytest.raises(SpecError, match="spec: is needed"):
        parse_manifest({**SMALLEST, "spec": None})


def test_one_handler_serves_one_fault_and_many() -> None:
    one, two = SpecError("spec.a", "is wrong; mend it"), SpecError("spec.b", "too")
    many = SpecErrors([one, two])
    assert str(one) == "spec.a: is wrong; mend it"
    assert one.errors == (one,)
    assert many.errors == (one, two)
    assert (many.field, many.message) == ("spec.a", "is wrong; mend it")
    assert str(many) == "spec.a: is wrong; mend it\nspec.b: too"
    assert SpecErrors([many, one]).errors == (one, two, one)
    with pytest.raises(ValueError, match="at least one"):
        SpecErrors([])


def test_what_may_succeed_later_says_when() -> None:
    error = Transient("the API server is away", retry_seconds=3)
    assert isinstance(error, HiSparseError)
    assert error.retry_seconds == 3


@pytest.mark.parametrize("entry", RESERVED, ids=lambda entry: entry.flag)
def test_a_reserved_flag_is_caught_in_every_spelling(entry: Any) -> None:
    for spelling in (entry.flag, f"{entry.flag}=1", f"{entry.flag}.key=1"):
        refused = check_argument(spelling)
        assert refused is not None
        assert entry.message in refused
    if entry.flag.startswith("--"):
        underscored = f"--{entry.flag[2:].replace('-', '_')}=1"
        assert check_argument(underscored) == check_argument(entry.flag)


@pytest.mark.parametrize(
    "argument",
    [
        "--seed=1",
        "--kv-cache-dtype-skip-layers=0",
        "--kv-cache-metrics",
        "--kv-cache-metrics-sample=0.1",
        "--attention-backend=FLASHMLA_SPARSE",
        "--enforce-eager",
        "--load-format=dummy",
        "--tokenizer-mode=auto",
        "--max-logprobs=5",
        "--max-num-queued-reqs=8",
        "--enable-prefix-caching",
        "--model-loader-extra-config={}",
        "-O3",
        "fp8",
        "{}",
        "",
    ],
)
def test_other_arguments_pass(argument: str) -> None:
    assert check_argument(argument) is None


@pytest.mark.parametrize(
    ("short", "flag"), [("--max-model", "--max-model-len"), ("--gpu-mem", "--gpu-memory-utilization")]
)
def test_an_abbreviation_is_what_the_parser_completes(short: str, flag: str) -> None:
    assert full_flag(short) == flag
    assert flag in (check_argument(f"{short}=1") or "")


def test_every_reserved_message_names_a_next_step() -> None:
    steps = ("set ", "Set ", "remove it", "use ")
    for name, message in {**{entry.flag: entry.message for entry in RESERVED}, **RESERVED_ENV}.items():
        assert any(step in message for step in steps), name


def test_status_keeps_what_is_known_and_drops_the_rest() -> None:
    status = HiSparseInferenceStatus(observed_generation=3, mode=ModeStatus(effective="None", reason="it fits"))
    dumped = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert dumped == {"observedGeneration": 3, "mode": {"effective": "None", "reason": "it fits"}}
    assert HiSparseInferenceStatus.model_validate(dumped | {"future": 1}) == status


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, inner in below for one in paths(inner, (*path, key)))]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), junk=JSON)
def test_any_junk_in_any_place_is_a_spec_or_told_below_spec(data: st.DataObject, junk: Any) -> None:
    """Nothing but SpecErrors comes out, each with a path and a message that ends in words, not in a traceback."""
    raw = patched({}, FULL_SPEC)
    path = data.draw(st.sampled_from(paths(raw)[1:]))
    at: Any = raw
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = junk
    try:
        parse_spec(raw)
    except SpecErrors as errors:
        for error in errors.errors:
            assert error.field.startswith("spec.")
            assert error.message
            assert "Input should" not in error.message


@pytest.mark.parametrize("manifest", [pytest.param(one, id=name) for name, one in GOOD.items()])
def test_a_good_manifest_has_a_good_name(manifest: dict[str, Any]) -> None:
    assert parse_manifest(manifest).model.served_name in (None, "glm-5.3")
