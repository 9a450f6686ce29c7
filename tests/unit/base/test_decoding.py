"""Types as they are decoded, by threads that begin at the same moment."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import lapse
from lapse.base.decoding import from_json, from_msgpack

TRIES = 8
# Four threads decode a type that nobody has used yet. With msgspec.json.decode most tries crash.
RACE = """
import sys, threading
from dataclasses import make_dataclass
from lapse.base.decoding import from_json

sys.setswitchinterval(1e-6)
inner = make_dataclass("Inner", [(f"f{n}", "int | str | None") for n in range(40)])
outer = make_dataclass("Outer", [(f"f{n}", inner) for n in range(40)])
one = "{" + ",".join(f'"f{n}":{n}' for n in range(40)) + "}"
data = ("{" + ",".join(f'"f{n}":{one}' for n in range(40)) + "}").encode()
begin, done = threading.Barrier(4), []

def work():
    begin.wait()
    done.append(from_json(data, outer))

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(0 if len(done) == 4 and all(one.f0.f0 == 0 for one in done) else 1)
"""


def codes() -> list[int]:
    program = [sys.executable, "-c", RACE]
    return [subprocess.run(program, check=False, capture_output=True).returncode
            for _ in range(TRIES)]  # fmt: skip


def test_threads_may_begin_with_a_type_together() -> None:
    assert codes() == [0] * TRIES


@dataclass(frozen=True)
class Point:
    x: int
    y: tuple[str, ...] = ()


def test_both_forms_are_checked_against_the_type() -> None:
    assert from_json(b'{"x":1,"y":["a"]}', Point) == Point(1, ("a",))
    assert from_json('[{"x":1}]', list[Point]) == [Point(1)]
    assert from_msgpack(msgspec.msgpack.encode(Point(2)), Point) == Point(2)
    for wrong in (b"{", b'{"x":"1"}', b"{}"):
        with pytest.raises(msgspec.MsgspecError):
            from_json(wrong, Point)
    with pytest.raises(msgspec.MsgspecError):
        from_msgpack(b"\xc0", Point)


def test_nobody_decodes_a_type_past_it() -> None:
    """What has a type of our own; plain JSON is nobody's."""
    root, past = Path(lapse.__file__).parent, []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or path.name == "decoding.py":
                continue
            called = ast.unparse(node.func)
            typed = any(word.arg == "type" for word in node.keywords)
            if called.endswith(("json.Decoder", "msgpack.Decoder")) or (
                typed and called.endswith((".decode", ".convert"))
            ):
                past.append(f"{path.relative_to(root)}:{node.lineno}")
    assert past == []
