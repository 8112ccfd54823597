"""Settings: precedence, loud mistakes, masked secrets, closed by default."""

from pathlib import Path

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.settings import MASK, Settings, ice_server, is_loopback, load, port_range


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return path

    return write


def test_flags_beat_environment_beats_file_beats_defaults(config):
    path = config("port: 1\nmax-sessions: 2\nqueue: 3\n")
    loaded = load(
        flags={"port": "11", "region": None},
        environment={"LIVEEDGE_PORT": "12", "LIVEEDGE_MAX_SESSIONS": "13", "HOME": "/"},
        config=path,
    )
    settings = loaded.settings
    assert (settings.port, settings.max_sessions, settings.queue) == (11, 13, 3)
    origins = [loaded.origins[key] for key in ("port", "max_sessions", "queue", "region")]
    assert origins == ["flag", "environment", "file", "default"]


def test_a_file_can_be_named_by_the_environment(config):
    path = config("max-body-mb: 5\n")
    assert load(environment={"LIVEEDGE_CONFIG": str(path)}).settings.max_body_mb == 5


@pytest.mark.parametrize(
    ("environment", "text", "says"),
    [
        ({"LIVEEDGE_PROT": "1"}, "", "LIVEEDGE_PROT; did you mean LIVEEDGE_PORT"),
        ({}, "prot: 1", "config.yaml: 'prot'; did you mean 'port'?"),
        ({}, "zzz: 1", "config: unknown key in "),
        ({}, "- 1", "key: value"),
        ({}, "a: [", "not valid YAML"),
        ({"LIVEEDGE_PORT": "x"}, "", "port (from environment)"),
        ({}, "port: 70000", "port (from file)"),
        ({}, "device: tpu", "device (from file)"),
        ({"LIVEEDGE_ALIASES": "{"}, "", "LIVEEDGE_ALIASES is not valid JSON"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(config, environment, text, says):
    with pytest.raises(SettingsInvalid) as caught:
        load(environment=environment, config=config(text))
    assert says in caught.value.message


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(SettingsInvalid, match="cannot be read"):
        load(config=tmp_path / "none.yaml")


def test_variables_of_the_client_are_not_settings():
    assert load(environment={"LIVEEDGE_URL": "http://x"}).settings == Settings()


def test_lists_and_mappings_can_come_from_the_environment():
    settings = load(
        environment={
            "LIVEEDGE_API_KEY": '["one", "two"]',
            "LIVEEDGE_CORS_ORIGINS": "https://a.example",
            "LIVEEDGE_ALIASES": '{"gpt-x": "local/m"}',
        }
    ).settings
    assert [key.get_secret_value() for key in settings.api_key] == ["one", "two"]
    assert settings.cors_origins == ("https://a.example",)
    assert settings.aliases == {"gpt-x": "local/m"}


def test_keys_are_shown_neither_by_show_nor_by_errors():
    loaded = load(flags={"api_key": ["hush-hush", "secret"]})
    assert loaded.shown()["api_key"] == [MASK, MASK]
    assert "hush-hush" not in repr(loaded)
    with pytest.raises(SettingsInvalid) as caught:
        load(flags={"api_key": {"hush-hush": 1}})
    assert "hush-hush" not in caught.value.message


def test_an_empty_key_is_no_key():
    with pytest.raises(SettingsInvalid, match="empty key"):
        load(flags={"api_key": " "})


def test_without_a_key_only_this_machine_is_served():
    with pytest.raises(SettingsInvalid, match="insecure"):
        load(flags={"host": "0.0.0.0"})
    assert load(flags={"host": "0.0.0.0", "api_key": "k"}).settings.host == "0.0.0.0"
    assert load(flags={"host": "0.0.0.0", "insecure": True}).settings.insecure
    # Closed, whether it holds a key yet or not.
    assert load(flags={"host": "0.0.0.0", "keys_file": "not-there-yet"}).settings.has_keys_file
    assert load(flags={"host": "::1"}).settings.host == "::1"


def test_a_state_folder_counts_as_closed_once_it_holds_keys(tmp_path: Path):
    flags = {"host": "0.0.0.0", "state_dir": tmp_path}
    with pytest.raises(SettingsInvalid, match="keys_file"):
        load(flags=flags)
    (tmp_path / "keys.sqlite").touch()
    assert load(flags=flags).settings.keys_path == tmp_path / "keys.sqlite"
    flags |= {"keys_file": tmp_path / "others"}
    assert load(flags=flags).settings.keys_path == tmp_path / "others"


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("localhost", True), ("127.0.0.9", True), ("[::1]", True), ("::", False), ("cam.lan", False)],
)
def test_only_loopback_counts_as_this_machine(host, is_ours):
    assert is_loopback(host) is is_ours


@pytest.mark.parametrize(
    ("text", "ports"),
    [("50000", (50000, 50000)), ("50000-50100", (50000, 50100)), (" 1-1 ", (1, 1))],
)
def test_udp_ports_are_one_port_or_a_range(text, ports):
    asked = load(flags={"udp_ports": text}).settings.udp_ports
    assert asked is not None
    assert port_range(asked) == ports


def test_a_port_in_a_file_may_be_a_number(config):
    assert load(config=config("udp-ports: 50000\n")).settings.udp_ports == "50000"


@pytest.mark.parametrize(
    ("text", "parted"),
    [
        ("stun:stun.example:3478", ("stun:stun.example:3478", None, None)),
        ("turn:u:p@turn.example", ("turn:turn.example", "u", "p")),
        ("turns:u:a@b@turn.example:443?transport=tcp",
         ("turns:turn.example:443?transport=tcp", "u", "a@b")),
        ("turn:17%3Auser:p%25@[2001:db8::1]:3478", ("turn:[2001:db8::1]:3478", "17:user", "p%")),
    ],
)  # fmt: skip
def test_ice_servers_are_parted_from_their_credentials(text, parted):
    (server,) = load(flags={"ice_servers": [text]}).settings.ice_servers
    assert ice_server(server.get_secret_value()) == parted


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"udp_ports": "many"}, "udp_ports (from flag): 'many' is neither a port"),
        ({"udp_ports": "50100-50000"}, "is neither a port such as 50000 nor a range"),
        ({"udp_ports": "0"}, "is neither a port"),
        ({"udp_ports": "70000"}, "is neither a port"),
        ({"announced_ip": "camera.example"}, "'camera.example' is not an IP address"),
        ({"announced_ip": "0.0.0.0"}, "nobody can send to 0.0.0.0"),
        ({"ice_servers": "http://x"}, "needs to be stun:host:port or turn:"),
        ({"ice_servers": "turn:host.example"}, "turn:host.example needs a user and a password"),
        ({"ice_servers": "stun:u:hush@host"}, "stun:host takes no user"),
        ({"ice_servers": "turn:u:hush@ho st"}, "needs to be stun:host:port"),
        ({"public_url": "example.org"}, "public_url (from flag): needs to be http://host or"),
        ({"public_url": "http://u:hush@h"}, "without user, query and fragment"),
        ({"public_url": "http://h:x"}, "public_url (from flag)"),
        (
            {"livekit": {"url": "ws://h", "api_key": "hush"}},
            "livekit.api_secret (from flag): Field required",
        ),
        (
            {"livekit": {"url": "h", "api_key": "a", "api_secret": "hush"}},
            "ws://host or wss://host",
        ),
    ],
)
def test_what_publishers_would_be_told_is_checked_at_the_start(flags, says):
    with pytest.raises(SettingsInvalid) as caught:
        load(flags=flags)
    assert says in caught.value.message
    assert "hush" not in caught.value.message


def test_a_public_url_loses_its_last_slash():
    assert load(flags={"public_url": "https://h/x/"}).settings.public_url == "https://h/x"


def test_an_external_livekit_server_comes_from_a_variable_and_its_secrets_are_masked():
    text = '{"url": "wss://lk.example", "api_key": "hush-1", "api_secret": "hush-2"}'
    loaded = load(environment={"LIVEEDGE_LIVEKIT": text})
    livekit = loaded.settings.livekit
    assert livekit is not None
    assert livekit.api_secret.get_secret_value() == "hush-2"
    shown = loaded.shown()["livekit"]
    assert shown == {"url": "wss://lk.example", "api_key": MASK, "api_secret": MASK}
    assert "hush" not in repr(loaded)


def test_credentials_of_ice_servers_are_masked():
    loaded = load(
        environment={"LIVEEDGE_ICE_SERVERS": '["turn:u:hush@turn.example", "stun:s.example"]'}
    )
    assert loaded.shown()["ice_servers"] == [f"turn:{MASK}@turn.example", "stun:s.example"]
    assert "hush" not in repr(loaded)


def test_ports_of_remote_media_are_one_number_or_a_list() -> None:
    one = load(environment={"LIVEEDGE_REMOTE_MEDIA_PORTS": "8080"}).settings
    assert one.remote_media_ports == (8080,)
    many = load(environment={"LIVEEDGE_REMOTE_MEDIA_PORTS": "[80, 8080]"}).settings
    assert many.remote_media_ports == (80, 8080)
    assert load(flags={"remote_media_ports": ["443"]}).settings.remote_media_ports == (443,)
    with pytest.raises(SettingsInvalid, match="remote_media_ports"):
        load(environment={"LIVEEDGE_REMOTE_MEDIA_PORTS": "70000"})
