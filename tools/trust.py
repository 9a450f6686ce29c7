"""What the repository is trusted for, as checks: secrets, packages, and the threat model's tests.

Rules like those of `tools.tidy`; `tests/test_tidy.py` runs both, `tests/unit/tools/test_trust.py`
shows that each can fail. Nothing here asks the network: advisories are a kept list
(`tools/locked.toml`), and SECURITY.md says how to ask for new ones.
"""

from __future__ import annotations

import ast
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from tools.tidy import Finding, Repository, Rule

# --- secrets in files ----------------------------------------------------------------------------

# Each begins with what only such a secret begins with; written so that it is none itself.
SECRETS: Mapping[str, re.Pattern[str]] = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50})"),
    "a Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10}"),
    "a Google key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),
    "a package registry's token": re.compile(r"\b(?:pypi-AgEI[\w-]{50}|npm_[A-Za-z0-9]{36})"),
    "a web token": re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+]*://[^\s/:@{}'\"]+:[^\s/@{}'\"]{3,}@"),
}
_ASSIGNED = re.compile(
    r"(?i)(?:password|passwd|secret|token|api_?key)\w*[\"']?\s*[:=]\s*[\"']([^\"'\s]{20,})[\"']"
)
_ENTROPY_BITS_MIN = 3.5  # a character: words have less, random base64 has some 4.5 at this length
_KEY_FILES = (".key", ".pem")


def committed_secrets(repo: Repository) -> Iterator[Finding]:
    """What is secret is in nobody's history; keys that protect nothing are allowed by folder."""
    for path in repo.texts():
        text = repo.text(path)
        key = str(PurePosixPath(path).parent) if path.endswith(_KEY_FILES) else path
        for what, pattern in SECRETS.items():
            for found in pattern.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield Finding("committed-secrets", key, f"{path}, line {line}: {what}")
        for found in _ASSIGNED.finditer(text):
            if _is_random(found[1]):
                line = text.count("\n", 0, found.start()) + 1
                yield Finding("committed-secrets", key, f"{path}, line {line}: looks random")


def _is_random(text: str) -> bool:
    counts = Counter(text)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    kinds = sum(any(test(c) for c in text) for test in (str.isdigit, str.islower, str.isupper))
    return bits >= _ENTROPY_BITS_MIN and kinds > 1 and any(map(str.isdigit, text))


# --- packages ------------------------------------------------------------------------------------

LOCK, KEPT = "uv.lock", "tools/locked.toml"
INDEX = "https://pypi.org/simple"


def locked_packages(repo: Repository) -> Iterator[Finding]:
    """Each locked package is one that somebody chose, from the index, with the hash of each file.

    What is below a version of `[fixed]` has a hole that is known.
    """
    if LOCK not in repo.paths:
        return
    lock = tomllib.loads(repo.text(LOCK))
    kept = tomllib.loads(repo.text(KEPT)) if KEPT in repo.paths else {}
    reasons, fixed = kept.get("packages", {}), kept.get("fixed", {})
    names = set()
    for package in lock.get("package", ()):
        if package["source"] == {"editable": "."}:
            continue
        names.add(package["name"])
        for trouble in _troubles(package, reasons, fixed):
            yield Finding("locked-packages", package["name"], trouble)
    for name in sorted((reasons.keys() | fixed.keys()) - names):
        yield Finding("locked-packages", name, f"is in {KEPT}, and not locked any more")
    yield from _locked_elsewhere(repo)


def _troubles(
    package: Mapping[str, Any], reasons: Mapping[str, str], fixed: Mapping[str, str]
) -> Iterator[str]:
    name, version = package["name"], package["version"]
    if package["source"] != {"registry": INDEX}:
        yield f"comes from {package['source']}, not from {INDEX}"
    files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
    if not files or any(not f.get("hash", "").startswith("sha256:") for f in files):
        yield "has a file without a SHA-256"
    if not reasons.get(name, "").strip():
        yield f"is locked, and {KEPT} does not say why"
    if name in fixed:
        low, _, advisory = fixed[name].partition(": ")
        if _numbers(version) < _numbers(low):
            yield f"{version} is below {low}: {advisory}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _locked_elsewhere(repo: Repository) -> Iterator[Finding]:
    """The stock clients of the tests: npm's and Go's lock files have a hash for each, too."""
    for path in repo.paths:
        name = PurePosixPath(path).name
        if name == "package-lock.json":
            packages = json.loads(repo.text(path)).get("packages", {})
            for where, package in packages.items():
                if where and not package.get("integrity"):
                    yield Finding("locked-packages", path, f"{where} has no hash")
        sums = str(PurePosixPath(path).with_name("go.sum"))
        if name == "go.mod" and "require" in repo.text(path) and sums not in repo.paths:
            yield Finding("locked-packages", path, "has no go.sum beside it")


# --- the threat model ----------------------------------------------------------------------------

THREATS, POLICY = "docs/threat-model.md", "SECURITY.md"
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def threat_model(repo: Repository) -> Iterator[Finding]:
    """Each row of the page names tests that are there; SECURITY.md leads to the page."""
    if not any(path.startswith("docs/") for path in repo.paths):
        return
    for path in {THREATS, POLICY} - {*repo.paths}:
        yield Finding("threat-model", path, "is missing")
    if THREATS not in repo.paths:
        return
    if POLICY in repo.paths and THREATS not in repo.text(POLICY):
        yield Finding("threat-model", POLICY, f"does not lead to {THREATS}")
    for number, line in enumerate(repo.text(THREATS).splitlines(), 1):
        if not line.startswith("| ") or line.startswith("| threat "):
            continue
        found = _TEST.findall(line)
        if not found:
            yield Finding("threat-model", THREATS, f"line {number} names no test")
        for path, test in found:
            if path not in repo.paths or test not in _tests_in(repo, path):
                yield Finding("threat-model", THREATS, f"line {number}: no test {path}::{test}")


def _tests_in(repo: Repository, path: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(repo.tree(path)) if isinstance(node, kinds)}


RULES: Mapping[str, Rule] = {
    "committed-secrets": committed_secrets,
    "locked-packages": locked_packages,
    "threat-model": threat_model,
}
