"""Writes the function that decodes one message in one version.

For a message in version 9 it comes out like this (shortened):

    def decode_ProduceRequest_v9(buf, pos):
        limit = len(buf)
        try:
            m0 = ProduceRequestDraft()
            ...
            m0.acks, m0.timeout_ms, n = unpack_hiB(buf, pos)
            pos += 7
            ...
            m0.__class__ = ProduceRequest
        except BROKEN as error:
            raise MalformedMessage("ProduceRequest v9", pos, reason(error)) from None
        return m0, pos

A *draft* is the mutable twin of a frozen class, with the same slots: filling it and then assigning
`__class__` makes a frozen instance five times faster than its `__init__`.

Invariants: no length or count is believed before it is compared with the bytes that are left, so
neither memory nor time exceeds a multiple of the frame; a request has at most ELEMENTS_MAX elements
in all its arrays, since that multiple is large where they are small; `pos` only grows; records are
slices of `buf`; unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from lapse.wire import primitives
from lapse.wire.declaration import (
    Array,
    Bytes,
    FieldSpec,
    MessageSpec,
    Nested,
    Records,
    String,
    StructSpec,
    Uuid,
    WireType,
    struct_spec,
)
from lapse.wire.errors import MalformedMessage
from lapse.wire.source import Source, default_name, letter_of

# Decoded, the smallest elements take fifty times their bytes, and the event loop handles no other
# request meanwhile: this bounds both, at some 50 MiB and some tenths of a second. Answers are not
# bounded: the server that our client calls is trusted that far.
ELEMENTS_MAX = 1 << 18

Decode: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]


def compile_decoder(spec: MessageSpec, version: int) -> Decode:
    """The function `(buf, pos) -> (message, pos)` for a version."""
    return _Decoder(spec, version).compile()


class _Decoder:
    def __init__(self, spec: MessageSpec, version: int) -> None:
        self.spec = spec
        self.version = version
        self.flexible = version in spec.flexible
        self.is_bounded = spec.name.endswith("Request")
        self.out = Source()
        self.run: list[tuple[str, str]] = []  # (where the value goes, letter)
        self.out.names |= {
            "BROKEN": primitives.BROKEN,
            "Lie": primitives.Lie,
            "MalformedMessage": MalformedMessage,
            "more_uvarint": primitives.more_uvarint,
            "read_uvarint": primitives.read_uvarint,
            "reason": primitives.reason,
            "skip_tags": primitives.skip_tags,
            "unpack_from": struct.unpack_from,
            "uuid_of": primitives.uuid_of,
        }

    def compile(self) -> Decode:
        name = f"decode_{self.spec.name}_v{self.version}"
        where = f"{self.spec.name} v{self.version}"
        out = self.out
        with out.block(f"def {name}(buf, pos):"):
            out.line("limit = len(buf)")
            if self.is_bounded:
                out.line(f"room = {ELEMENTS_MAX}")
            with out.block("try:"):
                self.struct(self.spec.struct, depth=0, path="")
            out.branch(
                "except BROKEN as error:",
                f"raise MalformedMessage({where!r}, pos, reason(error)) from None",
            )
            out.line("return m0, pos")
        return out.compile(name)

    # --- structs and their fields -------------------------------------------------------------

    def struct(self, spec: StructSpec, depth: int, path: str) -> None:
        """Read a struct into the local `m{depth}`."""
        me = f"m{depth}"
        name = spec.cls.__name__
        self.out.names |= {name: spec.cls, f"{name}Draft": spec.draft}
        self.out.line(f"{me} = {name}Draft()")
        known_tags = []
        for item in spec.fields:
            if self.version not in item.versions or item.tag is not None:
                default = self.out.constant(default_name(spec, item.name), item.default)
                self.out.line(f"{me}.{item.name} = {default}")
                if self.version in item.versions:
                    known_tags.append(item)
            else:
                self.field(item, f"{me}.{item.name}", depth, path + item.name)
        if self.flexible:
            self.tags(known_tags, me, depth, path)
        self.flush()
        self.out.line(f"{me}.__class__ = {name}")

    def field(self, item: FieldSpec, target: str, depth: int, path: str) -> None:
        """Read one field into `target`."""
        if (letter := letter_of(item.type)) is not None:
            self.run.append((target, letter))
            return
        if isinstance(item.type, Nested):
            self.inner(item, item.type, target, depth, path)
            return
        self.length(item)
        if item.nullable is None or self.version not in item.nullable:
            self.refuse_null(path)
            self.value(item.type, target, depth, path)
            return
        self.out.branch("if n < 0:", f"{target} = None")
        with self.out.block("else:"):
            self.value(item.type, target, depth, path)

    def inner(
        self, item: FieldSpec, type_: Nested[Any], target: str, depth: int, path: str
    ) -> None:
        """Read a struct that is no array's element and has no tag."""
        if item.nullable is None or self.version not in item.nullable:
            self.nested(type_, target, depth, path)
            return
        self.run.append(("n", "b"))  # -1 is null; Kafka too takes anything else for a struct
        self.flush()
        self.out.branch("if n < 0:", f"{target} = None")
        with self.out.block("else:"):
            self.nested(type_, target, depth, path)

    def refuse_null(self, path: str) -> None:
        self.out.branch("if n < 0:", f'raise Lie("{path}: null")')

    def length(self, item: FieldSpec) -> None:
        """Read a length or count into the local `n`; null comes out negative."""
        if self.flexible and item.compact:
            self.compact_length()
        else:
            self.run.append(("n", "h" if isinstance(item.type, String) else "i"))
            self.flush()

    def compact_length(self) -> None:
        self.run.append(("n", "B"))
        self.flush()
        self.out.branch("if n > 127:", "n, pos = more_uvarint(buf, pos, n)")
        self.out.line("n -= 1")

    def value(self, type_: WireType[Any], target: str, depth: int, path: str) -> None:
        """Read a value that has `n` bytes or elements."""
        if isinstance(type_, Array):
            self.array(type_.element, target, depth, path)
            return
        self.bound("end = pos + n", path)
        if isinstance(type_, String):
            self.out.line(f'{target} = str(buf[pos:end], "utf-8")')
        elif isinstance(type_, Bytes):
            self.out.line(f"{target} = bytes(buf[pos:end])")
        else:
            assert isinstance(type_, Records)
            self.out.line(f"{target} = buf[pos:end]  # a view, not a copy")
        self.out.line("pos = end")

    def bound(self, end: str, path: str) -> None:
        """Compute `end` and refuse it if the buffer ends before."""
        self.out.line(end)
        self.out.branch(
            "if end > limit:", f'raise Lie(f"{path}: length {{n}}, {{limit - pos}} bytes left")'
        )

    # --- arrays -------------------------------------------------------------------------------

    def array(self, element: WireType[Any], target: str, depth: int, path: str) -> None:
        out = self.out
        letter = letter_of(element)
        if letter is not None and not isinstance(element, Uuid):
            width = self.bytes_min(element)
            self.bound(f"end = pos + {width} * n", path)
            self.take_room(path)
            out.line(f'{target} = unpack_from(f">{{n}}{letter}", buf, pos)')
            out.line("pos = end")
            return
        items, each = f"items{depth}", self.bytes_min(element)
        out.branch(
            f"if n > (limit - pos) // {each}:",
            f'raise Lie(f"{path}: count {{n}}, {{limit - pos}} bytes left")',
        )
        self.take_room(path)
        out.line(f"{items} = []")
        with out.block("for _ in range(n):"):
            if isinstance(element, Nested):
                self.struct(struct_spec(element.struct), depth + 1, f"{path}.")
                out.line(f"{items}.append(m{depth + 1})")
            else:
                self.element(element, path, depth)
                out.line(f"{items}.append(item)")
        out.line(f"{target} = tuple({items})")

    def take_room(self, path: str) -> None:
        """Count `n` elements."""
        if not self.is_bounded:
            return
        self.out.line("room -= n")
        with self.out.block("if room < 0:"):
            words = f"more than {ELEMENTS_MAX} elements in all arrays"
            self.out.line(f'raise Lie("{path}: {words}")')

    def element(self, element: WireType[Any], path: str, depth: int) -> None:
        """Read one of an array of strings or ids into the local `item`."""
        if isinstance(element, Uuid):
            self.run.append(("item", "16s"))
            self.flush()
            return
        assert isinstance(element, String), "no message has arrays of anything else"
        if self.flexible:
            self.compact_length()
        else:
            self.run.append(("n", "h"))
            self.flush()
        self.refuse_null(path)
        self.value(element, "item", depth, path)

    def bytes_min(self, type_: WireType[Any]) -> int:
        """The fewest bytes a value can take; bounds a count before anything is allocated."""
        if (letter := letter_of(type_)) is not None:
            return struct.calcsize(">" + letter)
        if isinstance(type_, Nested):
            fields = struct_spec(type_.struct).fields
            here = [f for f in fields if self.version in f.versions and f.tag is None]
            least = sum(1 if _may_be_null(f) else self.bytes_min(f.type) for f in here)
            return max(1, least + self.flexible)
        if self.flexible:
            return 1
        return 2 if isinstance(type_, String) else 4

    # --- tagged fields ------------------------------------------------------------------------

    def tags(self, known: list[FieldSpec], me: str, depth: int, path: str) -> None:
        """Read the tagged section that ends each struct of a flexible version."""
        out = self.out
        self.run.append(("tags", "B"))
        self.flush()
        if not known:
            out.branch("if tags:", "pos = skip_tags(buf, pos, tags)")
            return
        out.branch("if tags > 127:", "tags, pos = more_uvarint(buf, pos, tags)")
        stop = f"stop{depth}"
        with out.block("for _ in range(tags):"):
            out.line("tag, pos = read_uvarint(buf, pos)")
            out.line("n, pos = read_uvarint(buf, pos)")
            self.bound("end = pos + n", f"{path}tagged field {{tag}}")
            out.line(f"{stop} = end")
            for number, item in enumerate(known):
                with out.block(f"{'elif' if number else 'if'} tag == {item.tag}:"):
                    self.tagged(item, f"{me}.{item.name}", depth, path + item.name)
                    out.branch(
                        f"if pos != {stop}:",
                        f'raise Lie("{path}{item.name}: tagged size is wrong")',
                    )
            out.branch("else:", f"pos = {stop}")

    def tagged(self, item: FieldSpec, target: str, depth: int, path: str) -> None:
        if isinstance(item.type, Nested):
            if item.nullable is None:
                self.nested(item.type, target, depth, path)
                return
            self.run.append(("n", "B"))  # 0 is null, 1 a struct
            self.flush()
            self.out.branch("if n > 1:", f'raise Lie(f"{path}: {{n}} where 0 or 1 is due")')
            with self.out.block("if n:"):
                self.nested(item.type, target, depth, path)
            self.out.branch("else:", f"{target} = None")
        else:
            self.field(item, target, depth, path)
        self.flush()

    def nested(self, type_: Nested[Any], target: str, depth: int, path: str) -> None:
        self.struct(struct_spec(type_.struct), depth + 1, f"{path}.")
        self.out.line(f"{target} = m{depth + 1}")

    # --- the run ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Emit one read for all pending fields of fixed width."""
        run, self.run = self.run, []
        if not run:
            return
        if [letter for _, letter in run] == ["B"]:
            self.out.line(f"{run[0][0]} = buf[pos]")
            self.out.line("pos += 1")
            return
        unpack, width = self.out.struct("unpack", [letter for _, letter in run])
        targets = ", ".join(target for target, _ in run) + ("," if len(run) == 1 else "")
        self.out.line(f"{targets} = {unpack}(buf, pos)")
        self.out.line(f"pos += {width}")
        for target, letter in run:
            if letter == "16s":
                self.out.line(f"{target} = uuid_of({target})")


def _may_be_null(item: FieldSpec) -> bool:
    """Whether a struct is one byte at times."""
    return isinstance(item.type, Nested) and item.nullable is not None
