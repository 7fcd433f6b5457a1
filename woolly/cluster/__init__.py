"""MANY MACHINES: one server before several replicas of a model."""

from woolly.cluster.routing import Choice, Router, Ticket

__all__ = ["Choice", "Router", "Ticket"]
