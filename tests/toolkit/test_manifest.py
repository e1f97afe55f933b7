"""What a file may hold, and what is said where it holds something else."""

import io
import sys
from pathlib import Path

import pytest

from hisparse_toolkit.manifest import manifest_in, read_manifest
from hisparse_toolkit.problems import BadInputError, ExitCode

HEAD = "apiVersion: inference.hisparse.dev/v1alpha1\nkind: HiSparseInference\nmetadata: {name: glm}\n"
WHOLE = HEAD + "spec: {model: {huggingFace: {repo: zai-org/GLM-5.3}}, context: {maxTokens: 8}, resources: {gpus: 8}}\n"


def said(text: str) -> str:
    with pytest.raises(BadInputError) as caught:
        manifest_in(text, "m.yaml")
    assert caught.value.code is ExitCode.BAD_INPUT
    return str(caught.value)


def test_a_whole_object_is_taken_apart() -> None:
    manifest = manifest_in(WHOLE, "m.yaml")
    assert (manifest.name, manifest.namespace) == ("glm", "default")
    assert manifest.spec["resources"] == {"gpus": 8}


def test_json_is_yaml() -> None:
    text = '{"apiVersion": "inference.hisparse.dev/v1alpha1", "kind": "HiSparseInference", "metadata": {"name": "a"}, "spec": {}}'
    assert manifest_in(text, "m.json").name == "a"


def test_a_lone_document_may_stand_between_separators() -> None:
    assert manifest_in(f"---\n{WHOLE}---\n# nothing more\n", "m.yaml").name == "glm"


def test_anchors_and_merges_are_read() -> None:
    text = HEAD + "spec:\n  a: &a {x: 1}\n  b: {<<: *a, y: 2}\n  c: *a\n"
    assert manifest_in(text, "m.yaml").spec["b"] == {"x": 1, "y": 2}


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", ["m.yaml: is empty"], id="nothing"),
        pytest.param("# only a comment\n---\n", ["m.yaml: is empty"], id="nothing but comments"),
        pytest.param("just words", ["a single value", "apiVersion"], id="a text"),
        pytest.param("- 1\n- 2\n", ["a list"], id="a list"),
        pytest.param("a: [1\nb: 2\n", ["m.yaml line 2", "not YAML"], id="a bracket that stays open"),
        pytest.param("a:\n\t- b\n", ["m.yaml line 2", "not YAML"], id="a tab"),
        pytest.param(
            "a: !!python/object:os.system {}\n", ["not YAML", "could not determine a constructor"], id="a tag"
        ),
        pytest.param("a: 2026-02-30\n", ["not YAML", "day is out of range"], id="a day that does not exist"),
        pytest.param(
            WHOLE + "---\nkind: Service\napiVersion: v1\nmetadata: {name: web}\n",
            ["2 documents", "1: HiSparseInference glm", "2: Service web"],
            id="two documents",
        ),
        pytest.param(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {}\n",
            ['kind: "Deployment" in m.yaml', "HiSparseInference"],
            id="another kind",
        ),
        pytest.param("apiVersion: v1\nkind: List\nitems: []\n", ['"List"', "one by one"], id="a list object"),
        pytest.param("spec: {}\n", ["kind: is needed", "apiVersion: is needed"], id="a spec alone"),
        pytest.param(
            WHOLE.replace("v1alpha1", "v2"),
            ['apiVersion: "inference.hisparse.dev/v2"', "set inference.hisparse.dev/v1alpha1"],
            id="a version that does not exist",
        ),
        pytest.param(WHOLE.replace("{name: glm}", "{}"), ["metadata.name: is needed"], id="no name"),
        pytest.param(
            WHOLE.replace("{name: glm}", "{name: 5}"), ["metadata.name: 5 is not text"], id="a number as name"
        ),
        pytest.param(HEAD, ["spec: is needed"], id="no spec"),
        pytest.param(HEAD + "spec: [1]\n", ["spec: is not a block"], id="a list as spec"),
        pytest.param(WHOLE + "kind: Other\n", ["m.yaml line 5", '"kind" is set twice'], id="a field twice"),
        pytest.param(HEAD + "spec: {on: 1}\n", ["line 4", "on, not text"], id="a name that YAML takes for a boolean"),
        pytest.param(HEAD + "spec: {? [a] : 1}\n", ["a list or block, not text"], id="a list as name"),
        pytest.param(HEAD + "spec: &s {a: *s}\n", ["holds itself"], id="an anchor in itself"),
        pytest.param(HEAD + "spec: " + "{a: " * 90 + "1" + "}" * 90, ["nested deeper"], id="ninety levels"),
        pytest.param("[" * 20_000, ["not YAML"], id="twenty thousand brackets"),
        pytest.param(BOMB, ["100,000 values", "anchors"], id="anchors that stand for a hundred billion values"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_reason(text: str, words: list[str]) -> None:
    message = said(text)
    for word in words:
        assert word in message


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is a directory; name one file"):
        read_manifest(str(tmp_path))


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "glm-5.3.yaml").write_text(WHOLE)
    with pytest.raises(BadInputError, match=r"does not exist; did you mean .*glm-5\.3\.yaml"):
        read_manifest(str(tmp_path / "glm-5.4.yaml"))
    with pytest.raises(BadInputError, match="there is no folder"):
        read_manifest(str(tmp_path / "no" / "such.yaml"))


@pytest.mark.parametrize(
    "content", [b"\x7fELF\xff\xfe", b"a: \x00b\n", b"\xff\xfeh\x00"], ids=["elf", "null", "utf-16"]
)
def test_binary_is_no_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.yaml").write_bytes(content)
    with pytest.raises(BadInputError, match="is not text"):
        read_manifest(str(tmp_path / "m.yaml"))


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
    assert read_manifest(str(tmp_path / "m.yaml")).name == "glm"


def test_more_than_the_api_server_takes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(WHOLE + "#" * 3 * 1024**2)
    with pytest.raises(BadInputError, match="larger than 3 MiB"):
        read_manifest(str(tmp_path / "m.yaml"))


def test_a_mebibyte_of_values_is_judged_quickly(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(HEAD + "spec:\n" + "".join(f"  k{n}: {n}\n" for n in range(80_000)))
    assert len(read_manifest(str(tmp_path / "m.yaml")).spec) == 80_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1e6),
        ("1.5E+3", 1500.0),
        ("-2e-3", -0.002),
        ("8.0", 8.0),
        (".5e1", 5.0),
        ("1e999", "1e999"),
        ("'1e6'", "1e6"),
        ("1e", "1e"),
        ("12e3f", "12e3f"),
        ("8", 8),
    ],
)
def test_numbers_are_those_of_kubectl(text: str, value: object) -> None:
    found = manifest_in(HEAD + f"spec: {{a: {text}}}\n", "m.yaml").spec["a"]
    assert (found, type(found)) == (value, type(value))


def test_a_file_without_a_name_is_none() -> None:
    with pytest.raises(BadInputError, match="--file: is empty"):
        read_manifest("")


def test_a_minus_reads_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WHOLE.encode())))
    manifest = read_manifest("-")
    assert (manifest.source, manifest.name) == ("stdin", "glm")
