"""Stock clients by TLS and SASL: who may come in, what they may do, and what nobody is told."""

from __future__ import annotations

import asyncio
import base64
import gc
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from lapse.base.errors import ErrorCode, LapseError
from lapse.base.errors import KafkaError as OwnError
from lapse.base.ids import TopicPartition as OwnPartition
from lapse.client.admin import Admin
from lapse.client.consumer import Consumer as OwnConsumer
from lapse.client.login import Login
from lapse.client.login import login as own_login
from lapse.client.producer import Producer as OwnProducer
from lapse.testing.broker_process import BrokerProcess
from tests.support.security.certificates import KEY_PASSWORD, certificates

SECONDS = 30
ADMIN, ALICE, BOB = "admin-s3cret", "alice-s3cret", "bob-s3cret"
SECRETS = (ADMIN, ALICE, BOB, KEY_PASSWORD)
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
SENT = [b"%d" % n + bytes(50_000) for n in range(20)]  # long enough for slices of files


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("security") / "data"
    with BrokerProcess(data, settings(pem)) as running:
        prepare(running, pem)
        yield running
        log = running.log()
        assert "ended by an error of ours" not in log
        for secret in SECRETS:
            assert secret not in log
            assert base64.b64encode(secret.encode()).decode() not in log


def settings(pem: Path) -> dict[str, str]:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="admin" password="{ADMIN}" user_admin="{ADMIN}" user_bob="{BOB}";'
    )
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,CERTS://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "listener.security.protocol.map": (
            "SASL_PLAINTEXT:SASL_PLAINTEXT,CERTS:SSL,SASL_SSL:SASL_SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem / "locked.pem"),
        "ssl.key.password": KEY_PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pem / "ca.crt"),
        "listener.name.certs.ssl.client.auth": "required",
        "listener.name.certs.ssl.principal.mapping.rules": (
            "RULE:^.*CN=([a-z]+),.*$/$1-by-certificate/,DEFAULT"
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "lapse.http.protocol": "https",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "true",
    }


def prepare(broker: BrokerProcess, pem: Path) -> None:
    """Alice by SCRAM, may read and write `t`; bob by PLAIN, may do nothing."""
    admin = AdminClient(plain(broker, "admin", ADMIN))
    info = {m: ScramCredentialInfo(m, 4096) for m in (ScramMechanism.SCRAM_SHA_256,
                                                      ScramMechanism.SCRAM_SHA_512)}  # fmt: skip
    wanted = [UserScramCredentialUpsertion("alice", i, ALICE.encode()) for i in info.values()]
    for one in wanted:
        wait(admin.alter_user_scram_credentials([one]))
    wait(admin.create_topics([NewTopic("t", 1), NewTopic("hidden", 1)]))
    who = ("User:alice", "User:alice-by-certificate")
    topic, group = (ResourceType.TOPIC, "t"), (ResourceType.GROUP, "g-")
    allowed = [
        acl(*topic, ResourcePatternType.LITERAL, user, operation)
        for user in who
        for operation in (READ, WRITE)
    ]
    allowed += [acl(*group, ResourcePatternType.PREFIXED, user, READ) for user in who]
    wait(admin.create_acls(allowed))


def acl(kind: Any, name: str, pattern: Any, who: str, operation: Any) -> AclBinding:
    return AclBinding(kind, name, pattern, who, "*", operation, AclPermissionType.ALLOW)


def wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(SECONDS)


def client(broker: BrokerProcess, listener: str, **settings: object) -> dict[str, Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": broker.listeners[listener], "log_level": 0, **given}


def plain(broker: BrokerProcess, user: str, password: str, **more: object) -> dict[str, Any]:
    return client(
        broker, "SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
        sasl_username=user, sasl_password=password, **more,
    )  # fmt: skip


def sasl(
    broker: BrokerProcess, pem: Path, mechanism: str, user: str, password: str, **more: object
) -> dict[str, Any]:
    return client(
        broker, "SASL_SSL", security_protocol="SASL_SSL", sasl_mechanism=mechanism,
        sasl_username=user, sasl_password=password, ssl_ca_location=str(pem / "ca.crt"),
        ssl_endpoint_identification_algorithm="https", **more,
    )  # fmt: skip


def certified(broker: BrokerProcess, pem: Path, name: str, **more: object) -> dict[str, Any]:
    return client(
        broker, "CERTS", security_protocol="SSL", ssl_ca_location=str(pem / "ca.crt"),
        ssl_certificate_location=str(pem / f"{name}.crt"),
        ssl_key_location=str(pem / f"{name}.key"), **more,
    )  # fmt: skip


def error_of(settings: dict[str, Any], *, seconds: float = 10) -> KafkaError | None:
    """The first error a client reports of coming in; None if it comes in."""
    seen: list[KafkaError] = []
    admin = AdminClient({**settings, "error_cb": seen.append})
    end = time.monotonic() + seconds
    while not seen and time.monotonic() < end:
        try:
            admin.list_topics(timeout=0.5)
        except KafkaException:
            admin.poll(0.1)
        else:
            return None
    return seen[0] if seen else KafkaError(KafkaError._TIMED_OUT)


LOGINS = ["PLAIN admin", "SCRAM-SHA-256 alice", "SCRAM-SHA-512 alice", "certificate"]


@pytest.fixture(params=LOGINS)
def login(request: pytest.FixtureRequest, broker: BrokerProcess, pem: Path) -> dict[str, Any]:
    if request.param == "certificate":
        return certified(broker, pem, "client")
    mechanism, user = request.param.split()
    return sasl(broker, pem, mechanism, user, ADMIN if user == "admin" else ALICE)


def test_who_may_come_in_writes_and_reads(login: dict[str, Any]) -> None:
    producer = Producer(login)
    failed: list[Any] = []
    for value in SENT:
        producer.produce("t", value, on_delivery=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(SECONDS) == 0
    assert not failed
    consumer = Consumer({**login, "group.id": "g-read", "auto.offset.reset": "earliest"})
    low, high = consumer.get_watermark_offsets(TopicPartition("t", 0), SECONDS)
    consumer.assign([TopicPartition("t", 0, high - len(SENT))])
    got = []
    end = time.monotonic() + SECONDS
    while len(got) < len(SENT) and time.monotonic() < end:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            got.append(message.value())
    consumer.close()
    assert low == 0
    assert got == SENT


# A producer of aiokafka that is refused leaves the closing of its connection to the broker.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_aiokafka_comes_in(broker: BrokerProcess, pem: Path, mechanism: str) -> None:
    user, password = ("admin", ADMIN) if mechanism == "PLAIN" else ("alice", ALICE)
    context = ssl.create_default_context(cafile=str(pem / "ca.crt"))

    def common(password: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": broker.listeners["SASL_SSL"],
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }

    async with aiokafka.AIOKafkaProducer(**common(password)) as producer:
        await producer.send_and_wait("t", b"by aiokafka")
    producer = aiokafka.AIOKafkaProducer(**common("wrong"))
    with pytest.raises(aiokafka.errors.KafkaError):
        await producer.start()
    await producer.stop()
    del producer
    gc.collect()  # here, where it is forgiven


def own(pem: Path, how: str, password: str = "") -> Login:
    """Our client's way in, by the settings of a properties file of Kafka's."""
    believed = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem / "ca.crt")}
    if how == "certificate":
        shown = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem / "client.pem")}
        return own_login({"security.protocol": "SSL", **believed, **shown})
    mechanism, user = how.split()
    password = password or (ADMIN if user == "admin" else ALICE)
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    jaas = f'org.apache.kafka.common.security.{module}LoginModule required username="{user}" '
    said = {"sasl.mechanism": mechanism, "sasl.jaas.config": f'{jaas}password="{password}";'}
    return own_login({"security.protocol": "SASL_SSL", **believed, **said})


@pytest.mark.parametrize("how", LOGINS)
async def test_our_own_client_comes_in(broker: BrokerProcess, pem: Path, how: str) -> None:
    bootstrap = broker.listeners["CERTS" if how == "certificate" else "SASL_SSL"]
    value = f"by {how}".encode()
    login = own(pem, how)
    async with asyncio.timeout(SECONDS):
        async with OwnProducer(bootstrap, login=login) as producer:
            where = await (await producer.send("t", b"k", value, partition=0))
        async with OwnConsumer(bootstrap, login=login) as consumer:
            await consumer.assign({OwnPartition("t", 0): where.offset})
            (record,) = await consumer.poll(timeout_ms=5000)
    assert record.value == value


@pytest.mark.parametrize("how", LOGINS[:3])
async def test_our_own_client_is_refused_in_words(
    broker: BrokerProcess, pem: Path, how: str
) -> None:
    bootstrap = broker.listeners["SASL_SSL"]
    with pytest.raises(OwnError, match="Authentication failed") as refused:
        await Admin.open(bootstrap, login=own(pem, how, "wrong"))
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "wrong" not in str(refused.value)


async def test_our_own_client_believes_no_other_broker(broker: BrokerProcess, pem: Path) -> None:
    stranger = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem / "other.crt")}
    login = own_login({"security.protocol": "SSL", **stranger})
    with pytest.raises(LapseError, match="certificate verify failed"):
        await Admin.open(broker.listeners["CERTS"], login=login)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "admin", "nobody"])
def test_wrong_passwords_are_refused_alike(
    broker: BrokerProcess, pem: Path, mechanism: str, user: str
) -> None:
    error = error_of(sasl(broker, pem, mechanism, user, "wrong"))
    assert error is not None
    assert error.code() == KafkaError._AUTHENTICATION
    assert "invalid credentials" in error.str() or "Invalid username or password" in error.str()
    assert "no such user" not in error.str()


def test_a_mechanism_that_is_not_enabled(broker: BrokerProcess) -> None:
    settings = {**plain(broker, "admin", ADMIN), "sasl.mechanism": "OAUTHBEARER"}
    settings |= {"sasl.oauthbearer.config": "principal=admin",
                 "enable.sasl.oauthbearer.unsecure.jwt": True}  # fmt: skip
    settings = {k: v for k, v in settings.items() if k not in {"sasl.username", "sasl.password"}}
    error = error_of(settings)
    assert error is not None
    assert error.code() in {KafkaError._AUTHENTICATION, KafkaError.UNSUPPORTED_SASL_MECHANISM}


@pytest.mark.parametrize("name", ["expired", "future", "stranger", None])
def test_certificates_that_are_not_believed(
    broker: BrokerProcess, pem: Path, name: str | None
) -> None:
    if name is None:
        ca = str(pem / "ca.crt")
        settings = client(broker, "CERTS", security_protocol="SSL", ssl_ca_location=ca)
    else:
        settings = certified(broker, pem, name)
    before = metric(broker, 'failed_authentication_total{listener="CERTS"}')
    error = error_of(settings)
    assert error is not None
    assert error.code() in {KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    assert metric(broker, 'failed_authentication_total{listener="CERTS"}') > before


def test_a_broker_that_the_client_does_not_believe(broker: BrokerProcess, pem: Path) -> None:
    settings = sasl(broker, pem, "PLAIN", "admin", ADMIN)
    error = error_of({**settings, "ssl.ca.location": str(pem / "other.crt")})
    assert error is not None
    assert "certificate verify failed" in error.str()  # as _SSL, or as the connection's end


def test_no_plaintext_client_comes_in(broker: BrokerProcess) -> None:
    for listener in broker.listeners:
        assert error_of(client(broker, listener), seconds=3) is not None


# --- what they may do ----------------------------------------------------------------------------


def test_topics_that_may_not_be_described_are_not_told_of(broker: BrokerProcess, pem: Path) -> None:
    alice = AdminClient(sasl(broker, pem, "SCRAM-SHA-256", "alice", ALICE))
    bob = AdminClient(plain(broker, "bob", BOB))
    assert set(alice.list_topics(timeout=SECONDS).topics) == {"t"}
    assert bob.list_topics(timeout=SECONDS).topics == {}
    there, missing = (
        bob.list_topics(name, timeout=SECONDS).topics[name].error for name in ("hidden", "missing")
    )
    assert there.code() == missing.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    admin = AdminClient(plain(broker, "admin", ADMIN))
    assert "missing" not in admin.list_topics(timeout=SECONDS).topics  # nor made by asking


def test_unauthorised_calls_are_refused(broker: BrokerProcess) -> None:
    """Without DescribeAcls and DescribeUserScramCredentials, whose refusals this client drops.

    It takes the first for an empty list, and crashes at the second.
    """
    bob = plain(broker, "bob", BOB)
    admin = AdminClient(bob)
    topic, cluster = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED
    group = KafkaError.GROUP_AUTHORIZATION_FAILED
    any_acl = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    mine = acl(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:bob", READ)
    refusals = [
        (admin.create_topics([NewTopic("new", 1)])["new"], topic),
        *((admin.delete_topics([name])[name], topic) for name in ("hidden", "missing")),
        *((future, cluster) for future in admin.create_acls([mine]).values()),
        *((future, cluster) for future in admin.delete_acls([any_acl]).values()),
        (admin.describe_configs([ConfigResource("topic", "hidden")]), topic),
        (admin.describe_configs([ConfigResource("broker", "0")]), cluster),
        *((f, group) for f in admin.describe_consumer_groups(["g-read"]).values()),
        *((f, group) for f in admin.delete_consumer_groups(["g-read"]).values()),
    ]
    for asked, code in refusals:
        future = next(iter(asked.values())) if isinstance(asked, dict) else asked
        with pytest.raises(KafkaException) as refused:
            future.result(SECONDS)
        assert refused.value.args[0].code() == code


def test_unauthorised_records_are_neither_written_nor_read(broker: BrokerProcess) -> None:
    bob = plain(broker, "bob", BOB)
    producer, errors = Producer(bob), []
    producer.produce("t", b"by bob", on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    assert [e.code() for e in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    consumer = Consumer({**bob, "group.id": "g-bob", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    end = time.monotonic() + SECONDS
    codes: set[int] = set()
    while time.monotonic() < end and KafkaError.GROUP_AUTHORIZATION_FAILED not in codes:
        message = consumer.poll(0.5)
        if message is not None:
            codes.add(message.error().code())
    consumer.close()
    allowed = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}
    assert KafkaError.GROUP_AUTHORIZATION_FAILED in codes
    assert codes <= allowed


def test_deny_wins_and_acls_outlive_the_broker(tmp_path: Path, pem: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings(pem)) as broker:
        prepare(broker, pem)
        denial = AclBinding(
            ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:alice", "127.0.0.1", WRITE,
            AclPermissionType.DENY,
        )  # fmt: skip
        admin = AdminClient(plain(broker, "admin", ADMIN))
        wait(admin.create_acls([denial]))
        broker.kill()
        broker.bootstrap = ""
        broker.start()
        producer, errors = Producer(sasl(broker, pem, "SCRAM-SHA-512", "alice", ALICE)), []
        producer.produce("t", b"no", on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS)
        assert [e.code() for e in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        admin = AdminClient(plain(broker, "admin", ADMIN))
        only_deny = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
            AclPermissionType.DENY,
        )  # fmt: skip
        assert admin.describe_acls(only_deny).result(SECONDS) == [denial]
        (future,) = admin.delete_acls([only_deny]).values()
        assert future.result(SECONDS) == [denial]
        producer, errors = Producer(sasl(broker, pem, "SCRAM-SHA-512", "alice", ALICE)), []
        producer.produce("t", b"yes", on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS)
        assert errors == [None]


def test_a_credential_that_is_removed_no_longer_lets_in(broker: BrokerProcess, pem: Path) -> None:
    admin = AdminClient(plain(broker, "admin", ADMIN))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    wait(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("eve", info, b"e")]))
    described = admin.describe_user_scram_credentials(["eve"])["eve"].result(SECONDS)
    (told,) = described.scram_credential_infos
    assert (told.mechanism, told.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
    eve = sasl(broker, pem, "SCRAM-SHA-256", "eve", "e")
    assert error_of(eve) is None
    gone = UserScramCredentialDeletion("eve", ScramMechanism.SCRAM_SHA_256)
    wait(admin.alter_user_scram_credentials([gone]))
    error = error_of(eve)
    assert error is not None
    assert error.code() == KafkaError._AUTHENTICATION


# --- what nobody is told -------------------------------------------------------------------------


def test_no_secret_is_described(broker: BrokerProcess) -> None:
    admin = AdminClient(plain(broker, "admin", ADMIN))
    (future,) = admin.describe_configs([ConfigResource("broker", "0")]).values()
    told = future.result(SECONDS)
    assert told["ssl.key.password"].is_sensitive
    assert told["ssl.key.password"].value is None
    text = " ".join(f"{entry.value} {entry.synonyms}" for entry in told.values())
    assert not [secret for secret in SECRETS if secret in text]


def get(broker: BrokerProcess, path: str, user: str = "", password: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"https://{broker.http}{path}")
    believed = ssl.create_default_context(cafile=broker.settings["ssl.truststore.location"])
    if user:
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=believed) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def metric(broker: BrokerProcess, ending: str) -> float:
    _, text = get(broker, "/metrics", "admin", ADMIN)
    values = [line.split()[-1] for line in text.splitlines() if ending in line]
    return float(values[0]) if values else 0


def test_the_http_port_asks_for_a_login(broker: BrokerProcess) -> None:
    assert get(broker, "/health") == (200, "serving\n")
    assert get(broker, "/metrics")[0] == 401
    assert get(broker, "/metrics", "admin", "wrong")[0] == 401
    assert get(broker, "/metrics", "nobody", ADMIN)[0] == 401
    assert get(broker, "/metrics", "alice", ALICE)[0] == 403  # let in, and may not describe
    status, text = get(broker, "/metrics", "admin", ADMIN)
    assert status == 200
    assert 'failed_authentication_total{listener="HTTP"} 2.0' in text
