"""JAAS settings: what Kafka reads, and errors that name the place and no secret."""

from __future__ import annotations

import pytest

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.security.jaas import (
    PLAIN_LOGIN_MODULE,
    SCRAM_LOGIN_MODULE,
    LoginModule,
    login_of,
    parse_jaas,
    plain_users,
    server_login_module,
    server_setting,
)

SETTING = "sasl.jaas.config"


def options(text: str) -> dict[str, str]:
    module = parse_jaas(SETTING, f"M required {text}")
    return {option: value.reveal() for option, value in module.options.items()}


def test_a_brokers_plain_users() -> None:
    text = (
        f"{PLAIN_LOGIN_MODULE} required\n"
        '    username="broker" password="b-secret" // how brokers log in\n'
        '    user_alice="a-secret" /* and the\n users */ user_bob="" user_=\'x\';'
    )
    module = parse_jaas(SETTING, text)
    assert module.name == PLAIN_LOGIN_MODULE
    assert plain_users(module) == {"alice": Secret("a-secret"), "bob": Secret(""), "": Secret("x")}
    assert "secret" not in repr(module)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (";", {}),
        ("a=b;", {"a": "b"}),
        ('a = "b" c\t=\n"d" ;', {"a": "b", "c": "d"}),
        ("a='b\"c' d=\"e'f\";", {"a": 'b"c', "d": "e'f"}),
        (r'a="x\"y\\z\tq\101\x";', {"a": 'x"y\\z\tqAx'}),
        ('a="semi;colon = // no comment /* here */";',
         {"a": "semi;colon = // no comment /* here */"}),
        ("user_a-b.c$d=1.5-x;", {"user_a-b.c$d": "1.5-x"}),
        ('user_ü="é";', {"user_ü": "é"}),
        ('a="1" a="2";', {"a": "2"}),
    ],
)  # fmt: skip
def test_options(text: str, expected: dict[str, str]) -> None:
    assert options(text) == expected


@pytest.mark.parametrize("flag", ["required", "REQUIRED", "Optional", "sufficient", "requisite"])
def test_control_flags(flag: str) -> None:
    assert parse_jaas(SETTING, f"org.x.M$Inner {flag};").name == "org.x.M$Inner"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at character 1: expected a login module's class"),
        ("   // nothing\n", "at character 15: expected a login module's class"),
        ("M", "at character 2: expected required"),
        ("M user;", "at character 3: expected required"),
        ('M password="s3cret";', "at character 3: expected required"),
        ("M required", "at character 11: expected an option or ;"),
        ('M required password="s3cret"', "at character 29: expected an option or ;"),
        ('M required password "s3cret";', "at character 21: expected ="),
        ("M required password=;", "at character 21: expected an option's value"),
        ("M required password=", "at character 21: expected an option's value"),
        ('M required password="s3cret;', "at character 21: expected a word"),
        ('M required password="s3cret\n";', "at character 21: expected a word"),
        ("M required password=s3cret/x;", "at character 27: expected a word"),
        ('M required =""', "at character 12: expected an option or ;"),
        ("M required; N required;", "at character 13: expected nothing after the first"),
        ("M required a=b;;", "at character 16: expected nothing after the first"),
        ('"" required;', "at character 1: expected a login module's class"),
    ],
)
def test_errors_name_the_place_and_no_secret(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_jaas("listener.name.x.plain.sasl.jaas.config", text)
    message = str(refused.value)
    assert message.startswith(f"listener.name.x.plain.sasl.jaas.config: {says}")
    assert "s3cret" not in message


def test_a_listeners_own_setting() -> None:
    properties = {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN_LOGIN_MODULE} required a="b";',
        "sasl.jaas.config": "for clients only",
    }
    assert server_setting("SASL_SSL", "PLAIN") in properties
    module = server_login_module(properties, "SASL_SSL", "PLAIN")
    assert module.options == {"a": Secret("b")}
    with pytest.raises(ConfigError, match=r"listener\.name\.other\.plain\.sasl\.jaas\.config"):
        server_login_module(properties, "OTHER", "PLAIN")


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [("PLAIN", PLAIN_LOGIN_MODULE), ("SCRAM-SHA-512", SCRAM_LOGIN_MODULE)],
)
def test_whom_a_client_logs_in_as(mechanism: str, name: str) -> None:
    module = parse_jaas(SETTING, f'{name} required username="u" password="s3cret";')
    login = login_of(module, mechanism)
    assert (login.user, login.password) == ("u", Secret("s3cret"))
    assert "s3cret" not in repr(login)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (LoginModule(SETTING, PLAIN_LOGIN_MODULE, {"username": Secret("u")}), "option password"),
        (LoginModule(SETTING, PLAIN_LOGIN_MODULE,
                     {"username": Secret(""), "password": Secret("s3cret")}), "option username"),
        (LoginModule(SETTING, SCRAM_LOGIN_MODULE, {}), "must be org.*PlainLoginModule"),
        (LoginModule(SETTING, "com.evil.Module", {}), "must be org.*PlainLoginModule"),
    ],
)  # fmt: skip
def test_a_login_that_lacks_something(module: LoginModule, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        login_of(module, "PLAIN")
    assert "s3cret" not in str(refused.value)


def test_plain_users_are_those_of_plain() -> None:
    with pytest.raises(ConfigError, match="PlainLoginModule"):
        plain_users(LoginModule(SETTING, SCRAM_LOGIN_MODULE, {}))
