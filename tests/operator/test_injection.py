"""Strings of a spec that look like something else to somebody: shell, template, kubelet, YAML, log, JSON.

What reaches the engine is the text, byte for byte. $(NAME) and $$ mean in engine.args and env what they mean in a Pod,
and nothing anywhere else.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelet import expanded, started
from simulator import SETTINGS, SmallCluster, dense, node

from hisparse.errors import SpecErrors
from hisparse.spec import parse_spec
from hisparse_engine import plan as launcher_plan
from hisparse_operator.world import Object

ENGINE_IMAGE = Path(__file__).parents[2] / "engine_image"
PROGRAM = 7  # words before the engine's own: hisparse-launch --plan FILE -- vllm serve MODEL
NASTY = (
    "; rm -rf / #",
    "$(id)",
    "`id`",
    "${HOME}",
    "$HOME",
    "$$",
    "$$(HOME)",
    "$(",
    "| cat /etc/passwd",
    "&& true",
    "> /tmp/x",
    "'",
    '"',
    "\\",
    "\n",
    "a\nERROR b",
    "\r\x1b[2J",
    "\t",
    "{{ .Values.x }}",
    "{% if %}",
    "%s %n %(x)s",
    "{0} {name}",
    "*",
    "~",
    "!!python/object/apply:os.system ['id']",
    "- x: &a [*a]",
    "---",
    "--- ",
    "null",
    "yes",
    "0x10",
    "1e3",
    "#",
    "\u202e\u2066",
    "\ufeff",
    "\u2028",
    "\U0001f600",
    "e\u0301",
    "\x7f",
    "",
    "x" * 4096,
)
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60),
    st.lists(st.sampled_from([one for one in NASTY if len(one) < 20]), max_size=6).map("".join),
)
VALUES = TEXT.filter(lambda text: not text.startswith("-"))
PATHS = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="/:"), min_size=1),
    min_size=1,
    max_size=3,
)


def template(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Object]]:
    """The engine's container and all children, as they come back from an API server."""
    cluster = SmallCluster(spec, [node("a")])
    outcome = cluster.decide()
    assert outcome.apply, outcome.status
    sent = json.dumps(outcome.apply)
    assert json.loads(sent) == list(outcome.apply)
    assert list(yaml.safe_load_all(yaml.safe_dump_all(json.loads(sent)))) == json.loads(sent)
    children = {str(one["kind"]): one for one in outcome.apply}
    engine: dict[str, Any] = children["ReplicaSet"]["spec"]["template"]["spec"]["containers"][0]
    return engine, children


def refusal(spec: dict[str, Any]) -> str:
    """What is wrong with a spec, empty where nothing is."""
    try:
        parse_spec(spec)
    except SpecErrors as errors:
        return str(errors)
    return ""


@given(st.lists(VALUES, min_size=1, max_size=4))
@settings(max_examples=12)
def test_each_argument_is_one_word_and_only_the_pods_own_syntax_is_read(words: list[str]) -> None:
    given_words = [one for word in words for one in ("--middleware", word)]
    engine, _ = template(dense(engine={"args": given_words, "env": [{"name": "SAID", "value": "by the user"}]}))
    assert engine["command"][0] == "hisparse-launch", "no shell"
    argv, variables = started(engine)
    assert argv[-len(given_words) :] == [expanded(word, variables) for word in given_words]
    plain = [word for word in given_words if "$(" not in word and "$$" not in word]
    assert [word for word in argv[-len(given_words) :] if word in plain] == plain or not plain


@given(VALUES)
@settings(max_examples=12)
def test_with_each_dollar_doubled_any_text_arrives_as_it_is(word: str) -> None:
    engine, _ = template(dense(engine={"args": ["--middleware", word.replace("$", "$$")]}))
    argv, _ = started(engine)
    assert argv[-1] == word


@given(VALUES)
@settings(max_examples=12)
def test_a_variable_is_its_text(value: str) -> None:
    engine, _ = template(dense(engine={"env": [{"name": "MINE", "value": value.replace("$", "$$")}]}))
    assert started(engine)[1]["MINE"] == value


@given(PATHS.map("/".join).filter(lambda path: ".." not in path.split("/")))
@settings(max_examples=12)
def test_the_folder_of_a_model_is_never_read_as_a_variable(path: str) -> None:
    model = {"pvc": {"claimName": "weights", "path": path}, "config": CONFIG, "facts": {"weights": "100Gi"}}
    if refused := refusal(dense(model=model)):
        assert "spec.model.pvc.path" in refused
        return
    engine, _ = template(dense(model=model, networking={"apiKeySecret": {"name": "keys", "key": "k"}}))
    argv, _ = started(engine, secrets="THE-KEY")
    assert argv[PROGRAM - 1] == f"/models/{path.rstrip('/')}"


@pytest.mark.parametrize("path", ["$(VLLM_API_KEY)", "a$$b", "$$(HOME)", "$x", "a`id`;b", "{{x}}", "%s"])
def test_a_folder_with_such_a_name(path: str) -> None:
    model = {"pvc": {"claimName": "weights", "path": path}, "config": CONFIG, "facts": {"weights": "100Gi"}}
    engine, _ = template(dense(model=model, networking={"apiKeySecret": {"name": "keys", "key": "k"}}))
    argv, _ = started(engine, secrets="THE-KEY")
    assert argv[PROGRAM - 1] == f"/models/{path}"
    if "$(" not in path and "$$" not in path:
        assert path in engine["args"][2], "what needs no escape is rendered as it always was"


FREE_OF_SYNTAX = (
    ("model", "huggingFace", "repo"),
    ("model", "huggingFace", "revision"),
    ("model", "servedName"),
    ("engine", "image"),
    ("model", "cache", "hostPath", "path"),
    ("placement", "priorityClassName"),
    ("placement", "runtimeClassName"),
    ("placement", "schedulerName"),
    ("resources", "gpuResourceName"),
    ("restartToken",),
)


@pytest.mark.parametrize("place", FREE_OF_SYNTAX, ids=".".join)
@pytest.mark.parametrize("text", [one for one in NASTY if one], ids=lambda text: ascii(text)[:24])
def test_what_has_a_form_is_refused_with_its_field_or_arrives_as_it_is(place: tuple[str, ...], text: str) -> None:
    spec = dense()
    target: dict[str, Any] = spec
    for part in place[:-1]:
        target = target.setdefault(part, {})
    target[place[-1]] = f"a{text}b" if place != ("engine", "image") else f"registry/a:{text}"
    if refused := refusal(spec):
        assert place[-1] in refused
        return
    engine, children = template(spec)
    argv, _ = started(engine)
    if place[-1] in ("repo", "revision", "servedName", "image"):
        assert "$" not in target[place[-1]]
        assert target[place[-1]] in (*argv, engine["image"])
    launch = launcher_plan.parse(children["ConfigMap"]["data"]["plan.json"])
    assert launch.engine.served_name


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    "text", [one for one in NASTY if not one.startswith("-") and one], ids=lambda text: ascii(text)[:24]
)
def test_a_message_about_it_is_one_printable_line(text: str) -> None:
    """Refused or not, what is told of such a text stays one line."""
    for spec in (
        dense(engine={"args": [f"--x {text}"]}),
        dense(model={"huggingFace": {"repo": f"a/{text}"}}),
        dense(placement={"nodeSelector": {text: text}}),
    ):
        outcome = SmallCluster(spec, [node("a")], SETTINGS).decide()
        messages = [one["message"] for one in (outcome.status or {})["conditions"]]
        assert messages
        assert all(message.isprintable() for message in messages)


def test_the_launcher_gives_each_word_to_the_engine_as_it_is(tmp_path: Path) -> None:
    """A real run: the rendered plan, the rendered words, and a child that prints what it was given."""
    words = [word for word in NASTY if not word.startswith("-")]
    spec = dense(
        engine={"args": [one for word in words for one in ("--middleware", word.replace("$", "$$"))]},
        model={"huggingFace": {"repo": "meta-llama/Llama-3.1-70B"}, "servedName": "a:b/c_d.e-f"},
    )
    engine, children = template(spec)
    argv, variables = started(engine)
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    plan = json.loads(children["ConfigMap"]["data"]["plan.json"])
    assert plan["engine"]["servedName"] == "a:b/c_d.e-f"
    plan["engine"]["port"], plan["launcher"]["port"] = ports
    plan["memory"] = {}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    tell = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps(sys.argv[2:]))"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hisparse_engine.launch", "--plan", str(file), "--"),
            *(sys.executable, "-c", tell, str(tmp_path / "words.json"), *argv[PROGRAM - 1 :]),
        ],
        env={**os.environ, "PYTHONPATH": str(ENGINE_IMAGE), "TOKEN": variables.get("HOME", "")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads((tmp_path / "words.json").read_text())
    assert seen[0] == "meta-llama/Llama-3.1-70B"
    assert seen[-2 * len(words) :] == [one for word in words for one in ("--middleware", word)]
    # the words may hold keys: the launcher's own lines tell how many there are, and none of them
    assert "passwd" not in done.stdout
