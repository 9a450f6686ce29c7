"""Certificates for tests: made by the openssl command, or those checked in where it is missing.

`python -m tests.support.security.certificates` makes the checked-in ones (`pem/`) anew; they are
good until 2120. Each NAME has NAME.crt, NAME.key (PKCS#8) and NAME.pem, which has both. Nothing
here protects anything.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

CHECKED_IN = Path(__file__).with_name("pem")
KEY_PASSWORD = "key-s3cret"

_CONFIG = """\
[ca]
default_ca = own
[own]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = anything
unique_subject = no
[anything]
[leaf]
subjectAltName = DNS:localhost, IP:127.0.0.1
basicConstraints = CA:FALSE
[authority]
basicConstraints = critical, CA:TRUE
[req]
distinguished_name = dn
utf8 = yes
string_mask = utf8only
[dn]
"""
_CLIENT = "/C=SE/O=Åcme, Inc./OU=R\\+D/CN=alice/emailAddress=a@x.se"
# Name: subject, who signs, its extensions, from which year until which.
_CERTIFICATES = {
    "ca": ("/CN=ca", "ca", "authority", 2020, 2120),
    "other": ("/CN=other", "other", "authority", 2020, 2120),
    "middle": ("/CN=middle", "ca", "authority", 2020, 2120),
    "server": ("/O=Lapse/CN=localhost", "ca", "leaf", 2020, 2120),
    "client": (_CLIENT, "ca", "leaf", 2020, 2120),
    "expired": ("/CN=localhost", "ca", "leaf", 2020, 2021),
    "future": ("/CN=localhost", "ca", "leaf", 2119, 2120),
    "stranger": ("/CN=localhost", "other", "leaf", 2020, 2120),
    "below": ("/CN=localhost", "middle", "leaf", 2020, 2120),
}


def certificates(into: Path) -> Path:
    """A folder with all of them: `into`, or the checked-in one."""
    if shutil.which("openssl") is None:
        return CHECKED_IN
    make(into)
    return into


def make(folder: Path) -> None:
    """Make them by openssl; takes a second."""

    def openssl(*arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    (folder / "openssl.cnf").write_text(_CONFIG, encoding="utf-8")
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01\n")
    config = ("-config", "openssl.cnf", "-utf8")
    for name, (subject, issuer, extensions, since, until) in _CERTIFICATES.items():
        key, request = f"{name}.key", f"{name}.csr"
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("genpkey", *curve, "-out", key)
        openssl("req", *config, "-new", "-subj", subject, "-key", key, "-out", request)
        by = ("-selfsign",) if issuer == name else ("-cert", f"{issuer}.crt")
        dates = ("-startdate", f"{since}0101000000Z", "-enddate", f"{until}0101000000Z")
        files = ("-in", request, "-out", f"{name}.crt", "-keyfile", f"{issuer}.key")
        options = ("-batch", "-notext", "-preserveDN", "-extensions", extensions)
        openssl("ca", *config, *options, *by, *dates, *files)
        _join(folder, name)
    locked = ("-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{KEY_PASSWORD}")
    openssl("pkcs8", *locked, "-in", "server.key", "-out", "locked.key")
    shutil.copy(folder / "server.crt", folder / "locked.crt")
    _join(folder, "locked")


def _join(folder: Path, name: str) -> None:
    parts = [(folder / f"{name}.{part}").read_text() for part in ("key", "crt")]
    (folder / f"{name}.pem").write_text("".join(parts))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make(Path(made))
        CHECKED_IN.mkdir(exist_ok=True)
        for kind in ("*.crt", "*.key", "*.pem"):
            for file in Path(made).glob(kind):
                if not file.stem.isdigit():
                    shutil.copy(file, CHECKED_IN)
