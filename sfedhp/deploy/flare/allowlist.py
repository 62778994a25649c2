"""The allowlist of requests from outside: FLARE answers only those that the roles need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)

from sfedhp.deploy.rejection_log import RejectionLog

CHANNEL: Final = "sfedhp"  # where the roles' messages go
TOPIC: Final = "message"
# The roles' own messages, and what FLARE needs for members to register, to stay and to leave.
_ALLOWED: Final = {
    (CHANNEL, TOPIC),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    (CellChannel.CELLNET, CellChannelTopic.Bye),
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
}


_NO_SUCH: Final = "no such service here"


class Allowlist:
    """Accepts the messages of the roles, and rejects all others that FLARE could answer or forward.

    By default, a FLARE site also obeys administrators, accepts jobs, answers questions about its network and
    relays messages between members. The roles need none of that, so it is rejected for every certificate.
    """

    def __init__(
        self, cell: Any, rejections: RejectionLog, is_revoked: Callable[[str], bool] = lambda name: False
    ):
        """Watch a cell.

        Args:
            cell: FLARE's.
            rejections: where rejections are logged.
            is_revoked: whether the certificate that a member is connected with is revoked.
        """
        self._name, self._rejections, self._is_revoked = cell.get_fqcn(), rejections, is_revoked
        cell.core_cell.set_message_interceptor(self.reject)
        # The interceptor sees requests alone. FLARE would relay a reply from one member to another.
        cell.core_cell.add_incoming_filter(channel="*", topic="*", cb=self.reject_misdirected)

    def reject_misdirected(self, message: Message) -> Message | None:
        """The reply that rejects a message for another site, or under another name; else None.

        FLARE drops a message to which a filter replies.
        """
        header = message.get_header
        origin, destination = header(MessageHeaderKey.ORIGIN), header(MessageHeaderKey.DESTINATION)
        certified = message.get_prop(MessagePropKey.COMMON_NAME)
        what = ""
        if destination != self._name and header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ:
            what = "a message for another site"
        elif self._name == FQCN.ROOT_SERVER and certified and origin != certified:
            what = "a message under another name"
        elif self._is_revoked(str(origin)):
            what = "a revoked certificate"
        if not what:
            return None
        detail = f"{header(MessageHeaderKey.MSG_TYPE)} of {origin} for {destination}"
        self._rejections.note(what, str(certified or origin), detail=detail)
        return make_reply(ReturnCode.UNAUTHENTICATED, error=_NO_SUCH)

    def reject(self, message: Message) -> Message | None:
        """The reply to a request that is rejected; None for one that is accepted."""
        header = message.get_header
        channel, topic = header(MessageHeaderKey.CHANNEL), header(MessageHeaderKey.TOPIC)
        if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
            channel, topic = header(StreamHeaderKey.CHANNEL), header(StreamHeaderKey.TOPIC)
        destination = header(MessageHeaderKey.DESTINATION)
        if destination == self._name and (channel, topic) in _ALLOWED:
            return None
        what = "an administrator's command" if channel == CellChannel.HCI else "a request that no role sends"
        # The name in its certificate; the name that it claims is not verified.
        sender = message.get_prop(MessagePropKey.COMMON_NAME) or header(MessageHeaderKey.ORIGIN)
        detail = f"{topic} of {channel} for {destination}"
        self._rejections.note(what, str(sender), detail=detail)
        return make_reply(ReturnCode.UNAUTHENTICATED, error=_NO_SUCH)
