"""What of FLARE's abilities the outside may use: none but what the roles need."""

from __future__ import annotations

from typing import Any, Final

from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    MessageHeaderKey,
    MessagePropKey,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)

from sfedhp.deploy.flare.rejections import Refusals

CHANNEL: Final = "sfedhp"  # where the roles' messages go
TOPIC: Final = "message"
# What may come in: the roles' own messages, and what FLARE needs to let members in and to see them go.
_WELCOME: Final = {
    (CHANNEL, TOPIC),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Challenge),
    (CellChannel.SERVER_MAIN, CellChannelTopic.Register),
    (CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT),
    (CellChannel.CELLNET, CellChannelTopic.Bye),
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
}


class Gate:
    """Lets in what the roles send each other and nothing else of what FLARE can do.

    FLARE's site listens to administrators, to jobs and to questions about its network, and passes messages on
    between members. Nobody needs that here, so nobody gets an answer, whatever certificate they have.
    """

    def __init__(self, cell: Any, refusals: Refusals):
        self._name, self._refusals = cell.get_fqcn(), refusals
        cell.core_cell.set_message_interceptor(self.refuse)

    def refuse(self, message: Message) -> Message | None:
        """The reply to a request that is not let in; None to one that is."""
        about = message.get_header
        channel, topic = about(MessageHeaderKey.CHANNEL), about(MessageHeaderKey.TOPIC)
        if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
            channel, topic = about(StreamHeaderKey.CHANNEL), about(StreamHeaderKey.TOPIC)
        destination = about(MessageHeaderKey.DESTINATION)
        if destination == self._name and (channel, topic) in _WELCOME:
            return None
        what = "an administrator's command" if channel == CellChannel.HCI else "what no role sends"
        # Who it is by its certificate; what it calls itself is worth less.
        sender = message.get_prop(MessagePropKey.COMMON_NAME) or about(MessageHeaderKey.ORIGIN)
        detail = f"{topic} of {channel} for {destination}"
        self._refusals.note(what, str(sender), detail=detail)
        return make_reply(ReturnCode.UNAUTHENTICATED, error="there is no such service here")
