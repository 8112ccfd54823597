"""The version, written once: the build, `liveedge version` and `/version` all read it here."""

VERSION = "0.1.0"
