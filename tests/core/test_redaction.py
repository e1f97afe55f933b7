"""No secret in a text that is shown, no sentence of our own spoiled, and one line where one is meant."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hisparse.redaction import _CUT, HIDDEN, PLAIN, Redaction, names_a_secret, one_line, printable
from hisparse.signatures import SIGNATURES

SECRET_NAMES = (
    "HF_TOKEN",
    "OPENAI_API_KEY",
    "DB_PASSWORD",
    "client_secret",
    "AWS_SECRET_ACCESS_KEY",
    "WANDB_KEY",
    "PGPASSWD",
)
SECRET_FLAGS = ("--api-key", "--hf-token", "--ssl-password", "--api_key")
# what a key may be made of: the marks that quoting changes are among it
VALUES = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x17F, exclude_characters="\x7f"), min_size=8, max_size=40
)
FORMS = st.one_of(
    st.from_regex(r"hf_[A-Za-z0-9]{8,34}", fullmatch=True),
    st.from_regex(r"sk-[A-Za-z0-9_-]{8,40}", fullmatch=True),
    st.from_regex(r"gh[ps]_[A-Za-z0-9]{20,36}", fullmatch=True),
    st.from_regex(r"github_pat_[A-Za-z0-9]{20,36}", fullmatch=True),
    st.from_regex(r"AKIA[A-Z0-9]{16}", fullmatch=True),
    st.from_regex(r"nvapi-[A-Za-z0-9_-]{20,36}", fullmatch=True),
    st.from_regex(r"eyJ[A-Za-z0-9_-]{10,20}\.[A-Za-z0-9_-]{10,20}\.[A-Za-z0-9_-]{10,20}", fullmatch=True),
)
PROSE = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\\\"'"), max_size=30)
QUOTINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: value,
    "Go or JSON": json.dumps,
    "JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON in JSON": lambda value: json.dumps(json.dumps(value)),
    "Python": repr,
    "a URL": lambda value: quote(value, safe=""),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
}


def by_env(name: str, value: str) -> dict[str, Any]:
    return {"engine": {"env": [{"name": name, "value": value}]}}


def by_sidecar(name: str, value: str) -> dict[str, Any]:
    return {"podTemplate": {"sidecars": [{"name": "x", "env": [{"name": name, "value": value}]}]}}


def specs(value: str) -> list[dict[str, Any]]:
    """Every place of a spec in which a secret is one."""
    return [
        *(by_env(name, value) for name in SECRET_NAMES),
        by_sidecar("TOKEN", value),
        *({"engine": {"args": [flag, value]}} for flag in SECRET_FLAGS),
        *({"engine": {"args": [f"{flag}={value}"]}} for flag in SECRET_FLAGS),
        {"engine": {"args": [f"--api-key {value}"]}},
        {"engine": {"args": ["--api-key", "first-key-of-two", value, "--seed", "1"]}},
        {"podTemplate": {"annotations": {"example.com/push-token": value}}},
        {"podTemplate": {"sidecars": [{"name": "x", "args": ["--password", value]}]}},
    ]


@given(VALUES.filter(lambda value: not value.startswith("-")), PROSE, PROSE)
@example("a\"quoted'\\key", "", "")
@example("10000000", "memory ", " is too much")
def test_what_the_spec_keeps_secret_is_in_no_text_however_it_is_quoted(value: str, before: str, after: str) -> None:
    for spec in specs(value):
        redaction = Redaction.of_spec(spec)
        for name, quoted in QUOTINGS.items():
            shown = redaction.over(f"{before}{quoted(value)}{after}")
            assert value not in shown, (spec, name)
            inner = quoted(value).strip("\"'").rstrip("=")
            assert inner not in shown, (spec, name)


@given(VALUES, st.data())
def test_of_a_value_that_was_cut_too_little_is_left_to_be_of_use(value: str, data: st.DataObject) -> None:
    text = f"= {value} ="
    redaction = Redaction.of_spec(by_env("HF_TOKEN", value))
    end = data.draw(st.integers(0, len(text)))
    for cut in (text[:end], text[end:]):
        shown = redaction.over(cut)
        for start in range(len(value) - _CUT):
            assert value[start : start + _CUT + 1] not in shown.replace(HIDDEN, "\n") or len(cut) < _CUT


@pytest.mark.parametrize(
    "text",
    [
        "token is {}",
        "INFO non-default args: {{'model': 'm', 'api_key': ['{}']}}",
        "INFO non-default args: {{'api_key': ['abc', '{}'], 'seed': 0}}",
        "Authorization: Bearer {}",
        '"Authorization": "Bearer {}"',
        "https://user:{}@mirror.example.com/models: 401",
        "https://{}@mirror.example.com/models: 401",
        "GET https://s3.example.com/w?X-Amz-Signature={}&x=1",
        'Invalid value: "{}"',
    ],
)
@given(secret=FORMS)
def test_what_has_the_form_of_a_key_is_hidden_although_nobody_knows_it(text: str, secret: str) -> None:
    assert secret not in PLAIN.over(text.format(secret))
    assert secret not in PLAIN.over(json.dumps({"message": text.format(secret)}))


@pytest.mark.parametrize(
    "text",
    [
        "INFO args: {{'api_key': ['{}']}}",
        "INFO args: {{'api_key': '{}', 'x': 1}}",
        'config: {{"db_password": "{}"}}',
        'Status {{\\"message\\": \\"api_key: \\\\\\"{}\\\\\\"\\"}}',
        "--api-key {}",
        "--hf-token={}",
        "HF_TOKEN={} vllm serve",
        "Authorization: Basic {}",
        "proxy http://{}@proxy:3128 refused",
    ],
)
@given(
    secret=st.from_regex(r"[A-Za-z0-9]{4,20}", fullmatch=True).filter(
        lambda one: one.lower() not in ("true", "none", "null", "auto", "false", "default")
    )
)
def test_what_is_given_to_the_name_of_a_secret_is_hidden(text: str, secret: str) -> None:
    shown = PLAIN.over(text.format(secret))
    assert HIDDEN in shown
    assert shown == text.format(HIDDEN)


def test_a_private_key_goes_whole_even_if_it_was_cut() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"
    assert PLAIN.over(f"a {key} b") == f"a {HIDDEN} b"
    assert PLAIN.over(f"a {key[:45]}") == f"a {HIDDEN}"


def test_each_line_of_a_secret_with_several_is_hidden() -> None:
    redaction = Redaction.of_spec(by_env("TLS_KEY", "first line of it\nsecond line of it\n"))
    assert redaction.over("read: second line of it") == f"read: {HIDDEN}"


def test_a_number_by_mistake_is_a_value_too() -> None:
    redaction = Redaction.of_spec({"engine": {"env": [{"name": "PASSWORD", "value": 12345678}]}})
    assert redaction.over("got &valueUnstructured{Value:12345678}") == f"got &valueUnstructured{{Value:{HIDDEN}}}"


@pytest.mark.parametrize(
    "name",
    [
        *SECRET_NAMES,
        *SECRET_FLAGS,
        "apiKey",
        "hfToken",
        "AUTH",
        "x-api-key",
        "token",
        "password",
        "DB_PASS",
        "PASS",
        "--pass",
        "API_KEYS",
        "APP_SECRETS",
        "SESSION_COOKIE",
        "SLACK_WEBHOOK_URL",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert names_a_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZER_MODE", "--bypass", "passes", "--compass", "--max-num-batched-tokens", "max_tokens", "bos_token_id", "--ssl-keyfile", "KEYBOARD", "key",
        "VLLM_CACHE_ROOT", "tokenSecret.name", "num_tokens", "VLLM_API_KEY_FILE", "pattern", "path", "author", "cache_key",
    ],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not names_a_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{one.cause}; {one.next_step}" for one in SIGNATURES),
        'spec.model.huggingFace.tokenSecret.key: "a b" is not a key of a Secret; write letters',
        'glm-abc: CreateContainerConfigError: secret "hf-token" not found',
        "couldn't find key token in Secret team/hf-token",
        "spec.context.maxTokens: 9000000 is above 8388608, the most that this model has positions for",
        "To serve at least one request with the model's max seq len (1048576), 12.5 GiB KV cache is needed",
        "Revision a1b2c3d4e5 (number 3): HiSparse, 704.0 GiB weights, pool 1.2 TiB.",
        "vllm serve m --max-num-batched-tokens 8192 --max-model-len 65536",
        "0/7 nodes are available: 7 Insufficient nvidia.com/gpu.",
        "http://llama.serving.svc:8000/v1/models",
        'Back-off pulling image "registry.example.com/a/b@sha256:0123456789abcdef"',
        "token: the Secret does not exist",
        'spec.engine.args[0]: "--hf-token" is set by the operator; set model.huggingFace.tokenSecret',
        "--api-key is set by the operator",
        "the tokens: 12345a are not many",
    ],
)
def test_sentences_of_ours_and_of_clusters_stay_as_they_are(text: str) -> None:
    assert PLAIN.over(text) == text
    redaction = Redaction.of_spec(by_env("TOKENIZER_MODE", "auto") | {"model": {"servedName": "model"}})
    assert redaction.over(text) == text


@pytest.mark.parametrize("value", ["", "1", "abc", "true", "None", "$(HF_TOKEN)", HIDDEN])
def test_what_is_no_secret_hides_nothing(value: str) -> None:
    assert Redaction.of_spec(by_env("HF_TOKEN", value)) == PLAIN


@pytest.mark.parametrize(
    "spec", [None, [], "x", {"engine": []}, {"engine": {"env": "x", "args": {}}}, {"podTemplate": {"sidecars": [1]}}]
)
def test_a_spec_that_is_wrong_is_read_as_far_as_it_goes(spec: Any) -> None:
    assert Redaction.of_spec(spec) == PLAIN


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(["name", "value", "env", "args", "x"]), part)
    ),
    max_leaves=8,
)


@given(JSON, JSON, st.text(max_size=20))
def test_no_spec_is_so_wrong_that_nothing_can_be_said(engine: Any, template: Any, text: str) -> None:
    redaction = Redaction.of_spec({"engine": engine, "podTemplate": {"sidecars": [template], "annotations": engine}})
    assert isinstance(redaction.over(text), str)


@given(st.text(max_size=80), VALUES)
@example("token=a)[hidden]b", "xxxxxxxx")
@example("password='hf_aaaaaaaa!rest'", "xxxxxxxx")
def test_what_is_redacted_stays_as_it_is(text: str, value: str) -> None:
    redaction = Redaction.of_spec(by_env("HF_TOKEN", value))
    once = redaction.over(text)
    assert redaction.over(once) == once


@given(st.text(max_size=60))
@example("a\x1b[31mred\x1b[0m\x07\u202eb\ud800")
def test_one_line_is_one_line_and_moves_no_cursor(text: str) -> None:
    shown = one_line(text)
    assert not {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert shown.encode() or not shown
    assert one_line(shown) == shown
    assert not set(printable(text)) & set("\x1b\r\x00\x7f\u202e")


def test_lines_keep_their_ends_and_lose_their_colours() -> None:
    assert printable("a\x1b[1;31mb\x1b[0m\n\tc\x08") == "ab\n\tc\\x08"
    assert one_line("a\n  b\r\nc") == "a b c"
