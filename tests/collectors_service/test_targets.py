"""Target files of both forms, names that resolve, passwords in files, certificates."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import SystemClock
from pipeline.collectors import discovery as discovery_module
from pipeline.collectors.discovery import Discovery
from pipeline.collectors.fetch import FetcherFactory, FetchError
from pipeline.collectors.targets import DnsName, Target, load_targets, read_credentials, resolve
from pipeline.errors import ConfigError
from tests.support.exporters import dcgm_page


def write(path: Path, raw: object) -> Path:
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return path


def test_file_sd(tmp_path: Path) -> None:
    raw = [
        {
            "targets": ["h1:9400", "h2:9400"],
            "labels": {"kind": "dcgm", "__scrape_interval__": "15s", "__scrape_timeout__": "500ms"},
        },
        {
            "targets": ["[2001:db8::1]:9352"],
            "labels": {
                "job": "nmxt", "host": "s1", "__scheme__": "https", "__metrics_path__": "/x",
            },
        },
        {"targets": [], "labels": {"kind": "dcgm"}},
    ]  # fmt: skip
    first, second, third = load_targets(write(tmp_path / "sd.json", raw)).targets
    assert (first.name, first.url, first.host) == ("dcgm/h1:9400", "http://h1:9400/metrics", "h1")
    assert (first.interval_s, first.timeout_s, second.host) == (15.0, 0.5, "h2")
    assert third.url == "https://[2001:db8::1]:9352/x"
    assert (third.kind, third.host, third.interval_s) == ("nmxt", "s1", 10.0)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("{", "cannot be read"),
        ({"targets": [{"name": "a", "kind": "dcgm"}]}, "give either url or path"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "ftp://x"}]}, "url must begin with"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://u:p@x/"}]}, "take user and"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://x/", "tpyo": 1}]}, "tpyo"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://x/", "interval_s": 0}]},
         "interval_s"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://x/"}] * 2},
         "stands there twice"),
        ({"targets": [{"name": "a", "kind": "dcgmm", "url": "http://x/"}]}, 'no reader "dcgmm"'),
        ({"dns": [{"name": "a", "kind": "dcgmm", "port": 1}]}, 'no reader "dcgmm"'),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://[::1"}]}, "url"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://h:abc/"}]}, "url"),
        ({"targets": [{"name": "a", "kind": "dcgm", "url": "http://h:99999/"}]}, "url"),
        ('{"targets": [{"interval_s": ' + "9" * 5_000 + "}]}", "cannot be read"),
        ([{"targets": ["[::1"], "labels": {"kind": "dcgm"}}], "[::1"),
        ([{"targets": ["h:1"]}], 'needs a label "kind"'),
        ([{"labels": {}}], "no list of targets"),
        (["x"], "no list of targets"),
        ("5", "Input should be"),
    ],
)  # fmt: skip
def test_wrong_files_say_where(tmp_path: Path, raw: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_targets(write(tmp_path / "targets.json", raw))
    assert text in str(caught.value)
    assert "targets.json" in str(caught.value)
    assert "u:p@" not in str(caught.value)


def test_what_file_sd_may_hold(tmp_path: Path) -> None:
    odd = {"kind": "dcgm", "__scrape_interval__": "\u00b2s"}
    raw = [{"targets": ["h1:9400"], "labels": odd}, {"targets": ["h1:9400"], "labels": odd}]
    [target] = load_targets(write(tmp_path / "sd.json", "\ufeff" + json.dumps(raw))).targets
    assert (target.name, target.interval_s) == ("dcgm/h1:9400", 10.0)


def test_a_name_that_is_none_costs_no_other_target(tmp_path: Path) -> None:
    raw = {
        "targets": [{"name": "a", "kind": "dcgm", "url": "http://1/"}],
        "dns": [{"name": "a" * 70 + ".example", "port": 9400, "kind": "dcgm"}],
    }
    found = asyncio.run(Discovery([write(tmp_path / "t.json", raw)]).first())
    assert set(found) == {"a"}


def test_names_are_resolved_to_all_their_addresses() -> None:
    found = resolve(DnsName(name="localhost", port=9400, kind="dcgm", interval_s=3))
    assert "http://127.0.0.1:9400/metrics" in {target.url for target in found}
    assert {target.interval_s for target in found} == {3}
    with pytest.raises(OSError, match=r".+"):
        resolve(DnsName(name="no-such-host.invalid", port=1, kind="dcgm"))


def test_names_that_move_and_names_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [["10.0.0.1"], OSError("no answer"), ["10.0.0.1", "10.0.0.2"]]

    def answer(name: DnsName) -> list[Target]:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return [Target(name=f"dcgm/{ip}", kind="dcgm", url=f"http://{ip}/") for ip in found]

    monkeypatch.setattr(discovery_module, "resolve", answer)
    monkeypatch.setattr(discovery_module, "RESOLVE_EVERY_S", 0.0)
    path = write(tmp_path / "t.json", {"dns": [{"name": "x", "port": 1, "kind": "dcgm"}]})

    async def look() -> list[Any]:
        discovery = Discovery([path])
        return [await discovery.first(), await discovery.changed(), await discovery.changed()]

    first, failed, moved = asyncio.run(look())
    assert set(first) == {"dcgm/10.0.0.1"}
    assert failed is None  # what was resolved before is kept
    assert set(moved) == {"dcgm/10.0.0.1", "dcgm/10.0.0.2"}


def test_several_files_are_one_list(tmp_path: Path) -> None:
    one = {"targets": [{"name": "a", "kind": "dcgm", "url": "http://1/"}]}
    two = {"targets": [{"name": "a", "kind": "dcgm", "url": "http://2/"},
                       {"name": "b", "kind": "dcgm", "url": "http://3/"}]}  # fmt: skip
    files = [write(tmp_path / "1.json", one), write(tmp_path / "2.json", two)]
    found = asyncio.run(Discovery(files).first())
    assert {name: target.url for name, target in found.items()} == {
        "a": "http://1/", "b": "http://3/",
    }  # fmt: skip


def test_credentials_only_their_owner_may_read(tmp_path: Path) -> None:
    path = write(tmp_path / "bmc.json", {"user": "monitor", "password": "pw-7"})
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_credentials(path)
    path.chmod(0o600)
    assert read_credentials(path) == ("monitor", "pw-7")
    for raw in ("pw-7", '{"user": "pw-7"}', "[]"):
        write(path, raw)
        with pytest.raises(ConfigError) as caught:
            read_credentials(path)
        assert "pw-7" not in str(caught.value)


def certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bmc.test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "bmc.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = dcgm_page("h", 1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    pem = certificate(tmp_path)
    server = HTTPServer(("127.0.0.1", 0), _Page)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port, pem
    server.shutdown()
    thread.join(5)
    server.server_close()


def fetch(target: Target) -> bytes:
    async def once() -> bytes:
        fetcher = FetcherFactory(SystemClock()).make(target)
        try:
            return (await fetcher.fetch()).body
        finally:
            await fetcher.close()

    return asyncio.run(once())


def test_certificates_are_checked(tls_server: tuple[int, Path], tmp_path: Path) -> None:
    port, pem = tls_server
    target = Target(name="t", kind="dcgm", url=f"https://127.0.0.1:{port}/metrics", ca_file=pem)
    assert fetch(target).startswith(b"# HELP")
    with pytest.raises(FetchError, match="tls") as caught:
        fetch(target.model_copy(update={"ca_file": None}))
    assert caught.value.reason == "tls"
    # Vouched for, but as another machine than the one that answers.
    with pytest.raises(FetchError, match="tls"):
        fetch(target.model_copy(update={"url": f"https://localhost:{port}/metrics"}))
    with pytest.raises(ConfigError, match="holds no certificates"):
        fetch(target.model_copy(update={"ca_file": write(tmp_path / "x.pem", "no")}))


def test_files_of_this_host(tmp_path: Path) -> None:
    page = tmp_path / "page.prom"
    page.write_bytes(dcgm_page("h", 1))
    assert fetch(Target(name="t", kind="dcgm", path=page)) == page.read_bytes()
    with pytest.raises(FetchError, match="not_readable"):
        fetch(Target(name="t", kind="dcgm", path=tmp_path / "none"))
    with pytest.raises(FetchError, match="reads files"):
        fetch(Target(name="t", kind="dcgm", path=tmp_path))
    tree = tmp_path / "redfish" / "v1" / "Chassis" / "1"
    tree.mkdir(parents=True)
    chassis = {"@odata.type": "#Chassis.v1_0_0.Chassis", "@odata.id": "/redfish/v1/Chassis/1"}
    write(tree / "index.json", chassis)
    assert b"/redfish/v1/Chassis/1" in fetch(Target(name="t", kind="redfish", path=tmp_path))
