"""A WHIP client made of GStreamer's `webrtcbin`, run by the system's Python: publishes until SIGINT.

(GStreamer's own WHIP element is not in Debian 12, and the client that is, simple-whip-client, cannot
start there: it brings two versions of one library into a process.)

Arguments: URL, token, pipeline up to an RTP payloader. Prints `connected`, and ends the session with
DELETE. Candidates are in the offer, as OBS sends them.
"""

from __future__ import annotations

import signal
import sys
import urllib.parse
import urllib.request

import gi  # type: ignore[import-not-found, unused-ignore]

gi.require_version("Gst", "1.0")
gi.require_version("GstSdp", "1.0")
gi.require_version("GstWebRTC", "1.0")
from gi.repository import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    GLib,
    Gst,
    GstSdp,
    GstWebRTC,
)


class Client:
    """One publisher."""

    def __init__(self, url: str, token: str, pipeline: str) -> None:
        self._url = url
        self._token = token
        self._session = ""
        self._loop = GLib.MainLoop()
        self._pipeline = Gst.parse_launch(
            f"{pipeline} ! webrtcbin name=peer bundle-policy=max-bundle"
        )
        self._peer = self._pipeline.get_by_name("peer")
        self._peer.connect("on-negotiation-needed", self._offer)
        self._peer.connect("notify::ice-gathering-state", self._gathering)
        self._peer.connect("notify::connection-state", self._state)

    def run(self) -> None:
        bus = self._pipeline.get_bus()
        bus.add_signal_watch()
        bus.connect("message::error", lambda _bus, message: self._fail(message.parse_error()[0]))
        GLib.unix_signal_add(GLib.PRIORITY_DEFAULT, signal.SIGINT, self._loop.quit)
        self._pipeline.set_state(Gst.State.PLAYING)
        self._loop.run()
        if self._session:
            self._call("DELETE", self._session)
        self._pipeline.set_state(Gst.State.NULL)

    def _offer(self, peer: object) -> None:
        for index in range(1):
            transceiver = peer.emit("get-transceiver", index)  # type: ignore[attr-defined]
            sendonly = GstWebRTC.WebRTCRTPTransceiverDirection.SENDONLY
            transceiver.set_property("direction", sendonly)
        promise = Gst.Promise.new_with_change_func(self._offered)
        peer.emit("create-offer", None, promise)  # type: ignore[attr-defined]

    def _offered(self, promise: object) -> None:
        reply = promise.get_reply()  # type: ignore[attr-defined]  # owns what is taken out of it
        offer = reply.get_value("offer")
        self._peer.emit("set-local-description", offer, Gst.Promise.new())

    def _gathering(self, peer: object, _spec: object) -> None:
        complete = GstWebRTC.WebRTCICEGatheringState.COMPLETE
        if peer.get_property("ice-gathering-state") == complete:  # type: ignore[attr-defined]
            GLib.idle_add(self._post)

    def _post(self) -> bool:
        offer = self._peer.get_property("local-description").sdp.as_text()
        headers = {"Content-Type": "application/sdp", "Authorization": f"Bearer {self._token}"}
        answer, location = self._call("POST", self._url, offer, headers)
        self._session = urllib.parse.urljoin(self._url, location)
        _, message = GstSdp.SDPMessage.new_from_text(answer)
        described = GstWebRTC.WebRTCSessionDescription.new(GstWebRTC.WebRTCSDPType.ANSWER, message)
        self._peer.emit("set-remote-description", described, Gst.Promise.new())
        return False

    def _call(
        self, method: str, url: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[str, str]:
        request = urllib.request.Request(
            url, data=body.encode() or None, headers=headers or {}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=20) as answer:
            return answer.read().decode(), answer.headers.get("Location", "")

    def _state(self, peer: object, _spec: object) -> None:
        state = peer.get_property("connection-state")  # type: ignore[attr-defined]
        if state == GstWebRTC.WebRTCPeerConnectionState.CONNECTED:
            print("connected", flush=True)  # noqa: T201  the caller reads it
        elif state == GstWebRTC.WebRTCPeerConnectionState.FAILED:
            self._fail("the connection failed")

    def _fail(self, why: object) -> None:
        print(f"error: {why}", flush=True)  # noqa: T201
        self._loop.quit()


Gst.init(None)
Client(*sys.argv[1:4]).run()
