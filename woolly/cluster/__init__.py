"""MANY MACHINES: one server before several replicas of a model."""

from woolly.cluster.routing import Route, Router, Ticket

__all__ = ["Route", "Router", "Ticket"]
