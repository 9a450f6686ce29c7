"""Each rule of trust fails on a small bad sample, and lets the good one beside it pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tools.test_tidy import sample
from tools import tidy, trust

DASHES = "-" * 5


def findings(rule: str, root: Path, files: dict[str, str]) -> list[tidy.Finding]:
    return list(trust.RULES[rule](sample(root, files)))


# Taken apart, or this file would be a finding.
@pytest.mark.parametrize(
    "text",
    [
        f"{DASHES}BEGIN PRIVATE KEY{DASHES}\nMIIE",
        f"{DASHES}BEGIN RSA PRIVATE KEY{DASHES}",
        f"{DASHES}BEGIN ENCRYPTED PRIVATE KEY{DASHES}",
        "key = AKIA" + "ABCDEFGHIJKLMNOP",
        "ghp_" + "a1" * 18,
        "xoxb-" + "1234567890-abc",
        "AIza" + "A1_-b" * 7,
        "npm_" + "a1" * 18,
        "Bearer eyJ" + "hbGciOiJIUzI1" + ".eyJ" + "zdWIiOiIxMjM0" + ".c2lnbmF0dXJl",
        "postgres://admin:" + "hunter2@db.example/x",
        "api_key = '" + "Zk3x9QmT7vLw2RbN8sYd" + "'",
        'password: "' + "Zk3x9QmT7vLw2RbN8sYd" + '"',
    ],
)
def test_a_committed_secret(tmp_path: Path, text: str) -> None:
    good = (
        "password = 'alice-s3cret'\nssl.key.password=…\nhttp://host:8080/@x\n"
        'token = "there is no such token as this one"\nsecret="{}"\n'
        f"{DASHES}BEGIN CERTIFICATE{DASHES}\nAKIA is a prefix; kafka://{{user}}:{{password}}@host\n"
    )
    files = {"docs/bad.md": f"a line\n{text}\n", "docs/good.md": good}
    (found,) = findings("committed-secrets", tmp_path, files)
    assert found.key == "docs/bad.md"
    assert "line 2" in found.text


def test_keys_are_allowed_by_folder(tmp_path: Path) -> None:
    pem = f"{DASHES}BEGIN PRIVATE KEY{DASHES}"
    (found,) = findings("committed-secrets", tmp_path, {"tests/pem/a.key": pem})
    assert found.key == "tests/pem"


PACKAGE = """
[[package]]
name = "{name}"
version = "{version}"
source = {source}
wheels = [{{ url = "https://x/y.whl", hash = "{hash}" }}]
"""
GOOD = {
    "name": "h11", "version": "0.16.0", "source": '{ registry = "https://pypi.org/simple" }',
    "hash": "sha256:00",
}  # fmt: skip
KEPT = '[packages]\nh11 = "brought by uvicorn"\n[fixed]\nh11 = "0.16.0: CVE-2025-43859"\n'


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"version": "1.0"}, None),
        ({"version": "0.9.0"}, "0.9.0 is below 0.16.0: CVE-2025-43859"),
        ({"name": "left-pad"}, "is locked, and tools/locked.toml does not say why"),
        ({"source": '{ git = "https://github.com/x/y" }'}, "comes from"),
        ({"source": '{ registry = "https://mirror.example/simple" }'}, "comes from"),
        ({"hash": "md5:00"}, "a file without a SHA-256"),
    ],
)
def test_locked_packages(tmp_path: Path, changed: dict[str, str], said: str | None) -> None:
    lock = 'version = 1\n[[package]]\nname = "lapse"\nsource = { editable = "." }\n'
    files = {
        "uv.lock": lock + PACKAGE.format(**{**GOOD, **changed}),
        "tools/locked.toml": KEPT,
    }
    found = [f.text for f in findings("locked-packages", tmp_path, files) if f.key != "h11" or said]
    found = [text for text in found if "not locked any more" not in text]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_what_is_kept_and_not_locked(tmp_path: Path) -> None:
    files = {"uv.lock": "version = 1\n", "tools/locked.toml": KEPT}
    (found,) = findings("locked-packages", tmp_path, files)
    assert (found.key, "not locked any more" in found.text) == ("h11", True)


def test_clients_in_other_languages(tmp_path: Path) -> None:
    lock = (
        '{"packages": {"": {}, "node_modules/a": {"integrity": "sha512-x"}, "node_modules/b": {}}}'
    )
    files = {"uv.lock": "version = 1\n", "js/package-lock.json": lock,
             "go/go.mod": "require x v1\n", "bare/go.mod": "",
             "ok/go.mod": "", "ok/go.sum": ""}  # fmt: skip
    found = {f.key: f.text for f in findings("locked-packages", tmp_path, files)}
    assert found == {
        "js/package-lock.json": "node_modules/b has no hash",
        "go/go.mod": "has no go.sum beside it",
    }  # fmt: skip


HEAD = "| threat | held by | test |\n|---|---|---|\n"
TEST = "def test_x() -> None: ...\nclass C:\n    def test_y(self) -> None: ...\n"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("| a | b | tests/a.py::test_x |", None),
        ("| a | b | [x](../tests/a.py): `tests/a.py::test_x`, `tests/a.py::test_y` |", None),
        ("| a | b | later |", "names no test"),
        ("| a | b | tests/a.py::test_z |", "no test tests/a.py::test_z"),
        ("| a | b | tests/a.py::test_x, tests/b.py::test_x |", "no test tests/b.py::test_x"),
    ],
)
def test_the_threat_model_names_tests(tmp_path: Path, row: str, said: str | None) -> None:
    files = {
        "docs/threat-model.md": HEAD + row + "\n",
        "SECURITY.md": "see docs/threat-model.md",
        "tests/a.py": TEST,
    }
    found = [finding.text for finding in findings("threat-model", tmp_path, files)]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_both_pages_are_there(tmp_path: Path) -> None:
    found = findings("threat-model", tmp_path, {"docs/x.md": ""})
    assert {f.key for f in found} == {"docs/threat-model.md", "SECURITY.md"}
    files = {"docs/threat-model.md": HEAD, "SECURITY.md": "write to us"}
    (only,) = findings("threat-model", tmp_path, files)
    assert only.key == "SECURITY.md"
