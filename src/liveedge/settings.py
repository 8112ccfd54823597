"""What the user asked for: one typed model, from flags > environment > YAML file > defaults.

Unknown keys are errors in every source, and so is an unknown `LIVEEDGE_` variable: a misspelt
setting must not be a silent default. Values are frozen; what will run is decided from them in
`assembly.py`, each part getting its own section.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from liveedge.core.errors import SettingsInvalid
from liveedge.core.log import LogFormat

Origin: TypeAlias = Literal["flag", "environment", "file", "default"]

PREFIX = "LIVEEDGE_"
CONFIG_VARIABLE = "LIVEEDGE_CONFIG"
# Read by the client side of the command line, the Makefile and `native/library.py`; a server on the
# same machine must not trip over them.
CLIENT_VARIABLES = frozenset({"LIVEEDGE_URL", "LIVEEDGE_VENV", "LIVEEDGE_NATIVE"})
MASK = "********"
SHIPPED_MODEL = "liveedge/workcell-tiny"
KEYS_NAME = "keys.sqlite"  # in the state folder
_WRITTEN_AS_JSON = frozenset(  # in variables, where they hold more than one word
    {
        "api_key",
        "cors_origins",
        "regions",
        "aliases",
        "announced_ip",
        "ice_servers",
        "livekit",
        "remote_media_ports",
        "providers",
        "fallbacks",
    }
)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(%|[kmgt]i?b?|b|)", re.IGNORECASE)
_UNITS = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def memory_bytes(text: str, *, machine_bytes: int) -> int:
    """`4GiB`, `1500 MB`, `50%` (of the machine's) as bytes. Raises ValueError."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory such as 4GiB, 1500MB or 50%")
    number, unit = float(match[1]), match[2].lower()
    if unit == "%":
        if not 0 < number <= 100:
            raise ValueError(f"{text!r} is not a share of the machine's memory: 1% to 100%")
        return int(machine_bytes * number / 100)
    base = 1000 if unit.endswith("b") and "i" not in unit else 1024
    n_bytes = int(number * base ** _UNITS[unit[:1]])
    if n_bytes < 1:
        raise ValueError(f"{text!r} is no memory")
    return n_bytes


class IceServerUrl(NamedTuple):
    """A STUN or TURN server as WebRTC wants it: the URL without what authenticates."""

    url: str
    username: str | None
    credential: str | None


_ICE_HOST = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(\?transport=(udp|tcp))?")


def ice_server(text: str) -> IceServerUrl:
    """`stun:host:port` or `turn:user:password@host`, parted. Raises ValueError, without secrets.

    What is special in a URL is written with percent signs: a colon in a user as %3A.
    """
    scheme, _, rest = text.strip().partition(":")
    credentials, at, host = rest.rpartition("@")
    username, colon, password = (unquote(part) for part in credentials.partition(":"))
    if scheme not in ("stun", "stuns", "turn", "turns") or _ICE_HOST.fullmatch(host) is None:
        raise ValueError(
            "needs to be stun:host:port or turn:user:password@host:port, with ?transport=tcp if meant"
        )
    url = f"{scheme}:{host}"
    if scheme.startswith("stun"):
        if at:
            raise ValueError(f"{url} takes no user and no password: only turn does")
        return IceServerUrl(url, None, None)
    if not (username and colon and password):
        raise ValueError(f"{url} needs a user and a password, as {scheme}:user:password@{host}")
    return IceServerUrl(url, username, password)


def port_range(text: str) -> tuple[int, int]:
    """`50000-50100`, or `50000` for that port alone. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValueError(
            f"{text!r} is neither a port such as 50000 nor a range such as 50000-50100"
        )
    return first, last


def _as_ports(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        port_range(text)
    return text


def _is_ice_server(text: SecretStr) -> SecretStr:
    ice_server(text.get_secret_value())
    return text


def _is_address(text: str) -> str:
    """A literal address that a publisher can send to."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IP address such as 203.0.113.7") from error
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"nobody can send to {text}: give the address of this machine")
    return text


def _is_base_url(*schemes: str) -> AfterValidator:
    def check(text: str) -> str:
        parts = urlsplit(text)
        is_plain = not (parts.query or parts.fragment or "@" in parts.netloc)
        if parts.scheme not in schemes or not parts.hostname or not is_plain:
            shown = " or ".join(f"{scheme}://host" for scheme in schemes)
            raise ValueError(f"needs to be {shown}, without user, query and fragment")
        _ = parts.port  # raises ValueError for one that is none
        return text.rstrip("/")

    return AfterValidator(check)


def _as_tuple(value: object) -> object:
    """One value stands for a list of one."""
    return (value,) if isinstance(value, str) else value


def _as_numbers(value: object) -> object:
    """One number stands for a list of one."""
    return (value,) if isinstance(value, str | int) else value


def _as_memory(value: object) -> object:
    """Kept as written; the machine is asked only where it runs. A bare number is bytes."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        memory_bytes(text, machine_bytes=1 << 40)
    return text


Many: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Secrets: TypeAlias = Annotated[tuple[SecretStr, ...], BeforeValidator(_as_tuple)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
NoneOrMore: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds: TypeAlias = Annotated[float, Field(gt=0.0)]
NoneOrMoreSeconds: TypeAlias = Annotated[float, Field(ge=0.0)]
MemorySize: TypeAlias = Annotated[str, BeforeValidator(_as_memory)]
Ports: TypeAlias = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65535)], ...], BeforeValidator(_as_numbers)
]
PortRange: TypeAlias = Annotated[str, BeforeValidator(_as_ports)]
Addresses: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_is_address)], ...], BeforeValidator(_as_tuple)
]
IceServers: TypeAlias = Annotated[
    tuple[Annotated[SecretStr, AfterValidator(_is_ice_server)], ...], BeforeValidator(_as_tuple)
]


class LiveKitServer(BaseModel):
    """Where streams of type livekit are published if not here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, _is_base_url("ws", "wss", "http", "https")]
    api_key: SecretStr
    api_secret: SecretStr


class ProviderSettings(BaseModel):
    """An OpenAI-compatible server whose models are offered here."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    base_url: Annotated[str, _is_base_url("http", "https")]
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    models: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], BeforeValidator(_as_tuple)
    ] = ()
    media: Literal["images", "video"] = "images"
    timeout: Seconds = 60.0  # seconds of silence
    retries: Annotated[int, Field(ge=0, le=5)] = 2
    max_connections: Annotated[int, Field(ge=1, le=1024)] = 32
    max_frames: Annotated[int, Field(ge=1, le=1024)] = 64
    max_pixels: Annotated[int, Field(ge=1)] | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)


ProviderName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]


class Settings(BaseModel):
    """Every setting of the server, with its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    api_key: Secrets = Field(
        (), description="accepted key; with none the server is open, on this machine only"
    )
    # Keys that come and go without a restart, each with its own rights.
    keys_file: Path | None = Field(
        None,
        description="file of the keys of `liveedge keys`; default: keys.sqlite in state-dir, if it is"
        " there",
    )
    insecure: bool = Field(False, description="allow another host than this one without a key")
    cors_origins: Many = Field((), description="browser origin allowed besides localhost; * is any")
    region: str = Field("local", description="name answered as X-Overshoot-Region")
    regions: Many = Field(
        (),
        description="names of all regions; if set, a request that names another than region is refused",
    )
    # A monitoring system without a key inside a private network is usual; outside it is a leak.
    metrics_public: bool = Field(False, description="answer GET /metrics without a key")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe lines of the log that are written"
    )
    # Collectors of logs want objects, people want lines.
    log_format: LogFormat = Field("text", description="lines for people, or one JSON object a line")
    # How long a load balancer and the longest answer need is not ours to know.
    drain_s: NoneOrMoreSeconds = Field(
        10.0, description="how long answers may go on after a signal to stop"
    )
    # Certificates are somebody else's to make and to renew.
    tls_cert: Path | None = Field(
        None, description="serve HTTPS with this PEM certificate, its chain included"
    )
    tls_key: Path | None = Field(None, description="the private key of tls-cert, PEM")
    tls_key_password_file: Path | None = Field(
        None, description="file with the password of tls-key, where it is encrypted"
    )
    otlp_endpoint: Annotated[str, _is_base_url("http", "https")] | None = Field(
        None,
        description="send traces of questions to this OpenTelemetry collector, by OTLP over HTTP, as"
        " http://127.0.0.1:4318; needs liveedge[otel]",
    )
    otlp_sample: Share = Field(
        1.0, description="share of questions that are traced, where their clients do not decide"
    )

    model: str = Field(
        SHIPPED_MODEL, description="a Hugging Face checkpoint folder, or the shipped model's id"
    )
    model_id: str | None = Field(
        None, description="id that clients ask for; default: local/<name of the folder>"
    )
    aliases: dict[str, str] = Field(
        default_factory=dict, description="other ids for the model, as {alias: model id}"
    )
    providers: dict[ProviderName, ProviderSettings] = Field(
        default_factory=dict,
        description="OpenAI-compatible servers whose models are offered too, as {name: {base_url,"
        " api_key_env, models, ...}} (docs/providers.md)",
    )
    fallbacks: dict[str, Many] = Field(
        default_factory=dict,
        description="models that answer while another one is not available, as {model: [model, ...]}",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    # A thread is easier to debug and starts with less memory; its crash takes the cameras along.
    engine: Literal["process", "inproc"] = Field(
        "process", description="the model in a process of its own, or in a thread of the server"
    )
    # A standby costs the memory of an idle interpreter with torch; without it a restart takes as
    # long as a start.
    standby: bool = Field(
        True, description="keep a second engine process waiting, so that a restart takes a second"
    )
    # A step of a large model on a slow CPU takes seconds; a GPU that is silent so long is dead.
    engine_hang_s: Seconds = Field(
        30.0, description="an engine process that gives no sign of life for so long is replaced"
    )

    # Only the owner of the machine knows what else runs on it.
    memory: MemorySize | None = Field(
        None,
        description="memory of everything together, as 4GiB or 50%; what does not fit is refused at"
        " the start. Default: 90% of what the machine or its container has",
    )
    # Few cameras and many people, or many cameras and one program: sessions and windows share memory.
    max_sessions: Count = Field(8, description="answers that are written at once")
    max_windows: NoneOrMore = Field(
        4, description="warm windows at once; each takes the memory of a session; 0: none"
    )
    max_model_len: Count | None = Field(
        None, description="tokens per session; default: the model's, at most 4096"
    )
    # How long a camera's window is worth its share of the device depends on who asks how often.
    window_ttl_s: Seconds = Field(
        30.0, description="how long a window stays warm after the last question about it"
    )
    thread_window_ttl_s: Seconds = Field(
        120.0, description="the same, where the questions carry one thread_id"
    )
    # With several keys one could otherwise keep all windows; only their owner knows who matters.
    max_windows_per_key: Count | None = Field(
        None, description="warm windows of one key; default: as many as there are"
    )
    # Pixels of a frame and frames per second are the cameras'; 480p takes 1.2 MB a frame.
    shared_frames_mb: Count = Field(
        128, description="memory for frames on their way to the engine process"
    )
    encoder_cache_mb: Count = Field(256, description="memory for encoded frames")
    prefill_chunk: Count = Field(512, description="prompt tokens computed between two decode steps")
    queue: Count = Field(64, description="requests that may wait for a session")
    # Whether late answers or none are worse depends on who asks.
    max_queue_ms: Count | None = Field(
        None,
        description="how long a question may have to wait for others while more come than can be"
        " answered; default: three quarters of what an average question takes, at least 100",
    )
    threads: Count | None = Field(None, description="threads of the model; default: one per core")
    # Proof costs a second computation of what it proves.
    verify_warm: Share = Field(
        0.0,
        description="share of warm answers that are computed again cold and compared; given without"
        " a value: 0.05",
    )

    default_max_tokens: Count = Field(512, description="length of an answer when none is asked for")
    timeout_ms: Count = Field(30_000, description="deadline of a question that names none")
    max_requests: Count = Field(128, description="questions in progress at once")
    # How many strangers share the machine, and how patient they are, is known to its owner alone.
    max_requests_per_key: Count | None = Field(
        None,
        description="answers in progress of one key; default: half of what the model takes in, where"
        " there are several keys",
    )
    max_requests_per_stream: Count | None = Field(
        None, description="answers in progress about one stream; default: no limit"
    )
    requests_per_second: Annotated[float, Field(gt=0)] = Field(
        1000.0, description="requests of one key per second, pushed frames not counted"
    )
    request_burst: Count | None = Field(
        None, description="requests of one key at once; default: those of two seconds"
    )
    max_output_tokens: Count | None = Field(
        None,
        description="tokens of an answer, whatever is asked for; default: what the model takes",
    )
    max_parts: Count | None = Field(
        None, description="texts, pictures and clips of a question; default: what the model takes"
    )
    max_body_mb: Count = Field(64, description="size of a request body")
    max_uploads_mb: Count | None = Field(
        None, description="request bodies held at once; default: by the memory, at most 512"
    )
    max_decoded_mb: Count | None = Field(
        None, description="decoded uploads held at once; default: by the memory, at most 1024"
    )

    # Each asks for as long as it lives: they are background work, and others pay for it.
    max_watches: NoneOrMore = Field(32, description="standing questions at once; 0: none")
    max_watches_per_key: Count = Field(16, description="standing questions of one key")
    watch_ttl_s: Seconds = Field(
        600.0, description="how long a watch goes on that nobody listens to or looks at"
    )

    # Whoever may ask could make the server ask others: only where the network allows for it.
    allow_remote_media: bool = Field(
        False, description="fetch pictures and clips that questions name by http(s) URL"
    )
    allow_private_media: bool = Field(
        False, description="fetch them from private networks and this machine too"
    )
    remote_media_ports: Ports = Field((80, 443), description="port that they are fetched from")
    max_remote_mb: Count = Field(16, description="size of one of them")

    max_streams: Count = Field(64, description="active streams at once")
    max_streams_per_key: Count = Field(16, description="active streams of one key")
    retention_s: Count = Field(
        600, description="how far back frames can be asked for, if history-mb holds that much"
    )
    hot_mb: Count = Field(
        64, description="memory reserved per stream for its newest frames, uncompressed"
    )
    history_mb: Count = Field(
        512, description="memory reserved per stream for its older frames, compressed"
    )
    streams_mb: Count | None = Field(
        None,
        description="memory reserved for the frames of all streams together; default: what the"
        " memory has room for, at most 4096",
    )
    allow_local_sources: bool = Field(False, description="allow sources of type file and device")
    allow_private_sources: bool = Field(True, description="allow cameras in private networks")

    # What publishers can reach is decided by networks and containers, which no program sees.
    public_url: Annotated[str, _is_base_url("http", "https")] | None = Field(
        None, description="base URL that publishers are given; default: the one they asked"
    )
    udp_ports: PortRange | None = Field(
        None,
        description="UDP ports of publishers: 50000-50100 is a range, 50000 one port for all;"
        " default: any free one",
    )
    announced_ip: Addresses = Field(
        (), description="address that publishers are told to send to; default: the machine's own"
    )
    ice_servers: IceServers = Field(
        (), description="STUN or TURN URL for publishers behind NAT, as turn:user:password@host"
    )
    max_publish_kbps: Count = Field(
        6000, description="bitrate that one publisher is asked to keep to"
    )
    livekit: LiveKitServer | None = Field(
        None,
        description="experimental: an external LiveKit server for streams of type livekit, as {url,"
        " api_key, api_secret}",
    )
    # Ten minutes of every camera on a disk: not everybody may keep that.
    state_dir: Path | None = Field(
        None,
        description="folder that keeps streams, leases and frames over a restart; default: none",
    )

    # Hours of leases, retention and watches in minutes; nothing that answers people wants that.
    clock_speed: Annotated[float, Field(gt=0.0, le=100.0)] = Field(
        1.0, description="for tests only: let all time of the server run so many times as fast"
    )

    @model_validator(mode="after")
    def _open_only_at_home(self) -> Self:
        if self.api_key or self.insecure or is_loopback(self.host) or self.has_keys_file:
            return self
        raise ValueError(
            f"host {self.host} can be reached by others and no api_key is set: anyone could watch"
            " the cameras. Set an api_key or a keys_file, or insecure if that is meant"
        )

    @property
    def keys_path(self) -> Path | None:
        """Where stored keys are, if there are any."""
        return keys_path(self.keys_file, self.state_dir)

    @property
    def has_keys_file(self) -> bool:
        """Whether keys are stored; a file that holds none yet is closed, not open."""
        if self.keys_file is not None:
            return True
        return self.keys_path is not None and self.keys_path.expanduser().exists()

    @model_validator(mode="after")
    def _room_for_a_stream(self) -> Self:
        stream_mb = self.hot_mb + self.history_mb
        if self.streams_mb is None or self.streams_mb >= stream_mb:
            return self
        raise ValueError(
            f"streams_mb is {self.streams_mb}, and one stream takes {stream_mb} (hot_mb and history_mb"
            " together): there could be none. Raise streams_mb, or lower history_mb"
        )

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ValueError(f"{missing} is missing: HTTPS needs tls_cert and tls_key")
        if self.tls_key_password_file is not None and self.tls_key is None:
            raise ValueError("tls_key_password_file is set without tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _keys_hold_something(self) -> Self:
        if all(key.get_secret_value().strip() for key in self.api_key):
            return self
        raise ValueError("api_key holds an empty key: leave it out, or set a real one")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Effective settings, and where each value comes from."""

    settings: Settings
    origins: Mapping[str, Origin]

    def shown(self) -> dict[str, Any]:
        """Values for people and JSON, secrets masked."""
        settings = self.settings
        values = settings.model_dump(mode="json")
        if settings.livekit is not None:
            values["livekit"] |= {"api_key": MASK, "api_secret": MASK}
        return {
            **values,
            "api_key": [MASK] * len(settings.api_key),
            "ice_servers": [_without_credentials(url) for url in settings.ice_servers],
        }


def _without_credentials(url: SecretStr) -> str:
    text = url.get_secret_value()
    scheme, _, rest = text.partition(":")
    credentials, _, host = rest.rpartition("@")
    return f"{scheme}:{MASK}@{host}" if credentials else text


def keys_path(keys_file: Path | None, state_dir: Path | None) -> Path | None:
    """The file of stored keys: named, or in the state folder."""
    if keys_file is not None or state_dir is None:
        return keys_file
    return state_dir / KEYS_NAME


def load_keys_path(
    *, flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None
) -> Path | None:
    """The same from all sources, where the other settings need not make a server yet."""
    values, _ = _merged(flags, environment, config)
    found = {name: values.get(name) for name in ("keys_file", "state_dir")}
    paths = {name: None if value is None else Path(str(value)) for name, value in found.items()}
    return keys_path(paths["keys_file"], paths["state_dir"])


def load(
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Loaded:
    """Merge the sources. A flag that is None was not given. Raises SettingsInvalid."""
    values, origins = _merged(flags or {}, environment or {}, config)
    return Loaded(_validated(values, origins), origins)


def _merged(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None
) -> tuple[dict[str, Any], dict[str, Origin]]:
    sources: list[tuple[Origin, dict[str, Any]]] = [
        ("file", _from_file(config or _named_config(environment))),
        ("environment", _from_environment(environment)),
        ("flag", _known(flags, what="unknown flag", shown="--{}")),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = dict.fromkeys(Settings.model_fields, "default")
    for origin, found in sources:
        given = {key: value for key, value in found.items() if value is not None}
        values.update(given)
        origins.update(dict.fromkeys(given, origin))
    return values, origins


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: it may resolve to anything
        return False


def _named_config(environment: Mapping[str, str]) -> Path | None:
    named = environment.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"configuration file {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise SettingsInvalid(f"configuration file {path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsInvalid(f"configuration file {path} must hold `key: value` lines")
    found = {str(key).replace("-", "_"): value for key, value in content.items()}
    return _known(found, what=f"config: unknown key in {path}:", shown="{!r}")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    ours = {
        name: value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name != CONFIG_VARIABLE and name not in CLIENT_VARIABLES
    }
    found = {name.removeprefix(PREFIX).lower(): value for name, value in ours.items()}
    known = _known(found, what="unknown environment variable", shown=PREFIX + "{}", upper=True)
    return {key: _decoded(key, value) for key, value in known.items()}


def _decoded(key: str, text: str) -> object:
    """Lists and mappings are written as JSON; one plain word stands for a list of one."""
    if key not in _WRITTEN_AS_JSON or text[:1] not in ("[", "{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsInvalid(f"{PREFIX}{key.upper()} is not valid JSON: {error}") from error


def _known(
    found: Mapping[str, Any], *, what: str, shown: str, upper: bool = False
) -> dict[str, Any]:
    for key in found:
        if key in Settings.model_fields:
            continue
        near = difflib.get_close_matches(key, Settings.model_fields, n=1)
        name, *hint = (shown.format(k.upper() if upper else k) for k in (key, *near))
        did_you_mean = f"; did you mean {hint[0]}?" if hint else ""
        raise SettingsInvalid(f"{what} {name}{did_you_mean}")
    return dict(found)


def _validated(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        # Never with the input: it may be a key.
        details = error.errors(include_input=False, include_url=False, include_context=False)
        raise SettingsInvalid(
            "; ".join(_explained(d["loc"], d["msg"], origins) for d in details)
        ) from None


def _explained(loc: Sequence[int | str], msg: str, origins: Mapping[str, Origin]) -> str:
    if not loc:
        return msg.removeprefix("Value error, ")
    name = ".".join(part for part in loc if isinstance(part, str))
    return f"{name} (from {origins[str(loc[0])]}): {msg.removeprefix('Value error, ')}"
