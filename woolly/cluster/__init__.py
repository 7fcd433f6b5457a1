"""Clusters: a front for several replicas of a model, and pipeline stages on several machines."""

from woolly.cluster.routing import Route, Router, Ticket

__all__ = ["Route", "Router", "Ticket"]
