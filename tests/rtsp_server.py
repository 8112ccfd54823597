"""A GStreamer RTSP server for tests, run by the system's Python: prints its port, then serves.

Arguments: host, port (0: any), then pairs of mount point and pipeline. With `--user` in front,
a user name and a password are asked for.
"""

from __future__ import annotations

import sys

import gi  # type: ignore[import-not-found, unused-ignore]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    GLib,
    Gst,
    GstRtspServer,
)


def main() -> None:
    words = sys.argv[1:]
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    user = None
    if words[0] == "--user":
        user, password, words = words[1], words[2], words[3:]
        _ask_for(server, user, password)
    server.set_address(words[0])
    server.set_service(words[1])
    mounts = server.get_mount_points()
    for path, pipeline in zip(words[2::2], words[3::2], strict=True):
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch(f"( {pipeline} )")
        factory.set_shared(True)
        if user is not None:
            _allow(factory, user)
        mounts.add_factory(path, factory)
    server.attach(None)
    print(server.get_bound_port(), flush=True)  # noqa: T201  the caller reads it
    GLib.MainLoop().run()


def _ask_for(server: object, user: str, password: str) -> None:
    auth = GstRtspServer.RTSPAuth()
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", user)
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    server.set_auth(auth)  # type: ignore[attr-defined]


def _allow(factory: object, user: str) -> None:
    roles = GstRtspServer.RTSPPermissions()
    roles.add_permission_for_role(user, "media.factory.access", True)
    roles.add_permission_for_role(user, "media.factory.construct", True)
    factory.set_permissions(roles)  # type: ignore[attr-defined]


main()
