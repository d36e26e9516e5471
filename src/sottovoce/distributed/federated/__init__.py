"""One agent of a federation: an agreement of organisations, trained over TLS."""

from sottovoce.distributed.federated.session import AgentSettings, Departed, Federation, federation

__all__ = ["AgentSettings", "Departed", "Federation", "federation"]
