"""Makes certificates for servers on loopback."""

import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Final

import pytest


def trust_no_strangers() -> None:
    """Read the machine's list of authorities in no TLS context of this process: 25 ms for each, and no test calls
    anyone outside. What a test itself sets SSL_CERT_FILE to is read."""
    of_the_machine, read = os.environ.get("SSL_CERT_FILE"), ssl.SSLContext.set_default_verify_paths

    def read_ours(context: ssl.SSLContext) -> None:
        if os.environ.get("SSL_CERT_FILE") != of_the_machine:
            read(context)

    ssl.SSLContext.set_default_verify_paths = read_ours  # type: ignore[assignment]


def openssl() -> str:
    """The program's path. Without it the test is skipped, or fails if CI is set."""
    found = shutil.which("openssl")
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail("no openssl on this machine")
    pytest.skip("no openssl on this machine")


_NEW_KEY: Final = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def self_signed(folder: Path, name: str = "localhost") -> Path:
    """A self-signed certificate for a name, with its key in the same file."""
    key, certificate, both = folder / "server.key", folder / "server.crt", folder / "server.pem"
    options = f"req -x509 {_NEW_KEY} -days 2 -subj /CN={name} -addext subjectAltName=DNS:{name}"
    command = [openssl(), *options.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return both


_REQUEST: Final = f"req {_NEW_KEY}"
_AUTHORITY: Final = f"{_REQUEST} -x509 -days 2 -addext keyUsage=critical,keyCertSign,cRLSign"
_SIGN: Final = "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names"


def authority(folder: Path, names: str) -> Path:
    """Makes a folder with an authority `ca`, a certificate `server` for these names (`DNS:localhost`) that it signed,
    and an unrelated `other`; each is a `.crt` and a `.key`."""
    program = openssl()
    folder.mkdir()
    (folder / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
    for command in (
        *(f"{_AUTHORITY} -subj /CN={name} -keyout {name}.key -out {name}.crt" for name in ("ca", "other")),
        f"{_REQUEST} -subj /CN=localhost -keyout server.key -out server.csr",
        f"{_SIGN} -days 2 -out server.crt",
    ):
        subprocess.run([program, *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


def serving(certificate: Path) -> ssl.SSLContext:
    """The TLS context of a server with this certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context
