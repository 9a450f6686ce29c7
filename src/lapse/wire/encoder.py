"""Writes the function that encodes one message in one version.

For a message in version 9 it comes out like this (shortened):

    def encode_FetchResponse_v9(m0, out, parts):
        append = out.append
        items0 = m0.responses
        append(pack_ihii(m0.throttle_time_ms, m0.error_code, m0.session_id, len(items0)))
        for m1 in items0:
            ...
                if n:
                    parts.append(join(out))
                    out.clear()
                    parts.append(records)

`out` collects small pieces. Records are never copied: what came before them is joined into one
part, and they become a part of their own, whether bytes, a view or a slice of a file.

Invariants: a value is never dropped silently. A field that the version lacks must be ignorable or
hold its default, else UnsupportedVersion; a null where none is allowed, or a number out of range,
is a bug of the caller and raises what Python raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
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
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.source import Source, default_name, letter_of

Encode: TypeAlias = Callable[[Any, list[Any], list[Any]], None]


def compile_encoder(spec: MessageSpec, version: int) -> Encode:
    """The function `(message, out, parts)` for a version; pieces left in `out` end the message."""
    return _Encoder(spec, version).compile()


class _Encoder:
    def __init__(self, spec: MessageSpec, version: int) -> None:
        self.spec = spec
        self.version = version
        self.flexible = version in spec.flexible
        self.out = Source()
        self.run: list[tuple[str, str]] = []  # (expression, letter)
        self.append = "append"  # what takes pieces now: the message's list, or a tagged field's
        self.out.names |= {
            "COMPACT": primitives.COMPACT,
            "IN_MEMORY": frozenset({bytes, bytearray, memoryview}),
            "UnsupportedVersion": UnsupportedVersion,
            "compact": primitives.compact,
            "compact_string": primitives.compact_string,
            "join": b"".join,
            "tagged": primitives.tagged,
            "uvarint": primitives.uvarint,
        }

    def compile(self) -> Encode:
        name = f"encode_{self.spec.name}_v{self.version}"
        with self.out.block(f"def {name}(m0, out, parts):"):
            self.out.line("append = out.append")
            self.struct(self.spec.struct, depth=0, path="")
            self.flush()
        return self.out.compile(name)

    # --- structs and their fields -------------------------------------------------------------

    def struct(self, spec: StructSpec, depth: int, path: str) -> None:
        """Write the struct in the local `m{depth}`."""
        me = f"m{depth}"
        known_tags = []
        for item in spec.fields:
            if self.version not in item.versions:
                if not item.ignorable:
                    self.refuse_unless_default(spec, item, me, path)
            elif item.tag is not None:
                known_tags.append(item)
            else:
                self.field(item, f"{me}.{item.name}", depth, path + item.name)
        if self.flexible:
            self.tags(spec, known_tags, me, depth, path)

    def refuse_unless_default(self, spec: StructSpec, item: FieldSpec, me: str, path: str) -> None:
        assert item.default is not MISSING
        default = self.out.constant(default_name(spec, item.name), item.default)
        where = f"{self.spec.name} v{self.version} has no {path}{item.name}"
        self.out.branch(
            f"if {me}.{item.name} != {default}:", f"raise UnsupportedVersion({where!r})"
        )

    def field(self, item: FieldSpec, source: str, depth: int, path: str) -> None:
        """Write one field held by the expression `source`."""
        if (letter := letter_of(item.type)) is not None:
            self.fixed(source, letter)
            return
        out = self.out
        if isinstance(item.type, Nested):
            self.inner(item, item.type, source, depth, path)
            return
        if item.nullable is None or self.version not in item.nullable:
            self.value(item, item.type, source, depth, path)
            return
        self.flush()
        with out.block(f"if {source} is None:"):
            self.length(item, "-1")
            self.flush()
        with out.block("else:"):
            self.value(item, item.type, source, depth, path)
            self.flush()

    def inner(
        self, item: FieldSpec, type_: Nested[Any], source: str, depth: int, path: str
    ) -> None:
        """Write a struct that is no array's element and has no tag."""
        self.flush()  # what waits may speak of the local that is set here
        me = f"m{depth + 1}"
        self.out.line(f"{me} = {source}")
        may_be_null = item.nullable is not None and self.version in item.nullable
        self.nested(type_, me, depth, path, null="b'\\xff'" if may_be_null else "")
        self.flush()

    def fixed(self, source: str, letter: str) -> None:
        self.run.append((f"{source}.bytes" if letter == "16s" else source, letter))

    def length(self, item: FieldSpec, n: str) -> None:
        """Write a length or count: an expression, or "-1" for null."""
        string = isinstance(item.type, String)
        if not (self.flexible and item.compact):
            self.run.append((n, "h" if string else "i"))
        elif n == "-1":
            self.run.append(("0", "B"))
        else:
            self.compact_length("compact_string" if string else "compact", n)

    def compact_length(self, long: str, n: str) -> None:
        self.flush()
        self.out.line(f"{self.append}(COMPACT[{n}] if {n} < 127 else {long}({n}))")

    def value(
        self, item: FieldSpec, type_: WireType[Any], source: str, depth: int, path: str
    ) -> None:
        if isinstance(type_, Array):
            self.array(item, type_.element, source, depth, path)
        elif isinstance(type_, String):
            self.out.line(f"data = {source}.encode()")
            self.out.line("n = len(data)")
            self.length(item, "n")
            self.flush()
            self.out.line(f"{self.append}(data)")
        elif isinstance(type_, Bytes):
            self.out.line(f"n = len({source})")
            self.length(item, "n")
            self.flush()
            self.out.line(f"{self.append}({source})")
        else:
            assert isinstance(type_, Records)
            self.records(item, source)

    def records(self, item: FieldSpec, source: str) -> None:
        """Write the length; the records themselves become a part of their own."""
        assert self.append == "append", "no message has records inside a tagged field"
        out = self.out
        out.line(f"records = {source}")
        out.line("n = len(records) if type(records) in IN_MEMORY else records.size")
        self.length(item, "n")
        self.flush()
        with out.block("if n:"):
            out.line("parts.append(join(out))")
            out.line("out.clear()")
            out.line("parts.append(records)")

    # --- arrays -------------------------------------------------------------------------------

    def array(
        self, item: FieldSpec, element: WireType[Any], source: str, depth: int, path: str
    ) -> None:
        out = self.out
        letter = letter_of(element)
        if letter is not None and not isinstance(element, Uuid):
            name = f"{'compact_' if self.flexible else ''}array_{letter}"
            out.names[name] = primitives.fixed_array(letter, flexible=self.flexible)
            self.flush()
            out.line(f"{self.append}({name}({source}))")
            return
        items = f"items{depth}"
        out.line(f"{items} = {source}")
        if self.flexible:
            out.line(f"n = len({items})")
            self.length(item, "n")
        else:
            self.length(item, f"len({items})")
        self.flush()
        if isinstance(element, Nested):
            with out.block(f"for m{depth + 1} in {items}:"):
                self.struct(struct_spec(element.struct), depth + 1, f"{path}.")
                self.flush()
        elif isinstance(element, Uuid):
            with out.block(f"for item in {items}:"):
                self.run.append(("item.bytes", "16s"))
                self.flush()
        else:
            assert isinstance(element, String), "no message has arrays of anything else"
            with out.block(f"for item in {items}:"):
                out.line("data = item.encode()")
                out.line("n = len(data)")
                if self.flexible:
                    self.compact_length("compact_string", "n")
                else:
                    self.run.append(("n", "h"))
                    self.flush()
                out.line(f"{self.append}(data)")

    # --- tagged fields ------------------------------------------------------------------------

    def tags(
        self, spec: StructSpec, known: list[FieldSpec], me: str, depth: int, path: str
    ) -> None:
        """Write the tagged section that ends each struct: what differs from its default."""
        if not known:
            self.run.append(("0", "B"))
            return
        self.flush()
        out = self.out
        out.line(f"tags{depth} = []")
        for item in sorted(known, key=lambda field: field.tag or 0):
            default = out.constant(default_name(spec, item.name), item.default)
            value = f"m{depth + 1}"
            out.line(f"{value} = {me}.{item.name}")
            # Nearly always the default itself: comparing dataclasses by value is slow.
            quick = f"{value} is not {default} and " if isinstance(item.type, Nested) else ""
            with out.block(f"if {quick}{value} != {default}:"):
                self.tagged(item, value, depth, path + item.name)
        out.line(f"{self.append}(uvarint(len(tags{depth})) if tags{depth} else b'\\0')")
        out.line(f"{self.append}(join(tags{depth}))")

    def tagged(self, item: FieldSpec, source: str, depth: int, path: str) -> None:
        out, outer = self.out, self.append
        pieces = f"pieces{depth}"
        out.line(f"{pieces} = []")
        self.append = f"{pieces}.append"
        if isinstance(item.type, Nested):
            null = "" if item.nullable is None else "b'\\0'"
            self.nested(item.type, source, depth, path, null=null)
        elif item.nullable is not None and item.default is None:
            # Null is never written.
            self.value(item, item.type, source, depth, path)
        else:
            self.field(item, source, depth, path)
        self.flush()
        self.append = outer
        out.line(f"tags{depth}.append(tagged({item.tag}, join({pieces})))")

    def nested(self, type_: Nested[Any], source: str, depth: int, path: str, *, null: str) -> None:
        """Write the struct in a local; `null` is what stands for none, where there may be none."""
        if not null:
            self.struct(struct_spec(type_.struct), depth + 1, f"{path}.")
            return
        self.out.branch(f"if {source} is None:", f"{self.append}({null})")
        with self.out.block("else:"):
            self.run.append(("1", "B"))
            self.struct(struct_spec(type_.struct), depth + 1, f"{path}.")
            self.flush()

    # --- the run ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Emit one write for all pending fields of fixed width."""
        run, self.run = self.run, []
        if not run:
            return
        if run == [("0", "B")]:
            self.out.line(f"{self.append}(b'\\0')")
            return
        pack, _ = self.out.struct("pack", [letter for _, letter in run])
        self.out.line(f"{self.append}({pack}({', '.join(value for value, _ in run)}))")
