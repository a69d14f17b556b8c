"""Everything that can go wrong between bso and its broker, grouped by what the caller has to do."""

from __future__ import annotations

from bso.domain.errors import Misconfigured, Rejected, Retryable, WrongSetting


class BrokerUnreachable(Retryable):
    """The broker does not answer: it is down, starting, or cut off."""


class ConnectionLost(Retryable):
    """The connection broke; what was under way on it may or may not have happened."""


class BrokerClosed(Retryable):
    """This side of the connection was closed or not started: start it first."""


class CallTimeout(Retryable):
    """No reply came before the deadline; the command may have been carried out, so repeat it with the same id."""


class NoRoom(Retryable):
    """So many of the login wait already that no more may."""


class PublishFailed(Retryable):
    """The broker did not take the message over."""


class TopologyMissing(Retryable):
    """An exchange or queue is not there yet: a worker declares them when it starts."""


class NoCommandQueue(TopologyMissing):
    """No queue takes commands: no worker has ever been started on this virtual host."""


class InvalidBrokerUrl(WrongSetting):
    """The address is not one of a broker: amqp://user:password@host:5672/virtual-host is."""


class LoginRefused(Misconfigured):
    """The broker refuses this user name and password."""


class VirtualHostRefused(Misconfigured):
    """The virtual host does not exist, or this user may not use it."""


class TopologyMismatch(Misconfigured):
    """An exchange or queue exists with other properties than bso needs."""


class NotPermitted(Misconfigured):
    """This user lacks a permission on an exchange or queue."""


class ForgedReplyAddress(Rejected):
    """A command asks for its reply at an address that is not a reply queue of its sender."""


class MessageTooLarge(Rejected):
    """The message is larger than brokers accept."""
