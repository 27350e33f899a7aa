"""Logging in to Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.bus.endpoint import ask_admin
from pipeline.bus.security import read_security
from pipeline.errors import ConfigError, RackpulseError
from tests.support.kafka import RunningKafka
from tests.support.wait import wait_until

SASL = """
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "PLAIN"
sasl_username = "rackpulse"
sasl_password_file = "password"
"""


def write(folder: Path, text: str, word: str = "secret-pw", mode: int = 0o600) -> Path:
    (folder / "password").write_text(f"{word}\n")
    (folder / "password").chmod(mode)
    path = folder / "kafka.toml"
    path.write_text(text)
    return path


def test_options_are_those_of_kafka_python(tmp_path: Path) -> None:
    assert read_security(None) == {}
    path = write(tmp_path, SASL.replace("PLAINTEXT", "SSL") + 'ssl_cafile = "ca.pem"')
    assert read_security(path) == {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(tmp_path / "ca.pem"),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "rackpulse",
        "sasl_plain_password": "secret-pw",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('security_protocol = "SASL_SSL"', "needs sasl_mechanism, sasl_username"),
        (f"{SASL}ssl_check_hostname = false", "ssl_check_hostname"),
        (f'{SASL}sasl_password = "secret-pw"', "sasl_password"),
        (SASL.replace('"PLAIN"', '"GSSAPI"'), "sasl_mechanism"),
        ("security_protocol", "not TOML"),
    ],
)
def test_a_wrong_file_is_named_and_shows_no_secret(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_security(write(tmp_path, text))
    assert "secret-pw" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        read_security(write(tmp_path, SASL, mode=0o644))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_security(tmp_path / "none.toml")


@pytest.mark.kafka
def test_a_broker_that_asks_for_a_password(tmp_path: Path) -> None:
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="admin-pw" user_admin="admin-pw" user_rackpulse="secret-pw";'
    )
    kafka = RunningKafka(
        tmp_path / "kafka",
        properties={
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": login,
        },
    )
    good = kafka.settings(kafka_options_file=write(tmp_path, SASL))
    (tmp_path / "bad").mkdir()
    bad = kafka.settings(kafka_options_file=write(tmp_path / "bad", SASL, word="wrong"))

    def brokers() -> int:
        try:
            found = ask_admin(good, lambda admin: admin.describe_cluster(), timeout_s=2)
        except RackpulseError:
            return 0
        return len(found["brokers"])

    kafka.nodes[1].start()
    try:
        wait_until(lambda: brokers() == 1, "the broker to let us in", 60)
        with pytest.raises(RackpulseError, match=f"is the login of {bad.kafka_options_file} right"):
            ask_admin(bad, lambda admin: admin.describe_cluster(), timeout_s=3)
    finally:
        kafka.stop()
