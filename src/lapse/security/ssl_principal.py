"""Whom a client certificate names: its subject, and `ssl.principal.mapping.rules` (KIP-371).

The subject is written as Java writes it (RFC 2253: last part first, `CN=alice,OU=x,C=SE`), since
rules and ACLs are written for that. Python's `ssl` hands out the subject under names of OpenSSL's
and without the types of its strings, so it is read from the certificate's DER here. The
certificate has been verified by then; what does not parse is refused all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lapse.base.errors import ConfigError
from lapse.security.mechanism import AuthenticationFailed

MAPPING_RULES = "ssl.principal.mapping.rules"

_SEQUENCE, _OID, _VERSION = 0x30, 0x06, 0xA0
_ENCODINGS = {
    0x0C: "utf-8", 0x12: "ascii", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1A: "ascii",
    0x1C: "utf-32-be", 0x1E: "utf-16-be",
}  # fmt: skip
# The attributes that have a name in RFC 2253; all others are written as a number and in
# hexadecimal.
_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET",
    "2.5.4.10": "O", "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
_SPECIAL = re.compile(r'[,=+<>#;"\\]')

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))?"
    r"\s*(?:,|$)"
)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MappingRule:
    """One rule; without a pattern it is DEFAULT, which takes the whole name.

    Attributes:
        case: `L` or `U` changes the result's case, the empty string does not.
    """

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The name mapped; None where the rule is not for it."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._replaced, name)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)

    def _replaced(self, match: re.Match[str]) -> str:
        groups = match.re.groups

        def part(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            digits = reference[2]
            # `$12` is group 12 if there are so many, else group 1 and a 2.
            length = len(digits)
            while length > 1 and int(digits[:length]) > groups:
                length -= 1
            if int(digits[:length]) > groups:
                return reference[0]
            return (match[int(digits[:length])] or "") + digits[length:]

        return _REFERENCE.sub(part, self.replacement)


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """The value of `ssl.principal.mapping.rules`, in order.

    Raises:
        ConfigError: a rule is neither DEFAULT nor RULE:pattern/replacement/[LU].
    """
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ConfigError(
                f"{MAPPING_RULES}: {text[position:].strip()!r}: allowed are DEFAULT and "
                "RULE:pattern/replacement/[LU], parted by commas"
            )
        position = match.end()
        if match["default"]:
            rules.append(MappingRule())
        elif match["pattern"] is not None:
            # Java names groups without the P.
            pattern = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", match["pattern"])
            try:
                compiled = re.compile(pattern)
            except re.error as e:
                raise ConfigError(f"{MAPPING_RULES}: pattern {match['pattern']!r}: {e}") from None
            rules.append(MappingRule(compiled, match["replacement"], match["case"]))
    return tuple(rules)


def principal_of(certificate: bytes, rules: tuple[MappingRule, ...]) -> str:
    """`User:name` by the first rule that is for the subject of a certificate in DER.

    Raises:
        AuthenticationFailed: no rule is, or the certificate does not parse.
    """
    try:
        name = subject_of(certificate)
    except (ValueError, IndexError) as e:
        raise AuthenticationFailed(f"the certificate's subject does not parse: {e}") from None
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return f"User:{mapped}"
    raise AuthenticationFailed(f"no rule of {MAPPING_RULES} is for {name!r}")


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER; raises ValueError or IndexError where it is none."""
    outer = _only(_SEQUENCE, certificate)
    fields = list(_values(_only(_SEQUENCE, outer, rest=True)))
    # Version (if it is not 1), serial number, algorithm, issuer, validity, subject.
    tag, subject = fields[5 if fields[0][0] == _VERSION else 4]
    if tag != _SEQUENCE:
        raise ValueError("no subject where one must be")
    return ",".join(reversed([_relative_name(part) for _, part in _values(subject)]))


def _relative_name(attributes: bytes) -> str:
    parts = []
    for _, attribute in _values(attributes):
        (oid_tag, oid), (tag, value) = _values(attribute)
        if oid_tag != _OID:
            raise ValueError("an attribute without a type")
        number = _dotted(oid)
        keyword = _KEYWORDS.get(number)
        if keyword is None or tag not in _ENCODINGS:
            parts.append(f"{keyword or number}=#{_der(tag, value).hex()}")
        else:
            parts.append(f"{keyword}={_escaped(value.decode(_ENCODINGS[tag]))}")
    return "+".join(parts)


def _escaped(text: str) -> str:
    """As RFC 2253 has it: special characters, and blanks at either end."""
    core = text.strip(" ")
    before = len(text) - len(text.lstrip(" ")) if core else 0
    after = len(text) - len(core) - before
    return "\\ " * before + _SPECIAL.sub(r"\\\g<0>", core).replace("\0", "\\00") + "\\ " * after


# --- DER -----------------------------------------------------------------------------------------


def _only(tag: int, data: bytes, *, rest: bool = False) -> bytes:
    """The content of the first value, which has this tag."""
    found, content, end = _value(data, 0)
    if found != tag or (end != len(data) and not rest):
        raise ValueError("not a certificate")
    return content


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        tag, content, position = _value(data, position)
        yield tag, content


def _value(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Tag, content, and where the next value begins."""
    tag, length, start = data[position], data[position + 1], position + 2
    if length & 0x80:
        octets = length & 0x7F
        if not 1 <= octets <= 4:
            raise ValueError("a length that certificates do not have")
        length = int.from_bytes(data[start : start + octets], "big")
        start += octets
    end = start + length
    if end > len(data):
        raise ValueError("a value that ends after its container")
    return tag, data[start:end], end


def _der(tag: int, value: bytes) -> bytes:
    length = len(value)
    if length < 0x80:
        return bytes([tag, length]) + value
    octets = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + value


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for octet in oid:
        number = number << 7 | octet & 0x7F
        if not octet & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
