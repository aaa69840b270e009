"""Addresses of live servers: passwords that are sent and never shown, ports, and the way out of TLS faults."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

import pytest
from staged import body, staged
from typer.testing import CliRunner
from vllm_text import made, recorded

from augury.cli import app
from augury.tools.live.scrape import scrape
from augury.tools.shared.http import Server, Unreadable, address_of

HEALTHY = made("healthy-eagle3")[0]
SECRET = "s%40cr%2Fet%20x"
BASIC = "Basic b3BzOnNAY3IvZXQgeA=="  # ops:s@cr/et x


@pytest.mark.parametrize(
    ("url", "base", "header"),
    [
        (f"http://ops:{SECRET}@h:80/metrics?x=1", "http://h:80/metrics?x=1", BASIC),
        (f"ops:{SECRET}@h:8000/v1/", "http://h:8000/v1", BASIC),
        ("http://me@h", "http://h", "Basic bWU6"),
        ("[::1]:8000", "http://[::1]:8000", None),
        ("https://[::1]", "https://[::1]", None),
    ],
)
def test_an_address_is_split_from_its_password(url: str, base: str, header: str | None) -> None:
    assert address_of(url) == (base, header)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("h:70000", "the last one is 65535"),
        ("http://u:hunter2", "is not a port"),
        ("http://u:1/hunter2@host", "%2F"),
        ("ftp://u:hunter2@host", "not an address"),
        ("http://u:hunter2@", "not an address"),
    ],
)
def test_wrong_addresses_are_refused_without_their_password(url: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says) as raised:
        Server(url)
    assert raised.value.kind == "address" and "hunter2" not in str(raised.value)


def with_password(url: str) -> str:
    return url.replace("http://", f"http://ops:{SECRET}@")


def test_a_password_is_sent_instead_of_a_key_and_follows_to_no_other_host() -> None:
    with staged(HEALTHY) as other, staged(body("", code=302, Location=f"{other.url}/metrics")) as first:
        scrape(Server(with_password(first.url), "key"))
        assert first.seen[0][1]["Authorization"] == BASIC and "Authorization" not in other.seen[0][1]


@pytest.mark.parametrize("words", [("check",), ("check", "--json"), ("watch", "--once"), ("diagnose",)])
@pytest.mark.parametrize("fails", [False, True])
def test_no_command_shows_a_password(words: tuple[str, ...], fails: bool) -> None:
    texts = [body("no", code=401)] if fails else [body(raw) for raw in recorded("length-one")]
    with staged(*texts) as stage:
        result = CliRunner().invoke(app, [words[0], with_password(stage.url), "--interval", "0.2", *words[1:]])
    shown = result.stdout + result.stderr
    assert stage.url in shown and "s%40cr" not in shown and "s@cr" not in shown and "ops" not in shown
    assert not fails or "refuses this user and password" in shown


def test_a_proxy_that_wants_a_password_is_told_from_a_server_that_wants_a_key() -> None:
    with staged(body("no", code=401, WWW_Authenticate='Basic realm="x"')) as stage, pytest.raises(Unreadable) as raised:
        scrape(Server(stage.url))
    assert "wants a user and password" in str(raised.value) and "http://USER:PASSWORD@HOST" in str(raised.value)


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_a_certificate_of_ones_own_has_a_way_out() -> None:
    error: Any = ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
    error.verify_message = "self-signed certificate"
    said = str(Server("https://x")._unreachable(error))
    assert "self-signed" in said and "SSL_CERT_FILE=" in said
    error.verify_message = "Hostname mismatch, certificate is not valid for 'x'."
    said = str(Server("https://x")._unreachable(error))
    assert "Hostname mismatch" in said and "SSL_CERT_FILE" not in said


@pytest.mark.parametrize("answer", [b"\x15\x03\x03\x00\x02\x02\x16", b""])
def test_http_where_there_is_tls(answer: bytes) -> None:
    """An alert is TLS for certain; a server that only hangs up may be."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(Unreadable) as raised:
            scrape(Server(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    assert "write https://" in str(raised.value) and (raised.value.kind == "tls") == bool(answer)


def test_a_proxy_that_says_so() -> None:
    page = "<html>400 The plain HTTP request was sent to HTTPS port</html>"
    with staged(body(page, "text/html", code=400)) as stage, pytest.raises(Unreadable) as raised:
        scrape(Server(stage.url))
    assert raised.value.kind == "tls" and "write https://" in str(raised.value)
