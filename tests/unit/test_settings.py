"""Settings: precedence, loud mistakes, masked secrets, closed by default."""

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.settings import MASK, Settings, is_loopback, load


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
    assert load(flags={"host": "::1"}).settings.host == "::1"


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("localhost", True), ("127.0.0.9", True), ("[::1]", True), ("::", False), ("cam.lan", False)],
)
def test_only_loopback_counts_as_this_machine(host, is_ours):
    assert is_loopback(host) is is_ours
