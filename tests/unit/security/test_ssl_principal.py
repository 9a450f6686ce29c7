"""Whom a certificate names: subjects as Java writes them, and the rules that map them."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.security.mechanism import AuthenticationFailed
from lapse.security.ssl_principal import parse_mapping_rules, principal_of, subject_of
from tests.support.security.certificates import certificates

ALICE = "CN=alice,OU=ServiceUsers,O=Org,C=US"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("pem"))


def der(pem: Path, name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((pem / f"{name}.crt").read_text())


# --- subjects ------------------------------------------------------------------------------------


def test_a_plain_subject(pem: Path) -> None:
    assert subject_of(der(pem, "server")) == "CN=localhost,O=Lapse"


def test_special_characters_and_attributes_without_a_name(pem: Path) -> None:
    """Java writes `emailAddress`, which RFC 2253 has no word for, as its OID and DER."""
    expected = (
        r"1.2.840.113549.1.9.1=#160661" + "40782e7365" + r",CN=alice,OU=R\+D,O=Åcme\, Inc.,C=SE"
    )
    assert subject_of(der(pem, "client")) == expected


def attribute(oid: str, value: bytes, tag: int = 0x0C) -> bytes:
    encoded = bytes.fromhex(oid)
    inner = bytes([6, len(encoded)]) + encoded + bytes([tag, len(value)]) + value
    return bytes([0x30, len(inner)]) + inner


def sized(tag: int, content: bytes) -> bytes:
    """A value whose length is told in as few bytes as it can be."""
    length = len(content)
    if length < 128:
        return bytes([tag, length]) + content
    octets = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + content


def certificate(*names: tuple[bytes, ...], version: bool = True) -> bytes:
    """The part of a certificate that is read, with these relative names in its subject."""

    def tlv(tag: int, content: bytes) -> bytes:
        return bytes([tag, 0x82]) + len(content).to_bytes(2, "big") + content

    subject = tlv(0x30, b"".join(tlv(0x31, b"".join(parts)) for parts in names))
    before = [b"\x02\x01\x05", tlv(0x30, b""), tlv(0x30, b""), tlv(0x30, b"")]
    fields = [b"\xa0\x03\x02\x01\x02"] * version + [*before, subject]
    return tlv(0x30, tlv(0x30, b"".join(fields)) + tlv(0x30, b"") + b"\x03\x01\x00")


CN, DC, OU = "550403", "0992268993f22c640119", "55040b"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        ([(attribute(CN, b"a"),)], "CN=a"),
        ([(attribute(DC, b"com", 0x16),), (attribute(DC, b"x", 0x16),)], "DC=x,DC=com"),
        ([(attribute(CN, b"a"), attribute(OU, b"b"))], "CN=a+OU=b"),
        ([(attribute(CN, b' #a<b>;"\\=  '),)], r"CN=\ \#a\<b\>\;\"\\\=\ \ "),
        ([(attribute(CN, b"  "),)], r"CN=\ \ "),
        ([(attribute(CN, b"a\0b"),)], r"CN=a\00b"),
        ([(attribute(CN, "ü".encode("utf-16-be"), 0x1E),)], "CN=ü"),
        ([(attribute(CN, "ü".encode("latin-1"), 0x14),)], "CN=ü"),
        ([(attribute(CN, "ü".encode("utf-32-be"), 0x1C),)], "CN=ü"),
        ([(attribute(CN, b"\x01", 0x02),)], "CN=#020101"),
        ([(attribute("2a0304", b"x"),)], "1.2.3.4=#0c0178"),
        ([(attribute("2b0601040182371502", b"x"),)], "1.3.6.1.4.1.311.21.2=#0c0178"),
    ],
)
def test_subjects(names: list[tuple[bytes, ...]], expected: str) -> None:
    assert subject_of(certificate(*names)) == expected
    assert subject_of(certificate(*names, version=False)) == expected


@pytest.mark.parametrize("size", [127, 128, 255, 256, 60_000])
def test_names_of_any_length(size: int) -> None:
    """A length has one byte up to 127, and then as many as it needs after a first one."""
    name = "x" * size
    value = sized(0x0C, name.encode())
    part = sized(0x30, b"\x06\x03" + bytes.fromhex(CN) + value)
    assert subject_of(certificate((part,))) == f"CN={name}"


def test_bytes_that_are_no_certificate_are_refused(pem: Path) -> None:
    """Cut off anywhere or with any byte changed: a name or a refusal, nothing else."""
    whole = der(pem, "client")
    rules = parse_mapping_rules("DEFAULT")
    good = principal_of(whole, rules)
    assert good.startswith("User:1.2.840")
    for end in range(len(whole)):
        with pytest.raises(AuthenticationFailed):
            principal_of(whole[:end], rules)
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0xFF
        try:
            assert principal_of(bytes(changed), rules).startswith("User:")
        except AuthenticationFailed:
            continue


# --- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", ALICE, ALICE),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", ALICE, "alice"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U", ALICE, "ALICE"),
        (r"RULE:^CN=(.*?),.*$/X$1Y/L", ALICE, "xalicey"),
        (r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/", ALICE, "alice@ServiceUsers"),
        (r"RULE:^cn=(.*)$/$1/,DEFAULT", ALICE, ALICE),
        (r"RULE:^CN=bob.*$/bob/, RULE:^CN=([^,]*).*$/$1/ ,DEFAULT", ALICE, "alice"),
        # Only the whole name counts.
        (r"RULE:CN=(\w+)/$1/", ALICE, None),
        (r"RULE:^CN=(.*?),OU=X/$1/", ALICE, None),
        # A reference to a group that is none stays; of $12 the 2 may be text.
        (r"RULE:^CN=(.*?),.*$/$1-$2/", ALICE, "alice-$2"),
        (r"RULE:^CN=(.*?),.*$/$12/", ALICE, "alice2"),
        (r"RULE:^CN=.*$/$0/", ALICE, ALICE),
        (r"RULE:^CN=.*$/a\/b\$1/", ALICE, "a/b$1"),
        (r"RULE:^CN=(?<who>\w+),.*$/$1/", ALICE, "alice"),
        (r"RULE:^CN=(a)(x)?.*$/$1$2/", ALICE, "a"),
        (r"RULE:^a\/(.*)$/$1/", "a/b", "b"),
        ("", ALICE, None),
        (" , DEFAULT, ", ALICE, ALICE),
    ],
)
def test_rules(rules: str, name: str, expected: str | None) -> None:
    parsed = parse_mapping_rules(rules)
    mapped = next((m for rule in parsed if (m := rule.apply(name)) is not None), None)
    assert mapped == expected


@pytest.mark.parametrize(
    "rules",
    [
        "default", "DEFAULTX", "RULE:", "RULE:^a$", "RULE:^a$/b", "RULE:^a$/b/X", "RULE:^a$/b/LU",
        "RULE:a/b/c/", "RULE:(/b/", "DEFAULT;DEFAULT", "RULE:a/b/L RULE:a/b/",
    ],
)  # fmt: skip
def test_rules_that_are_none(rules: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("ssl.principal.mapping.rules")):
        parse_mapping_rules(rules)


def test_the_principal(pem: Path) -> None:
    rules = parse_mapping_rules(r"RULE:^.*CN=(.*?),.*$/$1/")
    assert principal_of(der(pem, "client"), rules) == "User:alice"
    with pytest.raises(AuthenticationFailed, match="no rule of"):
        principal_of(der(pem, "client"), parse_mapping_rules("RULE:^CN=bob$/bob/"))
